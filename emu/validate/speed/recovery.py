"""Speed of the recovery of a full drive on this machine, and the simulated recovery time of the
drive.

Owns the workload of `ondie bench recovery`: flash whose out-of-band data is generated when it is
read. Does not own recovery (ftl/recovery.py, checkpoint_recovery.py) or its simulated time
(engine/run/recovery_time.py). Source: this project.

Every mapping unit of the drive has been written once, in order or at random, and no page is torn.
With checkpoints, the power is lost at the time at which recovery takes longest: after the last
checkpoint, the host has written as much as between two checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from ondie.emu.config.config import Config, load_preset
from ondie.emu.engine.run import build
from ondie.emu.engine.run.recovery_time import recovery_ps
from ondie.emu.ftl import checkpoint_recovery, map_checkpoint, recovery
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import OOB, PROGRAMMED
from ondie.emu.nand.sealed_records import seal_records
from ondie.emu.units import InputError
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.run import Row
from ondie.kernels.crc import crc32c

PRESET = "gen4-tlc"
CAPACITY, LARGER = 480e9, 3.84e12
"""Capacity of the drive that is recovered, and capacity of the larger drive to which its recovery
time is scaled by the number of pages (bytes)."""
TARGETS = {"in order": 20e6, "at random": 5e6}
"""Target rates of the recovery on an otherwise idle machine (mapping units per second), by the
order of the writes."""
BETWEEN = "1 GiB"
"""Amount of host writes between two checkpoints of the mapping table."""
CHECKPOINTS = ["ftl.trim_maps=true", f"ftl.map_checkpoint={BETWEEN}"]
BLOCKS_AT_ONCE = 16


class WrittenFlash:
    """Flash of a drive to which ``units`` mapping units have been written once.

    ``geometry``: geometry of the drive. ``order``: numbers of the units in the order of the writes,
    int64[units]; ascending if ``order`` is None.
    """

    where = "flash"

    def __init__(self, geometry: Geometry, units: int, order: np.ndarray | None) -> None:
        self._geometry, self._units, self._order = geometry, units, order
        self.making_s = self.copying_s = 0.0
        """CPU time (s) to generate the records, and to copy them once."""

    def block_records(self, block_pages: int, pages: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first page, OOB[blocks, block_pages]) for consecutive groups of blocks, like
        PageStore.block_records. The records are generated at each call."""
        size = BLOCKS_AT_ONCE * block_pages
        for first in range(0, self._units, size):
            begin = time.thread_time()
            count = min(size, self._units - first)
            records = np.zeros(-(-count // block_pages) * block_pages, OOB)
            own = records[:count]
            numbers = np.arange(first, first + count)
            own["lpn"] = numbers if self._order is None else self._order[first : first + count]
            own["sequence"] = own["step"] = numbers + 1
            own["sectors"], own["written"] = -1, PROGRAMMED
            seal_records(own)
            middle = time.thread_time()
            records.copy()
            end = time.thread_time()
            self.copying_s += end - middle
            self.making_s += end - begin
            yield first, records.reshape(-1, block_pages)

    def page_records(self, ppns: np.ndarray) -> np.ndarray:
        """Raise InputError, because this flash contains no checkpoint of the mapping table."""
        raise InputError(
            f"flash with {self._units} mapping units: contains no checkpoint of the mapping table; "
            "use CheckpointedFlash"
        )

    def intact(self, ppn: int) -> bool:
        """Return True, because no page is torn."""
        return True

    def read(self, ppn: int) -> np.ndarray:
        """Raise InputError, because the pages of this flash have records but no data."""
        raise InputError(f"physical page {ppn} has no data")

    def spoil(self, ppn: int, done: bool = True) -> None:
        """Do nothing. Recovery overwrites only pages after the last written page, which are not
        read again."""


class CheckpointedFlash(WrittenFlash):
    """WrittenFlash with a checkpoint of the mapping table and with later writes.

    All mapping units were written once, in the order ``order``, before the checkpoint; the blocks
    that follow contain the metadata pages of the checkpoint. Then the mapping units ``later``
    (numbers, int64[n]) were written again, to the blocks after the metadata pages. Consecutive
    blocks are on consecutive block units (ftl.block_unit) of the drive. ``table``: constants of the
    drive.
    """

    def __init__(
        self, geometry: Geometry, table: np.record, order: np.ndarray | None, later: np.ndarray
    ) -> None:
        units, pages = int(table.lpns), geometry.block_pages
        super().__init__(geometry, units, order)
        self._table, self._later = table, later
        self._place = np.arange(units)
        """Page of each unit; pages are numbered in the order in which they were programmed."""
        if order is not None:
            self._place[order] = np.arange(units)
        self._made = -1, np.zeros(0, np.uint8)
        """Number and data of the metadata page that was generated last."""
        self._first = -(-units // pages) * pages
        """Number of the first page with metadata."""
        self._behind = self._first + -(-int(table.meta_pages) // pages) * pages
        """Number of the first page that was written after the checkpoint."""

    def _turned(self, ppns: np.ndarray, across: int, along: int) -> np.ndarray:
        """Convert the numbers of pages between two orders of the blocks: consecutive blocks on one
        block unit (ftl.block_unit), and consecutive blocks on consecutive block units."""
        block, at = np.divmod(ppns, self._geometry.block_pages)
        outer, inner = np.divmod(block, across)
        return (inner * along + outer) * self._geometry.block_pages + at

    def page_records(self, ppns: np.ndarray) -> np.ndarray:
        """Return the records of pages as PageStore does. The records are generated at each call."""
        begin = time.thread_time()
        found, table = np.zeros(len(ppns), OOB), self._table
        ppns = self._turned(ppns, self._geometry.all_blocks, self._geometry.units)
        data = np.flatnonzero(ppns < self._units)
        found["lpn"][data] = ppns[data] if self._order is None else self._order[ppns[data]]
        at = ppns - self._first
        metadata = np.flatnonzero((at >= 0) & (at < int(table.meta_pages)))
        found["lpn"][metadata] = at[metadata] + int(table.meta_first)
        found["stream"][metadata] = int(table.map_stream)
        at = ppns - self._behind
        later = np.flatnonzero((at >= 0) & (at < len(self._later)))
        found["lpn"][later] = self._later[at[later]]
        for own in (data, metadata, later):
            found["sequence"][own] = found["step"][own] = ppns[own] + 1
            found["sectors"][own], found["written"][own] = -1, PROGRAMMED
        seal_records(found)
        self.making_s += time.thread_time() - begin
        return found

    def intact(self, ppn: int) -> bool:
        """Compute the checksum of a metadata page, as a real check does, and return True."""
        crc32c(self.read(ppn))
        return True

    def read(self, ppn: int) -> np.ndarray:
        """Return the data of a metadata page, uint8[page_bytes]."""
        if ppn == self._made[0]:
            return self._made[1]
        begin = time.thread_time()
        table, geometry = self._table, self._geometry
        turned = self._turned(np.array([ppn]), geometry.all_blocks, geometry.units)
        at = int(turned[0]) - self._first
        words = np.zeros(int(table.page_bytes) // 8, np.int64)
        entries = words[map_checkpoint.HEAD :]
        maps, kind = int(table.meta_maps), map_checkpoint.MAP
        if at < maps:
            own = self._place[at * len(entries) : (at + 1) * len(entries)]
            entries[: len(own)] = self._turned(own, geometry.units, geometry.all_blocks) + 1
        elif at < int(table.meta_pages) - 1:
            kind, at = map_checkpoint.TABLE, at - maps
            entries[:] = map_checkpoint.IS_WRITTEN
        else:
            kind, at = map_checkpoint.ROOT, 1
            words[map_checkpoint.SEQUENCE] = words[map_checkpoint.PROGRAMS] = self._units
        words[map_checkpoint.KIND] = map_checkpoint.MAGIC + kind
        words[map_checkpoint.NUMBER], words[map_checkpoint.EPOCH] = at, 1
        self._made = ppn, words.view(np.uint8)
        self.making_s += time.thread_time() - begin
        return self._made[1]


def of_capacity(size: float) -> Config:
    """Return the configuration of PRESET with the smallest number of blocks per plane with which
    the drive has a capacity of at least ``size`` bytes."""
    cfg = load_preset(PRESET)
    one = Geometry.of(load_preset(PRESET, ["flash.blocks_per_plane=100"]))
    share = 1 - cfg.ftl.over_provisioning
    block = one.units * one.block_pages * one.page_bytes * share
    return load_preset(PRESET, [f"flash.blocks_per_plane={-(-int(size) // int(block))}"])


def run(quick: bool, progress: Callable[[str], object]) -> bench.Bench:
    """Recover a full drive of CAPACITY bytes and return the rows.

    The drive was written in order or at random, and is recovered without and with checkpoints. The
    rows contain the rates of the recovery on this machine, and the simulated times. ``quick``:
    recover a drive of a tenth of the capacity.
    """
    size = CAPACITY / 10 if quick else CAPACITY
    cfg = of_capacity(size)
    rows: list[Row] = []
    whole = 0.0
    for how, changes in (("", []), (f", checkpoint each {BETWEEN}", CHECKPOINTS)):
        drive = cfg.replace(dict(each.split("=") for each in changes), ref="a bench")
        for order, target in TARGETS.items():
            progress(f"written {order}{how}")
            rate, copies, found = scan(drive, order == "at random")
            name = f"recovery of {found.mapped / 1e6:.0f} M mapping units written {order}{how}"
            if copies:
                row = Row(name, rate / 1e6, "M/s", "copy of the records", rate / copies)
                rows.append(row)
            rows.append(Row(name, rate / 1e6, "M/s", f"target {target / 1e6:g} M/s", rate / target))
        progress("the time of the drive")
        taken = recovery_ps(drive, Geometry.of(drive), found) / 1e12
        whole = whole or taken
        for name, times in (
            (f"simulated time, {size / 1e9:g} GB", 1.0),
            (f"scaled by pages to {LARGER / 1e12:g} TB", LARGER / size),
        ):
            against = "all pages" if how else "itself"
            rows.append(Row(name + how, taken * times, "s", against, taken / whole))
    return bench.Bench(rows, bench.machine(1))


def scan(cfg: Config, at_random: bool) -> tuple[float, float, recovery.Recovered]:
    """Measure the recovery of the tables of a full drive.

    Returns (rate, copy rate, result). Rate: mapping units that the recovery processes per second of
    CPU time. Copy rate: out-of-band records that this machine copies per second of CPU time; 0 if
    the recovery used a checkpoint and did not read all records. Result: the recovered tables.
    """
    geometry = Geometry.of(cfg)
    _recover(cfg.replace({"flash.blocks_per_plane": 12}, ref="a bench"), at_random)  # compiles
    flash, found, took = _recover(cfg, at_random)
    rate = found.mapped / (took - flash.making_s)
    if cfg.ftl.map_checkpoint_bytes:
        assert found.checkpoint == 1 and found.scanned_pages < found.mapped
        return rate, 0.0, found
    assert found.mapped == found.scanned_pages <= geometry.native_pages
    return rate, found.mapped / flash.copying_s, found


def _recover(cfg: Config, at_random: bool) -> tuple[WrittenFlash, recovery.Recovered, float]:
    geometry = Geometry.of(cfg)
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    units = int(arrays.cfg.lpns[0])
    order = np.random.default_rng(0).permutation(units) if at_random else None
    flash = WrittenFlash(geometry, units, order)
    if cfg.ftl.map_checkpoint_bytes:
        count = min(cfg.ftl.map_checkpoint_bytes // geometry.page_bytes, units // 64)
        later = np.arange(count) if order is None else order[:count]
        flash = CheckpointedFlash(geometry, arrays.cfg[0], order, later)
    begin = time.thread_time()
    found = checkpoint_recovery.recover(arrays, geometry, cfg, flash)
    return flash, found, time.thread_time() - begin
