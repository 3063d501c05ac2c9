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
from ondie.emu.engine.core import lru as places
from ondie.emu.engine.core.counters import MAP_HITS, MAP_MISSES, MAP_READ_PAGES, UNASKED_OUT_BYTES
from ondie.emu.engine.core.events import E_FULL, fail, go, take_txn
from ondie.emu.engine.core.stages import MAP_DECODED, TRANSLATED
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import subpage_sense as sharing
from ondie.emu.nand import channel as nand
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

FETCH, BACK = 4, 5
"""``bare`` of the drive's internal transactions: read a page for waiting transactions; write it
back."""
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
    return places.find(st.bucket, st.entry, dev, lpn)


@inline
def push_newest(st, dev, e):
    """Insert an unlinked entry at the most recently used end of the LRU list."""
    maps = st.maps[dev]
    if places.follow(st.entry, e, maps.newest):
        maps.oldest = e
    maps.newest = e


@inline
def take_out(st, dev, e):
    """Remove an entry from the LRU list."""
    maps = st.maps[dev]
    places.bypass(st.entry, e)
    if maps.newest == e:
        maps.newest = st.entry[e - 1].older
    if maps.oldest == e:
        maps.oldest = st.entry[e - 1].newer


@inline
def touch(st, dev, e):
    """Mark an entry as most recently used."""
    if st.maps[dev].newest != e:
        take_out(st, dev, e)
        push_newest(st, dev, e)


@inline
def page_of(st, dev, lpn):
    """Return the translation page of a logical page, numbered over all devices."""
    c = st.cfg[0]
    return dev * c.tpages + lpn // c.map_span


@njit
def clean(st, p, e):
    """Mark a dirty entry of translation page ``p`` as clean."""
    entry = st.entry[e - 1]
    entry.dirty = 0
    if entry.before > 0:
        st.entry[entry.before - 1].after = entry.after
    else:
        st.tpage[p].dirty = entry.after
    if entry.after > 0:
        st.entry[entry.after - 1].before = entry.before


@njit
def evict(st, dev):
    """Evict the least recently used entry and return it, unlinked from all lists. If the entry is
    dirty, its translation page is written back."""
    e = int(st.maps[dev].oldest)
    entry = st.entry[e - 1]
    take_out(st, dev, e)
    places.unlist(st.bucket, st.entry, dev, e)
    if entry.dirty != 0:
        p = page_of(st, dev, entry.lpn)
        clean(st, p, e)
        if st.cfg[0].map_writes == 0:
            keep(st, dev, p)
        else:
            write_back(st, dev, p)
    return e


@njit
def insert(st, dev, lpn):
    """Insert a clean entry for a logical page that has none, and return it. Evict if the cache is
    full."""
    c = st.cfg[0]
    maps = st.maps[dev]
    if maps.used < c.map_entries:
        maps.used += 1
        e = dev * c.map_entries + maps.used
    else:
        e = evict(st, dev)
    st.entry[e - 1].dirty = 0
    places.enlist(st.bucket, st.entry, dev, e, lpn)
    push_newest(st, dev, e)
    return e


@njit
def update(st, dev, lpn):
    """Mark the entry of a logical page as dirty after its mapping changed. An entry that is not
    cached is inserted without a read: it is merged when its translation page is written back."""
    e = find(st, dev, lpn)
    if e == 0:
        e = insert(st, dev, lpn)
    entry = st.entry[e - 1]
    if entry.dirty == 0:
        page = st.tpage[page_of(st, dev, lpn)]
        entry.dirty = 1
        entry.before = 0
        entry.after = page.dirty
        if page.dirty > 0:
            st.entry[page.dirty - 1].before = e
        page.dirty = e


# --- misses


@njit
def known(st, dev, lpn):
    """Return True if the mapping of a logical page is known without a flash read. Its entry is then
    in the cache."""
    e = find(st, dev, lpn)
    if e > 0:
        st.count[dev, MAP_HITS] += 1
        touch(st, dev, e)
        return True
    c = st.cfg[0]
    p = page_of(st, dev, lpn)
    # Held in DRAM during a write-back, or never written.
    held = st.tpage[p].state >= HELD and (c.map_writes > 0 or st.tpage[p].asked == 0)
    if held or st.l2p[dev, c.lpns + p - dev * c.tpages] == 0:
        st.count[dev, MAP_MISSES] += 1
        insert(st, dev, lpn)
        return True
    return False


@njit
def wanting(st, t):
    """Return True if transaction ``t`` must wait for the mapping of one of its pages. ``left``
    counts the pages whose mapping is known. ``t`` continues at TRANSLATED."""
    x = st.txn[t]
    while x.left < x.n and known(st, x.dev, x.lpn + x.left):
        x.left += 1
    if x.left < x.n:
        wait(st, t)
        return True
    x.left = 0
    return False


@njit
def wait(st, t):
    """Append transaction ``t`` to the waiters of the translation page of its next page. The first
    waiter requests the read, unless one is already under way."""
    x = st.txn[t]
    dev = x.dev
    p = page_of(st, dev, x.lpn + x.left)
    page = st.tpage[p]
    x.next = -1
    if page.wait_first > 0:
        st.txn[page.wait_last - 1].next = t
    else:
        page.wait_first = t + 1
    page.wait_last = t + 1
    if page.asked != 0 or page.state == OLD:
        return
    maps = st.maps[dev]
    if maps.first == 0:
        page.asked = ASKED
        read(st, dev, p, FETCH, fetched(st))
        return
    page.asked = LISTED
    page.next_miss = 0
    if maps.miss_first > 0:
        st.tpage[maps.miss_last - 1].next_miss = p + 1
    else:
        maps.miss_first = p + 1
    maps.miss_last = p + 1


@inline
def fetched(st):
    """Return the bytes of a translation page that a miss reads."""
    c = st.cfg[0]
    return c.map_read if c.map_read > 0 else c.page_bytes


@njit
def read(st, dev, p, bare, size):
    """Read ``size`` bytes of a translation page at the address in the directory."""
    c = st.cfg[0]
    t = take_txn(st)
    if t < 0:
        return
    x = st.txn[t]
    x.dev = dev
    x.bare = bare
    x.n = 1
    x.lpn = c.lpns + p - dev * c.tpages
    x.ppn = int(st.l2p[dev, x.lpn]) - 1
    x.size = size
    if x.ppn < 0:  # nothing to merge with
        go(st, t, MAP_DECODED)
        return
    x.op = READ
    x.bus = size
    st.count[dev, MAP_READ_PAGES] += 1
    st.count[dev, UNASKED_OUT_BYTES] += c.page_bytes - x.bus
    g = mapping.place_of(st, dev, t)
    sharing.count(st, t)
    x.array = st.page_ps[0, x.page]
    mapping.read_from(st, dev, x.ppn)
    nand.push(st, g, t, nand.Q_MAP_READ)


@njit
def arrived(st, dev, m):
    """Serve the waiters of translation page ``m`` after its read. Each transaction uses its entries
    at once, so none is lost if the cache has no room for all."""
    c = st.cfg[0]
    page = st.tpage[dev * c.tpages + m]
    t = int(page.wait_first) - 1
    page.wait_first = 0
    if page.asked == ASKED:
        page.asked = 0
    if page.state == OLD:
        page.state = HELD
    behind = (m + 1) * c.map_span
    while t >= 0:
        x = st.txn[t]
        following = x.next
        while x.left < x.n and x.lpn + x.left < behind:
            e = find(st, dev, x.lpn + x.left)
            if e > 0:
                st.count[dev, MAP_HITS] += 1
                touch(st, dev, e)
            else:
                st.count[dev, MAP_MISSES] += 1
                insert(st, dev, x.lpn + x.left)
            x.left += 1
        go(st, t, TRANSLATED)
        t = following


# --- write-back


@njit
def write_back(st, dev, p):
    """Queue translation page ``p`` for write-back after the eviction of a dirty entry."""
    page = st.tpage[p]
    if page.state == LEAVING:
        page.again = 1
    if page.state != KEPT:
        return
    maps = st.maps[dev]
    page.state = DUE
    page.next = 0
    if maps.first > 0:
        st.tpage[maps.last - 1].next = p + 1
    else:
        maps.first = p + 1
    maps.last = p + 1
    start(st, dev)


@cold
def keep(st, dev, p):
    """Handle the eviction of a dirty entry if translation pages are never written back (map_writes
    = 0). Translation page ``p`` is allocated a flash page and stays in DRAM from then on. The
    sectors that hold its cached clean entries are read if the page is on flash; misses wait for
    that read. Its dirty entries become clean and most recently used."""
    c = st.cfg[0]
    m = p - dev * c.tpages
    stored = c.page_bytes // c.map_span
    sector = -1
    size = 0
    for lpn in range(m * c.map_span, min((m + 1) * c.map_span, c.lpns)):
        e = find(st, dev, lpn)
        if e == 0:
            continue
        if st.entry[e - 1].dirty != 0:
            clean(st, p, e)
            touch(st, dev, e)
        elif (lpn - m * c.map_span) * stored // SECTOR != sector:
            sector = (lpn - m * c.map_span) * stored // SECTOR
            size += SECTOR
    page = st.tpage[p]
    page.state = HELD
    if st.l2p[dev, c.lpns + m] != 0:
        page.asked = ASKED
        read(st, dev, p, FETCH, size)
    u = turn_of(st, dev, m, 0)
    ppn, k = mapping.allocate(st, dev, u, c.map_stream, 1)
    if k == 0:
        fail(st, E_FULL, c.lpns + m, 0)
        return
    if st.reg[0].filled != 0:
        st.pool[u].asked = 1
        mapping.look_again(st, u)
    mapping.map_page(st, dev, c.lpns + m, ppn)
    if c.partial != 0:
        st.sectors[dev, c.lpns + m] = -1
    mapping.landed(st, dev, ppn, 1)
    st.block[mapping.block_at(st, dev, ppn)].retire = mapping.PINNED


@njit
def start(st, dev):
    """Start queued write-backs, up to the limit of concurrent ones. If the queue is then empty,
    start the reads of the deferred misses."""
    c = st.cfg[0]
    maps = st.maps[dev]
    while maps.first > 0 and maps.writing < c.map_writes:
        p = maps.first - 1
        page = st.tpage[p]
        maps.first = page.next
        maps.writing += 1
        page.state = OLD
        read(st, dev, p, BACK, st.cfg[0].page_bytes)
    while maps.first == 0 and maps.miss_first > 0:
        p = maps.miss_first - 1
        page = st.tpage[p]
        maps.miss_first = page.next_miss
        page.asked = 0
        if page.wait_first > 0:
            page.asked = ASKED
            read(st, dev, p, FETCH, fetched(st))


@inline
def turn_of(st, dev, m, i):
    """Return the i-th unit to try for translation page ``m``. The order starts at the page's number
    if allocation is static, else at the allocation cursor."""
    c = st.cfg[0]
    first = m if c.static != 0 else st.maps[dev].cursor
    return dev * c.units + st.turn[(first + i) % st.turn.shape[0]]


@inline
def next_turn(st, dev):
    """Advance the allocation cursor to the next unit."""
    maps = st.maps[dev]
    maps.cursor = maps.cursor + 1 if maps.cursor + 1 < st.turn.shape[0] else 0


@njit
def compose(st, dev, m):
    """Compose translation page ``m`` from the current mapping; its dirty entries become clean."""
    c = st.cfg[0]
    p = dev * c.tpages + m
    page = st.tpage[p]
    page.state = LEAVING
    while page.dirty > 0:
        clean(st, p, int(page.dirty))


@njit
def landed(st, dev, m):
    """Complete the write-back of translation page ``m`` after its program."""
    c = st.cfg[0]
    p = dev * c.tpages + m
    page = st.tpage[p]
    page.state = KEPT
    st.maps[dev].writing -= 1
    if page.again != 0:
        page.again = 0
        write_back(st, dev, p)
    start(st, dev)


@njit
def stall(st, t):
    """Append ``t``, which carries a translation page, to the transactions that wait for a free
    block."""
    x = st.txn[t]
    maps = st.maps[x.dev]
    x.next = -1
    if maps.stall_first > 0:
        st.txn[maps.stall_last - 1].next = t
    else:
        maps.stall_first = t + 1
    maps.stall_last = t + 1


@njit
def lay(st, dev, lpn, n):
    """Write the translation pages of ``n`` logical pages from ``lpn`` that are not on flash,
    without simulated time, for preconditioning. Return the number of pages for which no unit had a
    free block."""
    c = st.cfg[0]
    without = 0
    for m in range(lpn // c.map_span, (lpn + n + c.map_span - 1) // c.map_span):
        if st.l2p[dev, c.lpns + m] != 0:
            continue
        without += 1
        for i in range(st.turn.shape[0]):
            u = turn_of(st, dev, m, i)
            pool = st.pool[u]
            if st.front[c.map_stream, u].block < 0:
                if not mapping.spare(st, u):
                    continue
                st.block[u * c.all_blocks + st.free[u, pool.free_head]].dirty = 0
            if c.line > 1:
                mapping.lay(st, u, c.map_stream, 1)
            ppn, _ = mapping.allocate(st, dev, u, c.map_stream, 1)
            if c.line > 1:
                mapping.lay(st, u, c.map_stream, 0)
            mapping.map_page(st, dev, c.lpns + m, ppn)
            mapping.landed(st, dev, ppn, 1)
            without -= 1
            break
        next_turn(st, dev)
    return without
