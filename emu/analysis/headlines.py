"""Simulation of the values on a data sheet: rates, latencies, power and endurance of a drive.

Owns the workload of each value, the window in which it is measured, the reduced drive for random
writes in steady state, and the constant that limits each value. Does not own the data sheet
(config/datasheet.py), the replay (replay/block_trace.py) or validation rows (validate/drives.py).
Source: SNIA, Solid State Storage Performance Test Specification (sequential 128 KiB, random 4 KiB,
closed loop, fresh and steady state); queueing theory (a resource that is always busy is the limit).

The requests from which a rate is measured form one closed loop with the queue depth that the data
sheet states. The measurement omits at least the first quarter of the completions, and the last
completions, during which the queue empties.
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
from ondie.emu.config.rules.rule import WORD_LINE, native_bytes, raw_bytes
from ondie.emu.ftl import pslc
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import word_line_pages
from ondie.emu.replay.block_trace import BlockReplayed, Loop, capacity, replay_block
from ondie.emu.replay.mqsim.flash_counts import counters
from ondie.emu.replay.statistics import INTERNAL_WRITES
from ondie.traces.block_model import READ, WRITE, BlockTrace

PS_PER_S = 1e12
SPAN_BYTES = 16 << 30
"""Largest address range of random requests in bytes, so that the requests use only a small part of
the mapping tables."""
READS, LATENCY_REQUESTS = 24_000, 2048
ROUNDS = 12
"""Minimum total size of the requests from which a write rate is measured, in multiples of the size
of the write cache plus the size of one program on every die."""
RATE_FILLS, WEAR_FILLS = 16, (8, 24)
"""Number of blocks per block unit (ftl.block_unit: a die or a plane) that the host fills in a
steady-state run. RATE_FILLS: run for a rate. WEAR_FILLS: the two runs for write amplification."""
STEADY_WINDOW = (0.5, 1.0)
"""(start, end) of the measured window of a steady-state run for a rate, as fractions of the
completions. Before the window, the run uses up the free blocks that preconditioning has left."""
RATE_SHAPE, WEAR_SHAPE = (100, 32), (400, 64)
"""(blocks per plane, word lines per block) of the reduced drives that are simulated for the rate of
random writes and for their write amplification. If the blocks were shorter, the word line that
garbage collection sometimes pads per victim would have too much weight. If there were fewer blocks,
the free and open blocks would have too much weight."""
PSLC_FILLS = 4
"""The shorter of the two endurance runs fills at least this number of pSLC blocks per plane. The
measured wear then includes the wear caused by folding."""
WEAR_DIES = {"flash.channels": 2, "flash.dies_per_channel": 1}
"""Number of channels and of dies per channel of the drive that is simulated for write
amplification. More dies would not change the result, because each die has separate garbage
collection."""
FEW = 8
"""Largest queue depth at which :func:`limit_of` may report that the latency of a request limits a
rate. At larger depths, it always reports a resource."""
SATURATED = 0.85
"""Utilization of a resource at and above which this resource limits a rate."""
FEW_PLANES = 0.75
"""Fraction of a die's planes. If programs use a smaller fraction on average, the result states that
fraction."""
STEP = 0.9
"""Factor by which the time that a constant sets is multiplied, to measure the contribution of the
constant to a latency."""
LIMITS: Mapping[str, Mapping[int, str]] = {
    "link up": {READ: "link.up"},
    "link down": {WRITE: "link.down"},
    "channels": {READ: "flash.bus", WRITE: "flash.bus"},
    "dies": {READ: "flash.t_read", WRITE: "flash.t_program"},
    "front end": {READ: "frontend.command", WRITE: "frontend.command"},
    "DRAM": {READ: "dram.bandwidth", WRITE: "dram.bandwidth"},
    "ECC": {READ: "ecc.decode", WRITE: "ecc.encode"},
}
"""Configuration key of the constant that determines the service time of a resource, by name of the
resource and by operation of the host (READ or WRITE)."""
PARTS = {
    READ: ("frontend.read_delay", "flash.t_read", "flash.t_read_upper", "flash.bus", "ecc.decode",
           "link.up", "link.latency", "dram.bandwidth", "frontend.command"),
    WRITE: ("frontend.write_delay", "flash.t_program", "flash.bus", "ecc.encode", "link.down",
            "link.latency", "dram.bandwidth", "frontend.command"),
}  # fmt: skip
"""Configuration keys of the constants that may contribute to the latency of a request, by operation
of the host (READ or WRITE)."""
Progress = Callable[[str, float], None] | None


@dataclass(frozen=True)
class Headline:
    """One value of a data sheet and its simulation.

    ``value``: simulated value in the base unit of ``figure``. ``limit``: configuration key of the
    constant that limits the value. ``share``: fraction of the measured time, of the latency or of
    the power that is due to this constant; for endurance, bytes written divided by bytes
    programmed. ``why``: text that states the quantity of which ``share`` is a fraction.
    ``requests``: number of simulated requests.
    """

    figure: Figure
    value: float
    limit: str
    share: float
    why: str
    requests: int

    @property
    def difference(self) -> float | None:
        """Relative difference from the data sheet, simulated / stated - 1; None if the data sheet
        does not state the value."""
        return None if self.figure.value is None else self.value / self.figure.value - 1


def simulate(
    cfg: Config, sheet: DataSheet, *, scale: int = 1, seed: int = 0, progress: Progress = None
) -> list[Headline]:
    """Simulate every value of a data sheet on a drive with configuration ``cfg``.

    ``scale``: factor on the numbers of requests. If several values need the same run, the run is
    simulated once.
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
    """A replay and its rate: requests per second in the measured window."""

    run: BlockReplayed
    per_s: float


class Bench:
    """Simulator that measures the values of a data sheet on a drive. ``state``: "fresh" or "steady"
    (datasheet.STATES). ``scale``: factor on the numbers of requests."""

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
        """Simulate one value of the data sheet, and return the result."""
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
        """Measure and return the rate of requests of ``block`` bytes at queue depth ``depth``.
        ``op``: READ or WRITE. ``pslc_full``: True to measure after the pSLC blocks are full."""
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
        """Return the number of requests in the run from which a rate is measured. Arguments: see
        :meth:`rate`."""
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
        """Return the rate of random writes in steady state, simulated on a reduced drive."""
        run = self._steady_run(reduced(self.cfg, self.scale, *RATE_SHAPE), block, depth, RATE_FILLS)
        return Measured(run, window_rate(run, depth, *STEADY_WINDOW))

    def _steady_run(self, cfg: Config, block: int, depth: int, fills: int) -> BlockReplayed:
        """Replay random writes of ``block`` bytes in steady state. The number of writes fills
        ``fills`` blocks of each block unit (ftl.block_unit: a die or a plane)."""
        geometry = Geometry.of(cfg)
        block_bytes = geometry.block_pages * geometry.page_bytes
        count = fills * geometry.units * block_bytes // block
        return self._replay(cfg, WRITE, block, depth, count, True, "steady")

    def _latency(self, figure: Figure) -> Headline:
        """Return the mean latency of single requests, with the constant that contributes the most
        to it."""
        op = READ if figure.what == "read_latency" else WRITE
        value, limit, share = self._largest_part(op, figure.block_bytes)
        return Headline(figure, value, limit, share, LATENCY, LATENCY_REQUESTS * self.scale)

    def _mean_latency(self, cfg: Config, op: int, block: int) -> float:
        count = LATENCY_REQUESTS * self.scale
        kind = "none" if op == WRITE and self.state == "fresh" else "fill"
        requests = self._replay(cfg, op, block, 1, count, True, kind).requests
        start, end = requests["start"], requests["end"]
        return float((end - start).mean())

    def _largest_part(self, op: int, block: int) -> tuple[float, str, float]:
        """Return (mean latency of single requests in ps, key of the constant that contributes the
        most, its fraction of the latency).

        The fraction of a constant is computed from a second simulation, in which the time that the
        constant sets is shorter by 10 %.
        """
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
        """Return the mean power (mW) of the drive during sequential requests, with the constant
        that contributes the most to it."""
        op = READ if figure.what == "read_power" else WRITE
        run = self.rate(op, figure.block_bytes, figure.depth, False).run
        joules = replay_energy(run.config, run.done.counters, run.moved, run.done.simulated_ps)
        total = sum(joules.values())
        limit = max(joules, key=lambda key: joules[key])
        value = total / (run.done.simulated_ps / PS_PER_S) * 1e3
        return Headline(figure, value, limit, joules[limit] / total, "the power", len(run.requests))

    def _endurance(self, figure: Figure) -> Headline:
        """Return the endurance: the number of bytes that the host can write until the rated cycles
        are used up.

        The counters are those of a longer run minus those of a shorter run, which cancels the
        garbage collection and folding after the last write. With a static pSLC region, the pSLC
        blocks and the native blocks wear separately. The drive then reaches its endurance when the
        first of these two groups of blocks is worn out.
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
        if self.cfg.ftl.pslc == "static":
            return self._endurance_of_parts(figure, done, programmed, len(long.requests))
        share = written / (programmed - done["pslc_pages"] * (1 - self._pslc_wear()))
        return Headline(
            figure, self.cfg.flash.endurance_cycles * raw_bytes(self.cfg) * share,
            "flash.endurance_cycles", share, "the bytes programmed are host writes",
            len(long.requests),
        )  # fmt: skip

    def _endurance_of_parts(
        self, figure: Figure, done: dict[str, int], programmed: int, requests: int
    ) -> Headline:
        """Return the endurance of a drive with a static pSLC region: the smaller of the endurance
        of the region and that of the native blocks. ``done``: counters of the longer run minus
        those of the shorter run. ``programmed``: number of pages programmed in the region and the
        native blocks together."""
        flash, written, inside = self.cfg.flash, done["program_pages"], done["pslc_pages"]
        native = flash.endurance_cycles * native_bytes(self.cfg)
        region = flash.pslc_endurance_cycles * pslc.capacity(self.cfg)
        parts = (
            (native, "flash.endurance_cycles", programmed - inside, "native"),
            (region, "flash.pslc_endurance_cycles", inside, "pSLC"),
        )
        limits = [
            Headline(
                figure, rated * written / pages, key, written / pages,
                f"the bytes programmed in {name} blocks are host writes", requests,
            )
            for rated, key, pages, name in parts
            if pages
        ]  # fmt: skip
        return min(limits, key=lambda limit: limit.value)

    def _pslc_wear(self) -> float:
        """Return the wear per page program in a pSLC block divided by that in a native block. A
        pSLC block has fewer pages and more rated cycles."""
        flash = self.cfg.flash
        pages = WORD_LINE.get(flash.cell, 1)
        return pages * flash.endurance_cycles / flash.pslc_endurance_cycles


LATENCY = "the latency"


def programmed_pages(counted: dict[str, int]) -> int:
    """Return the number of pages programmed by host writes and by all internal writes, from which
    write amplification is computed."""
    flash = counters(counted)
    return int(flash["user_writes"]) + sum(flash[name] for name in INTERNAL_WRITES)


def second_half(run: BlockReplayed) -> dict[str, int]:
    """Return the counters of the second half of a run, or of the whole run if the counters of its
    first half were not recorded."""
    done, half = run.done.counters, run.half or {}
    return {name: done[name] - half.get(name, 0) for name in done}


def window_rate(run: BlockReplayed, depth: int, first: float, last: float) -> float:
    """Return the completions per second in the window from fraction ``first`` to fraction ``last``
    of all completions. The last ``depth`` completions are always excluded, because the queue is
    then no longer full."""
    end = np.sort(run.requests["end"])
    low = int(first * len(end))
    high = min(int(last * len(end)), len(end) - depth + 1) - 1
    assert end[high] < NEVER
    return (high - low) / (float(end[high] - end[low]) / PS_PER_S)


def limit_of(run: BlockReplayed, op: int, depth: int) -> tuple[str, float, str]:
    """Return (constant of the busiest resource, utilization of this resource, text that states the
    quantity of which the utilization is a fraction). If the latency of a request limits the rate,
    because the queue is short and no resource is saturated, return ("", 0, LATENCY)."""
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
    """Return the mean fraction of a die's planes that a program uses; 1 if flash.programming is not
    "page"."""
    flash, done = run.config.flash, run.done.counters
    if flash.programming != "page" or not done["array_programs"]:
        return 1.0
    pages = programmed_pages(done) / Geometry.of(run.config).slots
    return pages / done["array_programs"] / flash.planes_per_die


def reduced(cfg: Config, scale: int, blocks: int, lines: int) -> Config:
    """Return the configuration with fewer and shorter blocks, so that a few requests suffice for a
    steady state: at most ``scale * blocks`` blocks per plane, with at most ``scale * lines`` word
    lines each.

    The dies and the shared resources do not change. The erase time is reduced in proportion to the
    length of a block. Over-provisioning is set so that the blocks among which garbage collection
    selects its victim have an unchanged fraction of valid pages, which preserves the write
    amplification.
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
    """Return the capacity in bytes of ``blocks`` pSLC blocks per plane."""
    geometry = Geometry.of(cfg)
    return blocks * geometry.units * geometry.unit_planes * pslc.block_pages(cfg) * (
        cfg.flash.page_bytes
    )  # fmt: skip


def with_small_pslc(cfg: Config) -> Config:
    """Return the configuration with one or two pSLC blocks per plane, so that a short run fills
    them."""
    share = 2.5 / cfg.flash.blocks_per_plane
    return cfg.replace(
        {"ftl.pslc_share": min(share, cfg.ftl.pslc_share)}, ref="a short run fills the pSLC blocks"
    )
