"""Invariants of flash management: consistency of blocks, open blocks, lists and counts.

Owns the conditions that hold between any two events, and those that hold when nothing is in flight.
Does not own the checks of the page map and of the counters (invariants.py).
Source: the state of a block is kept twice, as its state field and where it is used: in a free ring,
as an open block, as a garbage collection victim, in a list of waiting writes.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import pslc
from ondie.emu.ftl.page_map import BAD, EMPTIED, ERASING, FOLDABLE, FREE, FULL, OPEN, VICTIM
from ondie.emu.nand.geometry import Geometry

Pairs = list[tuple[str, int, int]]
"""(description, one count, the other count)."""


def always(arrays: Arrays, die: Geometry) -> Pairs:
    """Return the pairs that must be equal on device 0 between any two events."""
    return [
        *_rings(arrays, die),
        *_fronts(arrays, die),
        *_collections(arrays, die),
        *_modes(arrays, die),
        *_lists(arrays, die),
    ]


def idle(arrays: Arrays, die: Geometry) -> Pairs:
    """Return the pairs that must be equal on device 0 when nothing is in flight."""
    mine = _blocks(arrays, die)
    lanes = int(arrays.cfg.lanes[0])
    waiting = int((arrays.pool.stall_head[: die.units] >= 0).sum())
    return [
        ("blocks under collection", int(arrays.pool.victims[: die.units].sum()), 0),
        ("pages in programs under way", int(mine["flying"].sum()), 0),
        ("pages that collection has in motion", int(mine["moving"].sum()), 0),
        ("reads on their way to blocks", int(mine["reading"].sum()), 0),
        ("collections that the host waits for",
         int(arrays.die.collecting[: die.dies * lanes].sum()), 0),
        ("lists that wait for collection", int((arrays.pool.parked[: die.units] > 0).sum()), 0),
        ("lists of waiting writes", waiting + int(arrays.dev.stall_head[0] >= 0), 0),
        ("transactions that go on at once", int(arrays.reg.go_head[0] >= 0), 0),
        ("transactions promised to nobody", int(arrays.reg.budget[0]), int(arrays.cfg.budget[0])),
    ]  # fmt: skip


def _blocks(arrays: Arrays, die: Geometry) -> np.ndarray:
    """Return the records of the conventional blocks, [units, blocks]."""
    plain = np.asarray(arrays.block[: die.units * die.all_blocks])
    return plain.reshape(die.units, die.all_blocks)[:, : die.blocks]


def _rings(arrays: Arrays, die: Geometry) -> Pairs:
    """Compare the free blocks with the free rings that hold them."""
    mine = _blocks(arrays, die)
    free = mine["state"] == FREE
    free[:, die.native_blocks :] = False  # the fixed pSLC region has a separate ring
    valid = arrays.valid[: die.units * die.all_blocks].reshape(die.units, -1)[:, : die.blocks]
    count = arrays.pool.free_n[: die.units]
    at = (arrays.pool.free_head[: die.units, None] + np.arange(die.blocks)) % die.blocks
    ring = np.take_along_axis(arrays.free[: die.units], at, 1)
    held = np.zeros_like(free, dtype=np.int64)
    inside = np.arange(die.blocks) < count[:, None]
    np.add.at(held, (np.nonzero(inside)[0], ring[inside]), 1)
    empty = (mine["state"] == FREE) | (mine["state"] == BAD)
    used = (valid + mine["flying"] + mine["moving"] + mine["reading"])[empty]
    negative = sum(
        int((mine[name] < 0).sum()) for name in ("flying", "moving", "reading", "owed", "erases")
    )
    return [
        ("free blocks, free counts", int(free.sum()), int(count.sum())),
        ("free blocks, blocks in the free rings", int(free.sum()), int(held.sum())),
        ("blocks in a free ring that are not free, or twice", int((held != free).sum()), 0),
        ("pages of free and bad blocks", int(used.sum()), 0),
        ("counts below 0", negative, 0),
    ]


def _fronts(arrays: Arrays, die: Geometry) -> Pairs:
    """Compare the open blocks with the write frontiers of the streams."""
    mine = _blocks(arrays, die)
    front = np.asarray(arrays.front[:, : die.units])
    stream, unit = np.nonzero(front["block"] >= 0)
    block = mine[unit, front["block"][stream, unit]]
    page = front["next"][stream, unit]
    right = (block["state"] == OPEN) & (block["stream"] == stream)
    cfg = arrays.cfg[0]
    pages = np.where(stream == cfg.pslc_stream, cfg.pslc_pages, die.block_pages)
    return [
        ("open blocks, blocks that streams have open",
         int((mine["state"] == OPEN).sum()), len(stream)),
        ("open blocks of another stream, or not open", int((~right).sum()), 0),
        ("open blocks without a page left", int((page >= pages).sum()), 0),
        ("pages allocated in open blocks, under way or landed",
         int((block["flying"] > page).sum()), 0),
    ]  # fmt: skip


def _collections(arrays: Arrays, index: Geometry) -> Pairs:
    """Compare the victims with the counts kept per unit and die."""
    mine = _blocks(arrays, index)
    state, cfg = mine["state"], arrays.cfg[0]
    under = (state == VICTIM) | (state == EMPTIED) | (state == ERASING)
    victims = arrays.pool.victims[: index.units]
    retiring = ((mine["retire"] == 1) & (state != BAD)).sum(axis=1)
    owed = np.where(under, mine["owed"], 0).sum(axis=1)
    fronts = np.asarray(arrays.front[:, : index.units])["owed"]
    dies, lanes = index.dies, int(cfg.lanes)
    die = arrays.die[: dies * lanes]
    first = np.asarray(die.first)  # record that takes one command at a time
    begun = (state == VICTIM) & (mine["scan"] > 0)
    per_die = begun.sum(axis=1).reshape(dies, -1).sum(axis=1) * int(cfg.exclusive)
    alone = np.bincount(first[::lanes], per_die, dies * lanes)
    levelled = arrays.pool.levelled[: index.units]
    which = np.flatnonzero(levelled)
    levelling = under[which, (levelled[which] - 1) % index.all_blocks]
    pairs = [
        ("units whose victims are miscounted", int((victims != under.sum(axis=1)).sum()), 0),
        ("units whose retiring blocks are miscounted",
         int((arrays.pool.retiring[: index.units] != retiring).sum()), 0),
        ("blocks in motion that are no victims", int(mine["moving"][state != VICTIM].sum()), 0),
        ("pages owed by blocks that are no victims", int(mine["owed"][~under].sum()), 0),
        ("units whose owed pages are miscounted", int((fronts.sum(axis=0) != owed).sum()), 0),
        ("pages owed to the host's streams", int(fronts[: int(cfg.collected)].sum()), 0),
        ("dies whose collections alone are miscounted", int((die.collecting != alone).sum()), 0),
        ("levelled blocks that are no victims", int((~levelling).sum()), 0),
        ("victims and full blocks that no stream filled",
         int((mine["stream"][under | (state == FULL)] < 0).sum()), 0),
    ]  # fmt: skip
    if cfg.gc_hard > 0:
        short = arrays.pool.free_n[: index.units] < cfg.gc_hard
        units = np.bincount(first[::lanes], short.reshape(dies, -1).sum(axis=1), dies * lanes)
        wrong = (units > 0) != (die.urgent != 0)
        pairs.append(("dies whose urgency is wrong", int(wrong[first].sum()), 0))
    if cfg.partial:
        host = int(arrays.cfg.lpns[0])  # translation pages lie behind, and are never partial
        bare = (arrays.l2p[0, :host] != 0) != (arrays.sectors[0, :host] != 0)
        pairs.append(("pages with sectors and no place, or the other way", int(bare.sum()), 0))
    return pairs


def _modes(arrays: Arrays, die: Geometry) -> Pairs:
    """Compare the blocks in pSLC mode with the counts and the rings of the pSLC region."""
    cfg = arrays.cfg[0]
    if cfg.pslc == pslc.OFF:
        return []
    mine, slc = _blocks(arrays, die), arrays.slc[: die.units]
    state = mine["state"]
    cached = (mine["stream"] == cfg.pslc_stream) & (state != BAD)
    full = state == FOLDABLE
    valid = arrays.valid[: die.units * die.all_blocks].reshape(die.units, -1)[:, : die.blocks]
    fixed = state[:, die.native_blocks :]
    held = 0
    for unit in np.flatnonzero(slc["free_n"] * die.pslc_blocks):
        at = (int(slc["free_head"][unit]) + np.arange(int(slc["free_n"][unit]))) % die.pslc_blocks
        ring = arrays.slc_free[unit, at] - die.native_blocks
        held += int((fixed[unit, np.unique(ring)] == FREE).sum())
    return [
        ("units whose blocks in pSLC mode are miscounted",
         int((slc["lent"] != cached.sum(axis=1)).sum()), 0),
        ("units whose full pSLC blocks are miscounted",
         int((slc["full"] != full.sum(axis=1)).sum()), 0),
        ("full pSLC blocks in native mode", int((full & ~cached).sum()), 0),
        ("pSLC blocks with more pages than word lines",
         int((valid[cached] > cfg.pslc_pages).sum()), 0),
        ("native blocks in the fixed pSLC region",
         int(((fixed != FREE) & (fixed != BAD) & ~cached[:, die.native_blocks :]).sum()), 0),
        ("free blocks of the fixed pSLC region, blocks in its rings",
         int((fixed == FREE).sum()), held),
        ("free blocks of the fixed pSLC region, counts of its rings",
         int((fixed == FREE).sum()), int(slc["free_n"].sum()) if die.pslc_blocks else 0),
        ("units with more pSLC blocks than may be",
         int((slc["lent"] > cfg.pslc_most).sum()), 0),
    ]  # fmt: skip


def _lists(arrays: Arrays, die: Geometry) -> Pairs:
    """Check the lists of writes that wait for a free block, and the units marked for retry."""
    dev = arrays.dev[0]
    lists = [(int(dev.stall_head), int(dev.stall_tail))]
    heads = np.flatnonzero(arrays.pool.stall_head[: die.units] >= 0)
    lists += [
        (int(arrays.pool.stall_head[unit]), int(arrays.pool.stall_tail[unit])) for unit in heads
    ]
    seen: list[int] = []
    broken = 0
    following = arrays.txn.next
    for head, tail in lists:
        tid, last = head, tail
        while tid >= 0 and len(seen) <= len(following):
            seen.append(tid)
            tid, last = int(following[tid]), tid
        broken += last != tail
    return [
        ("lists of waiting writes that do not end at their end", broken, 0),
        ("writes that wait in two places", len(seen), len(set(seen))),
        ("units to be tried again, and marked so",
         int(arrays.reg.retries[0]), int(arrays.pool.retry.sum())),
        ("units to be tried again between events", int(arrays.reg.retries[0]), 0),
    ]  # fmt: skip
