"""Erasure of old versions of data: garbage collection of every block that has old versions, and
erasure of free blocks.

Owns the selection of the blocks to collect and erase, and of the pages without current data that
cannot be erased. Does not own the collection of a block (gc.py), the bytes that an erase leaves in
a store (nand/wipe.py) or the contents of the data cache (moved_bytes.py).
Source: NVM Express Base Specification 2.0, sections 5.14 (Format NVM, user data erase) and 8.21
(sanitize operations: after a block erase, no earlier data can be read).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.engine.core.counters import MOVE_STARTS
from ondie.emu.engine.core.state import Arrays
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
from ondie.emu.nand import wipe
from ondie.emu.nand.page_store import BLANK, FIRST_PASS, PROGRAMMED, TORN, PageStore
from ondie.kernels.jit import cold


def mark_stale(arrays: Arrays, store: PageStore) -> np.ndarray:
    """Return int64[blocks]: the erase count of each block of device 0 that has old versions of
    logical pages, and -1 for all other blocks. Blocks that are free, retired, being erased or
    pinned also have -1, because they cannot be collected."""
    erases = np.full(len(arrays.block), -1, np.int64)
    for ppns, records in _dead_pages(arrays, store):
        held = ppns[records["written"] == PROGRAMMED]
        bids = np.unique(held // arrays.cfg.block_pages[0])
        states, retire = arrays.block["state"][bids], arrays.block["retire"][bids]
        at_rest = (page_map.FREE, page_map.BAD, page_map.ERASING)
        bids = bids[~np.isin(states, at_rest) & (retire != page_map.PINNED)]
        erases[bids] = arrays.block["erases"][bids]
    return erases


def wipe_dead(arrays: Arrays, store: PageStore) -> None:
    """Overwrite pages of device 0 that hold no current data: torn pages, and programmed pages in
    retired blocks. The programmed pages become torn pages. Raises InputError if a file cannot be
    used."""
    for ppns, records in _dead_pages(arrays, store):
        torn = records["written"] == TORN
        wipe.wipe(store, ppns[torn])
        retired = arrays.block["state"][ppns // arrays.cfg.block_pages[0]] == page_map.BAD
        for ppn in ppns[retired & ~torn].tolist():
            store.spoil(ppn)


def _dead_pages(arrays: Arrays, store: PageStore) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (physical page numbers int64[n], out-of-band data OOB[n]) for each segment. The pages
    are outside the reservoir and either torn or programmed with data of a logical page that is not
    mapped to them."""
    cfg, blocks = arrays.cfg[0], arrays.free.shape[1]
    for number in store.segments_on_disk():
        records = store.records(number)
        ppns = number * store.segment_pages + np.arange(len(records))
        lpns = records["lpn"].astype(np.int64)
        mapped = arrays.l2p[0, np.clip(lpns, 0, cfg.lpns - 1)].astype(np.int64) - 1 == ppns
        host = (lpns >= 0) & (lpns < cfg.lpns)
        torn = (records["written"] == TORN) & (host | (lpns == BLANK) | (lpns == FIRST_PASS))
        dead = torn | ((records["written"] == PROGRAMMED) & host)
        dead &= ~mapped & (ppns // cfg.block_pages % cfg.all_blocks < blocks)
        yield ppns[dead], records[dead]


@cold
def collect_marked(st, dev, erases):
    """Start the garbage collection of the marked blocks of drive ``dev``, as far as the states of
    the blocks, the collections in progress and the free space allow it. Remove the marks of blocks
    that are free, retired or erased. Return the number of remaining marks. ``erases``: see
    :func:`mark_stale`; a value of -1 means that a block is not marked."""
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
def erase_free(st, dev):
    """Queue erases of the free blocks with programmed pages on drive ``dev``, for drives that erase
    a block only when they open it."""
    cfg = st.cfg[0]
    for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
        for bid in range(unit * cfg.all_blocks, unit * cfg.all_blocks + cfg.blocks):
            block = st.block[bid]
            if block.state == page_map.FREE and block.dirty != 0:
                block_manager.queue_erase(st, dev, unit, bid, cfg.q_gc_erase)
