"""Trim maps: pages on flash that record which mapping units contain data, to make trims durable.

Owns the marks of trims not yet on flash, the programs of trim maps, and the FLUSHes and erases that
wait for these programs. Does not own the unmapping (nvme/command_split.py), the choice of blocks
(write_frontier.py) or recovery (recovery.py).
Source: this project; like the journals of other FTLs, it treats a TRIM as a write of metadata.

A trim map is a page with one bit for each of ``cfg.trim_span`` mapping units: 1 if the unit is
mapped. Trim map k has the page number ``lpns + tpages + k`` in the mapping table. Garbage
collection moves it like any other page, and a new trim map makes the old one invalid. A trim map
has a sequence number. If the bit of a unit is 0, data of the unit with smaller sequence numbers has
been trimmed. Trim maps share the open block of collected pages.

A trim is *unsaved* until a trim map that was composed after the trim is on flash. The trims of a
drive are numbered. A FLUSH waits until all trims issued before it are saved. The erase of a block
also waits if a trim has removed a page of the block. Otherwise an older version of that page,
possibly older than the last FLUSH, would become valid after a power loss.
"""

from __future__ import annotations

from ondie.emu.clock import NEVER
from ondie.emu.engine.core import stages
from ondie.emu.engine.core.events import OWN, give_txn, go, take_txn
from ondie.emu.engine.core.payload_log import LOG_TRIM_COPY, log
from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.core.state import record_type
from ondie.emu.ftl import block_manager, map_checkpoint, page_map, write_frontier
from ondie.kernels.jit import cold, inline, njit

FLIGHTS = 8
"""Maximum number of trim maps that are programmed concurrently."""
SLOTS = 2 * FLIGHTS
"""Number of buffers for trim maps. The buffer of a completed program stays in use until the log of
the engine, which records the program, has been applied to the contents of the drive.
"""
FREE, IN_USE, LOGGED = range(3)
"""States of a buffer for a trim map. FREE: unused. IN_USE: a trim map in the buffer is being
programmed. LOGGED: the program has ended, and the run pauses so that the log is applied before the
buffer is used again.
"""
TRIM_MAP = record_type(
    since="i8",  # number of its first unsaved trim; 0: none
    flying="i8",  # the same of the copy that is being programmed; 0: none is
)


# --- marks


@inline
def note(st, dev, lpn):
    """Record that a trim is about to unmap logical page ``lpn``, which is mapped."""
    dev_rec = st.dev[dev]
    block = st.block[page_map.block_at(st, dev, int(st.l2p[dev, lpn]) - 1)]
    block.trims = dev_rec.trims
    record = st.trim_map[dev * st.cfg[0].trim_maps + lpn // st.cfg[0].trim_span]
    if record.since == 0:
        dev_rec.unsaved += int(record.flying == 0)
        record.since = dev_rec.trims


@cold
def first_unsaved(st, dev):
    """Return the number of the oldest trim of drive ``dev`` that is not on flash yet, or NEVER if
    all trims are on flash. Trims are numbered in the order of execution."""
    found = NEVER
    if st.dev[dev].unsaved == 0:
        return found
    first = dev * st.cfg[0].trim_maps
    for at in range(first, first + st.cfg[0].trim_maps):
        record = st.trim_map[at]
        if record.since > 0:
            found = min(found, record.since)
        if record.flying > 0:
            found = min(found, record.flying)
    return found


# --- who waits


@cold
def wait_for_flush(st, tid):
    """Add ``tid``, a part of a FLUSH, to the transactions that wait until all trims issued so far
    are on flash, and request the programs of the trim maps. Return False if no trim is unsaved, so
    that ``tid`` need not wait.
    """
    txn = st.txn[tid]
    dev = txn.dev
    dev_rec = st.dev[dev]
    if dev_rec.unsaved == 0:
        return False
    st.command[tid].epoch = dev_rec.trims
    txn.next = dev_rec.trim_waiters - 1
    dev_rec.trim_waiters = tid + 1
    want(st, dev, dev_rec.trims)
    return True


@cold
def holds_erase(st, dev, block):
    """Return True if block ``block``, which contains no valid data, must not be erased yet, because
    a trim that has removed a page of the block is not on flash yet. In that case, request the
    program of the trim map."""
    trims = st.block[block].trims
    if trims == 0 or st.dev[dev].unsaved == 0 or first_unsaved(st, dev) > trims:
        return False
    want(st, dev, trims)
    return True


@njit
def want(st, dev, trims):
    """Request the programs of the trim maps that contain unsaved trims (not yet on flash) with
    numbers up to ``trims``."""
    st.dev[dev].trims_wanted = max(st.dev[dev].trims_wanted, trims)
    start(st, dev)


# --- programs


@cold
def start(st, dev):
    """Start the programs of the requested trim maps, as long as fewer than FLIGHTS trim maps are
    being programmed and transactions and free pages are available."""
    cfg = st.cfg[0]
    dev_rec = st.dev[dev]
    first = dev * cfg.trim_maps
    for at in range(first, first + cfg.trim_maps):
        if dev_rec.trim_flights == FLIGHTS:
            return
        record = st.trim_map[at]
        if record.since == 0 or record.since > dev_rec.trims_wanted or record.flying > 0:
            continue
        tid = take_txn(st)
        if tid < 0:
            return
        txn = st.txn[tid]
        txn.dev = dev
        txn.lpn = cfg.lpns + cfg.tpages + at - first
        txn.n = 1
        txn.role = Role.TRIM_MAP
        txn.src_ppn = free_slot(st, dev)
        if not place(st, tid):
            give_txn(st, tid)
            return
        record.flying = record.since
        record.since = 0
        dev_rec.trim_flights += 1
        st.trim_slot[dev * SLOTS + txn.src_ppn] = IN_USE
        compose(st, dev, at - first, txn.src_ppn)
        log(st, LOG_TRIM_COPY, -1, txn.lpn, -1, txn.src_ppn, 1, dev, -1)


@njit
def free_slot(st, dev):
    """Return the index of the first free buffer for trim maps of device ``dev``. At least one
    buffer must be free."""
    slot = 0
    while st.trim_slot[dev * SLOTS + slot] != FREE:
        slot += 1
    return slot


@njit
def compose(st, dev, at, slot):
    """Write the bits of the trim map with index ``at`` to buffer ``slot``, if the engine's log is
    on."""
    cfg = st.cfg[0]
    if st.reg[0].log_on == 0:
        return
    first = at * cfg.trim_span
    for byte in range(cfg.page_bytes):
        found = 0
        for bit in range(8):
            lpn = first + byte * 8 + bit
            if lpn < cfg.lpns and st.l2p[dev, lpn] != 0:
                found |= 1 << bit
        st.trim_bits[slot, byte] = found


@cold
def place(st, tid):
    """Allocate a flash page to the trim map of transaction ``tid`` and start its program. Return
    False if no unit has a free page.

    Pages that are reserved for garbage collection are used only if no unit has another free page.
    This avoids a deadlock, because a garbage collection may wait for this trim map before it can
    free a block.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    stream = cfg.collected
    ppn = -1
    got = 0
    unit = 0
    for i in range(2 * cfg.units):
        unit = dev * cfg.units + (st.dev[dev].trim_cursor + i) % cfg.units
        if i >= cfg.units or block_manager.fits_internal_write(st, unit, stream):
            ppn, got = write_frontier.allocate(st, dev, unit, stream, 1)
        if got > 0:
            break
    if got == 0:
        return False
    st.dev[dev].trim_cursor = unit - dev * cfg.units
    map_checkpoint.program_at(st, tid, unit, ppn)
    return True


@inline
def record_of(st, tid):
    """Return the record (TRIM_MAP) of the trim map that transaction ``tid`` programs."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    return st.trim_map[txn.dev * cfg.trim_maps + txn.lpn - cfg.lpns - cfg.tpages]


@inline
def is_trim_map(st, tid):
    """Return True if transaction ``tid`` programs a trim map or a metadata page
    (map_checkpoint.py). The programs of both have the role TRIM_MAP.
    """
    txn = st.txn[tid]
    return st.cfg[0].trim_maps != 0 and txn.kind == OWN and txn.role == Role.TRIM_MAP


@cold
def on_programmed(st, tid):
    """Complete the program of a trim map or metadata page (transaction ``tid``). For a trim map,
    also complete the FLUSHes that waited for it.
    """
    if map_checkpoint.is_metadata(st, tid):
        map_checkpoint.on_programmed(st, tid)
        return
    txn = st.txn[tid]
    dev = txn.dev
    dev_rec = st.dev[dev]
    map_checkpoint.map_programmed(st, tid)
    record = record_of(st, tid)
    if record.since == 0:
        dev_rec.unsaved -= 1
    end_flight(st, tid, record)
    complete_flushes(st, dev)


@njit
def end_flight(st, tid, record):
    """End transaction ``tid``, which has programmed the trim map with record ``record``, and start
    further requested programs.
    """
    dev = st.txn[tid].dev
    record.flying = 0
    st.dev[dev].trim_flights -= 1
    slot = dev * SLOTS + st.txn[tid].src_ppn
    st.trim_slot[slot] = FREE
    if st.reg[0].log_on != 0:
        st.trim_slot[slot] = LOGGED
        st.reg[0].pause = 1
    give_txn(st, tid)
    start(st, dev)


@cold
def program_again(st, tid):
    """Compose and program a trim map or metadata page again after its program (transaction ``tid``)
    has failed.
    """
    if map_checkpoint.is_metadata(st, tid):
        map_checkpoint.program_again(st, tid)
        return
    record = record_of(st, tid)
    record.since = record.flying
    end_flight(st, tid, record)


@njit
def complete_flushes(st, dev):
    """Complete each waiting FLUSH transaction for which all trims issued before it are on flash."""
    dev_rec = st.dev[dev]
    saved = first_unsaved(st, dev)
    before = -1
    tid = dev_rec.trim_waiters - 1
    while tid >= 0:
        following = int(st.txn[tid].next)
        if st.command[tid].epoch < saved:
            if before < 0:
                dev_rec.trim_waiters = following + 1
            else:
                st.txn[before].next = following
            st.txn[tid].next = -1
            go(st, tid, stages.PART_DONE)
        else:
            before = tid
        tid = following
