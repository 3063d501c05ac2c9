"""Untimed FTL of one allocation unit: writes, garbage collection and wear, without timing.

Owns the exact movement of pages between the blocks of one plane or die under a stream of
overwrites. Does not own the mapping tables of the drive (steady_state.py) or timed garbage
collection (ftl/gc.py).
Source: page-level mapping; victim selection as in ftl/policies.py: Van Houdt (SIGMETRICS 2013),
Kawaguchi et al. (USENIX 1995), MQSim's RANDOM_PP.

Logical pages of a unit are called *labels*, numbered from 0, region by region. Physical pages are
called *slots*. ``where[label]`` is the slot of a label; ``who[slot]`` is the label that was last
written to a slot. A slot is valid while ``where[who[slot]] == slot``. The number of a slot is
``block << shift | page``: the pages of a block are padded to a power of two, so that no access
needs a division.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.engine.core.ahead import ask
from ondie.emu.engine.core.rng import GAMMA, MASK, UNIT, mix, u64
from ondie.emu.engine.core.state import record_type
from ondie.kernels.jit import njit

GREEDY, D_CHOICES, RANDOM, RANDOM_SOME, FIFO, COST_BENEFIT = range(6)
POLICIES = ("greedy", "d_choices", "random", "random_some", "fifo", "cost_benefit")

REG = record_type(
    pages="i8",  # of a block
    shift="i8",  # log2 of a block's slots
    blocks="i8",
    low="i8",  # collection starts at this many free blocks and stops at one more
    policy="i8",
    choices="i8",  # d of d-choices
    parts="i8",  # random_some accepts a block with at least pages / parts invalid pages
    level="i8",  # 1: open the least erased free block, 0: the one that is free longest
    clock="i8",  # blocks filled so far
    head="i8",  # index of the first free block in the ring
    free="i8",  # number of free blocks
    user="i8",  # pages written by the user
    moved="i8",  # pages written by collection
    victims="i8",
    next="i8",  # IN_SEQUENCE: next label; BY_LIST: next index of the list
    order="i8",  # of writes: AT_RANDOM, IN_SEQUENCE or BY_LIST
    split="i8",  # 1: regions have different frontiers for collected pages
    stuck="i8",  # 1: no space can be reclaimed
)
AT_RANDOM, IN_SEQUENCE, BY_LIST = range(3)
NOT_FULL = 1 << 30
"""Offset added to the valid count of a free or open block, so that no policy selects the block."""
AHEAD = 24
"""Number of loop iterations by which a prefetch precedes the access to the prefetched entry."""
HOPELESS = 64
"""Number of victims per block of the unit after which garbage collection gives up the search for a
free block.
"""


class Unit(NamedTuple):
    """Arrays of the simulated allocation unit, which is one plane, or one die if blocks are
    super-blocks. A *label* is a logical page, and a *slot* is a physical page of the unit."""

    reg: np.recarray  # REG[1]
    rng: np.ndarray  # uint64[1]
    where: np.ndarray  # int32[]: slot of each label; blocks << shift: not written
    who: np.ndarray  # int32[slots + AHEAD]: label last written to each slot
    score: np.ndarray  # int32[blocks + 1]: valid pages, + NOT_FULL while free or open
    filled: np.ndarray  # int64[blocks]: clock when the block was filled
    erases: np.ndarray  # int64[blocks]
    ring: np.ndarray  # int32[blocks]: free blocks, starting at reg.head
    block: np.ndarray  # int64[fronts]: open block, -1 = none
    cursor: np.ndarray  # int64[fronts]: next slot of the open block
    first: np.ndarray  # int64[regions + 1]: first label of each region
    labels: np.ndarray  # int64[regions]: number of labels
    limit: np.ndarray  # int64[regions]: cumulative write frequency, 2**31 = 1
    user_front: np.ndarray  # int64[regions]: write frontier of user pages
    moved_front: np.ndarray  # int64[regions]: write frontier of collected pages
    draw: np.ndarray  # int32[pages + AHEAD]: labels drawn in advance
    drawn: np.ndarray  # int32[pages + AHEAD]: regions of these labels
    todo: np.ndarray  # int32[]: labels to write, in this order (BY_LIST)


# --- random numbers, in sequence


@njit
def random_bits(rng):
    """Return 64 random bits (SplitMix64)."""
    x = (u64(rng[0]) + GAMMA) & MASK
    rng[0] = x
    return mix(x)


@njit
def below(rng, count):
    """Return a uniformly random integer from 0 to ``count`` - 1, from 53 random bits."""
    return int((random_bits(rng) >> 11) * UNIT * count)


# --- blocks


@njit
def take(unit, front):
    """Open the next free block of the ring for write frontier ``front``."""
    reg = unit.reg[0]
    ring, size = unit.ring, unit.ring.size
    if reg.level != 0:
        best = reg.head
        for i in range(reg.free):
            at = reg.head + i
            at = at - size if at >= size else at
            if unit.erases[ring[at]] < unit.erases[ring[best]]:
                best = at
        ring[best], ring[reg.head] = ring[reg.head], ring[best]
    block = ring[reg.head]
    reg.head = reg.head + 1 if reg.head + 1 < size else 0
    reg.free -= 1
    unit.block[front] = block
    unit.cursor[front] = int(block) << reg.shift


@njit
def give(unit, block):
    """Append the empty block ``block`` to the ring of free blocks of ``unit``."""
    reg = unit.reg[0]
    at = reg.head + reg.free
    unit.ring[at - unit.ring.size if at >= unit.ring.size else at] = block
    reg.free += 1


@njit
def close(unit, front):
    """Close the full block of write frontier ``front``, so that it can be selected as a victim."""
    reg = unit.reg[0]
    block = unit.block[front]
    reg.clock += 1
    unit.filled[block] = reg.clock
    unit.score[block] -= NOT_FULL
    unit.block[front] = -1


# --- collection


@njit
def _sample(unit):
    """Return a full block, selected uniformly at random."""
    block = below(unit.rng, unit.reg[0].blocks)
    while unit.score[block] >= NOT_FULL:
        block = below(unit.rng, unit.reg[0].blocks)
    return block


@njit
def _emptiest(unit):
    """Return the full block with the fewest valid pages. If several blocks tie, return the block
    with the lowest number.
    """
    score = unit.score
    fewest = score[0]
    for block in range(unit.reg[0].blocks):
        fewest = min(fewest, score[block])
    best = 0
    while score[best] != fewest:
        best += 1
    return best


@njit
def victim(unit):
    """Select a victim among the full blocks according to the policy in ``unit``, and return the
    block."""
    reg = unit.reg[0]
    score = unit.score
    best = 0
    if reg.policy == D_CHOICES:
        best = _sample(unit)
        for _ in range(reg.choices - 1):
            block = _sample(unit)
            if score[block] < score[best]:
                best = block
        return best
    if reg.policy == RANDOM:
        return _sample(unit)
    if reg.policy == RANDOM_SOME:
        for _ in range(reg.blocks):
            block = _sample(unit)
            if (reg.pages - score[block]) * reg.parts >= reg.pages:
                return block
    elif reg.policy == FIFO:
        oldest = reg.clock + 1
        for block in range(reg.blocks):
            if score[block] < NOT_FULL and unit.filled[block] < oldest:
                best, oldest = block, unit.filled[block]
        return best
    elif reg.policy == COST_BENEFIT:  # age x space gained / (read + write of the valid pages)
        most = -1.0
        for block in range(reg.blocks):
            if score[block] < NOT_FULL:
                cost = 2.0 * score[block] if score[block] > 0 else 1e-9
                worth = (reg.pages - score[block]) * (reg.clock - unit.filled[block] + 1.0) / cost
                if worth > most:
                    best, most = block, worth
        return best
    return _emptiest(unit)


@njit
def region_of(unit, label):
    """Return the index of the region that contains logical page ``label``."""
    region = 0
    for i in range(1, unit.first.size - 1):
        region += label >= unit.first[i]
    return region


@njit
def collect(unit):
    """Move the valid pages of one victim and free the victim.

    Set field ``stuck`` of ``unit.reg`` if the greedy policy finds no block with an invalid page.
    """
    reg = unit.reg[0]
    where, who, score = unit.where, unit.who, unit.score
    block, cursor = unit.block, unit.cursor
    pages, shift = reg.pages, reg.shift
    victim_block = victim(unit)
    if reg.policy == GREEDY and score[victim_block] >= pages:
        reg.stuck = 1
        return
    base = int(victim_block) << shift
    score[victim_block] |= NOT_FULL
    i = 0
    while i < pages:
        # The longest run that fits the open block of one frontier, without a branch on validity.
        front = unit.moved_front[0]
        if reg.split != 0:
            front = unit.moved_front[region_of(unit, who[base + i])]
        if block[front] < 0:
            take(unit, front)
        at = start = cursor[front]
        end = (block[front] << shift) + pages
        while i < pages and at < end:
            label = who[base + i]
            if reg.split != 0 and unit.moved_front[region_of(unit, label)] != front:
                break
            ask(where, who[base + i + AHEAD])
            slot = where[label]
            valid = slot == base + i
            who[at] = label
            where[label] = at if valid else slot
            at += valid
            i += 1
        score[block[front]] += at - start
        reg.moved += at - start
        cursor[front] = at
        if at == end:
            close(unit, front)
    score[victim_block] = NOT_FULL
    unit.erases[victim_block] += 1
    reg.victims += 1
    give(unit, victim_block)


@njit
def make_room(unit):
    """Collect blocks until more than ``low`` blocks of the unit are free. Set ``stuck`` if this
    needs more than HOPELESS victims per block of the unit. Both are fields of ``unit.reg``.
    """
    reg = unit.reg[0]
    tries = 0
    while reg.free <= reg.low and reg.stuck == 0:
        collect(unit)
        tries += 1
        if tries > HOPELESS * reg.blocks:
            reg.stuck = 1


# --- user writes


@njit
def _draw(unit, count):
    """Store the labels (logical pages) of the next ``count`` writes in ``unit.draw``. If the unit
    has several regions, store the regions of these labels in ``unit.drawn``."""
    reg = unit.reg[0]
    draw, drawn = unit.draw, unit.drawn
    if reg.order == BY_LIST:
        for i in range(count):
            draw[i] = unit.todo[reg.next]
            drawn[i] = region_of(unit, draw[i])
            reg.next += 1
    elif reg.order == IN_SEQUENCE:
        for i in range(count):
            draw[i] = reg.next
            reg.next = reg.next + 1 if reg.next + 1 < unit.labels[0] else 0
    elif unit.labels.size == 1:
        labels = unit.labels[0]
        for i in range(count):
            draw[i] = below(unit.rng, labels)
    else:
        for i in range(count):
            bits = int(random_bits(unit.rng) >> 33)
            region = 0
            for j in range(unit.limit.size - 1):
                region += bits >= unit.limit[j]
            drawn[i] = region
            draw[i] = unit.first[region] + below(unit.rng, unit.labels[region])


@njit
def overwrite(unit, writes, programs):
    """Overwrite pages of the unit with user writes until ``writes`` pages have been written or
    ``programs`` pages have been programmed, including pages that garbage collection programs. The
    number of programs can exceed ``programs``, because garbage collection runs whenever a block has
    been opened."""
    reg = unit.reg[0]
    where, who, score, draw, drawn = unit.where, unit.who, unit.score, unit.draw, unit.drawn
    block, cursor, user_front = unit.block, unit.cursor, unit.user_front
    pages, shift = reg.pages, reg.shift
    writes += reg.user
    programs += reg.user + reg.moved
    while reg.user < writes and reg.user + reg.moved < programs and reg.stuck == 0:
        room = writes - reg.user
        for region in range(user_front.size):
            front = user_front[region]
            if block[front] < 0:
                take(unit, front)
                make_room(unit)
        for region in range(user_front.size):
            front = user_front[region]
            if block[front] < 0:  # filled by collection, which shares it
                room = 0
            else:
                room = min(room, (block[front] << shift) + pages - cursor[front])
        if room == 0 or reg.stuck != 0:
            continue
        _draw(unit, room)
        if user_front.size == 1:
            front = user_front[0]
            at = cursor[front]
            for i in range(room):
                label = draw[i]
                ask(where, draw[i + AHEAD])
                score[where[label] >> shift] -= 1
                where[label] = at
                who[at] = label
                at += 1
            cursor[front] = at
            score[block[front]] += room
        else:
            for i in range(room):
                label = draw[i]
                ask(where, draw[i + AHEAD])
                front = user_front[drawn[i]]
                at = cursor[front]
                score[where[label] >> shift] -= 1
                score[block[front]] += 1
                where[label] = at
                who[at] = label
                cursor[front] = at + 1
        reg.user += room
        for front in range(block.size):
            if block[front] >= 0 and cursor[front] == (block[front] << shift) + pages:
                close(unit, front)
