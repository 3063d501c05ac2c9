"""Untimed FTL of one allocation unit: writes, collection and wear, and nothing that takes time.

Owns the moves of pages between blocks of one plane or die under a stream of overwrites, exactly.
Does not own the drive's maps (steady.py) or time (gc.py). Source: page-level mapping; victims as in
policies.py: Van Houdt (SIGMETRICS 2013), Kawaguchi et al. (USENIX 1995), MQSim's RANDOM_PP.

Pages of a unit are *labels*, 0 and up, region by region; `where[label]` is its slot, `who[slot]`
the label written there last, and a slot is valid while the two agree. A slot is block << shift |
page: blocks are padded to a power of two, so that no page costs a division.
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
    low="i8",  # collection starts when this many blocks are free, and stops when one more is
    policy="i8",
    choices="i8",  # d of d-choices
    parts="i8",  # random_some takes blocks of which one part in so many is invalid, or more
    level="i8",  # 1: the least erased free block is opened next, 0: the one that is free longest
    clock="i8",  # blocks filled so far
    head="i8",  # of the ring of free blocks
    free="i8",  # blocks in it
    user="i8",  # pages written by the user
    moved="i8",  # pages written by collection
    victims="i8",
    next="i8",  # in sequence: next label; by list: next entry of it
    order="i8",  # of the writes: AT_RANDOM, IN_SEQUENCE or BY_LIST
    split="i8",  # 1: collected pages of different regions have different frontiers
    stuck="i8",  # 1: nothing to collect
)
AT_RANDOM, IN_SEQUENCE, BY_LIST = range(3)
NOT_FULL = 1 << 30
"""Added to the valid count of a block that is free or open: no policy chooses it."""
AHEAD = 24
"""Pages between a prefetch and the use of what it asked for."""
HOPELESS = 64
"""Victims per block of the unit, in search of one free block, after which there is none."""


class Unit(NamedTuple):
    """Arrays of one unit under simulation. Slots from blocks << shift on are nowhere."""

    reg: np.recarray  # REG[1]
    rng: np.ndarray  # uint64[1]
    where: np.ndarray  # int32[]: slot of each label; blocks << shift: nowhere yet
    who: np.ndarray  # int32[slots + AHEAD]: label written there last
    score: np.ndarray  # int32[blocks + 1]: valid pages, + NOT_FULL while free or open
    filled: np.ndarray  # int64[blocks]: clock when the block was filled
    erases: np.ndarray  # int64[blocks]
    ring: np.ndarray  # int32[blocks]: free blocks, from reg.head on
    block: np.ndarray  # int64[fronts]: open block, -1 = none
    cursor: np.ndarray  # int64[fronts]: its next slot
    first: np.ndarray  # int64[regions + 1]: first label of each region
    labels: np.ndarray  # int64[regions]: how many there are of each
    limit: np.ndarray  # int64[regions]: cumulated write frequency, 2**31 = 1
    user_front: np.ndarray  # int64[regions]: where the user's pages of a region are written
    moved_front: np.ndarray  # int64[regions]: where its collected pages are written
    draw: np.ndarray  # int32[pages + AHEAD]: labels drawn ahead
    drawn: np.ndarray  # int32[pages + AHEAD]: their regions
    todo: np.ndarray  # int32[]: labels to write, in this order (BY_LIST)


# --- random numbers, in sequence


@njit
def random_bits(rng):
    """64 random bits: SplitMix64."""
    x = (u64(rng[0]) + GAMMA) & MASK
    rng[0] = x
    return mix(x)


@njit
def below(rng, n):
    """Uniform in 0 .. n - 1, from 53 bits."""
    return int((random_bits(rng) >> 11) * UNIT * n)


# --- blocks


@njit
def take(unit, front):
    """Open a free block for a write frontier."""
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
    b = ring[reg.head]
    reg.head = reg.head + 1 if reg.head + 1 < size else 0
    reg.free -= 1
    unit.block[front] = b
    unit.cursor[front] = int(b) << reg.shift


@njit
def give(unit, b):
    """An empty block goes to the end of the ring."""
    reg = unit.reg[0]
    at = reg.head + reg.free
    unit.ring[at - unit.ring.size if at >= unit.ring.size else at] = b
    reg.free += 1


@njit
def close(unit, front):
    """The open block of a frontier is full, and may be collected from now on."""
    reg = unit.reg[0]
    b = unit.block[front]
    reg.clock += 1
    unit.filled[b] = reg.clock
    unit.score[b] -= NOT_FULL
    unit.block[front] = -1


# --- collection


@njit
def _sample(unit):
    """A full block, all alike."""
    b = below(unit.rng, unit.reg[0].blocks)
    while unit.score[b] >= NOT_FULL:
        b = below(unit.rng, unit.reg[0].blocks)
    return b


@njit
def _emptiest(unit):
    """The full block with the fewest valid pages."""
    score = unit.score
    fewest = score[0]
    for b in range(unit.reg[0].blocks):
        fewest = min(fewest, score[b])
    best = 0
    while score[best] != fewest:
        best += 1
    return best


@njit
def victim(unit):
    """The block to collect by the unit's policy, among the full ones."""
    reg = unit.reg[0]
    score = unit.score
    best = 0
    if reg.policy == D_CHOICES:
        best = _sample(unit)
        for _ in range(reg.choices - 1):
            b = _sample(unit)
            if score[b] < score[best]:
                best = b
        return best
    if reg.policy == RANDOM:
        return _sample(unit)
    if reg.policy == RANDOM_SOME:
        for _ in range(reg.blocks):
            b = _sample(unit)
            if (reg.pages - score[b]) * reg.parts >= reg.pages:
                return b
    elif reg.policy == FIFO:
        oldest = reg.clock + 1
        for b in range(reg.blocks):
            if score[b] < NOT_FULL and unit.filled[b] < oldest:
                best, oldest = b, unit.filled[b]
        return best
    elif reg.policy == COST_BENEFIT:  # age x space gained / (read + write of what is valid)
        most = -1.0
        for b in range(reg.blocks):
            if score[b] < NOT_FULL:
                cost = 2.0 * score[b] if score[b] > 0 else 1e-9
                worth = (reg.pages - score[b]) * (reg.clock - unit.filled[b] + 1.0) / cost
                if worth > most:
                    best, most = b, worth
        return best
    return _emptiest(unit)


@njit
def region_of(unit, label):
    """Region of a label."""
    r = 0
    for i in range(1, unit.first.size - 1):
        r += label >= unit.first[i]
    return r


@njit
def collect(unit):
    """Move the valid pages of one victim and free it."""
    reg = unit.reg[0]
    where, who, score = unit.where, unit.who, unit.score
    block, cursor = unit.block, unit.cursor
    pages, shift = reg.pages, reg.shift
    v = victim(unit)
    if reg.policy == GREEDY and score[v] >= pages:
        reg.stuck = 1
        return
    base = int(v) << shift
    score[v] |= NOT_FULL
    i = 0
    while i < pages:
        # As long a run as fits the open block of one frontier, without a branch on validity.
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
    score[v] = NOT_FULL
    unit.erases[v] += 1
    reg.victims += 1
    give(unit, v)


@njit
def make_room(unit):
    """Collect until more blocks are free than the low-water mark."""
    reg = unit.reg[0]
    tries = 0
    while reg.free <= reg.low and reg.stuck == 0:
        collect(unit)
        tries += 1
        if tries > HOPELESS * reg.blocks:
            reg.stuck = 1


# --- the user's writes


@njit
def _draw(unit, n):
    """Labels of the next ``n`` writes, and their regions."""
    reg = unit.reg[0]
    draw, drawn = unit.draw, unit.drawn
    if reg.order == BY_LIST:
        for i in range(n):
            draw[i] = unit.todo[reg.next]
            drawn[i] = region_of(unit, draw[i])
            reg.next += 1
    elif reg.order == IN_SEQUENCE:
        for i in range(n):
            draw[i] = reg.next
            reg.next = reg.next + 1 if reg.next + 1 < unit.labels[0] else 0
    elif unit.labels.size == 1:
        labels = unit.labels[0]
        for i in range(n):
            draw[i] = below(unit.rng, labels)
    else:
        for i in range(n):
            bits = int(random_bits(unit.rng) >> 33)
            r = 0
            for j in range(unit.limit.size - 1):
                r += bits >= unit.limit[j]
            drawn[i] = r
            draw[i] = unit.first[r] + below(unit.rng, unit.labels[r])


@njit
def overwrite(unit, writes, programs):
    """User writes until there were ``writes`` of them, or ``programs`` with those of collection;
    the last may go over by what one block's opening takes."""
    reg = unit.reg[0]
    where, who, score, draw, drawn = unit.where, unit.who, unit.score, unit.draw, unit.drawn
    block, cursor, user_front = unit.block, unit.cursor, unit.user_front
    pages, shift = reg.pages, reg.shift
    writes += reg.user
    programs += reg.user + reg.moved
    while reg.user < writes and reg.user + reg.moved < programs and reg.stuck == 0:
        room = writes - reg.user
        for r in range(user_front.size):
            front = user_front[r]
            if block[front] < 0:
                take(unit, front)
                make_room(unit)
        for r in range(user_front.size):
            front = user_front[r]
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
