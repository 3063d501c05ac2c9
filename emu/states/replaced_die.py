"""Replacement of a failed die: its reservoir is restored from the parities over dies.

Owns the loss and the restoration of the pages of a die. Does not own the parities
(paths/on_die/parity.py), or the request to replace a die (drive_states.py, serve/control.py).
Source: RAID 5 over dies (Patterson, Gibson and Katz, SIGMOD 1988), as in
paths/on_die/protection.py.

After the failure, all pages of the die that were programmed read as damaged. A stripe is restored
as the exclusive or of its parity and of the other stripes under that parity. A parity on the failed
die is recomputed from its stripes, and the commit record from the update that it commits. The
restored super-pages are programmed at their previous places. The reads of other dies have bit
errors, which the code of the reservoir (pe.protection) corrects as far as possible. Bit errors that
it cannot correct remain in the restored pages and are counted. Conventional pages have no parity:
reads of them complete with an unrecovered read error until they are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import BARE_WRONG_BITS
from ondie.emu.nand import parity_records
from ondie.emu.nand.page_store import OOB, SPARE_BYTES, Spare
from ondie.emu.paths.on_die.parity import RECORD_PLANES, Made
from ondie.emu.paths.on_die.protection import Guarded
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.states.read_again import read_super_page
from ondie.emu.units import InputError, whole_number


class Restored(NamedTuple):
    """Counts of the restoration of a replaced die: restored super-pages by kind, lost conventional
    pages, and remaining bit errors.
    """

    stripes: int
    parities: int
    commit_records: int
    lost_pages: int
    """Number of conventional pages (mapping units) whose contents are lost."""
    wrong_bits: int
    """Number of bit errors that the code left in the pages read from other dies."""


def check_die(drive: Drive, guarded: Guarded, die: int) -> None:
    """Raise InputError if the die does not exist, if the drive has no parities (pe.rain) or no
    power, or if a plan is running."""
    if not guarded.members:
        raise InputError("pe.rain = 0: must be at least 2, because dies are restored from parities")
    whole_number("die", die, 0, guarded.dies - 1)
    drive.check_power()
    if not drive.plan_done:
        raise InputError(f"die {die}: a plan is running on the drive; wait until it is done")


def replace_die(drive: Drive, payload: Reservoir, guarded: Guarded, die: int) -> Restored:
    """Replace die ``die`` of ``drive``, and restore its part of ``payload`` on the new die, in zero
    simulated time. Precondition: no plan is running, and the last update has programmed all its
    parities."""
    lost = take_away(drive, die)
    counters = drive.arrays.count[0]
    before = int(counters[BARE_WRONG_BITS])

    def read(super_page: int) -> np.ndarray:
        return read_super_page(drive, payload, super_page)

    stripes = range(die, guarded.count, guarded.dies)
    made = [_stripe(payload, stripe, read) for stripe in stripes]  # none needs another of its die
    for stripe, contents in zip(stripes, made, strict=True):
        payload.put_again(0, stripe, contents)
    beside = guarded.beside(die)
    for super_page in beside:
        if guarded.is_record(super_page):
            payload.put_again(0, super_page, _commit_record(payload, super_page))
        else:
            payload.put_again(0, super_page, _parity(payload, guarded, super_page, read))
    records = sum(guarded.is_record(super_page) for super_page in beside)
    wrong = int(counters[BARE_WRONG_BITS]) - before
    return Restored(len(stripes), len(beside) - records, records, lost, wrong)


def take_away(drive: Drive, die: int) -> int:
    """Make every programmed page of a die unreadable. Return the number of conventional pages with
    valid data among these pages."""
    geometry, store, moved = drive.geometry, drive.moved.store, drive.moved
    first, lost = die * geometry.die_pages, 0
    reservoir = first + geometry.blocks * geometry.pages * geometry.planes * geometry.slots
    moved.verify_reads()
    for ppn in _programmed(drive, range(first, first + geometry.die_pages)):
        lost += ppn < reservoir and store.owner(ppn) >= 0
        store.spoil(ppn)
    return lost


def _programmed(drive: Drive, pages: range) -> Iterator[int]:
    """Yield the physical pages in ``pages`` that are not erased."""
    store = drive.moved.store
    for number in store.segments_on_disk():
        first = int(number) * store.segment_pages
        for at in np.flatnonzero(store.records(int(number))["written"]).tolist():
            if first + at in pages:
                yield first + at


def _stripe(payload: Reservoir, stripe: int, read: Callable[[int], np.ndarray]) -> Made:
    """Return the contents of a stripe, computed from its parity and the other stripes under that
    parity. ``read``: function that returns the pages of a super-page."""
    planes, records = payload.rebuilt(0, stripe, read)
    spares = []
    for record in records:
        found = np.zeros(1, OOB)
        found.view(np.uint8)[:SPARE_BYTES] = record
        spares.append(Spare(*(int(found[name][0]) for name in Spare._fields)))
    return Made(spares, planes)


def _parity(
    payload: Reservoir, guarded: Guarded, super_page: int, read: Callable[[int], np.ndarray]
) -> Made:
    """Return the contents of a parity, computed from its stripes. ``read``: function that returns
    the pages of a super-page.
    """
    store = payload.stores[0]
    under = guarded.under(guarded.number(super_page))
    pages = [payload.pages(0, stripe) for stripe in under]
    planes = np.bitwise_xor.reduce([read(stripe) for stripe in under])
    records = np.bitwise_xor.reduce(
        [np.stack([parity_records.covered(store, ppn) for ppn in of_stripe]) for of_stripe in pages]
    )
    step = int(store.page_records(np.array(pages[0][:1]))["step"][0])
    number = int(payload.sequences[0]) + 1
    spares = [Spare(super_page, number, step, plane) for plane in range(len(planes))]
    return Made(spares, planes, records)


def _commit_record(payload: Reservoir, super_page: int) -> Made:
    """Return the contents of the commit record of the last update."""
    number, step = int(payload.sequences[0]) + 1, payload.step
    made = payload.beside[0].made(super_page, number, step)
    assert len(made.spares) == RECORD_PLANES
    return made
