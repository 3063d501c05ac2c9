"""Entries of the cached mapping table: lookup, LRU order and dirty marks.

Owns the lists and hash chains of the cached entries. Does not own misses and evictions (cmt.py) or
translation pages on flash (translation_pages.py).
Source: DFTL (Gupta et al., ASPLOS 2009).
"""

from __future__ import annotations

from ondie.emu.engine.core import lru
from ondie.emu.ftl.page_map import zone_of
from ondie.kernels.jit import inline, njit

KEPT, DUE, OLD, HELD, LEAVING = range(5)
"""Values of ``state`` of a translation page.

KEPT: no write-back is pending. DUE: queued for write-back. OLD: the content on flash is being read.
HELD: that content is in DRAM. LEAVING: the new content is being programmed.
"""


ASKED, LISTED = 1, 2
"""Values of ``asked`` of a translation page. The value is 0 if no transaction has requested the
page.

ASKED: the page is being read. LISTED: the read is deferred until the write-back queue is empty.
"""


CLEAN, DIRTY, RESERVED = range(3)
"""Values of ``dirty`` of a cached entry.

CLEAN: equal to the entry on flash. DIRTY: changed, and not yet written to flash. RESERVED: the
entry has a slot in the cache, and its translation page is being read (only with ftl.map_writes = 0,
as in MQSim).
"""


PLACES = 32
"""Width (bits) of the signed integers that store the indices of transactions, cached entries and
translation pages."""


@inline
def find(st, dev, lpn):
    """Return the cached entry of a logical page as index + 1, or 0 if the page has none."""
    return lru.find(st.bucket, st.entry, dev, lpn)


@inline
def cache_of(st, dev, lpn):
    """Return the index in ``st.maps`` of the cache that stores the entry of a logical page."""
    return dev if st.cfg[0].map_caches == 1 else zone_of(st, lpn)


@inline
def push_newest(st, cache, entry):
    """Insert an unlinked entry at the most recently used end of the LRU list of cache ``cache``."""
    maps = st.maps[cache]
    if lru.follow(st.entry, entry, maps.newest):
        maps.oldest = entry
    maps.newest = entry


@inline
def unlink(st, cache, entry):
    """Remove an entry from the LRU list of cache ``cache``."""
    maps = st.maps[cache]
    lru.bypass(st.entry, entry)
    if maps.newest == entry:
        maps.newest = st.entry[entry - 1].older
    if maps.oldest == entry:
        maps.oldest = st.entry[entry - 1].newer


@inline
def touch(st, dev, entry):
    """Mark an entry as most recently used."""
    cache = cache_of(st, dev, st.entry[entry - 1].lpn)
    if st.maps[cache].newest != entry:
        unlink(st, cache, entry)
        push_newest(st, cache, entry)


@inline
def page_of(st, dev, lpn):
    """Return the number of the translation page of a logical page, counted over all devices."""
    cfg = st.cfg[0]
    return dev * cfg.tpages + lpn // cfg.map_span


@njit
def mark_clean(st, tpage, eid):
    """Mark dirty entry ``eid`` (index + 1) of translation page ``tpage`` as clean."""
    entry = st.entry[eid - 1]
    entry.dirty = CLEAN
    if entry.before > 0:
        st.entry[entry.before - 1].after = entry.after
    else:
        st.tpage[tpage].dirty = entry.after
    if entry.after > 0:
        st.entry[entry.after - 1].before = entry.before
