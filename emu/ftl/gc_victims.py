"""Garbage collection: trigger, admission and accounting of victim blocks.

Owns the decision to start a collection and the accounting of a victim from its selection to its
end. Does not own the victim selection policies (policies.py) or the execution of moves (gc.py).
Source: started when an open block fills and free blocks are at or below a threshold, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import OVERRULED
from ondie.emu.engine.core.events import E_BLOCK_VALID, E_VICTIM, fail
from ondie.emu.engine.core.intrinsics import call_policy, prefetch
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import policies
from ondie.emu.ftl import pslc as modes
from ondie.emu.ftl.page_map import FOLDABLE, FULL, VICTIM
from ondie.kernels.jit import cold, inline, njit


@njit
def begin(st, u):
    """Start one collection on unit ``u`` if it is short of free blocks. Return the victim, or -1 if
    no block is worth collecting or there is no room for its valid pages."""
    c = st.cfg[0]
    pool = st.pool[u]
    if pool.free_n > c.gc_low or pool.victims >= c.gc_parallel:
        return -1
    b = call_policy(st, c.gc_policy, u)
    if b == -1:
        return -1
    first = u * c.all_blocks
    if b < first or b >= first + c.blocks or not policies.collectable(st, b):
        fail(st, E_VICTIM, u, b - first)
        return -1
    if not gains(st, u, b):
        if pool.free_n > max(c.gc_reserve, c.gc_stop - 1):
            return -1
        b = policies.greedy(st, u)  # writes stall: need a victim that gains space
        if b < 0 or not gains(st, u, b):
            return -1
        st.count[u // c.units, OVERRULED] += 1
    start(st, u, b)
    return b


@inline
def gains(st, u, b):
    """Return True if a block is worth collecting and there is room for its valid pages."""
    return st.valid[b] <= st.cfg[0].worth and room(st, u, b)


@inline
def collected(st, b):
    """Return the stream to which the pages of victim ``b`` move: one common stream, or one for each
    host stream. Translation pages stay in the map stream. Folded pages have a separate stream."""
    c = st.cfg[0]
    stream = st.block[b].stream
    if stream == c.pslc_stream:
        return c.fold_stream
    if stream == c.map_stream:
        return stream
    if c.collected_streams == 1:
        return c.collected
    return stream if stream >= c.collected else c.collected + stream


@njit
def room(st, u, b):
    """Return True if there is room for the valid pages of block ``b`` in addition to the pages of
    collections in progress. A block to be retired returns no free block, so one more free block
    must remain for the next collection."""
    if st.valid[b] == 0:
        return True
    blocks = mapping.promised(st, u, collected(st, b), st.valid[b])
    return blocks + int(st.block[b].retire != 0) <= st.pool[u].free_n


@njit
def start(st, u, b):
    """Make block ``b`` a victim and reserve room for its valid pages."""
    c = st.cfg[0]
    block = st.block[b]
    if block.state == FOLDABLE:
        st.slc[u].full -= 1
    block.state = VICTIM
    block.scan = 0
    block.moving = 0
    block.owed = st.valid[b]
    block.unseen = st.valid[b]
    st.front[collected(st, b), u].owed += block.owed
    st.pool[u].victims += 1
    dev = u // c.units
    base = mapping.first_page(st, dev, b)
    for ppn in range(base, base + c.block_pages):  # their map entries are read soon
        prefetch(st.l2p, dev * st.l2p.shape[1] + max(int(st.p2l[dev, ppn]) - 1, 0))


@inline
def settled(st, u, b, n):
    """Release the reservation of ``n`` pages of victim ``b``: they have a place or need none."""
    st.block[b].owed -= n
    st.front[collected(st, b), u].owed -= n


@cold
def looked_through(st, u, b):
    """Release the reservation of pages overwritten since victim ``b`` was selected, once it has
    no page left to be read."""
    settled(st, u, b, st.block[b].unseen)
    st.block[b].unseen = 0


@njit
def next_valid(st, dev, b):
    """Return the next valid page of victim ``b`` as (lpn, ppn), or (-1, -1) if none is left."""
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


@cold
def next_of_page(st, dev, b):
    """Return the next valid slot as (lpn, ppn) within the current flash page of victim ``b``, or
    (-1, -1) if none is left there."""
    c = st.cfg[0]
    block = st.block[b]
    base = mapping.first_page(st, dev, b)
    while block.scan % c.slots != 0:
        ppn = base + block.scan
        block.scan += 1
        lpn = int(st.p2l[dev, ppn]) - 1
        if lpn >= 0 and int(st.l2p[dev, lpn]) - 1 == ppn:
            return lpn, ppn
    return -1, -1


@cold
def give_up(st, u, b):
    """Give up the collection of victim ``b``: failed programs have used up the blocks that were
    reserved for it. The victim keeps its remaining pages. Neither this page nor the unread pages
    need a place, so word lines in which other pages wait are not kept open for them."""
    settled(st, u, b, 1)
    looked_through(st, u, b)
    st.block[b].scan = st.cfg[0].block_pages + 1


@inline
def given_up(st, b):
    """Return True if the collection of block ``b`` has been given up."""
    return st.block[b].scan > st.cfg[0].block_pages


@njit
def back(st, u, b):
    """Return block ``b``, whose collection was given up, to the full blocks."""
    st.block[b].state = FULL
    if modes.cached(st, b):
        modes.filled(st, u, b)
    closed(st, u, b)


@njit
def closed(st, u, b):
    """End the collection of block ``b`` and release its remaining reservation."""
    settled(st, u, b, st.block[b].owed)
    st.pool[u].victims -= 1
    if st.pool[u].levelled == b + 1:
        st.pool[u].levelled = 0


@njit
def emptied(st, b):
    """Check that emptied victim ``b`` has no valid page; otherwise fail with E_BLOCK_VALID."""
    if st.valid[b] != 0:
        fail(st, E_BLOCK_VALID, b, st.valid[b])
