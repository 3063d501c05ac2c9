"""Recovery of blocks after a power loss: states and modes, free rings and write frontiers.

Owns the state of each block, the free rings and the write frontiers, as derived from a scan of the
out-of-band data. Does not own the scan and the selection of pages (recovery.py), or the tables
themselves (page_map.py, pslc.py).
Source: this project (docs/store.md).

A block is in pSLC mode if its pages belong to the pSLC stream. Such a block has fewer pages. It can
be folded unless writes of a stream continue in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import page_map, refresh
from ondie.emu.nand.conventional_pages import conventional
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import njit


@dataclass
class Blocks:
    """Results of a scan of the out-of-band data: arrays with one element per block of the drive."""

    visible: np.ndarray
    """Number of stripes of each block up to and including the last stripe with a page that does not
    read as blank, int64[blocks]; 0 if the whole block reads as blank. A stripe is the pages of a
    block that a recovery checks and overwrites together."""
    programs: np.ndarray
    """Largest program number in the out-of-band data of each block, int64[blocks]."""
    erases: np.ndarray
    """Erase count in the out-of-band data of each block, int64[blocks]; -1 if unknown."""
    stream: np.ndarray
    """Write stream of the pages of each block, int64[blocks]; -1 if unknown."""

    def pages(self, arrays: Arrays, geometry: Geometry) -> np.ndarray:
        """Return the number of pages that each block provides in its mode (native or pSLC),
        int64[blocks].
        """
        table = arrays.cfg[0]
        in_pslc = self.stream == int(table.pslc_stream)
        return np.where(in_pslc, int(table.pslc_pages), geometry.block_pages)


def count_valid(arrays: Arrays, geometry: Geometry) -> None:
    """Compute the reverse map, the valid pages per block and the number of mapped pages from the
    mapping table.
    """
    arrays.dev["mapped"] = _map_back(
        arrays.l2p[0], arrays.p2l[0], arrays.valid, geometry.block_pages
    )


@njit
def _map_back(l2p, p2l, valid, block_pages):
    """Set the reverse map ``p2l`` (physical to logical page) and the valid pages per block
    ``valid`` from mapping table ``l2p``. Return the number of mapped pages."""
    mapped = 0
    for lpn in range(l2p.shape[0]):
        if l2p[lpn] != 0:
            ppn = int(l2p[lpn]) - 1
            p2l[ppn] = lpn + 1
            valid[ppn // block_pages] += 1
            mapped += 1
    return mapped


def set_blocks(found: Blocks, stripe: int, arrays: Arrays, geometry: Geometry, cfg: Config) -> int:
    """Set the states of blocks, the free rings and the write frontiers. Return the number of blocks
    in which writes continue.

    ``stripe``: number of pages of a block that a recovery checks and overwrites together.
    """
    block, valid = arrays.block, arrays.valid
    known = found.erases >= 0
    typical = int(np.median(found.erases[known])) if known.any() else 0
    own = conventional(geometry, np.arange(len(known)))
    block["erases"][:] = np.where(own, np.where(known, found.erases, typical), 0)
    arrays.dev["erases_before"] = block["erases"].sum()
    block["dirty"][:] = 1
    used = (found.visible > 0) & (valid > 0)
    in_pslc = found.stream == int(arrays.cfg.pslc_stream[0])
    block["state"][used] = np.where(in_pslc[used], page_map.FOLDABLE, page_map.FULL)
    block["stream"][used] = found.stream[used]
    refresh.set_recovered_ages(arrays, used)
    order = np.flatnonzero(used)
    order = order[np.argsort(found.programs[order], kind="stable")]
    block["filled"][order] = np.arange(len(order))
    arrays.dev["filled"] = len(order)
    continued = 0
    if not cfg.ftl.gc_copyback:  # copy-back overtakes programs of earlier pages
        continued = continue_blocks(found, stripe, arrays, geometry)
    for unit in range(geometry.units):
        _set_free_ring(arrays, geometry, unit, cfg.ftl.wear_dynamic)
    if cfg.ftl.pslc != "off":
        _count_pslc(arrays, geometry)
    return continued


def continue_blocks(found: Blocks, stripe: int, arrays: Arrays, geometry: Geometry) -> int:
    """Continue the writes of each stream of each unit in the newest block of the stream, if the
    block has free pages after the stripe that the recovery overwrites. This is the stripe after the
    last stripe with a page that does not read as blank. ``stripe``: number of pages per stripe.
    Return the number of blocks in which writes continue."""
    stripes = found.pages(arrays, geometry) // stripe
    streams, continued = arrays.front.shape[0], 0
    for unit in range(geometry.units):
        own = slice(unit * geometry.all_blocks, unit * geometry.all_blocks + geometry.blocks)
        full = np.isin(arrays.block["state"][own], (page_map.FULL, page_map.FOLDABLE))
        room = full & (found.visible[own] + 1 < stripes[own])
        native = room & (arrays.block["state"][own] == page_map.FULL)
        for stream in range(streams):
            places = np.flatnonzero(full & (found.stream[own] == stream))
            if not len(places):
                continue
            newest = int(places[np.argmax(found.programs[own][places])])
            if not room[newest]:
                continue
            front, block = arrays.front[stream, unit], arrays.block[own.start + newest]
            front["block"] = newest
            front["next"] = (int(found.visible[own][newest]) + 1) * stripe
            block["state"] = page_map.OPEN
            continued += 1
        _keep_collecting(arrays, geometry, unit, native, stripe, found.visible[own])
    return continued


def _keep_collecting(
    arrays: Arrays, geometry: Geometry, unit: int, room: np.ndarray, stripe: int,
    visible: np.ndarray,
) -> None:  # fmt: skip
    """If a unit has neither a free block nor an open block for collected pages, open the block with
    the most free pages for collected pages, so that garbage collection can continue.

    ``room``: bool[blocks], native blocks with free pages after the stripe that the recovery has
    overwritten; ``visible``: attribute ``visible`` of :class:`Blocks`.
    """
    stream, start = int(arrays.cfg.collected[0]), unit * geometry.all_blocks
    native = slice(start, start + geometry.native_blocks)
    free = (arrays.block["state"][native] == page_map.FREE).any()
    if free or arrays.front["block"][stream, unit] >= 0 or not room.any():
        return
    best = int(np.flatnonzero(room)[np.argmin(visible[room])])
    fronts = arrays.front[:, unit]
    fronts["block"][fronts["block"] == best] = -1
    front, block = arrays.front[stream, unit], arrays.block[start + best]
    front["block"], front["next"] = best, (int(visible[best]) + 1) * stripe
    block["state"], block["stream"] = page_map.OPEN, stream


def _set_free_ring(arrays: Arrays, geometry: Geometry, unit: int, by_wear: bool) -> None:
    """Set the ring of free native blocks of a unit (in order of erase count if ``by_wear``), and
    the ring of free blocks of the fixed pSLC region.
    """
    start = unit * geometry.all_blocks
    own = slice(start, start + geometry.blocks)
    free = np.flatnonzero(arrays.block["state"][own] == page_map.FREE)
    fixed = free[free >= geometry.native_blocks]
    free = free[free < geometry.native_blocks]
    if by_wear:
        free = free[np.argsort(arrays.block["erases"][own][free], kind="stable")]
    arrays.free[unit, : len(free)] = free
    arrays.pool["free_head"][unit], arrays.pool["free_n"][unit] = 0, len(free)
    if geometry.pslc_blocks:
        arrays.slc_free[unit, : len(fixed)] = fixed
        arrays.slc["free_head"][unit], arrays.slc["free_n"][unit] = 0, len(fixed)


def _count_pslc(arrays: Arrays, geometry: Geometry) -> None:
    """Count the blocks in pSLC mode of each unit. On a drive without trim maps, trimmed data
    becomes valid again, so a unit may have more such blocks than its limit. The limit is then
    raised to the number of these blocks.
    """
    of_unit = np.asarray(arrays.block).reshape(geometry.units, -1)
    held = of_unit["stream"] == int(arrays.cfg.pslc_stream[0])
    arrays.slc["lent"] = held.sum(axis=1)
    arrays.slc["full"] = (of_unit["state"] == page_map.FOLDABLE).sum(axis=1)
    most = int(arrays.cfg.pslc_most[0])
    arrays.slc["most"] = np.maximum(arrays.slc["lent"], most)
