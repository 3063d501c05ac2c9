"""Page store: contents and out-of-band data of physical pages.

Owns page contents in segments of 64 MiB of address space, in anonymous memory or in files of a
folder. Memory is committed only for pages that are written. Does not own addresses
(ftl/page_map.py) or time (channel.py).
Source: NAND spare areas as FTLs use them: LPN, sequence number and checksum with every page; in the
optimizer's reservoir also slot and step (OptimStore, HPCA 2023: pages that a die programs).
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ondie.emu.engine.core import payload_log
from ondie.emu.nand.geometry import Geometry
from ondie.emu.units import InputError
from ondie.kernels.crc import crc32c

SEGMENT_BYTES = 1 << 26
OOB = np.dtype(
    [
        ("lpn", "i8"),  # logical page, or super-page of the reservoir
        ("sequence", "i8"),  # number of the program that wrote the data first; copies keep it
        ("step", "i8"),  # optimizer step whose result the page holds (reservoir)
        ("slot", "u4"),  # plane within its super-page, which selects the vector (reservoir)
        ("checksum", "u4"),  # of the page's bytes
        ("seal", "u4"),  # of this record
        ("written", "u4"),
        ("sectors", "i8"),  # bit mask of the sectors that hold data (conventional pages)
        ("stream", "u4"),  # stream that fills the block (conventional pages)
        ("erases", "u4"),  # erase count of the block (conventional pages)
    ]
)
"""Out-of-band data of a page, the record ondie_spare of csrc/ondie.h."""
ERASED, PROGRAMMED, TORN = range(3)
"""Values of ``written``, the state of the cells. TORN: power was lost during a program or an erase.
A torn page may read as valid, blank or damaged. It must be erased before the next program."""
SPARE_BYTES = 36
"""Bytes of out-of-band data of a reservoir page: the fields of OOB before ``written``, the state of
the cells."""
BLANK = -1
"""Value of ``lpn`` for a torn page that reads as erased."""


class Spare(NamedTuple):
    """Out-of-band data of a page whose out-of-band checksum (seal) is valid."""

    lpn: int
    sequence: int
    step: int
    slot: int


def out_of_band(spare: Spare, data: np.ndarray) -> np.ndarray:
    """Return the out-of-band data of a page as the cells store them, uint8[SPARE_BYTES].

    ``data``: bytes of the page, uint8[page_bytes], for the checksum.
    """
    checksum = crc32c(data)
    held = np.zeros(1, OOB)
    held[0] = record_of(spare, checksum, 0)
    return held.view(np.uint8)[:SPARE_BYTES].copy()


def record_checksum(
    lpn: int, sequence: int, step: int, slot: int, checksum: int, *conventional: int
) -> int:
    """Return the seal of an out-of-band record with these fields: a CRC-32C of all fields but seal
    and ``written``. ``conventional``: sectors, stream and erases; 0 if left out.
    """
    rest = conventional or (0, 0, 0)
    return crc32c(struct.pack("<qqqIIqII", lpn, sequence, step, slot, checksum, *rest))


def record_of(spare: Spare, checksum: int, written: int) -> tuple[int, ...]:
    """Return the fields of a sealed out-of-band record (OOB)."""
    return (*spare, checksum, record_checksum(*spare, checksum), written, 0, 0, 0)


def anonymous(size: int) -> mmap.mmap:
    """Return ``size`` bytes of memory that is committed as it is written, in large pages where the
    system has them."""
    found = mmap.mmap(-1, max(size, 1))
    with contextlib.suppress(AttributeError, OSError):  # no such advice, or none that is taken
        found.madvise(mmap.MADV_HUGEPAGE)
    return found


class PageStore:
    """Page contents of one device, by physical page number.

    With ``folder``, the segments are sparse files. Without it, they are in memory and are lost when
    the process ends. A read of a page that is not programmed raises InputError. A read does not
    check the stored checksum, so it returns damaged bytes (an injected fault); :meth:`intact`
    detects them.
    """

    def __init__(self, page_bytes: int, folder: Path | None = None, pages: int = 0) -> None:
        self.page_bytes = page_bytes
        self._folder = folder
        self._per_segment = SEGMENT_BYTES // page_bytes
        segments = -(-pages // self._per_segment)
        self.page_at, self.spare_at = np.zeros(segments, np.uint64), np.zeros(segments, np.uint64)
        """Addresses of the pages and of the out-of-band data of each segment, uint64[segments], for
        C; 0: not open. Empty unless ``pages``, the number of physical pages, is given."""
        self._segments: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._sequence = 0
        self._members: dict[int, np.ndarray] = {}

    @property
    def segment_pages(self) -> int:
        """Number of pages of a segment."""
        return self._per_segment

    def open_segment(self, number: int) -> None:
        """Make the memory of segment ``number`` accessible."""
        self._segment(number * self._per_segment)

    def _segment(self, ppn: int) -> tuple[np.ndarray, np.ndarray, int]:
        number, at = divmod(ppn, self._per_segment)
        if number not in self._segments:
            data = self._map(f"segment-{number}.pages", SEGMENT_BYTES)
            oob = self._map(f"segment-{number}.oob", self._per_segment * OOB.itemsize)
            self._segments[number] = (
                np.frombuffer(data, np.uint8)[: self._per_segment * self.page_bytes].reshape(
                    self._per_segment, self.page_bytes
                ),
                np.frombuffer(oob, OOB),
            )
            if len(self.page_at):
                pages, records = self._segments[number]
                self.page_at[number], self.spare_at[number] = (
                    pages.ctypes.data,
                    records.ctypes.data,
                )
        pages, oob_records = self._segments[number]
        return pages, oob_records, at

    def _map(self, name: str, size: int) -> mmap.mmap:
        if self._folder is None:
            return anonymous(size)
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / name, "w+b") as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)

    def write(self, ppn: int, lpn: int, data: np.ndarray) -> None:
        """Program physical page ``ppn`` with ``data``, uint8[page_bytes], of logical page ``lpn``.

        Raises InputError if the page is not erased.
        """
        self._program(ppn, lpn, data, self._sequence + 1, crc32c(data))
        self._sequence += 1

    def _program(self, ppn: int, lpn: int, data: np.ndarray, sequence: int, checksum: int) -> None:
        pages, oob, at = self._segment(ppn)
        if oob[at]["written"]:
            raise InputError(f"physical page {ppn} is programmed twice without an erase")
        pages[at] = data
        oob[at] = record_of(Spare(lpn, sequence, 0, 0), checksum, PROGRAMMED)

    def program(
        self,
        ppn: int,
        spare: Spare,
        data: np.ndarray,
        state: int = PROGRAMMED,
        members: np.ndarray | None = None,
    ) -> np.record:
        """Program a page of the reservoir with out-of-band data from its controller.

        Returns the out-of-band record, for changes. ``members``, for a parity page only: the
        exclusive or of the out-of-band data of the pages that it protects, uint8[SPARE_BYTES],
        stored instead of ECC parity, which these pages do not have. Raises InputError if the page
        is not erased.
        """
        pages, oob, at = self._segment(ppn)
        if oob[at]["written"]:
            raise InputError(f"physical page {ppn} is programmed twice without an erase")
        pages[at] = data
        checksum = crc32c(data)
        oob[at] = record_of(spare, checksum, state)
        if members is not None:
            self._members[ppn] = members.copy()
        return oob[at]

    def record(self, ppn: int) -> np.ndarray:
        """Return the out-of-band data of a page as its cells store them, uint8[SPARE_BYTES]."""
        _, oob, at = self._segment(ppn)
        return oob[at : at + 1].view(np.uint8)[:SPARE_BYTES].copy()

    def members(self, ppn: int) -> np.ndarray:
        """Return the exclusive or of the out-of-band data of the pages that parity page ``ppn``
        protects, uint8[SPARE_BYTES]. Raises InputError if the page is not programmed.
        """
        self.read(ppn)
        return self._members[ppn]

    def torn(self, ppn: int) -> np.record:
        """Mark a page as torn (partly programmed or erased) and return its record for changes.

        The page must be erased before the next program.
        """
        _, oob, at = self._segment(ppn)
        if not oob[at]["written"]:
            oob[at] = (BLANK, -1, -1, 0, 0, 0, TORN, 0, 0, 0)
        oob[at]["written"] = TORN
        return oob[at]

    def spoil(self, ppn: int, done: bool = True) -> None:
        """Overwrite a page without an erase, so that it reads neither as blank nor as valid.

        If ``done`` is False, the overwrite has only begun: the page is marked as torn but keeps its
        bytes.
        """
        record = self.torn(ppn)
        if done:
            self.read(ppn)[:] = 0
            record["lpn"], record["seal"] = 0, ~record_checksum(0, -1, -1, 0, 0) & 0xFFFFFFFF
            record["sequence"] = record["step"] = -1
            record["slot"] = record["checksum"] = 0

    def spare(self, ppn: int) -> Spare | None | bool:
        """Return the out-of-band data of a page as a controller reads them.

        Returns None if the page is blank, and False if the checksum (seal) is wrong.
        """
        _, oob, at = self._segment(ppn)
        record = oob[at]
        if not record["written"] or record["lpn"] == BLANK:
            return None
        found = Spare(
            int(record["lpn"]), int(record["sequence"]), int(record["step"]), int(record["slot"])
        )
        rest = (int(record[name]) for name in ("checksum", "sectors", "stream", "erases"))
        return found if record_checksum(*found, *rest) == record["seal"] else False

    def read(self, ppn: int) -> np.ndarray:
        """Return a page's bytes, uint8[page_bytes], as a view; copy it before the next write.

        Raises InputError if the page is not programmed.
        """
        pages, oob, at = self._segment(ppn)
        if not oob[at]["written"]:
            raise InputError(f"physical page {ppn} is read before it was programmed")
        return pages[at]

    def intact(self, ppn: int) -> bool:
        """Return True if the page is programmed and its bytes match the stored checksum."""
        pages, oob, at = self._segment(ppn)
        return bool(oob[at]["written"]) and crc32c(pages[at]) == oob[at]["checksum"]

    def owner(self, ppn: int) -> int:
        """Return the logical page number in the out-of-band data, or -1 if the page is not
        programmed.
        """
        _, oob, at = self._segment(ppn)
        return int(oob[at]["lpn"]) if oob[at]["written"] else -1

    def sequence(self, ppn: int) -> int:
        """Return the sequence number of the page's data, from 1, or 0 if the page is not programmed
        or holds data that were superseded before they reached flash.
        """
        _, oob, at = self._segment(ppn)
        return int(oob[at]["sequence"]) if oob[at]["written"] else 0

    def follow(self, entry: payload_log.LogEntry, geometry: Geometry) -> bool:
        """Apply an entry of the engine's log that changes stored pages only: a page moved by
        garbage collection, or an erased block. Return False for every other kind of entry."""
        match entry.what:
            case payload_log.LOG_MOVE:
                self.move(entry.old, entry.ppn, entry.lpn)
            case payload_log.LOG_ERASE:
                self.erase(entry.ppn, entry.n, entry.old, geometry.planes)
            case _:
                return False
        return True

    def move(self, source: int, target: int, lpn: int) -> None:
        """Copy physical page ``source`` to ``target``, as garbage collection does.

        The sequence number is that of the data: a copy that ends after a newer write of the page is
        not newer. The checksum is copied, not computed, so that a damaged page remains detectable.
        """
        data = self.read(source).copy()
        _, oob, at = self._segment(source)
        held = oob[at]
        self._program(target, lpn, data, int(held["sequence"]), int(held["checksum"]))

    def programmed(self) -> Iterator[tuple[int, int, int]]:
        """Yield (ppn, lpn, sequence number) of every programmed page, as recovery reads them."""
        for number, (_, oob) in sorted(self._segments.items()):
            for at in np.flatnonzero(oob["written"]):
                ppn = number * self._per_segment + int(at)
                yield ppn, int(oob["lpn"][at]), int(oob["sequence"][at])

    def erase(self, first_ppn: int, count: int, mask: int = -1, planes: int = 1) -> None:
        """Erase the pages among ``count`` pages from ``first_ppn`` on that are in selected planes.

        Consecutive pages are in consecutive planes, modulo ``planes``. Bits of ``mask`` select the
        planes to erase.
        """
        which = np.array([mask >> plane & 1 for plane in range(planes)], bool)
        for number in range(
            first_ppn // self._per_segment, (first_ppn + count - 1) // self._per_segment + 1
        ):
            if number not in self._segments:
                continue
            oob = self._segments[number][1]
            start = max(first_ppn - number * self._per_segment, 0)
            stop = min(first_ppn + count - number * self._per_segment, self._per_segment)
            at = (np.arange(start, stop) + number * self._per_segment - first_ppn) % planes
            oob["written"][start:stop][which[at]] = 0
        if self._members:
            for ppn in range(first_ppn, first_ppn + count):
                if which[(ppn - first_ppn) % planes]:
                    self._members.pop(ppn, None)

    def flip(self, ppn: int, byte: int, mask: int = 0xFF) -> None:
        """Flip the bits ``mask`` of byte ``byte`` of a stored page, as raw bit errors do."""
        pages, _, at = self._segment(ppn)
        pages[at, byte] ^= mask

    def damage(self, ppn: int, mask: np.ndarray) -> None:
        """Flip the stored bits that ``mask``, uint8[page_bytes], selects. Keep the checksum.

        Raises InputError if the page is not programmed.
        """
        pages, oob, at = self._segment(ppn)
        if not oob[at]["written"]:
            raise InputError(f"physical page {ppn} has no bits to flip: it was never programmed")
        pages[at] ^= mask
