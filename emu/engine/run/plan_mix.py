"""Several plans that run at the same time, as one plan.

Owns the numbers that the rows of such plans get, the order in which their pieces are loaded, and
the end of each plan. Does not own loading and execution of rows (system.py, loop.py) or the plans.
Source: the plan format (engine/core/plan_rows.py), in which the ids of all rows are consecutive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol, Self

import numpy as np

from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.core.state import Arrays

PIECE = 1 << 10
"""Largest number of rows that a plan loads before it is the turn of the next one."""


class Ring(Protocol):
    """The system whose ring of rows the plans share."""

    arrays: Arrays

    @property
    def next_row(self) -> int: ...

    @property
    def rows_done(self) -> int: ...


class MixedPlan:
    """One of the plans. ``chunks``: its rows, whose ids are consecutive from any number on."""

    def __init__(self, ring: Ring, chunks: Iterator[np.ndarray]) -> None:
        self._ring, self._chunks = ring, chunks
        self._rest = np.zeros(0, plan_rows.PLAN)
        self._firsts: list[int] = []
        """Own id of the first row of each piece so far."""
        self._shifts: list[int] = []
        """What is added to the ids of each piece."""
        self._open: deque[tuple[int, int]] = deque()
        """Rows that are not known to be complete: (first id, end)."""
        self._ended = False

    @property
    def done(self) -> bool:
        """True if every row has been loaded and completed."""
        if not self._ended:
            return False
        tail, state = self._ring.rows_done, self._ring.arrays.row["state"]
        while self._open:
            first, end = self._open[0]
            if end > self._ring.next_row:
                return False
            ids = np.arange(max(first, tail), end) & len(state) - 1
            if (state[ids] != plan_rows.DONE).any():
                return False
            self._open.popleft()
        return True

    def take(self, first: int) -> np.ndarray | None:
        """Return the next rows, with ids from ``first`` on; None: there are no more."""
        if not len(self._rest):
            found = next(self._chunks, None)
            if found is None:
                self._ended = True
                return None
            self._rest = found
        piece, self._rest = self._rest[:PIECE].copy(), self._rest[PIECE:]
        begins = not self._firsts
        self._firsts.append(int(piece["id"][0]))
        self._shifts.append(first - self._firsts[-1])
        for name in ("after0", "after1"):
            piece[name] = self._shifted(piece[name])
        piece["id"] += self._shifts[-1]
        if begins and piece["resource"][0] == plan_rows.FENCE:
            piece["resource"][0] = plan_rows.JOIN  # it has no earlier row of its own
        self._open.append((first, first + len(piece)))
        return piece

    def _shifted(self, ids: np.ndarray) -> np.ndarray:
        """Return own ids as those of the ring; -1 for rows before the first one."""
        which = np.searchsorted(self._firsts, ids, "right") - 1
        return np.where(which < 0, -1, ids + np.array(self._shifts)[which])


class PlanMix:
    """The rows of several plans in turn, as an iterator of chunks. It has no more when the plans
    so far have none, and has again after :meth:`add`."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._next = ring.next_row
        self._plans: deque[MixedPlan] = deque()
        """Those that have more rows."""

    def add(self, chunks: Iterator[np.ndarray]) -> MixedPlan:
        """Return a further plan, which begins now."""
        plan = MixedPlan(self._ring, chunks)
        self._plans.append(plan)
        return plan

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> np.ndarray:
        while self._plans:
            plan = self._plans.popleft()
            piece = plan.take(self._next)
            if piece is not None:
                self._plans.append(plan)
                self._next += len(piece)
                return piece
        raise StopIteration
