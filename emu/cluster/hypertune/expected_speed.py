"""Expected speed and expected fraction of free cores of each node, with their margins.

Owns the reference against which declines and growth are measured, and its margins. Does not own the
observations (slowdown_detector.py) or the decision (controller.py).
Source: this project. HyperTune's Eq. 2 compares a node's speed with a speed SP, but does not define
SP after a batch change.

Speeds are ratios to a node's uninterrupted speed at its batch. The expected ratio of a tuned node
is 1. After a batch change, the expected ratio is the ratio on which the change was based, so the
node is not flagged again for the same decline. That ratio is a mean of five noisy steps, so the
margins are wider after a batch change. While no decline occurs, later steps refine the expected
ratio and narrow the margins again.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.cluster.hypertune.slowdown_detector import RECENT, WINDOW, Window


class Expectation:
    """Expected speeds and margins of n nodes, all float64[n].

    ``cores``: fraction of each node's cores that were free when the node was tuned. ``noise``:
    relative standard deviation of one observed speed. ``cpu_noise``: standard deviation of one
    observed fraction of free cores. The mean of recent observations may deviate from the expected
    value by ``sigmas`` standard errors, or by ``least`` if that is larger.
    """

    def __init__(
        self, cores: np.ndarray, noise: float, cpu_noise: float, sigmas: float, least: float
    ) -> None:
        nodes = len(cores)
        self._noise, self._sigmas, self._least = noise, sigmas, least
        self.ratio = np.ones(nodes)
        self.cores, self._tuned_cores = cores.copy(), cores
        self._samples = np.full(nodes, np.inf)
        self._age = np.zeros(nodes, np.int64)
        self.margin = self._off(noise, self._samples)
        self.cores_margin = float(self._off(cpu_noise, np.array(RECENT)))
        """Smallest increase of a node's fraction of free cores that does not count as noise."""

    def _off(self, noise: float, samples: np.ndarray) -> np.ndarray:
        """Return the largest difference between the mean of recent observations and a mean of
        ``samples`` observations that counts as noise."""
        error = noise * np.sqrt(1 / RECENT + 1 / samples)
        off: np.ndarray = np.maximum(self._least, self._sigmas * error)
        return off

    def decline(self, ratio: np.ndarray) -> np.ndarray:
        """Return the relative decline of each node below its expected speed, float64[n]. ``ratio``:
        mean of recent speeds relative to the uninterrupted speed. If the expected ratio is 0, the
        result is minus infinity, or NaN if ``ratio`` is also 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - ratio / self.ratio

    def more_cores(self, cores: np.ndarray, ratio: np.ndarray) -> np.ndarray:
        """Return a mask, bool[n]: True for each node that has regained cores since its batch was
        chosen.

        If a node has lost no cores, its slowdown has another cause (heat, memory). For such a node,
        a speed above the expected speed counts as the end of the slowdown, and the result is True.
        """
        unexplained = self.cores > self._tuned_cores - self.cores_margin
        faster = -self.decline(ratio) > self.margin
        back: np.ndarray = (cores - self.cores > self.cores_margin) | (unexplained & faster)
        return back

    def as_tuned(self, cores: np.ndarray, ratio: np.ndarray) -> np.ndarray:
        """Return a mask, bool[n]: True for each node that again has the free cores and the speed of
        a tuned node. Its fraction of free cores may be below the value at the time of tuning by at
        most a margin, and its speed ratio may differ from 1 by at most a margin. ``cores``: recent
        fraction of free cores of each node. ``ratio``: recent speed of each node divided by its
        uninterrupted speed."""
        cores_back = cores >= self._tuned_cores - self.cores_margin
        same: np.ndarray = cores_back & (np.abs(1 - ratio) <= self.margin)
        return same

    def expect(
        self, nodes: np.ndarray, ratio: np.ndarray, cores: np.ndarray, tuned: np.ndarray
    ) -> None:
        """Set the expected speed ratio and fraction of free cores of ``nodes`` to the recent means
        ``ratio`` and ``cores``; all arrays have the shape [k]. Where ``tuned`` is True, set them to
        the values for which the node was tuned."""
        self.ratio[nodes] = np.where(tuned, 1.0, ratio)
        self.cores[nodes] = np.where(tuned, self._tuned_cores[nodes], cores)
        self._samples[nodes] = np.where(tuned, np.inf, RECENT)
        self._age[nodes] = 0
        self.margin[nodes] = self._off(self._noise, self._samples[nodes])

    def settle(self, left: np.ndarray, window: Window) -> None:
        """Update the expected speed of each node (its reference) after a step. ``left``:
        observations that have left the window, float64[n].

        A reference averages at most 2 * WINDOW observations. Until this number is reached, ``left``
        is added to the average if more than WINDOW steps have passed since the last change of the
        reference by :meth:`expect`, and if the mean of the window differs from the reference by
        less than half of the margin. A decline is visible in the window before its first
        observation leaves the window, so the decline does not change the reference.
        """
        self._age += 1
        young = (self._samples < 2 * WINDOW) & (self._age > WINDOW)
        if not young.any():
            return
        quiet = np.abs(self.decline(window.mean())) < self.margin / 2
        at = np.flatnonzero(young & quiet & np.isfinite(left))
        self.ratio[at] += (left[at] - self.ratio[at]) / (self._samples[at] + 1)
        self._samples[at] += 1
        self.margin[at] = self._off(self._noise, self._samples[at])
