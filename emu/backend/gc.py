"""Collection: whom to empty, and when.

Owns the choice of the victim and the decision to start. Does not own the moves' timing (system.py
sends them through the dies, the channel, ECC and DRAM like any other traffic).
Source: greedy collection; started when a die's free super-blocks fall to a threshold.
"""

from __future__ import annotations

from ondie.emu.backend.mapping import FULL, free_block
from ondie.emu.events import E_BLOCK_VALID, fail
from ondie.kernels.jit import njit


@njit
def greedy(st, g):
    """The full super-block of die ``g`` with the fewest valid pages, -1 when none would gain
    space."""
    c = st.cfg[0]
    best = -1
    fewest = c.block_pages
    for b in range(c.blocks):
        block = st.block[g, b]
        if block.state == FULL and block.flying == 0 and block.valid < fewest:
            best = b
            fewest = block.valid
    return best


@njit
def begin(st, g):
    """Start collecting on die ``g`` if it is short of free super-blocks. Returns True when it
    did."""
    pool = st.pool[g]
    if pool.victim >= 0 or pool.free_n > st.cfg[0].gc_low:
        return False
    pool.victim = greedy(st, g)
    pool.scan = 0
    return pool.victim >= 0


@njit
def next_valid(st, dev, g):
    """Next valid page of the victim as (lpn, ppn), or (-1, -1) when there is none left."""
    c = st.cfg[0]
    pool = st.pool[g]
    base = (g - dev * c.dies) * c.die_pages + pool.victim * c.block_pages
    while pool.scan < c.block_pages:
        ppn = base + pool.scan
        pool.scan += 1
        lpn = int(st.p2l[dev, ppn]) - 1
        if lpn >= 0 and int(st.l2p[dev, lpn]) - 1 == ppn:
            return lpn, ppn
    return -1, -1


@njit
def finish(st, g):
    """All pages of the victim have moved: it becomes a free block."""
    pool = st.pool[g]
    if st.block[g, pool.victim].valid != 0:
        fail(st, E_BLOCK_VALID, g, pool.victim)
    free_block(st, g, pool.victim)
    pool.victim = -1
