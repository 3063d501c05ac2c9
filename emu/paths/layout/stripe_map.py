"""Stripe map: the super-page, and thus the die, of each stripe of a device.

Owns the table from stripe to super-page and the inverse table. Does not own the physical location
of a super-page (ftl/reservoir.py), or the choice of stripes to move (on_die/wear_leveling.py).
Source: this project. The number of a super-page determines its die: super-page i is on die i modulo
the number of dies. Initially stripe i is in super-page i. A stripe that moves to another die gets
the first free super-page of the new die.
"""

from __future__ import annotations

import numpy as np


class Homes:
    """Map from stripe to super-page, for ``count`` stripes on ``dies`` dies. To save memory for
    large models, the tables are created only when the first stripe moves."""

    def __init__(self, count: int, dies: int) -> None:
        self.count = count
        self.dies = dies
        self._super_page: np.ndarray | None = None
        """Super-page of each stripe, int64[count]; None until the first move."""
        self._stripe: dict[int, int] = {}
        """Stripe in each occupied super-page; empty until the first move."""

    @staticmethod
    def found(super_pages: np.ndarray, dies: int) -> Homes:
        """Return a map in which stripe i is in ``super_pages[i]``. ``super_pages``:
        int64[count]."""
        homes = Homes(len(super_pages), dies)
        if (super_pages != np.arange(homes.count)).any():
            homes._tabulate()
            homes._super_page = super_pages.copy()
            homes._stripe = {int(sp): i for i, sp in enumerate(super_pages)}
        return homes

    def copy(self) -> Homes:
        """Return an independent copy of the map."""
        return Homes.found(self.super_pages(0, self.count), self.dies)

    def _tabulate(self) -> None:
        if self._super_page is None:
            self._super_page = np.arange(self.count)
            self._stripe = dict(enumerate(range(self.count)))

    @property
    def moved(self) -> bool:
        """True if any stripe has moved since the initial placement."""
        return self._super_page is not None

    def super_pages(self, start: int, stop: int) -> np.ndarray:
        """Return the super-pages of stripes [start, stop), int64[stop - start]."""
        if self._super_page is None:
            return np.arange(start, stop)
        return self._super_page[start:stop]

    def stripe(self, super_page: int) -> int:
        """Return the number of the stripe in a super-page. Raises KeyError if the super-page holds
        no stripe."""
        if self._super_page is None:
            if 0 <= super_page < self.count:
                return super_page
            raise KeyError(super_page)
        return self._stripe[super_page]

    def __contains__(self, super_page: int) -> bool:
        """Return True if the super-page holds a stripe."""
        if self._super_page is None:
            return 0 <= super_page < self.count
        return super_page in self._stripe

    def held(self) -> np.ndarray:
        """Return the number of stripes on each die, int64[dies]."""
        if self._super_page is None:
            return (self.count - np.arange(self.dies) + self.dies - 1) // self.dies
        return np.bincount(self._super_page % self.dies, minlength=self.dies)

    def by_die(self) -> list[np.ndarray]:
        """Return the super-pages of each die, in the order of their stripes: one int64 array per
        die."""
        every = self.super_pages(0, self.count)
        order = np.argsort(every % self.dies, kind="stable")
        return np.split(every[order], np.cumsum(self.held())[:-1])

    def move(self, stripe: int, die: int) -> tuple[int, int]:
        """Move a stripe to the first free super-page of another die. Return (old super-page, new
        super-page)."""
        self._tabulate()
        target = die
        while target in self._stripe:
            target += self.dies
        return self.land(int(self.super_pages(stripe, stripe + 1)[0]), target), target

    def land(self, source: int, target: int) -> int:
        """Record that the stripe of super-page ``source`` is now in super-page ``target``. Return
        ``source``."""
        self._tabulate()
        assert self._super_page is not None
        stripe = self._stripe.pop(source)
        self._stripe[target] = stripe
        self._super_page[stripe] = target
        return source
