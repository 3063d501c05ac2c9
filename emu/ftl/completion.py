"""Completion handlers of the FTL for erases, programs and page moves.

Owns the actions of the firmware at the end of a flash operation: mapping, moves and failures. Does
not own the dispatch by operation and owner (engine/run/completion.py), the start of operations
(write_path.py, gc.py) or the data path to the host (engine/run/datapath.py). Source: this project.

With ftl.map_update = "programmed", a write is mapped when its program is done. A page that is
overwritten while garbage collection moves it keeps the mapping to its new content.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    ARRAY_ERASES,
    ARRAY_PROGRAMS,
    ERASED_BLOCKS,
    FAILED_PAGES,
    MAP_PROGRAM_PAGES,
    MOVE_DROPS,
    MOVE_PROGRAMS,
    PROGRAM_FAILURES,
    PSLC_ERASED_BLOCKS,
)
from ondie.emu.engine.core.events import OWN, give_txn, go
from ondie.emu.engine.core.payload_log import LOG_FAILED
from ondie.emu.engine.core.rng import absorb, uniform
from ondie.emu.engine.core.roles import Role
from ondie.emu.ftl import (
    block_manager,
    cmt,
    gc_victims,
    padding,
    page_health,
    page_map,
    pslc,
    translation_pages,
    trim_maps,
    word_line_buffer,
    word_lines,
    write_frontier,
)
from ondie.emu.ftl.gc import (
    collect,
    erase_released,
    free_or_retire,
    maybe_start_gc,
    pick_up,
    start_wear_leveling,
)
from ondie.emu.ftl.transfers import encode
from ondie.emu.ftl.write_path import (
    check_for_collection,
    count_rewrite,
    place_map_or_wait,
    place_or_wait,
    resume_parked,
)
from ondie.emu.nand import timing
from ondie.kernels.jit import cold, inline, njit


@njit
def on_block_erased(st, tid):
    """Complete the erase of transaction ``tid``.

    Return (unit of the block, True if garbage collection erased the block). A block erased by
    garbage collection is then free, or retired if the erase has failed.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    bid = txn.lpn
    st.count[dev, ERASED_BLOCKS] += txn.n
    if pslc.is_pslc(st, bid):
        st.count[dev, PSLC_ERASED_BLOCKS] += txn.n
    st.count[dev, ARRAY_ERASES] += 1
    block_manager.on_erased(st, tid)
    if cfg.errors != 0:
        page_health.clear_marks(st, dev, bid)
    give_txn(st, tid)
    block = st.block[bid]
    unit = bid // cfg.all_blocks
    if block.state != page_map.ERASING:  # erased because it was opened
        if cfg.wear_static > 0 and bid - unit * cfg.all_blocks < cfg.blocks:
            start_wear_leveling(st, dev, unit)
        return unit, False
    block.dirty = 0
    if cfg.erase_failures > 0.0:
        key = absorb(absorb(cfg.seed, bid), block.erases)
        if uniform(key, 1) < cfg.erase_failures:
            block.retire = page_map.FAILED_ERASE
            write_frontier.lose_spare_block(st, dev)
    free_or_retire(st, dev, unit, bid)
    return unit, True


@njit
def after_free_block(st, dev, unit):
    """Start the wear leveling and the garbage collections that a new free block of unit ``unit``
    makes possible.
    """
    cfg = st.cfg[0]
    if cfg.wear_static > 0:  # after stalled writes, which each erase retries first
        start_wear_leveling(st, dev, unit)
    if (
        cfg.gc_stop == 0
        or st.pool[unit].free_n < cfg.gc_stop
        or st.pool[unit].retiring > 0
        or cfg.pslc != 0
    ):
        maybe_start_gc(st, dev, unit)


@njit
def on_moved(st, tid):
    """Complete the move of a collected page that has been programmed or dropped, and continue the
    garbage collection of its block.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    block = txn.victim
    unit = block // cfg.all_blocks
    give_txn(st, tid)
    st.block[block].moving -= 1
    if st.pool[unit].parked > 0:
        resume_parked(st, unit)
    if collect(st, dev, unit, block):
        maybe_start_gc(st, dev, unit)


@njit
def write_collected_page(st, tid):
    """Write a valid page of a victim from DRAM to the open block for collected pages.

    Drop the page if it has been overwritten. Give up the garbage collection if no block has room.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    unit = txn.victim // cfg.all_blocks
    if int(st.l2p[txn.dev, txn.lpn]) - 1 != txn.src_ppn:
        st.count[txn.dev, pslc.counter_of_moves(st, txn.victim, MOVE_DROPS)] += 1
        gc_victims.release_reservation(st, unit, txn.victim, 1)
        on_moved(st, tid)
        return
    if cfg.ordered != 0 and cfg.map_entries != 0:  # as in MQSim, not when it has been programmed
        if cfg.probe != 0:
            cmt.count_move(st, txn.dev, txn.lpn)
        cmt.update_newest(st, txn.dev, txn.lpn)
    ppn, got = write_frontier.allocate(
        st, txn.dev, unit, gc_victims.destination_stream(st, txn.victim), 1
    )
    if got == 0:
        st.count[txn.dev, pslc.counter_of_moves(st, txn.victim, MOVE_DROPS)] += 1
        gc_victims.give_up(st, unit, txn.victim)
        on_moved(st, tid)
        return
    gc_victims.release_reservation(st, unit, txn.victim, 1)
    if st.reg[0].filled != 0 and cfg.gc_stop > 0:
        maybe_start_gc(st, txn.dev, unit)
    if cfg.probe != 0 and cfg.map_entries != 0 and cfg.ordered == 0:
        cmt.count_move(st, txn.dev, txn.lpn)
    txn.op = timing.PROGRAM
    txn.ppn = ppn
    txn.bus = cfg.page_bytes
    page_map.set_place(st, txn.dev, tid)
    txn.array = st.page_ps[1, txn.page]
    if not encode(st, tid, stages.ENCODED):
        go(st, tid, stages.ENCODED)


@cold
def on_translation_page_read(st, tid):
    """Handle the arrival of a translation page in DRAM: complete its fetch, or continue its
    write-back.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    cmt.serve_waiters(st, txn.dev, txn.lpn - cfg.lpns)
    if txn.role == Role.MAP_FETCH:
        give_txn(st, tid)
    else:
        place_map_or_wait(st, tid)


@cold
def on_translation_page_programmed(st, tid):
    """Complete the program of a translation page and update the global translation directory."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    tvpn = txn.lpn - cfg.lpns
    st.count[dev, MAP_PROGRAM_PAGES] += 1
    if cfg.trim_maps != 0:  # the drive can recover its map
        page_map.log_map_page(st, tid)
    page_map.map_page(st, dev, txn.lpn, txn.ppn)
    if cfg.partial != 0:
        st.sectors[dev, txn.lpn] = -1
    give_txn(st, tid)
    translation_pages.on_written_back(st, dev, tvpn)


@cold
def handle_program_failure(st, tid):
    """Return True if the program of transaction ``tid`` has failed. The block is then closed and
    will be retired, and the data must be programmed to other flash pages.

    Call this function for each transaction of a word line. All transactions of a word line share
    one random draw, and a failure is counted once.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    bid = page_map.block_at(st, txn.dev, txn.ppn)
    block = st.block[bid]
    first = txn.ppn if cfg.line == 1 else word_lines.first_page_of(st, txn.ppn)
    if uniform(absorb(absorb(cfg.seed, first), block.erases), 0) >= cfg.program_failures:
        return False
    unit = bid // cfg.all_blocks
    if cfg.line > 1:
        padding.count_again(st, tid)
    st.count[txn.dev, PROGRAM_FAILURES] += int(txn.ppn == first)
    st.count[txn.dev, FAILED_PAGES] += txn.n
    page_map.log_program(st, LOG_FAILED, tid, -1, 0, 0, 0)
    if block.retire == 0:
        block.retire = page_map.FAILED_PROGRAM
        st.pool[unit].retiring += 1
        write_frontier.lose_spare_block(st, txn.dev)
    padding.close_early(st, txn.dev, unit, bid)
    return True


@inline
def map_programmed_pages(st, tid):
    """Map the logical pages of a write to the physical pages that were programmed."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    for i in range(txn.n):
        page_map.map_page(st, txn.dev, txn.lpn + i, txn.ppn + i)
        if cfg.map_entries != 0:
            cmt.update(st, txn.dev, txn.lpn + i)
    if cfg.partial != 0:
        st.sectors[txn.dev, txn.lpn] |= txn.sectors
        count_rewrite(st, tid)


@njit
def on_pages_programmed(st, tid):
    """Handle the end of the program of transaction ``tid``, for any owner.

    Return the block, or -1 if the owner of the transaction cannot complete yet: either further
    pages of the word line follow, or the program has failed and the data needs other flash pages.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    if cfg.line > 1:
        if word_line_buffer.on_line_programmed(st, tid):
            if cfg.passes == 2:
                padding.on_first_pass_done(st, tid)
            return -1
    else:
        st.count[dev, ARRAY_PROGRAMS] += 1
    block = page_map.block_at(st, dev, txn.ppn)
    page_map.count_programmed(st, dev, txn.ppn, txn.n)
    if cfg.program_failures > 0.0 and handle_program_failure(st, tid):
        place_again(st, tid, block // cfg.all_blocks)
        return -1
    if cfg.errors != 0:
        page_health.note_first_program(st, tid)
    return block


@cold
def place_again(st, tid, unit):
    """Allocate other flash pages to transaction ``tid``, whose program in ``unit`` has failed. A
    page that was moved by copy-back is read again first.
    """
    txn = st.txn[tid]
    dev = txn.dev
    if txn.kind == OWN and txn.role == Role.MAP_BACK:
        place_map_or_wait(st, tid)
    elif trim_maps.is_trim_map(st, tid):
        trim_maps.program_again(st, tid)
    elif txn.kind != OWN:
        st.command[tid].failed = 1
        place_or_wait(st, tid)
    else:
        gc_victims.release_reservation(st, unit, txn.victim, -1)  # it needs a place again
        if txn.bus == 0:  # copyback: the data are lost in the die
            st.count[dev, pslc.counter_of_moves(st, txn.victim, MOVE_DROPS)] += 1
            pick_up(st, tid, False)
        else:
            write_collected_page(st, tid)
    maybe_start_gc(st, dev, unit)


@njit
def on_own_program_done(st, tid, unit):
    """Complete a program of the FTL: a translation page, a trim map or metadata page, or a page
    that garbage collection moves.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    if txn.role == Role.MAP_BACK:
        on_translation_page_programmed(st, tid)
        check_for_collection(st, dev, unit)
        return
    if trim_maps.is_trim_map(st, tid):
        trim_maps.on_programmed(st, tid)
        erase_released(st, dev)
        check_for_collection(st, dev, unit)
        return
    st.count[dev, pslc.counter_of_moves(st, txn.victim, MOVE_PROGRAMS)] += 1
    if txn.lpn < cfg.lpns or cfg.trim_maps != 0:
        page_map.log_move(st, tid)
    if int(st.l2p[dev, txn.lpn]) - 1 == txn.src_ppn:
        page_map.map_page(st, dev, txn.lpn, txn.ppn)
        if txn.lpn < cfg.lpns and cfg.map_entries != 0 and cfg.ordered == 0:
            cmt.update(st, dev, txn.lpn)
    if cfg.errors != 0:
        page_health.carry_after_move(st, tid)
    on_moved(st, tid)
    if st.pool[unit].retiring > 0:
        maybe_start_gc(st, dev, unit)


@inline
def map_host_write(st, tid):
    """Log the program of a host write, and map its pages unless they were mapped before the
    program.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    page_map.log_host_write(st, tid)
    if cfg.placed == 0:
        map_programmed_pages(st, tid)
    if cfg.partial != 0 and cfg.errors != 0 and txn.role == Role.MERGING:
        page_health.mark_lost_sectors(st, tid)


@inline
def after_host_write(st, dev, unit):
    """Start the garbage collections that a host write's program makes possible or necessary."""
    check_for_collection(st, dev, unit)
    if st.pool[unit].retiring > 0:
        maybe_start_gc(st, dev, unit)
