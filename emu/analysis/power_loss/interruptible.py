"""Checkpoints between the steps of a run, and power cuts during a step.

Owns the order of cut, recovery and resumption. Does not own the simulation of a step
(analysis/compare.py), the effects of a cut (analysis/power_loss/cut.py) or the recovery
(analysis/power_loss/recover.py).
Source: this project's rules of recovery; OptimStore (HPCA 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.analysis.power_loss import cut as power
from ondie.emu.analysis.power_loss.recover import Revival
from ondie.emu.engine.core.totals import StepClock
from ondie.emu.engine.run.driver import PowerCut
from ondie.emu.engine.run.system import PLANNED, System
from ondie.emu.paths.base import Path
from ondie.emu.paths.on_die import checkpoint
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.units import InputError


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint that was read from the reservoir, and the cost of the read."""

    vectors: dict[str, np.ndarray] | None
    """Weights ("w") and states by name, array[n_params] in the storage format; None for a run
    without payload."""
    seconds: float
    """Simulated time of reading the checkpoint, seconds."""
    bytes_up: int
    """Number of bytes that are sent over the link to the host, in whole pages."""


class Interruptible:
    """Base class of a run with checkpoints and power cuts. In its methods, ``cut_after`` is the
    number of events after which the power fails; None for no power failure."""

    path: Path
    system: System
    clock: StepClock
    cut: power.Cut | None = None
    """Last power cut; None if there was no power cut, or if :meth:`recover` has succeeded since."""
    recoveries: list[power.Recovery]
    _to_resume: power.Recovery | None = None
    _step = 0
    _sent = 0

    def nothing_under_way(self) -> None:
        """Raise InputError if a step was interrupted and has not been resumed."""
        if self.cut is not None:
            raise InputError("the drive has no power; call recover() and resume() first")
        if self._to_resume is not None:
            raise InputError("a step is interrupted; call resume() first")

    def powered_step(self, i: int, cut_after: int | None) -> bool:
        """Run the plan of step ``i``. The caller must have recorded the start of the step. Return
        True if the step completes; False if the power fails earlier, after ``cut_after`` events."""
        self._step, self._sent = i, power.sent(self.system)
        return self._ended(self.path.plan(i), cut_after)

    def _ended(self, plan: Iterable[Any], cut_after: int | None) -> bool:
        """Run the plan rows ``plan`` and end the step. Return True if the step completes; False if
        the power fails earlier, after ``cut_after`` events."""
        if not self._powered(lambda: self.system.run(plan), cut_after):
            return False
        self.clock.end(self.system.now)
        return True

    def _powered(self, work: Callable[[], object], cut_after: int | None) -> bool:
        """Call ``work``. Return True if ``work`` returns; False if the power fails earlier, after
        ``cut_after`` events."""
        self.system.events_left = cut_after
        try:
            work()
            return True
        except PowerCut:
            pass
        finally:
            self.system.events_left = None
        seed = self.path.options.seed + len(self.recoveries)
        self.cut = power.cut(self.path, self.system, seed, self.cut)
        return False

    def recover(self, cut_after: int | None = None) -> power.Recovery | None:
        """Recover from a power cut: build a new system from the contents of the flash.

        Returns the report, which contains the position from which the step resumes; the caller must
        then call :meth:`resume`. Returns None if the power fails again, after ``cut_after`` events.
        Raises InputError if the power was not cut. Raises Unrecoverable if flash has no completely
        programmed copy of a super-page.
        """
        if self.cut is None:
            raise InputError("there is nothing to recover, because the power has not been cut")
        power.check_cut(self.path, cut_after)
        dead, revival = self.system, Revival(self.path, self.system, self.cut)
        dead.drop_callbacks()
        self.system = revival.system
        self.clock.follow(self.system.arrays.phase)
        if not self._powered(revival.run, cut_after):
            return None
        found = revival.found(self._sent)
        self.recoveries.append(found)
        self.cut, self._to_resume = None, found
        return found

    def resume(self, cut_after: int | None = None) -> bool:
        """Run the remainder of the step that the power cut interrupted. Return True if the step
        completes; False if the power fails again, after ``cut_after`` events. Raises InputError if
        there is no step to resume."""
        found = self._to_resume
        if found is None:
            raise InputError("there is no step to resume; call recover() first")
        power.check_cut(self.path, cut_after)
        self._to_resume = None
        self._sent = power.sent(self.system)
        rest = power.rest(self.path, self._step, found, self.system)
        return self._ended(rest, cut_after)

    def checkpoint(self, lost: tuple[int, int] | None = None) -> Checkpoint:
        """Read weights and states from the reservoir to the host, between two steps.

        ``lost``: (drive, die) of a lost die, which does not respond, or None. The contents of this
        die are reconstructed from the parity over the dies. Raises InputError if a step is
        interrupted, if the path has no checkpoints, or if there is no parity from which the lost
        die can be reconstructed.
        """
        self.nothing_under_way()
        path = self.path
        if not isinstance(path, OnDie):
            raise InputError(
                f"{path.name}: only the path {OnDie.name!r} has checkpoints; use that path"
            )
        checkpoint.check_lost(path, lost)
        read = checkpoint.super_pages(path, lost)
        if any((self.system.arrays.rmap[dev, its] == 0).any() for dev, its in enumerate(read)):
            raise InputError(
                "the lost die cannot be reconstructed: no parity exists before the first update; "
                "run a step first"
            )
        payload, began = path.payload, self.system.now
        up = int(self.system.planned.sum(axis=0)[PLANNED.index("link_up_bytes")])
        if isinstance(payload, Reservoir):
            payload.saved = {}
        self.system.run(checkpoint.plan(path, self.system.next_row, lost))
        vectors: dict[str, np.ndarray] | None = None
        if isinstance(payload, Reservoir) and payload.saved is not None:
            pages, payload.saved = payload.saved, None
            for dev, sp in checkpoint.missing(path, lost):
                there = {
                    number: planes for (device, number), planes in pages.items() if device == dev
                }
                pages[dev, sp] = payload.beside[dev].again(sp, there.__getitem__)
            vectors = payload.unpacked(pages)
        up = int(self.system.planned.sum(axis=0)[PLANNED.index("link_up_bytes")]) - up
        return Checkpoint(vectors, (self.system.now - began) / 1e12, up)
