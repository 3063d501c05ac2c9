"""What the controller programs in the reservoir beside stripes: parities and records, in turn.

Owns when they get their places: as late as they are programmed, since stripes of their die may go
before them, and a die programs its places in sequence; and when a block that one of them opens is
erased. Does not own places (reservoir.py), queues (dies.py) or which are made (paths/guards.py).
Source: as reservoir.open_place; a page of a block is programmed after those before it (ONFI).
"""

from __future__ import annotations

from ondie.emu.ftl import reservoir
from ondie.emu.nand import channel as nand
from ondie.kernels.jit import cold


@cold
def waits(st, t):
    """A parity or a record is encoded, and waits until its die's registers are free."""
    x = st.txn[t]
    g = x.dev * st.cfg[0].dies + x.lpn % st.cfg[0].dies
    st.pool[g].made += 1
    erased_ahead(st, x.dev, g)


@cold
def placed(st, t):
    """It has been programmed, at the next place of its die."""
    x = st.txn[t]
    g = x.dev * st.cfg[0].dies + x.lpn % st.cfg[0].dies
    st.pool[g].made -= 1
    x.ppn = reservoir.open_place(st, x.dev, x.lpn)
    nand.seek(st, x.die)  # what may follow depends on the place that is next now


@cold
def erased_ahead(st, dev, g):
    """Where a parity or a record waits and the next place of die ``g`` begins a block, that is
    erased now: what is in the array when they begin may be no erase."""
    c = st.cfg[0]
    pool = st.pool[g]
    if pool.made == 0 or pool.r_next % c.pages != 0:
        return
    b = reservoir.block_of(st, g, reservoir.next_good(st, g, pool.r_next))
    if st.valid[b] == 0 and st.block[b].dirty == reservoir.USED:
        reservoir.renew(st, dev, g, b)
        st.block[b].dirty = reservoir.RENEWED
