"""Expectation: how fast each node should be, how sure that is, and how many cores it goes with.

Owns the reference that declines and growth are measured from, and its margins. Does not own the
observations (decline.py) or what is decided (hypertune.py).
Source: own. HyperTune's Eq. 2 has a speed SP to compare with, and does not say what it is after a
batch was changed.

A node's speeds here are ratios to its uninterrupted speed at its batch. 1 is expected of it as
tuned; after a change, the ratio that the change was decided with: so it is not flagged again for
what it was flagged for. That ratio is a mean of five noisy steps; it gets better while nothing
happens, and until then the margins are wider.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.cluster.hypertune.slowdown_detector import RECENT, WINDOW, Window


class Expectation:
    """References and margins of n nodes, all float64[n].

    ``noise``, ``cpu_noise``: standard deviation of one observation, of a speed (relative) and of a
    share of cores. A recent mean may be off by ``sigmas`` standard errors, and by ``least``.
    """

    def __init__(self, noise: float, cpu_noise: float, sigmas: float, least: float) -> None:
        self._noise, self._sigmas, self._least = noise, sigmas, least
        self.ratio = self.margin = self.cores = self._samples = self._tuned_cores = np.empty(0)
        self._age = np.empty(0, np.int64)
        self.cores_margin = float(self._off(cpu_noise, np.array(RECENT)))
        """How much of its cores a node must get back for it to be more than noise."""

    def _off(self, noise: float, samples: np.ndarray) -> np.ndarray:
        """What noise makes of the difference of a recent mean and one of so many samples."""
        error = noise * np.sqrt(1 / RECENT + 1 / samples)
        off: np.ndarray = np.maximum(self._least, self._sigmas * error)
        return off

    def extend(self, cores: np.ndarray) -> None:
        """More nodes, as tuned, with these shares of their cores."""
        nodes = len(cores)
        self.ratio = np.append(self.ratio, np.ones(nodes))
        self.cores = np.append(self.cores, cores)
        self._tuned_cores = np.append(self._tuned_cores, cores)
        self._samples = np.append(self._samples, np.full(nodes, np.inf))
        self._age = np.append(self._age, np.zeros(nodes, np.int64))
        self.margin = self._off(self._noise, self._samples)

    def decline(self, ratio: np.ndarray) -> np.ndarray:
        """How much slower than expected, relative; of a node that had stopped, minus infinity."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - ratio / self.ratio

    def more_cores(self, cores: np.ndarray, ratio: np.ndarray) -> np.ndarray:
        """Whose cores came back since its batch was chosen, bool[n].

        Where none had gone, cores cannot explain a decline (heat, memory) nor show its end: there a
        speed above what is expected does.
        """
        unexplained = self.cores > self._tuned_cores - self.cores_margin
        faster = -self.decline(ratio) > self.margin
        back: np.ndarray = (cores - self.cores > self.cores_margin) | (unexplained & faster)
        return back

    def as_tuned(self, cores: np.ndarray, ratio: np.ndarray) -> np.ndarray:
        """Who has the cores and the speed it was tuned with, as far as one can tell, bool[n]."""
        cores_back = cores >= self._tuned_cores - self.cores_margin
        same: np.ndarray = cores_back & (np.abs(1 - ratio) <= self.margin)
        return same

    def expect(
        self, nodes: np.ndarray, ratio: np.ndarray, cores: np.ndarray, tuned: np.ndarray
    ) -> None:
        """From now on these recent means of these nodes; of those ``tuned``, what they were tuned
        for. All [k]."""
        self.ratio[nodes] = np.where(tuned, 1.0, ratio)
        self.cores[nodes] = np.where(tuned, self._tuned_cores[nodes], cores)
        self._samples[nodes] = np.where(tuned, np.inf, RECENT)
        self._age[nodes] = 0
        self.margin[nodes] = self._off(self._noise, self._samples[nodes])

    def settle(self, left: np.ndarray, window: Window) -> None:
        """After each step: ``left`` has left the window of speeds.

        Where a reference is young and the window is near it, what leaves is averaged into it, up to
        twice the window: a decline that begins is in the window before it can get here.
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
