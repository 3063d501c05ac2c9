"""Cluster: hosts and their drives, of one or several kinds, as arrays over the nodes.

Owns the properties of a node kind and the compute time of nodes. Does not own the training steps
(training_sim.py), the construction from presets (build.py) or the time of an all-reduce
(collectives/allreduce.py).
Source: STANNIS (DAC 2020): a host and its drives train as equals, each with its own batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ondie.emu.cluster.batch_tuner import MOST_BATCH, Engine
from ondie.emu.units import InputError

MOST_NODES = 1_000_000


class AllreduceCost(Protocol):
    """Interface of the cost of one all-reduce: the time and the CPU time that the simulation
    uses."""

    @property
    def seconds(self) -> float:
        """Time of the all-reduce, seconds."""
        ...

    @property
    def host_cpu_s(self) -> float:
        """CPU time of the relays of all hosts for the all-reduce, seconds."""
        ...


@dataclass(frozen=True)
class Kind:
    """Kind of node: the properties shared by all hosts, or by all drives of one preset."""

    name: str
    count: int
    engine: Engine
    """Speed of a node (samples per second) as a function of its batch, with all cores free. The
    engine's limit is the largest batch that fits into the node's memory."""
    cores: int
    slowdown: Callable[[np.ndarray], np.ndarray]
    """Function from the fractions of cores that other programs leave free to the relative training
    speeds, float64[k] to float64[k]."""
    host: bool = False
    feed_bytes_per_s: float = 0.0
    """Rate at which a node reads its stored samples, bytes per second. The value 0 means that
    reading takes no time."""
    update_s: float = 0.0
    """Time that a node takes to update its copy of the weights, seconds; 0 if the speed of the
    engine includes this time."""
    join_s: float = 0.0
    """Time in which the weights are sent to a node that joins the training, seconds."""
    cores_taken: float = 0.0
    """Number of cores of a node that other programs use all the time; allocators tune batches to
    the speed on the remaining cores."""

    def __post_init__(self) -> None:
        if not 0 <= self.cores_taken < self.cores:
            raise InputError(
                f"{self.name}: {self.cores_taken:g} of {self.cores} cores taken; must be at least "
                f"0 and less than all cores"
            )

    @property
    def left(self) -> float:
        """Fraction of a node's cores that other programs leave free, 0 to 1."""
        return 1 - self.cores_taken / self.cores

    @cached_property
    def loaded(self) -> Engine:
        """Speed curve of a node of this kind on the cores that other programs leave free."""
        if not self.cores_taken:
            return self.engine
        return self.engine.scaled(float(self.slowdown(np.array([self.left]))[0]))


@dataclass(frozen=True)
class Fleet:
    """Nodes of a cluster in the order of their kinds, hosts first."""

    kinds: tuple[Kind, ...]
    exchange: Callable[[np.ndarray], AllreduceCost]
    """Function from a mask of the present nodes, bool[nodes], to the cost of an all-reduce of the
    gradient among these nodes."""
    sample_bytes: int
    watts: Callable[[np.ndarray], float]
    """Function from a mask of the present nodes, bool[nodes], to the power of the cluster while
    these nodes train, W."""
    published: tuple[int, ...] | None = None
    """Published batch of each kind of node; None if no batches are published for this combination
    of kinds."""

    def __post_init__(self) -> None:
        if not self.kinds or not self.kinds[0].host:
            raise InputError("the cluster has no host; the first kind of node must be the host")
        for kind in self.kinds:
            if kind.count < 0:
                raise InputError(f"{kind.name}: {kind.count} nodes; must be at least 0")
        if not 1 <= self.nodes <= MOST_NODES:
            raise InputError(f"cluster: {self.nodes:,} nodes; must be from 1 to {MOST_NODES:,}")

    @cached_property
    def nodes(self) -> int:
        """Number of nodes (hosts and drives)."""
        return sum(kind.count for kind in self.kinds)

    @cached_property
    def hosts(self) -> int:
        """Number of hosts."""
        return sum(kind.count for kind in self.kinds if kind.host)

    @cached_property
    def kind(self) -> np.ndarray:
        """Index in ``kinds`` of the kind of each node, int64[nodes]."""
        return np.repeat(np.arange(len(self.kinds)), [kind.count for kind in self.kinds])

    @cached_property
    def cores(self) -> np.ndarray:
        """Number of processor cores of each node, int64[nodes]."""
        return np.array([kind.cores for kind in self.kinds])[self.kind]

    @cached_property
    def update_s(self) -> np.ndarray:
        """Weight update time of each node (s), float64[nodes]."""
        return np.array([kind.update_s for kind in self.kinds])[self.kind]

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Range of the node numbers of each kind of node, as a slice."""
        ends = np.cumsum([0, *(kind.count for kind in self.kinds)])
        return tuple(
            slice(int(first), int(last)) for first, last in zip(ends, ends[1:], strict=False)
        )

    def by_kind(self, values: list[int]) -> np.ndarray:
        """Return the value that belongs to the kind of each node, int64[nodes]. ``values``: one
        value per kind of node."""
        return np.array(values, np.int64)[self.kind]

    def seconds(self, batches: np.ndarray) -> np.ndarray:
        """Return the forward and backward time of each node with all cores free, in seconds,
        float64[nodes]. The time is 0 for nodes without samples. ``batches``: int64[nodes]."""
        out = np.zeros(self.nodes)
        for kind, its in zip(self.kinds, self.slices, strict=True):
            sizes, which = np.unique(batches[its], return_inverse=True)
            times = [kind.engine.seconds(size) if size else 0.0 for size in sizes.tolist()]
            out[its] = np.array(times)[which] if times else 0.0
        return out

    def limits(self) -> np.ndarray:
        """Return the largest batch that fits into each node's memory, int64[nodes]."""
        return self.by_kind([kind.engine.limit or MOST_BATCH for kind in self.kinds])

    def reading_s(self, samples: np.ndarray) -> np.ndarray:
        """Return the time in which node i reads ``samples[i]`` of its stored samples, in seconds,
        float64[nodes]. ``samples``: int64[nodes]."""
        rate = np.array([kind.feed_bytes_per_s or np.inf for kind in self.kinds])[self.kind]
        out: np.ndarray = samples * self.sample_bytes / rate
        return out

    def pace(self, left: np.ndarray, node: np.ndarray) -> np.ndarray:
        """Return the speed of node ``node[i]`` while the fraction ``left[i]`` of its cores is free,
        relative to its speed with all cores free, float64[k]. ``left``: float64[k]. ``node``:
        int64[k]."""
        out = np.ones(len(left))
        kinds = self.kind[node]
        for i, kind in enumerate(self.kinds):
            its = kinds == i
            if np.any(its):
                out[its] = kind.slowdown(left[its])
        return out
