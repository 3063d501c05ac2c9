"""Owns: a small drive for runs through queue pairs, uniform writes to it, and their WAF.
Does not: know what is right.
Source: own.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.run import build
from ondie.emu.nvme.request import MAX_CHUNK, NOT_YET, READ, REQUEST, WRITE
from ondie.emu.replay.player import Player, Replayed, Source
from tests.timing.harness import preset

PAGE = 4096
LEAVES = {
    "flash.channels": "4",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "2",
    "flash.blocks_per_plane": "64",
    "flash.pages_per_block": "32",
    "flash.page": "4 KiB",
    "ftl.block_unit": "plane",
    "ftl.over_provisioning": "0.3",
    "ftl.reservoir_fraction": "0",
    "ftl.gc_low_blocks": "3",
    "frontend.max_transfer": "1 MiB",
}


def config(**changes: Any) -> Config:
    """The small drive; changes as flash__channels=1 and the like."""
    return preset(LEAVES, **changes)


def drive(cfg: Config, pairs: int = 1, seed: int = 5) -> Arrays:
    return build.build(cfg, devices=1, phases=1, pairs=pairs, seed=seed)


def requests(offset: Any, size: Any, op: Any, arrival: Any = NOT_YET) -> np.ndarray:
    """REQUEST[n] from columns, bytes; single values are for all."""
    columns = np.broadcast_arrays(offset, size, op, arrival)
    out = np.zeros(columns[0].size, REQUEST)
    for name, column in zip(("offset", "size", "op", "arrival"), columns, strict=True):
        out[name] = column
    return out


def uniform(rng: np.random.Generator, lpns: int, n: int, reads: float = 0.0) -> Iterator[Any]:
    """One-page requests anywhere, a share of them reads."""
    while n > 0:
        k = min(n, MAX_CHUNK)
        op = np.where(rng.random(k) < reads, READ, WRITE)
        yield requests(rng.integers(0, lpns, k) * PAGE, PAGE, op)
        n -= k


def play(arrays: Arrays, cfg: Config, chunks: Any, depth: int = 32, **options: Any) -> Replayed:
    """All of them in a closed loop."""
    return Player(arrays, cfg, [Source(iter(chunks), depth, True)]).run(**options)


def waf(after: dict[str, int], before: dict[str, int] | None = None) -> float:
    """Write amplification between two counts."""
    moved, written = (
        after[name] - (before or {}).get(name, 0) for name in ("gc_program_pages", "program_pages")
    )
    return 1 + moved / written
