"""Mapping table, page allocation and free blocks.

Owns the page-level mapping table of the conventional namespace, the open blocks (write frontiers)
and free blocks of each unit, TRIM, the untimed fill, and erases of all blocks. Does not own garbage
collection (gc_victims.py, gc.py), the optimizer's super-pages (reservoir.py) or time.
Source: page-level mapping with out-of-place writes. A write is mapped when its program is done.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import LOG_ERASE, log, take_txn
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl import subpage as slots
from ondie.emu.ftl import word_lines as lines
from ondie.emu.nand import channel as nand
from ondie.emu.nand.geometry import pages
from ondie.emu.nand.timing import ERASE
from ondie.kernels.jit import cold, inline, njit

FREE, OPEN, FULL, VICTIM, EMPTIED, ERASING, BAD, FOLDABLE = range(8)
"""Block states. EMPTIED: a victim without valid pages that waits for reads issued before its pages
moved. FOLDABLE: a full block in pSLC mode (pslc.py)."""
BLOCK = record_type(
    state="i4",
    flying="i4",  # allocated pages whose program is not done
    dirty="i4",  # 1: must be erased before it is written
    erases="i4",
    moving="i4",  # pages that collection is moving
    scan="i4",  # next page slot that collection checks
    retire="i4",  # 1: a program failed in it; bad once it is empty. 2: its erase failed. 3: PINNED
    stream="i4",  # stream whose writes filled it
    die="i4",  # its location: lane of its first plane, and that plane
    plane="i4",
    filled="i8",  # number of blocks of the device filled before it
    reads="i8",  # since its last erase
    written="i8",  # when its last page was allocated, ps
    reading="i4",  # pending reads, except collection reads
    owed="i4",  # valid pages that its collection may still write elsewhere
    unseen="i4",  # pages valid when its collection began and not yet read
    last="i4",  # its last stripe of word lines to be written (word_lines.py)
    turned="i8",  # reservoir: rotation of the roles of its planes, in planes
)
PINNED = 3
"""Value of ``retire`` for a block with a page read before it was written: never collected."""
ZONE = record_type(
    first_byte="i8",  # first byte address
    first_lpn="i8",
    last_lpn="i8",  # one past its last page
    turn="i8",  # start of its allocation order in the table of turns
    units="i8",  # number of units that it may use
    rank="i8",  # priority class of its transactions, if host work is ranked by class
    caching="i8",  # bit mask: what a destage buffer caches (nvme/mqsim_cache.py)
    group="i8",  # index of its cache
    skew="i8",  # byte offset of its start within a page, if pages are numbered from there
    memory="i8",  # index of its record of recently written pages
)
FRONT = record_type(
    block="i8",  # open block of a stream on a unit, -1 = none
    next="i8",  # its next page slot
    owed="i8",  # pages that collections in progress may still write here
    turn="i8",  # in a device's first unit: next unit, if word lines are filled (word_lines.py)
    laid="i8",  # 1: an untimed fill has ended inside a stripe
)
POOL = record_type(
    free_head="i8",
    free_n="i8",
    victims="i8",  # collections in progress
    retry="i8",  # 1: in the list of units whose writes are to be retried
    retiring="i8",  # blocks in which a program has failed, not yet emptied
    levelled="i8",  # 1 + the block being emptied by static wear leveling
    stall_head="i8",  # writes waiting for a free block of this unit
    stall_tail="i8",
    parked="i8",  # 1 + the first transaction that waits for a page which collection has locked
    parked_last="i8",
    asked="i8",  # 1: a block has been filled, and the check for a collection is pending
    lines="i8",  # 1 + first program of the newest incomplete word line (word_line_buffer.py)
    r_next="i8",  # next reservoir super-page of this die, in sequence
    made="i8",  # parities and records that wait for this die (reservoir_parity.py)
)


@inline
def block_at(st, dev, ppn):
    """Return the index of a physical page's block among all blocks of all devices."""
    c = st.cfg[0]
    b = ppn >> c.block_shift if c.block_shift >= 0 else ppn // c.block_pages
    return dev * c.device_blocks + b


@inline
def first_page(st, dev, block):
    """Return the first physical page of a block, within its device."""
    c = st.cfg[0]
    return (block - dev * c.device_blocks) * c.block_pages


@inline
def die_of(st, u):
    """Return the die of a unit, as an index among all dies."""
    return u // st.cfg[0].die_units


@njit
def place_of(st, dev, t):
    """Set the die, planes and page offset of transaction ``t`` from its first physical page.
    Return the die (lane)."""
    c = st.cfg[0]
    x = st.txn[t]
    b = block_at(st, dev, x.ppn)
    block = st.block[b]
    x.page = x.ppn - first_page(st, dev, b)
    plane = block.plane
    n = x.n
    if c.together > 1:
        slot = x.page
        x.page = slot // c.together
        slot -= x.page * c.together
        if c.slots > 1:
            n = pages(st, x.ppn, n)
            slot //= c.slots
        plane += slot
    x.planes = ((1 << n) - 1) << plane
    x.die = block.die
    if block.stream == c.pslc_stream:
        x.page += c.pages
    if c.lanes > 1 and c.unit_planes > 1:
        x.die += plane
    return x.die


@njit
def take_free(st, u, stream):
    """Take the next free block from the ring, which is ordered by erase count or by age. Data
    moved by static wear leveling go to the most worn block."""
    c = st.cfg[0]
    pool = st.pool[u]
    if pool.levelled != 0 and stream >= c.collected:
        worn_first(st, u)
    b = st.free[u, pool.free_head]
    pool.free_head = pool.free_head + 1 if pool.free_head + 1 < c.blocks else 0
    pool.free_n -= 1
    return b


@cold
def worn_first(st, u):
    """Move the most worn free block of a unit to the head of the ring and shift the blocks before
    it back by one."""
    c = st.cfg[0]
    pool = st.pool[u]
    first = u * c.all_blocks
    at = pool.free_head
    worn = 0
    most = -1
    for i in range(pool.free_n):
        if st.block[first + st.free[u, at]].erases > most:
            most = st.block[first + st.free[u, at]].erases
            worn = i
        at = at + 1 if at + 1 < c.blocks else 0
    at = pool.free_head
    carried = st.free[u, (pool.free_head + worn) % c.blocks]
    for _ in range(worn + 1):
        following = st.free[u, at]
        st.free[u, at] = carried
        carried = following
        at = at + 1 if at + 1 < c.blocks else 0


@cold
def needy(st, u):
    """Return True if collection is urgent in unit ``u`` or in a unit that shares its command path:
    a unit of its die, or of its chip if the chip takes one command at a time."""
    c = st.cfg[0]
    if st.pool[u].free_n < c.gc_hard:
        return True
    if c.die_units == 1 and c.chip == 0:
        return False
    first = st.die[u // c.die_units * c.lanes].first
    g = first
    while g < st.die.shape[0] and st.die[g].first == first:
        die = g // c.lanes
        for v in range(die * c.die_units, (die + 1) * c.die_units):
            if st.pool[v].free_n < c.gc_hard:
                return True
        g += c.channels * c.lanes
    return False


@njit
def urgency(st, u):
    """Give collection priority over host transactions on the die while free blocks are short."""
    c = st.cfg[0]
    if c.gc_hard > 0:
        nand.hurry(st, u // c.die_units * c.lanes, int(needy(st, u)))


@njit
def free_block(st, u, block):
    """Add a block without valid pages to the unit's free ring: at the end or, with dynamic wear
    leveling, behind the blocks with at most as many erases."""
    c = st.cfg[0]
    pool = st.pool[u]
    at = pool.free_head + pool.free_n
    if at >= c.blocks:
        at -= c.blocks
    first = u * c.all_blocks
    erases = st.block[block].erases
    if c.wear_dynamic != 0:
        n = pool.free_n
        while n > 0:
            before = at - 1 if at > 0 else c.blocks - 1
            b = st.free[u, before]
            if st.block[first + b].erases <= erases:
                break
            st.free[u, at] = b
            at = before
            n -= 1
    st.free[u, at] = block - first
    pool.free_n += 1
    st.block[block].state = FREE
    st.block[block].stream = -1
    urgency(st, u)


@njit
def promised(st, u, to, pages):
    """Return the number of free blocks of unit ``u`` that collections in progress may need, plus
    one more collection that moves ``pages`` pages to stream ``to``."""
    c = st.cfg[0]
    blocks = 0
    for stream in range(c.collected, st.front.shape[0]):
        front = st.front[stream, u]
        left = front.owed
        if stream == to:
            left += pages
        if front.block >= 0:
            left -= c.block_pages - front.next
            if front.laid != 0:
                left += -front.next % c.stripe
        if left > 0:
            blocks += (left + c.block_pages - 1) // c.block_pages
    return blocks


@njit
def spare(st, u):
    """Return True if unit ``u`` has free blocks that are not reserved for collection."""
    pool = st.pool[u]
    if pool.free_n <= st.cfg[0].gc_reserve:
        return False
    return pool.victims == 0 or pool.free_n > promised(st, u, -1, 0) + st.cfg[0].fold_keep


@njit
def fits(st, u, stream):
    """Return True if an internal write may use a page of a stream that collection also fills."""
    if st.front[stream, u].block < 0:
        return spare(st, u)
    if st.pool[u].victims == 0:
        return True
    return promised(st, u, stream, 1) + st.cfg[0].fold_keep <= st.pool[u].free_n


@njit
def open_block(st, dev, u, stream):
    """Open a free block for a stream. Return False when the unit has no block available. Host
    writes may not take the blocks that collection needs."""
    c = st.cfg[0]
    pool = st.pool[u]
    if pool.free_n == 0 or (stream < c.collected and not spare(st, u)):
        return False
    b = take_free(st, u, stream)
    block = st.block[u * c.all_blocks + b]
    block.state = OPEN
    block.stream = stream
    block.last = c.block_pages // c.stripe - 1
    if c.errors != 0:
        st.quality[u * c.all_blocks + b].since = st.reg[0].now
    front = st.front[stream, u]
    front.block = b
    front.next = 0
    urgency(st, u)
    return True


@njit
def erase(st, dev, u, block, queue):
    """Queue the erase of a block on all of its planes."""
    c = st.cfg[0]
    t = take_txn(st)
    if t < 0:
        return
    x = st.txn[t]
    x.op = ERASE
    x.dev = dev
    x.n = c.unit_planes
    x.ppn = first_page(st, dev, block)
    x.lpn = block
    if st.block[block].stream == c.pslc_stream:
        x.array = c.pslc_erase
    g = place_of(st, dev, t)
    if c.slots > 1:
        x.planes = ((1 << c.unit_planes) - 1) << st.block[block].plane
    if c.lanes > 1:
        g = st.die[g].first
    if block - u * c.all_blocks >= c.blocks:
        x.planes = planes_in_use(st, st.block[block].turned)
        x.n = c.reservoir_planes
    nand.push(st, g, t, queue)


@inline
def planes_in_use(st, turned):
    """Return the mask of the planes of a reservoir block that super-pages fill."""
    c = st.cfg[0]
    wide = ((1 << c.reservoir_planes) - 1) << turned
    return (wide | wide >> c.planes) & ((1 << c.planes) - 1)


@njit
def erased(st, t):
    """Complete the erase of transaction ``t``: update erase counts and log it."""
    c = st.cfg[0]
    x = st.txn[t]
    block = st.block[x.lpn]
    block.erases += 1
    block.reads = 0
    of_unit = x.lpn % c.all_blocks
    planes = -1
    if of_unit >= c.blocks:
        planes = x.planes
        at = x.lpn // c.all_blocks * (c.all_blocks - c.blocks) + of_unit - c.blocks
        for plane in range(c.planes):
            st.worn[at, plane] += planes >> plane & 1
    log(st, LOG_ERASE, -1, -1, x.ppn, planes, c.block_pages, x.dev, x.die)


@njit
def allocate(st, dev, u, stream, n):
    """Allocate up to ``n`` page slots at consecutive planes of one page offset of unit ``u``.

    Return (first ppn, count), or (-1, 0) when the unit has no block to write to. ``reg.filled``
    is 1 if the block is full now.
    """
    c = st.cfg[0]
    reg = st.reg[0]
    front = st.front[stream, u]
    if front.laid != 0:
        skip(st, dev, u, front)
    reg.filled = 0
    if front.block < 0 and not open_block(st, dev, u, stream):
        return -1, 0
    k = 1
    if n > 1:
        k = min(n, c.unit_planes - front.next % c.unit_planes)
        if c.multi_plane == 0:
            k = 1
        if c.slots > 1:
            k = slots.together(st, front.next, n)
    at = u * c.all_blocks + front.block
    block = st.block[at]
    ppn = first_page(st, dev, at) + front.next
    if front.next == 0 and block.dirty != 0:
        queue = c.q_gc_write if stream >= c.collected else nand.Q_WRITE
        if stream == c.map_stream:
            queue = nand.Q_MAP_WRITE
        erase(st, dev, u, at, queue)
    block.dirty = 1
    front.next += k
    block.flying += k
    if front.next == c.block_pages:
        shut(st, dev, front, block)
        reg.filled = 1
        if c.open_ahead != 0 and (stream < c.collected + c.collected_streams or spare(st, u)):
            open_block(st, dev, u, stream)
    return ppn, k


@inline
def shut(st, dev, front, block):
    """Close the open block of a write frontier, which is full."""
    front.block = -1
    block.state = FULL
    block.filled = st.dev[dev].filled
    block.written = st.reg[0].now
    st.dev[dev].filled += 1


@cold
def skip(st, dev, u, front):
    """Advance the write frontier to the next stripe of word lines after an untimed fill that ended
    inside a stripe and left the rest unprogrammed."""
    c = st.cfg[0]
    front.laid = 0
    front.next += -front.next % c.stripe
    if front.next == c.block_pages:
        shut(st, dev, front, st.block[u * c.all_blocks + front.block])


@cold
def lay(st, u, stream, before):
    """Set ``laid`` of a write frontier used by an untimed fill: whether the fill ended inside a
    stripe (``before`` 0), or 0 when the fill continues (``before`` 1)."""
    front = st.front[stream, u]
    front.laid = int(before == 0 and lines.inside(st, front))


@inline
def plane_of(st, ppn):
    """Return the plane, within its unit, of a page."""
    return ppn % st.cfg[0].unit_planes


@inline
def next_plane(st, u, stream):
    """Return the plane of the next page of a stream."""
    front = st.front[stream, u]
    return front.next % st.cfg[0].unit_planes if front.block >= 0 else 0


@inline
def unmap(st, dev, lpn):
    """Remove a logical page from the mapping table; its physical page becomes invalid."""
    old = st.l2p[dev, lpn]
    if old != 0:
        st.valid[block_at(st, dev, np_int(old) - 1)] -= 1
        st.l2p[dev, lpn] = 0
        st.dev[dev].mapped -= 1


@inline
def np_int(entry):
    """Return an unsigned mapping entry as a signed number."""
    return int(entry)


@inline
def map_page(st, dev, lpn, ppn):
    """Map logical page ``lpn`` to physical page ``ppn``."""
    unmap(st, dev, lpn)
    st.l2p[dev, lpn] = ppn + 1
    st.p2l[dev, ppn] = lpn + 1
    st.valid[block_at(st, dev, ppn)] += 1
    st.dev[dev].mapped += 1


@inline
def read_from(st, dev, ppn):
    """Count a pending read of a page. The page's block is not erased until the read is done."""
    st.block[block_at(st, dev, ppn)].reading += 1


@inline
def landed(st, dev, ppn, n):
    """Record that ``n`` pages allocated at ``ppn`` have been programmed."""
    st.block[block_at(st, dev, ppn)].flying -= n


@inline
def locked(st, dev, lpn):
    """Return True if a logical page lies in a victim block and has not been moved yet."""
    entry = int(st.l2p[dev, lpn])
    return entry != 0 and st.block[block_at(st, dev, entry - 1)].state == VICTIM


@cold
def park(st, t):
    """Park transaction ``t`` until collection has moved its page."""
    x = st.txn[t]
    b = block_at(st, x.dev, int(st.l2p[x.dev, x.lpn]) - 1)
    pool = st.pool[b // st.cfg[0].all_blocks]
    x.next = -1
    if pool.parked == 0:
        pool.parked = t + 1
    else:
        st.txn[pool.parked_last - 1].next = t
    pool.parked_last = t + 1


@cold
def as_written(st, dev, lpn, stream):
    """Map a page that is read before it was written, as if it had been written. Its block is never
    collected. Return False when there is no place."""
    if fill(st, dev, lpn, 1, stream) != 0:
        return False
    b = block_at(st, dev, int(st.l2p[dev, lpn]) - 1)
    st.block[b].retire = PINNED
    u = b // st.cfg[0].all_blocks
    if st.reg[0].filled != 0:
        st.pool[u].asked = 1
        look_again(st, u)
    return True


@njit
def look_again(st, u):
    """Schedule a check of unit ``u`` before the clock advances: retry its stalled writes and start
    a collection if needed."""
    if st.pool[u].retry == 0:
        st.pool[u].retry = 1
        st.retry[st.reg[0].retries] = u
        st.reg[0].retries += 1


@njit
def fill(st, dev, lpn, n, stream):
    """Map ``n`` pages from ``lpn`` on as if written in sequence, in zero time.

    Return the number of pages without a place. A fill counts no erase.
    """
    c = st.cfg[0]
    d = st.dev[dev]
    without = 0
    while n > 0:
        u = unit_of(st, dev, lpn, stream)
        if c.line > 1:
            if c.static == 0:
                u = lines.unit_in_turn(st, dev, stream)
            lay(st, u, stream, 1)
        pool = st.pool[u]
        if st.front[stream, u].block < 0 and pool.free_n > c.gc_reserve:
            st.block[u * c.all_blocks + st.free[u, pool.free_head]].dirty = 0
        limit = n if c.static == 0 else 1
        ppn, k = allocate(st, dev, u, stream, limit)
        if c.line > 1:
            lay(st, u, stream, 0)
            lines.next_turn(st, dev, u, stream, k)
        elif c.static == 0:
            d.cursor = d.cursor + 1 if d.cursor + 1 < c.units else 0
        if k == 0:
            without += 1
            if without == c.units or c.static != 0:
                return n
            continue
        without = 0
        for i in range(k):
            map_page(st, dev, lpn + i, ppn + i)
        landed(st, dev, ppn, k)
        lpn += k
        n -= k
    return 0


@inline
def unit_of(st, dev, lpn, stream):
    """Return the unit of the next page: by its number within its zone, or the next in turn."""
    c = st.cfg[0]
    at = st.dev[dev].cursor
    if c.static != 0:
        zone = st.zone[stream]
        at = lpn - zone.first_lpn
        if c.together > 1:
            at //= c.together
        at = zone.turn + at % zone.units
    return dev * c.units + st.turn[at]
