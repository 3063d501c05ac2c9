"""Page reads that an implemented ECC decoder processes in batches.

Owns the queue of page reads between the engine's log and the decoder, and the correction of
counters and of the status of plan commands. Does not own the decoder (nand/codec.py), the memory of
requests, or the failure of requests (moved_bytes.py).
Source: this project.

The engine draws the number and positions of the bit errors of a page; the decoder determines
whether they can be corrected. If a page cannot be corrected, its command fails, and the page is
removed from the data cache. The engine counts uncorrectable pages by the capability model;
:meth:`DecodedReads.count` changes these counts to the decoder's results.
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
"""Maximum number of pages that are decoded together."""


class DecodedRead(NamedTuple):
    """Result of decoding one page that a request, a plan or the drive has read."""

    entry: LogEntry
    wrong: np.ndarray | None
    """Exclusive or of the decoded page and the stored page, uint8[page bytes]; None if the pages
    are equal."""
    failed: bool
    fills: list[tuple[np.record, np.ndarray]]
    """If the page could not be decoded: one (entry, following entries) for each log entry that
    inserted the page into the data cache, with the entries that follow it in the log. Otherwise
    empty."""


class DecodedReads:
    """Queue of page reads from the engine's log. ``decoder`` decodes them in batches."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._waiting: list[tuple[LogEntry, PageRead, np.ndarray]] = []
        self._failed_rows: set[int] = set()

    def add(
        self, entry: LogEntry, store: PageStore, behind: np.ndarray, damaged: Container[int]
    ) -> bool:
        """Add the page read that log entry ``entry`` records to the batch, with a copy of the page.
        Return True if the batch is full. ``behind``: entries that follow ``entry`` in the log.
        ``damaged``: physical pages whose requests have failed. If the segment of a page cannot be
        read, the page is not added if it is in ``damaged``; otherwise, InputError is raised.

        A translation page that existed at the start has no stored data. It is read as zeros, like
        the translation pages that the drive programs.
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
        """Decode the pages that wait, and yield the results in the order of the engine's log."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        pages = self.decoder.decode([read for _, read, _ in waiting])
        for (entry, read, behind), page in zip(waiting, pages, strict=True):
            yield _decoded(entry, read, page, behind)

    def count(self, arrays: Arrays, page: DecodedRead) -> None:
        """Correct the counters of uncorrectable pages and of failed plan commands according to the
        decoder's result for ``page``, and set the status of a plan command that failed. A plan
        command is counted as failed once, even if several of its pages fail."""
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
    """Return the result of decoding one page. ``behind``: log entries that follow ``entry``."""
    wrong = page.data ^ read.data
    fills = []
    if page.failed:
        same = (behind["what"] == LOG_FILL) & (behind["lpn"] == entry.lpn)
        same &= (behind["ppn"] == entry.ppn) & (behind["dev"] == entry.dev)
        fills = [(behind[at], behind[at + 1 :]) for at in np.flatnonzero(same).tolist()]
    return DecodedRead(entry, wrong if wrong.any() else None, page.failed > 0, fills)
