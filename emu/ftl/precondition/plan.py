"""Preconditioning plan: drive layout, victim selection, and write frequency of the pages.

Owns the parameters and their checks. Does not own the computation of the steady state
(steady_state.py).
Source: the usual parameters of page-mapped FTLs (MQSim, FAST 2018); frontiers as in Van Houdt, "On
the necessity of hot and cold data identification" (Performance Evaluation 82, 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.ftl.precondition.untimed_ftl import POLICIES
from ondie.emu.units import InputError


@dataclass(frozen=True, slots=True)
class Region:
    """Region of consecutive logical pages with equal write frequency."""

    share: float
    """Fraction of the footprint's pages that belong to the region, 0 to 1."""
    writes: float
    """Fraction of all writes that go to the region, 0 to 1. Within the region, each page is written
    with the same probability.
    """
    user_front: int = 0
    """Index of the write frontier for user writes to the region."""
    moved_front: int = 1
    """Index of the write frontier for the region's collected pages.

    If ``moved_front`` equals ``user_front``, user writes and collected pages fill the same open
    block.
    """


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a steady state: drive layout, garbage collection and write frequencies."""

    units: int
    """Number of units (planes, or dies with super-blocks).

    Each unit has separate free blocks and separate garbage collection.
    """
    blocks: int
    """Number of blocks per unit, including those marked in ``excluded``."""
    unit_pages: int
    """Number of pages per block of a unit."""
    low: int
    """Number of free blocks at which garbage collection starts, counted after a block has been
    opened.

    Garbage collection stops when one more block is free. If the drive starts garbage collection
    when a block is full and opens the next block later, ``low`` is one less than the drive's
    threshold.
    """
    stride: int = 0
    """Number of physical pages from the start of one unit to the start of the next unit. 0 means
    ``blocks`` x ``unit_pages``.
    """
    align: int = 1
    """Number of pages that are programmed together. The index of the next page of an open block is
    a multiple of ``align``.
    """
    policy: str = "greedy"
    """Victim selection policy, one of untimed_ftl.POLICIES."""
    choices: int = 10
    """Number of random blocks that the policy d_choices compares."""
    spare_parts: int = 10
    """Parameter of the policy random_some, which accepts a block if at least 1/``spare_parts`` of
    its pages are invalid."""
    level_wear: bool = False
    """True: open the free block with the fewest erases. False: open the block that became free
    first.
    """
    regions: tuple[Region, ...] = (Region(1.0, 1.0),)
    """Regions of the footprint (the overwritten logical pages), in order of LPN."""
    sequential: bool = False
    """True: overwrite the footprint repeatedly in order. False: overwrite it at random."""
    unit_of: np.ndarray | None = None
    """Unit of each LPN by LPN mod n, int[n], or None for dynamic (round-robin) allocation."""
    excluded: np.ndarray | None = None
    """Mask of the blocks that are bad or reserved for other uses, bool[units, blocks], or None if
    all blocks are usable.
    """

    @property
    def fronts(self) -> int:
        """Number of write frontiers of a unit."""
        return 1 + max(max(region.user_front, region.moved_front) for region in self.regions)

    @property
    def pitch(self) -> int:
        """Number of physical pages from the start of one unit to the start of the next unit:
        ``stride``, or ``blocks`` x ``unit_pages`` if ``stride`` is 0.
        """
        return self.stride or self.blocks * self.unit_pages

    def check(self, lpns: int, ppns: int, footprint: tuple[int, int]) -> None:
        """Raise InputError if the plan is inconsistent, or if it does not match the footprint or
        the sizes of l2p (``lpns``) and p2l (``ppns``).
        """
        if self.policy not in POLICIES:
            raise InputError(f"policy = {self.policy!r}: must be one of {', '.join(POLICIES)}")
        if min(self.units, self.blocks, self.unit_pages) < 1:
            raise InputError(
                f"plan with {self.units} units, {self.blocks} blocks per unit, {self.unit_pages} "
                f"pages per block: each number must be at least 1"
            )
        if not 0 <= footprint[0] < footprint[1] <= lpns:
            raise InputError(
                f"footprint {footprint[0]} to {footprint[1]}: must be within 0 to {lpns} and not "
                f"empty"
            )
        if self.pitch < self.blocks * self.unit_pages or ppns != self.units * self.pitch:
            raise InputError(
                f"p2l has {ppns} entries; must have {self.units} units x {self.pitch} pages, and "
                f"{self.pitch} must be at least {self.blocks} blocks x {self.unit_pages} pages"
            )
        if (self.blocks + 1) << (self.unit_pages - 1).bit_length() >= 2**31:
            raise InputError(
                f"{self.blocks} blocks of {self.unit_pages} pages in one unit: must be fewer than "
                f"2**31 pages, with the pages of a block rounded up to a power of two"
            )
        if self.choices < 1 or self.spare_parts < 1:
            raise InputError(
                f"choices = {self.choices}, spare_parts = {self.spare_parts}: each must be at "
                "least 1"
            )
        if self.align < 1 or self.unit_pages % self.align:
            raise InputError(
                f"align = {self.align}: must divide the {self.unit_pages} pages of a block"
            )
        self._check_regions()
        if self.unit_of is not None:
            table = np.asarray(self.unit_of)
            wrong = {*np.unique(table)} - {*range(self.units)}
            if table.ndim != 1 or not table.size or wrong:
                given = f"contains unit {min(wrong)}" if wrong else f"has shape {table.shape}"
                raise InputError(
                    f"unit_of {given}: must be a non-empty list of units from 0 to {self.units - 1}"
                )
        if self.excluded is not None and self.excluded.shape != (self.units, self.blocks):
            raise InputError(
                f"excluded has shape {self.excluded.shape}: must be ({self.units}, {self.blocks}), "
                f"one flag per block"
            )

    def _check_regions(self) -> None:
        if self.sequential and len(self.regions) != 1:
            raise InputError(
                f"sequential plan with {len(self.regions)} regions: must have one region"
            )
        for name in ("share", "writes"):
            parts = [getattr(region, name) for region in self.regions]
            if abs(sum(parts) - 1) > 1e-9 or min(parts) < 0:
                raise InputError(
                    f"regions: {name} is {parts}; each must be at least 0, and the sum must be 1"
                )
        if min(min(region.user_front, region.moved_front) for region in self.regions) < 0:
            raise InputError(
                "regions: (user_front, moved_front) is "
                f"{[(region.user_front, region.moved_front) for region in self.regions]}; "
                "each number must be at least 0"
            )

    def check_room(self, pages: np.ndarray, blocks: np.ndarray) -> None:
        """Raise InputError if ``self.low`` is less than the number of write frontiers for collected
        pages, or if a unit has so many logical pages that garbage collection frees no space.

        ``pages``, ``blocks``: int64[units], number of logical pages and of usable blocks.
        """
        moved = len({region.moved_front for region in self.regions})
        if self.low < moved:
            raise InputError(
                f"low = {self.low}: must be at least {moved}, one free block per write "
                f"frontier for collected pages"
            )
        room = np.maximum(blocks - self.low - self.fronts - 1, 0) * self.unit_pages
        unit = int(np.argmin(room - pages))
        if room[unit] <= pages[unit]:
            raise InputError(
                f"unit {unit}: {pages[unit]} logical pages on {blocks[unit]} blocks of "
                f"{self.unit_pages} pages, of which {self.low} are kept free: garbage collection "
                f"would free no space; use fewer than {room[unit]} logical pages"
            )
