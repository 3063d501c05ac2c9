"""pSLC folding: moves of the pages of full pSLC blocks to native blocks, several into one.

Owns the trigger of a fold, the selection of its block, and the check for room. Does not own the
moves, which are those of garbage collection (gc.py), or the pSLC blocks (pslc.py).
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
    """Return True if ``b`` is a full pSLC block without pending programs and not to be retired."""
    block = st.block[b]
    return block.state == FOLDABLE and block.flying == 0 and block.retire == 0


@cold
def begin(st, u, rests):
    """Start the next fold or collection of unit ``u``, if needed. Return the block, or -1.
    ``rests``: the host has been idle for long enough.

    In DYNAMIC mode a fold returns a borrowed block and goes before collection. A fold of the fixed
    region consumes a native block and goes after collection.
    """
    if st.cfg[0].pslc == modes.DYNAMIC:
        b = fold(st, u, rests)
        return b if b >= 0 else gc.begin(st, u)
    b = gc.begin(st, u)
    return b if b >= 0 else fold(st, u, rests)


@cold
def fold(st, u, rests):
    """Start a fold of the oldest full pSLC block of unit ``u``. Return the block, or -1."""
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
    """Return True if native blocks have room for the valid pages of block ``b``. A block of the
    fixed pSLC region returns no native block, so the blocks kept for collection must remain."""
    c = st.cfg[0]
    if c.pslc != modes.STATIC or st.valid[b] == 0 or not modes.cached(st, b):
        return gc.room(st, u, b)
    blocks = mapping.promised(st, u, c.fold_stream, st.valid[b])
    return blocks + c.fold_keep <= st.pool[u].free_n


@cold
def waits(st, u):
    """Return True if a write that found no pSLC block waits until one of unit ``u`` is folded."""
    return st.cfg[0].pslc_wait != 0 and st.slc[u].lent > 0
