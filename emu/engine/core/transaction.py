"""Child transactions of a command, and the bytes of a transaction on the channel.

Owns the creation of a child transaction. Does not own the pool (events.py) or the split of commands
(ondie.emu.nvme). Source: a host request completes when its last page completes, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import REQUEST, take_txn
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.kernels.jit import inline, njit

SECTOR = 512


@njit
def child(st, t, lpn, n):
    """Create a transaction for ``n`` pages of the row or request of ``t``. Return it, or -1.

    The row or request then has one more pending part. -1: the pool is empty.
    """
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
    """Return the bytes of transaction ``u`` on the channel: whole pages, or its sectors."""
    c = st.cfg[0]
    y = st.txn[u]
    if c.partial != 0:
        return set_bits(y.sectors) * SECTOR
    return y.n * c.page_bytes
