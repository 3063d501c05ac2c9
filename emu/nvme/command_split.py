"""The controller: cuts commands into flash operations.

Owns the cut of reads, writes and TRIM at page, super-page and mapping boundaries, and which part
of a page a command asks for. Does not own the stations in between (flows.py) or where pages live
(mapping.py).
Source: a host request is cut at page boundaries and completes when its last page does (as in
MQSim); neighbouring pages in one super-page go as one multi-plane operation.
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import ARRAY_READS, CACHE_HIT_PAGES, TRIMMED_PAGES
from ondie.emu.engine.core.events import E_FULL, LOG_SERVE, LOG_TRIM, REQUEST, fail, go, log
from ondie.emu.engine.core.intrinsics import set_bits
from ondie.emu.engine.core.stages import SERVED, TRANSLATED
from ondie.emu.engine.core.transaction import SECTOR, child
from ondie.emu.ftl import cmt
from ondie.emu.ftl import page_map as mapping
from ondie.emu.nand import channel as nand
from ondie.emu.nand import timing
from ondie.emu.nvme import data_cache as cache
from ondie.emu.nvme import mqsim_cache as buffer
from ondie.emu.nvme import subpage_read as slot_reads
from ondie.emu.nvme.page_transactions import bytes_of, locate, part, sectors_of, zeros
from ondie.kernels.jit import apart, cold, inline, njit


@cold
def skewed(st, t):
    """Is the first piece of request ``t`` numbered with the page that follows it? It is where its
    zone begins inside a page, before that place of its own page. Then ``t`` is this piece alone,
    behind the sectors of the other page, until ``rest``."""
    c = st.cfg[0]
    x = st.txn[t]
    skew = st.zone[x.stream].skew
    if x.old < skew:
        return False
    x.left = x.size
    x.size = min(x.size, c.page_bytes - x.old)
    x.left -= x.size
    x.old += c.page_bytes - skew
    x.lpn += 1
    x.n = 1
    return True


@cold
def rest(st, t):
    """``t`` is what follows its first piece."""
    c = st.cfg[0]
    x = st.txn[t]
    x.size = x.left
    x.left = 0
    x.old = 0
    x.n = (x.size + c.page_bytes - 1) // c.page_bytes


@njit
def cut_read(st, t):
    """Send the pages of read command ``t`` to their dies, those in the data cache to the host."""
    c = st.cfg[0]
    x = st.txn[t]
    if x.kind == REQUEST and st.zone[x.stream].skew > 0 and skewed(st, t):
        if c.map_entries == 0:
            sense(st, t, x.lpn, x.lpn + 1)
        else:
            translate(st, t, x.lpn, x.lpn + 1)
        rest(st, t)
    lpn = x.lpn
    end = x.lpn + x.n
    while lpn < end:
        stop = end
        if c.cache != 0:
            stop = cached_from(st, t, lpn)
        if c.map_entries == 0:
            sense(st, t, lpn, stop)
        else:
            translate(st, t, lpn, stop)
        if stop < end:
            serve(st, t, stop)
        lpn = stop + 1
    if c.cache == buffer.BUFFER:
        buffer.gathered(st, t)
    if c.slots > 1:
        slot_reads.send(st)


@cold
def sense_all(st, t):
    """Send the pages of ``t``, a part of a read, to their dies, now that their places are known."""
    x = st.txn[t]
    sense(st, t, x.lpn, x.lpn + x.n)
    if st.cfg[0].slots > 1:
        slot_reads.send(st)


@inline
def held(st, t, lpn):
    """Bit per sector that read ``t`` asks for of page ``lpn`` and finds in the data cache."""
    if st.cfg[0].cache == buffer.BUFFER:
        return buffer.found(st, t, lpn)
    p = cache.find(st, st.txn[t].dev, lpn)
    if p == 0:
        return 0
    have = st.cpage[p - 1].have
    return have & sectors_of(st, t, lpn) if st.cfg[0].partial != 0 else have


@njit
def cached_from(st, t, lpn):
    """The first page from ``lpn`` on that read ``t`` finds in the data cache, at least in part, or
    the end of its pages."""
    end = st.txn[t].lpn + st.txn[t].n
    while lpn < end and held(st, t, lpn) == 0:
        lpn += 1
    return lpn


@njit
def serve(st, t, lpn):
    """Page ``lpn`` of read ``t`` leaves from the data cache. Of a page that is there in part, the
    rest comes from flash."""
    c = st.cfg[0]
    x = st.txn[t]
    st.count[x.dev, CACHE_HIT_PAGES] += 1
    found = held(st, t, lpn)
    asked = sectors_of(st, t, lpn) if c.partial != 0 else found
    if c.cache == buffer.BUFFER:
        buffer.serve(st, t, found)
    else:
        cache.touch(st, x.dev, cache.find(st, x.dev, lpn))
        u = child(st, t, lpn, 1)
        if u < 0:
            return
        size = bytes_of(st, t, lpn, 1)
        st.txn[u].size = size if found == asked else set_bits(found) * SECTOR
        log(st, LOG_SERVE, x.row, lpn, -1, -1, 1, x.dev, -1)
        go(st, u, SERVED)
    if found == asked:
        return
    v = child(st, t, lpn, 1)
    if v < 0:
        return
    y = st.txn[v]
    y.old = 0
    y.sectors = asked & ~found
    y.size = set_bits(y.sectors) * SECTOR
    go(st, v, TRANSLATED)


@njit
def translate(st, t, lpn, end):
    """Pages ``lpn .. end`` of read ``t``, where part of the map is on flash: those whose place is
    known go to their dies; runs of others inside one translation page wait for it together."""
    x = st.txn[t]
    dev = x.dev
    while lpn < end:
        n = 0
        while lpn + n < end and cmt.known(st, dev, lpn + n):
            n += 1
        if n > 0:
            sense(st, t, lpn, lpn + n)
            lpn += n
            continue
        page = cmt.page_of(st, dev, lpn)
        n = 1
        while lpn + n < end and cmt.page_of(st, dev, lpn + n) == page:
            if cmt.find(st, dev, lpn + n) > 0:
                break
            n += 1
        u = child(st, t, lpn, n)
        if u < 0:
            return
        y = st.txn[u]
        y.old = x.old if lpn == x.lpn else 0
        y.size = bytes_of(st, t, lpn, n)
        y.sectors = x.sectors
        cmt.wait(st, u)
        lpn += n


@apart
def sense(st, t, lpn, end):
    """Send pages ``lpn .. end`` of read ``t`` to their dies: runs of consecutive physical pages
    inside one super-page go together, unmapped pages are zeros from the controller."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    if c.slots > 1:
        slot_reads.sense(st, t, lpn, end)
        return
    while lpn < end:
        entry = int(st.l2p[dev, lpn])
        if entry == 0 and c.unwritten != 0:  # read as if it had been written at its place
            if not mapping.as_written(st, dev, lpn, x.stream):
                fail(st, E_FULL, lpn, 0)
                return
            if c.partial != 0:
                st.sectors[dev, lpn] |= sectors_of(st, t, lpn)
            entry = int(st.l2p[dev, lpn])
            if c.map_entries != 0:
                cmt.update(st, dev, lpn)
        n = 1
        waits = c.locks != 0 and mapping.locked(st, dev, lpn)
        if entry == 0:
            while lpn + n < end and n < c.planes and st.l2p[dev, lpn + n] == 0:
                n += 1
        elif (
            not waits
            and c.multi_plane != 0
            and c.unit_planes > 1
            and c.partial == 0
            and c.lanes == 1
        ):
            limit = min(end - lpn, c.unit_planes - (entry - 1) % c.unit_planes)
            while n < limit and int(st.l2p[dev, lpn + n]) == entry + n:
                n += 1
        u = part(st, t, lpn, n, timing.READ)
        if u < 0:
            return
        if waits:
            mapping.park(st, u)
        else:
            fetch(st, u, entry)
        lpn += n


@inline
def fetch(st, u, entry):
    """Send the read ``u``, whose first page the map has at ``entry``, to its die."""
    if entry == 0:
        zeros(st, u)
        return
    g = locate(st, u, entry)
    st.count[st.txn[u].dev, ARRAY_READS] += 1
    nand.push(st, g, u, nand.Q_READ)


@cold
def fetch_again(st, u):
    """The same for a read that had to wait for its page to be moved."""
    if st.cfg[0].slots > 1:
        slot_reads.again(st, u)
        return
    fetch(st, u, int(st.l2p[st.txn[u].dev, st.txn[u].lpn]))


@njit
def cut_write(st, t, step):
    """Send the pages of write command ``t`` on, a super-page's worth at a time, or page by page
    where each has its own place."""
    x = st.txn[t]
    if x.kind == REQUEST and st.zone[x.stream].skew > 0 and skewed(st, t):
        send_parts(st, t, step)
        rest(st, t)
    send_parts(st, t, step)


@njit
def send_parts(st, t, step):
    """The pages of write ``t`` go on to ``step``."""
    c = st.cfg[0]
    x = st.txn[t]
    lpn = x.lpn
    most = c.planes * c.slots
    if c.static != 0 or c.partial != 0 or c.cache_writes != 0:
        most = 1
    while lpn < x.lpn + x.n:
        n = min(x.lpn + x.n - lpn, most)
        u = part(st, t, lpn, n, timing.PROGRAM)
        if u < 0:
            return
        go(st, u, step)
        lpn += n


@njit
def cut_trim(st, t):
    """Unmap the pages that TRIM command ``t`` covers whole."""
    c = st.cfg[0]
    x = st.txn[t]
    lpn = x.lpn + (1 if x.old > 0 else 0)
    end = (x.lpn * c.page_bytes + x.old + x.size) // c.page_bytes if x.size > 0 else x.lpn + x.n
    st.count[x.dev, TRIMMED_PAGES] += max(end - lpn, 0)
    for page in range(lpn, end):
        if c.map_entries != 0 and st.l2p[x.dev, page] != 0:
            cmt.update(st, x.dev, page)
        if c.cache != 0:
            cache.drop(st, x.dev, page)
        mapping.unmap(st, x.dev, page)
        if c.partial != 0:
            st.sectors[x.dev, page] = 0
    log(st, LOG_TRIM, x.row, lpn, -1, -1, max(end - lpn, 0), x.dev, -1)
    if c.cache != 0:
        cache.later(st, x.dev)


@njit
def flush(st, t):
    """FLUSH command ``t`` is done when flash has what was written before."""
    u = child(st, t, 0, 0)
    if u >= 0:
        cache.flush(st, u)
