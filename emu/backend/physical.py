"""Flash operations by physical place: what the engine does without an FTL or a host.

Owns the job list, its feeding into the dies' queues and the loop that runs one channel after the
other. Does not own scheduling (nand.py). Source: channels are independent until an FTL or a host
couples them, so each may run to its end alone: the completion times are the same.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.backend import nand, timing
from ondie.emu.clock import NEVER
from ondie.emu.events import give_txn, take_txn
from ondie.emu.state import Arrays, record_type
from ondie.emu.units import InputError
from ondie.kernels.jit import njit

JOB = record_type(
    end="i8",  # when it was done: data out, programmed, erased; ps
    op="i4",  # timing.READ, PROGRAM or ERASE
    bus="i4",  # bytes that cross the channel
    page="i4",  # page offset in its block
    planes="i4",  # bit of its plane
)
FEED = record_type(next="i8", last="i8")
QUEUED = {timing.READ: nand.Q_READ, timing.PROGRAM: nand.Q_WRITE, timing.ERASE: nand.Q_GC_ERASE}


@njit
def feed(st, g, room):
    """Put up to ``room`` more of the die's operations into its queues."""
    f = st.feed[g]
    while room > 0 and f.next < f.last:
        job = st.job[f.next]
        t = take_txn(st)
        x = st.txn[t]
        x.op = job.op
        x.n = 1
        x.bus = job.bus
        x.page = job.page
        x.planes = job.planes
        x.lpn = f.next
        q = nand.Q_READ
        if x.op == timing.PROGRAM:
            q = nand.Q_WRITE
        elif x.op == timing.ERASE:
            q = nand.Q_GC_ERASE
        nand.push(st, g, t, q)
        f.next += 1
        room -= 1


@njit
def run(st, window):
    """Run all jobs, ``window`` of them queued per die. Returns how many were done."""
    reg = st.reg[0]
    n = 0
    for b in range(st.bus.shape[0]):
        reg.now = 0
        for at in range(st.way.shape[1]):
            feed(st, st.way[b, at], window)
        nand.grant(st, b)
        while True:
            time = nand.wake(st, b)
            if time >= NEVER or reg.error != 0:
                break
            reg.now = time
            t = nand.finished(st, b)
            while t >= 0:
                while t >= 0:
                    x = st.txn[t]
                    following = x.mate
                    st.job[x.lpn].end = time if x.op == timing.READ else x.time
                    g = x.die
                    give_txn(st, t)
                    n += 1
                    feed(st, g, 1)
                    t = following
                t = nand.finished(st, b)
            nand.grant(st, b)
        reg.touched = 0
        st.bus[b].touched = 0
    return n


def load(arrays: Arrays, die: np.ndarray, op: np.ndarray, **columns: np.ndarray) -> np.ndarray:
    """Hand jobs over, in the order in which each die is to take them: ``die``, ``op`` int[n].

    Returns the order in which they lie in ``arrays.job`` (int64[n], stable by die). Raises
    InputError for a die or an operation that does not exist.
    """
    if len(die) and not (0 <= die.min() and die.max() < len(arrays.die)):
        raise InputError(f"die {die.max()}: dies are 0..{len(arrays.die) - 1}")
    unknown = ~np.isin(op, list(QUEUED))
    if unknown.any():
        raise InputError(f"operation {op[unknown][0]}: READ, PROGRAM and ERASE are right")
    order = np.argsort(die, kind="stable")
    arrays.job["op"] = op[order]
    for name, column in columns.items():
        arrays.job[name] = column[order]
    counts = np.bincount(die, minlength=len(arrays.die))
    arrays.feed["last"] = np.cumsum(counts)
    arrays.feed["next"] = arrays.feed["last"] - counts
    return order
