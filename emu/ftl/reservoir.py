"""Optimizer reservoir: super-page map, write pointers and plane rotation.

Owns the super-page map, the next place that each die programs, the roles of a block's planes, and
the time of pages that change planes. A place is a physical super-page within a die's reservoir.
Does not own the moves of super-pages to other dies (paths/on_die/wear_leveling.py), the
conventional namespace (page_map.py) or any other time (nand/channel.py).
Source: OptimStore (HPCA 2023): mapping by super-page; strictly sequential writes, so that garbage
collection moves nothing; one plane of four is idle, with occasional wear leveling inside the die.
The paper does not publish the method. Here, the roles of a block's planes rotate by one each time
the block has been erased ``rotate`` times. Every super-page is rewritten in every step, so its
pages change planes when it is programmed into a block that has rotated since. The pages move one by
one from register to register over the die's bus, those next to an idle plane first.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.events import E_RESERVOIR, fail
from ondie.emu.ftl import page_map as mapping
from ondie.emu.nand import channel as nand
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import cold, inline, njit

CLEAN, USED, RENEWED = range(3)
"""``dirty`` of a reservoir block: never entered; must be erased before it is entered; erased for
its next entry (the erase may still be in progress)."""


def bad_blocks(cfg: Config, geometry: Geometry, devices: int, seed: int = 0) -> np.ndarray:
    """Draw the super-blocks of the reservoirs that are bad from the factory, by seed: bool[devices
    x dies, reservoir_blocks]."""
    shape = devices * geometry.dies, geometry.reservoir_blocks
    if cfg.ftl.bad_blocks == 0:
        return np.zeros(shape, bool)
    return np.random.default_rng((seed, 0xBAD, 1)).random(shape) < cfg.ftl.bad_blocks


@inline
def block_of(st, g, at):
    """Return the block of place ``at`` of die ``g``'s reservoir, numbered over all blocks of all
    devices."""
    c = st.cfg[0]
    return g * c.all_blocks + c.blocks + at // c.pages


@inline
def turned(st, g, at):
    """Return the number of planes by which the roles at place ``at`` of die ``g``'s reservoir have
    rotated."""
    return st.block[block_of(st, g, at)].turned


@cold
def next_good(st, g, at):
    """Return the first place of the first good block from ``at`` on, where ``at`` is the first
    place of a block."""
    c = st.cfg[0]
    for _ in range(c.reservoir_pages // c.pages):
        if st.block[block_of(st, g, at)].state != mapping.BAD:
            break
        at = at + c.pages if at + c.pages < c.reservoir_pages else 0
    return at


@cold
def renew(st, dev, g, b):
    """Erase block ``b``, which has no valid page, and set the roles of its planes for its new P/E
    cycle count."""
    mapping.erase(st, dev, g, b, nand.Q_PE)
    turn(st, b, st.block[b].erases + 1)


@inline
def turn(st, b, cycles):
    """Set the roles of the planes of block ``b``, entered after ``cycles`` P/E cycles."""
    c = st.cfg[0]
    if c.rotate > 0:
        st.block[b].turned = cycles // c.rotate % c.planes


@cold
def open_place(st, dev, s):
    """Allocate the place for the next program of super-page ``s``.

    The die writes strictly in sequence. A block is entered only if it has no valid page, so garbage
    collection moves nothing. Otherwise the reservoir is too small, and the run fails (E_RESERVOIR).
    """
    c = st.cfg[0]
    g = dev * c.dies + s % c.dies
    pool = st.pool[g]
    at = pool.r_next
    if at % c.pages == 0:
        at = next_good(st, g, at)
        b = block_of(st, g, at)
        block = st.block[b]
        if st.valid[b] != 0:
            fail(st, E_RESERVOIR, g, st.valid[b])
        if block.dirty == USED:
            renew(st, dev, g, b)
        elif block.dirty == CLEAN:
            turn(st, b, block.erases)
        block.dirty = USED
        if c.errors != 0:
            st.quality[b].since = st.reg[0].now
    pool.r_next = at + 1 if at + 1 < c.reservoir_pages else 0
    return at


@cold
def change_planes(st, t, source):
    """Add the time of plane changes to the program of ``t``, whose stripe was read from place
    ``source``. ``left`` is the number of page moves between registers."""
    c = st.cfg[0]
    x = st.txn[t]
    by = turned(st, x.die, x.ppn) - turned(st, x.die, source)
    if by == 0:
        return
    by = abs(by)
    other = c.planes
    while other != 0:  # greatest common divisor
        by, other = other, by % other
    # Pages move in ``by`` rings. A ring without an idle plane takes one more move: one page is
    # buffered.
    x.left = c.reservoir_planes + by - min(c.planes - c.reservoir_planes, by)
    x.array += x.left * c.register_move


@cold
def map_place(st, dev, s, at):
    """Map super-page ``s`` to place ``at`` of its die's reservoir."""
    c = st.cfg[0]
    g = dev * c.dies + s % c.dies
    old = st.rmap[dev, s]
    if old != 0:
        st.valid[block_of(st, g, int(old) - 1)] -= 1
    else:
        st.dev[dev].r_mapped += 1
    st.rmap[dev, s] = at + 1
    st.valid[block_of(st, g, at)] += 1


@cold
def unmap(st, dev, s):
    """Unmap super-page ``s``, which is now stored elsewhere."""
    g = dev * st.cfg[0].dies + s % st.cfg[0].dies
    st.valid[block_of(st, g, int(st.rmap[dev, s]) - 1)] -= 1
    st.rmap[dev, s] = 0
    st.dev[dev].r_mapped -= 1


@njit
def fill(st, dev, s, n):
    """Map ``n`` super-pages from ``s`` on, in sequence, without simulated time or erases."""
    c = st.cfg[0]
    for i in range(n):
        g = dev * c.dies + (s + i) % c.dies
        at = st.pool[g].r_next
        if at % c.pages == 0:
            st.block[block_of(st, g, next_good(st, g, at))].dirty = CLEAN
        map_place(st, dev, s + i, open_place(st, dev, s + i))
