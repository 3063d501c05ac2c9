"""pSLC folding: move of the pages of several full pSLC blocks to one native block.

Owns the trigger of a fold, the selection of the block to fold, and the check for free space. Does
not own the moves, which garbage collection executes (gc.py), or the pSLC blocks (pslc.py). Source:
Samsung, TurboWrite, and Micron, "Optimizing Client SSD Performance Through Dynamic Write
Acceleration", 2014 (data is moved while the drive is idle, or when no pSLC block is left).
"""

from __future__ import annotations

from ondie.emu.ftl import block_manager, gc_victims, pslc
from ondie.emu.ftl.page_map import FOLDABLE
from ondie.kernels.jit import cold, njit


@njit
def is_foldable(st, bid):
    """Return True if block ``bid`` is a full pSLC block that has no pending programs and is not to
    be retired.
    """
    block = st.block[bid]
    return block.state == FOLDABLE and block.flying == 0 and block.retire == 0


@cold
def start_fold_or_collection(st, unit, rests):
    """Start the next fold or garbage collection of unit ``unit`` if one is needed. Return the block
    whose pages are moved, or -1 if nothing was started. ``rests``: True if the drive has been idle
    for long enough.

    If pSLC blocks are borrowed native blocks (DYNAMIC), a fold returns a borrowed block, so folding
    precedes garbage collection. If they are a fixed region (STATIC), a fold consumes a native
    block, so folding follows garbage collection.
    """
    if st.cfg[0].pslc == pslc.DYNAMIC:
        block = start_fold(st, unit, rests)
        return block if block >= 0 else gc_victims.start_collection(st, unit)
    block = gc_victims.start_collection(st, unit)
    return block if block >= 0 else start_fold(st, unit, rests)


@cold
def start_fold(st, unit, rests):
    """Start a fold of the oldest full pSLC block of unit ``unit`` if few pSLC blocks are left or
    the drive is idle (``rests``). Return this block, or -1 if no fold was started.
    """
    cfg = st.cfg[0]
    pool = st.pool[unit]
    if st.slc[unit].full == 0 or pool.victims >= cfg.gc_parallel:
        return -1
    if not rests and pslc.blocks_left(st, unit) > cfg.fold_blocks:
        return -1
    first = unit * cfg.all_blocks
    oldest = -1
    for block in range(first, first + cfg.blocks):
        if is_foldable(st, block) and (
            oldest < 0 or st.block[block].filled < st.block[oldest].filled
        ):
            oldest = block
    if oldest < 0 or not has_room(st, unit, oldest):
        return -1
    gc_victims.make_victim(st, unit, oldest)
    return oldest


@cold
def has_room(st, unit, block):
    """Return True if the free native blocks of unit ``unit`` suffice for the valid pages of
    ``block``. A fold of the fixed pSLC region frees no native block, so it must not use the blocks
    that are reserved for garbage collection.
    """
    cfg = st.cfg[0]
    if cfg.pslc != pslc.STATIC or st.valid[block] == 0 or not pslc.is_pslc(st, block):
        return gc_victims.has_room(st, unit, block)
    blocks = block_manager.count_reserved_blocks(st, unit, cfg.fold_stream, st.valid[block])
    return blocks + cfg.fold_keep <= st.pool[unit].free_n


@cold
def waits_for_fold(st, unit):
    """Return True if a write must wait for a fold in unit ``unit`` when no pSLC block is free."""
    return st.cfg[0].pslc_wait != 0 and st.slc[unit].lent > 0
