"""Load trace: cores that other programs take from the nodes over time, and the speed that remains
for training.

Owns load over time, the file of a load trace, and the completion time of work on loaded nodes. Does
not own the cost of a taken core (contention.py) or the work of the nodes (cluster/cluster.py).
Source: HyperTune (HeydariGorji et al.): other programs take 4 and 6 of a node's 8 cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondie.emu.cluster.membership import number_of_node, rows
from ondie.emu.units import InputError

COLUMNS = ("seconds", "node", "cores")


@dataclass(frozen=True)
class Load:
    """Load of other programs over time: starting at ``seconds[i]``, other programs use ``cores[i]``
    cores of node ``node[i]``. A node has no load before its first change."""

    seconds: np.ndarray
    """Time of each change of the load, seconds, float64[changes], 0 or more."""
    node: np.ndarray
    """Number of the node whose load changes, int64[changes]."""
    cores: np.ndarray
    """Number of cores that other programs use after each change, float64[changes], 0 or more."""

    @staticmethod
    def none() -> Load:
        """Return a load trace in which no other program uses a core."""
        return Load(np.zeros(0), np.zeros(0, np.int64), np.zeros(0))

    @staticmethod
    def read(path: Path) -> Load:
        """Return the load in a CSV file with the header ``seconds,node,cores``. Raises InputError
        if the file cannot be read, if its header differs, or, with the line number, if a line is
        invalid."""
        lines = rows(path, COLUMNS)
        found: list[tuple[float, int, float]] = []
        for number, cells in lines:
            try:
                at, node, cores = cells
                found.append((float(at), number_of_node(node), float(cores)))
            except ValueError:
                raise InputError(
                    f"{path}, line {number}: {','.join(cells)!r}; must be seconds, node, cores"
                ) from None
        return Load(
            np.array([row[0] for row in found], float),
            np.array([row[1] for row in found], np.int64),
            np.array([row[2] for row in found], float),
        )

    def text(self) -> str:
        """Return the load as CSV text in the format that :meth:`read` accepts."""
        rows = zip(self.seconds.tolist(), self.node.tolist(), self.cores.tolist(), strict=True)
        lines = [",".join(COLUMNS), *(f"{at:.6g},{node},{cores:g}" for at, node, cores in rows)]
        return "\n".join(lines) + "\n"

    def pace(self, cores: np.ndarray, pace: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Pace:
        """Return the relative training speed of each node under this load, as a function of time.
        ``cores``: number of cores of each node, int64[nodes]. ``pace``: function from free cores to
        relative speed, as in :class:`Pace`."""
        return Pace(self, cores, pace)

    def check(self, cores: np.ndarray) -> None:
        """Raise InputError if a change has an invalid time, names a node that does not exist, or
        takes more cores than the node has. ``cores``: number of cores of each node, int64[nodes].
        """
        for at, node, taken in zip(self.seconds, self.node, self.cores, strict=True):
            if not 0 <= at < np.inf:
                raise InputError(
                    f"load on node {node} at {at} s: the time must be finite and at least 0 s"
                )
            if not 0 <= node < len(cores):
                raise InputError(f"load on node {node}: node must be from 0 to {len(cores) - 1}")
            if not 0 <= taken <= cores[node]:
                raise InputError(
                    f"load on node {node} at {at:g} s: cores = {taken:g}: must be from 0 to "
                    f"{cores[node]}, the number of cores of the node"
                )


class Pace:
    """Relative training speed of every node over time under a load, piecewise constant; the speed
    is 1 while all cores are free.

    ``pace(left, node)``: returns the relative speed of node ``node[i]`` while the fraction
    ``left[i]`` of its cores is free; ``left`` and the result are float64[k], ``node`` is int64[k].
    Query times must not decrease. Raises InputError for an invalid load or speed.
    """

    def __init__(
        self,
        load: Load,
        cores: np.ndarray,
        pace: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        load.check(cores)
        nodes = len(cores)
        order = np.lexsort((load.seconds, load.node))
        node = load.node[order]
        begin = np.searchsorted(node, np.arange(nodes))
        self._at = np.insert(load.seconds[order], begin, 0.0)
        self._left = np.insert(1 - load.cores[order] / cores[node], begin, 1.0)
        node = np.insert(node, begin, np.arange(nodes))
        self._now = begin + np.arange(nodes)
        self._last = np.append(self._now[1:], len(self._at)) - 1
        self._pace = pace(self._left, node)
        if np.any(self._pace < 0) or not np.all(np.isfinite(self._pace)):
            raise InputError(
                f"speeds of nodes under load are from {self._pace.min():g} to "
                f"{self._pace.max():g}; each must be a finite number of at least 0"
            )
        length = np.diff(self._at, append=0.0)
        length[self._last] = 0.0
        done = np.concatenate([[0.0], np.cumsum(self._pace * length)[:-1]])
        self._done = done - done[self._now][node]
        """Work that each node has completed by the start of each interval of constant speed, in
        seconds at full speed."""

    def left(self) -> np.ndarray:
        """Return the fraction of free cores of each node at the last start time that was passed to
        :meth:`finish`, float64[nodes]."""
        out: np.ndarray = self._left[self._now]
        return out

    def finish(self, start: np.ndarray, work: np.ndarray) -> np.ndarray:
        """Return the completion times (s), float64[nodes], of work that begins at ``start``.

        ``work``: duration of the work at full speed, seconds. The completion time is infinite if no
        core is freed again.
        """
        self._now = self._forward(self._now, self._at, start, np.less_equal)
        at = self._now
        target = self._done[at] + (start - self._at[at]) * self._pace[at] + work
        at = self._forward(at, self._done, target, np.less)
        rest = target - self._done[at]
        with np.errstate(divide="ignore", invalid="ignore"):
            time = np.where(rest > 0, rest / self._pace[at], 0.0)
        return np.maximum(self._at[at] + time, start)

    def _forward(
        self,
        at: np.ndarray,
        column: np.ndarray,
        reached: np.ndarray,
        passes: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Return the index of an interval of constant speed for each node, int64[nodes].

        ``at``: indexes from which the search starts. An index advances while
        ``passes(column[index of the next interval], reached)`` is true.
        """
        at = at.copy()
        moving = np.flatnonzero(at < self._last)
        while len(moving):
            moving = moving[passes(column[at[moving] + 1], reached[moving])]
            at[moving] += 1
            moving = moving[at[moving] < self._last[moving]]
        return at
