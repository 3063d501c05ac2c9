"""Parts of a command: the transactions that work for it, and which bytes of it they carry.

Owns transactions for some pages of a command, and what a command asks for of a page. Does not own
the cut into such parts (controller.py) or where they go (flows.py).
Source: a host request completes when its last page does, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.events import REQUEST, take_txn
from ondie.emu.intrinsics import set_bits
from ondie.kernels.jit import inline, njit

SECTOR = 512


@njit
def child(st, t, lpn, n):
    """A transaction for ``n`` pages of the same row or request as ``t``, which waits for one part
    more."""
    u = take_txn(st)
    if u < 0:
        return u
    x = st.txn[t]
    y = st.txn[u]
    y.row = x.row
    y.kind = x.kind
    y.phase = x.phase
    y.dev = x.dev
    y.stream = x.stream
    y.lpn = lpn
    y.n = n
    y.op = x.op
    if x.kind == REQUEST:
        st.req[x.row].pending += 1
    else:
        st.row[x.row].pending += 1
    return u


@inline
def bytes_of(st, t, lpn, n):
    """Bytes of the command ``t`` that lie in pages ``lpn .. lpn + n``: ``old`` is where in its
    first page it begins."""
    c = st.cfg[0]
    x = st.txn[t]
    if x.old >= c.page_bytes:  # it lies whole behind the end of its page (controller.skewed)
        return x.size
    first = x.lpn * c.page_bytes + x.old
    start = max(first, lpn * c.page_bytes)
    return min(first + x.size, (lpn + n) * c.page_bytes) - start


@inline
def sectors_of(st, t, lpn):
    """Bit per sector of page ``lpn`` that command ``t`` asks for."""
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
def bus_bytes(st, u):
    """Bytes of transaction ``u`` that cross the channel: whole pages, or the sectors asked for."""
    c = st.cfg[0]
    y = st.txn[u]
    if c.partial != 0:
        return set_bits(y.sectors) * SECTOR
    return y.n * c.page_bytes
