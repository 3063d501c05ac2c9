"""Wiping of erased pages. An erase only marks pages in a store, so their bytes must be overwritten.

Owns the overwriting. Does not own erases (page_store.py) or holes in files (segment_files.py).
Source: NVM Express Base Specification 2.0, section 8.21 (sanitize operations).
"""

from __future__ import annotations

import numpy as np

from ondie.emu.nand.page_store import PageStore


def wipe_erased(store: PageStore) -> None:
    """Overwrite all bytes of the erased pages of ``store`` with zeros, and sync the store. Raises
    InputError if a file cannot be used.
    """
    for number in store.segments_on_disk():
        erased = np.flatnonzero(store.records(number)["written"] == 0)
        wipe(store, number * store.segment_pages + erased)
    store.sync()


def wipe(store: PageStore, ppns: np.ndarray) -> None:
    """Overwrite the bytes of pages ``ppns`` (int[n]) with zeros. The out-of-band data does not
    change."""
    for ppn in ppns.tolist():
        page = store.bytes_of(ppn)
        if page is not None and page.any():  # a hole of a file stays one
            page[:] = 0
