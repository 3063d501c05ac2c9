"""Controller-written pages of the reservoir: parities and commit records.

Owns the time at which such a page is allocated a place (physical super-page), and the erase of the
block that it opens. The place is allocated as late as the program, because a die programs its
places in sequence and may program stripes first. Does not own places (reservoir.py), queues
(nand/die.py) or the choice of parities and records (paths/on_die/protection.py).
Source: see reservoir.py; ONFI (the pages of a block are programmed in order).
"""

from __future__ import annotations

from ondie.emu.ftl import reservoir
from ondie.emu.nand.die_scheduler import select_next
from ondie.kernels.jit import cold


@cold
def wait_for_registers(st, tid):
    """Count encoded parity or commit record ``tid`` as waiting for free registers of its die, and
    erase the block that it will open if necessary.
    """
    txn = st.txn[tid]
    die = txn.dev * st.cfg[0].dies + txn.lpn % st.cfg[0].dies
    st.pool[die].made += 1
    erase_ahead(st, txn.dev, die)


@cold
def allocate_place(st, tid):
    """Allocate the next physical super-page of the die to parity or commit record ``tid``."""
    txn = st.txn[tid]
    die = txn.dev * st.cfg[0].dies + txn.lpn % st.cfg[0].dies
    st.pool[die].made -= 1
    txn.ppn = reservoir.open_place(st, txn.dev, txn.lpn)
    select_next(st, txn.die)  # the next command depends on the new next place


@cold
def erase_ahead(st, dev, die):
    """Erase the next block of die ``die`` ahead of time, if a parity or commit record waits and the
    next program of the die starts that block. The array operation of a parity or commit record
    must not begin with an erase.
    """
    cfg = st.cfg[0]
    pool = st.pool[die]
    if pool.made == 0 or pool.r_next % cfg.pages != 0:
        return
    block = reservoir.block_of(st, die, reservoir.next_good(st, die, pool.r_next))
    if st.valid[block] == 0 and st.block[block].dirty == reservoir.USED:
        reservoir.erase_block(st, dev, die, block)
        st.block[block].dirty = reservoir.RENEWED
