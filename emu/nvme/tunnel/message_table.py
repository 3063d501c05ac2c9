"""Table of tunnel message costs, one entry per message size and direction, for compiled code.

Owns the table. Does not own the cost model (cost.py) or the simulation of a message
(engine/run/loop.py).
Source: this project.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.plan_rows import DOWNWARD, UPWARD
from ondie.emu.engine.core.state import record_type
from ondie.emu.nvme.tunnel.cost import Message, TunnelCost
from ondie.emu.units import InputError

MESSAGE = record_type(
    up="i8",  # ps that the sender's upward tunnel is busy; 0: the host sends
    body="i8",  # ps that the receiver's downward tunnel works while data arrives at the host; and
    tail="i8",  # ps after the last block has arrived at the host; both 0: the host receives
    relay="i8",  # ps of the host's relay (CPU time / threads)
    commands="i8",  # commands and notifications
    wire_up="i8", wire_down="i8",  # bytes on the links
)  # fmt: skip
SIZES = 1 << 12
"""Maximum number of different (direction, size) pairs of messages in one run."""


class Messages:
    """Writer of the message table. It adds an entry for each new combination of size and direction
    of a message.

    ``table``: records of MESSAGE. ``wait_ps``: time that the host's relay waits for a CPU core
    before each task, ps. Raises InputError if the configuration has no tunnel.
    """

    def __init__(self, cfg: Config, table: np.recarray, wait_ps: int = 0) -> None:
        self.cost = TunnelCost.of(cfg).waiting(wait_ps)
        self._table = table
        self._known: dict[tuple[int, int], int] = {}

    def place(self, kind: int, count: int) -> int:
        """Return the table index of a message of ``count`` bytes in direction ``kind`` (UPWARD,
        DOWNWARD or ACROSS). Adds an entry if the table does not have one. Raises InputError if the
        table is full or ``count`` is negative."""
        key = kind, count
        if key not in self._known:
            at = len(self._known)
            if at == len(self._table):
                raise InputError(
                    f"tunnel: more than {at} message sizes in one run; use fewer different sizes"
                )
            self._known[key] = at
            self._fill(at, kind, count)
        return self._known[key]

    def places(self, kinds: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the table indices, int64[n], of n messages; see :meth:`place`.

        ``kinds``: direction of each message. ``sizes``: size of each message, bytes.
        """
        pairs, which = np.unique(np.stack([kinds, sizes]), axis=1, return_inverse=True)
        found = np.array([self.place(int(kind), int(count)) for kind, count in pairs.T], np.int64)
        return found[which.reshape(-1)]

    def _fill(self, at: int, kind: int, count: int) -> None:
        message = self._message(kind, count)
        row = self._table[at]
        row.up = message.up_ps
        if kind != UPWARD:
            row.body, row.tail = message.body_ps, message.tail_ps
        row.relay = -(-message.cpu_ps // self.cost.threads)
        row.commands = message.commands
        row.wire_up, row.wire_down = message.wire_up, message.wire_down

    def _message(self, kind: int, count: int) -> Message:
        if kind == UPWARD:
            return self.cost.upward(count)
        return self.cost.downward(count) if kind == DOWNWARD else self.cost.across(count)
