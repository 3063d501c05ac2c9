"""Path of pages through encryption, randomizer and error-correcting code: pages are written by the
controller, updated on a die, and read again.

Owns the choice of the code with which a page is programmed and read, and the position of the NaN
comparator. The choice depends on pe.protection and on the marks in the records of the pages. Does
not own encryption, randomizer and codes (page_layers.py), the marks (nand/flash_pages.py) or the
arithmetic of the update (kernels/on_die.py).
Source: OptimStore (HPCA 2023): pages that processing elements program bypass the encoder.
Assumption: the page registers include the spare area, so that a page without new check bytes is
programmed with the check bytes of the sensed page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ondie.emu.compute import nan_comparator
from ondie.emu.config.config import Config
from ondie.emu.nand.flash_pages import CheckBytes
from ondie.emu.nand.page_store import CODED, DIE_CODED, UNCODED, PageStore, Spare
from ondie.emu.nand.pe_protection import WITHOUT_ECC
from ondie.emu.studies.page_layers import (
    Bytes,
    Coding,
    PageNumber,
    controller_code,
    die_code,
    layers_of,
)

Update = Callable[[list[Bytes]], None]
"""Function that changes the pages of a super-page in place; each page is uint8[page bytes]."""


class Cells(NamedTuple):
    """Contents of a flash page as delivered by an array read, with bit errors."""

    data: Bytes
    """Data of the page with bit errors, uint8[page bytes]."""
    spare: Bytes
    """Spare area of the page, which holds the check bytes, uint8[spare bytes]."""
    wrong: Bytes
    """Mask of the bit errors in ``data``, uint8[page bytes]."""
    mark: int
    """Mark that denotes the code of the check bytes: CODED, UNCODED or DIE_CODED, from the sealed
    record of the page."""


class PagePath:
    """Path of pages through the layers (cipher, randomizer) of the controller and of the dies.

    ``cfg``: configuration of the drive, which selects the layers of the dies. ``coding``: layers of
    the controller. ``at_registers``: position of the NaN comparator. If True, the comparator
    processes the stored bytes of every page that leaves the page registers. If False, the
    comparator processes the values with which the processing elements compute, after the layers of
    the die are removed. Data sent to the controller then passes the comparator only if the die has
    no layers. Raises InputError if the dies have layers that the controller does not have.
    """

    def __init__(self, cfg: Config, coding: Coding, at_registers: bool = False) -> None:
        self.cfg = cfg
        self.controller, self.die = layers_of(cfg, coding)
        self.store = PageStore(cfg.flash.page_bytes)
        self.check_bytes = CheckBytes(cfg, self.store)
        self._code, self._die_code = controller_code(cfg), die_code(cfg)
        self._bypass = cfg.pe.protection in WITHOUT_ECC
        self._compares = cfg.pe.protection == "nan_comparator"
        self._at_registers = at_registers
        self._spare: dict[int, Bytes] = {}
        self._wrong: dict[int, Bytes] = {}

    # --- cells

    def _program(self, page: PageNumber, stored: Bytes, mark: int, stale: Bytes | None) -> None:
        """Program a page with the check bytes of the code that ``mark`` denotes. If the mark is
        UNCODED, program the spare area ``stale`` instead."""
        if mark == UNCODED:
            assert stale is not None
            spare = stale
        else:
            spare = np.full(self.cfg.flash.spare_bytes, 0xFF, np.uint8)
            check = (self._die_code if mark == DIE_CODED else self._code).encode(stored)
            spare[: check.size] = check
        record = Spare(page.logical, page.physical, 0, 0)
        self.store.program(page.physical, record, stored, code=mark)
        self._spare[page.physical] = spare

    def _sense(self, page: PageNumber) -> Cells:
        """Return the contents of a page as delivered by an array read, with bit errors."""
        data = self.store.read(page.physical)
        wrong = self._wrong.get(page.physical, np.zeros_like(data))
        mark = int(self.store.page_records(np.array([page.physical]))["stream"][0])
        return Cells(np.bitwise_xor(data, wrong), self._spare[page.physical], wrong, mark)

    def hit(self, page: PageNumber, wrong: Bytes) -> None:
        """Invert the bits of the mask ``wrong``, uint8[page bytes], in the flash cells of a
        page."""
        self._wrong[page.physical] = wrong

    def _decode(self, cells: Cells) -> Bytes:
        """Return the bytes of a page after decoding with the code that the page's mark denotes; the
        bytes as read if the mark is UNCODED."""
        if cells.mark == UNCODED:
            return cells.data
        code = self._die_code if cells.mark == DIE_CODED else self._code
        return code.decode(cells.data, cells.spare, cells.wrong)[0]

    def _compare(self, data: Bytes) -> Bytes:
        """Return ``data`` after the comparator; unchanged if the drive has no comparator."""
        if self._compares:
            data = data.copy()
            nan_comparator.compare(data.view(np.float32))
        return data

    # --- the controller

    def write(self, page: PageNumber, data: Bytes, conventional: bool = False) -> None:
        """Write a page through the controller. ``conventional``: True for a page outside the
        reservoir; the ECC engine of the die never encodes such a page."""
        mark = CODED if conventional else self.check_bytes.of_controller
        self._program(page, self.controller.write(data, page), mark, None)

    def read(self, page: PageNumber, conventional: bool = False) -> Bytes:
        """Read a page through the controller, and return its data. Pages without check bytes, and
        all pages of a reservoir without ECC, are read without decoding. ``conventional``: True for
        a page outside the reservoir."""
        cells = self._sense(page)
        if conventional:
            return self.controller.read(self._decode(cells), page)
        self.check_bytes.taken([page.physical], 1)
        stored = cells.data if self._bypass else self._decode(cells)
        if self._at_registers or nan_comparator.sees_host(self.cfg):
            stored = self._compare(stored)
        return self.controller.read(stored, page)

    def failed_words(self, page: PageNumber) -> int:
        """Return the number of words of a page that the controller's code cannot decode. The page
        is decoded with this code even if its mark (:class:`Cells`) is UNCODED or DIE_CODED."""
        cells = self._sense(page)
        return self._code.decode(cells.data, cells.spare, cells.wrong)[1]

    # --- the die

    def update(
        self, sources: Sequence[PageNumber], targets: Sequence[PageNumber], change: Update
    ) -> None:
        """Update pages on the die: sense ``sources``, change their contents, and program
        ``targets``.

        With controller_ecc, the sensed pages are transferred to the decoder of the controller and
        back, and the new pages are transferred to its encoder. The controller neither decrypts nor
        derandomizes these pages.
        """
        sensed = [self._sense(page) for page in sources]
        plain = []
        for page, cells in zip(sources, sensed, strict=True):
            stored = cells.data if self._bypass else self._decode(cells)
            if self._at_registers:
                stored = self._compare(stored)
            values = self.die.read(stored, page)
            if not self._at_registers:
                values = self._compare(values)
            plain.append(values.copy())
        change(plain)
        mark = self.check_bytes.of_elements
        for page, values, cells in zip(targets, plain, sensed, strict=True):
            self._program(page, self.die.write(values, page), mark, cells.spare)
        self.check_bytes.programmed(len(targets), mark)
