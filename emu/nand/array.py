"""Flash arrays: start, end and suspension of array operations.

Owns the two time-ordered lists of each channel (reads that wait for data out; programs, erases and
computations in progress), suspension, and the use of a die's cache register. Does not own the
choice of the next operation (die_scheduler.py) or the channel (channel.py).
Source: ONFI command sequences (cache read, cache program, copy-back, program and erase suspend).

Array operations have few different durations, so nearly every new operation is appended to the end
of its list.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import ERASE_SUSPENSIONS, PROGRAM_SUSPENSIONS
from ondie.emu.engine.core.events import cut_line, line
from ondie.emu.engine.core.roles import Role
from ondie.emu.nand import scheduler_statistics
from ondie.emu.nand.die import die_in_chip, give_power, planes_of, take_power, touch_all
from ondie.emu.nand.die_scheduler import select_next
from ondie.emu.nand.timing import BPP, BPR, COPYBACK, ERASE, ODC, PROGRAM, READ, SUSPEND
from ondie.kernels.jit import cold, inline

# --- lists in order of time


@inline
def await_out(st, channel, tid):
    """Insert transaction ``tid`` into the data-out list of channel ``channel``. The list is ordered
    by the time at which the array operation ends."""
    bus = st.bus[channel]
    time = st.txn[tid].time
    st.txn[tid].next = -1
    if bus.out_head < 0:
        bus.out_head = tid
        bus.out_tail = tid
    elif st.txn[bus.out_tail].time <= time:
        st.txn[bus.out_tail].next = tid
        bus.out_tail = tid
    elif st.txn[bus.out_head].time > time:
        st.txn[tid].next = bus.out_head
        bus.out_head = tid
    else:
        other = bus.out_head
        while st.txn[st.txn[other].next].time <= time:
            other = st.txn[other].next
        st.txn[tid].next = st.txn[other].next
        st.txn[other].next = tid


@inline
def await_done(st, channel, tid):
    """Insert transaction ``tid`` (a program, erase or computation) into the list of array
    operations of channel ``channel``. The list is ordered by end time."""
    bus = st.bus[channel]
    time = st.txn[tid].time
    st.txn[tid].next = -1
    if bus.done_head < 0:
        bus.done_head = tid
        bus.done_tail = tid
    elif st.txn[bus.done_tail].time <= time:
        st.txn[bus.done_tail].next = tid
        bus.done_tail = tid
    elif st.txn[bus.done_head].time > time:
        st.txn[tid].next = bus.done_head
        bus.done_head = tid
    else:
        other = bus.done_head
        while st.txn[st.txn[other].next].time <= time:
            other = st.txn[other].next
        st.txn[tid].next = st.txn[other].next
        st.txn[other].next = tid


@cold
def unlist(st, channel, tid):
    """Remove the suspended operation ``tid`` from its list of channel ``channel``. This is the
    data-out list if the drive reads the status of its dies, otherwise the list of array
    operations."""
    bus = st.bus[channel]
    if st.cfg[0].status != 0:
        before = -1
        at = bus.out_head
        while at != tid:
            before = at
            at = st.txn[at].next
        if before < 0:
            bus.out_head = st.txn[tid].next
        else:
            st.txn[before].next = st.txn[tid].next
        if bus.out_tail == tid:
            bus.out_tail = before
    else:
        before = -1
        at = bus.done_head
        while at != tid:
            before = at
            at = st.txn[at].next
        if before < 0:
            bus.done_head = st.txn[tid].next
        else:
            st.txn[before].next = st.txn[tid].next
        if bus.done_tail == tid:
            bus.done_tail = before
    st.txn[tid].next = -1


# --- the array


@inline
def begin_array(st, die, tid, now, time):
    """Start the array operation of transaction ``tid`` on die ``die`` at ``now`` for ``time`` ps.

    ``now`` is the end of the command cycles, which may be later than the present time. The
    operation is inserted into one of two lists of the channel. Reads and copy-backs always enter
    the data-out list. Programs and erases enter it if the drive reads the status of its dies. BPRs
    (OptimStore's reads into registers) and ODCs (its computations) enter it if their pages pass
    through the controller. All other operations enter the list of array operations.
    """
    die_rec = st.die[die]
    txn = st.txn[tid]
    cfg = st.cfg[0]
    die_rec.arr = tid
    txn.time = now + time
    if cfg.probe != 0:
        scheduler_statistics.on_array(st, die, tid, now, time)
    if cfg.watch != 0:
        at = die
        if cfg.chip != 0:
            at = die_in_chip(st, die, tid)
        st.use[txn.phase, at] += time
        line(st, at, now, now + time, tid)
    if (
        txn.op == READ
        or txn.op == COPYBACK
        or (cfg.status != 0 and txn.op <= ERASE)
        or (cfg.round_trip != 0 and (txn.op == BPR or txn.op == ODC))
    ):
        await_out(st, die_rec.bus, tid)
    else:
        await_done(st, die_rec.bus, tid)


@inline
def array_ps(st, die, tid):
    """Return the time for which transaction ``tid`` occupies the array of die ``die``, in ps."""
    txn = st.txn[tid]
    return st.op[txn.op].array + txn.array + st.die[die].extra


@inline
def array_end(st, die, tid):
    """End the program, erase or computation ``tid`` in the array of die ``die``. If the cache
    register holds the page of the next program, start this program."""
    die_rec = st.die[die]
    cfg = st.cfg[0]
    now = st.reg[0].now
    if die_rec.power > 0:
        rest_power(st, die)
    die_rec.arr = -1
    die_rec.suspends = 0
    op = st.txn[tid].op
    if op == BPP or (op == PROGRAM and st.txn[tid].role == Role.RESERVOIR):
        die_rec.stripe = 0
    elif op == ODC:
        die_rec.gradients -= 1
    if op == PROGRAM and die_rec.cache >= 0 and die_rec.on_bus == 0 and die_rec.loading < 0:
        # The end may be processed late (the channel was busy), and the next data later than it.
        following = die_rec.cache
        start = max(st.txn[tid].time, st.txn[following].time)
        die_rec.cache = -1
        begin_array(st, die, following, start, max(array_ps(st, die, following), now - start))
    if cfg.lanes > 1:
        release_die(st, die)
    select_next(st, die)


@cold
def release_die(st, die):
    """End the exclusive use of a die by one of its planes if the array and the cache register of
    the plane are empty. The other planes may then start reads. ``die``: DIE record of the plane."""
    die_rec = st.die[die]
    first_rec = st.die[die_rec.first]
    if first_rec.alone == die - die_rec.first + 1 and die_rec.arr < 0 and die_rec.cache < 0:
        first_rec.alone = 0


@cold
def rest_power(st, die):
    """Release the power that die ``die`` holds in the power budget at the end of an array
    operation.

    If the cache register holds the page of the next program, the die keeps the power needed by this
    program, but at most the power that it holds at present.
    """
    die_rec = st.die[die]
    if die_rec.cache < 0 or st.txn[die_rec.arr].op == READ:
        give_power(st, die)
    else:
        take_power(st, die, min(planes_of(st, die_rec.cache), die_rec.power))
        touch_all(st, die_rec.dev)


@cold
def notice_reads(st, channel):
    """Process the operations in the data-out list of channel ``channel`` that have finished in the
    array.

    The power of each die returns to the power budget, except for copy-backs, whose second array
    operation follows. If cache reads are enabled and the cache register is free, the data of a read
    moves into the register, and the array becomes free.
    """
    cfg = st.cfg[0]
    now = st.reg[0].now
    tid = st.bus[channel].out_head
    while tid >= 0 and st.txn[tid].time <= now:
        following = st.txn[tid].next
        die = st.txn[tid].die
        die_rec = st.die[die]
        if die_rec.arr == tid and st.txn[tid].op != COPYBACK:
            if die_rec.power > 0:
                rest_power(st, die)
            if cfg.cache_read != 0 and die_rec.cache < 0 and st.txn[tid].op == READ:
                die_rec.cache = tid
                die_rec.arr = -1
                select_next(st, die)
        tid = following


# --- suspension


@cold
def suspend(st, die, at):
    """Suspend the program or erase on the die of DIE record ``die`` at time ``at`` (ps), the start
    of the suspend command."""
    cfg = st.cfg[0]
    if cfg.lanes > 1:
        first_rec = st.die[st.die[die].first]
        die = st.die[die].first + first_rec.alone - 1
        first_rec.alone = 0
    die_rec = st.die[die]
    tid = die_rec.arr
    txn = st.txn[tid]
    unlist(st, die_rec.bus, tid)
    left = txn.time - at
    if die_rec.suspends > 0:  # its array may not have resumed yet
        left = min(left, die_rec.left)
    die_rec.left = left
    if cfg.watch != 0:
        leaf = die
        if cfg.chip != 0:
            leaf = die_in_chip(st, die, tid)
        st.use[txn.phase, leaf] -= left
        cut_line(st, leaf, at)
    if die_rec.power > 0:
        give_power(st, die)
    die_rec.paused = tid
    die_rec.arr = -1
    die_rec.suspends += 1
    die_rec.served = 0
    if txn.op == PROGRAM:
        st.count[die_rec.dev, PROGRAM_SUSPENSIONS] += 1
        die_rec.still = at + st.cycles[SUSPEND, 1] + cfg.suspend_program_wait
    else:
        st.count[die_rec.dev, ERASE_SUSPENSIONS] += 1
        die_rec.still = at + st.cycles[SUSPEND, 1] + cfg.suspend_erase_wait
