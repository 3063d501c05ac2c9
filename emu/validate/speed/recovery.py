"""Speed of the recovery of a full drive on this machine, and the time that the drive takes for it.

Owns the workload of `ondie bench recovery`: flash whose out-of-band data are made as they are read.
Does not own recovery (ftl/recovery.py) or its simulated time (engine/run/recovery_time.py).
Source: none. Every mapping unit of the drive has been written once, in order or at random, and no
page is torn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from ondie.emu.config.config import Config, load_preset
from ondie.emu.engine.run import build
from ondie.emu.engine.run.recovery_time import recovery_ps
from ondie.emu.ftl import recovery
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import OOB, PROGRAMMED
from ondie.emu.nand.sealed_records import seal_records
from ondie.emu.units import InputError
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.run import Row

PRESET = "gen4-tlc"
CAPACITY, LARGER = 480e9, 3.84e12
"""Bytes of the drive that is recovered, and of the one to which its time is scaled by pages."""
TARGETS = {"in order": 20e6, "at random": 5e6}
"""Mapping units per second of a quiet machine, by the order in which they were written."""
BLOCKS_AT_ONCE = 16


class WrittenFlash:
    """Flash of a drive with geometry ``geometry`` to which ``units`` mapping units have been
    written once, in the order of ``order`` (int64[units]) or, without it, of their numbers."""

    where = "flash"

    def __init__(self, geometry: Geometry, units: int, order: np.ndarray | None) -> None:
        self._geometry, self._units, self._order = geometry, units, order
        self.making_s = self.copying_s = 0.0
        """Processor time of making the records, and of copying them once, s."""

    def block_records(self, block_pages: int, pages: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the records of blocks as PageStore does, made anew."""
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

    def intact(self, ppn: int) -> bool:
        """Return True: no page is torn."""
        return True

    def read(self, ppn: int) -> np.ndarray:
        """Raise InputError: there are no bytes."""
        raise InputError(f"physical page {ppn} has no bytes")

    def spoil(self, ppn: int, done: bool = True) -> None:
        """Do nothing: pages behind the last one are overwritten."""


def of_capacity(size: float) -> Config:
    """Return the preset with the smallest number of blocks with which a drive holds ``size``
    bytes."""
    cfg = load_preset(PRESET)
    one = Geometry.of(load_preset(PRESET, ["flash.blocks_per_plane=100"]))
    share = 1 - cfg.ftl.over_provisioning
    block = one.units * one.block_pages * one.page_bytes * share
    return load_preset(PRESET, [f"flash.blocks_per_plane={-(-int(size) // int(block))}"])


def run(quick: bool, progress: Callable[[str], object]) -> bench.Bench:
    """Recover a full drive of CAPACITY bytes (``quick``: of a tenth) that was written in order, and
    one at random; return the rates, and the simulated time."""
    size = CAPACITY / 10 if quick else CAPACITY
    cfg = of_capacity(size)
    rows: list[Row] = []
    for order, target in TARGETS.items():
        progress(f"written {order}")
        rate, copies, found = scan(cfg, order == "at random")
        name = f"recovery of {found.mapped / 1e6:.0f} M mapping units written {order}"
        rows += [
            Row(name, rate / 1e6, "M/s", "copies of their records", rate / copies),
            Row(name, rate / 1e6, "M/s", f"target {target / 1e6:g} M/s", rate / target),
        ]
    progress("the time of the drive")
    taken = recovery_ps(cfg, Geometry.of(cfg), found) / 1e12
    rows.append(Row(f"simulated time, {size / 1e9:g} GB", taken, "s", "itself", 1))
    times = LARGER / size
    rows.append(Row(f"scaled by pages to {LARGER / 1e12:g} TB", taken * times, "s", "itself", 1))
    return bench.Bench(rows, bench.machine(1))


def scan(cfg: Config, at_random: bool) -> tuple[float, float, recovery.Recovered]:
    """Recover the tables of a full drive. Return the mapping units per second of processor time of
    the recovery, the records per second of copies of the out-of-band data, and what was found."""
    geometry = Geometry.of(cfg)
    _recover(load_preset(PRESET, ["flash.blocks_per_plane=12"]), at_random)  # compiles
    flash, found, took = _recover(cfg, at_random)
    assert found.mapped == found.scanned_pages <= geometry.native_pages
    return found.mapped / (took - flash.making_s), found.mapped / flash.copying_s, found


def _recover(cfg: Config, at_random: bool) -> tuple[WrittenFlash, recovery.Recovered, float]:
    geometry = Geometry.of(cfg)
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    units = int(arrays.cfg.lpns[0])
    order = np.random.default_rng(0).permutation(units) if at_random else None
    flash = WrittenFlash(geometry, units, order)
    begin = time.thread_time()
    found = recovery.recover(arrays, geometry, cfg, flash)
    return flash, found, time.thread_time() - begin
