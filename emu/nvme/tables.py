"""Tables of the host interface: data cache and queue pairs.

Owns the sizes and initial values of these tables, and the configuration constants of the data
cache. Does not own the functions that use the tables (the other modules of ondie.emu.nvme).
Source: this project.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import records
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme import data_cache, mqsim_cache, power_loss_protection
from ondie.emu.nvme.queue_pair import PAIR, REQ
from ondie.emu.units import InputError

PAIR_RING = 1 << 16
"""Maximum number of requests of a queue pair that are in flight or loaded in advance."""


def set_destage_buffer(sizes: mqsim_cache.Sizes, table: np.recarray) -> None:
    """Set the constants of MQSim's data cache (destage buffer, mqsim_cache.py), which replaces this
    project's data cache.

    ``table``: record of the integer configuration.
    """
    table.cache = mqsim_cache.BUFFER
    table.cache_pages = sizes.pages
    table.cache_fills = 1
    table.cache_flights = table.buffer_limit = sizes.limit
    table.buffer_row, table.buffer_burst = sizes.row, sizes.burst
    table.buffer_ns = sizes.transfer_ns
    table.buffer_open, table.buffer_close = sizes.open_ps, sizes.close_ns
    table.buffer_strays = sizes.strays
    table.buffer_unwritten = sizes.unwritten


def set_data_cache(cfg: Config, geometry: Geometry, table: np.recarray) -> None:
    """Set the constants of the data cache and of DRAM rows in ``table``, the record of the integer
    configuration. Raises InputError if the cache has 2**31 mapping units or more, or if
    ``cache.hold_up`` is too small for the cache."""
    mode = cfg.cache.mode
    table.cache_safe = cfg.cache.power_loss_protection
    table.dram_row = cfg.dram.row_bytes
    table.dram_open = cfg.dram.t_rcd_ps + cfg.dram.t_cl_ps
    table.dram_close = cfg.dram.t_rp_ps
    if mode == "off":
        return
    pages = cfg.cache.capacity_bytes // geometry.page_bytes
    if pages >= 1 << 31:
        raise InputError(f"cache.capacity: {pages} mapping units; must be below 2**31")
    table.cache = 1
    table.cache_pages = pages
    table.cache_writes = mode != "read"
    table.cache_through = mode == "write_through"
    table.cache_fills = mode in ("read", "read_write")
    table.cache_dirty = 0 if mode == "write_through" else int(pages * cfg.cache.dirty_share)
    pages = geometry.dies * geometry.planes * geometry.slots
    lines = geometry.units * int(table["passes"][0] * table["stripe"][0] * table["streams"][0])
    usual = pages if table["line"][0] == 1 else max(lines, pages)
    flights = min(cfg.cache.destage_pages * geometry.slots, int(table["cache_pages"][0]))
    table.cache_flights = flights or usual
    table.cache_idle = cfg.cache.destage_idle
    if cfg.cache.power_loss_protection:
        pages = int(table["cache_pages"][0]) if mode in ("write_back", "read_write") else 0
        power_loss_protection.check_hold_up(cfg, geometry, pages)


def cache_records(n: int) -> np.recarray:
    out = records(data_cache.CACHE, n)
    out.epoch = 1
    return out


def pair_records(n: int) -> np.recarray:
    pair = records(PAIR, n)
    pair.stop = NEVER
    return pair


def tables(
    table: np.record, geometry: Geometry, caches: int, pairs: int, txns: int, destage: bool
) -> dict[str, np.ndarray]:
    """Return the tables for ``caches`` data caches and ``pairs`` queue pairs. The dictionary maps
    the name of each field of the engine's state to its table.

    ``table``: record of the integer configuration. ``txns``: number of transactions in the pool.
    ``destage``: True for a destage buffer (mqsim_cache.py).
    """
    places, lpns = int(table.cache_pages), int(table.lpns)
    ppns = geometry.physical_pages if table.buffer_unwritten else 1
    return {
        "cache": cache_records(caches),
        "cpage": records(data_cache.CPAGE, max(caches * places, 1)),
        "recent": np.zeros(lpns if destage else 1, np.int32),
        "unprogrammed": np.zeros(ppns, np.uint8),
        "stamp": np.zeros(txns if destage else 1, np.int64),
        "cbucket": np.zeros((caches, 1 << places.bit_length()), np.int32),
        "req": records(REQ, max(pairs * PAIR_RING, 1)),
        "done": np.zeros(1 << (max(pairs * PAIR_RING, 1) - 1).bit_length(), np.int32),
        "pair": pair_records(pairs),
    }
