"""Plan rows: their columns, the ring of rows in flight and the dependencies between rows.

Owns the plan's columns, dependencies, fences and phases, and the alternation of several plans in
one ring. Does not own the execution of rows (engine/run/loop.py) or the plans, which the update
paths generate (paths/).
Source: this project. Plan format: chunks of rows (dtype PLAN); ``after0`` and ``after1`` of a row
are the ids of earlier rows or of a fence, or -1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol, Self

import numpy as np

from ondie.emu.engine.core.state import Arrays, record_type
from ondie.kernels.jit import njit

# Resources that a row may name.
(
    FENCE,  # done when every earlier row is done
    JOIN,  # done when the rows it names are done
    NVME,  # host command: kind READ, WRITE, TRIM, FLUSH
    ISP_IO,  # the ISP's own command on the conventional namespace: kind READ, WRITE
    DIE,  # reservoir operation: kind VPP, BPR, ODC, BPP, READ; SCAN, PAD (physical)
    DMA_DOWN,  # host memory to device DRAM: bytes_in
    DMA_UP,  # device DRAM to host memory: bytes_out
    HOST_CPU,  # array_ps on the host's CPU
    ACCELERATOR,  # array_ps on the accelerator that runs forward and backward
    ISP,  # array_ps on the ISP, while bytes_in + bytes_out cross the device's DRAM
    TUNNEL,  # a message of bytes_in through the device's tunnel: kind UPWARD or DOWNWARD, or
    # ACROSS, up and then down to device lpn
) = range(11)  # fmt: skip

UPWARD, DOWNWARD, ACROSS = range(3)

PLAN = np.dtype(
    [
        ("id", "i8"),  # consecutive from 0
        ("device", "i4"),
        ("resource", "i4"),
        ("kind", "i4"),
        ("phase", "i4"),  # index into the path's phases
        ("fua", "i4"),  # 1: an NVMe write that completes when its data is on flash
        ("lpn", "i8"),  # first logical page, or super-page for the reservoir
        ("bytes_in", "i8"),  # into the device, its registers or its array
        ("bytes_out", "i8"),  # out of them
        ("array_ps", "i8"),  # compute or PE time; arrival time of an NVMe command
        ("after0", "i8"),  # id of an earlier row, -1 = none
        ("after1", "i8"),
        ("tag", "i8"),  # defined by the path
        ("stream", "i4"),  # of an NVMe write; of a message: index of its cost (set by System)
    ],
    align=True,
)
MAX_CHUNK = 1 << 18

ROW = record_type(
    id="i8",
    lpn="i8",
    bytes_in="i8",
    bytes_out="i8",
    array_ps="i8",
    tag="i8",
    start="i8",
    end="i8",
    next="i8",  # in the ready list or the submission queue
    waiters="i8",  # head of the list of rows that depend on this one, -1 = none
    last_waiter="i8",
    device="i4",
    resource="i4",
    kind="i4",
    phase="i4",
    needs="i4",  # number of incomplete rows that this row depends on
    pending="i4",  # transactions in flight for this row
    state="i4",
    stream="i4",
    status="i4",  # of a command: 0, or its error status (ftl/read_retry.py)
    fua="i4",
)
WAITING, STARTED, DONE = range(3)
PHASE = record_type(first="i8", last="i8", rows="i8", done="i8")


@njit
def room(st):
    """Return the number of free rows in the ring of plan rows."""
    reg = st.reg[0]
    return st.row.shape[0] - (reg.next_row - reg.tail)


@njit
def load(st, plan):
    """Load the plan rows in ``plan`` (dtype PLAN, 1-D) into the ring. The ring must have a free row
    for each row of ``plan``.
    """
    reg = st.reg[0]
    ring = st.row.shape[0] - 1
    for i in range(plan.shape[0]):
        planned = plan[i]
        rid = planned.id & ring
        row = st.row[rid]
        row.id = planned.id
        row.device = planned.device
        row.resource = planned.resource
        row.kind = planned.kind
        row.phase = planned.phase
        row.lpn = planned.lpn
        row.bytes_in = planned.bytes_in
        row.bytes_out = planned.bytes_out
        row.array_ps = planned.array_ps
        row.tag = planned.tag
        row.stream = planned.stream
        row.fua = planned.fua
        row.start = -1
        row.end = -1
        row.waiters = -1
        row.needs = 0
        row.pending = 0
        row.state = WAITING
        row.status = 0
        st.phase[planned.phase].rows += 1
        reg.next_row = planned.id + 1
        for k in range(2):
            after = planned.after0 if k == 0 else planned.after1
            if after >= reg.tail and st.row[after & ring].state != DONE:
                other = st.row[after & ring]
                st.wait[2 * rid + k] = -1
                if other.waiters < 0:
                    other.waiters = 2 * rid + k
                else:
                    st.wait[other.last_waiter] = 2 * rid + k
                other.last_waiter = 2 * rid + k
                row.needs += 1
        if row.needs == 0 and planned.resource != FENCE:
            make_ready(st, rid)
    advance(st)


@njit
def make_ready(st, rid):
    """Append plan row ``rid`` (a ring index), whose dependencies must be complete, to the ready
    list.
    """
    reg = st.reg[0]
    st.row[rid].next = -1
    if reg.ready_head < 0:
        reg.ready_head = rid
    else:
        st.row[reg.ready_tail].next = rid
    reg.ready_tail = rid


@njit
def complete(st, rid):
    """Complete plan row ``rid`` (a ring index). Rows that waited only for this row become ready, in
    plan order.
    """
    reg = st.reg[0]
    row = st.row[rid]
    row.state = DONE
    row.end = reg.now
    phase = st.phase[row.phase]
    phase.done += 1
    if row.resource > JOIN:
        phase.first = min(phase.first, row.start)
        phase.last = max(phase.last, row.end)
    entry = row.waiters
    while entry >= 0:
        following = st.wait[entry]
        waiter = entry >> 1
        st.row[waiter].needs -= 1
        if st.row[waiter].needs == 0 and st.row[waiter].resource != FENCE:
            make_ready(st, waiter)
        entry = following
    row.waiters = -1


@njit
def advance(st):
    """Advance the tail of the ring past completed rows, to the oldest incomplete row. A fence that
    becomes the oldest incomplete row is completed.
    """
    reg = st.reg[0]
    ring = st.row.shape[0] - 1
    while reg.tail < reg.next_row:
        rid = reg.tail & ring
        row = st.row[rid]
        if row.state != DONE:
            if row.resource != FENCE:
                return
            row.start = reg.now
            complete(st, rid)
        reg.tail += 1


# --- several plans in one ring

PIECE = 1 << 10
"""Maximum number of rows that are loaded from one plan before rows of the next plan are loaded."""


class Ring(Protocol):
    """Interface of a system that runs several plans. The plans share the system's ring of plan
    rows.
    """

    arrays: Arrays

    @property
    def next_row(self) -> int: ...

    @property
    def rows_done(self) -> int: ...


class MixedPlan:
    """One of several plans that share a ring.

    ``chunks``: the rows of the plan. Their ids are consecutive and may start at any number. An
    exception that ``chunks`` raises is stored in :attr:`error` and ends only this plan.
    """

    def __init__(self, ring: Ring, chunks: Iterator[np.ndarray]) -> None:
        self._ring, self._chunks = ring, chunks
        self._rest = np.zeros(0, PLAN)
        self._firsts: list[int] = []
        """First id of each piece that has been taken, in the numbering of ``chunks``."""
        self._shifts: list[int] = []
        """Number to add to an id of each piece to get the id in the ring."""
        self._open: deque[tuple[int, int]] = deque()
        """Ranges of ring ids (first, end) of the rows that may be incomplete."""
        self._ended = False
        self.end_ps = 0
        """End time (ps) of the last row that :attr:`done` has found to be complete. A row that
        later rows have overwritten in the ring counts with the time at which :attr:`done` was read.
        """
        self.error: Exception | None = None
        """Exception that ended the plan early; None if the plan was not ended early."""

    def stop(self, error: Exception) -> None:
        """Load no further rows, and store ``error``. Rows that are already loaded still run.

        Does nothing if all rows of the plan have been loaded.
        """
        if not self._ended:
            self.error, self._ended = error, True
            self._rest = np.zeros(0, PLAN)

    @property
    def done(self) -> bool:
        """True if every row has been loaded and completed."""
        if not self._ended:
            return False
        tail, row = self._ring.rows_done, self._ring.arrays.row
        state = row["state"]
        while self._open:
            first, end = self._open[0]
            if end > self._ring.next_row:
                return False
            ids = np.arange(max(first, tail), end) & len(state) - 1
            if (state[ids] != DONE).any():
                return False
            held = max(first, self._ring.next_row - len(state))
            ends = row["end"][np.arange(held, end) & len(state) - 1]
            seen = int(self._ring.arrays.reg["now"][0]) if held > first else 0
            self.end_ps = max(self.end_ps, int(ends.max(initial=0)), seen)
            self._open.popleft()
        return True

    def take(self, first: int) -> np.ndarray | None:
        """Return the next rows of the plan, at most PIECE, renumbered so that ids start at
        ``first``. Return None if all rows have been taken.
        """
        if not len(self._rest) and not self._ended:
            try:
                self._rest = next(self._chunks, self._rest)
            except Exception as error:  # noqa: BLE001 - whoever has started the plan gets it
                self.stop(error)
        if not len(self._rest):
            self._ended = True
            return None
        piece, self._rest = self._rest[:PIECE].copy(), self._rest[PIECE:]
        begins = not self._firsts
        self._firsts.append(int(piece["id"][0]))
        self._shifts.append(first - self._firsts[-1])
        for name in ("after0", "after1"):
            piece[name] = self._shifted(piece[name])
        piece["id"] += self._shifts[-1]
        if begins and piece["resource"][0] == FENCE:
            piece["resource"][0] = JOIN  # it has no earlier row of its own
        self._open.append((first, first + len(piece)))
        return piece

    def _shifted(self, ids: np.ndarray) -> np.ndarray:
        """Convert ids of ``chunks`` to ids of the ring; ids before the first row become -1."""
        which = np.searchsorted(self._firsts, ids, "right") - 1
        return np.where(which < 0, -1, ids + np.array(self._shifts)[which])


class PlanMix:
    """Iterator of chunks that takes rows from several plans in turn.

    The iteration stops when all added plans have ended, and can be continued after :meth:`add`.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._next = ring.next_row
        self._plans: deque[MixedPlan] = deque()
        """Plans that may have more rows."""

    def add(self, chunks: Iterator[np.ndarray]) -> MixedPlan:
        """Add the plan whose rows are ``chunks``, and return the plan as a MixedPlan. From now on,
        the iteration also yields chunks of the added plan."""
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
