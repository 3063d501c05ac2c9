"""`ondie replay`: a block trace through a drive, its statistics, tables and log of requests.

Owns which options exclude each other, what is written and what is said. Does not own the replay
(block_replay.py), the log's formats (request_log.py) or the tables (printed.py).
Source: none; the fields of `--json` are those of `ondie mqsim`, with the shares of time at work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from ondie.emu.cli.arguments import configuration, remark_unless
from ondie.emu.cli.click_helpers import progress_bar
from ondie.emu.cli.commands.block_requests import read_requests, reading_options
from ondie.emu.cli.console import console as screen
from ondie.emu.cli.files import check_apart, check_target, write_atomically
from ondie.emu.cli.tables import replay as printed
from ondie.emu.config.config import Config
from ondie.emu.ftl import pslc as modes
from ondie.emu.nvme.request import REQUEST_NAMES
from ondie.emu.replay import request_log
from ondie.emu.replay.block_trace import BlockReplayed, Loop, capacity, replay_block
from ondie.emu.replay.mqsim.to_engine import counters
from ondie.emu.replay.statistics import statistics, summary
from ondie.emu.units import InputError
from ondie.traces import block_edit
from ondie.traces.block_model import BlockTrace

WORD_LINES = (
    "padding_pages", "padded_at_flush", "padded_at_rest", "padded_in_time", "second_pass_pages",
    "gathered_most",
)  # fmt: skip
"""Counters of `word_lines` in `--json`, where flash.programming is not page."""
MANAGEMENT = (
    "collections", "overruled_victims", "copyback_pages", "merge_read_pages", "trimmed_pages",
    "unmapped_pages", "wear_moves", "program_failures", "bad_blocks",
)  # fmt: skip
"""Counters of `management` in `--json`."""
ERRORS = (
    "retried_pages", "retry_read_pages", "soft_pages", "soft_read_pages", "corrected_bits",
    "uncorrectable_pages", "lost_pages", "media_errors", "reclaimed_blocks",
)  # fmt: skip
"""Counters of `errors` in `--json`, where errors.kind is not none."""


def check_targets(json_path: Path | None, log_path: Path | None, read: str) -> None:
    """InputError, TraceError when a file cannot be written, or is the trace that is ``read``:
    before a long run, not after."""
    if json_path is not None:
        check_target(json_path, read)
    if log_path is not None:
        check_apart(log_path, read)
        request_log.check(log_path)
        if json_path is not None and json_path.resolve() == log_path.resolve():
            raise InputError(f"--log {log_path}: --json has a file of that name")


def loop(
    trace: BlockTrace,
    cfg: Config,
    queue_depth: int | None,
    by_time: bool,
    speed: float | None,
    fast: bool,
) -> Loop:
    """How the requests are let go, by the options of the command line. InputError for options that
    exclude each other, or for a trace without times that is to run by them."""
    given = {
        f"--queue-depth {queue_depth}": queue_depth is not None,
        "--as-fast-as-possible": fast,
        "--open": by_time,
        f"--speed {speed}": speed is not None and not by_time,
    }
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise InputError(f"{names[0]} and {names[1]}: one of them is right")
    if queue_depth is not None:
        return Loop(queue_depth)
    if fast:
        return Loop(cfg.frontend.queue_depth)
    if not trace.timed and not names:
        return Loop(cfg.host.io_queue_depth)
    return Loop(None, 1.0 if speed is None else speed)


def command(
    trace: BlockTrace,
    cfg: Config,
    loop: Loop,
    *,
    kind: str,
    footprint: str,
    seed: int,
    json_path: Path | None,
    log_path: Path | None,
    remark: Callable[[str], None],
    console: Console | None,
    progress: Callable[[str, float], None] | None,
) -> None:
    """Replay, write, show. InputError, TraceError: nothing is written. SimulationError: the run
    does not balance."""
    begin = time.perf_counter()
    shares = None if progress is None else _shares(progress, len(trace))
    r = replay_block(
        trace, cfg, loop, kind=kind, footprint=footprint, seed=seed, progress=shares
    )  # fmt: skip
    data = statistics(
        [r.requests],
        counters(r.done.counters),
        half=None if r.half is None else counters(r.half),
        wall_s=time.perf_counter() - begin - r.done.warmed_s,
        config=_settings(trace, r, loop, kind, footprint, seed),
        since="arrival",
    )
    data["utilisation"] = r.busy
    data["operations"] = operations(r.requests)
    data["management"] = {name: r.done.counters[name] for name in MANAGEMENT}
    if r.config.errors.kind != "none":
        data["errors"] = {name: r.done.counters[name] for name in ERRORS}
    if r.config.ftl.pslc != "off":
        data["pslc"] = _pslc(r)
    if r.config.flash.programming != "page":
        data["word_lines"] = {name: r.done.counters[name] for name in WORD_LINES}
    for line in (*trace.notes, *r.notes, *_about(trace, loop), *_failed(r), *_overruled(r)):
        remark(line)
    files: dict[Path, bytes] = {}
    if json_path is not None:
        files[json_path] = (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()
    if log_path is not None:
        request_log.write(r.requests, log_path)
    write_atomically(files)
    if console is not None:
        show(r, data, console)
        written = [path for path in (json_path, log_path) if path is not None]
        if written:
            console.print("written: " + ", ".join(map(str, written)))


def _shares(progress: Callable[[str, float], None], requests: int) -> Callable[[int, int], None]:
    return lambda done, now_ps: progress("replay", min(done / requests, 1.0))


def _about(trace: BlockTrace, loop: Loop) -> list[str]:
    if loop.depth is not None and not trace.timed:
        return [f"the trace holds no times: closed loop, {loop.depth} requests outstanding"]
    return []


def _failed(r: BlockReplayed) -> list[str]:
    """Requests that the drive has answered with an error: the replay goes on, as a host would."""
    failed = r.requests[r.requests["status"] != 0]
    if not len(failed):
        return []
    first = failed[0]
    return [
        f"{len(failed)} requests ended with an unrecovered read error (NVMe status "
        f"{int(first['status']):#x}), the first is request {int(first['tag'])}: "
        f"{int(first['size'])} bytes at {int(first['offset'])}"
    ]


def _overruled(r: BlockReplayed) -> list[str]:
    """How often the drive could not do as its victim policy said."""
    n = r.done.counters["overruled_victims"]
    if n == 0:
        return []
    return [
        f"{n} of {r.done.counters['collections']} collections emptied the block with the fewest "
        f"valid pages: what ftl.gc_policy = {r.config.ftl.gc_policy} chose would have brought no "
        "free block when the last ones were needed"
    ]


def operations(requests: np.ndarray) -> dict[str, dict[str, Any]]:
    """Requests, bytes and latencies from arrival to completion by operation. REQUEST[n]."""
    found = {}
    for op, name in enumerate(REQUEST_NAMES):
        part = requests[requests["op"] == op]
        if len(part):
            found[name] = {
                "requests": len(part),
                "bytes": int(part["size"].sum()),
                "latency_us": summary(part["end"] - part["arrival"]),
            }
    return found


def _pslc(r: BlockReplayed) -> dict[str, Any]:
    """What `--json` says of blocks in pSLC mode."""
    return {
        "mode": r.config.ftl.pslc,
        **{name: r.done.counters[name] for name in printed.PSLC},
        "rated_erases": r.config.flash.pslc_endurance_cycles,
        "pslc_bytes": modes.capacity(r.config),
        "offered_bytes": capacity(r.config),
    }


def _settings(
    trace: BlockTrace, r: BlockReplayed, loop: Loop, kind: str, footprint: str, seed: int
) -> dict[str, Any]:
    """What the result rests on: the trace, how it was replayed, and the resolved drive."""
    return {
        "trace": {"source": trace.source, "format": trace.format, "requests": len(trace)},
        "queue_depth": loop.depth,
        "speed": loop.speed if loop.depth is None else None,
        "precondition": kind,
        "footprint": footprint,
        "seed": seed,
        "drive": r.config.resolved(),
    }


def show(r: BlockReplayed, data: dict[str, Any], console: Console) -> None:
    """Latencies, requests by operation, flash work, and where the time went."""
    console.print(printed.latency_table(data))
    console.print(printed.operations_table(data["operations"]))
    console.print(printed.flash_table(data))
    if "errors" in data:
        console.print(printed.errors_table(data["errors"]))
    if "pslc" in data:
        console.print(printed.pslc_table(data["pslc"]))
    if "word_lines" in data:
        console.print(printed.word_lines_table(data["word_lines"]))
    console.print(printed.busy_table(r.busy))
    console.print(printed.run_words(data))


@click.command("replay")
@click.argument("name", metavar="BLOCKTRACE")
@click.option("--device", default="gen4-tlc", show_default=True, help="Preset or TOML file.")
@click.option("--from", "form", required=True, metavar="FORMAT",
              help="mqsim, msr, fio (fio2, fio3) or blkparse.")  # fmt: skip
@partial(reading_options, volume="--volume")
@click.option("--side-by-side", is_flag=True, help="All devices as one address space.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a constant.")
@click.option(
    "--queue-depth",
    type=click.IntRange(1, 65535),
    help="So many requests outstanding, whatever their times.",
)
@click.option("--open", "by_time", is_flag=True, help="At their times, the default where known.")
@click.option("--speed", type=float, help="Times of the trace over this.")
@click.option("--as-fast-as-possible", "fast", is_flag=True, help="As many as the drive queues.")
@click.option(
    "--precondition",
    "kind",
    type=click.Choice(["none", "fill", "steady"]),
    default="fill",
    show_default=True,
    help="The drive before the first request: empty, written once in order, or until steady.",
)
@click.option(
    "--footprint",
    type=click.Choice(["refuse", "wrap"]),
    default="refuse",
    show_default=True,
    help="Requests past the end of the drive.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random choices."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Statistics as JSON.")
@click.option(
    "--log",
    "log_path",
    type=click.Path(path_type=Path),
    help="Every request: FILE.csv (.csv.gz, .csv.xz) or FILE.h5.",
)
@click.option("--quiet", is_flag=True, help="No progress bar, no tables and no remarks.")
def run_replay(
    name: str, device: str, form: str, side_by_side: bool, settings: tuple[str, ...],
    queue_depth: int | None, by_time: bool, speed: float | None, fast: bool, kind: str,
    footprint: str, seed: int, json_path: Path | None, log_path: Path | None, quiet: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Replay a block trace through a drive."""
    cfg = configuration(device, settings, None)
    check_targets(json_path, log_path, name)
    with progress_bar(quiet) as progress:
        trace = read_requests(name, form, progress=progress, **options)
        if side_by_side:
            trace = block_edit.beside(trace)
        arrivals = loop(trace, cfg, queue_depth, by_time, speed, fast)
        command(
            trace, cfg, arrivals, kind=kind, footprint=footprint, seed=seed, json_path=json_path,
            log_path=log_path, remark=remark_unless(quiet), console=None if quiet else screen(),
            progress=progress,
        )  # fmt: skip
