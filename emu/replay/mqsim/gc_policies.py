"""MQSim's victims: drawn from its own generator, from the blocks that it takes for safe.

Owns RGA, RANDOM, RANDOM_P and RANDOM_PP as policies of collection. Does not own greedy and FIFO
(backend/policies.py), the generator (mrg.py) or when a policy is asked (backend/gc.py).
Source: MQSim's source; RGA is d-choices (Van Houdt, SIGMETRICS 2013), where free blocks are drawn
as well, and a drawing in which nothing is worth collecting is lost.

A drawing of the random ones that is of no use is repeated, or lost with the question that was
asked, as in MQSim. ``st.lots``: state of the generator int64[6], then the invalid pages that
RANDOM_PP asks for, 1 where drawings are repeated, then room for what RGA draws.
"""

from __future__ import annotations

from pathlib import Path

from ondie.emu.ftl.page_map import FREE, FULL, PINNED
from ondie.emu.ftl.policies import collectable, first_block
from ondie.emu.replay.mqsim.mrg32k3a import below
from ondie.kernels.jit import njit

LEAST, REPEATED, DRAWN = 6, 7, 8
"""Places in ``st.lots``."""
ENDLESS = 1000
"""Drawings over blocks after which too few are safe."""
REPEATS = 100
"""Drawings over blocks after which nothing is worth collecting."""


@njit
def safe(st, b):
    """Does nobody write block ``b``, and no collection empty it? MQSim forgets programs of what
    collection itself has written."""
    block = st.block[b]
    if block.state == FREE:
        return True
    if block.state != FULL or block.retire == PINNED:
        return False
    return block.flying == 0 or (st.lots[REPEATED] == 0 and block.stream >= st.cfg[0].collected)


@njit
def invalid(st, b):
    """Pages of block ``b`` that collecting it would win; 0 of one that cannot be collected."""
    return st.cfg[0].block_pages - st.valid[b] if collectable(st, b) else 0


@njit
def rga(st, u):
    """The block with the most invalid pages of floor(log2(blocks)) different safe ones."""
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
    """A safe block, where so wished a full one, with ``least`` invalid pages at least; the last one
    drawn where that takes more drawings than there are blocks. When it wins nothing, any that wins
    something where drawings are repeated, else -1."""
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
    """Any safe block."""
    return drawn(st, u, False, 0)


@njit
def random_p(st, u):
    """Any safe block that is full."""
    return drawn(st, u, True, 0)


@njit
def random_pp(st, u):
    """Any safe block that is full, with a number of invalid pages."""
    return drawn(st, u, True, st.lots[LEAST])


def policy(name: str) -> str:
    """GC_Block_Selection_Policy as ftl.gc_policy has it."""
    known = {"GREEDY": "greedy", "FIFO": "fifo"}
    return known.get(name) or f"{Path(__file__).resolve()}:{name.lower()}"
