"""Torn pages: what a program or an erase leaves in the cells when the power goes before it ends.

Owns the outcomes, page by page, by seed. Does not own which operations were under way (power.py) or
what is made of the remains (recovery.py).
Source: Tseng, Grupp, Swanson, "Understanding the impact of power loss on flash memory", DAC 2011:
a page whose program was cut may read as erased, as anything, or as whole; a block whose erase was
cut may read as before, as erased, or as anything, page by page.

Each plane of a multi-plane program ends by itself: one may be whole and another blank. That is the
worse case: a super-page that ends as one would be known by any of its planes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ondie.emu.nand.page_store import BLANK, TORN, PageStore, Spare

OUTCOMES = ("blank", "garbled", "sealed", "whole")
"""Of a program, each as likely: reads as erased; neither data nor out-of-band data are right; the
out-of-band data are whole, the data are not; all is there, though nobody was told so."""
REMAINS = ("kept", "sealed", "blank", "garbled")
"""Of a page of a block that was being erased: reads as before; its out-of-band data do, its data do
not; reads as erased; as neither."""


def program(
    store: PageStore,
    ppn: int,
    spare: Spare,
    data: np.ndarray,
    rng: np.random.Generator,
    outcome: str | None = None,
    members: np.ndarray | None = None,
) -> str:
    """Leave a page as a program does that was cut: ``spare`` and ``data``, uint8[page_bytes], are
    what it was given, and ``members`` of a parity (PageStore.program). Returns the outcome, drawn
    where none is said."""
    outcome = outcome or str(rng.choice(OUTCOMES))
    record = store.program(ppn, spare, data, members=members)
    if outcome == "whole":
        return outcome
    record["written"] = TORN
    late(store.read(ppn), rng)
    if outcome == "garbled":
        record["seal"] ^= 1 + rng.integers((1 << 32) - 1)
    elif outcome == "blank":
        store.read(ppn)[:] = 0xFF
        record["lpn"] = BLANK
    return outcome


def late(data: np.ndarray, rng: np.random.Generator) -> None:
    """Cells are erased to ones, and programmed to zeros: some are ones that were to be zeros."""
    data |= rng.integers(0, 256, len(data), np.uint8)


def erase(
    store: PageStore,
    pages: Iterable[int],
    rng: np.random.Generator,
    outcome: str | None = None,
) -> None:
    """Leave pages as an erase does that was cut."""
    for ppn in pages:
        found = outcome or str(rng.choice(REMAINS))
        record = store.torn(ppn)
        if found == "blank":
            record["lpn"] = BLANK
        elif found == "sealed":
            late(store.read(ppn), rng)
        elif found == "garbled":
            late(store.read(ppn), rng)
            record["lpn"] = 0
            record["seal"] ^= 1 + rng.integers((1 << 32) - 1)
