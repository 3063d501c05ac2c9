"""Completion handlers for flash operations.

Owns the end of every flash operation: mapping, moves and failures. Does not own what starts the
operation (write_path.py, gc.py) or the data path to the host (engine/run/datapath.py).
Source: a write is mapped when its program is done; a page that was overwritten while it moved keeps
the mapping to its new content.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages as s
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
    padding,
    reservoir,
)
from ondie.emu.ftl import (
    gc_victims as gc,
)
from ondie.emu.ftl import (
    page_health as marks,
)
from ondie.emu.ftl import (
    page_map as mapping,
)
from ondie.emu.ftl import (
    pslc as modes,
)
from ondie.emu.ftl import (
    read_retry as reading,
)
from ondie.emu.ftl import (
    reservoir_parity as beside,
)
from ondie.emu.ftl import (
    reservoir_reads as bare,
)
from ondie.emu.ftl import word_line_buffer as gathering
from ondie.emu.ftl import (
    word_lines as lines,
)
from ondie.emu.ftl.gc import ask, collect, ended, level, pick_up, read_done, reclaim
from ondie.emu.ftl.transfers import HOST_PASSES, decode, decode_bare, dram, encode, encode_bare
from ondie.emu.ftl.write_path import hunt, place_map_or_wait, place_or_wait, retry_stalled, unlock
from ondie.emu.nand import timing
from ondie.emu.nand.die import Q_PE
from ondie.emu.nvme import data_cache as cache
from ondie.emu.nvme import mqsim_cache as buffer
from ondie.kernels.jit import cold, inline, njit


@njit
def after_erase(st, t):
    """Complete an erase. A block erased by collection becomes free, or is retired if the erase
    has failed."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    b = x.lpn
    st.count[dev, ERASED_BLOCKS] += x.n
    if modes.cached(st, b):
        st.count[dev, PSLC_ERASED_BLOCKS] += x.n
    st.count[dev, ARRAY_ERASES] += 1
    mapping.erased(st, t)
    if c.errors != 0:
        marks.wiped(st, dev, b)
    give_txn(st, t)
    block = st.block[b]
    u = b // c.all_blocks
    if block.state != mapping.ERASING:  # erased because it was opened
        if c.wear_static > 0 and b - u * c.all_blocks < c.blocks:
            level(st, dev, u)
        return
    block.dirty = 0
    if c.erase_failures > 0.0:
        key = absorb(absorb(c.seed, b), block.erases)
        if uniform(key, 1) < c.erase_failures:
            block.retire = 2
    ended(st, dev, u, b)
    if c.gc_stop > 0:
        retry_stalled(st, dev, u)
    if c.wear_static > 0:  # after stalled writes, which each erase retries first
        level(st, dev, u)
    if c.gc_stop == 0 or st.pool[u].free_n < c.gc_stop or st.pool[u].retiring > 0 or c.pslc != 0:
        ask(st, dev, u)


@njit
def moved(st, t):
    """Complete the move of a collected page, which has been programmed or dropped."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    b = x.left
    u = b // c.all_blocks
    give_txn(st, t)
    st.block[b].moving -= 1
    if st.pool[u].parked > 0:
        unlock(st, u)
    if collect(st, dev, u, b):
        ask(st, dev, u)


@njit
def move(st, t):
    """Write a collected page from DRAM to the unit's collection block. Drop it if it has been
    overwritten, or give up the collection if there is no place."""
    c = st.cfg[0]
    x = st.txn[t]
    u = x.left // c.all_blocks
    if int(st.l2p[x.dev, x.lpn]) - 1 != x.old:
        st.count[x.dev, modes.either(st, x.left, GC_DROPPED, FOLD_DROPPED)] += 1
        gc.settled(st, u, x.left, 1)
        moved(st, t)
        return
    ppn, k = mapping.allocate(st, x.dev, u, gc.collected(st, x.left), 1)
    if k == 0:
        st.count[x.dev, modes.either(st, x.left, GC_DROPPED, FOLD_DROPPED)] += 1
        gc.give_up(st, u, x.left)
        moved(st, t)
        return
    gc.settled(st, u, x.left, 1)
    if st.reg[0].filled != 0 and c.gc_stop > 0:
        ask(st, x.dev, u)
    x.op = timing.PROGRAM
    x.ppn = ppn
    x.bus = c.page_bytes
    mapping.place_of(st, x.dev, t)
    x.array = st.page_ps[1, x.page]
    if not encode(st, t, s.ENCODED):
        go(st, t, s.ENCODED)


@cold
def map_arrived(st, t):
    """Handle a translation page that has arrived in DRAM: complete the fetch, or write it back."""
    c = st.cfg[0]
    x = st.txn[t]
    cmt.arrived(st, x.dev, x.lpn - c.lpns)
    if x.bare == cmt.FETCH:
        give_txn(st, t)
    else:
        place_map_or_wait(st, t)


@cold
def map_programmed(st, t):
    """Complete the program of a translation page and update the directory."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    m = x.lpn - c.lpns
    st.count[dev, MAP_PROGRAM_PAGES] += 1
    mapping.map_page(st, dev, x.lpn, x.ppn)
    if c.partial != 0:
        st.sectors[dev, x.lpn] = -1
    give_txn(st, t)
    cmt.landed(st, dev, m)


@cold
def failed(st, t):
    """Return True if the program of transaction ``t`` has failed. The block is then closed and will
    be retired, and the pages need another place."""
    c = st.cfg[0]
    x = st.txn[t]
    b = mapping.block_at(st, x.dev, x.ppn)
    block = st.block[b]
    first = x.ppn if c.line == 1 else lines.first_of(st, x.ppn)
    if uniform(absorb(absorb(c.seed, first), block.erases), 0) >= c.program_failures:
        return False
    u = b // c.all_blocks
    if c.line > 1:
        padding.again(st, t)
    st.count[x.dev, PROGRAM_FAILURES] += int(x.ppn == first)
    st.count[x.dev, FAILED_PAGES] += x.n
    if block.retire == 0:
        block.retire = 1
        st.pool[u].retiring += 1
    if c.line > 1 and block.state == mapping.OPEN:
        padding.shut_early(st, x.dev, u, b)
    if block.state == mapping.OPEN:
        st.front[block.stream, u].block = -1
        block.state = mapping.FULL
        block.filled = st.dev[x.dev].filled
        st.dev[x.dev].filled += 1
        if modes.cached(st, b):
            modes.filled(st, u, b)
    return True


@inline
def map_programmed_pages(st, t):
    """Map the pages of a write to the place where they were programmed."""
    c = st.cfg[0]
    x = st.txn[t]
    for i in range(x.n):
        mapping.map_page(st, x.dev, x.lpn + i, x.ppn + i)
        if c.map_entries != 0:
            cmt.update(st, x.dev, x.lpn + i)
    if c.partial != 0:
        st.sectors[x.dev, x.lpn] |= x.sectors


@cold
def landed(st, t):
    """Complete a write with a cache present. Return True if it came from a cache, so that no
    command waits for it."""
    c = st.cfg[0]
    if c.cache != buffer.BUFFER:
        return cache.programmed(st, t)
    if c.placed == 0:
        map_programmed_pages(st, t)
    return buffer.programmed(st, t)


@njit
def programmed(st, t):
    """Complete a program and map its pages. Return the transaction if a command waits for it, else
    -1."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    if c.line > 1:
        if gathering.programmed(st, t):
            if c.passes == 2:
                padding.halfway(st, t)
            return -1
    else:
        st.count[dev, ARRAY_PROGRAMS] += 1
    b = mapping.block_at(st, dev, x.ppn)
    mapping.landed(st, dev, x.ppn, x.n)
    u = b // c.all_blocks
    if c.program_failures > 0.0 and failed(st, t):
        if x.kind == OWN and x.bare == cmt.BACK:
            place_map_or_wait(st, t)
        elif x.kind != OWN:
            place_or_wait(st, t)
        else:
            gc.settled(st, u, x.left, -1)  # it needs a place again
            if x.bus == 0:  # copyback: the data are lost in the die
                st.count[dev, modes.either(st, x.left, GC_DROPPED, FOLD_DROPPED)] += 1
                pick_up(st, t, False)
            else:
                move(st, t)
        ask(st, dev, u)
        return -1
    if c.errors != 0:
        marks.programmed(st, t)
    if x.kind != OWN:
        st.count[dev, PROGRAM_PAGES] += x.n
        if c.pslc != 0 and modes.landed(st, t, b):
            mapping.look_again(st, u)
            st.pool[u].asked = 1
        if c.cache != 0 and landed(st, t):
            hunt(st, dev, u)
            if st.pool[u].retiring > 0:
                ask(st, dev, u)
            return -1
        if c.placed == 0:
            map_programmed_pages(st, t)
        if c.partial != 0 and c.errors != 0 and x.bare == MERGING:
            marks.carry(st, t)
        log(st, LOG_PROGRAM, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
        hunt(st, dev, u)
        if st.pool[u].retiring > 0:
            ask(st, dev, u)
        return t
    if x.bare == cmt.BACK:
        map_programmed(st, t)
        hunt(st, dev, u)
        return -1
    st.count[dev, modes.either(st, x.left, GC_PROGRAM_PAGES, FOLD_PROGRAM_PAGES)] += 1
    if int(st.l2p[dev, x.lpn]) - 1 == x.old:
        mapping.map_page(st, dev, x.lpn, x.ppn)
        if x.lpn < c.lpns:
            if c.map_entries != 0:
                cmt.update(st, dev, x.lpn)
            log(st, LOG_MOVE, -1, x.lpn, x.ppn, x.old, 1, dev, x.die)
    if c.errors != 0:
        marks.moved(st, t)
    moved(st, t)
    if st.pool[u].retiring > 0:
        ask(st, dev, u)
    return -1


@cold
def helped(st, t):
    """Complete a die operation that the controller runs for on-die computation. Return the
    transaction when it is finished, else -1."""
    x = st.txn[t]
    dev = x.dev
    if x.op == timing.READ:
        st.count[dev, FETCHED_PAGES] += x.n
        log(st, LOG_FETCH, x.row, x.lpn, -1, -1, x.n, dev, x.die)
        go(st, t, s.TAKEN_OUT)
        return -1
    st.count[dev, ARRAY_PROGRAMS] += 1
    if x.bare == MADE:
        beside.placed(st, t)
    turn = reservoir.turned(st, x.die, x.ppn)
    if x.bare == GRADIENT:
        st.count[dev, KEPT_PAGES] += x.n
        log(st, LOG_KEEP, x.row, x.lpn, x.ppn, turn, x.n, dev, x.die)
        return t
    if x.bare == MOVED:
        st.count[dev, LANDED_PAGES] += x.n
        reservoir.map_place(st, dev, x.lpn, x.ppn)
        reservoir.unmap(st, dev, x.old)
        log(st, LOG_LANDED, x.row, x.lpn, x.ppn, turn, x.old, dev, x.die)
        return t
    st.count[dev, STORED_PAGES] += x.n
    reservoir.map_place(st, dev, x.lpn, x.ppn)
    beside.erased_ahead(st, dev, dev * st.cfg[0].dies + x.lpn % st.cfg[0].dies)
    log(st, LOG_MADE if x.bare == MADE else LOG_BPP, x.row, x.lpn, x.ppn, turn, x.n, dev, x.die)
    return t


@njit
def after_flash(st, t):
    """Complete the die operation of transaction ``t`` (read, program, erase, load or compute).
    Return the transaction when it is finished, else -1."""
    x = st.txn[t]
    dev = x.dev
    if x.bare >= REGISTERS or (x.bare == RESERVOIR and x.op == timing.PROGRAM):
        return helped(st, t)
    if x.op == timing.READ:
        more = False
        if st.cfg[0].errors != 0:
            if x.kind == OWN or x.bare != RESERVOIR:
                more = reading.sensed(st, t)
            elif st.row[x.row].kind != timing.SCAN:
                bare.sensed(st, t)
        if x.kind == OWN and x.bare == 0:
            if st.cfg[0].errors != 0:
                go(st, t, s.MOVE_SENSED)
            elif not decode(st, t, s.MOVE_DECODED) and not dram(st, t, HOST_PASSES, s.MOVE_IN_DRAM):
                move(st, t)
            return -1
        if (x.kind == OWN or x.bare != RESERVOIR) and not more:
            read_done(st, dev, x.ppn)
            if st.cfg[0].errors != 0 and reading.tired(st, t):
                reclaim(st, dev, x.ppn)
        go(st, t, s.MAP_SENSED if x.kind == OWN else s.SENSED)
        return -1
    if x.op == timing.PROGRAM:
        return programmed(st, t)
    if x.op == timing.ERASE:
        after_erase(st, t)
        return -1
    if x.op == timing.VPP and x.queue == Q_PE:
        st.count[dev, PE_RETURNED_PAGES] += x.n
        return t
    if x.op == timing.VPP:
        st.count[dev, VPP_PAGES] += x.n
        log(st, LOG_VPP, x.row, x.lpn, -1, -1, x.n, dev, x.die)
    elif x.op == timing.BPR:
        st.count[dev, BPR_PAGES] += x.n
        st.count[dev, ARRAY_READS] += 1
        turn = reservoir.turned(st, x.die, x.ppn)
        log(st, LOG_BPR, x.row, x.lpn, x.ppn, turn, x.n, dev, x.die)
        if st.cfg[0].errors != 0:
            bare.sensed(st, t)
        if st.cfg[0].round_trip != 0:
            if not decode_bare(st, t, s.PE_DECODED):
                go(st, t, s.PE_DECODED)
            return -1
    elif x.op == timing.ODC:
        st.count[dev, ODC_OPS] += 1
        log(st, LOG_ODC, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
        if st.cfg[0].round_trip != 0 and encode_bare(st, t, s.PART_DONE):
            return -1
    else:
        st.count[dev, BPP_PAGES] += x.n
        st.count[dev, ARRAY_PROGRAMS] += 1
        turn = reservoir.turned(st, x.die, x.ppn)
        if st.row[x.row].kind == timing.PAD:
            log(st, LOG_PAD, x.row, x.lpn, x.ppn, turn, x.n, dev, x.die)
        else:
            st.count[dev, TURNED_PAGES] += x.left
            reservoir.map_place(st, dev, x.lpn, x.ppn)
            beside.erased_ahead(st, dev, dev * st.cfg[0].dies + x.lpn % st.cfg[0].dies)
            log(st, LOG_BPP, x.row, x.lpn, x.ppn, turn, x.n, dev, x.die)
    return t
