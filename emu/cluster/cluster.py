"""A fleet: hosts and their drives, of one or several kinds, as arrays over the nodes.

Owns what a node of a kind is and how long it computes. Does not own the steps (simulation.py), how
a fleet is made of presets (assembly.py) or what an exchange takes (allreduce.py).
Source: STANNIS (DAC 2020): a host and its drives train as equals, each on its own batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ondie.emu.cluster.batch_tuner import MOST, Engine
from ondie.emu.units import InputError

MOST_NODES = 1_000_000


class Exchange(Protocol):
    """What one all-reduce takes."""

    @property
    def seconds(self) -> float: ...

    @property
    def host_cpu_s(self) -> float: ...


@dataclass(frozen=True)
class Kind:
    """What the nodes of one sort have in common."""

    name: str
    count: int
    engine: Engine
    """Samples per second over the batch, with all cores; its limit is the memory's."""
    cores: int
    slowdown: Callable[[np.ndarray], np.ndarray]
    """Speed that is left with a share of the cores, float64[k] each."""
    host: bool = False
    feed_bytes_per_s: float = 0.0
    """At which a node reads its own samples; 0: they cost no time."""
    update_s: float = 0.0
    """Of its copy of the weights, where its speed does not hold that already."""
    join_s: float = 0.0
    """To be sent the weights, when it joins."""


@dataclass(frozen=True)
class Fleet:
    """Nodes in the order of their kinds, hosts first."""

    kinds: tuple[Kind, ...]
    exchange: Callable[[np.ndarray], Exchange]
    """All-reduce among the nodes that are there, bool[nodes]."""
    sample_bytes: int
    watts: Callable[[np.ndarray], float]
    """Power while it trains, of the nodes that are there."""

    def __post_init__(self) -> None:
        if not self.kinds or not self.kinds[0].host:
            raise InputError("a fleet without a host; its first nodes are hosts")
        for kind in self.kinds:
            if kind.count < 0:
                raise InputError(f"{kind.name}: {kind.count} nodes; 0 or more is right")
        if not 1 <= self.nodes <= MOST_NODES:
            raise InputError(f"a fleet of {self.nodes:,} nodes; 1 to {MOST_NODES:,} is right")

    @cached_property
    def nodes(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @cached_property
    def hosts(self) -> int:
        return sum(kind.count for kind in self.kinds if kind.host)

    @cached_property
    def kind(self) -> np.ndarray:
        """Kind of each node, int64[nodes]."""
        return np.repeat(np.arange(len(self.kinds)), [kind.count for kind in self.kinds])

    @cached_property
    def cores(self) -> np.ndarray:
        """int64[nodes]."""
        return np.array([kind.cores for kind in self.kinds])[self.kind]

    @cached_property
    def update_s(self) -> np.ndarray:
        """float64[nodes]."""
        return np.array([kind.update_s for kind in self.kinds])[self.kind]

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The nodes of each kind."""
        ends = np.cumsum([0, *(kind.count for kind in self.kinds)])
        return tuple(slice(int(a), int(b)) for a, b in zip(ends, ends[1:], strict=False))

    def by_kind(self, values: list[int]) -> np.ndarray:
        """A value for each kind as one for each node, int64[nodes]."""
        return np.array(values, np.int64)[self.kind]

    def seconds(self, batches: np.ndarray) -> np.ndarray:
        """Forward and backward of a batch on every node with all its cores, float64[nodes] from
        int64[nodes]; 0 without a sample."""
        out = np.zeros(self.nodes)
        for kind, its in zip(self.kinds, self.slices, strict=True):
            sizes, which = np.unique(batches[its], return_inverse=True)
            times = [kind.engine.seconds(size) if size else 0.0 for size in sizes.tolist()]
            out[its] = np.array(times)[which] if times else 0.0
        return out

    def limits(self) -> np.ndarray:
        """Largest batch that each node's memory holds, int64[nodes]."""
        return self.by_kind([kind.engine.limit or MOST for kind in self.kinds])

    def reading_s(self, samples: np.ndarray) -> np.ndarray:
        """Time to read so many samples of a node's own, float64[nodes]."""
        rate = np.array([kind.feed_bytes_per_s or np.inf for kind in self.kinds])[self.kind]
        out: np.ndarray = samples * self.sample_bytes / rate
        return out

    def pace(self, left: np.ndarray, node: np.ndarray) -> np.ndarray:
        """Speed left to nodes with a share of their cores, float64[k]."""
        out = np.ones(len(left))
        kinds = self.kind[node]
        for i, kind in enumerate(self.kinds):
            its = kinds == i
            if np.any(its):
                out[its] = kind.slowdown(left[its])
        return out
