"""Flash pages of the reservoir in a store whose pages are mapping units.

Owns the division of a flash page into the mapping units of the conventional namespace, each of
which has its own out-of-band data. Does not own the store (nand/page_store.py) or the numbers of
pages (super_page.py).
Source: this project. Where a mapping unit is a flash page, every method is that of the store.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.nand import torn_pages
from ondie.emu.nand.page_store import PROGRAMMED, PageStore, Spare


class FlashPages:
    """Flash pages of ``store``, of ``slots`` mapping units each. ``ppn``: the first of them."""

    def __init__(self, store: PageStore, slots: int) -> None:
        self.store, self.slots = store, slots

    def _units(self, ppn: int) -> range:
        return range(ppn, ppn + self.slots)

    def read(self, ppn: int) -> np.ndarray:
        """Return a page's bytes, uint8[bytes of a flash page]; copy it before the next write.
        Raises InputError if the page is not programmed."""
        if self.slots == 1:
            return self.store.read(ppn)
        return np.concatenate([self.store.read(unit) for unit in self._units(ppn)])

    def program(
        self, ppn: int, spare: Spare, data: np.ndarray, members: np.ndarray | None, erases: int
    ) -> None:
        """Program a page as PageStore.program does; every unit gets ``spare``."""
        for unit, part in zip(self._units(ppn), np.split(data, self.slots), strict=True):
            self.store.program(unit, spare, part, PROGRAMMED, members, erases)

    def write(self, ppn: int, lpn: int, data: np.ndarray) -> None:
        """Program a page as PageStore.write does."""
        for unit, part in zip(self._units(ppn), np.split(data, self.slots), strict=True):
            self.store.write(unit, lpn, part)

    def interrupt_program(
        self,
        ppn: int,
        spare: Spare,
        data: np.ndarray,
        rng: np.random.Generator,
        members: np.ndarray | None,
        erases: int,
    ) -> None:
        """Interrupt the program of a page by a power loss. Each unit has its own outcome."""
        for unit, part in zip(self._units(ppn), np.split(data, self.slots), strict=True):
            torn_pages.interrupt_program(
                self.store, unit, spare, part, rng, members=members, erases=erases
            )

    def spare(self, ppn: int) -> Spare | None | bool:
        """Return the out-of-band data of a page as PageStore.spare does: False if those of the
        units are not valid and alike."""
        first, *others = [self.store.spare(unit) for unit in self._units(ppn)]
        return first if all(other == first for other in others) else False

    def intact(self, ppn: int) -> bool:
        """Return True if the page is programmed and its bytes match the stored checksums."""
        return all(self.store.intact(unit) for unit in self._units(ppn))

    def spoil(self, ppn: int, done: bool = True) -> None:
        """Overwrite a page without an erase, as PageStore.spoil does."""
        for unit in self._units(ppn):
            self.store.spoil(unit, done)

    def erases(self, ppn: int) -> int:
        """Return the erase count of the block in the out-of-band data of a page."""
        return self.store.erase_count(ppn)
