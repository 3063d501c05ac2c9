"""Benchmark of the peak memory of a replay of 4 KiB requests, on every preset.

Owns the workload and the bound that the memory is compared with. Does not own the tables
(ftl/tables.py) or the estimate of a replay's memory (replay/memory.py). Source: this project.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from ondie.emu.config.config import load_preset, preset_list
from ondie.emu.config.rules.rule import mapping_unit
from ondie.emu.replay import memory
from ondie.emu.replay.block_trace import Loop, capacity, replay_block
from ondie.emu.replay.mqsim.flash_counts import counters
from ondie.emu.replay.statistics import statistics
from ondie.emu.validate.speed.plan import Plan
from ondie.emu.validate.speed.process import python
from ondie.kernels.bench.run import Row
from ondie.traces.block_model import READ, WRITE, BlockTrace

SPAN_BYTES = 64 << 30
"""Size of the range of uniformly distributed addresses (bytes)."""
REQUEST_BYTES = 4096
CONSTANT_BYTES = 1 << 30
UNIT_BYTES = 24
"""Number of bytes that the bound on the peak memory of a replay includes for each mapping unit with
data: the entries in the page map and the reverse map, and the record of the unit's validity."""
DEPTH = 32


def replay_memory_rows(plan: Plan) -> list[Row]:
    """Return rows of the peak memory of replays on each preset; each replay runs in a new process.

    The three replays address 64 GiB of an empty drive, 64 GiB of a filled drive, and all addresses
    of an empty drive. Each has 2 M requests (20,480 if ``plan.quick``), of which 30 % are reads.
    The rows compare the peak memory with 1 GiB plus 24 B per mapped unit. If a replay does not fit
    into the memory of this machine, it does not run, and its row shows the estimate of its memory.
    """
    count = 20_480 if plan.quick else 2_000_000
    rows = []
    for preset in [summary.name for summary in preset_list()]:
        cfg = load_preset(preset)
        for kind, span in (("none", SPAN_BYTES), ("fill", SPAN_BYTES), ("none", capacity(cfg))):
            where = "64 GiB" if span == SPAN_BYTES else "all addresses"
            state = "empty" if kind == "none" else "filled"
            title = f"{preset}, {state}, {count:,} requests to {where}: peak memory"
            plan.progress(title)
            needed = memory.needed_bytes(cfg, kind, count, count)
            if needed > (memory.available_bytes() or needed):
                rows.append(
                    Row(
                        f"{title}, refused",
                        needed / 2**30,
                        "GiB",
                        "itself",
                        1.0,
                    )
                )
                continue
            code = (
                "from ondie.emu.validate.speed import replay_memory; "
                f"replay_memory.measure({preset!r}, {kind!r}, {count}, {span})"
            )
            found = json.loads(python("-c", code))
            words = f"1 GiB + 24 B x {found['mapped_units']:,}"
            rows.append(Row(title, found["peak_bytes"] / 2**30, "GiB", words,
                            found["peak_bytes"] / bound_bytes(found["mapped_units"])))  # fmt: skip
    return rows


def bound_bytes(mapped_units: int) -> int:
    """Return the largest permitted memory (bytes) of a replay after which ``mapped_units`` mapping
    units hold data."""
    return CONSTANT_BYTES + UNIT_BYTES * mapped_units


def measure(preset: str, kind: str, count: int, span: int) -> None:
    """Replay random requests (:func:`random_requests`) on ``preset``, and print the peak memory of
    this process (bytes) and the number of mapped units as JSON.

    ``kind``: preconditioning. ``count``: number of requests. ``span``: size of the address range
    (bytes).
    """
    cfg = load_preset(preset)
    run = replay_block(random_requests(count, span), cfg, Loop(DEPTH), kind=kind)
    statistics(
        [run.requests],
        counters(run.done.counters),
        page_bytes=mapping_unit(run.config),
        wall_s=run.done.loop_s,
        config={},
        since="arrival",
    )
    units = capacity(cfg) // mapping_unit(cfg)
    if kind == "none":
        written = run.requests["offset"][run.requests["op"] == WRITE]
        units = len(np.unique(written // mapping_unit(cfg)))
    sys.stdout.write(json.dumps({"peak_bytes": memory.peak_rss_bytes(), "mapped_units": units}))


def random_requests(count: int, span: int) -> BlockTrace:
    """Return ``count`` requests of 4 KiB, of which 30 % are reads, with addresses uniform over
    ``span`` bytes."""
    rng = np.random.default_rng(16)
    zeros = np.zeros(count, np.int64)
    return BlockTrace(
        arrival_ps=zeros,
        op=np.where(rng.random(count) < 0.3, READ, WRITE).astype(np.int8),
        offset=rng.integers(0, span // REQUEST_BYTES, count) * REQUEST_BYTES,
        size=zeros + REQUEST_BYTES,
        device=zeros.astype(np.int32),
        devices=("drive",),
        source="random requests",
        format="synthetic",
        timed=False,
    )
