"""Levelling: which stripes go to other dies, so that the dies' reservoirs wear alike.

Owns the decision, and the rows that carry it out. Does not own wear inside a die, where planes
change roles (backend/reservoir.py), nor the pages themselves.
Source: own. Every super-page is written once in every step, so that a die wears by the number of
its super-pages over that of its good blocks. Dies that hold one more than others, or have more bad
blocks, wear faster; to exchange super-pages would change nothing. So one moves, from the die worn
more to that worn less, once their blocks' mean cycles differ by more than the threshold, as long as
the difference would go on growing; where it would stay, only if no die gets more than the fullest
has, for which all others would wait in every step. Then it is the other's turn to wear faster.

The way is that of a controller: array, channel, DRAM, channel, array, while the accelerator works
on the step's gradients. The old version stays until the new one is programmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ondie.emu.compute import pe
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.nand import timing
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.base import LEVELLING, UPDATE, Rows
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.statement import Share

if TYPE_CHECKING:
    from ondie.emu.paths.on_die.path import OnDie


@dataclass(frozen=True)
class Dies:
    """Dies of a device as the decision sees them, an element each."""

    cycles: np.ndarray
    """Mean erases of the good blocks of their reservoirs, all planes, float64."""
    places: np.ndarray
    """Super-pages that their good blocks have, int64."""
    room: np.ndarray
    """Super-pages that they may hold, int64."""


def decide(held: np.ndarray, dies: Dies, threshold: float) -> list[tuple[int, int]]:
    """(from, to) of each super-page that is to move; ``held`` int64[dies] by each die now. No die
    both gives and takes."""
    before, held = held, held.copy()
    by_wear = np.lexsort((held / dies.places, dies.cycles))
    again = True
    while again:  # who gives to one may have taken from another
        again = False
        for worn in by_wear[::-1]:
            for fresh in by_wear:
                if dies.cycles[worn] - dies.cycles[fresh] <= threshold:
                    break
                while _gives(held, dies, int(worn), int(fresh)):
                    held[worn] -= 1
                    held[fresh] += 1
                    again = True
    more = (held - before)[by_wear]
    giving = np.repeat(by_wear[::-1], np.maximum(-more, 0)[::-1])
    taking = np.repeat(by_wear, np.maximum(more, 0))
    return list(zip(giving.tolist(), taking.tolist(), strict=True))


def _gives(held: np.ndarray, dies: Dies, worn: int, fresh: int) -> bool:
    """Is a super-page better on the die that is less worn?"""
    if not held[worn] or held[fresh] >= dies.room[fresh]:
        return False
    ours, theirs = held[worn] * dies.places[fresh], held[fresh] * dies.places[worn]
    return bool(ours > theirs or (ours == theirs and held[fresh] < held.max()))


def carry_out(homes: Homes, moves: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(super-page left, super-page got) of the last stripe of each die that gives one away. As no
    die both gives and takes, what one leaves is not what another gets before it has left."""
    for worn, fresh in moves:
        last = homes.by_die()[worn][-1]
        yield homes.move(homes.stripe(int(last)), fresh)


def plan(path: OnDie, out: Rows, after: int) -> int:
    """Rows of the stripes that go to dies less worn, from now on. Returns the row that the update
    waits for: all have landed, and ``after`` is done."""
    if not path.migrates:
        return after
    assert path.drives is not None
    g, threshold = path.geometry, path.cfg.ftl.reservoir_migrate
    worn = wear(path.drives.arrays.worn, path.good_blocks, g).reshape(-1, g.dies)
    if np.ptp(worn, axis=1).max() <= threshold:
        return after
    places = path.good_blocks.sum(axis=1).reshape(-1, g.dies) * g.pages
    landed: list[int] = []
    for dev, (s, homes) in enumerate(zip(path.stripes, path.homes, strict=True)):
        # Beside the block that is entered next, one for what comes between a die's stripes.
        room = np.minimum(places[dev] - 2 * g.pages, path.super_pages // g.dies)
        moves = decide(homes.held(), Dies(worn[dev], places[dev], room), threshold)
        size, ecc_ps = s.planes * g.page_bytes, pe.ecc_ps(path.cfg, s.planes)
        landed += _rows(out, s.shard.device, carry_out(homes, moves), size, ecc_ps)
    if not landed:
        return after
    every = out.join(np.array(landed), LEVELLING)
    return out.one(resource=rows.JOIN, phase=UPDATE, after0=after, after1=every)


def _rows(
    out: Rows,
    device: int,
    moves: Iterator[tuple[int, int]],
    stripe_bytes: int,
    ecc_ps: int,
) -> list[int]:
    """Rows of the moves: read into DRAM, programmed from there. Returns the last row of each."""
    common = {"device": device, "resource": rows.DIE, "phase": LEVELLING, "array_ps": ecc_ps}
    landed = []
    for source, target in moves:
        lift = out.one(**common, kind=timing.LIFT, lpn=source, bytes_out=stripe_bytes)
        landed.append(
            out.one(
                **common, kind=timing.LAND, lpn=target, tag=source, bytes_in=stripe_bytes,
                after0=lift,
            )
        )  # fmt: skip
    return landed


def wear(worn: np.ndarray, good: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Mean erases of each die's good blocks: ``worn`` int32[dies x blocks, planes], ``good``
    bool[dies, blocks]."""
    erases = worn.reshape(*good.shape, geometry.planes).sum(axis=2)
    return np.asarray((erases * good).sum(axis=1) / (good.sum(axis=1) * geometry.planes))


def share(path: OnDie, steps: int) -> Share:
    """How the programs of the path's first ``steps`` steps fall on the reservoirs' blocks."""
    g, s = path.geometry, path.stripes[0]
    applied = path.applied(steps) / steps
    programs = np.zeros((len(path.stripes), g.dies))
    for dev, (homes, guarded) in enumerate(zip(path.homes, path.guarded, strict=True)):
        programs[dev] = homes.held() + guarded.commits
        programs[dev] += np.bincount(guarded.parity % g.dies, minlength=g.dies)
    used = s.planes + s.groups * s.kept
    return Share(
        planes=g.planes,
        used=used,
        programs=tuple((programs.ravel() * applied).tolist()),
        places=tuple((path.good_blocks.sum(axis=1) * g.pages).tolist()),
        rotate=path.cfg.ftl.reservoir_rotate if used < g.planes else 0,
        migrate=path.cfg.ftl.reservoir_migrate if path.migrates else 0,
        turn_s=float(programs.max()) * s.planes * pe.register_move_ps(path.cfg) / 1e12,
    )
