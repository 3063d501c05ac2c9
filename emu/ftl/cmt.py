"""Cached mapping table (CMT): mapping entries in DRAM, the full mapping table in flash pages.

Owns lookups, misses, evictions and updates. Does not own the lists of entries (cached_entries.py),
translation pages on flash (translation_pages.py), the mapping table (page_map.py) or the stages of
a transaction (engine/run/datapath.py).
Source: DFTL (Gupta et al., ASPLOS 2009): LRU replacement of entries, a directory of translation
pages, write-back of all dirty entries of a page together; MQSim: cached mapping table, entry sizes.

A translation page has the size of one mapping unit. Translation pages are numbered as logical pages
that follow the host's logical pages: translation page m is logical page ``lpns + m``. The end of
the page map is therefore the global translation directory. Garbage collection moves translation
pages like other pages, into a separate open block. ``l2p`` is always current; this module models
only the cost of a lookup.

A translation page under write-back (read, merged, programmed) is in DRAM from the end of its read
to the end of its program. Lookups during that time use the copy in DRAM. Misses wait while
translation pages are queued for write-back. This wait bounds the length of the write-back queue.
"""

from __future__ import annotations

import math

from ondie.emu.config.config import Config
from ondie.emu.config.rules.rule import mapping_unit
from ondie.emu.engine.core import lru
from ondie.emu.engine.core.counters import MAP_HITS, MAP_MISSES
from ondie.emu.engine.core.events import (
    go,
)
from ondie.emu.engine.core.stages import TRANSLATED
from ondie.emu.engine.core.state import Arrays, record_type
from ondie.emu.ftl import block_manager, page_map, write_frontier
from ondie.emu.ftl.cached_entries import (
    ASKED,
    CLEAN,
    DIRTY,
    HELD,
    OLD,
    PLACES,
    RESERVED,
    cache_of,
    find,
    mark_clean,
    page_of,
    push_newest,
    touch,
    unlink,
)
from ondie.emu.ftl.translation_pages import (
    fetch,
    keep_without_write_back,
    next_turn,
    serve_reserved,
    start_write_backs,
    unit_in_turn,
    units_in_turn,
    wait_for_page,
    write_back,
)
from ondie.emu.nand.scheduler_statistics import HITS, OTHER_MISSES, READ_MISSES
from ondie.emu.nand.timing import PROGRAM
from ondie.emu.units import InputError
from ondie.kernels.jit import cold, njit

# Links are index + 1; 0 = none, so untouched (all-zero) pages of these arrays take no memory.
MAPS = record_type(
    newest="i8",  # LRU list of entries; of these three, one set for each cache
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
    dirty="i4",  # CLEAN, DIRTY or RESERVED
    before="i4",  # list of dirty entries of its translation page
    after="i4",
)
TPAGE = record_type(
    wait_first="i4",  # transactions that wait for this page
    wait_last="i4",
    lost_first="i4",  # transactions whose entries were evicted before the page was read
    lost_last="i4",
    dirty="i4",  # first dirty entry
    state="i4",
    asked="i4",  # for waiting transactions: ASKED or LISTED
    again="i4",  # 1: dirty entries were evicted since the page was composed
    next="i4",  # next in the write-back queue
    next_miss="i4",
)


def entry_bytes(cfg: Config, physical_pages: int) -> tuple[int, int]:
    """Return the size of a mapping entry (bytes) as (in the cache, in a translation page). A cached
    entry contains the logical and the physical page number. An entry of a translation page contains
    only the physical page number. Both kinds of entries have one more bit per sector if
    ftl.partial_pages = sectors, and are rounded up to whole bytes.
    """
    bits = math.log2(max(physical_pages, 2))
    sectors = mapping_unit(cfg) // 512 if cfg.ftl.partial_pages == "sectors" else 0
    return -(-math.ceil(2 * bits + sectors) // 8), -(-math.ceil(bits + sectors) // 8)


def table_sizes(
    cfg: Config, physical_pages: int, lpns: int, caches: int = 1
) -> tuple[int, int, int]:
    """Return (entries per cache, entries per translation page, translation pages) of a device with
    ``caches`` caches of equal size, or (0, 0, 0) if the whole map is in DRAM. Raises InputError if
    a cache is too small for one entry, or if the number of entries of all caches or the number of
    translation pages is 2**31 or more.
    """
    if cfg.ftl.map_cache_bytes == 0:
        return 0, 0, 0
    cached, stored = entry_bytes(cfg, physical_pages)
    entries = min(cfg.ftl.map_cache_bytes // cached // caches, lpns)
    if entries == 0:
        each = "one entry" if caches == 1 else f"one entry for each of {caches} flows"
        raise InputError(
            f"ftl.map_cache = {cfg.ftl.map_cache_bytes} B: must be at least {cached * caches} B "
            f"({each}), or 0 to store the whole map in DRAM"
        )
    span = mapping_unit(cfg) // stored
    if max(entries * caches, lpns // span) >= 1 << (PLACES - 1):
        raise InputError(
            f"ftl.map_cache = {cfg.ftl.map_cache_bytes} B: must hold fewer than 2**31 entries"
        )
    return entries, span, -(-lpns // span)


# --- cache


@njit
def evict(st, dev, cache):
    """Evict the least recently used entry of cache ``cache``: remove it from all lists and return
    its index + 1. If the entry is dirty, write back its translation page; with map_writes = 0, no
    translation page is written back.
    """
    eid = int(st.maps[cache].oldest)
    entry = st.entry[eid - 1]
    unlink(st, cache, eid)
    lru.unlist(st.bucket, st.entry, dev, eid)
    if st.cfg[0].map_forgets != 0:
        keep_sectors(st, dev, entry)
    if entry.dirty == DIRTY:
        tpage = page_of(st, dev, entry.lpn)
        mark_clean(st, tpage, eid)
        if st.cfg[0].map_writes == 0:
            keep_without_write_back(st, dev, tpage)
        else:
            write_back(st, dev, tpage)
    return eid


@cold
def keep_sectors(st, dev, entry):
    """Save or revert the sector mask of a logical page when its cached entry ``entry`` is evicted,
    as in MQSim.

    The eviction of a dirty entry saves the current sector mask. The eviction of a clean entry
    reverts the sector mask to the last saved mask. The drive then forgets the sectors written after
    that mask was saved, and later writes read fewer sectors first. A written entry can be clean
    because another entry of its translation page was written back. That write-back marks it as
    clean but saves no mask.
    """
    if entry.dirty == DIRTY:
        st.stored[dev, entry.lpn] = st.sectors[dev, entry.lpn]
    elif entry.dirty == CLEAN:
        st.sectors[dev, entry.lpn] = st.stored[dev, entry.lpn]


@njit
def insert(st, dev, lpn):
    """Insert a clean entry for a logical page that has no cached entry. Return its index + 1.

    If the cache is full, evict another entry.
    """
    cfg = st.cfg[0]
    cache = cache_of(st, dev, lpn)
    maps = st.maps[cache]
    if maps.used < cfg.map_entries:
        maps.used += 1
        entry = cache * cfg.map_entries + maps.used
    else:
        entry = evict(st, dev, cache)
    st.entry[entry - 1].dirty = CLEAN
    lru.enlist(st.bucket, st.entry, dev, entry, lpn)
    push_newest(st, cache, entry)
    return entry


@njit
def update(st, dev, lpn):
    """Mark the entry of a logical page as dirty after the page's mapping has changed.

    If the entry is not cached, insert it without reading its translation page. The write-back of
    the translation page merges the dirty entries with the stored entries.
    """
    eid = find(st, dev, lpn)
    if eid == 0:
        eid = insert(st, dev, lpn)
    entry = st.entry[eid - 1]
    if entry.dirty != DIRTY:
        page = st.tpage[page_of(st, dev, lpn)]
        entry.dirty = DIRTY
        entry.before = 0
        entry.after = page.dirty
        if page.dirty > 0:
            st.entry[page.dirty - 1].before = eid
        page.dirty = eid


def forget_sectors(arrays: Arrays) -> None:
    """Make evictions revert unsaved sector masks, as in MQSim (:func:`keep_sectors`), on a drive
    with a mapping cache that never writes translation pages back (map_writes = 0). Do nothing on
    other drives, or if pages are mapped only as a whole.
    """
    if (
        arrays.cfg["map_entries"][0]
        and not arrays.cfg["map_writes"][0]
        and arrays.cfg["partial"][0]
    ):
        arrays.cfg["map_forgets"] = 1
        arrays.stored[:] = arrays.sectors


# --- misses


@njit
def look_up(st, dev, lpn, writes):
    """Look up the mapping of a logical page. Return True if no flash read is necessary.

    If the result is True, the entry of the page is in the cache. ``writes``: 1 for a write, 0 for a
    read. If translation pages are never written back (map_writes = 0), a miss immediately reserves
    a slot in the cache, so that another entry is evicted before the read, as in MQSim.
    """
    entry = find(st, dev, lpn)
    if entry > 0 and st.entry[entry - 1].dirty != RESERVED:
        if st.cfg[0].probe != 0:
            st.lookup[writes, HITS] += 1
        st.count[dev, MAP_HITS] += 1
        touch(st, dev, entry)
        return True
    if entry > 0:
        return False
    cfg = st.cfg[0]
    if st.maps[dev].first > 0 and st.maps[dev].writing == 0:  # queued by a recovery
        start_write_backs(st, dev)
    tpage = page_of(st, dev, lpn)
    # Held in DRAM during a write-back, or never written.
    held = st.tpage[tpage].state >= HELD and (cfg.map_writes > 0 or st.tpage[tpage].asked == 0)
    if held or st.l2p[dev, cfg.lpns + tpage - dev * cfg.tpages] == 0:
        if cfg.probe != 0:
            st.lookup[writes, OTHER_MISSES] += 1
        st.count[dev, MAP_MISSES] += 1
        insert(st, dev, lpn)
        return True
    if cfg.map_writes == 0:
        reserve(st, dev, lpn, tpage)
    return False


@cold
def reserve(st, dev, lpn, tpage):
    """Reserve an entry for logical page ``lpn``, and read its translation page ``tpage`` unless the
    page is already being read.

    As in MQSim, the decision to read is made before the reservation evicts another entry. If that
    eviction reads the same translation page, the page is read twice.
    """
    asked = st.tpage[tpage].asked
    entry = insert(st, dev, lpn)
    st.entry[entry - 1].dirty = RESERVED
    if asked == 0:
        fetch(st, dev, tpage)


@njit
def waits_for_mapping(st, tid):
    """Look up the mapping of the pages of transaction ``tid``. Return True if the transaction must
    wait for the mapping of one of its pages; it is then added to the waiting transactions.

    ``pages_done`` of ``tid`` counts the pages whose mapping is known. After the wait, ``tid``
    continues at stage TRANSLATED.
    """
    txn = st.txn[tid]
    writes = int(txn.op == PROGRAM)
    while txn.pages_done < txn.n and look_up(st, txn.dev, txn.lpn + txn.pages_done, writes):
        txn.pages_done += 1
    if txn.pages_done < txn.n:
        if st.cfg[0].probe != 0:
            st.lookup[writes, READ_MISSES] += txn.n - txn.pages_done
        wait_for_page(st, tid)
        return True
    txn.pages_done = 0
    return False


@cold
def update_newest(st, dev, lpn):
    """Mark the entry of a logical page as dirty (:func:`update`) and, if it was cached, as most
    recently used.
    """
    entry = find(st, dev, lpn)
    if entry > 0:
        touch(st, dev, entry)
    update(st, dev, lpn)


@cold
def count_move(st, dev, lpn):
    """Count a lookup of the mapping of logical page ``lpn``, which garbage collection moves."""
    st.lookup[2, HITS if find(st, dev, lpn) > 0 else OTHER_MISSES] += 1


@njit
def serve_waiters(st, dev, tvpn):
    """Serve the transactions that wait for translation page ``tvpn`` after the page has been read.

    Each transaction uses its mapping entries immediately, so that no transaction loses an entry
    even if the cache is too small for the entries of all transactions. With ``map_losses``, entries
    can be lost, as in MQSim.
    """
    cfg = st.cfg[0]
    page = st.tpage[dev * cfg.tpages + tvpn]
    if page.asked == ASKED:
        page.asked = 0
    if page.state == OLD:
        page.state = HELD
    if cfg.map_losses != 0:
        serve_reserved(st, dev, page)
        return
    tid = int(page.wait_first) - 1
    page.wait_first = 0
    behind = (tvpn + 1) * cfg.map_span
    while tid >= 0:
        txn = st.txn[tid]
        following = txn.next
        while txn.pages_done < txn.n and txn.lpn + txn.pages_done < behind:
            entry = find(st, dev, txn.lpn + txn.pages_done)
            if entry > 0:
                st.count[dev, MAP_HITS] += 1
                if st.entry[entry - 1].dirty == RESERVED:
                    st.entry[entry - 1].dirty = CLEAN
                    st.count[dev, MAP_HITS] -= 1
                    st.count[dev, MAP_MISSES] += 1
                touch(st, dev, entry)
            else:
                st.count[dev, MAP_MISSES] += 1
                insert(st, dev, txn.lpn + txn.pages_done)
            txn.pages_done += 1
        go(st, tid, TRANSLATED)
        tid = following


# --- write-back


@njit
def fill_translation_pages(st, dev, lpn, count):
    """Write the translation pages of ``count`` logical pages, starting at ``lpn``, without
    simulated time (for preconditioning). Skip translation pages that are already on flash. Return
    the number of translation pages for which no unit had a free block.
    """
    cfg = st.cfg[0]
    without = 0
    for tvpn in range(lpn // cfg.map_span, (lpn + count + cfg.map_span - 1) // cfg.map_span):
        if st.l2p[dev, cfg.lpns + tvpn] != 0:
            continue
        without += 1
        stream = page_map.map_stream_of(st, tvpn * cfg.map_span)
        for i in range(units_in_turn(st, tvpn)):
            unit = unit_in_turn(st, dev, tvpn, i)
            pool = st.pool[unit]
            if st.front[stream, unit].block < 0:
                if not block_manager.has_unreserved_block(st, unit):
                    continue
                st.block[unit * cfg.all_blocks + st.free[unit, pool.free_head]].dirty = 0
            if cfg.line > 1:
                write_frontier.set_laid(st, unit, stream, 1)
            ppn, _ = write_frontier.allocate(st, dev, unit, stream, 1)
            if cfg.line > 1:
                write_frontier.set_laid(st, unit, stream, 0)
            page_map.map_page(st, dev, cfg.lpns + tvpn, ppn)
            page_map.count_programmed(st, dev, ppn, 1)
            without -= 1
            break
        next_turn(st, dev)
    return without
