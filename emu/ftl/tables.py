"""Tables of the FTL: maps, blocks, free rings, write frontiers and the cached mapping table.

Owns the sizes and initial values of these tables, and the constants of flash management. Does not
own the behavior of the FTL (the other files of this package).
Source: mmap(2): the memory of a mapping table reads as zeros and is allocated when it is written.
"""

from __future__ import annotations

import math

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.sparse_table import map_table
from ondie.emu.engine.core.state import Arrays, records
from ondie.emu.ftl import (
    cmt,
    map_checkpoint,
    page_map,
    pslc,
    read_retry,
    reservoir,
    trim_maps,
)
from ondie.emu.ftl.write_path import REWRITES
from ondie.emu.nand.die import (
    Q_GC_ERASE,
    Q_GC_READ,
    Q_GC_WRITE,
    Q_READ,
    Q_WRITE,
)
from ondie.emu.nand.geometry import Geometry
from ondie.emu.units import InputError

LOTS = 64
"""Number of int64 values that a victim selection policy can keep between its calls."""
GC_RESERVE = 1
"""Number of free blocks per unit that only garbage collection may open.

If program failures can occur, one more is reserved.
"""


def set_management(cfg: Config, geometry: Geometry, table: np.recarray) -> None:
    """Set the constants of flash management in ``table``: streams, garbage collection and wear
    leveling.
    """
    ftl = cfg.ftl
    table.streams = ftl.write_streams
    table.collected = ftl.write_streams
    table.collected_streams = ftl.write_streams if ftl.gc_streams == "each" else 1
    table.map_read = ftl.map_read_bytes
    together = int(
        table["passes"][0] * table["stripe"][0]
    )  # with fewer, write-backs of one word line block each other
    table.map_writes = max(ftl.map_writes, together) if together > 1 else ftl.map_writes
    table.open_ahead = ftl.open_blocks == "ahead"
    table.static = ftl.placement == "static"
    table.partial = ftl.partial_pages == "sectors"
    table.unwritten = ftl.unwritten == "as_written"
    table.placed = ftl.map_update == "placed"
    table.locks = ftl.victim_pages == "locked"
    table.gc_reserve = GC_RESERVE + (ftl.program_failures > 0)
    table.gc_low = max(ftl.gc_low_blocks, int(table["gc_reserve"][0]))
    table.gc_stop = ftl.gc_stop_blocks
    table.gc_stalled = ftl.gc_checks == "stalled"
    table.gc_hard = ftl.gc_hard_blocks if ftl.gc_priority == "background" else 0
    window = min(ftl.gc_window_pages * geometry.slots, geometry.block_pages)
    table.gc_window = max(window or geometry.block_pages, together)
    table.gc_parallel = ftl.gc_parallel
    table.exclusive = ftl.gc_priority == "exclusive"
    shared = ftl.gc_priority == "shared"
    table.q_gc_read = Q_READ if shared else Q_GC_READ
    table.q_gc_write = Q_WRITE if shared else Q_GC_WRITE
    table.q_gc_erase = Q_WRITE if shared else Q_GC_ERASE
    table.copyback = ftl.gc_copyback
    table.erase_collected = ftl.erase == "collected"
    table.wear_dynamic = ftl.wear_dynamic
    table.wear_static = ftl.wear_static_cycles
    table.spare_parts = max(round(1 / max(ftl.over_provisioning, 1e-9)), 1)
    table.program_failures = ftl.program_failures
    set_cell_modes(cfg, geometry, table)
    table.erase_failures = ftl.erase_failures


def set_cell_modes(cfg: Config, geometry: Geometry, table: np.recarray) -> None:
    """Set the constants of pSLC blocks and of folding in ``table``."""
    ftl, flash = cfg.ftl, cfg.flash
    table.native = geometry.native_blocks
    table.pslc_stream = table.fold_stream = pslc.NO_STREAM
    if ftl.pslc == "off":
        return
    table.pslc = pslc.MODES.index(ftl.pslc)
    table.pslc_hosts = ftl.pslc_streams
    table.pslc_pages = pslc.block_pages(cfg) * geometry.unit_planes * geometry.slots
    table.pslc_most = int(geometry.blocks * ftl.pslc_share)
    table.pslc_keep = max(int(table["gc_low"][0]) + 1, ftl.gc_stop_blocks)
    table.pslc_erase = flash.pslc_t_erase_ps - flash.t_erase_ps
    table.pslc_wait = ftl.pslc_full == "wait"
    table.fold_blocks = ftl.fold_blocks
    table.fold_keep = GC_RESERVE if ftl.pslc == "static" else 0
    table.fold_idle = ftl.fold_idle_ps


def set_cached_map(
    cfg: Config, geometry: Geometry, table: np.recarray, streams: int, caches: int
) -> None:
    """Set the sizes of the cached mapping table and the streams of translation pages in ``table``.

    ``streams``: number of zones whose translation pages have separate blocks. Each zone begins at a
    translation page, so that up to ``map_span`` - 1 page numbers before each further zone are
    unused. ``caches``: number of caches that share ``ftl.map_cache`` equally. Raises InputError if
    the logical and translation pages do not fit on flash, or if ftl.map_cache is too small or too
    large (cmt.table_sizes).
    """
    lpns = int(table["lpns"][0])
    entries, span, tpages = cmt.table_sizes(cfg, geometry.physical_pages, lpns, caches)
    if lpns - (streams - 1) * max(span - 1, 0) + tpages > geometry.native_pages:
        raise InputError(
            f"ftl.over_provisioning = {cfg.ftl.over_provisioning}: {lpns} logical pages and their "
            f"{tpages} translation pages are more than the {geometry.native_pages} pages of "
            "flash; use a larger value"
        )
    table.map_entries, table.map_span, table.tpages = entries, span, tpages
    table.trim_span = 8 * geometry.page_bytes
    table.trim_maps = -(-lpns // int(table["trim_span"][0])) if cfg.ftl.trim_maps else 0
    following = int(table["collected"][0] + table["collected_streams"][0])
    map_checkpoint.set_sizes(cfg, geometry, table)
    table.meta_slot = trim_maps.SLOTS
    if table["meta_maps"][0]:
        streams = 1
    kept = entries or table["meta_maps"][0]
    table.map_stream = following if kept else -1
    table.map_streams = streams if kept else 0
    table.map_caches = caches
    if table["pslc"][0] != pslc.OFF:
        following += int(table["map_streams"][0])
        table.pslc_stream, table.fold_stream = following, following + 1
    table.first_out = 0 if entries else 1
    if cfg.ftl.gc_copyback or cfg.flash.status == "read":
        table.first_out = -1


def check_spare(cfg: Config, geometry: Geometry, table: np.recarray) -> None:
    """Raise InputError if the drive can become full (no free block, and none can be collected) when
    all logical pages are written.

    In that state, all invalid pages of a unit are in the open blocks of the streams, and only the
    blocks reserved for garbage collection are free. One stream has no open block: the stream of the
    waiting write.
    """
    streams, needed = _blocks_in_use(cfg, table)
    pages = _mapped_pages(table)
    spare = geometry.native_pages - pages
    if spare >= needed * geometry.units * geometry.block_pages:
        return
    share = needed / geometry.native_blocks
    advice = f"use at least {math.ceil(share * 1e4) / 1e4:g}" if share < 0.95 else "use more blocks"
    super_blocks = ", or ftl.block_unit = plane" if geometry.unit_planes > 1 else ""
    streams_fewer = ", or fewer ftl.write_streams" if streams > 2 else ""
    raise InputError(
        f"ftl.over_provisioning = {cfg.ftl.over_provisioning}: a unit of {geometry.native_blocks} "
        f"blocks has {spare / geometry.units / geometry.block_pages:.2f} spare blocks, but "
        f"{needed} may be open or reserved (ftl.write_streams = {cfg.ftl.write_streams}, "
        f"ftl.gc_streams = {cfg.ftl.gc_streams}), so the drive can become full when all logical "
        f"pages are written; {advice}{streams_fewer}{super_blocks}"
    )


_PAGES = ("lpns", "tpages", "trim_maps", "meta_pages")
"""Names of the constants that give the number of pages of each kind in the mapping table."""


def _mapped_pages(table: np.recarray) -> int:
    """Return the number of pages in the mapping table: logical pages, translation pages, trim maps
    and metadata pages.
    """
    return sum(int(table[name][0]) for name in _PAGES)


def _blocks_in_use(cfg: Config, table: np.recarray) -> tuple[int, int]:
    """Return (number of streams with an open block, number of blocks of a unit that may be open or
    reserved for garbage collection while a write waits).
    """
    one = cfg.ftl.stream_policy == "one"
    streams = (1 if one else int(table["streams"][0])) + int(table["collected_streams"][0])
    return streams, streams + int(table["map_streams"][0]) + int(table["gc_reserve"][0]) - 1


def spare_blocks(cfg: Config, geometry: Geometry, arrays: Arrays) -> int:
    """Return the number of native blocks of device 0 that are good and needed neither for the
    logical pages nor as open or reserved blocks. The number is negative if the drive can become
    full.
    """
    state = np.asarray(arrays.block.state[: geometry.units * geometry.all_blocks])
    native = state.reshape(geometry.units, -1)[:, : geometry.native_blocks]
    table = arrays.cfg
    pages = _mapped_pages(table)
    in_use = _blocks_in_use(cfg, table)[1] * geometry.units
    failing = arrays.block.retire[: geometry.units * geometry.all_blocks]
    failing = np.isin(failing, (page_map.FAILED_PROGRAM, page_map.FAILED_ERASE))
    failing = failing.reshape(geometry.units, -1)[:, : geometry.native_blocks]
    good = int(((native != page_map.BAD) & ~failing).sum())
    return good - -(-pages // geometry.block_pages) - in_use


def logical_pages(cfg: Config, geometry: Geometry) -> int:
    """Return the number of logical pages of the conventional namespace: floor(native physical pages
    x (1 - over-provisioning)).
    """
    return int(geometry.native_pages * (1 - cfg.ftl.over_provisioning))


def map_dtype(entries: int) -> type[np.unsignedinteger]:
    """Return the entry type of a mapping table: uint32 if each entry + 1 fits, else uint64."""
    return np.uint32 if entries < 2**32 - 1 else np.uint64


def error_tables(
    cfg: Config, n: int, geometry: Geometry, txns: int, units: int
) -> dict[str, np.ndarray]:
    """Return the arrays of the error model for the state of compiled code, by field name. If
    errors.kind = none, the arrays have minimal size."""
    on = cfg.errors.kind != "none"
    pages = geometry.physical_pages if on else 1
    return {
        **read_retry.tables(cfg, txns, units * geometry.all_blocks),
        "seen": map_table((n, pages), np.uint32),
        "lost": map_table((n, pages), np.int64),
        "kept": map_table((n, pages if cfg.ftl.gc_copyback else 1), np.float32),
    }


def mark_bad_blocks(cfg: Config, arrays: Arrays, seed: int) -> None:
    """Mark the factory bad blocks, drawn from ``seed``, and remove them from the free rings.

    Raises InputError if the good blocks have fewer pages than the namespace.
    """
    if cfg.ftl.bad_blocks == 0:
        return
    units, blocks = arrays.free.shape
    geometry = Geometry.of(cfg)
    if geometry.reservoir_blocks:
        lent = reservoir.bad_blocks(cfg, geometry, units // geometry.units, seed)
        arrays.block["state"].reshape(units, -1)[:, blocks:][lent] = page_map.BAD
    bad = np.random.default_rng((seed, 0xBAD)).random((units, blocks)) < cfg.ftl.bad_blocks
    state = arrays.block["state"].reshape(units, -1)
    state[:, :blocks][bad] = page_map.BAD
    for u in range(units):
        good = np.flatnonzero(~bad[u]).astype(np.int32)
        fixed = good[good >= geometry.native_blocks]
        good = good[: len(good) - len(fixed)]
        arrays.free[u, : len(good)] = good
        arrays.pool["free_n"][u] = len(good)
        if geometry.pslc_blocks:
            arrays.slc_free[u, : len(fixed)] = fixed
            arrays.slc["free_n"][u] = len(fixed)
    native = (~bad).reshape(-1, geometry.units, blocks)[:, :, : geometry.native_blocks]
    good_pages = native.sum(axis=(1, 2)) * geometry.block_pages
    lpns = int(arrays.cfg.lpns[0])
    if good_pages.min() < lpns:
        raise InputError(
            f"ftl.bad_blocks = {cfg.ftl.bad_blocks}: the good blocks have {int(good_pages.min())} "
            f"pages, fewer than the {lpns} logical pages (ftl.over_provisioning = "
            f"{cfg.ftl.over_provisioning}); use a smaller ftl.bad_blocks or a larger "
            "ftl.over_provisioning"
        )


def open_blocks(table: np.record) -> int:
    """Return the number of open blocks per unit, one for each stream that keeps an open block."""
    return int(
        table.collected + table.collected_streams + table.map_streams + 2 * (table.pslc != pslc.OFF)
    )


def block_records(
    cfg: Config, geometry: Geometry, units: int, lanes: int, stripes: int
) -> np.recarray:
    """Return the block records (page_map.BLOCK) of all units.

    If blocks are erased when they are opened and the drive starts in steady state, the records
    state that every block must be erased before its first write. The exception is one block per
    unit, which is already erased.
    """
    one = records(page_map.BLOCK, geometry.all_blocks)
    if cfg.ftl.erase == "open":
        one.dirty = int(cfg.ftl.initial == "steady")
        one["dirty"][0] = 0
    one.stream = -1
    one.last = stripes - 1
    block = records(page_map.BLOCK, units * geometry.all_blocks)
    of_unit, bytes_of_one = block.view(np.uint8).reshape(units, -1), one.view(np.uint8)
    for unit in range(units):  # each record is written once: the table has megabytes
        die, plane = divmod(unit, geometry.planes // geometry.unit_planes)
        one["plane"] = plane
        one["die"] = die * lanes + (plane if lanes > 1 else 0)
        of_unit[unit] = bytes_of_one
    return block


def one_zone(geometry: Geometry, streams: int, lpns: int) -> np.recarray:
    """Return one zone record (page_map.ZONE) per stream. Every stream writes to all units."""
    zone = records(page_map.ZONE, streams)
    zone.last_lpn = lpns
    zone.units = geometry.units
    return zone


def front_records(units: int, streams: int) -> np.recarray:
    front = records(page_map.FRONT, streams, units)
    front.block = -1
    return front


def pool_records(geometry: Geometry, units: int) -> np.recarray:
    pool = records(page_map.POOL, units)
    pool.free_n = geometry.native_blocks
    pool.stall_head = pool.stall_tail = -1
    return pool


def tables(
    cfg: Config, geometry: Geometry, table: np.record, n: int, lanes: int, planned: bool
) -> dict[str, np.ndarray]:
    """Return the arrays of the FTL of ``n`` devices for the state of compiled code, by field name.

    ``table``: constants of compiled code. ``lanes``: number of independently operating planes per
    die. ``planned``: True if only plans use the devices. Plans write to few blocks of each unit, so
    the physical pages that they map are scattered.
    """
    units = n * geometry.units
    lpns, tpages, entries = int(table.lpns), int(table.tpages), int(table.map_entries)
    caches = int(table.map_caches)
    width = map_dtype(geometry.physical_pages)
    stripes = geometry.block_pages // int(table.stripe)
    mapped = sum(int(table[name]) for name in _PAGES)
    rows = map_checkpoint.buffers(table, trim_maps.SLOTS)
    bits = np.zeros((rows, geometry.page_bytes), np.uint8)
    return {
        "l2p": map_table((n, mapped), width),
        "p2l": map_table((n, geometry.physical_pages), width, scattered=planned),
        "rewrites": np.zeros((n, REWRITES if table.partial else 1), np.int64),
        "sectors": map_table((n, mapped if table.partial else 1), np.int64),
        "stored": map_table(
            (n, mapped if table.partial and table.map_writes == 0 else 1), np.int64
        ),
        "trim_map": records(trim_maps.TRIM_MAP, max(n * int(table.trim_maps), 1)),
        "trim_slot": np.zeros(n * trim_maps.SLOTS, np.int8),
        "trim_bits": bits,
        "meta_words": bits.view(np.int64),
        "meta_dirty": np.zeros(max(n * int(table.meta_maps), 1), np.int8),
        "meta_open": np.zeros(units * geometry.all_blocks if table.meta_maps else 1, np.int8),
        "valid": np.zeros(units * geometry.all_blocks, np.int32),
        "block": block_records(cfg, geometry, units, lanes, stripes),
        "free": np.tile(np.arange(geometry.blocks, dtype=np.int32), (units, 1)),
        "front": front_records(units, open_blocks(table)),
        "pool": pool_records(geometry, units),
        "upkeep": records(page_map.UPKEEP, units if table.upkeep else 1),
        "turn": geometry.turns(cfg.ftl.allocation),
        "zone": one_zone(geometry, cfg.ftl.write_streams, lpns),
        "maps": records(cmt.MAPS, max(n, caches)),
        "entry": records(cmt.ENTRY, max(n * caches * entries, 1)),
        "bucket": np.zeros((n, 1 << (caches * entries).bit_length()), np.int32),
        "tpage": records(cmt.TPAGE, max(n * tpages, 1)),
        "page_ps": pslc.array_times(cfg),
        **pslc.tables(cfg, units, geometry.blocks, geometry.pslc_blocks),
        "worn": np.zeros((max(units * geometry.reservoir_blocks, 1), geometry.planes), np.int32),
        "retry": np.zeros(units, np.int32),
        "lots": np.zeros(LOTS, np.int64),
    }
