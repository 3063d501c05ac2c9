"""Optimizer reservoir: super-page map, write pointers and plane rotation.

Owns the super-page map, the next place that each die programs, the roles of a block's planes, and
the time that pages take to change planes. A place is a physical super-page within a die's
reservoir. Does not own the moves of super-pages to other dies (paths/on_die/wear_leveling.py), the
conventional namespace (page_map.py) or the time of flash operations (nand/channel.py).
Source: OptimStore (HPCA 2023): mapping by super-page; strictly sequential writes, so that garbage
collection moves nothing; one plane of four is idle, with occasional wear leveling inside the die.
The paper does not publish the method. Here, the roles of a block's planes rotate by one each time
the block has been erased ``rotate`` times. Every super-page is rewritten in every step, so its
pages change planes when it is programmed into a block that has rotated since. The pages move one by
one from register to register over the die's bus; pages next to an idle plane move first.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.error_codes import E_RESERVOIR
from ondie.emu.engine.core.events import fail
from ondie.emu.ftl import block_manager, page_map
from ondie.emu.nand.die import Q_PE
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import cold, inline, njit

CLEAN, USED, RENEWED = range(3)
"""Values of ``dirty`` of a reservoir block.

CLEAN: no data have been written; USED: the block must be erased before it is written again;
RENEWED: the block has been erased for its next use (the erase may still be in progress).
"""


def bad_blocks(cfg: Config, geometry: Geometry, devices: int, seed: int = 0) -> np.ndarray:
    """Draw the super-blocks of the reservoirs that are bad from the factory, by seed: bool[devices
    x dies, reservoir_blocks]."""
    shape = devices * geometry.dies, geometry.reservoir_blocks
    if cfg.ftl.bad_blocks == 0:
        return np.zeros(shape, bool)
    return np.random.default_rng((seed, 0xBAD, 1)).random(shape) < cfg.ftl.bad_blocks


@inline
def block_of(st, die, at):
    """Return the block that contains place ``at`` (physical super-page) of the reservoir of die
    ``die``, numbered over all blocks of all devices.
    """
    cfg = st.cfg[0]
    return die * cfg.all_blocks + cfg.blocks + at // cfg.pages


@inline
def rotation_of(st, die, at):
    """Return the number of planes by which the plane roles have rotated in the block that contains
    place ``at`` (physical super-page) of the reservoir of die ``die``.
    """
    return st.block[block_of(st, die, at)].turned


@cold
def next_good(st, die, at):
    """Return the first place (physical super-page) of the first good block from place ``at`` on.
    ``at`` must be the first place of a block.
    """
    cfg = st.cfg[0]
    for _ in range(cfg.reservoir_pages // cfg.pages):
        if st.block[block_of(st, die, at)].state != page_map.BAD:
            break
        at = at + cfg.pages if at + cfg.pages < cfg.reservoir_pages else 0
    return at


@cold
def erase_block(st, dev, die, block):
    """Erase block ``block``, which has no valid page, and set the roles of its planes for its new
    P/E cycle count."""
    block_manager.queue_erase(st, dev, die, block, Q_PE)
    set_plane_roles(st, block, st.block[block].erases + 1)


@inline
def set_plane_roles(st, block, cycles):
    """Set the rotation of plane roles of ``block``, which is opened after ``cycles`` P/E cycles."""
    cfg = st.cfg[0]
    if cfg.rotate > 0:
        st.block[block].turned = cycles // cfg.rotate % cfg.planes


@cold
def open_place(st, dev, super_page):
    """Allocate and return the place (physical super-page) for the next program of ``super_page``.

    The die writes strictly in sequence. It enters a block only if the block has no valid page, so
    garbage collection moves nothing. Otherwise the reservoir is too small, and the run fails
    (E_RESERVOIR).
    """
    cfg = st.cfg[0]
    die = dev * cfg.dies + super_page % cfg.dies
    pool = st.pool[die]
    at = pool.r_next
    if at % cfg.pages == 0:
        at = next_good(st, die, at)
        bid = block_of(st, die, at)
        block = st.block[bid]
        if st.valid[bid] != 0:
            fail(st, E_RESERVOIR, die, st.valid[bid])
        if block.dirty == USED:
            erase_block(st, dev, die, bid)
        elif block.dirty == CLEAN:
            set_plane_roles(st, bid, block.erases)
        block.dirty = USED
        if cfg.errors != 0:
            st.quality[bid].since = st.reg[0].now
    pool.r_next = at + 1 if at + 1 < cfg.reservoir_pages else 0
    return at


@cold
def change_planes(st, tid, source):
    """Add the time of plane changes to the program of ``tid``, whose stripe was read from place
    ``source``. ``turned`` of ``tid`` becomes the number of page moves between registers.
    """
    cfg = st.cfg[0]
    txn = st.txn[tid]
    by = rotation_of(st, txn.die, txn.ppn) - rotation_of(st, txn.die, source)
    if by == 0:
        return
    by = abs(by)
    other = cfg.planes
    while other != 0:  # greatest common divisor
        by, other = other, by % other
    # Pages move in ``by`` rings. A ring without an idle plane takes one more move: one page is
    # buffered.
    txn.turned = cfg.reservoir_planes + by - min(cfg.planes - cfg.reservoir_planes, by)
    txn.array += txn.turned * cfg.register_move


@cold
def map_place(st, dev, super_page, at):
    """Map super-page ``super_page`` to place ``at`` (physical super-page) of its die."""
    cfg = st.cfg[0]
    die = dev * cfg.dies + super_page % cfg.dies
    old = st.rmap[dev, super_page]
    if old != 0:
        st.valid[block_of(st, die, int(old) - 1)] -= 1
    else:
        st.dev[dev].r_mapped += 1
    st.rmap[dev, super_page] = at + 1
    st.valid[block_of(st, die, at)] += 1


@cold
def unmap(st, dev, super_page):
    """Unmap super-page ``super_page``, whose data are now stored on another die."""
    die = dev * st.cfg[0].dies + super_page % st.cfg[0].dies
    st.valid[block_of(st, die, int(st.rmap[dev, super_page]) - 1)] -= 1
    st.rmap[dev, super_page] = 0
    st.dev[dev].r_mapped -= 1


@njit
def fill(st, dev, super_page, count):
    """Map ``count`` super-pages from ``super_page`` on, in sequence, without simulated time or
    erases.
    """
    cfg = st.cfg[0]
    for i in range(count):
        die = dev * cfg.dies + (super_page + i) % cfg.dies
        at = st.pool[die].r_next
        if at % cfg.pages == 0:
            st.block[block_of(st, die, next_good(st, die, at))].dirty = CLEAN
        map_place(st, dev, super_page + i, open_place(st, dev, super_page + i))
