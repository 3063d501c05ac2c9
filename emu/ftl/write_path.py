"""Placing: writes, and the map's own pages, get their places on flash, or wait for one.

Owns the order in which writes look for a block, what of their page they read first, and who waits
for collection. Does not own places themselves (mapping.py) or what follows a program (landing.py).
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
    """Give the pages of a write their physical places, unit after unit, and send them on. Returns
    False when no unit has a block to write to."""
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
    """Places of unit ``u`` in its pSLC block, or in a native one where there is none or the stream
    does not go there: as mapping.allocate."""
    if modes.takes(st, stream):
        ppn, k = modes.allocate(st, dev, u, n)
        if k > 0 or folding.waits(st, u):
            return ppn, k
    if st.pool[u].free_n < st.cfg[0].gc_stop:
        return -1, 0
    return mapping.allocate(st, dev, u, stream, n)


@njit
def map_placed(st, t, u, full):
    """A write is mapped as soon as it has its place, before unit ``u``, one more block of which is
    ``full``, collects what it has made invalid. True when its page held sectors that it does not
    bring: it takes its turn once they have been read from the old place."""
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
    """A write has read the rest of its page: it needs a place, or has one and takes its turn
    there."""
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
    """A write finds no block in unit ``u``: is that a reason to collect? Not where writes wait for
    what is under way (``gc_stop``): a victim more would be one that is not worth it yet."""
    return st.cfg[0].gc_stop == 0 or st.pool[u].victims == 0


@njit
def place_or_wait(st, t):
    """Place a write, or let it wait until collection has freed a block."""
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
    """Place a write unless others of its unit or drive (``waiting``) wait already, or none has room
    for it: it waits behind them."""
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
    """A write that covers only part of what its page holds needs the rest: it reads the old page
    first. True when it does."""
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
    """Write ``t`` reads sectors that its page held, at ``ppn``."""
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
    """A block has become free: writes that waited for one try again, in order."""
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
    """Writes of a unit or drive try again until one finds no place."""
    while waiting.stall_head >= 0:
        t = waiting.stall_head
        following = st.txn[t].next
        if not retried(st, t):
            return
        waiting.stall_head = following


@inline
def retried(st, t):
    """Does write ``t`` wait for a free block no longer: has it a place, or another reason?"""
    if st.cfg[0].locks != 0 and held_back(st, t):
        return True
    return place(st, t)


@cold
def held_back(st, t):
    """Write ``t`` waits where collection has yet to move its page. False when that is not so."""
    if not mapping.locked(st, st.txn[t].dev, st.txn[t].lpn):
        return False
    mapping.park(st, t)
    return True


@cold
def unlock(st, u):
    """Reads, then writes that waited for pages of unit ``u`` which are in place now go on, in order
    of arrival."""
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
    """A page has landed or become invalid while writes wait for a free block: a block that was not
    worth collecting when they were refused, or still being written, may be now."""
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
    """Give a translation page its place, in the first unit in turn that has one, and send it on.
    Returns False when none has."""
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
    """Place a translation page, or let it wait until collection has freed a block."""
    if st.maps[st.txn[t].dev].stall_first > 0 or not place_map(st, t):
        cmt.stall(st, t)


@cold
def retry_map(st, dev):
    """A block has become free: translation pages that waited for one try again, in order."""
    maps = st.maps[dev]
    while maps.stall_first > 0:
        t = maps.stall_first - 1
        following = st.txn[t].next
        if not place_map(st, t):
            return
        maps.stall_first = following + 1
