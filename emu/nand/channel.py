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
from ondie.emu.engine.core.events import (
    E_REGISTER,
    fail,
    line,
    log_read,
    set_leaf,
)
from ondie.emu.engine.core.intrinsics import lowest_bit
from ondie.emu.nand.array import array_end, array_ps, begin_array, leave, notice_reads, suspend
from ondie.emu.nand.die import (
    COMMAND,
    HOST,
    IN,
    MORE,
    NONE,
    OUT,
    Q_GC_READ,
    Q_LOAD,
    Q_MAP_READ,
    Q_PE,
    READS,
    RESUME,
    affordable,
    planes_at,
    planes_of,
    pop,
    promote,
    take_power,
    touch,
)
from ondie.emu.nand.die_scheduler import (
    may_suspend,
    needs_die,
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
    SUSPEND,
    VPP,
)
from ondie.emu.nand.timing import RESUME as RESUME_CYCLES
from ondie.kernels.jit import apart, cold, inline, njit


@inline
def due(st, channel):
    """Return True if a phase or an array operation of channel ``channel`` has ended."""
    bus = st.bus[channel]
    now = st.reg[0].now
    if bus.phase != NONE and bus.until <= now:
        return True
    return bus.done_head >= 0 and st.txn[bus.done_head].time <= now


@njit
def finished(st, channel):
    """Return the next finished command of channel ``channel`` as its first transaction, or -1.

    The other transactions of the command follow by ``mate``. Call it as long as :func:`due` holds.
    """
    bus = st.bus[channel]
    now = st.reg[0].now
    if bus.phase != NONE and bus.until <= now:
        if bus.quiet != 0:
            bus.phase = NONE
        else:
            tid = end_phase(st, channel)
            if tid >= 0:
                return tid
    tid = bus.done_head
    if tid >= 0 and st.txn[tid].time <= now:
        bus.done_head = st.txn[tid].next
        st.txn[tid].next = -1
        array_end(st, st.txn[tid].die, tid)
        return tid
    return -1


@inline
def end_phase(st, channel):
    """End the present phase of channel ``channel``.

    Return the transaction if it is done with the die (data out, or a gradient loaded), else -1.
    """
    bus = st.bus[channel]
    die = bus.die
    tid = bus.txn
    phase = bus.phase
    die_rec = st.die[die]
    die_rec.on_bus = 0
    bus.phase = NONE
    now = st.reg[0].now
    touch(st, channel)
    if st.cfg[0].watch != 0:
        line(st, st.reg[0].bus0 + channel, bus.start, now, tid)
    txn = st.txn[tid]
    if phase == OUT:
        if txn.op != READ:
            return second_stage(st, die, tid)
        following = txn.mate
        txn.mate = -1
        if following >= 0:  # the next page of the multi-plane read
            if die_rec.arr == tid:
                die_rec.arr = following
            else:
                die_rec.cache = following
            return tid
        if die_rec.arr == tid:  # no cache register: the array was held
            die_rec.arr = -1
        else:
            die_rec.cache = -1
        if st.cfg[0].lanes > 1:
            leave(st, die)
        seek(st, die)
        return tid
    if phase == IN:
        if txn.op == VPP:
            die_rec.gradients += int(txn.queue == Q_LOAD)  # else pages return to the data registers
            seek(st, die)
            return tid
        if die_rec.loading >= 0:  # more pages of the word line must be loaded
            seek(st, die)
            return -1
        if die_rec.arr < 0:
            die_rec.cache = -1
            begin_array(st, die, tid, now, array_ps(st, die, tid))
        else:
            txn.time = now  # its array starts no earlier
    if st.cfg[0].overlap != 0:
        seek(st, die)
    return -1


@cold
def second_stage(st, die, tid):
    """Continue a transaction other than a READ after its OUT phase.

    A copy-back is programmed from the register: returns -1. Any other transaction is done and is
    returned: a program or an erase whose status has been read, a BPR or ODC after its data out.
    """
    txn = st.txn[tid]
    if txn.op == COPYBACK:
        txn.op = PROGRAM
        txn.array = st.page_ps[1, txn.page] if txn.page >= 0 else 0
        begin_array(st, die, tid, st.reg[0].now, array_ps(st, die, tid))
        if st.cfg[0].overlap != 0:
            seek(st, die)
        return -1
    array_end(st, die, tid)
    return tid


@inline
def best_out(st, channel):
    """Select the next data out of channel ``channel``: (its predecessor in the list, transaction).

    Order: phases without data (second command of a copy-back, status), then mapping reads, user
    reads and garbage-collection reads; within a class by readiness. (-1, -1) if none is ready.
    """
    now = st.reg[0].now
    first = st.cfg[0].first_out
    best = -1
    best_before = -1
    rank = 99
    before = -1
    tid = st.bus[channel].out_head
    while tid >= 0:
        txn = st.txn[tid]
        if txn.time > now:
            break
        die_rec = st.die[txn.die]
        if die_rec.on_bus == 0 and (
            die_rec.cache == tid or (die_rec.arr == tid and (die_rec.cache < 0 or txn.op != READ))
        ):
            own_rank = 0 if txn.queue == Q_MAP_READ else 2 if txn.queue == Q_GC_READ else 1
            if txn.op != READ and txn.op != BPR and txn.op != ODC:
                own_rank = -1
            if own_rank < rank:
                rank = own_rank
                best = tid
                best_before = before
                if own_rank <= first:
                    break
        before = tid
        tid = txn.next
    return best_before, best


@inline
def next_of(mask, turn):
    """Return the lowest set bit at or after ``turn``, cyclically; ``mask`` must not be 0."""
    ahead = mask >> turn
    if ahead != 0:
        return turn + lowest_bit(ahead)
    return lowest_bit(mask)


@apart
def grant(st, channel):
    """Grant the idle channel ``channel`` to the next die that requests it.

    Returns without a grant while an array operation that ends now has not been processed; the
    channel is granted after that.
    """
    bus = st.bus[channel]
    cfg = st.cfg[0]
    if bus.done_head >= 0 and st.txn[bus.done_head].time <= st.reg[0].now:
        return
    if cfg.notice != 0:
        notice_reads(st, channel)
    if bus.phase != NONE:
        if bus.quiet == 0 or bus.until > st.reg[0].now:
            if cfg.interleave != 0 and bus.ask_command != 0 and bus.phase != COMMAND:
                interrupt(st, channel)
            return
        bus.phase = NONE
    if cfg.suspends != 0:
        look_again(st, channel)
    asks = bus.ask_command
    first = cfg.commands_first != 0 and asks != 0
    if not first:
        if bus.out_head >= 0:
            before, tid = best_out(st, channel)
            if tid >= 0:
                grant_out(st, channel, before, tid)
                return
        asks |= bus.ask_in
    if not grant_asking(st, channel, asks) and first:
        grant_others(st, channel)


@cold
def grant_others(st, channel):
    """Grant data out, else data in, when the power budget allows none of the commands."""
    bus = st.bus[channel]
    if bus.out_head >= 0:
        before, tid = best_out(st, channel)
        if tid >= 0:
            grant_out(st, channel, before, tid)
            return
    grant_asking(st, channel, bus.ask_in)


@cold
def look_again(st, channel):
    """Run the die scheduler again for dies whose requested suspension is no longer allowed."""
    asks = st.bus[channel].ask_command
    while asks != 0:
        at = lowest_bit(asks)
        asks &= ~(1 << at)
        die = st.way[channel, at]
        if in_vain(st, die, st.reg[0].now):
            seek(st, die)


@cold
def in_vain(st, die, at):
    """Return True if the read of die ``die`` would suspend an operation at time ``at`` that
    :func:`may_suspend` does not allow to be suspended then."""
    pick = st.die[die].pick
    if pick >= RESUME or READS >> pick & 1 == 0:
        return False
    busy = working(st, die)
    return busy >= 0 and not may_suspend(st, st.die[busy], at)


@inline
def working(st, die):
    """Return the die or plane whose array operation ``die`` would have to suspend; -1 = none."""
    die_rec = st.die[die]
    if st.cfg[0].lanes > 1:
        first_rec = st.die[die_rec.first]
        if first_rec.alone != 0 and st.die[die_rec.first + first_rec.alone - 1].arr >= 0:
            return die_rec.first + first_rec.alone - 1
        return -1
    return die if die_rec.arr >= 0 else -1


@inline
def grant_asking(st, channel, asks):
    """Grant channel ``channel`` to a die of mask ``asks``, round robin.

    Returns False if the power budget allows none of them.
    """
    bus = st.bus[channel]
    cfg = st.cfg[0]
    while asks != 0:
        at = next_of(asks, bus.turn)
        die = st.way[channel, at]
        if cfg.power == 0 or powered(st, die):
            bus.turn = at + 1 if at + 1 < cfg.ways * cfg.lanes else 0
            if st.die[die].want == COMMAND:
                grant_command(st, channel, die)
            else:
                grant_in(st, channel, die)
            return True
        asks &= ~(1 << at)
    return False


@cold
def powered(st, die):
    """Return True if the power budget allows the next operation of die ``die``.

    An operation holds its power from its first cycle on the channel until its array is done, a
    copy-back for both parts. A page in the cache register shares the power of the program before.
    """
    die_rec = st.die[die]
    if die_rec.pick == MORE:
        return True
    tid = die_rec.paused if die_rec.pick == RESUME else st.queue[die, 2 * die_rec.pick]
    if st.txn[tid].op == VPP or st.txn[tid].op == ODC:
        return True
    return affordable(st, die, planes_of(st, tid))


@inline
def hold_bus(st, channel, die, tid, phase, time):
    """Assign channel ``channel`` to transaction ``tid`` of die ``die`` for ``time`` ps from now."""
    bus = st.bus[channel]
    die_rec = st.die[die]
    now = st.reg[0].now
    die_rec.on_bus = 1
    if die_rec.want != NONE:
        bit = 1 << die_rec.at
        bus.ask_command &= ~bit
        bus.ask_in &= ~bit
        die_rec.want = NONE
    bus.die = die
    bus.phase = phase
    bus.txn = tid
    bus.start = now
    bus.until = now + time
    bus.quiet = 0
    bus.grants += 1
    if st.cfg[0].watch != 0:
        st.use[st.txn[tid].phase, st.reg[0].bus0 + channel] += time


@inline
def grant_out(st, channel, before, tid):
    """Grant channel ``channel`` to the data out of ``tid``; ``before`` is its predecessor in the
    list.

    The pages of one multi-plane read follow one after the other.
    """
    bus = st.bus[channel]
    cfg = st.cfg[0]
    txn = st.txn[tid]
    following = txn.next
    if txn.mate >= 0 and txn.op == READ:  # its mate replaces it in the list
        other_txn = st.txn[txn.mate]
        other_txn.time = txn.time
        other_txn.planes |= txn.planes  # same command: the mate's page must be selected, too
        other_txn.next = following
        if following < 0:
            bus.out_tail = txn.mate
        following = txn.mate
    elif following < 0:
        bus.out_tail = before
    if before < 0:
        bus.out_head = following
    else:
        st.txn[before].next = following
    txn.next = -1
    if txn.op == READ:
        time = transfer_ps(txn.bus, cfg.bus_scale, cfg.bus_shift)
        if cfg.out != 0:
            time += out_ps(st, tid)
        bus.size_out += txn.bus
    elif txn.op == BPR or txn.op == ODC:  # from the optimizer's registers to the controller's ECC
        time = transfer_ps(txn.bus, cfg.bus_scale, cfg.bus_shift)
        if cfg.out != 0:
            time += txn.n * (cfg.out + cfg.out_plane)
        bus.size_out += txn.bus
    elif txn.op == COPYBACK:
        time = st.cycles[COPYBACK_IN, planes_of(st, tid)]
    else:
        time = st.cycles[STATUS, 1]
    hold_bus(st, channel, txn.die, tid, OUT, time)


@cold
def out_ps(st, tid):
    """Return the channel time around the data out of read ``tid``, in ps.

    After a read of several planes each page must be selected first.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if cfg.slots > 1:
        parts = pages(st, txn.ppn, txn.n)
        if parts > 1 or txn.array < 0 or txn.mate >= 0 or txn.planes & (txn.planes - 1) != 0:
            return parts * (cfg.out + cfg.out_plane)
        return cfg.out
    if txn.n > 1 or txn.planes & (txn.planes - 1) != 0:
        return txn.n * (cfg.out + cfg.out_plane)
    return cfg.out


@inline
def grant_command(st, channel, die):
    """Grant channel ``channel`` to the command and address cycles of die ``die``'s next operation;
    the array starts after them."""
    now = st.reg[0].now
    tid, time, wait, array = start_command(st, die, now)
    hold_bus(st, channel, die, tid, COMMAND, time)
    if st.cfg[0].overlap == 0:
        release_quietly(st, channel, die)
    begin_array(st, die, tid, now + time + wait, array)


@inline
def release_quietly(st, channel, die):
    """Mark the present phase of channel ``channel`` as quiet and release die ``die``.

    The array works from the end of the phase and needs no channel meanwhile, so the end is an event
    only if another request is pending on the channel.
    """
    bus = st.bus[channel]
    bus.quiet = 1
    st.die[die].on_bus = 0
    if st.cfg[0].watch != 0:
        line(st, st.reg[0].bus0 + channel, bus.start, bus.until, bus.txn)


@inline
def grant_in(st, channel, die):
    """Grant channel ``channel`` to the data in of die ``die``: command, address and data of its
    next program or gradient, or of the next page of a word line."""
    die_rec = st.die[die]
    cfg = st.cfg[0]
    queue = die_rec.pick
    if queue == MORE:
        tid = die_rec.cache
        first = die_rec.loading
    else:
        if cfg.ranked != 0 and HOST >> queue & 1:
            promote(st, die, queue)
        tid = pop(st, die, queue)
        first = tid
        if st.txn[tid].op == PROGRAM:
            if cfg.group != 0:
                gather_all(st, die, tid, queue)
            if cfg.special != 0:
                if cfg.power > 0:
                    take_power(st, die, max(planes_of(st, tid), die_rec.power))
                if cfg.lanes > 1:
                    st.die[die_rec.first].alone = die - die_rec.first + 1
            if cfg.overlap != 0:
                die_rec.cache = tid
    count = st.txn[first].n
    size = st.txn[first].bus
    other = st.txn[first].mate
    page = st.txn[first].page
    while other >= 0 and (cfg.word == 0 or st.txn[other].page == page):
        count += st.txn[other].n
        size += st.txn[other].bus
        other = st.txn[other].mate
    if cfg.slots > 1:
        count = planes_at(st, first)
    die_rec.loading = other
    time = st.cycles[st.txn[tid].op, count] + transfer_ps(size, cfg.bus_scale, cfg.bus_shift)
    st.bus[channel].size_in += size
    hold_bus(st, channel, die, tid, IN, time)
    if cfg.overlap == 0 and st.txn[tid].op == PROGRAM:
        release_quietly(st, channel, die)
        begin_array(st, die, tid, st.bus[channel].until, array_ps(st, die, tid))


@inline
def start_command(st, die, start):
    """Dequeue the operation of die ``die`` whose command is sent at ``start``.

    Returns (transaction, ps on the channel, ps before the array starts, ps in the array).
    """
    cfg = st.cfg[0]
    if cfg.special != 0:
        return start_specially(st, die, start)
    queue = st.die[die].pick
    if cfg.ranked != 0 and HOST >> queue & 1:
        promote(st, die, queue)
    tid = pop(st, die, queue)
    if queue == Q_PE:
        use_registers(st, die, tid)
    elif cfg.group != 0:
        gather_all(st, die, tid, queue)
    txn = st.txn[tid]
    if txn.op == READ:
        log_read(st, tid)
    return tid, st.cycles[txn.op, planes_of(st, tid)], 0, array_ps(st, die, tid)


@cold
def use_registers(st, die, tid):
    """Check and update die ``die``'s registers for an optimizer operation.

    Fails with E_REGISTER if they do not hold what the operation needs: the plan is wrong then.
    """
    die_rec = st.die[die]
    op = st.txn[tid].op
    if op == BPR:
        if die_rec.stripe != 0:
            fail(st, E_REGISTER, die, op)
        die_rec.stripe = 1
        die_rec.gradients += int(
            st.txn[tid].held_back > 0
        )  # gradient kept in the array, read with the stripe
    elif op == READ and die_rec.stripe == 0:
        fail(st, E_REGISTER, die, op)
    elif op == ODC:
        if die_rec.stripe == 0 or die_rec.gradients == 0:
            fail(st, E_REGISTER, die, op)
    elif op == BPP and die_rec.stripe == 0 and st.row[st.txn[tid].row].kind != PAD:
        fail(st, E_REGISTER, die, op)


@cold
def start_specially(st, die, start):
    """Do what :func:`start_command` does where suspension, independent plane reads or a power
    budget is configured."""
    die_rec = st.die[die]
    cfg = st.cfg[0]
    first_rec = st.die[die_rec.first] if cfg.lanes > 1 else die_rec
    queue = die_rec.pick
    if queue == RESUME:
        tid = die_rec.paused
        die_rec.paused = -1
        if cfg.power > 0:
            take_power(st, die, planes_of(st, tid))
        if cfg.lanes > 1:
            first_rec.alone = 1
        return tid, st.cycles[RESUME_CYCLES, 1], cfg.resume_wait, die_rec.left
    if cfg.ranked != 0 and HOST >> queue & 1:
        promote(st, die, queue)
    tid = pop(st, die, queue)
    op = st.txn[tid].op
    time = 0
    if cfg.suspends != 0 and working(st, die) >= 0:
        suspend(st, die, start)
        time = st.cycles[SUSPEND, 1]
    if queue == Q_PE:
        use_registers(st, die, tid)
    elif cfg.group != 0:
        gather_all(st, die, tid, queue)
    count = planes_of(st, tid)
    if cfg.power > 0 and op != ODC:
        take_power(st, die, count)
    if op == READ:
        log_read(st, tid)
    if cfg.lanes > 1 and needs_die(st, tid):
        first_rec.alone = die - die_rec.first + 1
    wait = 0
    if first_rec.paused >= 0:
        first_rec.served += 1
        wait = max(first_rec.still - start - time, 0)
    return tid, time + st.cycles[op, count], wait, array_ps(st, die, tid)


@cold
def interrupt(st, channel):
    """Send commands now, in between the data transfer that holds channel ``channel``."""
    bus = st.bus[channel]
    cfg = st.cfg[0]
    now = st.reg[0].now
    if bus.until <= now:
        return  # the transfer ends at this instant
    op = st.txn[bus.txn].op
    if bus.phase == OUT and op != READ and op != BPR and op != ODC:
        return  # the phase moves no data
    refused = 0
    while bus.ask_command & ~refused != 0:
        at = next_of(bus.ask_command & ~refused, bus.turn)
        die = st.way[channel, at]
        bit = 1 << at
        start = max(now, bus.command_until)
        if cfg.suspends != 0 and in_vain(st, die, start) or cfg.power != 0 and not powered(st, die):
            refused |= bit
            continue
        bus.ask_command &= ~bit
        st.die[die].want = NONE
        tid, time, wait, array = start_command(st, die, start)
        bus.command_until = start + time
        bus.until += time
        st.use[st.txn[tid].phase, st.reg[0].bus0 + channel] += time
        line(st, st.reg[0].bus0 + channel, start, start + time, tid)
        begin_array(st, die, tid, start + time + wait, array)
        seek(st, die)


@inline
def wake(st, channel):
    """Return the time of channel ``channel``'s next event in ps, or NEVER.

    With ``watch`` 0, nothing outside the channel depends on the end of programs, and their ends are
    processed when the channel is free.
    """
    bus = st.bus[channel]
    cfg = st.cfg[0]
    if bus.phase != NONE and bus.quiet != 0:
        if bus.ask_command | bus.ask_in != 0:
            time = bus.until
        else:
            time = max(bus.until, st.txn[bus.out_head].time) if bus.out_head >= 0 else NEVER
            if cfg.watch == 0 and bus.done_head >= 0:
                return min(time, max(bus.until, st.txn[bus.done_head].time))
        if cfg.watch == 0:
            return time
    elif bus.phase != NONE:
        time = bus.until
        if cfg.watch == 0:
            return time
        if cfg.eager != 0:
            tid = bus.out_head
            now = st.reg[0].now
            while tid >= 0 and st.txn[tid].time <= now:
                tid = st.txn[tid].next
            if tid >= 0:
                time = min(time, st.txn[tid].time)
    else:
        time = st.txn[bus.out_head].time if bus.out_head >= 0 else NEVER
    if bus.done_head >= 0:
        time = min(time, st.txn[bus.done_head].time)
    return time


@cold
def at_once(st, channel):
    """Grant channel ``channel`` before the end of the event; it may grant again at the end."""
    grant(st, channel)
    set_leaf(st, channel, wake(st, channel))


@inline
def settle(st):
    """Finish an event: grant every touched channel and set the time of its next event."""
    reg = st.reg[0]
    while reg.touched > 0:
        reg.touched -= 1
        channel = st.touched[reg.touched]
        st.bus[channel].touched = 0
        grant(st, channel)
        set_leaf(st, channel, wake(st, channel))
