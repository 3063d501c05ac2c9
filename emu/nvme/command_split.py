"""Command split: divides host commands into flash transactions.

Owns the split of reads, writes and TRIM at page, super-page and mapping boundaries, and which part
of a page a command accesses. Does not own the stages between host and flash
(engine/run/datapath.py) or the mapping table (ftl/page_map.py).
Source: a host request is split at page boundaries and completes with its last page (as in MQSim);
adjacent pages in one super-page form one multi-plane operation.
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
    """Return True if the first piece of request ``t`` belongs to the page with the next number.

    This occurs where a zone begins inside a page (``skew``) and the request begins before that
    offset. ``t`` is then reduced to the first piece, placed behind the sectors of the other page,
    until ``rest``.
    """
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
    """Set ``t`` to the part of the request that follows its first piece."""
    c = st.cfg[0]
    x = st.txn[t]
    x.size = x.left
    x.left = 0
    x.old = 0
    x.n = (x.size + c.page_bytes - 1) // c.page_bytes


@njit
def cut_read(st, t):
    """Split read command ``t``: cached pages go to the host, the others to their dies."""
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
    """Send the pages of ``t``, a part of a read, to their dies once their mapping is known."""
    x = st.txn[t]
    sense(st, t, x.lpn, x.lpn + x.n)
    if st.cfg[0].slots > 1:
        slot_reads.send(st)


@inline
def held(st, t, lpn):
    """Return the sectors of page ``lpn`` that read ``t`` finds in the data cache, one bit each."""
    if st.cfg[0].cache == buffer.BUFFER:
        return buffer.found(st, t, lpn)
    p = cache.find(st, st.txn[t].dev, lpn)
    if p == 0:
        return 0
    have = st.cpage[p - 1].have
    return have & sectors_of(st, t, lpn) if st.cfg[0].partial != 0 else have


@njit
def cached_from(st, t, lpn):
    """Return the first page from ``lpn`` on that is in the data cache, at least in part.

    Returns the end of the pages of read ``t`` if there is none.
    """
    end = st.txn[t].lpn + st.txn[t].n
    while lpn < end and held(st, t, lpn) == 0:
        lpn += 1
    return lpn


@njit
def serve(st, t, lpn):
    """Send page ``lpn`` of read ``t`` from the data cache to the host.

    If only part of the page is cached, the missing sectors are read from flash.
    """
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
    """Split pages ``lpn .. end`` of read ``t`` where part of the mapping table is on flash.

    Pages with known mapping go to their dies. A run of other pages within one translation page
    waits for that translation page as one transaction.
    """
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
    """Send pages ``lpn .. end`` of read ``t`` to their dies.

    A run of consecutive physical pages inside one super-page is one transaction. Unmapped pages are
    returned as zeros by the controller.
    """
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    if c.slots > 1:
        slot_reads.sense(st, t, lpn, end)
        return
    while lpn < end:
        entry = int(st.l2p[dev, lpn])
        if entry == 0 and c.unwritten != 0:  # read as if the page had been written at its address
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
    """Send read ``u`` to its die; ``entry`` is the mapping table entry of its first page."""
    if entry == 0:
        zeros(st, u)
        return
    g = locate(st, u, entry)
    st.count[st.txn[u].dev, ARRAY_READS] += 1
    nand.push(st, g, u, nand.Q_READ)


@cold
def fetch_again(st, u):
    """Send read ``u`` to its die after it has waited for its page to be moved."""
    if st.cfg[0].slots > 1:
        slot_reads.again(st, u)
        return
    fetch(st, u, int(st.l2p[st.txn[u].dev, st.txn[u].lpn]))


@njit
def cut_write(st, t, step):
    """Split write command ``t`` and send the transactions to ``step``.

    A transaction holds up to one super-page of pages, or one page where each page has a separate
    place.
    """
    x = st.txn[t]
    if x.kind == REQUEST and st.zone[x.stream].skew > 0 and skewed(st, t):
        send_parts(st, t, step)
        rest(st, t)
    send_parts(st, t, step)


@njit
def send_parts(st, t, step):
    """Send the pages of write ``t`` to ``step``."""
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
    """Unmap the pages that TRIM command ``t`` covers completely."""
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
    """Start FLUSH command ``t``; it completes when all earlier writes are on flash."""
    u = child(st, t, 0, 0)
    if u >= 0:
        cache.flush(st, u)
