"""Simultaneous events of channels in the order of their registration, as in MQSim.

MQSim handles simultaneous events in the order in which they were registered, one at a time. The end
of a phase on a channel and the end of a command in an array are separate events. A die (or a chip)
and a channel are busy until all consequences of the end of their last operation are complete, and
each set of transactions that is submitted together is scheduled before the next set.

Owns the registrations of a channel's events, their handling one at a time, and the choice among the
simultaneous events of all resources. Does not own the registrations of other events
(engine/core/events.py) or the consequences of an event (engine/run/loop.py).
Source: MQSim's event list, flash controller and transaction scheduling unit.

``st.sequence`` has the registration number of the present phase of each channel.
``command.sequence`` has the registration number of the end of a command in the array. It is WAITING
until the command has been sent over the channel. It is READY from the end of a read in the array
until the transfer of its data.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.engine.core.events import line
from ondie.emu.engine.core.state import Arrays
from ondie.emu.nand import erase_queue, polling
from ondie.emu.nand.array import array_end
from ondie.emu.nand.die import NONE, OUT, POLLED, touch_channel
from ondie.emu.nand.die_scheduler import push, select_next
from ondie.kernels.jit import cold, inline, njit

WAITING, READY = 0, -1
PHASE, READ, DONE = range(3)
"""Kinds of channel events: the end of a phase (PHASE), the end of a read in an array (READ), whose
data is then ready, and the end of a program or an erase in an array (DONE).
"""


def watch(arrays: Arrays) -> None:
    """Set ``arrays`` so that simultaneous events are handled in the order of their registration."""
    arrays.sequence = np.zeros(len(arrays.tree) // 2, np.int64)
    arrays.erasing = erase_queue.tables(len(arrays.block))["erasing"]
    arrays.cfg["ordered"] = 1


@njit
def next_read(st, channel):
    """Return the first transaction in the data-out list of channel ``channel`` whose array
    operation has not ended, or -1."""
    tid = st.bus[channel].out_head
    while tid >= 0 and st.command[tid].sequence == READY:
        tid = st.txn[tid].next
    return tid


@njit
def next_event_ps(st, channel):
    """Return the time of the next event of channel ``channel`` in ps, or NEVER if there is none."""
    bus = st.bus[channel]
    time = bus.until if bus.phase != NONE else NEVER
    tid = next_read(st, channel)
    if tid >= 0:
        time = min(time, st.txn[tid].time)
    if bus.done_head >= 0:
        time = min(time, st.txn[bus.done_head].time)
    return time


@cold
def first_due(st, channel):
    """Return (registration number, kind) of the event of channel ``channel`` that is handled next.

    Events are numbered in the order of their registration, and ``kind`` is PHASE, READ or DONE.
    Call this function only if an event of the channel is due.
    """
    bus = st.bus[channel]
    now = st.key[1]
    first = NEVER
    kind = PHASE
    if bus.phase != NONE and bus.until <= now:
        first = st.sequence[channel]
    tid = next_read(st, channel)
    if tid >= 0 and st.txn[tid].time <= now and st.command[tid].sequence < first:
        first = st.command[tid].sequence
        kind = READ
    tid = bus.done_head
    if tid >= 0 and st.txn[tid].time <= now and st.command[tid].sequence < first:
        first = st.command[tid].sequence
        kind = DONE
    return first, kind


@cold
def begin_event(st, channel, kind):
    """Begin the event of kind ``kind`` of channel ``channel``.

    Returns (die, first transaction of the command that has finished). The die takes no command
    before :func:`end_event`. Returns (-1, -1) if no command has finished.
    """
    bus = st.bus[channel]
    now = st.reg[0].now
    if kind == READ:
        st.command[next_read(st, channel)].sequence = READY
        touch_channel(st, channel)
        return -1, -1
    if kind == DONE:
        tid = bus.done_head
        bus.done_head = st.txn[tid].next
        st.txn[tid].next = -1
        die = st.txn[tid].die
        st.die[die].on_bus = 1
        array_end(st, die, tid)
        return die, tid
    tid = bus.txn
    die = bus.die
    die_rec = st.die[die]
    if bus.phase != OUT:
        st.reg[0].sequence += 1
        st.command[tid].sequence = st.reg[0].sequence
        free_channel(st, channel)
        return -1, -1
    if st.cfg[0].ranked == POLLED:
        polling.catch_up(st, die)
    if st.cfg[0].watch != 0:
        line(st, st.reg[0].bus0 + channel, bus.start, now, tid)
    die_rec.arr = st.txn[tid].mate  # the next page of a multi-plane read
    st.txn[tid].mate = -1
    return die, tid


@cold
def end_event(st, channel, kind, die):
    """Complete an event of channel ``channel`` and die ``die``: select the next operation of the
    die, and request a new grant decision. ``kind``: kind of the event; PHASE also frees the
    channel."""
    st.die[die].on_bus = 0
    if kind == PHASE:
        free_channel(st, channel)
    elif st.cfg[0].ranked == POLLED:
        polling.end_array(st, channel)
    select_next(st, die)
    touch_channel(st, channel)


@inline
def free_channel(st, channel):
    """Mark channel ``channel`` as free at the end of a phase, and request a new grant decision."""
    st.bus[channel].phase = NONE
    if st.cfg[0].ranked == POLLED:
        polling.become_idle(st, channel)
    touch_channel(st, channel)


@inline
def submit(st, die, tid, queue):
    """Append transaction ``tid`` to queue ``queue`` of die ``die``. If events are ordered, append
    it only at the end of the event. By then, the mapping of all pages of the request has been
    looked up, as in MQSim with a cached mapping table."""
    if st.cfg[0].ordered != 0:
        keep_back(st, tid, queue)
    else:
        push(st, die, tid, queue)


@cold
def keep_back(st, tid, queue):
    """Store transaction ``tid`` until :func:`submit_kept` appends it to queue ``queue`` of its die
    at the end of the event. Reads of the mapping table are not delayed in this way.
    """
    reg = st.reg[0]
    txn = st.txn[tid]
    txn.queue = queue
    txn.next = -1
    if reg.kept_first > 0:
        st.txn[reg.kept_last - 1].next = tid
    else:
        reg.kept_first = tid + 1
    reg.kept_last = tid + 1


@cold
def submit_kept(st):
    """Submit the transactions that :func:`keep_back` has stored."""
    tid = int(st.reg[0].kept_first) - 1
    st.reg[0].kept_first = 0
    while tid >= 0:
        following = st.txn[tid].next
        push(st, st.txn[tid].die, tid, st.txn[tid].queue)
        tid = following


@cold
def take_touched(st):
    """Remove and return the lowest-numbered channel among those that are marked for a new grant
    decision."""
    reg = st.reg[0]
    at = 0
    for i in range(1, reg.touched):
        if st.touched[i] < st.touched[at]:
            at = i
    channel = st.touched[at]
    reg.touched -= 1
    st.touched[at] = st.touched[reg.touched]
    return channel


@cold
def first_leaf(st, time):
    """Return the number of the resource whose event at ``time`` was registered first. ``time``:
    time of the next event of the simulation, in ps."""
    reg = st.reg[0]
    half = st.key.shape[0] >> 1
    best = st.tree[1]
    first = NEVER
    node = half + best
    while node > 1 and st.key[node ^ 1] != time:
        node >>= 1
    if node <= 1:
        return best  # no other event at this time
    for leaf in range(reg.gather0):
        if st.key[half + leaf] == time:
            if leaf < reg.station0:
                sequence = first_due(st, leaf)[0]
            else:
                sequence = st.sequence[leaf]
            if sequence < first:
                first = sequence
                best = leaf
    return best
