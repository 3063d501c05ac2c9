"""Die scheduler: selects the next command of a die and requests the channel.

Owns the choice among a die's queues, the suspension rules and the rules for independent plane
reads. Does not own the queues (die.py), the array (array.py) or the channel (channel.py).
Source: ONFI (cache read and cache program, program and erase suspend); independent plane reads as
in JESD230F and data sheets of 3D NAND: reads only, each in a separate plane.

Suspension. A read of the host or of the mapping table suspends a program or an erase; a
garbage-collection read does so only while garbage collection is urgent. An operation is not
suspended if it has ``suspend_*_left`` or less left when the channel is granted, more than
``max_suspends`` times, or while the cache register holds the next page. The array stops at the
start of the suspend command; the operation pays t_resume before it continues. Meanwhile the die
accepts only such reads, including later ones, and at most ``suspend_reads`` of them in a row. One
operation at a time can be suspended.

Independent plane reads. Every operation except a read of one plane needs the whole die: it waits
until all planes are idle, and while it waits no plane starts another read. A plane holds one read
in the array and one in its cache register.
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
    """Append transaction ``t`` to queue ``q`` of die ``g``; run the scheduler if it was empty."""
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
    """Insert transaction ``t`` into queue ``q`` of die ``g`` in the order of page allocation, which
    ``left`` holds."""
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
    """Select the next command of die ``g`` and update its channel request."""
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
    """Set the channel request of die ``g``: ``want`` (NONE, COMMAND or IN) for queue ``pick``."""
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
        st.dev[d.dev].first = 0  # the die no longer needs the power reserved for it
        touch_all(st, d.dev)


@njit
def may(st, g):
    """Return the mask of the queues from which die ``g``, which is busy, may take an operation."""
    d = st.die[g]
    c = st.cfg[0]
    taken = d.stripe != 0 or d.gradients != 0  # the registers hold the optimizer's data
    load = d.cache < 0 and d.gradients < c.gradient_registers
    if d.arr < 0:
        if d.paused >= 0:
            return passing(st, d)
        if d.cache >= 0:  # data out of the cache register is pending
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
                mask &= ~(1 << Q_WRITE)  # Q_PE may hold the erase of this write's block
    if may_suspend(st, d, st.reg[0].now):
        mask |= passing(st, d)
    return mask


@cold
def within(st, working, t):
    """Return True if parity page or record ``t`` goes to the block that the reservoir has open
    after the program ``working``. Otherwise an erase comes between the two programs."""
    c = st.cfg[0]
    x = st.txn[t]
    at = st.pool[x.dev * c.dies + x.lpn % c.dies].r_next + int(st.txn[working].bare == MADE)
    return at % c.pages != 0


@inline
def passing(st, d):
    """Return the mask of the queues whose reads may suspend, or run during a suspension of, a
    program or an erase."""
    c = st.cfg[0]
    if d.paused >= 0 and c.suspend_reads > 0 and d.served >= c.suspend_reads:
        return 0
    return URGENT_READS | 1 << Q_GC_READ if d.urgent != 0 else URGENT_READS


@inline
def may_suspend(st, d, at):
    """Return True if the operation in the array may be suspended at time ``at`` (ps): a program or
    an erase with enough time left and fewer than ``max_suspends`` suspensions."""
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


# --- independent plane reads


@inline
def needs_die(st, t):
    """Return True if transaction ``t`` needs the whole die: it is not a read of one plane."""
    x = st.txn[t]
    return x.op != READ or (x.n > 1 and st.cfg[0].slots == 1)  # slots of a read lie in one plane


@cold
def seek_lanes(st, first):
    """Select the next command of every plane of a die with independent plane reads.

    ``first`` is the first lane of the die; otherwise like :func:`seek`.
    """
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
    """Return (queue, want) of a read that plane ``g`` can do alone; (-1, NONE) if there is none."""
    if waiting != 0:
        q = int(st.order[st.die[st.die[g].first].urgent, waiting])
        if not needs_die(st, st.queue[g, 2 * q]):
            return q, COMMAND
    return -1, NONE


@inline
def behind(st, g, waiting):
    """Return (queue, want) of the program that may enter the cache register behind the operation
    that occupies the die; (-1, NONE) if there is none."""
    c = st.cfg[0]
    d = st.die[g]
    if st.txn[d.arr].op == PROGRAM and c.cache_program != 0 and d.cache < 0:
        if waiting & READS == 0:
            for q in (Q_GC_WRITE, Q_MAP_WRITE, Q_WRITE):
                if waiting >> q & 1 and st.txn[st.queue[g, 2 * q]].op == PROGRAM:
                    return q, IN
    return -1, NONE


# --- priority of garbage collection


@njit
def hurry(st, g, urgent):
    """Set whether garbage collection on the die of lane ``g`` has priority over host work."""
    d = st.die[st.die[g].first]
    if d.urgent != urgent:
        d.urgent = urgent
        seek(st, st.die[g].first)


@cold
def bar(st, g, change):
    """Add ``change`` (+1 or -1) to the number of garbage collections that block host work on the
    die of lane ``g``."""
    d = st.die[st.die[g].first]
    d.collecting += change
    seek(st, st.die[g].first)
