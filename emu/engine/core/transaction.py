"""Creation of transactions for a command, and the number of bytes that a transaction transfers over
the channel.

Owns the creation of additional transactions for a command. Does not own the transaction pool
(events.py) or the split of commands into transactions (ondie.emu.nvme).
Source: MQSim, in which a host request completes when its last page completes.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import REQUEST, ROW, take_txn
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.kernels.jit import inline, njit

SECTOR_BYTES = 512
"""Size in bytes of a sector, the smallest unit of a host request."""


@njit
def sibling(st, tid):
    """Create another transaction for the plan row or request of transaction ``tid``.

    Returns the index of the new transaction, or -1 if the pool is empty. Copies the row or request,
    kind, phase, drive, stream and operation of ``tid``, and increments the ``pending`` count of the
    row or request. The caller sets the pages of the new transaction.
    """
    other = take_txn(st)
    if other < 0:
        return other
    txn = st.txn[tid]
    other_txn = st.txn[other]
    other_txn.row = txn.row
    other_txn.kind = txn.kind
    other_txn.phase = txn.phase
    other_txn.dev = txn.dev
    other_txn.stream = txn.stream
    other_txn.op = txn.op
    st.command[other].made = st.command[tid].made
    if txn.kind == REQUEST:
        st.req[txn.row].pending += 1
    else:
        st.row[txn.row].pending += 1
    return other


@njit
def child(st, tid, lpn, count):
    """Create a transaction for ``count`` logical pages, starting at ``lpn``, for the plan row or
    request of transaction ``tid``.

    Returns the index of the new transaction, or -1 if the pool is empty. See :func:`sibling`.
    """
    other = sibling(st, tid)
    if other >= 0:
        other_txn = st.txn[other]
        other_txn.lpn = lpn
        other_txn.n = count
    return other


@inline
def has_fua(st, tid):
    """Return True if transaction ``tid`` belongs to a write with FUA, which completes when its data
    is on flash.
    """
    txn = st.txn[tid]
    if txn.kind == ROW:
        return st.row[txn.row].fua != 0
    return txn.kind == REQUEST and st.req[txn.row].fua != 0


@inline
def bus_bytes(st, tid):
    """Return the number of bytes that transaction ``tid`` transfers over the channel. The
    transaction transfers whole pages, or only the requested sectors if ``cfg.partial`` is set."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if cfg.partial != 0:
        return set_bits(txn.sectors) * SECTOR_BYTES
    return txn.n * cfg.page_bytes
