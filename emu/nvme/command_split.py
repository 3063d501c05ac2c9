"""Command split: divides host commands into flash transactions.

Owns the split of reads, writes and TRIM at page, super-page and mapping boundaries. Does not own
the sectors of a page that a command accesses (page_transactions.py), the stages between host and
flash (engine/run/datapath.py) or the mapping table (ftl/page_map.py).
Source: a host request is split at page boundaries and completes with its last page (as in MQSim);
adjacent pages in one super-page form one multi-plane operation. In this module, a page is a mapping
unit.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import CACHE_HIT_PAGES, SPLIT_HIT_PAGES, TRIMMED_PAGES
from ondie.emu.engine.core.error_codes import E_FULL
from ondie.emu.engine.core.events import fail, go
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.payload_log import LOG_SERVE, LOG_TRIM, log, log_cached
from ondie.emu.engine.core.stages import PART_DONE, SERVED, TRANSLATED
from ondie.emu.engine.core.transaction import SECTOR_BYTES, child
from ondie.emu.ftl import (
    cached_entries,
    cmt,
    page_map,
    translation_pages,
    trim_maps,
    write_frontier,
)
from ondie.emu.ftl.read_path import fetch
from ondie.emu.nand import timing
from ondie.emu.nand.scheduler_statistics import READ_MISSES
from ondie.emu.nvme import (
    cache_places,
    data_cache,
    mqsim_cache,
    request_pieces,
    subpage_read,
    write_errors,
)
from ondie.emu.nvme.page_transactions import bytes_of, make_part, sectors_of
from ondie.kernels.jit import apart, cold, inline, njit


@njit
def cut_read(st, tid):
    """Split read command ``tid``, piece by piece if its pages are not contiguous: send cached pages
    to the host, and read all other pages from their dies."""
    cfg = st.cfg[0]
    st.command[tid].made = st.reg[0].now
    if request_pieces.has_pieces(st, tid):
        while request_pieces.take_piece(st, tid):
            read_pages(st, tid)
            request_pieces.keep_rest(st, tid)
    read_pages(st, tid)
    if cfg.cache == mqsim_cache.BUFFER:
        mqsim_cache.send_gathered(st, tid)
    if cfg.slots > 1:
        subpage_read.send(st)


@njit
def read_pages(st, tid):
    """Send the cached pages of read ``tid``, or of its current piece, to the host, and read all
    other pages from their dies."""
    cfg = st.cfg[0]
    lpn = st.txn[tid].lpn
    end = lpn + st.txn[tid].n
    while lpn < end:
        stop = end
        if cfg.cache != 0:
            stop = first_cached(st, tid, lpn)
        if cfg.map_entries == 0:
            sense(st, tid, lpn, stop)
        else:
            translate(st, tid, lpn, stop)
        if stop < end:
            serve(st, tid, stop)
        lpn = stop + 1


@cold
def sense_all(st, tid):
    """Read the pages of transaction ``tid`` from their dies. The mapping entries of the pages must
    be in DRAM."""
    txn = st.txn[tid]
    sense(st, tid, txn.lpn, txn.lpn + txn.n)
    if st.cfg[0].slots > 1:
        subpage_read.send(st)


@inline
def cached_sectors(st, tid, lpn):
    """Return a bit mask of the sectors of page ``lpn`` that read ``tid`` finds in the data cache.
    In a destage buffer (mqsim_cache.py), the page also becomes the most recently used page."""
    if st.cfg[0].cache == mqsim_cache.BUFFER:
        return mqsim_cache.cached_sectors(st, tid, lpn)
    place = cache_places.find(st, st.txn[tid].dev, lpn)
    if place == 0:
        return 0
    have = st.cpage[place - 1].have
    return have & sectors_of(st, tid, lpn) if st.cfg[0].partial != 0 else have


@njit
def first_cached(st, tid, lpn):
    """Return the number of the first page of read ``tid``, starting at ``lpn``, that has sectors in
    the data cache.

    If there is no such page, return the number of the page that follows the last page of the read.
    """
    end = st.txn[tid].lpn + st.txn[tid].n
    while lpn < end and cached_sectors(st, tid, lpn) == 0:
        lpn += 1
    return lpn


@njit
def serve(st, tid, lpn):
    """Send page ``lpn`` of read ``tid`` from the data cache to the host.

    If only part of the page is cached, the missing sectors are read from flash.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    st.count[txn.dev, CACHE_HIT_PAGES] += 1
    found = cached_sectors(st, tid, lpn)
    asked = sectors_of(st, tid, lpn) if cfg.partial != 0 else found
    if cfg.cache == mqsim_cache.BUFFER:
        mqsim_cache.serve(st, tid, found)
    else:
        cache_places.touch(st, txn.dev, cache_places.find(st, txn.dev, lpn))
        other = child(st, tid, lpn, 1)
        if other < 0:
            return
        size = bytes_of(st, tid, lpn, 1)
        st.txn[other].size = size if found == asked else set_bits(found) * SECTOR_BYTES
        log_cached(st, LOG_SERVE, tid, lpn, -1, -1, cache_places.find(st, txn.dev, lpn), found)
        go(st, other, SERVED)
    if found == asked:
        if cfg.probe != 0:
            st.stream_use[2 * txn.stream].count += 1
        return
    st.count[txn.dev, SPLIT_HIT_PAGES] += 1
    piece = child(st, tid, lpn, 1)
    if piece < 0:
        return
    other_txn = st.txn[piece]
    st.command[piece].offset = 0
    other_txn.sectors = asked & ~found
    other_txn.size = set_bits(other_txn.sectors) * SECTOR_BYTES
    if cfg.ordered == 0:
        go(st, piece, TRANSLATED)
    elif cfg.map_entries == 0 or not cmt.waits_for_mapping(st, piece):
        sense_all(st, piece)  # as in MQSim, before the next page is looked up
        go(st, piece, PART_DONE)


@njit
def translate(st, tid, lpn, end):
    """Split pages ``lpn`` to ``end - 1`` of read ``tid`` on a drive with a cached mapping table.

    Pages whose mapping entries are cached are read from their dies. Consecutive pages without a
    cached entry form one transaction per translation page, which waits until that translation page
    has been read. On a drive that does not write back the mapping, each page forms a separate
    transaction, as in MQSim.
    """
    txn = st.txn[tid]
    dev = txn.dev
    while lpn < end:
        count = 0
        while lpn + count < end and cmt.look_up(st, dev, lpn + count, 0):
            count += 1
            if st.cfg[0].map_writes == 0:  # as in MQSim, which maps a page before the next look-up
                break
        if count > 0:
            sense(st, tid, lpn, lpn + count)
            lpn += count
            continue
        page = cached_entries.page_of(st, dev, lpn)
        count = 1
        while (  # a drive without write-backs of the mapping looks up page after page, as MQSim
            lpn + count < end
            and st.cfg[0].map_writes > 0
            and cached_entries.page_of(st, dev, lpn + count) == page
        ):
            if cached_entries.find(st, dev, lpn + count) > 0:
                break
            count += 1
        other = child(st, tid, lpn, count)
        if other < 0:
            return
        other_txn = st.txn[other]
        st.command[other].offset = st.command[tid].offset if lpn == txn.lpn else 0
        other_txn.size = bytes_of(st, tid, lpn, count)
        other_txn.sectors = txn.sectors
        if st.cfg[0].probe != 0:
            st.lookup[0, READ_MISSES] += count
        translation_pages.wait_for_page(st, other)
        lpn += count


@apart
def sense(st, tid, lpn, end):
    """Read pages ``lpn`` to ``end - 1`` of command ``tid`` from their dies.

    Consecutive physical pages inside one super-page form one transaction. The controller returns
    zeros for unmapped pages.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    if cfg.slots > 1:
        subpage_read.split_slots(st, tid, lpn, end)
        return
    while lpn < end:
        entry = int(st.l2p[dev, lpn])
        if entry == 0 and cfg.unwritten != 0:  # read as if the page had been written at its address
            if write_frontier.map_unwritten(st, dev, lpn, txn.stream):
                if cfg.partial != 0:  # of a page that is cached in part, only the missing sectors
                    wanted = txn.sectors if txn.sectors != 0 else sectors_of(st, tid, lpn)
                    st.sectors[dev, lpn] |= wanted
                entry = int(st.l2p[dev, lpn])
                if cfg.map_entries != 0:
                    cmt.update(st, dev, lpn)
            elif not write_errors.fail_unwritten_read(st, tid):
                fail(st, E_FULL, lpn, 0)
                return
        count = 1
        waits = cfg.locks != 0 and page_map.is_locked(st, dev, lpn)
        if entry == 0:
            while lpn + count < end and count < cfg.planes and st.l2p[dev, lpn + count] == 0:
                count += 1
        elif (
            not waits
            and cfg.multi_plane != 0
            and cfg.unit_planes > 1
            and cfg.partial == 0
            and cfg.lanes == 1
        ):
            limit = min(end - lpn, cfg.unit_planes - (entry - 1) % cfg.unit_planes)
            while count < limit and int(st.l2p[dev, lpn + count]) == entry + count:
                count += 1
        other = make_part(st, tid, lpn, count, timing.READ)
        if other < 0:
            return
        if waits:
            page_map.park(st, other)
        else:
            fetch(st, other, entry)
        lpn += count


@njit
def cut_write(st, tid, step):
    """Split write command ``tid`` and continue each of its transactions after stage ``step``
    (stages.py).

    A transaction contains pages of at most one super-page. It contains one page if pages are
    cached, partial or placed statically.
    """
    st.command[tid].made = st.reg[0].now
    if request_pieces.has_pieces(st, tid):
        while request_pieces.take_piece(st, tid):
            send_parts(st, tid, step)
            request_pieces.keep_rest(st, tid)
    send_parts(st, tid, step)


@njit
def send_parts(st, tid, step):
    """Create the transactions for the pages of write ``tid``, or of its current piece, and continue
    each of them after stage ``step``."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    lpn = txn.lpn
    most = cfg.planes * cfg.slots
    if cfg.static != 0 or cfg.partial != 0 or cfg.cache_writes != 0:
        most = 1
    while lpn < txn.lpn + txn.n:
        count = min(txn.lpn + txn.n - lpn, most)
        other = make_part(st, tid, lpn, count, timing.PROGRAM)
        if other < 0:
            return
        if cfg.program_failures > 0.0:
            st.command[other].failed = 0
        go(st, other, step)
        lpn += count


@njit
def cut_trim(st, tid):
    """Unmap the pages that TRIM command ``tid`` covers completely, and drop them from the data
    cache."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    offset = st.command[tid].offset
    lpn = txn.lpn + (1 if offset > 0 else 0)
    end = (
        (txn.lpn * cfg.page_bytes + offset + txn.size) // cfg.page_bytes
        if txn.size > 0
        else txn.lpn + txn.n
    )
    st.count[txn.dev, TRIMMED_PAGES] += max(end - lpn, 0)
    if end > lpn:
        st.dev[txn.dev].full = 0
    if cfg.trim_maps != 0:
        st.dev[txn.dev].trims += 1
    for page in range(lpn, end):
        if cfg.map_entries != 0 and st.l2p[txn.dev, page] != 0:
            cmt.update(st, txn.dev, page)
        if cfg.cache != 0:
            data_cache.drop_page(st, txn.dev, page)
        if cfg.trim_maps != 0 and st.l2p[txn.dev, page] != 0:
            trim_maps.note(st, txn.dev, page)
        page_map.unmap(st, txn.dev, page)
        if cfg.partial != 0:
            st.sectors[txn.dev, page] = 0
    log(st, LOG_TRIM, tid, lpn, -1, -1, max(end - lpn, 0), txn.dev, -1)
    if cfg.cache != 0:
        data_cache.schedule_deferred(st, txn.dev)


@cold
def flush_trims(st, tid):
    """Make FLUSH command ``tid`` wait until all earlier trims are recorded on flash."""
    other = child(st, tid, 0, 0)
    if other >= 0 and not trim_maps.wait_for_flush(st, other):
        go(st, other, PART_DONE)


@njit
def flush(st, tid):
    """Start FLUSH command ``tid``. It completes when the data of all earlier writes is on flash."""
    other = child(st, tid, 0, 0)
    if other >= 0:
        data_cache.flush(st, other)
