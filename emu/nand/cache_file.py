"""Files of a store for power-loss protection: cached pages and trims that are not on flash yet.

Owns the two files, their records, and the reading of both when a store is opened. Does not own the
entries of a running drive (csrc/payload.c, nvme/moved_bytes.py), the selection of contents that are
still needed after a kill (nvme/cache_restore.py), or the start of a drive
(engine/run/power_system.py).
Source: this project (docs/store.md).

A real drive has capacitors and writes its cache to flash after a power loss. A killed process
cannot, so the cache is kept in these files.

`cache.pages` has a fixed number of entries. An entry is a sealed record and a page. While an entry
is written, the previous contents of its mapping unit remain intact in another entry. `cache.trims`
has 8 bytes for each mapping unit: the number of the unit's last trim and a 16-bit check value.
Entries, trims and programs of flash pages are numbered in one sequence: contents with a larger
number are newer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from ondie.emu.nand import sparse_file
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nand.store_folder import StoreFolder, leaves_of
from ondie.emu.units import InputError, plural
from ondie.kernels import native
from ondie.kernels.crc import crc32c

PAGES, TRIMS = "cache.pages", "cache.trims"
CACHED_WRITES = ("write_back", "read_write")
"""Values of ``cache.mode`` with which a write command completes as soon as its data is in the data
cache."""
ENTRY = np.dtype(
    [
        ("lpn", "i8"),
        ("sequence", "i8"),  # number of the contents
        ("sectors", "i8"),  # bit mask of the sectors that hold data
        ("checksum", "u4"),  # of the page's bytes
        ("seal", "u4"),  # of the other fields
    ]
)
"""Record type of an entry of `cache.pages`, with the layout of ondie_entry in csrc/ondie.h."""
SEALED = ENTRY.itemsize - 4
"""Number of bytes of an entry's record that its seal covers: all fields before the seal."""
BLOCK = 4096
"""Unit in which file space is reserved for the cache files, in bytes."""
NUMBER_BITS = 48


@dataclass(frozen=True)
class SavedPage:
    """Contents of a mapping unit in the data cache, as read from an entry of `cache.pages`."""

    lpn: int
    sequence: int
    sectors: int
    data: np.ndarray
    """Contents of the mapping unit, uint8[page_bytes]."""


class CacheFile:
    """The two cache files in the open store ``folder``, for a drive with ``units`` mapping units
    and ``count`` cache entries. If ``writable`` is True, missing files are created, and file space
    for all pages is reserved.

    Raises StoreFull if the file system is full, and InputError if a file cannot be used.
    """

    def __init__(
        self,
        folder: StoreFolder,
        page_bytes: int,
        count: int,
        units: int,
        writable: bool = True,
    ) -> None:
        self.folder, self.writable = folder, writable
        self.count = count
        """Number of entries in ``cache.pages``."""
        self._units = units
        raw = self._open(PAGES, bytes_of(count, page_bytes)) if count else np.zeros(0, np.uint8)
        self.entries = raw[: count * ENTRY.itemsize].view(ENTRY)
        """Records of the entries, ENTRY[count]."""
        self.pages = raw[len(raw) - count * page_bytes :].reshape(count, page_bytes)
        """Pages of the entries, uint8[count, page_bytes]."""
        self._trim_file = -(-units * 8 // BLOCK) * BLOCK
        self.trims = self._open(TRIMS, self._trim_file, room=False).view(np.uint64)[:units]
        """Number of the last trim of each mapping unit with its check value, uint64[units]; 0 if
        the unit has no recorded trim.
        """
        self._room = np.zeros(self._trim_file // BLOCK, bool)

    def _open(self, name: str, size: int, room: bool = True) -> np.ndarray:
        """Map file ``name`` of ``size`` bytes into memory and return the memory, uint8[size]. If
        ``room`` is True, reserve the file space of a writable file. A missing file of a closed
        store is created, or replaced by zeros if this object is not writable.

        Raises StoreFull if the file system is full. Raises InputError if the file is missing
        although the store was not closed, if it has another size, or if it cannot be used.
        """
        if name not in self.folder.names():
            if not self.folder.superblock.clean:
                raise InputError(
                    f"{self.folder.path / name}: is missing, and the store was not closed; "
                    "completed writes may be lost"
                )
            if not self.writable:
                return np.zeros(size, np.uint8)
            self.folder.create(name, size)
            self.folder.sync()
        handle = self.folder.open_file(name, os.O_RDWR if self.writable else os.O_RDONLY)
        try:
            held = os.fstat(handle).st_size
            if held != size:
                raise InputError(
                    f"{self.folder.path / name}: has {held} bytes, not {size}: it is "
                    f"{'truncated' if held < size else 'not a file of this store'}"
                )
            with self.folder.named(name):
                if room and self.writable:
                    sparse_file.reserve(handle, 0, size)
                return sparse_file.map_shared(handle, size, self.writable)
        finally:
            os.close(handle)

    # --- what the files hold

    def saved(self) -> tuple[list[SavedPage], int, list[int]]:
        """Return the newest contents of each mapping unit, the number of entries whose write was
        interrupted, and the mapping units with damaged contents.

        The seal of an entry becomes valid only when its contents are complete. With durability
        "host", the contents of an entry that was not synced may be older than its seal; such an
        entry counts as interrupted. Raises InputError if an entry has a mapping unit that the drive
        does not have.
        """
        blank = (self.entries["sequence"] == 0) & (self.entries["seal"] == 0)
        newest: dict[int, SavedPage] = {}
        broken, damaged = 0, set()
        for at in np.flatnonzero(~blank).tolist():
            entry, data = self.entries[at], self.pages[at]
            lpn, sequence = int(entry["lpn"]), int(entry["sequence"])
            if seal_of(entry) != entry["seal"]:
                broken += 1
                continue
            if crc32c(data) != entry["checksum"]:
                if self.folder.superblock.durability == "host":
                    broken += 1
                else:
                    damaged.add(lpn)
                continue
            if not 0 <= lpn < self._units:
                raise InputError(
                    f"{self.folder.path / PAGES}: contains mapping unit {lpn}; the drive has "
                    f"{self._units} mapping units"
                )
            if lpn not in newest or newest[lpn].sequence < sequence:
                newest[lpn] = SavedPage(lpn, sequence, int(entry["sectors"]), data.copy())
        return [newest[lpn] for lpn in sorted(newest)], broken, sorted(damaged)

    def last_trims(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the trimmed mapping units and the sequence number of the last trim of each, both
        int64[n]. Raises InputError if a record is damaged or the file cannot be opened."""
        handle = self.folder.open_file(TRIMS)
        parts = [np.zeros(0, np.int64)]
        try:
            for start, end in sparse_file.data_extents(handle, self._trim_file):
                first, stop = start // 8, min(-(-end // 8), self._units)
                parts.append(first + np.flatnonzero(self.trims[first:stop]))
        finally:
            os.close(handle)
        units = np.unique(np.concatenate(parts)).astype(np.int64)
        held = self.trims[units]
        numbers = held & np.uint64((1 << NUMBER_BITS) - 1)
        wrong = np.flatnonzero(checked(numbers, units) != held)
        if len(wrong):
            first = int(units[wrong[0]])
            raise InputError(
                f"{self.folder.path / TRIMS}: the record of mapping unit {first} is "
                "damaged; trimmed data cannot be distinguished from valid data"
            )
        return units, numbers.astype(np.int64)

    @property
    def holds_data(self) -> bool:
        """True if the files contain an entry or the record of a trim. Raises InputError if the
        record of a trim is damaged."""
        return bool(self.entries["sequence"].any()) or bool(len(self.last_trims()[0]))

    # --- changes

    def record_trim(self, first: int, count: int, number: int) -> None:
        """Record the trim with sequence number ``number`` for ``count`` mapping units, starting at
        mapping unit ``first``. Raises StoreFull if the file system is full, and InputError if the
        file cannot be used."""
        if count == 0:
            return
        begin, end = first * 8 // BLOCK, ((first + count) * 8 - 1) // BLOCK + 1
        if not self._room[begin:end].all():
            handle = self.folder.open_file(TRIMS, os.O_RDWR)
            try:
                with self.folder.named(TRIMS):
                    sparse_file.reserve(handle, begin * BLOCK, (end - begin) * BLOCK)
            finally:
                os.close(handle)
            self._room[begin:end] = True
        units = np.arange(first, first + count)
        self.trims[first : first + count] = checked(np.full(count, number, np.uint64), units)

    def sync(self) -> None:
        """Make all changes durable (fdatasync). Raises StoreFull if the file system is full, and
        InputError if a file cannot be synced.
        """
        for name in (PAGES, TRIMS) if self.count else (TRIMS,):
            handle = self.folder.open_file(name, os.O_RDWR)
            try:
                with self.folder.named(name, "cannot be synced"):
                    os.fdatasync(handle)
            finally:
                os.close(handle)

    def clear_after(self, flash: PageStore | None) -> None:
        """Delete all entries and trims, because ``flash`` has all their data. With durability
        "host", ``flash`` is synced first. Nothing is deleted if the files are read-only, or if
        ``flash`` keeps changes in memory only (``flash.full``).

        Raises StoreFull if the file system is full, and InputError if a file cannot be synced or
        the record of a trim is damaged.
        """
        if not self.writable or (flash is not None and flash.full):
            return
        durable = self.folder.syncs
        if flash is not None and durable:
            flash.sync()
        self.entries["sequence"] = self.entries["seal"] = 0
        if durable:
            self.sync()  # an entry may be older than a trim of its unit
        self.trims[self.last_trims()[0]] = 0

    def wipe(self, needed: np.ndarray) -> None:
        """Overwrite all entries with zeros, except those with the indices ``needed`` (int64[n]),
        and sync the files. Raises StoreFull if the file system is full, and InputError if a file
        cannot be synced.
        """
        others = np.ones(self.count, bool)
        others[needed] = False
        self.entries[others] = np.zeros(1, ENTRY)
        for at in np.flatnonzero(others).tolist():
            self.pages[at] = 0
        self.sync()


@dataclass(frozen=True)
class CacheContents:
    """Summary of the two cache files of a closed store."""

    pages: int = 0
    """Number of mapping units with intact contents in `cache.pages`."""
    broken: int = 0
    """Number of entries of `cache.pages` whose write was interrupted."""
    trims: int = 0
    """Number of mapping units with a recorded trim in `cache.trims`."""
    problem: str = ""
    """One sentence about a cache file that is missing, truncated or damaged; empty if there is no
    problem."""


def look(folder: StoreFolder) -> CacheContents:
    """Summarize the cache files in an open folder without changing them. The summary is empty if
    the drive has no power-loss protection, or if a file is missing from a store that was closed
    cleanly."""
    names, block = folder.names(), folder.superblock
    value = {key: leaf["value"] for key, leaf in leaves_of(folder.configuration).items()}
    if not value["cache.power_loss_protection"]:
        return CacheContents()
    caches = value["cache.mode"] in CACHED_WRITES
    for name in (PAGES, TRIMS) if caches else (TRIMS,):
        if name not in names:
            problem = f"{folder.path / name}: is missing"
            return CacheContents(problem="" if block.clean else problem)
    try:
        sizes = {name: folder.size(name) for name in (PAGES, TRIMS) if name in names}
        count = next(
            (
                count
                for count in range(sizes.get(PAGES, 0) // block.page_bytes, -1, -1)
                if bytes_of(count, block.page_bytes) <= sizes.get(PAGES, 0)
            ),
            0,
        )
        file = CacheFile(folder, block.page_bytes, count, sizes[TRIMS] // 8, writable=False)
        pages, broken, damaged = file.saved()
        problem = why_damaged(damaged) if damaged else ""
        return CacheContents(len(pages), broken, len(file.last_trims()[0]), problem)
    except InputError as error:
        return CacheContents(problem=str(error))


def why_damaged(units: list[int]) -> str:
    """Return one sentence that lists up to eight of ``units``, the mapping units whose contents in
    `cache.pages` are damaged, and their total number."""
    shown = ", ".join(map(str, units[:8])) + (", ..." if len(units) > 8 else "")
    return f"{PAGES}: damaged contents of {plural(len(units), 'mapping unit')} ({shown})"


def bytes_of(count: int, page_bytes: int) -> int:
    """Return the size of ``cache.pages`` with ``count`` entries, in bytes."""
    return -(-count * ENTRY.itemsize // BLOCK) * BLOCK + count * page_bytes


def seal_of(entry: np.void) -> int:
    """Return the seal of an entry's record in `cache.pages`: the CRC-32C of the other fields."""
    return crc32c(np.frombuffer(entry.tobytes()[:SEALED], np.uint8))


def checked(numbers: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return the entries of `cache.trims` for trims of mapping units ``units``, uint64[n]. The
    lower 48 bits of an entry are the sequence number of the trim, from ``numbers`` (below 2^48).
    The upper 16 bits are a check value of the sequence number and the mapping unit."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (units.astype(np.uint64) + np.uint64(1)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    return numbers.astype(np.uint64) | mixed >> np.uint64(48) << np.uint64(48)


assert native.lib is None or native.ffi.sizeof("ondie_entry") == ENTRY.itemsize
