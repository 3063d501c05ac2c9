"""Injected faults: flash pages that cannot be corrected, and a drive without spare blocks.

Owns the changes of the tables and stored bytes between two runs of the engine. Does not own random
bit errors (nand/bit_errors.py) and failures (ftl/completion.py), power cuts (power_system.py), or
the statuses that follow. Source: NVM Command Set Specification 1.0, section 3.2.7 (Write
Uncorrectable), for the purpose; flash fails by pages, so a fault is one of a physical page.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl.page_map import BAD, FAILED_PROGRAM, FREE, FULL
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import PageStore

WRONG_BITS = 0.02
"""Share of the bits of an injected page that are wrong; codes of flash correct less."""


def damage_units(arrays: Arrays, store: PageStore, units: np.ndarray, seed: int) -> int:
    """Flip bits of the flash pages of mapping units, int64[n], of device 0. Return the number of
    those that hold data; the others stay as they are.

    Nothing of the units may be in the data cache but clean copies, which are dropped: reads would
    find them. A page that is damaged stays as it is, since a second flip could undo the first.
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
    """Mark as many blocks of device 0 as are spare as if a program had failed in each: free blocks
    first, then full ones. Return their number.

    As after such failures, the blocks are retired when their data have moved, and a served drive
    (``dev.ends``) is read-only.
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
