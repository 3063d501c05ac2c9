"""Path of pages through the layers: written by the controller, updated on a die, read again.

Owns which code a program and a read pass, by pe.protection and the marks of the pages' records, and
the place of the comparator. Does not own the layers and codes (page_layers.py), the marks
(nand/flash_pages.py) or the arithmetic of the update (kernels/on_die.py).
Source: OptimStore (HPCA 2023): pages that processing elements program pass no encoder. Assumption:
the registers of a page include its spare area, so a page without new check bytes is programmed with
those of the page that was sensed.
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
"""Function that changes the pages of a super-page in place, each uint8[page bytes]."""


class Cells(NamedTuple):
    """A page as an array read delivers it."""

    data: Bytes
    """uint8[page bytes], with wrong bits."""
    spare: Bytes
    """uint8[spare bytes]."""
    wrong: Bytes
    """Mask of the wrong bits of ``data``."""
    mark: int
    """CODED, UNCODED or DIE_CODED, from the sealed record of the page."""


class PagePath:
    """Pages of a drive with configuration ``cfg``, whose controller has the layers of ``coding``.

    ``at_registers``: True: the comparator processes every page that leaves the registers, as it is
    stored. False: it processes what the elements compute with, behind the layers that the die
    implements; pages with layers that the die implements leave the registers for the controller
    unchanged. Raises InputError if dies have layers that the controller does not have.
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
        """Program a page with the check bytes of its mark; without any, with those of ``stale``."""
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
        """Read the cells of a page."""
        data = self.store.read(page.physical)
        wrong = self._wrong.get(page.physical, np.zeros_like(data))
        mark = int(self.store.page_records(np.array([page.physical]))["stream"][0])
        return Cells(np.bitwise_xor(data, wrong), self._spare[page.physical], wrong, mark)

    def hit(self, page: PageNumber, wrong: Bytes) -> None:
        """Invert the bits of the mask ``wrong``, uint8[page bytes], in the cells of a page."""
        self._wrong[page.physical] = wrong

    def _decode(self, cells: Cells) -> Bytes:
        """Return the bytes of a page after the decoder of its mark."""
        if cells.mark == UNCODED:
            return cells.data
        code = self._die_code if cells.mark == DIE_CODED else self._code
        return code.decode(cells.data, cells.spare, cells.wrong)[0]

    def _compare(self, data: Bytes) -> Bytes:
        """Return bytes that have left the comparator."""
        if self._compares:
            data = data.copy()
            nan_comparator.compare(data.view(np.float32))
        return data

    # --- the controller

    def write(self, page: PageNumber, data: Bytes, conventional: bool = False) -> None:
        """Write a page as the controller does. ``conventional``: not in the reservoir, so that no
        engine of a die encodes it."""
        mark = CODED if conventional else self.check_bytes.of_controller
        self._program(page, self.controller.write(data, page), mark, None)

    def read(self, page: PageNumber, conventional: bool = False) -> Bytes:
        """Read a page as the controller does: pages without check bytes, and all pages of a
        reservoir without ECC, are read without decoding."""
        cells = self._sense(page)
        if conventional:
            return self.controller.read(self._decode(cells), page)
        self.check_bytes.taken([page.physical], 1)
        stored = cells.data if self._bypass else self._decode(cells)
        if self._at_registers or nan_comparator.sees_host(self.cfg):
            stored = self._compare(stored)
        return self.controller.read(stored, page)

    def failed_words(self, page: PageNumber) -> int:
        """Return the words that fail if the controller decodes a page regardless of its mark."""
        cells = self._sense(page)
        return self._code.decode(cells.data, cells.spare, cells.wrong)[1]

    # --- the die

    def update(
        self, sources: Sequence[PageNumber], targets: Sequence[PageNumber], change: Update
    ) -> None:
        """Update pages on the die: sense ``sources``, change them, program ``targets``.

        With controller_ecc the pages cross to the controller's decoder and back, and the results to
        its encoder: the controller does not remove the other layers.
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
