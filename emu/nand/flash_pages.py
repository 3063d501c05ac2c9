"""Flash pages of the reservoir in a store whose pages are mapping units, and their check bytes.

Owns the division of a flash page into the mapping units of the conventional namespace, each of
which has its own out-of-band data; the mark of a page's check bytes by the origin of its program,
and the counts of pages that have no valid ones. Does not own the store (nand/page_store.py), the
numbers of pages (super_page.py) or the wrong bits of a read (pe_protection.py).
Source: this project; OptimStore (HPCA 2023): a page that a processing element has changed in the
registers is programmed without the controller's encoder. Where a mapping unit is a flash page,
every method of FlashPages is that of the store.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.nand import torn_pages
from ondie.emu.nand.page_store import CODED, DIE_CODED, PROGRAMMED, UNCODED, PageStore, Spare
from ondie.emu.nand.pe_protection import WITHOUT_ECC


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
        self,
        ppn: int,
        spare: Spare,
        data: np.ndarray,
        members: np.ndarray | None,
        erases: int,
        code: int,
    ) -> None:
        """Program a page as PageStore.program does; every unit gets ``spare``."""
        for unit, part in zip(self._units(ppn), np.split(data, self.slots), strict=True):
            self.store.program(unit, spare, part, PROGRAMMED, members, erases, code)

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
        code: int,
    ) -> None:
        """Interrupt the program of a page by a power loss. Each unit has its own outcome."""
        for unit, part in zip(self._units(ppn), np.split(data, self.slots), strict=True):
            torn_pages.interrupt_program(
                self.store, unit, spare, part, rng, members=members, erases=erases, code=code
            )

    def spare(self, ppn: int) -> Spare | None | bool:
        """Return the out-of-band data of a page as PageStore.spare does: False unless those of all
        units are valid and equal."""
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


class UncodedCounts(NamedTuple):
    """Counters of reservoir pages that pass no encoder or no decoder, in pages of the mapping
    table."""

    unprotected_pages: int = 0
    """Pages that processing elements have programmed without valid check bytes."""
    unprotected_taken: int = 0
    """Pages that the controller has read and used without decoding, because they have no valid
    check bytes."""
    undecoded_taken: int = 0
    """Pages that the controller has read and used without decoding although they have check bytes,
    because the controller has programmed them. The reads of a reservoir without ECC pass no
    decoder."""

    def plus(self, other: UncodedCounts) -> UncodedCounts:
        """Return the sums with ``other``."""
        return UncodedCounts(*(a + b for a, b in zip(self, other, strict=True)))


class CheckBytes:
    """Marks and counts of one device with configuration ``cfg``, whose pages are in ``store``."""

    def __init__(self, cfg: Config, store: PageStore) -> None:
        self._store = store
        bypass, own = cfg.pe.protection in WITHOUT_ECC, cfg.pe.protection == "on_die_ecc"
        self.of_controller = DIE_CODED if own else CODED
        """Mark of pages that the controller programs. The engine of a die encodes what comes in."""
        self.of_elements = UNCODED if bypass else self.of_controller
        """Mark of pages that processing elements program."""
        self._decodes = not bypass
        self.counts = UncodedCounts()

    def programmed(self, pages: int, code: int) -> None:
        """Count ``pages`` pages that were programmed with mark ``code``."""
        if code == UNCODED:
            self.counts = self.counts.plus(UncodedCounts(unprotected_pages=pages))

    def taken(self, ppns: list[int], slots: int, marked: bool = True) -> None:
        """Count a read by the controller of flash pages that begin at ``ppns`` and have ``slots``
        mapping units each. Their records state which of them have no valid check bytes. ``marked``:
        False for a parity, which the controller has encoded and whose record has other data in
        place of the mark."""
        if self._decodes:
            return
        units = (np.array(ppns)[:, None] + np.arange(slots)).reshape(-1)
        marks = self._store.page_records(units)["stream"] if marked else np.zeros(len(units))
        bare = int((marks == UNCODED).sum())
        self.counts = self.counts.plus(UncodedCounts(0, bare, len(units) - bare))
