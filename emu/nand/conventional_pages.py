"""Pages of the conventional namespace on flash, as recovery reads them on a drive with a reservoir.

Owns the view of a page store in which the blocks of the reservoir are blank. Does not own the store
(page_store.py), the recovery of the conventional namespace (ftl/recovery.py) or the recovery of the
reservoir (states/reservoir_scan.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import OOB, PageStore


def conventional(geometry: Geometry, blocks: np.ndarray) -> np.ndarray:
    """Return the mask of the blocks among ``blocks`` that are outside the optimizer's reservoir,
    bool[n]. ``blocks``: int64[n], block numbers that count all blocks of the drive, including the
    reservoir."""
    return np.asarray(blocks % geometry.all_blocks < geometry.blocks)


class ConventionalPages:
    """View of the pages of ``store`` in which the pages of the reservoir are blank."""

    def __init__(self, store: PageStore, geometry: Geometry) -> None:
        self._store, self._geometry = store, geometry

    @property
    def where(self) -> str:
        """Location of the pages for messages: the folder, or "flash" if the pages are in memory."""
        return self._store.where

    def block_records(self, block_pages: int, pages: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first page, OOB[blocks, block_pages]) like PageStore.block_records. Records of the
        reservoir's blocks are blank or omitted.
        """
        for first, records in self._store.block_records(block_pages, pages):
            blocks = first // block_pages + np.arange(len(records))
            own = conventional(self._geometry, blocks)
            if own.all():
                yield first, records
            elif own.any():
                found = records.copy()
                found[~own] = np.zeros(1, OOB)
                yield first, found

    def page_records(self, ppns: np.ndarray) -> np.ndarray:
        """Return the out-of-band data of pages ``ppns`` (int64[n]), OOB[n]. The record of a page
        of the reservoir is blank.
        """
        found, own = (
            np.zeros(len(ppns), OOB),
            conventional(self._geometry, ppns // self._geometry.block_pages),
        )
        found[own] = self._store.page_records(ppns[own])
        return found

    def intact(self, ppn: int) -> bool:
        """Return True if the page is not erased and its bytes match the stored checksum."""
        return self._store.intact(ppn)

    def read(self, ppn: int) -> np.ndarray:
        """Return a page's bytes, uint8[page_bytes]. Raises InputError if the page is erased."""
        return self._store.read(ppn)

    def spoil(self, ppn: int, done: bool = True) -> None:
        """Overwrite a page without an erase, so that it reads neither as blank nor as valid; see
        PageStore.spoil."""
        self._store.spoil(ppn, done)
