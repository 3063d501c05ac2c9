"""Wear leveling between dies: moves stripes so that the dies' reservoirs wear evenly.

Owns the choice of the moves, and their plan rows. Does not own wear inside a die, where planes
change roles (ftl/reservoir.py), or the bytes of the pages.
Source: this project. Every super-page is written once per step, so the wear of a die per step is
its number of super-pages divided by its number of good blocks. Dies with one more super-page than
other dies, or with more bad blocks, wear faster. An exchange of super-pages between dies has no
effect. A super-page therefore moves from the more worn to the less worn die when the mean P/E
cycles of their blocks differ by more than the threshold and the difference would grow. If the
difference would stay constant, the super-page moves only if no die gets more super-pages than the
fullest die has, because all dies wait for the fullest die in every step.

Path of a move: array, channel, DRAM, channel, array, while the accelerator computes the step's
gradients. The old copy of the super-page stays until the new copy is programmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.compute import pe
from ondie.emu.engine.core import plan_rows
from ondie.emu.nand import timing
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.base import LEVELLING, UPDATE, Rows
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die.devices import Devices
from ondie.emu.paths.statement import Share


@dataclass(frozen=True)
class Dies:
    """Wear and capacity of the dies of one device, from which the moves of super-pages are chosen.
    Arrays have one element per die."""

    cycles: np.ndarray
    """Mean number of erases of the good blocks of each die's reservoir, over all planes,
    float64[dies]."""
    places: np.ndarray
    """Number of super-pages that fit in the good blocks of each die's reservoir, int64[dies]."""
    room: np.ndarray
    """Maximum number of super-pages that each die may hold, int64[dies]."""


def decide(held: np.ndarray, dies: Dies, threshold: float) -> list[tuple[int, int]]:
    """Return (source die, target die) of each super-page to move. ``held``: number of super-pages
    on each die, int64[dies]. ``threshold``: difference of mean erases above which super-pages move.
    A die is never both source and target."""
    before, held = held, held.copy()
    by_wear = np.lexsort((held / dies.places, dies.cycles))
    again = True
    while again:  # a source die may have received super-pages
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
    """Return True if a super-page should move from die ``worn`` to the less worn die ``fresh``."""
    if not held[worn] or held[fresh] >= dies.room[fresh]:
        return False
    ours, theirs = held[worn] * dies.places[fresh], held[fresh] * dies.places[worn]
    return bool(ours > theirs or (ours == theirs and held[fresh] < held.max()))


def carry_out(homes: Homes, moves: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Update ``homes`` for each move: the last stripe of the source die moves to the target die.
    Yield (old super-page, new super-page). A die must not be both source and target, so that a
    super-page is not reused before its stripe has left it."""
    for worn, fresh in moves:
        last = homes.by_die()[worn][-1]
        yield homes.move(homes.stripe(int(last)), fresh)


def plan(devices: Devices, worn: np.ndarray, super_pages: int, out: Rows, after: int) -> int:
    """Add the plan rows of the moves to less worn dies. Return the id of the row that the update
    waits for. This row completes when all moves and the row with id ``after`` are complete.

    ``worn``: erase counts of each block, int32[dies x blocks, planes]; ``super_pages``: number of
    logical super-pages of a device, including unmapped super-pages.
    """
    geometry, threshold = devices.geometry, devices.cfg.ftl.reservoir_migrate
    cycles = wear(worn, devices.good_blocks, geometry).reshape(-1, geometry.dies)
    if np.ptp(cycles, axis=1).max() <= threshold:
        return after
    places = devices.good_blocks.sum(axis=1).reshape(-1, geometry.dies) * geometry.pages
    programs: list[int] = []
    for dev, (stripes, homes) in enumerate(zip(devices.stripes, devices.homes, strict=True)):
        # Reserve two blocks: the next to open, and one for programs between a die's stripes.
        room = np.minimum(places[dev] - 2 * geometry.pages, super_pages // geometry.dies)
        moves = decide(homes.held(), Dies(cycles[dev], places[dev], room), threshold)
        size = stripes.planes * geometry.flash_page_bytes
        ecc_ps = pe.ecc_ps(devices.cfg, stripes.planes)
        programs += _rows(out, stripes.shard.device, carry_out(homes, moves), size, ecc_ps)
    if not programs:
        return after
    moved = out.join(np.array(programs), LEVELLING)
    return out.one(resource=plan_rows.JOIN, phase=UPDATE, after0=after, after1=moved)


def _rows(
    out: Rows,
    device: int,
    moves: Iterator[tuple[int, int]],
    stripe_bytes: int,
    ecc_ps: int,
) -> list[int]:
    """Add the plan rows of the moves: each super-page is read into DRAM and programmed from
    there. Return the id of each move's last row."""
    common = {"device": device, "resource": plan_rows.DIE, "phase": LEVELLING, "array_ps": ecc_ps}
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
    """Return the mean number of erases of each die's good blocks, float64[dies]. ``worn``: erase
    counts of each block, int32[dies x blocks, planes]; ``good``: mask of good blocks, bool[dies,
    blocks]."""
    erases = worn.reshape(*good.shape, geometry.planes).sum(axis=2)
    return np.asarray((erases * good).sum(axis=1) / (good.sum(axis=1) * geometry.planes))


def share(devices: Devices, applied: float, migrates: bool) -> Share:
    """Return the distribution of a step's super-page programs over the blocks of the reservoirs.

    ``applied``: fraction of the steps that update the weights; ``migrates``: True if stripes may
    move between dies.
    """
    cfg, geometry, stripes = devices.cfg, devices.geometry, devices.stripes[0]
    programs = np.zeros((len(devices.stripes), geometry.dies))
    for dev, (homes, guarded) in enumerate(zip(devices.homes, devices.guarded, strict=True)):
        programs[dev] = homes.held() + guarded.commits
        programs[dev] += np.bincount(guarded.parity % geometry.dies, minlength=geometry.dies)
    used = stripes.planes + stripes.groups * stripes.kept
    return Share(
        planes=geometry.planes,
        used=used,
        programs=tuple((programs.ravel() * applied).tolist()),
        places=tuple((devices.good_blocks.sum(axis=1) * geometry.pages).tolist()),
        rotate=cfg.ftl.reservoir_rotate if used < geometry.planes else 0,
        migrate=cfg.ftl.reservoir_migrate if migrates else 0,
        turn_s=float(programs.max()) * stripes.planes * pe.register_move_ps(cfg) / 1e12,
    )
