"""Start of plan rows that operate on the reservoir: on-die computation, and transfers of its data.

Owns the transactions of these rows and of their DRAM traffic. Does not own other kinds of rows
(loop.py) or the completion of the operations (pe_completion.py).
Source: the plan format (engine/core/plan_rows.py); OptimStore's operations (Kim et al., HPCA 2023).
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    ARRAY_READS,
    LIFTED_PAGES,
    LOAD_BYTES,
    RESERVOIR_READ_PAGES,
    RESERVOIR_UP_BYTES,
    SCAN_BYTES,
)
from ondie.emu.engine.core.error_codes import E_PAST_END, E_UNWRITTEN
from ondie.emu.engine.core.events import ROW, fail, go, take_txn
from ondie.emu.engine.core.plan_rows import (
    STARTED,
)
from ondie.emu.engine.core.roles import Role
from ondie.emu.ftl import (
    reservoir,
    transfers,
)
from ondie.emu.nand import timing
from ondie.emu.nand.die import Q_LOAD, Q_PE, Q_READ
from ondie.emu.nand.die_scheduler import push
from ondie.kernels.jit import cold, inline, njit


@njit
def pages_of_bytes(st, n_bytes):
    """Return the number of pages that ``n_bytes`` bytes occupy, rounded up."""
    return (n_bytes + st.cfg[0].page_bytes - 1) // st.cfg[0].page_bytes


@inline
def set_size(st, tid, n_bytes):
    """Set the number of pages and the mask of planes of reservoir operation ``tid`` on ``n_bytes``
    bytes.
    """
    txn = st.txn[tid]
    txn.n = pages_of_bytes(st, n_bytes)
    if st.cfg[0].slots > 1:
        txn.planes = (1 << (txn.n + st.cfg[0].slots - 1) // st.cfg[0].slots) - 1


@njit
def take_part(st, rid):
    """Take a transaction from the pool for row ``rid``, and return the index of the transaction.

    The row is complete when all its transactions are finished.
    """
    tid = take_txn(st)
    txn = st.txn[tid]
    row = st.row[rid]
    row.state = STARTED
    row.pending += 1
    txn.row = rid
    txn.phase = row.phase
    txn.dev = row.device
    txn.lpn = row.lpn
    txn.op = timing.OTHER
    txn.kind = ROW
    txn.stream = row.stream
    return tid


@njit
def start_die(st, rid, tid):
    """Start the operation of row ``rid`` on a super-page of the reservoir.

    The field ``lpn`` of the row is the logical super-page. The function derives the die and the
    physical super-page from it. In rows of kind SCAN or PAD, the field names a physical super-page
    instead (see :func:`start_by_place`).
    """
    cfg = st.cfg[0]
    row = st.row[rid]
    txn = st.txn[tid]
    dev = row.device
    if row.kind == timing.SCAN or row.kind == timing.PAD:
        start_by_place(st, rid, tid)
        return
    if row.lpn < 0 or row.lpn >= st.rmap.shape[1]:
        fail(st, E_PAST_END, row.lpn, 1)
        return
    die = dev * cfg.dies + row.lpn % cfg.dies
    txn.op = row.kind
    txn.die = die
    set_size(st, tid, row.bytes_in + row.bytes_out)
    txn.array = row.array_ps
    txn.role = Role.RESERVOIR
    txn.ppn = int(st.rmap[dev, row.lpn]) - 1
    if txn.ppn < 0 and (row.kind == timing.BPR or row.kind == timing.READ):
        fail(st, E_UNWRITTEN, row.lpn, die)
        return
    if row.kind >= timing.RECALL:
        start_help(st, rid, tid)
    elif row.kind == timing.VPP:
        txn.bus = row.bytes_in
        st.count[dev, LOAD_BYTES] += row.bytes_in
        # Data stream from DRAM to the channel: both are occupied at the same time.
        other = take_part(st, rid)
        st.command[other].bytes_left = row.bytes_in
        transfers.next_piece(st, other, stages.TRAFFIC_PIECE)
        push(st, die, tid, Q_LOAD)
    elif row.kind == timing.READ:
        txn.turn = reservoir.rotation_of(st, die, txn.ppn)
        txn.size = row.bytes_out
        txn.bus = row.bytes_out
        st.count[dev, RESERVOIR_READ_PAGES] += txn.n
        st.count[dev, RESERVOIR_UP_BYTES] += txn.size
        st.count[dev, ARRAY_READS] += 1
        push(st, die, tid, Q_READ)
    else:
        txn.bus = row.bytes_out  # bytes that cross the channel, if any
        if row.kind == timing.BPP:
            source = txn.ppn
            txn.ppn = reservoir.open_place(st, dev, row.lpn)
            if source >= 0 and st.cfg[0].rotate > 0:
                reservoir.change_planes(st, tid, source)
        push(st, die, tid, Q_PE)


@cold
def start_help(st, rid, tid):
    """Start a reservoir operation that involves the controller (timing.RECALL to timing.LAND).

    The operation moves data between the controller's DRAM and the die's registers, or programs data
    that the controller has encoded.
    """
    row = st.row[rid]
    txn = st.txn[tid]
    dev = row.device
    txn.size = row.bytes_in + row.bytes_out
    txn.bus = txn.size
    if row.kind == timing.RECALL:
        txn.op = timing.BPR
        txn.held_back = 1  # the gradient is sensed with the super-page
        if txn.ppn < 0:
            fail(st, E_UNWRITTEN, row.lpn, txn.die)
        push(st, txn.die, tid, Q_PE)
        return
    if row.kind == timing.LIFT:
        txn.op = timing.READ
        if txn.ppn < 0:
            fail(st, E_UNWRITTEN, row.lpn, txn.die)
            return
        txn.turn = reservoir.rotation_of(st, txn.die, txn.ppn)
        txn.held_back = 1  # the data does not go to the host
        st.count[dev, LIFTED_PAGES] += txn.n
        st.count[dev, ARRAY_READS] += 1
        push(st, txn.die, tid, Q_READ)
        return
    if row.kind == timing.FETCH:
        txn.op = timing.READ
        txn.role = Role.REGISTERS
        txn.array = -st.op[timing.READ].array  # no array operation
        push(st, txn.die, tid, Q_PE)
        return
    other = take_part(st, rid)  # data stream from DRAM to the channel: both are occupied
    st.command[other].bytes_left = row.bytes_in
    transfers.next_piece(st, other, stages.TRAFFIC_PIECE)
    txn.op = timing.PROGRAM
    if row.kind == timing.KEEP:
        txn.role = Role.GRADIENT
        if txn.ppn < 0:
            fail(st, E_UNWRITTEN, row.lpn, txn.die)
    elif row.kind == timing.BESIDE:
        txn.role = Role.MADE  # its physical super-page is assigned when it is programmed
    else:
        txn.role = Role.RESERVOIR
        txn.ppn = reservoir.open_place(st, dev, row.lpn)
    if row.kind == timing.LAND:
        txn.role = Role.MOVED
        txn.src_ppn = row.tag  # source super-page
        if txn.src_ppn < 0 or txn.src_ppn >= st.rmap.shape[1] or st.rmap[dev, txn.src_ppn] == 0:
            fail(st, E_UNWRITTEN, txn.src_ppn, txn.die)
            return
        if st.cfg[0].round_trip == 0:  # no parity except that of the die
            go(st, tid, stages.ENCODED)
            return
    if not transfers.encode(st, tid, stages.ENCODED):
        go(st, tid, stages.ENCODED)


@cold
def start_by_place(st, rid, tid):
    """Start transaction ``tid`` of plan row ``rid``, a reservoir operation (SCAN or PAD) on a
    physical super-page.

    Field ``lpn`` of the row is the number of the physical super-page. Super-page i is on die i
    modulo the number of dies.
    """
    cfg = st.cfg[0]
    row = st.row[rid]
    txn = st.txn[tid]
    dev = row.device
    die = dev * cfg.dies + row.lpn % cfg.dies
    txn.ppn = row.lpn // cfg.dies
    txn.die = die
    set_size(st, tid, row.bytes_in + row.bytes_out)
    txn.role = Role.RESERVOIR
    if row.lpn < 0 or txn.ppn >= cfg.reservoir_pages:
        fail(st, E_PAST_END, row.lpn, 1)
        return
    if row.kind == timing.PAD:
        txn.op = timing.BPP
        push(st, die, tid, Q_PE)
        return
    txn.op = timing.READ
    txn.size = row.tag
    txn.bus = row.tag
    st.count[dev, RESERVOIR_READ_PAGES] += txn.n
    st.count[dev, SCAN_BYTES] += txn.size
    st.count[dev, ARRAY_READS] += 1
    push(st, die, tid, Q_READ)
