"""Cached mapping table (CMT): mapping entries in DRAM, the full mapping table in flash pages.

Owns the cached entries, the transactions that wait for a translation page, and the write-back of
dirty translation pages. Does not own the mapping table (page_map.py) or the stages of a transaction
(engine/run/datapath.py).
Source: DFTL (Gupta et al., ASPLOS 2009): LRU replacement of entries, a directory of translation
pages, write-back of all dirty entries of a page together; MQSim: cached mapping table, entry sizes.

A translation page has the size of one mapping unit. Translation pages are logical pages behind the
host's: page m is ``lpns + m``, so the end of the page map is the global translation directory.
Garbage collection moves translation pages like other pages, into a separate open block. ``l2p`` is
always current; this module models only the cost of a lookup.

A translation page under write-back (read, merged, programmed) is in DRAM from the end of its read
to the end of its program; lookups in that time use the copy in DRAM. Misses wait while translation
pages are queued for write-back, which bounds that queue.
"""

from __future__ import annotations

import math

from ondie.emu.config.config import Config
from ondie.emu.config.rules import mapping_unit
from ondie.emu.engine.core import lru
from ondie.emu.engine.core.counters import MAP_HITS, MAP_MISSES, MAP_READ_PAGES, UNASKED_OUT_BYTES
from ondie.emu.engine.core.events import (
    E_FULL,
    fail,
    go,
    take_txn,
)
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.stages import MAP_DECODED, TRANSLATED
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl import page_map, subpage_sense
from ondie.emu.nand.die import Q_MAP_READ
from ondie.emu.nand.die_scheduler import push
from ondie.emu.nand.timing import READ
from ondie.emu.units import InputError
from ondie.kernels.jit import cold, inline, njit

# Links are index + 1; 0 = none, so untouched (all-zero) pages of these arrays take no memory.
MAPS = record_type(
    newest="i8",  # LRU list of entries
    oldest="i8",
    used="i8",
    first="i8",  # queue of translation pages for write-back
    last="i8",
    writing="i8",  # write-backs under way: pages being read, merged or programmed
    miss_first="i8",  # deferred reads of misses, started when that queue is empty
    miss_last="i8",
    stall_first="i8",  # transactions with translation pages that wait for a free block
    stall_last="i8",
    cursor="i8",  # position of the next page in the allocation order
)
ENTRY = record_type(
    lpn="i8",
    newer="i4",
    older="i4",
    chain="i4",  # next entry of the same hash bucket
    dirty="i4",  # 1: not yet on flash
    before="i4",  # list of dirty entries of its translation page
    after="i4",
)
TPAGE = record_type(
    wait_first="i4",  # transactions that wait for this page
    wait_last="i4",
    dirty="i4",  # first dirty entry
    state="i4",
    asked="i4",  # for waiting transactions: ASKED or LISTED
    again="i4",  # 1: dirty entries were evicted since the page was composed
    next="i4",  # next in the write-back queue
    next_miss="i4",
)
KEPT, DUE, OLD, HELD, LEAVING = range(5)
"""``state``: nothing to write back; queued for write-back; old content is being read; old content
is in DRAM; new content is on its way to flash."""
ASKED, LISTED = 1, 2
"""``asked``: the page is being read; its read is deferred until the write-back queue is empty."""

SECTOR = 512
PLACES = 32
"""Width of transaction, entry and translation-page numbers (bits)."""


def entry_bytes(cfg: Config, physical_pages: int) -> tuple[int, int]:
    """Return the bytes of an entry as (in the cache, in a translation page). A cached entry holds
    the logical and the physical page number, a stored entry the physical one only. Both add one bit
    per sector if ftl.partial_pages = sectors. Bits are rounded up, then bytes."""
    bits = math.log2(max(physical_pages, 2))
    sectors = mapping_unit(cfg) // 512 if cfg.ftl.partial_pages == "sectors" else 0
    return -(-math.ceil(2 * bits + sectors) // 8), -(-math.ceil(bits + sectors) // 8)


def sizes(cfg: Config, physical_pages: int, lpns: int) -> tuple[int, int, int]:
    """Return (cached entries, entries per translation page, translation pages) of a device. All are
    0 if the whole map is in DRAM. Raises InputError if the cache holds no entry or too many."""
    if cfg.ftl.map_cache_bytes == 0:
        return 0, 0, 0
    cached, stored = entry_bytes(cfg, physical_pages)
    entries = min(cfg.ftl.map_cache_bytes // cached, lpns)
    if entries == 0:
        raise InputError(
            f"ftl.map_cache = {cfg.ftl.map_cache_bytes} B: an entry takes {cached} B; 0: the whole "
            "map is in DRAM"
        )
    span = mapping_unit(cfg) // stored
    if max(entries, lpns // span) >= 1 << (PLACES - 1):
        raise InputError(f"ftl.map_cache = {cfg.ftl.map_cache_bytes} B: too many entries")
    return entries, span, -(-lpns // span)


# --- cache


@inline
def find(st, dev, lpn):
    """Return the entry of a logical page as index + 1, or 0 if it is not cached."""
    return lru.find(st.bucket, st.entry, dev, lpn)


@inline
def push_newest(st, dev, entry):
    """Insert an unlinked entry at the most recently used end of the LRU list."""
    maps = st.maps[dev]
    if lru.follow(st.entry, entry, maps.newest):
        maps.oldest = entry
    maps.newest = entry


@inline
def take_out(st, dev, entry):
    """Remove an entry from the LRU list."""
    maps = st.maps[dev]
    lru.bypass(st.entry, entry)
    if maps.newest == entry:
        maps.newest = st.entry[entry - 1].older
    if maps.oldest == entry:
        maps.oldest = st.entry[entry - 1].newer


@inline
def touch(st, dev, entry):
    """Mark an entry as most recently used."""
    if st.maps[dev].newest != entry:
        take_out(st, dev, entry)
        push_newest(st, dev, entry)


@inline
def page_of(st, dev, lpn):
    """Return the translation page of a logical page, numbered over all devices."""
    cfg = st.cfg[0]
    return dev * cfg.tpages + lpn // cfg.map_span


@njit
def clean(st, tpage, eid):
    """Mark a dirty entry of translation page ``tpage`` as clean."""
    entry = st.entry[eid - 1]
    entry.dirty = 0
    if entry.before > 0:
        st.entry[entry.before - 1].after = entry.after
    else:
        st.tpage[tpage].dirty = entry.after
    if entry.after > 0:
        st.entry[entry.after - 1].before = entry.before


@njit
def evict(st, dev):
    """Evict the least recently used entry and return it, unlinked from all lists. If the entry is
    dirty, its translation page is written back."""
    eid = int(st.maps[dev].oldest)
    entry = st.entry[eid - 1]
    take_out(st, dev, eid)
    lru.unlist(st.bucket, st.entry, dev, eid)
    if entry.dirty != 0:
        tpage = page_of(st, dev, entry.lpn)
        clean(st, tpage, eid)
        if st.cfg[0].map_writes == 0:
            keep(st, dev, tpage)
        else:
            write_back(st, dev, tpage)
    return eid


@njit
def insert(st, dev, lpn):
    """Insert a clean entry for a logical page that has none, and return it. Evict if the cache is
    full."""
    cfg = st.cfg[0]
    maps = st.maps[dev]
    if maps.used < cfg.map_entries:
        maps.used += 1
        entry = dev * cfg.map_entries + maps.used
    else:
        entry = evict(st, dev)
    st.entry[entry - 1].dirty = 0
    lru.enlist(st.bucket, st.entry, dev, entry, lpn)
    push_newest(st, dev, entry)
    return entry


@njit
def update(st, dev, lpn):
    """Mark the entry of a logical page as dirty after its mapping changed. An entry that is not
    cached is inserted without a read: it is merged when its translation page is written back."""
    eid = find(st, dev, lpn)
    if eid == 0:
        eid = insert(st, dev, lpn)
    entry = st.entry[eid - 1]
    if entry.dirty == 0:
        page = st.tpage[page_of(st, dev, lpn)]
        entry.dirty = 1
        entry.before = 0
        entry.after = page.dirty
        if page.dirty > 0:
            st.entry[page.dirty - 1].before = eid
        page.dirty = eid


# --- misses


@njit
def known(st, dev, lpn):
    """Return True if the mapping of a logical page is known without a flash read. Its entry is then
    in the cache."""
    entry = find(st, dev, lpn)
    if entry > 0:
        st.count[dev, MAP_HITS] += 1
        touch(st, dev, entry)
        return True
    cfg = st.cfg[0]
    tpage = page_of(st, dev, lpn)
    # Held in DRAM during a write-back, or never written.
    held = st.tpage[tpage].state >= HELD and (cfg.map_writes > 0 or st.tpage[tpage].asked == 0)
    if held or st.l2p[dev, cfg.lpns + tpage - dev * cfg.tpages] == 0:
        st.count[dev, MAP_MISSES] += 1
        insert(st, dev, lpn)
        return True
    return False


@njit
def wanting(st, tid):
    """Return True if transaction ``tid`` must wait for the mapping of one of its pages. ``left``
    counts the pages whose mapping is known. ``tid`` continues at TRANSLATED."""
    txn = st.txn[tid]
    while txn.pages_done < txn.n and known(st, txn.dev, txn.lpn + txn.pages_done):
        txn.pages_done += 1
    if txn.pages_done < txn.n:
        wait(st, tid)
        return True
    txn.pages_done = 0
    return False


@njit
def wait(st, tid):
    """Append transaction ``tid`` to the waiters of the translation page of its next page. The first
    waiter requests the read, unless one is already under way."""
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
    if maps.first == 0:
        page.asked = ASKED
        read(st, dev, tpage, Role.MAP_FETCH, fetched(st))
        return
    page.asked = LISTED
    page.next_miss = 0
    if maps.miss_first > 0:
        st.tpage[maps.miss_last - 1].next_miss = tpage + 1
    else:
        maps.miss_first = tpage + 1
    maps.miss_last = tpage + 1


@inline
def fetched(st):
    """Return the bytes of a translation page that a miss reads."""
    cfg = st.cfg[0]
    return cfg.map_read if cfg.map_read > 0 else cfg.page_bytes


@njit
def read(st, dev, tpage, role, size):
    """Read ``size`` bytes of a translation page at the address in the directory."""
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
    die = page_map.place_of(st, dev, tid)
    subpage_sense.count(st, tid)
    txn.array = st.page_ps[0, txn.page]
    page_map.read_from(st, dev, txn.ppn)
    push(st, die, tid, Q_MAP_READ)


@njit
def arrived(st, dev, tvpn):
    """Serve the waiters of translation page ``tvpn`` after its read. Each transaction uses its
    entries at once, so none is lost if the cache has no room for all."""
    cfg = st.cfg[0]
    page = st.tpage[dev * cfg.tpages + tvpn]
    tid = int(page.wait_first) - 1
    page.wait_first = 0
    if page.asked == ASKED:
        page.asked = 0
    if page.state == OLD:
        page.state = HELD
    behind = (tvpn + 1) * cfg.map_span
    while tid >= 0:
        txn = st.txn[tid]
        following = txn.next
        while txn.pages_done < txn.n and txn.lpn + txn.pages_done < behind:
            entry = find(st, dev, txn.lpn + txn.pages_done)
            if entry > 0:
                st.count[dev, MAP_HITS] += 1
                touch(st, dev, entry)
            else:
                st.count[dev, MAP_MISSES] += 1
                insert(st, dev, txn.lpn + txn.pages_done)
            txn.pages_done += 1
        go(st, tid, TRANSLATED)
        tid = following


# --- write-back


@njit
def write_back(st, dev, tpage):
    """Queue translation page ``tpage`` for write-back after the eviction of a dirty entry."""
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
    start(st, dev)


@cold
def keep(st, dev, tpage):
    """Handle the eviction of a dirty entry if translation pages are never written back (map_writes
    = 0). Translation page ``tpage`` is allocated a flash page and stays in DRAM from then on. The
    sectors that hold its cached clean entries are read if the page is on flash; misses wait for
    that read. Its dirty entries become clean and most recently used."""
    cfg = st.cfg[0]
    tvpn = tpage - dev * cfg.tpages
    stored = cfg.page_bytes // cfg.map_span
    sector = -1
    size = 0
    for lpn in range(tvpn * cfg.map_span, min((tvpn + 1) * cfg.map_span, cfg.lpns)):
        entry = find(st, dev, lpn)
        if entry == 0:
            continue
        if st.entry[entry - 1].dirty != 0:
            clean(st, tpage, entry)
            touch(st, dev, entry)
        elif (lpn - tvpn * cfg.map_span) * stored // SECTOR != sector:
            sector = (lpn - tvpn * cfg.map_span) * stored // SECTOR
            size += SECTOR
    page = st.tpage[tpage]
    page.state = HELD
    if st.l2p[dev, cfg.lpns + tvpn] != 0:
        page.asked = ASKED
        read(st, dev, tpage, Role.MAP_FETCH, size)
    unit = turn_of(st, dev, tvpn, 0)
    ppn, got = page_map.allocate(st, dev, unit, cfg.map_stream, 1)
    if got == 0:
        fail(st, E_FULL, cfg.lpns + tvpn, 0)
        return
    if st.reg[0].filled != 0:
        st.pool[unit].asked = 1
        page_map.look_again(st, unit)
    page_map.map_page(st, dev, cfg.lpns + tvpn, ppn)
    if cfg.partial != 0:
        st.sectors[dev, cfg.lpns + tvpn] = -1
    page_map.landed(st, dev, ppn, 1)
    st.block[page_map.block_at(st, dev, ppn)].retire = page_map.PINNED


@njit
def start(st, dev):
    """Start queued write-backs, up to the limit of concurrent ones. If the queue is then empty,
    start the reads of the deferred misses."""
    cfg = st.cfg[0]
    maps = st.maps[dev]
    while maps.first > 0 and maps.writing < cfg.map_writes:
        tpage = maps.first - 1
        page = st.tpage[tpage]
        maps.first = page.next
        maps.writing += 1
        page.state = OLD
        read(st, dev, tpage, Role.MAP_BACK, st.cfg[0].page_bytes)
    while maps.first == 0 and maps.miss_first > 0:
        tpage = maps.miss_first - 1
        page = st.tpage[tpage]
        maps.miss_first = page.next_miss
        page.asked = 0
        if page.wait_first > 0:
            page.asked = ASKED
            read(st, dev, tpage, Role.MAP_FETCH, fetched(st))


@inline
def turn_of(st, dev, tvpn, i):
    """Return the i-th unit to try for translation page ``tvpn``. The order starts at the page's
    number if allocation is static, else at the allocation cursor."""
    cfg = st.cfg[0]
    first = tvpn if cfg.static != 0 else st.maps[dev].cursor
    return dev * cfg.units + st.turn[(first + i) % st.turn.shape[0]]


@inline
def next_turn(st, dev):
    """Advance the allocation cursor to the next unit."""
    maps = st.maps[dev]
    maps.cursor = maps.cursor + 1 if maps.cursor + 1 < st.turn.shape[0] else 0


@njit
def compose(st, dev, tvpn):
    """Compose translation page ``tvpn`` from the current mapping; its dirty entries become
    clean.
    """
    cfg = st.cfg[0]
    tpage = dev * cfg.tpages + tvpn
    page = st.tpage[tpage]
    page.state = LEAVING
    while page.dirty > 0:
        clean(st, tpage, int(page.dirty))


@njit
def landed(st, dev, tvpn):
    """Complete the write-back of translation page ``tvpn`` after its program."""
    cfg = st.cfg[0]
    tpage = dev * cfg.tpages + tvpn
    page = st.tpage[tpage]
    page.state = KEPT
    st.maps[dev].writing -= 1
    if page.again != 0:
        page.again = 0
        write_back(st, dev, tpage)
    start(st, dev)


@njit
def stall(st, tid):
    """Append ``tid``, which carries a translation page, to the transactions that wait for a free
    block."""
    txn = st.txn[tid]
    maps = st.maps[txn.dev]
    txn.next = -1
    if maps.stall_first > 0:
        st.txn[maps.stall_last - 1].next = tid
    else:
        maps.stall_first = tid + 1
    maps.stall_last = tid + 1


@njit
def lay(st, dev, lpn, count):
    """Write the translation pages of ``count`` logical pages from ``lpn`` that are not on flash,
    without simulated time, for preconditioning. Return the number of pages for which no unit had a
    free block."""
    cfg = st.cfg[0]
    without = 0
    for tvpn in range(lpn // cfg.map_span, (lpn + count + cfg.map_span - 1) // cfg.map_span):
        if st.l2p[dev, cfg.lpns + tvpn] != 0:
            continue
        without += 1
        for i in range(st.turn.shape[0]):
            unit = turn_of(st, dev, tvpn, i)
            pool = st.pool[unit]
            if st.front[cfg.map_stream, unit].block < 0:
                if not page_map.spare(st, unit):
                    continue
                st.block[unit * cfg.all_blocks + st.free[unit, pool.free_head]].dirty = 0
            if cfg.line > 1:
                page_map.lay(st, unit, cfg.map_stream, 1)
            ppn, _ = page_map.allocate(st, dev, unit, cfg.map_stream, 1)
            if cfg.line > 1:
                page_map.lay(st, unit, cfg.map_stream, 0)
            page_map.map_page(st, dev, cfg.lpns + tvpn, ppn)
            page_map.landed(st, dev, ppn, 1)
            without -= 1
            break
        next_turn(st, dev)
    return without
