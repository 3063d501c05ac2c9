"""Headlines of a data sheet, simulated: rates, latencies, power and endurance under its conditions.

Owns the workload of each figure, the window in which it is measured, the reduced drive for random
writes in steady state, and the constant that limits each figure. Does not own the data sheet
(config/datasheet.py), the replay (replay/block_trace.py) or rows of validation
(validate/drives.py).
Source: SNIA, Solid State Storage Performance Test Specification (sequential 128 KiB, random 4 KiB,
closed loop, fresh and steady state); queueing theory (a resource that is always busy is the limit).

All requests of a rate go through one closed loop of the printed queue depth. The first quarter of
the completions is left out, and the last ones, during which the queue runs empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ondie.emu.analysis.energy import replay_energy
from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.config.datasheet import LATENCIES, DataSheet, Figure
from ondie.emu.config.rules.rule import WORD_LINE, raw_bytes
from ondie.emu.ftl import pslc
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import word_line_pages
from ondie.emu.replay.block_trace import BlockReplayed, Loop, capacity, replay_block
from ondie.emu.replay.mqsim.flash_counts import counters
from ondie.emu.replay.statistics import INTERNAL_WRITES
from ondie.traces.block_model import READ, WRITE, BlockTrace

PS_PER_S = 1e12
SPAN_BYTES = 16 << 30
"""Random requests go to at most this many bytes, so that a small part of the maps is touched."""
READS, LATENCY_REQUESTS = 24_000, 2048
ROUNDS = 12
"""A write rate is measured over this many times the write cache and a program of every die."""
RATE_FILLS, WEAR_FILLS = 16, (8, 24)
"""Blocks of each unit that the host fills in a run in steady state: for a rate, and in the two runs
for write amplification."""
STEADY_WINDOW = (0.5, 1.0)
"""Measured part of a run for a rate: until then the free blocks that preconditioning has left are
used up."""
RATE_SHAPE, WEAR_SHAPE = (100, 32), (400, 64)
"""Blocks per plane and word lines per block of the drive that is simulated for a rate of random
writes, and for their write amplification. Collection pads a word line per victim at times, which
shorter blocks would count too often; fewer blocks would give free and open ones too much weight."""
PSLC_FILLS = 4
"""pSLC blocks of each unit that the shorter run fills for the wear by folding."""
WEAR_DIES = {"flash.channels": 2, "flash.dies_per_channel": 1}
"""Dies of the latter: each die collects its own blocks, so that more dies change nothing."""
FEW = 8
"""Largest queue depth at which the latency of a request may limit the rate."""
SATURATED = 0.85
"""Share of the measured time from which on a resource limits a rate."""
FEW_PLANES = 0.75
"""Share of a die's planes below which programs are said to use few of them."""
STEP = 0.9
"""Factor on a constant that shows its share of a latency."""
LIMITS: Mapping[str, Mapping[int, str]] = {
    "link up": {READ: "link.up"},
    "link down": {WRITE: "link.down"},
    "channels": {READ: "flash.bus", WRITE: "flash.bus"},
    "dies": {READ: "flash.t_read", WRITE: "flash.t_program"},
    "front end": {READ: "frontend.command", WRITE: "frontend.command"},
    "DRAM": {READ: "dram.bandwidth", WRITE: "dram.bandwidth"},
    "ECC": {READ: "ecc.decode", WRITE: "ecc.encode"},
}
"""Constants that decide the service time of each resource, by operation of the host."""
PARTS = {
    READ: ("frontend.read_delay", "flash.t_read", "flash.t_read_upper", "flash.bus", "ecc.decode",
           "link.up", "link.latency", "dram.bandwidth", "frontend.command"),
    WRITE: ("frontend.write_delay", "flash.t_program", "flash.bus", "ecc.encode", "link.down",
            "link.latency", "dram.bandwidth", "frontend.command"),
}  # fmt: skip
"""Constants that may make up the latency of a request."""
Progress = Callable[[str, float], None] | None


@dataclass(frozen=True)
class Headline:
    """One figure and its simulation.

    ``value``: in the base unit of the figure. ``limit``: key of the constant that limits it.
    ``share``: of the measured time in which its resource was busy, or the part of a latency that it
    makes up. ``why``: what ``share`` is a share of. ``requests``: number of simulated requests.
    """

    figure: Figure
    value: float
    limit: str
    share: float
    why: str
    requests: int

    @property
    def difference(self) -> float | None:
        """Relative difference from the figure, simulated / stated - 1; None if it is not stated."""
        return None if self.figure.value is None else self.value / self.figure.value - 1


def simulate(
    cfg: Config, sheet: DataSheet, *, scale: int = 1, seed: int = 0, progress: Progress = None
) -> list[Headline]:
    """Simulate every figure of a data sheet on a drive of configuration ``cfg``.

    ``scale``: factor on the numbers of requests. Runs that two figures share are made once.
    """
    bench = Bench(cfg, sheet.state, scale, seed)
    out = []
    for at, figure in enumerate(sheet.figures):
        if progress is not None:
            progress(f"{cfg.system.name}: {figure.title}", at / len(sheet.figures))
        out.append(bench.headline(figure))
    return out


@dataclass(frozen=True)
class Measured:
    """A run and its rate: requests per second in the measured window."""

    run: BlockReplayed
    per_s: float


class Bench:
    """Runs workloads on a drive. ``state``: fresh or steady (datasheet.STATES)."""

    def __init__(self, cfg: Config, state: str, scale: int, seed: int) -> None:
        self.folding = cfg
        if cfg.ftl.pslc != "off":  # the drive is never idle while it is measured
            cfg = cfg.replace({"ftl.fold_idle": 0}, ref="no fold before or after the measurement")
        self.cfg = cfg
        self.state = state
        self.scale = scale
        self.seed = seed
        self._runs: dict[tuple[Any, ...], Measured] = {}

    def headline(self, figure: Figure) -> Headline:
        """Return the simulation of one figure."""
        if figure.what in LATENCIES:
            return self._latency(figure)
        if figure.what.endswith("_power"):
            return self._power(figure)
        if figure.workload:
            return self._endurance(figure)
        op = READ if figure.what.endswith("read") else WRITE
        random = figure.what.startswith("random")
        measured = self.rate(op, figure.block_bytes, figure.depth, random, figure.pslc_full)
        size = 1 if random else figure.block_bytes
        limit, share, why = limit_of(measured.run, op, figure.depth)
        if why == LATENCY:
            _, limit, share = self._largest_part(op, figure.block_bytes)
        return Headline(
            figure, measured.per_s * size, limit, share, why, len(measured.run.requests)
        )

    def rate(
        self, op: int, block: int, depth: int, random: bool, pslc_full: bool = False
    ) -> Measured:
        """Return the rate of requests of ``block`` bytes at queue depth ``depth``."""
        key = (op, block, depth, random, pslc_full)
        if key not in self._runs:
            if op == WRITE and random and self.state == "steady" and depth > 1:
                self._runs[key] = self._steady_writes(block, depth)
            else:
                cfg, count = self.cfg, self._count(op, block, depth)
                kind = "none" if op == WRITE and self.state == "fresh" else "fill"
                if pslc_full:
                    cfg = with_small_pslc(cfg)
                    count += 2 * pslc.capacity(cfg) // block
                run = self._replay(cfg, op, block, depth, count, random, kind)
                window = (0.25, 1.0) if not pslc_full else (0.75, 1.0)
                self._runs[key] = Measured(run, window_rate(run, depth, *window))
        return self._runs[key]

    def _count(self, op: int, block: int, depth: int) -> int:
        """Return the number of requests of a rate."""
        if depth == 1:
            return LATENCY_REQUESTS * self.scale
        if op == READ:
            return READS * self.scale * 4096 // max(block // 8, 4096)
        geometry = Geometry.of(self.cfg)
        line = word_line_pages(self.cfg) * self.cfg.flash.page_bytes
        program = geometry.dies * geometry.planes * line
        cached = self.cfg.cache.capacity_bytes if self.cfg.cache.mode != "off" else 0
        return max(-(-ROUNDS * (cached + program) // block), 32 * depth) * self.scale

    def _replay(
        self, cfg: Config, op: int, block: int, depth: int, count: int, random: bool, kind: str
    ) -> BlockReplayed:
        span = capacity(cfg) // block * block
        if random:
            span = min(span, SPAN_BYTES)
            rng = np.random.default_rng(self.seed)
            offset = rng.integers(0, span // block, count) * block
        else:
            offset = np.arange(count, dtype=np.int64) * block % span
        zeros = np.zeros(count, np.int64)
        trace = BlockTrace(
            arrival_ps=zeros, op=np.full(count, op, np.int8), offset=offset, size=zeros + block,
            device=zeros.astype(np.int32), devices=("drive",), source="data sheet",
            format="synthetic", timed=False,
        )  # fmt: skip
        return replay_block(trace, cfg, Loop(depth), kind=kind, seed=self.seed)

    def _steady_writes(self, block: int, depth: int) -> Measured:
        """Return the rate of random writes in steady state, from a reduced drive."""
        run = self._steady_run(reduced(self.cfg, self.scale, *RATE_SHAPE), block, depth, RATE_FILLS)
        return Measured(run, window_rate(run, depth, *STEADY_WINDOW))

    def _steady_run(self, cfg: Config, block: int, depth: int, fills: int) -> BlockReplayed:
        """Replay random writes in steady state, of which the host fills ``fills`` blocks of each
        unit."""
        geometry = Geometry.of(cfg)
        block_bytes = geometry.block_pages * geometry.page_bytes
        count = fills * geometry.units * block_bytes // block
        return self._replay(cfg, WRITE, block, depth, count, True, "steady")

    def _latency(self, figure: Figure) -> Headline:
        """Return the mean latency of single requests, and the constant with the largest part."""
        op = READ if figure.what == "read_latency" else WRITE
        value, limit, share = self._largest_part(op, figure.block_bytes)
        return Headline(figure, value, limit, share, LATENCY, LATENCY_REQUESTS * self.scale)

    def _mean_latency(self, cfg: Config, op: int, block: int) -> float:
        count = LATENCY_REQUESTS * self.scale
        kind = "none" if op == WRITE and self.state == "fresh" else "fill"
        run = self._replay(cfg, op, block, 1, count, True, kind)
        return float((run.requests["end"] - run.requests["start"]).mean())

    def _largest_part(self, op: int, block: int) -> tuple[float, str, float]:
        """Return the mean latency of a single request (ps), the constant that makes up its largest
        part, and this part: how much shorter it is with a constant that is a tenth shorter."""
        whole = self._mean_latency(self.cfg, op, block)
        parts = {}
        for key in PARTS[op]:
            leaf = self.cfg.leaf(key)
            if not leaf.value:
                continue
            rate = leaf.unit == "bytes_per_s"
            value = round(float(leaf.value) / STEP if rate else float(leaf.value) * STEP)
            changed = self._mean_latency(self.cfg.replace({key: value}), op, block)
            parts[key] = (whole - changed) / whole / (1 - STEP)
        limit = max(parts, key=lambda key: parts[key])
        return whole, limit, parts[limit]

    def _power(self, figure: Figure) -> Headline:
        """Return the mean power of the drive during sequential requests (mW)."""
        op = READ if figure.what == "read_power" else WRITE
        run = self.rate(op, figure.block_bytes, figure.depth, False).run
        joules = replay_energy(run.config, run.done.counters, run.moved, run.done.simulated_ps)
        total = sum(joules.values())
        limit = max(joules, key=lambda key: joules[key])
        value = total / (run.done.simulated_ps / PS_PER_S) * 1e3
        return Headline(figure, value, limit, joules[limit] / total, "the power", len(run.requests))

    def _endurance(self, figure: Figure) -> Headline:
        """Return the bytes that the host may write until the rated cycles are used.

        The counters are the difference of two runs of which one is longer. Collection and folding
        that follow the last write are the same in both.
        """
        if figure.workload == "random":
            cfg = reduced(self.folding, self.scale, *WEAR_SHAPE).replace(WEAR_DIES)
            short, long = (self._steady_run(cfg, 4096, 256, fills) for fills in WEAR_FILLS)
        else:
            cfg, block, depth = self.folding, 128 << 10, 32
            count = self._count(WRITE, block, depth)
            if cfg.ftl.pslc != "off":  # only full blocks are folded
                count = max(count, PSLC_FILLS * pslc_bytes(cfg, 1) // block)
            kind = "none" if self.state == "fresh" else "fill"
            short, long = (
                self._replay(cfg, WRITE, block, depth, times * count, False, kind)
                for times in (1, 3)
            )
        before, after = short.done.counters, long.done.counters
        done = {name: after[name] - before[name] for name in after}
        written, programmed = done["program_pages"], programmed_pages(done)
        share = written / (programmed - done["pslc_pages"] * (1 - self._pslc_wear()))
        return Headline(
            figure, self.cfg.flash.endurance_cycles * raw_bytes(self.cfg) * share,
            "flash.endurance_cycles", share, "bytes written of bytes programmed",
            len(long.requests),
        )  # fmt: skip

    def _pslc_wear(self) -> float:
        """Return the wear by a page that is programmed in a pSLC block, relative to one in a native
        block: the block has fewer pages and more cycles."""
        flash = self.cfg.flash
        pages = WORD_LINE.get(flash.cell, 1)
        return pages * flash.endurance_cycles / flash.pslc_endurance_cycles


LATENCY = "the latency"


def programmed_pages(counted: dict[str, int]) -> int:
    """Return the pages programmed for any reason, as write amplification counts them."""
    flash = counters(counted)
    return int(flash["user_writes"]) + sum(flash[name] for name in INTERNAL_WRITES)


def second_half(run: BlockReplayed) -> dict[str, int]:
    """Return the counters of the second half of a run, or of the whole run where that is not
    known."""
    done, half = run.done.counters, run.half or {}
    return {name: done[name] - half.get(name, 0) for name in done}


def window_rate(run: BlockReplayed, depth: int, first: float, last: float) -> float:
    """Return completions per second between two shares of the completions; the queue is full until
    the last ``depth`` of them."""
    end = np.sort(run.requests["end"])
    low = int(first * len(end))
    high = min(int(last * len(end)), len(end) - depth + 1) - 1
    assert end[high] < NEVER
    return (high - low) / (float(end[high] - end[low]) / PS_PER_S)


def limit_of(run: BlockReplayed, op: int, depth: int) -> tuple[str, float, str]:
    """Return the constant of the busiest resource, its share of busy time, and what it is a share
    of. If no resource is saturated, the latency limits the rate: ("", 0, LATENCY)."""
    best, share, collection = "", 0.0, 0.0
    for name, keys in LIMITS.items():
        used = run.busy.get(name, {"mean": 0.0, "collection": 0.0})
        if op in keys and used["mean"] > share:
            best, share, collection = keys[op], used["mean"], used["collection"]
    if share < SATURATED and depth <= FEW:
        return "", 0.0, LATENCY
    done = second_half(run)
    if collection > share / 2:  # folding is counted with collection
        folds = done["fold_program_pages"] > done["gc_program_pages"]
        best = "flash.t_program" if folds else "ftl.over_provisioning"
    elif best == "flash.t_program" and done["pslc_pages"] > done["direct_pages"]:
        best = "flash.pslc_t_program"
    why = "the time"
    if best.endswith("t_program") and (planes := planes_at_once(run)) < FEW_PLANES:
        why += f"; programs use {planes:.0%} of the planes"
    return best, share, why


def planes_at_once(run: BlockReplayed) -> float:
    """Return the share of a die's planes that a program uses on average, where pages are programmed
    one by one."""
    flash, done = run.config.flash, run.done.counters
    if flash.programming != "page" or not done["array_programs"]:
        return 1.0
    pages = programmed_pages(done) / Geometry.of(run.config).slots
    return pages / done["array_programs"] / flash.planes_per_die


def reduced(cfg: Config, scale: int, blocks: int, lines: int) -> Config:
    """Return the drive with fewer and shorter blocks, for a steady state in few requests: at most
    ``scale`` times ``blocks`` per plane, of at most as many times ``lines`` word lines.

    All dies and shared resources are those of the drive. The time of an erase is in proportion to
    the length of a block. The share of valid pages in the blocks among which collection selects
    its victim is that of the drive, so that the write amplification is, too; over-provisioning
    follows.
    """
    flash = cfg.flash
    pages = min(flash.pages_per_block, scale * lines * WORD_LINE.get(flash.cell, 1))
    blocks = min(flash.blocks_per_plane, scale * blocks)
    unused = cfg.ftl.gc_low_blocks + cfg.ftl.write_streams + 1  # free, or open for host or moves
    mapped = 1 - cfg.ftl.reservoir_fraction  # share of the blocks that the FTL maps
    whole, part = mapped * flash.blocks_per_plane, mapped * blocks
    valid = (1 - cfg.ftl.over_provisioning) * whole / (whole - unused)
    return cfg.replace(
        {
            "flash.blocks_per_plane": blocks,
            "flash.pages_per_block": pages,
            "flash.t_erase": max(flash.t_erase_ps * pages // flash.pages_per_block, 1),
            "ftl.over_provisioning": 1 - valid * (part - unused) / part,
        },
        ref="fewer and shorter blocks (analysis/headlines.py)",
    )


def pslc_bytes(cfg: Config, blocks: int) -> int:
    """Return the bytes of ``blocks`` pSLC blocks of each plane."""
    geometry = Geometry.of(cfg)
    return blocks * geometry.units * geometry.unit_planes * pslc.block_pages(cfg) * (
        cfg.flash.page_bytes
    )  # fmt: skip


def with_small_pslc(cfg: Config) -> Config:
    """Return the drive with one or two pSLC blocks per die, so that a short run fills them."""
    share = 2.5 / cfg.flash.blocks_per_plane
    return cfg.replace(
        {"ftl.pslc_share": min(share, cfg.ftl.pslc_share)}, ref="a short run fills the pSLC blocks"
    )
