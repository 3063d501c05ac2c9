"""Steady state of a drive: mapping tables and blocks after overwriting until the WAF is constant.

Owns the steady state of a whole drive, computed in a time proportional to the number of physical
pages. Does not own the simulation of a unit (untimed_ftl.py), the number of LPNs per unit
(lpn_distribution.py) or the conversion to the drive's state (apply.py). Source: derived below;
distributions as in Desnoyers (ACM TOS 2014), Van Houdt (SIGMETRICS 2013).

To overwrite 1 TB several times takes billions of page programs in mapping tables that are far
larger than any CPU cache. However, the units of a drive (planes, or dies with super-blocks) are
alike, and garbage collection never moves a page to another unit. Therefore one unit is simulated
exactly, on tables small enough for a CPU cache, from a start close to its steady state until it
reaches that state. The state of this unit at any later time is a sample of the steady state. Each
time every block has been rewritten once on average, the state is used for the next unit of the
drive. The states of adjacent units are therefore not independent. To keep LPNs from aligning across
units, the order of the labels (the logical pages of a unit) within each region of a unit is rotated
by a random amount. This does not bias the result, because all orders are equally likely.

With static allocation, a table gives the unit of each LPN. With dynamic allocation, writes use the
units round-robin. All units have then been written equally often, so their user frontiers are at
the same page. Sequential overwrites start from an empty unit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ondie.emu.ftl.precondition import (
    lpn_distribution,
    unit_init,
    untimed_ftl,
)
from ondie.emu.ftl.precondition.plan import Plan, Region
from ondie.emu.ftl.precondition.unit_init import FOREVER
from ondie.emu.ftl.precondition.untimed_ftl import NOT_FULL, Unit
from ondie.emu.units import InputError

__all__ = ["EXCLUDED", "FREE", "FULL", "OPEN", "Plan", "Region", "Steady", "steady"]

FREE, OPEN, FULL, EXCLUDED = range(4)
TURNOVERS = 8
"""Number of turnovers (programs per physical page) before the first sample.

If victims are random, a block is not collected within k turnovers with probability exp(-k), here
0.03 %. Erases are counted over the same number of turnovers.
"""


@dataclass(slots=True)
class Steady:
    """State of the blocks of a drive in steady state, without the mapping tables. Pages and blocks
    are numbered from 0 within their unit.
    """

    valid: np.ndarray
    """Number of valid pages per block, int32[units, blocks]."""
    state: np.ndarray
    """State of each block (FREE, OPEN, FULL or EXCLUDED), uint8[units, blocks]."""
    erases: np.ndarray
    """Erases per block over the last TURNOVERS turnovers of the unit, int64[units, blocks]."""
    filled: np.ndarray
    """Value of ``clock`` when the block became full, int64[units, blocks].

    ``clock`` - ``filled`` is the age of the block, measured in filled blocks.
    """
    clock: np.ndarray
    """Number of blocks of each unit that have been filled so far, int64[units]."""
    free: np.ndarray
    """Free blocks in the order in which they will be opened, int32[units, blocks]. Entries after
    the last free block are -1.
    """
    free_n: np.ndarray
    """Number of free blocks, int64[units]."""
    front_block: np.ndarray
    """Open block of each write frontier, int64[fronts, units]; -1 if no block is open."""
    front_next: np.ndarray
    """Next page of the open block of each write frontier, int64[fronts, units]."""
    waf: float = 0.0
    """Write amplification factor, mean over units: programmed pages (written by the user, and moved
    by garbage collection) divided by pages written by the user."""
    programs: int = 0
    """Number of pages that the simulation has programmed to reach the state."""


def steady(
    l2p: np.ndarray,
    p2l: np.ndarray,
    plan: Plan,
    *,
    footprint: tuple[int, int] | None = None,
    seed: int = 0,
) -> Steady:
    """Fill the mapping tables as if the plan's regions had been overwritten until steady state.
    Return the state of the blocks.

    ``l2p``: uint32/uint64[lpns], ppn + 1, 0 = unmapped; written from footprint[0] to footprint[1]
    (default: all), unchanged elsewhere. ``p2l``: same dtype, [units x stride], lpn + 1, 0 = not
    valid. All its entries are overwritten; the function also uses it as scratch space. Both arrays
    must be contiguous. ppn = unit x stride + block x unit_pages + page. Raises InputError if the
    plan is inconsistent, if the footprint does not fit, or if garbage collection can free no more
    space.
    """
    lo, hi = footprint if footprint is not None else (0, len(l2p))
    plan.check(len(l2p), len(p2l), (lo, hi))
    rng = np.random.default_rng(seed)
    shares = np.cumsum([0.0] + [region.share for region in plan.regions])
    edges = lo + np.rint(shares * (hi - lo)).astype(np.int64)
    table = plan.unit_of
    if table is None and plan.sequential:
        table = np.arange(plan.units)
    if table is None:
        writes = np.array([float(region.writes) for region in plan.regions])
        counts = lpn_distribution.dynamic_counts(plan.units, np.diff(edges), writes, rng)
    else:
        table = np.asarray(table, np.int64)
        counts = lpn_distribution.static_counts(table, plan.units, edges)
    active = np.ones((plan.units, plan.blocks), bool)
    if plan.excluded is not None:
        active &= ~plan.excluded
    plan.check_room(counts.sum(axis=1), active.sum(axis=1))
    out = _sample(p2l, plan, counts, active, table is None, rng)
    # p2l now holds each unit's ppn + 1 in order of its LPNs, one unit after the other.
    cursor = np.cumsum(counts.sum(axis=1)) - counts.sum(axis=1)
    for region in range(len(plan.regions)):
        start, end = int(edges[region]), int(edges[region + 1])
        if table is None:
            left = counts[:, region].copy()
            lpn_distribution.deal_at_random(l2p, p2l, start, end, left, cursor, unit_init.key(rng))
        else:
            lpn_distribution.deal_by_table(l2p, p2l, start, end, table, cursor)
    lpn_distribution.invert(l2p, p2l, lo, hi)
    return out


def _sample(
    held: np.ndarray,
    plan: Plan,
    counts: np.ndarray,
    active: np.ndarray,
    dynamic: bool,
    rng: np.random.Generator,
) -> Steady:
    """Sample and return the state of every unit. For each unit, write ppn + 1 of its pages to
    ``held``, in order of LPN. The lists of the units are concatenated.

    ``counts``: int64[units, regions], number of pages; ``active``: bool[units, blocks], usable
    blocks.
    """
    out = _nothing(plan)
    most = counts.max(axis=0)
    users = {region.user_front for region in plan.regions}
    in_step = (
        dynamic and len(users) == 1 and not users & {region.moved_front for region in plan.regions}
    )
    step = int(rng.integers(plan.unit_pages))
    erases: deque[np.ndarray] = deque(maxlen=TURNOVERS)  # cumulative, before each turnover
    pages, blocks = counts.sum(axis=1), active.sum(axis=1)
    held_from = np.cumsum(pages) - pages
    # Sorted by fill, so that consecutive units differ little; equal units in random order.
    order = np.lexsort((rng.random(plan.units), pages / blocks))
    for i, index in enumerate(order):
        usable = int(blocks[index])
        if i == 0 or plan.sequential:
            unit, live = unit_init.new_unit(plan, most, active[index], rng), active[index].copy()
            reg = unit.reg
            erases.append(unit.erases.copy())
        if plan.sequential:
            unit.labels[:] = counts[index]
            count = int(pages[index])
            untimed_ftl.overwrite(
                unit, count * (1 + -(-usable * plan.unit_pages // count)), FOREVER
            )
            user = moved = 0
            out.programs += int(reg.user[0] + reg.moved[0])
        else:
            if i == 0:
                out.programs = unit_init.start(unit, plan, counts[index], rng)
                out.programs -= int(reg.user[0] + reg.moved[0])
            else:
                unit_init.resize(unit, counts[index])
                unit_init.set_blocks(unit, live, usable)
            for turn in range(1 if i else TURNOVERS):
                if i or turn == TURNOVERS // 2:
                    user, moved = int(reg.user[0]), int(reg.moved[0])
                erases.append(unit.erases.copy())
                untimed_ftl.overwrite(unit, FOREVER, usable * plan.unit_pages)
            more = step - int(reg.user[0]) if in_step else int(rng.integers(plan.unit_pages))
            untimed_ftl.overwrite(unit, more % plan.unit_pages, FOREVER)
        if reg.stuck[0]:
            raise InputError(
                f"unit {index}: {pages[index]} logical pages on {usable} blocks of "
                f"{plan.unit_pages} pages: garbage collection ({plan.policy}) frees no more space; "
                "use fewer logical pages"
            )
        out.waf += (1 + (reg.moved[0] - moved) / (reg.user[0] - user)) / plan.units
        # Block i of those in use in the simulation is the i-th usable block of the drive's unit.
        place = np.full(plan.blocks, -1, np.int64)
        place[live] = np.flatnonzero(active[index])
        turn = rng.integers(0, np.maximum(counts[index], 1)) * int(not plan.sequential)
        first_ppn = index * plan.pitch + place * plan.unit_pages
        unit_init.copy_out(unit, held, held_from[index], first_ppn, turn)
        _report(out, index, unit, place, unit.erases - erases[0], plan)
    if not plan.sequential:
        out.programs += int(reg.user[0] + reg.moved[0])
    return out


def _nothing(plan: Plan) -> Steady:
    shape = (plan.units, plan.blocks)
    return Steady(
        valid=np.zeros(shape, np.int32),
        state=np.full(shape, EXCLUDED, np.uint8),
        erases=np.zeros(shape, np.int64),
        filled=np.zeros(shape, np.int64),
        clock=np.zeros(plan.units, np.int64),
        free=np.full(shape, -1, np.int32),
        free_n=np.zeros(plan.units, np.int64),
        front_block=np.full((plan.fronts, plan.units), -1, np.int64),
        front_next=np.zeros((plan.fronts, plan.units), np.int64),
    )


def _report(
    out: Steady, index: int, unit: Unit, place: np.ndarray, erases: np.ndarray, plan: Plan
) -> None:
    """Copy the blocks of the simulated unit to unit ``index`` of ``out``. ``place``: int64[blocks],
    the block number in ``out`` of each simulated block, or -1 if the block is unused. An open block
    becomes full if alignment skips its remaining pages.
    """
    reg = unit.reg[0]
    blocks = np.flatnonzero(place >= 0)
    there = place[blocks]
    score = unit.score[blocks]
    out.valid[index, there] = score & (NOT_FULL - 1)
    out.state[index, there] = np.where(score < NOT_FULL, FULL, FREE)
    out.erases[index, there] = erases[blocks]
    out.filled[index, there] = unit.filled[blocks]
    out.clock[index] = reg.clock
    ring = np.roll(unit.ring, -int(reg.head))[: int(reg.free)]
    out.free[index, : len(ring)] = place[ring]
    out.free_n[index] = len(ring)
    for front, block in enumerate(unit.block):
        if block < 0:
            continue
        page = int(unit.cursor[front]) - (int(block) << int(reg.shift))
        page = -(-page // plan.align) * plan.align
        if page < plan.unit_pages:
            out.state[index, place[block]] = OPEN
            out.front_block[front, index] = place[block]
            out.front_next[front, index] = page
        else:
            out.clock[index] += 1
            out.state[index, place[block]] = FULL
            out.filled[index, place[block]] = out.clock[index]
