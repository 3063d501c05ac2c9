"""Segment files of a page store: mapping on demand, reservation and release of file space, sync.

Owns the segment files and their maps, of which a bounded number is open. Does not own the folder
(store_folder.py), the system calls (sparse_file.py) or the meaning of pages (page_store.py).
Source: second-chance (CLOCK) replacement, Corbato 1969.

A segment has two sparse files: the pages, and their out-of-band records. File space for a run of
pages is reserved when a page of the run is programmed for the first time. File space for the
records is reserved for a whole group of runs, in whole blocks of the file system. If the file
system is full, the files remain unchanged: see :meth:`SegmentFiles.keep_in_memory`.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ondie.emu.nand import sparse_file
from ondie.emu.nand.store_folder import SEGMENT_BYTES, StoreFolder, StoreFull
from ondie.emu.units import InputError
from ondie.kernels import native

MOST_OPEN = 1024
"""Default maximum number of segments that are mapped at the same time."""
LEAST_OPEN = 8
"""Smallest allowed value of ``most_open``. One record of the engine's log needs fewer segments."""
RUN_BYTES = 1 << 18
"""Maximum size of a run of pages in bytes. A run consists of the consecutive pages for which file
space is reserved together; it has at least one page."""
GROUP_PAGES = 512
"""Number of consecutive pages in a group. File space for the out-of-band records of a group is
reserved at once. The records of 512 pages fill whole blocks of the file system, so no block
contains records of two groups."""
BLOCK_BYTES = 4096
"""Assumed block size of the file system, in bytes. If the actual block is larger, erases release
less space.
"""
NAME = re.compile(r"segment-(0|[1-9]\d*)\.(pages|oob)")
HOLE, RECORDS, ROOM = range(3)
"""States of the file space of a run of pages (enum ondie_room of csrc/ondie.h): nothing reserved
(HOLE), space for the out-of-band records (RECORDS), space for records and pages (ROOM)."""
USED, CHANGED = 1, 2
"""Bits of the mark of a segment: used since the search for segments to unmap last passed the
segment (USED), changed since the last sync (CHANGED). Equal to enum ondie_mark of csrc/ondie.h."""


@dataclass(frozen=True)
class Segment:
    """A segment of the page store that is mapped into memory."""

    pages: np.ndarray
    """Contents of the segment's pages, uint8[pages, page_bytes]."""
    records: np.ndarray
    """Out-of-band records of the segment's pages, one per page."""
    room: np.ndarray | None
    """State of the file space of each run of pages, uint8[runs]; None if the segment is in memory.
    """


class SegmentFiles:
    """Segments of a store with ``pages`` pages of ``page_bytes``, each with an out-of-band record
    of type ``record``. At most ``most_open`` segments are mapped at the same time.
    """

    def __init__(
        self, folder: StoreFolder, page_bytes: int, pages: int, record: np.dtype, most_open: int
    ) -> None:
        if most_open < LEAST_OPEN:
            raise InputError(f"most_open = {most_open}: must be at least {LEAST_OPEN}")
        self.folder, self.page_bytes = folder, page_bytes
        self.segment_pages = SEGMENT_BYTES // page_bytes
        self.segments = -(-pages // self.segment_pages)
        fits = max(RUN_BYTES // page_bytes, 1)
        self.run_pages = min(1 << (fits.bit_length() - 1), GROUP_PAGES)
        """Number of pages of a run, a power of two."""
        self.page_at, self.spare_at, self.room_at = np.zeros((3, self.segments), np.uint64)
        """Addresses of the pages, the records and the file-space states (``room``) of each segment,
        for C. 0 if the segment is not open; the address of ``room`` is also 0 if the segment is in
        memory.
        """
        self.marks = np.zeros(self.segments, np.uint8)
        """Marks of each segment, uint8[segments]. USED: used since eviction last passed the
        segment. CHANGED: changed since the last sync.
        """
        self.in_memory = False
        """True if changes are kept in memory (:meth:`keep_in_memory`)."""
        self.punches = folder.superblock.holes
        """False if the file system cannot release file space."""
        self._record, self._most_open = record, most_open
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._created = self._closed = False
        self._failed = ""

    @property
    def open_segments(self) -> int:
        """Number of segments that are mapped."""
        return len(self._open)

    # --- files

    def _names(self, number: int) -> tuple[str, str]:
        return f"segment-{number}.pages", f"segment-{number}.oob"

    def _sizes(self) -> tuple[int, int]:
        return SEGMENT_BYTES, self.segment_pages * self._record.itemsize

    @contextmanager
    def _file(self, name: str, size: int, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a file of a segment. Raises FileNotFoundError if it does not exist. Raises
        InputError if its size is not ``size`` bytes, because bytes beyond the end of a truncated
        file cannot be mapped.
        """
        handle = self.folder.open_file(name, flags)
        try:
            held = os.fstat(handle).st_size
            if held != size:
                raise InputError(
                    f"{self.folder.path / name}: has {held} bytes, not {size}: it is "
                    f"{'truncated' if held < size else 'not a file of this store'}"
                )
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def both_files(self, number: int, flags: int = os.O_RDONLY) -> Iterator[tuple[int, int] | None]:
        """Open the pages file and the records file of a segment; yield None if the segment has no
        files. A pages file without contents and without a records file is ignored, because the
        process was killed while it created the files.

        Raises InputError if one of the files is missing or has another size.
        """
        (pages, oob), (pages_size, oob_size) = self._names(number), self._sizes()
        present = self._present(number)
        if present == (True, True):
            with (
                self._file(oob, oob_size, flags) as records_file,
                self._file(pages, pages_size, flags) as pages_file,
            ):
                yield pages_file, records_file
            return
        if present[1]:
            raise InputError(
                f"{self.folder.path / pages}: is missing; restore it from a copy of the store"
            )
        if present[0]:  # created, unless the process was killed in between; then nothing is in it
            with self._file(pages, pages_size) as handle:
                if os.fstat(handle).st_blocks:
                    raise InputError(
                        f"{self.folder.path / oob}: is missing; restore it from a copy of the store"
                    )
        yield None

    def _present(self, number: int) -> tuple[bool, bool]:
        """Return (pages, records): whether the pages and the out-of-band records of a segment have
        a file."""
        found = []
        for name in self._names(number):
            try:
                os.close(self.folder.open_file(name))
                found.append(True)
            except FileNotFoundError:
                found.append(False)
        return found[0], found[1]

    def numbers(self) -> list[int]:
        """Return the sorted numbers of the segments that have a file or are changed in memory.

        Raises InputError if a file has a segment number that the drive does not have.
        """
        found = set()
        for name in self.folder.names():
            match = NAME.fullmatch(name)
            if match is not None:
                number = int(match[1])
                if number >= self.segments:
                    raise InputError(
                        f"{self.folder.path / name}: is not a file of this store, whose last "
                        f"segment is {self.segments - 1}"
                    )
                found.add(number)
        if self.in_memory:
            found |= set(self._open)
        return sorted(found)

    def records(self, number: int) -> np.ndarray:
        """Return a read-only copy of the out-of-band records of a segment without mapping its
        pages; erased records if the segment has no files. Raises InputError if a file is missing or
        has another size.
        """
        segment = self._open.get(number)
        if segment is not None and segment.room is None:
            found = segment.records.copy()
            found.flags.writeable = False
            return found
        with self.both_files(number) as files:
            size = self._sizes()[1]
            return np.frombuffer(bytes(size) if files is None else _read(files[1], size, 0),
                                 self._record)  # fmt: skip

    def read_pages(self, number: int, places: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield a copy of each of the pages with the indices ``places`` in a segment,
        uint8[page_bytes], read from its file. Raises FileNotFoundError if the file is missing, and
        InputError if it cannot be used."""
        with self._file(self._names(number)[0], SEGMENT_BYTES) as handle:
            for at in places:
                raw = _read(handle, self.page_bytes, at * self.page_bytes)
                yield np.frombuffer(raw, np.uint8)

    # --- maps

    def find(self, number: int, create: bool = False) -> Segment | None:
        """Return a segment, and map it if necessary. Return None if it has no files and ``create``
        is False.

        Raises StoreFull if the file system is full, and InputError if a file cannot be used or the
        store is closed.
        """
        segment = self._open.get(number)
        if segment is None:
            if self._closed:
                raise InputError(f"{self.folder.path}: the store is closed")
            segment = self._map(number, create)
            if segment is None:
                return None
            self._make_room_for_one()
            self._open[number] = segment
            self._set_addresses(number, segment)
        self.marks[number] |= USED
        return segment

    def _map(self, number: int, create: bool) -> Segment | None:
        with self.both_files(number, os.O_RDWR) as files:
            if files is not None:
                with self.folder.named(doing="a segment cannot be mapped"):
                    return self._mapped(*files)
        if not create:
            return None
        if self.in_memory:
            pages, oob = map(sparse_file.blank, self._sizes())
            return self._shaped(pages, oob, None)
        self.folder.begin_writing()
        for name, size in zip(self._names(number), self._sizes(), strict=True):
            self.folder.create(name, size)
        self._created = True
        return self._map(number, create=False)

    def _mapped(self, pages_file: int, oob_file: int) -> Segment:
        pages_size, oob_size = self._sizes()
        if self.in_memory:
            pages = sparse_file.map_private(pages_file, pages_size)
            return self._shaped(pages, sparse_file.map_private(oob_file, oob_size), None)
        room = np.zeros(-(-self.segment_pages // self.run_pages), np.uint8)
        group = GROUP_PAGES * self._record.itemsize
        for start, end in sparse_file.data_extents(oob_file, oob_size):
            first, last = start // group, (end - 1) // group
            room[self._runs(first * GROUP_PAGES, (last + 1) * GROUP_PAGES)] = RECORDS
        pages = sparse_file.map_shared(pages_file, pages_size)
        return self._shaped(pages, sparse_file.map_shared(oob_file, oob_size), room)

    def _shaped(self, pages: np.ndarray, oob: np.ndarray, room: np.ndarray | None) -> Segment:
        shape = self.segment_pages, self.page_bytes
        return Segment(pages[: shape[0] * shape[1]].reshape(shape), oob.view(self._record), room)

    def _set_addresses(self, number: int, segment: Segment | None) -> None:
        arrays = (None,) * 3 if segment is None else (segment.pages, segment.records, segment.room)
        for table, array in zip((self.page_at, self.spare_at, self.room_at), arrays, strict=True):
            table[number] = 0 if array is None else array.ctypes.data

    def _make_room_for_one(self) -> None:
        """Unmap segments until one more may be mapped. A segment is unmapped if it has not been
        used since the last pass over it. A view of its pages keeps the memory of a segment mapped.

        Segments that are changed in memory remain open.
        """
        for _ in range(2 * len(self._open)):
            if len(self._open) < self._most_open:
                return
            number, segment = self._open.popitem(last=False)
            mark = self.marks[number]
            if mark & USED or (segment.room is None and mark & CHANGED):
                self.marks[number] &= ~np.uint8(USED)
                self._open[number] = segment
            else:
                self._set_addresses(number, None)

    def _runs(self, start: int, stop: int) -> slice:
        """Return the slice of the indices of the runs that contain pages ``start`` to ``stop``
        (exclusive) of a segment. A run is the pages for which file space is reserved together."""
        return slice(start // self.run_pages, -(-stop // self.run_pages))

    def holds(self, segment: Segment, at: int) -> bool:
        """Return False if no file space is reserved for the run of pages that contains the page
        with index ``at`` in a segment. In this case, do not access the record of the page: the file
        system might allocate space for the record."""
        return segment.room is None or bool(segment.room[at // self.run_pages] != HOLE)

    # --- changes

    def changeable(self, number: int, at: int) -> Segment:
        """Return segment ``number`` with file space reserved for a change of a page. ``at``: index
        of the page in the segment. Raises StoreFull if the file system is full, and InputError if a
        file cannot be used.
        """
        segment = self.find(number, create=True)
        assert segment is not None
        if segment.room is not None and segment.room[at // self.run_pages] != ROOM:
            self._reserve(number, segment, at)
        self.marks[number] |= CHANGED
        return segment

    def _reserve(self, number: int, segment: Segment, at: int) -> None:
        """Reserve file space for the run of pages that contains the page with index ``at`` in a
        segment, and for the out-of-band records of the page's group (GROUP_PAGES)."""
        room = segment.room
        assert room is not None
        self.folder.begin_writing()
        run, group = at // self.run_pages, at - at % GROUP_PAGES
        size = self._record.itemsize
        first, end = run * self.run_pages, min((run + 1) * self.run_pages, self.segment_pages)
        with (
            self.both_files(number, os.O_RDWR) as files,
            self.folder.named(self._names(number)[0], "has no room"),
        ):
            assert files is not None
            if room[run] == HOLE:
                last = min(group + GROUP_PAGES, self.segment_pages)
                sparse_file.reserve(files[1], group * size, (last - group) * size)
                room[self._runs(group, last)] = RECORDS
            start = first * self.page_bytes
            sparse_file.reserve(files[0], start, (end - first) * self.page_bytes)
            room[run] = ROOM

    def erase(self, number: int, start: int, stop: int, selected: np.ndarray) -> None:
        """Erase the pages from ``start`` to ``stop`` (exclusive) of segment ``number`` that are
        selected in ``selected``, bool[stop - start]. Release their file space (make holes in the
        file) if the file system can do so.

        The pages' records are set to erased before the holes are made, so the pages are erased even
        if no hole is made. With durability "host", the records are also made durable before the
        holes are made. The caller must have synced the copies of valid pages. Raises StoreFull if
        the file system is full, and InputError if a file cannot be used.
        """
        segment = self.find(number)
        if segment is None:
            return
        written, erased = segment.records["written"], np.zeros(stop - start, bool)
        for group in range(start - start % GROUP_PAGES, stop, GROUP_PAGES):
            first, last = max(start, group), min(stop, group + GROUP_PAGES)
            if self.holds(segment, first):
                part = slice(first - start, last - start)
                erased[part] = selected[part] & (written[first:last] != 0)
        if not erased.any():
            return
        if segment.room is not None:
            self.folder.begin_writing()
        written[start + np.flatnonzero(erased)] = 0
        self.marks[number] |= CHANGED
        if segment.room is None:
            return
        if self.folder.syncs:
            self.sync()
        if self.punches:
            self._punch(number, segment, start + np.flatnonzero(erased))

    def _punch(self, number: int, segment: Segment, erased: np.ndarray) -> None:
        """Release the blocks of the file system in which all pages are erased. ``erased``: sorted
        indices of the pages that were erased by this erase.
        """
        room = segment.room
        assert room is not None
        with (
            self._file(self._names(number)[0], SEGMENT_BYTES, os.O_RDWR) as handle,
            self.folder.named(self._names(number)[0], "cannot be written"),
        ):
            for start, end in self._erased_blocks(segment.records["written"], erased):
                room[self._runs(start // self.page_bytes, -(-end // self.page_bytes))] = RECORDS
                if not sparse_file.punch(handle, start, end - start):
                    self.punches = False
                    return

    def _erased_blocks(
        self, written: np.ndarray, erased: np.ndarray
    ) -> Iterator[tuple[int, int]]:  # fmt: skip
        """Yield the byte ranges (start, end) of whole file-system blocks whose pages are all
        erased.
        """
        per_block = max(BLOCK_BYTES // self.page_bytes, 1)
        blocks = np.unique(erased // per_block)
        pages = np.minimum(blocks[:, None] * per_block + np.arange(per_block), len(written) - 1)
        blocks = blocks[(written[pages] == 0).all(axis=1)]
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1):
            if len(run):
                size = per_block * self.page_bytes
                start, end = int(run[0]) * size, (int(run[-1]) + 1) * size
                start, end = -(-start // BLOCK_BYTES) * BLOCK_BYTES, end - end % BLOCK_BYTES
                if start < end:
                    yield start, end

    def sync(self) -> None:
        """Make all changes since the last call durable. Raises StoreFull if that fails; the state
        of these changes is then unknown, and every later call raises StoreFull, too.
        """
        if self._failed:
            raise StoreFull(self._failed)
        try:
            for number in np.flatnonzero(self.marks & CHANGED).tolist():
                with self.both_files(number, os.O_RDWR) as files:
                    with self.folder.named(doing=f"segment {number} cannot be synced"):
                        for handle in files or ():
                            os.fdatasync(handle)
                self.marks[number] &= ~np.uint8(CHANGED)
            if self._created:
                self.folder.sync()
                self._created = False
        except InputError as error:
            self._failed = str(error)
            raise StoreFull(self._failed) from error

    def check_count(self) -> None:
        """Raise InputError if a clean store has a number of segments that differs from the number
        in its superblock."""
        block, count = self.folder.superblock, len(self.numbers())
        if block.clean and block.segments != count:
            raise InputError(
                f"{self.folder.path}: has {count} segments; its superblock states {block.segments}"
            )

    def mark_all_changed(self) -> None:
        """Mark all segments that have files as changed, so that the next sync writes these files
        and their directory entries to disk."""
        self.marks[self.numbers()] |= CHANGED
        self._created = True

    def keep_in_memory(self) -> None:
        """Keep all further changes in memory, because the file system is full. The files remain
        unchanged, and the changes are lost when the process ends. Raises InputError if a file
        cannot be mapped.
        """
        self.in_memory = True
        self.marks &= ~np.uint8(CHANGED)
        for number in list(self._open):
            segment = self._map(number, create=True)
            assert segment is not None
            self._open[number] = segment
            self._set_addresses(number, segment)

    def close(self) -> None:
        """Unmap all segments. Views of pages remain valid."""
        for number in self._open:
            self._set_addresses(number, None)
        self._open.clear()
        self._closed = True


def _read(handle: int, size: int, start: int) -> bytes:
    """Return ``size`` bytes of a file, starting at byte ``start``. Raises InputError if the file is
    shorter."""
    raw = b""
    while len(raw) < size:
        more = os.pread(handle, size - len(raw), start + len(raw))
        if not more:
            raise InputError(
                f"a segment file of the store is truncated at byte {start + len(raw)} (must have "
                f"at least {start + size} bytes); restore it from a copy of the store"
            )
        raw += more
    return raw


assert native.lib is None or (HOLE, RECORDS, ROOM, USED, CHANGED) == (
    native.lib.ONDIE_HOLE, native.lib.ONDIE_RECORDS, native.lib.ONDIE_ROOM,
    native.lib.ONDIE_USED, native.lib.ONDIE_CHANGED_FILE,
)  # fmt: skip
