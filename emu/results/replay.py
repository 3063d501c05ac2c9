"""Python interface of `ondie replay`: the replay of a block trace, its statistics and remarks.

Owns the arguments of a replay in Python, the JSON document of its result, and the remarks. Does not
own the replay (replay/block_trace.py), the statistics (replay/statistics.py), the formats of the
log (replay/request_log.py) or the tables (tables/replay.py).
Source: this project.

The document has the fields of `ondie mqsim --json` and the utilization of resources.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ondie.emu.config.config import Config, configuration
from ondie.emu.config.rules.rule import mapping_unit
from ondie.emu.ftl import pslc
from ondie.emu.ftl.precondition.apply import PRECONDITIONS
from ondie.emu.nvme.request import REQUEST_NAMES
from ondie.emu.replay import request_log
from ondie.emu.replay.block_trace import (
    FEWEST_BLOCKS,
    BlockReplayed,
    Loop,
    capacity,
    least_pages,
    loop_of,
    replay_block,
)
from ondie.emu.replay.mqsim.flash_counts import counters
from ondie.emu.replay.statistics import statistics, summary
from ondie.emu.results.result import Result, flat, frame
from ondie.emu.results.tables import replay as tables
from ondie.emu.units import InputError, fmt_bytes, known_names
from ondie.traces import block
from ondie.traces.block_model import BlockTrace

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType

WORD_LINES = (
    "padding_pages", "padded_at_flush", "padded_at_rest", "padded_in_time", "second_pass_pages",
    "gathered_most",
)  # fmt: skip
"""Names of the counters in the object `word_lines` of `ondie replay --json`. The object exists if
flash.programming is not "page"."""
MANAGEMENT = (
    "collections", "overruled_victims", "copyback_pages", "merge_read_pages", "trimmed_pages",
    "unmapped_pages", "wear_moves", "program_failures", "bad_blocks",
)  # fmt: skip
"""Names of the counters in the object `management` of `ondie replay --json`."""
ERRORS = (
    "retried_pages", "retry_read_pages", "soft_pages", "soft_read_pages", "corrected_bits",
    "uncorrectable_pages", "newly_lost_pages", "lost_pages", "media_errors", "reclaimed_blocks",
)  # fmt: skip
"""Names of the counters in the object `errors` of `ondie replay --json`. The object exists if
errors.kind is not "none"."""

UPKEEP = tuple(tables.UPKEEP)
"""Names of the counters in the object `upkeep` of `ondie replay --json`. The object exists if
ftl.refresh_age or ftl.scrub_interval is not 0."""


@dataclass(frozen=True, repr=False)
class ReplayResult(Result):
    """Result of a replay. ``data`` is the document of `ondie replay --json`.

    run: the requests with their times, the counters of the drive, and the utilization of its
    resources. remarks: sentences on changes to the trace and on limits of the result.
    """

    run: BlockReplayed
    remarks: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return the latencies (us) and rates of the whole run and of its second half, one row for
        each kind of request."""
        found = []
        for part, of in (("whole", self.data), ("second half", self.data["second_half"])):
            rates = {key: of[key] for key in ("iops", "bandwidth_bytes_per_s", "waf") if key in of}
            for kind, latency in of["latency_us"].items():
                if latency is not None:
                    more = rates if kind == "all" else {}
                    found.append(flat({"part": part, "kind": kind, "latency_us": latency} | more))
        return found

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with one row for each request and the columns of `ondie replay --log`;
        times in ps. Raises InputError if pandas is not installed."""
        requests = self.run.requests
        columns = {name: requests[field] for name, field in request_log.LOG_COLUMNS.items()}
        return frame(columns | {"op": np.array(REQUEST_NAMES)[requests["op"]]})

    def table(self) -> RenderableType:
        """Return the table of latencies."""
        return tables.latency_table(self.data)

    def parts(self) -> Iterator[RenderableType]:
        """Yield the tables that `show` prints: latencies, requests by operation, flash operations,
        utilization, and a line with wall time and peak memory.
        """
        data = self.data
        yield tables.latency_table(data)
        yield tables.operations_table(data["operations"])
        yield tables.flash_table(data)
        if "errors" in data:
            yield tables.errors_table(data["errors"])
        if "upkeep" in data:
            yield tables.upkeep_table(data["upkeep"])
        if "pslc" in data:
            yield tables.pslc_table(data["pslc"])
        if "word_lines" in data:
            yield tables.word_lines_table(data["word_lines"])
        yield tables.busy_table(self.run.busy)
        yield tables.run_words(data)

    def save(self, path: str | Path) -> Path:
        """Write the document (.json), the latencies (.csv) or all requests (.h5) to a file.

        Returns the path. Raises InputError if the file name has another suffix or the file cannot
        be written.
        """
        if Path(path).suffix in (".h5", ".hdf5"):
            request_log.write(self.run.requests, Path(path))
            return Path(path)
        return super().save(path)


def replay(
    trace: str | os.PathLike[str] | BlockTrace,
    device: str | os.PathLike[str] | Config = "gen4-tlc",
    *,
    format: str | None = None,
    time_unit: str | None = None,
    settings: Iterable[str] = (),
    queue_depth: int | None = None,
    speed: float | None = None,
    precondition: str = "fill",
    footprint: str = "refuse",
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> ReplayResult:
    """Replay a block trace through a drive.

    trace: the sample "mixed-4k", a file, or a BlockTrace object. format: format of the file:
    "mqsim", "msr", "fio" or "blkparse". time_unit: unit of the timestamps of an "mqsim" file: "ps",
    "ns" or "us". device: name of a preset, a TOML file, or a Config object. settings: overrides
    such as "flash.channels=8". queue_depth: number of requests to keep outstanding; None submits
    requests at their timestamps, divided by ``speed`` (1 by default). precondition: state of the
    drive before the replay: "none", "fill" or "steady". footprint: "refuse" or "wrap" requests
    beyond the end of the drive. seed: seed of the random number generator. progress: callback (name
    of the stage, completed fraction).

    Raises InputError or TraceError with a one-line message if an argument is invalid.
    """
    if precondition not in PRECONDITIONS:
        raise InputError(
            f"precondition = {precondition!r} is unknown; "
            f"{known_names(precondition, PRECONDITIONS)}"
        )
    if queue_depth is not None and not 1 <= queue_depth <= 65535:
        raise InputError(f"queue_depth = {queue_depth}: must be from 1 to 65535")
    if queue_depth is not None and speed is not None:
        raise InputError(f"speed = {speed} has no effect with queue_depth; use only one of them")
    cfg = configuration(device, settings)
    if not isinstance(trace, BlockTrace):
        trace = block.load_block(trace, format, time_unit=time_unit)
    return replayed(
        trace,
        cfg,
        loop_of(trace, cfg, queue_depth, speed),
        kind=precondition,
        footprint=footprint,
        seed=seed,
        progress=progress,
    )


def replayed(
    trace: BlockTrace,
    cfg: Config,
    loop: Loop,
    *,
    kind: str,
    footprint: str,
    seed: int,
    progress: Callable[[str, float], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> ReplayResult:
    """Replay a loaded trace on configuration ``cfg``. ``kind`` is the argument ``precondition`` of
    :func:`replay`; see that function for the other arguments. ``say`` is called with each remark
    that is available before the drive is preconditioned, because preconditioning may take minutes.
    The result does not repeat these remarks.

    Raises InputError or TraceError if an argument is invalid, and SimulationError if the counts of
    requests and operations violate a conservation law.
    """
    began = time.perf_counter()
    share = None if progress is None else _share(progress, len(trace))
    foreseen: list[str] = []

    def before(written: int, drive: Config) -> None:
        if say is not None:
            foreseen.extend(_too_few(drive, written * mapping_unit(drive), "at most ", kind))
            for line in foreseen:
                say(line)

    run = replay_block(
        trace, cfg, loop, kind=kind, footprint=footprint, seed=seed, progress=share, before=before
    )
    data = statistics(
        [run.requests],
        counters(run.done.counters),
        page_bytes=mapping_unit(run.config),
        half=None if run.half is None else counters(run.half),
        least_pages=least_pages(run.config, kind),
        wall_s=time.perf_counter() - began - run.done.warmed_s,
        config=_settings(trace, run, loop, kind, footprint, seed),
        since="arrival",
    )
    data["utilisation"] = run.busy
    data["operations"] = operations(run.requests)
    data["counters"] = run.done.counters
    data["management"] = {name: run.done.counters[name] for name in MANAGEMENT}
    if run.config.errors.kind != "none":
        data["errors"] = {name: run.done.counters[name] for name in ERRORS}
    if run.config.ftl.refresh_age_ps or run.config.ftl.scrub_interval_ps:
        data["upkeep"] = {name: run.done.counters[name] for name in UPKEEP}
    if run.config.ftl.pslc != "off":
        data["pslc"] = _pslc(run)
    if run.config.flash.programming != "page":
        data["word_lines"] = {name: run.done.counters[name] for name in WORD_LINES}
    short = [] if foreseen else _short(run, data, kind)
    remarks = (*trace.notes, *run.notes, *_about(trace, loop), *short)
    return ReplayResult(data, run, (*remarks, *_failed(run), *_overruled(run)))


def _share(progress: Callable[[str, float], None], requests: int) -> Callable[[int, int], None]:
    """Return a callback for the replay that reports the fraction of completed requests."""
    return lambda done, now_ps: progress("replay", min(done / requests, 1.0))


def _settings(
    trace: BlockTrace, run: BlockReplayed, loop: Loop, kind: str, footprint: str, seed: int
) -> dict[str, Any]:
    """Return the inputs of the run for the JSON document: trace, options, resolved
    configuration."""
    return {
        "trace": {"source": trace.source, "format": trace.format, "requests": len(trace)},
        "queue_depth": loop.depth,
        "speed": loop.speed if loop.depth is None else None,
        "precondition": kind,
        "footprint": footprint,
        "seed": seed,
        "drive": run.config.resolved(),
    }


def _about(trace: BlockTrace, loop: Loop) -> list[str]:
    """Return a remark if the trace has no timestamps and a queue depth is used instead."""
    if loop.depth is not None and not trace.timed:
        return [f"the trace has no timestamps; {loop.depth} requests are kept outstanding instead"]
    return []


def _short(run: BlockReplayed, data: Mapping[str, Any], kind: str) -> list[str]:
    """Return a remark if the run is too short to determine the steady-state write amplification."""
    return _too_few(run.config, data["flash"]["user_writes"] * mapping_unit(run.config), "", kind)


def _too_few(cfg: Config, size: int, most: str, kind: str) -> list[str]:
    """Return a remark if the ``size`` bytes that the host programs are too few to determine the
    write amplification. ``most``: "at most " if ``size`` is an upper limit, else "".
    """
    least = least_pages(cfg, kind) * mapping_unit(cfg)
    if not size or size >= least:
        return []
    return [
        f"no write amplification: the host programs {most}{fmt_bytes(size)}, but the steady state "
        f"requires {FEWEST_BLOCKS} programmed blocks in each unit of the drive; replay at least "
        f"{fmt_bytes(least)} of writes, or use --precondition fill"
    ]


def _failed(run: BlockReplayed) -> list[str]:
    """Return a remark on requests that ended with a read error, if there are any. Such requests do
    not end the replay."""
    failed = run.requests[run.requests["status"] != 0]
    if not len(failed):
        return []
    first = failed[0]
    return [
        f"{len(failed)} requests ended with an unrecovered read error (NVMe status "
        f"{int(first['status']):#x}). The first one is request {int(first['tag'])}: "
        f"{int(first['size'])} bytes at {int(first['offset'])}."
    ]


def _overruled(run: BlockReplayed) -> list[str]:
    """Return a remark on the garbage collections that did not use the victim selected by the
    configured policy, if there are any."""
    count = run.done.counters["overruled_victims"]
    if count == 0:
        return []
    return [
        f"{count} of {run.done.counters['collections']} garbage collections selected the block "
        f"with the fewest valid pages instead of the choice of ftl.gc_policy = "
        f"{run.config.ftl.gc_policy}, which would not have freed a block when the free blocks "
        f"were almost used up."
    ]


def operations(requests: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return the number, bytes and latencies (us) of the requests by operation.

    ``requests``: array of REQUEST records. The latency is the time from arrival to completion.
    """
    found = {}
    for op, name in enumerate(REQUEST_NAMES):
        rows = np.flatnonzero(requests["op"] == op)
        if len(rows):
            end, arrival = requests["end"][rows], requests["arrival"][rows]
            found[name] = {
                "requests": len(rows),
                "bytes": int(requests["size"][rows].sum()),
                "latency_us": summary(end - arrival),
            }
    return found


def _pslc(run: BlockReplayed) -> dict[str, Any]:
    """Return object `pslc` of `ondie replay --json`: mode, counters, rated erases, capacities."""
    return {
        "mode": run.config.ftl.pslc,
        **{name: run.done.counters[name] for name in tables.PSLC},
        "rated_erases": run.config.flash.pslc_endurance_cycles,
        "pslc_bytes": pslc.capacity(run.config),
        "offered_bytes": capacity(run.config),
    }
