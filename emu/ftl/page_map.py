"""Mapping table of the conventional namespace, and the records of blocks and units.

Owns the page-level mapping, the location of a page on flash, valid counts and locks of pages, and
the log of programs with the out-of-band data of their pages. Does not own the allocation of pages
(write_frontier.py), free blocks and erases (block_manager.py), garbage collection (gc_victims.py,
gc.py) or the optimizer's super-pages (reservoir.py). Source: page-level mapping with out-of-place
writes, as in MQSim.

With ftl.map_update = "programmed", a write is mapped when its program is done.
"""

from __future__ import annotations

from ondie.emu.engine.core.payload_log import (
    LOG_FIRST_PASS,
    LOG_LAND,
    LOG_LOST,
    LOG_MAP_PAGE,
    LOG_MOVE,
    LOG_PADDING,
    LOG_PROGRAM,
    LOG_TRIM_MAP,
    note_log,
)
from ondie.emu.engine.core.state import record_type
from ondie.emu.nand.geometry import pages
from ondie.kernels.jit import cold, inline, njit

FREE, OPEN, FULL, VICTIM, EMPTIED, ERASING, BAD, FOLDABLE = range(8)
"""Block states. EMPTIED: a victim without valid pages that cannot be erased yet, because reads of
its pages are pending or because trims of its pages are not on flash yet (trim_maps.py). FOLDABLE: a
full block in pSLC mode (pslc.py).
"""
BLOCK = record_type(
    state="i4",
    flying="i4",  # allocated pages whose program is not done
    dirty="i4",  # 1: must be erased before it is written
    erases="i4",
    moving="i4",  # pages that collection is moving
    scan="i4",  # next page slot that collection checks
    retire="i4",  # 0, FAILED_PROGRAM, FAILED_ERASE or PINNED
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
    trims="i8",  # number of the last trim that has removed one of its pages (trim_maps.py)
    turned="i8",  # reservoir: rotation of the roles of its planes, in planes
)
FAILED_PROGRAM, FAILED_ERASE, PINNED = 1, 2, 3
"""Values of field ``retire`` of a block record. FAILED_PROGRAM: the block becomes bad when it has
no valid page. FAILED_ERASE: the block becomes bad immediately. PINNED: the block is never
collected, because one of its pages was read before it was written, or was allocated to a
translation page that stays in DRAM (map_writes = 0)."""
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
    inside="i8",  # byte offset of its start from first_byte, if end_byte > 0
    end_byte="i8",  # address behind its last byte if requests wrap there, 0 = no request passes it
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
    retiring="i8",  # blocks with retire = FAILED_PROGRAM
    levelled="i8",  # 1 + the block being emptied by static wear leveling
    stall_head="i8",  # writes waiting for a free block of this unit
    stall_tail="i8",
    parked="i8",  # 1 + the first transaction that waits for a page which collection has locked
    parked_last="i8",
    asked="i8",  # 1: a block has been filled, and the check for a collection is pending
    lines="i8",  # 1 + first program of the newest incomplete word line (word_line_buffer.py)
    r_next="i8",  # next reservoir super-page of this die, in sequence
    made="i8",  # parities and records that wait for this die (reservoir.py)
)
UPKEEP = record_type(
    due="i8",  # time of the next look for blocks to be refreshed (ps)
    moving="i8",  # 1 + the block that is being refreshed; 0 = none
    late="i8",  # 1 + a block that is overdue and waits for the end of a collection; 0 = none
    yields="i8",  # 1: a refresh has begun and no collection since
    scrubbing="i8",  # 1 + the block of which a page is being read for scrubbing; 0 = none
    resume="i8",  # time at which scrubbing reads the next page of that block (ps); 0 = none waits
    turn="i8",  # blocks that scrubbing has begun so far
    part="i8",  # next part of that block to be sampled
)


@cold
def pin(st, bid):
    """Never collect block ``bid`` from now on, even if a program in it has failed."""
    block = st.block[bid]
    if block.retire == FAILED_PROGRAM:
        st.pool[bid // st.cfg[0].all_blocks].retiring -= 1
    block.retire = PINNED


@inline
def block_at(st, dev, ppn):
    """Return the index of the block of a physical page, counted over all devices."""
    cfg = st.cfg[0]
    block = ppn >> cfg.block_shift if cfg.block_shift >= 0 else ppn // cfg.block_pages
    return dev * cfg.device_blocks + block


@inline
def first_page(st, dev, block):
    """Return the first physical page of a block, numbered within the device of the block."""
    cfg = st.cfg[0]
    return (block - dev * cfg.device_blocks) * cfg.block_pages


@inline
def is_refreshed(st, block):
    """Return True if victim ``block`` is being refreshed."""
    cfg = st.cfg[0]
    return cfg.upkeep != 0 and st.upkeep[block // cfg.all_blocks].moving == block + 1


@cold
def look_now(st, unit):
    """Schedule the next search for blocks to be refreshed in unit ``unit`` for the current time,
    before the clock advances (refresh.py).
    """
    reg = st.reg[0]
    st.upkeep[unit].due = reg.now
    reg.upkeep = min(reg.upkeep, reg.now)
    reg.until = min(reg.until, reg.now)


@njit
def zone_of(st, lpn):
    """Return the index of the zone (a range of logical pages, record ZONE) that contains logical
    page ``lpn``.

    If all zones span the whole drive, return 0.
    """
    zone = 0
    while lpn >= st.zone[zone].last_lpn:
        zone += 1
    return zone


@inline
def map_stream_of(st, lpn):
    """Return the stream of the translation page that maps logical page ``lpn``."""
    cfg = st.cfg[0]
    return cfg.map_stream if cfg.map_streams == 1 else cfg.map_stream + zone_of(st, lpn)


@inline
def is_map_stream(st, stream):
    """Return True if the blocks of a stream contain translation pages or metadata pages."""
    cfg = st.cfg[0]
    return cfg.map_stream >= 0 and 0 <= stream - cfg.map_stream < cfg.map_streams


@njit
def set_place(st, dev, tid):
    """Set the die, planes and page offset of transaction ``tid`` from its first physical page.

    Return the index of the DIE record of the die, or of the plane if planes operate independently.
    """
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


@inline
def unmap(st, dev, lpn):
    """Remove a logical page from the mapping table. Its physical page becomes invalid."""
    old = st.l2p[dev, lpn]
    if old != 0:
        st.valid[block_at(st, dev, to_signed(old) - 1)] -= 1
        st.l2p[dev, lpn] = 0
        st.dev[dev].mapped -= 1
        if st.cfg[0].meta_maps != 0:
            note_change(st, dev, lpn)


@inline
def to_signed(entry):
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
    if st.cfg[0].meta_maps != 0:
        note_change(st, dev, lpn)


@cold
def note_change(st, dev, lpn):
    """Record that the map page with the entry of logical page ``lpn`` has changed since the last
    checkpoint (map_checkpoint.py).
    """
    cfg = st.cfg[0]
    if lpn < cfg.meta_first:
        st.meta_dirty[dev * cfg.meta_maps + lpn // cfg.meta_span] = 1


@inline
def count_pending_read(st, dev, ppn):
    """Count a pending read of a page. The page's block is not erased until the read is done."""
    st.block[block_at(st, dev, ppn)].reading += 1


@inline
def count_programmed(st, dev, ppn, count):
    """Record that ``count`` pages allocated at ``ppn`` have been programmed."""
    st.block[block_at(st, dev, ppn)].flying -= count


@inline
def is_locked(st, dev, lpn):
    """Return True if logical page ``lpn`` is in a victim block from which it has not been moved
    yet.
    """
    entry = int(st.l2p[dev, lpn])
    return entry != 0 and st.block[block_at(st, dev, entry - 1)].state == VICTIM


@cold
def park(st, tid):
    """Suspend transaction ``tid`` until garbage collection has moved its page."""
    txn = st.txn[tid]
    block = block_at(st, txn.dev, int(st.l2p[txn.dev, txn.lpn]) - 1)
    pool = st.pool[block // st.cfg[0].all_blocks]
    txn.next = -1
    if pool.parked == 0:
        pool.parked = tid + 1
    else:
        st.txn[pool.parked_last - 1].next = tid
    pool.parked_last = tid + 1


# --- log of programs


@inline
def log_program(st, what, tid, old, place, sectors, held):
    """Log the program of transaction ``tid`` as an entry of kind ``what``, if the engine's log is
    on.

    ``sectors``: bit mask of the sectors whose data comes from the request (``place`` = 0) or from
    slot ``place`` of the data cache. The other sectors are copied from the old page ``old``, or are
    zeros if ``old`` is -1. ``held``: bit mask of the sectors that contain data after the program.
    """
    if st.reg[0].log_on != 0:
        note_program(st, what, tid, old, place, sectors, held)


@cold
def note_program(st, what, tid, old, place, sectors, held):
    """Append the log entry of :func:`log_program`, which has the same arguments."""
    txn = st.txn[tid]
    note_log(st, what, tid, txn.lpn, txn.ppn, old, txn.n, txn.dev, txn.die)
    record = st.log[st.reg[0].logged - 1]
    block = st.block[block_at(st, txn.dev, txn.ppn)]
    record.place = place
    record.sectors = sectors
    record.held = held
    record.stream = block.stream
    record.erases = block.erases


@inline
def log_host_write(st, tid):
    """Log the program of host write ``tid``, before its pages are mapped."""
    txn = st.txn[tid]
    if st.cfg[0].partial == 0:
        log_program(st, LOG_PROGRAM, tid, -1, 0, -1, -1)
    else:
        old = int(st.l2p[txn.dev, txn.lpn]) - 1
        held = st.sectors[txn.dev, txn.lpn] | txn.sectors
        log_program(st, LOG_PROGRAM, tid, old, 0, txn.sectors, held)


@inline
def log_landing(st, tid, place, stale):
    """Log the program of the contents that ``tid`` writes from slot ``place`` of the data cache,
    before the page is mapped. ``stale``: 1 if these contents must not be mapped, else 0.
    """
    txn = st.txn[tid]
    if stale != 0:
        log_program(st, LOG_LOST, tid, -1, place, txn.sectors, txn.sectors)
    elif st.cfg[0].partial == 0:
        log_program(st, LOG_LAND, tid, -1, place, txn.sectors, -1)
    else:
        old = int(st.l2p[txn.dev, txn.lpn]) - 1
        held = st.sectors[txn.dev, txn.lpn] | txn.sectors
        log_program(st, LOG_LAND, tid, old, place, txn.sectors, held)


@inline
def log_move(st, tid):
    """Log the program of the page that transaction ``tid`` moves."""
    txn = st.txn[tid]
    held = st.sectors[txn.dev, txn.lpn] if st.cfg[0].partial != 0 else -1
    log_program(st, LOG_MOVE, tid, txn.src_ppn, 0, -1, held)


@inline
def log_map_page(st, tid):
    """Log the program of a translation page."""
    log_program(st, LOG_MAP_PAGE, tid, -1, st.txn[tid].lpn - st.cfg[0].lpns + 1, -1, -1)


@inline
def log_trim_map(st, tid):
    """Log the program of a trim map or metadata page, whose contents are in the buffer with index
    ``src_ppn`` of transaction ``tid``."""
    log_program(st, LOG_TRIM_MAP, tid, -1, st.txn[tid].src_ppn + 1, -1, -1)


@inline
def log_padding(st, tid):
    """Log the program of padding pages, which contain no data."""
    log_program(st, LOG_PADDING, tid, -1, 0, 0, 0)


@inline
def log_first_pass(st, tid):
    """Log the end of the first of the two program passes of transaction ``tid``."""
    log_program(st, LOG_FIRST_PASS, tid, -1, 0, 0, 0)
