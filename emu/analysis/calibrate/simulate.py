"""Simulation of a measured point: a closed-loop replay with a short measured window.

Owns the requests of a point, the reduced size of the drive, the window, and the metrics of the
window. Does not own the replay (replay/block_trace.py) or the fit (fit.py).
Each simulation starts with a drive that has been written once sequentially. The drive has enough
free blocks for all writes of the run; garbage collection therefore does not start.
Source: Little, A proof for the queuing formula L = lambda W, Operations Research 9(3), 1961.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.analysis.calibrate.point import (
    PERCENTILES,
    Condition,
    Figures,
    Latency,
    Point,
    mean_latency,
)
from ondie.emu.config.config import Config
from ondie.emu.config.rules.rule import raw_bytes
from ondie.emu.nand.timing import word_line_pages
from ondie.emu.nvme.request import READ, WRITE
from ondie.emu.replay.block_trace import Loop, capacity, replay_block
from ondie.emu.units import InputError, fmt_bytes
from ondie.traces.block_model import BlockTrace

EXTENT = 4 << 30
"""Size of the largest address range that the requests of a point access, bytes. It is much larger
than a data cache."""
SPARE = 4 << 30
"""Minimum size in bytes of the flash of a simulated drive in addition to EXTENT, so that the writes
of a run do not start garbage collection."""
WINDOW = 5000
"""Largest number of requests in the measured window of a point, unless TURNS requires more."""
WINDOW_BYTES = 256 << 20
"""Largest total size in bytes of the requests in the measured window, unless FEWEST or TURNS
requires more requests."""
FEWEST = 500
"""Smallest number of requests in the measured window of a point."""
TURNS = 40
"""Smallest number of requests in the measured window, in multiples of the depth."""
CACHE_STRIPES = 4
"""Size of the data cache of a simulated drive, in multiples of one word line on every die. The
cache is larger if the drive destages many pages at once."""
CACHE_FILLS = 2
"""Amount of data written before the measured window, as a multiple of the size of a write-back data
cache. The amount may be smaller because of MOST_BEFORE, or larger because of the length of the
window."""
STRATUM = 20
"""Number of consecutive requests per group. In each group, the share of reads is the requested
fraction, with the number of reads rounded up or down."""
MOST_BEFORE = 24_000
"""Largest number of requests that fill a write-back data cache before the measured window."""
RANKS = {50.0: 3.0, 90.0: 2.0, 99.0: 0.4}
"""Uncertainty of the rank of each percentile: plus or minus this percentage of the requests.

If some requests wait for flash and others do not, a percentile between the two groups changes
abruptly with a small change of a constant.
"""
PS_PER_US = 10**6
PS_PER_S = 10**12


def small_drive(cfg: Config) -> Config:
    """Return ``cfg`` with the flash capacity and the data cache reduced to the size that the run of
    a point uses.

    The number of dies, all times and all rates do not change. The smaller data cache is full after
    few writes, like the data cache of the real drive after a longer run.
    """
    block = raw_bytes(cfg) // cfg.flash.blocks_per_plane
    blocks = -(-(EXTENT + SPARE) // block) + 2 * cfg.ftl.gc_low_blocks + 8
    changes: dict[str, int | float] = {}
    if blocks < cfg.flash.blocks_per_plane:
        changes["flash.blocks_per_plane"] = blocks
        changes["ftl.over_provisioning"] = 1 - EXTENT / (blocks * block)
    stripe = block // cfg.flash.pages_per_block * word_line_pages(cfg)
    cache = max(CACHE_STRIPES * stripe, 2 * cfg.cache.destage_pages * cfg.flash.page_bytes)
    if cfg.cache.capacity_bytes > cache:
        changes["cache.capacity"] = cache
    return cfg.replace(changes, ref="reduced to the size that a point uses") if changes else cfg


def check_simulated(point: Point, cfg: Config) -> None:
    """Raise InputError for a point that cannot be simulated on a drive with configuration ``cfg``:
    its depth exceeds the queue depth, its block size exceeds the largest transfer of a command, or
    its writes exceed the free blocks."""
    condition, name = point.condition, cfg.system.name
    if condition.depth > cfg.frontend.queue_depth:
        raise InputError(
            f"{point.place}: depth {condition.depth}: the queue of {name} holds "
            f"{cfg.frontend.queue_depth} commands (frontend.queue_depth); measure with at most "
            "this depth, or use a preset with a larger queue"
        )
    if condition.block_bytes > cfg.frontend.max_transfer_bytes:
        most = fmt_bytes(cfg.frontend.max_transfer_bytes, binary=True)
        raise InputError(
            f"{point.place}: bs = {fmt_bytes(condition.block_bytes, binary=True)}: drive {name} "
            f"transfers at most {most} per command (frontend.max_transfer); measure with a smaller "
            "block size"
        )
    written = (sum(window_of(condition, cfg)) + condition.depth) * condition.block_bytes
    if "write" in condition.directions and written > SPARE:
        raise InputError(
            f"{point.place}: {condition}: simulating this point would write "
            f"{fmt_bytes(written, binary=True)} (limit: {fmt_bytes(SPARE, binary=True)}); "
            "measure with a smaller block size or queue depth"
        )


def window_of(condition: Condition, cfg: Config) -> tuple[int, int]:
    """Return (number of requests before the window, number of requests in the window) of a
    point."""
    window = min(WINDOW, max(WINDOW_BYTES // condition.block_bytes, FEWEST))
    window = max(window, TURNS * condition.depth)
    before = max(window // 4, 4 * condition.depth)
    if "write" in condition.directions and cfg.cache.mode in ("write_back", "read_write"):
        filled = cfg.cache.capacity_bytes / condition.block_bytes / (1 - condition.read_share)
        before = max(before, min(int(CACHE_FILLS * filled), MOST_BEFORE))
    return before, window


def requests_of(condition: Condition, count: int, extent: int, seed: int) -> BlockTrace:
    """Return ``count`` requests within the first ``extent`` bytes of a drive.

    In each group of STRATUM consecutive requests, the number of reads is the fraction in
    ``condition``, rounded up or down. If each request were drawn independently, a short window
    could contain too many or too few of the slower requests (reads or writes).
    """
    rng = np.random.default_rng(seed)
    places = extent // condition.block_bytes
    at = rng.integers(0, places, count) if condition.random else np.arange(count) % places
    ends = np.arange(0, count + STRATUM, STRATUM)
    wanted = np.diff(np.rint(ends * condition.read_share).astype(np.int64))
    ranks = rng.random((len(wanted), STRATUM)).argsort(axis=1)
    reads = (ranks < wanted[:, None]).ravel()[:count]
    return BlockTrace(
        arrival_ps=np.zeros(count, np.int64),
        op=np.where(reads, READ, WRITE).astype(np.int8),
        offset=at.astype(np.int64) * condition.block_bytes,
        size=np.full(count, condition.block_bytes, np.int64),
        device=np.zeros(count, np.int32),
        devices=("drive",),
        source=str(condition),
        format="calibrate",
        timed=False,
    )


def simulate(cfg: Config, point: Point, seed: int) -> Figures:
    """Simulate a point on a drive with configuration ``cfg`` (from :func:`small_drive`), and return
    its metrics.

    The window starts after the requests that fill the cache and the queue, and ends before the
    queue empties. To compute the IOPS, the measured host time is added to the latency of each
    request.
    """
    condition = point.condition
    before, window = window_of(condition, cfg)
    count = before + window + condition.depth
    trace = requests_of(condition, count, min(EXTENT, capacity(cfg)), seed)
    done = replay_block(trace, cfg, Loop(condition.depth), seed=seed, halves=False).requests
    done = done[np.argsort(done["end"], kind="stable")][before : before + window]
    return figures_of(done, condition, point.host_us)


def figures_of(done: np.ndarray, condition: Condition, host_us: float = 0.0) -> Figures:
    """Return the metrics of the completed requests ``done``, REQUEST records in the order of their
    completion. ``host_us``: host time per request, which reduces the IOPS."""
    latency, spread = {}, {}
    for direction, op in (("read", READ), ("write", WRITE)):
        part = done[done["op"] == op]
        if direction in condition.directions:
            times = (part["end"] - part["arrival"]) / PS_PER_US
            values = np.percentile(times, PERCENTILES)
            latency[direction] = Latency(
                float(times.mean()), dict(zip(PERCENTILES, map(float, values), strict=True))
            )
            for rank, width in RANKS.items():
                low, high = np.percentile(times, (rank - width, rank + width))
                spread[f"{direction} p{rank:g}"] = float(np.log(high / low)) / 2
    span = int(done["end"][-1] - done["end"][0])
    iops = (len(done) - 1) / span * PS_PER_S
    if host_us:
        mean = mean_latency(condition, Figures(iops, latency))
        iops *= mean / (mean + host_us)
    return Figures(iops, latency, spread)
