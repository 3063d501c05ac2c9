"""Shared bus of a die's processing elements: reads of registers in other planes.

Owns the selection of the passes (vector operations over a page) that read across planes, and the
time of a stripe's passes when they contend for the bus. Does not own the passes and their operands
(ondie.kernels.on_die), the layout of vectors over planes (paths/layout/regions.py), or pages that
change planes (ftl/reservoir.py). Source: OptimStore (HPCA 2023): a shared bus on the die gives a PE
access to the register of another plane. The paper does not publish the rate of the bus.

Assumptions: a pass is executed by the PE in the plane of the vector that the pass changes. The
gradient and the intermediate results are in cache registers, one vector in each register, placed so
that the fewest passes cross planes.

A pass reads one operand in the PE's plane, one value per cycle. If the other operand is in another
plane, the pass also occupies a lane of the bus for that time. A lane carries one value per cycle. A
slower bus (less than one value per cycle) slows the pass. Groups of planes with separate vectors
run in parallel. If there are fewer lanes than groups, the groups wait for a lane in first-come,
first-served order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from functools import cache

from ondie.kernels import on_die

MADE = ("g", "t")
"""Names of the vectors that are only in cache registers and not stored in a plane: gradient (g) and
intermediate result (t)."""


@dataclass(frozen=True)
class Passes:
    """Duration of the passes (vector operations over a page) of an update of one stripe, in clock
    cycles of the processing elements. ``total``: duration of all passes. Groups of planes execute
    their passes in parallel, so the duration is not the sum over the groups."""

    total: int
    own: int
    """Clock cycles of the passes whose operands are all in the plane of the processing element that
    executes the pass."""

    @property
    def bus(self) -> int:
        """Clock cycles of the passes that read over the die's bus, including waits for the bus."""
        return self.total - self.own


@cache
def crossing(op: str, coupled_decay: bool = False) -> tuple[bool, ...]:
    """Return one flag for each pass (vector operation over a page) of the update ``op``: True if
    the pass reads a register of another plane."""
    operands = on_die.operands(op, coupled_decay)
    used = dict.fromkeys(name for pair in operands for name in pair)
    made = [name for name in used if name in MADE]
    planes = [name for name in used if name not in MADE]
    best: tuple[bool, ...] = ()
    for places in itertools.permutations(planes, len(made)):
        plane = dict(zip(made, places, strict=True))
        found = tuple(plane.get(v1, v1) != plane.get(v2, v2) for v1, v2 in operands)
        if not best or sum(found) < sum(best):
            best = found
    return best


def across(n: int, lanes: float) -> int:
    """Return the number of PE clock cycles that one lane of the bus takes to carry ``n`` values.
    ``lanes``: values per cycle of the whole bus; if it is below 1, a value takes more than one
    cycle."""
    return n if lanes >= 1 else math.ceil(n / lanes)


@cache
def passes(op: str, groups: int, n: int, lanes: float, coupled_decay: bool = False) -> Passes:
    """Return the PE clock cycles of an update of a stripe with ``groups`` groups of planes and
    ``n`` values per page.

    ``lanes``: values per cycle that the bus carries; if above 1, it is rounded down.
    """
    crosses = crossing(op, coupled_decay)
    slow = across(n, lanes)
    free = [0] * max(int(lanes), 1)
    ready = [(0, group, 0) for group in range(groups)]
    end = 0
    while ready:
        now, group, at = heapq.heappop(ready)
        if crosses[at]:
            now = max(now, free[0]) + slow
            heapq.heapreplace(free, now)
        else:
            now += n
        if at + 1 < len(crosses):
            heapq.heappush(ready, (now, group, at + 1))
        end = max(end, now)
    return Passes(end, n * crosses.count(False))
