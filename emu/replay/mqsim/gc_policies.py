"""MQSim's random victim selection: draws blocks with MQSim's random number generator.

Owns RGA, RANDOM, RANDOM_P and RANDOM_PP as victim selection policies. Does not own greedy and FIFO
(ftl/policies.py), the generator (mrg32k3a.py) or the start of garbage collection
(ftl/gc_victims.py).
Source: MQSim's source. RGA is d-choices (Van Houdt, SIGMETRICS 2013) with two differences: free
blocks are drawn as well, and a selection fails if no drawn block has an invalid page.

If the random policies draw a block without an invalid page, the draw is repeated or, as in MQSim,
the selection fails. A block is safe if it is neither being written nor being collected.
``st.lots``: state of the generator int64[6], then the number of invalid pages that RANDOM_PP
requires, then 1 if draws are repeated, then space for the draws of RGA.
"""

from __future__ import annotations

from pathlib import Path

from ondie.emu.ftl.page_map import FREE, FULL, PINNED
from ondie.emu.ftl.policies import collectable, first_block
from ondie.emu.replay.mqsim.mrg32k3a import below
from ondie.kernels.jit import njit

LEAST_LOT, REPEATED_LOT, DRAWN_LOT = 6, 7, 8
"""Indices in ``st.lots``, the state of random victim selection: number of required invalid pages,
flag for repeated draws, first draw of RGA."""
ENDLESS = 1000
"""Number of draws per block of a plane after which RGA stops, because too few blocks are safe
(neither being written nor being collected)."""
MOST_REPEATS = 100
"""Number of draws per block of a plane after which random victim selection stops searching for a
block with an invalid page."""


@njit
def safe(st, b):
    """Return True if block ``b`` is neither being written nor being collected.

    A block with a program in progress counts as being written. As in MQSim, programs of garbage
    collection do not count if draws are not repeated (``st.lots[REPEATED_LOT]`` is 0).
    """
    block = st.block[b]
    if block.state == FREE:
        return True
    if block.state != FULL or block.retire == PINNED:
        return False
    return block.flying == 0 or (st.lots[REPEATED_LOT] == 0 and block.stream >= st.cfg[0].collected)


@njit
def invalid(st, block):
    """Return the number of invalid pages of ``block``, or 0 if the block cannot be
    garbage-collected."""
    return st.cfg[0].block_pages - st.valid[block] if collectable(st, block) else 0


@njit
def rga(st, unit):
    """Select a victim in plane ``unit`` by RGA (d-choices).

    Draws floor(log2(blocks)) distinct safe blocks (neither being written nor being collected), or
    fewer if ENDLESS draws per block of the plane do not find this number. Returns the drawn block
    with the most invalid pages, or -1 if no drawn block has an invalid page.
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
    """Draw a victim at random: a safe block of plane ``unit`` with at least ``least`` invalid
    pages.

    ``full``: True if the block must also be full. If the first n draws find no such block, where n
    is the number of blocks of the plane, the block of the next draw is taken without a check. If
    this block has no invalid page and the configuration repeats draws, draw until a block has an
    invalid page, at most MOST_REPEATS times per block of the plane. Returns -1 if no block with an
    invalid page is found.
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
    """Select a victim by RANDOM: a safe block of plane ``unit`` (neither being written nor being
    collected), drawn at random. Return -1 if :func:`drawn` finds none."""
    return drawn(st, unit, False, 0)


@njit
def random_p(st, unit):
    """Select a victim by RANDOM_P: a safe, full block of plane ``unit``, drawn at random. A block
    is safe if it is neither being written nor being collected. Return -1 if :func:`drawn` finds
    none."""
    return drawn(st, unit, True, 0)


@njit
def random_pp(st, unit):
    """Select a victim by RANDOM_PP: a safe, full block of plane ``unit`` with at least
    ``st.lots[LEAST_LOT]`` invalid pages, drawn at random. A block is safe if it is neither being
    written nor being collected. Return -1 if :func:`drawn` finds none."""
    return drawn(st, unit, True, st.lots[LEAST_LOT])


def policy(name: str) -> str:
    """Return the value of ftl.gc_policy that corresponds to ``name``, a value of
    GC_Block_Selection_Policy."""
    known = {"GREEDY": "greedy", "FIFO": "fifo"}
    return known.get(name) or f"{Path(__file__).resolve()}:{name.lower()}"
