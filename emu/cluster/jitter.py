"""Random variation of step times: jitter and stragglers, and the gate that tolerates them.

Owns jitter and stragglers, the mean speed under them, and the equivalent noise for HyperTune's
gate. Does not own the gate (hypertune/slowdown_detector.py, hypertune/expected_speed.py) or the
steps (training_sim.py).
Source: this project. Jitter is log-normal; a straggler's step is longer by a constant factor.

The mean of a few steps with rare stragglers is not normally distributed: one straggler lowers
RECENT consecutive means, and HyperTune resizes after the same number of consecutive flags. The gate
must therefore tolerate a number of stragglers that is exceeded only with probability SELDOM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, expm1, sqrt

import numpy as np

from ondie.emu.cluster.hypertune.slowdown_detector import FLAGS, RECENT
from ondie.emu.units import InputError

SELDOM = 1e-7
"""Maximum probability, per node and step, with which stragglers alone cause enough consecutive
flags for HyperTune to change a batch [assumed, 1e-9 to 1e-5]. The value corresponds to one change
in a thousand steps of ten thousand nodes."""


@dataclass(frozen=True)
class Chance:
    """Parameters of the random variation of step times (jitter and stragglers). Raises InputError
    if a value is out of range."""

    jitter: float = 0.0
    """Standard deviation, over the steps, of the logarithm of a node's step time."""
    stragglers: float = 0.0
    """Probability, per node and step, that the node is slow in this step (a straggler)."""
    slower: float = 2.0
    """Step time of a straggler divided by its normal step time."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= 1:
            raise InputError(f"jitter {self.jitter}: must be from 0 to 1 (0.05 means 5 %)")
        if not 0 <= self.stragglers <= 1:
            raise InputError(f"fraction of stragglers {self.stragglers}: must be from 0 to 1")
        if not 1 <= self.slower < np.inf:
            raise InputError(
                f"slowdown factor of stragglers {self.slower}: must be finite and at least 1"
            )
        if self.seed < 0:
            raise InputError(f"seed {self.seed}: must be at least 0")

    def longer(self, random: np.random.Generator, nodes: int) -> np.ndarray | float:
        """Return the factor by which each node's step time is multiplied, drawn from ``random``,
        float64[nodes]. The result is the number 1 if ``jitter`` and ``stragglers`` are 0."""
        out: np.ndarray | float = 1.0
        if self.jitter:
            out = np.exp(random.normal(0.0, self.jitter, nodes))
        if self.stragglers:
            out = out * np.where(random.random(nodes) < self.stragglers, self.slower, 1.0)
        return out

    @property
    def speed(self) -> float:
        """Mean speed of a node under random variation, relative to its speed without variation."""
        return exp(self.jitter**2 / 2) * (1 - self.stragglers * self._slack)

    def noise(self, sigmas: float) -> float:
        """Return the relative standard deviation that HyperTune's gate must assume for an observed
        speed. With this value, a margin of ``sigmas`` standard errors tolerates jitter and
        stragglers."""
        jitter = sqrt(expm1(self.jitter**2))
        if not 0 < self.stragglers < 1 or self.slower == 1:
            return jitter
        share = self.stragglers
        deviation = sqrt(share * (1 - share)) * self._slack / (1 - share * self._slack)
        # Add half a straggler: the gate must lie above the decline that allowed stragglers cause.
        with_them = 1 - (self.allowed + 0.5) / RECENT * self._slack
        decline = 1 - with_them / (1 - share * self._slack)
        return max(sqrt(jitter**2 + deviation**2), jitter + decline * sqrt(RECENT) / sigmas)

    @cached_property
    def allowed(self) -> int:
        """Number of stragglers among RECENT steps of a node that HyperTune's gate must tolerate.

        It is the smallest number, at least 1, that is exceeded in FLAGS consecutive windows of
        RECENT steps with a probability of at most SELDOM. The probability is summed over all
        patterns of stragglers in the steps that these windows cover.
        """
        steps = RECENT + FLAGS - 1
        pattern = (np.arange(1 << steps)[:, None] >> np.arange(steps)) & 1
        number = pattern.sum(axis=1)
        weight = self.stragglers**number * (1 - self.stragglers) ** (steps - number)
        fewest = np.lib.stride_tricks.sliding_window_view(pattern, RECENT, axis=1)
        least = fewest.sum(axis=2).min(axis=1)
        for most in range(1, RECENT):
            if weight[least > most].sum() <= SELDOM:
                return most
        return RECENT

    @property
    def _slack(self) -> float:
        """Relative loss of speed of a straggler, 1 - 1 / ``slower``."""
        return 1 - 1 / self.slower
