"""The data cache: pages in the drive's DRAM between the host and flash.

Owns which pages are there, whose content flash does not have yet, when that is sent to flash, and
who waits for it. Does not own the way to flash (placing.py) or bytes (cached_bytes.py).
Source: NVMe base specification (volatile write cache, FLUSH, FUA); write-back, write-through and
read caches by LRU and back-pressure as in MQSim and SimpleSSD.

A page is *dirty* while flash does not have its content and nothing is on its way, *flying* while a
program is. A flying page can be written again: then it is both, and the new content follows when
the old one has landed. Clean pages make place for others, least recently used first; dirty pages
are sent to flash least recently written first: when they are too many, when a write waits for a
place, for a FLUSH, or while the drive is idle. TRIM drops what is dirty; what is flying then lands
unmapped.

Each FLUSH closes an epoch: it waits for every content that was there before. Contents that land are
of some epoch, so each tells all waiting FLUSHes of its own and later epochs.
"""

from __future__ import annotations

from ondie.emu.engine.core import lru as places
from ondie.emu.engine.core.counters import (
    CACHE_DROPPED_PAGES,
    CACHE_FILL_PAGES,
    CACHE_MERGED_PAGES,
    CACHE_WRITE_PAGES,
    DESTAGED_PAGES,
)
from ondie.emu.engine.core.events import (
    CACHED,
    LOG_DESTAGE,
    LOG_DROP,
    LOG_FILL,
    LOG_LAND,
    LOG_LOST,
    LOG_STORE,
    MERGING,
    REQUEST,
    ROW,
    give_txn,
    go,
    log,
    take_txn,
)
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.stages import DESTAGE, PART_DONE
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl import cmt
from ondie.emu.ftl import page_health as marks
from ondie.emu.ftl import page_map as mapping
from ondie.emu.nand.timing import PROGRAM
from ondie.kernels.jit import inline, njit

SECTOR = 512
MODES = ("off", "write_back", "write_through", "read", "read_write")

# Lists are of places + 1; 0 = none.
CACHE = record_type(
    used="i8",  # places that were ever taken
    spare="i8",  # of those, places that were given back
    newest="i8",  # clean pages in order of use
    oldest="i8",
    last="i8",  # dirty pages in order of writing
    first="i8",
    dirty="i8",  # how many they are
    flying="i8",  # pages on their way to flash
    contents="i8",  # contents that flash does not have: dirty and flying
    epoch="i8",  # of what is written now
    flushed="i8",  # last epoch that a FLUSH has asked for
    wait_first="i8",  # writes that wait for a place
    wait_last="i8",
    flush_first="i8",  # FLUSHes that wait
    pressure="i8",  # of a destage buffer (buffer.py): sectors on their way to flash
    milestone="i8",  # and when a flow next forgets what it has written
)
CPAGE = record_type(
    lpn="i8",
    have="i8",  # bit per sector that is here
    dirty="i8",  # bit per sector that flash does not have
    epoch="i8",  # of the dirty content
    leaving="i8",  # epoch of the flying content
    newer="i4",
    older="i4",
    chain="i4",  # next of the same bucket
    flying="i4",  # 1: on its way to flash
    stale="i4",  # 1: what is flying is not the page's content any more
    waiting="i4",  # transactions that wait until the dirty content is on flash
    landing="i4",  # those that wait for the flying content
    stream="i4",  # whose write it was
)


# --- places


@inline
def find(st, dev, lpn):
    """Place + 1 of a logical page, 0 when it is not here."""
    return places.find(st.cbucket, st.cpage, dev, lpn)


@njit
def append(st, dev, p):
    """A page that is in no list goes to the end of the dirty ones or of the clean ones."""
    cache = st.cache[dev]
    if st.cpage[p - 1].dirty != 0:
        if places.follow(st.cpage, p, cache.last):
            cache.first = p
        cache.last = p
        cache.dirty += 1
    else:
        if places.follow(st.cpage, p, cache.newest):
            cache.oldest = p
        cache.newest = p


@njit
def remove(st, dev, p):
    """Take a page that is not flying out of its list."""
    cache = st.cache[dev]
    page = st.cpage[p - 1]
    places.bypass(st.cpage, p)
    if page.dirty != 0:
        cache.dirty -= 1
        if cache.last == p:
            cache.last = page.older
        if cache.first == p:
            cache.first = page.newer
    else:
        if cache.newest == p:
            cache.newest = page.older
        if cache.oldest == p:
            cache.oldest = page.newer


@inline
def touch(st, dev, p):
    """A page is read: if it is clean, it becomes the most recently used."""
    page = st.cpage[p - 1]
    if page.dirty == 0 and page.flying == 0 and st.cache[dev].newest != p:
        remove(st, dev, p)
        append(st, dev, p)


@njit
def room(st, dev, lpn):
    """A place for a logical page that has none, in no list yet: a free one, or that of the least
    recently used clean page. 0 when there is neither."""
    c = st.cfg[0]
    cache = st.cache[dev]
    p = 0
    if cache.spare > 0:
        p = int(cache.spare)
        cache.spare = st.cpage[p - 1].newer
    elif cache.used < c.cache_pages:
        cache.used += 1
        p = int(dev * c.cache_pages + cache.used)
    elif cache.oldest > 0:
        p = int(cache.oldest)
        remove(st, dev, p)
        places.unlist(st.cbucket, st.cpage, dev, p)
        log(st, LOG_DROP, -1, st.cpage[p - 1].lpn, -1, -1, 1, dev, -1)
    else:
        return 0
    page = st.cpage[p - 1]
    page.have = 0
    page.dirty = 0
    page.flying = 0
    page.stale = 0
    page.waiting = 0
    page.landing = 0
    places.enlist(st.cbucket, st.cpage, dev, p, lpn)
    return p


@inline
def give_back(st, dev, p):
    """A page in no list leaves the cache."""
    places.unlist(st.cbucket, st.cpage, dev, p)
    st.cpage[p - 1].newer = st.cache[dev].spare
    st.cache[dev].spare = p


# --- writes


@njit
def store(st, t):
    """A page of a write is in DRAM: it finds its place in the cache, or waits for one."""
    cache = st.cache[st.txn[t].dev]
    later(st, st.txn[t].dev)
    if accept(st, t, cache.wait_first > 0):
        return
    st.txn[t].next = -1
    if cache.wait_first > 0:
        st.txn[cache.wait_last - 1].next = t
    else:
        cache.wait_first = t + 1
    cache.wait_last = t + 1


@inline
def later(st, dev):
    """There may be something to do (resume, pump) before the clock goes on."""
    mapping.look_again(st, dev * st.cfg[0].units)


@njit
def accept(st, t, behind):
    """Put a written page where it belongs; False when there is no place (or, for a new page, others
    are ``behind`` whom it has to wait). The write is done then, unless it waits for flash."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    cache = st.cache[dev]
    p = find(st, dev, x.lpn)
    fresh = p == 0
    if fresh:
        if not behind:
            p = room(st, dev, x.lpn)
        if p == 0:
            return False
    page = st.cpage[p - 1]
    st.count[dev, CACHE_WRITE_PAGES] += 1
    sectors = x.sectors if c.partial != 0 else -1
    listed = not fresh and page.flying == 0
    if page.dirty == 0:
        if listed:
            remove(st, dev, p)
        page.epoch = cache.epoch
        cache.contents += 1
        page.dirty = sectors
        if page.flying == 0:
            append(st, dev, p)
    else:
        st.count[dev, CACHE_MERGED_PAGES] += 1
        if listed and page.epoch > cache.flushed:
            remove(st, dev, p)
            append(st, dev, p)
        page.dirty |= sectors
    page.have |= sectors
    page.stream = x.stream
    log(st, LOG_STORE, x.row, x.lpn, -1, -1, 1, dev, -1)
    if c.cache_through == 0 and not (x.kind == ROW and st.row[x.row].fua != 0):
        go(st, t, PART_DONE)
        return True
    x.next = page.waiting - 1
    page.waiting = t + 1
    if page.flying == 0:
        launch(st, dev, p)
    return True


@njit
def resume(st, dev):
    """A place may have become free: writes that wait for one try again, in order."""
    cache = st.cache[dev]
    while cache.wait_first > 0:
        t = cache.wait_first - 1
        following = st.txn[t].next
        if not accept(st, t, False):
            return
        cache.wait_first = following + 1


# --- to flash


@njit
def launch(st, dev, p):
    """A dirty page goes on its way to flash."""
    c = st.cfg[0]
    cache = st.cache[dev]
    page = st.cpage[p - 1]
    remove(st, dev, p)
    page.flying = 1
    page.leaving = page.epoch
    page.landing = page.waiting
    page.waiting = 0
    page.dirty = 0
    cache.flying += 1
    t = take_txn(st)
    if t < 0:
        return
    x = st.txn[t]
    x.kind = CACHED
    x.op = PROGRAM
    x.dev = dev
    x.lpn = page.lpn
    x.n = 1
    x.stream = page.stream
    x.sectors = page.have
    x.size = c.page_bytes
    if c.partial != 0:
        x.size = set_bits(page.have) * SECTOR
    log(st, LOG_DESTAGE, -1, x.lpn, -1, -1, 1, dev, -1)
    go(st, t, DESTAGE)


@njit
def idle(st, dev):
    """Does the host want nothing of the drive?"""
    if st.dev[dev].outstanding > 0:
        return False
    for q in range(st.pair.shape[0]):
        if st.pair[q].dev == dev and st.pair[q].outstanding > 0:
            return False
    return True


@njit
def pump(st, dev):
    """Send dirty pages to flash while there is a reason to, and not too many are on their way."""
    c = st.cfg[0]
    cache = st.cache[dev]
    while cache.first > 0 and cache.flying < c.cache_flights:
        if (
            cache.dirty <= c.cache_dirty
            and cache.wait_first == 0
            and st.cpage[cache.first - 1].epoch > cache.flushed
            and not (c.cache_idle != 0 and idle(st, dev))
        ):
            return
        launch(st, dev, int(cache.first))


@njit
def attend(st, dev):
    """What was put off to the end of the present instant: writes that wait for a place, pages that
    are to be sent to flash."""
    resume(st, dev)
    pump(st, dev)


@njit
def programmed(st, t):
    """The program of write ``t`` is done. True when its page came from here: it is mapped then, if
    it is its page's content still, and nobody else waits for it. What came past the cache makes old
    what is here."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    if x.kind != CACHED:
        for i in range(x.n):
            drop(st, dev, x.lpn + i)
        log(st, LOG_DROP, -1, x.lpn, -1, -1, x.n, dev, -1)
        later(st, dev)
        return False
    if st.cpage[find(st, dev, x.lpn) - 1].stale != 0:
        log(st, LOG_LOST, -1, x.lpn, -1, -1, 1, dev, x.die)
    else:
        mapping.map_page(st, dev, x.lpn, x.ppn)
        if c.map_entries != 0:
            cmt.update(st, dev, x.lpn)
        if c.partial != 0:
            st.sectors[dev, x.lpn] |= x.sectors
            if c.errors != 0 and x.bare == MERGING:
                marks.carry(st, t)
        log(st, LOG_LAND, -1, x.lpn, x.ppn, -1, 1, dev, x.die)
    landed(st, t)
    give_txn(st, t)
    return True


@njit
def landed(st, t):
    """What ``t`` carried is on flash. Who waited for it goes on; a newer content follows it when
    somebody waits for that; else the page is clean."""
    dev = st.txn[t].dev
    p = find(st, dev, st.txn[t].lpn)
    cache = st.cache[dev]
    page = st.cpage[p - 1]
    st.count[dev, DESTAGED_PAGES] += 1
    page.flying = 0
    page.stale = 0
    cache.flying -= 1
    settle(st, dev, page.leaving)
    wake(st, int(page.landing))
    page.landing = 0
    if page.dirty != 0:
        append(st, dev, p)
        if page.waiting > 0 or page.epoch <= cache.flushed:
            launch(st, dev, p)
    elif page.have == 0:
        give_back(st, dev, p)
    else:
        append(st, dev, p)
    later(st, dev)


@inline
def wake(st, t):
    """Writes in a list that waited for flash are done."""
    t -= 1
    while t >= 0:
        following = st.txn[t].next
        go(st, t, PART_DONE)
        t = following


@njit
def settle(st, dev, epoch):
    """A content of an epoch is on flash, or is nobody's any more: FLUSHes that waited for it, and
    for nothing else, are done."""
    cache = st.cache[dev]
    cache.contents -= 1
    before = -1
    t = int(cache.flush_first) - 1
    while t >= 0:
        x = st.txn[t]
        following = x.next
        if epoch <= x.old:
            x.left -= 1
        if x.left > 0:
            before = t
        else:
            if before < 0:
                cache.flush_first = following + 1
            else:
                st.txn[before].next = following
            go(st, t, PART_DONE)
        t = following


@njit
def flush(st, t):
    """``t`` is done when all that has been written so far is on flash."""
    x = st.txn[t]
    cache = st.cache[x.dev]
    if cache.contents == 0:
        go(st, t, PART_DONE)
        return
    cache.flushed = cache.epoch
    cache.epoch += 1
    x.old = cache.flushed
    x.left = cache.contents
    x.next = cache.flush_first - 1
    cache.flush_first = t + 1
    later(st, x.dev)


# --- reads, TRIM, writes past the cache


@njit
def fill(st, t):
    """What a read has brought from flash comes into the cache, clean, where the map still says that
    it is the page's content, and there is a place; nothing of a command that has met an error."""
    c = st.cfg[0]
    x = st.txn[t]
    failed = st.req[x.row].status if x.kind == REQUEST else st.row[x.row].status
    if failed != 0:
        return
    dev = x.dev
    sectors = x.sectors if c.partial != 0 else -1
    for i in range(x.n):
        lpn = x.lpn + i
        if int(st.l2p[dev, lpn]) != x.ppn + i + 1 or st.cache[dev].wait_first > 0:
            continue
        p = find(st, dev, lpn)
        fresh = p == 0
        if fresh:
            p = room(st, dev, lpn)
            if p == 0:
                return
            st.cpage[p - 1].stream = x.stream
        page = st.cpage[p - 1]
        if page.have == 0:
            st.count[dev, CACHE_FILL_PAGES] += 1
            log(st, LOG_FILL, -1, lpn, x.ppn + i, -1, 1, dev, x.die)
        page.have |= sectors
        if fresh:
            append(st, dev, p)


@njit
def drop(st, dev, lpn):
    """The content of a logical page is void, or flash has a newer one: what is dirty is not written
    any more, what is flying will not be mapped. The caller logs it, and then lets writes resume."""
    p = find(st, dev, lpn)
    if p == 0:
        return
    page = st.cpage[p - 1]
    page.have = 0
    if page.flying == 0:
        remove(st, dev, p)
    else:
        page.stale = 1
    if page.dirty != 0:
        page.dirty = 0
        st.count[dev, CACHE_DROPPED_PAGES] += 1
        settle(st, dev, page.epoch)
        wake(st, int(page.waiting))
        page.waiting = 0
    if page.flying == 0:
        give_back(st, dev, p)
