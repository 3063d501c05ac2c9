"""Benchmark of a drive of 32 TB: sequential writes, then random reads.

Owns this drive and workload, and the separate process whose peak memory is measured. Does not own
the compact maps (engine/run/build.py). Source: this project.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import numpy as np

from ondie.emu.config.config import load_preset
from ondie.emu.engine.run import build
from ondie.emu.nvme.request import MAX_CHUNK, NOT_YET, READ, REQUEST, WRITE
from ondie.emu.replay.memory import peak_rss_bytes
from ondie.emu.replay.player import Player, Source
from ondie.emu.validate.speed.plan import Plan
from ondie.emu.validate.speed.process import python
from ondie.emu.validate.speed.speed import DEPTH, WHOLE_PAGES, page_operations
from ondie.kernels.bench.run import Row

HUGE = (
    *WHOLE_PAGES,
    "flash.channels=16",
    "flash.dies_per_channel=16",
    "flash.planes_per_die=4",
    "flash.blocks_per_plane=1423",
    "host.io_submit=0 ns",
)
"""Settings of a 32 TB drive with pages of 16 KiB."""
MOST_BYTES = 4 << 30


def large_rows(plan: Plan) -> list[Row]:
    """Simulate the 32 TB drive in a separate process. Return the benchmark rows: peak memory, wall
    time, and pages per second of the event loop.

    The workload writes 1 TB sequentially (10 GB if ``plan.quick``) and then reads at random
    addresses.
    """
    size = 10**10 if plan.quick else 10**12
    plan.progress(f"32 TB, {size / 1e9:g} GB of it")
    code = f"from ondie.emu.validate.speed import large; large.measure({size})"
    found = json.loads(python("-c", code))
    words = "1 TB" if size == 10**12 else f"{size / 1e9:g} GB"
    memory = found["peak_rss_bytes"]
    rate = found["pages"] / found["loop_s"]
    return [
        Row("32 TB drive: memory", memory / 2**30, "GiB", "at most 4 GiB",
            memory / MOST_BYTES),
        Row(f"32 TB drive: {words} written, read at random", found["wall_s"], "s", "itself", 1.0),
        Row("32 TB drive: loop", rate / 1e6, "M pages/s", "itself", 1.0),
    ]  # fmt: skip


def measure(size: int) -> None:
    """Run the workload on the 32 TB drive and print its time and memory as JSON.

    The workload writes ``size`` bytes sequentially in requests of 1 MiB, then reads 4 x MAX_CHUNK
    pages at random addresses in the written range.
    """
    begin = time.perf_counter()
    cfg = load_preset("gen4-tlc", HUGE)
    arrays = build.build(cfg, devices=1, phases=1, pairs=1)
    assert int(arrays.cfg.lpns[0]) * cfg.flash.page_bytes >= 32 * 10**12
    done = Player(arrays, cfg, [Source(_in_order_then_anywhere(size), DEPTH, True)]).run()
    pages = page_operations(done.counters)
    wall_s = time.perf_counter() - begin - done.warmed_s
    found = {"pages": pages, "loop_s": done.loop_s, "wall_s": wall_s}
    sys.stdout.write(json.dumps(found | {"peak_rss_bytes": peak_rss_bytes()}))


def _in_order_then_anywhere(size: int) -> Iterator[np.ndarray]:
    """Yield sequential writes of ``size`` bytes in requests of 1 MiB, then page reads at random
    addresses in the written range."""
    mib, page = 1 << 20, 16384
    requests = size // mib
    rng = np.random.default_rng(2)
    for first in range(0, requests, MAX_CHUNK):
        offset = np.arange(first, min(first + MAX_CHUNK, requests)) * mib
        yield _chunk(offset, mib, WRITE)
    for _ in range(4):
        yield _chunk(rng.integers(0, requests * (mib // page), MAX_CHUNK) * page, page, READ)


def _chunk(offset: np.ndarray, size: int, op: int) -> np.ndarray:
    """Return requests of ``size`` bytes at the offsets ``offset``, REQUEST[n].

    ``op``: READ or WRITE.
    """
    chunk = np.zeros(len(offset), REQUEST)
    chunk["arrival"] = chunk["start"] = chunk["end"] = NOT_YET
    chunk["offset"], chunk["size"], chunk["op"] = offset, size, op
    return chunk
