"""Slots of the data cache: lookup, lists in order of use, and eviction of clean pages.

Owns the hash chains, and the lists of dirty, clean and free slots. Does not own the write-back of
dirty pages (data_cache.py, mqsim_cache.py). Source: least-recently-used order, as in MQSim's
Data_Cache_Manager. Slots are numbered from 1 (variable ``place``); 0 means no slot.
"""

from __future__ import annotations

from ondie.emu.engine.core import lru
from ondie.emu.engine.core.payload_log import LOG_DROP, log
from ondie.kernels.jit import inline, njit


@inline
def find(st, dev, lpn):
    """Return the number of the cache slot that holds a logical page, from 1, or 0 if the page is
    not cached."""
    return lru.find(st.cbucket, st.cpage, dev, lpn)


@njit
def append(st, dev, place):
    """Append cache slot ``place`` to the list of dirty pages if its page is dirty, else to the list
    of clean pages. The slot must not be in either list."""
    cache = st.cache[dev]
    if st.cpage[place - 1].dirty != 0:
        if lru.follow(st.cpage, place, cache.last):
            cache.first = place
        cache.last = place
        cache.dirty += 1
    else:
        if lru.follow(st.cpage, place, cache.newest):
            cache.oldest = place
        cache.newest = place


@njit
def remove(st, dev, place):
    """Remove cache slot ``place`` from the list of dirty or clean pages.

    The slot must be in one of these lists, and no program of its page may be in progress.
    """
    cache = st.cache[dev]
    page = st.cpage[place - 1]
    lru.bypass(st.cpage, place)
    if page.dirty != 0:
        cache.dirty -= 1
        if cache.last == place:
            cache.last = page.older
        if cache.first == place:
            cache.first = page.newer
    else:
        if cache.newest == place:
            cache.newest = page.older
        if cache.oldest == place:
            cache.oldest = page.newer


@inline
def touch(st, dev, place):
    """Make the page in cache slot ``place`` the most recently used clean page.

    Has no effect if the page is dirty or being programmed.
    """
    page = st.cpage[place - 1]
    if page.dirty == 0 and page.flying == 0 and st.cache[dev].newest != place:
        remove(st, dev, place)
        append(st, dev, place)


@njit
def take_place(st, dev, lpn):
    """Assign a cache slot to a logical page that is not cached, and return the slot. The slot is
    not in a list yet.

    Uses a free slot, or else evicts the least recently used clean page. Returns 0 if neither
    exists.
    """
    cfg = st.cfg[0]
    cache = st.cache[dev]
    place = 0
    if cache.spare > 0:
        place = int(cache.spare)
        cache.spare = st.cpage[place - 1].newer
    elif cache.used < cfg.cache_pages:
        cache.used += 1
        place = int(dev * cfg.cache_pages + cache.used)
    elif cache.oldest > 0:
        place = int(cache.oldest)
        remove(st, dev, place)
        lru.unlist(st.cbucket, st.cpage, dev, place)
        log(st, LOG_DROP, -1, st.cpage[place - 1].lpn, -1, -1, 1, dev, -1)
    else:
        return 0
    page = st.cpage[place - 1]
    page.have = 0
    page.dirty = 0
    page.flying = 0
    page.stale = 0
    page.waiting = 0
    page.landing = 0
    lru.enlist(st.cbucket, st.cpage, dev, place, lpn)
    return place


@inline
def release_place(st, dev, place):
    """Remove the page in cache slot ``place`` from the cache and free the slot. The slot must not
    be in a list."""
    lru.unlist(st.cbucket, st.cpage, dev, place)
    st.cpage[place - 1].newer = st.cache[dev].spare
    st.cache[dev].spare = place
