"""Block manager: the free blocks of each unit, and the erase of blocks.

Owns the ring of free blocks, the choice and opening of a free block, and the erase of a block. Does
not own the mapping of pages (page_map.py) or garbage collection victims (gc_victims.py).
Source: a ring of free blocks per plane or super-block, as in MQSim's Flash_Block_Manager.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import take_txn
from ondie.emu.engine.core.payload_log import LOG_ERASE, log
from ondie.emu.ftl.page_map import ERASING, FREE, OPEN, first_page, set_place
from ondie.emu.nand import erase_queue
from ondie.emu.nand.die_scheduler import push, set_gc_priority
from ondie.emu.nand.timing import ERASE
from ondie.kernels.jit import cold, inline, njit


@njit
def take_free(st, unit, stream):
    """Remove the next free block from the ring of unit ``unit`` and return the block. The ring is
    ordered by erase count (dynamic wear leveling) or by the time when the blocks became free. For
    data moved by static wear leveling, take the free block with the most erases instead.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if pool.levelled != 0 and stream >= cfg.collected:
        move_most_worn_to_head(st, unit)
    block = st.free[unit, pool.free_head]
    pool.free_head = pool.free_head + 1 if pool.free_head + 1 < cfg.blocks else 0
    pool.free_n -= 1
    return block


@cold
def move_most_worn_to_head(st, unit):
    """Move the free block with the most erases to the head of the unit's ring. Shift the blocks
    that preceded it by one position toward the tail.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    first = unit * cfg.all_blocks
    at = pool.free_head
    worn = 0
    most = -1
    for i in range(pool.free_n):
        if st.block[first + st.free[unit, at]].erases > most:
            most = st.block[first + st.free[unit, at]].erases
            worn = i
        at = at + 1 if at + 1 < cfg.blocks else 0
    at = pool.free_head
    carried = st.free[unit, (pool.free_head + worn) % cfg.blocks]
    for _ in range(worn + 1):
        following = st.free[unit, at]
        st.free[unit, at] = carried
        carried = following
        at = at + 1 if at + 1 < cfg.blocks else 0


@cold
def gc_is_urgent(st, unit):
    """Return True if garbage collection is urgent (fewer than ``gc_hard`` free blocks) in unit
    ``unit``, in another unit of its die, or, if a chip executes one command at a time, in another
    unit of its chip.
    """
    cfg = st.cfg[0]
    if st.pool[unit].free_n < cfg.gc_hard:
        return True
    if cfg.die_units == 1 and cfg.chip == 0:
        return False
    first = st.die[unit // cfg.die_units * cfg.lanes].first
    at = first
    while at < st.die.shape[0] and st.die[at].first == first:
        die = at // cfg.lanes
        for other in range(die * cfg.die_units, (die + 1) * cfg.die_units):
            if st.pool[other].free_n < cfg.gc_hard:
                return True
        at += cfg.channels * cfg.lanes
    return False


@njit
def update_gc_priority(st, unit):
    """Give garbage collection priority over host transactions on the die of ``unit`` while garbage
    collection is urgent there (:func:`gc_is_urgent`); otherwise remove the priority.
    """
    cfg = st.cfg[0]
    if cfg.gc_hard > 0:
        set_gc_priority(st, unit // cfg.die_units * cfg.lanes, int(gc_is_urgent(st, unit)))


@njit
def free_block(st, unit, block):
    """Add a block without valid pages to the free ring of unit ``unit``: at the tail, or, with
    dynamic wear leveling, after the blocks that have the same number of erases or fewer.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    at = pool.free_head + pool.free_n
    if at >= cfg.blocks:
        at -= cfg.blocks
    first = unit * cfg.all_blocks
    erases = st.block[block].erases
    if cfg.wear_dynamic != 0:
        count = pool.free_n
        while count > 0:
            before = at - 1 if at > 0 else cfg.blocks - 1
            bid = st.free[unit, before]
            if st.block[first + bid].erases <= erases:
                break
            st.free[unit, at] = bid
            at = before
            count -= 1
    st.free[unit, at] = block - first
    pool.free_n += 1
    st.block[block].state = FREE
    st.block[block].stream = -1
    update_gc_priority(st, unit)


@njit
def count_reserved_blocks(st, unit, to, pages):
    """Return the number of free blocks of unit ``unit`` that the garbage collections in progress
    and a new garbage collection together may need.

    ``to``: stream to which the new collection moves pages, or -1 without a new collection.
    ``pages``: number of these pages.
    """
    cfg = st.cfg[0]
    blocks = 0
    for stream in range(cfg.collected, st.front.shape[0]):
        front = st.front[stream, unit]
        left = front.owed
        if stream == to:
            left += pages
        if front.block >= 0:
            left -= cfg.block_pages - front.next
            if front.laid != 0:
                left += -front.next % cfg.stripe
        if left > 0:
            blocks += (left + cfg.block_pages - 1) // cfg.block_pages
    return blocks


@njit
def has_unreserved_block(st, unit):
    """Return True if unit ``unit`` has free blocks that are not reserved for garbage collection."""
    pool = st.pool[unit]
    if pool.free_n <= st.cfg[0].gc_reserve:
        return False
    return (
        pool.victims == 0
        or pool.free_n > count_reserved_blocks(st, unit, -1, 0) + st.cfg[0].fold_keep
    )


@njit
def fits_internal_write(st, unit, stream):
    """Return True if an internal write of the FTL may allocate a page of stream ``stream``.

    Garbage collection writes to the same stream, and the internal write must not use a page that is
    reserved for garbage collection.
    """
    if st.front[stream, unit].block < 0:
        return has_unreserved_block(st, unit)
    if st.pool[unit].victims == 0:
        return True
    return count_reserved_blocks(st, unit, stream, 1) + st.cfg[0].fold_keep <= st.pool[unit].free_n


@njit
def open_block(st, dev, unit, stream):
    """Open a free block of unit ``unit`` for a stream.

    Return False if the unit has no block available. Host writes may not use the blocks that are
    reserved for garbage collection.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if pool.free_n == 0 or (stream < cfg.collected and not has_unreserved_block(st, unit)):
        return False
    bid = take_free(st, unit, stream)
    block = st.block[unit * cfg.all_blocks + bid]
    block.state = OPEN
    block.stream = stream
    block.last = cfg.block_pages // cfg.stripe - 1
    if cfg.errors != 0:
        st.quality[unit * cfg.all_blocks + bid].since = st.reg[0].now
    front = st.front[stream, unit]
    front.block = bid
    front.next = 0
    update_gc_priority(st, unit)
    return True


@njit
def queue_erase(st, dev, unit, block, queue):
    """Queue the erase of block ``block`` on all planes of the block."""
    cfg = st.cfg[0]
    tid = take_txn(st)
    if tid < 0:
        return
    txn = st.txn[tid]
    txn.op = ERASE
    txn.dev = dev
    txn.n = cfg.unit_planes
    txn.ppn = first_page(st, dev, block)
    txn.lpn = block
    if st.block[block].stream == cfg.pslc_stream:
        txn.array = cfg.pslc_erase
    die = set_place(st, dev, tid)
    if cfg.slots > 1:
        txn.planes = ((1 << cfg.unit_planes) - 1) << st.block[block].plane
    if cfg.lanes > 1:
        die = st.die[die].first
    if block - unit * cfg.all_blocks >= cfg.blocks:
        txn.planes = planes_in_use(st, st.block[block].turned)
        txn.n = cfg.reservoir_planes
    if cfg.ordered != 0 and st.block[block].state == ERASING:
        erase_queue.make_ready(st, die, tid)
    else:
        push(st, die, tid, queue)


@inline
def planes_in_use(st, turned):
    """Return the bit mask of the planes of a reservoir block that store super-pages. ``turned``:
    number of planes by which the plane roles of the block have rotated."""
    cfg = st.cfg[0]
    wide = ((1 << cfg.reservoir_planes) - 1) << turned
    return (wide | wide >> cfg.planes) & ((1 << cfg.planes) - 1)


@njit
def on_erased(st, tid):
    """Complete the erase of transaction ``tid``: update the erase counts and log the erase."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    block = st.block[txn.lpn]
    block.erases += 1
    block.reads = 0
    of_unit = txn.lpn % cfg.all_blocks
    planes = -1
    if of_unit >= cfg.blocks:
        planes = txn.planes
        at = txn.lpn // cfg.all_blocks * (cfg.all_blocks - cfg.blocks) + of_unit - cfg.blocks
        for plane in range(cfg.planes):
            st.worn[at, plane] += planes >> plane & 1
    log(st, LOG_ERASE, -1, -1, txn.ppn, planes, cfg.block_pages, txn.dev, txn.die)
