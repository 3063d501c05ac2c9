"""Translation pages: fetches and write-backs of the mapping table on flash.

Owns the reads and programs of translation pages and the transactions that wait for them. Does not
own the cached mapping table (cmt.py) or the placement of pages (write_path.py).
Source: DFTL (Gupta et al., ASPLOS 2009); MQSim's Address_Mapping_Unit_Page_Level.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core.counters import MAP_HITS, MAP_MISSES, MAP_READ_PAGES, UNASKED_OUT_BYTES
from ondie.emu.engine.core.error_codes import E_FULL
from ondie.emu.engine.core.events import fail, go, take_txn
from ondie.emu.engine.core.payload_log import LOG_MAP_COPY, note_log
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.stages import MAP_DECODED, TRANSLATED
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.ftl import page_map, read_path, write_frontier
from ondie.emu.ftl.cached_entries import (
    ASKED,
    CLEAN,
    DIRTY,
    DUE,
    HELD,
    KEPT,
    LEAVING,
    LISTED,
    OLD,
    RESERVED,
    find,
    mark_clean,
    page_of,
    touch,
)
from ondie.emu.nand import phase_end, polling
from ondie.emu.nand.die import POLLED, Q_MAP_READ
from ondie.emu.nand.die_scheduler import push
from ondie.emu.nand.scheduler_statistics import on_map_write
from ondie.emu.nand.timing import READ
from ondie.kernels.jit import cold, inline, njit


@njit
def wait_for_page(st, tid):
    """Append transaction ``tid`` to the transactions that wait for the translation page of its next
    logical page. Read the translation page unless its read has already been requested. Defer the
    read while translation pages are queued for write-back.
    """
    txn = st.txn[tid]
    dev = txn.dev
    tpage = page_of(st, dev, txn.lpn + txn.pages_done)
    page = st.tpage[tpage]
    txn.next = -1
    if page.wait_first > 0:
        st.txn[page.wait_last - 1].next = tid
    else:
        page.wait_first = tid + 1
    page.wait_last = tid + 1
    if page.asked != 0 or page.state == OLD:
        return
    maps = st.maps[dev]
    if maps.first == 0 or st.dev[dev].full != 0:
        fetch(st, dev, tpage)
        return
    page.asked = LISTED
    page.next_miss = 0
    if maps.miss_first > 0:
        st.tpage[maps.miss_last - 1].next_miss = tpage + 1
    else:
        maps.miss_first = tpage + 1
    maps.miss_last = tpage + 1


@njit
def fetch(st, dev, tpage):
    """Read translation page ``tpage`` for the transactions that wait for it."""
    st.tpage[tpage].asked = ASKED
    read(st, dev, tpage, Role.MAP_FETCH, fetched_bytes(st))


@inline
def fetched_bytes(st):
    """Return the number of bytes of a translation page that are read at a miss of the cached
    mapping table."""
    cfg = st.cfg[0]
    return cfg.map_read if cfg.map_read > 0 else cfg.page_bytes


@njit
def read(st, dev, tpage, role, size):
    """Read ``size`` bytes of translation page ``tpage`` from its physical page. If the page is not
    on flash, continue without a read.
    """
    cfg = st.cfg[0]
    tid = take_txn(st)
    if tid < 0:
        return
    txn = st.txn[tid]
    txn.dev = dev
    txn.role = role
    txn.n = 1
    txn.lpn = cfg.lpns + tpage - dev * cfg.tpages
    txn.ppn = int(st.l2p[dev, txn.lpn]) - 1
    txn.size = size
    if txn.ppn < 0:  # nothing to merge with
        go(st, tid, MAP_DECODED)
        return
    txn.op = READ
    txn.bus = size
    st.count[dev, MAP_READ_PAGES] += 1
    st.count[dev, UNASKED_OUT_BYTES] += cfg.page_bytes - txn.bus
    die = page_map.set_place(st, dev, tid)
    read_path.count_command(st, tid)
    txn.array = st.page_ps[0, txn.page]
    page_map.count_pending_read(st, dev, txn.ppn)
    push(st, die, tid, Q_MAP_READ)
    if cfg.ordered != 0:  # in MQSim it starts before the transactions of the request
        phase_end.grant_idle(st, txn.die)


@cold
def serve_reserved(st, dev, page):
    """Serve the transactions that wait for a translation page (record ``page``) after the page has
    been read. As in MQSim, serve the reserved entries in the order of their reservation. For each
    entry, serve its waiting reads before its waiting writes.

    A transaction whose entry has been evicted is moved to a separate list. It waits until another
    miss reserves the entry again, possibly forever.
    """
    while page.wait_first > 0:
        tid = int(page.wait_first) - 1
        lpn = int(st.txn[tid].lpn)
        entry = find(st, dev, lpn)
        if entry > 0 and st.entry[entry - 1].dirty == RESERVED:
            st.entry[entry - 1].dirty = CLEAN
            st.count[dev, MAP_HITS] -= 1
            st.count[dev, MAP_MISSES] += 1
            touch(st, dev, entry)
            for reads in (True, False):
                page.lost_first, page.lost_last = serve_list(
                    st, dev, page.lost_first, page.lost_last, lpn, reads
                )
                page.wait_first, page.wait_last = serve_list(
                    st, dev, page.wait_first, page.wait_last, lpn, reads
                )
            continue
        page.wait_first = st.txn[tid].next + 1
        st.txn[tid].next = -1
        if page.lost_first > 0:
            st.txn[page.lost_last - 1].next = tid
        else:
            page.lost_first = tid + 1
        page.lost_last = tid + 1


@cold
def serve_list(st, dev, first, last, lpn, reads):
    """Serve the reads (``reads`` = True) or the writes of logical page ``lpn`` in a list of waiting
    transactions. ``first``, ``last``: first and last transaction of the list as index + 1, or 0 if
    the list is empty.

    Return (first, last) of the remaining list.
    """
    before = -1
    tid = int(first) - 1
    while tid >= 0:
        txn = st.txn[tid]
        following = txn.next
        if txn.lpn != lpn or (txn.op == READ) != reads:
            before = tid
            tid = following
            continue
        if before < 0:
            first = following + 1
        else:
            st.txn[before].next = following
        if following < 0:
            last = before + 1
        st.count[dev, MAP_HITS] += 1
        txn.pages_done += 1
        go(st, tid, TRANSLATED)
        tid = following
    return first, last


@njit
def write_back(st, dev, tpage):
    """Queue translation page ``tpage`` for write-back after the eviction of a dirty entry, unless
    the page is already queued, or its write-back in progress has not composed the new content yet.
    If the page is being programmed, queue it again after its program."""
    page = st.tpage[tpage]
    if page.state == LEAVING:
        page.again = 1
    if page.state != KEPT:
        return
    maps = st.maps[dev]
    page.state = DUE
    page.next = 0
    if maps.first > 0:
        st.tpage[maps.last - 1].next = tpage + 1
    else:
        maps.first = tpage + 1
    maps.last = tpage + 1
    start_write_backs(st, dev)


@cold
def keep_without_write_back(st, dev, tpage):
    """Handle the eviction of a dirty entry if translation pages are never written back (map_writes
    = 0). Allocate a flash page to translation page ``tpage``, which stays in DRAM from then on. If
    the translation page was on flash, read those of its sectors that contain clean cached entries.
    Misses of the page wait for this read. The dirty entries of the page become clean and most
    recently used.
    """
    cfg = st.cfg[0]
    tvpn = tpage - dev * cfg.tpages
    stored = cfg.page_bytes // cfg.map_span
    sector = -1
    size = 0
    for lpn in range(tvpn * cfg.map_span, min((tvpn + 1) * cfg.map_span, cfg.lpns)):
        entry = find(st, dev, lpn)
        if entry == 0 or st.entry[entry - 1].dirty == RESERVED:
            continue
        if st.entry[entry - 1].dirty == DIRTY:
            mark_clean(st, tpage, entry)
            touch(st, dev, entry)
        elif (lpn - tvpn * cfg.map_span) * stored // SECTOR_BYTES != sector:
            sector = (lpn - tvpn * cfg.map_span) * stored // SECTOR_BYTES
            size += SECTOR_BYTES
    page = st.tpage[tpage]
    page.state = HELD
    if st.l2p[dev, cfg.lpns + tvpn] != 0:
        page.asked = ASKED
        read(st, dev, tpage, Role.MAP_FETCH, size)
    elif cfg.ranked == POLLED:  # in MQSim the write-back is submitted, and the chips are polled
        polling.look_again(st)
        if cfg.ordered != 0:
            phase_end.grant_idle(st, 0)
    unit = unit_in_turn(st, dev, tvpn, 0)
    stream = page_map.map_stream_of(st, tvpn * cfg.map_span)
    ppn, got = write_frontier.allocate(st, dev, unit, stream, 1)
    if got == 0:
        fail(st, E_FULL, cfg.lpns + tvpn, 0)
        return
    if st.reg[0].filled != 0:
        st.pool[unit].asked = 1
        write_frontier.schedule_check(st, unit)
    page_map.map_page(st, dev, cfg.lpns + tvpn, ppn)
    if cfg.probe != 0:
        on_map_write(st, unit // cfg.die_units)
    if cfg.partial != 0:
        st.sectors[dev, cfg.lpns + tvpn] = -1
    page_map.count_programmed(st, dev, ppn, 1)
    page_map.pin(st, page_map.block_at(st, dev, ppn))


@njit
def start_write_backs(st, dev):
    """Start queued write-backs up to the limit of concurrent write-backs. Then start the reads of
    the deferred misses if the queue is empty or if no block is free for the write-backs.
    """
    cfg = st.cfg[0]
    maps = st.maps[dev]
    while maps.first > 0 and maps.writing < cfg.map_writes:
        tpage = maps.first - 1
        page = st.tpage[tpage]
        maps.first = page.next
        maps.writing += 1
        page.state = OLD
        read(st, dev, tpage, Role.MAP_BACK, st.cfg[0].page_bytes)
    while (maps.first == 0 or st.dev[dev].full != 0) and maps.miss_first > 0:
        tpage = maps.miss_first - 1
        page = st.tpage[tpage]
        maps.miss_first = page.next_miss
        page.asked = 0
        if page.wait_first > 0:
            fetch(st, dev, tpage)


@inline
def units_in_turn(st, tvpn):
    """Return the number of units on which translation page ``tvpn`` may be stored."""
    cfg = st.cfg[0]
    if cfg.map_streams == 1:
        return st.turn.shape[0]
    return st.zone[page_map.zone_of(st, tvpn * cfg.map_span)].units


@inline
def unit_in_turn(st, dev, tvpn, i):
    """Return the ``i``-th unit (from 0) that the allocation of translation page ``tvpn`` tries.

    If allocation is static, the order of units starts at a unit that depends on the page's number.
    Otherwise, it starts at the allocation cursor. If each zone has a stream of translation pages,
    the pages are numbered within their zone and stored on the units of the zone.
    """
    cfg = st.cfg[0]
    if cfg.map_streams > 1:
        zone = st.zone[page_map.zone_of(st, tvpn * cfg.map_span)]
        second = int(zone.skew > 0)  # its page 0 is the second of its logical pages
        at = tvpn - (zone.first_lpn + second) // cfg.map_span + i + second
        return dev * cfg.units + st.turn[zone.turn + at % zone.units]
    first = tvpn if cfg.static != 0 else st.maps[dev].cursor
    return dev * cfg.units + st.turn[(first + i) % st.turn.shape[0]]


@inline
def next_turn(st, dev):
    """Advance the cursor that selects the unit of drive ``dev`` for the next translation page."""
    maps = st.maps[dev]
    maps.cursor = maps.cursor + 1 if maps.cursor + 1 < st.turn.shape[0] else 0


@njit
def compose(st, dev, tvpn):
    """Compose translation page ``tvpn`` from the current mapping. The cached entries of the page
    become clean.
    """
    cfg = st.cfg[0]
    tpage = dev * cfg.tpages + tvpn
    page = st.tpage[tpage]
    page.state = LEAVING
    if st.reg[0].log_on != 0 and cfg.trim_maps != 0:
        note_log(st, LOG_MAP_COPY, -1, cfg.lpns + tvpn, -1, -1, 1, dev, -1)
        st.log[st.reg[0].logged - 1].place = tvpn + 1
    while page.dirty > 0:
        mark_clean(st, tpage, int(page.dirty))


@njit
def on_written_back(st, dev, tvpn):
    """Complete the write-back of translation page ``tvpn`` after its program."""
    cfg = st.cfg[0]
    tpage = dev * cfg.tpages + tvpn
    page = st.tpage[tpage]
    page.state = KEPT
    st.maps[dev].writing -= 1
    if page.again != 0:
        page.again = 0
        write_back(st, dev, tpage)
    start_write_backs(st, dev)


def queue_stale(arrays: Arrays, newest: np.ndarray) -> int:
    """Queue the stale translation pages of device 0 for write-back after a recovery of the map.
    Return the number of queued pages. The write-backs start at the first miss.

    ``newest``: (sequence number, program number) of each mapped page, int64[pages, 2]. The sequence
    number of a translation page is a program number: the page does not reflect programs with this
    number or larger numbers. A translation page is stale if such a program wrote a logical page in
    its span, or a trim map of that span. If translation pages are never written back
    (ftl.map_writes = 0), none is on flash, and no page is queued.
    """
    cfg = arrays.cfg[0]
    lpns, tpages, span = int(cfg.lpns), int(cfg.tpages), int(cfg.map_span)
    if cfg.map_writes == 0:
        return 0
    l2p = arrays.l2p[0]
    programs = np.zeros(tpages * span, np.int64)
    programs[:lpns] = np.where(l2p[:lpns] != 0, newest[:lpns, 1], 0)
    last = programs.reshape(tpages, span).max(axis=1)
    known = np.where(l2p[lpns : lpns + tpages] != 0, newest[lpns : lpns + tpages, 0], 0)
    first = np.arange(tpages) * span // int(cfg.trim_span)
    behind = (np.minimum(np.arange(1, tpages + 1) * span, lpns) - 1) // int(cfg.trim_span)
    trimmed = newest[lpns + tpages :, 1]
    trims = np.maximum(trimmed[first], trimmed[behind])
    stale = np.flatnonzero(((last > 0) & (last >= known)) | ((known > 0) & (trims >= known)))
    if len(stale):
        arrays.tpage["state"][stale] = DUE
        arrays.tpage["next"][stale[:-1]] = stale[1:] + 1
        arrays.maps["first"][0], arrays.maps["last"][0] = stale[0] + 1, stale[-1] + 1
    return len(stale)


@njit
def wait_for_block(st, tid):
    """Append ``tid``, which writes a translation page, to the transactions that wait for a free
    block.
    """
    txn = st.txn[tid]
    maps = st.maps[txn.dev]
    txn.next = -1
    if maps.stall_first > 0:
        st.txn[maps.stall_last - 1].next = tid
    else:
        maps.stall_first = tid + 1
    maps.stall_last = tid + 1
