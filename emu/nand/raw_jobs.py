"""Raw flash jobs: operations by physical address, without an FTL or a host.

Owns the job list, its feeding into the dies' queues, the loop that runs one channel after the
other, and the loop for jobs with arrival times. Does not own scheduling (channel.py,
die_scheduler.py).
Source: channels are independent unless an FTL, a host or a power budget couples them, so each can
run to its end separately with the same completion times.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.engine.core.events import give_txn, take_txn
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.state import Arrays, record_type, rounded_up
from ondie.emu.nand import channel as nand
from ondie.emu.nand import timing
from ondie.emu.units import InputError
from ondie.kernels.jit import cold, inline, njit

_JOB = record_type(
    end="i8",  # completion (data out, programmed or erased), ps; until then ~(its arrival)
    bus="i4",  # bytes that cross the channel
    page="i4",  # page offset in its block; -1: no page type, and never combined with others
    planes="i4",  # mask of its planes
    op="i1",  # timing.READ, PROGRAM, ERASE or COPYBACK
    queue="i1",  # queue of its die
    more="i1",  # following jobs that are programmed with it (its word line); -1: one of those
    second="i1",  # 1: the second pass over a word line
)
JOB = rounded_up(_JOB)
FEED = record_type(next="i8", last="i8")
QUEUED = {
    timing.READ: nand.Q_READ,
    timing.PROGRAM: nand.Q_WRITE,
    timing.ERASE: nand.Q_GC_ERASE,
    timing.COPYBACK: nand.Q_GC_WRITE,
}
"""Default queue of each operation."""
OPERATIONS = ", ".join(timing.OP_NAMES[op] for op in QUEUED)


@inline
def transaction(st, i):
    """Create and return a transaction for job ``i``."""
    job = st.job[i]
    t = take_txn(st)
    x = st.txn[t]
    x.op = job.op
    x.bus = job.bus
    x.page = job.page
    x.planes = job.planes
    x.lpn = i
    x.n = max(set_bits(job.planes), 1)
    if job.page >= 0:
        if job.op == timing.READ or job.op == timing.COPYBACK:
            x.array = st.page_ps[0, job.page]
        elif job.op == timing.PROGRAM:
            x.array = st.page_ps[1 + job.second, job.page]
    return t


@inline
def hand(st, g, i):
    """Queue job ``i``, and those that are programmed with it, on die ``g``.

    Returns the index of the next job.
    """
    job = st.job[i]
    t = transaction(st, i)
    if job.more > 0:
        whole_line(st, t, i)
    st.txn[t].die = g
    nand.push(st, g, t, job.queue)
    return i + 1 + job.more


@cold
def whole_line(st, t, i):
    """Append the jobs that are programmed with job ``i`` to its transaction ``t`` as mates."""
    for k in range(i + 1, i + 1 + st.job[i].more):
        u = transaction(st, k)
        st.txn[t].mate = u
        t = u


@inline
def feed(st, g):
    """Queue the next operation of die ``g``, if there is one."""
    f = st.feed[g]
    if f.next < f.last:
        f.next = hand(st, g, f.next)


@inline
def done(st, t, again):
    """Complete transaction ``t`` and its mates, and feed their die one operation for each if
    ``again``.

    Returns the number of jobs among them that were queued separately.
    """
    time = st.reg[0].now
    if st.txn[t].op != timing.READ and st.cfg[0].status == 0:
        time = st.txn[t].time
    n = 0
    while t >= 0:
        x = st.txn[t]
        following = x.mate
        g = x.die
        job = st.job[x.lpn]
        job.end = time
        alone = job.more >= 0
        give_txn(st, t)
        if alone:
            n += 1
            if again:
                feed(st, g)
        t = following
    return n


@njit
def run(st, window, until):
    """Run jobs and return the number of completed operations.

    ``window`` > 0: run all jobs with ``window`` operations queued per die. ``window`` 0: run the
    jobs as they arrive, up to and including time ``until`` (ps); call it again with a later time.
    """
    if window == 0 or st.cfg[0].power > 0:
        for g in range(st.feed.shape[0]):
            for _ in range(window):
                feed(st, g)
        return events(st, until, window)
    reg = st.reg[0]
    n = 0
    for b in range(st.bus.shape[0]):
        reg.now = 0
        for at in range(st.way.shape[1]):
            for _ in range(window):
                feed(st, st.way[b, at])
        nand.grant(st, b)
        while True:
            time = nand.wake(st, b)
            if time >= NEVER or reg.error != 0:
                break
            reg.now = time
            while nand.due(st, b):
                t = nand.finished(st, b)
                if t >= 0:
                    n += done(st, t, True)
            nand.grant(st, b)
        reg.touched = 0
        st.bus[b].touched = 0
    return n


@njit
def events(st, until, window):
    """Process the events of all channels in order of time; return the number of completed jobs.

    Jobs arrive by their time (``window`` 0) or as others complete. Jobs that arrive at one instant
    are queued together, after the completions of that instant.
    """
    reg = st.reg[0]
    f = st.feed[0]
    n = 0
    nand.settle(st)
    while reg.error == 0:
        time = st.key[1]
        arrives = window == 0 and f.next < f.last and ~st.job[f.next].end < time
        if arrives:
            time = ~st.job[f.next].end
        if time > until or time >= NEVER:
            break
        reg.now = time
        if arrives:
            while f.next < f.last and ~st.job[f.next].end == time:
                f.next = hand(st, st.where[f.next], f.next)
        else:
            b = st.tree[1]
            nand.touch(st, b)
            while nand.due(st, b):
                t = nand.finished(st, b)
                if t >= 0:
                    n += done(st, t, window > 0)
        nand.settle(st)
    return n


def load(arrays: Arrays, die: np.ndarray, op: np.ndarray, **columns: np.ndarray) -> np.ndarray:
    """Load the job list for :func:`run`, in the order of execution per die.

    ``die``, ``op``: int[n]; further columns of JOB: ``bus`` bytes, ``page``, ``planes``, ``queue``,
    ``more``, ``second``. Returns the order of the jobs in ``arrays.job`` (int64[n], stable by die).
    Raises InputError for a die or an operation that does not exist, or too many jobs.
    """
    record = _fill(arrays, die, op, columns)
    order = np.argsort(record, kind="stable")
    _reorder(arrays, record, order)
    counts = np.bincount(record, minlength=len(arrays.die))
    arrays.feed["last"] = np.cumsum(counts)
    arrays.feed["next"] = arrays.feed["last"] - counts
    return order


def load_arrivals(
    arrays: Arrays, at: np.ndarray, die: np.ndarray, op: np.ndarray, **columns: np.ndarray
) -> np.ndarray:
    """Load jobs with arrival times ``at`` (int64[n], ps) for :func:`run` with ``window`` 0.

    Otherwise like :func:`load`. Returns the order, stable by arrival.
    """
    record = _fill(arrays, die, op, columns)
    arrays.job["end"][: len(at)] = ~np.asarray(at)
    order = np.argsort(at, kind="stable")
    _reorder(arrays, record, order)
    feed = arrays.feed[0]
    feed.next, feed.last = 0, len(order)
    return order


def _first_out(arrays: Arrays, op: np.ndarray) -> None:
    """Set ``first_out``, the rank at which ``channel.best_out`` ends its search."""
    silent = bool((op == timing.COPYBACK).any()) or arrays.cfg["status"][0] != 0
    mapping = bool((arrays.job["queue"][: len(op)] == nand.Q_MAP_READ).any())
    arrays.cfg["first_out"] = -1 if silent else 0 if mapping else 1


def _reorder(arrays: Arrays, record: np.ndarray, order: np.ndarray) -> None:
    n = len(order)
    arrays.job[:n] = arrays.job[:n][order]
    arrays.where[:n] = record[order]


def unwatch(arrays: Arrays) -> None:
    """Clear ``watch``: nothing outside the channels depends on the end of their operations.

    Ends are then processed when a channel is free, and busy times of dies and channels are not
    recorded. Completion times do not change. No effect with overlap, interleaving or status reads.
    """
    c = arrays.cfg
    if not (c["overlap"][0] or c["interleave"][0] or c["status"][0]):
        c["watch"] = 0


def _fill(
    arrays: Arrays, die: np.ndarray, op: np.ndarray, columns: dict[str, np.ndarray]
) -> np.ndarray:
    """Fill the job list in the given order; return the DIE record of each job, int64[n]."""
    c = arrays.cfg[0]
    n = len(die)
    dies = len(arrays.die) // int(c.lanes)
    if n and not (0 <= die.min() and die.max() < dies):
        raise InputError(f"die {die.max()}: dies are 0..{dies - 1}")
    unknown = ~np.isin(op, list(QUEUED))
    if unknown.any():
        raise InputError(f"operation {op[unknown][0]}: {OPERATIONS} are right")
    if n > len(arrays.job):
        raise InputError(f"{n} jobs: the state was built for {len(arrays.job)}")
    job = arrays.job[:n]
    job["op"] = op
    job["end"] = -1
    table = np.zeros(len(timing.OP_NAMES), np.int8)
    table[list(QUEUED)] = list(QUEUED.values())
    job["queue"] = table[op]
    job["page"] = -1
    for name, column in columns.items():
        job[name] = column
    _first_out(arrays, op)
    planes = np.asarray(job["planes"], np.int64)
    record = np.asarray(die, np.int64) * int(c.lanes)
    if c.lanes > 1:
        alone = (op == timing.READ) & (planes & (planes - 1) == 0)
        record += np.where(alone, np.log2(np.maximum(planes, 1)).astype(np.int64), 0)
    elif c.chip:
        first = arrays.die["first"][record].astype(np.int64)
        job["planes"] = planes << ((record - first) // int(c.channels) * int(c.planes))
        record = first
    return record
