"""Dies and channels: who may use the array, the registers and the bus, and who gets the bus next.

Owns die queues, registers, array occupancy and channel grants. Does not own addresses (mapping.py)
or what follows a transfer (flows.py passes the finished transaction on).
Source: ONFI (cache read and cache program, multi-plane rules, program and erase suspend); order of
queues as in MQSim (map, collection when urgent, user; reads before programs before erases). What a
channel waits for lies in two lists in order of time, reads in one, programs in the other: array
operations take few different times, so a new one nearly always goes to the end of its list.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.backend.timing import BPP, BPR, COPYBACK, ERASE, ODC, PROGRAM, READ, VPP
from ondie.emu.clock import NEVER, transfer_ps
from ondie.emu.events import E_REGISTER, fail, line, log_read, set_leaf
from ondie.emu.intrinsics import lowest_bit
from ondie.emu.state import record_type
from ondie.kernels.jit import inline, njit

# Queues of a die, in the order in which they are served while collection is urgent.
(
    Q_PE,  # BPR, ODC, BPP and the erase of the block that a BPP is about to open
    Q_MAP_READ, Q_GC_READ, Q_GC_WRITE, Q_GC_ERASE, Q_READ,
    Q_LOAD,  # VPP: gradients into the register
    Q_MAP_WRITE, Q_WRITE,
) = range(9)  # fmt: skip
QUEUES = 9
RESUME = QUEUES
"""Not a queue: what a die with a suspended program or erase wants when its reads are done."""
ALL = (1 << QUEUES) - 1
READS = 1 << Q_MAP_READ | 1 << Q_GC_READ | 1 << Q_READ
PROGRAMS = 1 << Q_GC_WRITE | 1 << Q_MAP_WRITE | 1 << Q_WRITE
COLLECTION = 1 << Q_GC_READ | 1 << Q_GC_WRITE | 1 << Q_GC_ERASE
HOST = 1 << Q_READ | 1 << Q_LOAD | 1 << Q_WRITE
ARRAY_WRITES = PROGRAMS | 1 << Q_GC_ERASE
BACKGROUND = (Q_PE, Q_MAP_READ, Q_READ, Q_LOAD, Q_MAP_WRITE, Q_WRITE, Q_GC_READ, Q_GC_WRITE,
              Q_GC_ERASE)  # fmt: skip
"""The order while collection is not urgent."""

DIE = record_type(
    arr="i4",  # transaction in the array, -1 = idle
    cache="i4",  # transaction whose data are in the cache register, or moving into it
    paused="i4",  # program or erase that is suspended
    waiting="i4",  # bit per queue that is not empty
    want="i4",  # what it asks of the channel: NONE, COMMAND or IN
    pick="i4",  # for which queue
    on_bus="i4",
    gradients="i4",  # gradient pages loaded and not yet consumed
    stripe="i4",  # 1: w, m, v lie in the data registers between BPR and BPP
    bus="i4",  # its channel
    at="i4",  # its position on the channel
    first="i4",  # first lane of its die: planes that read on their own are lanes
    busy="i4",  # lanes of the die whose array works (kept in the first lane)
    hold="i4",  # 1: a program waits for the other lanes to come to rest (first lane)
    suspends="i4",  # times the present program or erase has been suspended
    urgent="i4",  # 1: collection goes before the host's work
    collecting="i4",  # collections that the host's work waits for (kept in the first lane)
    dev="i4",
    extra="i8",  # ps added to every array operation of this die
    left="i8",  # ps that the suspended operation still takes
)
BUS = record_type(
    until="i8",  # end of the present phase
    start="i8",  # when it was granted
    command_until="i8",  # end of the last command that interrupted data
    ask_command="i8",  # bit per position: a die wants to send a command
    ask_in="i8",  # bit per position: a die wants data in
    size_in="i8",  # bytes moved into registers
    size_out="i8",  # bytes moved out of registers
    grants="i8",
    out_head="i4",  # reads in the array or waiting for the channel, in order of time
    out_tail="i4",
    done_head="i4",  # programs, erases and computations in the array, in order of time
    done_tail="i4",
    turn="i4",  # position that is asked first
    die="i4",  # who holds the channel
    phase="i4",
    txn="i4",
    quiet="i4",  # 1: the end of the present phase matters only to who waits for the channel
    pad="i4",
    touched="i4",  # 1: in the list of channels that may have something to grant
    dev="i4",
)
NONE, OUT, COMMAND, IN = range(4)
ACTIVE, AT_REST = range(2)
"""``step`` of a transaction in a die: its array works, or does no longer."""
MAX_WAYS = 62


def order_table() -> np.ndarray:
    """int8[2, masks]: the queue that goes first among the waiting ones; row 1 while collection is
    urgent."""
    table = np.full((2, ALL + 1), -1, np.int8)
    for row, order in enumerate((BACKGROUND, range(QUEUES))):
        for mask in range(1, ALL + 1):
            table[row, mask] = next(q for q in order if mask >> q & 1)
    return table


# --- queues


@inline
def touch(st, b):
    """Channel ``b`` may have something new to grant: looked at when the event is over."""
    bus = st.bus[b]
    if bus.touched == 0:
        bus.touched = 1
        reg = st.reg[0]
        st.touched[reg.touched] = b
        reg.touched += 1


@inline
def push(st, g, t, q):
    """Transaction ``t`` joins queue ``q`` of die ``g``; the die looks for work."""
    d = st.die[g]
    st.txn[t].next = -1
    st.txn[t].queue = q
    st.txn[t].die = g
    if d.waiting >> q & 1:
        st.txn[st.queue[g, 2 * q + 1]].next = t
        st.queue[g, 2 * q + 1] = t
    else:
        d.waiting |= 1 << q
        st.queue[g, 2 * q] = t
        st.queue[g, 2 * q + 1] = t
        seek(st, g)


@inline
def pop(st, g, q):
    """Take the first transaction off queue ``q``."""
    t = st.queue[g, 2 * q]
    following = st.txn[t].next
    if following < 0:
        st.die[g].waiting &= ~(1 << q)
    else:
        st.queue[g, 2 * q] = following
    st.txn[t].next = -1
    return t


@njit
def gather(st, g, t, q):
    """Take along from queue ``q`` what can work beside ``t`` in other planes: the same operation
    at the same page offset, as multi-plane addressing wants it (ONFI)."""
    x = st.txn[t]
    if x.page < 0 or not st.die[g].waiting >> q & 1:
        return
    full = (1 << st.cfg[0].planes) - 1
    before = -1
    last = t
    while st.txn[last].mate >= 0:
        last = st.txn[last].mate
    u = st.queue[g, 2 * q]
    while u >= 0 and x.planes != full:
        y = st.txn[u]
        following = y.next
        if y.op == ERASE:
            return  # programs behind it may want the block that it empties
        if y.op == x.op and y.page == x.page and y.planes & x.planes == 0:
            if before < 0:
                pop(st, g, q)
            else:
                st.txn[before].next = following
                if following < 0:
                    st.queue[g, 2 * q + 1] = before
            y.next = -1
            x.planes |= y.planes
            st.txn[last].mate = u
            last = u
        else:
            before = u
        u = following


# --- what a die may do


@njit
def may(st, g):
    """Mask of the queues from which die ``g`` could take something now."""
    d = st.die[g]
    c = st.cfg[0]
    taken = d.stripe != 0 or d.gradients != 0  # the registers belong to the optimizer
    load = d.cache < 0 and d.gradients < c.gradient_registers
    mask = 0
    if d.arr < 0:
        if d.cache >= 0:  # a page is on its way out
            mask = READS if not taken else 0
        elif d.paused >= 0:
            mask = READS
        else:
            mask = 1 << Q_PE if taken else ALL & ~(1 << Q_LOAD)
            if load:
                mask |= 1 << Q_LOAD
        if c.lanes > 1:
            mask &= lane_may(st, d, mask)
        return mask
    x = st.txn[d.arr]
    if load and (x.op >= VPP or d.stripe != 0) and x.op != COPYBACK:
        mask |= 1 << Q_LOAD
    if d.cache >= 0 or taken:
        return mask
    if x.op == PROGRAM:
        if c.cache_program != 0 and d.waiting & READS == 0:
            for q in (Q_GC_WRITE, Q_MAP_WRITE, Q_WRITE):
                if d.waiting >> q & 1 and st.txn[st.queue[g, 2 * q]].op == PROGRAM:
                    mask |= 1 << q
        if c.suspend_program != 0 and may_suspend(st, d, c.suspend_program_left):
            mask |= READS
    elif x.op == ERASE and c.suspend_erase != 0:
        if may_suspend(st, d, c.suspend_erase_left):
            mask |= READS
    return mask


@njit
def may_suspend(st, d, least):
    """May the present operation make way: long enough to go, and not too often already."""
    if d.paused >= 0 or d.suspends >= st.cfg[0].max_suspends:
        return False
    return st.txn[d.arr].time - st.reg[0].now > least


@njit
def lane_may(st, d, mask):
    """Planes that read on their own: a program or an erase waits until every plane of the die has
    come to rest, and once it waits no plane starts a read before it."""
    first = st.die[d.first]
    if first.busy > 0:
        if mask & d.waiting & ARRAY_WRITES:
            first.hold = 1
        mask &= ~ARRAY_WRITES
    if first.hold != 0:
        mask &= ~READS
    return mask


@njit
def seek(st, g):
    """Decide what die ``g`` wants of its channel now, and tell the channel."""
    d = st.die[g]
    want = NONE
    pick = -1
    if d.on_bus == 0:
        waiting = d.waiting
        if waiting != 0:
            c = st.cfg[0]
            if (
                d.arr >= 0 or d.cache >= 0 or d.paused >= 0 or d.stripe | d.gradients != 0
                or c.lanes > 1
            ):  # fmt: skip
                waiting &= may(st, g)
            if st.die[d.first].collecting > 0:
                waiting &= ~HOST
            if waiting != 0:
                pick = int(st.order[d.urgent, waiting])
                op = st.txn[st.queue[g, 2 * pick]].op
                want = IN if op == PROGRAM or op == VPP else COMMAND
        if want == NONE and d.paused >= 0 and d.arr < 0 and d.cache < 0:
            want = COMMAND
            pick = RESUME
    d.pick = pick
    if want != d.want:
        bus = st.bus[d.bus]
        bit = 1 << d.at
        if want == COMMAND:
            bus.ask_command |= bit
            bus.ask_in &= ~bit
        elif want == IN:
            bus.ask_in |= bit
            bus.ask_command &= ~bit
        else:
            bus.ask_in &= ~bit
            bus.ask_command &= ~bit
        d.want = want
        touch(st, d.bus)


# --- lists in order of time


@inline
def await_out(st, b, t):
    """A read joins the channel's list by the time at which its data are ready."""
    bus = st.bus[b]
    time = st.txn[t].time
    st.txn[t].next = -1
    if bus.out_head < 0:
        bus.out_head = t
        bus.out_tail = t
    elif st.txn[bus.out_tail].time <= time:
        st.txn[bus.out_tail].next = t
        bus.out_tail = t
    elif st.txn[bus.out_head].time > time:
        st.txn[t].next = bus.out_head
        bus.out_head = t
    else:
        u = bus.out_head
        while st.txn[st.txn[u].next].time <= time:
            u = st.txn[u].next
        st.txn[t].next = st.txn[u].next
        st.txn[u].next = t


@inline
def await_done(st, b, t):
    """A program, erase or computation joins the channel's list by its end."""
    bus = st.bus[b]
    time = st.txn[t].time
    st.txn[t].next = -1
    if bus.done_head < 0:
        bus.done_head = t
        bus.done_tail = t
    elif st.txn[bus.done_tail].time <= time:
        st.txn[bus.done_tail].next = t
        bus.done_tail = t
    elif st.txn[bus.done_head].time > time:
        st.txn[t].next = bus.done_head
        bus.done_head = t
    else:
        u = bus.done_head
        while st.txn[st.txn[u].next].time <= time:
            u = st.txn[u].next
        st.txn[t].next = st.txn[u].next
        st.txn[u].next = t


@njit
def unlist_done(st, b, t):
    """Take an operation that is suspended off the list."""
    bus = st.bus[b]
    if bus.done_head == t:
        bus.done_head = st.txn[t].next
        before = -1
    else:
        before = bus.done_head
        while st.txn[before].next != t:
            before = st.txn[before].next
        st.txn[before].next = st.txn[t].next
    if bus.done_tail == t:
        bus.done_tail = before
    st.txn[t].next = -1


# --- the array


@inline
def begin_array(st, g, t, now, time):
    """The array starts on ``t`` for ``time`` ps at ``now`` (which may lie ahead, at the end of the
    command)."""
    d = st.die[g]
    x = st.txn[t]
    d.arr = t
    x.time = now + time
    x.step = ACTIVE
    if st.cfg[0].watch != 0:
        st.use[x.phase, g] += time
        line(st, g, now, now + time, t)
    if st.cfg[0].lanes > 1:
        st.die[d.first].busy += 1
    if x.op == READ or x.op == COPYBACK:
        await_out(st, d.bus, t)
    else:
        await_done(st, d.bus, t)


@inline
def array_ps(st, g, t):
    """Time that the array takes for a transaction."""
    x = st.txn[t]
    return st.op[x.op].array + x.array + st.die[g].extra


@inline
def array_rests(st, g):
    """The array of die ``g`` is free: planes that waited for it look again."""
    d = st.die[g]
    c = st.cfg[0]
    if c.lanes > 1:
        first = st.die[d.first]
        first.busy -= 1
        if first.busy == 0 and first.hold != 0:
            first.hold = 0
            for lane in range(d.first, d.first + c.lanes):
                if lane != g:
                    seek(st, lane)
    release_power(st, d.arr)


@inline
def release_power(st, t):
    """The array works on ``t`` no longer: channels that waited for power look again."""
    x = st.txn[t]
    c = st.cfg[0]
    if c.power > 0 and x.step == ACTIVE:
        dev = st.die[x.die].dev
        st.dev[dev].power -= planes_of(st, t)
        for i in range(c.channels):
            touch(st, dev * c.channels + i)
    x.step = AT_REST


@inline
def planes_of(st, t):
    """Planes at work in a command."""
    n = 0
    while t >= 0:
        n += st.txn[t].n
        t = st.txn[t].mate
    return n


@inline
def array_end(st, g, t):
    """The array of die ``g`` is done with a program, an erase or a computation."""
    d = st.die[g]
    array_rests(st, g)
    d.arr = -1
    d.suspends = 0
    op = st.txn[t].op
    if op == BPP:
        d.stripe = 0
    elif op == ODC:
        d.gradients -= 1
    elif op == PROGRAM and d.cache >= 0 and d.on_bus == 0:
        following = d.cache
        d.cache = -1
        begin_array(st, g, following, st.txn[t].time, array_ps(st, g, following))
    seek(st, g)


@njit
def notice_reads(st, b):
    """Reads whose array time is over make way for the next one when there is a cache register."""
    c = st.cfg[0]
    now = st.reg[0].now
    t = st.bus[b].out_head
    while t >= 0 and st.txn[t].time <= now:
        following = st.txn[t].next
        g = st.txn[t].die
        d = st.die[g]
        if st.txn[t].step == ACTIVE:
            release_power(st, t)
        if c.cache_read != 0 and d.arr == t and d.cache < 0 and st.txn[t].op == READ:
            array_rests(st, g)
            d.cache = t
            d.arr = -1
            seek(st, g)
        t = following


# --- the channel


@njit
def finished(st, b):
    """The next command of channel ``b`` that has come to its end, as its first transaction (the
    others follow by ``mate``), or -1. The caller asks until there is none."""
    bus = st.bus[b]
    now = st.reg[0].now
    if bus.phase != NONE and bus.until <= now:
        if bus.quiet != 0:
            bus.phase = NONE
        else:
            t = end_phase(st, b)
            if t >= 0:
                return t
    t = bus.done_head
    if t >= 0 and st.txn[t].time <= now:
        bus.done_head = st.txn[t].next
        st.txn[t].next = -1
        array_end(st, st.txn[t].die, t)
        return t
    if st.cfg[0].notice != 0:
        notice_reads(st, b)
    return -1


@inline
def end_phase(st, b):
    """The channel has finished its phase. Returns the transaction when it is done with the die
    (data out, or a gradient loaded), else -1."""
    bus = st.bus[b]
    g = bus.die
    t = bus.txn
    phase = bus.phase
    d = st.die[g]
    d.on_bus = 0
    bus.phase = NONE
    now = st.reg[0].now
    touch(st, b)
    if st.cfg[0].watch != 0:
        line(st, st.reg[0].bus0 + b, bus.start, now, t)
    x = st.txn[t]
    if phase == OUT:
        if x.op == COPYBACK:
            array_rests(st, g)
            begin_copy(st, g, t)
            return -1
        following = x.mate
        x.mate = -1
        if following >= 0:  # its turn comes right behind
            if d.arr == t:
                d.arr = following
            else:
                d.cache = following
            return t
        if d.arr == t:  # no cache register: the array was held
            array_rests(st, g)
            d.arr = -1
        else:
            d.cache = -1
        seek(st, g)
        return t
    if phase == IN:
        if x.op == VPP:
            d.gradients += 1
            seek(st, g)
            return t
        if d.arr < 0:
            d.cache = -1
            begin_array(st, g, t, now, array_ps(st, g, t))
    if st.cfg[0].overlap != 0:
        seek(st, g)
    return -1


@njit
def begin_copy(st, g, t):
    """A page that was read for copy-back is programmed from the register; it crosses no channel."""
    st.txn[t].op = PROGRAM
    begin_array(st, g, t, st.reg[0].now, array_ps(st, g, t))


@inline
def best_out(st, b):
    """(transaction before it, read) whose data go out next: mapping's, then user's, then
    collection's; in order of readiness. (-1, -1) when no data are ready."""
    now = st.reg[0].now
    best = -1
    best_before = -1
    rank = 99
    before = -1
    t = st.bus[b].out_head
    while t >= 0:
        x = st.txn[t]
        if x.time > now:
            break
        d = st.die[x.die]
        if d.on_bus == 0 and (d.cache == t or (d.cache < 0 and d.arr == t)):
            r = 0 if x.queue == Q_MAP_READ else 2 if x.queue == Q_GC_READ else 1
            if x.op == COPYBACK:
                r = -1
            if r < rank:
                rank = r
                best = t
                best_before = before
        before = t
        t = x.next
    return best_before, best


@inline
def next_of(mask, turn):
    """Lowest set bit at or after ``turn``, cyclically; the mask is not empty."""
    ahead = mask >> turn
    if ahead != 0:
        return turn + lowest_bit(ahead)
    return lowest_bit(mask)


@njit
def grant(st, b):
    """Give the idle channel ``b`` to the next die that asks."""
    bus = st.bus[b]
    c = st.cfg[0]
    if bus.phase != NONE and bus.quiet != 0 and bus.until <= st.reg[0].now:
        bus.phase = NONE
    if bus.phase != NONE:
        if c.interleave != 0 and bus.ask_command != 0 and bus.phase != COMMAND:
            interrupt(st, b)
        return
    if c.commands_first != 0 and grant_asking(st, b, bus.ask_command):
        return
    if bus.out_head >= 0:
        before, t = best_out(st, b)
        if t >= 0:
            grant_out(st, b, before, t)
            return
    grant_asking(st, b, bus.ask_command | bus.ask_in)


@inline
def grant_asking(st, b, asks):
    """Dies in turn, among those of mask ``asks``. False when none could be granted."""
    bus = st.bus[b]
    c = st.cfg[0]
    while asks != 0:
        at = next_of(asks, bus.turn)
        g = st.way[b, at]
        if c.power == 0 or affordable(st, g):
            bus.turn = at + 1 if at + 1 < c.ways * c.lanes else 0
            if st.die[g].want == COMMAND:
                grant_command(st, b, g)
            else:
                grant_in(st, b, g)
            return True
        asks &= ~(1 << at)
    return False


@inline
def affordable(st, g):
    """Does the power budget allow what die ``g`` is about to start?"""
    d = st.die[g]
    t = d.paused if d.pick == RESUME else st.queue[g, 2 * d.pick]
    return st.dev[d.dev].power + st.txn[t].n <= st.cfg[0].power


@inline
def hold_bus(st, b, g, t, phase, time):
    """Die ``g`` holds channel ``b`` for ``time`` ps from now."""
    bus = st.bus[b]
    d = st.die[g]
    now = st.reg[0].now
    d.on_bus = 1
    if d.want != NONE:
        bit = 1 << d.at
        bus.ask_command &= ~bit
        bus.ask_in &= ~bit
        d.want = NONE
    bus.die = g
    bus.phase = phase
    bus.txn = t
    bus.start = now
    bus.until = now + time
    bus.quiet = 0
    bus.grants += 1
    if st.cfg[0].watch != 0:
        st.use[st.txn[t].phase, st.reg[0].bus0 + b] += time


@inline
def grant_out(st, b, before, t):
    """Data of the read ``t`` leave. The pages of one multi-plane read go one after the other."""
    bus = st.bus[b]
    c = st.cfg[0]
    x = st.txn[t]
    following = x.next
    if x.mate >= 0 and x.op == READ:  # its mate takes its place in the list
        y = st.txn[x.mate]
        y.time = x.time
        y.next = following
        if following < 0:
            bus.out_tail = x.mate
        following = x.mate
    elif following < 0:
        bus.out_tail = before
    if before < 0:
        bus.out_head = following
    else:
        st.txn[before].next = following
    x.next = -1
    if x.op == COPYBACK:
        time = command_ps(st, PROGRAM, planes_of(st, t))
    else:
        time = transfer_ps(x.bus, c.bus_scale, c.bus_shift)
        bus.size_out += x.bus
    hold_bus(st, b, x.die, t, OUT, time)


@inline
def grant_command(st, b, g):
    """Command and address cycles of die ``g``'s next operation; its array starts behind them."""
    t, time, wait, array = start_command(st, g)
    hold_bus(st, b, g, t, COMMAND, time)
    if st.cfg[0].overlap == 0:
        release_quietly(st, b, g)
    begin_array(st, g, t, st.reg[0].now + time + wait, array)


@inline
def release_quietly(st, b, g):
    """Nothing happens in the die when the present phase ends: its array works from then on, and
    wants nothing of the channel meanwhile. So the end is an event only if somebody waits for the
    channel."""
    bus = st.bus[b]
    bus.quiet = 1
    st.die[g].on_bus = 0
    if st.cfg[0].watch != 0:
        line(st, st.reg[0].bus0 + b, bus.start, bus.until, bus.txn)


@inline
def grant_in(st, b, g):
    """Command, address and data of die ``g``'s next program or gradient."""
    d = st.die[g]
    c = st.cfg[0]
    q = d.pick
    t = pop(st, g, q)
    x = st.txn[t]
    if c.group != 0 and x.op == PROGRAM:
        gather_all(st, g, t, q)
    n = 0
    size = 0
    u = t
    while u >= 0:
        n += st.txn[u].n
        size += st.txn[u].bus
        u = st.txn[u].mate
    time = command_ps(st, x.op, n) + transfer_ps(size, c.bus_scale, c.bus_shift)
    st.bus[b].size_in += size
    if x.op == PROGRAM:
        if c.power > 0:
            st.dev[d.dev].power += n
        if d.arr < 0 and c.overlap == 0:
            hold_bus(st, b, g, t, IN, time)
            release_quietly(st, b, g)
            begin_array(st, g, t, st.bus[b].until, array_ps(st, g, t))
            return
        d.cache = t
    hold_bus(st, b, g, t, IN, time)


@njit
def gather_all(st, g, t, q):
    """Mates from the same queue, then from the other ones of the same kind."""
    gather(st, g, t, q)
    if q == Q_READ or q == Q_GC_READ or q == Q_MAP_READ:
        if q != Q_READ:
            gather(st, g, t, Q_READ)
        if q != Q_GC_READ:
            gather(st, g, t, Q_GC_READ)
    elif q == Q_WRITE:
        gather(st, g, t, Q_GC_WRITE)
    elif q == Q_GC_WRITE:
        gather(st, g, t, Q_WRITE)


@inline
def start_command(st, g):
    """Take the operation whose command goes out now off its queue. Returns (transaction, ps on the
    channel, ps before the array starts, ps in the array)."""
    d = st.die[g]
    c = st.cfg[0]
    q = d.pick
    if q == RESUME:
        t = d.paused
        d.paused = -1
        if c.power > 0:
            st.dev[d.dev].power += planes_of(st, t)
        return t, c.resume_command, c.resume_wait, d.left
    t = pop(st, g, q)
    op = st.txn[t].op
    time = 0
    wait = 0
    if d.arr >= 0:  # a read makes a program or an erase stand back
        time, wait = suspend(st, g)
    if q == Q_PE:
        if op == BPR:
            if d.stripe != 0:
                fail(st, E_REGISTER, g, op)
            d.stripe = 1
        elif op == ODC:
            if d.stripe == 0 or d.gradients == 0:
                fail(st, E_REGISTER, g, op)
        elif op == BPP and d.stripe == 0:
            fail(st, E_REGISTER, g, op)
    elif c.group != 0:
        gather_all(st, g, t, q)
    n = planes_of(st, t)
    if c.power > 0:
        st.dev[d.dev].power += n
    if op == READ:
        log_read(st, t)
    return t, time + command_ps(st, op, n), wait, array_ps(st, g, t)


@njit
def suspend(st, g):
    """The program or erase of die ``g`` stands back. Returns (ps of the command, ps it takes)."""
    d = st.die[g]
    c = st.cfg[0]
    t = d.arr
    x = st.txn[t]
    unlist_done(st, d.bus, t)
    d.left = x.time - st.reg[0].now
    st.use[x.phase, g] -= d.left
    array_rests(st, g)
    d.paused = t
    d.arr = -1
    d.suspends += 1
    if x.op == PROGRAM:
        st.dev[d.dev].suspended_programs += 1
        return c.suspend_command, c.suspend_program_wait
    st.dev[d.dev].suspended_erases += 1
    return c.suspend_command, c.suspend_erase_wait


@inline
def command_ps(st, op, n):
    """Command and address cycles on the channel for ``n`` planes."""
    return st.cycles[op, n]


@njit
def interrupt(st, b):
    """Commands go out now, between the data that hold channel ``b``."""
    bus = st.bus[b]
    now = st.reg[0].now
    if bus.until <= now:
        return  # the data are through at this instant
    while bus.ask_command != 0:
        at = next_of(bus.ask_command, bus.turn)
        g = st.way[b, at]
        if st.cfg[0].power != 0 and not affordable(st, g):
            return
        bit = 1 << at
        bus.ask_command &= ~bit
        st.die[g].want = NONE
        t, time, wait, array = start_command(st, g)
        start = max(now, bus.command_until)
        bus.command_until = start + time
        bus.until += time
        st.use[st.txn[t].phase, st.reg[0].bus0 + b] += time
        line(st, st.reg[0].bus0 + b, start, start + time, t)
        begin_array(st, g, t, start + time + wait, array)
        seek(st, g)


@njit
def wake(st, b):
    """When channel ``b`` has something to do next. Where nothing outside the channel waits for
    programs to end, they are looked at when the channel is free (``watch`` is 0)."""
    bus = st.bus[b]
    c = st.cfg[0]
    if bus.phase != NONE and bus.quiet != 0:
        if bus.ask_command | bus.ask_in != 0:
            time = bus.until
        else:
            time = max(bus.until, st.txn[bus.out_head].time) if bus.out_head >= 0 else NEVER
            if c.watch == 0 and bus.done_head >= 0:
                return min(time, max(bus.until, st.txn[bus.done_head].time))
        if c.watch == 0:
            return time
    elif bus.phase != NONE:
        time = bus.until
        if c.watch == 0:
            return time
        if c.eager != 0:
            t = bus.out_head
            now = st.reg[0].now
            while t >= 0 and st.txn[t].time <= now:
                t = st.txn[t].next
            if t >= 0:
                time = min(time, st.txn[t].time)
    else:
        time = st.txn[bus.out_head].time if bus.out_head >= 0 else NEVER
    if bus.done_head >= 0:
        time = min(time, st.txn[bus.done_head].time)
    return time


@njit
def settle(st):
    """The event is over: channels that have something new grant, and say when they go on."""
    reg = st.reg[0]
    i = 0
    while i < reg.touched:
        b = st.touched[i]
        st.bus[b].touched = 0
        grant(st, b)
        set_leaf(st, b, wake(st, b))
        i += 1
    reg.touched = 0
