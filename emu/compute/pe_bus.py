"""The bus that a die's processing elements share: who reads another plane's register, and when.

Owns which pass of an update crosses planes, and how long the passes of a stripe take when they want
the bus at once. Does not own the passes and their operands (ondie.kernels.on_die), the layout of
vectors over planes (layout.py), or pages that change planes (backend/reservoir.py).
Source: OptimStore (HPCA 2023): a shared bus on the die lets an element reach another plane's
register. Not published, and assumed here: what the bus carries; that the element in the plane of
what a pass changes works on it; that gradient and intermediate results lie in cache registers, one
in each, where the fewest passes have to cross.

A pass reads one operand in its own plane, a value per cycle. Where the other one comes from another
plane it takes a lane of the bus, which carries one value per cycle, for as long; a bus slower than
that (less than one value per cycle) slows the pass. Groups of planes with vectors of their own run
side by side, and wait for each other where there are fewer lanes: first come, first served.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from functools import cache

from ondie.kernels import on_die

MADE = ("g", "t")
"""Vectors that lie in cache registers: no plane stores them."""


@dataclass(frozen=True)
class Passes:
    """Cycles of a stripe's passes, those that groups of planes do side by side counted once."""

    total: int
    own: int
    """Of passes whose operands all lie in the plane of their element."""

    @property
    def bus(self) -> int:
        """Of passes that read over the die's bus, waiting for it included."""
        return self.total - self.own


@cache
def crossing(op: str, coupled_decay: bool = False) -> tuple[bool, ...]:
    """Which passes of an update read a register of another plane."""
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
    """Cycles of ``n`` values over one lane of the bus."""
    return n if lanes >= 1 else math.ceil(n / lanes)


@cache
def passes(op: str, groups: int, n: int, lanes: float, coupled_decay: bool = False) -> Passes:
    """Cycles of an update of ``groups`` pages of ``n`` values each, over a bus that carries
    ``lanes`` values per cycle: whole ones above one."""
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
