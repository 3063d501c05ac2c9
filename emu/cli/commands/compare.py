"""`ondie compare`: replay a trace through the update paths, with one configuration or over a sweep.

Owns the options, the checks for mutually exclusive options, and the order of the steps of a run.
Does not own the comparison (emu/analysis), the tables (results/tables) or the figures
(cli/figures). Source: this project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import click

from ondie import traces
from ondie.emu.analysis import compare as comparison
from ondie.emu.analysis import perfetto, step_budget, sweep
from ondie.emu.analysis.compare import Comparison
from ondie.emu.cli.click_helpers import WHOLE, WholeRange, progress_bar
from ondie.emu.cli.commands import foreground
from ondie.emu.cli.commands.foreground import Foreground
from ondie.emu.cli.options import (
    DriveOptions,
    batch_options,
    batches,
    drive_options,
    seed_option,
    split_names,
)
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.cluster.allocation import check_cores_taken
from ondie.emu.compute import training
from ondie.emu.compute.measure_host import with_measured_rate
from ondie.emu.config.config import Config
from ondie.emu.files import IMAGES
from ondie.emu.paths.base import Options
from ondie.emu.paths.offload.deepspeed_config import configured
from ondie.emu.paths.offload.options import Offload, parse_offload
from ondie.emu.results.comparison import ComparisonResult
from ondie.emu.results.tables import sweep as sweep_tables
from ondie.emu.units import InputError
from ondie.traces import Trace

TIMELINE_INTERVALS = 100_000


@dataclass(frozen=True, kw_only=True)
class CompareOptions(DriveOptions, OutputOptions):
    """The options of `ondie compare`; each field has the name of its click parameter."""

    paths: str | None
    steps: int | None
    timeline: Path | None
    weights_up: str
    stored: str | None
    form: str
    batch: str | None
    host_batch: int | None
    drive_batch: int | None
    cores_taken: float
    slowdown: str | None
    allreduce: str
    ds_config: Path | None
    knobs: tuple[str, ...]
    forward: str | None
    backward: str | None
    step_times: str | None
    measure_host: bool
    sampled: bool
    compression: float
    swing: bool
    verbose: bool
    along: tuple[str, ...]
    target_step: str | None
    seed: int
    foreground: Path | None
    foreground_from: str | None
    foreground_time_unit: str | None
    foreground_depth: int | None
    foreground_speed: float | None
    draws = True

    @property
    def names(self) -> tuple[str, str]:
        """Base names of the result and figure files in the folder of --out, without suffixes."""
        return ("sweep", "sweep") if self.along else ("result", "figure")

    def with_folder(self, trace: Trace, cfg: Config) -> CompareOptions:
        """Return these options with the default folder for --out, unless --out or --json is
        given."""
        if self.out is not None or self.json_path is not None:
            return self
        name = re.sub(r"[^\w.-]", "_", f"{trace.name}-{cfg.system.name}")
        return replace(self, out=Path("results") / name)

    def other_files(self) -> dict[str, Path]:
        """Return the paths of the files to write in addition to the result and its figure. The keys
        are the suffixes of the files of the tornado figure, and "timeline"."""
        found = {}
        if self.out is not None and self.swing and not self.along:
            found = {suffix: self.out / f"tornado.{suffix}" for suffix in IMAGES}
        return found if self.timeline is None else found | {"timeline": self.timeline}

    def users(self) -> Foreground:
        """Check the options of the block trace that runs concurrently with the update, and return
        them. Raises InputError as Foreground.check does."""
        users = Foreground(
            self.foreground, self.foreground_from, self.foreground_time_unit,
            self.foreground_depth, self.foreground_speed,
        )  # fmt: skip
        users.check()
        return users


@dataclass(frozen=True)
class Request:
    """One comparison: its options as given, the loaded trace and configuration, and the parsed
    values of the options."""

    given: CompareOptions
    trace: Trace
    cfg: Config
    paths: list[str] | None
    options: Options
    axes: Any
    users: Foreground
    target_s: float | None


def offloading(
    cfg: Config, ds_config: Path | None, knobs: tuple[str, ...]
) -> tuple[Config, Offload, str]:
    """Apply the DeepSpeed configuration ``ds_config`` and the values ``knobs`` of --offload.

    Returns the configuration with the block size and sub-groups of the DeepSpeed configuration, the
    options of host offload, and the number format of stored arrays.
    """
    offload, stored = Offload(), "fp32"
    if ds_config is not None:
        cfg, offload, stored = configured(cfg, ds_config)
    return cfg, parse_offload(knobs, offload), stored


@click.command()
@click.argument("trace")
@drive_options("optimstore-r1")
@click.option("--paths", metavar="NAME,…",
              help="Run only these update paths (comma-separated), and fail if one of them cannot "
                   "run.  [default: all except smart_base, smart_update, smart_handler and "
                   "smart_comp; ndpipe only if the trace trains a head; a path that cannot run "
                   "is shown as n/a]")  # fmt: skip
@click.option("--steps", type=WHOLE, metavar="N",
              help="Replay the first N steps.  [default: all recorded steps]")  # fmt: skip
@click.option("--timeline", type=click.Path(path_type=Path), metavar="FILE",
              help="Write a timeline of the simulation as a Chrome trace, which Perfetto "
                   "displays.")  # fmt: skip
@click.option("--weights-up", type=click.Choice(["fp32", "fp16"]), default="fp32",
              show_default=True, help="Transfer the new weights to the host in this number "
                                      "format.")  # fmt: skip
@click.option("--format", "stored", metavar="FORMAT",
              help="Store weights, gradients and states in this number format: fp32 (default), "
                   "bf16_master, fp16, bf16, bf16_all, bf16_stochastic, int8_dynamic, "
                   "int8_linear.")  # fmt: skip
@click.option("--form", type=click.Choice(["canonical", "torch"]), default="canonical",
              show_default=True,
              help="Round in the kernels after every operation (canonical), or as torch's fused "
                   "optimizers do (torch).")  # fmt: skip
@batch_options("same", "paper", "tuned", default="same",
               what="With path stannis, keep the global batch of the trace (same), use the "
                    "published batches (paper), or tune the batches to the speeds of the nodes "
                    "(tuned).")  # fmt: skip
@click.option("--allreduce", type=click.Choice(["ring", "tree", "star"]), default="ring",
              show_default=True,
              help="With path stannis, exchange gradients between host and drives by this "
                   "algorithm.")  # fmt: skip
@click.option(
    "--sampled",
    is_flag=True,
    help="Simulate samples of a large model and extrapolate; report the error.",
)
@click.option("--foreground", type=click.Path(path_type=Path), metavar="BLOCKTRACE",
              help="Run this block trace concurrently with the update.")  # fmt: skip
@click.option("--foreground-from", metavar="FORMAT",
              help="Read the block trace in this format (see `ondie replay --from`).")  # fmt: skip
@click.option("--foreground-time-unit", metavar="ps|ns|us",
              help="With --foreground-from mqsim, read the block trace's timestamps in this "
                   "unit.")  # fmt: skip
@click.option(
    "--foreground-depth",
    type=WholeRange(1, 65535),
    metavar="N",
    help="Keep N requests outstanding and ignore the block trace's timestamps.",
)
@click.option("--foreground-speed", type=float, metavar="X",
              help="Divide the block trace's inter-arrival times by X.")  # fmt: skip
@click.option("--ds-config", type=click.Path(path_type=Path), metavar="FILE",
              help="With path host_offload, read this DeepSpeed configuration (JSON); --set and "
                   "--offload override it.")  # fmt: skip
@click.option("--offload", "knobs", multiple=True, metavar="KEY=VALUE",
              help="With path host_offload, set an option (parameters, checkpointing, "
                   "pipeline_read, ratio, threads, ...); repeat for several options.")  # fmt: skip
@click.option("--step-times", type=click.Choice(list(training.RULES)),
              help="Compute the forward and backward times from the rate of the device's "
                   "accelerator and the MACs of the trace (accelerator), or use the times in the "
                   "trace (trace).  [default: accelerator if the device states a rate and the "
                   "trace states its MACs, else trace]")  # fmt: skip
@click.option("--forward", metavar="TIME",
              help="Set the duration of a step's forward phase.")  # fmt: skip
@click.option("--backward", metavar="TIME",
              help="Set the duration of a step's backward phase.")  # fmt: skip
@click.option(
    "--measure-host",
    is_flag=True,
    help="Measure host.adam, the rate of the optimizer step on the CPU, on this machine.",
)
@click.option("--compression", type=click.FloatRange(min=0, max=100, min_open=True), default=2.0,
              show_default=True, metavar="PERCENT",
              help="With path smart_comp, send this percentage of the gradient's bytes, indices "
                   "included.")  # fmt: skip
@click.option("--swing/--no-swing", default=True, show_default=True,
              help="Vary each constant over its range.")  # fmt: skip
@click.option("--verbose", is_flag=True,
              help="Print all tables: phases, traffic, lifetime, closed forms, weights, "
                   "sensitivity.")  # fmt: skip
@click.option("--sweep", "along", multiple=True, metavar="KEY=A,B,C",
              help="Compare at each of these values of KEY; repeat for a second key.")  # fmt: skip
@click.option("--target-step", metavar="TIME",
              help="Report whether the drive is fast enough for this step time.")  # fmt: skip
@seed_option("bit errors and failing operations; it is stored in the result")
@output_options(
    "the result",
    out="Write result.json and the figures (PNG and PDF) to this folder.  [default: "
        "results/TRACE-DEVICE, or none with --json]",
)  # fmt: skip
def compare(trace: str, **values: Any) -> None:
    """Replay TRACE through the update paths on a device and compare them."""
    given = CompareOptions(**values)
    request = load_request(trace, given)
    check_files(request)
    if request.given.out is not None:
        # The import of matplotlib takes a third of a second, in which the simulation runs.
        Thread(target=import_figures, daemon=True).start()
    if request.axes:
        run_sweep(request)
    else:
        run_comparison(request)


def import_figures() -> None:
    """Import in advance the module that draws the figures. Ignore an import error, because it
    occurs again when the figures are drawn."""
    with suppress(ImportError, OSError, MemoryError):
        import_module("ondie.emu.cli.figures.compare")


def load_request(name: str, given: CompareOptions) -> Request:
    """Load the trace and the configuration and parse the options. Raises InputError if one of them
    is invalid."""
    users = given.users()
    trace = traces.load(name)
    cfg = given.load_drive()
    paths = split_names(given.paths)
    cfg, offload, stored = offloading(cfg, given.ds_config, given.knobs)
    if given.measure_host:
        cfg = with_measured_rate(cfg, given.settings)
    forward, backward = given.forward, given.backward
    check_cores_taken(given.cores_taken, "--cores-taken")
    options = Options(
        weights_up=given.weights_up, form=given.form, format=given.stored or stored,
        batch=batches(given.batch, given.host_batch, given.drive_batch, default="same"),
        host_batch=given.host_batch, drive_batch=given.drive_batch, allreduce=given.allreduce,
        cores_taken=given.cores_taken, slowdown=given.slowdown, offload=offload,
        compression=given.compression, seed=given.seed, step_times=given.step_times,
        forward_s=None if forward is None else step_budget.duration(forward, "--forward"),
        backward_s=None if backward is None else step_budget.duration(backward, "--backward"),
    )  # fmt: skip
    target_s = None if given.target_step is None else step_budget.seconds(given.target_step)
    axes = sweep.axes(given.along, cfg)
    given = given.with_folder(trace, cfg)
    return Request(given, trace, cfg, paths, options, axes, users, target_s)


def check_files(request: Request) -> None:
    """Raise InputError if an option cannot be combined with --sweep, or a file cannot be
    written."""
    given = request.given
    if request.axes:
        for name in ("timeline", "foreground", "sampled"):
            if getattr(given, name):
                raise InputError(f"--{name} cannot be combined with --sweep")
    given.check(others=tuple(given.other_files().values()))


def run_sweep(request: Request) -> None:
    """Compare the update paths at every point of the sweep; write and print the rows."""
    given = request.given
    with progress_bar(given.quiet) as progress:
        rows = sweep.sweep(
            request.trace, request.cfg, request.axes, paths=request.paths,
            options=request.options, steps=given.steps, target_s=request.target_s,
            progress=progress,
        )  # fmt: skip

        def draw() -> Mapping[str, bytes]:
            from ondie.emu.cli.figures import sweep as figure  # matplotlib takes a second to import

            return figure.draw(rows)

        files = given.write(sweep.data(rows), draw, sort_keys=True)
    if (screen := given.console) is not None:
        sweep_tables.show(rows, screen)
    given.list_files(files)


def run_comparison(request: Request) -> None:
    """Run the update paths under one configuration and compare them; write and print the result."""
    given = request.given
    with progress_bar(given.quiet) as progress:
        requests = request.users.read(progress)
        loop = None if requests is None else request.users.loop(requests)
        runs = comparison.compare(
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
        result, tables = ComparisonResult.of(runs, request.target_s), []
        if requests is not None and loop is not None:
            rows = foreground.run(runs.trace, request.cfg, runs, requests, loop, progress)
            result.data["interference"] = foreground.data(rows, requests, loop)
            tables.append(foreground.table(rows, requests))
        files = given.write_result(result, lambda: draw_comparison(runs), draw_others(runs, given))
    if (screen := given.console) is not None:
        result.show(screen, given.verbose)
        for table in tables:
            screen.print(table)
    given.list_files(files)


def draw_comparison(result: Comparison) -> Mapping[str, bytes]:
    """Draw the figure of a comparison. Returns {"png": bytes, "pdf": bytes}."""
    from ondie.emu.cli.figures import compare as figure  # matplotlib takes a second to import

    return figure.draw(result)


def draw_others(result: Comparison, given: CompareOptions) -> dict[Path, bytes]:
    """Return the contents of the files other than the result and its figure, by path.

    These are the tornado figure, if constants were varied, and the timeline, if it was requested.
    """
    places = given.other_files()
    contents: dict[str, bytes] = {}
    if result.odds is not None and "png" in places:
        from ondie.emu.cli.figures import tornado

        contents |= tornado.draw(result)
    if given.timeline is not None:
        runs = [(r.timeline, r.dropped) for r in result.results if r.timeline is not None]
        contents["timeline"] = perfetto.merge(runs).encode()
    return {places[name]: content for name, content in contents.items()}
