"""Flash pages of the reservoir, in a store whose pages are mapping units, and their check bytes.

Owns the division of a flash page into mapping units with separate out-of-band data, the mark that
records the encoder of a page's check bytes, and the counts of pages without valid check bytes. Does
not own the store (nand/page_store.py), the numbers of pages (super_page.py) or the bit errors of a
read (pe_protection.py).
Source: this project; OptimStore (HPCA 2023): a page that a processing element has changed in the
registers is programmed without the controller's encoder.

If a mapping unit is a whole flash page, each method of FlashPages has the effect of the PageStore
method with this name.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.nand import torn_pages
from ondie.emu.nand.page_store import CODED, DIE_CODED, PROGRAMMED, UNCODED, PageStore, Spare
from ondie.emu.nand.pe_protection import WITHOUT_ECC


class FlashPages:
    """Flash pages of ``store`` with ``slots`` mapping units each. Methods identify a flash page by
    the number ``ppn`` of its first mapping unit.
    """

    def __init__(self, store: PageStore, slots: int) -> None:
        self.store, self.slots = store, slots

    def _units(self, ppn: int) -> range:
        return range(ppn, ppn + self.slots)

    def read(self, ppn: int) -> np.ndarray:
        """Return a page's bytes, uint8[bytes of a flash page]; copy them before the next write.
        Raises InputError if a mapping unit of the page is erased."""
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
        """Program a page like PageStore.program, which describes the arguments. Every mapping unit
        of the page gets ``spare``."""
        for unit, part in zip(self._units(ppn), np.split(data, self.slots), strict=True):
            self.store.program(unit, spare, part, PROGRAMMED, members, erases, code)

    def write(self, ppn: int, lpn: int, data: np.ndarray) -> None:
        """Program each mapping unit of a page with PageStore.write, as logical page ``lpn``."""
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
        """Interrupt the program of a page by a power loss. The outcome is drawn with ``rng`` for
        each mapping unit. Other arguments: see :meth:`program`.
        """
        for unit, part in zip(self._units(ppn), np.split(data, self.slots), strict=True):
            torn_pages.interrupt_program(
                self.store, unit, spare, part, rng, members=members, erases=erases, code=code
            )

    def spare(self, ppn: int) -> Spare | None | bool:
        """Return the out-of-band data of a page, or None or False as PageStore.spare does. Also
        return False if the out-of-band data of the page's mapping units differs."""
        first, *others = [self.store.spare(unit) for unit in self._units(ppn)]
        return first if all(other == first for other in others) else False

    def intact(self, ppn: int) -> bool:
        """Return True if none of the page's mapping units is erased, and the bytes of each of them
        match the stored checksum."""
        return all(self.store.intact(unit) for unit in self._units(ppn))

    def spoil(self, ppn: int, done: bool = True) -> None:
        """Overwrite the mapping units of a page without an erase (see PageStore.spoil)."""
        for unit in self._units(ppn):
            self.store.spoil(unit, done)

    def erases(self, ppn: int) -> int:
        """Return the erase count of the block of a page, from the page's out-of-band data."""
        return self.store.erase_count(ppn)


class UncodedCounts(NamedTuple):
    """Counters, in mapping units, of reservoir pages that bypass the encoder or the decoder."""

    unprotected_pages: int = 0
    """Number of mapping units that processing elements programmed without valid check bytes."""
    unprotected_taken: int = 0
    """Number of mapping units that the controller read and used without decoding because they have
    no valid check bytes."""
    undecoded_taken: int = 0
    """Number of mapping units that the controller read and used without decoding although they have
    valid check bytes from the controller's encoder. Reads of a reservoir without ECC bypass the
    decoder."""

    def plus(self, other: UncodedCounts) -> UncodedCounts:
        """Add ``other`` counter by counter and return the sums."""
        return UncodedCounts(*(a + b for a, b in zip(self, other, strict=True)))


class CheckBytes:
    """Which encoder wrote the check bytes of reservoir pages, and the number of pages that bypassed
    the encoder or the decoder, for one device with configuration ``cfg`` and page store ``store``.
    The mark of a page (CODED, UNCODED or DIE_CODED) denotes the encoder."""

    def __init__(self, cfg: Config, store: PageStore) -> None:
        self._store = store
        bypass, own = cfg.pe.protection in WITHOUT_ECC, cfg.pe.protection == "on_die_ecc"
        self.of_controller = DIE_CODED if own else CODED
        """Mark of pages that the controller programs. With on-die ECC, the engine of the die
        encodes the incoming data.
        """
        self.of_elements = UNCODED if bypass else self.of_controller
        """Mark of pages that processing elements program."""
        self._decodes = not bypass
        self.counts = UncodedCounts()

    def programmed(self, pages: int, code: int) -> None:
        """Count ``pages`` mapping units that were programmed with mark ``code``. Only mark UNCODED
        (no valid check bytes) is counted."""
        if code == UNCODED:
            self.counts = self.counts.plus(UncodedCounts(unprotected_pages=pages))

    def taken(self, ppns: list[int], slots: int, marked: bool = True) -> None:
        """Count the mapping units of flash pages that the controller has read and used without
        decoding. Do nothing if the drive decodes reads of the reservoir. ``ppns``: first mapping
        unit of each page. ``slots``: number of mapping units per page. ``marked``: True if the
        out-of-band data of the pages contains the mark that shows whether their check bytes are
        valid. False for a parity page: the controller has encoded the page, and the field of the
        mark contains another value."""
        if self._decodes:
            return
        units = (np.array(ppns)[:, None] + np.arange(slots)).reshape(-1)
        marks = self._store.page_records(units)["stream"] if marked else np.zeros(len(units))
        bare = int((marks == UNCODED).sum())
        self.counts = self.counts.plus(UncodedCounts(0, bare, len(units) - bare))
