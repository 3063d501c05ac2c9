"""Completion handlers for operations on the reservoir: on-die computation and its data.

Owns the completion of operations of processing elements (VPP, BPR, ODC, BPP), and of operations
that the controller runs for processing elements. Does not own the operations of the conventional
namespace (completion.py).
Source: OptimStore's operations on the die (Kim et al., HPCA 2023); operations of the controller for
protection, parity and moves are this project's.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    ARRAY_PROGRAMS,
    ARRAY_READS,
    BPP_PAGES,
    BPR_PAGES,
    FETCHED_PAGES,
    KEPT_PAGES,
    LANDED_PAGES,
    ODC_OPS,
    PE_RETURNED_PAGES,
    STORED_PAGES,
    TURNED_PAGES,
    VPP_PAGES,
)
from ondie.emu.engine.core.events import go
from ondie.emu.engine.core.payload_log import (
    LOG_BPP,
    LOG_BPR,
    LOG_FETCH,
    LOG_KEEP,
    LOG_LANDED,
    LOG_MADE,
    LOG_ODC,
    LOG_PAD,
    LOG_VPP,
    log,
)
from ondie.emu.engine.core.roles import Role
from ondie.emu.ftl import reservoir
from ondie.emu.ftl.transfers import decode_bare, encode_bare
from ondie.emu.nand import timing
from ondie.emu.nand.die import Q_PE
from ondie.kernels.jit import cold, njit


@cold
def on_helped_done(st, tid):
    """Complete die operation ``tid``, which the controller runs for on-die computation.

    Return ``tid`` if the transaction is finished, else -1.
    """
    txn = st.txn[tid]
    dev = txn.dev
    if txn.op == timing.READ:
        st.count[dev, FETCHED_PAGES] += txn.n
        log(st, LOG_FETCH, tid, txn.lpn, -1, -1, txn.n, dev, txn.die)
        go(st, tid, stages.TAKEN_OUT)
        return -1
    st.count[dev, ARRAY_PROGRAMS] += 1
    if txn.role == Role.MADE:
        reservoir.allocate_place(st, tid)
    turn = reservoir.rotation_of(st, txn.die, txn.ppn)
    if txn.role == Role.GRADIENT:
        st.count[dev, KEPT_PAGES] += txn.n
        log(st, LOG_KEEP, tid, txn.lpn, txn.ppn, turn, txn.n, dev, txn.die)
        return tid
    if txn.role == Role.MOVED:
        st.count[dev, LANDED_PAGES] += txn.n
        reservoir.map_place(st, dev, txn.lpn, txn.ppn)
        reservoir.unmap(st, dev, txn.src_ppn)
        log(st, LOG_LANDED, tid, txn.lpn, txn.ppn, turn, txn.src_ppn, dev, txn.die)
        return tid
    st.count[dev, STORED_PAGES] += txn.n
    reservoir.map_place(st, dev, txn.lpn, txn.ppn)
    reservoir.erase_ahead(st, dev, dev * st.cfg[0].dies + txn.lpn % st.cfg[0].dies)
    log(
        st,
        LOG_MADE if txn.role == Role.MADE else LOG_BPP,
        tid,
        txn.lpn,
        txn.ppn,
        turn,
        txn.n,
        dev,
        txn.die,
    )
    return tid


@njit
def on_pe_done(st, tid):
    """Complete operation ``tid`` of the processing elements.

    Return ``tid`` if the transaction is finished, else -1.
    """
    txn = st.txn[tid]
    dev = txn.dev
    if txn.op == timing.VPP and txn.queue == Q_PE:
        st.count[dev, PE_RETURNED_PAGES] += txn.n
        return tid
    if txn.op == timing.VPP:
        st.count[dev, VPP_PAGES] += txn.n
        log(st, LOG_VPP, tid, txn.lpn, -1, -1, txn.n, dev, txn.die)
    elif txn.op == timing.BPR:
        st.count[dev, BPR_PAGES] += txn.n
        st.count[dev, ARRAY_READS] += 1
        turn = reservoir.rotation_of(st, txn.die, txn.ppn)
        log(st, LOG_BPR, tid, txn.lpn, txn.ppn, turn, txn.n, dev, txn.die)
        if st.cfg[0].errors != 0:
            reservoir.count_wrong_bits(st, tid)
        if st.cfg[0].round_trip != 0:
            if not decode_bare(st, tid, stages.PE_DECODED):
                go(st, tid, stages.PE_DECODED)
            return -1
    elif txn.op == timing.ODC:
        st.count[dev, ODC_OPS] += 1
        log(st, LOG_ODC, tid, txn.lpn, txn.ppn, -1, txn.n, dev, txn.die)
        if st.cfg[0].round_trip != 0 and encode_bare(st, tid, stages.PART_DONE):
            return -1
    else:
        st.count[dev, BPP_PAGES] += txn.n
        st.count[dev, ARRAY_PROGRAMS] += 1
        turn = reservoir.rotation_of(st, txn.die, txn.ppn)
        if st.row[txn.row].kind == timing.PAD:
            log(st, LOG_PAD, tid, txn.lpn, txn.ppn, turn, txn.n, dev, txn.die)
        else:
            st.count[dev, TURNED_PAGES] += txn.turned * st.cfg[0].slots
            reservoir.map_place(st, dev, txn.lpn, txn.ppn)
            reservoir.erase_ahead(st, dev, dev * st.cfg[0].dies + txn.lpn % st.cfg[0].dies)
            log(st, LOG_BPP, tid, txn.lpn, txn.ppn, turn, txn.n, dev, txn.die)
    return tid
