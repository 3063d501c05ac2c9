"""Start of the next command of a die: removes its operation from the queue.

Owns the dequeue, the check of the registers for optimizer operations, and the start of commands
with suspension, independent plane reads or a power budget. Does not own the grant of the channel
(channel.py) or the choice of the operation (die_scheduler.py).
Source: ONFI command cycles; OptimStore's register rules (Kim et al., HPCA 2023).
"""

from __future__ import annotations

from ondie.emu.engine.core.error_codes import E_REGISTER
from ondie.emu.engine.core.events import fail
from ondie.emu.engine.core.payload_log import log_read
from ondie.emu.nand import erase_queue
from ondie.emu.nand.array import array_ps, suspend
from ondie.emu.nand.die import (
    HOST_QUEUES,
    Q_PE,
    READS,
    RESUME,
    planes_of,
    pop,
    promote,
    take_power,
)
from ondie.emu.nand.die_scheduler import (
    may_suspend,
    needs_die,
)
from ondie.emu.nand.multi_plane import gather_all
from ondie.emu.nand.polling import CLASSES
from ondie.emu.nand.timing import (
    BPP,
    BPR,
    ERASE,
    ODC,
    PAD,
    READ,
    SUSPEND,
)
from ondie.emu.nand.timing import RESUME as RESUME_CYCLES
from ondie.kernels.jit import cold, inline


@cold
def suspends_in_vain(st, die, at):
    """Return True if the read requested by die ``die`` would suspend an operation that must not be
    suspended at time ``at`` (ps).

    See :func:`may_suspend`.
    """
    pick = st.die[die].pick
    if pick >= RESUME or READS >> pick & 1 == 0:
        return False
    busy = lane_to_suspend(st, die)
    return busy >= 0 and not may_suspend(st, st.die[busy], at)


@inline
def lane_to_suspend(st, die):
    """Return the number of the DIE record whose array operation must be suspended for a read of die
    ``die`` (with independent plane reads: of plane ``die``), or -1 if no operation must be
    suspended."""
    die_rec = st.die[die]
    if st.cfg[0].lanes > 1:
        first_rec = st.die[die_rec.first]
        if first_rec.alone != 0 and st.die[die_rec.first + first_rec.alone - 1].arr >= 0:
            return die_rec.first + first_rec.alone - 1
        return -1
    return die if die_rec.arr >= 0 else -1


@inline
def start_command(st, die, start):
    """Dequeue the operation of die ``die`` whose command is sent at ``start`` (ps).

    Returns (transaction, time on the channel, wait before the array operation, time in the array);
    times in ps.
    """
    cfg = st.cfg[0]
    if cfg.special != 0:
        return start_command_extended(st, die, start)
    queue = st.die[die].pick
    if cfg.ranked == CLASSES and HOST_QUEUES >> queue & 1:
        promote(st, die, queue)
    tid = pop(st, die, queue)
    if queue == Q_PE:
        use_registers(st, die, tid)
    elif cfg.group != 0:
        gather_all(st, die, tid, queue)
    txn = st.txn[tid]
    if txn.op == READ:
        log_read(st, tid)
    elif txn.op == ERASE and cfg.ordered != 0:
        erase_queue.leave(st, die, tid)
    return tid, st.cycles[txn.op, planes_of(st, tid)], 0, array_ps(st, die, tid)


@cold
def use_registers(st, die, tid):
    """Check and update the state of die ``die``'s registers for optimizer operation ``tid``.

    Stops the run with error E_REGISTER if the registers do not hold the operands of the operation.
    Such an error means that the plan of the optimizer update has its operations in the wrong order.
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
def start_command_extended(st, die, start):
    """Start a command as :func:`start_command` does, on a drive with suspension, independent plane
    reads or a power budget.
    """
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
    if cfg.ranked == CLASSES and HOST_QUEUES >> queue & 1:
        promote(st, die, queue)
    tid = pop(st, die, queue)
    op = st.txn[tid].op
    time = 0
    if cfg.suspends != 0 and lane_to_suspend(st, die) >= 0:
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
    elif op == ERASE and cfg.ordered != 0:
        erase_queue.leave(st, die, tid)
    if cfg.lanes > 1 and needs_die(st, tid):
        first_rec.alone = die - die_rec.first + 1
    wait = 0
    if first_rec.paused >= 0:
        first_rec.served += 1
        wait = max(first_rec.still - start - time, 0)
    return tid, time + st.cycles[op, count], wait, array_ps(st, die, tid)
