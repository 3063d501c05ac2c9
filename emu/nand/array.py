"""Flash arrays: start, end and suspension of array operations.

Owns the two lists of a channel in order of time (reads until data out; programs, erases and
computations until their end), suspension and the registers behind an array. Does not own the choice
of the next operation (die_scheduler.py) or the channel (channel.py).
Source: ONFI command sequences (cache read, cache program, copy-back, program and erase suspend).

Array operations have few different durations, so a new one is nearly always appended to its list.
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
    """Insert ``t`` into channel ``b``'s data-out list, by the time at which its data are ready."""
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
    """Insert a program, erase or computation into channel ``b``'s list of ends, by its end."""
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
    """Remove a suspended operation from its list of channel ``b``."""
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
    """Start the array of die ``g`` on ``t`` at ``now`` for ``time`` ps.

    ``now`` may be later than the present time: the end of the command. Programs and erases whose
    status is read enter the data-out list, like reads.
    """
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
    """Return the array time of transaction ``t`` on die ``g``, in ps."""
    x = st.txn[t]
    return st.op[x.op].array + x.array + st.die[g].extra


@inline
def array_end(st, g, t):
    """End the program, erase or computation ``t`` in the array of die ``g``."""
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
        # The end may be processed late (the channel was busy), and the next data later than it.
        following = d.cache
        start = max(st.txn[t].time, st.txn[following].time)
        d.cache = -1
        begin_array(st, g, following, start, max(array_ps(st, g, following), now - start))
    if c.lanes > 1:
        leave(st, g)
    seek(st, g)


@cold
def leave(st, g):
    """Release the die from plane ``g`` if the plane's array and cache register are empty."""
    d = st.die[g]
    f = st.die[d.first]
    if f.alone == g - d.first + 1 and d.arr < 0 and d.cache < 0:
        f.alone = 0


@cold
def rest_power(st, g):
    """Release power of die ``g``, whose array is idle.

    If the cache register holds the page of the next program, the die keeps the power for it.
    """
    d = st.die[g]
    if d.cache < 0 or st.txn[d.arr].op == READ:
        give_power(st, g)
    else:
        take_power(st, g, min(planes_of(st, d.cache), d.power))
        touch_all(st, d.dev)


@cold
def notice_reads(st, b):
    """Process the operations in channel ``b``'s data-out list whose array time is over.

    They release their power. With a cache register, read data move into it and free the array.
    """
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
    """Suspend the program or erase of the die to which ``g`` belongs at time ``at`` (ps), the start
    of the suspend command."""
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
    if d.suspends > 0:  # its array may not have resumed yet
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
