"""Sequential fill of a drive that maps only the logical pages accessed by a run.

Owns the condition under which the pages that a run does not access cannot affect the run, and the
fill that maps only the accessed pages. Does not own the fill of the whole drive (write_frontier.py)
or the requests (replay/block_trace.py).
Source: this project.

A full block without an invalid page is read, moved or erased only if its data is accessed or if
garbage collection selects it. If neither happens, the mapping entries of the block have no effect.
The fill uses the same blocks, in the same order, as a fill of the whole drive. A block whose pages
are not accessed is full but has no mapping entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.ftl import block_manager, page_map, word_lines, write_frontier
from ondie.kernels.jit import njit

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Accesses:
    """Logical pages that a run accesses. ``first``, ``last``: first and last page of each request
    (reads, writes and TRIMs), int64[n]; ``writes``: mask of the write requests, bool[n].
    """

    first: I64
    last: I64
    writes: npt.NDArray[np.bool_]

    def written_pages(self) -> int:
        """Return the sum of the pages of all write requests. A page that several requests write is
        counted once per request.
        """
        return int((self.last - self.first + 1)[self.writes].sum())


def stripe_pages(arrays: Arrays) -> int:
    """Return the number of consecutive logical pages that a sequential write stores in one unit
    before it continues in the next unit.
    """
    table = arrays.cfg[0]
    if table.stripe > table.slots:
        return int(table.stripe)
    return int(table.slots * (table.unit_planes if table.multi_plane else 1))


def rest_is_idle(arrays: Arrays, cfg: Config, accesses: Accesses) -> bool:
    """Return True if no block of the filled drive can be collected or moved in the run. If in
    doubt, return False.

    The function assumes the worst case: in addition to the stripes that its data fills, each write
    uses 3 + ``passes`` stripes that are incomplete or padded (``passes``: program passes of a word
    line). Writes use the units round-robin.
    """
    table, ftl = arrays.cfg[0], cfg.ftl
    if (
        table.static
        or table.open_ahead
        or table.map_entries
        or ftl.write_streams > 1
        or cfg.errors.kind != "none"
        or cfg.pe.kind != "none"
    ):
        return False
    if not accesses.writes.any():
        return True
    if table.pslc or ftl.wear_static_cycles or ftl.program_failures or ftl.erase_failures:
        return False
    stripe, pages = stripe_pages(arrays), accesses.last - accesses.first + 1
    written = pages[accesses.writes]
    turns = int((written // stripe).sum()) + (3 + int(table.passes)) * len(written)
    needed = (turns // int(table.units) + 1) * stripe // int(table.block_pages) + 3
    filled = -(-int(table.lpns) // (int(table.units) * int(table.block_pages)))
    free = int(arrays.pool["free_n"].min()) - filled
    return free - needed > max(int(table.gc_low), int(table.gc_stop))


def intervals(arrays: Arrays, accesses: Accesses) -> tuple[I64, I64]:
    """Return the accessed stripes (:func:`stripe_pages` consecutive logical pages each) as disjoint
    intervals in ascending order: (first stripe, last stripe + 1), both int64[k]. The last stripe of
    the drive is always included."""
    stripe = stripe_pages(arrays)
    end = (int(arrays.cfg.lpns[0]) - 1) // stripe
    low = np.append(accesses.first // stripe, end)
    high = np.append(accesses.last // stripe, end) + 1
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    starts = np.append(True, low[1:] > high[:-1])
    return low[starts], high[np.append(starts[1:], True)]


def touched_pages(arrays: Arrays, accesses: Accesses) -> int:
    """Return the number of logical pages that :func:`fill` maps."""
    low, high = intervals(arrays, accesses)
    return min(int((high - low).sum()) * stripe_pages(arrays), int(arrays.cfg.lpns[0]))


def fill(arrays: Arrays, accesses: Accesses) -> None:
    """Fill device 0 in order, without simulated time or erases, and map only the accessed stripes.

    Call this function only if :func:`rest_is_idle` returns True and the drive has not executed a
    command.
    """
    low, high = intervals(arrays, accesses)
    sectors = int(arrays.cfg.page_bytes[0]) // SECTOR_BYTES
    mask = -1 if sectors >= 64 else (1 << sectors) - 1
    fill_stripes(arrays.handle(), 0, stripe_pages(arrays), low, high, mask)


@njit
def fill_stripes(st, dev, stripe, low, high, mask):
    """Fill device ``dev``. Map only the stripes of the intervals ``low`` to ``high`` - 1 (int64[k]
    each), with sector mask ``mask``.
    """
    cfg = st.cfg[0]
    row = cfg.units * cfg.block_pages
    lpn = 0
    at = 0
    while lpn < cfg.lpns:
        end = min(lpn + row, cfg.lpns)
        if end - lpn == row and low[at] * stripe >= end:
            for unit in range(dev * cfg.units, (dev + 1) * cfg.units):
                fill_block(st, dev, unit)
            lpn = end
            continue
        while lpn < end:
            while at + 1 < high.shape[0] and high[at] * stripe <= lpn:
                at += 1
            lpn += fill_pages(st, dev, lpn, end - lpn, lpn >= low[at] * stripe, mask)


@njit
def fill_block(st, dev, unit):
    """Fill the next block of a unit without mapping its pages."""
    cfg = st.cfg[0]
    front = st.front[0, unit]
    if front.block < 0:
        block_manager.open_block(st, dev, unit, 0)
    block = st.block[unit * cfg.all_blocks + front.block]
    block.dirty = 1
    front.next = cfg.block_pages
    write_frontier.close_block(st, dev, front, block)


@njit
def fill_pages(st, dev, lpn, count, touched, mask):
    """Allocate up to ``count`` pages, starting at ``lpn``. If ``touched`` is set, map them with
    sector mask ``mask``. Return the number of pages allocated.
    """
    cfg = st.cfg[0]
    unit = write_frontier.unit_of(st, dev, lpn, 0)
    if cfg.line > 1:
        unit = word_lines.unit_in_turn(st, dev, 0)
        write_frontier.set_laid(st, unit, 0, 1)
    pool = st.pool[unit]
    if st.front[0, unit].block < 0:
        st.block[unit * cfg.all_blocks + st.free[unit, pool.free_head]].dirty = 0
    ppn, got = write_frontier.allocate(st, dev, unit, 0, count)
    if cfg.line > 1:
        write_frontier.set_laid(st, unit, 0, 0)
        word_lines.next_turn(st, dev, unit, 0, 0, got)
    else:
        st.dev[dev].cursor = st.dev[dev].cursor + 1 if st.dev[dev].cursor + 1 < cfg.units else 0
    if touched:
        for i in range(got):
            page_map.map_page(st, dev, lpn + i, ppn + i)
            if cfg.partial != 0:
                st.sectors[dev, lpn + i] = mask
    page_map.count_programmed(st, dev, ppn, got)
    return got
