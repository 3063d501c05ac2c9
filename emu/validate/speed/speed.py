"""Page operations per second of the flash engine: without FTL, and with FTL and garbage collection.

Owns the drives and workloads of these measurements. Does not own the rows of a result (plan.py) or
the measurement of this machine's memory (anchors.py). Source: this project.

Pages and writes are 4 KiB, so every write is one page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config, load_preset
from ondie.emu.engine.run import build
from ondie.emu.ftl.precondition import apply
from ondie.emu.nand import raw_jobs, timing
from ondie.emu.nvme.request import MAX_CHUNK, NOT_YET, REQUEST, WRITE
from ondie.emu.replay.player import Player, Replayed, Source
from ondie.emu.validate.speed.anchors import Memory
from ondie.emu.validate.speed.plan import Plan, speed_rows
from ondie.kernels.bench.run import Row

PAGE = 4096
WHOLE_PAGES = (
    "flash.programming=page",
    "flash.t_program=400 us",
    "ftl.mapping_unit=0 B",
    "cache.mode=off",
    "frontend.read_delay=0 ns",
    "frontend.write_delay=0 ns",
)
"""Settings with which pages are mapped and programmed one by one, and writes complete when flash is
programmed."""
PLAIN = (
    *WHOLE_PAGES,
    "flash.page=4 KiB",
    "flash.cache_read=false",
    "flash.cache_program=false",
    "flash.interleave_commands=false",
)
"""The settings of WHOLE_PAGES, and settings for pages of the write size (PAGE) without cache reads,
cache programs or interleaved commands. Commands and transfers are then as simple as in MQSim."""
BARE = (
    *PLAIN,
    "host.io_submit=0 ns",
    "frontend.command=0 ns",
    "ecc.decode=0 ns",
    "ecc.encode=0 ns",
    "link.latency=0 ns",
)
"""Settings of a drive that consists of flash and FTL only: all components between them and the host
take no time.

:func:`ftl_once` sets link and DRAM to take no time.
"""
PHYSICAL = (
    *PLAIN,
    "flash.channels=16",
    "flash.dies_per_channel=16",
    "flash.planes_per_die=1",
    "flash.blocks_per_plane=64",
)
SMALL = (
    "flash.channels=8",
    "flash.dies_per_channel=4",
    "flash.planes_per_die=1",
    "flash.blocks_per_plane=64",
    "flash.pages_per_block=64",
    "ftl.over_provisioning=0.25",
    "ftl.gc_low_blocks=2",
)
"""Settings of a drive with 131,072 pages; its maps take 0.9 MiB."""
LARGE = (
    "flash.channels=16",
    "flash.dies_per_channel=4",
    "flash.planes_per_die=1",
    "flash.blocks_per_plane=1366",
    "flash.pages_per_block=256",
    "ftl.over_provisioning=0.25",
    "ftl.gc_low_blocks=4",
)
"""Settings of a drive with a capacity of 64 GiB: 16.8 M logical pages; its maps take 150 MiB."""
DEPTH = 256


def flash_rows(plan: Plan, memory: Memory) -> list[Row]:
    """Return rows of the operations per second of channels and dies without FTL.

    The drive has 256 planes. Half of the operations are programs, and half are reads. Every
    operation uses one plane.
    """
    n = 1_000_000 if plan.quick else 8_000_000
    best = best_cpu = float("inf")
    for number in range(plan.repeat):
        plan.progress(f"flash {number + 1} of {plan.repeat}")
        memory.measure()
        took, cpu = flash_once(n)
        best, best_cpu = min(best, took), min(best_cpu, cpu)
    name = "no FTL, 256 planes"
    return speed_rows(name, n / best, n / best_cpu, 30e6, memory.anchors())


def flash_once(n: int) -> tuple[float, float]:
    """Return the wall time and CPU time (s) of ``n`` operations that are distributed evenly over
    256 dies."""
    cfg = load_preset("gen4-tlc", PHYSICAL)
    rng = np.random.default_rng(0)
    op = np.where(rng.random(n) < 0.5, timing.PROGRAM, timing.READ)
    arrays = build.build(cfg, devices=1, phases=1, jobs=n)
    raw_jobs.clear_watch(arrays)
    die = np.arange(n) * len(arrays.die) // n
    raw_jobs.load(arrays, die, op, bus=np.full(n, PAGE), page=np.full(n, -1))
    state = arrays.handle()
    pending = arrays.feed["last"].copy()
    arrays.feed["last"] = arrays.feed["next"]
    raw_jobs.run(state, 8, NEVER - 1)  # compile only: no operation is pending
    arrays.feed["last"] = pending
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    done = raw_jobs.run(state, 8, NEVER - 1)
    took, cpu = time.perf_counter() - begin, time.thread_time() - begin_cpu
    assert done == n and arrays.job["end"].min() > 0
    return took, cpu


def writes(rng: np.random.Generator, pages: int, n: int) -> Iterator[np.ndarray]:
    """Yield chunks of one-page writes, ``n`` in total, to random pages below number ``pages``."""
    while n > 0:
        k = min(n, MAX_CHUNK)
        chunk = np.zeros(k, REQUEST)
        chunk["arrival"] = chunk["start"] = chunk["end"] = NOT_YET
        chunk["offset"] = rng.integers(0, pages, k) * PAGE
        chunk["size"], chunk["op"] = PAGE, WRITE
        n -= k
        yield chunk


def ftl_once(cfg: Config, n: int, seed: int, bare: bool = True) -> Replayed:
    """Replay ``n`` uniform 4 KiB writes to a drive in steady state, with DEPTH requests
    outstanding.

    ``bare``: True if link and DRAM take no time, so that only flash and FTL take time.
    """
    arrays = build.build(cfg, devices=1, phases=1, pairs=1, seed=seed)
    if bare:
        arrays.fifo["scale"] = 0
    apply.set_steady_state(arrays, cfg, seed=seed)
    rng = np.random.default_rng(seed)
    chunks = writes(rng, int(arrays.cfg.lpns[0]), n)
    return Player(arrays, cfg, [Source(chunks, DEPTH, True)]).run()


def page_operations(count: dict[str, int]) -> int:
    """Return the number of pages sensed and programmed, for the host and for garbage collection."""
    return sum(
        count[name] for name in ("read_pages", "program_pages", "gc_read_pages", "gc_program_pages")
    )


def ftl_rows(
    plan: Plan, memory: Memory, name: str, settings: tuple[str, ...], target: float | None
) -> list[Row]:
    """Return rows of the page operations per second under uniform writes, and of the write
    amplification."""
    cfg = load_preset("gen4-tlc", settings)
    n = 300_000 if plan.quick else 2_000_000
    best = best_cpu = 0.0
    factors = []
    for number in range(plan.repeat):
        plan.progress(f"{name} {number + 1} of {plan.repeat}")
        memory.measure()
        done = ftl_once(cfg, n, number, settings[-len(BARE) :] == BARE)
        pages = page_operations(done.counters)
        best = max(best, pages / done.loop_s)
        best_cpu = max(best_cpu, pages / done.loop_cpu_s)
        factors.append(1 + done.counters["gc_program_pages"] / done.counters["program_pages"])
    factor = float(np.mean(factors))
    return [
        *speed_rows(name, best, best_cpu, target, memory.anchors()),
        Row(f"{name}, WAF", factor, "", "at least 2", factor / 2),
    ]
