"""The optimizer's reservoir: where its super-pages are, where the next one goes, and which plane
has which role.

Owns the super-page map, the place that each die programs next, the roles of a block's planes and
the time of pages that change planes. Does not own who is moved to another die (paths/levelling.py),
the conventional namespace (mapping.py) or time otherwise (nand.py).
Source: OptimStore (HPCA 2023): mapped by super-page, written strictly in sequence, so that
collection moves nothing; one plane of four idle, wear levelled now and then inside the die. How is
not published: here the planes of a block turn by one whenever the block has been erased ``rotate``
times. As every super-page is written anew in every step, it changes planes when it is programmed
into a block that has turned since: page by page from register to register over the die's bus, those
next to an idle plane first.
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
"""``dirty`` of a block of the reservoir: never entered; to be erased before it is entered; erased
for the entry to come, perhaps not quite yet."""


def bad_blocks(cfg: Config, geometry: Geometry, devices: int, seed: int = 0) -> np.ndarray:
    """Super-blocks of the reservoirs that are bad from the factory, by seed:
    bool[devices x dies, reservoir_blocks]."""
    shape = devices * geometry.dies, geometry.reservoir_blocks
    if cfg.ftl.bad_blocks == 0:
        return np.zeros(shape, bool)
    return np.random.default_rng((seed, 0xBAD, 1)).random(shape) < cfg.ftl.bad_blocks


@inline
def block_of(st, g, at):
    """Block of a place of die ``g``'s reservoir, among all blocks of all devices."""
    c = st.cfg[0]
    return g * c.all_blocks + c.blocks + at // c.pages


@inline
def turned(st, g, at):
    """By how many planes the roles at a place of die ``g``'s reservoir have turned."""
    return st.block[block_of(st, g, at)].turned


@cold
def next_good(st, g, at):
    """The first place of the next block that is not bad, from the head ``at`` of one on."""
    c = st.cfg[0]
    for _ in range(c.reservoir_pages // c.pages):
        if st.block[block_of(st, g, at)].state != mapping.BAD:
            break
        at = at + c.pages if at + c.pages < c.reservoir_pages else 0
    return at


@cold
def renew(st, dev, g, b):
    """Erase block ``b``, in which nothing is valid; the roles of its planes are those of so many
    cycles from now on."""
    mapping.erase(st, dev, g, b, nand.Q_PE)
    turn(st, b, st.block[b].erases + 1)


@inline
def turn(st, b, cycles):
    """The roles of the planes of a block that is entered after so many cycles."""
    c = st.cfg[0]
    if c.rotate > 0:
        st.block[b].turned = cycles // c.rotate % c.planes


@cold
def open_place(st, dev, s):
    """Physical super-page (within its die's reservoir) for the next program of super-page ``s``.

    The die writes strictly in sequence. A block is entered only when nothing in it is valid any
    more, so collection moves nothing; otherwise the reservoir is too small, and the run fails.
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
    """The stripe that ``t`` is about to program was read from place ``source``: how many of its
    pages have to change planes first, which takes the die so much longer."""
    c = st.cfg[0]
    x = st.txn[t]
    by = turned(st, x.die, x.ppn) - turned(st, x.die, source)
    if by == 0:
        return
    by = abs(by)
    other = c.planes
    while other != 0:  # greatest common divisor
        by, other = other, by % other
    # Pages move in ``by`` rings, in order where a ring has an idle plane; else one waits aside.
    x.left = c.reservoir_planes + by - min(c.planes - c.reservoir_planes, by)
    x.array += x.left * c.register_move


@cold
def map_place(st, dev, s, at):
    """Super-page ``s`` is now at ``at`` of its die's reservoir."""
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
    """Forget where super-page ``s`` is: it lies elsewhere."""
    g = dev * st.cfg[0].dies + s % st.cfg[0].dies
    st.valid[block_of(st, g, int(st.rmap[dev, s]) - 1)] -= 1
    st.rmap[dev, s] = 0
    st.dev[dev].r_mapped -= 1


@njit
def fill(st, dev, s, n):
    """Map ``n`` super-pages from ``s`` on, in sequence, without taking time or costing erases."""
    c = st.cfg[0]
    for i in range(n):
        g = dev * c.dies + (s + i) % c.dies
        at = st.pool[g].r_next
        if at % c.pages == 0:
            st.block[block_of(st, g, next_good(st, g, at))].dirty = CLEAN
        map_place(st, dev, s + i, open_place(st, dev, s + i))
