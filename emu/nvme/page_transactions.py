"""Transactions for the pages of a command, and the bytes and sectors that each transaction
transfers.

Owns the creation of transactions for pages of a command, and the sectors of a page that a command
accesses. Does not own the split of commands (command_split.py) or the later stages of the
transactions (engine/run/datapath.py).
Source: a host request completes with its last page, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core.transaction import SECTOR_BYTES, child
from ondie.kernels.jit import inline


@inline
def bytes_of(st, tid, lpn, count):
    """Return the number of bytes that command ``tid`` accesses in ``count`` logical pages, starting
    with page ``lpn``."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    offset = st.command[tid].offset
    if offset >= cfg.page_bytes:  # wholly behind the end of its page (request_pieces.py)
        return txn.size
    first = txn.lpn * cfg.page_bytes + offset
    start = max(first, lpn * cfg.page_bytes)
    return min(first + txn.size, (lpn + count) * cfg.page_bytes) - start


@inline
def sectors_of(st, tid, lpn):
    """Return a bit mask of the sectors of logical page ``lpn`` that command ``tid`` accesses."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    offset = st.command[tid].offset
    if offset >= cfg.page_bytes:
        return ((1 << (txn.size // SECTOR_BYTES)) - 1) << (offset // SECTOR_BYTES)
    start = txn.lpn * cfg.page_bytes + offset
    low = max(start - lpn * cfg.page_bytes, 0) // SECTOR_BYTES
    high = min(start + txn.size - lpn * cfg.page_bytes, cfg.page_bytes) // SECTOR_BYTES
    if high - low >= 64:
        return -1
    return ((1 << (high - low)) - 1) << low


@inline
def make_part(st, tid, lpn, count, op):
    """Create a transaction with flash operation ``op`` for ``count`` logical pages of command
    ``tid``, starting with page ``lpn``.

    Returns the index of the transaction, or -1 if the pool is empty.
    """
    other = child(st, tid, lpn, count)
    if other >= 0:
        txn = st.txn[tid]
        other_txn = st.txn[other]
        other_txn.op = op
        other_txn.size = bytes_of(st, tid, lpn, count)
        if st.cfg[0].partial != 0:
            other_txn.sectors = txn.sectors if txn.sectors != 0 else sectors_of(st, tid, lpn)
    return other
