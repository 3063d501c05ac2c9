"""Initial state, resizing and readout of the unit in the untimed simulation.

Owns the initial placement of the unit's pages, and the change of the unit's size when the
simulation continues with another unit of the drive. Does not own the writes that follow
(untimed_ftl.py). Source: Desnoyers, ACM TOS 2014: the number of valid pages falls exponentially
with the age of a block, in the limit of large blocks (initial state).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ondie.emu.engine.core.state import records
from ondie.emu.ftl.precondition import untimed_ftl
from ondie.emu.ftl.precondition.plan import Plan
from ondie.emu.ftl.precondition.untimed_ftl import NOT_FULL, Unit
from ondie.kernels.jit import njit

FOREVER = 1 << 60
OVERWRITES = 6
"""Number of initial user writes per page of the coldest region. The fraction exp(-6) = 0.2 % of the
pages of that region is not overwritten.
"""
SMALL_PAGES = 1 << 20
SMALL_BLOCKS = 256
"""Approximate number of blocks of the small unit on which a long initial simulation runs.

The resulting state is then enlarged to the actual unit.
"""


def key(rng: np.random.Generator) -> np.ndarray:
    """Return a random initial state for the random number generator of compiled code, uint64[1]."""
    return rng.integers(0, 2**63, 1, np.uint64)


def new_unit(plan: Plan, most: np.ndarray, active: np.ndarray, rng: np.random.Generator) -> Unit:
    """Return a unit to which no page has been written.

    ``most``: maximum number of labels (logical pages) of each region, int64[regions]. ``active``:
    bool[blocks], mask of the blocks that the unit may use.
    """
    blocks, pages, regions = plan.blocks, plan.unit_pages, plan.regions
    shift = (pages - 1).bit_length()
    reg = records(untimed_ftl.REG, 1)
    reg.pages, reg.shift, reg.blocks, reg.low = pages, shift, blocks, plan.low
    reg.policy = untimed_ftl.POLICIES.index(plan.policy)
    reg.choices, reg.parts, reg.level = plan.choices, plan.spare_parts, int(plan.level_wear)
    reg.order = untimed_ftl.IN_SEQUENCE if plan.sequential else untimed_ftl.AT_RANDOM
    reg.split = int(len({region.moved_front for region in regions}) > 1)
    reg.free = active.sum()
    limit = np.rint(np.cumsum([region.writes for region in regions]) * 2.0**31).astype(np.int64)
    return Unit(
        reg=reg,
        rng=key(rng),
        where=np.full(int(most.sum()), blocks << shift, np.int32),
        who=np.zeros((blocks << shift) + untimed_ftl.AHEAD, np.int32),
        score=np.full(blocks + 1, NOT_FULL, np.int32),
        filled=np.zeros(blocks, np.int64),
        erases=np.zeros(blocks, np.int64),
        ring=np.concatenate([np.flatnonzero(active), np.flatnonzero(~active)]).astype(np.int32),
        block=np.full(plan.fronts, -1, np.int64),
        cursor=np.zeros(plan.fronts, np.int64),
        first=np.concatenate([[0], np.cumsum(most)]),
        labels=np.zeros(len(regions), np.int64),
        limit=limit,
        user_front=np.array([region.user_front for region in regions], np.int64),
        moved_front=np.array([region.moved_front for region in regions], np.int64),
        draw=np.zeros(pages + untimed_ftl.AHEAD, np.int32),
        drawn=np.zeros(pages + untimed_ftl.AHEAD, np.int32),
        todo=np.zeros(1, np.int32),
    )


def start(unit: Unit, plan: Plan, counts: np.ndarray, rng: np.random.Generator) -> int:
    """Fill an empty unit with ``counts`` (int64[regions]) labels (logical pages), close to its
    steady state.

    Return the number of pages programmed. If the plan has several regions, the unit is overwritten
    until most pages of the coldest region have been overwritten. A large unit is simulated as a
    small unit first, and each block of the small unit is then copied to several blocks.
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
    coldest = max(region.share / region.writes for region in plan.regions if region.writes > 0)
    untimed_ftl.overwrite(unit, int(OVERWRITES * coldest * counts.sum()), FOREVER)
    return int(unit.reg.user[0] + unit.reg.moved[0])


def _open_as_full(unit: Unit, count: int) -> np.ndarray:
    """Remove the next ``count`` free blocks from the ring, mark them as full without a valid page,
    and return their numbers.
    """
    reg = unit.reg
    blocks = unit.ring[:count].copy()  # the ring starts at 0 in an unwritten unit
    reg.head = count
    reg.free -= count
    unit.score[blocks] = 0
    return blocks


def _lay(unit: Unit, counts: np.ndarray, rng: np.random.Generator) -> None:
    """Write the labels (logical pages) in random order to all blocks except the blocks that garbage
    collection keeps free.

    In a block of relative age a (from 0 to 1 over the blocks), the fraction exp(-t a) of the pages
    is valid. The value t is chosen so that the valid pages of all blocks sum to the number of
    labels.
    """
    reg = unit.reg[0]
    pages, shift = int(reg.pages), int(reg.shift)
    full = int(reg.free) - int(reg.low) - 1 - len(unit.block)
    count = int(counts.sum())
    low, high = 1e-9, 1e3
    for _ in range(60):
        t = (low * high) ** 0.5
        too_full = -np.expm1(-t) / t * full * pages > count
        low, high = (t, high) if too_full else (low, t)
    valid = np.floor(pages * np.exp(-t * (np.arange(full) + 0.5) / full)).astype(np.int64)
    while miss := count - int(
        valid.sum()
    ):  # never negative: midpoints of a convex curve, rounded down
        valid[np.flatnonzero(valid < pages)[:miss]] += 1
    blocks = _open_as_full(unit, full)
    unit.score[blocks] = valid
    unit.filled[blocks] = np.arange(full, 0, -1)
    unit.reg.clock = full
    unit.labels[:] = counts
    labels = np.concatenate(
        [
            np.arange(start, start + size, dtype=np.int32)
            for start, size in zip(unit.first, counts, strict=False)
        ]
    )
    rng.shuffle(labels)
    first = (blocks.astype(np.int64) << shift) - (np.cumsum(valid) - valid)
    slots = (np.repeat(first, valid) + np.arange(count)).astype(np.int32)
    unit.where[labels] = slots
    unit.who[slots] = labels


def _grow(unit: Unit, small: Unit, counts: np.ndarray, times: int) -> int:
    """Copy each full block of ``small`` to ``times`` blocks of the empty ``unit``, and each label
    (logical page) to ``times`` labels. Then write the labels that have no slot (physical page).
    Return the number of pages programmed."""
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
    """Write ``labels`` (logical pages) as user writes. A label without a slot (physical page) is
    written for the first time."""
    unit = unit._replace(todo=labels.astype(np.int32))
    reg = unit.reg[0]
    order, at = int(reg.order), int(reg.next)
    reg.order, reg.next = untimed_ftl.BY_LIST, 0
    untimed_ftl.overwrite(unit, len(labels), FOREVER)
    reg.order, reg.next = order, at


def resize(unit: Unit, counts: np.ndarray) -> None:
    """Set the number of labels (logical pages) of each region to ``counts`` (int64[regions]): write
    new labels, and invalidate surplus labels."""
    reg = unit.reg[0]
    new = []
    for region, count in enumerate(counts):
        start, end = int(unit.first[region] + count), int(unit.first[region] + unit.labels[region])
        if start < end:
            np.subtract.at(unit.score, unit.where[start:end] >> int(reg.shift), 1)
            unit.where[start:end] = int(reg.blocks) << int(reg.shift)
        new.append(np.arange(end, start))
    unit.labels[:] = counts
    write(unit, np.concatenate(new))


def set_blocks(unit: Unit, live: np.ndarray, count: int) -> None:
    """Remove free blocks from the unit, or return removed blocks to it, until it has ``count``
    blocks. ``live``: bool[blocks], True for the blocks that are in the unit; the function updates
    this mask.
    """
    reg = unit.reg[0]
    while live.sum() > count and not reg.stuck:
        live[unit.ring[int(reg.head)]] = False
        reg.head = (int(reg.head) + 1) % len(unit.ring)
        reg.free -= 1
        untimed_ftl.make_room(unit)
    for block in np.flatnonzero(~live)[: max(count - int(live.sum()), 0)]:
        live[block] = True
        untimed_ftl.give(unit, block)


@njit
def copy_out(unit, held, at, first_ppn, turn):
    """Write ppn + 1 of each label (logical page) of the unit to ``held``, starting at index ``at``,
    with the labels of each region rotated by ``turn``.

    ``first_ppn``: int64[blocks], ppn of the first page of each block; ``turn``: int64[regions].
    """
    shift = unit.reg[0].shift
    page = (1 << shift) - 1
    for region in range(unit.labels.size):
        count = unit.labels[region]
        for i in range(count):
            j = i + turn[region]
            slot = unit.where[unit.first[region] + (j - count if j >= count else j)]
            held[at] = first_ppn[slot >> shift] + (slot & page) + 1
            at += 1
