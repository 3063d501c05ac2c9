"""What a drive is preconditioned with: layout, policy, and which pages are written how often.

Owns these words and their checks. Does not own the way to the steady state (steady.py).
Source: the usual parameters of page-mapped FTLs (MQSim, FAST 2018); frontiers as in Van Houdt,
"On the necessity of hot and cold data identification" (Performance Evaluation 82, 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.ftl.precondition.untimed_ftl import POLICIES
from ondie.emu.units import InputError


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive logical pages that are written alike."""

    share: float
    """Of the footprint's pages."""
    writes: float
    """Of the writes, which are uniform within it."""
    user_front: int = 0
    """Write frontier of what the user writes."""
    moved_front: int = 1
    """Write frontier of what collection moves. The user's own: one open block for both."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a drive is laid out, written and collected."""

    units: int
    """Planes, or dies with super-blocks: what owns free blocks and is collected by itself."""
    blocks: int
    """Of a unit, excluded ones among them."""
    unit_pages: int
    """Of a block of a unit."""
    low: int
    """Collection starts when a block is opened and this many are left free, and stops when one more
    is. Where it is the filling of a block that starts it, one less than free blocks then."""
    stride: int = 0
    """Physical pages from one unit to the next; 0: blocks x unit_pages."""
    align: int = 1
    """Pages programmed together: the next page of an open block is a multiple of it."""
    policy: str = "greedy"
    """One of untimed.POLICIES."""
    choices: int = 10
    """d of d_choices."""
    spare_parts: int = 10
    """random_some takes blocks of which one page in so many is invalid, or more."""
    level_wear: bool = False
    """Open the least erased free block, not the one that is free longest."""
    regions: tuple[Region, ...] = (Region(1.0, 1.0),)
    """The footprint in order of LPN."""
    sequential: bool = False
    """The footprint is written in order, over and over, not at random."""
    unit_of: np.ndarray | None = None
    """int[n]: the unit of each LPN, by LPN mod n. None: dynamic, round the units."""
    excluded: np.ndarray | None = None
    """bool[units, blocks]: bad, or lent to something else."""

    @property
    def fronts(self) -> int:
        """Write frontiers of a unit."""
        return 1 + max(max(r.user_front, r.moved_front) for r in self.regions)

    @property
    def pitch(self) -> int:
        """Physical pages from one unit to the next."""
        return self.stride or self.blocks * self.unit_pages

    def check(self, lpns: int, ppns: int, footprint: tuple[int, int]) -> None:
        """InputError for a contradiction in the plan or with maps of ``lpns`` and ``ppns``."""
        if self.policy not in POLICIES:
            raise InputError(f"policy {self.policy!r}: one of {', '.join(POLICIES)}")
        if min(self.units, self.blocks, self.unit_pages) < 1:
            raise InputError(
                f"{self.units} units of {self.blocks} blocks of {self.unit_pages} pages: at least 1"
            )
        if not 0 <= footprint[0] < footprint[1] <= lpns:
            raise InputError(
                f"footprint {footprint[0]} to {footprint[1]}: within 0 to {lpns}, and not empty"
            )
        if self.pitch < self.blocks * self.unit_pages or ppns != self.units * self.pitch:
            raise InputError(
                f"p2l of {ppns} entries: {self.units} units of {self.pitch} pages, each at least "
                f"{self.blocks} blocks of {self.unit_pages}"
            )
        if (self.blocks + 1) << (self.unit_pages - 1).bit_length() >= 2**31:
            raise InputError(
                f"{self.blocks} blocks of {self.unit_pages} pages in one unit: below 2**31 pages"
            )
        if self.choices < 1 or self.spare_parts < 1:
            raise InputError(
                f"choices {self.choices}, spare_parts {self.spare_parts}: each at least 1"
            )
        if self.align < 1 or self.unit_pages % self.align:
            raise InputError(f"align {self.align}: divides the {self.unit_pages} pages of a block")
        self._check_regions()
        if self.unit_of is not None:
            table = np.asarray(self.unit_of)
            if table.ndim != 1 or not table.size or {*np.unique(table)} - {*range(self.units)}:
                raise InputError(f"unit_of: a list of units, each 0 to {self.units - 1}")
        if self.excluded is not None and self.excluded.shape != (self.units, self.blocks):
            raise InputError(
                f"excluded {self.excluded.shape}: one for each of {self.units} x {self.blocks}"
            )

    def _check_regions(self) -> None:
        if self.sequential and len(self.regions) != 1:
            raise InputError(f"{len(self.regions)} regions written in sequence: one")
        for name in ("share", "writes"):
            parts = [getattr(r, name) for r in self.regions]
            if abs(sum(parts) - 1) > 1e-9 or min(parts) < 0:
                raise InputError(f"regions: {name} is {parts}; none below 0, in all 1")
        if min(min(r.user_front, r.moved_front) for r in self.regions) < 0:
            raise InputError("regions: frontiers count from 0")

    def check_room(self, pages: np.ndarray, blocks: np.ndarray) -> None:
        """InputError unless every unit can open its frontiers and still gains by collection.

        ``pages``, ``blocks``: int64[units], logical pages and usable blocks.
        """
        moved = len({r.moved_front for r in self.regions})
        if self.low < moved:
            raise InputError(
                f"low {self.low}: at least {moved}, a free block for each frontier of collection"
            )
        room = np.maximum(blocks - self.low - self.fronts - 1, 0) * self.unit_pages
        u = int(np.argmin(room - pages))
        if room[u] <= pages[u]:
            raise InputError(
                f"unit {u}: {pages[u]} logical pages on {blocks[u]} blocks of {self.unit_pages}, "
                f"{self.low} of them kept free: nothing to collect; below {room[u]}"
            )
