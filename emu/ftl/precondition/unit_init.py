"""Begins, resizes and reads out a unit under untimed simulation.

Owns where its pages are at the start, and its size when it comes to stand for another unit.
Does not own what is written then (untimed.py). Source: the start: valid pages fall exponentially
with a block's age, the limit of large blocks (Desnoyers, ACM TOS 2014).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ondie.emu.engine.core.state import records
from ondie.emu.ftl.precondition import untimed_ftl as untimed
from ondie.emu.ftl.precondition.plan import Plan
from ondie.emu.ftl.precondition.untimed_ftl import NOT_FULL, Unit
from ondie.kernels.jit import njit

FOREVER = 1 << 60
OVERWRITES = 6
"""User writes per page of the coldest region at the start: exp(-6) = 0.2 % stay as they were."""
SMALL_PAGES = 1 << 20
SMALL_BLOCKS = 256
"""A start that takes long is made on a unit of about this size, and grown."""


def key(rng: np.random.Generator) -> np.ndarray:
    """State of a compiled generator."""
    return rng.integers(0, 2**63, 1, np.uint64)


def new_unit(plan: Plan, most: np.ndarray, active: np.ndarray, rng: np.random.Generator) -> Unit:
    """A unit with nothing written that will hold up to ``most`` (int64[regions]) labels.

    ``active``: bool[blocks], those it may use.
    """
    blocks, pages, regions = plan.blocks, plan.unit_pages, plan.regions
    shift = (pages - 1).bit_length()
    reg = records(untimed.REG, 1)
    reg.pages, reg.shift, reg.blocks, reg.low = pages, shift, blocks, plan.low
    reg.policy = untimed.POLICIES.index(plan.policy)
    reg.choices, reg.parts, reg.level = plan.choices, plan.spare_parts, int(plan.level_wear)
    reg.order = untimed.IN_SEQUENCE if plan.sequential else untimed.AT_RANDOM
    reg.split = int(len({r.moved_front for r in regions}) > 1)
    reg.free = active.sum()
    limit = np.rint(np.cumsum([r.writes for r in regions]) * 2.0**31).astype(np.int64)
    return Unit(
        reg=reg,
        rng=key(rng),
        where=np.full(int(most.sum()), blocks << shift, np.int32),
        who=np.zeros((blocks << shift) + untimed.AHEAD, np.int32),
        score=np.full(blocks + 1, NOT_FULL, np.int32),
        filled=np.zeros(blocks, np.int64),
        erases=np.zeros(blocks, np.int64),
        ring=np.concatenate([np.flatnonzero(active), np.flatnonzero(~active)]).astype(np.int32),
        block=np.full(plan.fronts, -1, np.int64),
        cursor=np.zeros(plan.fronts, np.int64),
        first=np.concatenate([[0], np.cumsum(most)]),
        labels=np.zeros(len(regions), np.int64),
        limit=limit,
        user_front=np.array([r.user_front for r in regions], np.int64),
        moved_front=np.array([r.moved_front for r in regions], np.int64),
        draw=np.zeros(pages + untimed.AHEAD, np.int32),
        drawn=np.zeros(pages + untimed.AHEAD, np.int32),
        todo=np.zeros(1, np.int32),
    )


def start(unit: Unit, plan: Plan, counts: np.ndarray, rng: np.random.Generator) -> int:
    """Bring an empty unit, with ``counts`` (int64[regions]) labels, close to its steady state.

    Returns the programs that took. Several regions are overwritten until the coldest has been;
    in a large unit that is done on a small one, each block of which then stands for several.
    """
    free = int(unit.reg.free[0])
    spare = plan.low + 1 + plan.fronts
    times = min((free - spare) // SMALL_BLOCKS, (plan.blocks * plan.unit_pages) // SMALL_PAGES)
    if len(plan.regions) == 1:
        _lay(unit, counts, rng)
        return 0
    if times > 1:
        few = replace(plan, blocks=(free - spare) // times + spare)
        small = new_unit(few, counts // times, np.ones(few.blocks, bool), rng)
        programs = start(small, few, counts // times, rng)
        return programs + _grow(unit, small, counts, times)
    _lay(unit, counts, rng)
    coldest = max(r.share / r.writes for r in plan.regions if r.writes > 0)
    untimed.overwrite(unit, int(OVERWRITES * coldest * counts.sum()), FOREVER)
    return int(unit.reg.user[0] + unit.reg.moved[0])


def _open_as_full(unit: Unit, n: int) -> np.ndarray:
    """The next ``n`` free blocks, out of the ring and full, with no valid page yet."""
    reg = unit.reg
    blocks = unit.ring[:n].copy()  # of a unit with nothing written
    reg.head = n
    reg.free -= n
    unit.score[blocks] = 0
    return blocks


def _lay(unit: Unit, counts: np.ndarray, rng: np.random.Generator) -> None:
    """Random labels on all blocks but those that collection keeps free.

    exp(-t a) of a block's pages are valid, its age a going from 0 to 1, with t such that it is the
    unit's fill on average.
    """
    reg = unit.reg[0]
    pages, shift = int(reg.pages), int(reg.shift)
    full = int(reg.free) - int(reg.low) - 1 - len(unit.block)
    n = int(counts.sum())
    low, high = 1e-9, 1e3
    for _ in range(60):
        t = (low * high) ** 0.5
        too_full = -np.expm1(-t) / t * full * pages > n
        low, high = (t, high) if too_full else (low, t)
    valid = np.floor(pages * np.exp(-t * (np.arange(full) + 0.5) / full)).astype(np.int64)
    while miss := n - int(valid.sum()):  # never negative: midpoints of a convex curve, rounded down
        valid[np.flatnonzero(valid < pages)[:miss]] += 1
    blocks = _open_as_full(unit, full)
    unit.score[blocks] = valid
    unit.filled[blocks] = np.arange(full, 0, -1)
    unit.reg.clock = full
    unit.labels[:] = counts
    labels = np.concatenate(
        [np.arange(a, a + k, dtype=np.int32) for a, k in zip(unit.first, counts, strict=False)]
    )
    rng.shuffle(labels)
    first = (blocks.astype(np.int64) << shift) - (np.cumsum(valid) - valid)
    slots = (np.repeat(first, valid) + np.arange(n)).astype(np.int32)
    unit.where[labels] = slots
    unit.who[slots] = labels


def _grow(unit: Unit, small: Unit, counts: np.ndarray, times: int) -> int:
    """Each full block of ``small`` becomes ``times`` of the empty ``unit``, and each label as many;
    labels without a place so far are written. Returns the programs that took."""
    pages, shift = int(unit.reg.pages[0]), int(unit.reg.shift[0])
    full = np.flatnonzero(small.score[:-1] < NOT_FULL)
    full = full[: (int(unit.reg.free[0]) - int(unit.reg.low[0]) - 1 - len(unit.block)) // times]
    slots = (full[:, None] << shift) + np.arange(pages)
    labels = small.who[slots]
    valid = small.where[labels] == slots
    region = np.searchsorted(small.first, labels[valid], side="right") - 1
    large = unit.first[region] + (labels[valid] - small.first[region]) * times
    of_block, page = np.nonzero(valid)
    blocks = _open_as_full(unit, times * len(full)).reshape(times, -1)
    for i in range(times):
        slot = (blocks[i].astype(np.int64)[of_block] << shift) + page
        unit.where[large + i] = slot
        unit.who[slot] = large + i
        unit.score[blocks[i]] = valid.sum(axis=1)
        unit.filled[blocks[i]] = small.filled[full] * times + i
    unit.reg.clock = int(small.reg.clock[0]) * times + times
    unit.labels[:] = counts
    homeless = np.flatnonzero(unit.where == int(unit.reg.blocks[0]) << shift)
    region = np.searchsorted(unit.first, homeless, side="right") - 1
    write(unit, homeless[homeless - unit.first[region] < counts[region]])
    return int(unit.reg.user[0] + unit.reg.moved[0])


def write(unit: Unit, labels: np.ndarray) -> None:
    """The user writes these labels, new ones among them."""
    unit = unit._replace(todo=labels.astype(np.int32))
    reg = unit.reg[0]
    order, at = int(reg.order), int(reg.next)
    reg.order, reg.next = untimed.BY_LIST, 0
    untimed.overwrite(unit, len(labels), FOREVER)
    reg.order, reg.next = order, at


def resize(unit: Unit, counts: np.ndarray) -> None:
    """Give the unit ``counts`` labels of each region: new ones are written, last ones forgotten."""
    reg = unit.reg[0]
    new = []
    for r, n in enumerate(counts):
        a, b = int(unit.first[r] + n), int(unit.first[r] + unit.labels[r])
        if a < b:
            np.subtract.at(unit.score, unit.where[a:b] >> int(reg.shift), 1)
            unit.where[a:b] = int(reg.blocks) << int(reg.shift)
        new.append(np.arange(b, a))
    unit.labels[:] = counts
    write(unit, np.concatenate(new))


def set_blocks(unit: Unit, live: np.ndarray, n: int) -> None:
    """Lend out free blocks, or take some back, until the unit has ``n``; ``live``: bool[blocks]."""
    reg = unit.reg[0]
    while live.sum() > n and not reg.stuck:
        live[unit.ring[int(reg.head)]] = False
        reg.head = (int(reg.head) + 1) % len(unit.ring)
        reg.free -= 1
        untimed.make_room(unit)
    for b in np.flatnonzero(~live)[: max(n - int(live.sum()), 0)]:
        live[b] = True
        untimed.give(unit, b)


@njit
def copy_out(unit, held, at, first_ppn, turn):
    """ppn + 1 of the unit's labels, each region's order turned by ``turn``, into held[at:].

    ``first_ppn``: int64[blocks], ppn of each block's first page; ``turn``: int64[regions].
    """
    shift = unit.reg[0].shift
    page = (1 << shift) - 1
    for r in range(unit.labels.size):
        n = unit.labels[r]
        for i in range(n):
            j = i + turn[r]
            slot = unit.where[unit.first[r] + (j - n if j >= n else j)]
            held[at] = first_ppn[slot >> shift] + (slot & page) + 1
            at += 1
