"""Recovery after a power cut: builds a new system from the flash of the old system.

Owns the new system, and the report of the recovery. Does not own the steps of the recovery
(states/reservoir_scan.py) or the effects of the cut (analysis/power_loss/cut.py).
Source: this project's rule that a recovery reads only the contents of the flash.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.analysis.power_loss.cut import Cut, Recovery, sent
from ondie.emu.engine.core.payload_log import LOG_PAD, LOG_READ_OUT, entries
from ondie.emu.engine.run.system import System
from ondie.emu.paths.base import Path
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.states.reservoir_scan import ReservoirScan


class Revival(ReservoirScan):
    """Recovery of a path after a power cut. It builds a new system from the flash of the old
    system.

    ``dead``: the system that lost power. ``happened``: the power cut. The host still has the number
    and the gradient of the interrupted step.
    """

    def __init__(self, path: Path, dead: System, happened: Cut) -> None:
        assert isinstance(path, OnDie) and isinstance(path.payload, Reservoir)
        self.old, self.happened = path.payload, happened
        super().__init__(path, _same_cells(path, dead), self.old.stores, self.old.step)
        self.system.on_log = self._on_log

    def run(self) -> None:
        """Run the recovery that ReservoirScan implements, and copy the gradient of the interrupted
        step to the new payload."""
        super().run()
        assert isinstance(self.path.payload, Reservoir)
        self.path.payload.gradient = self.old.gradient

    def _on_log(self, log: np.ndarray) -> None:
        for entry in entries(log):
            if entry.what in (LOG_READ_OUT, LOG_PAD):
                self.apply(entry)

    def found(self, sent_before: int) -> Recovery:
        """Return the report of the recovery. ``sent_before``: number of gradient bytes that the
        host had sent (:func:`sent`) when the step was started or last resumed."""
        path, happened = self.path, self.happened
        vain = sent(self.system) + happened.lost["down_bytes"] - sent_before
        stripe = path.stripes[0].gradient_bytes
        kept = sum(int(cursor.sum()) for cursor in self.cursors)
        return Recovery(
            cut=happened,
            seconds=(self.system.now - happened.at_ps) / 1e12,
            scanned=self.scanned,
            checked=self.checked,
            refused=sum(scan.torn for scan in self.scans.values()),
            padded=self.padded,
            kept=kept,
            resent_bytes=max(vain - (kept - self.old.kept) * stripe, 0),
            cursors=self.cursors,
            undone=self.undone,
            made=self.made,
        )


def _same_cells(path: OnDie, dead: System) -> System:
    """Return a new system with the clock, the totals and the flash cells of ``dead``, and with
    empty registers and tables."""
    old = dead.arrays
    system = path.system(True, len(old.line) if int(old.reg["line_on"][0]) else 0)
    new = system.arrays
    new.reg["now"] = old.reg["now"]
    new.cfg["seed"] = old.cfg["seed"]
    for name in ("erases", "reads"):  # state of the cells
        new.block[name] = old.block[name]
    for name in ("quality", "seen", "lost", "kept", "worn", "count", "use", "phase"):
        getattr(new, name)[...] = getattr(old, name)
    new.phase["rows"] = new.phase["done"]
    new.fifo["size"] = old.fifo["size"]
    for side in ("size_in", "size_out"):
        new.bus[side] = old.bus[side]
    if int(old.reg["line_on"][0]):
        new.line[:] = old.line
        new.reg["lines"], new.reg["line_drop"] = old.reg["lines"], old.reg["line_drop"]
    system.planned[:] = dead.planned
    return system
