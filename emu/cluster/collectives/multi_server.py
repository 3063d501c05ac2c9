"""All-reduce of a whole cluster: drives through their server's tunnels, servers over a network.

Owns the all-reduce between servers. Does not own the all-reduce within one server (allreduce.py) or
the tunnels (tunnels.py).
Source: Patarasuk and Yuan 2009 for the ring, which passes through all nodes, server after server.
With tree and star, every server sums the gradients of its nodes, the servers exchange these sums in
a ring over the network, and each server distributes the total to its drives by the tree or star.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.cluster.collectives import allreduce, ring
from ondie.emu.cluster.load.contention import ETHERNET, Link
from ondie.emu.config.config import Config
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.units import InputError, known_names

BEST = "best"
CLUSTER_ALGORITHMS = (*allreduce.ALGORITHMS, BEST)


@dataclass(frozen=True)
class Exchanged:
    """Results of one all-reduce of gradients over all nodes of a cluster."""

    kind: str
    seconds: float
    host_cpu_s: float
    """CPU time of the relays of all servers for the all-reduce, seconds."""
    limited_by: str


class Exchanging:
    """Callable that returns the results of an all-reduce of ``n_bytes`` bytes among the present
    nodes of a cluster.

    ``drives``: (preset, number of drives) of each kind. Drive j, counted over all kinds, belongs to
    server j mod hosts. ``network``: link between servers. ``kind``: algorithm, one of
    CLUSTER_ALGORITHMS; "best" selects the fastest algorithm. Raises InputError for an unknown kind.
    """

    def __init__(
        self,
        n_bytes: int,
        drives: Sequence[tuple[Config, int]],
        hosts: int,
        kind: str,
        network: Link = ETHERNET,
    ) -> None:
        if kind not in CLUSTER_ALGORITHMS:
            raise InputError(
                f"all-reduce {kind!r}: unknown; {known_names(kind, CLUSTER_ALGORITHMS)}"
            )
        self.n_bytes, self.hosts, self.kind, self.network = n_bytes, hosts, kind, network
        self._costs = [TunnelCost.of(cfg) for cfg, _ in drives]
        self._which = np.repeat(np.arange(len(drives)), [count for _, count in drives])

    def __call__(self, there: np.ndarray) -> Exchanged:
        """Return the results of the all-reduce among the present nodes. ``there``: mask of the
        present nodes, bool[nodes], hosts first."""
        kinds = allreduce.ALGORITHMS if self.kind == BEST else (self.kind,)
        servers = self._servers(there[self.hosts :])
        found = [self._of(kind, servers) for kind in kinds]
        return min(found, key=lambda exchanged: exchanged.seconds)

    def _servers(self, there: np.ndarray) -> list[tuple[tuple[int, ...], int]]:
        """Return the different configurations of servers, each as (number of drives of each kind,
        number of servers with this configuration). ``there``: mask of the drives that are present,
        bool[drives]."""
        at = np.flatnonzero(there)
        shape = (self.hosts, max(len(self._costs), 1))
        counts = np.zeros(shape, np.int64)
        np.add.at(counts, (at % self.hosts, self._which[at]), 1)
        unlike, number = np.unique(counts, axis=0, return_counts=True)
        return [
            (tuple(row), count) for row, count in zip(unlike.tolist(), number.tolist(), strict=True)
        ]

    def _within(self, kind: str, n_bytes: int, own: tuple[int, ...]) -> allreduce.Allreduce:
        """Return the results of the all-reduce within one server that has ``own[k]`` drives of kind
        k."""
        which = np.repeat(np.arange(len(own)), own)
        return allreduce.exchange(kind, n_bytes, len(which), self._costs, which)

    def _of(self, kind: str, servers: list[tuple[tuple[int, ...], int]]) -> Exchanged:
        """Return the results of the all-reduce of the cluster with the algorithm ``kind``."""
        if self.hosts == 1:
            inside = self._within(kind, self.n_bytes, servers[0][0])
            return Exchanged(kind, inside.seconds, inside.host_cpu_s, inside.limited_by)
        if kind == "ring":
            return self._ring(servers)
        seconds, cpu_s, limit = 0.0, 0.0, "network"
        for own, number in servers:
            inside = self._within(kind, self.n_bytes, own)
            cpu_s += number * inside.host_cpu_s
            if inside.seconds > seconds:
                seconds, limit = inside.seconds, inside.limited_by
        network_s = self.network.ring_s(self.n_bytes, self.hosts)
        limit = "network" if network_s > seconds else limit
        return Exchanged(kind, seconds + network_s, cpu_s, limit)

    def _ring(self, servers: list[tuple[tuple[int, ...], int]]) -> Exchanged:
        """Return the results of the ring all-reduce over all nodes. The slowest hop, within a
        server or between two servers, determines the time of a ring step."""
        nodes = self.hosts + sum(sum(own) * number for own, number in servers)
        piece, steps = ring.piece_bytes(self.n_bytes, nodes), ring.steps(nodes)
        slowest, cpu_s, limit = piece / self.network.bytes_per_s, 0.0, "network"
        for own, number in servers:
            drives = sum(own)
            if not drives:
                continue
            inside = self._within("ring", piece * (drives + 1), own)
            cpu_s += number * steps * inside.host_cpu_s / ring.steps(drives + 1)
            step_s = inside.seconds / ring.steps(drives + 1)
            if step_s > slowest:
                slowest, limit = step_s, inside.limited_by
        return Exchanged("ring", steps * slowest, cpu_s, limit)
