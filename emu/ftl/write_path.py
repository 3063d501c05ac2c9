"""Write path: allocation of flash pages to host writes and translation pages.

Owns the order in which writes try units, the read part of read-modify-write, and the queues of
writes that wait for garbage collection. Does not own page allocation and the mapping table
(page_map.py) or the completion of programs (completion.py).
Source: page-level mapping with out-of-place writes; update reads and locked pages as in MQSim.
"""

from __future__ import annotations

from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import MERGE_READ_PAGES, UNASKED_IN_BYTES, UNASKED_OUT_BYTES
from ondie.emu.engine.core.events import E_STREAM, MERGING, fail, go
from ondie.emu.engine.core.intrinsics import call_policy
from ondie.emu.engine.core.transaction import bus_bytes, child
from ondie.emu.ftl import (
    cmt,
)
from ondie.emu.ftl import (
    page_map as mapping,
)
from ondie.emu.ftl import (
    pslc as modes,
)
from ondie.emu.ftl import (
    pslc_folding as folding,
)
from ondie.emu.ftl import (
    subpage_sense as sharing,
)
from ondie.emu.ftl import (
    word_lines as lines,
)
from ondie.emu.ftl.gc import ask
from ondie.emu.ftl.transfers import encode
from ondie.emu.nand import channel as nand
from ondie.emu.nand import timing
from ondie.emu.nvme import command_split as controller
from ondie.emu.nvme import data_cache as cache
from ondie.kernels.jit import apart, cold, inline, njit


@apart
def place(st, t):
    """Allocate physical pages for a write, unit by unit, and start their programs. Return False
    when no unit has a block to write to."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    d = st.dev[dev]
    stream = 0
    if c.streams > 1:
        stream = call_policy(st, c.stream_policy, t)
        if stream < 0 or stream >= c.streams:
            fail(st, E_STREAM, x.lpn, stream)
            return True
    refused = 0
    while True:
        u = mapping.unit_of(st, dev, x.lpn, x.stream)
        if c.line > 1 and c.static == 0:
            u = lines.unit_in_turn(st, dev, stream)
        ppn = -1
        k = 0
        if c.pslc != 0:
            ppn, k = by_mode(st, dev, u, stream, x.n)
        elif st.pool[u].free_n >= c.gc_stop:
            ppn, k = mapping.allocate(st, dev, u, stream, x.n)
        full = k > 0 and st.reg[0].filled != 0
        if (full and c.placed == 0) or (k == 0 and lacks(st, u)):
            ask(st, dev, u)
        if c.line > 1:
            lines.next_turn(st, dev, u, stream, k)
        elif c.static == 0:
            d.cursor = d.cursor + 1 if d.cursor + 1 < c.units else 0
        if k == 0:
            refused += 1
            if c.static != 0 or refused == c.units:
                return False
            continue
        refused = 0
        v = t
        if k < x.n:  # the rest needs another place
            v = child(st, t, x.lpn, k)
            if v < 0:
                return True
            st.txn[v].size = x.size * k // x.n
            x.size -= st.txn[v].size
            x.lpn += k
            x.n -= k
        y = st.txn[v]
        y.op = timing.PROGRAM
        y.ppn = ppn
        y.bus = bus_bytes(st, v)
        if c.partial != 0:
            st.count[dev, UNASKED_IN_BYTES] += y.n * c.page_bytes - y.bus
        mapping.place_of(st, dev, v)
        y.array = st.page_ps[1, y.page]
        reads = c.placed != 0 and map_placed(st, v, u, full)
        if not reads and not encode(st, v, s.ENCODED):
            go(st, v, s.ENCODED)
        if v == t:
            return True


@cold
def by_mode(st, dev, u, stream, n):
    """Allocate pages of unit ``u`` in its pSLC block, or in a native block if no pSLC page is left
    or the stream does not use pSLC. Return (first ppn, count) as page_map.allocate does."""
    if modes.takes(st, stream):
        ppn, k = modes.allocate(st, dev, u, n)
        if k > 0 or folding.waits(st, u):
            return ppn, k
    if st.pool[u].free_n < st.cfg[0].gc_stop:
        return -1, 0
    return mapping.allocate(st, dev, u, stream, n)


@njit
def map_placed(st, t, u, full):
    """Map a write at allocation, before unit ``u`` may start a collection (``full``: the allocation
    has filled a block). Return True if the old page holds sectors that the write does not cover:
    the program starts after they have been read."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    st.reg[0].placed += 1
    x.left = st.reg[0].placed
    old = int(st.l2p[dev, x.lpn])
    missing = 0
    if c.partial != 0 and old != 0:
        missing = st.sectors[dev, x.lpn] & ~x.sectors
    for i in range(x.n):
        mapping.map_page(st, dev, x.lpn + i, x.ppn + i)
        if c.map_entries != 0:
            cmt.update(st, dev, x.lpn + i)
    if c.partial != 0:
        st.sectors[dev, x.lpn] |= x.sectors
    if missing != 0:
        mapping.read_from(st, dev, old - 1)
    if full:
        ask(st, dev, u)
        if st.reg[0].prompt != 0:
            nand.at_once(st, st.die[u // c.die_units * c.lanes].bus)
    if missing == 0:
        return False
    x.old = x.ppn
    read_rest(st, t, old - 1, missing)
    return True


@cold
def merged(st, t):
    """Continue a write that has read the rest of its page: place it, or start its program if it
    already has a place."""
    c = st.cfg[0]
    x = st.txn[t]
    if c.placed == 0:
        place_or_wait(st, t)
        return
    x.op = timing.PROGRAM
    x.ppn = x.old
    x.bus = bus_bytes(st, t)
    mapping.place_of(st, x.dev, t)
    x.array = st.page_ps[1, x.page]
    if not encode(st, t, s.ENCODED):
        go(st, t, s.ENCODED)


@inline
def lacks(st, u):
    """Return True if a write that finds no block in unit ``u`` should trigger a collection. With
    ``gc_stop`` set, writes wait for a collection in progress: a further victim would not be worth
    collecting yet."""
    return st.cfg[0].gc_stop == 0 or st.pool[u].victims == 0


@njit
def place_or_wait(st, t):
    """Place a write, or queue it until garbage collection has freed a block."""
    x = st.txn[t]
    c = st.cfg[0]
    if c.locks != 0 and held_back(st, t):
        return
    if c.partial != 0 and c.placed == 0 and merge(st, t):
        return
    if c.static != 0:
        in_turn(st, st.pool[mapping.unit_of(st, x.dev, x.lpn, x.stream)], t)
    else:
        in_turn(st, st.dev[x.dev], t)


@inline
def in_turn(st, waiting, t):
    """Place a write, or append it to the stalled writes of its unit or drive (``waiting``) if that
    queue is not empty or no block has room."""
    if waiting.stall_head < 0 and place(st, t):
        return
    st.txn[t].next = -1
    if waiting.stall_head < 0:
        waiting.stall_head = t
    else:
        st.txn[waiting.stall_tail].next = t
    waiting.stall_tail = t


@cold
def merge(st, t):
    """Start a read-modify-write if the write covers only part of the valid sectors of its page.
    Return True if the old page is read first."""
    x = st.txn[t]
    if x.bare == MERGING:
        return False
    old = st.sectors[x.dev, x.lpn]
    entry = int(st.l2p[x.dev, x.lpn])
    missing = old & ~x.sectors
    if entry == 0 or missing == 0:
        return False
    mapping.read_from(st, x.dev, entry - 1)
    read_rest(st, t, entry - 1, missing)
    return True


@cold
def read_rest(st, t, ppn, missing):
    """Read the sectors ``missing`` of the old page ``ppn`` for the read-modify-write of ``t``."""
    x = st.txn[t]
    wanted = x.sectors
    x.op = timing.READ
    x.bare = MERGING
    x.ppn = ppn
    x.sectors = missing
    x.bus = bus_bytes(st, t)
    x.sectors = wanted
    st.count[x.dev, UNASKED_OUT_BYTES] += st.cfg[0].page_bytes - x.bus
    st.count[x.dev, MERGE_READ_PAGES] += 1
    x.array = 0
    g = mapping.place_of(st, x.dev, t)
    sharing.count(st, t)
    x.array = st.page_ps[0, x.page]
    nand.push(st, g, t, nand.Q_READ)


@njit
def retry_stalled(st, dev, u):
    """Retry stalled writes, in order of arrival, after a block of unit ``u`` has become free."""
    if st.pool[u].asked != 0:
        st.pool[u].asked = 0
        ask(st, dev, u)
    if st.cfg[0].map_entries != 0:
        retry_map(st, dev)
    if st.cfg[0].cache == 1:
        cache.attend(st, dev)
    if st.cfg[0].static != 0:
        retry(st, st.pool[u])
    else:
        retry(st, st.dev[dev])


@inline
def retry(st, waiting):
    """Retry the stalled writes of a unit or drive (``waiting``) until one finds no place."""
    while waiting.stall_head >= 0:
        t = waiting.stall_head
        following = st.txn[t].next
        if not retried(st, t):
            return
        waiting.stall_head = following


@inline
def retried(st, t):
    """Retry stalled write ``t``. Return True if it has left the queue: it has a place, or it now
    waits for a locked page."""
    if st.cfg[0].locks != 0 and held_back(st, t):
        return True
    return place(st, t)


@cold
def held_back(st, t):
    """Park write ``t`` if garbage collection has locked its page. Return False if not locked."""
    if not mapping.locked(st, st.txn[t].dev, st.txn[t].lpn):
        return False
    mapping.park(st, t)
    return True


@cold
def unlock(st, u):
    """Resume the transactions parked on unit ``u`` whose pages are no longer locked: reads first,
    then writes, each in order of arrival."""
    pool = st.pool[u]
    first = -1
    last = -1
    for reads in (True, False):
        before = -1
        t = pool.parked - 1
        while t >= 0:
            x = st.txn[t]
            following = x.next
            if (x.op == timing.READ) == reads and not mapping.locked(st, x.dev, x.lpn):
                if before < 0:
                    pool.parked = following + 1
                else:
                    st.txn[before].next = following
                if following < 0:
                    pool.parked_last = before + 1
                if first < 0:
                    first = t
                else:
                    st.txn[last].next = t
                last = t
                x.next = -1
            else:
                before = t
            t = following
    while first >= 0:
        t = first
        first = st.txn[t].next
        st.txn[t].next = -1
        if st.txn[t].op == timing.READ:
            controller.fetch_again(st, t)
        else:
            place_or_wait(st, t)


@njit
def hunt(st, dev, u):
    """Check again for a collection while writes wait for a free block. Called when a page has been
    programmed or invalidated: a block that was not worth collecting, or was still being written,
    may now be a victim."""
    if st.cfg[0].map_entries != 0 and st.maps[dev].stall_first > 0:
        for v in range(dev * st.cfg[0].units, (dev + 1) * st.cfg[0].units):
            ask(st, dev, v)
    if st.cfg[0].static != 0:
        if st.pool[u].stall_head >= 0 and lacks(st, u):
            ask(st, dev, u)
        return
    if st.dev[dev].stall_head >= 0:
        for v in range(dev * st.cfg[0].units, (dev + 1) * st.cfg[0].units):
            ask(st, dev, v)


@cold
def place_map(st, t):
    """Allocate a translation page in the first unit, in turn, that has room, and start its program.
    Return False when no unit has room."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    m = x.lpn - c.lpns
    for i in range(st.turn.shape[0]):
        u = cmt.turn_of(st, dev, m, i)
        ppn = -1
        k = 0
        if mapping.fits(st, u, c.map_stream):
            ppn, k = mapping.allocate(st, dev, u, c.map_stream, 1)
        if k == 0 or st.reg[0].filled != 0:
            ask(st, dev, u)
        if k == 0:
            continue
        if c.line == 1 or not lines.inside(st, st.front[c.map_stream, u]):
            cmt.next_turn(st, dev)
        cmt.compose(st, dev, m)
        x.op = timing.PROGRAM
        x.ppn = ppn
        x.size = c.page_bytes
        x.bus = c.page_bytes
        mapping.place_of(st, dev, t)
        x.array = st.page_ps[1, x.page]
        if not encode(st, t, s.ENCODED):
            go(st, t, s.ENCODED)
        return True
    return False


@cold
def place_map_or_wait(st, t):
    """Place a translation page, or queue it until garbage collection has freed a block."""
    if st.maps[st.txn[t].dev].stall_first > 0 or not place_map(st, t):
        cmt.stall(st, t)


@cold
def retry_map(st, dev):
    """Retry stalled translation pages, in order of arrival, after a block has become free."""
    maps = st.maps[dev]
    while maps.stall_first > 0:
        t = maps.stall_first - 1
        following = st.txn[t].next
        if not place_map(st, t):
            return
        maps.stall_first = following + 1
