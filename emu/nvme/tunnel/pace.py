"""Pace of a tunnel's blocks: the earliest times of their completion by the cost model.

Owns the schedule of the blocks of one drive in both directions. Does not own the cost model
(cost.py), commands, a clock or threads: time is an argument.
Source: none. A program in wall time handles some blocks late, because it waits for a processor. So
blocks are scheduled one after the other at the period of the cost model, and a late one is followed
by others without delay until the schedule is met again. A block never completes before its time. A
direction that was idle, or is more than SLACK_PS late, begins a new schedule: time in which no
block waited is lost.
"""

from __future__ import annotations

from ondie.emu.nvme.tunnel.cost import DOWN, UP, TunnelCost
from ondie.emu.nvme.tunnel.framing import READ_HEADER
from ondie.emu.nvme.tunnel.timing import handling, spacing

SLACK_PS = 50 * 10**9
"""Delay that a direction may catch up, ps: some time slices of a scheduler, hundreds of blocks."""


class Pace:
    """Schedule of one drive's blocks by its cost model. ``host``: with the time of the host's relay
    and of commands, as in the model; False: with that of the link only, since the host is real."""

    def __init__(self, cost: TunnelCost, host: bool = True) -> None:
        self.cost, self._host = cost, host
        self._last = {UP: 0, DOWN: 0}

    def period(self, way: str, size: int) -> int:
        """Return the time from one block of ``size`` stream bytes to the next in a long message,
        ps. ``way``: UP or DOWN."""
        times = self.cost.up if way == UP else self.cost.down
        crossing = int(spacing(size, times))
        if not self._host:
            return crossing
        busy = times.wait + handling(size, times)
        cycle = busy + times.command
        if way == UP and not times.burst:  # see cost._steady
            cycle = times.command + max(times.notify, busy) + times.wait + times.cpu
            busy += times.cpu
        return max(int(cycle) // times.outstanding, int(busy), crossing)

    def due(self, up_bytes: int, down_bytes: int, now: int, ready: int | None = None) -> int:
        """Return the earliest time at which a command may complete, ps. ``up_bytes``: bytes of its
        data to the host, with READ_HEADER; ``down_bytes``: bytes from the host. A command without a
        block completes at once. ``now``: the time, ps. ``ready``: since when the block could cross,
        ps; None: it has waited since the one before it."""
        due = now
        for way, size in ((UP, up_bytes - READ_HEADER), (DOWN, down_bytes)):
            if size > 0:
                last = self._last[way]
                if ready is not None:
                    since = max(last, ready)
                else:
                    since = last if last >= now - SLACK_PS else now
                self._last[way] = due = since + self.period(way, size)
        return max(due, now)
