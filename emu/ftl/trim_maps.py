"""Trim maps: pages on flash that state which mapping units hold data, so that trims survive a power
loss.

Owns the marks of trims that are not on flash yet, the programs of trim maps, the FLUSHes and erases
that wait for them. Does not own the unmapping (nvme/command_split.py), the choice of blocks
(write_frontier.py) or recovery (recovery.py).
Source: this project; TRIM is a write of metadata, as journals of FTLs record it.

A trim map is a page with one bit for each of ``cfg.trim_span`` mapping units: 1 if the unit is
mapped. Trim map k has the page number ``lpns + tpages + k`` in the mapping table. It is moved by
collection like any page, and a new one makes the old one invalid. It has a sequence number:
contents with smaller numbers of units whose bit is 0 are dead. Trim maps share the open block of
collected pages.

A trim is *unsaved* until a trim map that was composed after it is on flash. Trims of a drive are
numbered. A FLUSH waits until no trim with its number or a smaller one is unsaved. So does the erase
of a block from which a trim has removed a page: after a power loss, an older version of that page
would return, which may be older than the last FLUSH.
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
"""Largest number of trim maps that are programmed at a time."""
SLOTS = 2 * FLIGHTS
"""Number of buffers of trim maps, including those of ended programs until the log has been
applied."""
FREE, IN_USE, LOGGED = range(3)
"""States of a buffer. LOGGED: its program has ended, and the run pauses so that the log is applied
before the buffer is used again."""
TRIM_MAP = record_type(
    since="i8",  # number of its first unsaved trim; 0: none
    flying="i8",  # the same of the copy that is being programmed; 0: none is
)


# --- marks


@inline
def note(st, dev, lpn):
    """Note that a trim is about to remove logical page ``lpn``, which is mapped."""
    dev_rec = st.dev[dev]
    block = st.block[page_map.block_at(st, dev, int(st.l2p[dev, lpn]) - 1)]
    block.trims = dev_rec.trims
    record = st.trim_map[dev * st.cfg[0].trim_maps + lpn // st.cfg[0].trim_span]
    if record.since == 0:
        dev_rec.unsaved += int(record.flying == 0)
        record.since = dev_rec.trims


@cold
def first_unsaved(st, dev):
    """Return the number of the first unsaved trim of a drive, or NEVER."""
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
    """Let ``tid``, a part of a FLUSH, wait until the trims so far are on flash. Return False if
    none is unsaved."""
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
    """Return True if block ``block``, which holds no data, must not be erased yet: a trim has
    removed one of its pages and is unsaved. The trim map is then requested."""
    trims = st.block[block].trims
    if trims == 0 or st.dev[dev].unsaved == 0 or first_unsaved(st, dev) > trims:
        return False
    want(st, dev, trims)
    return True


@njit
def want(st, dev, trims):
    """Request the programs of the trim maps with unsaved trims up to number ``trims``."""
    st.dev[dev].trims_wanted = max(st.dev[dev].trims_wanted, trims)
    start(st, dev)


# --- programs


@cold
def start(st, dev):
    """Start the programs of requested trim maps, as far as pages are free for them."""
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
    """Return the number of a free buffer."""
    slot = 0
    while st.trim_slot[dev * SLOTS + slot] != FREE:
        slot += 1
    return slot


@njit
def compose(st, dev, at, slot):
    """Write the bits of trim map ``at`` to buffer ``slot``."""
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
    """Allocate a page to trim map ``tid`` and start its program. Return False if no unit has one.

    Pages that collection has reserved are taken only if no unit has others: a collection may be
    waiting for this trim map, and then gives a block back.
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
    """Return the record of trim map ``tid``."""
    cfg = st.cfg[0]
    txn = st.txn[tid]
    return st.trim_map[txn.dev * cfg.trim_maps + txn.lpn - cfg.lpns - cfg.tpages]


@inline
def is_trim_map(st, tid):
    """Return True if transaction ``tid`` programs a trim map, or a page of map_checkpoint.py,
    which has the same role."""
    txn = st.txn[tid]
    return st.cfg[0].trim_maps != 0 and txn.kind == OWN and txn.role == Role.TRIM_MAP


@cold
def on_programmed(st, tid):
    """Complete the program of trim map ``tid``, and the FLUSHes that have waited for it."""
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
    """End the program of trim map ``tid`` with record ``record``, and start others."""
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
    """Compose trim map ``tid``, whose program has failed, again."""
    if map_checkpoint.is_metadata(st, tid):
        map_checkpoint.program_again(st, tid)
        return
    record = record_of(st, tid)
    record.since = record.flying
    end_flight(st, tid, record)


@njit
def complete_flushes(st, dev):
    """Complete the parts of FLUSHes all of whose trims are on flash."""
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
