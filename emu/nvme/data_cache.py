"""Data cache: pages in the drive's DRAM between the host and flash.

Owns the set of cached pages, the written data not yet on flash, the time at which this data is sent
to flash, and the transactions that wait until it is on flash. Does not own the slots and lists of
the cache (cache_places.py), the write path to flash (ftl/write_path.py) or the contents of cached
pages (moved_bytes.py).
Source: NVMe base specification (volatile write cache, FLUSH, FUA); write-back, write-through and
read caches with LRU and back-pressure as in MQSim and SimpleSSD.

In this module, a page is a mapping unit. A page is *dirty* while it has data that is neither on
flash nor being programmed. A page is *flying* while it is being programmed. If a flying page is
written again, it is both dirty and flying, and the new data is sent when the old program has ended.
Clean pages are evicted in least-recently-used order. Dirty pages are sent to flash in
least-recently-written order in four cases: their number exceeds a limit, a write waits for a cache
slot, a FLUSH waits, or the drive is idle. A page with a write that must wait for flash
(write-through, or FUA without power-loss protection) is sent immediately, or when its old program
has ended. TRIM drops dirty data. The program of a flying page then completes, but its data is not
mapped.

The version of a page's data that one program writes is called a *content*. Each content belongs to
one epoch. A FLUSH closes the current epoch and waits until each content written before it has
reached flash or was dropped. Each such content reduces the remaining number of contents of every
waiting FLUSH that closed the content's epoch or a later epoch.
"""

from __future__ import annotations

from ondie.emu.engine.core import idle
from ondie.emu.engine.core.counters import (
    CACHE_DROPPED_PAGES,
    CACHE_FILL_PAGES,
    CACHE_MERGED_PAGES,
    CACHE_WRITE_PAGES,
    DESTAGED_PAGES,
)
from ondie.emu.engine.core.events import CACHED, REQUEST, give_txn, go, take_txn
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.payload_log import (
    LOG_DESTAGE,
    LOG_DROP,
    LOG_FILL,
    LOG_STORE,
    log,
    log_cached,
    log_held,
)
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.stages import DESTAGE, PART_DONE
from ondie.emu.engine.core.state import record_type
from ondie.emu.engine.core.transaction import SECTOR_BYTES, has_fua
from ondie.emu.ftl import cmt, page_health, page_map, write_frontier
from ondie.emu.nand.timing import PROGRAM
from ondie.emu.nvme.cache_places import append, find, release_place, remove, take_place
from ondie.kernels.jit import inline, njit

# Lists hold numbers of cache slots, from 1; 0 = none.
CACHE = record_type(
    used="i8",  # slots that have ever been in use
    spare="i8",  # first slot of the free list, which holds released slots
    newest="i8",  # clean pages in order of use (head)
    oldest="i8",
    last="i8",  # dirty pages in order of writing (tail)
    first="i8",
    dirty="i8",  # number of dirty pages
    flying="i8",  # number of pages being programmed
    contents="i8",  # number of contents not on flash, dirty or flying
    epoch="i8",  # epoch of new writes
    flushed="i8",  # last epoch that a FLUSH waits for
    wait_first="i8",  # list of the writes that wait for a slot
    wait_last="i8",
    flush_first="i8",  # list of the FLUSHes that wait
    pressure="i8",  # sectors on their way to flash (mqsim_cache.py only)
    milestone="i8",  # time of the next reset of the recently written pages (mqsim_cache.py)
)
CPAGE = record_type(
    lpn="i8",
    have="i8",  # bit mask of the cached sectors
    dirty="i8",  # bit mask of the sectors whose data are not on flash
    epoch="i8",  # epoch of the dirty content
    leaving="i8",  # epoch of the flying content
    newer="i4",
    older="i4",
    chain="i4",  # next slot in the hash bucket
    flying="i4",  # 1: being programmed
    stale="i4",  # 1: the flying content is not the current content any more
    waiting="i4",  # list of the transactions that wait until the dirty content is on flash
    landing="i4",  # list of the transactions that wait until the flying content is on flash
    stream="i4",  # stream of the write
)


# --- places


# --- writes


@njit
def store(st, tid):
    """Store the page of write ``tid`` in the cache. The data of the page is already in DRAM.

    If the page is not cached, and no cache slot is available or other writes already wait for one,
    the write waits in a queue.
    """
    cache = st.cache[st.txn[tid].dev]
    schedule_deferred(st, st.txn[tid].dev)
    if accept(st, tid, cache.wait_first > 0):
        return
    st.txn[tid].next = -1
    if cache.wait_first > 0:
        st.txn[cache.wait_last - 1].next = tid
    else:
        cache.wait_first = tid + 1
    cache.wait_last = tid + 1


@inline
def schedule_deferred(st, dev):
    """Schedule :func:`run_deferred`, the retry of waiting writes and the write-back of dirty pages,
    to run before the simulated clock advances."""
    write_frontier.schedule_check(st, dev * st.cfg[0].units)


@njit
def accept(st, tid, behind):
    """Store the page of write ``tid`` in the cache. Return False if the write must wait for a cache
    slot.

    ``behind``: True if other writes wait for a slot; a write to a page that is not cached then
    waits behind these writes. A stored write completes immediately unless it must wait for flash
    (write-through, or FUA without power-loss protection).
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    cache = st.cache[dev]
    place = find(st, dev, txn.lpn)
    fresh = place == 0
    if fresh:
        if not behind:
            place = take_place(st, dev, txn.lpn)
        if place == 0:
            return False
    page = st.cpage[place - 1]
    st.count[dev, CACHE_WRITE_PAGES] += 1
    sectors = txn.sectors if cfg.partial != 0 else -1
    listed = not fresh and page.flying == 0
    if page.dirty == 0:
        if listed:
            remove(st, dev, place)
        page.epoch = cache.epoch
        cache.contents += 1
        page.dirty = sectors
        if page.flying == 0:
            append(st, dev, place)
    else:
        st.count[dev, CACHE_MERGED_PAGES] += 1
        if listed and page.epoch > cache.flushed:
            remove(st, dev, place)
            append(st, dev, place)
        page.dirty |= sectors
    page.have |= sectors
    page.stream = txn.stream
    log_cached(st, LOG_STORE, tid, txn.lpn, -1, -1, place, sectors)
    if cfg.cache_safe != 0:
        log_held(st, page.have)
    if cfg.cache_through == 0 and (cfg.cache_safe != 0 or not has_fua(st, tid)):
        go(st, tid, PART_DONE)
        return True
    txn.next = page.waiting - 1
    page.waiting = tid + 1
    if page.flying == 0:
        write_to_flash(st, dev, place)
    return True


@njit
def resume(st, dev):
    """Retry the writes that wait for a cache slot, in order, until one must wait again."""
    cache = st.cache[dev]
    while cache.wait_first > 0:
        tid = cache.wait_first - 1
        following = st.txn[tid].next
        if not accept(st, tid, False):
            return
        cache.wait_first = following + 1


# --- to flash


@njit
def write_to_flash(st, dev, place):
    """Send the dirty page in cache slot ``place`` to flash, and mark it as being programmed."""
    cfg = st.cfg[0]
    cache = st.cache[dev]
    page = st.cpage[place - 1]
    remove(st, dev, place)
    page.flying = 1
    page.leaving = page.epoch
    page.landing = page.waiting
    page.waiting = 0
    page.dirty = 0
    cache.flying += 1
    tid = take_txn(st)
    if tid < 0:
        return
    txn = st.txn[tid]
    txn.kind = CACHED
    if st.use.shape[0] == 2:  # one phase: the program is work of the host, not of the drive
        txn.phase = 0
    txn.op = PROGRAM
    txn.dev = dev
    txn.lpn = page.lpn
    txn.n = 1
    txn.stream = page.stream
    txn.sectors = page.have
    txn.size = cfg.page_bytes
    if cfg.partial != 0:
        txn.size = set_bits(page.have) * SECTOR_BYTES
    log_cached(st, LOG_DESTAGE, tid, txn.lpn, -1, -1, place, txn.sectors)
    go(st, tid, DESTAGE)


@njit
def write_dirty(st, dev):
    """Send dirty pages of drive ``dev`` to flash while a write-back condition holds (see the
    module's docstring) and the number of pages being programmed is below the limit."""
    cfg = st.cfg[0]
    cache = st.cache[dev]
    while cache.first > 0 and cache.flying < cfg.cache_flights:
        if (
            cache.dirty <= cfg.cache_dirty
            and cache.wait_first == 0
            and st.cpage[cache.first - 1].epoch > cache.flushed
            and not (cfg.cache_idle != 0 and idle.no_command(st, dev))
        ):
            return
        write_to_flash(st, dev, int(cache.first))


@njit
def run_deferred(st, dev):
    """Run the work that ``schedule_deferred`` scheduled: retry waiting writes, then send dirty
    pages to flash."""
    resume(st, dev)
    write_dirty(st, dev)


@njit
def on_programmed(st, tid):
    """Handle the end of the program of write ``tid``. Return True if its page came from the cache.

    If the page came from the cache, the transaction ends, and the page is mapped unless its data
    was dropped during the program. If the write bypassed the cache, the cached data of its pages is
    dropped.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    if txn.kind != CACHED:
        for i in range(txn.n):
            drop_page(st, dev, txn.lpn + i)
        log(st, LOG_DROP, -1, txn.lpn, -1, -1, txn.n, dev, -1)
        schedule_deferred(st, dev)
        return False
    place = find(st, dev, txn.lpn)
    page_map.log_landing(st, tid, place, st.cpage[place - 1].stale)
    if st.cpage[place - 1].stale == 0:
        page_map.map_page(st, dev, txn.lpn, txn.ppn)
        if cfg.map_entries != 0:
            cmt.update(st, dev, txn.lpn)
        if cfg.partial != 0:
            st.sectors[dev, txn.lpn] |= txn.sectors
            if cfg.errors != 0 and txn.role == Role.MERGING:
                page_health.mark_lost_sectors(st, tid)
    mark_on_flash(st, tid)
    give_txn(st, tid)
    return True


@njit
def mark_on_flash(st, tid):
    """Record that the data programmed by transaction ``tid`` is on flash. Complete the writes that
    waited for this program.

    If the page was written again during the program, it joins the dirty pages; it is sent to flash
    immediately if a write or a FLUSH waits for it. Otherwise the page becomes clean, or its slot is
    freed if its data was dropped during the program.
    """
    dev = st.txn[tid].dev
    place = find(st, dev, st.txn[tid].lpn)
    cache = st.cache[dev]
    page = st.cpage[place - 1]
    st.count[dev, DESTAGED_PAGES] += 1
    page.flying = 0
    page.stale = 0
    cache.flying -= 1
    count_settled(st, dev, page.leaving)
    complete_waiters(st, int(page.landing))
    page.landing = 0
    if page.dirty != 0:
        append(st, dev, place)
        if page.waiting > 0 or page.epoch <= cache.flushed:
            write_to_flash(st, dev, place)
    elif page.have == 0:
        release_place(st, dev, place)
    else:
        append(st, dev, place)
    schedule_deferred(st, dev)


@inline
def complete_waiters(st, tid):
    """Complete the writes that waited for the program of a page. ``tid``: number of the first
    transaction in their list + 1, or 0 if the list is empty."""
    tid -= 1
    while tid >= 0:
        following = st.txn[tid].next
        go(st, tid, PART_DONE)
        tid = following


@njit
def count_settled(st, dev, epoch):
    """Record that one content (the version of a page's data written by one program) of epoch
    ``epoch`` is on flash or was dropped. Complete the FLUSHes that waited only for this content."""
    cache = st.cache[dev]
    cache.contents -= 1
    before = -1
    tid = int(cache.flush_first) - 1
    while tid >= 0:
        txn = st.txn[tid]
        following = txn.next
        command = st.command[tid]
        if epoch <= command.epoch:
            command.contents_left -= 1
        if command.contents_left > 0:
            before = tid
        else:
            if before < 0:
                cache.flush_first = following + 1
            else:
                st.txn[before].next = following
            go(st, tid, PART_DONE)
        tid = following


@njit
def flush(st, tid):
    """Close the current epoch for FLUSH ``tid``. The command completes when all data written before
    it is on flash or was dropped."""
    txn = st.txn[tid]
    cache = st.cache[txn.dev]
    if cache.contents == 0:
        go(st, tid, PART_DONE)
        return
    cache.flushed = cache.epoch
    cache.epoch += 1
    st.command[tid].epoch = cache.flushed
    st.command[tid].contents_left = cache.contents
    txn.next = cache.flush_first - 1
    cache.flush_first = tid + 1
    schedule_deferred(st, txn.dev)


# --- reads, TRIM, writes that bypass the cache


@njit
def fill(st, tid):
    """Insert the pages that read ``tid`` has read from flash into the cache as clean pages. If a
    page is already cached, only its missing sectors are added.

    A page is inserted only if it is still mapped to the physical page that was read, a cache slot
    is available, and no write waits for a slot. Nothing is inserted if the command has an error
    status.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    failed = st.req[txn.row].status if txn.kind == REQUEST else st.row[txn.row].status
    if failed != 0:
        return
    dev = txn.dev
    sectors = txn.sectors if cfg.partial != 0 else -1
    for i in range(txn.n):
        lpn = txn.lpn + i
        if int(st.l2p[dev, lpn]) != txn.ppn + i + 1 or st.cache[dev].wait_first > 0:
            continue
        place = find(st, dev, lpn)
        fresh = place == 0
        if fresh:
            place = take_place(st, dev, lpn)
            if place == 0:
                return
            st.cpage[place - 1].stream = txn.stream
        page = st.cpage[place - 1]
        st.count[dev, CACHE_FILL_PAGES] += int(page.have == 0)
        added = sectors & ~page.have
        if added != 0:
            log_cached(st, LOG_FILL, tid, lpn, txn.ppn + i, -1, place, added)
        page.have |= sectors
        if fresh:
            append(st, dev, place)


@njit
def drop_page(st, dev, lpn):
    """Drop the cached data of a logical page that was trimmed or has newer data on flash.

    Dirty data is not written to flash. A program in progress is completed, but its data is not
    mapped. The caller logs the drop and then calls ``schedule_deferred``.
    """
    place = find(st, dev, lpn)
    if place == 0:
        return
    page = st.cpage[place - 1]
    page.have = 0
    if page.flying == 0:
        remove(st, dev, place)
    else:
        page.stale = 1
    if page.dirty != 0:
        page.dirty = 0
        st.count[dev, CACHE_DROPPED_PAGES] += 1
        count_settled(st, dev, page.epoch)
        complete_waiters(st, int(page.waiting))
        page.waiting = 0
    if page.flying == 0:
        release_place(st, dev, place)
