"""Chance: how the steps of a node differ, and what a watcher of its speed has to allow for.

Owns jitter and stragglers, the mean speed under them, and the noise that they are to a gate. Does
not own the gate (decline.py, expectation.py) or the steps (simulation.py).
Source: own. Jitter is log-normal; a straggler's step is longer by a factor. A recent mean of a few
steps with rare stragglers is far from normal: one of them stays in it for as many steps as
HyperTune wants flags in a row. So a gate has to allow for as many as seldom keep it above.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, expm1, sqrt

import numpy as np

from ondie.emu.cluster.hypertune.slowdown_detector import FLAGS, RECENT
from ondie.emu.units import InputError

SELDOM = 1e-7
"""Probability of flags in a row by stragglers alone, of a node at a step [assumed, 1e-9 to 1e-5]:
once in a thousand steps of ten thousand nodes."""


@dataclass(frozen=True)
class Chance:
    """How steps differ by chance."""

    jitter: float = 0.0
    """Deviation of a node's logarithm of speed, from step to step."""
    stragglers: float = 0.0
    """Share of steps in which a node is a straggler."""
    slower: float = 2.0
    """By how much its step is then longer."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= 1:
            raise InputError(f"jitter {self.jitter}: 0 to 1 is right, 0.05 for 5 %")
        if not 0 <= self.stragglers <= 1:
            raise InputError(f"share of stragglers {self.stragglers}: 0 to 1 is right")
        if not 1 <= self.slower < np.inf:
            raise InputError(f"straggler's factor {self.slower}: 1 or more is right")
        if self.seed < 0:
            raise InputError(f"seed {self.seed}: 0 or more is right")

    def longer(self, random: np.random.Generator, nodes: int) -> np.ndarray | float:
        """By how much each node's step is longer than without chance, float64[nodes]."""
        out: np.ndarray | float = 1.0
        if self.jitter:
            out = np.exp(random.normal(0.0, self.jitter, nodes))
        if self.stragglers:
            out = out * np.where(random.random(nodes) < self.stragglers, self.slower, 1.0)
        return out

    @property
    def speed(self) -> float:
        """Mean of a node's observed speed, over that without chance."""
        return exp(self.jitter**2 / 2) * (1 - self.stragglers * self._slack)

    def noise(self, sigmas: float) -> float:
        """Standard deviation of an observed speed, relative to its mean, that makes a gate of so
        many ``sigmas`` allow for jitter and stragglers."""
        jitter = sqrt(expm1(self.jitter**2))
        if not 0 < self.stragglers < 1 or self.slower == 1:
            return jitter
        p = self.stragglers
        deviation = sqrt(p * (1 - p)) * self._slack / (1 - p * self._slack)
        # Half a straggler more, so that the gate is not on what as many as allowed make.
        with_them = 1 - (self.allowed + 0.5) / RECENT * self._slack
        decline = 1 - with_them / (1 - p * self._slack)
        return max(sqrt(jitter**2 + deviation**2), jitter + decline * sqrt(RECENT) / sigmas)

    @cached_property
    def allowed(self) -> int:
        """Stragglers among RECENT steps that a gate has to allow for: more of them in each of FLAGS
        means in a row are seldom. Counted over all patterns of the steps that these span."""
        steps = RECENT + FLAGS - 1
        pattern = (np.arange(1 << steps)[:, None] >> np.arange(steps)) & 1
        number = pattern.sum(axis=1)
        weight = self.stragglers**number * (1 - self.stragglers) ** (steps - number)
        fewest = np.lib.stride_tricks.sliding_window_view(pattern, RECENT, axis=1)
        least = fewest.sum(axis=2).min(axis=1)
        for k in range(1, RECENT):
            if weight[least > k].sum() <= SELDOM:
                return k
        return RECENT

    @property
    def _slack(self) -> float:
        """Speed that a straggler lacks."""
        return 1 - 1 / self.slower
