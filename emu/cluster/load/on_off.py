"""On-off load: other programs repeatedly take cores from every node, at random times.

Owns the free and loaded intervals (spells) of each node, without a time limit, and the completion
time of work on loaded nodes. Does not own load that is known in advance (trace.py) or the cost of a
taken core (contention.py).
Source: this project; an alternating renewal process with exponential spells.

Spells are drawn while the simulated time advances. A spell depends only on the seed, the node and
the spell's number, so equal seeds give equal spells, and past spells are not stored.
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
"""Maximum number of loaded spells (periods in which other programs use a node's cores) of all nodes
in one run. Drawing this number of spells takes one to two minutes."""
_FIRST, _LENGTH, _CORES = 0, 1, 2
"""Indices of the random draws of a spell (a period in which a node is free or loaded). _FIRST: the
draw that decides whether the node's first spell is loaded. _LENGTH: length of the spell. _CORES:
number of cores that a loaded spell takes."""


@dataclass(frozen=True)
class Spells:
    """On-off load: each node is alternately free and loaded, without a time limit.

    Loaded spells (periods of load) last ``busy_s`` seconds on average and make up the fraction
    ``share`` of the time. The lengths of free and loaded spells are exponentially distributed. Each
    loaded spell takes from 1 core to all cores but one, with equal probability. Raises InputError
    if ``busy_s`` or ``share`` is out of range.
    """

    busy_s: float
    share: float
    seed: int
    most: int = MOST_SPELLS
    """Largest expected number of loaded spells in a run, summed over all nodes, that :meth:`check`
    accepts."""

    def __post_init__(self) -> None:
        if not 0 < self.busy_s < np.inf:
            raise InputError(
                f"mean duration of a period of random load: {self.busy_s} s; must be a finite "
                "number above 0"
            )
        if not 0 < self.share < 1:
            raise InputError(
                f"random load: fraction of time = {self.share}; must be between 0 and 1 (exclusive)"
            )
        if not self.free_s < np.inf:
            raise InputError(
                f"random load: fraction of time = {self.share} is too small, because the mean time "
                "between two periods of load is not finite; use a larger fraction"
            )

    @property
    def key(self) -> int:
        """Seed of the random number generator that draws the spells, reduced to 63 bits."""
        return self.seed & ((1 << 63) - 1)

    @property
    def free_s(self) -> float:
        """Mean time between two loaded spells (periods of load) of a node, seconds."""
        return self.busy_s * (1 - self.share) / self.share

    def check(self, nodes: int, seconds: float) -> None:
        """Raise InputError if the expected number of loaded spells (periods of load) in a run of
        ``seconds`` seconds on ``nodes`` nodes exceeds :attr:`most`."""
        expected = nodes * seconds / (self.busy_s + self.free_s)
        if expected > self.most:
            least = nodes * seconds * self.share / self.most
            raise InputError(
                f"random load with spells of {self.busy_s:g} s for {self.share:g} of the time: "
                f"about {expected:.2g} spells on {nodes:,} nodes in {seconds:.4g} s; must be at "
                f"most {self.most:,}; use spells of {least:.3g} s or more, fewer nodes or fewer "
                f"steps"
            )

    def pace(
        self, cores: np.ndarray, pace: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> SpellPace:
        """Return the relative training speed of each node under this load, as a function of time.
        ``cores``: number of cores of each node, int64[nodes]. ``pace``: function from free cores to
        relative speed, as in trace.Pace."""
        return SpellPace(self, cores, pace)

    def until(self, seconds: float, cores: np.ndarray) -> Load:
        """Return a load trace of the loaded spells (periods of load) that begin before the time
        ``seconds``. ``cores``: number of cores of each node, int64[nodes]."""
        at, node, taken = [], [], []
        for one, own in enumerate(cores.tolist()):
            number, begun, ended, cut = _begin(self.key, one, own, self.busy_s, self.free_s)
            while begun < seconds:
                if cut:
                    at += [begun, ended]
                    node += [one, one]
                    taken += [float(cut), 0.0]
                number, begun, ended, cut = _next(
                    self.key, one, own, self.busy_s, self.free_s, number, ended
                )
        return Load(np.array(at, float), np.array(node, np.int64), np.array(taken, float))


class SpellPace:
    """Relative speed of every node over time, with the interface of trace.Pace.

    For each node, only the spell (free or loaded period) at the last queried start time is stored.
    Query times must not decrease.
    """

    def __init__(
        self,
        spells: Spells,
        cores: np.ndarray,
        pace: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        nodes = len(cores)
        self._spells, self._cores = spells, cores.astype(np.int64)
        self._number = np.zeros(nodes, np.int64)
        self._begun, self._ended = np.zeros(nodes), np.zeros(nodes)
        self._taken = np.zeros(nodes, np.int64)
        _start(
            spells.key, self._cores, spells.busy_s, spells.free_s,
            self._number, self._begun, self._ended, self._taken,
        )  # fmt: skip
        self._pace, self._row = _table(self._cores, pace)

    def left(self) -> np.ndarray:
        """Return the fraction of free cores of each node at the last start time that was passed to
        :meth:`finish`, float64[nodes]."""
        out: np.ndarray = 1 - self._taken / self._cores
        return out

    def finish(self, start: np.ndarray, work: np.ndarray) -> np.ndarray:
        """Return the completion times (s), float64[nodes], of work that begins at ``start``.

        ``work``: duration of the work at full speed, seconds. Raises InputError as
        :meth:`Spells.check` does for a run until the latest ``start``.
        """
        spells = self._spells
        spells.check(len(start), float(start.max(initial=0.0)))
        end = np.empty(len(start))
        _finish(
            spells.key, self._cores, spells.busy_s, spells.free_s, self._number, self._begun,
            self._ended, self._taken, self._pace, self._row, start, work, end,
        )  # fmt: skip
        return end


def _table(
    cores: np.ndarray, pace: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of the speed by number of taken cores, float64[rows, most cores + 1], and the
    row of each node, int64[nodes]. Nodes with identical speeds share a row.

    Raises InputError if a speed is negative or not finite, or if the speed without load is 0.
    """
    nodes, most = len(cores), int(cores.max(initial=1))
    every = np.arange(nodes)
    taken = [np.minimum(number, cores) for number in range(most + 1)]
    speeds = np.stack([pace(1 - cut / cores, every) for cut in taken], axis=1)
    if np.any(speeds < 0) or not np.all(np.isfinite(speeds)):
        raise InputError(
            f"speeds of nodes under load are from {speeds.min():g} to {speeds.max():g}; "
            "each must be a finite number of at least 0"
        )
    if np.any(speeds[:, 0] <= 0):
        raise InputError("the speed of a node without load is 0; this speed must be above 0")
    rows, row = np.unique(speeds, axis=0, return_inverse=True)
    return rows, row.reshape(-1).astype(np.int64)


@njit
def _spell(seed, node, cores, busy_s, free_s, number, loaded, begun):
    """Return spell ``number`` of a node, which begins at ``begun``, as (number, start, end, number
    of taken cores)."""
    key = absorb(absorb(seed, node), number)
    mean = busy_s if loaded else free_s
    ended = begun - mean * math.log(uniform(key, _LENGTH))
    taken = 1 + below(key, _CORES, max(cores - 1, 1)) if loaded else np.int64(0)
    return number, begun, ended, taken


@njit
def _begin(seed, node, cores, busy_s, free_s):
    """Return the first spell of a node as (number, start, end, number of taken cores).

    Loaded spells have even numbers, so the first spell has number 0 if the node starts loaded, else
    number 1.
    """
    share = busy_s / (busy_s + free_s)
    number = 0 if uniform(absorb(seed, node), _FIRST) < share else 1
    return _spell(seed, node, cores, busy_s, free_s, np.int64(number), number == 0, 0.0)


@njit
def _next(seed, node, cores, busy_s, free_s, number, begun):
    """Return the spell that follows spell ``number`` of a node. It begins at ``begun``."""
    return _spell(seed, node, cores, busy_s, free_s, number + 1, (number + 1) % 2 == 0, begun)


@njit
def _start(seed, cores, busy_s, free_s, number, begun, ended, taken):
    """Set the arrays ``number``, ``begun``, ``ended`` and ``taken`` to the first spell of every
    node."""
    for i in range(len(cores)):
        number[i], begun[i], ended[i], taken[i] = _begin(seed, i, cores[i], busy_s, free_s)


@njit
def _finish(
    seed, cores, busy_s, free_s, number, begun, ended, taken, paces, row, start, work, end
):  # fmt: skip
    """Advance every node to its start time, and set ``end`` to the completion time of the node's
    work."""
    for i in range(len(start)):
        spell, first, last, cut = number[i], begun[i], ended[i], taken[i]
        while last <= start[i]:
            spell, first, last, cut = _next(seed, i, cores[i], busy_s, free_s, spell, last)
        number[i], begun[i], ended[i], taken[i] = spell, first, last, cut
        now, rest = start[i], work[i]
        while rest > (last - now) * paces[row[i], cut]:
            rest -= (last - now) * paces[row[i], cut]
            now = last
            spell, first, last, cut = _next(seed, i, cores[i], busy_s, free_s, spell, last)
        end[i] = now + rest / paces[row[i], cut] if rest > 0 else now
