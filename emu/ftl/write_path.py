"""Write path: allocation of flash pages to host writes and translation pages.

Owns the order in which writes try units, the reads of read-modify-writes, and the queues of writes
that wait for garbage collection. Does not own page allocation and the mapping table (page_map.py)
or the completion of programs (completion.py).
Source: page-level mapping with out-of-place writes; update reads and locked pages as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    MERGE_READ_PAGES,
    REMERGED_PAGES,
    UNASKED_IN_BYTES,
    UNASKED_OUT_BYTES,
)
from ondie.emu.engine.core.error_codes import E_STREAM
from ondie.emu.engine.core.events import fail, go
from ondie.emu.engine.core.intrinsics import call_policy
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.transaction import bus_bytes, child
from ondie.emu.ftl import (
    block_manager,
    cmt,
    map_checkpoint,
    page_map,
    pslc,
    pslc_folding,
    read_path,
    translation_pages,
    trim_maps,
    word_lines,
    write_frontier,
)
from ondie.emu.ftl.gc import maybe_start_gc
from ondie.emu.ftl.transfers import encode, start_program
from ondie.emu.nand import channel, event_order, scheduler_statistics, timing
from ondie.emu.nand.die import Q_READ
from ondie.kernels.jit import apart, cold, inline, njit

REWRITES = 1 << 12
"""Number of counters of completed writes. A counter covers all pages with the same page number
modulo REWRITES. While its counter is unchanged, a page has not been written.
"""


@inline
def rewrites_of(st, tid):
    """Return the number of completed writes to the page of write ``tid``. Pages whose numbers are
    equal modulo REWRITES share one counter."""
    txn = st.txn[tid]
    return st.rewrites[txn.dev, txn.lpn & (REWRITES - 1)]


@inline
def count_rewrite(st, tid):
    """Count write ``tid`` as completed, so that read-modify-writes of the same page detect the
    write."""
    txn = st.txn[tid]
    st.rewrites[txn.dev, txn.lpn & (REWRITES - 1)] += 1


@apart
def place(st, tid):
    """Allocate physical pages for write ``tid``, unit by unit, and start their programs. Return
    False if no unit has a block for the remaining pages.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    dev_rec = st.dev[dev]
    stream = 0
    if cfg.streams > 1:
        stream = call_policy(st, cfg.stream_policy, tid)
        if stream < 0 or stream >= cfg.streams:
            fail(st, E_STREAM, txn.lpn, stream)
            return True
    refused = 0
    while True:
        unit = write_frontier.unit_of(st, dev, txn.lpn, txn.stream)
        if cfg.line > 1 and cfg.static == 0:
            unit = word_lines.unit_in_turn(st, dev, stream)
        ppn = -1
        got = 0
        if cfg.pslc != 0:
            ppn, got = allocate_by_mode(st, dev, unit, stream, txn.n)
        elif st.pool[unit].free_n >= cfg.gc_stop:
            ppn, got = write_frontier.allocate(st, dev, unit, stream, txn.n)
        full = got > 0 and st.reg[0].filled != 0
        if (full and cfg.placed == 0) or (got == 0 and should_collect(st, unit)):
            maybe_start_gc(st, dev, unit)
        if cfg.line > 1:
            front = stream
            if cfg.pslc != 0 and got > 0:
                front = pslc.front_stream(st, page_map.block_at(st, dev, ppn), stream)
            word_lines.next_turn(st, dev, unit, stream, front, got)
        elif cfg.static == 0:
            dev_rec.cursor = dev_rec.cursor + 1 if dev_rec.cursor + 1 < cfg.units else 0
        if got == 0:
            refused += 1
            if cfg.static != 0 or refused == cfg.units:
                return False
            continue
        refused = 0
        dev_rec.full = 0
        piece = tid
        if got < txn.n:  # the rest needs another place
            piece = child(st, tid, txn.lpn, got)
            if piece < 0:
                return True
            st.command[piece].failed = 0
            st.txn[piece].size = txn.size * got // txn.n
            txn.size -= st.txn[piece].size
            txn.lpn += got
            txn.n -= got
        other_txn = st.txn[piece]
        other_txn.op = timing.PROGRAM
        other_txn.ppn = ppn
        other_txn.bus = bus_bytes(st, piece)
        if cfg.partial != 0:
            st.count[dev, UNASKED_IN_BYTES] += other_txn.n * cfg.page_bytes - other_txn.bus
        page_map.set_place(st, dev, piece)
        other_txn.array = st.page_ps[1, other_txn.page]
        reads = cfg.placed != 0 and map_placed(st, piece, unit, full)
        if not reads and not encode(st, piece, stages.ENCODED):
            go(st, piece, stages.ENCODED)
        if piece == tid:
            return True


@cold
def allocate_by_mode(st, dev, unit, stream, count):
    """Allocate up to ``count`` pages in the pSLC block of unit ``unit``, or in a native block if no
    pSLC page is left or the stream does not use pSLC. Return (first ppn, number of pages), or (-1,
    0) if the write must wait.
    """
    if pslc.uses_pslc(st, stream):
        ppn, got = pslc.allocate(st, dev, unit, count)
        if got > 0 or pslc_folding.waits_for_fold(st, unit):
            return ppn, got
    if st.pool[unit].free_n < st.cfg[0].gc_stop:
        return -1, 0
    return write_frontier.allocate(st, dev, unit, stream, count)


@njit
def map_placed(st, tid, unit, full):
    """Map the pages of write ``tid`` at allocation.

    Then start a garbage collection in unit ``unit`` if one is needed (``full``: the allocation has
    filled a block). Return True if the old page contains sectors that the write does not cover. The
    program then starts after these sectors have been read.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    st.reg[0].placed += 1
    txn.order = st.reg[0].placed
    old = int(st.l2p[dev, txn.lpn])
    missing = 0
    if cfg.partial != 0 and old != 0:
        missing = st.sectors[dev, txn.lpn] & ~txn.sectors
    for i in range(txn.n):
        page_map.map_page(st, dev, txn.lpn + i, txn.ppn + i)
        if cfg.map_entries != 0:
            cmt.update(st, dev, txn.lpn + i)
        if cfg.buffer_unwritten != 0:
            st.unprogrammed[txn.ppn + i] = 1
    if cfg.partial != 0:
        st.sectors[dev, txn.lpn] |= txn.sectors
    if missing != 0:
        page_map.count_pending_read(st, dev, old - 1)
    if full:
        maybe_start_gc(st, dev, unit)
        if st.reg[0].prompt != 0:
            channel.grant_now(st, st.die[unit // cfg.die_units * cfg.lanes].bus)
    if missing == 0:
        return False
    txn.src_ppn = txn.ppn
    read_rest(st, tid, old - 1, missing)
    return True


@cold
def on_rest_read(st, tid):
    """Continue write ``tid`` after the sectors of its page that the write does not cover have been
    read.

    Allocate a flash page, or start the program if a flash page has already been allocated.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    if cfg.placed == 0:
        place_or_wait(st, tid)
        return
    txn.op = timing.PROGRAM
    txn.ppn = txn.src_ppn
    txn.bus = bus_bytes(st, tid)
    page_map.set_place(st, txn.dev, tid)
    txn.array = st.page_ps[1, txn.page]
    if not encode(st, tid, stages.ENCODED):
        go(st, tid, stages.ENCODED)


@inline
def should_collect(st, unit):
    """Return True if a write that finds no block in unit ``unit`` should trigger a garbage
    collection. With ``gc_stop`` set, writes wait for a garbage collection in progress instead,
    because a further victim would have too many valid pages. Return False if units check for
    garbage collection only when a block becomes full or is erased.
    """
    cfg = st.cfg[0]
    return cfg.gc_stalled != 0 and (cfg.gc_stop == 0 or st.pool[unit].victims == 0)


@njit
def place_or_wait(st, tid):
    """Allocate flash pages to write ``tid``. If no block has room, queue the write."""
    txn = st.txn[tid]
    cfg = st.cfg[0]
    if cfg.locks != 0 and park_if_locked(st, tid):
        return
    if cfg.partial != 0 and cfg.placed == 0 and merge(st, tid):
        return
    dev = txn.dev
    unit = write_frontier.unit_of(st, dev, txn.lpn, txn.stream)
    if cfg.static != 0:
        place_or_queue(st, st.pool[unit], tid)
    else:
        place_or_queue(st, st.dev[dev], tid)
    if st.dev[dev].ends != 0 and write_frontier.writes_wait(st, dev, unit):
        write_frontier.doubt_space(st, dev, unit)


@inline
def place_or_queue(st, waiting, tid):
    """Allocate flash pages to write ``tid``.

    If no block has room or other writes are stalled, append the write to the list of stalled writes
    in ``waiting``, the record of its unit or drive.
    """
    if waiting.stall_head < 0 and place(st, tid):
        return
    st.txn[tid].next = -1
    if waiting.stall_head < 0:
        waiting.stall_head = tid
    else:
        st.txn[waiting.stall_tail].next = tid
    waiting.stall_tail = tid


@cold
def merge(st, tid):
    """Start a read-modify-write if write ``tid`` does not cover all valid sectors of its page.
    Return True if the old page is read first. The old page is read again if another write of the
    page has completed since the last read.
    """
    txn = st.txn[tid]
    entry = int(st.l2p[txn.dev, txn.lpn])
    if txn.role == Role.MERGING and not is_outdated(st, tid):
        return False
    missing = st.sectors[txn.dev, txn.lpn] & ~txn.sectors
    txn.src_ppn = entry - 1
    txn.order = rewrites_of(st, tid)
    if entry == 0 or missing == 0:
        return False
    page_map.count_pending_read(st, txn.dev, entry - 1)
    read_rest(st, tid, entry - 1, missing)
    return True


@inline
def is_outdated(st, tid):
    """Return True if the page of write ``tid`` has been written since its old sectors were read. A
    page that garbage collection has moved is not outdated.
    """
    txn = st.txn[tid]
    entry = int(st.l2p[txn.dev, txn.lpn])
    return entry != 0 and txn.src_ppn != entry - 1 and txn.order != rewrites_of(st, tid)


@cold
def has_missed_a_write(st, tid):
    """Return True if the page that ``tid`` has programmed lacks sectors, because another write has
    added sectors to the logical page since the old page was read.
    """
    txn = st.txn[tid]
    return is_outdated(st, tid) and st.sectors[txn.dev, txn.lpn] & ~txn.sectors != 0


@cold
def merge_again(st, tid):
    """Read the sectors that write ``tid`` has missed (:func:`has_missed_a_write`), and program its
    page again."""
    st.count[st.txn[tid].dev, REMERGED_PAGES] += st.txn[tid].n
    place_or_wait(st, tid)


@cold
def read_rest(st, tid, ppn, missing):
    """Read the sectors ``missing`` of the old page ``ppn`` for the read-modify-write of ``tid``."""
    txn = st.txn[tid]
    wanted = txn.sectors
    txn.op = timing.READ
    txn.role = Role.MERGING
    txn.ppn = ppn
    txn.sectors = missing
    txn.bus = bus_bytes(st, tid)
    txn.sectors = wanted
    st.count[txn.dev, UNASKED_OUT_BYTES] += st.cfg[0].page_bytes - txn.bus
    st.count[txn.dev, MERGE_READ_PAGES] += 1
    txn.array = 0
    die = page_map.set_place(st, txn.dev, tid)
    read_path.count_command(st, tid)
    txn.array = st.page_ps[0, txn.page]
    if st.cfg[0].probe != 0 and st.cfg[0].placed != 0:
        scheduler_statistics.on_merge(st, tid, die)
    event_order.submit(st, die, tid, Q_READ)


@njit
def retry_internal(st, dev, unit):
    """After a block of unit ``unit`` has become free, start the garbage collection that the unit
    requested, and retry stalled programs of translation pages, trim maps and metadata pages.
    """
    if st.pool[unit].asked != 0:
        st.pool[unit].asked = 0
        maybe_start_gc(st, dev, unit)
    if st.cfg[0].map_entries != 0:
        retry_map(st, dev)
    if st.cfg[0].trim_maps != 0:
        trim_maps.start(st, dev)
    if st.cfg[0].meta_maps != 0:
        map_checkpoint.advance(st, dev)


@njit
def retry_writes(st, dev, unit):
    """Retry stalled writes, in order of arrival, after a block of unit ``unit`` has become free."""
    if st.cfg[0].static != 0:
        retry(st, st.pool[unit])
    else:
        retry(st, st.dev[dev])
    if st.dev[dev].ends != 0 and write_frontier.writes_wait(st, dev, unit):
        write_frontier.doubt_space(st, dev, unit)


@inline
def retry(st, waiting):
    """Retry the stalled writes in the queue of ``waiting`` (record of a unit or of a drive) until
    one of them has to stay in the queue."""
    while waiting.stall_head >= 0:
        tid = waiting.stall_head
        following = st.txn[tid].next
        if not retry_one(st, tid):
            return
        waiting.stall_head = following


@inline
def retry_one(st, tid):
    """Retry stalled write ``tid``.

    Return True if the write leaves the queue, because flash pages have been allocated or because
    the write now waits for a locked page.
    """
    if st.cfg[0].locks != 0 and park_if_locked(st, tid):
        return True
    return place(st, tid)


@cold
def park_if_locked(st, tid):
    """If garbage collection has locked the page of write ``tid``, suspend the write and return
    True.
    """
    if not page_map.is_locked(st, st.txn[tid].dev, st.txn[tid].lpn):
        return False
    page_map.park(st, tid)
    return True


@cold
def resume_parked(st, unit):
    """Resume the suspended transactions of unit ``unit`` whose pages are no longer locked: reads
    before writes, each in order of arrival.
    """
    pool = st.pool[unit]
    first = -1
    last = -1
    for reads in (True, False):
        before = -1
        tid = pool.parked - 1
        while tid >= 0:
            txn = st.txn[tid]
            following = txn.next
            if (txn.op == timing.READ) == reads and not page_map.is_locked(st, txn.dev, txn.lpn):
                if before < 0:
                    pool.parked = following + 1
                else:
                    st.txn[before].next = following
                if following < 0:
                    pool.parked_last = before + 1
                if first < 0:
                    first = tid
                else:
                    st.txn[last].next = tid
                last = tid
                txn.next = -1
            else:
                before = tid
            tid = following
    while first >= 0:
        tid = first
        first = st.txn[tid].next
        st.txn[tid].next = -1
        if st.txn[tid].op == timing.READ:
            read_path.fetch_again(st, tid)
        else:
            place_or_wait(st, tid)


@njit
def check_for_collection(st, dev, unit):
    """If writes wait for a free block, check again whether a garbage collection can start. Call
    this function when a page has been programmed or invalidated. A block that had too many valid
    pages, or in which a program was in progress, may now be a victim.
    """
    collect_for_waiting(st, dev, unit)
    if st.dev[dev].ends != 0 and write_frontier.writes_wait(st, dev, unit):
        write_frontier.doubt_space(st, dev, unit)


@inline
def collect_for_waiting(st, dev, unit):
    """Start the garbage collection that waiting writes require: in unit ``unit`` for host writes
    with static allocation, otherwise in all units of drive ``dev``."""
    if st.cfg[0].gc_stalled == 0:
        return
    if st.cfg[0].map_entries != 0 and st.maps[dev].stall_first > 0:
        for other in range(dev * st.cfg[0].units, (dev + 1) * st.cfg[0].units):
            maybe_start_gc(st, dev, other)
    if st.cfg[0].static != 0:
        if st.pool[unit].stall_head >= 0 and should_collect(st, unit):
            maybe_start_gc(st, dev, unit)
        return
    if st.dev[dev].stall_head >= 0:
        for other in range(dev * st.cfg[0].units, (dev + 1) * st.cfg[0].units):
            maybe_start_gc(st, dev, other)


@cold
def place_map(st, tid):
    """Allocate a flash page to translation page ``tid`` in the next unit that has room, and start
    its program. Return False if no unit has room.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    tvpn = txn.lpn - cfg.lpns
    stream = page_map.map_stream_of(st, tvpn * cfg.map_span)
    for i in range(translation_pages.units_in_turn(st, tvpn)):
        unit = translation_pages.unit_in_turn(st, dev, tvpn, i)
        ppn = -1
        got = 0
        if block_manager.fits_internal_write(st, unit, stream):
            ppn, got = write_frontier.allocate(st, dev, unit, stream, 1)
        if got == 0 or st.reg[0].filled != 0:
            maybe_start_gc(st, dev, unit)
        if got == 0:
            continue
        if cfg.line == 1 or not word_lines.is_inside_stripe(st, st.front[stream, unit]):
            translation_pages.next_turn(st, dev)
        translation_pages.compose(st, dev, tvpn)
        start_program(st, tid, ppn)
        return True
    return False


@cold
def place_map_or_wait(st, tid):
    """Allocate a flash page to translation page ``tid``. If no unit has room, queue ``tid``."""
    if st.maps[st.txn[tid].dev].stall_first > 0 or not place_map(st, tid):
        dev = st.txn[tid].dev
        translation_pages.wait_for_block(st, tid)
        if st.dev[dev].ends != 0:
            write_frontier.doubt_space(st, dev, -1)


@cold
def retry_map(st, dev):
    """Allocate flash pages to stalled translation pages, oldest first, after a block was freed."""
    maps = st.maps[dev]
    while maps.stall_first > 0:
        tid = maps.stall_first - 1
        following = st.txn[tid].next
        if not place_map(st, tid):
            return
        maps.stall_first = following + 1
