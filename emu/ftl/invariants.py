"""Quantities of one device for the conservation laws: page map, blocks, counters and lists.

Owns the counts of the page map, the data cache and the free lists. Does not own the laws
(engine/core/conservation.py), the counters (engine/core/counters.py), the quantities of flash
management (balance.py), or totals over devices and plans (engine/core/totals.py).
Source: none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.engine.core import stages
from ondie.emu.engine.core.conservation import Place, check_laws
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.sparse_table import touched_parts
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import balance
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import njit


@dataclass(frozen=True)
class Requested:
    """Numbers of commands, of pages that they touch, and of bytes that the host has requested."""

    commands: int
    read_pages: int
    written_pages: int
    read_bytes: int
    written_bytes: int


def check_between_events(arrays: Arrays, geometry: Geometry) -> None:
    """Check the laws that hold for device 0 between any two events. Raises Imbalance."""
    quantities, detail = event_quantities(arrays, geometry)
    check_laws(Place.EVENT, quantities, detail)


def check_idle(arrays: Arrays, geometry: Geometry, requested: Requested) -> None:
    """Check the laws that hold for device 0 while nothing is in flight. Raises Imbalance."""
    check_laws(Place.IDLE, idle_quantities(arrays, geometry, requested))


def event_quantities(arrays: Arrays, geometry: Geometry) -> tuple[dict[str, int], str]:
    """Return (quantities of device 0 that are defined between two events, name of the first block
    with a wrong count of valid pages or "").
    """
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
        **balance.event_quantities(arrays, geometry),
    }
    return quantities, f"block {block}" if len(wrong) else ""


@njit
def find_mapped(l2p, p2l, valid, block_pages, found):
    """Count the mapped pages of each block that has a valid page, and store the counts in ``found``
    (int64[blocks]).

    The scan covers physical pages, so it reads only the written entries of a large drive's maps. No
    logical page is counted twice, because its map entry names one physical page.
    """
    for block in range(valid.size):
        if valid[block] == 0:
            continue
        for ppn in range(block * block_pages, (block + 1) * block_pages):
            lpn = int(p2l[ppn]) - 1
            if lpn >= 0 and int(l2p[lpn]) - 1 == ppn:
                found[block] += 1


def idle_quantities(arrays: Arrays, geometry: Geometry, requested: Requested) -> dict[str, int]:
    """Return the quantities of device 0 that are defined only while nothing is in flight."""
    page = geometry.page_bytes
    size = arrays.fifo["size"][stages.HOST_STATIONS :]
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
        "map_cache_entries": int(arrays.maps.used.sum()),
        "map_cache_chained": _chained(arrays.entry["chain"], arrays.bucket[0]),
        "map_write_backs": int(arrays.maps.writing[0]),
        **_data_cache(arrays),
        **balance.idle_quantities(arrays, geometry),
    }


def _data_cache(arrays: Arrays) -> dict[str, int]:
    """Return the quantities of the data cache."""
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
    """Return the number of elements in the lists that begin at ``heads``.

    For a cyclic list the count stops at one more than the number of links. Links and heads count
    from 1; 0 ends a list.
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
