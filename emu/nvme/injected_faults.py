"""Injected faults: flash pages that cannot be corrected, and a drive without spare blocks.

Owns the changes to tables and stored data between two runs of the engine. Does not own random bit
errors (nand/bit_errors.py), program and erase failures (ftl/completion.py), power cuts
(power_system.py), or the resulting statuses of commands. Source: this project; the purpose is that
of the command Write Uncorrectable (NVM Command Set Specification 1.0, section 3.2.7). A fault is
injected into a whole physical page, because flash errors affect pages.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl.page_map import BAD, FAILED_PROGRAM, FREE, FULL
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import PageStore

WRONG_BITS = 0.02
"""Fraction of bits that are flipped in a page with an injected fault. The ECC codes of flash
correct fewer bit errors."""


def damage_units(arrays: Arrays, store: PageStore, units: np.ndarray, seed: int) -> int:
    """Flip bits in the flash pages of mapping units ``units``, int64[n], of device 0. Return the
    number of these units that are mapped. Units that are not mapped do not change.

    The data cache must hold only clean copies of the units. The copies are dropped, because reads
    would find them instead of the damaged pages. A page that is already damaged is not changed,
    because a second flip could undo the first. ``seed``: seed of the bit positions.
    """
    pages = arrays.l2p[0, units].astype(np.int64) - 1
    for page in pages[pages >= 0].tolist():
        if store.intact(page):
            drawn = np.random.default_rng((seed, 0xDA, page)).random((store.page_bytes, 8))
            store.damage(page, np.packbits(drawn < WRONG_BITS, axis=1).reshape(-1))
    slots = arrays.cpage[: int(arrays.cache.used[0])]
    slots["have"][np.isin(slots["lpn"], units)] = 0
    return int(np.count_nonzero(pages >= 0))


def fail_spare_blocks(arrays: Arrays, geometry: Geometry) -> int:
    """For each spare block of device 0, mark one block as having a program failure: free blocks
    first, then full blocks. Return the number of marked blocks.

    As after a program failure, the blocks are retired when their data has been moved. A served
    drive becomes read-only if no spare block is left.
    """
    count = max(int(arrays.dev.spare[0]), 0)
    blocks = arrays.block[: geometry.units * geometry.all_blocks]
    state = np.array(blocks["state"]).reshape(geometry.units, -1)
    state[:, geometry.native_blocks :] = BAD  # those of the pSLC region are no spare blocks
    state = np.where(np.asarray(blocks["retire"]) == 0, state.reshape(-1), BAD)
    chosen = np.concatenate([np.flatnonzero(state == each) for each in (FREE, FULL)])[:count]
    blocks["retire"][chosen] = FAILED_PROGRAM
    arrays.pool["retiring"][: geometry.units] += np.bincount(
        chosen // geometry.all_blocks, minlength=geometry.units
    )
    arrays.dev["spare"][0] -= len(chosen)
    if arrays.dev["ends"][0] and arrays.dev["spare"][0] <= 0:
        arrays.dev["protected"][0] = 1
    return len(chosen)
