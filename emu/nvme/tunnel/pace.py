"""Pace of a tunnel's blocks: the earliest completion times that the cost model allows.

Owns the schedule of the blocks of one drive in both directions. Does not own the cost model
(cost.py), commands, a clock or threads; the current time is an argument.
Source: this project. A program that runs in wall time handles some blocks late, because it waits
for a CPU. Therefore, each block is scheduled one period after the previous block; the cost model
determines the period. After a late block, further blocks follow without delay until they are on
schedule again. A block never completes before its scheduled time. A direction that was idle, or is
more than SLACK_PS late, begins a new schedule and does not catch up.
"""

from __future__ import annotations

from ondie.emu.nvme.tunnel.cost import DOWN, UP, TunnelCost
from ondie.emu.nvme.tunnel.framing import READ_HEADER
from ondie.emu.nvme.tunnel.timing import handling, spacing

SLACK_PS = 50 * 10**9
"""Maximum delay of one direction up to which later blocks catch up with the schedule, ps: several
time slices of an operating system's scheduler, or the time of hundreds of blocks."""


class Pace:
    """Schedule of the blocks (data of tunnel commands) of one drive, computed from the cost model
    of its tunnel. ``host``: True to include the time of the host's relay and of commands; False to
    include only the time of the link, because the host is real."""

    def __init__(self, cost: TunnelCost, host: bool = True) -> None:
        self.cost, self._host = cost, host
        self._last = {UP: 0, DOWN: 0}

    def period(self, way: str, size: int) -> int:
        """Return the time between the completions of two consecutive blocks of a long message, ps.
        ``size``: stream bytes per block. ``way``: UP or DOWN."""
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
        """Return the earliest time at which a tunnel command may complete, ps. ``up_bytes``: bytes
        of its data to the host, including READ_HEADER; ``down_bytes``: bytes from the host. A
        command without a block completes immediately. ``now``: current time, ps. ``ready``: time
        since which the block has been ready for transfer, ps, or None if it has been ready since
        the previous block."""
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
