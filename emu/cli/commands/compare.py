"""`ondie compare`: replay a trace through the update paths, at one point or over a sweep.

Owns the options, which of them exclude each other, and the order of a run. Does not own the
comparison (emu/analysis), the tables (cli/tables) or the figures (cli/figures). Source: own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import click

from ondie import traces
from ondie.emu.analysis import compare as comparison
from ondie.emu.analysis import step_budget, sweep
from ondie.emu.cli.arguments import configuration, split_names
from ondie.emu.cli.click_helpers import progress_bar
from ondie.emu.cli.commands import foreground
from ondie.emu.cli.commands.foreground import Foreground
from ondie.emu.cli.console import console
from ondie.emu.cli.files import check_target, targets, tornado_targets
from ondie.emu.cli.tables import compare as report
from ondie.emu.cli.tables import sweep as sweep_tables
from ondie.emu.compute.measure_host import with_measured_rate
from ondie.emu.config.config import Config
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.deepspeed_config import configured
from ondie.emu.paths.offload.options import Offload, parse_offload
from ondie.emu.units import InputError
from ondie.traces import Trace

TIMELINE_INTERVALS = 100_000


@dataclass(frozen=True)
class CompareOptions:
    """The options of `ondie compare`, each under the name that click gives it."""

    device: str
    paths: str | None
    settings: tuple[str, ...]
    devices: int | None
    steps: int | None
    out: Path | None
    timeline: Path | None
    weights_up: str
    stored: str | None
    form: str
    batch: str
    allreduce: str
    ds_config: Path | None
    knobs: tuple[str, ...]
    forward: str | None
    backward: str | None
    measure_host: bool
    sampled: bool
    compression: float
    swing: bool
    along: tuple[str, ...]
    target_step: str | None
    seed: int
    quiet: bool
    foreground: Path | None
    foreground_from: str | None
    foreground_time_unit: str | None
    foreground_depth: int | None
    foreground_speed: float | None

    def users(self) -> Foreground:
        """The block trace that runs concurrently with the update, after its check."""
        users = Foreground(
            self.foreground, self.foreground_from, self.foreground_time_unit,
            self.foreground_depth, self.foreground_speed,
        )  # fmt: skip
        users.check()
        return users


@dataclass(frozen=True)
class Request:
    """What one call compares: inputs that were loaded and options that were checked."""

    trace: Trace
    cfg: Config
    paths: list[str] | None
    options: Options
    axes: Any
    users: Foreground
    folder: Path
    target_s: float | None


def offloading(
    cfg: Config, ds_config: Path | None, knobs: tuple[str, ...]
) -> tuple[Config, Offload, str]:
    """--ds-config and --offload: the configuration with what it says of blocks and sub-groups, the
    options of host offload, and the format of what is stored."""
    offload, format = Offload(), "fp32"
    if ds_config is not None:
        cfg, offload, format = configured(cfg, ds_config)
    return cfg, parse_offload(knobs, offload), format


@click.command()
@click.argument("trace")
@click.option("--device", default="optimstore-r1", show_default=True, help="Preset or TOML file.")
@click.option(
    "--paths",
    help="Paths to run, comma separated; all but smart_base, smart_update, smart_handler and "
    "smart_comp by default.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a constant.")
@click.option("--devices", type=int, help="Number of drives, as --set system.devices=N.")
@click.option("--steps", type=int, help="Steps to replay; all recorded ones by default.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of result.json and figure.")
@click.option("--timeline", type=click.Path(path_type=Path), help="Chrome trace for Perfetto.")
@click.option(
    "--weights-up", type=click.Choice(["fp32", "fp16"]), default="fp32", show_default=True
)
@click.option(
    "--format",
    "stored",
    metavar="FORMAT",
    help="How weights, gradients and states are stored: fp32 (default), bf16_master, fp16, bf16, "
    "bf16_all, bf16_stochastic, int8_dynamic, int8_linear.",
)
@click.option(
    "--form",
    type=click.Choice(["canonical", "torch"]),
    default="canonical",
    show_default=True,
    help="Kernel form: the project's own, or torch's fused result.",
)
@click.option(
    "--batch",
    type=click.Choice(["same", "paper"]),
    default="same",
    show_default=True,
    help="stannis: the trace's global batch, or the sum of the tuned batches.",
)
@click.option(
    "--allreduce",
    type=click.Choice(["ring", "tree", "star"]),
    default="ring",
    show_default=True,
    help="stannis: how host and drives exchange gradients.",
)
@click.option(
    "--sampled",
    is_flag=True,
    help="Simulate samples of a large model and extrapolate; report the error.",
)
@click.option("--foreground", type=click.Path(path_type=Path), metavar="BLOCKTRACE",
              help="Run this block trace concurrently with the update.")  # fmt: skip
@click.option(
    "--foreground-from",
    metavar="FORMAT",
    help="Format of the block trace (see `ondie replay --from`).",
)
@click.option(
    "--foreground-time-unit", metavar="ps|ns|us", help="mqsim: unit of the trace's times."
)
@click.option("--foreground-depth", type=click.IntRange(1, 65535),
              help="Keep N requests outstanding and ignore the trace's timestamps.")  # fmt: skip
@click.option("--foreground-speed", type=float, help="Divide the trace's inter-arrival times by X.")
@click.option(
    "--ds-config",
    type=click.Path(path_type=Path),
    help="host_offload: a DeepSpeed configuration, JSON; --set and --offload go before it.",
)
@click.option(
    "--offload",
    "knobs",
    multiple=True,
    metavar="KEY=VALUE",
    help="host_offload: parameters, checkpointing, pipeline_read, ratio, threads, ...",
)
@click.option(
    "--forward", metavar="TIME", help="Time of the forward phase of a step instead of the trace's."
)
@click.option(
    "--backward",
    metavar="TIME",
    help="Time of the backward phase of a step instead of the trace's.",
)
@click.option("--measure-host", is_flag=True, help="Measure host.adam on this machine.")
@click.option(
    "--compression",
    type=click.FloatRange(min=0, max=100, min_open=True),
    default=2.0,
    show_default=True,
    help="smart_comp: percent of the gradient's bytes that are sent, index and value.",
)
@click.option("--swing/--no-swing", default=True, help="Vary each constant over its range.")
@click.option(
    "--sweep",
    "along",
    multiple=True,
    metavar="KEY=A,B,C",
    help="Compare at each value; two at most.",
)
@click.option(
    "--target-step",
    metavar="TIME",
    help="Report whether the drive is fast enough for a step of this time.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of bit errors and of failing programs and erases; recorded with the result.",
)
@click.option("--quiet", is_flag=True, help="No progress bar and no tables.")
def compare(trace: str, **values: Any) -> None:
    """Replay TRACE through the update paths on a device and compare them."""
    given = CompareOptions(**values)
    request = load_request(trace, given)
    check_files(request, given)
    # matplotlib takes a third of a second to import: time in which the simulation runs.
    Thread(target=import_module, args=("ondie.emu.cli.figures.compare",), daemon=True).start()
    if request.axes:
        run_sweep(request, given)
    else:
        run_comparison(request, given)


def load_request(name: str, given: CompareOptions) -> Request:
    """Load the trace and the configuration and parse the options. Raises InputError."""
    users = given.users()
    trace = traces.load(name)
    cfg = configuration(given.device, given.settings, given.devices)
    paths = split_names(given.paths)
    cfg, offload, stated = offloading(cfg, given.ds_config, given.knobs)
    if given.measure_host:
        cfg = with_measured_rate(cfg, given.settings)
    forward, backward = given.forward, given.backward
    options = Options(
        weights_up=given.weights_up, form=given.form, format=given.stored or stated,
        batch=given.batch, allreduce=given.allreduce, offload=offload,
        compression=given.compression, seed=given.seed,
        forward_s=None if forward is None else step_budget.duration(forward, "--forward"),
        backward_s=None if backward is None else step_budget.duration(backward, "--backward"),
    )  # fmt: skip
    folder = given.out or Path("results") / re.sub(
        r"[^\w.-]", "_", f"{trace.name}-{cfg.system.name}"
    )
    target_s = None if given.target_step is None else step_budget.seconds(given.target_step)
    axes = sweep.axes(given.along, cfg)
    return Request(trace, cfg, paths, options, axes, users, folder, target_s)


def check_files(request: Request, given: CompareOptions) -> None:
    """Raise InputError for an option that a sweep lacks, or a file that cannot be written."""
    if request.axes:
        for name in ("timeline", "foreground", "sampled"):
            if getattr(given, name):
                raise InputError(f"--{name} cannot be combined with --sweep")
        written = sweep_tables.targets(request.folder)
    else:
        tornado = tornado_targets(request.folder) if given.swing else ()
        written = (*targets(request.folder), *tornado)
    for file in (*written, *([given.timeline] if given.timeline else [])):
        check_target(file)
    if given.timeline in written:
        raise InputError(f"--timeline {given.timeline}: the result has a file of that name")


def run_sweep(request: Request, given: CompareOptions) -> None:
    """Compare at every point of the axes; write and show the rows."""
    with progress_bar(given.quiet) as progress:
        rows = sweep.sweep(
            request.trace, request.cfg, request.axes, paths=request.paths,
            options=request.options, steps=given.steps, target_s=request.target_s,
            progress=progress,
        )  # fmt: skip
        files = sweep_tables.write(rows, request.folder)
    if not given.quiet:
        sweep_tables.show(rows, console())
        console().print("written: " + ", ".join(str(file) for file in files))


def run_comparison(request: Request, given: CompareOptions) -> None:
    """Compare at one point; write and show the result."""
    with progress_bar(given.quiet) as progress:
        requests = request.users.read(progress)
        loop = None if requests is None else request.users.loop(requests)
        result = comparison.compare(
            request.trace,
            request.cfg,
            paths=request.paths,
            options=request.options,
            steps=given.steps,
            timeline=TIMELINE_INTERVALS if given.timeline else 0,
            swing=given.swing,
            sampled=given.sampled,
            progress=progress,
        )
        more, tables = {}, []
        if requests is not None and loop is not None:
            felt = foreground.felt(result.trace, request.cfg, result, requests, loop, progress)
            more["interference"] = foreground.data(felt, requests, loop)
            tables.append(foreground.table(felt, requests))
        files = report.write(
            result, request.folder, given.seed, given.timeline, request.target_s, more
        )
    if not given.quiet:
        screen = console()
        report.show(result, screen, request.target_s)
        for table in tables:
            screen.print(table)
        screen.print("written: " + ", ".join(str(file) for file in files))
