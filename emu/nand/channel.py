"""Channel scheduler: arbitration of the flash bus for commands, data out and data in.

Owns channel grants and their phases. Does not own addresses (ftl/page_map.py), the choice of a
die's next command (die_scheduler.py), the arrays (array.py), or the stages of a transaction after
its transfer (engine/run/datapath.py).
Source: ONFI (one die at a time uses the bus, selected by chip enable). Order of data out as in
MQSim (mapping, user, garbage collection; by readiness).

Each channel has two time-ordered lists (reads that wait for data out; programs, erases and
computations in progress) and two bit masks of requesting dies (for commands, for data in).
"""

from __future__ import annotations

from ondie.emu.clock import NEVER, transfer_ps
from ondie.emu.engine.core.events import line, register, set_leaf
from ondie.emu.engine.core.intrinsics import lowest_bit
from ondie.emu.nand import event_order, polling, scheduler_statistics
from ondie.emu.nand.array import array_ps, begin_array, notice_reads
from ondie.emu.nand.command_start import start_command, suspends_in_vain
from ondie.emu.nand.die import (
    COMMAND,
    HOST_QUEUES,
    IN,
    MORE,
    NONE,
    OUT,
    POLLED,
    Q_GC_READ,
    Q_MAP_READ,
    Q_WRITE,
    RESUME,
    can_power,
    planes_at,
    planes_of,
    pop,
    promote,
    take_power,
)
from ondie.emu.nand.die_scheduler import select_next
from ondie.emu.nand.geometry import pages
from ondie.emu.nand.multi_plane import gather_all
from ondie.emu.nand.polling import CLASSES
from ondie.emu.nand.timing import (
    BPR,
    COPYBACK,
    COPYBACK_IN,
    ODC,
    PROGRAM,
    READ,
    STATUS,
    VPP,
)
from ondie.kernels.jit import apart, cold, inline


@inline
def select_data_out(st, channel):
    """Select the next data-out phase of channel ``channel``. Returns (predecessor in the data-out
    list, transaction), or (-1, -1) if none is ready. Priority: phases without data (second command
    of a copy-back, status), mapping reads, user reads, garbage-collection reads. Within a class,
    the earliest ready phase has priority."""
    now = st.reg[0].now
    first = st.cfg[0].first_out
    ordered = st.cfg[0].ordered
    best = -1
    best_before = -1
    rank = 99
    before = -1
    tid = st.bus[channel].out_head
    while tid >= 0:
        txn = st.txn[tid]
        if txn.time > now:
            break
        if ordered != 0 and st.command[tid].sequence != event_order.READY:
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
def next_set_bit(mask, turn):
    """Return the index of the first set bit of ``mask``, starting at bit ``turn`` and continuing
    cyclically. ``mask`` must not be 0."""
    ahead = mask >> turn
    if ahead != 0:
        return turn + lowest_bit(ahead)
    return lowest_bit(mask)


@apart
def grant(st, channel):
    """Grant channel ``channel``, if it is idle, to a data-out phase or to a die that requests it.
    If commands may interleave with data, interrupt a data transfer for the requested commands.

    Returns without a grant while an array operation that ends now has not been processed. The
    channel is granted afterwards.
    """
    bus = st.bus[channel]
    cfg = st.cfg[0]
    if cfg.ordered == 0 and bus.done_head >= 0 and st.txn[bus.done_head].time <= st.reg[0].now:
        return
    if cfg.notice != 0:
        notice_reads(st, channel)
    if bus.phase != NONE:
        if bus.quiet == 0 or bus.until > st.reg[0].now or cfg.ordered != 0:
            if cfg.interleave != 0 and bus.ask_command != 0 and bus.phase != COMMAND:
                interrupt(st, channel)
            return
        bus.phase = NONE
        if cfg.ranked == POLLED:
            polling.become_idle(st, channel)
    if cfg.suspends != 0:
        recheck_suspensions(st, channel)
    asks = bus.ask_command
    first = cfg.commands_first != 0 and asks != 0
    if not first:
        if bus.out_head >= 0:
            before, tid = select_data_out(st, channel)
            if tid >= 0:
                grant_out(st, channel, before, tid)
                return
        asks |= bus.ask_in
    if cfg.ranked == POLLED:
        polling.look(st, channel)
    if not grant_requesting(st, channel, asks) and first:
        grant_others(st, channel)


@cold
def grant_others(st, channel):
    """Grant channel ``channel`` to a data-out phase or, if none is ready, to a data-in phase.

    Called when commands have priority over data, but none of the requested commands may start.
    """
    bus = st.bus[channel]
    if bus.out_head >= 0:
        before, tid = select_data_out(st, channel)
        if tid >= 0:
            grant_out(st, channel, before, tid)
            return
    grant_requesting(st, channel, bus.ask_in)


@cold
def recheck_suspensions(st, channel):
    """Run the die scheduler again for the dies that request channel ``channel`` for a read, if the
    read would suspend an array operation and this suspension is no longer allowed."""
    asks = st.bus[channel].ask_command
    while asks != 0:
        at = lowest_bit(asks)
        asks &= ~(1 << at)
        die = st.way[channel, at]
        if suspends_in_vain(st, die, st.reg[0].now):
            select_next(st, die)


@inline
def grant_requesting(st, channel, asks):
    """Grant channel ``channel`` to one of the dies in bit mask ``asks``, round robin.

    Returns False if the power budget or the priority classes prevent each of these dies from
    starting an operation.
    """
    bus = st.bus[channel]
    cfg = st.cfg[0]
    while asks != 0:
        at = next_set_bit(asks, bus.turn)
        die = st.way[channel, at]
        if (cfg.power == 0 or has_power(st, die)) and (
            cfg.ranked != POLLED or polling.find_command(st, die)
        ):
            if cfg.ranked == POLLED:
                polling.pass_over(st, channel, bus.turn, at)
            bus.turn = at + 1 if at + 1 < cfg.ways * cfg.lanes else 0
            if st.die[die].want == COMMAND and not changed_to_write(st, die):
                grant_command(st, channel, die)
            else:
                grant_in(st, channel, die)
            return True
        asks &= ~(1 << at)
    return False


@inline
def changed_to_write(st, die):
    """Return True if MQSim's polling has selected a write on die ``die``, although the die may have
    requested the channel for a read."""
    return st.cfg[0].ranked == POLLED and st.die[die].pick == Q_WRITE


@cold
def has_power(st, die):
    """Return True if the power budget allows the next operation of die ``die``.

    An operation holds power from its first cycle on the channel to the end of its array operation;
    a copy-back holds power for both array operations. A page in the cache register shares the power
    of the program before it.
    """
    die_rec = st.die[die]
    if die_rec.pick == MORE:
        return True
    tid = die_rec.paused if die_rec.pick == RESUME else st.queue[die, 2 * die_rec.pick]
    if st.txn[tid].op == VPP or st.txn[tid].op == ODC:
        return True
    return can_power(st, die, planes_of(st, tid))


@inline
def hold_bus(st, channel, die, tid, phase, time):
    """Assign channel ``channel`` to transaction ``tid`` of die ``die`` for ``time`` ps from now."""
    bus = st.bus[channel]
    die_rec = st.die[die]
    now = st.reg[0].now
    die_rec.on_bus = 1
    if st.cfg[0].ranked == POLLED:
        polling.become_busy(st, channel)
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
    if st.cfg[0].ordered != 0:
        register(st, channel)
        st.command[tid].sequence = event_order.WAITING
    if st.cfg[0].probe != 0:
        scheduler_statistics.on_bus(st, die, tid, phase, time)
    if st.cfg[0].watch != 0:
        st.use[st.txn[tid].phase, st.reg[0].bus0 + channel] += time


@inline
def grant_out(st, channel, before, tid):
    """Grant channel ``channel`` to the data-out phase of transaction ``tid``.

    ``before``: predecessor of ``tid`` in the data-out list, or -1 if there is none. The next page
    of a multi-plane read takes the position of ``tid`` in the list.
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
        st.command[following].sequence = event_order.READY
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
            time += planes_of(st, tid) * (cfg.out + cfg.out_plane)
        bus.size_out += txn.bus
    elif txn.op == COPYBACK:
        time = st.cycles[COPYBACK_IN, planes_of(st, tid)]
    else:
        time = st.cycles[STATUS, 1]
    hold_bus(st, channel, txn.die, tid, OUT, time)


@cold
def out_ps(st, tid):
    """Return the command time of the data-out phase of read ``tid`` in ps, without the data.

    After a multi-plane read, the controller must select each page before it transfers its data.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if cfg.slots > 1:  # pages of the reservoir, with txn.page < 0, have one unit for each plane
        parts = planes_at(st, tid) if txn.page < 0 else pages(st, txn.ppn, txn.n)
        again = txn.array < 0 <= txn.page
        if parts > 1 or again or txn.mate >= 0 or txn.planes & (txn.planes - 1) != 0:
            return parts * (cfg.out + cfg.out_plane)
        return cfg.out
    if txn.n > 1 or txn.planes & (txn.planes - 1) != 0:
        return txn.n * (cfg.out + cfg.out_plane)
    return cfg.out


@inline
def grant_command(st, channel, die):
    """Grant channel ``channel`` to the command and address cycles of the next operation of die
    ``die``. The array operation starts after these cycles."""
    now = st.reg[0].now
    tid, time, wait, array = start_command(st, die, now)
    hold_bus(st, channel, die, tid, COMMAND, time)
    if st.cfg[0].overlap == 0:
        release_quietly(st, channel, die)
    begin_array(st, die, tid, now + time + wait, array)


@inline
def release_quietly(st, channel, die):
    """Mark the present phase of channel ``channel`` as quiet and release die ``die``.

    The end of a quiet phase is an event only if another channel request is pending, because the
    array operation that follows needs no channel.
    """
    bus = st.bus[channel]
    bus.quiet = 1
    st.die[die].on_bus = 0
    if st.cfg[0].watch != 0:
        line(st, st.reg[0].bus0 + channel, bus.start, bus.until, bus.txn)


@inline
def grant_in(st, channel, die):
    """Grant channel ``channel`` to a data-in phase of die ``die``: command, address and data of the
    next program or gradient, or of the next page of a word line."""
    die_rec = st.die[die]
    cfg = st.cfg[0]
    queue = die_rec.pick
    if queue == MORE:
        tid = die_rec.cache
        first = die_rec.loading
    else:
        if cfg.ranked == CLASSES and HOST_QUEUES >> queue & 1:
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


@cold
def interrupt(st, channel):
    """Interrupt the data transfer on channel ``channel`` to send the requested commands that may
    start.

    Each command delays the end of the transfer by its time on the channel. A transfer that ends
    now, or a phase without data, is not interrupted.
    """
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
        at = next_set_bit(bus.ask_command & ~refused, bus.turn)
        die = st.way[channel, at]
        bit = 1 << at
        start = max(now, bus.command_until)
        if (
            cfg.suspends != 0
            and suspends_in_vain(st, die, start)
            or cfg.power != 0
            and not has_power(st, die)
        ):
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
        select_next(st, die)


@inline
def next_event_ps(st, channel):
    """Return the time of the next event of channel ``channel`` in ps, or NEVER if none is pending.

    If ``cfg.watch`` is 0, the end of an array operation is not a separate event while the channel
    is busy. It is processed when the channel is free, because no code outside the channel depends
    on it.
    """
    bus = st.bus[channel]
    cfg = st.cfg[0]
    if cfg.ordered != 0:
        return event_order.next_event_ps(st, channel)
    if bus.phase != NONE and bus.quiet != 0:
        # A phase that has ended is still quiet while an operation that ends now was not processed.
        until = max(bus.until, st.reg[0].now)
        if bus.ask_command | bus.ask_in != 0 or cfg.ranked == POLLED:
            time = until
        else:
            time = max(until, st.txn[bus.out_head].time) if bus.out_head >= 0 else NEVER
            if cfg.watch == 0 and bus.done_head >= 0:
                return min(time, max(until, st.txn[bus.done_head].time))
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
def grant_now(st, channel):
    """Grant channel ``channel`` before the end of the present event. At its end, the event may
    grant the channel again. Called after a write request has started a garbage collection, so that
    the collection is submitted before the writes of the request (event_order.py)."""
    if st.cfg[0].ranked == POLLED:
        polling.end_submission(st)
    if st.cfg[0].ordered != 0 and st.bus[channel].touched == 0:
        return  # its dies are busy, or nothing has been submitted
    grant(st, channel)
    set_leaf(st, channel, next_event_ps(st, channel))


@inline
def finish_event(st):
    """Finish an event: grant every channel that is marked for a new grant decision, and set the
    time of its next event."""
    reg = st.reg[0]
    if st.cfg[0].ordered != 0:
        event_order.submit_kept(st)
    if st.cfg[0].ranked == POLLED:
        polling.end_submission(st)
    while reg.touched > 0:
        if st.cfg[0].ordered != 0:
            channel = event_order.take_touched(st)
        else:
            reg.touched -= 1
            channel = st.touched[reg.touched]
        st.bus[channel].touched = 0
        grant(st, channel)
        set_leaf(st, channel, next_event_ps(st, channel))
