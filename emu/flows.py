"""Flows: what happens next to a transaction that leaves a station or a die.

Owns the routes through one device: reads, writes, collection, gradients to the dies. Does not own
plan rows and requests: a transaction that is finished is returned to dispatch.py, which completes
what it was for.
Source: the data paths of Newport and Laguna (host <-> front end <-> back end <-> flash; ISP <->
back end <-> flash, bypassing front end and NVMe), pages stored and forwarded in the controller's
DRAM; the messages of a command on the link after NVMe (doorbell, fetch, data, completion).
"""

from __future__ import annotations

from ondie.emu import stations as s
from ondie.emu.backend import bare, cmt, gc, mapping, marks, nand, policies, reading, timing
from ondie.emu.backend.draws import absorb, uniform
from ondie.emu.clock import transfer_ps
from ondie.emu.events import (
    E_STREAM,
    LOG_BPP,
    LOG_BPR,
    LOG_MOVE,
    LOG_ODC,
    LOG_PROGRAM,
    LOG_VPP,
    MERGING,
    OWN,
    RESERVOIR,
    ROW,
    calm,
    enter,
    fail,
    give_txn,
    go,
    log,
    take_txn,
)
from ondie.emu.frontend import adapter, buffer, cache, controller, pairs, queues
from ondie.emu.frontend.parts import bus_bytes, child
from ondie.emu.intrinsics import call_policy
from ondie.emu.stats import (
    ARRAY_ERASES,
    ARRAY_PROGRAMS,
    ARRAY_READS,
    BAD_BLOCKS,
    BPP_PAGES,
    BPR_PAGES,
    COLLECTIONS,
    COMMANDS,
    COPYBACK_PAGES,
    ECC_DECODED_PAGES,
    ECC_ENCODED_PAGES,
    ERASED_BLOCKS,
    FAILED_PAGES,
    GC_DROPPED,
    GC_PROGRAM_PAGES,
    GC_READ_PAGES,
    HOST_READ_BYTES,
    HOST_WRITE_BYTES,
    LINK_EXTRA_DOWN_BYTES,
    LINK_EXTRA_UP_BYTES,
    MAP_PROGRAM_PAGES,
    MERGE_READ_PAGES,
    ODC_OPS,
    PROGRAM_FAILURES,
    PROGRAM_PAGES,
    RECLAIMED_BLOCKS,
    UNASKED_IN_BYTES,
    UNASKED_OUT_BYTES,
    VPP_PAGES,
    WEAR_MOVES,
)
from ondie.kernels.jit import cold, inline, njit

HOST_PASSES = 2
"""Times a host byte crosses the device's DRAM: stored, then forwarded. The ISP's cross it once."""


# --- stations


@inline
def dram(st, t, passes, step):
    """Through the device's DRAM; False when that takes no time."""
    x = st.txn[t]
    station = s.station(st, x.dev, s.DRAM)
    service = -1
    if st.cfg[0].dram_row != 0:
        service = passes * by_rows(st, station, x.size)
    elif st.fifo[station].scale == 0:  # no limit
        x.step = step
        return False
    return enter(st, station, t, passes * x.size, service, step)


@inline
def extra(which):
    """Counter of what crosses a direction of the link beside data."""
    return LINK_EXTRA_DOWN_BYTES if which == s.DOWN else LINK_EXTRA_UP_BYTES


@njit
def tell(st, t, which, n_bytes, step):
    """A message of the protocol over the device's link."""
    st.count[st.txn[t].dev, extra(which)] += n_bytes
    return send(st, t, which, n_bytes, step)


@njit
def by_rows(st, station, n_bytes):
    """ps of one access to DRAM that opens row after row: tRCD and tCL for each, tRP between."""
    c = st.cfg[0]
    f = st.fifo[station]
    opened = (n_bytes + c.dram_row - 1) // c.dram_row
    time = transfer_ps(n_bytes, f.scale, f.shift) if f.scale > 0 else 0
    return time + opened * c.dram_open + max(opened - 1, 0) * c.dram_close


@njit
def send(st, t, which, n_bytes, step):
    """Data over the device's link, with the overhead of their packets. False when there are none,
    or they take no time."""
    x = st.txn[t]
    if n_bytes == 0:
        x.step = step
        return False
    c = st.cfg[0]
    wire = n_bytes
    station = s.station(st, x.dev, which)
    if c.packet > 0:
        packets = 1
        if n_bytes > c.packet:
            packets = (n_bytes + c.packet - 1) // c.packet
        wire += packets * c.packet_overhead
        if c.link_shift > 0:
            wire = (wire + c.link_lanes - 1) >> c.link_shift << c.link_shift
        elif c.link_shift < 0:
            wire = (wire + c.link_lanes - 1) // c.link_lanes * c.link_lanes
        st.count[x.dev, extra(which)] += wire - n_bytes
    service = -1
    if c.link_tick > 0:
        service = transfer_ps(wire, st.fifo[station].scale, st.fifo[station].shift)
        service -= service % c.link_tick
    return enter(st, station, t, wire, service, step)


@njit
def decode(st, t, step):
    """Through the decoder of the die's channel."""
    c = st.cfg[0]
    if c.errors != 0:
        return reading.decode(st, t, step)
    x = st.txn[t]
    st.count[x.dev, ECC_DECODED_PAGES] += x.n
    if c.decode == 0:
        x.step = step
        return False
    ecc = s.station(st, x.dev, s.ECC) + st.die[x.die].bus % c.channels
    return enter(st, ecc, t, x.bus, x.n * c.decode, step)


@njit
def encode(st, t, step):
    """Through the encoder of the die's channel."""
    c = st.cfg[0]
    x = st.txn[t]
    st.count[x.dev, ECC_ENCODED_PAGES] += x.n
    if c.encode == 0:
        x.step = step
        return False
    ecc = s.station(st, x.dev, s.ECC) + st.die[x.die].bus % c.channels
    return enter(st, ecc, t, x.bus, x.n * c.encode, step)


@njit
def next_piece(st, t, step):
    """The next piece of a long transfer goes through DRAM, so that others get their turn
    between."""
    x = st.txn[t]
    x.size = min(x.left, st.cfg[0].piece)
    x.left -= x.size
    if not enter(st, s.station(st, x.dev, s.DRAM), t, x.size, -1, step):
        go(st, t, step)


# --- writes


@njit
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
        ppn = -1
        k = 0
        if st.pool[u].free_n >= c.gc_stop:
            ppn, k = mapping.allocate(st, dev, u, stream, x.n)
        full = k > 0 and st.reg[0].filled != 0
        if (full and c.placed == 0) or (k == 0 and lacks(st, u)):
            ask(st, dev, u)
        if c.static == 0:
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
        pool = st.pool[mapping.unit_of(st, x.dev, x.lpn, x.stream)]
        if pool.stall_head < 0 and place(st, t):
            return
        x.next = -1
        if pool.stall_head < 0:
            pool.stall_head = t
        else:
            st.txn[pool.stall_tail].next = t
        pool.stall_tail = t
        return
    d = st.dev[x.dev]
    if d.stall_head < 0 and place(st, t):
        return
    x.next = -1
    if d.stall_head < 0:
        d.stall_head = t
    else:
        st.txn[d.stall_tail].next = t
    d.stall_tail = t


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
    st.count[x.dev, ARRAY_READS] += 1
    x.array = 0
    g = mapping.place_of(st, x.dev, t)
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
        pool = st.pool[u]
        while pool.stall_head >= 0:
            t = pool.stall_head
            following = st.txn[t].next
            if not retried(st, t):
                return
            pool.stall_head = following
        return
    d = st.dev[dev]
    while d.stall_head >= 0:
        t = d.stall_head
        following = st.txn[t].next
        if not retried(st, t):
            return
        d.stall_head = following


@inline
def retried(st, t):
    """Does write ``t`` wait for a free block no longer: has it a place, or another reason?"""
    if st.cfg[0].locks != 0 and held_back(st, t):
        return True
    return place(st, t)


# --- pages that collection has locked


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


# --- collection


@njit
def ask(st, dev, u):
    """Does unit ``u`` need a collection? Start it; a victim without valid pages is free at once."""
    while True:
        b = retiring(st, u)
        if b < 0:
            b = gc.begin(st, u)
        if b < 0:
            return
        st.count[dev, COLLECTIONS] += 1
        if not execute(st, dev, u, b):
            return


@njit
def execute(st, dev, u, b):
    """The victim's pages begin to move, behind reads of them where they are locked. True when it
    has become a free block at once."""
    if st.cfg[0].locks != 0 and st.block[b].reading > 0:
        return False
    began(st, b)
    return collect(st, dev, u, b)


@cold
def retiring(st, u):
    """A block in which a program has failed is emptied whether space is short or not."""
    c = st.cfg[0]
    if st.pool[u].retiring == 0 or st.pool[u].victims >= c.gc_parallel:
        return -1
    for b in range(u * c.all_blocks, u * c.all_blocks + c.blocks):
        block = st.block[b]
        if block.retire == 0 or block.state != mapping.FULL or block.flying != 0:
            continue
        if gc.room(st, u, b):
            gc.start(st, u, b)
            return b
    return -1


@njit
def began(st, b):
    """While collection works alone on a die, the host's work there waits."""
    if st.cfg[0].exclusive != 0:
        nand.bar(st, die_of_block(st, b), 1)


@njit
def moved_out(st, b):
    """Nothing of block ``b`` is left to be moved: the host's work may go on, behind its erase."""
    if st.cfg[0].exclusive != 0 and st.block[b].state == mapping.VICTIM:
        nand.bar(st, die_of_block(st, b), -1)


@cold
def die_of_block(st, b):
    """First lane of the die in which a block lies."""
    c = st.cfg[0]
    return b // c.all_blocks // c.die_units * c.lanes


@inline
def queue_of(st, x):
    """Queue for what the drive itself programs: translation pages have one of their own."""
    return nand.Q_MAP_WRITE if x.lpn >= st.cfg[0].lpns else st.cfg[0].q_gc_write


@njit
def collect(st, dev, u, b):
    """Keep the collection of block ``b`` going: read its next valid pages, or end it. True when it
    has become a free block at once."""
    c = st.cfg[0]
    block = st.block[b]
    while block.moving < c.gc_window:
        lpn, ppn = gc.next_valid(st, dev, b)
        if lpn < 0:
            break
        t = take_txn(st)
        if t < 0:
            return False
        x = st.txn[t]
        x.dev = dev
        x.lpn = lpn
        x.ppn = ppn
        x.old = ppn
        x.n = 1
        x.size = c.page_bytes
        x.bus = c.page_bytes
        x.left = b
        block.moving += 1
        pick_up(st, t, c.copyback != 0)
    if block.moving > 0 or block.scan < c.block_pages:
        return False
    if gc.given_up(st, b):
        moved_out(st, b)
        gc.back(st, u, b)
        mapping.look_again(st, u)
        return False
    gc.emptied(st, b)
    if block.reading > 0:
        moved_out(st, b)
        block.state = mapping.EMPTIED
        return False
    return finish(st, dev, u, b)


@njit
def pick_up(st, t, inside):
    """Read a page of a victim: it comes to the controller, or (``inside``) goes to another block of
    its plane without leaving the die, if that is where the next page goes."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    st.count[dev, GC_READ_PAGES] += 1
    st.count[dev, ARRAY_READS] += 1
    x.ppn = x.old
    x.op = timing.READ
    x.bus = c.page_bytes
    g = mapping.place_of(st, dev, t)
    x.array = st.page_ps[0, x.page]
    u = x.left // c.all_blocks
    stream = gc.collected(st, x.left)
    if inside and mapping.next_plane(st, u, stream) == mapping.plane_of(st, x.ppn):
        target, k = mapping.allocate(st, dev, u, stream, 1)
        if k > 0:
            gc.settled(st, u, x.left, 1)
            st.count[dev, COPYBACK_PAGES] += 1
            x.op = timing.COPYBACK
            x.ppn = target
            x.bus = 0
            mapping.place_of(st, dev, t)
            nand.push(st, st.die[g].first, t, queue_of(st, x))
            return
    nand.push(st, g, t, c.q_gc_read)


@njit
def finish(st, dev, u, b):
    """Block ``b`` holds nothing valid and nobody reads it. True when it is free at once."""
    c = st.cfg[0]
    block = st.block[b]
    moved_out(st, b)
    if c.erase_collected != 0 and block.retire == 0:
        block.state = mapping.ERASING
        mapping.erase(st, dev, u, b, c.q_gc_erase)
        return False
    ended(st, dev, u, b)
    return True


@njit
def read_done(st, dev, ppn):
    """Data have left the array for somebody else than collection, which may wait for it."""
    b = mapping.block_at(st, dev, ppn)
    block = st.block[b]
    block.reading -= 1
    if block.reading == 0:
        u = b // st.cfg[0].all_blocks
        if block.state == mapping.EMPTIED and finish(st, dev, u, b):
            ask(st, dev, u)
        if block.state == mapping.VICTIM and block.scan == 0:
            execute(st, dev, u, b)


@njit
def ended(st, dev, u, b):
    """Block ``b`` holds nothing any more: free, or retired."""
    block = st.block[b]
    gc.closed(st, u, b)
    if block.retire != 0:
        block.state = mapping.BAD
        st.count[dev, BAD_BLOCKS] += 1
        if block.retire == 1:
            st.pool[u].retiring -= 1
    else:
        mapping.free_block(st, u, b)
    mapping.look_again(st, u)


@njit
def after_erase(st, t):
    """A block has been erased: it is free where collection asked for it, and may have failed."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    b = x.lpn
    st.count[dev, ERASED_BLOCKS] += x.n
    st.count[dev, ARRAY_ERASES] += 1
    mapping.erased(st, t)
    if c.errors != 0:
        marks.wiped(st, dev, b)
    give_txn(st, t)
    block = st.block[b]
    u = b // c.all_blocks
    if block.state != mapping.ERASING:  # erased because it was opened
        if c.wear_static > 0 and b - u * c.all_blocks < c.blocks:
            level(st, dev, u)
        return
    block.dirty = 0
    if c.erase_failures > 0.0:
        key = absorb(absorb(c.seed, b), block.erases)
        if uniform(key, 1) < c.erase_failures:
            block.retire = 2
    ended(st, dev, u, b)
    if c.wear_static > 0:
        level(st, dev, u)
    if c.gc_stop > 0:
        retry_stalled(st, dev, u)
    if c.gc_stop == 0 or st.pool[u].free_n < c.gc_stop or st.pool[u].retiring > 0:
        ask(st, dev, u)


@cold
def level(st, dev, u):
    """Static wear levelling: the least worn full block is emptied when the most worn has seen that
    many erases more, so that its cold data move to a worn block."""
    c = st.cfg[0]
    pool = st.pool[u]
    if pool.levelled != 0 or pool.free_n <= 1 or pool.victims >= c.gc_parallel:
        return
    most = 0
    coldest = -1
    for b in range(u * c.all_blocks, u * c.all_blocks + c.blocks):
        most = max(most, st.block[b].erases)
        if policies.collectable(st, b):
            if coldest < 0 or st.block[b].erases < st.block[coldest].erases:
                coldest = b
    if coldest < 0 or most - st.block[coldest].erases < c.wear_static:
        return
    if not gc.room(st, u, coldest):
        return
    pool.levelled = coldest + 1
    gc.start(st, u, coldest)
    st.count[dev, WEAR_MOVES] += 1
    execute(st, dev, u, coldest)


@njit
def reclaim(st, dev, ppn):
    """The data of the block that page ``ppn`` lies in move to another one, if collection has time
    and room for it now; else at another read."""
    c = st.cfg[0]
    b = mapping.block_at(st, dev, ppn)
    u = b // c.all_blocks
    pool = st.pool[u]
    if pool.free_n <= c.gc_reserve or pool.victims >= c.gc_parallel:
        return
    if not policies.collectable(st, b) or not gc.room(st, u, b):
        return
    gc.start(st, u, b)
    st.count[dev, RECLAIMED_BLOCKS] += 1
    began(st, b)
    if collect(st, dev, u, b):
        ask(st, dev, u)


@njit
def moved(st, t):
    """A collected page has reached its end: programmed again, or dropped."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    b = x.left
    u = b // c.all_blocks
    give_txn(st, t)
    st.block[b].moving -= 1
    if st.pool[u].parked > 0:
        unlock(st, u)
    if collect(st, dev, u, b):
        ask(st, dev, u)


@njit
def move(st, t):
    """A collected page is in DRAM: write it to the unit's collection block, unless it was
    overwritten. True when it goes on."""
    c = st.cfg[0]
    x = st.txn[t]
    u = x.left // c.all_blocks
    if int(st.l2p[x.dev, x.lpn]) - 1 != x.old:
        st.count[x.dev, GC_DROPPED] += 1
        gc.settled(st, u, x.left, 1)
        moved(st, t)
        return
    ppn, k = mapping.allocate(st, x.dev, u, gc.collected(st, x.left), 1)
    if k == 0:
        st.count[x.dev, GC_DROPPED] += 1
        gc.give_up(st, x.left)
        moved(st, t)
        return
    gc.settled(st, u, x.left, 1)
    if st.reg[0].filled != 0 and c.gc_stop > 0:
        ask(st, x.dev, u)
    x.op = timing.PROGRAM
    x.ppn = ppn
    x.bus = c.page_bytes
    mapping.place_of(st, x.dev, t)
    x.array = st.page_ps[1, x.page]
    if not encode(st, t, s.ENCODED):
        go(st, t, s.ENCODED)


# --- the map's own pages


@cold
def map_arrived(st, t):
    """A translation page is in DRAM, for those who wait for it or to be written back."""
    c = st.cfg[0]
    x = st.txn[t]
    cmt.arrived(st, x.dev, x.lpn - c.lpns)
    if x.bare == cmt.FETCH:
        give_txn(st, t)
    else:
        place_map_or_wait(st, t)


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


@cold
def map_programmed(st, t):
    """A translation page is on flash: the directory says so."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    m = x.lpn - c.lpns
    st.count[dev, MAP_PROGRAM_PAGES] += 1
    mapping.map_page(st, dev, x.lpn, x.ppn)
    if c.partial != 0:
        st.sectors[dev, x.lpn] = -1
    give_txn(st, t)
    cmt.landed(st, dev, m)


# --- what a die has finished


@cold
def failed(st, t):
    """Has the program of transaction ``t`` failed? Its block is closed and will be retired, its
    pages look for another place."""
    c = st.cfg[0]
    x = st.txn[t]
    b = mapping.block_at(st, x.dev, x.ppn)
    block = st.block[b]
    if uniform(absorb(absorb(c.seed, x.ppn), block.erases), 0) >= c.program_failures:
        return False
    u = b // c.all_blocks
    st.count[x.dev, PROGRAM_FAILURES] += 1
    st.count[x.dev, FAILED_PAGES] += x.n
    if block.retire == 0:
        block.retire = 1
        st.pool[u].retiring += 1
    if block.state == mapping.OPEN:
        st.front[block.stream, u].block = -1
        block.state = mapping.FULL
        block.filled = st.dev[x.dev].filled
        st.dev[x.dev].filled += 1
    return True


@inline
def map_programmed_pages(st, t):
    """The pages of a write are where they were programmed."""
    c = st.cfg[0]
    x = st.txn[t]
    for i in range(x.n):
        mapping.map_page(st, x.dev, x.lpn + i, x.ppn + i)
        if c.map_entries != 0:
            cmt.update(st, x.dev, x.lpn + i)
    if c.partial != 0:
        st.sectors[x.dev, x.lpn] |= x.sectors


@cold
def landed(st, t):
    """A write is on flash. True when it came from a cache: then nobody else waits for it."""
    c = st.cfg[0]
    if c.cache != buffer.BUFFER:
        return cache.programmed(st, t)
    if c.placed == 0:
        map_programmed_pages(st, t)
    return buffer.programmed(st, t)


@njit
def programmed(st, t):
    """A program is done: its pages are mapped. Returns the transaction if somebody waits for it."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    st.count[dev, ARRAY_PROGRAMS] += 1
    b = mapping.block_at(st, dev, x.ppn)
    mapping.landed(st, dev, x.ppn, x.n)
    u = b // c.all_blocks
    if c.program_failures > 0.0 and failed(st, t):
        if x.kind == OWN and x.bare == cmt.BACK:
            place_map_or_wait(st, t)
        elif x.kind != OWN:
            place_or_wait(st, t)
        else:
            gc.settled(st, u, x.left, -1)  # it needs a place again
            if x.bus == 0:  # copied inside the die, and lost there
                st.count[dev, GC_DROPPED] += 1
                pick_up(st, t, False)
            else:
                move(st, t)
        ask(st, dev, u)
        return -1
    if c.errors != 0:
        marks.programmed(st, t)
    if x.kind != OWN:
        st.count[dev, PROGRAM_PAGES] += x.n
        if c.cache != 0 and landed(st, t):
            hunt(st, dev, u)
            if st.pool[u].retiring > 0:
                ask(st, dev, u)
            return -1
        if c.placed == 0:
            map_programmed_pages(st, t)
        if c.partial != 0 and c.errors != 0 and x.bare == MERGING:
            marks.carry(st, t)
        log(st, LOG_PROGRAM, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
        hunt(st, dev, u)
        if st.pool[u].retiring > 0:
            ask(st, dev, u)
        return t
    if x.bare == cmt.BACK:
        map_programmed(st, t)
        hunt(st, dev, u)
        return -1
    st.count[dev, GC_PROGRAM_PAGES] += 1
    if int(st.l2p[dev, x.lpn]) - 1 == x.old:
        mapping.map_page(st, dev, x.lpn, x.ppn)
        if x.lpn < c.lpns:
            if c.map_entries != 0:
                cmt.update(st, dev, x.lpn)
            log(st, LOG_MOVE, -1, x.lpn, x.ppn, x.old, 1, dev, x.die)
    if c.errors != 0:
        marks.moved(st, t)
    moved(st, t)
    if st.pool[u].retiring > 0:
        ask(st, dev, u)
    return -1


@njit
def after_flash(st, t):
    """Transaction ``t`` is done with its die: its data are out, programmed, loaded or computed.
    Returns it when it is finished, else -1."""
    x = st.txn[t]
    dev = x.dev
    if x.op == timing.READ:
        more = False
        if st.cfg[0].errors != 0:
            if x.kind == OWN or x.bare != RESERVOIR:
                more = reading.sensed(st, t)
            else:
                bare.sensed(st, t)
        if x.kind == OWN and x.bare == 0:
            if st.cfg[0].errors != 0:
                go(st, t, s.MOVE_SENSED)
            elif not decode(st, t, s.MOVE_DECODED) and not dram(st, t, HOST_PASSES, s.MOVE_IN_DRAM):
                move(st, t)
            return -1
        if (x.kind == OWN or x.bare != RESERVOIR) and not more:
            read_done(st, dev, x.ppn)
            if st.cfg[0].errors != 0 and reading.tired(st, t):
                reclaim(st, dev, x.ppn)
        go(st, t, s.MAP_SENSED if x.kind == OWN else s.SENSED)
        return -1
    if x.op == timing.PROGRAM:
        return programmed(st, t)
    if x.op == timing.ERASE:
        after_erase(st, t)
        return -1
    if x.op == timing.VPP:
        st.count[dev, VPP_PAGES] += x.n
        log(st, LOG_VPP, x.row, x.lpn, -1, -1, x.n, dev, x.die)
    elif x.op == timing.BPR:
        st.count[dev, BPR_PAGES] += x.n
        st.count[dev, ARRAY_READS] += 1
        log(st, LOG_BPR, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
        if st.cfg[0].errors != 0:
            bare.sensed(st, t)
    elif x.op == timing.ODC:
        st.count[dev, ODC_OPS] += 1
        log(st, LOG_ODC, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
    else:
        st.count[dev, BPP_PAGES] += x.n
        st.count[dev, ARRAY_PROGRAMS] += 1
        mapping.reservoir_map(st, dev, x.lpn, x.ppn)
        log(st, LOG_BPP, x.row, x.lpn, x.ppn, -1, x.n, dev, x.die)
    return t


# --- routes


@inline
def of_isp(st, x):
    """Does it work for the ISP's own command?"""
    return x.kind == ROW and st.row[x.row].resource == st.cfg[0].isp_io


@njit
def fetched(st, t):
    """The device has understood an NVMe command: do it. The command itself is finished with that,
    unless its data come first: then False."""
    c = st.cfg[0]
    x = st.txn[t]
    dev = x.dev
    st.count[dev, COMMANDS] += 1
    if x.op == timing.READ:
        st.count[dev, HOST_READ_BYTES] += x.size
        controller.cut_read(st, t)
    elif x.op == timing.PROGRAM:
        st.count[dev, HOST_WRITE_BYTES] += x.size
        if c.whole_commands != 0:
            return False
        controller.cut_write(st, t, s.WRITE_FETCHED)
    elif x.bare != queues.TRIMMING:
        if c.cache_writes != 0:
            controller.flush(st, t)
    else:
        controller.cut_trim(st, t)
        if c.static == 0:
            hunt(st, dev, dev * c.units)
        else:
            for u in range(dev * c.units, (dev + 1) * c.units):
                hunt(st, dev, u)
    return True


@cold
def fill(st, t):
    """What a read has brought from flash comes into a cache."""
    if st.cfg[0].cache == buffer.BUFFER:
        buffer.fill(st, t)
    else:
        cache.fill(st, t)


@njit
def travel(st, t):
    """Transaction ``t`` goes on until it waits somewhere (-1) or is finished (t)."""
    u = onwards(st, t)
    st.reg[0].hop = 0
    return u


@njit
def onwards(st, t):
    """Transaction ``t`` goes on from the step behind it until it waits somewhere (-1) or is
    finished (t)."""
    c = st.cfg[0]
    reg = st.reg[0]
    while True:
        x = st.txn[t]
        dev = x.dev
        step = x.step
        reg.hop = int(calm(st))
        if step == s.SENSED:
            if x.bare == MERGING:
                waits = decode(st, t, s.MERGED)
            elif x.bare != 0:
                waits = dram(st, t, HOST_PASSES, s.READ_IN_DRAM)
            else:
                waits = decode(st, t, s.DECODED)
        elif step == s.DECODED:
            if of_isp(st, x):
                waits = enter(st, s.station(st, dev, s.ISP_LINK), t, x.size, -1, s.ISP_READ_READY)
            else:
                if c.cache_fills != 0:
                    fill(st, t)
                waits = dram(st, t, HOST_PASSES, s.READ_IN_DRAM)
        elif step == s.READ_UNMAPPED:
            passes = 1 if of_isp(st, x) else HOST_PASSES
            waits = dram(st, t, passes, s.READ_IN_DRAM)
        elif step == s.READ_IN_DRAM:
            if of_isp(st, x) or (c.whole_commands != 0 and x.bare == 0):
                return t
            waits = send(st, t, s.UP, x.size, s.UP_DONE)
        elif step == s.UP_DONE:
            if c.shared_uplink == 0:
                return t
            waits = enter(st, s.UPLINK_UP, t, x.size, -1, s.PART_DONE)
        elif step == s.ENCODED:
            if x.kind == OWN:
                nand.push(st, st.die[x.die].first, t, queue_of(st, x))
            elif c.placed != 0 and x.bare == MERGING:
                nand.push_in_order(st, st.die[x.die].first, t, nand.Q_WRITE)
            else:
                nand.push(st, st.die[x.die].first, t, nand.Q_WRITE)
            return -1
        elif step == s.MOVE_SENSED:
            waits = decode(st, t, s.MOVE_DECODED)
        elif step == s.MOVE_DECODED:
            waits = dram(st, t, HOST_PASSES, s.MOVE_IN_DRAM)
        elif step == s.MOVE_IN_DRAM:
            reg.hop = 0
            move(st, t)
            return -1
        elif step == s.WRITE_FETCHED:
            if c.shared_uplink != 0:
                waits = enter(st, s.UPLINK_DOWN, t, x.size, -1, s.UPLINK_DOWN_DONE)
            else:
                waits = send(st, t, s.DOWN, x.size, s.DOWN_DONE)
        elif step == s.UPLINK_DOWN_DONE:
            waits = send(st, t, s.DOWN, x.size, s.DOWN_DONE)
        elif step == s.DOWN_DONE:
            waits = dram(st, t, 1 if c.cache_writes != 0 else HOST_PASSES, s.WRITE_IN_DRAM)
        elif step == s.WRITE_IN_DRAM or step == s.ISP_WRITE_READY:
            reg.hop = 0
            if c.cache_writes != 0 and step == s.WRITE_IN_DRAM:
                cache.store(st, t)
                return -1
            reg.prompt = 1
            if c.map_entries == 0 or not cmt.wanting(st, t):
                place_or_wait(st, t)
            reg.prompt = 0
            return -1
        elif step == s.MERGED:
            reg.hop = 0
            merged(st, t)
            return -1
        elif step == s.SUBMITTED or step == s.ENTERED:
            if c.adapter > 0 and step == s.SUBMITTED and adapter.full(st, t):
                return -1
            waits = tell(st, t, s.DOWN, c.doorbell, s.RUNG)
        elif step == s.RUNG or step == s.CALLED:
            if c.fetch_limit > 0 and step == s.RUNG and pairs.too_many(st, t):
                return -1
            waits = tell(st, t, s.UP, c.request, s.ENTRY_ASKED)
        elif step == s.ENTRY_ASKED:
            waits = tell(st, t, s.DOWN, c.entry, s.ENTRY_IN)
        elif step == s.ENTRY_IN:
            if c.adapter > 0:
                st.dev[dev].fetched += 1
            if c.entries > 0:
                pairs.entry_in(st, t)
            waits = enter(st, s.station(st, dev, s.FRONTEND), t, 0, c.command, s.FETCHED)
        elif step == s.FETCHED:
            reg.hop = 0
            if fetched(st, t):
                return t
            reg.hop = int(calm(st))
            waits = tell(st, t, s.UP, c.request, s.DATA_ASKED)
        elif step == s.DATA_ASKED:
            waits = send(st, t, s.DOWN, x.size, s.DATA_IN)
        elif step == s.DATA_IN:
            reg.hop = 0
            if c.cache == buffer.BUFFER and buffer.write(st, t):
                return -1
            controller.cut_write(st, t, s.DOWN_DONE)
            return t
        elif step == s.DATA_READY:
            waits = send(st, t, s.UP, x.size, s.DATA_SENT)
        elif step == s.COMPLETED:
            waits = tell(st, t, s.DOWN, c.doorbell, s.ACKNOWLEDGED)
        elif step == s.DATA_UP:
            waits = tell(st, t, s.UP, c.completion, s.POSTED)
        elif step == s.ISP_READ_READY:
            waits = dram(st, t, 1, s.PART_DONE)
        elif step == s.ISP_WRITE_IN_DRAM:
            link = s.station(st, dev, s.ISP_LINK)
            waits = enter(st, link, t, x.size, -1, s.ISP_WRITE_READY)
        elif step == s.ISP_WRITE_FETCHED:
            waits = dram(st, t, 1, s.ISP_WRITE_IN_DRAM)
        elif step == s.TRAFFIC_PIECE:
            if x.left == 0:
                return t
            reg.hop = 0
            next_piece(st, t, s.TRAFFIC_PIECE)
            return -1
        elif step == s.DMA_READY:
            if x.left > 0:
                v = child(st, t, x.lpn, 0)
                if v < 0:
                    return -1
                st.txn[v].left = x.left
                x.left = 0
                reg.hop = 0
                next_piece(st, v, s.DMA_READY)
            waits = send(st, t, s.UP, x.size, s.UP_DONE)
        elif step == s.DMA_UPLINK_DONE:
            waits = send(st, t, s.DOWN, x.size, s.DMA_DOWN_DONE)
        elif step == s.DMA_DOWN_DONE:
            waits = dram(st, t, 1, s.PART_DONE)
        elif step == s.SERVED:
            if c.cache == buffer.BUFFER:
                waits = buffer.access(st, t, x.size, s.READ_IN_DRAM)
            else:
                waits = dram(st, t, 1, s.READ_IN_DRAM)
        elif step == s.DESTAGE:
            if c.cache == buffer.BUFFER:
                reg.hop = 0
                buffer.send(st, t)
                return -1
            waits = dram(st, t, 1, s.DESTAGED)
        elif step == s.TRANSLATED or step == s.DESTAGED:
            reg.hop = 0
            if c.map_entries != 0 and cmt.wanting(st, t):
                return -1
            if x.op == timing.READ:
                controller.sense(st, t, x.lpn, x.lpn + x.n)
                return t
            place_or_wait(st, t)
            return -1
        elif step == s.MAP_SENSED:
            waits = decode(st, t, s.MAP_DECODED)
        elif step == s.MAP_DECODED:
            passes = HOST_PASSES if x.bare == cmt.BACK and x.ppn >= 0 else 1
            waits = dram(st, t, passes, s.MAP_IN_DRAM)
        elif step == s.MAP_IN_DRAM:
            reg.hop = 0
            map_arrived(st, t)
            return -1
        elif step == s.AGAIN:
            reg.hop = 0
            reading.again(st, t)
            return -1
        else:  # PART_DONE, POSTED, REAPED, ACKNOWLEDGED: dispatch knows
            return t
        reg.hop = 0
        if waits:
            return -1
