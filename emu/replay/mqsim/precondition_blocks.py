"""Blocks of a preconditioned drive: number of valid pages per block, and placement of the pages.

Owns the distribution of valid pages for each victim selection policy and address distribution, and
the placement in each plane. Does not own the selection of a flow's pages (precondition_draws.py).
Source: MQSim's preconditioning; B. Van Houdt, SIGMETRICS 2013 (mean-field model of d-choices,
random choice in closed form). Greedy selection is modeled as d-choices with d = 30. The
distribution for hot and cold addresses is modeled as the uniform distribution stretched about its
mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import page_map
from ondie.emu.nand.geometry import Geometry

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
GREEDY_CHOICES = 30
STEP, CLOSE, STEPS = 1e-3, 1e-10, 10_000


def uniform(policy: str, pages: int, blocks: int, fill: float, low: int, most: float) -> F64 | None:
    """Return the fraction of blocks with 0 to ``pages`` valid pages under uniform writes,
    float64[pages + 1], or None if the closed form of RANDOM_PP has no solution.

    ``fill``: valid pages / all pages of a plane. ``low``: number of free blocks at which collection
    starts. ``most``: largest occupancy of a flow, 0 to 1, which determines the number of invalid
    pages that RANDOM_PP requires.
    """
    rho = fill / (1 - low / blocks)
    if policy in ("RANDOM", "RANDOM_P"):
        return _random(pages, rho)
    if policy == "RANDOM_PP":
        return _random_some(pages, fill, int(most * pages))
    choices = blocks.bit_length() - 1 if policy == "RGA" else GREEDY_CHOICES
    return _choices(pages, rho, choices)


def _choices(pages: int, rho: float, d: int) -> F64:
    """Return the fraction of blocks by number of valid pages, float64[pages + 1], if collection
    selects the block with the fewest valid pages among ``d`` random blocks.

    Solves the mean-field model by Euler steps of w[i], the fraction of blocks with at least i valid
    pages. ``rho``: valid pages / pages of blocks in use. As in MQSim (Euler_estimation), w[pages]
    is used in the first step only, so that in the result no block has only valid pages.
    """
    numbers = np.arange(pages + 1)
    start = np.array([math.comb(pages, i) * rho**i * (1 - rho) ** (pages - i) for i in numbers])
    w = np.zeros(pages + 2)
    w[: pages + 1] = np.cumsum(start[::-1])[::-1]
    w[0] = 1.0
    i = numbers[1:pages].astype(np.float64)
    for _ in range(STEPS if pages > 1 else 0):
        power = w**d
        rest = pages - power[1 : pages + 1].sum()
        change = STEP * (1 - power[1:pages] - rest * i * (w[1:pages] - w[2 : pages + 1])
                         / (pages * rho))  # fmt: skip
        w[1:pages] += change
        w[pages] = 0.0
        if np.abs(change).max() <= CLOSE:
            break
    return w[:-1] - w[1:]


def _random(pages: int, rho: float) -> F64:
    """Return the fraction of blocks by number of valid pages, float64[pages + 1], if collection
    selects a random block. ``rho``: valid pages / pages of blocks in use."""
    total = np.zeros(pages + 1)
    for i in range(pages + 1):
        j = np.arange(i + 1, pages + 1)
        ways = (1 - rho) * j
        total[i] = rho / (rho + (1 - rho) ** i) * np.prod(ways / (rho + ways))
    return np.diff(total, prepend=0.0)


def _random_some(pages: int, rho: float, least: int) -> F64 | None:
    """Return the fraction of blocks by number of valid pages, float64[pages + 1], if collection
    selects a random block with at least ``least`` invalid pages, or None if the closed form has no
    solution. ``rho``: valid pages / all pages."""
    harmonic = sum(1 / j for j in range(least + 1, pages + 1))
    a = pages - least - pages * harmonic
    b = rho * harmonic + 1 - rho
    root = b * b + 4 * a * rho / pages
    if root < 0 or a == 0:
        return None
    full = (-b + math.sqrt(root)) / (2 * a)
    share = np.zeros(pages + 2)
    share[pages] = full
    for i in range(pages - 1, least, -1):
        share[i] = pages * full / i
    odds = rho / (1 - rho - full * (pages * harmonic - pages + least))
    for i in range(min(least, pages - 1), -1, -1):
        share[i] = (i + 1) * share[i + 1] / (i + odds)
    return share[:-1]


def stretched(share: F64, hot: float) -> F64:
    """Return the fraction of blocks by number of valid pages for hot and cold addresses,
    float64[pages + 1].

    The fraction 1 - ``hot`` of the writes goes to the fraction ``hot`` of the addresses. The result
    is ``share``, the distribution for uniform writes, stretched about its mean.
    """
    pages = len(share) - 1
    ratio = math.sqrt((1 - hot) / hot)
    numbers = np.arange(pages + 1)
    at = ((numbers - (share * numbers).sum()) * ratio).astype(np.int64)
    inside = (at >= 0) & (at < pages)
    wide = np.where(inside, ratio * share[np.where(inside, at, 0)], 0.0)
    return wide / wide.sum()


def in_order(pages: int, rho: float) -> F64:
    """Return the fraction of blocks by number of valid pages, float64[pages + 1], for sequential
    writes: the fraction ``rho`` of the blocks is full, and all other blocks are empty."""
    share = np.zeros(pages + 1)
    share[0], share[pages] = 1 - rho, rho
    return share


def moved_to(share: F64, mean: float) -> F64:
    """Return the distribution ``share`` shifted by whole pages, so that its mean is close to
    ``mean``.

    ``mean``: valid pages / pages of a block. The fraction of full blocks does not change.
    """
    pages = len(share) - 1
    now = float((share * (np.arange(pages + 1) / pages)).sum())
    if abs(now - mean) * pages <= 0.9999:
        return share
    out = share.copy()
    by = int((mean - now) * pages)
    if by > 0:
        out[:by] = 0
        out[by:pages] = share[: pages - by]
    elif by < 0:
        out[: pages + by] = share[-by:pages]
        out[pages + by : pages] = 0
    return out


def blocks_of(share: F64, goal: int, wanted: int) -> I64 | None:
    """Return the number of valid pages of each block, in descending order, int64[blocks], or None
    if the pages do not fit.

    ``goal``: maximum number of blocks. ``share``: fraction of blocks by number of valid pages,
    float64[pages + 1], which the result approximates. ``wanted``: total number of valid pages.
    """
    pages = len(share) - 1
    number = (share * goal).astype(np.int64)
    missing = max(wanted - int((number * np.arange(pages + 1)).sum()), 0)
    out: list[int] = []
    held, left = 0, goal
    valid = pages
    while valid >= 0:
        count = int(number[valid])
        if count > 0 and missing > 0:
            count += -(-missing // valid) if valid else 0
            missing = 0
        count = min(count, left)
        left -= count
        for _ in range(count):
            valid = min(valid, wanted - held)
            out.append(valid)
            held += valid
        valid -= 1
    return np.array(out, np.int64) if held == wanted else None


@dataclass(frozen=True)
class Plane:
    """Pages of a flow in one plane before the run.

    ``stream``: number of the flow. ``unit``: number of the plane. ``lpns``: logical pages, numbered
    from 0 within the flow, ascending. ``valid``: number of valid pages of each block.
    """

    stream: int
    unit: int
    lpns: I64
    valid: I64


def planned(
    arrays: Arrays, cfg: Config, stream: int, lpns: I64, share: F64, part: float
) -> list[Plane] | None:
    """Return the placement of the pages ``lpns`` in the planes of a stream, or None if the pages do
    not fit.

    ``lpns``: int64[n], numbered from 0 within the stream, ascending. ``share``: fraction of blocks
    by number of valid pages, float64[pages + 1]. ``part``: fraction of each plane that belongs to
    the stream.
    """
    geometry = Geometry.of(cfg)
    zone = arrays.zone[stream]
    turn = arrays.turn[int(zone.turn) : int(zone.turn) + int(zone.units)]
    unit = turn[lpns % len(turn)]
    goal = int((geometry.blocks - (cfg.ftl.gc_low_blocks + 1) // 2) * part)
    room = int(part * geometry.blocks * geometry.block_pages)
    out = []
    for each in np.unique(turn):
        mine = lpns[unit == each][:room]
        near = moved_to(share, len(mine) / (goal * geometry.block_pages))
        valid = blocks_of(near, goal, len(mine))
        if valid is None:
            return None
        out.append(Plane(stream, int(each), mine, valid))
    return out


def lay(arrays: Arrays, cfg: Config, plane: Plane) -> None:
    """Place the pages of a plane in the flash arrays, block after block, in descending order of
    logical page number.

    All other pages of each block are invalid. The block after the last filled block becomes the
    open block.
    """
    geometry = Geometry.of(cfg)
    unit, valid = plane.unit, plane.valid
    pool, front = arrays.pool[unit], arrays.front[plane.stream, unit]
    at = (int(pool.free_head) + np.arange(len(valid))) % geometry.blocks
    used = np.concatenate([[int(front.block)], arrays.free[unit, at]]).astype(np.int64)
    pool.free_head = (int(pool.free_head) + len(valid)) % geometry.blocks
    pool.free_n -= len(valid)
    block = unit * geometry.all_blocks + used
    full = block[:-1]
    arrays.block["state"][full] = page_map.FULL
    arrays.block["stream"][block] = plane.stream
    arrays.block["dirty"][full] = 1
    arrays.block["filled"][full] = int(arrays.dev.filled[0]) + np.arange(len(full))
    arrays.dev.filled[0] += len(full)
    arrays.block["state"][block[-1]] = page_map.OPEN
    front.block = int(used[-1])
    arrays.valid[full] = valid
    first = np.repeat(full * geometry.block_pages - (np.cumsum(valid) - valid), valid)
    ppn = first + np.arange(len(plane.lpns))
    held = plane.lpns[::-1] + int(arrays.zone["first_lpn"][plane.stream])
    arrays.l2p[0, held], arrays.p2l[0, ppn] = ppn + 1, held + 1
    arrays.dev.mapped[0] += len(held)
