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

LEAST, REPEATED, DRAWN = 6, 7, 8
"""Indices in ``st.lots``."""
ENDLESS = 1000
"""Draws per block after which RGA stops because too few blocks are safe."""
REPEATS = 100
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
    return block.flying == 0 or (st.lots[REPEATED] == 0 and block.stream >= st.cfg[0].collected)


@njit
def invalid(st, b):
    """Return the invalid pages of block ``b``; 0 if it cannot be collected."""
    return st.cfg[0].block_pages - st.valid[b] if collectable(st, b) else 0


@njit
def rga(st, u):
    """Return the block with the most invalid pages of floor(log2(blocks)) distinct safe blocks.

    Returns -1 if none of them has any.
    """
    c = st.cfg[0]
    d = 0
    while c.blocks >> (d + 1) > 0:
        d += 1
    first = first_block(st, u)
    found = 0
    for _ in range(ENDLESS * c.blocks):
        b = below(st.lots, c.blocks)
        if not safe(st, first + b):
            continue
        known = False
        for i in range(found):
            known = known or st.lots[DRAWN + i] == b
        if not known:
            st.lots[DRAWN + found] = b
            found += 1
            if found == d:
                break
    best = -1
    most = 0
    for i in range(found):
        b = st.lots[DRAWN + i]
        n = invalid(st, first + b)
        if n > most or (n == most and n > 0 and b < best):
            best = b
            most = n
    return first + best if best >= 0 else -1


@njit
def drawn(st, u, full, least):
    """Draw a safe block, full if ``full``, with at least ``least`` invalid pages.

    The last block drawn is taken after as many draws as there are blocks. If it has no invalid
    page, any block with one is drawn where draws are repeated; otherwise -1.
    """
    c = st.cfg[0]
    first = first_block(st, u)
    b = first + below(st.lots, c.blocks)
    for _ in range(c.blocks):
        if safe(st, b) and (not full or st.block[b].state == FULL) and least <= invalid(st, b):
            break
        b = first + below(st.lots, c.blocks)
    if st.lots[REPEATED] != 0:
        for _ in range(REPEATS * c.blocks):
            if invalid(st, b) > 0:
                break
            b = first + below(st.lots, c.blocks)
    return b if invalid(st, b) > 0 else -1


@njit
def random(st, u):
    """Return any safe block."""
    return drawn(st, u, False, 0)


@njit
def random_p(st, u):
    """Return any safe block that is full."""
    return drawn(st, u, True, 0)


@njit
def random_pp(st, u):
    """Return any safe block that is full and has the required number of invalid pages."""
    return drawn(st, u, True, st.lots[LEAST])


def policy(name: str) -> str:
    """Return GC_Block_Selection_Policy as a value of ftl.gc_policy."""
    known = {"GREEDY": "greedy", "FIFO": "fifo"}
    return known.get(name) or f"{Path(__file__).resolve()}:{name.lower()}"
