"""End of a phase on the channel: actions of a die after the transfer of its command or data.

Owns the end of command, data-in and data-out phases and of array operations. Does not own the grant
of the channel (channel.py) or the stages after a transfer (engine/run/datapath.py).
Source: ONFI: a status read, or the second command of a copy-back, follows the array operation.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import (
    line,
    set_leaf,
)
from ondie.emu.nand import channel, polling
from ondie.emu.nand.array import array_end, array_ps, begin_array, release_die
from ondie.emu.nand.die import (
    IN,
    NONE,
    OUT,
    POLLED,
    Q_LOAD,
    touch_channel,
)
from ondie.emu.nand.die_scheduler import (
    select_next,
)
from ondie.emu.nand.timing import (
    COPYBACK,
    PROGRAM,
    READ,
    VPP,
)
from ondie.kernels.jit import cold, inline


@inline
def is_due(st, channel):
    """Return True if a phase or an array operation of channel ``channel`` has ended."""
    bus = st.bus[channel]
    now = st.reg[0].now
    if bus.phase != NONE and bus.until <= now:
        return True
    return bus.done_head >= 0 and st.txn[bus.done_head].time <= now


@inline
def next_finished(st, channel):
    """Process the next end of a phase or array operation on channel ``channel``.

    Returns the first transaction of the command that has finished (field ``mate`` links the other
    transactions of the command), or -1 if no command has finished. Call this function while
    :func:`is_due` returns True.
    """
    bus = st.bus[channel]
    now = st.reg[0].now
    if bus.phase != NONE and bus.until <= now:
        if bus.quiet != 0:
            bus.phase = NONE
            if st.cfg[0].ranked == POLLED:
                polling.become_idle(st, channel)
        else:
            tid = end_phase(st, channel)
            if tid >= 0:
                return tid
    tid = bus.done_head
    if tid >= 0 and st.txn[tid].time <= now:
        bus.done_head = st.txn[tid].next
        st.txn[tid].next = -1
        array_end(st, st.txn[tid].die, tid)
        if st.cfg[0].ranked == POLLED:
            polling.end_array(st, channel)
        return tid
    return -1


@inline
def end_phase(st, channel):
    """End the present phase of channel ``channel``.

    Returns the transaction if the die has finished it (for example after its data out, or after a
    gradient was loaded), else -1.
    """
    bus = st.bus[channel]
    die = bus.die
    tid = bus.txn
    phase = bus.phase
    die_rec = st.die[die]
    die_rec.on_bus = 0
    bus.phase = NONE
    if st.cfg[0].ranked == POLLED:
        polling.become_idle(st, channel)
    now = st.reg[0].now
    touch_channel(st, channel)
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
            release_die(st, die)
        select_next(st, die)
        return tid
    if phase == IN:
        if txn.op == VPP:
            die_rec.gradients += int(txn.queue == Q_LOAD)  # else pages return to the data registers
            select_next(st, die)
            return tid
        if die_rec.loading >= 0:  # more pages of the word line must be loaded
            select_next(st, die)
            return -1
        if die_rec.arr < 0:
            die_rec.cache = -1
            begin_array(st, die, tid, now, array_ps(st, die, tid))
        else:
            txn.time = now  # its array starts no earlier
    if st.cfg[0].overlap != 0:
        select_next(st, die)
    return -1


@cold
def second_stage(st, die, tid):
    """Continue transaction ``tid``, which is not a READ, after its data-out phase (OUT).

    For a copy-back, start the program from the register and return -1. Any other transaction has
    finished and is returned: a program or an erase whose status has been read, or a BPR or ODC
    (OptimStore's read into registers and computation) after its data out.
    """
    txn = st.txn[tid]
    if txn.op == COPYBACK:
        txn.op = PROGRAM
        txn.array = st.page_ps[1, txn.page] if txn.page >= 0 else 0
        begin_array(st, die, tid, st.reg[0].now, array_ps(st, die, tid))
        if st.cfg[0].overlap != 0:
            select_next(st, die)
        return -1
    array_end(st, die, tid)
    return tid


@cold
def grant_idle(st, die):
    """Grant the channel of die record ``die`` before the end of the event, if the channel is idle
    and requested. With polled classes, grant every such channel, because each submission polls the
    chips of all channels."""
    first = last = int(st.die[die].bus)
    if st.cfg[0].ranked == POLLED:
        first = 0
        last = st.bus.shape[0] - 1
    for at in range(first, last + 1):
        bus = st.bus[at]
        if bus.phase == NONE and bus.ask_command | bus.ask_in != 0:
            channel.grant(st, at)
            set_leaf(st, at, channel.next_event_ps(st, at))
