"""Gradient all-reduce as plan rows: messages through the tunnels and their dependencies.

Owns the plan rows of the ring, tree and star algorithms. Does not own the sender and receiver of
each message (cluster/collectives/ring.py, tree.py), the cost model
(cluster/collectives/allreduce.py), or time.
Source: given in the modules of cluster/collectives/.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ondie.emu.cluster.collectives import allreduce, ring, tree
from ondie.emu.cluster.collectives.tunnels import sum_ps
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.paths.base import SYNCHRONISE, Rows

HOST_NODE = 0
"""Node number of the host; node i + 1 is device i. Ring order: host, device 0, device 1, ...,
host."""


@dataclass(frozen=True)
class ExchangePlan:
    """Plan of an all-reduce that sums a gradient of ``n_bytes`` over a host and its drives.
    ``kind``: one of allreduce.ALGORITHMS."""

    cfg: Config
    kind: str
    drives: int
    n_bytes: int

    @property
    def nodes(self) -> int:
        return self.drives + 1

    @property
    def piece_bytes(self) -> int:
        """Number of bytes that a node sends in one step of the ring."""
        return ring.piece_bytes(self.n_bytes, self.nodes)

    @cached_property
    def cost(self) -> allreduce.Allreduce:
        """Times of the exchange as calculated by the cost model
        (cluster/collectives/allreduce.py)."""
        return allreduce.exchange(self.kind, self.n_bytes, self.drives, TunnelCost.of(self.cfg))

    @property
    def text(self) -> str:
        """Calculation of the exchange time as text, for the closed form of the update stage."""
        times = self.cost
        relay = f"host relay {times.host_cpu_s:.3g} s on {self.cfg.tunnel.relay_threads} threads"
        if self.kind == "ring":
            steps, size = ring.steps(self.nodes), self.piece_bytes
            rate = steps * size / times.seconds / 1e6
            return f"{steps} ring steps x {size / 1e6:.4g} MB at {rate:.4g} MB/s; {relay}"
        return f"{self.kind}, {self.n_bytes / 1e6:.4g} MB per message; {relay}"

    def rows(self, out: Rows, trained: int) -> Generator[np.ndarray, None, np.ndarray]:
        """Yield the plan rows of the exchange in chunks. Return, for each node, the id of the
        plan row that delivers the last piece of the summed gradient, int64[nodes]. ``trained``:
        id of the plan row that completes when all nodes have their gradients."""
        if self.kind == "ring":
            return (yield from self._ring(out, trained))
        return self._star(out, trained) if self.kind == "star" else self._tree(out, trained)

    def _send(
        self, out: Rows, node: np.ndarray, to: np.ndarray, size: int, **after: Any
    ) -> np.ndarray:
        """Add one plan row (a message of ``size`` bytes) from ``node[i]`` to ``to[i]`` for each
        i. Return the row ids, int64[n]. Messages between drives pass through the host. ``after``:
        dependencies, as plan columns."""
        across = (node != HOST_NODE) & (to != HOST_NODE)
        kind = np.where(
            node == HOST_NODE,
            plan_rows.DOWNWARD,
            np.where(across, plan_rows.ACROSS, plan_rows.UPWARD),
        )
        return out.add(
            len(node),
            device=np.where(node == HOST_NODE, to, node) - 1,
            resource=plan_rows.TUNNEL,
            kind=kind,
            phase=SYNCHRONISE,
            lpn=np.where(across, to - 1, 0),
            bytes_in=size,
            **after,
        )

    def _ring(self, out: Rows, trained: int) -> Generator[np.ndarray, None, np.ndarray]:
        """Yield the messages of the ring as plan rows. Return the id of each node's last row,
        int64[nodes]. Each message waits for its data and for the previous message of its sender."""
        first, nodes = out.next, self.nodes
        hops = ring.steps(nodes) * nodes
        batch = max(plan_rows.MAX_CHUNK // nodes, 1) * nodes
        for at in range(0, hops, batch):
            hop = np.arange(at, min(at + batch, hops))
            node = ring.sender(hop, nodes)
            data, own = ring.awaited(hop, nodes)
            self._send(
                out,
                node,
                (node + 1) % nodes,
                self.piece_bytes,
                after0=np.where(data < 0, trained, first + data),
                after1=np.where(own < 0, -1, first + own),
            )
            if out.full():
                yield out.take()
        return first + ring.last_arrivals(nodes)

    def _star(self, out: Rows, trained: int) -> np.ndarray:
        """Add the plan rows of the star: every drive sends its gradient to the host. The host
        adds up the gradients and sends the sum to every drive. Return the id of each node's last
        row, int64[nodes]."""
        drive = np.arange(1, self.nodes)
        host = np.full_like(drive, HOST_NODE)
        up = self._send(out, drive, host, self.n_bytes, after0=trained)
        summed = self._sum(out, out.join(up, SYNCHRONISE), len(drive))
        down = self._send(out, host, drive, self.n_bytes, after0=summed)
        return np.concatenate([[summed], down])

    def _tree(self, out: Rows, trained: int) -> np.ndarray:
        """Add the plan rows of the tree. Each node sends its partial sum to its parent after it
        has received the sums of its children. The host sends the total back over the same links.
        Return the id of each node's last row, int64[nodes]."""
        has = np.full((tree.CHILDREN, self.nodes), trained, np.int64)  # row id by child and node
        below = tree.levels(self.nodes)[1:]
        for level in reversed(below):
            parent = tree.parents(level)
            after = {f"after{child}": has[child, level] for child in range(tree.CHILDREN)}
            ids = self._send(out, level, parent, self.n_bytes, **after)
            has[(level - 1) % tree.CHILDREN, parent] = ids
        ready = out.join(has[:, HOST_NODE], SYNCHRONISE)
        arrived = np.full(self.nodes, self._sum(out, ready, len(below[0])), np.int64)
        for level in below:
            parent = tree.parents(level)
            ids = self._send(out, parent, level, self.n_bytes, after0=arrived[parent])
            arrived[level] = ids
        return arrived

    def _sum(self, out: Rows, ready: int, gradients: int) -> int:
        """Add the plan row in which the host sums its gradient and ``gradients`` received
        gradients. ``ready``: id of the plan row to wait for. Return the id of the new row."""
        took = sum_ps(self.n_bytes, gradients, self.cfg.host.dram_bandwidth_bytes_per_s)
        return out.one(resource=plan_rows.HOST_CPU, phase=SYNCHRONISE, array_ps=took, after0=ready)
