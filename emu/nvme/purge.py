"""Erasure of old versions: collects every block that holds some, and erases free ones.

Owns the choice of the blocks. Does not own the collection of a block (gc.py) or the bytes that an
erase leaves in a store (nand/wipe.py).
Source: NVM Express Base Specification 2.0, sections 5.14 (Format NVM, user data erase) and 8.21
(sanitize operations: after a block erase, no earlier data can be read).
"""

from __future__ import annotations

from ondie.emu.engine.core.counters import MOVE_STARTS
from ondie.emu.ftl import (
    block_manager,
    gc,
    gc_victims,
    padding,
    page_map,
    pslc,
    pslc_folding,
    write_frontier,
)
from ondie.kernels.jit import cold


@cold
def mark_stale(st, dev, erases):
    """Write to ``erases``, int64[blocks of all units], the erase count of each block of drive
    ``dev`` with old versions of logical pages, and -1 for others. Pinned blocks, which are never
    collected, are others."""
    cfg = st.cfg[0]
    erases[:] = -1
    for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
        for bid in range(unit * cfg.all_blocks, unit * cfg.all_blocks + cfg.blocks):
            if st.block[bid].retire != page_map.PINNED and has_stale(st, dev, unit, bid):
                erases[bid] = st.block[bid].erases


@cold
def collect_marked(st, dev, erases):
    """Start the collection of the blocks that ``erases`` marks, as far as there is room. Take the
    marks of those away that are free, retired or erased. Return the number of marks."""
    cfg = st.cfg[0]
    left = 0
    for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
        for bid in range(unit * cfg.all_blocks, unit * cfg.all_blocks + cfg.blocks):
            if erases[bid] < 0:
                continue
            block = st.block[bid]
            state = block.state
            if state == page_map.FREE or state == page_map.BAD or block.erases != erases[bid]:
                erases[bid] = -1
                continue
            left += 1
            if state == page_map.OPEN and st.front[block.stream, unit].owed == 0:
                padding.close_early(st, dev, unit, bid)
            write_frontier.schedule_check(st, unit)
            if block.state != page_map.FULL and block.state != page_map.FOLDABLE:
                continue
            if block.flying != 0 or st.pool[unit].victims >= cfg.gc_parallel:
                continue
            if pslc_folding.has_room(st, unit, bid):
                st.count[dev, pslc.counter_of_moves(st, bid, MOVE_STARTS)] += 1
                gc_victims.make_victim(st, unit, bid)
                gc.start_moving(st, dev, unit, bid)
    return left


@cold
def has_stale(st, dev, unit, bid):
    """Return True if block ``bid`` holds a page of the host that was written again or trimmed."""
    cfg = st.cfg[0]
    block = st.block[bid]
    state = block.state
    if state == page_map.FREE or state == page_map.BAD or state == page_map.ERASING:
        return False
    count = cfg.block_pages
    if state == page_map.OPEN:
        count = st.front[block.stream, unit].next
    base = page_map.first_page(st, dev, bid)
    for ppn in range(base, base + count):
        lpn = int(st.p2l[dev, ppn]) - 1
        if 0 <= lpn < st.l2p.shape[1] and int(st.l2p[dev, lpn]) - 1 != ppn:
            return True
    return False


@cold
def erase_free(st, dev):
    """Queue the erases of the free blocks of drive ``dev`` that were written, where blocks are
    erased only when they are opened."""
    cfg = st.cfg[0]
    for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
        for bid in range(unit * cfg.all_blocks, unit * cfg.all_blocks + cfg.blocks):
            block = st.block[bid]
            if block.state == page_map.FREE and block.dirty != 0:
                block_manager.queue_erase(st, dev, unit, bid, cfg.q_gc_erase)
