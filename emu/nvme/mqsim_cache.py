"""MQSim's data cache (destage buffer): sends a page to flash when it is first written.

Owns the set of cached pages, the selection and time of the sectors that are written to flash, and
the queue of waiting requests. Does not own the cache's DRAM (mqsim_cache_dram.py), the cache slots
and their order (cache_places.py) or the write path to flash (ftl/write_path.py).
Source: MQSim's data cache (Tavakkol et al., FAST 2018).

If a flow writes a page that it has not written recently, the page is sent to flash immediately and
leaves the cache when its program ends. If the page is written again before that, it stays in the
cache until it is evicted. While the sectors in transit to flash fill one page per plane or more,
the cache accepts no further pages of writes. A write then waits, and completes when all its pages
are cached. All flows share one cache, or each flow has a separate cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.counters import (
    CACHE_FILL_PAGES,
    CACHE_MERGED_PAGES,
    CACHE_WRITE_PAGES,
    DESTAGED_PAGES,
)
from ondie.emu.engine.core.events import (
    CACHED,
    give_txn,
    go,
    take_txn,
)
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.transaction import SECTOR_BYTES, child
from ondie.emu.nand.die import EVICTED, EVICTED_BY_READ, POLLED
from ondie.emu.nand.timing import PROGRAM, READ
from ondie.emu.nvme import cache_places, request_pieces
from ondie.emu.nvme.mqsim_cache_dram import access, occupy
from ondie.emu.nvme.page_transactions import sectors_of
from ondie.kernels.jit import cold, inline, njit

BUFFER = 2
"""Value of ``cfg.cache``, the kind of data cache, for a drive with MQSim's data cache."""
READS, WRITES = 1, 2
"""Bits of ``zone.caching``, the caching mode of a flow: the cache keeps pages that the flow reads
(READS) or writes (WRITES)."""
CLEAN, DIRTY = range(2)
"""States of a cache slot, stored in its field ``epoch``. The data of a DIRTY slot is written to
flash on eviction; that of a CLEAN slot is not."""
MEMORY_PS = 10**12
"""Minimum time between two resets of the flows' records of recently written pages, ps."""


@dataclass(frozen=True)
class Sizes:
    """Sizes and times of MQSim's data caches and of their DRAM.

    There are ``groups`` caches of ``pages`` pages each. ``limit``: number of sectors of one cache
    in transit to flash at which the cache stops accepting pages of writes. ``row``, ``burst``: size
    of a DRAM row and of a burst, bytes. ``transfer_ns``: time of one transfer on the DRAM bus, ns.
    ``open_ps``: tRCD + tCL, ps. ``close_ns``: tRP, ns. ``strays``: True if an evicted page is
    written as a page of the flow that evicts it. ``unwritten``: True if reads of pages that were
    never programmed share one slot of their cache.
    """

    pages: int
    groups: int
    limit: int
    row: int
    burst: int
    transfer_ns: float
    open_ps: int
    close_ns: float
    strays: bool = False
    unwritten: bool = False


@inline
def written_lately(st, stream, lpn):
    """Return True if flow ``stream`` has written logical page ``lpn`` since the last reset of the
    flow's record of written pages (see :func:`cache_pages`). The field ``memory`` of the flow's
    record ``zone`` counts the resets."""
    return int(st.recent[lpn]) >> 1 == st.zone[stream].memory


@inline
def is_programmed(st, lpn):
    """Return True if the logical page has been programmed to flash at least once."""
    return st.recent[lpn] & 1 != 0


@njit
def make_flash_write(st, dev, stream, lpn, sectors, stamp, before):
    """Create a transaction that writes ``sectors`` (bit mask) of logical page ``lpn`` to flash.

    Appends the transaction to a list. ``before``: last transaction of this list (-1: new list).
    ``stamp``: time at which the host write was split, ps. Returns the index of the transaction, or
    -1 if the pool is empty.
    """
    tid = take_txn(st)
    if tid < 0:
        return tid
    txn = st.txn[tid]
    txn.kind = CACHED
    txn.op = PROGRAM
    txn.dev = dev
    txn.lpn = lpn
    txn.n = 1
    txn.stream = stream
    txn.sectors = sectors
    txn.size = set_bits(sectors) * SECTOR_BYTES
    st.stamp[tid] = stamp
    st.command[tid].made = EVICTED
    if before >= 0:
        st.txn[before].mate = tid
    return tid


@njit
def send(st, tid):
    """Send all writes of a list to flash. The list begins with transaction ``tid`` (-1: empty
    list).

    If ``tid`` is a read, it only had to occupy the DRAM: return it to the pool of transactions
    instead.
    """
    if tid >= 0 and st.txn[tid].op == READ:
        give_txn(st, tid)
        return
    while tid >= 0:
        following = st.txn[tid].mate
        st.txn[tid].mate = -1
        if following < 0:
            st.txn[tid].gathered = st.cfg[0].ordered  # the last of its set
        go(st, tid, stages.WRITE_IN_DRAM)
        tid = following


@inline
def first_number(st, stream):
    """Return the logical page that has number 0 in MQSim's flow ``stream``. If the flow begins
    inside a page and counts pages from there (``skew``), this is the page after the one in which
    the flow begins."""
    return st.zone[stream].first_lpn + int(st.zone[stream].skew > 0)


@cold
def renumbered(st, sectors, owner, stream):
    """Convert ``sectors``, the sector mask of a page of flow ``owner``, to the sector mask of a
    page of flow ``stream``, such that MQSim's masks of the two pages are equal.

    In MQSim's mask, bit 0 is the first sector of the flow's page. In this project's mask, the bit
    of this sector depends on the offset at which the flow begins within a page of the drive; see
    request_pieces.MASK_SECTORS.
    """
    page = st.cfg[0].page_bytes // SECTOR_BYTES
    before = st.zone[owner].skew // SECTOR_BYTES
    after = st.zone[stream].skew // SECTOR_BYTES
    if before > 0:
        kept = request_pieces.MASK_SECTORS - (page - before)
        sectors = (sectors & ((1 << kept) - 1)) << (page - before) | sectors >> kept
    if after > 0:
        first = page - after
        low = sectors & ((1 << first) - 1)
        sectors = sectors >> first | low << (request_pieces.MASK_SECTORS - first)
    return sectors


@njit
def make_place(st, dev, stream, lpn, before):
    """Assign a cache slot to logical page ``lpn`` of flow ``stream`` as the most recently used
    page.

    If the cache is full, evict the least recently used page. Returns (slot, transaction). Slots are
    counted from 1. The transaction writes the evicted page, and is appended to a list. ``before``:
    last transaction of this list (-1: new list). The returned transaction is -1 if no page was
    evicted, if the evicted page needs no write, or if the pool of transactions is empty. With
    ``buffer_strays``, the evicted page is written as the page with the same number in flow
    ``stream``, if this flow has such a page.
    """
    group = int(st.zone[stream].group)
    cfg = st.cfg[0]
    cached = st.cache[group]
    out = -1
    if cached.spare == 0 and cached.used >= cfg.cache_pages:
        old = st.cpage[cached.oldest - 1]
        if old.epoch == DIRTY and old.lpn == cfg.lpns:  # of unwritten pages: nothing to write
            cached.contents -= 1
        elif old.epoch == DIRTY:
            cached.contents -= 1
            stamp = old.leaving
            owner = old.stream
            number = old.lpn
            sectors = old.have
            if cfg.buffer_strays != 0:
                moved = number - first_number(st, owner) + first_number(st, stream)
                if moved < st.zone[stream].last_lpn:
                    sectors = renumbered(st, sectors, owner, stream)
                    owner = stream
                    number = moved
            out = make_flash_write(st, dev, owner, number, sectors, stamp, before)
    place = cache_places.take_place(st, group, lpn)
    st.cpage[place - 1].epoch = CLEAN
    st.cpage[place - 1].leaving = 0
    cache_places.append(st, group, place)
    return place, out


@njit
def make_newest(st, group, place):
    """Make the page in slot ``place`` the most recently used page of cache ``group``."""
    if st.cache[group].newest != place:
        cache_places.remove(st, group, place)
        cache_places.append(st, group, place)


@inline
def set_content(st, group, place, value):
    """Set the state of cache slot ``place`` to ``value`` (DIRTY or CLEAN)."""
    st.cache[group].contents += value - st.cpage[place - 1].epoch
    st.cpage[place - 1].epoch = value


@inline
def make_younger(st, place, stamp):
    """Set the timestamp of the data in cache slot ``place`` to ``stamp`` (ps), unless the slot has
    a later timestamp.

    ``stamp``: time at which the command that transfers the data was split; for a read,
    ``command.made``. The data of a later command may reach the cache first, because a write waits
    while the number of sectors in transit is at its limit.
    """
    page = st.cpage[place - 1]
    if page.leaving < stamp:
        page.leaving = stamp


# --- writes


@cold
def write(st, tid):
    """Handle write command ``tid`` after all its data has arrived.

    Returns False if the cache does not keep the writes of the flow. Otherwise returns True, and the
    command completes when its pages are cached.
    """
    zone = st.zone[st.txn[tid].stream]
    if zone.caching & WRITES == 0:
        return False
    st.stamp[tid] = st.reg[0].now
    if st.cfg[0].probe != 0:
        st.stream_use[2 * st.txn[tid].stream + 1].count += st.txn[tid].n
    st.command[tid].bytes_left = 0
    if request_pieces.has_pieces(st, tid):
        request_pieces.take_piece(st, tid)
    if cache_pages(st, tid):
        go(st, tid, stages.PART_DONE)
        return True
    cached = st.cache[zone.group]
    st.txn[tid].next = -1
    if cached.wait_first > 0:
        st.txn[cached.wait_last - 1].next = tid
    else:
        cached.wait_first = tid + 1
    cached.wait_last = tid + 1
    return True


@njit
def cache_pages(st, tid):
    """Cache further pages of write ``tid`` while the limit of sectors in transit to flash allows
    it.

    ``pages_done`` of ``tid`` is the number of pages already cached. Returns True when all pages are
    cached. If more than MEMORY_PS have passed since the last reset for any flow, resets the flow's
    record of recently written pages.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    stream = txn.stream
    zone = st.zone[stream]
    group = int(zone.group)
    cached = st.cache[group]
    added = 0
    taken = 0
    driven = 0
    out_first = -1
    out_last = -1
    new_first = -1
    new_last = -1
    while cached.pressure + added < cfg.buffer_limit:
        if txn.pages_done == txn.n:
            if not request_pieces.next_piece(st, tid):
                break
            txn.pages_done = 0
        lpn = txn.lpn + txn.pages_done
        sectors = sectors_of(st, tid, lpn)
        place = cache_places.find(st, group, lpn)
        if place == 0:
            place, write = make_place(st, dev, stream, lpn, out_last)
            if write >= 0:
                out_last = write
                if out_first < 0:
                    out_first = write
                driven += set_bits(st.txn[write].sectors)
                added += set_bits(st.txn[write].sectors)
        else:
            st.count[dev, CACHE_MERGED_PAGES] += 1
            make_newest(st, group, place)
        page = st.cpage[place - 1]
        page.have |= sectors
        page.stream = stream
        make_younger(st, place, st.stamp[tid])
        set_content(st, group, place, DIRTY)
        st.count[dev, CACHE_WRITE_PAGES] += 1
        taken += set_bits(sectors)
        if not written_lately(st, stream, lpn):
            st.recent[lpn] = zone.memory * 2 + (st.recent[lpn] & 1)
            set_content(st, group, place, CLEAN)
            new_last = make_flash_write(st, dev, stream, lpn, sectors, st.stamp[tid], new_last)
            st.command[new_last].made = st.stamp[tid]
            if new_first < 0:
                new_first = new_last
            added += set_bits(sectors)
        txn.pages_done += 1
    cached.pressure += added
    if st.reg[0].now > st.cache[0].milestone:
        zone.memory += 1
        st.cache[0].milestone = st.reg[0].now + MEMORY_PS
    if out_first >= 0 and not access(st, out_first, driven * SECTOR_BYTES, stages.DESTAGE):
        send(st, out_first)
    if taken > 0:
        write = child(st, tid, txn.lpn, 0)
        if write >= 0 and not access(st, write, taken * SECTOR_BYTES, stages.PART_DONE):
            go(st, write, stages.PART_DONE)
    send(st, new_first)
    return txn.pages_done == txn.n and st.command[tid].bytes_left == 0


@cold
def on_programmed(st, tid):
    """Handle the end of the flash write ``tid``. Return True if the write came from the cache; its
    transaction has then ended."""
    txn = st.txn[tid]
    for i in range(txn.n):
        st.recent[txn.lpn + i] |= 1
        if st.cfg[0].buffer_unwritten != 0:
            st.unprogrammed[txn.ppn + i] = 0
    if txn.kind != CACHED:
        return False
    group = int(st.zone[txn.stream].group)
    cached = st.cache[group]
    st.count[txn.dev, DESTAGED_PAGES] += 1
    cached.pressure -= set_bits(txn.sectors)
    place = cache_places.find(st, group, txn.lpn)
    if place > 0 and st.cpage[place - 1].leaving <= st.stamp[tid]:
        set_content(st, group, place, CLEAN)
        cache_places.remove(st, group, place)
        cache_places.release_place(st, group, place)
    elif place > 0:
        make_newest(st, group, place)
    give_txn(st, tid)
    resume(st, group)
    return True


@njit
def resume(st, group):
    """Retry the write commands that wait for space in cache ``group``, in order, until the sectors
    in transit to flash exceed the limit.

    A write that must continue to wait may still reset its flow's record of written pages
    (:func:`cache_pages`).
    """
    cached = st.cache[group]
    before = -1
    tid = int(cached.wait_first) - 1
    while tid >= 0:
        following = st.txn[tid].next
        if cache_pages(st, tid):
            if before < 0:
                cached.wait_first = following + 1
            else:
                st.txn[before].next = following
            if following < 0:
                cached.wait_last = before + 1
            go(st, tid, stages.PART_DONE)
        else:
            before = tid
        if cached.pressure > st.cfg[0].buffer_limit:
            return
        tid = following


# --- reads


@cold
def cached_sectors(st, tid, lpn):
    """Return a bit mask of the sectors of page ``lpn`` that read ``tid`` finds in the cache. A page
    that is found becomes the most recently used page, even if none of the sectors are cached."""
    group = int(st.zone[st.txn[tid].stream].group)
    place = cache_places.find(st, group, lpn)
    if place == 0:
        return 0
    make_newest(st, group, place)
    return sectors_of(st, tid, lpn) & st.cpage[place - 1].have


@cold
def serve(st, tid, sectors):
    """Add ``sectors`` (bit mask) to the DRAM transaction that serves all cached sectors of read
    ``tid``. Creates the transaction at the first call.
    """
    txn = st.txn[tid]
    if txn.gathered == 0:
        txn.gathered = child(st, tid, txn.lpn, 0) + 1
    if txn.gathered > 0:
        st.txn[txn.gathered - 1].size += set_bits(sectors) * SECTOR_BYTES


@cold
def send_gathered(st, tid):
    """Send the cached sectors of read ``tid`` from DRAM to the host."""
    other = st.txn[tid].gathered - 1
    if other >= 0:
        go(st, other, stages.SERVED)


@cold
def fill(st, tid):
    """Insert the page that read ``tid`` has read from flash into the cache.

    Has no effect unless the flow caches its reads. Without ``buffer_unwritten``, it also has no
    effect if the page has never been programmed. If the page was not cached before, the insertion
    occupies DRAM, but the read does not wait for it. With ``buffer_unwritten``, all reads of flash
    pages that are not programmed share one slot, because MQSim takes the logical page number from
    the flash page. The slot's page number is the first after the last logical page, so no request
    finds it.
    """
    st.reg[0].hop = 0
    txn = st.txn[tid]
    dev = txn.dev
    zone = st.zone[txn.stream]
    lpn = int(txn.lpn)
    if zone.caching & READS == 0:
        return
    if st.cfg[0].buffer_unwritten != 0:
        if st.unprogrammed[txn.ppn] != 0:
            lpn = int(st.cfg[0].lpns)
    elif not is_programmed(st, lpn):
        return
    group = int(zone.group)
    place = cache_places.find(st, group, lpn)
    made = place == 0
    if made:
        place, write = make_place(st, dev, txn.stream, lpn, -1)
        st.cpage[place - 1].stream = txn.stream
        st.count[dev, CACHE_FILL_PAGES] += 1
        if write >= 0:
            if st.cfg[0].ranked == POLLED:
                st.command[write].made = EVICTED_BY_READ
            st.cache[group].pressure += set_bits(st.txn[write].sectors)
            if not access(st, write, st.txn[write].size, stages.DESTAGE):
                send(st, write)
    else:
        make_newest(st, group, place)
        set_content(st, group, place, DIRTY)
    st.cpage[place - 1].have |= txn.sectors
    make_younger(st, place, st.command[tid].made)
    if made:  # as in MQSim, sectors that join a cached page take no time
        occupy(st, tid, set_bits(txn.sectors) * SECTOR_BYTES)
