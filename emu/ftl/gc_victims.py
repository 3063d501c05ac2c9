"""Garbage collection: trigger, admission and accounting of victim blocks.

Owns the decision to start a garbage collection and the accounting of a victim from its selection to
the end of its garbage collection. Does not own the victim selection policies (policies.py) or the
execution of moves (gc.py). Source: MQSim, which starts a garbage collection when an open block
fills and the number of free blocks is at or below a threshold.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import OVERRULED
from ondie.emu.engine.core.error_codes import E_BLOCK_VALID, E_VICTIM
from ondie.emu.engine.core.events import fail
from ondie.emu.engine.core.intrinsics import call_policy, prefetch
from ondie.emu.ftl import block_manager, page_map, policies, pslc
from ondie.emu.ftl.page_map import FOLDABLE, FULL, VICTIM
from ondie.kernels.jit import cold, inline, njit


@njit
def start_collection(st, unit):
    """Start one garbage collection on unit ``unit`` if the unit is short of free blocks. Return the
    victim. Return -1 if the unit needs no garbage collection, if each block has too many valid
    pages, or if there is no room for the valid pages. If the policy chooses a block that cannot be
    collected, record error E_VICTIM and return -1.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if pool.free_n > cfg.gc_low or pool.victims >= cfg.gc_parallel:
        return -1
    block = call_policy(st, cfg.gc_policy, unit)
    if block == -1:
        return -1
    first = unit * cfg.all_blocks
    if block < first or block >= first + cfg.blocks or not policies.collectable(st, block):
        fail(st, E_VICTIM, unit, block - first)
        return -1
    if not is_worth_collecting(st, unit, block):
        if pool.free_n > max(cfg.gc_reserve, cfg.gc_stop - 1):
            return -1
        block = policies.greedy(st, unit)  # writes stall: need a victim that gains space
        if block < 0 or not is_worth_collecting(st, unit, block):
            return -1
        st.count[unit // cfg.units, OVERRULED] += 1
    make_victim(st, unit, block)
    return block


@inline
def is_worth_collecting(st, unit, block):
    """Return True if block ``block`` has at most ``cfg.worth`` valid pages and the unit has room
    for them.
    """
    return st.valid[block] <= st.cfg[0].worth and has_room(st, unit, block)


@inline
def destination_stream(st, block):
    """Return the stream to which the pages of victim ``block`` move.

    Pages of host streams move to one common stream, or to one stream per host stream. Translation
    pages stay in the map stream. Pages of a pSLC block move to a separate stream for folded pages.
    """
    cfg = st.cfg[0]
    stream = st.block[block].stream
    if stream == cfg.pslc_stream:
        return cfg.fold_stream
    if page_map.is_map_stream(st, stream):
        return stream
    if cfg.collected_streams == 1:
        return cfg.collected
    return stream if stream >= cfg.collected else cfg.collected + stream


@njit
def has_room(st, unit, block):
    """Return True if the free blocks of unit ``unit`` suffice for the valid pages of ``block`` and
    for the pages of garbage collections in progress. The garbage collection of a block that is to
    be retired frees no block, so one more free block must remain for the next garbage collection.
    """
    if st.valid[block] == 0:
        return True
    blocks = block_manager.count_reserved_blocks(
        st, unit, destination_stream(st, block), st.valid[block]
    )
    return blocks + int(st.block[block].retire != 0) <= st.pool[unit].free_n


@njit
def make_victim(st, unit, bid):
    """Make block ``bid`` a victim and reserve page slots for its valid pages."""
    cfg = st.cfg[0]
    block = st.block[bid]
    if block.state == FOLDABLE:
        st.slc[unit].full -= 1
    block.state = VICTIM
    block.scan = 0
    block.moving = 0
    block.owed = st.valid[bid]
    block.unseen = st.valid[bid]
    st.front[destination_stream(st, bid), unit].owed += block.owed
    st.pool[unit].victims += 1
    dev = unit // cfg.units
    base = page_map.first_page(st, dev, bid)
    for ppn in range(base, base + cfg.block_pages):  # their map entries are read soon
        prefetch(st.l2p, dev * st.l2p.shape[1] + max(int(st.p2l[dev, ppn]) - 1, 0))


@inline
def release_reservation(st, unit, block, count):
    """Release the reservation of ``count`` page slots for pages of victim ``block``. Call this
    function when the pages have been allocated or dropped.
    """
    st.block[block].owed -= count
    st.front[destination_stream(st, block), unit].owed -= count


@cold
def release_overwritten(st, unit, block):
    """Release the reservation for the pages of victim ``block`` that were overwritten after the
    victim was selected. Call this function when no further page of the victim will be read.
    """
    release_reservation(st, unit, block, st.block[block].unseen)
    st.block[block].unseen = 0


@njit
def next_valid(st, dev, bid):
    """Return the next valid page of victim ``bid`` as (lpn, ppn), or (-1, -1) if no valid page is
    left.
    """
    cfg = st.cfg[0]
    block = st.block[bid]
    base = page_map.first_page(st, dev, bid)
    while block.scan < cfg.block_pages:
        ppn = base + block.scan
        block.scan += 1
        lpn = int(st.p2l[dev, ppn]) - 1
        if lpn >= 0 and int(st.l2p[dev, lpn]) - 1 == ppn:
            return lpn, ppn
    return -1, -1


@cold
def next_of_page(st, dev, bid):
    """Return the next valid slot within the current flash page of victim ``bid`` as (lpn, ppn), or
    (-1, -1) if that page has no further valid slot.
    """
    cfg = st.cfg[0]
    block = st.block[bid]
    base = page_map.first_page(st, dev, bid)
    while block.scan % cfg.slots != 0:
        ppn = base + block.scan
        block.scan += 1
        lpn = int(st.p2l[dev, ppn]) - 1
        if lpn >= 0 and int(st.l2p[dev, lpn]) - 1 == ppn:
            return lpn, ppn
    return -1, -1


@cold
def give_up(st, unit, block):
    """Give up the garbage collection of victim ``block``, because failed programs have used up the
    blocks that were reserved for it. The victim keeps its remaining pages. Release the reservations
    for the current page and for the unread pages, so that no word line waits for these pages.
    """
    release_reservation(st, unit, block, 1)
    release_overwritten(st, unit, block)
    st.block[block].scan = st.cfg[0].block_pages + 1


@inline
def is_given_up(st, block):
    """Return True if the garbage collection of block ``block`` has been given up."""
    return st.block[block].scan > st.cfg[0].block_pages


@njit
def return_to_full(st, unit, block):
    """Mark block ``block``, whose garbage collection was given up, as full, and end the garbage
    collection.
    """
    st.block[block].state = FULL
    if pslc.is_pslc(st, block):
        pslc.mark_foldable(st, unit, block)
    end_collection(st, unit, block)


@njit
def end_collection(st, unit, block):
    """End the garbage collection of block ``block`` and release its remaining reservation."""
    release_reservation(st, unit, block, st.block[block].owed)
    st.pool[unit].victims -= 1
    if st.pool[unit].levelled == block + 1:
        st.pool[unit].levelled = 0
    if page_map.is_refreshed(st, block):
        st.upkeep[unit].moving = 0
        page_map.look_now(st, unit)


@njit
def check_empty(st, block):
    """Check that victim ``block`` has no valid page left; otherwise record error E_BLOCK_VALID."""
    if st.valid[block] != 0:
        fail(st, E_BLOCK_VALID, block, st.valid[block])
