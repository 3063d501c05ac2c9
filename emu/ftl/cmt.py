"""The cached mapping table: entries of the map in DRAM, the whole of it in pages on flash.

Owns which entries are cached, who waits for which translation page, and what has to be written
back. Does not own where pages lie (mapping.py) or the flash traffic's way (flows.py).
Source: DFTL (Gupta et al., ASPLOS 2009): entries by LRU, a directory of translation pages, all
dirty entries of a page written back together; MQSim's cached mapping table, sizes of entries.

Translation pages, of a mapping unit each, are logical pages behind the host's: page m is
``lpns + m``, so the page map's end is the global translation directory, and collection moves them
like any page, into an open block of their own. The map itself (``l2p``) is always right; this room
decides what knowing it costs.

A translation page that is written back (read, merged, programmed) is in DRAM from its reading to
its landing. Whoever needs an entry meanwhile takes it from there. Misses wait while pages that must
be written back wait for their turn, so that these cannot pile up.
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

# Lists are of places + 1; 0 = none, so that what was never touched takes no memory.
MAPS = record_type(
    newest="i8",  # entries in order of use
    oldest="i8",
    used="i8",
    first="i8",  # translation pages that are to be written back
    last="i8",
    writing="i8",  # how many are being read, merged or programmed
    miss_first="i8",  # translation pages that are to be read, once none of those waits
    miss_last="i8",
    stall_first="i8",  # transactions with pages that wait for a free block
    stall_last="i8",
    cursor="i8",  # position in the order of allocation of the next page
)
ENTRY = record_type(
    lpn="i8",
    newer="i4",
    older="i4",
    chain="i4",  # next of the same bucket
    dirty="i4",  # 1: flash does not know it yet
    before="i4",  # among the dirty ones of its translation page
    after="i4",
)
TPAGE = record_type(
    wait_first="i4",  # transactions that wait for it
    wait_last="i4",
    dirty="i4",  # first dirty entry
    state="i4",
    asked="i4",  # for those who wait: ASKED or in the list of misses
    again="i4",  # 1: entries have left the cache since it was composed
    next="i4",  # in the list of pages to be written back
    next_miss="i4",
)
KEPT, DUE, OLD, HELD, LEAVING = range(5)
"""``state``: nothing to write back; waits for its turn; its old content is read, is in DRAM; the
new content is on its way to flash."""
ASKED, LISTED = 1, 2
"""``asked``: it is being read; it will be when none waits to be written back."""

FETCH, BACK = 4, 5
"""``bare`` of the drive's own transactions: a page is read for those who wait, or written back."""
SECTOR = 512
PLACES = 32
"""Bits that count transactions, entries and translation pages."""


def entry_bytes(cfg: Config, physical_pages: int) -> tuple[int, int]:
    """Bytes of an entry (in the cache, in a translation page): page numbers in whole bits, logical
    and physical or physical alone, and a bit per sector where pages may be written in parts; then
    whole bytes."""
    bits = math.log2(max(physical_pages, 2))
    sectors = mapping_unit(cfg) // 512 if cfg.ftl.partial_pages == "sectors" else 0
    return -(-math.ceil(2 * bits + sectors) // 8), -(-math.ceil(bits + sectors) // 8)


def sizes(cfg: Config, physical_pages: int, lpns: int) -> tuple[int, int, int]:
    """(entries cached, entries of a translation page, translation pages) of a device; zeros when
    the whole map is in DRAM. InputError when the cache holds no entry."""
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


# --- the cache


@inline
def find(st, dev, lpn):
    """Place + 1 of the entry of a logical page, 0 when it is not cached."""
    return places.find(st.bucket, st.entry, dev, lpn)


@inline
def push_newest(st, dev, e):
    """An entry that is in no order becomes the most recently used."""
    maps = st.maps[dev]
    if places.follow(st.entry, e, maps.newest):
        maps.oldest = e
    maps.newest = e


@inline
def take_out(st, dev, e):
    """Take an entry out of the order of use."""
    maps = st.maps[dev]
    places.bypass(st.entry, e)
    if maps.newest == e:
        maps.newest = st.entry[e - 1].older
    if maps.oldest == e:
        maps.oldest = st.entry[e - 1].newer


@inline
def touch(st, dev, e):
    """An entry is used."""
    if st.maps[dev].newest != e:
        take_out(st, dev, e)
        push_newest(st, dev, e)


@inline
def page_of(st, dev, lpn):
    """Translation page of a logical page, among those of all devices."""
    c = st.cfg[0]
    return dev * c.tpages + lpn // c.map_span


@njit
def clean(st, p, e):
    """A dirty entry of translation page ``p`` is clean now."""
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
    """The least recently used entry makes place: returns it, out of every list. If flash does not
    know it, its translation page is written back."""
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
    """The entry of a logical page that has none comes into the cache, clean. Returns it."""
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
    """A logical page has a new place, or none: its entry says so, flash does not yet. An entry that
    is not cached needs no reading for that: it is merged when its page is written back."""
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
    """Is the place of a logical page known without a look at flash? Then its entry is in the cache
    now."""
    e = find(st, dev, lpn)
    if e > 0:
        st.count[dev, MAP_HITS] += 1
        touch(st, dev, e)
        return True
    c = st.cfg[0]
    p = page_of(st, dev, lpn)
    # In DRAM on its way out, or never written at all.
    held = st.tpage[p].state >= HELD and (c.map_writes > 0 or st.tpage[p].asked == 0)
    if held or st.l2p[dev, c.lpns + p - dev * c.tpages] == 0:
        st.count[dev, MAP_MISSES] += 1
        insert(st, dev, lpn)
        return True
    return False


@njit
def wanting(st, t):
    """Does transaction ``t`` have to wait for the place of one of its pages? ``left`` counts those
    that it has. It goes on as TRANSLATED."""
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
    """Transaction ``t`` waits for the translation page of its next page; the first to do so asks
    for it, unless its reading is under way."""
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
    """Bytes of a translation page that are read for those who wait for it."""
    c = st.cfg[0]
    return c.map_read if c.map_read > 0 else c.page_bytes


@njit
def read(st, dev, p, bare, size):
    """Read ``size`` bytes of a translation page from where the directory says."""
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
    """Flash has given translation page ``m``: whoever waits for it takes its entries and goes on. A
    transaction uses them at once, so that nothing is lost when there is no place for all."""
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


# --- writing back


@njit
def write_back(st, dev, p):
    """Entries of translation page ``p`` have left the cache, and flash does not know them."""
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
    """The same where pages are never written back: translation page ``p`` is given a place, and is
    in DRAM from now on. What flash has of the sectors of its clean entries is read; meanwhile
    misses wait for that. Its dirty entries are clean, and as good as used."""
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
    """Begin with the pages that are due, as many as may be on their way at once; when none is left,
    misses that waited for that are read."""
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
    """Unit to try as the i-th for translation page ``m``: from that of its number on, or from the
    next in turn on."""
    c = st.cfg[0]
    first = m if c.static != 0 else st.maps[dev].cursor
    return dev * c.units + st.turn[(first + i) % st.turn.shape[0]]


@inline
def next_turn(st, dev):
    """The next translation page goes to the next unit in turn."""
    maps = st.maps[dev]
    maps.cursor = maps.cursor + 1 if maps.cursor + 1 < st.turn.shape[0] else 0


@njit
def compose(st, dev, m):
    """Translation page ``m`` is put together: it says what the map says now."""
    c = st.cfg[0]
    p = dev * c.tpages + m
    page = st.tpage[p]
    page.state = LEAVING
    while page.dirty > 0:
        clean(st, p, int(page.dirty))


@njit
def landed(st, dev, m):
    """Translation page ``m`` is on flash."""
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
    """No unit has a block for the page that ``t`` carries: it waits for one."""
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
    """Lay down the translation pages of ``n`` logical pages from ``lpn`` on that are not on flash,
    without taking time, as a fill does. Returns how many found no place."""
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
