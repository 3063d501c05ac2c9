"""MQSim's data cache (destage buffer): sends a page to flash when it is first written.

Owns which pages are cached, which of their sectors are written to flash and when, the requests that
wait, and the time of the cache's DRAM. Does not own places and their order (data_cache.py) or the
write path to flash (ftl/write_path.py).
Source: MQSim's data cache (Tavakkol et al., FAST 2018): its rules, its limit and the time of its
DRAM.

A page that its flow has not written recently is sent to flash at once and leaves the cache when its
program ends. If it is written again before that, it stays until it is evicted. The sectors on their
way to flash are limited to one page per plane. A write that exceeds the limit waits, and completes
when all its pages are taken and stored. Caches are shared, or each flow has a separate one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import (
    CACHE_FILL_PAGES,
    CACHE_MERGED_PAGES,
    CACHE_WRITE_PAGES,
    DESTAGED_PAGES,
)
from ondie.emu.engine.core.events import CACHED, enter, give_txn, go, take_txn
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.transaction import SECTOR, child
from ondie.emu.nand.timing import PROGRAM
from ondie.emu.nvme import data_cache as cache
from ondie.emu.nvme.page_transactions import sectors_of
from ondie.kernels.jit import cold, inline, njit

BUFFER = 2
"""Value of ``cfg.cache`` for a drive with this cache."""
READS, WRITES = 1, 2
"""Bits of ``zone.caching``: a flow keeps its reads, its writes in the cache."""
CLEAN, DIRTY = range(2)
"""Values of ``epoch`` of a place; DIRTY content is written to flash on eviction."""
MEMORY_PS = 10**12
"""Interval in ps after which the record of recently written pages is reset."""
PS_PER_NS = 1000


@dataclass(frozen=True)
class Sizes:
    """Sizes and times of the caches and their DRAM.

    ``groups`` caches of ``pages`` places each; ``limit``: sectors that may be on their way to flash
    at once; DRAM: ``row`` and ``burst`` in bytes, ns of a transfer, tRCD + tCL in ps, tRP in ns.
    """

    pages: int
    groups: int
    limit: int
    row: int
    burst: int
    transfer_ns: float
    open_ps: int
    close_ns: float


@njit
def access_ps(st, n_bytes):
    """Return the time of one access to the cache's DRAM, ps.

    For an access to several rows only half of the rows count.
    """
    c = st.cfg[0]
    row = int(c.buffer_row)
    pairs = n_bytes // c.buffer_burst // 2
    if n_bytes <= row:
        return c.buffer_open + int(pairs * c.buffer_ns) * PS_PER_NS
    whole = int((row // c.buffer_burst // 2) * c.buffer_ns + c.buffer_close) * (n_bytes // row // 2)
    rest = int((n_bytes % row) / (c.buffer_burst * c.buffer_ns))
    return 2 * c.buffer_open + (whole + rest) * PS_PER_NS


@njit
def access(st, t, n_bytes, step):
    """Occupy the cache's DRAM with transaction ``t``. Return False if that takes no time."""
    station = s.station(st, st.txn[t].dev, s.DRAM)
    return enter(st, station, t, n_bytes, access_ps(st, n_bytes), step)


@inline
def lately(st, stream, lpn):
    """Return True if the flow has written the page since its last reset (numbered by
    ``memory``)."""
    return int(st.recent[lpn]) >> 1 == st.zone[stream].memory


@inline
def known(st, lpn):
    """Return True if the page has been programmed, so that flash holds its number."""
    return st.recent[lpn] & 1 != 0


@njit
def to_flash(st, dev, stream, lpn, sectors, stamp, before):
    """Create a write of some sectors of a page to flash and link it behind ``before``. Return
    it."""
    t = take_txn(st)
    if t < 0:
        return t
    x = st.txn[t]
    x.kind = CACHED
    x.op = PROGRAM
    x.dev = dev
    x.lpn = lpn
    x.n = 1
    x.stream = stream
    x.sectors = sectors
    x.size = set_bits(sectors) * SECTOR
    st.stamp[t] = stamp
    if before >= 0:
        st.txn[before].mate = t
    return t


@njit
def send(st, t):
    """Send all writes of a list to the write path."""
    while t >= 0:
        following = st.txn[t].mate
        st.txn[t].mate = -1
        go(st, t, s.WRITE_IN_DRAM)
        t = following


@njit
def make_place(st, dev, g, lpn, before):
    """Take a place for a page as the most recently used one; evict the least recently used page.

    Returns (place + 1, the write of evicted DIRTY content linked behind ``before``, or -1).
    """
    c = st.cfg[0]
    cached = st.cache[g]
    out = -1
    if cached.spare == 0 and cached.used >= c.cache_pages:
        old = st.cpage[cached.oldest - 1]
        if old.epoch == DIRTY:
            cached.contents -= 1
            stamp = old.leaving
            out = to_flash(st, dev, old.stream, old.lpn, old.have, stamp, before)
    p = cache.room(st, g, lpn)
    st.cpage[p - 1].epoch = CLEAN
    cache.append(st, g, p)
    return p, out


@njit
def to_front(st, g, p):
    """Make a page the most recently used one."""
    if st.cache[g].newest != p:
        cache.remove(st, g, p)
        cache.append(st, g, p)


@inline
def soil(st, g, p, value):
    """Set the content of place ``p`` to DIRTY or CLEAN (``value``)."""
    st.cache[g].contents += value - st.cpage[p - 1].epoch
    st.cpage[p - 1].epoch = value


# --- writes


@cold
def write(st, t):
    """Handle write command ``t`` after all its data have arrived.

    Returns True if the writes of its flow are cached; the command then completes when its pages are
    cached.
    """
    zone = st.zone[st.txn[t].stream]
    if zone.caching & WRITES == 0:
        return False
    st.stamp[t] = st.reg[0].now
    if take(st, t):
        go(st, t, s.PART_DONE)
        return True
    cached = st.cache[zone.group]
    st.txn[t].next = -1
    if cached.wait_first > 0:
        st.txn[cached.wait_last - 1].next = t
    else:
        cached.wait_first = t + 1
    cached.wait_last = t + 1
    return True


@njit
def take(st, t):
    """Cache pages of write ``t``, from page number ``left`` on, while the limit of sectors allows.

    Returns True when all pages have been taken.
    """
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    stream = x.stream
    zone = st.zone[stream]
    g = int(zone.group)
    cached = st.cache[g]
    added = 0
    taken = 0
    driven = 0
    out_first = -1
    out_last = -1
    new_first = -1
    new_last = -1
    while x.left < x.n and cached.pressure + added < c.buffer_limit:
        lpn = x.lpn + x.left
        sectors = sectors_of(st, t, lpn)
        p = cache.find(st, g, lpn)
        if p == 0:
            p, u = make_place(st, dev, g, lpn, out_last)
            if u >= 0:
                out_last = u
                if out_first < 0:
                    out_first = u
                driven += set_bits(st.txn[u].sectors)
                added += set_bits(st.txn[u].sectors)
        else:
            st.count[dev, CACHE_MERGED_PAGES] += 1
            to_front(st, g, p)
        page = st.cpage[p - 1]
        page.have |= sectors
        page.stream = stream
        page.leaving = st.stamp[t]
        soil(st, g, p, DIRTY)
        st.count[dev, CACHE_WRITE_PAGES] += 1
        taken += set_bits(sectors)
        if not lately(st, stream, lpn):
            st.recent[lpn] = zone.memory * 2 + (st.recent[lpn] & 1)
            soil(st, g, p, CLEAN)
            new_last = to_flash(st, dev, stream, lpn, sectors, st.stamp[t], new_last)
            if new_first < 0:
                new_first = new_last
            added += set_bits(sectors)
        x.left += 1
    cached.pressure += added
    if st.reg[0].now > st.cache[0].milestone:
        zone.memory += 1
        st.cache[0].milestone = st.reg[0].now + MEMORY_PS
    if out_first >= 0 and not access(st, out_first, driven * SECTOR, s.DESTAGE):
        send(st, out_first)
    if taken > 0:
        u = child(st, t, x.lpn, 0)
        if u >= 0 and not access(st, u, taken * SECTOR, s.PART_DONE):
            go(st, u, s.PART_DONE)
    send(st, new_first)
    return x.left == x.n


@cold
def programmed(st, t):
    """Handle the end of a write to flash. Return True if the write came from the cache.

    Its transaction then ends here.
    """
    x = st.txn[t]
    for lpn in range(x.lpn, x.lpn + x.n):
        st.recent[lpn] |= 1
    if x.kind != CACHED:
        return False
    g = int(st.zone[x.stream].group)
    cached = st.cache[g]
    st.count[x.dev, DESTAGED_PAGES] += 1
    cached.pressure -= set_bits(x.sectors)
    p = cache.find(st, g, x.lpn)
    if p > 0 and st.cpage[p - 1].leaving <= st.stamp[t]:
        soil(st, g, p, CLEAN)
        cache.remove(st, g, p)
        cache.give_back(st, g, p)
    give_txn(st, t)
    resume(st, g)
    return True


@njit
def resume(st, g):
    """Retry the waiting writes, in order, while the limit of sectors on their way to flash
    allows."""
    cached = st.cache[g]
    before = -1
    t = int(cached.wait_first) - 1
    while t >= 0 and cached.pressure < st.cfg[0].buffer_limit:
        following = st.txn[t].next
        if take(st, t):
            if before < 0:
                cached.wait_first = following + 1
            else:
                st.txn[before].next = following
            if following < 0:
                cached.wait_last = before + 1
            go(st, t, s.PART_DONE)
        else:
            before = t
        t = following


# --- reads


@cold
def found(st, t, lpn):
    """Return the sectors of page ``lpn`` that read ``t`` finds in the cache, one bit each."""
    p = cache.find(st, int(st.zone[st.txn[t].stream].group), lpn)
    return sectors_of(st, t, lpn) & st.cpage[p - 1].have if p > 0 else 0


@cold
def serve(st, t, sectors):
    """Add cached sectors to the one DRAM transaction of read ``t`` (stored as ``left`` - 1)."""
    x = st.txn[t]
    if x.left == 0:
        x.left = child(st, t, x.lpn, 0) + 1
    if x.left > 0:
        st.txn[x.left - 1].size += set_bits(sectors) * SECTOR


@cold
def gathered(st, t):
    """Send the cached sectors of read ``t`` from DRAM to the host."""
    u = st.txn[t].left - 1
    if u >= 0:
        go(st, u, s.SERVED)


@cold
def fill(st, t):
    """Insert a page that a read has brought from flash into the cache.

    This is done if the flow caches its reads and the page has been programmed. The access occupies
    DRAM, but the read does not wait for it.
    """
    st.reg[0].hop = 0
    x = st.txn[t]
    dev = x.dev
    zone = st.zone[x.stream]
    if zone.caching & READS == 0 or not known(st, x.lpn):
        return
    g = int(zone.group)
    p = cache.find(st, g, x.lpn)
    if p == 0:
        p, u = make_place(st, dev, g, x.lpn, -1)
        st.cpage[p - 1].stream = x.stream
        st.count[dev, CACHE_FILL_PAGES] += 1
        if u >= 0:
            st.cache[g].pressure += set_bits(st.txn[u].sectors)
            if not access(st, u, st.txn[u].size, s.DESTAGE):
                send(st, u)
    else:
        to_front(st, g, p)
        soil(st, g, p, DIRTY)
    st.cpage[p - 1].have |= x.sectors
    st.cpage[p - 1].leaving = st.reg[0].now
    occupy(st, dev, set_bits(x.sectors) * SECTOR)


@njit
def occupy(st, dev, n_bytes):
    """Occupy the DRAM with an access for which no transaction waits."""
    reg = st.reg[0]
    station = s.station(st, dev, s.DRAM)
    f = st.fifo[station]
    time = access_ps(st, n_bytes)
    f.free_at = max(reg.now, f.free_at) + time
    f.size += n_bytes
    f.jobs += 1
    st.use[0, reg.fifo0 + station] += time
