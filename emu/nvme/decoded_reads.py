"""Reads that a real decoder has passed: batches of pages, and the status of their commands.

Owns the batch between the engine's log and the decoder. Does not own the decoder (nand/codec.py),
the memory of requests, or how a request fails (moved_bytes.py).
Source: this project.

The engine has drawn how many bits of a page are wrong and where; the decoder determines their
result. A page that it cannot correct fails its command and leaves the cache. The engine has counted
the pages that the capability model gives up; :meth:`DecodedReads.count` makes these the pages that
the decoder could not correct.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

import numpy as np

from ondie.emu.engine.core.counters import MEDIA_ERRORS, UNCORRECTABLE_PAGES
from ondie.emu.engine.core.events import ROW
from ondie.emu.engine.core.payload_log import LOG_FILL, LogEntry
from ondie.emu.engine.core.state import Arrays
from ondie.emu.nand import ecc
from ondie.emu.nand.codec import DecodedPage, Decoder, PageRead
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError

BATCH_PAGES = 64
"""Pages that are decoded together, at most."""


class DecodedRead(NamedTuple):
    """Result of decoding one page."""

    entry: LogEntry
    wrong: np.ndarray | None
    """uint8[page bytes]: the bits in which the decoded page differs from the stored one; None:
    none."""
    failed: bool
    fills: list[tuple[np.record, np.ndarray]]
    """For a page that could not be decoded: the log entries that put it into the cache, each with
    those that follow it."""


class DecodedReads:
    """Page reads of one log that wait for ``decoder``."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._waiting: list[tuple[LogEntry, PageRead, np.ndarray]] = []
        self._failed_rows: set[int] = set()

    def add(
        self, entry: LogEntry, store: PageStore, behind: np.ndarray, damaged: Container[int]
    ) -> bool:
        """Take ``entry`` of the log, which the entries ``behind`` follow, with a copy of its page.
        Return True if the batch is full. A page of ``damaged`` whose segment cannot be read is not
        taken: its request has failed.

        A translation page of the start has no stored bytes, and counts as zeros like those that the
        drive programs.
        """
        data = np.zeros(store.page_bytes, np.uint8)
        if entry.row >= 0 or store.is_written(entry.ppn):
            try:
                data[:] = store.read(entry.ppn)
            except InputError:
                if entry.ppn not in damaged:
                    raise
                return False
        read = PageRead(data, entry.key, entry.rate, entry.n, entry.old)
        self._waiting.append((entry, read, behind))
        return len(self._waiting) >= BATCH_PAGES

    def finish(self) -> Iterator[DecodedRead]:
        """Decode the pages that wait, and yield them in the order of the log."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        pages = self.decoder.decode([read for _, read, _ in waiting])
        for (entry, read, behind), page in zip(waiting, pages, strict=True):
            yield _decoded(entry, read, page, behind)

    def count(self, arrays: Arrays, page: DecodedRead) -> None:
        """Correct the counters of uncorrectable pages and of failed commands of plans by the
        decoder's result for ``page``. A command of a plan fails once, however many of its pages do.
        """
        entry = page.entry
        gave_up = entry.old == ecc.UNCORRECTABLE
        arrays.count[entry.dev, UNCORRECTABLE_PAGES] += int(page.failed) - int(gave_up)
        if not page.failed or entry.kind != ROW or entry.row < 0 or entry.row in self._failed_rows:
            return
        self._failed_rows.add(entry.row)
        row = arrays.row[entry.row & (len(arrays.row) - 1)]
        if row["id"] == entry.row:  # else the ring has another one in its place
            if row["status"] != Status.SUCCESS:
                return  # it has read data that were lost before
            row["status"] = Status.UNRECOVERED_READ_ERROR
        arrays.count[entry.dev, MEDIA_ERRORS] += 1


def _decoded(entry: LogEntry, read: PageRead, page: DecodedPage, behind: np.ndarray) -> DecodedRead:
    """Return what the decoder has made of a page."""
    wrong = page.data ^ read.data
    fills = []
    if page.failed:
        same = (behind["what"] == LOG_FILL) & (behind["lpn"] == entry.lpn)
        same &= (behind["ppn"] == entry.ppn) & (behind["dev"] == entry.dev)
        fills = [(behind[at], behind[at + 1 :]) for at in np.flatnonzero(same).tolist()]
    return DecodedRead(entry, wrong if wrong.any() else None, page.failed > 0, fills)
