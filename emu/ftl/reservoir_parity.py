"""Controller-written pages of the reservoir: parities and commit records.

Owns the time at which they are allocated places, and the erase of a block that one of them opens.
The place is allocated as late as the program, because a die programs its places in sequence and
stripes of the die may be programmed before. Does not own places (reservoir.py), queues
(nand/die.py) or the choice of parities and records (paths/on_die/protection.py).
Source: as reservoir.open_place; a page of a block is programmed after the pages before it (ONFI).
"""

from __future__ import annotations

from ondie.emu.ftl import reservoir
from ondie.emu.nand import channel as nand
from ondie.kernels.jit import cold


@cold
def waits(st, t):
    """Register an encoded parity or record that waits for free registers of its die."""
    x = st.txn[t]
    g = x.dev * st.cfg[0].dies + x.lpn % st.cfg[0].dies
    st.pool[g].made += 1
    erased_ahead(st, x.dev, g)


@cold
def placed(st, t):
    """Allocate the next place of the die to a parity or record that has been programmed."""
    x = st.txn[t]
    g = x.dev * st.cfg[0].dies + x.lpn % st.cfg[0].dies
    st.pool[g].made -= 1
    x.ppn = reservoir.open_place(st, x.dev, x.lpn)
    nand.seek(st, x.die)  # the next command depends on the new next place


@cold
def erased_ahead(st, dev, g):
    """Erase the next block of die ``g`` if a parity or record waits and the next place begins that
    block. The erase is done ahead because an operation of the array that starts with them must not
    be an erase."""
    c = st.cfg[0]
    pool = st.pool[g]
    if pool.made == 0 or pool.r_next % c.pages != 0:
        return
    b = reservoir.block_of(st, g, reservoir.next_good(st, g, pool.r_next))
    if st.valid[b] == 0 and st.block[b].dirty == reservoir.USED:
        reservoir.renew(st, dev, g, b)
        st.block[b].dirty = reservoir.RENEWED
