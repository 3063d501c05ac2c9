"""Event queue (tournament tree), transaction pool and first-in first-out stations.

Owns the tournament tree over the resources' next event times, the transaction pool, the stations,
the log of moved bytes and the timeline. Does not own the handling of events (engine/run/loop.py).
Source: Knuth, TAOCP vol. 3, 5.4.1 (tournament trees); one leaf per exclusive resource was measured
twice as fast as a binary heap. Of equal times, the lower leaf is first, so runs are reproducible
byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ondie.emu.clock import NEVER, transfer_ps
from ondie.emu.engine.core.intrinsics import choose
from ondie.emu.engine.core.state import record_type
from ondie.kernels.jit import cold, inline, njit

TXN = record_type(
    # -1 in a new transaction
    next="i4",  # next transaction in its queue or list, or in the free list
    mate="i4",  # next transaction of the same multi-plane command, -1 = none
    page="i4",  # page offset in the block, shared by the planes of a multi-plane operation
    row="i4",  # ring index of its plan row or request, -1 = internal work of the drive
    old="i8",  # physical page from which garbage collection moves it
    # 0 in a new transaction
    array="i8",  # array or PE time in ps in addition to the timing table's
    size="i8",  # bytes that cross the link and DRAM
    left="i8",  # bytes of its row that follow in pieces
    sectors="i8",  # bit mask of the requested sectors of its page
    bus="i4",  # bytes that cross the channel
    n="i4",  # pages, at consecutive planes of one super-page
    planes="i4",  # bit mask of the planes of its pages
    bare="i4",  # RESERVOIR: data without ECC; MERGING; and values that other modules define
    kind="i4",  # owner: OWN, ROW, REQUEST or CACHED
    stream="i4",  # of host writes
    # not initialized: set by the code that needs them
    time="i8",  # when it leaves the station or the array it is in
    ppn="i8",  # first physical page (physical super-page for operations on the die)
    lpn="i8",  # first logical page (super-page for operations on the die)
    op="i4",  # timing table index
    queue="i4",  # queue of its die (nand/channel.py)
    die="i4",  # global index
    dev="i4",
    step="i4",  # step that is complete when it leaves its station (stages.py)
    phase="i4",  # phase of its row; the last phase is garbage collection
)
FIFO = record_type(
    head="i8",
    tail="i8",
    free_at="i8",  # when the last accepted transfer leaves
    size="i8",  # bytes moved
    scale="i8",  # ps per byte << shift (clock.rate_scale)
    shift="i8",
    fixed="i8",  # latency added after service, not occupying the station
    jobs="i8",
)
REG = record_type(
    now="i8",
    free_txn="i8",  # head of the free list
    txns_free="i8",
    budget="i8",  # transactions that are not reserved for a started row
    starved="i8",  # 1: host commands wait for transactions, not for the queue depth
    events="i8",
    error="i8",
    error_a="i8",
    error_b="i8",
    next_row="i8",  # id of the next row to be loaded
    tail="i8",  # id of the oldest row that is not complete
    ready_head="i8",  # rows whose dependencies are met, not started yet
    ready_tail="i8",
    logged="i8",
    log_on="i8",
    lines="i8",
    line_on="i8",
    line_drop="i8",  # timeline intervals dropped because the table is full
    pair0="i8",  # first leaf of the queue pairs, after the stations
    go_head="i8",  # transactions that advance before the clock does
    go_tail="i8",
    fast="i8",  # 1: events may follow each other without the tournament (see enter)
    hop="i8",  # 1: no other work is left before the clock advances
    until="i8",  # the clock stays at or before this time
    hops="i8",  # events handled in this way
    thirsty="i8",  # 1: a queue pair has issued all requests that were loaded
    retries="i8",  # units whose stalled writes must be retried
    filled="i8",  # 1: the last allocation filled its block
    draws="i8",  # random numbers drawn so far
    placed="i8",  # writes with an assigned page, if writes are mapped at that point
    prompt="i8",  # 1: a collection that starts requests its channel before the next placement
    own="i8",  # transactions that internal work of the drive may take
    cut_first="i8",  # 1 + the first read of a command that is being split, if pages have slots
    cut_last="i8",
    bus0="i8",  # column of the first channel in use, after the dies
    fifo0="i8",  # column of the first station in use, after the channels
    station0="i8",  # first leaf of the stations, after the channels
    touched="i8",  # number of channels that must arbitrate again
    gather0="i8",  # first leaf of the devices' gather timers, after the queue pairs
)
LOG = record_type(
    what="i8", row="i8", lpn="i8", ppn="i8", old="i8", n="i4", dev="i4", die="i4",
    key="u8", rate="f8",  # LOG_BAD, LOG_RAW: key of the draws, bit error rate
)  # fmt: skip


class LogEntry(NamedTuple):
    """One record of a log, as plain numbers."""

    what: int
    row: int
    lpn: int
    ppn: int
    old: int
    n: int
    dev: int
    die: int
    key: int
    rate: float


def entries(log: np.ndarray) -> Iterator[LogEntry]:
    """Iterate over the records of a log in order."""
    return map(LogEntry._make, log.tolist())


LINE = record_type(leaf="i8", start="i8", end="i8", row="i8", op="i4", phase="i4")

RESERVOIR, MERGING = 1, 2
"""Values of ``bare``: data of the reservoir; a write that reads, or has read, the rest of its
page (read-modify-write)."""
REGISTERS, GRADIENT, MADE, MOVED = range(8, 12)
"""Values of ``bare``: register data sent to the controller; a gradient that is programmed; data
made by the controller that are programmed; a super-page that moves to another die."""
OWN, ROW, REQUEST, CACHED = range(4)
# Error codes of compiled code; engine/run/errors.py has the messages.
(
    E_NONE, E_POOL, E_VICTIM, E_PAST_END, E_RESERVOIR, E_REGISTER, E_BLOCK_VALID, E_RESOURCE,
    E_UNWRITTEN, E_STREAM, E_FULL,
) = range(11)  # fmt: skip
(
    LOG_READ, LOG_PROGRAM, LOG_MOVE, LOG_ERASE, LOG_VPP, LOG_BPR, LOG_ODC, LOG_BPP, LOG_ROW,
    LOG_TRIM, LOG_ZERO, LOG_BAD, LOG_RAW,
    LOG_STORE, LOG_SERVE,  # command buffer to data cache, and back
    LOG_DESTAGE, LOG_LAND, LOG_LOST,  # cache to die; die to flash; data lost
    LOG_FILL, LOG_DROP,  # flash to cache; dropped from the cache
    LOG_KEEP,  # gradient programmed into the array
    LOG_PAD,  # a physical super-page that recovery has made unusable
    LOG_FETCH, LOG_MADE,  # registers to the controller; data made by the controller to the array
    LOG_LIFT, LOG_LANDED,  # reservoir to DRAM; DRAM to another super-page
) = range(26)  # fmt: skip


@inline
def set_leaf(st, leaf, time):
    """Set a resource's next event time and update the tree up to the root.

    Each node holds the time of its winner, so the loads of one walk are independent.
    """
    key = st.key
    tree = st.tree
    node = (key.shape[0] >> 1) + int(leaf)  # uncompiled, leaf may be a narrow integer
    key[node] = time
    who = leaf
    while node > 1:
        other = node ^ 1
        theirs = key[other]
        first = theirs < time + (node & 1)  # equal times: the left child wins
        time = choose(first, theirs, time)
        who = choose(first, tree[other], who)
        node >>= 1
        key[node] = time
        tree[node] = who


def build_tree(leaves: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (times int64[2n], winners int32[2n]) of a tournament tree without events."""
    half = 2
    while half < leaves:
        half *= 2
    tree = np.zeros(2 * half, np.int32)
    tree[half:] = np.arange(half)
    for node in range(half - 1, 0, -1):
        tree[node] = tree[2 * node]
    return np.full(2 * half, NEVER, np.int64), tree


@cold
def fail(st, code, a, b):
    """Record an error, which stops the run. Only the first error is kept."""
    reg = st.reg[0]
    if reg.error == E_NONE:
        reg.error = code
        reg.error_a = a
        reg.error_b = b


@inline
def take_txn(st):
    """Take a transaction from the pool and reset it. Return -1 and set E_POOL if it is empty."""
    reg = st.reg[0]
    t = reg.free_txn
    if t < 0:
        fail(st, E_POOL, 0, 0)
        return t
    x = st.txn[t]
    reg.free_txn = x.next
    reg.txns_free -= 1
    x.next = -1
    x.mate = -1
    x.page = -1
    x.row = -1
    x.old = -1
    x.array = 0
    x.size = 0
    x.left = 0
    x.sectors = 0
    x.bus = 0
    x.n = 0
    x.planes = 0
    x.bare = 0
    x.kind = OWN
    x.stream = 0
    x.phase = st.use.shape[0] - 1
    return t


@inline
def give_txn(st, t):
    """Return a transaction to the pool."""
    reg = st.reg[0]
    st.txn[t].next = reg.free_txn
    reg.free_txn = t
    reg.txns_free += 1


@inline
def line(st, leaf, start, end, t):
    """Record in the timeline that transaction ``t`` occupied a resource from start to end (ps)."""
    if st.reg[0].line_on != 0:
        note_line(st, leaf, start, end, t)


@cold
def note_line(st, leaf, start, end, t):
    """Append an interval to the timeline, or count it as dropped if the timeline is full."""
    reg = st.reg[0]
    if reg.lines >= st.line.shape[0]:
        reg.line_drop += 1
        return
    x = st.line[reg.lines]
    y = st.txn[t]
    x.leaf = leaf
    x.start = start
    x.end = end
    x.op = y.op
    x.phase = y.phase
    x.row = st.row[y.row].id if y.row >= 0 else -1
    reg.lines += 1


@cold
def cut_line(st, leaf, end):
    """Shorten the last recorded interval of a resource: it ended at ``end`` ps."""
    for i in range(st.reg[0].lines - 1, -1, -1):
        x = st.line[i]
        if x.leaf == leaf:
            x.end = max(x.start, end)
            return


@inline
def log(st, what, row, lpn, ppn, old, n, dev, die):
    """Log moved bytes if payload is kept. The run pauses before the log is full."""
    if st.reg[0].log_on != 0:
        note_log(st, what, row, lpn, ppn, old, n, dev, die)


@cold
def note_log(st, what, row, lpn, ppn, old, n, dev, die):
    """Append a record to the log."""
    reg = st.reg[0]
    x = st.log[reg.logged]
    x.what = what
    x.row = st.row[row].id if row >= 0 else -1
    x.lpn = lpn
    x.ppn = ppn
    x.old = old
    x.n = n
    x.dev = dev
    x.die = die
    reg.logged += 1


@cold
def log_read(st, t):
    """Log the pages that a read command senses. No erase can happen between now and their data.

    With bit errors, the physical page is logged, because the errors are drawn for that page.
    """
    if st.reg[0].log_on == 0 or st.txn[t].bare >= REGISTERS:
        return
    while t >= 0:
        x = st.txn[t]
        if x.row >= 0 and x.bare == RESERVOIR:
            what = LOG_READ if x.left == 0 else LOG_LIFT
            log(st, what, x.row, x.lpn, x.ppn, x.old, x.n, x.dev, x.die)
        elif x.row >= 0 and (x.bare != 0 or st.cfg[0].errors != 0 or stays(st, t)):
            log(st, LOG_READ, x.row, x.lpn, x.ppn, -1, x.n, x.dev, x.die)
        elif x.row >= 0:
            for lpn in range(x.lpn, x.lpn + x.n):
                entry = int(st.l2p[x.dev, lpn])
                what = LOG_READ if entry > 0 else LOG_ZERO
                log(st, what, x.row, lpn, entry - 1, -1, 1, x.dev, x.die)
        t = x.mate


@inline
def stays(st, t):
    """Return True if the pages of a read have not moved since its command was split.

    Garbage collection with priority over host reads may have moved them inside their die and erased
    the block: the read then senses the new physical pages.
    """
    x = st.txn[t]
    for i in range(x.n):
        if int(st.l2p[x.dev, x.lpn + i]) - 1 != x.ppn + i:
            return False
    return True


@inline
def arrive(st, station, t, n_bytes, service, step):
    """Queue transaction ``t`` at a station now, for a service of ``service`` ps.

    If ``service`` is negative, the service time is that of ``n_bytes`` at the station's rate.
    Return False if the service takes no time, or if no other event happens before its end
    (``reg.hop`` allows this; the clock is advanced). The transaction then has ``step`` complete,
    and the caller advances it.
    """
    reg = st.reg[0]
    f = st.fifo[station]
    x = st.txn[t]
    if service < 0:
        service = transfer_ps(n_bytes, f.scale, f.shift)
    if service == 0 and f.fixed == 0 and f.head < 0 and f.free_at <= reg.now:
        f.size += n_bytes
        f.jobs += 1
        x.step = step
        return False
    start = max(reg.now, f.free_at)
    f.free_at = start + service
    st.use[x.phase, reg.fifo0 + station] += service
    f.size += n_bytes
    f.jobs += 1
    x.time = f.free_at + f.fixed
    x.step = step
    x.next = -1
    line(st, reg.fifo0 + station, start, f.free_at, t)
    if reg.hop != 0 and f.head < 0 and x.time < st.key[1] and x.time <= reg.until and calm(st):
        reg.now = x.time  # no earlier event: skip the tournament
        reg.hops += 1
        return False
    if f.head < 0:
        f.head = t
        f.tail = t
        set_leaf(st, reg.station0 + station, x.time)
    else:
        st.txn[f.tail].next = t
        f.tail = t
    return True


@njit
def enter(st, station, t, n_bytes, service, step):
    """Queue a transaction as :func:`arrive` does, not inlined: for callers off the hot path."""
    return arrive(st, station, t, n_bytes, service, step)


@inline
def occupy(st, station, t, n_bytes, service):
    """Occupy a station with transaction ``t`` as :func:`enter` does, but without an event at its
    end."""
    f = st.fifo[station]
    if service < 0:
        service = transfer_ps(n_bytes, f.scale, f.shift)
    start = max(st.reg[0].now, f.free_at)
    f.free_at = start + service
    st.use[st.txn[t].phase, st.reg[0].fifo0 + station] += service
    f.size += n_bytes
    f.jobs += 1
    line(st, st.reg[0].fifo0 + station, start, f.free_at, t)


@inline
def go(st, t, step):
    """Schedule transaction ``t``, with ``step`` complete, to advance before the clock does."""
    reg = st.reg[0]
    x = st.txn[t]
    x.step = step
    x.next = -1
    if reg.go_head < 0:
        reg.go_head = t
    else:
        st.txn[reg.go_tail].next = t
    reg.go_tail = t


@inline
def next_to_go(st):
    """Remove and return the first transaction that can advance now, or -1."""
    reg = st.reg[0]
    t = reg.go_head
    if t >= 0:
        reg.go_head = st.txn[t].next
        st.txn[t].next = -1
    return t


@inline
def calm(st):
    """Return True if no other work is left at the current time."""
    reg = st.reg[0]
    return (
        reg.fast != 0
        and reg.go_head < 0
        and reg.touched == 0
        and reg.retries == 0
        and reg.ready_head < 0
        and reg.starved == 0
        and reg.thirsty == 0
    )


@inline
def rest(st, leaf):
    """Clear the next event time of a resource."""
    if st.key[(st.key.shape[0] >> 1) + int(leaf)] != NEVER:
        set_leaf(st, leaf, NEVER)


@njit
def leave(st, station):
    """Remove and return the first transaction of a station, whose service has ended."""
    f = st.fifo[station]
    t = f.head
    f.head = st.txn[t].next
    if f.head < 0:
        f.tail = -1
        set_leaf(st, st.reg[0].station0 + station, NEVER)
    else:
        set_leaf(st, st.reg[0].station0 + station, st.txn[f.head].time)
    return t
