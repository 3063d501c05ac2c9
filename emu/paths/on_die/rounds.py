"""Rounds of an on-die update: one stripe on every die, and the ids of a round's plan rows.

Owns the numbering of plan rows within and across rounds. Does not own the content or dependencies
of a row (path.py, deepstore.py).
Source: this project's plan-row contract (engine/core/plan_rows.py): consecutive ids, columns in
chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.paths.on_die.protection import Guarded

STAGED_ROUNDS = 8
"""Maximum number of rounds whose gradients are in the device's DRAM; a round has one stripe per
die."""


def all_rounds(first: int, guarded: Sequence[Guarded], n_steps: int) -> dict[str, np.ndarray]:
    """Return all rounds as columns by name, alternating between devices. ``first``: id of the first
    plan row.

    "k": number of the round on its device. "dev": device. "width": number of dies in the round (the
    last round of a device may have fewer). "parity", "parities": number of the first parity and
    number of parities in the round. "base": id of the round's first row. "before": id of the first
    row of the previous round of the device. "staged", "staged_end": ids of the first and the last
    row of the round that is STAGED_ROUNDS earlier on the device. Ids of rounds that do not exist
    are -1.
    """
    dies = guarded[0].dies
    count = np.array([each.count for each in guarded], np.int64)
    rounds = -(-count // dies)
    round_index, dev = np.divmod(np.arange(rounds.max() * len(count)), len(count))
    keep = round_index < rounds[dev]
    round_index, dev = round_index[keep], dev[keep]
    width = np.minimum(dies, count[dev] - round_index * dies)
    parity, parities = np.zeros((2, len(round_index)), np.int64)
    for device, its in enumerate(guarded):
        mine = dev == device
        parity[mine] = its.completed(round_index[mine] * dies)
        parities[mine] = its.completed(round_index[mine] * dies + width[mine]) - parity[mine]
    size = 1 + n_steps * width + parities
    base = first + np.cumsum(size) - size
    before, staged, staged_end = np.full((3, len(round_index)), -1, np.int64)
    for device in range(len(count)):
        mine = np.flatnonzero(dev == device)
        before[mine[1:]] = base[mine[:-1]]
        back, now = mine[:-STAGED_ROUNDS], mine[STAGED_ROUNDS:]
        staged[now] = base[back]
        staged_end[now] = base[back] + size[back] - 1
    return {
        "k": round_index, "dev": dev, "width": width, "base": base, "before": before,
        "staged": staged, "staged_end": staged_end, "parity": parity, "parities": parities,
    }  # fmt: skip


@dataclass
class Table:
    """Plan rows of several rounds, as arrays with one element per plan row. They state the stripe,
    the step and the dependencies of each plan row."""

    at: np.ndarray
    """Index of each plan row within its round."""
    round: np.ndarray
    dev: np.ndarray
    width: np.ndarray
    """For each plan row, the number of dies that update a stripe in the round of the row."""
    base: np.ndarray
    """For each plan row, the id of the first row of its round."""
    before: np.ndarray
    """For each plan row, the id of the first row of the previous round on the same device; -1 in
    the first round of a device."""
    staged: np.ndarray
    staged_end: np.ndarray
    parity: np.ndarray
    die: np.ndarray
    load: np.ndarray
    """For each plan row, True if it transfers the round's gradients to the device's DRAM."""
    made: np.ndarray
    """For each plan row, True if it programs a super-page of parity."""
    dies: int
    order: dict[int, int]
    row: dict[int, np.ndarray]
    """By step of a stripe's update (see protection.steps): for each row of the table, the id of the
    row that performs this step for the same stripe."""
    mask: dict[int, np.ndarray]
    """By step of a stripe's update: mask of the rows of the table that perform this step."""
    after0: np.ndarray
    after1: np.ndarray

    @staticmethod
    def of(rounds: dict[str, np.ndarray], steps: tuple[int, ...], dies: int) -> Table:
        order = {step: i for i, step in enumerate(steps)}
        size = 1 + len(steps) * rounds["width"] + rounds["parities"]
        names = ("k", "dev", "width", "base", "before", "staged", "staged_end", "parity")
        rnd, dev, width, base, before, staged, staged_end, parity = (
            np.repeat(rounds[name], size) for name in names
        )
        at = np.arange(len(rnd)) - np.repeat(np.cumsum(size) - size, size)
        load, made = at == 0, at > len(steps) * width
        which, die = np.divmod(at - 1, width)
        which[load | made], die[load | made] = -1, 0
        row = {step: base + 1 + i * width + die for step, i in order.items()}
        mask = {step: which == i for step, i in order.items()}
        after0, after1 = np.full((2, len(rnd)), -1, np.int64)
        return Table(
            at, rnd, dev, width, base, before, staged, staged_end, parity, die, load, made, dies,
            order, row, mask, after0, after1,
        )  # fmt: skip

    @property
    def stripe(self) -> np.ndarray:
        """For each plan row, the number of its stripe on its device; for a row that belongs to no
        single stripe (gradient transfer or parity), the number of the first stripe of its round."""
        return self.round * self.dies + self.die

    def earlier(self, step: int, die: np.ndarray | int) -> np.ndarray:
        """Return, for each plan row, the id of the row that performs ``step`` on die ``die`` in the
        previous round of the device (a round updates one stripe per die), or -1 in the first
        round."""
        return np.where(self.before < 0, -1, self.before + 1 + self.order[step] * self.dies + die)

    def previous(self, step: int) -> np.ndarray:
        """Return, for each plan row, the id of the row that performs ``step`` on the same die in
        the previous round of the device (a round updates one stripe per die), or -1 in the first
        round."""
        return self.earlier(step, self.die)
