"""Decline: whether a node trains slower than it should, step by step.

Owns Eq. 2 as printed and gated by noise, the window of observations, and the count of flags in a
row. Does not own what follows from a decline (hypertune.py).
Source: HyperTune (HeydariGorji et al.), Eq. 2: 0.7 (SP - SP_i) / SP + 0.3 (N - step) / N, above
0.20, five times in a row. As printed it fires with no decline in the first third of every epoch.

What the gate adds: a decline is the mean of the last five observations below what is expected, and
counts if it is more than noise of that mean would make it. Since the mean may as well be too small
by as much, the index is allowed that, too; and it is dated to the beginning of the window, since
the decline it sees began there. All arrays are float64[n], one entry per node; NaN is not observed,
and never flagged.
"""

from __future__ import annotations

import numpy as np

DECLINE, REMAINING, THRESHOLD = 0.7, 0.3, 0.20
"""Weights of the two terms of Eq. 2, and from where it counts."""
FLAGS, WINDOW, RECENT = 5, 10, 5
"""Flags in a row; steps in the window; those of them that are averaged."""


def index(decline: np.ndarray, step: int, steps: int) -> np.ndarray:
    """Eq. 2 of a relative decline, in step ``step`` (from 0) of ``steps``."""
    return DECLINE * decline + REMAINING * (steps - step) / steps


def literal(decline: np.ndarray, step: int, steps: int) -> np.ndarray:
    """Which nodes Eq. 2 flags as printed, bool[n]: ``decline`` is that of this step alone."""
    return index(decline, step, steps) > THRESHOLD


def gated(
    decline: np.ndarray, margin: np.ndarray, step: int, steps: int, window: int = WINDOW
) -> np.ndarray:
    """Which nodes declined by more than ``margin`` while Eq. 2 may be above its threshold.

    ``decline``: of the recent mean. bool[n].
    """
    dated = max(step - window + 1, 0)
    return (decline > margin) & (index(decline + margin, dated, steps) > THRESHOLD)


class Window:
    """The last observations of every node, float64[window, n]; NaN before there are any."""

    def __init__(self, nodes: int, window: int = WINDOW, recent: int = RECENT) -> None:
        self._rows = np.full((window, nodes), np.nan)
        self._at = 0
        """Row of the oldest, which the next one replaces."""
        self._recent = recent

    def push(self, values: np.ndarray | float) -> np.ndarray:
        """Observe a step; returns what leaves the window."""
        left = self._rows[self._at].copy()
        self._rows[self._at] = values
        self._at = (self._at + 1) % len(self._rows)
        return left

    def mean(self) -> np.ndarray:
        """Of the whole window."""
        mean: np.ndarray = self._rows.mean(axis=0)
        return mean

    def recent(self) -> np.ndarray:
        """Mean of the last ones."""
        last = (self._at - 1 - np.arange(self._recent)) % len(self._rows)
        mean: np.ndarray = self._rows[last].mean(axis=0)
        return mean

    def slope(self, steps: int) -> np.ndarray:
        """Of the line of least squares through the last ``steps``, per step."""
        x = np.arange(steps) - (steps - 1) / 2
        last = (self._at - steps + np.arange(steps)) % len(self._rows)
        slope: np.ndarray = x @ self._rows[last] / (x @ x)
        return slope

    def forget(self, nodes: np.ndarray) -> None:
        """What these nodes did before counts no longer."""
        self._rows[:, nodes] = np.nan

    def widen(self, nodes: int) -> None:
        """Room for so many more."""
        more = np.full((len(self._rows), nodes), np.nan)
        self._rows = np.concatenate([self._rows, more], axis=1)
