"""Die scheduler: selects the next command of a die and requests the channel.

Owns the choice among a die's queues, the suspension rules and the rules for independent plane
reads. Does not own the queues (die.py), the array (array.py) or the channel (channel.py).
Source: ONFI (cache read and cache program, program and erase suspend); independent plane reads as
in JESD230F and data sheets of 3D NAND: reads only, each in a separate plane.

Suspension. A read of the host or of the mapping table suspends a program or an erase; a
garbage-collection read does so only while garbage collection is urgent. An operation is not
suspended in three cases: its remaining time when the channel is granted is ``suspend_*_left`` or
less, it has been suspended ``max_suspends`` times, or the cache register holds the next page. The
array stops at the start of the suspend command. The operation continues t_resume after the resume
command. In between, the die accepts only reads that may suspend, including reads arriving later, at
most ``suspend_reads`` of them in a row. One operation at a time can be suspended.

Independent plane reads. Every operation except a read of one plane needs the whole die: it waits
until all planes are idle, and while it waits no plane starts another read. A plane holds one read
in the array and one in its cache register.
"""

from __future__ import annotations

from ondie.emu.engine.core.roles import Role
from ondie.emu.nand import polling, scheduler_statistics
from ondie.emu.nand.die import (
    ALL,
    COMMAND,
    HOST_QUEUES,
    IN,
    MORE,
    NONE,
    POLLED,
    Q_GC_READ,
    Q_GC_WRITE,
    Q_LOAD,
    Q_MAP_WRITE,
    Q_PE,
    Q_WRITE,
    READS,
    RESUME,
    URGENT_READS,
    chip_record,
    touch_all,
    touch_channel,
)
from ondie.emu.nand.timing import COPYBACK, ERASE, PROGRAM, READ, VPP
from ondie.kernels.jit import apart, cold, inline, njit


@inline
def push(st, die, tid, queue):
    """Append transaction ``tid`` to queue ``queue`` of die ``die``. If the queue was empty, run the
    die scheduler.
    """
    if st.cfg[0].chip != 0:
        die = chip_record(st, tid)
    if st.cfg[0].ranked == POLLED:
        polling.catch_up(st, die)
        polling.submit(st, queue)
    if st.cfg[0].probe != 0:
        scheduler_statistics.on_push(st, tid, die, queue)
    die_rec = st.die[die]
    st.txn[tid].next = -1
    st.txn[tid].queue = queue
    st.txn[tid].die = die
    if die_rec.waiting >> queue & 1:
        st.txn[st.queue[die, 2 * queue + 1]].next = tid
        st.queue[die, 2 * queue + 1] = tid
    else:
        die_rec.waiting |= 1 << queue
        st.queue[die, 2 * queue] = tid
        st.queue[die, 2 * queue + 1] = tid
        select_next(st, die)


@cold
def push_in_order(st, die, tid, queue):
    """Insert transaction ``tid`` into queue ``queue`` of die ``die`` in the order of page
    allocation (field ``order``)."""
    if st.cfg[0].chip != 0:
        die = chip_record(st, tid)
    if st.cfg[0].ranked == POLLED:
        polling.catch_up(st, die)
        if st.cfg[0].ordered == 0:  # in MQSim it has been submitted before
            polling.submit(st, queue)
    if st.cfg[0].probe != 0:
        scheduler_statistics.on_push(st, tid, die, queue)
    die_rec = st.die[die]
    txn = st.txn[tid]
    before = -1
    other = st.queue[die, 2 * queue] if die_rec.waiting >> queue & 1 else -1
    while other >= 0 and st.txn[other].order < txn.order:
        before = other
        other = st.txn[other].next
    txn.next = other
    txn.queue = queue
    txn.die = die
    die_rec.waiting |= 1 << queue
    if before < 0:
        st.queue[die, 2 * queue] = tid
    else:
        st.txn[before].next = tid
    if other < 0:
        st.queue[die, 2 * queue + 1] = tid
    if before < 0:
        select_next(st, die)


@apart
def select_next(st, die):
    """Select the next command of die ``die`` and update its channel request."""
    die_rec = st.die[die]
    if st.cfg[0].lanes > 1:
        select_next_of_lanes(st, die_rec.first)
        return
    want = NONE
    pick = -1
    if die_rec.on_bus == 0:
        waiting = die_rec.waiting
        busy = (
            die_rec.arr & die_rec.cache & die_rec.paused
        ) >= 0 or die_rec.stripe | die_rec.gradients != 0  # none is -1
        if busy and waiting != 0:
            waiting &= allowed_queues(st, die)
        if die_rec.collecting > 0 or (die_rec.erase_first > 0 and st.cfg[0].exclusive != 0):
            waiting &= ~HOST_QUEUES
        if waiting != 0:
            pick = int(st.order[die_rec.urgent, waiting])
            op = st.txn[st.queue[die, 2 * pick]].op
            want = COMMAND + int(op == PROGRAM or op == VPP)
        if busy:
            if want == NONE and die_rec.paused >= 0 and die_rec.arr < 0 and die_rec.cache < 0:
                want = COMMAND
                pick = RESUME
            if die_rec.cache >= 0 and die_rec.loading >= 0:
                want = IN
                pick = MORE
    set_channel_request(st, die, want, pick)


@cold
def abandon_updates(st):
    """Discard the optimizer's data in the registers of all dies, and drop the queued operations on
    this data, as the controller does after a power loss. Queued erases remain queued."""
    for die in range(st.die.shape[0]):
        die_rec = st.die[die]
        queued = die_rec.waiting & (1 << Q_PE | 1 << Q_LOAD)
        if die_rec.stripe == 0 and die_rec.gradients == 0 and queued == 0:
            continue
        die_rec.stripe = 0
        die_rec.gradients = 0
        tid = st.queue[die, 2 * Q_PE] if die_rec.waiting >> Q_PE & 1 else -1
        die_rec.waiting &= ~queued
        last = -1
        while tid >= 0:
            after = st.txn[tid].next
            if st.txn[tid].op == ERASE:
                st.txn[tid].next = -1
                if last < 0:
                    st.queue[die, 2 * Q_PE] = tid
                    die_rec.waiting |= 1 << Q_PE
                else:
                    st.txn[last].next = tid
                last = tid
            tid = after
        st.queue[die, 2 * Q_PE + 1] = last
        select_next(st, die)


@inline
def set_channel_request(st, die, want, pick):
    """Set the channel request of die ``die``: ``want`` (NONE, COMMAND or IN) for queue ``pick``."""
    die_rec = st.die[die]
    die_rec.pick = pick
    if want != die_rec.want:
        bus = st.bus[die_rec.bus]
        rest = ~(1 << die_rec.at)
        bus.ask_command = bus.ask_command & rest | int(want == COMMAND) << die_rec.at
        bus.ask_in = bus.ask_in & rest | int(want == IN) << die_rec.at
        die_rec.want = want
        touch_channel(st, die_rec.bus)
    if st.cfg[0].power != 0 and want == NONE and st.dev[die_rec.dev].first == die + 1:
        st.dev[die_rec.dev].first = 0  # the die no longer needs the power reserved for it
        touch_all(st, die_rec.dev)


@njit
def allowed_queues(st, die):
    """Return the bit mask of the queues whose operations the busy die ``die`` may start."""
    die_rec = st.die[die]
    cfg = st.cfg[0]
    taken = die_rec.stripe != 0 or die_rec.gradients != 0  # the registers hold the optimizer's data
    load = die_rec.cache < 0 and die_rec.gradients < cfg.gradient_registers
    if die_rec.arr < 0:
        if die_rec.paused >= 0:
            return suspending_queues(st, die_rec)
        if die_rec.cache >= 0:  # data out of the cache register is pending
            return READS if not taken else 0
        mask = 1 << Q_PE if taken else ALL & ~(1 << Q_LOAD)
        if load:
            mask |= 1 << Q_LOAD
        return mask
    txn = st.txn[die_rec.arr]
    mask = 0
    if load and (txn.op >= VPP or die_rec.stripe != 0) and txn.op != COPYBACK:
        mask |= 1 << Q_LOAD
    if die_rec.cache >= 0 or taken:
        return mask
    if txn.op == PROGRAM and cfg.cache_program != 0 and die_rec.waiting & READS == 0:
        for queue in (Q_GC_WRITE, Q_MAP_WRITE, Q_WRITE):
            if die_rec.waiting >> queue & 1 and st.txn[st.queue[die, 2 * queue]].op == PROGRAM:
                if st.txn[st.queue[die, 2 * queue]].role != Role.MADE or fits_open_block(
                    st, die_rec.arr, st.queue[die, 2 * queue]
                ):
                    mask |= 1 << queue
        if die_rec.waiting >> Q_PE & 1 and die_rec.waiting >> Q_WRITE & 1:
            if st.txn[st.queue[die, 2 * Q_WRITE]].role >= Role.REGISTERS:
                mask &= ~(1 << Q_WRITE)  # Q_PE may hold the erase of this write's block
    if may_suspend(st, die_rec, st.reg[0].now):
        mask |= suspending_queues(st, die_rec)
    return mask


@cold
def fits_open_block(st, working, tid):
    """Return True if program ``tid`` (of a parity page or of a step's record) can directly follow
    program ``working``: after ``working``, the open block of the reservoir has a free page.

    Otherwise, a block must be erased between the two programs.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    at = st.pool[txn.dev * cfg.dies + txn.lpn % cfg.dies].r_next + int(
        st.txn[working].role == Role.MADE
    )
    return at % cfg.pages != 0


@inline
def suspending_queues(st, die_rec):
    """Return the bit mask of the queues whose reads may suspend a program or an erase, or may run
    while an operation is suspended. The mask is 0 after ``suspend_reads`` reads during one
    suspension."""
    cfg = st.cfg[0]
    if die_rec.paused >= 0 and cfg.suspend_reads > 0 and die_rec.served >= cfg.suspend_reads:
        return 0
    return URGENT_READS | 1 << Q_GC_READ if die_rec.urgent != 0 else URGENT_READS


@inline
def may_suspend(st, die_rec, at):
    """Return True if the operation in the array of die record ``die_rec`` may be suspended at time
    ``at`` (ps).

    The operation must be a program or an erase for which the configuration enables suspension. Its
    remaining time must exceed the configured minimum, and it must have been suspended fewer than
    ``max_suspends`` times. The die must have no other suspended operation, and its cache register
    must be empty.
    """
    cfg = st.cfg[0]
    txn = st.txn[die_rec.arr]
    if txn.op == PROGRAM:
        least = cfg.suspend_program_left if cfg.suspend_program != 0 else -1
    elif txn.op == ERASE:
        least = cfg.suspend_erase_left if cfg.suspend_erase != 0 else -1
    else:
        return False
    if (
        least < 0
        or die_rec.paused >= 0
        or die_rec.cache >= 0
        or die_rec.suspends >= cfg.max_suspends
    ):
        return False
    return txn.time - at > least


# --- independent plane reads


@inline
def needs_die(st, tid):
    """Return True if transaction ``tid`` needs the whole die, that is, unless it is a read of one
    plane."""
    txn = st.txn[tid]
    if txn.op != READ:
        return True
    # Slots of a read lie in one plane, except those of a super-page of the reservoir.
    return txn.n > 1 and (st.cfg[0].slots == 1 or txn.page < 0)


@cold
def select_next_of_lanes(st, first):
    """Select the next command of every plane of a die with independent plane reads.

    ``first``: DIE record of the first plane of the die. See :func:`select_next`.
    """
    cfg = st.cfg[0]
    first_rec = st.die[first]
    barred = HOST_QUEUES if first_rec.collecting > 0 else 0
    rest = first_rec.alone == 0
    wide = -1  # the plane that waits for the whole die
    for die in range(first, first + cfg.lanes):
        die_rec = st.die[die]
        if die_rec.arr >= 0 or die_rec.cache >= 0 or die_rec.on_bus != 0:
            rest = False
            continue
        waiting = die_rec.waiting & ~barred
        if waiting != 0 and wide < 0:
            queue = int(st.order[first_rec.urgent, waiting])
            if needs_die(st, st.queue[die, 2 * queue]):
                wide = die
    makes_way = False
    if first_rec.alone != 0:
        last_rec = st.die[first + first_rec.alone - 1]
        makes_way = (
            last_rec.arr >= 0 and last_rec.on_bus == 0 and may_suspend(st, last_rec, st.reg[0].now)
        )
    resting = rest
    for die in range(first, first + cfg.lanes):
        die_rec = st.die[die]
        want = NONE
        pick = -1
        if die_rec.on_bus == 0:
            waiting = die_rec.waiting & ~barred
            if die_rec.loading >= 0:
                want = IN
                pick = MORE
            elif first_rec.paused >= 0 or makes_way:
                if die_rec.arr < 0 or makes_way:
                    pick, want = select_plane_read(
                        st, die, waiting & suspending_queues(st, first_rec)
                    )
            elif first_rec.alone != 0:
                if die == first + first_rec.alone - 1 and die_rec.arr >= 0:
                    pick, want = select_cached_program(st, die, waiting)
            elif wide >= 0:
                if die == wide and rest:
                    pick = int(st.order[first_rec.urgent, waiting])
                    op = st.txn[st.queue[die, 2 * pick]].op
                    want = IN if op == PROGRAM else COMMAND
            elif die_rec.arr < 0:
                pick, want = select_plane_read(st, die, waiting & READS)
            if want != NONE:
                resting = False
        set_channel_request(st, die, want, pick)
    if resting and first_rec.paused >= 0:
        set_channel_request(st, first, COMMAND, RESUME)


@inline
def select_plane_read(st, die, waiting):
    """Select a read that plane ``die`` can execute independently: the first operation of the queue
    with the highest priority. ``waiting``: mask of queues.

    Returns (queue, COMMAND), or (-1, NONE) if no queue in ``waiting`` has an operation or if this
    operation needs the whole die.
    """
    if waiting != 0:
        queue = int(st.order[st.die[st.die[die].first].urgent, waiting])
        if not needs_die(st, st.queue[die, 2 * queue]):
            return queue, COMMAND
    return -1, NONE


@inline
def select_cached_program(st, die, waiting):
    """Select a program whose data may enter the cache register while another program occupies the
    die. ``waiting``: bit mask of the queues with waiting transactions.

    Returns (queue, channel request), where the request is IN (data-in phase), or (-1, NONE) if
    there is no such program.
    """
    cfg = st.cfg[0]
    die_rec = st.die[die]
    if st.txn[die_rec.arr].op == PROGRAM and cfg.cache_program != 0 and die_rec.cache < 0:
        if waiting & READS == 0:
            for queue in (Q_GC_WRITE, Q_MAP_WRITE, Q_WRITE):
                if waiting >> queue & 1 and st.txn[st.queue[die, 2 * queue]].op == PROGRAM:
                    return queue, IN
    return -1, NONE


# --- priority of garbage collection


@njit
def set_gc_priority(st, die, urgent):
    """Set the priority of garbage collection on a die. ``die``: number of the die, or of a lane of
    the die (see die.py). ``urgent``: 1 if garbage collection has priority over host operations,
    else 0."""
    die_rec = st.die[st.die[die].first]
    if die_rec.urgent != urgent:
        die_rec.urgent = urgent
        select_next(st, st.die[die].first)


@cold
def bar_host_work(st, die, change):
    """Add ``change`` (+1 or -1) to the number of garbage collections that block host operations on
    a die. ``die``: number of the die, or of a lane of the die (see die.py)."""
    die_rec = st.die[st.die[die].first]
    if st.cfg[0].ranked == POLLED:
        polling.catch_up(st, st.die[die].first)
    die_rec.collecting += change
    select_next(st, st.die[die].first)
