"""Collection: whom to empty, when, and whether what is valid in it finds a place.

Owns the decision to start and the bookkeeping of a victim from its choice to its end. Does not
own who is chosen (policies.py) or the way of its moves through the drive (collection.py).
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
    """Start one collection on unit ``u`` if it is short of free blocks. Returns the victim, or -1:
    none is worth it, or there is no room for its pages."""
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
        b = policies.greedy(st, u)  # the host waits: a choice that brings nothing would be the last
        if b < 0 or not gains(st, u, b):
            return -1
        st.count[u // c.units, OVERRULED] += 1
    start(st, u, b)
    return b


@inline
def gains(st, u, b):
    """Is a block worth collecting, and is there room for what is valid in it?"""
    return st.valid[b] <= st.cfg[0].worth and room(st, u, b)


@inline
def collected(st, b):
    """Stream to which the pages of victim ``b`` move: one for all, or one beside each stream.
    Translation pages stay in their own, what is folded fills one of its own."""
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
    """Do the valid pages of block ``b`` find a place, beside those of collections under way? One
    that is to be retired gives no block back: it must leave one for the next collection."""
    if st.valid[b] == 0:
        return True
    blocks = mapping.promised(st, u, collected(st, b), st.valid[b])
    return blocks + int(st.block[b].retire != 0) <= st.pool[u].free_n


@njit
def start(st, u, b):
    """Block ``b`` is to be emptied."""
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
    for ppn in range(base, base + c.block_pages):  # their map entries will be looked at
        prefetch(st.l2p, dev * st.l2p.shape[1] + max(int(st.p2l[dev, ppn]) - 1, 0))


@inline
def settled(st, u, b, n):
    """``n`` pages of victim ``b`` have found a place, or need none any more."""
    st.block[b].owed -= n
    st.front[collected(st, b), u].owed -= n


@cold
def looked_through(st, u, b):
    """Victim ``b`` has no page left to be read: what was overwritten meanwhile needs no place."""
    settled(st, u, b, st.block[b].unseen)
    st.block[b].unseen = 0


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


@cold
def next_of_page(st, dev, b):
    """The same within the page of flash that is being looked at."""
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
    """There is no place for a page of victim ``b``: programs have failed, and spoilt the blocks
    that were meant for it. It keeps what it still holds: neither this page nor those that have not
    been read need a place, so that lines which others wait in are not kept open for them."""
    settled(st, u, b, 1)
    looked_through(st, u, b)
    st.block[b].scan = st.cfg[0].block_pages + 1


@inline
def given_up(st, b):
    """Has the collection of ``b`` been given up?"""
    return st.block[b].scan > st.cfg[0].block_pages


@njit
def back(st, u, b):
    """Block ``b``, given up, is a full block as before."""
    st.block[b].state = FULL
    if modes.cached(st, b):
        modes.filled(st, u, b)
    closed(st, u, b)


@njit
def closed(st, u, b):
    """The collection of block ``b`` is over."""
    settled(st, u, b, st.block[b].owed)
    st.pool[u].victims -= 1
    if st.pool[u].levelled == b + 1:
        st.pool[u].levelled = 0


@njit
def emptied(st, b):
    """All pages of victim ``b`` have moved: the books must say so too."""
    if st.valid[b] != 0:
        fail(st, E_BLOCK_VALID, b, st.valid[b])
