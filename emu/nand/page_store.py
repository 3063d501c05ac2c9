"""Page store: contents and out-of-band data of physical pages.

Owns page contents in segments of 64 MiB of address space, in anonymous memory or in files of a
store. Memory is committed only for pages that are written. Does not own the files
(segment_files.py), addresses (ftl/page_map.py) or time (channel.py).
Source: NAND spare areas as FTLs use them; the reservoir's slot and step: OptimStore (HPCA 2023).
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ondie.emu.nand.sealed_records import READS_VALID, read_spares
from ondie.emu.nand.segment_files import GROUP_PAGES, MOST_OPEN, SegmentFiles
from ondie.emu.nand.store_folder import SEGMENT_BYTES, StoreFolder
from ondie.emu.units import InputError
from ondie.kernels.crc import crc32c

OOB = np.dtype(
    [
        ("lpn", "i8"),  # logical page, or super-page of the reservoir
        ("sequence", "i8"),  # number of the program that wrote the data first; copies keep it
        ("step", "i8"),  # optimizer step of the page (reservoir); number of the program
        ("slot", "u4"),  # plane within its super-page, which selects the vector (reservoir)
        ("checksum", "u4"),  # of the page's bytes
        ("seal", "u4"),  # of this record
        ("written", "u4"),
        ("sectors", "i8"),  # bit mask of the sectors that hold data (conventional pages)
        ("stream", "u4"),  # stream that fills the block (conventional pages)
        ("erases", "u4"),  # erase count of the block; not of parity pages
    ]
)
"""Out-of-band data of a page; the same layout as ondie_spare in csrc/ondie.h. In a parity page of
the reservoir, the last three fields hold the exclusive or of ``sequence``, ``checksum`` and
``seal`` of the protected pages."""
ERASED, PROGRAMMED, TORN = 0, 0x50A35AC6, 0x2F5CA539
"""Values of field ``written`` of the out-of-band data, the state of the cells (enum ondie_written
of csrc/ondie.h). TORN: power was lost, or the process was killed, during a program or an erase. A
torn page may read as valid, blank or damaged. It must be erased before the next program. Any two
values differ in every byte, so that a damaged byte does not turn one value into another. A hole of
a file reads as erased."""
CODED, UNCODED, DIE_CODED = range(3)
"""Kinds of check bytes of a reservoir page, stored in field ``stream`` of the page's out-of-band
data: written by the controller's ECC (CODED), not valid (UNCODED), written by the on-die ECC
(DIE_CODED)."""
SPARE_BYTES = 36
"""Number of bytes of out-of-band data of a reservoir page: the fields of OOB before ``written``."""
BLANK, PADDING, FIRST_PASS = -1, -2, -3
"""Values of field ``lpn`` of the out-of-band data that are not logical pages: a torn page that
reads as erased, a page programmed without data (ONDIE_PADDING of csrc/ondie.h), and a torn page
after the first of two passes (ONDIE_FIRST_PASS), whose second pass may follow without an erase."""


class Spare(NamedTuple):
    """Out-of-band data of a page whose out-of-band checksum (seal) is valid."""

    lpn: int
    sequence: int
    step: int
    slot: int


def out_of_band(spare: Spare, data: np.ndarray) -> np.ndarray:
    """Return the out-of-band data of a page as the cells store it, uint8[SPARE_BYTES]. ``data``:
    bytes of the page, uint8[page_bytes], for the checksum."""
    checksum = crc32c(data)
    held = np.zeros(1, OOB)
    held[0] = record_of(spare, checksum, 0)
    return held.view(np.uint8)[:SPARE_BYTES].copy()


def record_checksum(
    lpn: int, sequence: int, step: int, slot: int, checksum: int, *conventional: int
) -> int:
    """Return the seal of an out-of-band record with these fields: a CRC-32C of all fields except
    seal and ``written``. ``conventional``: fields ``sectors``, ``stream`` and ``erases``; 0 if
    omitted."""
    rest = conventional or (0, 0, 0)
    return crc32c(struct.pack("<qqqIIqII", lpn, sequence, step, slot, checksum, *rest))


def record_of(
    spare: Spare, checksum: int, written: int, last: tuple[int, int, int] = (0, 0, 0)
) -> tuple[int, ...]:
    """Return the fields of an out-of-band record (OOB), including its seal
    (:func:`record_checksum`). ``last``: fields ``sectors``, ``stream`` and ``erases`` of OOB."""
    seal = record_checksum(*spare, checksum, *last)
    return (*spare, checksum, seal, written, *last)


def anonymous(size: int) -> mmap.mmap:
    """Return ``size`` bytes of anonymous memory. The operating system allocates the memory pages
    when they are first written, as huge pages if these are available."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # sparse_table.touched_parts needs it private
    found = mmap.mmap(-1, max(size, 1), flags=flags)
    with contextlib.suppress(AttributeError, OSError):  # no such advice, or none that is taken
        found.madvise(mmap.MADV_HUGEPAGE)
    return found


class PageStore:
    """Page contents of one device, by physical page number.

    With ``folder``, which must be open, the segments are sparse files, of which at most
    ``most_open`` are mapped at a time; :meth:`close` closes the folder. Without ``folder``, the
    segments are in memory and are lost when the process ends. A read of an erased page raises
    InputError. A read does not check the stored checksum, so it may return damaged bytes; method
    :meth:`intact` detects them.

    With files, every method raises InputError if a file cannot be used. A method that changes a
    page raises StoreFull if the file system is full; all pages then remain unchanged.
    """

    def __init__(
        self,
        page_bytes: int,
        folder: StoreFolder | None = None,
        pages: int = 0,
        most_open: int = MOST_OPEN,
    ) -> None:
        self.page_bytes = page_bytes
        self._per_segment = SEGMENT_BYTES // page_bytes
        segments = -(-pages // self._per_segment)
        self.files: SegmentFiles | None = None
        """Segments in files; None if the segments are in memory."""
        if folder is not None:
            self.files = SegmentFiles(folder, page_bytes, pages, OOB, most_open)
            self.page_at, self.spare_at = self.files.page_at, self.files.spare_at
            blank = np.zeros(self._per_segment, OOB)
            blank.flags.writeable = False
            self._blank = np.zeros((0, page_bytes), np.uint8), blank
        else:
            self.page_at, self.spare_at = np.zeros((2, segments), np.uint64)
        """Addresses of the pages and of the out-of-band data of each segment, uint64[segments], for
        C; 0 if the segment is not open. Empty unless ``pages``, the number of physical pages, is
        given."""
        self._segments: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._sequence = 0

    @property
    def where(self) -> str:
        """Location of the pages for messages: the folder, or "flash" without a folder."""
        return "flash" if self.files is None else str(self.files.folder.path)

    @property
    def segment_pages(self) -> int:
        """Number of pages of a segment."""
        return self._per_segment

    def open_segment(self, number: int, create: bool = True) -> None:
        """Make the memory of segment ``number`` accessible. If its files are missing, create them
        if ``create`` is True, otherwise raise InputError."""
        if self.files is None:
            self._segment(number * self._per_segment)
        elif self.files.find(number, create) is None:
            raise InputError(f"{self.where}: segment {number} is missing; restore it from a copy")

    def reserve(self, ppn: int) -> None:
        """Reserve file space for page ``ppn``."""
        self._changeable(ppn)

    def _segment(self, ppn: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the page contents and the out-of-band records of the segment with page ``ppn``,
        and the index of the page in both. If the page has no file space, return an empty array of
        contents and blank records."""
        number, at = divmod(ppn, self._per_segment)
        if self.files is not None:
            segment = self.files.find(number)
            if segment is None or not self.files.holds(segment, at):
                return *self._blank, at
            return segment.pages, segment.records, at
        if number not in self._segments:
            data = anonymous(SEGMENT_BYTES)
            oob = anonymous(self._per_segment * OOB.itemsize)
            self._segments[number] = (
                np.frombuffer(data, np.uint8)[: self._per_segment * self.page_bytes].reshape(
                    self._per_segment, self.page_bytes
                ),
                np.frombuffer(oob, OOB)[: self._per_segment],
            )
            if len(self.page_at):
                pages, records = self._segments[number]
                self.page_at[number], self.spare_at[number] = (
                    pages.ctypes.data,
                    records.ctypes.data,
                )
        pages, oob_records = self._segments[number]
        return pages, oob_records, at

    def _changeable(self, ppn: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Reserve file space for page ``ppn`` if necessary, and return the arrays and the index
        that :meth:`_segment` returns."""
        if self.files is None:
            return self._segment(ppn)
        number, at = divmod(ppn, self._per_segment)
        segment = self.files.changeable(number, at)
        return segment.pages, segment.records, at

    def segments_on_disk(self) -> list[int]:
        """Return the sorted numbers of the segments that have files or are in memory."""
        return sorted(self._segments) if self.files is None else self.files.numbers()

    def records(self, number: int) -> np.ndarray:
        """Return the out-of-band data of segment ``number``, OOB[segment_pages], read-only, without
        mapping its pages. Without files, the array is a view."""
        if self.files is not None:
            return self.files.records(number)
        found = self._segment(number * self._per_segment)[1][:]
        found.flags.writeable = False
        return found

    @property
    def full(self) -> bool:
        """True if the file system has run out of space. The files are then no longer changed."""
        return self.files is not None and self.files.in_memory

    def keep_in_memory(self) -> None:
        """Keep later changes in memory, because the file system is full. The files remain
        unchanged, and the changes are lost when the process ends."""
        assert self.files is not None
        self.files.keep_in_memory()

    @property
    def syncs(self) -> bool:
        """True if the store must survive a power loss of the host (durability "host")."""
        return self.files is not None and self.files.folder.syncs

    def may_have_lost_syncs(self) -> bool:
        """Return True if the store was not closed cleanly and a power loss of the host may have
        damaged any page that changed after the last sync (durability "host"). The next sync then
        covers all segments, including changes by an earlier process."""
        if self.files is None or self.files.folder.superblock.clean:
            return False
        if self.syncs and not self.full:
            self.files.mark_all_changed()
        return self.files.folder.superblock.durability == "host"

    def sync(self) -> None:
        """Make all changes durable. Do nothing if no files exist or changes stay in memory."""
        if self.files is not None and not self.files.in_memory:
            self.files.sync()

    def page_records(self, ppns: np.ndarray) -> np.ndarray:
        """Return copies of the out-of-band data of pages ``ppns`` (int64[n]), OOB[n]."""
        found, (numbers, at) = np.zeros(len(ppns), OOB), np.divmod(ppns, self._per_segment)
        for number in np.intersect1d(numbers, self.segments_on_disk()).tolist():
            own = np.flatnonzero(numbers == number)
            found[own] = self.records(int(number))[at[own]]
        return found

    def block_records(self, block_pages: int, pages: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first page, OOB[blocks, block_pages]) in order, for all blocks with a page in an
        existing segment. ``block_pages``: pages of a block; ``pages``: pages of the drive."""
        first, rest = 0, np.zeros(0, OOB)
        for number in self.segments_on_disk():
            start = number * self._per_segment
            gap = start - first - len(rest)
            if not len(rest):
                first = start - start % block_pages
                gap = start - first
            elif gap >= block_pages:
                yield first, _with_blanks(rest, block_pages)
                first, rest = start - start % block_pages, rest[:0]
                gap = start - first
            records = self.records(number)[: max(pages - start, 0)]
            rest = np.concatenate([rest, np.zeros(gap, OOB), records])
            whole = len(rest) // block_pages * block_pages
            if whole:
                yield first, rest[:whole].reshape(-1, block_pages)
                first, rest = first + whole, rest[whole:]
        if len(rest):
            yield first, _with_blanks(rest, block_pages)

    def close(self, clean: bool = False, checkpoint: int | None = None) -> None:
        """Close the files. Set the clean flag if ``checkpoint`` is given, or if ``clean`` is True
        and pages have changed. Do not set it if changes are kept in memory only. The files are
        synced before the flag is set, and always with durability "host". ``checkpoint``: checksum
        of a checkpoint that was written when the drive had nothing left to store. Without files, do
        nothing."""
        if self.files is None:
            return
        folder = self.files.folder
        try:
            if (checkpoint is not None or (folder.writing and clean)) and not self.full:
                self.files.sync()
                folder.set_clean(len(self.files.numbers()), checkpoint)
            elif folder.syncs:
                self.sync()
        finally:
            self.files.close()
            folder.close()

    def write(self, ppn: int, lpn: int, data: np.ndarray) -> None:
        """Program physical page ``ppn`` with ``data``, uint8[page_bytes], of logical page ``lpn``.

        Raises InputError if the page is not erased.
        """
        self._program(ppn, lpn, data, self._sequence + 1, crc32c(data))
        self._sequence += 1

    def _program(self, ppn: int, lpn: int, data: np.ndarray, sequence: int, checksum: int) -> None:
        self._store(ppn, data, record_of(Spare(lpn, sequence, 0, 0), checksum, TORN), PROGRAMMED)

    def _store(
        self, ppn: int, data: np.ndarray, record: tuple[int, ...], state: int
    ) -> np.record:  # fmt: skip
        """Program a page. It is marked as torn before its bytes change, and ``state`` is set last,
        so that the process may be killed at any time. Return the record."""
        pages, oob, at = self._segment(ppn)
        if oob[at]["written"]:
            raise InputError(f"physical page {ppn} is programmed twice without an erase")
        pages, oob, at = self._changeable(ppn)
        oob[at] = record
        pages[at] = data
        oob["written"][at] = state
        return oob[at]

    def program(
        self,
        ppn: int,
        spare: Spare,
        data: np.ndarray,
        state: int = PROGRAMMED,
        members: np.ndarray | None = None,
        erases: int = 0,
        code: int = CODED,
    ) -> np.record:
        """Program a page of the reservoir with ``data`` and the out-of-band data ``spare``.

        Returns the out-of-band record, which the caller may change. ``state``: value of the
        record's field ``written`` when the program has ended. ``erases``: erase count of the block,
        0 if it is not recorded. ``code``: CODED, UNCODED or DIE_CODED. ``members``, for a parity
        page: the exclusive or of the out-of-band data of the protected pages, uint8[SPARE_BYTES],
        stored instead of ``erases`` and ``code``. Raises InputError if the page is not erased.
        """
        last = (0, code, erases)
        if members is not None:
            joined = np.zeros(1, OOB)
            joined.view(np.uint8)[:SPARE_BYTES] = members
            fields = joined[0]
            last = int(fields["sequence"]), int(fields["checksum"]), int(fields["seal"])
        return self._store(ppn, data, record_of(spare, crc32c(data), TORN, last), state)

    def record(self, ppn: int) -> np.ndarray:
        """Return the out-of-band data of a page as its cells store it, uint8[SPARE_BYTES]."""
        _, oob, at = self._segment(ppn)
        return oob[at : at + 1].view(np.uint8)[:SPARE_BYTES].copy()

    def torn(self, ppn: int) -> np.record:
        """Mark a page as torn (partly programmed or erased) and return its record, which the caller
        may change. The page must be erased before the next program."""
        _, oob, at = self._changeable(ppn)
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
        """Return the out-of-band data of a page as a controller reads it. Returns None if the page
        is blank, and False if the checksum (seal) is wrong."""
        if self.files is None and ppn // self._per_segment not in self._segments:
            return None
        _, oob, at = self._segment(ppn)
        record = oob[at]
        if not record["written"] or record["lpn"] == BLANK:
            return None
        found = Spare(
            int(record["lpn"]), int(record["sequence"]), int(record["step"]), int(record["slot"])
        )
        rest = (int(record[name]) for name in ("checksum", "sectors", "stream", "erases"))
        return found if record_checksum(*found, *rest) == record["seal"] else False

    def erase_count(self, ppn: int) -> int:
        """Return the erase count of the block of a page, from the page's out-of-band data."""
        _, oob, at = self._segment(ppn)
        return int(oob[at]["erases"])

    def read(self, ppn: int) -> np.ndarray:
        """Return a page's bytes, uint8[page_bytes], as a view; copy it before the next write.
        Raises InputError if the page is erased."""
        pages, oob, at = self._segment(ppn)
        if not oob[at]["written"]:
            raise InputError(f"physical page {ppn} was read before it was programmed")
        return pages[at]

    def bytes_of(self, ppn: int) -> np.ndarray | None:
        """Return the memory of a page, programmed or not, uint8[page_bytes]; None if it has no
        memory yet."""
        pages, _, at = self._segment(ppn)
        return pages[at] if len(pages) else None

    def intact(self, ppn: int) -> bool:
        """Return True if the page is not erased and its bytes match the stored checksum."""
        pages, oob, at = self._segment(ppn)
        return bool(oob[at]["written"]) and crc32c(pages[at]) == oob[at]["checksum"]

    def is_written(self, ppn: int) -> bool:
        """Return True if a page is not erased: programmed or torn."""
        _, oob, at = self._segment(ppn)
        return bool(oob[at]["written"])

    def owner(self, ppn: int) -> int:
        """Return the logical page number in the out-of-band data, or -1 if the page is erased."""
        _, oob, at = self._segment(ppn)
        return int(oob["lpn"][at]) if oob["written"][at] else -1

    def sequence(self, ppn: int) -> int:
        """Return the sequence number of the page's data, from 1. Return 0 if the page is erased, or
        if its data was superseded before it reached flash."""
        _, oob, at = self._segment(ppn)
        return int(oob[at]["sequence"]) if oob[at]["written"] else 0

    def move(self, source: int, target: int, lpn: int) -> None:
        """Copy physical page ``source`` to ``target``, as garbage collection does.

        The copy keeps the sequence number of the data, so it does not supersede a newer write that
        ends earlier. The checksum is copied, not computed, so that a damaged page remains
        detectable. Raises InputError if ``source`` is erased or ``target`` is not.
        """
        data = self.read(source).copy()
        _, oob, at = self._segment(source)
        held = oob[at]
        self._program(target, lpn, data, int(held["sequence"]), int(held["checksum"]))

    def programmed(self) -> Iterator[tuple[int, int, int]]:
        """Yield (ppn, lpn, sequence number) of every page with data and a valid seal, as recovery
        reads them."""
        for number in self.segments_on_disk():
            oob = self.records(number)
            for at in np.flatnonzero((read_spares(oob) == READS_VALID) & (oob["lpn"] >= 0)):
                ppn = number * self._per_segment + int(at)
                yield ppn, int(oob["lpn"][at]), int(oob["sequence"][at])

    def erase(
        self, first_ppn: int, count: int, mask: int = -1, planes: int = 1, slots: int = 1
    ) -> None:
        """Erase the pages of a range that are in the planes that bit mask ``mask`` selects.

        The range has ``count`` pages and starts at ``first_ppn``. ``slots`` consecutive pages of
        the range are in one plane, the next ``slots`` pages in the next plane, modulo ``planes``.
        The default mask selects all planes.
        """
        which = np.array([mask >> plane & 1 for plane in range(planes)], bool).repeat(slots)
        if self.syncs:
            self.sync()  # the copies of the pages that were valid
        for number in range(
            first_ppn // self._per_segment, (first_ppn + count - 1) // self._per_segment + 1
        ):
            start = max(first_ppn - number * self._per_segment, 0)
            stop = min(first_ppn + count - number * self._per_segment, self._per_segment)
            at = (np.arange(start, stop) + number * self._per_segment - first_ppn) % len(which)
            if self.files is not None:
                self.files.erase(number, start, stop, which[at])
            elif number in self._segments:
                self._segments[number][1]["written"][start:stop][which[at]] = ERASED

    def flip(self, ppn: int, byte: int, mask: int = 0xFF) -> None:
        """Flip the bits ``mask`` of byte ``byte`` of a stored page, as raw bit errors do."""
        pages, _, at = self._changeable(ppn)
        pages[at, byte] ^= mask

    def damage(self, ppn: int, mask: np.ndarray) -> None:
        """Flip the stored bits that are set in ``mask``, uint8[page_bytes]. The checksum does not
        change. Raises InputError if the page is erased."""
        pages, oob, at = self._segment(ppn)
        if not oob[at]["written"]:
            raise InputError(f"physical page {ppn} has no bits to flip: it was never programmed")
        pages, _, at = self._changeable(ppn)
        pages[at] ^= mask


def _with_blanks(records: np.ndarray, block_pages: int) -> np.ndarray:
    """Pad records (OOB[n]) with blank records to whole blocks, OOB[blocks, block_pages]."""
    blanks = np.zeros(-len(records) % block_pages, OOB)
    return np.concatenate([records, blanks]).reshape(-1, block_pages)


assert GROUP_PAGES * OOB.itemsize % 4096 == 0, "records of two groups are in one block"
