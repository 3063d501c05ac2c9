"""Spells: cores that others take from every node again and again, drawn while time passes.

Owns when which node is loaded, for as long as anybody asks, and when work is done under it. Does
not own load that is known beforehand (load.py) or what a taken core costs (slowdown.py).
Source: own; an alternating renewal process with exponential spells. A spell depends on seed, node
and its number alone, so every run under the same seed has the same one, and none is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ondie.emu.cluster.load.trace import Load
from ondie.emu.engine.core.rng import absorb, below, uniform
from ondie.emu.units import InputError
from ondie.kernels.jit import njit

MOST_SPELLS = 1_000_000_000
"""Of all nodes in one run: a minute or two of drawing."""
_FIRST, _LENGTH, _CORES = 0, 1, 2
"""What is drawn for a spell, or for a node's first."""


@dataclass(frozen=True)
class Spells:
    """Each node is left alone and loaded in turn, for ever.

    Loaded spells last ``busy_s`` on average and make up ``share`` of the time; both kinds are
    exponential, and each loaded spell takes 1 to all but one of the node's cores, uniformly.
    """

    busy_s: float
    share: float
    seed: int
    most: int = MOST_SPELLS
    """More loaded spells than these are refused."""

    def __post_init__(self) -> None:
        if not 0 < self.busy_s < np.inf:
            raise InputError(f"mean spell of a drawn load: {self.busy_s} s; more than 0 is right")
        if not 0 < self.share < 1:
            raise InputError(f"share of a drawn load: {self.share}; between 0 and 1 is right")
        if not self.free_s < np.inf:
            raise InputError(f"share of a drawn load: {self.share}; a larger one is right")

    @property
    def key(self) -> int:
        """The seed in 63 bits."""
        return self.seed & ((1 << 63) - 1)

    @property
    def free_s(self) -> float:
        """Mean time between two loaded spells."""
        return self.busy_s * (1 - self.share) / self.share

    def check(self, nodes: int, seconds: float) -> None:
        """InputError where so many nodes have too many spells in so long."""
        expected = nodes * seconds / (self.busy_s + self.free_s)
        if expected > self.most:
            least = nodes * seconds * self.share / self.most
            raise InputError(
                f"a drawn load of {self.busy_s:g} s at a time, {self.share:g} of the time: about "
                f"{expected:.2g} spells on {nodes:,} nodes in {seconds:.4g} s; at most "
                f"{self.most:,} are drawn: spells of {least:.3g} s or more, fewer nodes or fewer "
                f"steps are right"
            )

    def pace(
        self, cores: np.ndarray, pace: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> SpellPace:
        """Of nodes with these ``cores``, int64[nodes]; ``pace`` as load.Pace has it."""
        return SpellPace(self, cores, pace)

    def until(self, seconds: float, cores: np.ndarray) -> Load:
        """The loaded spells that begin before, as a load."""
        at, node, taken = [], [], []
        for i, own in enumerate(cores.tolist()):
            k, begun, ended, cut = _begin(self.key, i, own, self.busy_s, self.free_s)
            while begun < seconds:
                if cut:
                    at += [begun, ended]
                    node += [i, i]
                    taken += [float(cut), 0.0]
                k, begun, ended, cut = _next(self.key, i, own, self.busy_s, self.free_s, k, ended)
        return Load(np.array(at, float), np.array(node, np.int64), np.array(taken, float))


class SpellPace:
    """Relative speed of every node over time, as load.Pace: one spell of each node is held, that of
    its last start. Times that are asked for must not go back."""

    def __init__(
        self,
        spells: Spells,
        cores: np.ndarray,
        pace: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        n = len(cores)
        self._spells, self._cores = spells, cores.astype(np.int64)
        self._number = np.zeros(n, np.int64)
        self._begun, self._ended = np.zeros(n), np.zeros(n)
        self._taken = np.zeros(n, np.int64)
        _start(
            spells.key, self._cores, spells.busy_s, spells.free_s,
            self._number, self._begun, self._ended, self._taken,
        )  # fmt: skip
        self._pace, self._row = _table(self._cores, pace)

    def left(self) -> np.ndarray:
        """Share of its cores that each node had at the last start that was asked for."""
        out: np.ndarray = 1 - self._taken / self._cores
        return out

    def finish(self, start: np.ndarray, work: np.ndarray) -> np.ndarray:
        """When work that begins at ``start`` and takes ``work`` seconds at full pace is done:
        float64[nodes]. InputError for more spells than are drawn."""
        s = self._spells
        s.check(len(start), float(start.max(initial=0.0)))
        end = np.empty(len(start))
        _finish(
            s.key, self._cores, s.busy_s, s.free_s, self._number, self._begun, self._ended,
            self._taken, self._pace, self._row, start, work, end,
        )  # fmt: skip
        return end


def _table(
    cores: np.ndarray, pace: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Speed by how many cores are taken, float64[rows, most cores + 1], and each node's row,
    int64[nodes]: nodes whose speeds are all alike share one."""
    n, most = len(cores), int(cores.max(initial=1))
    every = np.arange(n)
    taken = [np.minimum(k, cores) for k in range(most + 1)]
    speeds = np.stack([pace(1 - t / cores, every) for t in taken], axis=1)
    if np.any(speeds < 0) or not np.all(np.isfinite(speeds)):
        raise InputError("a node's speed under load is negative or no number; 0 to 1 is right")
    if np.any(speeds[:, 0] <= 0):
        raise InputError("a node that is left alone has no speed; more than 0 is right")
    rows, row = np.unique(speeds, axis=0, return_inverse=True)
    return rows, row.reshape(-1).astype(np.int64)


@njit
def _spell(seed, node, cores, busy_s, free_s, k, loaded, begun):
    """Spell ``k`` of a node: (k, when it begins, when it ends, cores that it takes)."""
    key = absorb(absorb(seed, node), k)
    mean = busy_s if loaded else free_s
    ended = begun - mean * math.log(uniform(key, _LENGTH))
    taken = 1 + below(key, _CORES, max(cores - 1, 1)) if loaded else np.int64(0)
    return k, begun, ended, taken


@njit
def _begin(seed, node, cores, busy_s, free_s):
    """A node's first spell. Its number is 0 if it is loaded, else 1: loaded ones are even."""
    share = busy_s / (busy_s + free_s)
    k = 0 if uniform(absorb(seed, node), _FIRST) < share else 1
    return _spell(seed, node, cores, busy_s, free_s, np.int64(k), k == 0, 0.0)


@njit
def _next(seed, node, cores, busy_s, free_s, k, begun):
    """The spell after the ``k``-th."""
    return _spell(seed, node, cores, busy_s, free_s, k + 1, (k + 1) % 2 == 0, begun)


@njit
def _start(seed, cores, busy_s, free_s, number, begun, ended, taken):
    for i in range(len(cores)):
        number[i], begun[i], ended[i], taken[i] = _begin(seed, i, cores[i], busy_s, free_s)


@njit
def _finish(
    seed, cores, busy_s, free_s, number, begun, ended, taken, paces, row, start, work, end
):  # fmt: skip
    for i in range(len(start)):
        k, b, e, t = number[i], begun[i], ended[i], taken[i]
        while e <= start[i]:
            k, b, e, t = _next(seed, i, cores[i], busy_s, free_s, k, e)
        number[i], begun[i], ended[i], taken[i] = k, b, e, t
        now, rest = start[i], work[i]
        while rest > (e - now) * paces[row[i], t]:
            rest -= (e - now) * paces[row[i], t]
            now = e
            k, b, e, t = _next(seed, i, cores[i], busy_s, free_s, k, e)
        end[i] = now + rest / paces[row[i], t] if rest > 0 else now
