"""Execution of garbage collection: page reads of a victim block until it is free or retired.

Owns the start of a garbage collection, the order of the victim's page reads, the end of a victim
(free, erased or retired), static wear leveling and read reclaim. Does not own victim selection and
its accounting (gc_victims.py) or the destination of the pages read (completion.py).
Source: MQSim, which starts a garbage collection when an open block fills and the number of free
blocks is at or below a threshold.
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import idle
from ondie.emu.engine.core.counters import (
    ARRAY_READS,
    BAD_BLOCKS,
    COPYBACK_PAGES,
    MOVE_READS,
    MOVE_STARTS,
    RECLAIMED_BLOCKS,
    REFRESHED_BLOCKS,
    WEAR_MOVES,
)
from ondie.emu.engine.core.events import take_txn
from ondie.emu.ftl import (
    block_manager,
    cached_entries,
    gc_victims,
    page_map,
    policies,
    pslc,
    pslc_folding,
    read_path,
    trim_maps,
    write_frontier,
)
from ondie.emu.nand import erase_queue, scheduler_statistics, timing
from ondie.emu.nand.die import Q_MAP_WRITE
from ondie.emu.nand.die_scheduler import bar_host_work, push
from ondie.kernels.jit import apart, cold, inline, njit


@njit
def maybe_start_gc(st, dev, unit):
    """Start the garbage collections that unit ``unit`` needs.

    If a victim becomes free immediately, check whether the unit needs another collection.
    """
    while True:
        block = choose_retiring_block(st, unit)
        if block < 0 and st.cfg[0].upkeep != 0:
            block = choose_overdue_block(st, unit)
        if block < 0:
            block = choose_victim(st, dev, unit)
            if block >= 0 and st.cfg[0].upkeep != 0:
                st.upkeep[unit].yields = 0
        if block < 0:
            return
        st.count[dev, pslc.counter_of_moves(st, block, MOVE_STARTS)] += 1
        if st.cfg[0].ordered != 0 and st.cfg[0].map_entries != 0:
            touch_entries(st, dev, block)
        if not start_moving(st, dev, unit, block):
            return


@cold
def touch_entries(st, dev, block):
    """Mark the cached mapping entries of the valid pages of victim ``block`` as most recently used,
    in the order of the pages, as MQSim does when it locks the pages.
    """
    first = page_map.first_page(st, dev, block)
    for ppn in range(first, first + st.cfg[0].block_pages):
        lpn = int(st.p2l[dev, ppn]) - 1
        if 0 <= lpn < st.cfg[0].lpns and int(st.l2p[dev, lpn]) - 1 == ppn:
            entry = cached_entries.find(st, dev, lpn)
            if entry > 0 and st.entry[entry - 1].dirty != cached_entries.RESERVED:
                cached_entries.touch(st, dev, entry)


@inline
def choose_victim(st, dev, unit):
    """Choose the victim of a garbage collection or pSLC fold if unit ``unit`` needs one, and start
    the collection or fold. Return the victim, or -1 if neither was started.
    """
    if st.cfg[0].pslc == 0:
        return gc_victims.start_collection(st, unit)
    return pslc_folding.start_fold_or_collection(st, unit, idle.long_enough(st, dev))


@njit
def start_moving(st, dev, unit, block):
    """Start moving the pages of victim ``block``.

    With page locks, first wait for pending reads of the block. Return True if the block has become
    free immediately.
    """
    if st.cfg[0].locks != 0 and st.block[block].reading > 0:
        return False
    bar_host_if_exclusive(st, block)
    if st.cfg[0].ordered == 0:
        return collect(st, dev, unit, block)
    erase_queue.enter(st, block)
    free = collect(st, dev, unit, block)
    st.reg[0].begun = 0
    return free


@cold
def choose_retiring_block(st, unit):
    """Start the garbage collection of a block in which a program has failed, even if the unit is
    not short of free blocks.

    Return the block, or -1 if unit ``unit`` has no such block that can be collected now, for
    example because there is no room for its valid pages.
    """
    cfg = st.cfg[0]
    if st.pool[unit].retiring == 0 or st.pool[unit].victims >= cfg.gc_parallel:
        return -1
    for bid in range(unit * cfg.all_blocks, unit * cfg.all_blocks + cfg.blocks):
        block = st.block[bid]
        if block.retire != page_map.FAILED_PROGRAM or block.flying != 0:
            continue
        if block.state != page_map.FULL and block.state != page_map.FOLDABLE:
            continue
        if gc_victims.has_room(st, unit, bid):
            gc_victims.make_victim(st, unit, bid)
            return bid
    return -1


@cold
def choose_overdue_block(st, unit):
    """Start the refresh of a block that is overdue and had to wait for a garbage collection
    (refresh.py).

    Return the block, or -1 if unit ``unit`` has no such block or no room for its pages.
    """
    upkeep = st.upkeep[unit]
    block = upkeep.late - 1
    upkeep.late = 0
    saving = st.dev[unit // st.cfg[0].units].saving != 0
    if block < 0 or saving or not may_refresh(st, unit, block):
        return -1
    gc_victims.make_victim(st, unit, block)
    upkeep.moving = block + 1
    upkeep.yields = 1
    return block


@cold
def may_refresh(st, unit, block):
    """Return True if unit ``unit`` may start a refresh of the full block ``block`` now.

    A refresh frees as many blocks as it uses, so it may use the free blocks that are reserved for
    garbage collection. It may not use them if program or erase failures can occur, because a
    failure may cost a block. While a unit is short of free blocks and the host has outstanding
    commands, each refresh must be followed by a garbage collection. Otherwise the host would wait
    forever if all blocks are overdue.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if pool.victims >= cfg.gc_parallel or st.upkeep[unit].moving != 0:
        return False
    short = pool.free_n <= cfg.gc_low and not idle.no_command(st, unit // cfg.units)
    if st.upkeep[unit].yields != 0 and short:
        return False
    if cfg.program_failures + cfg.erase_failures > 0.0 and pool.free_n <= cfg.gc_reserve:
        return False
    if not policies.collectable(st, block) and not pslc_folding.is_foldable(st, block):
        return False
    return pslc_folding.has_room(st, unit, block)


@cold
def start_refresh(st, dev, unit, block):
    """Start a refresh of the full block ``block``: decode its data, move it to another block, and
    erase or free the block. Precondition: :func:`may_refresh` returned True.
    """
    gc_victims.make_victim(st, unit, block)
    st.upkeep[unit].moving = block + 1
    st.upkeep[unit].yields = 1
    st.count[dev, REFRESHED_BLOCKS] += 1
    if start_moving(st, dev, unit, block):
        maybe_start_gc(st, dev, unit)


@njit
def bar_host_if_exclusive(st, block):
    """Block host transactions on the die of block ``block`` if the configuration gives garbage
    collection exclusive use of the die.
    """
    if st.cfg[0].probe != 0:
        scheduler_statistics.on_collection(st, block, die_of_block(st, block))
    if st.cfg[0].exclusive != 0:
        bar_host_work(st, die_of_block(st, block), 1)


@njit
def readmit_host(st, block):
    """Readmit host transactions to the die of victim ``block`` after all pages of the victim have
    been moved. The die erases the victim before it serves the host.
    """
    if st.cfg[0].exclusive != 0 and st.block[block].state == page_map.VICTIM:
        bar_host_work(st, die_of_block(st, block), -1)


@cold
def die_of_block(st, block):
    """Return the index of the DIE record of the die that contains block ``block``. If planes
    operate independently, this is the record of the first plane of the die."""
    cfg = st.cfg[0]
    return block // cfg.all_blocks // cfg.die_units * cfg.lanes


@inline
def queue_of(st, txn):
    """Return the die queue for a program of the FTL at ``txn.ppn``. Programs to blocks of
    translation and metadata pages have a separate queue. After a recovery, such blocks may also
    contain collected pages.
    """
    cfg = st.cfg[0]
    if cfg.map_stream < 0:
        return cfg.q_gc_write
    stream = st.block[page_map.block_at(st, txn.dev, txn.ppn)].stream
    return Q_MAP_WRITE if page_map.is_map_stream(st, stream) else cfg.q_gc_write


@apart
def collect(st, dev, unit, bid):
    """Read the next valid pages of victim ``bid``, or end its garbage collection if no valid page
    is left. Return True if the block has become free immediately.
    """
    cfg = st.cfg[0]
    block = st.block[bid]
    while block.moving < cfg.gc_window:
        lpn, ppn = gc_victims.next_valid(st, dev, bid)
        if lpn < 0:
            if cfg.line > 1:
                gc_victims.release_overwritten(st, unit, bid)
            break
        tid = take_txn(st)
        if tid < 0:
            return False
        set_up_move(st, tid, dev, lpn, ppn, bid)
        block.moving += 1
        block.unseen -= 1
        if cfg.slots > 1:
            pick_up_page(st, dev, tid)
        else:
            pick_up(st, tid, cfg.copyback != 0 and not page_map.is_refreshed(st, bid))
    if block.moving > 0 or block.scan < cfg.block_pages:
        return False
    if gc_victims.is_given_up(st, bid):
        readmit_host(st, bid)
        gc_victims.return_to_full(st, unit, bid)
        write_frontier.schedule_check(st, unit)
        return False
    gc_victims.check_empty(st, bid)
    if block.reading > 0:
        readmit_host(st, bid)
        block.state = page_map.EMPTIED
        return False
    return erase_or_free(st, dev, unit, bid)


@cold
def pick_up_page(st, dev, tid):
    """Read the page slot of transaction ``tid`` and the other valid slots of the same flash page
    with one array operation.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    bid = txn.victim
    block = st.block[bid]
    other = tid
    while other >= 0:
        other_txn = st.txn[other]
        other_txn.op = timing.READ
        page_map.set_place(st, dev, other)
        other_txn.array = st.page_ps[0, other_txn.page]
        st.count[dev, pslc.counter_of_moves(st, bid, MOVE_READS)] += 1
        if other != tid:
            read_path.append_read(st, tid, other)
        lpn, ppn = gc_victims.next_of_page(st, dev, bid)
        if lpn < 0:
            break
        other = take_txn(st)
        if other >= 0:
            set_up_move(st, other, dev, lpn, ppn, bid)
            block.moving += 1
            block.unseen -= 1
    read_path.queue_command(st, txn.die, tid, cfg.q_gc_read)


@inline
def set_up_move(st, tid, dev, lpn, ppn, block):
    """Set up transaction ``tid`` to move a page of victim ``block``."""
    txn = st.txn[tid]
    txn.dev = dev
    txn.lpn = lpn
    txn.ppn = ppn
    txn.src_ppn = ppn
    txn.n = 1
    txn.size = st.cfg[0].page_bytes
    txn.bus = st.cfg[0].page_bytes
    txn.victim = block


@apart
def pick_up(st, tid, inside):
    """Read a page of a victim into the controller for move transaction ``tid``.

    If ``inside`` is set and the next page of the destination stream is in the same plane, move the
    page by copy-back instead.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    st.count[dev, pslc.counter_of_moves(st, txn.victim, MOVE_READS)] += 1
    st.count[dev, ARRAY_READS] += 1
    txn.ppn = txn.src_ppn
    txn.op = timing.READ
    txn.bus = cfg.page_bytes
    die = page_map.set_place(st, dev, tid)
    txn.array = st.page_ps[0, txn.page]
    unit = txn.victim // cfg.all_blocks
    stream = gc_victims.destination_stream(st, txn.victim)
    if inside and write_frontier.next_plane(st, unit, stream) == write_frontier.plane_of(
        st, txn.ppn
    ):
        target, got = write_frontier.allocate(st, dev, unit, stream, 1)
        if got > 0:
            gc_victims.release_reservation(st, unit, txn.victim, 1)
            st.count[dev, COPYBACK_PAGES] += 1
            txn.op = timing.COPYBACK
            txn.ppn = target
            txn.bus = 0
            page_map.set_place(st, dev, tid)
            push(st, st.die[die].first, tid, queue_of(st, txn))
            return
    push(st, die, tid, cfg.q_gc_read)


@njit
def erase_or_free(st, dev, unit, bid):
    """Erase or free block ``bid``, which has no valid page and no pending read. Return True if the
    block has become free or bad immediately, without an erase. If trims of its pages are not on
    flash yet, only mark the block as emptied.
    """
    cfg = st.cfg[0]
    block = st.block[bid]
    readmit_host(st, bid)
    if cfg.trim_maps != 0:
        if trim_maps.holds_erase(st, dev, bid):
            block.state = page_map.EMPTIED
            return False
        block.trims = 0
    if cfg.erase_collected != 0 and block.retire == 0:
        block.state = page_map.ERASING
        block_manager.queue_erase(st, dev, unit, bid, cfg.q_gc_erase)
        return False
    free_or_retire(st, dev, unit, bid)
    return True


@njit
def resume_after_read(st, dev, ppn):
    """Complete a host or map read of physical page ``ppn``.

    If this was the last pending read of the block, resume the garbage collection that waits for the
    reads of the block.
    """
    bid = page_map.block_at(st, dev, ppn)
    block = st.block[bid]
    block.reading -= 1
    if block.reading == 0:
        unit = bid // st.cfg[0].all_blocks
        if block.state == page_map.EMPTIED and erase_or_free(st, dev, unit, bid):
            maybe_start_gc(st, dev, unit)
        if block.state == page_map.VICTIM and block.scan == 0:
            st.reg[0].cause = 1 + ppn % st.cfg[0].block_pages
            start_moving(st, dev, unit, bid)
            st.reg[0].cause = 0


@cold
def erase_released(st, dev):
    """Erase or free the emptied blocks whose erase had to wait until the trims of their pages were
    on flash (trim_maps.py).
    """
    cfg = st.cfg[0]
    saved = trim_maps.first_unsaved(st, dev)
    for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
        if st.pool[unit].victims == 0:
            continue
        freed = False
        for bid in range(unit * cfg.all_blocks, (unit + 1) * cfg.all_blocks):
            block = st.block[bid]
            if block.state == page_map.EMPTIED and block.reading == 0 and block.trims < saved:
                freed = erase_or_free(st, dev, unit, bid) or freed
        if freed:
            maybe_start_gc(st, dev, unit)


@njit
def free_or_retire(st, dev, unit, bid):
    """Free block ``bid``, which contains no valid data, or retire it if a program or an erase in it
    has failed.
    """
    block = st.block[bid]
    gc_victims.end_collection(st, unit, bid)
    if block.retire != 0:
        block.state = page_map.BAD
        if pslc.is_pslc(st, bid):
            st.slc[unit].lent -= 1
        st.count[dev, BAD_BLOCKS] += 1
        st.dev[dev].meta_since = NEVER // 2  # a checkpoint records the block at once
        if block.retire == page_map.FAILED_PROGRAM:
            st.pool[unit].retiring -= 1
    elif pslc.is_pslc(st, bid):
        pslc.return_block(st, unit, bid)
    else:
        block_manager.free_block(st, unit, bid)
    if block.retire == 0:
        st.dev[dev].full = 0
    write_frontier.schedule_check(st, unit)


@inline
def may_level(st, unit):
    """Return True if unit ``unit`` may start a move that frees no block (wear leveling or read
    reclaim).

    Return False if the move would trigger a garbage collection (which would trigger the next move),
    or while writes wait for ``gc_stop`` free blocks.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if pool.free_n <= max(cfg.gc_reserve, min(cfg.gc_stop, cfg.gc_low)):
        return False
    waiting = pool.stall_head if cfg.static != 0 else st.dev[unit // cfg.units].stall_head
    return pool.victims < cfg.gc_parallel and (pool.free_n > cfg.gc_stop or waiting < 0)


@cold
def start_wear_leveling(st, dev, unit):
    """Start static wear leveling: collect the full block with the fewest erases if the most worn
    block has at least ``wear_static`` more erases. The cold data of the collected block moves to a
    worn block. Do nothing if the unit may not start such a move.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if pool.levelled != 0 or not may_level(st, unit):
        return
    most = 0
    coldest = -1
    for block in range(unit * cfg.all_blocks, unit * cfg.all_blocks + cfg.native):
        most = max(most, st.block[block].erases)
        if policies.collectable(st, block):
            if coldest < 0 or st.block[block].erases < st.block[coldest].erases:
                coldest = block
    if coldest < 0 or most - st.block[coldest].erases < cfg.wear_static:
        return
    if not gc_victims.has_room(st, unit, coldest):
        return
    pool.levelled = coldest + 1
    gc_victims.make_victim(st, unit, coldest)
    st.count[dev, WEAR_MOVES] += 1
    start_moving(st, dev, unit, coldest)


@njit
def start_read_reclaim(st, dev, ppn):
    """Start read reclaim: move the data of the block of page ``ppn`` to another block, if the unit
    may start a move and has free blocks for the data. Otherwise do nothing; a later read of the
    block starts the move.
    """
    cfg = st.cfg[0]
    block = page_map.block_at(st, dev, ppn)
    unit = block // cfg.all_blocks
    if not may_level(st, unit):
        return
    if not policies.collectable(st, block) and not pslc_folding.is_foldable(st, block):
        return
    if not pslc_folding.has_room(st, unit, block):
        return
    gc_victims.make_victim(st, unit, block)
    st.count[dev, RECLAIMED_BLOCKS] += 1
    bar_host_if_exclusive(st, block)
    if collect(st, dev, unit, block):
        maybe_start_gc(st, dev, unit)
