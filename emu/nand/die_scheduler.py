"""What a die wants of its channel next.

Owns the rules by which a die chooses among its queues, what makes way for a read, and which planes
may work on their own. Does not own the queues (dies.py), the array (arrays.py) or the channel
(nand.py). Source: ONFI (cache read and cache program, program and erase suspend); independent plane
reads as JESD230F and data sheets of 3D NAND have them: reads only, each in a plane of its own.

Suspension. A program or an erase makes way for the host's and the mapping's reads, for collection's
only while it is urgent; not if it has ``suspend_*_left`` or less to go when the channel is granted,
not more than ``max_suspends`` times, and not while the cache register holds the next page. What is
suspended counts as stopped from the start of the suspend command, and pays t_resume before it goes
on. Meanwhile the die takes such reads only, those that come later too, at most ``suspend_reads`` of
them in a row; nothing else passes what is suspended. One operation at a time can be suspended.

Planes that read alone. Everything but a read of one plane needs the whole die: it waits until every
plane has come to rest, and once it waits no plane starts another read. A plane has one read at a
time, and a second in its cache register.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import MADE, REGISTERS
from ondie.emu.nand.die import (
    ALL,
    COMMAND,
    HOST,
    IN,
    MORE,
    NONE,
    Q_GC_READ,
    Q_GC_WRITE,
    Q_LOAD,
    Q_MAP_WRITE,
    Q_PE,
    Q_WRITE,
    READS,
    RESUME,
    URGENT_READS,
    into_chip,
    touch,
    touch_all,
)
from ondie.emu.nand.timing import COPYBACK, ERASE, PROGRAM, READ, VPP
from ondie.kernels.jit import apart, cold, inline, njit


@inline
def push(st, g, t, q):
    """Transaction ``t`` joins queue ``q`` of die ``g``; the die looks for work."""
    if st.cfg[0].chip != 0:
        g = into_chip(st, t)
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


@cold
def push_in_order(st, g, t, q):
    """Transaction ``t`` joins queue ``q`` of die ``g`` before those that were given their places
    later: ``left`` says when."""
    if st.cfg[0].chip != 0:
        g = into_chip(st, t)
    d = st.die[g]
    x = st.txn[t]
    before = -1
    u = st.queue[g, 2 * q] if d.waiting >> q & 1 else -1
    while u >= 0 and st.txn[u].left < x.left:
        before = u
        u = st.txn[u].next
    x.next = u
    x.queue = q
    x.die = g
    d.waiting |= 1 << q
    if before < 0:
        st.queue[g, 2 * q] = t
    else:
        st.txn[before].next = t
    if u < 0:
        st.queue[g, 2 * q + 1] = t
    if before < 0:
        seek(st, g)


@apart
def seek(st, g):
    """Decide what die ``g`` wants of its channel now, and tell the channel."""
    d = st.die[g]
    if st.cfg[0].lanes > 1:
        seek_lanes(st, d.first)
        return
    want = NONE
    pick = -1
    if d.on_bus == 0:
        waiting = d.waiting
        busy = (d.arr & d.cache & d.paused) >= 0 or d.stripe | d.gradients != 0  # none is -1
        if busy and waiting != 0:
            waiting &= may(st, g)
        if d.collecting > 0:
            waiting &= ~HOST
        if waiting != 0:
            pick = int(st.order[d.urgent, waiting])
            op = st.txn[st.queue[g, 2 * pick]].op
            want = COMMAND + int(op == PROGRAM or op == VPP)
        if busy:
            if want == NONE and d.paused >= 0 and d.arr < 0 and d.cache < 0:
                want = COMMAND
                pick = RESUME
            if d.cache >= 0 and d.loading >= 0:
                want = IN
                pick = MORE
    ask(st, g, want, pick)


@inline
def ask(st, g, want, pick):
    """Tell the channel what die ``g`` wants."""
    d = st.die[g]
    d.pick = pick
    if want != d.want:
        bus = st.bus[d.bus]
        rest = ~(1 << d.at)
        bus.ask_command = bus.ask_command & rest | int(want == COMMAND) << d.at
        bus.ask_in = bus.ask_in & rest | int(want == IN) << d.at
        d.want = want
        touch(st, d.bus)
    if st.cfg[0].power != 0 and want == NONE and st.dev[d.dev].first == g + 1:
        st.dev[d.dev].first = 0  # it does not want the power that it waited for
        touch_all(st, d.dev)


@njit
def may(st, g):
    """Mask of the queues from which die ``g``, which is at work, could take something now."""
    d = st.die[g]
    c = st.cfg[0]
    taken = d.stripe != 0 or d.gradients != 0  # the registers belong to the optimizer
    load = d.cache < 0 and d.gradients < c.gradient_registers
    if d.arr < 0:
        if d.paused >= 0:
            return passing(st, d)
        if d.cache >= 0:  # a page is on its way out
            return READS if not taken else 0
        mask = 1 << Q_PE if taken else ALL & ~(1 << Q_LOAD)
        if load:
            mask |= 1 << Q_LOAD
        return mask
    x = st.txn[d.arr]
    mask = 0
    if load and (x.op >= VPP or d.stripe != 0) and x.op != COPYBACK:
        mask |= 1 << Q_LOAD
    if d.cache >= 0 or taken:
        return mask
    if x.op == PROGRAM and c.cache_program != 0 and d.waiting & READS == 0:
        for q in (Q_GC_WRITE, Q_MAP_WRITE, Q_WRITE):
            if d.waiting >> q & 1 and st.txn[st.queue[g, 2 * q]].op == PROGRAM:
                if st.txn[st.queue[g, 2 * q]].bare != MADE or within(st, d.arr, st.queue[g, 2 * q]):
                    mask |= 1 << q
        if d.waiting >> Q_PE & 1 and d.waiting >> Q_WRITE & 1:
            if st.txn[st.queue[g, 2 * Q_WRITE]].bare >= REGISTERS:
                mask &= ~(1 << Q_WRITE)  # it may be the erase of the block that this goes to
    if may_suspend(st, d, st.reg[0].now):
        mask |= passing(st, d)
    return mask


@cold
def within(st, working, t):
    """Will a parity or a record ``t`` lie in the block that its die is in already, once what is
    ``working`` is programmed? Else an erase comes between the two."""
    c = st.cfg[0]
    x = st.txn[t]
    at = st.pool[x.dev * c.dies + x.lpn % c.dies].r_next + int(st.txn[working].bare == MADE)
    return at % c.pages != 0


@inline
def passing(st, d):
    """Queues of the reads for which a program or an erase makes way, or has made way."""
    c = st.cfg[0]
    if d.paused >= 0 and c.suspend_reads > 0 and d.served >= c.suspend_reads:
        return 0
    return URGENT_READS | 1 << Q_GC_READ if d.urgent != 0 else URGENT_READS


@inline
def may_suspend(st, d, at):
    """May the operation in the array make way at time ``at``: a program or an erase that has long
    enough to go, and has not done so too often."""
    c = st.cfg[0]
    x = st.txn[d.arr]
    if x.op == PROGRAM:
        least = c.suspend_program_left if c.suspend_program != 0 else -1
    elif x.op == ERASE:
        least = c.suspend_erase_left if c.suspend_erase != 0 else -1
    else:
        return False
    if least < 0 or d.paused >= 0 or d.cache >= 0 or d.suspends >= c.max_suspends:
        return False
    return x.time - at > least


# --- planes that read alone


@inline
def needs_die(st, t):
    """Does transaction ``t`` need all planes of its die, or at least the die's attention?"""
    x = st.txn[t]
    return x.op != READ or (x.n > 1 and st.cfg[0].slots == 1)  # slots to be read are of one plane


@cold
def seek_lanes(st, first):
    """The same for a die whose planes read alone: every plane is looked at anew."""
    c = st.cfg[0]
    f = st.die[first]
    barred = HOST if f.collecting > 0 else 0
    rest = f.alone == 0
    wide = -1  # the plane that waits for the whole die
    for g in range(first, first + c.lanes):
        d = st.die[g]
        if d.arr >= 0 or d.cache >= 0 or d.on_bus != 0:
            rest = False
            continue
        waiting = d.waiting & ~barred
        if waiting != 0 and wide < 0:
            q = int(st.order[f.urgent, waiting])
            if needs_die(st, st.queue[g, 2 * q]):
                wide = g
    makes_way = False
    if f.alone != 0:
        w = st.die[first + f.alone - 1]
        makes_way = w.arr >= 0 and w.on_bus == 0 and may_suspend(st, w, st.reg[0].now)
    resting = rest
    for g in range(first, first + c.lanes):
        d = st.die[g]
        want = NONE
        pick = -1
        if d.on_bus == 0:
            waiting = d.waiting & ~barred
            if d.loading >= 0:
                want = IN
                pick = MORE
            elif f.paused >= 0 or makes_way:
                if d.arr < 0 or makes_way:
                    pick, want = narrow(st, g, waiting & passing(st, f))
            elif f.alone != 0:
                if g == first + f.alone - 1 and d.arr >= 0:
                    pick, want = behind(st, g, waiting)
            elif wide >= 0:
                if g == wide and rest:
                    pick = int(st.order[f.urgent, waiting])
                    op = st.txn[st.queue[g, 2 * pick]].op
                    want = IN if op == PROGRAM else COMMAND
            elif d.arr < 0:
                pick, want = narrow(st, g, waiting & READS)
            if want != NONE:
                resting = False
        ask(st, g, want, pick)
    if resting and f.paused >= 0:
        ask(st, first, COMMAND, RESUME)


@inline
def narrow(st, g, waiting):
    """(queue, want) of a read that plane ``g`` could do alone."""
    if waiting != 0:
        q = int(st.order[st.die[st.die[g].first].urgent, waiting])
        if not needs_die(st, st.queue[g, 2 * q]):
            return q, COMMAND
    return -1, NONE


@inline
def behind(st, g, waiting):
    """(queue, want) of what may enter the cache register behind the operation that has the die."""
    c = st.cfg[0]
    d = st.die[g]
    if st.txn[d.arr].op == PROGRAM and c.cache_program != 0 and d.cache < 0:
        if waiting & READS == 0:
            for q in (Q_GC_WRITE, Q_MAP_WRITE, Q_WRITE):
                if waiting >> q & 1 and st.txn[st.queue[g, 2 * q]].op == PROGRAM:
                    return q, IN
    return -1, NONE


# --- collection's place


@njit
def hurry(st, g, urgent):
    """Collection on the die of lane ``g`` goes before the host's work from now on, or no longer."""
    d = st.die[st.die[g].first]
    if d.urgent != urgent:
        d.urgent = urgent
        seek(st, st.die[g].first)


@cold
def bar(st, g, change):
    """One collection more, or one fewer, lets the host's work on the die of lane ``g`` wait."""
    d = st.die[st.die[g].first]
    d.collecting += change
    seek(st, st.die[g].first)
