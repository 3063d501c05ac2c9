"""Torn pages: contents of pages whose program or erase is interrupted by a power loss.

Owns the random outcome of the interruption for each page. Does not own the set of interrupted
operations (analysis/power_loss/cut.py) or recovery (ftl/reservoir_recovery.py).
Source: Tseng, Grupp, Swanson, "Understanding the impact of power loss on flash memory", DAC 2011: a
page whose program was cut may read as erased, with arbitrary contents, or intact; each page of a
block whose erase was cut may read as before, as erased, or with arbitrary contents.

Each plane of a multi-plane program has an independent outcome: one may be whole and another blank.
This is the harder case for recovery: with one common outcome, any plane would reveal it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ondie.emu.nand.page_store import BLANK, CODED, PageStore, Spare

OUTCOMES = ("blank", "garbled", "sealed", "whole")
"""Outcomes of an interrupted program, equally likely. blank: the page reads as erased; garbled:
data and out-of-band data are damaged; sealed: out-of-band data is valid, but data is damaged;
whole: all data is valid, but the completion was not reported."""
REMAINS = ("kept", "sealed", "blank", "garbled")
"""States of a page after an interrupted erase, equally likely. kept: the page reads as before;
sealed: out-of-band data reads as before, but data does not; blank: the page reads as erased;
garbled: the page reads neither as before nor as erased."""


def interrupt_program(
    store: PageStore,
    ppn: int,
    spare: Spare,
    data: np.ndarray,
    rng: np.random.Generator,
    outcome: str | None = None,
    members: np.ndarray | None = None,
    erases: int = 0,
    code: int = CODED,
) -> str:
    """Interrupt the program of a page by a power loss and return the outcome.

    ``spare``, ``data`` (uint8[page_bytes]), ``erases``, ``code`` and, for a parity page,
    ``members`` are the arguments of the program (see PageStore.program). If ``outcome`` is None, it
    is drawn from ``rng``.
    """
    store.program(ppn, spare, data, members=members, erases=erases, code=code)
    return tear(store, ppn, rng, outcome)


def tear_first_pass(store: PageStore, ppn: int, rng: np.random.Generator) -> None:
    """Interrupt the first of two program passes over page ``ppn``, which has the contents after the
    complete first pass. Afterwards, the page reads as blank, or as neither blank nor valid."""
    if rng.random() < 0.5:
        store.torn(ppn)["lpn"] = BLANK


def tear(
    store: PageStore,
    ppn: int,
    rng: np.random.Generator,
    outcome: str | None = None,
    may_be_blank: bool = True,
) -> str:
    """Interrupt the program of page ``ppn`` and return the outcome.

    The page must already have the contents of the complete program; the function changes them to
    those after the interruption. ``outcome``: one of OUTCOMES, or None to draw it from ``rng``.
    ``may_be_blank``: False for the second of two passes, because the cells are not erased before
    this pass.
    """
    outcome = outcome or str(rng.choice(OUTCOMES if may_be_blank else OUTCOMES[1:]))
    if outcome == "whole":
        return outcome
    record = store.torn(ppn)
    set_late_bits(store.read(ppn), rng)
    if outcome == "garbled":
        record["seal"] ^= 1 + rng.integers((1 << 32) - 1)
    elif outcome == "blank":
        store.read(ppn)[:] = 0xFF
        record["lpn"] = BLANK
    return outcome


def set_late_bits(data: np.ndarray, rng: np.random.Generator) -> None:
    """Set random bits of ``data`` (uint8[n], in place) to 1. They represent cells that are not
    programmed yet and therefore read as erased (1)."""
    data |= rng.integers(0, 256, len(data), np.uint8)


def interrupt_erase(
    store: PageStore,
    pages: Iterable[int],
    rng: np.random.Generator,
    outcome: str | None = None,
) -> None:
    """Interrupt the erase of physical pages ``pages`` by a power loss.

    ``outcome``: the outcome for all pages, one of REMAINS. If it is None, an outcome is drawn from
    ``rng`` for each page.
    """
    for ppn in pages:
        found = outcome or str(rng.choice(REMAINS))
        record = store.torn(ppn)
        if found == "blank":
            record["lpn"] = BLANK
        elif found == "sealed":
            set_late_bits(store.read(ppn), rng)
        elif found == "garbled":
            set_late_bits(store.read(ppn), rng)
            record["lpn"] = 0
            record["seal"] ^= 1 + rng.integers((1 << 32) - 1)
