"""Raw flash jobs: operations by physical address, without an FTL or a host.

Owns the job list, the transfer of jobs into the dies' queues, the loop that runs one channel after
the other, and the loop for jobs with arrival times. Does not own scheduling (channel.py,
die_scheduler.py).
Source: this project.

Channels are independent unless an FTL, a host or a power budget couples them. Each channel can
therefore be simulated to its end separately with identical completion times.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.engine.core.events import give_txn, take_txn
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.state import Arrays, record_type, rounded_up
from ondie.emu.nand import channel, phase_end, timing
from ondie.emu.nand.die import Q_GC_ERASE, Q_GC_WRITE, Q_MAP_READ, Q_READ, Q_WRITE, touch_channel
from ondie.emu.nand.die_scheduler import push
from ondie.emu.units import InputError
from ondie.kernels.jit import cold, inline, njit

_JOB = record_type(
    end="i8",  # completion (data out, programmed or erased), ps; until then ~(its arrival)
    bus="i4",  # bytes that cross the channel
    page="i4",  # page offset in the block; -1: no page type, and never combined with other jobs
    planes="i4",  # bit mask of the planes
    op="i1",  # timing.READ, PROGRAM, ERASE or COPYBACK
    queue="i1",  # queue of the die (die.py)
    more="i1",  # number of following jobs programmed with this job (word line); -1: such a job
    second="i1",  # 1: the second program pass over a word line
)
JOB = rounded_up(_JOB)
FEED = record_type(next="i8", last="i8")
QUEUED = {
    timing.READ: Q_READ,
    timing.PROGRAM: Q_WRITE,
    timing.ERASE: Q_GC_ERASE,
    timing.COPYBACK: Q_GC_WRITE,
}
"""Default queue of the die for a raw flash job, by operation of the job."""
OPERATIONS = ", ".join(timing.OP_NAMES[op] for op in QUEUED)


@inline
def make_transaction(st, i):
    """Create a transaction for job ``i`` of the job list. Return the index of the transaction."""
    job = st.job[i]
    tid = take_txn(st)
    txn = st.txn[tid]
    txn.op = job.op
    txn.bus = job.bus
    txn.page = job.page
    txn.planes = job.planes
    txn.lpn = i
    txn.n = max(set_bits(job.planes), 1)
    if job.page >= 0:
        if job.op == timing.READ or job.op == timing.COPYBACK:
            txn.array = st.page_ps[0, job.page]
        elif job.op == timing.PROGRAM:
            txn.array = st.page_ps[1 + job.second, job.page]
    return tid


@inline
def queue_job(st, die, i):
    """Queue job ``i`` of the job list, and the jobs that are programmed together with it, on die
    ``die``.

    Returns the index of the next job in the job list.
    """
    job = st.job[i]
    tid = make_transaction(st, i)
    if job.more > 0:
        append_mates(st, tid, i)
    st.txn[tid].die = die
    push(st, die, tid, job.queue)
    return i + 1 + job.more


@cold
def append_mates(st, tid, i):
    """Append the jobs that are programmed together with job ``i`` to the command of its transaction
    ``tid`` (as a list linked by field ``mate``)."""
    for follower in range(i + 1, i + 1 + st.job[i].more):
        other = make_transaction(st, follower)
        st.txn[tid].mate = other
        tid = other


@inline
def queue_next(st, die):
    """Queue the next job of die ``die``, if there is one."""
    feed = st.feed[die]
    if feed.next < feed.last:
        feed.next = queue_job(st, die, feed.next)


@inline
def complete(st, tid, again):
    """Complete all transactions of one command: ``tid`` and those that field ``mate`` links to it.

    If ``again`` is True, queue the next job of the die for each completed job. Returns the number
    of completed jobs; jobs that are programmed together (JOB.more) count once.
    """
    time = st.reg[0].now
    if st.txn[tid].op != timing.READ and st.cfg[0].status == 0:
        time = st.txn[tid].time
    count = 0
    while tid >= 0:
        txn = st.txn[tid]
        following = txn.mate
        die = txn.die
        job = st.job[txn.lpn]
        job.end = time
        alone = job.more >= 0
        give_txn(st, tid)
        if alone:
            count += 1
            if again:
                queue_next(st, die)
        tid = following
    return count


@njit
def run(st, window, until):
    """Run the loaded jobs and return the number of completed operations.

    ``window`` > 0: run all jobs and keep ``window`` operations queued per die. ``window`` = 0: run
    the jobs at their arrival times, up to and including time ``until`` (ps). A further call with a
    later time continues the run.
    """
    if window == 0 or st.cfg[0].power > 0:
        for die in range(st.feed.shape[0]):
            for _ in range(window):
                queue_next(st, die)
        return process_events(st, until, window)
    reg = st.reg[0]
    count = 0
    for bus in range(st.bus.shape[0]):
        reg.now = 0
        for at in range(st.way.shape[1]):
            for _ in range(window):
                queue_next(st, st.way[bus, at])
        channel.grant(st, bus)
        while True:
            time = channel.next_event_ps(st, bus)
            if time >= NEVER or reg.error != 0:
                break
            reg.now = time
            while phase_end.is_due(st, bus):
                tid = phase_end.next_finished(st, bus)
                if tid >= 0:
                    count += complete(st, tid, True)
            channel.grant(st, bus)
        reg.touched = 0
        st.bus[bus].touched = 0
    return count


@njit
def process_events(st, until, window):
    """Process the events of all channels in order of time, up to ``until`` (ps).

    Returns the number of completed jobs. If ``window`` is 0, jobs are queued at their arrival
    times; otherwise each completed job is replaced by the next job of its die. Jobs with equal
    arrival times are queued together, after the completions at that time.
    """
    reg = st.reg[0]
    feed = st.feed[0]
    count = 0
    channel.finish_event(st)
    while reg.error == 0:
        time = st.key[1]
        arrives = window == 0 and feed.next < feed.last and ~st.job[feed.next].end < time
        if arrives:
            time = ~st.job[feed.next].end
        if time > until or time >= NEVER:
            break
        reg.now = time
        if arrives:
            while feed.next < feed.last and ~st.job[feed.next].end == time:
                feed.next = queue_job(st, st.where[feed.next], feed.next)
        else:
            bus = st.tree[1]
            touch_channel(st, bus)
            while phase_end.is_due(st, bus):
                tid = phase_end.next_finished(st, bus)
                if tid >= 0:
                    count += complete(st, tid, window > 0)
        channel.finish_event(st)
    return count


def load(arrays: Arrays, die: np.ndarray, op: np.ndarray, **columns: np.ndarray) -> np.ndarray:
    """Load the job list for :func:`run`. The jobs of a die are queued in the given order.

    ``die``, ``op``: int[n]; ``columns``: further columns of JOB (``bus`` in bytes, ``page``,
    ``planes``, ``queue``, ``more``, ``second``). Returns the permutation that sorts the jobs by die
    as in ``arrays.job``, int64[n]. Raises InputError if a die or an operation does not exist, or if
    there are more jobs than records in ``arrays.job``.
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

    The other parameters and the errors are those of :func:`load`. Returns the permutation that
    sorts the jobs by arrival, int64[n].
    """
    record = _fill(arrays, die, op, columns)
    arrays.job["end"][: len(at)] = ~np.asarray(at)
    order = np.argsort(at, kind="stable")
    _reorder(arrays, record, order)
    feed = arrays.feed[0]
    feed.next, feed.last = 0, len(order)
    return order


def _first_out(arrays: Arrays, op: np.ndarray) -> None:
    """Set configuration field ``first_out`` to the highest priority that a data-out phase of jobs
    with operations ``op`` can have.

    ``channel.select_data_out`` ends its search at this priority.
    """
    silent = bool((op == timing.COPYBACK).any()) or arrays.cfg["status"][0] != 0
    mapping = bool((arrays.job["queue"][: len(op)] == Q_MAP_READ).any())
    arrays.cfg["first_out"] = -1 if silent else 0 if mapping else 1


def _reorder(arrays: Arrays, record: np.ndarray, order: np.ndarray) -> None:
    count = len(order)
    arrays.job[:count] = arrays.job[:count][order]
    arrays.where[:count] = record[order]


def clear_watch(arrays: Arrays) -> None:
    """Clear field ``watch`` of the configuration, so that the end of an array operation need not be
    a separate event. Call this function only if no code but that of the channels needs this event.

    The engine then processes the end of an operation when the channel is free, and does not record
    the busy times of dies and channels. Completion times do not change. The function has no effect
    if overlap, interleaving or status reads are configured.
    """
    cfg = arrays.cfg
    if not (cfg["overlap"][0] or cfg["interleave"][0] or cfg["status"][0]):
        cfg["watch"] = 0


def _fill(
    arrays: Arrays, die: np.ndarray, op: np.ndarray, columns: dict[str, np.ndarray]
) -> np.ndarray:
    """Fill the job list of ``arrays`` with jobs in the given order; return the DIE record of each
    job, int64[n]."""
    cfg = arrays.cfg[0]
    count = len(die)
    dies = len(arrays.die) // int(cfg.lanes)
    if count and not (0 <= die.min() and die.max() < dies):
        raise InputError(f"job with die = {die.max()}: must be from 0 to {dies - 1}")
    unknown = ~np.isin(op, list(QUEUED))
    if unknown.any():
        raise InputError(f"job with operation {op[unknown][0]}: must be one of {OPERATIONS}")
    if count > len(arrays.job):
        raise InputError(
            f"{count} jobs: must be at most {len(arrays.job)}, the number given to build()"
        )
    job = arrays.job[:count]
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
    record = np.asarray(die, np.int64) * int(cfg.lanes)
    if cfg.lanes > 1:
        alone = (op == timing.READ) & (planes & (planes - 1) == 0)
        record += np.where(alone, np.log2(np.maximum(planes, 1)).astype(np.int64), 0)
    elif cfg.chip:
        first = arrays.die["first"][record].astype(np.int64)
        job["planes"] = planes << ((record - first) // int(cfg.channels) * int(cfg.planes))
        record = first
    return record
