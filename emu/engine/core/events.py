"""Event queue (tournament tree), transaction pool and first-in first-out stations.

Owns the tournament tree over the resources' next event times, the transaction pool, the stations
and the timeline. Does not own the handling of events (engine/run/loop.py).
Source: Knuth, TAOCP vol. 3, 5.4.1 (tournament trees). A tree with one leaf per exclusive resource
was measured to be twice as fast as a binary heap.

If two events have equal times, the event of the lower leaf is handled first, so runs are
reproducible byte for byte.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER, transfer_ps
from ondie.emu.engine.core.error_codes import E_NONE, E_POOL
from ondie.emu.engine.core.intrinsics import choose
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import record_type, rounded_up
from ondie.kernels.jit import cold, inline, njit

TXN = record_type(
    # Two cache lines, which every operation uses. (-1), (0): value in a new transaction. Fields
    # with such a value are adjacent, so that the compiler sets several at once.
    next="i4",  # next transaction in its queue or list, or in the free list (-1)
    mate="i4",  # next transaction of the same multi-plane command (-1)
    page="i4",  # page offset in the block, shared by the planes of a multi-plane operation (-1)
    row="i4",  # ring index of its plan row or request, -1 = internal work of the drive (-1)
    src_ppn="i8",  # page or super-page from which its data come (-1)
    array="i8",  # array or PE time in ps in addition to the timing table's (0)
    size="i8",  # bytes that cross the link and DRAM (0)
    sectors="i8",  # bit mask of the requested sectors of its page (0)
    order="i8",  # number of its allocation, if writes are mapped at that point (0)
    bus="i4",  # bytes that cross the channel (0)
    n="i4",  # pages, at consecutive planes of one super-page (0)
    planes="i4",  # bit mask of the planes of its pages (0)
    stream="i4",  # of host writes (0)
    pages_done="i4",  # pages of the command that have been handled (0)
    gathered="i4",  # 1 + the transaction that carries the cached sectors of a read (0)
    role="i1",  # Role: purpose of the operation (NONE)
    kind="i1",  # owner: OWN, ROW, REQUEST or CACHED (OWN)
    turn="i1",  # planes by which the super-page that it reads is turned (0)
    turned="i1",  # planes by which it turns the super-page that it programs (0)
    held_back="i1",  # 1: its data stay in the drive, for the controller (0)
    op="i1",  # timing table index
    queue="i1",  # queue of its die (nand/channel.py)
    step="i1",  # step that is complete when it leaves its station (stages.py)
    phase="i4",  # phase of its row; the last phase is garbage collection (last)
    dev="i4",
    die="i4",  # global index
    victim="i4",  # block from which collection moves it
    time="i8",  # when it leaves the station or the array it is in
    ppn="i8",  # first physical page (physical super-page for operations on the die)
    lpn="i8",  # first logical page (super-page for operations on the die)
)
COMMAND = rounded_up(
    record_type(
        offset="i8",  # byte offset of a command in its first page
        bytes_left="i8",  # bytes of its row or request that follow in pieces
        fetched="i8",  # queue entries that the drive had fetched when it posted the completion
        epoch="i8",  # epoch of the data cache that a FLUSH waits for
        contents_left="i4",  # contents of the data cache that a FLUSH still waits for
        failed="i4",  # 1: a program of the write has failed (only where programs may fail)
        made="i8",  # when its request was split (nand/scheduler_statistics.py), ps
        slot="i4",  # its queue there; its command may have transactions of two queues
        queued="i8",  # when it was queued at its die
        written="i4",  # queue of a write whose rest is read first
        allocated="i8",  # when the page of such a write was allocated
        execution="i8",  # time of its command in the array
        transfer="i8",  # its time on the channel
        sequence="i8",  # registration of the end of its command in the array (nand/event_order.py)
    )
)
"""Record type with the fields of a transaction that only commands and long transfers use.

These fields are not reset when a transaction is taken from the pool, so each field must be set
before it is read.
"""
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
    halted="i8",  # 1: no row starts any more
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
    until="i8",  # the clock stays at or before this time, or that of the next upkeep
    upkeep="i8",  # time of the next look of refresh or scrubbing, if on (ftl/refresh.py)
    hops="i8",  # events handled in this way
    closing="i8",  # 1: no further rows or requests will be loaded
    pause="i8",  # 1: a queue pair needs more requests, or the wanted number has completed
    completed="i8",  # requests completed so far, in the order of st.done
    wanted="i8",  # number of completed requests at which the run pauses; 0: none
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
    submissions="i8",  # looks of the scheduler for submitted transactions (nand/polling.py)
    submitted="i8",  # 1: transactions have been submitted in this event
    kept_first="i8",  # transactions that are submitted at the end of the event (event_order.py)
    kept_last="i8",
    turnless="i8",  # 1: the last look left user transactions because their class had no turn
    sequence="i8",  # events registered so far, if simultaneous events are ordered
    erases="i8",  # collections started so far (nand/erase_queue.py)
    begun="i8",  # 1 + the block whose collection is being started; 0 = none
    cause="i8",  # 1 + page of the operation that starts collections; 0: a block was filled
    companion="i8",  # class of the user transactions that may join a command of another queue
    gather0="i8",  # first leaf of the devices' gather timers, after the queue pairs
)
LINE = record_type(leaf="i8", start="i8", end="i8", row="i8", op="i4", phase="i4")

OWN, ROW, REQUEST, CACHED = range(4)


@inline
def set_leaf(st, leaf, time):
    """Set the time of the next event of the resource with leaf number ``leaf`` to ``time`` (ps),
    and update the event tree up to the root.

    Each node stores the earliest time below it, so the memory loads along the path to the root
    do not depend on each other.
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


@inline
def register(st, leaf):
    """Assign the next sequence number to the event of resource ``leaf``, if simultaneous events are
    handled in order of registration (``cfg.ordered``).
    """
    if st.cfg[0].ordered != 0:
        st.reg[0].sequence += 1
        st.sequence[leaf] = st.reg[0].sequence


def build_tree(leaves: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (times in ps, int64[2n]; winning leaves, int32[2n]) of a tournament tree without
    events.

    n is ``leaves`` rounded up to a power of two, and at least 2.
    """
    half = 2
    while half < leaves:
        half *= 2
    tree = np.zeros(2 * half, np.int32)
    tree[half:] = np.arange(half)
    for node in range(half - 1, 0, -1):
        tree[node] = tree[2 * node]
    return np.full(2 * half, NEVER, np.int64), tree


@cold
def fail(st, code, first, second):
    """Record error ``code`` with two numbers for the error message.

    The error stops the run. Only the first error is kept.
    """
    reg = st.reg[0]
    if reg.error == E_NONE:
        reg.error = code
        reg.error_a = first
        reg.error_b = second


@inline
def take_txn(st):
    """Take a transaction from the pool, reset it and return its index.

    If the pool is empty, return -1 and record error E_POOL.
    """
    reg = st.reg[0]
    tid = reg.free_txn
    if tid < 0:
        fail(st, E_POOL, 0, 0)
        return tid
    txn = st.txn[tid]
    reg.free_txn = txn.next
    reg.txns_free -= 1
    txn.next = -1
    txn.mate = -1
    txn.page = -1
    txn.row = -1
    txn.src_ppn = -1
    txn.array = 0
    txn.size = 0
    txn.sectors = 0
    txn.order = 0
    txn.bus = 0
    txn.n = 0
    txn.planes = 0
    txn.stream = 0
    txn.pages_done = 0
    txn.gathered = 0
    txn.role = Role.NONE
    txn.kind = OWN
    txn.turn = 0
    txn.turned = 0
    txn.held_back = 0
    txn.phase = st.use.shape[0] - 1
    return tid


@inline
def give_txn(st, tid):
    """Return transaction ``tid`` to the pool of free transactions."""
    reg = st.reg[0]
    st.txn[tid].next = reg.free_txn
    reg.free_txn = tid
    reg.txns_free += 1


@inline
def line(st, leaf, start, end, tid):
    """Record that transaction ``tid`` occupied resource ``leaf`` from ``start`` to ``end`` (ps), if
    the timeline is recorded.
    """
    if st.reg[0].line_on != 0:
        note_line(st, leaf, start, end, tid)


@cold
def note_line(st, leaf, start, end, tid):
    """Append an interval to the timeline, or count it as dropped if the timeline is full."""
    reg = st.reg[0]
    if reg.lines >= st.line.shape[0]:
        reg.line_drop += 1
        return
    line = st.line[reg.lines]
    txn = st.txn[tid]
    line.leaf = leaf
    line.start = start
    line.end = end
    line.op = txn.op
    line.phase = txn.phase
    line.row = st.row[txn.row].id if txn.row >= 0 else -1
    reg.lines += 1


@cold
def cut_line(st, leaf, end):
    """Shorten the last interval of resource ``leaf`` in the timeline, so that the interval ends at
    ``end`` ps.
    """
    for i in range(st.reg[0].lines - 1, -1, -1):
        line = st.line[i]
        if line.leaf == leaf:
            line.end = max(line.start, end)
            return


@inline
def arrive(st, station, tid, n_bytes, service, step):
    """Queue transaction ``tid`` at a station now, for a service of ``service`` ps.

    If ``service`` is negative, the service time is that of ``n_bytes`` at the station's rate.
    Return True if the transaction waits for an event at the end of the service. Return False if the
    service takes no time. Also return False, with the clock advanced to the end of the service, if
    no other event happens before that end and ``reg.hop`` is set. If the result is False, ``step``
    of the transaction is complete, and the caller advances the transaction.
    """
    reg = st.reg[0]
    fifo = st.fifo[station]
    txn = st.txn[tid]
    if service < 0:
        service = transfer_ps(n_bytes, fifo.scale, fifo.shift)
    if service == 0 and fifo.fixed == 0 and fifo.head < 0 and fifo.free_at <= reg.now:
        fifo.size += n_bytes
        fifo.jobs += 1
        txn.step = step
        return False
    start = max(reg.now, fifo.free_at)
    fifo.free_at = start + service
    st.use[txn.phase, reg.fifo0 + station] += service
    fifo.size += n_bytes
    fifo.jobs += 1
    txn.time = fifo.free_at + fifo.fixed
    txn.step = step
    txn.next = -1
    line(st, reg.fifo0 + station, start, fifo.free_at, tid)
    if (
        reg.hop != 0
        and fifo.head < 0
        and txn.time < st.key[1]
        and txn.time <= reg.until
        and calm(st)
    ):
        reg.now = txn.time  # no earlier event: skip the tournament
        reg.hops += 1
        return False
    if fifo.head < 0:
        fifo.head = tid
        fifo.tail = tid
        register(st, reg.station0 + station)
        set_leaf(st, reg.station0 + station, txn.time)
    else:
        st.txn[fifo.tail].next = tid
        fifo.tail = tid
    return True


@njit
def enter(st, station, tid, n_bytes, service, step):
    """Queue a transaction as :func:`arrive` does. This function is not inlined; it is for callers
    outside the hot path."""
    return arrive(st, station, tid, n_bytes, service, step)


@inline
def occupy(st, station, tid, n_bytes, service):
    """Occupy a station with transaction ``tid`` for ``service`` ps, without an event at the end of
    the service. If ``service`` is negative, the service time is that of ``n_bytes`` at the
    station's rate.
    """
    fifo = st.fifo[station]
    if service < 0:
        service = transfer_ps(n_bytes, fifo.scale, fifo.shift)
    start = max(st.reg[0].now, fifo.free_at)
    fifo.free_at = start + service
    st.use[st.txn[tid].phase, st.reg[0].fifo0 + station] += service
    fifo.size += n_bytes
    fifo.jobs += 1
    line(st, st.reg[0].fifo0 + station, start, fifo.free_at, tid)


@inline
def go(st, tid, step):
    """Mark ``step`` of transaction ``tid`` as complete, and append ``tid`` to the list of
    transactions that advance before the clock does.
    """
    reg = st.reg[0]
    txn = st.txn[tid]
    txn.step = step
    txn.next = -1
    if reg.go_head < 0:
        reg.go_head = tid
    else:
        st.txn[reg.go_tail].next = tid
    reg.go_tail = tid


@inline
def next_to_go(st):
    """Remove and return the first transaction of the list of transactions that can advance now (see
    :func:`go`), or -1 if the list is empty."""
    reg = st.reg[0]
    tid = reg.go_head
    if tid >= 0:
        reg.go_head = st.txn[tid].next
        st.txn[tid].next = -1
    return tid


@cold
def take_last_to_go(st):
    """Remove and return the last transaction of the list of transactions that can advance now (see
    :func:`go`). The list must not be empty."""
    reg = st.reg[0]
    last = reg.go_tail
    before = -1
    tid = reg.go_head
    while tid != last:
        before = tid
        tid = st.txn[tid].next
    if before < 0:
        reg.go_head = -1
    else:
        st.txn[before].next = -1
        reg.go_tail = before
    return last


@inline
def calm(st):
    """Return True if no other work is left at the current time, so that the clock may advance.

    Always returns False unless ``reg.fast`` is set.
    """
    reg = st.reg[0]
    return (
        reg.fast != 0
        and reg.go_head < 0
        and reg.touched == 0
        and reg.retries == 0
        and reg.ready_head < 0
        and reg.starved == 0
        and reg.pause == 0
    )


@inline
def rest(st, leaf):
    """Clear the next event time of resource ``leaf``, so that the resource has no pending event."""
    if st.key[(st.key.shape[0] >> 1) + int(leaf)] != NEVER:
        set_leaf(st, leaf, NEVER)


@njit
def leave(st, station):
    """Remove and return the first transaction of station ``station``, whose service has ended."""
    fifo = st.fifo[station]
    tid = fifo.head
    fifo.head = st.txn[tid].next
    if fifo.head < 0:
        fifo.tail = -1
        set_leaf(st, st.reg[0].station0 + station, NEVER)
    else:
        set_leaf(st, st.reg[0].station0 + station, st.txn[fifo.head].time)
    return tid
