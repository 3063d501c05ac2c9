"""The tunnel's messages as the engine takes them: what each size costs, worked out once.

Owns the table that compiled code reads. Does not own what a message costs (tunnel_cost.py) or where
it goes (dispatch.py). Source: own.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.plan_rows import DOWNWARD, UPWARD
from ondie.emu.engine.core.state import record_type
from ondie.emu.nvme.tunnel.cost import Message, TunnelCost
from ondie.emu.units import InputError

MESSAGE = record_type(
    up="i8",  # ps that the sender's way up is taken; 0: it comes from the host
    body="i8",  # ps that the receiver's way down works while it still comes up,
    tail="i8",  # and after that; both 0: it goes to the host
    relay="i8",  # ps of the host's relay, all its threads together
    commands="i8",  # with notifications
    wire_up="i8", wire_down="i8",  # bytes on the links
)  # fmt: skip
SIZES = 1 << 12
"""Messages of different sizes or ways in one run."""


class Messages:
    """Fills the table as messages come up; ``wait_ps``: for a core of the host, each time that the
    relay has something to do. InputError where there is no tunnel."""

    def __init__(self, cfg: Config, table: np.recarray, wait_ps: int = 0) -> None:
        self.cost = TunnelCost.of(cfg).waiting(wait_ps)
        self._table = table
        self._known: dict[tuple[int, int], int] = {}

    def place(self, kind: int, n: int) -> int:
        """Where in the table a message of n bytes is; ``kind``: UPWARD, DOWNWARD or ACROSS."""
        key = kind, n
        if key not in self._known:
            at = len(self._known)
            if at == len(self._table):
                raise InputError(f"messages of more than {at} sizes through the tunnel in one run")
            self._known[key] = at
            self._fill(at, kind, n)
        return self._known[key]

    def places(self, kinds: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The same for many, int64[n]."""
        pairs, which = np.unique(np.stack([kinds, sizes]), axis=1, return_inverse=True)
        found = np.array([self.place(int(kind), int(n)) for kind, n in pairs.T], np.int64)
        return found[which.reshape(-1)]

    def _fill(self, at: int, kind: int, n: int) -> None:
        message = self._message(kind, n)
        row = self._table[at]
        row.up = message.up_ps
        if kind != UPWARD:
            row.body, row.tail = message.body_ps, message.tail_ps
        row.relay = -(-message.cpu_ps // self.cost.threads)
        row.commands = message.commands
        row.wire_up, row.wire_down = message.wire_up, message.wire_down

    def _message(self, kind: int, n: int) -> Message:
        if kind == UPWARD:
            return self.cost.upward(n)
        return self.cost.downward(n) if kind == DOWNWARD else self.cost.across(n)
