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
from ondie.emu.ftl import page_map as mapping
from ondie.kernels.jit import inline


@inline
def bytes_of(st, t, lpn, n):
    """Return the bytes of command ``t`` that are in pages ``lpn .. lpn + n``.

    ``old`` is the byte offset of the command in its first page.
    """
    c = st.cfg[0]
    x = st.txn[t]
    if x.old >= c.page_bytes:  # wholly behind the end of its page (command_split.skewed)
        return x.size
    first = x.lpn * c.page_bytes + x.old
    start = max(first, lpn * c.page_bytes)
    return min(first + x.size, (lpn + n) * c.page_bytes) - start


@inline
def sectors_of(st, t, lpn):
    """Return the sectors of page ``lpn`` that command ``t`` accesses, one bit each."""
    c = st.cfg[0]
    x = st.txn[t]
    if x.old >= c.page_bytes:
        return ((1 << (x.size // SECTOR)) - 1) << (x.old // SECTOR)
    start = x.lpn * c.page_bytes + x.old
    low = max(start - lpn * c.page_bytes, 0) // SECTOR
    high = min(start + x.size - lpn * c.page_bytes, c.page_bytes) // SECTOR
    if high - low >= 64:
        return -1
    return ((1 << (high - low)) - 1) << low


@inline
def part(st, t, lpn, n, op):
    """Return a new transaction for pages ``lpn .. lpn + n`` of command ``t``, or -1."""
    u = child(st, t, lpn, n)
    if u >= 0:
        x = st.txn[t]
        y = st.txn[u]
        y.op = op
        y.size = bytes_of(st, t, lpn, n)
        if st.cfg[0].partial != 0:
            y.sectors = x.sectors if x.sectors != 0 else sectors_of(st, t, lpn)
    return u


@inline
def zeros(st, u):
    """Return the unmapped pages of read ``u`` as zeros from the controller."""
    y = st.txn[u]
    st.count[y.dev, UNMAPPED_PAGES] += y.n
    log(st, LOG_ZERO, y.row, y.lpn, -1, -1, y.n, y.dev, -1)
    go(st, u, READ_UNMAPPED)


@inline
def locate(st, u, entry):
    """Set the physical page of read ``u`` from its mapping table entry. Return its die."""
    y = st.txn[u]
    y.ppn = entry - 1
    y.bus = bus_bytes(st, u)
    if st.cfg[0].partial != 0:
        st.count[y.dev, UNASKED_OUT_BYTES] += y.n * st.cfg[0].page_bytes - y.bus
    st.count[y.dev, READ_PAGES] += y.n
    g = mapping.place_of(st, y.dev, u)
    y.array = st.page_ps[0, y.page]
    mapping.read_from(st, y.dev, y.ppn)
    return g
