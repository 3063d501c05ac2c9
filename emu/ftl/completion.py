"""Completion handlers for flash operations.

Owns the end of every flash operation: mapping, moves and failures. Does not own what starts the
operation (write_path.py, gc.py) or the data path to the host (engine/run/datapath.py).
Source: a write is mapped when its program is done; a page that was overwritten while it moved keeps
the mapping to its new content.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    ARRAY_ERASES,
    ARRAY_PROGRAMS,
    ARRAY_READS,
    BPP_PAGES,
    BPR_PAGES,
    ERASED_BLOCKS,
    FAILED_PAGES,
    FETCHED_PAGES,
    FOLD_DROPPED,
    FOLD_PROGRAM_PAGES,
    GC_DROPPED,
    GC_PROGRAM_PAGES,
    KEPT_PAGES,
    LANDED_PAGES,
    MAP_PROGRAM_PAGES,
    ODC_OPS,
    PE_RETURNED_PAGES,
    PROGRAM_FAILURES,
    PROGRAM_PAGES,
    PSLC_ERASED_BLOCKS,
    STORED_PAGES,
    TURNED_PAGES,
    VPP_PAGES,
)
from ondie.emu.engine.core.events import (
    GRADIENT,
    LOG_BPP,
    LOG_BPR,
    LOG_FETCH,
    LOG_KEEP,
    LOG_LANDED,
    LOG_MADE,
    LOG_MOVE,
    LOG_ODC,
    LOG_PAD,
    LOG_PROGRAM,
    LOG_VPP,
    MADE,
    MERGING,
    MOVED,
    OWN,
    REGISTERS,
    RESERVOIR,
    give_txn,
    go,
    log,
)
from ondie.emu.engine.core.rng import absorb, uniform
from ondie.emu.ftl import (
    cmt,
    gc_victims,
    padding,
    page_health,
    page_map,
    pslc,
    read_retry,
    reservoir,
    reservoir_parity,
    reservoir_reads,
    word_line_buffer,
    word_lines,
)
from ondie.emu.ftl.gc import ask, collect, ended, level, pick_up, read_done, reclaim
from ondie.emu.ftl.transfers import HOST_PASSES, decode, decode_bare, dram, encode, encode_bare
from ondie.emu.ftl.write_path import hunt, place_map_or_wait, place_or_wait, retry_stalled, unlock
from ondie.emu.nand import timing
from ondie.emu.nand.die import Q_PE
from ondie.emu.nvme import data_cache, mqsim_cache
from ondie.kernels.jit import cold, inline, njit


@njit
def after_erase(st, tid):
    """Complete an erase. A block erased by collection becomes free, or is retired if the erase
    has failed."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    bid = txn.lpn
    st.count[dev, ERASED_BLOCKS] += txn.n
    if pslc.cached(st, bid):
        st.count[dev, PSLC_ERASED_BLOCKS] += txn.n
    st.count[dev, ARRAY_ERASES] += 1
    page_map.erased(st, tid)
    if cfg.errors != 0:
        page_health.wiped(st, dev, bid)
    give_txn(st, tid)
    block = st.block[bid]
    unit = bid // cfg.all_blocks
    if block.state != page_map.ERASING:  # erased because it was opened
        if cfg.wear_static > 0 and bid - unit * cfg.all_blocks < cfg.blocks:
            level(st, dev, unit)
        return
    block.dirty = 0
    if cfg.erase_failures > 0.0:
        key = absorb(absorb(cfg.seed, bid), block.erases)
        if uniform(key, 1) < cfg.erase_failures:
            block.retire = 2
    ended(st, dev, unit, bid)
    if cfg.gc_stop > 0:
        retry_stalled(st, dev, unit)
    if cfg.wear_static > 0:  # after stalled writes, which each erase retries first
        level(st, dev, unit)
    if (
        cfg.gc_stop == 0
        or st.pool[unit].free_n < cfg.gc_stop
        or st.pool[unit].retiring > 0
        or cfg.pslc != 0
    ):
        ask(st, dev, unit)


@njit
def moved(st, tid):
    """Complete the move of a collected page, which has been programmed or dropped."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    block = txn.left
    unit = block // cfg.all_blocks
    give_txn(st, tid)
    st.block[block].moving -= 1
    if st.pool[unit].parked > 0:
        unlock(st, unit)
    if collect(st, dev, unit, block):
        ask(st, dev, unit)


@njit
def move(st, tid):
    """Write a collected page from DRAM to the unit's collection block. Drop it if it has been
    overwritten, or give up the collection if there is no place."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    unit = txn.left // cfg.all_blocks
    if int(st.l2p[txn.dev, txn.lpn]) - 1 != txn.old:
        st.count[txn.dev, pslc.either(st, txn.left, GC_DROPPED, FOLD_DROPPED)] += 1
        gc_victims.settled(st, unit, txn.left, 1)
        moved(st, tid)
        return
    ppn, got = page_map.allocate(st, txn.dev, unit, gc_victims.collected(st, txn.left), 1)
    if got == 0:
        st.count[txn.dev, pslc.either(st, txn.left, GC_DROPPED, FOLD_DROPPED)] += 1
        gc_victims.give_up(st, unit, txn.left)
        moved(st, tid)
        return
    gc_victims.settled(st, unit, txn.left, 1)
    if st.reg[0].filled != 0 and cfg.gc_stop > 0:
        ask(st, txn.dev, unit)
    txn.op = timing.PROGRAM
    txn.ppn = ppn
    txn.bus = cfg.page_bytes
    page_map.place_of(st, txn.dev, tid)
    txn.array = st.page_ps[1, txn.page]
    if not encode(st, tid, stages.ENCODED):
        go(st, tid, stages.ENCODED)


@cold
def map_arrived(st, tid):
    """Handle a translation page that has arrived in DRAM: complete the fetch, or write it back."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    cmt.arrived(st, txn.dev, txn.lpn - cfg.lpns)
    if txn.bare == cmt.FETCH:
        give_txn(st, tid)
    else:
        place_map_or_wait(st, tid)


@cold
def map_programmed(st, tid):
    """Complete the program of a translation page and update the directory."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    tvpn = txn.lpn - cfg.lpns
    st.count[dev, MAP_PROGRAM_PAGES] += 1
    page_map.map_page(st, dev, txn.lpn, txn.ppn)
    if cfg.partial != 0:
        st.sectors[dev, txn.lpn] = -1
    give_txn(st, tid)
    cmt.landed(st, dev, tvpn)


@cold
def failed(st, tid):
    """Return True if the program of transaction ``tid`` has failed. The block is then closed and
    will be retired, and the pages need another place."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    bid = page_map.block_at(st, txn.dev, txn.ppn)
    block = st.block[bid]
    first = txn.ppn if cfg.line == 1 else word_lines.first_of(st, txn.ppn)
    if uniform(absorb(absorb(cfg.seed, first), block.erases), 0) >= cfg.program_failures:
        return False
    unit = bid // cfg.all_blocks
    if cfg.line > 1:
        padding.again(st, tid)
    st.count[txn.dev, PROGRAM_FAILURES] += int(txn.ppn == first)
    st.count[txn.dev, FAILED_PAGES] += txn.n
    if block.retire == 0:
        block.retire = 1
        st.pool[unit].retiring += 1
    if cfg.line > 1 and block.state == page_map.OPEN:
        padding.shut_early(st, txn.dev, unit, bid)
    if block.state == page_map.OPEN:
        st.front[block.stream, unit].block = -1
        block.state = page_map.FULL
        block.filled = st.dev[txn.dev].filled
        st.dev[txn.dev].filled += 1
        if pslc.cached(st, bid):
            pslc.filled(st, unit, bid)
    return True


@inline
def map_programmed_pages(st, tid):
    """Map the pages of a write to the place where they were programmed."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    for i in range(txn.n):
        page_map.map_page(st, txn.dev, txn.lpn + i, txn.ppn + i)
        if cfg.map_entries != 0:
            cmt.update(st, txn.dev, txn.lpn + i)
    if cfg.partial != 0:
        st.sectors[txn.dev, txn.lpn] |= txn.sectors


@cold
def landed(st, tid):
    """Complete a write with a cache present. Return True if it came from a cache, so that no
    command waits for it."""
    cfg = st.cfg[0]
    if cfg.cache != mqsim_cache.BUFFER:
        return data_cache.programmed(st, tid)
    if cfg.placed == 0:
        map_programmed_pages(st, tid)
    return mqsim_cache.programmed(st, tid)


@njit
def programmed(st, tid):
    """Complete a program and map its pages. Return the transaction if a command waits for it, else
    -1."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    if cfg.line > 1:
        if word_line_buffer.programmed(st, tid):
            if cfg.passes == 2:
                padding.halfway(st, tid)
            return -1
    else:
        st.count[dev, ARRAY_PROGRAMS] += 1
    block = page_map.block_at(st, dev, txn.ppn)
    page_map.landed(st, dev, txn.ppn, txn.n)
    unit = block // cfg.all_blocks
    if cfg.program_failures > 0.0 and failed(st, tid):
        if txn.kind == OWN and txn.bare == cmt.BACK:
            place_map_or_wait(st, tid)
        elif txn.kind != OWN:
            place_or_wait(st, tid)
        else:
            gc_victims.settled(st, unit, txn.left, -1)  # it needs a place again
            if txn.bus == 0:  # copyback: the data are lost in the die
                st.count[dev, pslc.either(st, txn.left, GC_DROPPED, FOLD_DROPPED)] += 1
                pick_up(st, tid, False)
            else:
                move(st, tid)
        ask(st, dev, unit)
        return -1
    if cfg.errors != 0:
        page_health.programmed(st, tid)
    if txn.kind != OWN:
        st.count[dev, PROGRAM_PAGES] += txn.n
        if cfg.pslc != 0 and pslc.landed(st, tid, block):
            page_map.look_again(st, unit)
            st.pool[unit].asked = 1
        if cfg.cache != 0 and landed(st, tid):
            hunt(st, dev, unit)
            if st.pool[unit].retiring > 0:
                ask(st, dev, unit)
            return -1
        if cfg.placed == 0:
            map_programmed_pages(st, tid)
        if cfg.partial != 0 and cfg.errors != 0 and txn.bare == MERGING:
            page_health.carry(st, tid)
        log(st, LOG_PROGRAM, txn.row, txn.lpn, txn.ppn, -1, txn.n, dev, txn.die)
        hunt(st, dev, unit)
        if st.pool[unit].retiring > 0:
            ask(st, dev, unit)
        return tid
    if txn.bare == cmt.BACK:
        map_programmed(st, tid)
        hunt(st, dev, unit)
        return -1
    st.count[dev, pslc.either(st, txn.left, GC_PROGRAM_PAGES, FOLD_PROGRAM_PAGES)] += 1
    if int(st.l2p[dev, txn.lpn]) - 1 == txn.old:
        page_map.map_page(st, dev, txn.lpn, txn.ppn)
        if txn.lpn < cfg.lpns:
            if cfg.map_entries != 0:
                cmt.update(st, dev, txn.lpn)
            log(st, LOG_MOVE, -1, txn.lpn, txn.ppn, txn.old, 1, dev, txn.die)
    if cfg.errors != 0:
        page_health.moved(st, tid)
    moved(st, tid)
    if st.pool[unit].retiring > 0:
        ask(st, dev, unit)
    return -1


@cold
def helped(st, tid):
    """Complete a die operation that the controller runs for on-die computation. Return the
    transaction when it is finished, else -1."""
    txn = st.txn[tid]
    dev = txn.dev
    if txn.op == timing.READ:
        st.count[dev, FETCHED_PAGES] += txn.n
        log(st, LOG_FETCH, txn.row, txn.lpn, -1, -1, txn.n, dev, txn.die)
        go(st, tid, stages.TAKEN_OUT)
        return -1
    st.count[dev, ARRAY_PROGRAMS] += 1
    if txn.bare == MADE:
        reservoir_parity.placed(st, tid)
    turn = reservoir.turned(st, txn.die, txn.ppn)
    if txn.bare == GRADIENT:
        st.count[dev, KEPT_PAGES] += txn.n
        log(st, LOG_KEEP, txn.row, txn.lpn, txn.ppn, turn, txn.n, dev, txn.die)
        return tid
    if txn.bare == MOVED:
        st.count[dev, LANDED_PAGES] += txn.n
        reservoir.map_place(st, dev, txn.lpn, txn.ppn)
        reservoir.unmap(st, dev, txn.old)
        log(st, LOG_LANDED, txn.row, txn.lpn, txn.ppn, turn, txn.old, dev, txn.die)
        return tid
    st.count[dev, STORED_PAGES] += txn.n
    reservoir.map_place(st, dev, txn.lpn, txn.ppn)
    reservoir_parity.erased_ahead(st, dev, dev * st.cfg[0].dies + txn.lpn % st.cfg[0].dies)
    log(
        st,
        LOG_MADE if txn.bare == MADE else LOG_BPP,
        txn.row,
        txn.lpn,
        txn.ppn,
        turn,
        txn.n,
        dev,
        txn.die,
    )
    return tid


@njit
def after_flash(st, tid):
    """Complete the die operation of transaction ``tid`` (read, program, erase, load or compute).
    Return the transaction when it is finished, else -1."""
    txn = st.txn[tid]
    dev = txn.dev
    if txn.bare >= REGISTERS or (txn.bare == RESERVOIR and txn.op == timing.PROGRAM):
        return helped(st, tid)
    if txn.op == timing.READ:
        more = False
        if st.cfg[0].errors != 0:
            if txn.kind == OWN or txn.bare != RESERVOIR:
                more = read_retry.sensed(st, tid)
            elif st.row[txn.row].kind != timing.SCAN:
                reservoir_reads.sensed(st, tid)
        if txn.kind == OWN and txn.bare == 0:
            if st.cfg[0].errors != 0:
                go(st, tid, stages.MOVE_SENSED)
            elif not decode(st, tid, stages.MOVE_DECODED) and not dram(
                st, tid, HOST_PASSES, stages.MOVE_IN_DRAM
            ):
                move(st, tid)
            return -1
        if (txn.kind == OWN or txn.bare != RESERVOIR) and not more:
            read_done(st, dev, txn.ppn)
            if st.cfg[0].errors != 0 and read_retry.tired(st, tid):
                reclaim(st, dev, txn.ppn)
        go(st, tid, stages.MAP_SENSED if txn.kind == OWN else stages.SENSED)
        return -1
    if txn.op == timing.PROGRAM:
        return programmed(st, tid)
    if txn.op == timing.ERASE:
        after_erase(st, tid)
        return -1
    if txn.op == timing.VPP and txn.queue == Q_PE:
        st.count[dev, PE_RETURNED_PAGES] += txn.n
        return tid
    if txn.op == timing.VPP:
        st.count[dev, VPP_PAGES] += txn.n
        log(st, LOG_VPP, txn.row, txn.lpn, -1, -1, txn.n, dev, txn.die)
    elif txn.op == timing.BPR:
        st.count[dev, BPR_PAGES] += txn.n
        st.count[dev, ARRAY_READS] += 1
        turn = reservoir.turned(st, txn.die, txn.ppn)
        log(st, LOG_BPR, txn.row, txn.lpn, txn.ppn, turn, txn.n, dev, txn.die)
        if st.cfg[0].errors != 0:
            reservoir_reads.sensed(st, tid)
        if st.cfg[0].round_trip != 0:
            if not decode_bare(st, tid, stages.PE_DECODED):
                go(st, tid, stages.PE_DECODED)
            return -1
    elif txn.op == timing.ODC:
        st.count[dev, ODC_OPS] += 1
        log(st, LOG_ODC, txn.row, txn.lpn, txn.ppn, -1, txn.n, dev, txn.die)
        if st.cfg[0].round_trip != 0 and encode_bare(st, tid, stages.PART_DONE):
            return -1
    else:
        st.count[dev, BPP_PAGES] += txn.n
        st.count[dev, ARRAY_PROGRAMS] += 1
        turn = reservoir.turned(st, txn.die, txn.ppn)
        if st.row[txn.row].kind == timing.PAD:
            log(st, LOG_PAD, txn.row, txn.lpn, txn.ppn, turn, txn.n, dev, txn.die)
        else:
            st.count[dev, TURNED_PAGES] += txn.left
            reservoir.map_place(st, dev, txn.lpn, txn.ppn)
            reservoir_parity.erased_ahead(st, dev, dev * st.cfg[0].dies + txn.lpn % st.cfg[0].dies)
            log(st, LOG_BPP, txn.row, txn.lpn, txn.ppn, turn, txn.n, dev, txn.die)
    return tid
