"""Statistics of the transaction scheduler and the chips, as in MQSim's result file.

Owns queue lengths, waiting times, issued commands, the busy time of chips and the times of the
host's transactions. They are recorded only after a call of :func:`watch`. Does not own the queues
(die.py), the scheduler (die_scheduler.py) or the format of the result file
(replay/mqsim/device_xml.py).
Source: MQSim's result file. A chip has a queue for each kind of transaction, and for reads and
writes of the host a queue for each priority class.

A write counts as waiting from the allocation of its page, even if other sectors of the old page
must be read first. An erase counts as waiting from the start of the garbage collection of its
block.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import transfer_ps
from ondie.emu.engine.core.events import CACHED, REQUEST
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import Arrays, record_type, records
from ondie.emu.nand.die import (
    EVICTED,
    OUT,
    Q_GC_ERASE,
    Q_GC_READ,
    Q_MAP_READ,
    Q_MAP_WRITE,
    Q_READ,
    Q_WRITE,
    planes_of,
    rank_of,
)
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import ERASE, PROGRAM, READ
from ondie.kernels.jit import cold

CLASSES = 4
READS, WRITES = 0, CLASSES
MAP_READS, MAP_WRITES, GC_READS, GC_WRITES, GC_ERASES = range(2 * CLASSES, 2 * CLASSES + 5)
QUEUES = GC_ERASES + 1
"""Number of queues of a chip: reads and writes of the host, one queue for each priority class;
then mapping reads and writes, garbage-collection reads and writes, and erases."""
LENGTHS = 4096
"""Number of elements in each row of table ``queue_ps``, which has one row per queue. Element i is
the time during which the queue had length i; the last element also includes all greater lengths."""

HITS, READ_MISSES, OTHER_MISSES = range(3)
"""Columns of table ``lookup``, the number of look-ups in the cached mapping table: hits, misses
that wait for the read of a translation page (READ_MISSES), and other misses."""
QUEUE_USE = record_type(
    entered="i8",  # transactions that entered the queue
    left="i8",
    longest="i8",
    since="i8",  # time of the last change of its length, ps
    waited="i8",  # sum of waiting times, ps
    worst="i8",  # longest waiting time, ps
)
CHIP_USE = record_type(
    transfer="i8",  # time on the channel, ps
    overlap="i8",  # time on the channel while a die of the chip executes, ps
    execution="i8",  # time in which at least one of its dies executes, ps
    until="i8",  # end of the present execution
)
STREAM_USE = record_type(
    count="i8",  # completed transactions of the host
    execution="i8",  # sum of the times in the array, ps
    transfer="i8",  # sum of the times on the channel, ps
    waiting="i8",  # sum of all other times since the request was split, ps
)


def tables() -> dict[str, np.ndarray]:
    """Return placeholder tables, by field of the state, for a drive that records no statistics."""
    return {
        "queue_use": records(QUEUE_USE, 1),
        "queue_ps": np.zeros((1, 1), np.int64),
        "chip_use": records(CHIP_USE, 1),
        "stream_use": records(STREAM_USE, 1),
        "issued": np.zeros((1, 1), np.int64),
        "lookup": np.zeros((1, 1), np.int64),
        "erase_since": np.zeros(1, np.int64),
        "chip_at": np.zeros(1, np.int32),
    }


def watch(arrays: Arrays, geometry: Geometry, streams: int) -> None:
    """Start recording the statistics of one device with ``streams`` flows.

    Replaces these tables of ``arrays``. ``queue_use``: a record for each queue of each chip; the
    chips of a channel are adjacent. ``queue_ps``: int64[queues, LENGTHS], time at each length, ps.
    ``issued``: int64[3, 2], number of commands; rows: read, program, erase; columns: on one plane,
    on several planes. ``lookup``: int64[3, 3], look-ups in the cached mapping table; rows: reads,
    writes, moved pages; columns: hits, misses that need a read, other misses. ``stream_use``: two
    records per flow, reads and writes. ``chip_use``: a record for each chip. ``chip_at``,
    ``erase_since``: see engine/core/state.py.
    """
    way, channel = np.divmod(np.arange(len(arrays.die)), geometry.channels)
    chips = -(-geometry.ways // geometry.chip_dies)
    arrays.chip_at = (channel * chips + way // geometry.chip_dies).astype(np.int32)
    count = geometry.channels * chips
    arrays.queue_use = records(QUEUE_USE, count * QUEUES)
    arrays.queue_ps = np.zeros((count * QUEUES, LENGTHS), np.int64)
    arrays.chip_use = records(CHIP_USE, count)
    arrays.stream_use = records(STREAM_USE, 2 * streams)
    arrays.issued = np.zeros((3, 2), np.int64)
    arrays.lookup = np.zeros((3, 3), np.int64)
    arrays.erase_since = np.full(len(arrays.block), -1, np.int64)
    arrays.cfg["probe"] = 1


@cold
def slot_of(st, tid, die, queue):
    """Return the index in ``queue_use`` of the queue in which transaction ``tid`` waits.

    ``queue``: the queue of the transaction in the numbering of die.py.
    """
    base = st.chip_at[die] * QUEUES
    rank = 0
    if st.cfg[0].ranked != 0 and (queue == Q_READ or queue == Q_WRITE):
        rank = rank_of(st, tid)
    if queue == Q_READ:
        return base + READS + rank
    if queue == Q_WRITE:
        return base + WRITES + rank
    if queue == Q_MAP_READ:
        return base + MAP_READS
    if queue == Q_MAP_WRITE:
        return base + MAP_WRITES
    if queue == Q_GC_READ:
        return base + GC_READS
    return base + (GC_ERASES if queue == Q_GC_ERASE else GC_WRITES)


@cold
def enter_slot(st, slot):
    """Count a transaction that now enters queue ``slot`` (an index into ``queue_use``)."""
    use = st.queue_use[slot]
    length = use.entered - use.left
    st.queue_ps[slot, min(length, LENGTHS - 1)] += st.reg[0].now - use.since
    use.since = st.reg[0].now
    use.entered += 1
    use.longest = max(use.longest, length + 1)


@cold
def leave_slot(st, slot, entered):
    """Count a transaction that now leaves queue ``slot``, which it entered at ``entered`` ps."""
    use = st.queue_use[slot]
    length = use.entered - use.left
    st.queue_ps[slot, min(length, LENGTHS - 1)] += st.reg[0].now - use.since
    use.since = st.reg[0].now
    use.left += 1
    use.waited += st.reg[0].now - entered
    use.worst = max(use.worst, st.reg[0].now - entered)


@cold
def on_push(st, tid, die, queue):
    """Record that transaction ``tid`` is appended to queue ``queue`` of die ``die``."""
    txn = st.txn[tid]
    command = st.command[tid]
    if txn.op != PROGRAM or txn.role != Role.MERGING:
        command.slot = slot_of(st, tid, die, queue)
    if txn.op == ERASE and st.erase_since[txn.lpn] >= 0:
        command.queued = st.erase_since[txn.lpn]
        st.erase_since[txn.lpn] = -1
        return
    if txn.op == PROGRAM and txn.role == Role.MERGING:
        return  # it entered when its page was allocated
    command.queued = st.reg[0].now
    enter_slot(st, command.slot)


@cold
def on_merge(st, tid, die):
    """Record that partial write ``tid`` on die ``die`` waits for the read of the other sectors of
    its page.
    """
    st.command[tid].allocated = st.reg[0].now
    st.command[tid].written = slot_of(st, tid, die, Q_WRITE)
    enter_slot(st, st.command[tid].written)


@cold
def on_collection(st, block, die):
    """Record that the garbage collection of block ``block`` on die ``die`` starts. From this time,
    the erase of the block counts as waiting."""
    st.erase_since[block] = st.reg[0].now
    enter_slot(st, st.chip_at[die] * QUEUES + GC_ERASES)


@cold
def on_map_write(st, die):
    """Record that a translation page waits to be programmed on die ``die``."""
    enter_slot(st, st.chip_at[die] * QUEUES + MAP_WRITES)


@cold
def on_bus(st, die, tid, phase, time):
    """Record that transaction ``tid`` of die ``die`` holds the channel for ``time`` ps, starting
    now.

    In a command phase, the transactions of the command leave their queues.
    """
    now = st.reg[0].now
    chip = st.chip_use[st.chip_at[die]]
    chip.transfer += time
    chip.overlap += max(min(now + time, chip.until) - now, 0)
    txn = st.txn[tid]
    if phase == OUT:
        st.command[tid].transfer += time
        return
    if txn.op != READ and txn.op != PROGRAM and txn.op != ERASE:
        return
    cfg = st.cfg[0]
    count = planes_of(st, tid)
    st.issued[0 if txn.op == READ else 1 if txn.op == PROGRAM else 2, int(count > 1)] += 1
    cycles = st.cycles[txn.op, count]
    while tid >= 0:
        command = st.command[tid]
        if txn.op == PROGRAM and st.txn[tid].role == Role.MERGING:
            leave_slot(st, command.written, command.allocated)
        else:
            leave_slot(st, command.slot, command.queued)
        command.transfer = cycles
        if txn.op == PROGRAM:
            command.transfer += transfer_ps(st.txn[tid].bus, cfg.bus_scale, cfg.bus_shift)
        tid = st.txn[tid].mate


@cold
def on_array(st, die, tid, start, time):
    """Record that the array of die ``die`` executes transaction ``tid`` from ``start`` (ps) for
    ``time`` ps."""
    chip = st.chip_use[st.chip_at[die]]
    chip.execution += max(start + time - max(start, chip.until), 0)
    chip.until = max(chip.until, start + time)
    while tid >= 0:
        st.command[tid].execution = time
        tid = st.txn[tid].mate


@cold
def on_done(st, tid):
    """Record that the die has completed transaction ``tid``.

    As in MQSim, a write that the data cache accepts is counted when it is cached. The times of such
    a write are added here, but only if the page of the write was sent to flash immediately.
    """
    txn = st.txn[tid]
    if txn.kind != REQUEST and txn.kind != CACHED or txn.op != READ and txn.op != PROGRAM:
        return
    command = st.command[tid]
    if txn.kind == CACHED and command.made <= EVICTED:
        return
    use = st.stream_use[2 * txn.stream + int(txn.op == PROGRAM)]
    made = command.made
    if txn.op == READ and txn.role == Role.MERGING:
        made = command.allocated
    elif txn.kind == REQUEST:
        use.count += 1
    use.execution += command.execution
    use.transfer += command.transfer
    use.waiting += st.reg[0].now - made - command.execution - command.transfer
