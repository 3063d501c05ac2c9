"""Transactions for the pages of a command, and the bytes of the command that they carry.

Owns the creation of transactions for pages of a command, the sectors of a page that a command
accesses, and the lookup of a read's physical pages. Does not own the split into such parts
(command_split.py) or their further path (engine/run/datapath.py).
Source: a host request completes with its last page, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import READ_PAGES, UNASKED_OUT_BYTES, UNMAPPED_PAGES
from ondie.emu.engine.core.events import LOG_ZERO, go, log
from ondie.emu.engine.core.stages import READ_UNMAPPED
from ondie.emu.engine.core.transaction import SECTOR, bus_bytes, child
from ondie.emu.ftl import page_map
from ondie.kernels.jit import inline


@inline
def bytes_of(st, tid, lpn, count):
    """Return the bytes of command ``tid`` that are in pages ``lpn .. lpn + n``.

    ``old`` is the byte offset of the command in its first page.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if txn.old >= cfg.page_bytes:  # wholly behind the end of its page (command_split.skewed)
        return txn.size
    first = txn.lpn * cfg.page_bytes + txn.old
    start = max(first, lpn * cfg.page_bytes)
    return min(first + txn.size, (lpn + count) * cfg.page_bytes) - start


@inline
def sectors_of(st, tid, lpn):
    """Return the sectors of page ``lpn`` that command ``tid`` accesses, one bit each."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if txn.old >= cfg.page_bytes:
        return ((1 << (txn.size // SECTOR)) - 1) << (txn.old // SECTOR)
    start = txn.lpn * cfg.page_bytes + txn.old
    low = max(start - lpn * cfg.page_bytes, 0) // SECTOR
    high = min(start + txn.size - lpn * cfg.page_bytes, cfg.page_bytes) // SECTOR
    if high - low >= 64:
        return -1
    return ((1 << (high - low)) - 1) << low


@inline
def part(st, tid, lpn, count, op):
    """Return a new transaction for pages ``lpn .. lpn + n`` of command ``tid``, or -1."""
    other = child(st, tid, lpn, count)
    if other >= 0:
        txn = st.txn[tid]
        other_txn = st.txn[other]
        other_txn.op = op
        other_txn.size = bytes_of(st, tid, lpn, count)
        if st.cfg[0].partial != 0:
            other_txn.sectors = txn.sectors if txn.sectors != 0 else sectors_of(st, tid, lpn)
    return other


@inline
def zeros(st, unit):
    """Return the unmapped pages of read ``unit`` as zeros from the controller."""
    other_txn = st.txn[unit]
    st.count[other_txn.dev, UNMAPPED_PAGES] += other_txn.n
    log(st, LOG_ZERO, other_txn.row, other_txn.lpn, -1, -1, other_txn.n, other_txn.dev, -1)
    go(st, unit, READ_UNMAPPED)


@inline
def locate(st, unit, entry):
    """Set the physical page of read ``unit`` from its mapping table entry. Return its die."""
    other_txn = st.txn[unit]
    other_txn.ppn = entry - 1
    other_txn.bus = bus_bytes(st, unit)
    if st.cfg[0].partial != 0:
        st.count[other_txn.dev, UNASKED_OUT_BYTES] += (
            other_txn.n * st.cfg[0].page_bytes - other_txn.bus
        )
    st.count[other_txn.dev, READ_PAGES] += other_txn.n
    die = page_map.place_of(st, other_txn.dev, unit)
    other_txn.array = st.page_ps[0, other_txn.page]
    page_map.read_from(st, other_txn.dev, other_txn.ppn)
    return die
