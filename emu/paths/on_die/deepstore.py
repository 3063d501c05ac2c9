"""Chip-level update without skipping: the baseline that OptimStore's paper calls DeepStore.

Owns the steps of a stripe without gradient skipping and without write skipping. Does not own the
other functions of the on-die path (path.py) or the engine's rules.
Source: OptimStore (HPCA 2023), after DeepStore (MICRO 2019): 28 B per parameter on the channel.
Interpretation: the gradient is ordinary data. It passes through the controller's ECC (4 B in, KEEP)
and is programmed into the plane of its super-page that Adam leaves empty. The chip senses the
gradient together with the states, without using the channel. Results are also ordinary data, which
only the controller can encode: w, m and v are sent out (12 B, FETCH) and return to be programmed
(12 B in, STORE).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ondie.emu.paths.base import Path
from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.paths.on_die.devices import channel_s
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.protection import (
    COMPUTE,
    FETCH_STEP,
    GATE,
    KEEP_STEP,
    SENSE,
    STORE_STEP,
)
from ondie.emu.paths.on_die.rounds import Table


@dataclass
class ChipLevel(OnDie):
    """Path that updates weights and states in the flash chips. Gradients and results pass through
    the controller.

    Dispatch: in lockstep, the chips of a channel sense when all these chips have their gradients,
    as in on_die. Otherwise each chip senses when it has its gradient. A gradient is programmed as
    soon as the previous stripe has been programmed. The gradient does not occupy a register, so a
    second register has no effect.
    """

    name: ClassVar[str] = "chip_level"
    title: ClassVar[str] = "in the flash chips, no transfers skipped"

    def lay_out(self) -> None:
        gate = (GATE,) if self.cfg.pe.dispatch == "lockstep" else ()
        self.steps = (KEEP_STEP, *gate, SENSE, COMPUTE, FETCH_STEP, STORE_STEP)
        self.stripes = tuple(
            Stripes.of(shard, self.vectors, self.geometry, kept=True) for shard in self.shards
        )

    def granule(self) -> int:
        groups = max(self.geometry.planes // (len(self.vectors) + 1), 1)
        return super().granule() // max(self.geometry.planes // len(self.vectors), 1) * groups

    def unstorable(self) -> str | None:
        return Path.unstorable(self)

    def missing(self) -> str | None:
        for key in ("protection", "rain", "atomicity"):
            value = getattr(self.cfg.pe, key)
            if value not in ("none", "nan_comparator", 0):
                return (
                    f"pe.{key} = {value} has no effect, because pages pass through the controller; "
                    f"remove pe.{key}"
                )
        if self.cfg.errors.kind != "none":
            return f"errors.kind = {self.cfg.errors.kind}: this path does not simulate bit errors"
        return super().missing()

    def schedule(self, table: Table, after: int) -> None:
        keep, sense = table.mask[KEEP_STEP], table.mask[SENSE]
        table.after0[keep] = table.base[keep]
        table.after1[keep] = table.previous(STORE_STEP)[keep]
        if GATE in table.mask:
            gate = table.mask[GATE]
            table.after0[gate] = table.row[KEEP_STEP][gate]
            way = table.row[GATE] - self.geometry.channels
            table.after1[gate] = np.where(table.die >= self.geometry.channels, way, -1)[gate]
            table.after0[sense] = self._last_way(table, GATE)[sense]

    def _stripe_s(self, stripes: Stripes, array: float, load: float) -> tuple[float, str]:
        """Return (seconds per stripe, name of the bottleneck). In lockstep, the time is the sum of
        the array time, the load of one gradient, and all transfers of the channel's chips except
        gradient loads. The gradient loads of the other chips do not extend this time. Without
        lockstep, the time is that of the channel or of one chip, whichever is longer."""
        flash, ways = self.cfg.flash, self.geometry.ways
        moved = channel_s(self.devices, stripes)
        array += flash.t_program_ps / 1e12  # program of the gradient
        if self.cfg.pe.dispatch == "lockstep":
            return array + load + ways * moved, "chips in lockstep"
        return max((array + load + moved, "dies"), (ways * (load + moved), "channels"))
