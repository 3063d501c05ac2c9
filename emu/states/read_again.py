"""Reads of super-pages of the reservoir in zero simulated time, with random bit errors as in timed
reads.

Owns the random draws of the bit errors of these reads. Does not own the draws of timed reads
(ftl/reservoir.py), the error rates (nand/rber.py), or the correction by a code
(paths/on_die/registers.py).
Source: this project.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import BARE_CORRECTED_BITS, BARE_WRONG_BITS
from ondie.emu.engine.core.rng import absorb, page_key
from ondie.emu.ftl import page_health
from ondie.emu.ftl.reservoir import block_of
from ondie.emu.nand import pe_protection, rber
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.kernels.jit import njit


@njit
def draw_read(st, die, place, plane, page):
    """Draw the bit errors of a read of a reservoir page of the first device, as ftl/reservoir.py
    does.

    Return (uint64 key of the draws, raw bit error rate). ``place``: physical super-page of the
    reservoir of die ``die``. ``plane``: plane of the page. ``page``: physical page number of the
    page. The read counts of the page and of its block are incremented.
    """
    cfg = st.cfg[0]
    block = block_of(st, die, place)
    at = die * (cfg.all_blocks - cfg.blocks) + place // cfg.pages
    cycles = page_health.pe_cycles_after(st, block, st.worn[at, plane])
    shifted = page_health.shifted_rate_of(st, block, page)
    rate = rber.total_rate(st.quality[block].stable, shifted, st.scale[place % cfg.pages])
    st.seen[0, page] += 1
    st.block[block].reads += 1
    return page_key(absorb(cfg.seed, 0), page, cycles, st.seen[0, page]), rate


def read_super_page(drive: Drive, payload: Reservoir, super_page: int) -> np.ndarray:
    """Read a super-page of the first device, and decode it with the code of the reservoir
    (pe.protection). Return its pages, uint8[planes, page bytes]. Add the bit errors to the counters
    of the drive.

    The read takes no simulated time. A code word that the code cannot correct keeps its bit errors.
    """
    cfg, geometry = drive.cfg, drive.geometry
    at = payload.at(0, super_page)
    pages = payload.pages(0, super_page)
    planes = np.stack([payload.flash[0].read(ppn) for ppn in pages])
    if cfg.errors.kind == "none":
        return planes
    handle, counters = drive.state, drive.arrays.count[0]
    for role, ppn in enumerate(pages):
        plane = (role + at.turned) % geometry.planes
        key, rate = draw_read(handle, at.die, at.place, plane, ppn)
        raw, left = pe_protection.count_wrong_bits(
            np.uint64(key), rate, planes.shape[1], *payload.code, cfg.errors.exposure
        )
        counters[BARE_WRONG_BITS] += left
        counters[BARE_CORRECTED_BITS] += raw - left
        if raw:
            payload.hit(0, planes[role], super_page * len(planes) + role, int(key), rate)
    return planes
