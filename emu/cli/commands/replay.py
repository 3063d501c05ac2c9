"""`ondie replay`: replays a block trace through a drive and reports statistics and requests.

Owns the options, the checks for mutually exclusive options, and the files. Does not own the replay
and its result (results/replay.py) or the formats of the request log (replay/request_log.py).
Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ondie.emu.cli.click_helpers import WholeRange, progress_bar
from ondie.emu.cli.commands.block_requests import ReadOptions, read_options
from ondie.emu.cli.options import DriveOptions, drive_options, seed_option
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.config.config import Config
from ondie.emu.files import check_apart
from ondie.emu.replay import request_log
from ondie.emu.replay.block_trace import Loop, loop_of
from ondie.emu.results.replay import replayed
from ondie.emu.units import InputError
from ondie.traces import block_edit
from ondie.traces.block_model import BlockTrace


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(DriveOptions, ReadOptions, OutputOptions):
    """The options of `ondie replay`; each field has the name of its click parameter."""

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
                    f"--log {self.log_path}: the result is written to a file with this name; use "
                    "another name"
                )

    def arrivals(self, trace: BlockTrace, cfg: Config) -> Loop:
        """Return the rule for the submission times of requests: a queue depth, or timestamps.

        Raises InputError for options that cannot be combined.
        """
        given = {
            f"--queue-depth {self.queue_depth}": self.queue_depth is not None,
            "--as-fast-as-possible": self.fast,
            "--open": self.by_time,
            f"--speed {self.speed}": self.speed is not None and not self.by_time,
        }
        names = [name for name, is_given in given.items() if is_given]
        if len(names) > 1:
            raise InputError(f"{names[0]} and {names[1]} cannot be combined; use one of them")
        depth = cfg.frontend.queue_depth if self.fast else self.queue_depth
        return loop_of(
            trace, cfg, depth, 1.0 if self.by_time and self.speed is None else self.speed
        )


@click.command("replay")
@click.argument("name", metavar="BLOCKTRACE")
@drive_options("gen4-tlc", several=False)
@read_options(volume="--volume")
@click.option("--side-by-side", is_flag=True,
              help="Concatenate the address spaces of all devices.")  # fmt: skip
@click.option("--queue-depth", type=WholeRange(1, 65535), metavar="N",
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
    help="Bring the drive into this state before the first request: empty (none), written once "
    "sequentially (fill), or in steady state (steady).",
)  # fmt: skip
@click.option("--footprint", type=click.Choice(["refuse", "wrap"]), default="refuse",
              show_default=True,
              help="Refuse requests beyond the end of the drive, or wrap them around.")  # fmt: skip
@seed_option("preconditioning, policies, failing operations and bit errors")
@click.option("--log", "log_path", type=click.Path(path_type=Path), metavar="FILE",
              help="Write a log of all requests to FILE.csv (.csv.gz, .csv.xz) or "
                   "FILE.h5.")  # fmt: skip
@output_options("the statistics", quiet="tables or remarks")
def run_replay(name: str, **values: Any) -> None:
    """Replay a block trace through a drive.

    BLOCKTRACE is a file in the format of --from, or the sample mixed-4k.
    """
    given = ReplayOptions(**values)
    cfg = given.load_drive()
    given.check_files(name)
    with progress_bar(given.quiet) as progress:
        trace = given.read_requests(name, progress)
        if given.side_by_side:
            trace = block_edit.beside(trace)
        result = replayed(
            trace, cfg, given.arrivals(trace, cfg), kind=given.kind, footprint=given.footprint,
            seed=given.seed, progress=progress, say=given.remark,
        )  # fmt: skip
        for line in result.remarks:
            given.remark(line)
        if given.log_path is not None:
            request_log.write(result.run.requests, given.log_path)
        files = given.write_result(result)
        if (screen := given.console) is not None:
            result.show(screen)
        given.list_files([*files, *([] if given.log_path is None else [given.log_path])])
