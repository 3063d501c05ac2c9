"""Execution of garbage collection: page reads of a victim block until it is free or retired.

Owns the start of a collection, the order of the victim's page reads, the end of a victim (free,
erased or retired), static wear leveling and read reclaim. Does not own victim selection and its
accounting (gc_victims.py) or the destination of the pages read (completion.py).
Source: started when an open block fills and free blocks are at or below a threshold, as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import (
    ARRAY_READS,
    BAD_BLOCKS,
    COLLECTIONS,
    COPYBACK_PAGES,
    FOLD_READ_PAGES,
    FOLDS,
    GC_READ_PAGES,
    RECLAIMED_BLOCKS,
    WEAR_MOVES,
)
from ondie.emu.engine.core.events import take_txn
from ondie.emu.ftl import (
    gc_victims as gc,
)
from ondie.emu.ftl import (
    page_map as mapping,
)
from ondie.emu.ftl import (
    policies,
)
from ondie.emu.ftl import (
    pslc as modes,
)
from ondie.emu.ftl import (
    pslc_folding as folding,
)
from ondie.emu.ftl import (
    subpage_sense as sharing,
)
from ondie.emu.nand import channel as nand
from ondie.emu.nand import timing
from ondie.emu.nvme import idle_timer as quiet
from ondie.kernels.jit import apart, cold, inline, njit


@njit
def ask(st, dev, u):
    """Start the collections that unit ``u`` needs. A victim that becomes free at once is followed
    by the next check."""
    while True:
        b = retiring(st, u)
        if b < 0:
            b = choose(st, dev, u)
        if b < 0:
            return
        st.count[dev, modes.either(st, b, COLLECTIONS, FOLDS)] += 1
        if not execute(st, dev, u, b):
            return


@inline
def choose(st, dev, u):
    """Start a collection or a pSLC fold if unit ``u`` needs one. Return its block, or -1."""
    if st.cfg[0].pslc == 0:
        return gc.begin(st, u)
    return folding.begin(st, u, quiet.lasts(st, dev))


@njit
def execute(st, dev, u, b):
    """Start moving the victim's pages. With page locks, pending reads of the block come first.
    Return True if the victim has become a free block at once."""
    if st.cfg[0].locks != 0 and st.block[b].reading > 0:
        return False
    began(st, b)
    return collect(st, dev, u, b)


@cold
def retiring(st, u):
    """Start the collection of a block in which a program has failed, regardless of free space.
    Return the block, or -1."""
    c = st.cfg[0]
    if st.pool[u].retiring == 0 or st.pool[u].victims >= c.gc_parallel:
        return -1
    for b in range(u * c.all_blocks, u * c.all_blocks + c.blocks):
        block = st.block[b]
        if block.retire == 0 or block.flying != 0:
            continue
        if block.state != mapping.FULL and block.state != mapping.FOLDABLE:
            continue
        if gc.room(st, u, b):
            gc.start(st, u, b)
            return b
    return -1


@njit
def began(st, b):
    """Bar host transactions from the die of block ``b`` if collection has exclusive use of it."""
    if st.cfg[0].exclusive != 0:
        nand.bar(st, die_of_block(st, b), 1)


@njit
def moved_out(st, b):
    """Admit host transactions to the die again: no page of victim ``b`` is left to be moved. Its
    erase goes first."""
    if st.cfg[0].exclusive != 0 and st.block[b].state == mapping.VICTIM:
        nand.bar(st, die_of_block(st, b), -1)


@cold
def die_of_block(st, b):
    """Return the first lane of the die that contains block ``b``."""
    c = st.cfg[0]
    return b // c.all_blocks // c.die_units * c.lanes


@inline
def queue_of(st, x):
    """Return the queue for internal programs. Translation pages have a separate queue."""
    return nand.Q_MAP_WRITE if x.lpn >= st.cfg[0].lpns else st.cfg[0].q_gc_write


@apart
def collect(st, dev, u, b):
    """Read the next valid pages of victim ``b``, or end its collection. Return True if the block
    has become free at once."""
    c = st.cfg[0]
    block = st.block[b]
    while block.moving < c.gc_window:
        lpn, ppn = gc.next_valid(st, dev, b)
        if lpn < 0:
            if c.line > 1:
                gc.looked_through(st, u, b)
            break
        t = take_txn(st)
        if t < 0:
            return False
        begin(st, t, dev, lpn, ppn, b)
        block.moving += 1
        block.unseen -= 1
        if c.slots > 1:
            pick_up_page(st, dev, t)
        else:
            pick_up(st, t, c.copyback != 0)
    if block.moving > 0 or block.scan < c.block_pages:
        return False
    if gc.given_up(st, b):
        moved_out(st, b)
        gc.back(st, u, b)
        mapping.look_again(st, u)
        return False
    gc.emptied(st, b)
    if block.reading > 0:
        moved_out(st, b)
        block.state = mapping.EMPTIED
        return False
    return finish(st, dev, u, b)


@cold
def pick_up_page(st, dev, t):
    """Read a slot of a victim and the other valid slots of its page with one array operation."""
    c = st.cfg[0]
    x = st.txn[t]
    b = x.left
    block = st.block[b]
    u = t
    while u >= 0:
        y = st.txn[u]
        y.op = timing.READ
        mapping.place_of(st, dev, u)
        y.array = st.page_ps[0, y.page]
        st.count[dev, GC_READ_PAGES] += 1
        if u != t:
            sharing.follow(st, t, u)
        lpn, ppn = gc.next_of_page(st, dev, b)
        if lpn < 0:
            break
        u = take_txn(st)
        if u >= 0:
            begin(st, u, dev, lpn, ppn, b)
            block.moving += 1
            block.unseen -= 1
    sharing.send(st, x.die, t, c.q_gc_read)


@inline
def begin(st, t, dev, lpn, ppn, b):
    """Set up transaction ``t`` to move a page of victim ``b``."""
    x = st.txn[t]
    x.dev = dev
    x.lpn = lpn
    x.ppn = ppn
    x.old = ppn
    x.n = 1
    x.size = st.cfg[0].page_bytes
    x.bus = st.cfg[0].page_bytes
    x.left = b


@apart
def pick_up(st, t, inside):
    """Read a page of a victim into the controller. If ``inside`` is set and the next page of the
    destination stream lies in the same plane, use copyback instead."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    st.count[dev, modes.either(st, x.left, GC_READ_PAGES, FOLD_READ_PAGES)] += 1
    st.count[dev, ARRAY_READS] += 1
    x.ppn = x.old
    x.op = timing.READ
    x.bus = c.page_bytes
    g = mapping.place_of(st, dev, t)
    x.array = st.page_ps[0, x.page]
    u = x.left // c.all_blocks
    stream = gc.collected(st, x.left)
    if inside and mapping.next_plane(st, u, stream) == mapping.plane_of(st, x.ppn):
        target, k = mapping.allocate(st, dev, u, stream, 1)
        if k > 0:
            gc.settled(st, u, x.left, 1)
            st.count[dev, COPYBACK_PAGES] += 1
            x.op = timing.COPYBACK
            x.ppn = target
            x.bus = 0
            mapping.place_of(st, dev, t)
            nand.push(st, st.die[g].first, t, queue_of(st, x))
            return
    nand.push(st, g, t, c.q_gc_read)


@njit
def finish(st, dev, u, b):
    """Erase or free block ``b``, which has no valid page and no pending read. Return True if it
    is free (or retired) at once."""
    c = st.cfg[0]
    block = st.block[b]
    moved_out(st, b)
    if c.erase_collected != 0 and block.retire == 0:
        block.state = mapping.ERASING
        mapping.erase(st, dev, u, b, c.q_gc_erase)
        return False
    ended(st, dev, u, b)
    return True


@njit
def read_done(st, dev, ppn):
    """Complete the array read of a transaction that is not a collection read, and resume a
    collection that waited for it."""
    b = mapping.block_at(st, dev, ppn)
    block = st.block[b]
    block.reading -= 1
    if block.reading == 0:
        u = b // st.cfg[0].all_blocks
        if block.state == mapping.EMPTIED and finish(st, dev, u, b):
            ask(st, dev, u)
        if block.state == mapping.VICTIM and block.scan == 0:
            execute(st, dev, u, b)


@njit
def ended(st, dev, u, b):
    """Free or retire block ``b``, which holds no data."""
    block = st.block[b]
    gc.closed(st, u, b)
    if block.retire != 0:
        block.state = mapping.BAD
        if modes.cached(st, b):
            st.slc[u].lent -= 1
        st.count[dev, BAD_BLOCKS] += 1
        if block.retire == 1:
            st.pool[u].retiring -= 1
    elif modes.cached(st, b):
        modes.given_back(st, u, b)
    else:
        mapping.free_block(st, u, b)
    mapping.look_again(st, u)


@inline
def leisure(st, u):
    """Return True if unit ``u`` may start a move that frees no block (wear leveling, reclaim).
    It may not if the move would trigger a collection (which would trigger the next move), or
    while writes wait for ``gc_stop`` blocks."""
    c = st.cfg[0]
    pool = st.pool[u]
    if pool.free_n <= max(c.gc_reserve, min(c.gc_stop, c.gc_low)):
        return False
    waiting = pool.stall_head if c.static != 0 else st.dev[u // c.units].stall_head
    return pool.victims < c.gc_parallel and (pool.free_n > c.gc_stop or waiting < 0)


@cold
def level(st, dev, u):
    """Start static wear leveling: empty the least worn full block if the most worn block has at
    least ``wear_static`` more erases. Its cold data move to a worn block."""
    c = st.cfg[0]
    pool = st.pool[u]
    if pool.levelled != 0 or not leisure(st, u):
        return
    most = 0
    coldest = -1
    for b in range(u * c.all_blocks, u * c.all_blocks + c.native):
        most = max(most, st.block[b].erases)
        if policies.collectable(st, b):
            if coldest < 0 or st.block[b].erases < st.block[coldest].erases:
                coldest = b
    if coldest < 0 or most - st.block[coldest].erases < c.wear_static:
        return
    if not gc.room(st, u, coldest):
        return
    pool.levelled = coldest + 1
    gc.start(st, u, coldest)
    st.count[dev, WEAR_MOVES] += 1
    execute(st, dev, u, coldest)


@njit
def reclaim(st, dev, ppn):
    """Start read reclaim: move the data of the block of page ``ppn`` to another block if collection
    has time and room for it now. Otherwise a later read tries again."""
    c = st.cfg[0]
    b = mapping.block_at(st, dev, ppn)
    u = b // c.all_blocks
    if not leisure(st, u):
        return
    if not policies.collectable(st, b) and not folding.foldable(st, b):
        return
    if not folding.room(st, u, b):
        return
    gc.start(st, u, b)
    st.count[dev, RECLAIMED_BLOCKS] += 1
    began(st, b)
    if collect(st, dev, u, b):
        ask(st, dev, u)
