"""Update stage in isolation: its time, bytes and energy, from its first plan row to its last.

Owns the division of a plan into the rows before, within and after the update stage, and the
difference between the totals at its start and end. Does not own the totals (engine/run/system.py,
analysis/ledger.py) or the energy constants (analysis/energy.py). Source: this project.

A fence separates the three groups of rows, so the division does not change the time of the run.
Weights that are transferred while other weights are updated belong to the update stage.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ondie.emu.analysis.compare import Run
from ondie.emu.analysis.energy import (
    ACCELERATOR_WAITING,
    DRIVE_PART,
    HOST_BUSY,
    HOST_WAITING,
    Component,
    Energy,
    components,
    energy,
)
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.config.config import Config
from ondie.emu.engine.core.totals import Totals
from ondie.emu.paths.base import UPDATE, Options
from ondie.traces import Trace

Key = TypeVar("Key")
FLASH = ("NAND read", "NAND program", "NAND erase", "channels", "PCIe")
"""Components whose energy OptimStore counts as energy of the SSD."""


@dataclass(frozen=True)
class Stage:
    """Results of one step of a path, and of the update stage of this step."""

    ledger: Ledger
    """Totals of the whole step, and times of its phases."""
    totals: Totals
    """Counters, bytes_by, busy_sum_ps, worked_ps and steps of the update stage only. All other
    fields have their values at the end of the stage."""
    energy: Energy
    """Energy of the update stage only, except host DRAM, whose energy covers the whole step."""
    parts: Mapping[str, float]
    """Typical energy of the update stage by component of the drive (J)."""
    host_w: float
    """Power of the host (W): of a busy host if the host updates the weights, else of a waiting
    host."""
    reserved: int
    """Number of flash pages reserved for the path's states, their parity and their commit
    records."""

    @property
    def seconds(self) -> float:
        """Duration of the update stage (s)."""
        return self.ledger.update_s

    @property
    def flash_j(self) -> float:
        """Typical energy of flash, channels and PCIe in the update stage (J)."""
        return sum(self.parts.get(name, 0.0) for name in FLASH)

    @property
    def flash_w(self) -> float:
        """Typical power of flash, channels and PCIe, averaged over the update stage (W)."""
        return self.flash_j / self.seconds

    @property
    def drive_j(self) -> float:
        """Typical energy of the drives in the update stage (J)."""
        return self.energy.drive[1]

    @property
    def all_j(self) -> float:
        """Typical energy of the drives, the host and the waiting accelerator in the update stage
        (J). Only the energy of host DRAM is that of the whole step."""
        return self.energy.storage_and_host[1]

    @property
    def host_j(self) -> float:
        """Typical energy of drives and host, without the accelerator, in the update stage (J). The
        energy of host DRAM is that of the whole step. The power of the host is host.update_power
        while its CPU is busy, and host.wait_power otherwise."""
        return self.all_j - self.energy.by_component[ACCELERATOR_WAITING][1]

    @property
    def whole_stage_j(self) -> float:
        """Typical energy of drives and host in the update stage (J), as :attr:`host_j`, but with
        one constant power of the host (:attr:`host_w`)."""
        parts = self.energy.by_component
        power = sum(parts.get(name, (0.0,) * 3)[1] for name in (HOST_BUSY, HOST_WAITING))
        return self.host_j - power + self.host_w * self.seconds


def stage(path: str, cfg: Config, trace: Trace, options: Options | None = None) -> Stage:
    """Simulate the first step of a trace on a path; return its ledger and the totals and energy of
    its update stage.

    Raises Imbalance if the counts of the run do not balance.
    """
    run = Run(path, cfg, trace, options or Options(), payload=False)
    run.clock.begin(run.system.now)
    chunks = iter(run.path.plan(0))
    rest: list[np.ndarray] = []  # rest of a chunk that extends into the next part
    books = []
    for part in (_before, _during, _after):
        run.system.run(part(chunks, rest))
        books.append(run.system.totals(run.clock))
    run.clock.end(run.system.now)
    _, book, work, _ = run.account()
    totals = _between(books[0], books[1], book.totals.steps[0]["update"])
    spent = components(cfg, totals, work)
    guarded = getattr(run.path, "guarded", ())
    return Stage(
        book,
        totals,
        energy(cfg, totals, work),
        {part.name: part.joules(cfg)[1] for part in spent if _of_drive(part)},
        (cfg.host.update_power_mw if work.host_updates else cfg.host.wait_power_mw) / 1e3,
        sum(x.reserved for x in guarded) * run.path.cfg.flash.planes_per_die,
    )


def _before(chunks: Iterator[np.ndarray], rest: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the plan rows before the first row of the update stage; store the remaining rows of its
    chunk in ``rest``."""
    for chunk in chunks:
        updating = np.flatnonzero(chunk["phase"] == UPDATE)
        if len(updating):
            rest.append(chunk[updating[0] :])
            yield chunk[: updating[0]]
            return
        yield chunk


def _during(chunks: Iterator[np.ndarray], rest: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the plan rows from ``rest`` and ``chunks`` up to the last row of the update stage;
    store the remaining rows in ``rest``.

    On every path, the first chunk without an update row ends the update stage.
    """
    for chunk in itertools.chain([rest.pop()], chunks):
        updating = np.flatnonzero(chunk["phase"] == UPDATE)
        if not len(updating):
            rest.append(chunk)
            return
        yield from rest  # rows between two update rows
        rest.clear()
        yield chunk[: updating[-1] + 1]
        rest.append(chunk[updating[-1] + 1 :])


def _after(chunks: Iterator[np.ndarray], rest: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the remaining plan rows."""
    yield from rest
    yield from chunks


def _of_drive(part: Component) -> bool:
    return part.group == DRIVE_PART


def _between(before: Totals, after: Totals, span: tuple[int, int]) -> Totals:
    """Return the differences between two snapshots of the totals, as totals of one step with
    interval ``span`` (ps)."""

    def less(a: Mapping[Key, int], b: Mapping[Key, int]) -> dict[Key, int]:
        return {name: value - b.get(name, 0) for name, value in a.items()}

    return dataclasses.replace(
        after,
        counters=less(after.counters, before.counters),
        bytes_by=less(after.bytes_by, before.bytes_by),
        busy_sum_ps=less(after.busy_sum_ps, before.busy_sum_ps),
        worked_ps=less(after.worked_ps, before.worked_ps),
        steps=({"step": span},),
    )
