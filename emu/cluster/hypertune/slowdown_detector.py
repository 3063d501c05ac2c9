"""Slowdown detector: decides step by step whether a node is slower than expected.

Owns Eq. 2 as printed and gated by noise, the window of observations, and the number of consecutive
flags that are required. Does not own the response to a decline (controller.py).
Source: HyperTune (HeydariGorji et al.), Eq. 2: a node is flagged in a step if its index 0.7 (SP -
SP_i) / SP + 0.3 (N - step) / N exceeds 0.20, and its batch changes after five flags in a row. SP:
expected speed. SP_i: observed speed. N: number of steps of an epoch. As printed, Eq. 2 flags nodes
without a decline in the first third of every epoch.

Gate: a decline is the amount by which the mean of the last five observations is below the expected
speed. A decline counts if it exceeds a margin, which is the noise of that mean. Noise may also make
the measured decline smaller by the margin, so the index is evaluated at the decline plus the
margin. The index uses the step at the start of the window, where the observed decline began. All
arrays are float64[n], one entry per node. NaN marks a value that was not observed; a node with such
a value is not flagged.
"""

from __future__ import annotations

import numpy as np

DECLINE, REMAINING, THRESHOLD = 0.7, 0.3, 0.20
"""Weights of the two terms of HyperTune's Eq. 2 (relative decline of the speed, and fraction of the
epoch that remains), and the threshold of their sum."""
FLAGS, WINDOW, RECENT = 5, 10, 5
"""FLAGS: number of consecutive steps in which a node is flagged before its batch is resized.
WINDOW: number of steps in the window of observations. RECENT: number of recent steps that are
averaged."""


def index(decline: np.ndarray, step: int, steps: int) -> np.ndarray:
    """Return the left side of HyperTune's Eq. 2 for each node, float64[n]. ``decline``: relative
    decline of each node's speed in step ``step`` (from 0) of ``steps``, float64[n]."""
    return DECLINE * decline + REMAINING * (steps - step) / steps


def literal(decline: np.ndarray, step: int, steps: int) -> np.ndarray:
    """Return True for each node that HyperTune's Eq. 2, as printed, flags as slow in step ``step``
    of ``steps``, bool[n]. ``decline``: relative decline of the speed in this step alone,
    float64[n]."""
    return index(decline, step, steps) > THRESHOLD


def gated(
    decline: np.ndarray, margin: np.ndarray, step: int, steps: int, window: int = WINDOW
) -> np.ndarray:
    """Return a mask, bool[n]: True for each slow node. The decline of a slow node exceeds
    ``margin``, and the left side of HyperTune's Eq. 2 for the sum of decline and ``margin`` exceeds
    THRESHOLD.

    ``decline``: relative decline of the mean of recent observations, float64[n]. ``step``,
    ``steps``: current step (from 0) and number of steps of the epoch. ``window``: number of steps
    in the window of observations; Eq. 2 uses the step at the start of this window.
    """
    dated = max(step - window + 1, 0)
    return (decline > margin) & (index(decline + margin, dated, steps) > THRESHOLD)


class Window:
    """Window of the last observations (speeds or fractions of free cores) of every node,
    float64[window, n]. The values of steps before the first observation are NaN."""

    def __init__(self, nodes: int, window: int = WINDOW, recent: int = RECENT) -> None:
        self._rows = np.full((window, nodes), np.nan)
        self._at = 0
        """Row of the oldest observation, which the next one replaces."""
        self._recent = recent

    def push(self, values: np.ndarray | float) -> np.ndarray:
        """Add the observations of a step (one per node) to the window, in place of the oldest
        observations. Return the oldest observations, float64[n]."""
        left = self._rows[self._at].copy()
        self._rows[self._at] = values
        self._at = (self._at + 1) % len(self._rows)
        return left

    def mean(self) -> np.ndarray:
        """Return the mean of each node's observations in the window, float64[n]; NaN if the window
        contains a missing observation."""
        mean: np.ndarray = self._rows.mean(axis=0)
        return mean

    def recent(self) -> np.ndarray:
        """Return the mean of each node's RECENT most recent observations, float64[n]."""
        last = (self._at - 1 - np.arange(self._recent)) % len(self._rows)
        mean: np.ndarray = self._rows[last].mean(axis=0)
        return mean
