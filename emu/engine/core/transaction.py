"""Transactions that work for a part of a command, and their bytes on the channel.

Owns the creation of a child transaction. Does not own the pool (events.py) or the split of commands
(ondie.emu.nvme). Source: a host request completes when its last page does, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import REQUEST, take_txn
from ondie.emu.engine.core.intrinsics import set_bits
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
def bus_bytes(st, u):
    """Bytes of transaction ``u`` that cross the channel: whole pages, or the sectors asked for."""
    c = st.cfg[0]
    y = st.txn[u]
    if c.partial != 0:
        return set_bits(y.sectors) * SECTOR
    return y.n * c.page_bytes
