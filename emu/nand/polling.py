"""Polled priority classes, as in MQSim: each poll of a chip advances the turn of the classes.

The priority classes of user transactions take weighted turns (see die.promote). Classes without
waiting transactions are skipped. In MQSim, the scheduler advances the turn each time it polls a
chip (a *look* in this code), even if no command results.

Owns the number of polls of each chip, and the turns that polls advance. Does not own turns that
advance with commands (die.py), the selection of a queue (die_scheduler.py) or the grant of a
channel (channel.py).
Source: MQSim's transaction scheduling unit. It polls the chips of an idle channel, round robin up
to the first chip that gets a command, in these cases: transactions are submitted, the transfer of a
command or of data has ended, or an array operation has ended. A poll determines the class of the
next user read, then the class of the next user write, even if the chip is busy.

``bus.looks`` is the number of polls of all chips of a channel. While the channel is idle, the
submissions since ``bus.since`` are added to this number. The turns of a chip are updated before its
queues change.
"""

from __future__ import annotations

from ondie.emu.engine.core.roles import Role
from ondie.emu.nand.die import (
    NONE,
    Q_GC_ERASE,
    Q_GC_READ,
    Q_GC_WRITE,
    Q_MAP_READ,
    Q_READ,
    Q_WRITE,
    bring_forward,
    own_rank_of,
    rank_of,
    touch_channel,
    weight_of,
)
from ondie.emu.nand.timing import READ
from ondie.kernels.jit import cold, inline, njit

CLASSES = 1
"""Value of ``cfg.ranked`` with which the commands of a chip advance the turns of the priority
classes (see die.promote). With POLLED, the scheduler's polls of the chip advance them."""
ROUNDS = 4
STATES = 3 * ROUNDS
"""Number of states of the weighted turns (see die.promote). A state is the class that has the turn
(1 to 3) and the number of remaining rounds of the cycle (1 to ROUNDS)."""
LAST = 3
ONLY_LAST = 1 << LAST
"""Bit mask of the priority classes with waiting transactions if only class 3 (LAST) has any."""
FRESH = -1
"""Value of ``bus.since`` of a channel that becomes idle in the present event."""


@njit
def looks_of(st, channel):
    """Return the number of scheduler polls of the chips of channel ``channel`` until now."""
    bus = st.bus[channel]
    if bus.phase != NONE or bus.since == FRESH:
        return bus.looks
    return bus.looks + st.reg[0].submissions - bus.since


@cold
def submit(st, queue):
    """Record the submission of a transaction to queue ``queue``.

    For a mapping read, the scheduler polls the chips immediately. For other transactions, it polls
    them once at the end of the event.
    """
    if queue == Q_MAP_READ:
        look_again(st)
    else:
        st.reg[0].submitted = 1


@cold
def end_submission(st):
    """Poll the chips of all idle channels if transactions were submitted during the event that ends
    now."""
    reg = st.reg[0]
    if reg.submitted != 0:
        reg.submitted = 0
        look_again(st)


@cold
def look_again(st):
    """Poll the chips of all idle channels. Return True if an earlier poll left user transactions
    waiting because their class did not have the turn. In this case, also mark the idle channels
    that dies have requested, so that a new grant decision is made for them."""
    reg = st.reg[0]
    reg.submissions += 1
    left = reg.turnless != 0
    reg.turnless = 0
    if left:
        for channel in range(st.bus.shape[0]):
            bus = st.bus[channel]
            if bus.phase == NONE and bus.ask_command | bus.ask_in != 0:
                touch_channel(st, channel)
    return left


@cold
def become_idle(st, channel):
    """Record that channel ``channel`` becomes idle at the end of this event. The scheduler then
    polls the chips of the channel.
    """
    st.bus[channel].ended += 1
    st.bus[channel].since = FRESH


@cold
def end_array(st, channel):
    """Record the end of an array operation on channel ``channel``. If the channel is idle, the
    scheduler then polls its chips.

    If an array operation and a phase of the channel end at the same time, the array operation
    counts as ended first.
    """
    bus = st.bus[channel]
    if bus.phase == NONE and bus.since != FRESH:
        bus.ended += 1


@cold
def look(st, channel):
    """Poll the chips of the idle channel ``channel`` if a channel phase or an array operation has
    ended.

    Called at the end of an event if no data-out phase waits for the channel.
    """
    bus = st.bus[channel]
    if bus.since == FRESH:
        bus.since = st.reg[0].submissions
    bus.looks += bus.ended
    bus.ended = 0


@cold
def become_busy(st, channel):
    """Record that channel ``channel`` is busy from now on."""
    bus = st.bus[channel]
    bus.looks = looks_of(st, channel)
    bus.since = FRESH
    bus.ended = 0


@njit
def advance(turn, rounds, waiting, looks):
    """Advance the turn of the priority classes by ``looks`` polls.

    Returns (class that has the turn, remaining rounds of the cycle of ROUNDS rounds, number of
    polls that selected no class). ``turn``, ``rounds``: the first two of these values before the
    polls. ``waiting``: bit mask of the classes with waiting transactions. Nothing changes while
    class 0 waits. If no class waits, class 1 has the turn afterwards. A poll ends after four rounds
    of class 1. Therefore, if only class 3 waits and had the last turn, the poll selects no class
    and ends at class 1.
    """
    if waiting & 1 != 0 or looks <= 0:
        return turn, rounds, 0
    if waiting == 0:
        return 1, rounds, looks
    if waiting == ONLY_LAST:
        looks += int(turn == LAST and rounds == 1)  # the first look then finds nothing
        return LAST if looks % 2 else 1, 1, looks // 2
    looks = looks if looks <= STATES else STATES + (looks - STATES) % period(waiting)
    for _ in range(looks):
        while True:
            turn += 1
            if turn == ROUNDS:
                turn = 1
            if turn == 1:
                rounds = rounds - 1 if rounds > 1 else ROUNDS
            if weight_of(turn) >= rounds and waiting >> turn & 1:
                break
    return turn, rounds, 0


@inline
def period(waiting):
    """Return the number of polls of a chip after which the turns of its waiting priority classes
    repeat. ``waiting``: bit mask of the waiting classes."""
    return (waiting >> 1 & 1) * 4 + (waiting >> 2 & 1) * 2 + (waiting >> 3 & 1)


@njit
def waiting_classes(st, die, queue):
    """Return the bit mask of the priority classes with a transaction in queue ``queue`` of die
    ``die``.
    """
    waiting = 0
    if st.die[die].waiting >> queue & 1:
        tid = st.queue[die, 2 * queue]
        while tid >= 0:
            waiting |= 1 << rank_of(st, tid)
            tid = st.txn[tid].next
    return waiting


@cold
def merging_classes(st, die):
    """Return the bit mask of the priority classes that have a partial write waiting for die ``die``
    to read its old page. MQSim keeps such a write in its queue during the read, so the class of
    the write counts as waiting. Returns 0 unless events are handled in the order of their
    registration (``cfg.ordered``)."""
    waiting = 0
    if st.cfg[0].ordered == 0:
        return waiting
    if st.die[die].waiting >> Q_READ & 1:
        tid = st.queue[die, 2 * Q_READ]
        while tid >= 0:
            if st.txn[tid].role == Role.MERGING:
                waiting |= 1 << own_rank_of(st, tid)
            tid = st.txn[tid].next
    tid = st.die[die].arr
    while tid >= 0:
        if st.txn[tid].role == Role.MERGING and st.txn[tid].op == READ:
            waiting |= 1 << own_rank_of(st, tid)
        tid = st.txn[tid].mate
    return waiting


@njit
def turn_reads(st, die, waiting, looks):
    """Advance the turn of the priority classes of host reads on die ``die`` by ``looks`` polls (see
    :func:`advance`).

    ``waiting``: bit mask of the waiting classes. Returns the number of polls that found no class.
    """
    die_rec = st.die[die]
    before = die_rec.round_read + ROUNDS
    turn, rounds, missed = advance(die_rec.turn_read, before, waiting, looks)
    die_rec.turn_read = turn
    die_rec.round_read = rounds - ROUNDS
    return missed


@njit
def turn_writes(st, die, waiting, looks):
    """Advance the turn of the priority classes of host writes on die ``die`` by ``looks`` polls
    (see :func:`advance`).

    ``waiting``: bit mask of the waiting classes. Returns the number of polls that found no class.
    """
    die_rec = st.die[die]
    before = die_rec.round_write + ROUNDS
    turn, rounds, missed = advance(die_rec.turn_write, before, waiting, looks)
    die_rec.turn_write = turn
    die_rec.round_write = rounds - ROUNDS
    return missed


@njit
def look_in_vain(st, die, looks):
    """Advance the turns of die ``die`` by ``looks`` polls in which the die got no command."""
    die_rec = st.die[die]
    held = die_rec.waiting
    mapping = held >> Q_MAP_READ & 1
    moves_in = held >> Q_GC_READ & 1
    moves_out = held >> Q_GC_WRITE & 1
    erases = held >> Q_GC_ERASE & 1 | int(die_rec.collecting + die_rec.erase_first > 0)
    reads = looks
    writes = looks
    if is_urgent(st, die):
        if mapping != 0:
            reads = looks * (1 - moves_in)
        elif moves_in == 0 and moves_out | erases != 0:
            reads = 0
        if moves_out == 0 and erases != 0:
            writes = 0
        turn_reads(st, die, waiting_classes(st, die, Q_READ), reads)
    else:
        missed = turn_reads(st, die, waiting_classes(st, die, Q_READ), reads)
        if mapping == 0:
            writes += missed
    waiting = waiting_classes(st, die, Q_WRITE) | merging_classes(st, die)
    turn_writes(st, die, waiting, writes)


@inline
def is_urgent(st, die):
    """Return True if garbage collection on die ``die`` has priority over user transactions."""
    return st.die[die].urgent != 0 or st.cfg[0].exclusive != 0


@cold
def catch_up(st, die):
    """Apply to die ``die`` the polls since the last change of its queues: each of them advanced the
    turn of the priority classes. Call this function before a queue changes.
    """
    die_rec = st.die[die]
    looks = looks_of(st, die_rec.bus)
    if looks > die_rec.looks:
        look_in_vain(st, die, looks - die_rec.looks)
    die_rec.looks = looks


@cold
def find_command(st, die):
    """Poll die ``die``, which requests the idle channel. Return False if the die gets no command.

    The turns are first advanced by the earlier polls. If the die has selected the queue of
    user reads or writes (field ``pick`` of its record), the poll may select the other one of these
    queues. It may also give the die no command, because a poll does not always select a class (see
    :func:`advance`). The first transaction of the class that has the turn becomes the head of its
    queue.
    """
    die_rec = st.die[die]
    looks = looks_of(st, die_rec.bus)
    if looks - die_rec.looks > 1:
        look_in_vain(st, die, looks - die_rec.looks - 1)
    die_rec.looks = looks
    reads = waiting_classes(st, die, Q_READ)
    ready = waiting_classes(st, die, Q_WRITE)
    writes = ready | merging_classes(st, die)
    urgent = is_urgent(st, die)
    queue = die_rec.pick
    companion = -1
    if queue == Q_MAP_READ or queue == Q_GC_READ:
        if queue == Q_GC_READ or not urgent or not die_rec.waiting >> Q_GC_READ & 1:
            if turn_reads(st, die, reads, 1) == 0:
                companion = 0 if reads & 1 else die_rec.turn_read
    elif queue == Q_GC_WRITE:
        if urgent and turn_writes(st, die, writes, 1) == 0:
            companion = 0 if writes & 1 else die_rec.turn_write
    elif queue == Q_READ or queue == Q_WRITE:
        queue = find_user_command(st, die, reads, writes, ready, urgent)
    st.reg[0].companion = companion
    if queue < 0:
        st.reg[0].turnless = 1
        return False
    die_rec.pick = queue
    return True


@njit
def find_user_command(st, die, reads, writes, ready, urgent):
    """Poll die ``die`` for user transactions. Each poll advances the turns of the priority classes.
    Return the queue (Q_READ or Q_WRITE) of the class that gets the turn, or -1 if no command can
    start.

    ``reads``, ``writes``: bit masks of the classes with waiting reads and writes. ``ready``: bit
    mask of the classes with a write whose page need not be read first. Unless garbage collection is
    ``urgent``, MQSim determines the class of the next write twice and therefore advances the turn
    twice.
    """
    die_rec = st.die[die]
    if turn_reads(st, die, reads, 1) == 0:
        bring_forward(st, die, Q_READ, 0 if reads & 1 else die_rec.turn_read)
        return Q_READ
    if not urgent:
        turn_writes(st, die, writes, 1)
    if turn_writes(st, die, writes, 1) == 0:
        rank = 0 if writes & 1 else die_rec.turn_write
        if ready >> rank & 1:
            bring_forward(st, die, Q_WRITE, rank)
            return Q_WRITE
    return -1


@cold
def pass_over(st, channel, turn, last):
    """Record that a poll of the chips of ``channel`` began at position ``turn`` and found a command
    at position ``last``. The dies at later positions were not polled."""
    looks = looks_of(st, channel)
    ways = st.way.shape[1]
    for i in range((last - turn) % ways + 1, ways):
        die_rec = st.die[st.way[channel, (turn + i) % ways]]
        if die_rec.looks < looks:
            die_rec.looks += 1
