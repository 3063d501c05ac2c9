"""Preconditioning: puts a newly built drive into the state of a used drive.

Owns the conversion of a steady state or of a sequential fill into the mapping tables, blocks, free
rings and write frontiers of a drive. Does not own the computation of a steady state
(steady_state.py) or drives of which only some pages hold data (per_stream.py).
Source: SNIA, Solid State Storage Performance Test Specification: a drive filled once, or written
until nothing changes any more. Block ages are counted at the full program rate of a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import cmt
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl.precondition import steady_state as steady
from ondie.emu.ftl.precondition import untimed_ftl as untimed
from ondie.emu.ftl.precondition.steady_state import Plan, Region, Steady
from ondie.emu.nand.geometry import Geometry
from ondie.emu.units import InputError

KINDS = ("none", "fill", "steady")
SECTOR = 512
UNIFORM = (Region(1.0, 1.0),)


def precondition(arrays: Arrays, cfg: Config, kind: str, *, seed: int = 0) -> Steady | None:
    """Put a stand-alone drive (device 0), which has seen no command, into the state ``kind``
    (KINDS).

    "fill" writes all logical pages once in order; "steady" is steady_state() of uniform writes,
    whose Steady is returned. Raises InputError for an unknown kind or a drive without room.
    """
    if kind == "steady":
        return steady_state(arrays, cfg, seed=seed)
    if kind == "fill":
        fill(arrays, cfg)
    elif kind != "none":
        raise InputError(f"precondition {kind!r}: one of {', '.join(KINDS)} is right")
    return None


def fill(arrays: Arrays, cfg: Config, lpns: int | None = None, stream: int = 0) -> None:
    """Write the first ``lpns`` logical pages of a stream (default: all) once in order, in no time
    and without an erase. Raises InputError for a drive without room."""
    zone = arrays.zone[stream]
    n = int(zone.last_lpn - zone.first_lpn) if lpns is None else lpns
    without = mapping.fill(arrays.handle(), 0, int(zone.first_lpn), n, stream)
    if without:
        raise InputError(
            f"precondition: {without} of {n} logical pages find no place: "
            f"ftl.over_provisioning={cfg.ftl.over_provisioning} is too small"
        )
    whole_pages(arrays, slice(int(zone.first_lpn), int(zone.first_lpn) + n))
    _lay_map(arrays, cfg, int(zone.first_lpn), n)


def _lay_map(arrays: Arrays, cfg: Config, lpn: int, n: int) -> None:
    """Place the translation pages of these pages if part of the mapping table is on flash. Raises
    InputError for a drive without room."""
    if arrays.cfg.map_entries[0]:
        without = cmt.lay(arrays.handle(), 0, lpn, n)
        if without:
            raise InputError(
                f"precondition: {without} translation pages find no place: "
                f"ftl.over_provisioning={cfg.ftl.over_provisioning} is too small"
            )


def whole_pages(arrays: Arrays, lpns: slice | np.ndarray) -> None:
    """Mark all sectors of these pages as written, where sector masks are kept."""
    c = arrays.cfg[0]
    if c.partial:
        sectors = int(c.page_bytes) // SECTOR
        arrays.sectors[0, lpns] = -1 if sectors >= 64 else (1 << sectors) - 1


def plan(arrays: Arrays, cfg: Config, regions: Sequence[Region] = UNIFORM) -> Plan:
    """Return the Plan of the drive and of the writes to it, for steady_state.py.

    Raises InputError for a user-defined victim policy: the untimed simulation has only the built-in
    policies.
    """
    g, ftl = Geometry.of(cfg), cfg.ftl
    if ftl.gc_policy not in untimed.POLICIES:
        raise InputError(
            f"precondition steady: ftl.gc_policy {ftl.gc_policy!r}: "
            f"{', '.join(untimed.POLICIES)} are known; --precondition fill is possible with any"
        )
    ahead = ftl.open_blocks == "ahead"
    low = int(arrays.cfg.gc_low[0])
    return Plan(
        units=g.units,
        blocks=g.blocks,
        unit_pages=g.block_pages,
        # The engine checks the threshold when a block fills: with "ahead" the next block is open
        # already, otherwise it will take one more free block.
        low=low if ahead else max(low - 1, 1),
        stride=g.all_blocks * g.block_pages,
        align=int(arrays.cfg.stripe[0]),
        policy=ftl.gc_policy,
        choices=max(g.blocks.bit_length() - 1, 1),
        spare_parts=int(arrays.cfg.spare_parts[0]),
        level_wear=ftl.wear_dynamic,
        regions=tuple(regions),
        unit_of=unit_table(arrays, 0),
        excluded=(_state(arrays, g) == mapping.BAD) | (np.arange(g.blocks) >= g.native_blocks),
    )


def unit_table(arrays: Arrays, stream: int) -> np.ndarray | None:
    """Return the unit of each page of a stream by page number within the zone (modulo the length),
    or None where allocation is not static."""
    c, zone = arrays.cfg[0], arrays.zone[stream]
    if not c.static:
        return None
    turn = arrays.turn[int(zone.turn) : int(zone.turn) + int(zone.units)]
    return np.repeat(turn, int(c.together))


def steady_state(
    arrays: Arrays,
    cfg: Config,
    *,
    regions: Sequence[Region] = UNIFORM,
    sequential: bool = False,
    footprint: tuple[int, int] | None = None,
    seed: int = 0,
) -> Steady:
    """Put the drive into the state after overwriting the ``regions`` of the footprint until steady
    state.

    ``footprint``: (first page, page behind the last), by default all pages; ``sequential``:
    overwrite in order, otherwise at random. Garbage collection is assumed to keep up with the
    writes; a busy drive that is short of free blocks has a lower WAF until it is idle. Host writes
    use the frontier of stream 0. Raises InputError as plan() does, and for a drive without room.
    """
    wanted = replace(plan(arrays, cfg, regions), sequential=sequential)
    lpns = int(arrays.cfg.lpns[0])
    s = steady.steady(arrays.l2p[0, :lpns], arrays.p2l[0], wanted, footprint=footprint, seed=seed)
    put(arrays, cfg, s)
    lo, hi = footprint or (0, lpns)
    arrays.dev.mapped[0] = hi - lo
    whole_pages(arrays, slice(lo, hi))
    _lay_map(arrays, cfg, lo, hi - lo)
    return s


def put(arrays: Arrays, cfg: Config, s: Steady) -> None:
    """Copy the blocks, free rings and write frontiers of a steady state to the drive."""
    g, c = Geometry.of(cfg), arrays.cfg[0]
    shape = (g.units, g.all_blocks)
    arrays.valid.reshape(shape)[:, : g.blocks] = s.valid
    block = arrays.block.reshape(shape)[:, : g.blocks]
    states = np.array([mapping.FREE, mapping.OPEN, mapping.FULL, mapping.BAD], np.int32)
    block["state"] = np.where(
        np.arange(g.blocks) < g.native_blocks, states[s.state], block["state"]
    )
    used = (s.state == steady.OPEN) | (s.state == steady.FULL)
    block["stream"] = np.where(used, 0, -1)
    block["erases"] = s.erases
    # Where blocks are erased when they are opened, all blocks but the open ones still need an
    # erase.
    block["dirty"] = used if c.erase_collected else True
    age = np.where(s.state == steady.FULL, s.clock[:, None] - s.filled, 0)
    oldest = int(age.max())
    block["filled"] = oldest - age
    block["written"] = -age * block_ps(cfg, g)
    arrays.dev.filled[0] = oldest + 1
    fronts = arrays.front
    for at, stream in enumerate((0, int(c.collected))):
        fronts["block"][stream, : g.units] = s.front_block[at]
        fronts["next"][stream, : g.units] = s.front_next[at]
        open_ = np.flatnonzero(s.front_block[at] >= 0)
        block["stream"][open_, s.front_block[at][open_]] = stream
    free = arrays.free
    free[: g.units] = np.maximum(s.free, 0)
    arrays.pool["free_head"][: g.units] = 0
    arrays.pool["free_n"][: g.units] = s.free_n
    if c.wear_dynamic:
        _order_by_wear(free, s)
    if c.open_ahead:
        open_ahead(arrays, g, (0, int(c.collected)))


def block_ps(cfg: Config, g: Geometry) -> int:
    """Return the time between two block fills of a unit that programs without a pause (ps)."""
    return g.pages * cfg.flash.t_program_ps


def _order_by_wear(free: np.ndarray, s: Steady) -> None:
    """Sort the free rings by erase count; blocks with equal counts keep their order (by age)."""
    for u, n in enumerate(s.free_n):
        ring = s.free[u, :n]
        free[u, :n] = ring[np.argsort(s.erases[u, ring], kind="stable")]


def open_ahead(arrays: Arrays, g: Geometry, streams: Sequence[int]) -> None:
    """Open the next block of each frontier whose last block is full."""
    for u in range(g.units):
        for stream in streams:
            if arrays.front["block"][stream, u] < 0 and arrays.pool["free_n"][u] > 0:
                mapping.open_block(arrays.handle(), 0, u, stream)


def _state(arrays: Arrays, g: Geometry) -> np.ndarray:
    """Return the states of the conventional blocks, int32[units, blocks]."""
    return arrays.block["state"].reshape(g.units, g.all_blocks)[:, : g.blocks]
