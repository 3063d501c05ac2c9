"""pSLC: blocks in pSLC mode (one bit per cell) in a drive with native blocks.

Owns the mode of blocks, the capacity and array times of pSLC blocks, and the supply of such blocks
(fixed region or borrowed native blocks). Does not own the folding of pSLC blocks (pslc_folding.py)
or native blocks (page_map.py). Source: Swissbit, "4 reasons to use industrial 3D TLC NAND flash as
pseudo-SLC", 2023 (a third of the pages, other times and endurance); Samsung, TurboWrite (a fixed
region plus borrowed blocks).

A block is in pSLC mode from its opening to its erase if the stream that fills it is
``cfg.pslc_stream``. It provides one page per word line, at the first page addresses of the native
block. The page offsets (``txn.page``) of pSLC pages follow the native page offsets. Therefore
tables by page offset have an entry for each mode, and no command combines pages of both modes.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.config.rules.rule import WORD_LINE
from ondie.emu.engine.core.counters import DIRECT_PAGES, PSLC_PAGES
from ondie.emu.engine.core.state import record_type, records
from ondie.emu.ftl import block_manager, page_map, word_lines
from ondie.emu.ftl.page_map import FOLDABLE, FREE, OPEN
from ondie.emu.nand.die import Q_WRITE
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import page_times
from ondie.kernels.jit import cold, inline

OFF, STATIC, DYNAMIC = range(3)
MODES = ("off", "static", "dynamic")
NO_STREAM = -2
"""Value of ``cfg.pslc_stream`` for a drive without pSLC blocks. No block has this stream."""
SLC = record_type(
    free_head="i8",  # free blocks of the fixed region
    free_n="i8",
    lent="i8",  # blocks in pSLC mode: open, full or being folded
    full="i8",  # of these, full blocks whose folding has not begun
    most="i8",  # largest number of blocks in pSLC mode; a recovery may find more than are borrowed
)


@inline
def is_pslc(st, block):
    """Return True if block ``block`` is in pSLC mode."""
    return st.block[block].stream == st.cfg[0].pslc_stream


@inline
def front_stream(st, block, stream):
    """Return the stream of the write frontier of block ``block``, which contains writes of host
    stream ``stream``: the pSLC stream if the block is in pSLC mode, otherwise ``stream``.
    """
    return st.cfg[0].pslc_stream if is_pslc(st, block) else stream


@inline
def pages_of_mode(st, block):
    """Return the number of page slots that block ``block`` provides in its current mode."""
    cfg = st.cfg[0]
    return cfg.pslc_pages if is_pslc(st, block) else cfg.block_pages


@inline
def counter_of_moves(st, block, counters):
    """Return the counter for moves of pages of block ``block``. ``counters``: the counters of
    garbage collection, of folding (for blocks in pSLC mode) and of refresh, in this order.
    """
    if page_map.is_refreshed(st, block):
        return counters[2]
    return counters[1] if st.block[block].stream == st.cfg[0].pslc_stream else counters[0]


@inline
def uses_pslc(st, stream):
    """Return True if writes of host stream ``stream`` go to pSLC blocks."""
    cfg = st.cfg[0]
    return cfg.pslc_hosts == 0 or stream < cfg.pslc_hosts


@cold
def blocks_left(st, unit):
    """Return the number of further blocks of unit ``unit`` that may be opened in pSLC mode; 0 or
    less if no block may be opened.

    A dynamic pSLC cache borrows free native blocks. Their number is limited so that borrowing does
    not trigger garbage collection.
    """
    cfg = st.cfg[0]
    if cfg.pslc == STATIC:
        return st.slc[unit].free_n
    return min(cfg.pslc_most - st.slc[unit].lent, st.pool[unit].free_n - cfg.pslc_keep)


@cold
def open_block(st, unit):
    """Open a block of unit ``unit`` in pSLC mode. Return False if no block is available."""
    cfg = st.cfg[0]
    slc = st.slc[unit]
    if blocks_left(st, unit) <= 0:
        return False
    if cfg.pslc == STATIC:
        block = st.slc_free[unit, slc.free_head]
        slc.free_head = slc.free_head + 1 if slc.free_head + 1 < cfg.pslc_most else 0
        slc.free_n -= 1
    else:
        if not block_manager.has_unreserved_block(st, unit):
            return False
        block = block_manager.take_free(st, unit, 0)
    slc.lent += 1
    at = unit * cfg.all_blocks + block
    st.block[at].state = OPEN
    st.block[at].stream = cfg.pslc_stream
    if cfg.errors != 0:
        st.quality[at].since = st.reg[0].now
    front = st.front[cfg.pslc_stream, unit]
    front.block = block
    front.next = 0
    block_manager.update_gc_priority(st, unit)
    return True


@cold
def allocate(st, dev, unit, count):
    """Allocate up to ``count`` page slots at consecutive planes of one page offset in the open pSLC
    block of unit ``unit``. Return (first ppn, number of slots), or (-1, 0) if no pSLC block is
    available. Set ``reg.filled`` to 1 if the block is now full, else to 0.
    """
    cfg = st.cfg[0]
    front = st.front[cfg.pslc_stream, unit]
    st.reg[0].filled = 0
    if front.block < 0 and not open_block(st, unit):
        return -1, 0
    got = 1
    if cfg.slots > 1:
        got = word_lines.slots_together(st, front.next, count)
    elif count > 1 and cfg.multi_plane != 0:
        got = min(count, cfg.unit_planes - front.next % cfg.unit_planes)
    at = unit * cfg.all_blocks + front.block
    block = st.block[at]
    ppn = page_map.first_page(st, dev, at) + front.next
    if front.next == 0 and block.dirty != 0:
        block_manager.queue_erase(st, dev, unit, at, Q_WRITE)
    block.dirty = 1
    front.next += got
    block.flying += got
    if front.next == cfg.pslc_pages:
        front.block = -1
        mark_foldable(st, unit, at)
        block.filled = st.dev[dev].filled
        block.written = st.reg[0].now
        st.dev[dev].filled += 1
        st.reg[0].filled = 1
    return ppn, got


@cold
def mark_foldable(st, unit, block):
    """Mark block ``block``, a full block in pSLC mode, as ready to be folded."""
    st.block[block].state = FOLDABLE
    st.slc[unit].full += 1


@cold
def count_programmed(st, tid, block):
    """Count the pages of a host write that was programmed in block ``block``: as pSLC pages if the
    block is in pSLC mode, or as direct pages if it is a native block and the stream of the write
    uses pSLC blocks. Return True after the last program of a full pSLC block, which can then be
    folded.
    """
    txn = st.txn[tid]
    if not is_pslc(st, block):
        if uses_pslc(st, st.block[block].stream):
            st.count[txn.dev, DIRECT_PAGES] += txn.n
        return False
    st.count[txn.dev, PSLC_PAGES] += txn.n
    return st.block[block].state == FOLDABLE and st.block[block].flying == 0


@cold
def return_block(st, unit, block):
    """Leave pSLC mode: return empty block ``block`` to the free blocks of the fixed region, or to
    the free native blocks if it was borrowed.
    """
    cfg = st.cfg[0]
    slc = st.slc[unit]
    slc.lent -= 1
    if cfg.pslc == DYNAMIC:
        block_manager.free_block(st, unit, block)
        return
    st.slc_free[unit, (slc.free_head + slc.free_n) % cfg.pslc_most] = block - unit * cfg.all_blocks
    slc.free_n += 1
    st.block[block].state = FREE
    st.block[block].stream = -1


def block_pages(cfg: Config) -> int:
    """Return the number of pages per block of a plane in pSLC mode: one per word line."""
    return cfg.flash.pages_per_block // WORD_LINE.get(cfg.flash.cell, 1)


def capacity(cfg: Config) -> int:
    """Return the maximum capacity of all pSLC blocks of a drive (bytes), or 0 if pSLC is off."""
    if cfg.ftl.pslc == "off":
        return 0
    geometry = Geometry.of(cfg)
    blocks = geometry.units * geometry.unit_planes * int(geometry.blocks * cfg.ftl.pslc_share)
    return blocks * block_pages(cfg) * cfg.flash.page_bytes


def array_times(cfg: Config) -> np.ndarray:
    """Return the array times by page offset (ps) as ``timing.page_times`` does, int64[3, pages]. If
    pSLC is on, append the times of pages in pSLC mode: int64[3, 2 * pages].
    """
    native = page_times(cfg)
    if cfg.ftl.pslc == "off":
        return native
    flash = cfg.flash
    more = np.zeros_like(native)
    more[0] = flash.pslc_t_read_ps - flash.t_read_ps
    more[1:] = flash.pslc_t_program_ps - flash.t_program_ps
    return np.ascontiguousarray(np.concatenate([native, more], axis=1))


def tables(cfg: Config, units: int, blocks: int, region: int) -> dict[str, np.ndarray]:
    """Return the arrays of this module for the state of compiled code, by field name. ``blocks``:
    number of conventional blocks in a unit. ``region``: number of these blocks in the fixed pSLC
    region at the end of the unit, or 0 without such a region."""
    slc = records(SLC, units if cfg.ftl.pslc != "off" else 1)
    slc.free_n = region
    slc.most = int(blocks * cfg.ftl.pslc_share)
    ring = np.arange(blocks - region, blocks, dtype=np.int32) if region else np.zeros(1, np.int32)
    return {"slc": slc, "slc_free": np.tile(ring, (units if region else 1, 1))}
