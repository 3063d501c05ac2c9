"""Tunnels between a host and its drives, and the resources that they share.

Owns the tunnel of each drive, and the messages over it. Does not own the cost of a message
(nvme/tunnel/cost.py) or the schedule of messages (ring.py, tree.py, allreduce.py).
Source: this project. Node 0 is the host, and node i + 1 is drive i. Messages between drives cross
the host, whose relay threads are shared by all messages in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.nvme.tunnel.cost import Message, TunnelCost
from ondie.emu.units import InputError

SUM_PASSES = 3
"""Number of passes over host memory in which the host adds a received gradient to its sum: two
reads and one write."""


class Links:
    """IP tunnels of all drives of one host, through which the messages of an all-reduce are sent.

    ``cost``: one tunnel cost, or one per kind of drive. ``which``: kind of each drive,
    int64[drives]. Raises InputError if no cost is given, if the number of drives or a kind is
    invalid, or if the costs differ in the number of relay threads or in the uplink.
    """

    def __init__(
        self, drives: int, cost: TunnelCost | Sequence[TunnelCost], which: np.ndarray | None = None
    ) -> None:
        if drives < 0:
            raise InputError(f"{drives} drives: must be at least 0")
        self.costs = (cost,) if isinstance(cost, TunnelCost) else tuple(cost)
        self.drives = drives
        self.which = np.zeros(drives, np.int64) if which is None else np.asarray(which, np.int64)
        if not self.costs:
            raise InputError("no tunnel is given; give at least one")
        if len(self.which) != drives:
            raise InputError(
                f"which: {len(self.which)} kinds for {drives} drives; give one kind for each drive"
            )
        if drives and not 0 <= self.which.min() <= self.which.max() < len(self.costs):
            raise InputError(
                f"kinds of tunnels from {self.which.min()} to {self.which.max()}: must be from 0 "
                f"to {len(self.costs) - 1}"
            )
        self.host = self.costs[0]
        if any(
            (one.threads, one.uplink) != (self.host.threads, self.host.uplink) for one in self.costs
        ):
            raise InputError(
                f"relay threads by kind of tunnel: {[one.threads for one in self.costs]}, uplinks "
                f"(bytes/s): {[one.uplink for one in self.costs]}; all tunnels of one host must "
                "have the same number of relay threads and the same uplink"
            )

    def up(self, n_bytes: int) -> list[Message]:
        """Return the cost of a message of ``n_bytes`` bytes to the host, for each kind of drive."""
        return [cost.upward(n_bytes) for cost in self.costs]

    def down(self, n_bytes: int) -> list[Message]:
        """Return the cost of a message of ``n_bytes`` bytes from the host, for each kind of
        drive."""
        return [cost.downward(n_bytes) for cost in self.costs]

    def across(self, n_bytes: int) -> list[list[Message]]:
        """Return the cost of a message of ``n_bytes`` bytes from one drive to another drive, by
        kind of sender and kind of receiver."""
        return [
            [sender.across(n_bytes, receiver) for receiver in self.costs] for sender in self.costs
        ]

    def waiting(self, ps: int) -> Links:
        """Return a copy of these tunnels in which a relay thread of the host waits ``ps``
        picoseconds for a core before each of its runs."""
        return Links(self.drives, [cost.waiting(ps) for cost in self.costs], self.which)


def sum_ps(n_bytes: int, gradients: int, host_dram: int) -> int:
    """Return the time in which the host adds ``gradients`` received gradients of ``n_bytes`` bytes
    each to its sum, ps.

    ``host_dram``: memory bandwidth of the host, bytes per second; 0 means unlimited.
    """
    moved = SUM_PASSES * n_bytes * gradients
    return -(-moved * PS_PER_S // host_dram) if host_dram else 0


def relay_ps(message: Message, threads: int) -> int:
    """Return the time in which the host's relay processes one message with all its threads, ps."""
    return -(-message.cpu_ps // threads)
