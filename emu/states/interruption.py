"""Programs of the reservoir that a power cut interrupts, and the resulting state of their pages.

Owns the contents that each interrupted program would have written. Does not own the operations in
progress (nvme/power_cut.py), the outcome for each page (nand/flash_pages.py) or recovery
(reservoir_scan.py).
Source: this project's rules of recovery (docs/store.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ondie.emu.engine.core.roles import Role
from ondie.emu.engine.run.system import System
from ondie.emu.ftl import page_map
from ondie.emu.nand import timing
from ondie.emu.nand.flash_pages import FlashPages
from ondie.emu.nand.super_page import At, physical_page
from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.paths.on_die.parity import Made
from ondie.emu.paths.on_die.registers import Reservoir


def place_of(system: System, die: int, tid: int) -> At:
    """Return the location of the super-page that program ``tid`` of the reservoir writes. ``die``:
    number of its die, counted over all devices."""
    arrays, geometry = system.arrays, system.geometry
    txn = arrays.txn[tid]
    place = int(txn.ppn)
    if int(txn.role) == Role.MADE:
        place = _next_place(system, die)
    block = die * geometry.all_blocks + geometry.blocks + place // geometry.pages
    return At(die % geometry.dies, place, int(arrays.block["turned"][block]))


def _next_place(system: System, die: int) -> int:
    """Return the index of the reservoir super-page that die ``die`` programs next
    (ftl/reservoir.py).

    This is needed for a parity or commit record that is being programmed, because the engine
    records its index only when the program is complete.
    """
    arrays, geometry = system.arrays, system.geometry
    place = int(arrays.pool["r_next"][die])
    state = arrays.block["state"].reshape(-1, geometry.all_blocks)[die, geometry.blocks :]
    while place % geometry.pages == 0 and state[place // geometry.pages] == page_map.BAD:
        place = (place + geometry.pages) % (geometry.reservoir_blocks * geometry.pages)
    return place


def is_pad(system: System, tid: int) -> bool:
    """Return True if program ``tid`` pads an open block of the reservoir during a recovery."""
    return bool(system.arrays.row[int(system.arrays.txn[tid].row)].kind == timing.PAD)


def interrupt_pad(
    system: System, stripes: Sequence[Stripes], flash: Sequence[FlashPages], die: int, tid: int,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Set the pages of padding program ``tid`` on die ``die`` to their state after a power cut.
    ``stripes``, ``flash``: stripe layout and flash pages of each device."""
    there, dev = place_of(system, die, tid), int(system.arrays.txn[tid].dev)
    for slot in range(stripes[dev].planes):
        page = physical_page(system.geometry, there, slot)
        flash[dev].spoil(page, bool(rng.integers(2)))


def interrupt_program(
    system: System, payload: Reservoir, die: int, tid: int, rng: np.random.Generator
) -> None:
    """Set the pages of program ``tid`` on die ``die`` to their state after a power cut. ``rng``
    determines which pages are left incomplete."""
    txn = system.arrays.txn[tid]
    there, dev = place_of(system, die, tid), int(txn.dev)
    if int(txn.role) == Role.MOVED:
        data, spares = payload.landing(dev, int(txn.src_ppn))
        made = Made(spares, data)
    else:
        made = payload.coming(dev, die, int(txn.lpn))
    own = payload.check_bytes[dev]
    of_controller = int(txn.role) in (Role.MOVED, Role.MADE)
    code = own.of_controller if of_controller else own.of_elements
    for i, (spare, data) in enumerate(zip(made.spares, made.planes, strict=True)):
        page = payload.page(there, spare.slot)
        members = None if made.members is None else made.members[i]
        erases = payload.recorded_erases(dev, there)
        payload.flash[dev].interrupt_program(page, spare, data, rng, members, erases, code)
