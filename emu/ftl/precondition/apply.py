"""Preconditioning: transition of a newly built drive to the state of a used drive.

Owns the conversion of a steady state or of a sequential fill into the mapping tables, blocks, free
rings and write frontiers of a drive. Does not own the computation of a steady state
(steady_state.py) or drives on which only some pages contain data (per_stream.py).
Source: SNIA, Solid State Storage Performance Test Specification: a drive filled once, or written
until its performance is constant.

The age of a block is computed as if its unit had programmed pages without a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.ftl import block_manager, cmt, page_map, write_frontier
from ondie.emu.ftl.precondition import steady_state, touched_fill, untimed_ftl
from ondie.emu.ftl.precondition.steady_state import Plan, Region, Steady
from ondie.emu.ftl.precondition.touched_fill import Accesses
from ondie.emu.nand.geometry import Geometry
from ondie.emu.units import InputError

PRECONDITIONS = ("none", "fill", "steady")
UNIFORM = (Region(1.0, 1.0),)


def precondition(
    arrays: Arrays, cfg: Config, kind: str, *, seed: int = 0, accesses: Accesses | None = None
) -> Steady | None:
    """Put a stand-alone drive (device 0), which has executed no command, into the state ``kind``
    (PRECONDITIONS). "fill" writes all logical pages once in order. "steady" calls
    set_steady_state() with uniform writes. Returns the result of set_steady_state(), or None for
    another kind. ``accesses``: pages that the run will access. A fill leaves other pages unmapped
    if this cannot change the results of the run. Raises InputError if the kind is unknown, if the
    pages do not fit on flash, or if "steady" does not support the victim policy.
    """
    if kind == "steady":
        return set_steady_state(arrays, cfg, seed=seed)
    if kind == "fill":
        if accesses is not None and touched_fill.rest_is_idle(arrays, cfg, accesses):
            touched_fill.fill(arrays, accesses)
        else:
            fill(arrays, cfg)
    elif kind != "none":
        raise InputError(f"precondition = {kind!r}: must be one of {', '.join(PRECONDITIONS)}")
    return None


def fill(arrays: Arrays, cfg: Config, lpns: int | None = None, stream: int = 0) -> None:
    """Write the first ``lpns`` logical pages of a stream (default: all) once in order, without
    simulated time or erases. Raises InputError if these pages or their translation pages do not fit
    on flash.
    """
    zone = arrays.zone[stream]
    count = int(zone.last_lpn - zone.first_lpn) if lpns is None else lpns
    without = write_frontier.fill(arrays.handle(), 0, int(zone.first_lpn), count, stream)
    if without:
        raise InputError(
            f"precondition: {without} of {count} logical pages do not fit on flash with "
            f"ftl.over_provisioning={cfg.ftl.over_provisioning}; use a larger value"
        )
    whole_pages(arrays, slice(int(zone.first_lpn), int(zone.first_lpn) + count))
    _lay_map(arrays, cfg, int(zone.first_lpn), count)


def _lay_map(arrays: Arrays, cfg: Config, lpn: int, count: int) -> None:
    """Write the translation pages of ``count`` logical pages, starting at ``lpn``, if the mapping
    table is stored on flash. Raises InputError if they do not fit on flash.
    """
    if arrays.cfg.map_entries[0]:
        without = cmt.fill_translation_pages(arrays.handle(), 0, lpn, count)
        if without:
            raise InputError(
                f"precondition: {without} translation pages do not fit on flash with "
                f"ftl.over_provisioning={cfg.ftl.over_provisioning}; use a larger value"
            )


def whole_pages(arrays: Arrays, lpns: slice | np.ndarray) -> None:
    """Mark all sectors of logical pages ``lpns`` as written if the drive has sector masks."""
    cfg = arrays.cfg[0]
    if cfg.partial:
        sectors = int(cfg.page_bytes) // SECTOR_BYTES
        arrays.sectors[0, lpns] = -1 if sectors >= 64 else (1 << sectors) - 1


def make_plan(arrays: Arrays, cfg: Config, regions: Sequence[Region] = UNIFORM) -> Plan:
    """Return the parameters of the steady state (Plan, plan.py) of the drive with writes to
    ``regions``.

    Raises InputError if the victim policy is user-defined, because the untimed simulation supports
    only the built-in policies.
    """
    geometry, ftl = Geometry.of(cfg), cfg.ftl
    if ftl.gc_policy not in untimed_ftl.POLICIES:
        raise InputError(
            f"--precondition steady does not support ftl.gc_policy = {ftl.gc_policy!r}; use one of "
            f"{', '.join(untimed_ftl.POLICIES)}, or --precondition fill (any policy)"
        )
    ahead = ftl.open_blocks == "ahead"
    low = int(arrays.cfg.gc_low[0])
    return Plan(
        units=geometry.units,
        blocks=geometry.blocks,
        unit_pages=geometry.block_pages,
        # The engine checks the threshold when a block fills: with "ahead" the next block is open
        # already, otherwise it will take one more free block.
        low=low if ahead else max(low - 1, 1),
        stride=geometry.all_blocks * geometry.block_pages,
        align=int(arrays.cfg.stripe[0]),
        policy=ftl.gc_policy,
        choices=max(geometry.blocks.bit_length() - 1, 1),
        spare_parts=int(arrays.cfg.spare_parts[0]),
        level_wear=ftl.wear_dynamic,
        regions=tuple(regions),
        unit_of=unit_table(arrays, 0),
        excluded=(_state(arrays, geometry) == page_map.BAD)
        | (np.arange(geometry.blocks) >= geometry.native_blocks),
    )


def unit_table(arrays: Arrays, stream: int) -> np.ndarray | None:
    """Return the table of the units (dies or planes) that hold the logical pages of a stream,
    int[n], or None if allocation is not static. Page p of the stream's zone (address range) is in
    unit table[p modulo n].
    """
    cfg, zone = arrays.cfg[0], arrays.zone[stream]
    if not cfg.static:
        return None
    turn = arrays.turn[int(zone.turn) : int(zone.turn) + int(zone.units)]
    return np.repeat(turn, int(cfg.together))


def set_steady_state(
    arrays: Arrays,
    cfg: Config,
    *,
    regions: Sequence[Region] = UNIFORM,
    sequential: bool = False,
    footprint: tuple[int, int] | None = None,
    seed: int = 0,
) -> Steady:
    """Put the drive into the steady state that results from overwriting the ``regions`` of the
    footprint.

    ``footprint``: (first page, last page + 1), by default all pages; ``sequential``: overwrite in
    order, otherwise at random. Garbage collection is assumed to keep up with the writes. If it does
    not keep up in a busy drive, the WAF of that drive is lower until the drive is idle. Host writes
    use the frontier of stream 0. Raises InputError as make_plan() does, and if the pages do not fit
    on flash.
    """
    wanted = replace(make_plan(arrays, cfg, regions), sequential=sequential)
    lpns = int(arrays.cfg.lpns[0])
    state = steady_state.steady(
        arrays.l2p[0, :lpns], arrays.p2l[0], wanted, footprint=footprint, seed=seed
    )
    copy_to_drive(arrays, cfg, state)
    lo, hi = footprint or (0, lpns)
    arrays.dev.mapped[0] = hi - lo
    whole_pages(arrays, slice(lo, hi))
    _lay_map(arrays, cfg, lo, hi - lo)
    return state


def copy_to_drive(arrays: Arrays, cfg: Config, steady: Steady) -> None:
    """Copy the blocks, free rings and write frontiers of a steady state to the drive."""
    geometry, table = Geometry.of(cfg), arrays.cfg[0]
    shape = (geometry.units, geometry.all_blocks)
    arrays.valid.reshape(shape)[:, : geometry.blocks] = steady.valid
    block = arrays.block.reshape(shape)[:, : geometry.blocks]
    states = np.array([page_map.FREE, page_map.OPEN, page_map.FULL, page_map.BAD], np.int32)
    block["state"] = np.where(
        np.arange(geometry.blocks) < geometry.native_blocks,
        states[steady.state],
        block["state"],
    )
    used = (steady.state == steady_state.OPEN) | (steady.state == steady_state.FULL)
    block["stream"] = np.where(used, 0, -1)
    block["erases"] = steady.erases
    # Where blocks are erased when they are opened, all blocks but the open ones still need an
    # erase.
    block["dirty"] = used if table.erase_collected else True
    age = np.where(steady.state == steady_state.FULL, steady.clock[:, None] - steady.filled, 0)
    oldest = int(age.max())
    block["filled"] = oldest - age
    block["written"] = -age * block_ps(cfg, geometry)
    arrays.dev.filled[0] = oldest + 1
    fronts = arrays.front
    for at, stream in enumerate((0, int(table.collected))):
        fronts["block"][stream, : geometry.units] = steady.front_block[at]
        fronts["next"][stream, : geometry.units] = steady.front_next[at]
        open_ = np.flatnonzero(steady.front_block[at] >= 0)
        block["stream"][open_, steady.front_block[at][open_]] = stream
    free = arrays.free
    free[: geometry.units] = np.maximum(steady.free, 0)
    arrays.pool["free_head"][: geometry.units] = 0
    arrays.pool["free_n"][: geometry.units] = steady.free_n
    if table.wear_dynamic:
        _order_by_wear(free, steady)
    if table.open_ahead:
        open_ahead(arrays, geometry, (0, int(table.collected)))


def block_ps(cfg: Config, die: Geometry) -> int:
    """Return the time that a unit needs to fill a block if it programs without a pause (ps).
    ``die``: geometry of the drive."""
    return die.pages * cfg.flash.t_program_ps


def _order_by_wear(free: np.ndarray, steady: Steady) -> None:
    """Sort the free rings by erase count. Blocks with equal counts keep their order (by age)."""
    for unit, count in enumerate(steady.free_n):
        ring = steady.free[unit, :count]
        free[unit, :count] = ring[np.argsort(steady.erases[unit, ring], kind="stable")]


def open_ahead(arrays: Arrays, die: Geometry, streams: Sequence[int]) -> None:
    """Open a block for each write frontier of ``streams`` that has no open block, if the frontier's
    unit has a free block."""
    for unit in range(die.units):
        for stream in streams:
            if arrays.front["block"][stream, unit] < 0 and arrays.pool["free_n"][unit] > 0:
                block_manager.open_block(arrays.handle(), 0, unit, stream)


def _state(arrays: Arrays, die: Geometry) -> np.ndarray:
    """Return the states of the conventional blocks, int32[units, blocks]."""
    return arrays.block["state"].reshape(die.units, die.all_blocks)[:, : die.blocks]
