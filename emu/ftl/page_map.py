"""Mapping table, page allocation and free blocks.

Owns the page-level mapping table of the conventional namespace, the open blocks (write frontiers)
and free blocks of each unit, TRIM, the untimed fill, and erases of all blocks. Does not own garbage
collection (gc_victims.py, gc.py), the optimizer's super-pages (reservoir.py) or time.
Source: page-level mapping with out-of-place writes. A write is mapped when its program is done.
"""

from __future__ import annotations

from ondie.emu.engine.core.events import LOG_ERASE, log, take_txn
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl import subpage, word_lines
from ondie.emu.nand.die import Q_MAP_WRITE, Q_WRITE
from ondie.emu.nand.die_scheduler import hurry, push
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
    cfg = st.cfg[0]
    block = ppn >> cfg.block_shift if cfg.block_shift >= 0 else ppn // cfg.block_pages
    return dev * cfg.device_blocks + block


@inline
def first_page(st, dev, block):
    """Return the first physical page of a block, within its device."""
    cfg = st.cfg[0]
    return (block - dev * cfg.device_blocks) * cfg.block_pages


@inline
def die_of(st, unit):
    """Return the die of a unit, as an index among all dies."""
    return unit // st.cfg[0].die_units


@njit
def place_of(st, dev, tid):
    """Set the die, planes and page offset of transaction ``tid`` from its first physical page.
    Return the die (lane)."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    bid = block_at(st, dev, txn.ppn)
    block = st.block[bid]
    txn.page = txn.ppn - first_page(st, dev, bid)
    plane = block.plane
    count = txn.n
    if cfg.together > 1:
        slot = txn.page
        txn.page = slot // cfg.together
        slot -= txn.page * cfg.together
        if cfg.slots > 1:
            count = pages(st, txn.ppn, count)
            slot //= cfg.slots
        plane += slot
    txn.planes = ((1 << count) - 1) << plane
    txn.die = block.die
    if block.stream == cfg.pslc_stream:
        txn.page += cfg.pages
    if cfg.lanes > 1 and cfg.unit_planes > 1:
        txn.die += plane
    return txn.die


@njit
def take_free(st, unit, stream):
    """Take the next free block from the ring, which is ordered by erase count or by age. Data
    moved by static wear leveling go to the most worn block."""
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if pool.levelled != 0 and stream >= cfg.collected:
        worn_first(st, unit)
    block = st.free[unit, pool.free_head]
    pool.free_head = pool.free_head + 1 if pool.free_head + 1 < cfg.blocks else 0
    pool.free_n -= 1
    return block


@cold
def worn_first(st, unit):
    """Move the most worn free block of a unit to the head of the ring and shift the blocks before
    it back by one."""
    cfg = st.cfg[0]
    pool = st.pool[unit]
    first = unit * cfg.all_blocks
    at = pool.free_head
    worn = 0
    most = -1
    for i in range(pool.free_n):
        if st.block[first + st.free[unit, at]].erases > most:
            most = st.block[first + st.free[unit, at]].erases
            worn = i
        at = at + 1 if at + 1 < cfg.blocks else 0
    at = pool.free_head
    carried = st.free[unit, (pool.free_head + worn) % cfg.blocks]
    for _ in range(worn + 1):
        following = st.free[unit, at]
        st.free[unit, at] = carried
        carried = following
        at = at + 1 if at + 1 < cfg.blocks else 0


@cold
def needy(st, unit):
    """Return True if collection is urgent in unit ``unit`` or in a unit that shares its command
    path: a unit of its die, or of its chip if the chip takes one command at a time."""
    cfg = st.cfg[0]
    if st.pool[unit].free_n < cfg.gc_hard:
        return True
    if cfg.die_units == 1 and cfg.chip == 0:
        return False
    first = st.die[unit // cfg.die_units * cfg.lanes].first
    at = first
    while at < st.die.shape[0] and st.die[at].first == first:
        die = at // cfg.lanes
        for other in range(die * cfg.die_units, (die + 1) * cfg.die_units):
            if st.pool[other].free_n < cfg.gc_hard:
                return True
        at += cfg.channels * cfg.lanes
    return False


@njit
def urgency(st, unit):
    """Give collection priority over host transactions on the die while free blocks are short."""
    cfg = st.cfg[0]
    if cfg.gc_hard > 0:
        hurry(st, unit // cfg.die_units * cfg.lanes, int(needy(st, unit)))


@njit
def free_block(st, unit, block):
    """Add a block without valid pages to the unit's free ring: at the end or, with dynamic wear
    leveling, behind the blocks with at most as many erases."""
    cfg = st.cfg[0]
    pool = st.pool[unit]
    at = pool.free_head + pool.free_n
    if at >= cfg.blocks:
        at -= cfg.blocks
    first = unit * cfg.all_blocks
    erases = st.block[block].erases
    if cfg.wear_dynamic != 0:
        count = pool.free_n
        while count > 0:
            before = at - 1 if at > 0 else cfg.blocks - 1
            bid = st.free[unit, before]
            if st.block[first + bid].erases <= erases:
                break
            st.free[unit, at] = bid
            at = before
            count -= 1
    st.free[unit, at] = block - first
    pool.free_n += 1
    st.block[block].state = FREE
    st.block[block].stream = -1
    urgency(st, unit)


@njit
def promised(st, unit, to, pages):
    """Return the number of free blocks of unit ``unit`` that collections in progress may need, plus
    one more collection that moves ``pages`` pages to stream ``to``."""
    cfg = st.cfg[0]
    blocks = 0
    for stream in range(cfg.collected, st.front.shape[0]):
        front = st.front[stream, unit]
        left = front.owed
        if stream == to:
            left += pages
        if front.block >= 0:
            left -= cfg.block_pages - front.next
            if front.laid != 0:
                left += -front.next % cfg.stripe
        if left > 0:
            blocks += (left + cfg.block_pages - 1) // cfg.block_pages
    return blocks


@njit
def spare(st, unit):
    """Return True if unit ``unit`` has free blocks that are not reserved for collection."""
    pool = st.pool[unit]
    if pool.free_n <= st.cfg[0].gc_reserve:
        return False
    return pool.victims == 0 or pool.free_n > promised(st, unit, -1, 0) + st.cfg[0].fold_keep


@njit
def fits(st, unit, stream):
    """Return True if an internal write may use a page of a stream that collection also fills."""
    if st.front[stream, unit].block < 0:
        return spare(st, unit)
    if st.pool[unit].victims == 0:
        return True
    return promised(st, unit, stream, 1) + st.cfg[0].fold_keep <= st.pool[unit].free_n


@njit
def open_block(st, dev, unit, stream):
    """Open a free block for a stream. Return False when the unit has no block available. Host
    writes may not take the blocks that collection needs."""
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if pool.free_n == 0 or (stream < cfg.collected and not spare(st, unit)):
        return False
    bid = take_free(st, unit, stream)
    block = st.block[unit * cfg.all_blocks + bid]
    block.state = OPEN
    block.stream = stream
    block.last = cfg.block_pages // cfg.stripe - 1
    if cfg.errors != 0:
        st.quality[unit * cfg.all_blocks + bid].since = st.reg[0].now
    front = st.front[stream, unit]
    front.block = bid
    front.next = 0
    urgency(st, unit)
    return True


@njit
def erase(st, dev, unit, block, queue):
    """Queue the erase of a block on all of its planes."""
    cfg = st.cfg[0]
    tid = take_txn(st)
    if tid < 0:
        return
    txn = st.txn[tid]
    txn.op = ERASE
    txn.dev = dev
    txn.n = cfg.unit_planes
    txn.ppn = first_page(st, dev, block)
    txn.lpn = block
    if st.block[block].stream == cfg.pslc_stream:
        txn.array = cfg.pslc_erase
    die = place_of(st, dev, tid)
    if cfg.slots > 1:
        txn.planes = ((1 << cfg.unit_planes) - 1) << st.block[block].plane
    if cfg.lanes > 1:
        die = st.die[die].first
    if block - unit * cfg.all_blocks >= cfg.blocks:
        txn.planes = planes_in_use(st, st.block[block].turned)
        txn.n = cfg.reservoir_planes
    push(st, die, tid, queue)


@inline
def planes_in_use(st, turned):
    """Return the mask of the planes of a reservoir block that super-pages fill."""
    cfg = st.cfg[0]
    wide = ((1 << cfg.reservoir_planes) - 1) << turned
    return (wide | wide >> cfg.planes) & ((1 << cfg.planes) - 1)


@njit
def erased(st, tid):
    """Complete the erase of transaction ``tid``: update erase counts and log it."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    block = st.block[txn.lpn]
    block.erases += 1
    block.reads = 0
    of_unit = txn.lpn % cfg.all_blocks
    planes = -1
    if of_unit >= cfg.blocks:
        planes = txn.planes
        at = txn.lpn // cfg.all_blocks * (cfg.all_blocks - cfg.blocks) + of_unit - cfg.blocks
        for plane in range(cfg.planes):
            st.worn[at, plane] += planes >> plane & 1
    log(st, LOG_ERASE, -1, -1, txn.ppn, planes, cfg.block_pages, txn.dev, txn.die)


@njit
def allocate(st, dev, unit, stream, count):
    """Allocate up to ``count`` page slots at consecutive planes of one page offset of unit
    ``unit``.

    Return (first ppn, count), or (-1, 0) when the unit has no block to write to. ``reg.filled``
    is 1 if the block is full now.
    """
    cfg = st.cfg[0]
    reg = st.reg[0]
    front = st.front[stream, unit]
    if front.laid != 0:
        skip(st, dev, unit, front)
    reg.filled = 0
    if front.block < 0 and not open_block(st, dev, unit, stream):
        return -1, 0
    got = 1
    if count > 1:
        got = min(count, cfg.unit_planes - front.next % cfg.unit_planes)
        if cfg.multi_plane == 0:
            got = 1
        if cfg.slots > 1:
            got = subpage.together(st, front.next, count)
    at = unit * cfg.all_blocks + front.block
    block = st.block[at]
    ppn = first_page(st, dev, at) + front.next
    if front.next == 0 and block.dirty != 0:
        queue = cfg.q_gc_write if stream >= cfg.collected else Q_WRITE
        if stream == cfg.map_stream:
            queue = Q_MAP_WRITE
        erase(st, dev, unit, at, queue)
    block.dirty = 1
    front.next += got
    block.flying += got
    if front.next == cfg.block_pages:
        shut(st, dev, front, block)
        reg.filled = 1
        if cfg.open_ahead != 0 and (
            stream < cfg.collected + cfg.collected_streams or spare(st, unit)
        ):
            open_block(st, dev, unit, stream)
    return ppn, got


@inline
def shut(st, dev, front, block):
    """Close the open block of a write frontier, which is full."""
    front.block = -1
    block.state = FULL
    block.filled = st.dev[dev].filled
    block.written = st.reg[0].now
    st.dev[dev].filled += 1


@cold
def skip(st, dev, unit, front):
    """Advance the write frontier to the next stripe of word lines after an untimed fill that ended
    inside a stripe and left the rest unprogrammed."""
    cfg = st.cfg[0]
    front.laid = 0
    front.next += -front.next % cfg.stripe
    if front.next == cfg.block_pages:
        shut(st, dev, front, st.block[unit * cfg.all_blocks + front.block])


@cold
def lay(st, unit, stream, before):
    """Set ``laid`` of a write frontier used by an untimed fill: whether the fill ended inside a
    stripe (``before`` 0), or 0 when the fill continues (``before`` 1)."""
    front = st.front[stream, unit]
    front.laid = int(before == 0 and word_lines.inside(st, front))


@inline
def plane_of(st, ppn):
    """Return the plane, within its unit, of a page."""
    return ppn % st.cfg[0].unit_planes


@inline
def next_plane(st, unit, stream):
    """Return the plane of the next page of a stream."""
    front = st.front[stream, unit]
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
def landed(st, dev, ppn, count):
    """Record that ``count`` pages allocated at ``ppn`` have been programmed."""
    st.block[block_at(st, dev, ppn)].flying -= count


@inline
def locked(st, dev, lpn):
    """Return True if a logical page lies in a victim block and has not been moved yet."""
    entry = int(st.l2p[dev, lpn])
    return entry != 0 and st.block[block_at(st, dev, entry - 1)].state == VICTIM


@cold
def park(st, tid):
    """Park transaction ``tid`` until collection has moved its page."""
    txn = st.txn[tid]
    block = block_at(st, txn.dev, int(st.l2p[txn.dev, txn.lpn]) - 1)
    pool = st.pool[block // st.cfg[0].all_blocks]
    txn.next = -1
    if pool.parked == 0:
        pool.parked = tid + 1
    else:
        st.txn[pool.parked_last - 1].next = tid
    pool.parked_last = tid + 1


@cold
def as_written(st, dev, lpn, stream):
    """Map a page that is read before it was written, as if it had been written. Its block is never
    collected. Return False when there is no place."""
    if fill(st, dev, lpn, 1, stream) != 0:
        return False
    block = block_at(st, dev, int(st.l2p[dev, lpn]) - 1)
    st.block[block].retire = PINNED
    unit = block // st.cfg[0].all_blocks
    if st.reg[0].filled != 0:
        st.pool[unit].asked = 1
        look_again(st, unit)
    return True


@njit
def look_again(st, unit):
    """Schedule a check of unit ``unit`` before the clock advances: retry its stalled writes and
    start a collection if needed."""
    if st.pool[unit].retry == 0:
        st.pool[unit].retry = 1
        st.retry[st.reg[0].retries] = unit
        st.reg[0].retries += 1


@njit
def fill(st, dev, lpn, count, stream):
    """Map ``count`` pages from ``lpn`` on as if written in sequence, in zero time.

    Return the number of pages without a place. A fill counts no erase.
    """
    cfg = st.cfg[0]
    dev_rec = st.dev[dev]
    without = 0
    while count > 0:
        unit = unit_of(st, dev, lpn, stream)
        if cfg.line > 1:
            if cfg.static == 0:
                unit = word_lines.unit_in_turn(st, dev, stream)
            lay(st, unit, stream, 1)
        pool = st.pool[unit]
        if st.front[stream, unit].block < 0 and pool.free_n > cfg.gc_reserve:
            st.block[unit * cfg.all_blocks + st.free[unit, pool.free_head]].dirty = 0
        limit = count if cfg.static == 0 else 1
        ppn, got = allocate(st, dev, unit, stream, limit)
        if cfg.line > 1:
            lay(st, unit, stream, 0)
            word_lines.next_turn(st, dev, unit, stream, got)
        elif cfg.static == 0:
            dev_rec.cursor = dev_rec.cursor + 1 if dev_rec.cursor + 1 < cfg.units else 0
        if got == 0:
            without += 1
            if without == cfg.units or cfg.static != 0:
                return count
            continue
        without = 0
        for i in range(got):
            map_page(st, dev, lpn + i, ppn + i)
        landed(st, dev, ppn, got)
        lpn += got
        count -= got
    return 0


@inline
def unit_of(st, dev, lpn, stream):
    """Return the unit of the next page: by its number within its zone, or the next in turn."""
    cfg = st.cfg[0]
    at = st.dev[dev].cursor
    if cfg.static != 0:
        zone = st.zone[stream]
        at = lpn - zone.first_lpn
        if cfg.together > 1:
            at //= cfg.together
        at = zone.turn + at % zone.units
    return dev * cfg.units + st.turn[at]
