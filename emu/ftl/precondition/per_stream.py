"""Preconditioning of drives in which only some pages contain data, with separate blocks per stream.

Owns the distribution of free blocks to streams and the steady state of each stream on its blocks.
Does not own the selection of the pages (replay/mqsim/initial_occupancy.py) or the state of a whole
drive (apply.py).
Source: MQSim, in which each block contains pages of one flow only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import page_map
from ondie.emu.ftl.precondition import steady_state
from ondie.emu.ftl.precondition.apply import (
    UNIFORM,
    block_ps,
    make_plan,
    open_ahead,
    unit_table,
    whole_pages,
)
from ondie.emu.ftl.precondition.steady_state import Region, Steady
from ondie.emu.nand.geometry import Geometry


@dataclass(frozen=True)
class Occupied:
    """Pages of a stream's zone that contain data, and the frequency of writes to them.

    ``lpns``: int64[n], counted from the start of the zone, ascending. ``regions``: consecutive
    sections of ``lpns``, each with its fraction of the writes. ``sequential``: True if writes are
    in order.
    """

    lpns: np.ndarray
    regions: tuple[Region, ...] = UNIFORM
    sequential: bool = False


def occupy(
    arrays: Arrays, cfg: Config, streams: Sequence[Occupied], free: int, *, seed: int = 0
) -> None:
    """Set the pages of each stream, on separate blocks, to the steady state that results from
    overwriting them.

    The free blocks of a unit are divided among the streams in proportion to the pages that each
    stream has on the unit. ``free``: number of blocks of a unit that are free in the steady state.
    Requires static allocation, garbage collection that moves pages within their stream, and an
    unwritten drive. Erase counts stay 0. Raises InputError as make_plan() does, and if the pages do
    not fit on the drive.
    """
    geometry = Geometry.of(cfg)
    counts = np.array([_by_unit(arrays, geometry, i, one) for i, one in enumerate(streams)])
    dealt = _deal(arrays, geometry, counts)
    rings: list[list[np.ndarray]] = [[] for _ in range(geometry.units)]
    for i, one in enumerate(streams):
        if len(one.lpns):
            _occupy_one(arrays, cfg, i, one, dealt[i], free, rings, (seed, i))
    for unit, parts in enumerate(rings):
        ring = np.concatenate(
            [*parts, *(dealt[i][unit] for i in np.flatnonzero(counts[:, unit] == 0))]
        )
        arrays.free[unit, : len(ring)] = ring
        arrays.pool["free_head"][unit], arrays.pool["free_n"][unit] = 0, len(ring)
    if arrays.cfg[0].open_ahead:
        table = arrays.cfg[0]
        every = [x for i in range(len(streams)) for x in (i, int(table.collected) + i)]
        open_ahead(arrays, geometry, every)


def _by_unit(arrays: Arrays, die: Geometry, stream: int, one: Occupied) -> np.ndarray:
    """Return the number of pages that contain data in the zone of a stream, for each unit,
    int64[units]."""
    table = unit_table(arrays, stream)
    assert table is not None
    return np.bincount(table[one.lpns % len(table)], minlength=die.units)


def _deal(arrays: Arrays, die: Geometry, counts: np.ndarray) -> list[list[np.ndarray]]:
    """Divide the free blocks of each unit among the streams, in proportion to the pages that each
    stream has on the unit. Return arrays of block numbers, indexed by stream and unit.

    ``counts``: int64[streams, units], pages of each stream on each unit.
    """
    dealt: list[list[np.ndarray]] = [[] for _ in counts]
    for unit in range(die.units):
        pool = arrays.pool[unit]
        at = (int(pool.free_head) + np.arange(int(pool.free_n))) % die.blocks
        ring = arrays.free[unit, at].copy()
        edges = np.concatenate([[0], np.cumsum(counts[:, unit])]) / max(counts[:, unit].sum(), 1)
        cuts = np.rint(edges * len(ring)).astype(np.int64)
        cuts[-1] = len(ring)
        for i in range(len(counts)):
            dealt[i].append(ring[cuts[i] : cuts[i + 1]])
    return dealt


def _occupy_one(
    arrays: Arrays,
    cfg: Config,
    stream: int,
    one: Occupied,
    dealt: Sequence[np.ndarray],
    free: int,
    rings: list[list[np.ndarray]],
    seed: tuple[int, int],
) -> None:
    """Write the pages of stream ``stream`` to the free blocks assigned to it (``dealt``, by unit)
    and to its two open blocks, without simulated time. Append the blocks that stay free to
    ``rings``, by unit.
    """
    geometry, own = Geometry.of(cfg), arrays.cfg[0]
    table = unit_table(arrays, stream)
    assert table is not None
    units = np.unique(table)
    pitch = geometry.all_blocks * geometry.block_pages
    fronts = (stream, int(own.collected) + stream)
    usable = np.zeros((len(units), geometry.blocks), bool)
    for at, unit in enumerate(units):
        usable[at, dealt[unit]] = True
        usable[at, arrays.front["block"][list(fronts), unit]] = True
    share = usable.sum() / usable.size
    wanted = replace(
        make_plan(arrays, cfg, one.regions),
        units=len(units),
        low=max(round((free - 1) * share), 1),
        sequential=one.sequential,
        unit_of=np.searchsorted(units, table[one.lpns % len(table)]),
        excluded=~usable,
    )
    width = arrays.l2p.dtype
    l2p, p2l = np.zeros(len(one.lpns), width), np.zeros(len(units) * pitch, width)
    number = int(np.random.default_rng(seed).integers(1 << 62))
    state = steady_state.steady(l2p, p2l, wanted, seed=number)
    ppn = l2p.astype(np.int64) - 1
    ppn += (units[ppn // pitch] - ppn // pitch) * pitch
    lpns = one.lpns + int(arrays.zone["first_lpn"][stream])
    arrays.l2p[0, lpns], arrays.p2l[0, ppn] = ppn + 1, lpns + 1
    arrays.dev.mapped[0] += len(lpns)
    whole_pages(arrays, lpns)
    _blocks_of(arrays, cfg, state, units, usable, fronts)
    for at, unit in enumerate(units):
        rings[unit].append(state.free[at, : state.free_n[at]])


def _blocks_of(
    arrays: Arrays,
    cfg: Config,
    steady: Steady,
    units: np.ndarray,
    usable: np.ndarray,
    fronts: tuple[int, int],
) -> None:
    """Copy a steady state to the blocks ``usable`` (bool[units, blocks]) of the units ``units``.

    Also set the two write frontiers of each unit. ``fronts``: streams of the two frontiers: for
    host writes and for collected pages.
    """
    geometry = Geometry.of(cfg)
    states = np.array([page_map.FREE, page_map.OPEN, page_map.FULL], np.int32)
    age = np.where(steady.state == steady_state.FULL, steady.clock[:, None] - steady.filled, 0)
    oldest = int(age.max())
    arrays.dev.filled[0] = max(int(arrays.dev.filled[0]), oldest + 1)
    for at, unit in enumerate(units):
        mine = np.flatnonzero(usable[at])
        block = arrays.block[
            unit * geometry.all_blocks : unit * geometry.all_blocks + geometry.blocks
        ]
        arrays.valid[unit * geometry.all_blocks + mine] = steady.valid[at, mine]
        state = steady.state[at, mine]
        block["state"][mine] = states[state]
        block["stream"][mine] = np.where(state == steady_state.FREE, -1, fronts[0])
        block["dirty"][mine] = state != steady_state.FREE
        block["filled"][mine] = oldest - age[at, mine]
        block["written"][mine] = -age[at, mine] * block_ps(cfg, geometry)
        for which, stream in enumerate(fronts):
            open_ = int(steady.front_block[which, at])
            arrays.front["block"][stream, unit] = open_
            arrays.front["next"][stream, unit] = steady.front_next[which, at]
            if open_ >= 0:
                block["stream"][open_] = stream
