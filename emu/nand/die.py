"""State of dies and channels: queues, registers and power.

Owns the records of dies and channels, the priority order of queues, queue membership and the power
budget. Does not own the choice of a die's next command (die_scheduler.py), the end of array
operations (array.py) or channel grants (channel.py).
Source: MQSim for the queues and their order (mapping, garbage collection when urgent, user; reads
before programs before erases), ONFI for a die with cache and data registers.

A record of DIE describes hardware that executes one command at a time. This is usually a die. With
independent plane reads it is a plane, called a *lane* of the die; the record of the first lane also
has the values for the whole die. If a chip executes one command at a time, the record of its first
die describes the chip, and the records of its other dies are not used.
"""

from __future__ import annotations

import functools

import numpy as np

from ondie.emu.engine.core.events import CACHED
from ondie.emu.engine.core.intrinsics import lowest_bit, set_bits
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import record_type, rounded_up
from ondie.emu.nand.timing import READ
from ondie.kernels.jit import cold, inline

# Queues of a die, in their priority order while garbage collection is urgent.
(
    Q_PE,  # BPR, ODC, BPP and the erase of the block that a BPP is about to open
    Q_MAP_READ, Q_GC_READ, Q_GC_WRITE, Q_GC_ERASE, Q_READ,
    Q_LOAD,  # VPP: gradients into the register
    Q_MAP_WRITE, Q_WRITE,
) = range(9)  # fmt: skip
QUEUES = 9
RESUME, MORE = QUEUES, QUEUES + 1
"""Values of ``pick`` (number of the queue from which a die starts its next operation) that do not
denote a queue.

RESUME: resume the suspended program or erase. MORE: load the next page of the word line that is
being loaded.
"""
ALL = (1 << QUEUES) - 1
READS = 1 << Q_MAP_READ | 1 << Q_GC_READ | 1 << Q_READ
URGENT_READS = 1 << Q_MAP_READ | 1 << Q_READ
"""Bit mask of the queues whose reads may suspend a program or an erase even if garbage collection
is not urgent.

While garbage collection is urgent, garbage-collection reads may suspend, too.
"""
HOST_QUEUES = 1 << Q_READ | 1 << Q_LOAD | 1 << Q_WRITE
BACKGROUND = (Q_PE, Q_MAP_READ, Q_READ, Q_LOAD, Q_MAP_WRITE, Q_WRITE, Q_GC_READ, Q_GC_WRITE,
              Q_GC_ERASE)  # fmt: skip
"""Numbers of a die's queues in their priority order while garbage collection is not urgent."""

EVICTED, EVICTED_BY_READ = -1, -2
"""Values of field ``made`` of a transaction's command record for the write of a page that the data
cache evicts. For other transactions, the field is the time at which the request was split. The
write of an evicted page is not counted as a host transaction. Its priority class is 0 (EVICTED), or
1 if the page is evicted for a page that was read (EVICTED_BY_READ, as in MQSim; only with polled
classes)."""
POLLED = 2
"""Value of ``cfg.ranked`` for polled priority classes (polling.py)."""

_DIE = record_type(
    arr="i4",  # transaction in the array, -1 = idle
    cache="i4",  # transaction whose data are in the cache register, or moving into it
    paused="i4",  # program or erase that is suspended
    waiting="i4",  # bit per queue that is not empty
    want="i4",  # channel request: NONE, COMMAND or IN
    pick="i4",  # queue of the channel request, RESUME or MORE
    on_bus="i4",
    gradients="i4",  # gradient pages loaded and not yet consumed
    stripe="i4",  # 1: the data registers hold w, m, v (between BPR and BPP)
    bus="i4",  # channel of the die
    at="i4",  # position of the die on the channel
    first="i4",  # first lane of its die; first die of its chip where that takes one command
    collecting="i4",  # garbage collections that block host work (in the first lane)
    urgent="i4",  # 1: garbage collection has priority over host work (in the first lane)
    alone="i4",  # lane, from 1, of the operation that occupies the whole die (in the first lane)
    loading="i4",  # next page of the word line that is being loaded, -1 = none
    suspends="i4",  # times the present program or erase has been suspended
    served="i4",  # reads served during the present suspension
    power="i4",  # planes for which it holds power
    dev="i4",
    extra="i8",  # ps added to every array operation of this die
    left="i8",  # remaining time of the suspended operation, ps
    turn_read="i4",  # class that had the last turn among host reads; round_read: position in cycle
    round_read="i4",
    turn_write="i4",
    round_write="i4",
    still="i8",  # time from which the array of a suspended operation is free, ps
    looks="i8",  # looks of the scheduler that have advanced its turns (nand/polling.py)
    erase_first="i4",  # 1 + block of the first erase of its chip (nand/erase_queue.py); 0 = none
    erase_last="i4",
)
_BUS = record_type(
    until="i8",  # end of the present phase
    start="i8",  # when it was granted
    command_until="i8",  # end of the last command that interrupted data
    ask_command="i8",  # bit per position: a die requests the channel for a command
    ask_in="i8",  # bit per position: a die requests the channel for data in
    size_in="i8",  # bytes moved into registers
    size_out="i8",  # bytes moved out of registers
    grants="i8",
    out_head="i4",  # reads in the array or waiting for the channel, in order of time
    out_tail="i4",
    done_head="i4",  # programs, erases and computations in the array, in order of time
    done_tail="i4",
    turn="i4",  # position with priority in the next round-robin grant
    die="i4",  # die that holds the channel
    phase="i4",
    txn="i4",
    quiet="i4",  # 1: the end of the phase is an event only if a channel request is pending
    touched="i4",  # 1: in the list of channels that may be able to grant a request
    dev="i4",
    looks="i4",  # looks of the scheduler at its chips, since="i8": see nand/polling.py
    ended="i4",  # phases and arrays that have ended without a look since then
    since="i8",
)
DIE, BUS = rounded_up(_DIE), rounded_up(_BUS)
NONE, OUT, COMMAND, IN = range(4)
MAX_WAYS = 62


def order_table() -> np.ndarray:
    """Return the number of the queue with the highest priority for each mask of nonempty queues:
    int8[2, masks].

    Row 1 applies while garbage collection is urgent, row 0 otherwise.
    """
    return _order_table().copy()


@functools.cache
def _order_table() -> np.ndarray:
    table = np.full((2, ALL + 1), -1, np.int8)
    for row, order in enumerate((BACKGROUND, range(QUEUES))):
        for mask in range(1, ALL + 1):
            table[row, mask] = next(queue for queue in order if mask >> queue & 1)
    return table


@inline
def touch_channel(st, channel):
    """Mark channel ``channel`` for a new grant decision at the end of the event."""
    bus = st.bus[channel]
    if bus.touched == 0:
        bus.touched = 1
        reg = st.reg[0]
        st.touched[reg.touched] = channel
        reg.touched += 1


@inline
def pop(st, die, queue):
    """Remove and return the first transaction of queue ``queue`` of die ``die``."""
    tid = st.queue[die, 2 * queue]
    following = st.txn[tid].next
    if following < 0:
        st.die[die].waiting &= ~(1 << queue)
    else:
        st.queue[die, 2 * queue] = following
    st.txn[tid].next = -1
    return tid


@inline
def rank_of(st, tid):
    """Return the priority class of a host transaction, from 0 (highest) to 3.

    As in MQSim, the write of a page that the data cache evicts has class 0 (see EVICTED). With
    polled classes, the read that precedes a partial write has class 1 instead of the class of its
    flow.
    """
    txn = st.txn[tid]
    if txn.role == Role.MERGING and txn.op == READ and st.cfg[0].ranked == POLLED:
        return 1
    return own_rank_of(st, tid)


@inline
def own_rank_of(st, tid):
    """Return the priority class of host transaction ``tid``. Unlike :func:`rank_of`, this function
    makes no exception for the read that precedes a partial write.
    """
    txn = st.txn[tid]
    if txn.kind == CACHED and st.command[tid].made <= EVICTED:
        return EVICTED - int(st.command[tid].made)
    return st.zone[txn.stream].rank


@inline
def weight_of(rank):
    """Return the number of turns of priority class ``rank`` (1 to 3) in a cycle of four rounds (see
    :func:`promote`)."""
    return 4 if rank == 1 else 2 if rank == 2 else 1


@cold
def promote(st, die, queue):
    """Move the first transaction of the priority class whose turn it is to the head of queue
    ``queue``.

    Class 0 always has priority. Classes 1 to 3 take weighted turns in a cycle of four rounds: class
    1 has a turn in every round, class 2 in the last two rounds, and class 3 in the last round.
    """
    die_rec = st.die[die]
    reads = queue == Q_READ
    turn = die_rec.turn_read if reads else die_rec.turn_write
    rounds = (die_rec.round_read if reads else die_rec.round_write) + 4  # stored minus 4
    waiting = 0
    tid = st.queue[die, 2 * queue]
    while tid >= 0:
        waiting |= 1 << rank_of(st, tid)
        tid = st.txn[tid].next
    chosen = 0
    while waiting & 1 == 0:
        turn += 1
        if turn == 4:
            turn = 1
        if turn == 1:
            rounds -= 1
            if rounds <= 0:
                rounds = 4
        if weight_of(turn) >= rounds and waiting >> turn & 1:
            chosen = turn
            break
    if reads:
        die_rec.turn_read = turn
        die_rec.round_read = rounds - 4
    else:
        die_rec.turn_write = turn
        die_rec.round_write = rounds - 4
    bring_forward(st, die, queue, chosen)


@cold
def bring_forward(st, die, queue, chosen):
    """Move the first transaction of priority class ``chosen`` to the head of queue ``queue``."""
    before = -1
    tid = st.queue[die, 2 * queue]
    while rank_of(st, tid) != chosen:
        before = tid
        tid = st.txn[tid].next
    if before < 0:
        return
    st.txn[before].next = st.txn[tid].next
    if st.txn[tid].next < 0:
        st.queue[die, 2 * queue + 1] = before
    st.txn[tid].next = st.queue[die, 2 * queue]
    st.queue[die, 2 * queue] = tid


@inline
def planes_of(st, tid):
    """Return the number of planes that the command of transaction ``tid`` uses.

    Pages that the command accesses at other page offsets of the same word lines add no planes.
    """
    if st.cfg[0].slots > 1:
        return planes_at(st, tid)
    if st.txn[tid].mate < 0:
        return st.txn[tid].n
    page = st.txn[tid].page
    count = 0
    while tid >= 0:
        if st.txn[tid].page == page:
            count += st.txn[tid].n
        tid = st.txn[tid].mate
    return count


@cold
def planes_at(st, tid):
    """Return the number of planes that the command of transaction ``tid`` uses, on a drive whose
    flash pages have several slots. See :func:`planes_of`.
    """
    page = st.txn[tid].page
    planes = 0
    while tid >= 0:
        if st.txn[tid].page == page:
            planes |= st.txn[tid].planes
        tid = st.txn[tid].mate
    return set_bits(planes)


# --- several dies of a chip


@cold
def chip_record(st, tid):
    """Return the DIE record of transaction ``tid``'s chip, and renumber the planes of the
    transaction. Call this function only if a chip executes one command at a time.

    The planes of all dies of a chip are numbered consecutively.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    first = st.die[txn.die].first
    txn.planes <<= (txn.die - first) // cfg.channels * cfg.planes
    return first


@cold
def die_in_chip(st, die, tid):
    """Return the die on which transaction ``tid`` operates, one of the dies of the chip whose DIE
    record is ``die``."""
    cfg = st.cfg[0]
    return die + lowest_bit(st.txn[tid].planes) // cfg.planes * cfg.channels


# --- power


@cold
def take_power(st, die, count):
    """Set the power that die ``die`` holds to the power of an operation on ``count`` planes. The
    die may have held more or less power before."""
    die_rec = st.die[die]
    dev = st.dev[die_rec.dev]
    dev.power += count - die_rec.power
    die_rec.power = count
    if dev.first == die + 1:
        dev.first = 0
        touch_all(st, die_rec.dev)


@cold
def give_power(st, die):
    """Release all power that die ``die`` holds, because its array is idle."""
    die_rec = st.die[die]
    st.dev[die_rec.dev].power -= die_rec.power
    die_rec.power = 0
    touch_all(st, die_rec.dev)


@cold
def touch_all(st, dev):
    """Mark all channels of device ``dev`` for a new grant decision, because a die on any of them
    may wait for power."""
    cfg = st.cfg[0]
    for i in range(cfg.channels):
        touch_channel(st, dev * cfg.channels + i)


@cold
def can_power(st, die, count):
    """Return True if the power budget of the device allows die ``die`` to use the power of
    ``count`` planes.

    If the power does not suffice, the next available power is reserved for the die, unless another
    die has a reservation. While a die has the reservation, no other die gets more power. Thus
    operations on many planes do not starve.
    """
    die_rec = st.die[die]
    dev = st.dev[die_rec.dev]
    if count <= die_rec.power:
        return True
    if dev.first != 0 and dev.first != die + 1:
        return False
    if dev.power + count - die_rec.power <= st.cfg[0].power:
        return True
    dev.first = die + 1
    return False
