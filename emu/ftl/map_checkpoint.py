"""Checkpoints of the mapping table of a running drive: metadata pages, and the root page that
commits a checkpoint.

Owns the marks of changed map pages, the contents and programs of metadata pages, and the order of a
checkpoint. Does not own recovery (checkpoint_recovery.py), the choice of blocks (write_frontier.py)
or trim maps (trim_maps.py), whose completion handlers also serve metadata pages.
Source: this project; checkpoints of a page map as in LightNVM's pblk (Bjorling et al., FAST 2017)
and write-ahead journals of FTLs: newer data is found by a scan of the blocks that were written
after the start of the checkpoint.

In the mapping table, the metadata pages follow the trim maps: first ``meta_maps`` *map pages*, each
with the entries of ``meta_span`` logical pages, then the *block table*, then the *root*. Metadata
pages are programmed, moved and counted like trim maps, in blocks of a separate stream.

A checkpoint begins with a snapshot of the open blocks, of the number of programs so far, and of the
last sequence number of data. C code writes these two numbers to the root when it applies the log
(csrc/payload.c). Then the block table and the map pages that have changed since they were last
written are programmed, and finally the root. A map page is exact at the time of its composition,
which its sequence number records. A newer copy of a map page is therefore compatible with an older
root. A map page that has not changed is not written again.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core.counters import MAP_PROGRAM_PAGES
from ondie.emu.engine.core.events import give_txn, take_txn
from ondie.emu.engine.core.payload_log import LOG_TRIM_COPY, log
from ondie.emu.engine.core.roles import Role
from ondie.emu.ftl import block_manager, page_map, write_frontier
from ondie.emu.ftl.transfers import start_program
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import cold, inline, njit

HEAD = 8
"""Length of the header of a metadata page, in int64 words."""
MAGIC = 0x6F6E6469_65000000
"""Word 0 of a metadata page is MAGIC plus the kind of the page."""
MAP, TABLE, ROOT = 1, 2, 3
"""Kinds of metadata pages. MAP: entries of the mapping table. TABLE: part of the block table. ROOT:
the page that commits a checkpoint."""
KIND, NUMBER, EPOCH, SEQUENCE, PROGRAMS = range(5)
"""Indices of the words of the header. KIND: MAGIC plus the kind of the page. NUMBER: in the root,
the number of the checkpoint; in other pages, the index of the page among those of its kind. EPOCH:
fencing epoch. SEQUENCE and PROGRAMS (only in the root): last sequence number of data and number of
programs at the start of the checkpoint."""
WAS_OPEN, IS_BAD, IS_FAILING, IS_WRITTEN = 1, 2, 4, 8
"""Flags of a block, in the lower half of its word of the block table. The upper half is the erase
count of the block. WAS_OPEN: the block was open at the start of the root's checkpoint or of the
checkpoint in progress. IS_BAD: the block is bad, or its erase has failed. IS_FAILING: a program in
the block has failed. IS_WRITTEN: the block must be erased before it is used again.
"""
IDLE, PAGES, COMMIT, START = range(4)
"""Steps of a checkpoint. IDLE: no checkpoint is in progress. PAGES: map pages and block table are
being written. COMMIT: the root is being written. START: the last root is written again when the
drive starts."""
ROOTS = 2
"""Number of root buffers: one for the last checkpoint and one for the checkpoint in progress."""


def set_sizes(cfg: Config, geometry: Geometry, table: np.recarray) -> None:
    """Set the constants of checkpoints of the mapping table in ``table``, the record of constants
    of compiled code. The constants of trim maps must already be set in ``table``."""
    table.meta_first = NEVER
    every = cfg.ftl.map_checkpoint_bytes
    if every == 0:
        return
    behind = sum(int(table[name][0]) for name in ("lpns", "tpages", "trim_maps"))
    words = geometry.page_bytes // 8 - HEAD
    table.meta_every, table.meta_first = every, behind
    table.meta_words = 2 if table["partial"][0] else 1
    table.meta_span = words // int(table["meta_words"][0])
    table.meta_maps = -(-behind // int(table["meta_span"][0]))
    table.meta_blocks = words
    tables = -(-geometry.units * geometry.all_blocks // words)
    table.meta_pages = int(table["meta_maps"][0]) + tables + 1
    together = int(table["stripe"][0])
    table.meta_flights = max(8, 2 * together)


def buffers(table: np.record, trims: int) -> int:
    """Return the total number of page buffers for trim maps and metadata pages. ``table``:
    constants of compiled code. ``trims``: number of buffers for trim maps, which precede the
    buffers for metadata pages.
    """
    return trims if table.meta_maps == 0 else trims + ROOTS + 2 * int(table.meta_flights)


@inline
def root_slot(st, number):
    """Return the index of the buffer for the root of checkpoint ``number``."""
    return st.cfg[0].meta_slot + number % ROOTS


# --- the order of a checkpoint


@cold
def on_host_write(st, dev, size):
    """Count ``size`` bytes of host writes, and begin a checkpoint if one is due."""
    dev_rec = st.dev[dev]
    dev_rec.meta_since += size
    if dev_rec.meta_step == IDLE and dev_rec.meta_since >= st.cfg[0].meta_every:
        advance(st, dev)


@cold
def advance(st, dev):
    """Start the next programs of the checkpoint in progress, as long as free pages are available.
    Begin a checkpoint first if none is in progress and one is due. Do nothing until the previous
    programs of the checkpoint have ended, or while the drive saves data after a power cut.
    """
    cfg = st.cfg[0]
    dev_rec = st.dev[dev]
    if dev_rec.meta_flying > 0 or dev_rec.saving != 0:
        return
    if dev_rec.meta_step == IDLE:
        if dev_rec.meta_since < cfg.meta_every:
            return
        begin(st, dev)
    if dev_rec.meta_step == PAGES:
        start_pages(st, dev)
        if dev_rec.meta_flying > 0 or dev_rec.meta_cursor < cfg.meta_pages - 1:
            return
        dev_rec.meta_step = COMMIT
    start_root(st, dev)


@njit
def begin(st, dev):
    """Begin a checkpoint: record the open blocks, the number of programs so far, and the last
    sequence number of data.
    """
    cfg = st.cfg[0]
    dev_rec = st.dev[dev]
    dev_rec.meta_step = PAGES
    dev_rec.meta_since = 0
    dev_rec.meta_cursor = 0
    dev_rec.meta_number += 1
    for bid in range(dev * cfg.device_blocks, (dev + 1) * cfg.device_blocks):
        block = st.block[bid]
        if block.state == page_map.OPEN or block.flying > 0:
            st.meta_open[bid] |= 2
    log(st, LOG_TRIM_COPY, -1, -1, -1, root_slot(st, dev_rec.meta_number), 1, dev, -1)
    if st.reg[0].log_on != 0:
        st.log[st.reg[0].logged - 1].place = SEQUENCE * 8


@njit
def start_pages(st, dev):
    """Start the programs of the next metadata pages that must be written, except the root."""
    cfg = st.cfg[0]
    dev_rec = st.dev[dev]
    dev_rec.meta_bank ^= 1  # the log of the last batch may not have been applied yet
    bank = cfg.meta_slot + ROOTS + dev_rec.meta_bank * cfg.meta_flights
    while dev_rec.meta_cursor < cfg.meta_pages - 1 and dev_rec.meta_flying < cfg.meta_flights:
        at = dev_rec.meta_cursor
        if at < cfg.meta_maps and st.meta_dirty[dev * cfg.meta_maps + at] == 0:
            dev_rec.meta_cursor += 1
            continue
        slot = bank + dev_rec.meta_flying
        if not start(st, dev, cfg.meta_first + at, slot, False):
            return
        dev_rec.meta_cursor += 1
        if at < cfg.meta_maps:
            st.meta_dirty[dev * cfg.meta_maps + at] = 0
            compose_map(st, dev, at, slot)
        else:
            compose_table(st, dev, at - cfg.meta_maps, slot)
        log(st, LOG_TRIM_COPY, -1, cfg.meta_first + at, -1, slot, 1, dev, -1)


@njit
def start_root(st, dev):
    """Start the program of the checkpoint's root. The root may use a page that is reserved for
    garbage collection, because the start of the drive waits for this program.
    """
    cfg = st.cfg[0]
    dev_rec = st.dev[dev]
    number = dev_rec.meta_number if dev_rec.meta_step == COMMIT else dev_rec.meta_root
    slot = root_slot(st, number)
    if not start(st, dev, cfg.meta_first + cfg.meta_pages - 1, slot, True):
        return
    if st.reg[0].log_on != 0:
        st.meta_words[slot, KIND] = MAGIC + ROOT
        st.meta_words[slot, NUMBER] = number
        st.meta_words[slot, EPOCH] = dev_rec.epoch_wanted
    if dev_rec.meta_step == START:
        log(st, LOG_TRIM_COPY, -1, -1, -1, slot, 1, dev, -1)


@njit
def begin_start(st, dev):
    """Start writing the last root again, with the next fencing epoch, because the drive starts. A
    checkpoint that could not end because no page was free begins again later.
    """
    dev_rec = st.dev[dev]
    dev_rec.epoch_wanted = dev_rec.epoch + 1
    if dev_rec.meta_step != IDLE:
        dev_rec.meta_number = dev_rec.meta_root
        dev_rec.meta_since = st.cfg[0].meta_every
        for at in range(st.cfg[0].meta_maps):
            st.meta_dirty[dev * st.cfg[0].meta_maps + at] = 1
    dev_rec.meta_step = START
    advance(st, dev)


# --- contents


@njit
def set_head(st, dev, slot, kind, at):
    """Write the header of a metadata page of kind ``kind`` to buffer ``slot``. Fill the rest of the
    buffer with zeros. ``at``: index of the page among those of its kind.
    """
    for word in range(st.cfg[0].page_bytes // 8):
        st.meta_words[slot, word] = 0
    st.meta_words[slot, KIND] = MAGIC + kind
    st.meta_words[slot, NUMBER] = at
    st.meta_words[slot, EPOCH] = st.dev[dev].epoch_wanted


@njit
def compose_map(st, dev, at, slot):
    """Write the map page with index ``at`` to buffer ``slot``: for each logical page, its physical
    page + 1, and with partial pages also its sector mask. Do nothing if the engine's log is off.
    """
    cfg = st.cfg[0]
    if st.reg[0].log_on == 0:
        return
    set_head(st, dev, slot, MAP, at)
    first = at * cfg.meta_span
    for i in range(min(cfg.meta_span, cfg.meta_first - first)):
        st.meta_words[slot, HEAD + i * cfg.meta_words] = int(st.l2p[dev, first + i])
        if cfg.partial != 0:
            st.meta_words[slot, HEAD + i * cfg.meta_words + 1] = st.sectors[dev, first + i]


@njit
def compose_table(st, dev, at, slot):
    """Write a page of the block table to buffer ``slot``. ``at``: index of the page in the table.
    Do nothing if the engine's log is off.
    """
    cfg = st.cfg[0]
    if st.reg[0].log_on == 0:
        return
    set_head(st, dev, slot, TABLE, at)
    first = at * cfg.meta_blocks
    for i in range(min(cfg.meta_blocks, cfg.device_blocks - first)):
        bid = dev * cfg.device_blocks + first + i
        block = st.block[bid]
        flags = WAS_OPEN if st.meta_open[bid] != 0 else 0
        if block.state == page_map.BAD or block.retire == page_map.FAILED_ERASE:
            flags |= IS_BAD
        elif block.retire == page_map.FAILED_PROGRAM:
            flags |= IS_FAILING
        if block.dirty != 0:
            flags |= IS_WRITTEN
        st.meta_words[slot, HEAD + i] = int(block.erases) << 32 | flags


# --- programs


@njit
def start(st, dev, lpn, slot, urgent):
    """Allocate a flash page to metadata page ``lpn``, whose contents are in buffer ``slot``, and
    start its program. If ``urgent`` is set, a page that is reserved for garbage collection may be
    used. Return False if no flash page or no transaction is available.
    """
    tid = take_txn(st)
    if tid < 0:
        return False
    txn = st.txn[tid]
    txn.dev = dev
    txn.lpn = lpn
    txn.n = 1
    txn.role = Role.TRIM_MAP
    txn.src_ppn = slot
    if not place(st, tid, urgent):
        give_txn(st, tid)
        return False
    st.dev[dev].meta_flying += 1
    return True


@njit
def place(st, tid, urgent):
    """Allocate a flash page to the metadata page of transaction ``tid`` and start its program.
    Prefer an open block to a new block. If ``urgent`` is set, a page that is reserved for garbage
    collection may be used. Return False if no page is available.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    stream = cfg.map_stream
    for turn in range(3 if urgent else 2):
        for i in range(cfg.units):
            unit = dev * cfg.units + (st.dev[dev].meta_unit + i) % cfg.units
            if turn == 0 and st.front[stream, unit].block < 0:
                continue
            if turn < 2 and not block_manager.fits_internal_write(st, unit, stream):
                continue
            ppn, got = write_frontier.allocate(st, dev, unit, stream, 1)
            if got == 0:
                continue
            st.dev[dev].meta_unit = unit - dev * cfg.units
            program_at(st, tid, unit, ppn)
            return True
    return False


@njit
def program_at(st, tid, unit, ppn):
    """Start the program of a metadata page or trim map (transaction ``tid``) at page ``ppn``, which
    has been allocated in unit ``unit``.
    """
    st.dev[st.txn[tid].dev].trim_joining += int(st.cfg[0].line > 1)
    if st.reg[0].filled != 0:
        st.pool[unit].asked = 1
        write_frontier.schedule_check(st, unit)
    start_program(st, tid, ppn)


@njit
def map_programmed(st, tid):
    """Count, log and map the flash page of a metadata page or trim map (transaction ``tid``) after
    its program.
    """
    txn = st.txn[tid]
    st.count[txn.dev, MAP_PROGRAM_PAGES] += 1
    page_map.log_trim_map(st, tid)
    page_map.map_page(st, txn.dev, txn.lpn, txn.ppn)
    if st.cfg[0].partial != 0:
        st.sectors[txn.dev, txn.lpn] = -1


@inline
def is_metadata(st, tid):
    """Return True if transaction ``tid``, which has the role of a trim map, programs a metadata
    page.
    """
    return st.txn[tid].lpn >= st.cfg[0].meta_first


@njit
def end_program(st, tid):
    """End transaction ``tid``, the program of a metadata page. If no other program of a metadata
    page is in flight and the engine's log is on, pause the engine so that the log is applied and
    the page buffers can be used again."""
    dev_rec = st.dev[st.txn[tid].dev]
    give_txn(st, tid)
    dev_rec.meta_flying -= 1
    if dev_rec.meta_flying == 0 and st.reg[0].log_on != 0:
        st.reg[0].pause = 1


@cold
def on_programmed(st, tid):
    """Complete the program of a metadata page (transaction ``tid``). The program of the root
    commits its checkpoint.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    dev = txn.dev
    dev_rec = st.dev[dev]
    map_programmed(st, tid)
    is_root = txn.lpn == cfg.meta_first + cfg.meta_pages - 1
    end_program(st, tid)
    if is_root:
        dev_rec.epoch = dev_rec.epoch_wanted
        if dev_rec.meta_step == COMMIT:
            dev_rec.meta_root = dev_rec.meta_number
            for bid in range(dev * cfg.device_blocks, (dev + 1) * cfg.device_blocks):
                st.meta_open[bid] >>= 1
        dev_rec.meta_step = IDLE
    advance(st, dev)


@cold
def program_again(st, tid):
    """Write a metadata page again after its program (transaction ``tid``) has failed."""
    cfg = st.cfg[0]
    dev = st.txn[tid].dev
    dev_rec = st.dev[dev]
    at = st.txn[tid].lpn - cfg.meta_first
    end_program(st, tid)
    if at < cfg.meta_pages - 1:
        dev_rec.meta_cursor = min(dev_rec.meta_cursor, at)
        if at < cfg.meta_maps:
            st.meta_dirty[dev * cfg.meta_maps + at] = 1
    advance(st, dev)
