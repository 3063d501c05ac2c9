"""Folding: pages of full pSLC blocks move to native ones, several such blocks into one.

Owns when that begins, with which block, and whether there is room. Does not own the moves, which
are those of collection (collection.py), or the blocks (modes.py).
Source: Samsung, TurboWrite, and Micron, "Optimizing Client SSD Performance Through Dynamic Write
Acceleration", 2014 (moved while the drive rests, or once no pSLC block is left).
"""

from __future__ import annotations

from ondie.emu.ftl import gc_victims as gc
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl import pslc as modes
from ondie.emu.ftl.page_map import FOLDABLE
from ondie.kernels.jit import cold, njit


@njit
def foldable(st, b):
    """Is block ``b`` a full pSLC block with all of its programs done, and not to be retired?"""
    block = st.block[b]
    return block.state == FOLDABLE and block.flying == 0 and block.retire == 0


@cold
def begin(st, u, rests):
    """Start the next fold or collection of unit ``u``, if there is a reason. Returns the block, or
    -1. ``rests``: the host has been quiet for long enough.

    A fold gives a borrowed block back, and goes first; one of the fixed region leaves a native
    block fewer, and comes behind collection.
    """
    if st.cfg[0].pslc == modes.DYNAMIC:
        b = fold(st, u, rests)
        return b if b >= 0 else gc.begin(st, u)
    b = gc.begin(st, u)
    return b if b >= 0 else fold(st, u, rests)


@cold
def fold(st, u, rests):
    """Start the next fold of unit ``u``, or -1: the pSLC block that was filled first."""
    c = st.cfg[0]
    pool = st.pool[u]
    if st.slc[u].full == 0 or pool.victims >= c.gc_parallel:
        return -1
    if not rests and modes.left(st, u) > c.fold_blocks:
        return -1
    first = u * c.all_blocks
    oldest = -1
    for b in range(first, first + c.blocks):
        if foldable(st, b) and (oldest < 0 or st.block[b].filled < st.block[oldest].filled):
            oldest = b
    if oldest < 0 or not room(st, u, oldest):
        return -1
    gc.start(st, u, oldest)
    return oldest


@cold
def room(st, u, b):
    """Do the valid pages of a block find native ones? A block of the fixed pSLC region comes back
    as no native block, so that what is kept for collection must be left."""
    c = st.cfg[0]
    if c.pslc != modes.STATIC or st.valid[b] == 0 or not modes.cached(st, b):
        return gc.room(st, u, b)
    blocks = mapping.promised(st, u, c.fold_stream, st.valid[b])
    return blocks + c.fold_keep <= st.pool[u].free_n


@cold
def waits(st, u):
    """Does a write that found no pSLC block wait for one, as one of unit ``u`` will be folded?"""
    return st.cfg[0].pslc_wait != 0 and st.slc[u].lent > 0
