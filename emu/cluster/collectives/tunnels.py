"""The tunnels of a host and its drives, and what they share.

Owns which drive has which tunnel, and the messages that they exchange. Does not own what a message
costs (frontend/tunnel_cost.py) or who sends what when (ring.py, tree.py, allreduce.py).
Source: own. Node 0 is the host, node i + 1 drive i; from drive to drive everything crosses the
host, whose relay's threads are shared by all that is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.nvme.tunnel.cost import Message, TunnelCost
from ondie.emu.units import InputError

SUM_PASSES = 3
"""Over a gradient that the host adds to its own: two are read, one is written."""


class Links:
    """The drives' tunnels: ``costs`` of each kind of drive, ``which`` of them each drive has,
    int64[drives]. One host: its relay's threads and the shared link are alike in all."""

    def __init__(
        self, drives: int, cost: TunnelCost | Sequence[TunnelCost], which: np.ndarray | None = None
    ) -> None:
        if drives < 0:
            raise InputError(f"{drives} drives: 0 or more is right")
        self.costs = (cost,) if isinstance(cost, TunnelCost) else tuple(cost)
        self.drives = drives
        self.which = np.zeros(drives, np.int64) if which is None else np.asarray(which, np.int64)
        if not self.costs:
            raise InputError("no tunnel is given; at least one is needed")
        if len(self.which) != drives:
            raise InputError(f"kinds of {len(self.which)} drives of {drives}: one each is right")
        if drives and not 0 <= self.which.min() <= self.which.max() < len(self.costs):
            raise InputError(f"kinds of drives: 0 to {len(self.costs) - 1} are right")
        self.host = self.costs[0]
        if any((c.threads, c.uplink) != (self.host.threads, self.host.uplink) for c in self.costs):
            raise InputError(
                "tunnels with other relay threads or uplinks: one host has one of each"
            )

    def up(self, n: int) -> list[Message]:
        """A message to the host, by kind of drive."""
        return [c.upward(n) for c in self.costs]

    def down(self, n: int) -> list[Message]:
        """A message from the host, by kind of drive."""
        return [c.downward(n) for c in self.costs]

    def across(self, n: int) -> list[list[Message]]:
        """A message from drive to drive, by kinds of both."""
        return [[a.across(n, b) for b in self.costs] for a in self.costs]

    def waiting(self, ps: int) -> Links:
        """The same where the relay's threads wait so long for a core."""
        return Links(self.drives, [c.waiting(ps) for c in self.costs], self.which)


def sum_ps(n_bytes: int, gradients: int, host_dram: int) -> int:
    """ps in which the host adds so many gradients to its own."""
    moved = SUM_PASSES * n_bytes * gradients
    return -(-moved * PS_PER_S // host_dram) if host_dram else 0


def relay_ps(message: Message, threads: int) -> int:
    """ps that the host's relay, all its threads together, takes for a message."""
    return -(-message.cpu_ps // threads)
