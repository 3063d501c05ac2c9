"""Arrays: which operation works in which die until when, and what an end brings about.

Owns the two lists of a channel in order of time (reads until their data leave; programs, erases and
computations until they are done), suspension and the registers behind an array. Does not own who
may start (wants.py) or the channel (nand.py). Source: ONFI command sequences (cache read, cache
program, copy-back, program and erase suspend).

Array operations take few different times, so a new one nearly always goes to the end of its list.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import RESERVOIR, cut_line, line
from ondie.emu.nand.die import give_power, home, planes_of, take_power, touch_all
from ondie.emu.nand.die_scheduler import seek
from ondie.emu.nand.timing import BPP, BPR, COPYBACK, ERASE, ODC, PROGRAM, READ, SUSPEND
from ondie.kernels.jit import cold, inline

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


@cold
def unlist(st, b, t):
    """Take an operation that is suspended off its list."""
    bus = st.bus[b]
    if st.cfg[0].status != 0:
        before = -1
        at = bus.out_head
        while at != t:
            before = at
            at = st.txn[at].next
        if before < 0:
            bus.out_head = st.txn[t].next
        else:
            st.txn[before].next = st.txn[t].next
        if bus.out_tail == t:
            bus.out_tail = before
    else:
        before = -1
        at = bus.done_head
        while at != t:
            before = at
            at = st.txn[at].next
        if before < 0:
            bus.done_head = st.txn[t].next
        else:
            st.txn[before].next = st.txn[t].next
        if bus.done_tail == t:
            bus.done_tail = before
    st.txn[t].next = -1


# --- the array


@inline
def begin_array(st, g, t, now, time):
    """The array starts on ``t`` for ``time`` ps at ``now`` (which may lie ahead, at the end of the
    command). Programs and erases whose status is read go the way of reads."""
    d = st.die[g]
    x = st.txn[t]
    c = st.cfg[0]
    d.arr = t
    x.time = now + time
    if c.watch != 0:
        at = g
        if c.chip != 0:
            at = home(st, g, t)
        st.use[x.phase, at] += time
        line(st, at, now, now + time, t)
    if (
        x.op == READ
        or x.op == COPYBACK
        or (c.status != 0 and x.op <= ERASE)
        or (c.round_trip != 0 and (x.op == BPR or x.op == ODC))
    ):
        await_out(st, d.bus, t)
    else:
        await_done(st, d.bus, t)


@inline
def array_ps(st, g, t):
    """Time that the array takes for a transaction."""
    x = st.txn[t]
    return st.op[x.op].array + x.array + st.die[g].extra


@inline
def array_end(st, g, t):
    """The array of die ``g`` is done with a program, an erase or a computation."""
    d = st.die[g]
    c = st.cfg[0]
    now = st.reg[0].now
    if d.power > 0:
        rest_power(st, g)
    d.arr = -1
    d.suspends = 0
    op = st.txn[t].op
    if op == BPP or (op == PROGRAM and st.txn[t].bare == RESERVOIR):
        d.stripe = 0
    elif op == ODC:
        d.gradients -= 1
    if op == PROGRAM and d.cache >= 0 and d.on_bus == 0 and d.loading < 0:
        # Where an end is noticed late (the channel was busy), its data may have come after it.
        following = d.cache
        start = max(st.txn[t].time, st.txn[following].time)
        d.cache = -1
        begin_array(st, g, following, start, max(array_ps(st, g, following), now - start))
    if c.lanes > 1:
        leave(st, g)
    seek(st, g)


@cold
def leave(st, g):
    """Planes that stood back look again when nothing is left in plane ``g``."""
    d = st.die[g]
    f = st.die[d.first]
    if f.alone == g - d.first + 1 and d.arr < 0 and d.cache < 0:
        f.alone = 0


@cold
def rest_power(st, g):
    """The array of die ``g`` rests: it keeps the power that the page in its cache register takes
    next, when that is a program."""
    d = st.die[g]
    if d.cache < 0 or st.txn[d.arr].op == READ:
        give_power(st, g)
    else:
        take_power(st, g, min(planes_of(st, d.cache), d.power))
        touch_all(st, d.dev)


@cold
def notice_reads(st, b):
    """Operations whose array time is over give their power back; reads make way for the next one
    when there is a cache register."""
    c = st.cfg[0]
    now = st.reg[0].now
    t = st.bus[b].out_head
    while t >= 0 and st.txn[t].time <= now:
        following = st.txn[t].next
        g = st.txn[t].die
        d = st.die[g]
        if d.arr == t and st.txn[t].op != COPYBACK:
            if d.power > 0:
                rest_power(st, g)
            if c.cache_read != 0 and d.cache < 0 and st.txn[t].op == READ:
                d.cache = t
                d.arr = -1
                seek(st, g)
        t = following


# --- suspension


@cold
def suspend(st, g, at):
    """The program or erase of the die to which ``g`` belongs stands back at time ``at``, when the
    command that says so begins."""
    c = st.cfg[0]
    if c.lanes > 1:
        f = st.die[st.die[g].first]
        g = st.die[g].first + f.alone - 1
        f.alone = 0
    d = st.die[g]
    t = d.arr
    x = st.txn[t]
    unlist(st, d.bus, t)
    left = x.time - at
    if d.suspends > 0:  # it may not have begun again
        left = min(left, d.left)
    d.left = left
    if c.watch != 0:
        leaf = g
        if c.chip != 0:
            leaf = home(st, g, t)
        st.use[x.phase, leaf] -= left
        cut_line(st, leaf, at)
    if d.power > 0:
        give_power(st, g)
    d.paused = t
    d.arr = -1
    d.suspends += 1
    d.served = 0
    dev = st.dev[d.dev]
    if x.op == PROGRAM:
        dev.suspended_programs += 1
        d.still = at + st.cycles[SUSPEND, 1] + c.suspend_program_wait
    else:
        dev.suspended_erases += 1
        d.still = at + st.cycles[SUSPEND, 1] + c.suspend_erase_wait
