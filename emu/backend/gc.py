"""Collection: whom to empty, and when.

Owns the decision to start and the bookkeeping of a victim from its choice to its erase. Does not
own who is chosen (policies.py) or the moves' way through dies, channel, ECC and DRAM (flows.py).
Source: started when an open block fills and free blocks are at or below a threshold, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.backend import mapping
from ondie.emu.backend.mapping import FULL, VICTIM
from ondie.emu.events import E_BLOCK_VALID, fail
from ondie.emu.intrinsics import call_policy, prefetch
from ondie.kernels.jit import inline, njit


@njit
def begin(st, u):
    """Start one collection on unit ``u`` if it is short of free blocks. Returns the victim, or
    -1."""
    c = st.cfg[0]
    pool = st.pool[u]
    if pool.free_n > c.gc_low or pool.victims >= c.gc_parallel or not room(st, u):
        return -1
    b = call_policy(st, c.gc_policy, u)
    if b < u * c.all_blocks or b >= u * c.all_blocks + c.blocks:
        return -1
    block = st.block[b]
    if block.state != FULL or block.flying != 0 or st.valid[b] >= c.block_pages:
        return -1  # nothing would be gained, or pages are still on their way
    start(st, u, b)
    return b


@inline
def room(st, u):
    """Is there a free block for what one collection more moves, beside those under way?"""
    pool = st.pool[u]
    return pool.victims == 0 or st.cfg[0].gc_stop > 0 or pool.free_n > pool.victims


@njit
def start(st, u, b):
    """Block ``b`` is to be emptied."""
    c = st.cfg[0]
    block = st.block[b]
    block.state = VICTIM
    block.scan = 0
    block.moving = 0
    st.pool[u].victims += 1
    dev = u // c.units
    base = mapping.first_page(st, dev, b)
    for ppn in range(base, base + c.block_pages):  # their map entries will be looked at
        prefetch(st.l2p, dev * st.l2p.shape[1] + max(int(st.p2l[dev, ppn]) - 1, 0))


@njit
def next_valid(st, dev, b):
    """Next valid page of victim ``b`` as (lpn, ppn), or (-1, -1) when there is none left."""
    c = st.cfg[0]
    block = st.block[b]
    base = mapping.first_page(st, dev, b)
    while block.scan < c.block_pages:
        ppn = base + block.scan
        block.scan += 1
        lpn = int(st.p2l[dev, ppn]) - 1
        if lpn >= 0 and int(st.l2p[dev, lpn]) - 1 == ppn:
            return lpn, ppn
    return -1, -1


@njit
def emptied(st, b):
    """All pages of victim ``b`` have moved: the books must say so too."""
    if st.valid[b] != 0:
        fail(st, E_BLOCK_VALID, b, st.valid[b])
