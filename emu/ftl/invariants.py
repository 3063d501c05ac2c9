"""Quantities of one device for the conservation laws: page map, blocks, counters and lists.

Owns the counts of the page map, the data cache, blocks, open blocks and free lists. Does not own
the laws (engine/core/conservation.py), the counters (engine/core/counters.py), or totals over
devices and plans (engine/core/totals.py).
Source: this project.

The state of a block is stored twice: in its state field and in the structure that uses the block
(free ring, write frontier, garbage collection, list of waiting writes). The laws compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.conservation import Place, check_laws
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.sparse_table import touched_parts
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import pslc
from ondie.emu.ftl.page_map import BAD, EMPTIED, ERASING, FOLDABLE, FREE, FULL, OPEN, VICTIM
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import njit

Quantities = dict[str, int]


@dataclass(frozen=True)
class Requested:
    """Totals of the host's requests: number of commands, pages read, pages written, and bytes."""

    commands: int
    read_pages: int
    written_pages: int
    read_bytes: int
    written_bytes: int


def check_between_events(arrays: Arrays, geometry: Geometry) -> None:
    """Check the laws that hold for device 0 between any two events. Raises Imbalance if a law is
    violated.
    """
    quantities, detail = event_quantities(arrays, geometry)
    check_laws(Place.EVENT, quantities, detail)


def check_idle(arrays: Arrays, geometry: Geometry, requested: Requested) -> None:
    """Check the laws that hold for device 0 while nothing is in flight. Raises Imbalance if a law
    is violated.
    """
    check_laws(Place.IDLE, idle_quantities(arrays, geometry, requested))


def event_quantities(arrays: Arrays, geometry: Geometry) -> tuple[dict[str, int], str]:
    """Return the quantities of device 0 for the conservation laws that hold between any two events,
    by name, and the name of the first block whose count of valid pages is wrong ("" if all counts
    are correct)."""
    blocks = geometry.units * geometry.all_blocks
    counted = arrays.valid[:blocks]
    conventional = np.arange(blocks) % geometry.all_blocks < geometry.blocks
    found = np.zeros(blocks, np.int64)
    l2p = arrays.l2p[0]
    find_mapped(l2p, arrays.p2l[0], counted, geometry.block_pages, found)
    wrong = np.flatnonzero(conventional & (found != counted))
    block = int(wrong[0]) if len(wrong) else 0
    mapped = int(arrays.dev.mapped[0])
    entries = sum(int(np.count_nonzero(l2p[part])) for part in touched_parts(l2p))
    quantities = {
        "mapped_pages": mapped,
        "map_entries": entries,
        "mapped_physical_pages": int(found[conventional].sum()),
        "valid_pages": int(counted[conventional].sum()),
        "block_valid_pages": int(counted[block]),
        "block_mapped_pages": int(found[block]),
        **_management_between_events(arrays, geometry),
    }
    return quantities, f"block {block}" if len(wrong) else ""


@njit
def find_mapped(l2p, p2l, valid, block_pages, found):
    """Count the mapped pages of each block that has a valid page, and store the counts in ``found``
    (int64[blocks]).

    The scan covers physical pages, so it reads only the written entries of a large drive's maps. No
    logical page is counted twice, because its map entry refers to one physical page.
    """
    for block in range(valid.size):
        if valid[block] == 0:
            continue
        for ppn in range(block * block_pages, (block + 1) * block_pages):
            lpn = int(p2l[ppn]) - 1
            if lpn >= 0 and int(l2p[lpn]) - 1 == ppn:
                found[block] += 1


def idle_quantities(arrays: Arrays, geometry: Geometry, requested: Requested) -> dict[str, int]:
    """Return the quantities of device 0 for the conservation laws that hold only while nothing is
    in flight, by name."""
    page = geometry.page_bytes
    size = arrays.fifo["size"][stages.HOST_STATIONS :]
    worn = int(arrays.worn.sum() - arrays.dev.worn_before[0])
    return {
        **{name: int(count) for name, count in zip(COUNTERS, arrays.count[0], strict=True)},
        "page_bytes": page,
        "controller_ecc": 0,
        "submitted_commands": requested.commands,
        "outstanding_commands": int(arrays.dev.outstanding[0] + arrays.pair.outstanding.sum()),
        "planned_read_pages": requested.read_pages,
        "planned_program_pages": requested.written_pages,
        "planned_link_up_bytes": requested.read_bytes,
        "planned_link_down_bytes": requested.written_bytes,
        "station_link_up": int(size[stages.UP]),
        "station_link_down": int(size[stages.DOWN]),
        "station_ecc": int(size[stages.ECC : stages.ECC + geometry.channels].sum()),
        "timed_decode": int(arrays.cfg.decode[0] > 0),
        "timed_encode": int(arrays.cfg.encode[0] > 0),
        "station_channels_in": int(arrays.bus.size_in.sum()),
        "station_channels_out": int(arrays.bus.size_out.sum()),
        "transactions_in_flight": len(arrays.txn) - int(arrays.reg.txns_free[0]),
        "all_transactions": len(arrays.txn),
        "free_transactions": _chained(
            arrays.txn["next"] + 1, np.array([int(arrays.reg.free_txn[0]) + 1])
        ),
        "block_erases": int(
            arrays.block.erases[: geometry.units * geometry.all_blocks].sum()
            - arrays.dev.erases_before[0]
        ),
        "planes_per_erase": geometry.unit_planes,
        "reservoir_erases": worn // int(arrays.cfg.reservoir_planes[0]),
        "reservoir_erased_planes": worn,
        "map_cache_entries": int(arrays.maps.used.sum()),
        "map_cache_chained": _chained(arrays.entry["chain"], arrays.bucket[0]),
        "map_write_backs": int(arrays.maps.writing[0]),
        **_data_cache(arrays),
        **_management_at_rest(arrays, geometry),
    }


def _data_cache(arrays: Arrays) -> dict[str, int]:
    """Return the quantities of the data cache for the conservation laws, by name."""
    cache = arrays.cache[0]
    pages = arrays.cpage[: int(cache.used)]
    return {
        "cached_pages": int(cache.contents),
        "cache_slots": int(cache.used),
        "cache_spare_slots": _chained(pages["newer"], np.array([int(cache.spare)])),
        "cache_chained_slots": _chained(pages["chain"], arrays.cbucket[0]),
        "cache_flying_pages": int(cache.flying),
        "cache_dirty_pages": int(cache.dirty),
        "cache_waiting_requests": int(cache.wait_first > 0) + int(cache.flush_first > 0),
    }


def _chained(links: np.ndarray, heads: np.ndarray) -> int:
    """Return the total number of elements in the lists that begin at ``heads``.

    Links and heads are numbered from 1; 0 ends a list. If a list is cyclic, counting stops at one
    more than the number of links.
    """
    return int(_count(np.ascontiguousarray(links, np.int64), heads.astype(np.int64)))


@njit
def _count(links, heads):
    count = 0
    for head in heads:
        at = head
        while at > 0 and count <= len(links):
            count += 1
            at = links[at - 1]
    return count


# --- flash management


def _management_between_events(arrays: Arrays, geometry: Geometry) -> Quantities:
    """Return the quantities of flash management of device 0 for the conservation laws that hold
    between any two events, by name."""
    return {
        **_rings(arrays, geometry),
        **_frontiers(arrays, geometry),
        **_collections(arrays, geometry),
        **_urgency(arrays, geometry),
        **_modes(arrays, geometry),
        **_lists(arrays, geometry),
    }


def _management_at_rest(arrays: Arrays, geometry: Geometry) -> Quantities:
    """Return the quantities of flash management of device 0 for the conservation laws that hold
    only while nothing is in flight, by name."""
    blocks = _blocks(arrays, geometry)
    lanes = int(arrays.cfg.lanes[0])
    waiting = int((arrays.pool.stall_head[: geometry.units] >= 0).sum())
    return {
        "gc_victims": int(arrays.pool.victims[: geometry.units].sum()),
        "programming_pages": int(blocks["flying"].sum()),
        "gc_moving_pages": int(blocks["moving"].sum()),
        "reading_pages": int(blocks["reading"].sum()),
        "blocking_collections": int(arrays.die.collecting[: geometry.dies * lanes].sum()),
        "parked_lists": int((arrays.pool.parked[: geometry.units] > 0).sum()),
        "waiting_lists": waiting + int(arrays.dev.stall_head[0] >= 0),
        "immediate_transactions": int(arrays.reg.go_head[0] >= 0),
        "transaction_budget": int(arrays.reg.budget[0]),
        "full_transaction_budget": int(arrays.cfg.budget[0]),
    }


def _blocks(arrays: Arrays, geometry: Geometry) -> np.ndarray:
    """Return the records of the conventional blocks, page_map.BLOCK[units, blocks]."""
    plain = np.asarray(arrays.block[: geometry.units * geometry.all_blocks])
    return plain.reshape(geometry.units, geometry.all_blocks)[:, : geometry.blocks]


def _valid(arrays: Arrays, geometry: Geometry) -> np.ndarray:
    """Return the number of valid pages per conventional block, int32[units, blocks]."""
    plain = arrays.valid[: geometry.units * geometry.all_blocks]
    return plain.reshape(geometry.units, -1)[:, : geometry.blocks]


def _rings(arrays: Arrays, geometry: Geometry) -> Quantities:
    """Count the free blocks and the entries of the free rings, and compare the two per block."""
    blocks = _blocks(arrays, geometry)
    free = blocks["state"] == FREE
    free[:, geometry.native_blocks :] = False  # the fixed pSLC region has a separate ring
    count = arrays.pool.free_n[: geometry.units]
    at = arrays.pool.free_head[: geometry.units, None] + np.arange(geometry.blocks)
    ring = np.take_along_axis(arrays.free[: geometry.units], at % geometry.blocks, 1)
    held = np.zeros_like(free, dtype=np.int64)
    inside = np.arange(geometry.blocks) < count[:, None]
    np.add.at(held, (np.nonzero(inside)[0], ring[inside]), 1)
    empty = (blocks["state"] == FREE) | (blocks["state"] == BAD)
    flying, moving, reading = blocks["flying"], blocks["moving"], blocks["reading"]
    used = _valid(arrays, geometry) + flying + moving + reading
    return {
        "free_blocks": int(free.sum()),
        "free_count": int(count.sum()),
        "ring_blocks": int(held.sum()),
        "wrong_ring_blocks": int((held != free).sum()),
        "pages_of_empty_blocks": int(used[empty].sum()),
        "negative_block_counts": sum(
            int((blocks[name] < 0).sum())
            for name in ("flying", "moving", "reading", "owed", "erases")
        ),
    }


def _frontiers(arrays: Arrays, geometry: Geometry) -> Quantities:
    """Count the open blocks, the write frontiers of the streams, and inconsistent frontiers."""
    blocks = _blocks(arrays, geometry)
    frontier = np.asarray(arrays.front[:, : geometry.units])
    stream, unit = np.nonzero(frontier["block"] >= 0)
    block = blocks[unit, frontier["block"][stream, unit]]
    page = frontier["next"][stream, unit]
    right = (block["state"] == OPEN) & (block["stream"] == stream)
    cfg = arrays.cfg[0]
    pages = np.where(stream == cfg.pslc_stream, cfg.pslc_pages, geometry.block_pages)
    return {
        "open_blocks": int((blocks["state"] == OPEN).sum()),
        "frontier_blocks": len(stream),
        "wrong_frontiers": int((~right).sum()),
        "frontiers_past_end": int((page >= pages).sum()),
        "frontiers_behind": int((block["flying"] > page).sum()),
    }


def _collections(arrays: Arrays, geometry: Geometry) -> Quantities:
    """Compare the victims of garbage collection with the counters stored for each unit and die."""
    blocks = _blocks(arrays, geometry)
    state, cfg = blocks["state"], arrays.cfg[0]
    under = (state == VICTIM) | (state == EMPTIED) | (state == ERASING)
    victims = arrays.pool.victims[: geometry.units]
    retiring = ((blocks["retire"] == 1) & (state != BAD)).sum(axis=1)
    owed = np.where(under, blocks["owed"], 0).sum(axis=1)
    frontiers = np.asarray(arrays.front[:, : geometry.units])["owed"]
    dies, lanes = geometry.dies, int(cfg.lanes)
    die = arrays.die[: dies * lanes]
    first = np.asarray(die.first)  # record that takes one command at a time
    begun = (state == VICTIM) & (blocks["scan"] > 0)
    per_die = begun.sum(axis=1).reshape(dies, -1).sum(axis=1) * int(cfg.exclusive)
    alone = np.bincount(first[::lanes], per_die, dies * lanes)
    levelled = arrays.pool.levelled[: geometry.units]
    units = np.flatnonzero(levelled)
    levelling = under[units, (levelled[units] - 1) % geometry.all_blocks]
    miscounted = arrays.pool.retiring[: geometry.units] != retiring
    return {
        "units_with_wrong_victims": int((victims != under.sum(axis=1)).sum()),
        "units_with_wrong_retiring": int(miscounted.sum()),
        "moving_outside_victims": int(blocks["moving"][state != VICTIM].sum()),
        "owed_outside_victims": int(blocks["owed"][~under].sum()),
        "units_with_wrong_owed": int((frontiers.sum(axis=0) != owed).sum()),
        "owed_to_host_streams": int(frontiers[: int(cfg.collected)].sum()),
        "dies_with_wrong_collections": int((die.collecting != alone).sum()),
        "levelled_outside_victims": int((~levelling).sum()),
        "blocks_without_stream": int((blocks["stream"][under | (state == FULL)] < 0).sum()),
    }


def _urgency(arrays: Arrays, geometry: Geometry) -> Quantities:
    """Count the dies whose flag for urgent garbage collection is wrong, and the pages whose sector
    mask is wrong.
    """
    cfg, dies = arrays.cfg[0], geometry.dies
    wrong_dies = wrong_pages = 0
    if cfg.gc_hard > 0:
        lanes = int(cfg.lanes)
        die = arrays.die[: dies * lanes]
        first = np.asarray(die.first)
        short = arrays.pool.free_n[: geometry.units] < cfg.gc_hard
        units = np.bincount(first[::lanes], short.reshape(dies, -1).sum(axis=1), dies * lanes)
        wrong_dies = int(((units > 0) != (die.urgent != 0))[first].sum())
    if cfg.partial:
        host = int(arrays.cfg.lpns[0])  # translation pages lie behind, and are never partial
        l2p, sectors = arrays.l2p[0, :host], arrays.sectors[0, :host]
        forgets = cfg.map_forgets != 0  # then a mapped page may have no sectors
        for part in touched_parts(l2p, sectors):
            mapped, held = l2p[part] != 0, sectors[part] != 0
            wrong = held & ~mapped if forgets else held != mapped
            wrong_pages += int(wrong.sum())
    return {"dies_with_wrong_urgency": wrong_dies, "pages_with_wrong_sectors": wrong_pages}


PSLC_QUANTITIES = (
    "units_with_wrong_pslc", "units_with_wrong_full_pslc", "full_pslc_in_native_mode",
    "overfull_pslc_blocks", "native_in_pslc_region", "free_pslc_blocks", "pslc_ring_blocks",
    "pslc_free_count", "units_over_pslc_limit",
)  # fmt: skip
"""Names of those quantities of the conservation laws that concern blocks in pSLC mode. All of them
are 0 for a drive without pSLC blocks."""


def _modes(arrays: Arrays, geometry: Geometry) -> Quantities:
    """Compare the blocks in pSLC mode with the pSLC counters and the free rings of the pSLC
    regions.
    """
    cfg = arrays.cfg[0]
    if cfg.pslc == pslc.OFF:
        return dict.fromkeys(PSLC_QUANTITIES, 0)
    blocks, slc = _blocks(arrays, geometry), arrays.slc[: geometry.units]
    state = blocks["state"]
    cached = (blocks["stream"] == cfg.pslc_stream) & (state != BAD)
    full = state == FOLDABLE
    fixed = state[:, geometry.native_blocks :]
    native = (fixed != FREE) & (fixed != BAD) & ~cached[:, geometry.native_blocks :]
    held = 0
    for unit in np.flatnonzero(slc["free_n"] * geometry.pslc_blocks):
        at = int(slc["free_head"][unit]) + np.arange(int(slc["free_n"][unit]))
        ring = arrays.slc_free[unit, at % geometry.pslc_blocks] - geometry.native_blocks
        held += int((fixed[unit, np.unique(ring)] == FREE).sum())
    found = (
        (slc["lent"] != cached.sum(axis=1)).sum(),
        (slc["full"] != full.sum(axis=1)).sum(),
        (full & ~cached).sum(),
        (_valid(arrays, geometry)[cached] > cfg.pslc_pages).sum(),
        native.sum(),
        (fixed == FREE).sum(),
        held,
        slc["free_n"].sum() if geometry.pslc_blocks else 0,
        (slc["lent"] > slc["most"]).sum(),
    )
    return {name: int(count) for name, count in zip(PSLC_QUANTITIES, found, strict=True)}


def _lists(arrays: Arrays, geometry: Geometry) -> Quantities:
    """Count the writes that wait for a free block, by following the lists of waiting writes. Count
    the units whose writes are to be retried.
    """
    dev = arrays.dev[0]
    lists = [(int(dev.stall_head), int(dev.stall_tail))]
    heads = np.flatnonzero(arrays.pool.stall_head[: geometry.units] >= 0)
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
    return {
        "lists_with_wrong_tail": broken,
        "waiting_writes": len(seen),
        "distinct_waiting_writes": len(set(seen)),
        "retries": int(arrays.reg.retries[0]),
        "marked_retries": int(arrays.pool.retry.sum()),
    }
