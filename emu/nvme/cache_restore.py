"""Restoration of cached data after the process of a drive with power-loss protection was killed.

Owns the comparison of the data in the drive's cache files with the data on flash, and the writes of
data that is newer than flash. Does not own the cache files (nand/cache_file.py), the scan of flash
(ftl/recovery.py) or the execution of the writes (engine/run/power_system.py).
Source: this project (docs/store.md).

Programs, writes to the cache and trims are numbered in one sequence. The out-of-band data of a page
on flash contains the number of its program and, in field ``slot``, the difference between this
number and the number that the data had in the cache. Data in the cache files is restored if its
number is larger than the number that the data on flash had in the cache and larger than the number
of the last trim of its mapping unit. A page on flash is dead if it is older than the last trim of
its mapping unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.ftl.recovery import Recovered
from ondie.emu.ftl.tables import logical_pages
from ondie.emu.nand.cache_file import CACHED_WRITES, CacheFile, SavedPage
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import PageStore, Spare
from ondie.emu.nand.store_folder import StoreFolder
from ondie.emu.nvme.command import WRITE
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError

ENTRIES_PER_SLOT = 3
"""Number of entries in the cache file per slot of the data cache: one for the current data, one for
data being evicted, and one for data that remains until flash is synced."""


def open_file(cfg: Config, geometry: Geometry, folder: StoreFolder, writable: bool) -> CacheFile:
    """Open the cache files in store ``folder`` of a drive with power-loss protection. If
    ``writable`` is True, create missing files. Raises StoreFull if the file system has no space,
    and InputError if a file cannot be used."""
    caches = cfg.cache.mode in CACHED_WRITES
    places = cfg.cache.capacity_bytes // geometry.page_bytes if caches else 0
    count = ENTRIES_PER_SLOT * places + 2 if places else 0
    return CacheFile(folder, geometry.page_bytes, count, logical_pages(cfg, geometry), writable)


class SavedCache:
    """Cached data that a killed drive with power-loss protection left in its cache files. ``file``:
    the CacheFile object, which accesses both cache files. :meth:`settle` compares the cached data
    with flash, and :meth:`restore` writes newer data to flash."""

    def __init__(self, file: CacheFile, store: PageStore, arrays: Arrays) -> None:
        self.file, self._store, self._arrays = file, store, arrays
        self.pages: list[SavedPage] = []
        """Contents that are newer than those on flash, one entry per mapping unit."""
        self.trimmed = 0
        """Number of mapping units that :meth:`settle` has unmapped."""
        self.broken = 0
        """Number of entries whose write was interrupted."""
        self.damaged_records: list[int] = []
        """Physical pages on flash whose out-of-band data is damaged."""
        self.damaged: list[int] = []
        """Mapping units whose contents in the file are damaged."""
        self.sequence = 0
        """Largest sequence number in the files."""

    def settle(self) -> None:
        """Unmap the mapping units whose contents on flash are older than their last trim, and find
        the cached data to restore. The trim maps of the unmapped units are marked as unsaved.
        Raises InputError if a cache file is damaged."""
        arrays = self._arrays
        l2p, table, dev = arrays.l2p[0], arrays.cfg[0], arrays.dev[0]
        kept, self.broken, self.damaged = self.file.saved()
        units, numbers = self.file.last_trims()
        trims = dict(zip(units.tolist(), numbers.tolist(), strict=True))
        for unit, number in trims.items():
            if l2p[unit] == 0 or self._number(unit) > number:
                continue
            l2p[unit] = 0
            if table.partial:
                arrays.sectors[0, unit] = 0
            if table.meta_maps:
                arrays.meta_dirty[unit // int(table.meta_span)] = 1
            record = arrays.trim_map[unit // int(table.trim_span)]
            dev.unsaved += int(record.since == 0)
            record.since = dev.trims = 1
            self.trimmed += 1
        self.pages = [
            page
            for page in kept
            if page.sequence > max(trims.get(page.lpn, 0), self._number(page.lpn))
        ]
        self.sequence = max([0, *trims.values(), *(page.sequence for page in kept)])

    def _number(self, unit: int) -> int:
        """Return the sequence number that the contents of a mapping unit on flash had in the cache,
        or 0 if the unit is not mapped or its out-of-band data is damaged."""
        entry = int(self._arrays.l2p[0, unit])
        if entry == 0:
            return 0
        spare = self._store.spare(entry - 1)
        if not isinstance(spare, Spare):
            self.damaged_records.append(entry - 1)
            return 0
        return spare.sequence - spare.slot

    def restore(
        self,
        found: Recovered,
        limits: np.record,
        write: Callable[[int, int, np.ndarray], Status],
        save_all: Callable[[], None],
    ) -> None:
        """Write :attr:`pages`, the cached data that is newer than flash, to flash, as the drive
        would have done with the energy of its capacitors. Record the counts and the damaged pages
        in ``found``, and clear the cache files.

        ``limits``: limits of commands; the logical block size is one sector during the writes.
        ``write``: function that runs a command (operation, byte offset, data) and returns its
        status. ``save_all``: function that writes all cached data to flash. Raises InputError if a
        write fails or a file cannot be synced, and StoreFull if the file system is full.
        """
        block, limits["block"] = int(limits["block"]), SECTOR_BYTES
        found.restored, found.restored_trims = len(self.pages), self.trimmed
        found.broken_entries, unit_bytes = self.broken, self._store.page_bytes
        found.damaged_cached = self.damaged
        found.damaged = sorted({*found.damaged, *self.damaged_records})
        for page in self.pages:
            for offset, data in self.writes(page, unit_bytes):
                status = write(WRITE, offset, data)
                if status != Status.SUCCESS:
                    raise InputError(
                        f"{self._store.where}: mapping unit {page.lpn} of the cache file cannot be "
                        f"written to flash: status 0x{status:x}"
                    )
        limits["block"] = block
        if self.pages or self.trimmed:
            save_all()
            found.time_ps = max(found.time_ps, int(self._arrays.reg.now[0]))
        self.file.clear_after(self._store)

    def writes(self, page: SavedPage, unit_bytes: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (byte offset on the drive, data) of each host write that restores ``page``."""
        sectors = unit_bytes // SECTOR_BYTES
        for first, count in sector_runs(page.sectors, sectors):
            start, end = first * SECTOR_BYTES, (first + count) * SECTOR_BYTES
            yield page.lpn * unit_bytes + start, page.data[start:end].copy()


def sector_runs(mask: int, sectors: int) -> Iterator[tuple[int, int]]:
    """Yield (first sector, number of sectors) of each run of set bits in ``mask``. A mask of -1 has
    all bits set. ``sectors``: number of sectors per mapping unit."""
    bits = np.array([mask >> at & 1 for at in range(sectors)] if mask != -1 else [1] * sectors)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], bits, [0]))))
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield first, end - first
