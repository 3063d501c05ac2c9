"""MQSim's random victim selection, drawn from its generator among the blocks it considers safe.

Owns RGA, RANDOM, RANDOM_P and RANDOM_PP as victim selection policies. Does not own greedy and FIFO
(ftl/policies.py), the generator (mrg32k3a.py) or the start of garbage collection
(ftl/gc_victims.py).
Source: MQSim's source; RGA is d-choices (Van Houdt, SIGMETRICS 2013), where free blocks are drawn
as well, and a draw without a block worth collecting is lost.

A useless draw of the random policies is repeated, or the request for a victim fails, as in MQSim.
``st.lots``: state of the generator int64[6], then the number of invalid pages that RANDOM_PP
requires, then 1 where draws are repeated, then space for the draws of RGA.
"""

from __future__ import annotations

from pathlib import Path

from ondie.emu.ftl.page_map import FREE, FULL, PINNED
from ondie.emu.ftl.policies import collectable, first_block
from ondie.emu.replay.mqsim.mrg32k3a import below
from ondie.kernels.jit import njit

LEAST_LOT, REPEATED_LOT, DRAWN_LOT = 6, 7, 8
"""Indices in ``st.lots``."""
ENDLESS = 1000
"""Draws per block after which RGA stops because too few blocks are safe."""
MOST_REPEATS = 100
"""Draws per block after which repeated draws stop because no block is worth collecting."""


@njit
def safe(st, b):
    """Return True if block ``b`` is neither being written nor being collected.

    MQSim ignores the programs of blocks that garbage collection writes.
    """
    block = st.block[b]
    if block.state == FREE:
        return True
    if block.state != FULL or block.retire == PINNED:
        return False
    return block.flying == 0 or (st.lots[REPEATED_LOT] == 0 and block.stream >= st.cfg[0].collected)


@njit
def invalid(st, block):
    """Return the invalid pages of block ``block``; 0 if it cannot be collected."""
    return st.cfg[0].block_pages - st.valid[block] if collectable(st, block) else 0


@njit
def rga(st, unit):
    """Return the block with the most invalid pages of floor(log2(blocks)) distinct safe blocks.

    Returns -1 if none of them has any.
    """
    cfg = st.cfg[0]
    drawn_blocks = 0
    while cfg.blocks >> (drawn_blocks + 1) > 0:
        drawn_blocks += 1
    first = first_block(st, unit)
    found = 0
    for _ in range(ENDLESS * cfg.blocks):
        block = below(st.lots, cfg.blocks)
        if not safe(st, first + block):
            continue
        known = False
        for i in range(found):
            known = known or st.lots[DRAWN_LOT + i] == block
        if not known:
            st.lots[DRAWN_LOT + found] = block
            found += 1
            if found == drawn_blocks:
                break
    best = -1
    most = 0
    for i in range(found):
        block = st.lots[DRAWN_LOT + i]
        pages = invalid(st, first + block)
        if pages > most or (pages == most and pages > 0 and block < best):
            best = block
            most = pages
    return first + best if best >= 0 else -1


@njit
def drawn(st, unit, full, least):
    """Draw a safe block, full if ``full``, with at least ``least`` invalid pages.

    The last block drawn is taken after as many draws as there are blocks. If it has no invalid
    page, any block with one is drawn where draws are repeated; otherwise -1.
    """
    cfg = st.cfg[0]
    first = first_block(st, unit)
    block = first + below(st.lots, cfg.blocks)
    for _ in range(cfg.blocks):
        if (
            safe(st, block)
            and (not full or st.block[block].state == FULL)
            and least <= invalid(st, block)
        ):
            break
        block = first + below(st.lots, cfg.blocks)
    if st.lots[REPEATED_LOT] != 0:
        for _ in range(MOST_REPEATS * cfg.blocks):
            if invalid(st, block) > 0:
                break
            block = first + below(st.lots, cfg.blocks)
    return block if invalid(st, block) > 0 else -1


@njit
def random(st, unit):
    """Return any safe block."""
    return drawn(st, unit, False, 0)


@njit
def random_p(st, unit):
    """Return any safe block that is full."""
    return drawn(st, unit, True, 0)


@njit
def random_pp(st, unit):
    """Return any safe block that is full and has the required number of invalid pages."""
    return drawn(st, unit, True, st.lots[LEAST_LOT])


def policy(name: str) -> str:
    """Return GC_Block_Selection_Policy as a value of ftl.gc_policy."""
    known = {"GREEDY": "greedy", "FIFO": "fifo"}
    return known.get(name) or f"{Path(__file__).resolve()}:{name.lower()}"
