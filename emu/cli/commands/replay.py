"""`ondie replay`: a block trace through a drive, its statistics, tables and log of requests.

Owns the options, which of them exclude each other, and the output. Does not own the replay
(replay/block_trace.py), the log's formats (replay/request_log.py) or the tables (tables/replay.py).
Source: none; `--json` has the fields of `ondie mqsim` and the shares of busy time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from ondie.emu.cli.click_helpers import progress_bar
from ondie.emu.cli.commands.block_requests import ReadOptions, read_options
from ondie.emu.cli.files import check_apart
from ondie.emu.cli.options import DriveOptions, drive_options, seed_option
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.cli.tables import replay
from ondie.emu.config.config import Config
from ondie.emu.config.rules.rule import mapping_unit
from ondie.emu.ftl import pslc
from ondie.emu.nvme.request import REQUEST_NAMES
from ondie.emu.replay import request_log
from ondie.emu.replay.block_trace import (
    FEWEST_BLOCKS,
    BlockReplayed,
    Loop,
    capacity,
    least_pages,
    replay_block,
)
from ondie.emu.replay.mqsim.to_engine import counters
from ondie.emu.replay.statistics import statistics, summary
from ondie.emu.units import InputError, fmt_bytes
from ondie.traces import block_edit
from ondie.traces.block_model import BlockTrace

WORD_LINES = (
    "padding_pages", "padded_at_flush", "padded_at_rest", "padded_in_time", "second_pass_pages",
    "gathered_most",
)  # fmt: skip
"""Names of the counters in `word_lines` of `--json`, present if flash.programming is not "page"."""
MANAGEMENT = (
    "collections", "overruled_victims", "copyback_pages", "merge_read_pages", "trimmed_pages",
    "unmapped_pages", "wear_moves", "program_failures", "bad_blocks",
)  # fmt: skip
"""Names of the counters in `management` of `--json`."""
ERRORS = (
    "retried_pages", "retry_read_pages", "soft_pages", "soft_read_pages", "corrected_bits",
    "uncorrectable_pages", "lost_pages", "media_errors", "reclaimed_blocks",
)  # fmt: skip
"""Names of the counters in `errors` of `--json`, present if errors.kind is not "none"."""


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(DriveOptions, ReadOptions, OutputOptions):
    """The options of `ondie replay`; each field has the name that click gives the option."""

    side_by_side: bool
    queue_depth: int | None
    by_time: bool
    speed: float | None
    fast: bool
    kind: str
    footprint: str
    seed: int
    log_path: Path | None

    def check_files(self, trace: str) -> None:
        """Raise InputError or TraceError if an output file cannot be written or is the input
        file.
        """
        self.check(trace)
        if self.log_path is not None:
            check_apart(self.log_path, trace)
            request_log.check_log_path(self.log_path)
            if self.log_path.resolve() in [path.resolve() for path in self.json_files()]:
                raise InputError(
                    f"--log {self.log_path}: the result has a file of that name; use another name"
                )

    def arrivals(self, trace: BlockTrace, cfg: Config) -> Loop:
        """Return the rule that says when requests are submitted: a queue depth, or timestamps.

        Raises InputError for options that exclude each other, or if the rule is timestamps and the
        trace has none.
        """
        given = {
            f"--queue-depth {self.queue_depth}": self.queue_depth is not None,
            "--as-fast-as-possible": self.fast,
            "--open": self.by_time,
            f"--speed {self.speed}": self.speed is not None and not self.by_time,
        }
        names = [name for name, is_given in given.items() if is_given]
        if len(names) > 1:
            raise InputError(f"{names[0]} and {names[1]} exclude each other; use one of them")
        if self.queue_depth is not None:
            return Loop(self.queue_depth)
        if self.fast:
            return Loop(cfg.frontend.queue_depth)
        if not trace.timed and not names:
            return Loop(cfg.host.io_queue_depth)
        return Loop(None, 1.0 if self.speed is None else self.speed)


def replay_trace(
    trace: BlockTrace,
    cfg: Config,
    given: ReplayOptions,
    progress: Callable[[str, float], None] | None,
) -> None:
    """Replay the trace, write the result and the log, and print the tables.

    Nothing is written after InputError or TraceError. Raises SimulationError if the requests and
    operations of the run do not balance.
    """
    began = time.perf_counter()
    loop = given.arrivals(trace, cfg)
    shares = None if progress is None else _shares(progress, len(trace))
    run = replay_block(
        trace, cfg, loop, kind=given.kind, footprint=given.footprint, seed=given.seed,
        progress=shares,
    )  # fmt: skip
    data = statistics(
        [run.requests],
        counters(run.done.counters),
        page_bytes=mapping_unit(run.config),
        half=None if run.half is None else counters(run.half),
        least_pages=least_pages(run.config, given.kind),
        wall_s=time.perf_counter() - began - run.done.warmed_s,
        config=_settings(trace, run, loop, given),
        since="arrival",
    )
    data["utilisation"] = run.busy
    data["operations"] = operations(run.requests)
    data["counters"] = run.done.counters
    data["management"] = {name: run.done.counters[name] for name in MANAGEMENT}
    if run.config.errors.kind != "none":
        data["errors"] = {name: run.done.counters[name] for name in ERRORS}
    if run.config.ftl.pslc != "off":
        data["pslc"] = _pslc(run)
    if run.config.flash.programming != "page":
        data["word_lines"] = {name: run.done.counters[name] for name in WORD_LINES}
    remarks = (*trace.notes, *run.notes, *_about(trace, loop), *_short(run, data, given.kind))
    for line in (*remarks, *_failed(run), *_overruled(run)):
        given.remark(line)
    if given.log_path is not None:
        request_log.write(run.requests, given.log_path)
    files = given.write(data)
    if (screen := given.console) is not None:
        show(run, data, screen)
    given.list_files([*files, *([] if given.log_path is None else [given.log_path])])


def _shares(progress: Callable[[str, float], None], requests: int) -> Callable[[int, int], None]:
    """Return a callback for the replay that reports the share of completed requests to
    ``progress``.
    """
    return lambda done, now_ps: progress("replay", min(done / requests, 1.0))


def _about(trace: BlockTrace, loop: Loop) -> list[str]:
    """Return a remark if the trace has no timestamps and a queue depth is used instead."""
    if loop.depth is not None and not trace.timed:
        return [f"the trace has no timestamps; {loop.depth} requests are kept outstanding instead"]
    return []


def _short(run: BlockReplayed, data: Mapping[str, Any], kind: str) -> list[str]:
    """Return a remark if the run is too short for a write amplification in steady state."""
    least = least_pages(run.config, kind) * mapping_unit(run.config)
    pages = data["flash"]["user_writes"] * mapping_unit(run.config)
    if not pages or pages >= least:
        return []
    return [
        f"no write amplification: the host programmed {fmt_bytes(pages)}, and collection in steady "
        f"state empties blocks of {fmt_bytes(least // FEWEST_BLOCKS)} in all units of the drive "
        f"together; replay at least {fmt_bytes(least)} of writes, or use --precondition fill"
    ]


def _failed(run: BlockReplayed) -> list[str]:
    """Return a remark on the requests that ended with a read error; they do not end the replay."""
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
    """Return a remark on how often the drive did not use the choice of its victim policy."""
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

    ``requests``: REQUEST[n]. The latency is the time from arrival to completion.
    """
    found = {}
    for op, name in enumerate(REQUEST_NAMES):
        rows = np.flatnonzero(requests["op"] == op)
        if len(rows):
            found[name] = {
                "requests": len(rows),
                "bytes": int(requests["size"][rows].sum()),
                "latency_us": summary(requests["end"][rows] - requests["arrival"][rows]),
            }
    return found


def _pslc(run: BlockReplayed) -> dict[str, Any]:
    """Return the part of `--json` on pSLC blocks: mode, counters, rated erases, capacities."""
    return {
        "mode": run.config.ftl.pslc,
        **{name: run.done.counters[name] for name in replay.PSLC},
        "rated_erases": run.config.flash.pslc_endurance_cycles,
        "pslc_bytes": pslc.capacity(run.config),
        "offered_bytes": capacity(run.config),
    }


def _settings(
    trace: BlockTrace, run: BlockReplayed, loop: Loop, given: ReplayOptions
) -> dict[str, Any]:
    """Return the inputs of the run for `--json`: trace, options, and resolved configuration."""
    return {
        "trace": {"source": trace.source, "format": trace.format, "requests": len(trace)},
        "queue_depth": loop.depth,
        "speed": loop.speed if loop.depth is None else None,
        "precondition": given.kind,
        "footprint": given.footprint,
        "seed": given.seed,
        "drive": run.config.resolved(),
    }


def show(run: BlockReplayed, data: dict[str, Any], console: Console) -> None:
    """Print latencies, requests by operation, flash operations, and shares of busy time."""
    console.print(replay.latency_table(data))
    console.print(replay.operations_table(data["operations"]))
    console.print(replay.flash_table(data))
    if "errors" in data:
        console.print(replay.errors_table(data["errors"]))
    if "pslc" in data:
        console.print(replay.pslc_table(data["pslc"]))
    if "word_lines" in data:
        console.print(replay.word_lines_table(data["word_lines"]))
    console.print(replay.busy_table(run.busy))
    console.print(replay.run_words(data))


@click.command("replay")
@click.argument("name", metavar="BLOCKTRACE")
@drive_options("gen4-tlc", several=False)
@read_options(volume="--volume")
@click.option("--side-by-side", is_flag=True,
              help="Concatenate the address spaces of all devices.")  # fmt: skip
@click.option("--queue-depth", type=click.IntRange(1, 65535), metavar="N",
              help="Keep N requests outstanding and ignore the trace's timestamps.")  # fmt: skip
@click.option("--open", "by_time", is_flag=True,
              help="Submit requests at the trace's timestamps (default).")  # fmt: skip
@click.option("--speed", type=float, metavar="X",
              help="Divide the trace's inter-arrival times by X.")  # fmt: skip
@click.option("--as-fast-as-possible", "fast", is_flag=True,
              help="Keep as many requests outstanding as the drive's queue holds.")  # fmt: skip
@click.option(
    "--precondition", "kind", type=click.Choice(["none", "fill", "steady"]), default="fill",
    show_default=True,
    help="State of the drive before the first request: empty, written once sequentially, or in "
    "steady state.",
)  # fmt: skip
@click.option("--footprint", type=click.Choice(["refuse", "wrap"]), default="refuse",
              show_default=True,
              help="Refuse requests beyond the end of the drive, or wrap them around.")  # fmt: skip
@seed_option("preconditioning, policies, failing operations and bit errors")
@click.option("--log", "log_path", type=click.Path(path_type=Path), metavar="FILE",
              help="Write every request to FILE.csv (.csv.gz, .csv.xz) or FILE.h5.")  # fmt: skip
@output_options("the statistics", quiet="tables or remarks")
def run_replay(name: str, **values: Any) -> None:
    """Replay a block trace through a drive."""
    given = ReplayOptions(**values)
    cfg = given.load_drive()
    given.check_files(name)
    with progress_bar(given.quiet) as progress:
        trace = given.read_requests(name, progress)
        if given.side_by_side:
            trace = block_edit.beside(trace)
        replay_trace(trace, cfg, given, progress)
