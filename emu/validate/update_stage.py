"""The update stage by itself: what was done and spent between its first row and its last.

Owns cutting a plan into what comes before, the stage, and what comes after, and the difference of
the books between. Does not own the books (system.py, ledger.py) or prices (energy.py).
Source: own. A fence lies between the parts, so that running them one after the other takes the same
time; weights that leave while others are updated stay part of the stage.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ondie.emu.analysis.compare import Run
from ondie.emu.analysis.energy import DRIVE, Component, Energy, components, energy
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.config.config import Config
from ondie.emu.engine.core.totals import Totals
from ondie.emu.paths.base import UPDATE, Options
from ondie.traces import Trace

FLASH = ("NAND read", "NAND program", "NAND erase", "channels", "PCIe")
"""What OptimStore's energy of the SSD is made of."""


@dataclass(frozen=True)
class Stage:
    """One path's step, and its update stage."""

    ledger: Ledger
    """Of the whole step."""
    totals: Totals
    """Of the stage alone."""
    energy: Energy
    """Of the stage alone; host DRAM of the whole step."""
    parts: Mapping[str, float]
    """J of its components, typical."""
    reserved: int
    """Pages of flash that the path's states hold, and what guards them."""

    @property
    def seconds(self) -> float:
        return self.ledger.update_s

    @property
    def flash_j(self) -> float:
        """J of flash, channels and PCIe."""
        return sum(self.parts.get(name, 0.0) for name in FLASH)

    @property
    def flash_w(self) -> float:
        """W of the same, on average."""
        return self.flash_j / self.seconds

    @property
    def drive_j(self) -> float:
        return self.energy.drive[1]

    @property
    def all_j(self) -> float:
        """J of drive and host."""
        return self.energy.storage_and_host[1]


def stage(path: str, cfg: Config, trace: Trace, options: Options | None = None) -> Stage:
    """Simulate the first step of a trace on a path, its update stage apart. Raises Imbalance."""
    run = Run(path, cfg, trace, options or Options(), payload=False)
    run.clock.begin(run.system.now)
    chunks = iter(run.path.plan(0))
    rest: list[np.ndarray] = []  # of a chunk that reached into the next part
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
        sum(x.reserved for x in guarded) * run.path.cfg.flash.planes_per_die,
    )


def _before(chunks: Iterator[np.ndarray], rest: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Rows up to the first of the update."""
    for chunk in chunks:
        updating = np.flatnonzero(chunk["phase"] == UPDATE)
        if len(updating):
            rest.append(chunk[updating[0] :])
            yield chunk[: updating[0]]
            return
        yield chunk


def _during(chunks: Iterator[np.ndarray], rest: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Rows up to the last of the update: behind it, no path comes back to it after a chunk."""
    for chunk in itertools.chain([rest.pop()], chunks):
        updating = np.flatnonzero(chunk["phase"] == UPDATE)
        if not len(updating):
            rest.append(chunk)
            return
        yield from rest  # what lay between two of its rows
        rest.clear()
        yield chunk[: updating[-1] + 1]
        rest.append(chunk[updating[-1] + 1 :])


def _after(chunks: Iterator[np.ndarray], rest: list[np.ndarray]) -> Iterator[np.ndarray]:
    """The others."""
    yield from rest
    yield from chunks


def _of_drive(part: Component) -> bool:
    return part.group == DRIVE


def _between(before: Totals, after: Totals, span: tuple[int, int]) -> Totals:
    """What happened between two looks at the books, as a step that took ``span``."""

    def less(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
        return {name: value - b.get(name, 0) for name, value in a.items()}

    return dataclasses.replace(
        after,
        counters=less(after.counters, before.counters),
        bytes_by=less(after.bytes_by, before.bytes_by),
        busy_sum_ps=less(after.busy_sum_ps, before.busy_sum_ps),
        steps=({"step": span},),
    )
