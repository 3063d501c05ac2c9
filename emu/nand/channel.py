"""Channel scheduler: arbitration of the flash bus for commands, data out and data in.

Owns channel grants and their phases. Does not own addresses (ftl/page_map.py), the choice of a
die's next command (die_scheduler.py), the arrays (array.py), or the steps after a transfer
(engine/run/datapath.py passes the finished transaction on).
Source: ONFI (one die at a time uses the bus; chip enable selects it); order of data out as in
MQSim (mapping, user, garbage collection; by readiness).

Each channel has two lists in order of time (reads until data out; programs, erases and
computations until their end) and two bit masks of the dies that request it (commands, data in).
"""

from __future__ import annotations

from ondie.emu.clock import NEVER, transfer_ps
from ondie.emu.engine.core.events import E_REGISTER, fail, line, log_read, set_leaf
from ondie.emu.engine.core.intrinsics import lowest_bit
from ondie.emu.nand.array import array_end, array_ps, begin_array, leave, notice_reads, suspend
from ondie.emu.nand.die import (
    BUS,
    COMMAND,
    DIE,
    HOST,
    IN,
    MAX_WAYS,
    MORE,
    NONE,
    OUT,
    Q_GC_ERASE,
    Q_GC_READ,
    Q_GC_WRITE,
    Q_LOAD,
    Q_MAP_READ,
    Q_MAP_WRITE,
    Q_PE,
    Q_READ,
    Q_WRITE,
    QUEUES,
    READS,
    RESUME,
    affordable,
    order_table,
    planes_at,
    planes_of,
    pop,
    promote,
    take_power,
    touch,
)
from ondie.emu.nand.die_scheduler import (
    bar,
    hurry,
    may_suspend,
    needs_die,
    push,
    push_in_order,
    seek,
)
from ondie.emu.nand.geometry import pages
from ondie.emu.nand.multi_plane import gather_all
from ondie.emu.nand.timing import (
    BPP,
    BPR,
    COPYBACK,
    COPYBACK_IN,
    ODC,
    PAD,
    PROGRAM,
    READ,
    STATUS,
    VPP,
)
from ondie.emu.nand.timing import RESUME as RESUME_CYCLES
from ondie.emu.nand.timing import SUSPEND as SUSPEND_CYCLES
from ondie.kernels.jit import apart, cold, inline, njit

__all__ = [
    "at_once",
    "BUS",
    "DIE",
    "MAX_WAYS",
    "QUEUES",
    "Q_GC_ERASE",
    "Q_GC_READ",
    "Q_GC_WRITE",
    "Q_LOAD",
    "Q_MAP_READ",
    "Q_MAP_WRITE",
    "Q_PE",
    "Q_READ",
    "Q_WRITE",
    "bar",
    "due",
    "finished",
    "grant",
    "hurry",
    "may_suspend",
    "needs_die",
    "order_table",
    "push",
    "push_in_order",
    "seek",
    "settle",
    "touch",
    "wake",
]
"""Names that other packages import from here: queues and records (die.py), the die scheduler
(die_scheduler.py) and the channel."""


@inline
def due(st, b):
    """Return True if a phase or an array operation of channel ``b`` has ended."""
    bus = st.bus[b]
    now = st.reg[0].now
    if bus.phase != NONE and bus.until <= now:
        return True
    return bus.done_head >= 0 and st.txn[bus.done_head].time <= now


@njit
def finished(st, b):
    """Return the next finished command of channel ``b`` as its first transaction, or -1.

    The other transactions of the command follow by ``mate``. Call it as long as :func:`due` holds.
    """
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
    return -1


@inline
def end_phase(st, b):
    """End the present phase of channel ``b``.

    Return the transaction if it is done with the die (data out, or a gradient loaded), else -1.
    """
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
        if x.op != READ:
            return second_stage(st, g, t)
        following = x.mate
        x.mate = -1
        if following >= 0:  # the next page of the multi-plane read
            if d.arr == t:
                d.arr = following
            else:
                d.cache = following
            return t
        if d.arr == t:  # no cache register: the array was held
            d.arr = -1
        else:
            d.cache = -1
        if st.cfg[0].lanes > 1:
            leave(st, g)
        seek(st, g)
        return t
    if phase == IN:
        if x.op == VPP:
            d.gradients += int(x.queue == Q_LOAD)  # else pages return to the data registers
            seek(st, g)
            return t
        if d.loading >= 0:  # more pages of the word line must be loaded
            seek(st, g)
            return -1
        if d.arr < 0:
            d.cache = -1
            begin_array(st, g, t, now, array_ps(st, g, t))
        else:
            x.time = now  # its array starts no earlier
    if st.cfg[0].overlap != 0:
        seek(st, g)
    return -1


@cold
def second_stage(st, g, t):
    """Continue a transaction other than a READ after its OUT phase.

    A copy-back is programmed from the register: returns -1. Any other transaction is done and is
    returned: a program or an erase whose status has been read, a BPR or ODC after its data out.
    """
    x = st.txn[t]
    if x.op == COPYBACK:
        x.op = PROGRAM
        x.array = st.page_ps[1, x.page] if x.page >= 0 else 0
        begin_array(st, g, t, st.reg[0].now, array_ps(st, g, t))
        if st.cfg[0].overlap != 0:
            seek(st, g)
        return -1
    array_end(st, g, t)
    return t


@inline
def best_out(st, b):
    """Select the next data out of channel ``b``: (its predecessor in the list, transaction).

    Order: phases without data (second command of a copy-back, status), then mapping reads, user
    reads and garbage-collection reads; within a class by readiness. (-1, -1) if none is ready.
    """
    now = st.reg[0].now
    first = st.cfg[0].first_out
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
        if d.on_bus == 0 and (d.cache == t or (d.arr == t and (d.cache < 0 or x.op != READ))):
            r = 0 if x.queue == Q_MAP_READ else 2 if x.queue == Q_GC_READ else 1
            if x.op != READ and x.op != BPR and x.op != ODC:
                r = -1
            if r < rank:
                rank = r
                best = t
                best_before = before
                if r <= first:
                    break
        before = t
        t = x.next
    return best_before, best


@inline
def next_of(mask, turn):
    """Return the lowest set bit at or after ``turn``, cyclically; ``mask`` must not be 0."""
    ahead = mask >> turn
    if ahead != 0:
        return turn + lowest_bit(ahead)
    return lowest_bit(mask)


@apart
def grant(st, b):
    """Grant the idle channel ``b`` to the next die that requests it.

    Returns without a grant while an array operation that ends now has not been processed; the
    channel is granted after that.
    """
    bus = st.bus[b]
    c = st.cfg[0]
    if bus.done_head >= 0 and st.txn[bus.done_head].time <= st.reg[0].now:
        return
    if c.notice != 0:
        notice_reads(st, b)
    if bus.phase != NONE:
        if bus.quiet == 0 or bus.until > st.reg[0].now:
            if c.interleave != 0 and bus.ask_command != 0 and bus.phase != COMMAND:
                interrupt(st, b)
            return
        bus.phase = NONE
    if c.suspends != 0:
        look_again(st, b)
    asks = bus.ask_command
    first = c.commands_first != 0 and asks != 0
    if not first:
        if bus.out_head >= 0:
            before, t = best_out(st, b)
            if t >= 0:
                grant_out(st, b, before, t)
                return
        asks |= bus.ask_in
    if not grant_asking(st, b, asks) and first:
        grant_others(st, b)


@cold
def grant_others(st, b):
    """Grant data out, else data in, when the power budget allows none of the commands."""
    bus = st.bus[b]
    if bus.out_head >= 0:
        before, t = best_out(st, b)
        if t >= 0:
            grant_out(st, b, before, t)
            return
    grant_asking(st, b, bus.ask_in)


@cold
def look_again(st, b):
    """Run the die scheduler again for dies whose requested suspension is no longer allowed."""
    asks = st.bus[b].ask_command
    while asks != 0:
        at = lowest_bit(asks)
        asks &= ~(1 << at)
        g = st.way[b, at]
        if in_vain(st, g, st.reg[0].now):
            seek(st, g)


@cold
def in_vain(st, g, at):
    """Return True if the read of die ``g`` would suspend an operation at time ``at`` that
    :func:`may_suspend` does not allow to be suspended then."""
    pick = st.die[g].pick
    if pick >= RESUME or READS >> pick & 1 == 0:
        return False
    w = working(st, g)
    return w >= 0 and not may_suspend(st, st.die[w], at)


@inline
def working(st, g):
    """Return the die or plane whose array operation ``g`` would have to suspend; -1 = none."""
    d = st.die[g]
    if st.cfg[0].lanes > 1:
        f = st.die[d.first]
        if f.alone != 0 and st.die[d.first + f.alone - 1].arr >= 0:
            return d.first + f.alone - 1
        return -1
    return g if d.arr >= 0 else -1


@inline
def grant_asking(st, b, asks):
    """Grant channel ``b`` to a die of mask ``asks``, round robin.

    Returns False if the power budget allows none of them.
    """
    bus = st.bus[b]
    c = st.cfg[0]
    while asks != 0:
        at = next_of(asks, bus.turn)
        g = st.way[b, at]
        if c.power == 0 or powered(st, g):
            bus.turn = at + 1 if at + 1 < c.ways * c.lanes else 0
            if st.die[g].want == COMMAND:
                grant_command(st, b, g)
            else:
                grant_in(st, b, g)
            return True
        asks &= ~(1 << at)
    return False


@cold
def powered(st, g):
    """Return True if the power budget allows the next operation of die ``g``.

    An operation holds its power from its first cycle on the channel until its array is done, a
    copy-back for both parts. A page in the cache register shares the power of the program before.
    """
    d = st.die[g]
    if d.pick == MORE:
        return True
    t = d.paused if d.pick == RESUME else st.queue[g, 2 * d.pick]
    if st.txn[t].op == VPP or st.txn[t].op == ODC:
        return True
    return affordable(st, g, planes_of(st, t))


@inline
def hold_bus(st, b, g, t, phase, time):
    """Assign channel ``b`` to transaction ``t`` of die ``g`` for ``time`` ps from now."""
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
    """Grant channel ``b`` to the data out of ``t``; ``before`` is its predecessor in the list.

    The pages of one multi-plane read follow one after the other.
    """
    bus = st.bus[b]
    c = st.cfg[0]
    x = st.txn[t]
    following = x.next
    if x.mate >= 0 and x.op == READ:  # its mate replaces it in the list
        y = st.txn[x.mate]
        y.time = x.time
        y.planes |= x.planes  # same command: the mate's page must be selected, too
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
    if x.op == READ:
        time = transfer_ps(x.bus, c.bus_scale, c.bus_shift)
        if c.out != 0:
            time += out_ps(st, t)
        bus.size_out += x.bus
    elif x.op == BPR or x.op == ODC:  # from the optimizer's registers to the controller's ECC
        time = transfer_ps(x.bus, c.bus_scale, c.bus_shift)
        if c.out != 0:
            time += x.n * (c.out + c.out_plane)
        bus.size_out += x.bus
    elif x.op == COPYBACK:
        time = st.cycles[COPYBACK_IN, planes_of(st, t)]
    else:
        time = st.cycles[STATUS, 1]
    hold_bus(st, b, x.die, t, OUT, time)


@cold
def out_ps(st, t):
    """Return the channel time around the data out of read ``t``, in ps.

    After a read of several planes each page must be selected first.
    """
    c = st.cfg[0]
    x = st.txn[t]
    if c.slots > 1:
        parts = pages(st, x.ppn, x.n)
        if parts > 1 or x.array < 0 or x.mate >= 0 or x.planes & (x.planes - 1) != 0:
            return parts * (c.out + c.out_plane)
        return c.out
    if x.n > 1 or x.planes & (x.planes - 1) != 0:
        return x.n * (c.out + c.out_plane)
    return c.out


@inline
def grant_command(st, b, g):
    """Grant channel ``b`` to the command and address cycles of die ``g``'s next operation; the
    array starts after them."""
    now = st.reg[0].now
    t, time, wait, array = start_command(st, g, now)
    hold_bus(st, b, g, t, COMMAND, time)
    if st.cfg[0].overlap == 0:
        release_quietly(st, b, g)
    begin_array(st, g, t, now + time + wait, array)


@inline
def release_quietly(st, b, g):
    """Mark the present phase of channel ``b`` as quiet and release die ``g``.

    The array works from the end of the phase and needs no channel meanwhile, so the end is an event
    only if another request is pending on the channel.
    """
    bus = st.bus[b]
    bus.quiet = 1
    st.die[g].on_bus = 0
    if st.cfg[0].watch != 0:
        line(st, st.reg[0].bus0 + b, bus.start, bus.until, bus.txn)


@inline
def grant_in(st, b, g):
    """Grant channel ``b`` to the data in of die ``g``: command, address and data of its next
    program or gradient, or of the next page of a word line."""
    d = st.die[g]
    c = st.cfg[0]
    q = d.pick
    if q == MORE:
        t = d.cache
        first = d.loading
    else:
        if c.ranked != 0 and HOST >> q & 1:
            promote(st, g, q)
        t = pop(st, g, q)
        first = t
        if st.txn[t].op == PROGRAM:
            if c.group != 0:
                gather_all(st, g, t, q)
            if c.special != 0:
                if c.power > 0:
                    take_power(st, g, max(planes_of(st, t), d.power))
                if c.lanes > 1:
                    st.die[d.first].alone = g - d.first + 1
            if c.overlap != 0:
                d.cache = t
    n = st.txn[first].n
    size = st.txn[first].bus
    u = st.txn[first].mate
    page = st.txn[first].page
    while u >= 0 and (c.word == 0 or st.txn[u].page == page):
        n += st.txn[u].n
        size += st.txn[u].bus
        u = st.txn[u].mate
    if c.slots > 1:
        n = planes_at(st, first)
    d.loading = u
    time = st.cycles[st.txn[t].op, n] + transfer_ps(size, c.bus_scale, c.bus_shift)
    st.bus[b].size_in += size
    hold_bus(st, b, g, t, IN, time)
    if c.overlap == 0 and st.txn[t].op == PROGRAM:
        release_quietly(st, b, g)
        begin_array(st, g, t, st.bus[b].until, array_ps(st, g, t))


@inline
def start_command(st, g, start):
    """Dequeue the operation of die ``g`` whose command is sent at ``start``.

    Returns (transaction, ps on the channel, ps before the array starts, ps in the array).
    """
    c = st.cfg[0]
    if c.special != 0:
        return start_specially(st, g, start)
    q = st.die[g].pick
    if c.ranked != 0 and HOST >> q & 1:
        promote(st, g, q)
    t = pop(st, g, q)
    if q == Q_PE:
        use_registers(st, g, t)
    elif c.group != 0:
        gather_all(st, g, t, q)
    x = st.txn[t]
    if x.op == READ:
        log_read(st, t)
    return t, st.cycles[x.op, planes_of(st, t)], 0, array_ps(st, g, t)


@cold
def use_registers(st, g, t):
    """Check and update die ``g``'s registers for an optimizer operation.

    Fails with E_REGISTER if they do not hold what the operation needs: the plan is wrong then.
    """
    d = st.die[g]
    op = st.txn[t].op
    if op == BPR:
        if d.stripe != 0:
            fail(st, E_REGISTER, g, op)
        d.stripe = 1
        d.gradients += int(st.txn[t].left > 0)  # gradient kept in the array, read with the stripe
    elif op == READ and d.stripe == 0:
        fail(st, E_REGISTER, g, op)
    elif op == ODC:
        if d.stripe == 0 or d.gradients == 0:
            fail(st, E_REGISTER, g, op)
    elif op == BPP and d.stripe == 0 and st.row[st.txn[t].row].kind != PAD:
        fail(st, E_REGISTER, g, op)


@cold
def start_specially(st, g, start):
    """Do what :func:`start_command` does where suspension, independent plane reads or a power
    budget is configured."""
    d = st.die[g]
    c = st.cfg[0]
    f = st.die[d.first] if c.lanes > 1 else d
    q = d.pick
    if q == RESUME:
        t = d.paused
        d.paused = -1
        if c.power > 0:
            take_power(st, g, planes_of(st, t))
        if c.lanes > 1:
            f.alone = 1
        return t, st.cycles[RESUME_CYCLES, 1], c.resume_wait, d.left
    if c.ranked != 0 and HOST >> q & 1:
        promote(st, g, q)
    t = pop(st, g, q)
    op = st.txn[t].op
    time = 0
    if c.suspends != 0 and working(st, g) >= 0:
        suspend(st, g, start)
        time = st.cycles[SUSPEND_CYCLES, 1]
    if q == Q_PE:
        use_registers(st, g, t)
    elif c.group != 0:
        gather_all(st, g, t, q)
    n = planes_of(st, t)
    if c.power > 0 and op != ODC:
        take_power(st, g, n)
    if op == READ:
        log_read(st, t)
    if c.lanes > 1 and needs_die(st, t):
        f.alone = g - d.first + 1
    wait = 0
    if f.paused >= 0:
        f.served += 1
        wait = max(f.still - start - time, 0)
    return t, time + st.cycles[op, n], wait, array_ps(st, g, t)


@cold
def interrupt(st, b):
    """Send commands now, in between the data transfer that holds channel ``b``."""
    bus = st.bus[b]
    c = st.cfg[0]
    now = st.reg[0].now
    if bus.until <= now:
        return  # the transfer ends at this instant
    op = st.txn[bus.txn].op
    if bus.phase == OUT and op != READ and op != BPR and op != ODC:
        return  # the phase moves no data
    refused = 0
    while bus.ask_command & ~refused != 0:
        at = next_of(bus.ask_command & ~refused, bus.turn)
        g = st.way[b, at]
        bit = 1 << at
        start = max(now, bus.command_until)
        if c.suspends != 0 and in_vain(st, g, start) or c.power != 0 and not powered(st, g):
            refused |= bit
            continue
        bus.ask_command &= ~bit
        st.die[g].want = NONE
        t, time, wait, array = start_command(st, g, start)
        bus.command_until = start + time
        bus.until += time
        st.use[st.txn[t].phase, st.reg[0].bus0 + b] += time
        line(st, st.reg[0].bus0 + b, start, start + time, t)
        begin_array(st, g, t, start + time + wait, array)
        seek(st, g)


@inline
def wake(st, b):
    """Return the time of channel ``b``'s next event in ps, or NEVER.

    With ``watch`` 0, nothing outside the channel depends on the end of programs, and their ends are
    processed when the channel is free.
    """
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


@cold
def at_once(st, b):
    """Grant channel ``b`` before the end of the event; it may grant again at the end."""
    grant(st, b)
    set_leaf(st, b, wake(st, b))


@inline
def settle(st):
    """Finish an event: grant every touched channel and set the time of its next event."""
    reg = st.reg[0]
    while reg.touched > 0:
        reg.touched -= 1
        b = st.touched[reg.touched]
        st.bus[b].touched = 0
        grant(st, b)
        set_leaf(st, b, wake(st, b))
