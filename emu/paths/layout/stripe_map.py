"""Homes: which super-page of a device each stripe lies in, and so on which die.

Owns the two-way table. Does not own the physical place of a super-page (backend/reservoir.py), nor
who moves when (paths/levelling.py).
Source: own. A super-page's number says its die: super-pages 0, 1, 2, ... are those of dies 0, 1, 2,
... in turn. Stripes begin in the super-pages of their own numbers; one that is moved to another die
gets the first free super-page there.
"""

from __future__ import annotations

import numpy as np


class Homes:
    """Super-pages of ``count`` stripes on ``dies`` dies. As long as nothing has moved no table is
    kept: those of large models are large."""

    def __init__(self, count: int, dies: int) -> None:
        self.count = count
        self.dies = dies
        self._super_page: np.ndarray | None = None
        """Of each stripe: int64[count]."""
        self._stripe: dict[int, int] = {}
        """Of each super-page that holds one."""

    @staticmethod
    def found(super_pages: np.ndarray, dies: int) -> Homes:
        """Stripes in ``super_pages``, int64[count]."""
        homes = Homes(len(super_pages), dies)
        if (super_pages != np.arange(homes.count)).any():
            homes._tabulate()
            homes._super_page = super_pages.copy()
            homes._stripe = {int(sp): i for i, sp in enumerate(super_pages)}
        return homes

    def copy(self) -> Homes:
        """The same, to be changed by itself."""
        return Homes.found(self.super_pages(0, self.count), self.dies)

    def _tabulate(self) -> None:
        if self._super_page is None:
            self._super_page = np.arange(self.count)
            self._stripe = dict(enumerate(range(self.count)))

    @property
    def moved(self) -> bool:
        """Does any stripe lie elsewhere than at the beginning?"""
        return self._super_page is not None

    def super_pages(self, start: int, stop: int) -> np.ndarray:
        """Super-pages of stripes [start, stop), int64."""
        if self._super_page is None:
            return np.arange(start, stop)
        return self._super_page[start:stop]

    def stripe(self, super_page: int) -> int:
        """The stripe that a super-page holds. KeyError where it holds none."""
        if self._super_page is None:
            if 0 <= super_page < self.count:
                return super_page
            raise KeyError(super_page)
        return self._stripe[super_page]

    def __contains__(self, super_page: int) -> bool:
        """Does a stripe lie there?"""
        if self._super_page is None:
            return 0 <= super_page < self.count
        return super_page in self._stripe

    def held(self) -> np.ndarray:
        """Stripes of each die, int64[dies]."""
        if self._super_page is None:
            return (self.count - np.arange(self.dies) + self.dies - 1) // self.dies
        return np.bincount(self._super_page % self.dies, minlength=self.dies)

    def by_die(self) -> list[np.ndarray]:
        """Super-pages of each die, in the order of their stripes, int64."""
        every = self.super_pages(0, self.count)
        order = np.argsort(every % self.dies, kind="stable")
        return np.split(every[order], np.cumsum(self.held())[:-1])

    def move(self, stripe: int, die: int) -> tuple[int, int]:
        """A stripe goes to another die: (super-page it leaves, super-page it gets)."""
        self._tabulate()
        target = die
        while target in self._stripe:
            target += self.dies
        return self.land(int(self.super_pages(stripe, stripe + 1)[0]), target), target

    def land(self, source: int, target: int) -> int:
        """The stripe of super-page ``source``, which is returned, lies in ``target`` now."""
        self._tabulate()
        assert self._super_page is not None
        stripe = self._stripe.pop(source)
        self._stripe[target] = stripe
        self._super_page[stripe] = target
        return source
