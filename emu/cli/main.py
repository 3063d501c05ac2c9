"""The command line.

Owns arguments, progress, exit codes: 2 for bad input (one line, nothing written), 1 for a failed
check, 130 for an interrupt. Does not own any work.
Source: none; click parses, rich draws.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import click
from rich.table import Column, Table

from ondie.emu.cli.click_helpers import Group, progress_bar
from ondie.emu.cli.commands.cluster import stannis
from ondie.emu.cli.console import compiling, console
from ondie.emu.config.config import Config, diff, load_preset, preset_list, preset_table, shown
from ondie.emu.units import KINDS, InputError, fmt_bytes, parse
from ondie.kernels import KernelError, code_cache, jit
from ondie.traces import TraceError

if TYPE_CHECKING:
    from ondie.emu.paths.offload.options import Offload
    from ondie.traces.block import BlockTrace

TIMELINE_INTERVALS = 100_000


def split_names(text: str | None) -> list[str] | None:
    """ "a,b" as a list; None stays."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(f"--paths {text!r}: an empty name; write for example on_die,host_offload")
    return names


def configuration(device: str, settings: tuple[str, ...], devices: int | None) -> Config:
    """A preset with --set and --devices applied."""
    extra = (f"system.devices={devices}",) if devices is not None else ()
    return load_preset(device, [*settings, *extra])


def offloading(
    cfg: Config, ds_config: Path | None, knobs: tuple[str, ...]
) -> tuple[Config, Offload, str]:
    """--ds-config and --offload: the configuration with what it says of blocks and sub-groups, the
    options of host offload, and the format of what is stored."""
    from ondie.emu.paths.offload.deepspeed_config import configured
    from ondie.emu.paths.offload.options import Offload, parse_offload

    offload, format = Offload(), "fp32"
    if ds_config is not None:
        cfg, offload, format = configured(cfg, ds_config)
    return cfg, parse_offload(knobs, offload), format


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ondie")
def commands() -> None:
    """Emulate a computational storage drive and replay training runs through it."""


@commands.command()
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
    "--sampled", is_flag=True, help="Extend large models from pieces of them; says how exactly."
)
@click.option("--foreground", type=click.Path(path_type=Path), metavar="BLOCKTRACE",
              help="The drive's other users meanwhile.")  # fmt: skip
@click.option("--foreground-from", metavar="FORMAT", help="Its format, as of ondie replay --from.")
@click.option("--foreground-time-unit", metavar="ps|ns|us", help="mqsim: unit of its times.")
@click.option("--foreground-depth", type=click.IntRange(1, 65535),
              help="So many requests outstanding, whatever their times.")  # fmt: skip
@click.option("--foreground-speed", type=float, help="Times of the requests over this.")
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
@click.option("--forward", metavar="TIME", help="Forward of a step, in place of the trace's.")
@click.option("--backward", metavar="TIME", help="Backward of a step, in place of the trace's.")
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
@click.option("--target-step", metavar="TIME", help="Is the drive fast enough for such a step?")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of bit errors, and of programs and erases that fail; recorded with the result.",
)
@click.option("--quiet", is_flag=True, help="No progress bar and no tables.")
def compare(
    trace: str, device: str, paths: str | None, settings: tuple[str, ...], devices: int | None,
    steps: int | None, out: Path | None, timeline: Path | None, weights_up: str,
    format: str | None, form: str, batch: str, allreduce: str, ds_config: Path | None,
    knobs: tuple[str, ...],
    forward: str | None, backward: str | None, measure_host: bool, sampled: bool,
    compression: float, swing: bool, along: tuple[str, ...], target_step: str | None, seed: int,
    quiet: bool, foreground: Path | None, foreground_from: str | None,
    foreground_time_unit: str | None, foreground_depth: int | None, foreground_speed: float | None,
) -> None:  # fmt: skip
    """Replay TRACE through the update paths on a device and compare them."""
    from ondie import traces
    from ondie.emu.analysis import compare as comparison
    from ondie.emu.analysis import step_budget as target
    from ondie.emu.analysis import sweep
    from ondie.emu.cli.commands import foreground as users
    from ondie.emu.cli.files import check_target, targets, tornado_targets
    from ondie.emu.cli.tables import compare as report
    from ondie.emu.cli.tables import sweep as sweep_tables
    from ondie.emu.paths.base import Options

    others = users.Foreground(
        foreground, foreground_from, foreground_time_unit, foreground_depth, foreground_speed
    )
    others.check()
    loaded = traces.load(trace)
    cfg = configuration(device, settings, devices)
    chosen = split_names(paths)
    cfg, offload, stated = offloading(cfg, ds_config, knobs)
    if measure_host:
        from ondie.emu.compute.measure_host import with_measured_rate

        cfg = with_measured_rate(cfg, settings)
    options = Options(
        weights_up=weights_up, form=form, format=format or stated, batch=batch,
        allreduce=allreduce, offload=offload, compression=compression, seed=seed,
        forward_s=None if forward is None else target.duration(forward, "--forward"),
        backward_s=None if backward is None else target.duration(backward, "--backward"),
    )  # fmt: skip
    folder = out or Path("results") / re.sub(r"[^\w.-]", "_", f"{loaded.name}-{cfg.system.name}")
    target_s = None if target_step is None else target.seconds(target_step)
    axes = sweep.axes(along, cfg)
    for name, given in (("timeline", timeline), ("foreground", foreground), ("sampled", sampled)):
        if axes and given:
            raise InputError(f"--{name}: of one comparison, not of a sweep")
    written = targets(folder) + (tornado_targets(folder) if swing else ())
    written = sweep_tables.targets(folder) if axes else written
    for file in (*written, *([timeline] if timeline else [])):
        check_target(file)
    if timeline in written:
        raise InputError(f"--timeline {timeline}: the result has a file of that name")
    # matplotlib takes a third of a second to import: time in which the simulation runs.
    Thread(target=import_module, args=("ondie.emu.cli.figures.compare",), daemon=True).start()
    if axes:
        with progress_bar(quiet) as progress:
            rows = sweep.sweep(
                loaded, cfg, axes, paths=chosen, options=options, steps=steps, target_s=target_s,
                progress=progress,
            )  # fmt: skip
            files = sweep_tables.write(rows, folder)
        if not quiet:
            sweep_tables.show(rows, console())
            console().print("written: " + ", ".join(str(file) for file in files))
        return
    with progress_bar(quiet) as progress:
        requests = others.read(progress)
        loop = None if requests is None else others.loop(requests)
        result = comparison.compare(
            loaded,
            cfg,
            paths=chosen,
            options=options,
            steps=steps,
            timeline=TIMELINE_INTERVALS if timeline else 0,
            swing=swing,
            sampled=sampled,
            progress=progress,
        )
        more, tables = {}, []
        if requests is not None and loop is not None:
            felt = users.felt(result.trace, cfg, result, requests, loop, progress)
            more["interference"] = users.data(felt, requests, loop)
            tables.append(users.table(felt, requests))
        files = report.write(result, folder, seed, timeline, target_s, more)
    if not quiet:
        screen = console()
        report.show(result, screen, target_s)
        for table in tables:
            screen.print(table)
        screen.print("written: " + ", ".join(str(file) for file in files))


@commands.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--payload/--no-payload", default=True, show_default=True, help="Gradients, weights.")
@click.option("--steps", type=int, default=20, show_default=True, help="Optimizer steps to keep.")
@click.option("--skip", type=int, default=0, show_default=True, help="Steps to let pass first.")
@click.option("--max-bytes", type=int, help="End earlier rather than store more.")
@click.option("--samples", type=int, help="Samples per step, where they cannot be seen.")
@click.option("--bytes-per-sample", type=int, help="Bytes of one sample in the data set.")
@click.option("--dataset-samples", type=int, help="Samples in the data set.")
@click.option("--private-samples", type=int, default=0, help="Of them, private to a node.")
@click.option("--macs-forward", type=int, help="Multiply-accumulates per sample, forward.")
@click.option("--macs-backward", type=int, help="The same, backward.")
@click.option("--count-macs", is_flag=True, help="Count them in the first step.")
@click.option("--optimizer", type=int, help="Which optimizer, if the script has several.")
@click.option("--raw", is_flag=True, help="Keep 16-bit gradients before unscaling too.")
@click.option("--stop", is_flag=True, help="End the run after the last recorded step.")
@click.option("--name", help="Name of the trace, else the file's.")
def record(out: Path, command: tuple[str, ...], **options: Any) -> int:
    """Record a training run: ondie record OUT.h5 -- python train.py ..."""
    from ondie.traces import record as recorder

    return recorder.main(out, list(command), **options)


@commands.command()
@click.argument("trace")
@click.option("--device", default="optimstore-r1", show_default=True, help="Preset or TOML file.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a constant.")
@click.option("--devices", type=int, help="Number of drives, as --set system.devices=N.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="The table as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bar and no tables.")
def ablation(
    trace: str, device: str, settings: tuple[str, ...], devices: int | None,
    json_path: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """What on-die update of TRACE breaks, and what each repair costs."""
    from ondie import traces
    from ondie.emu.cli.commands.ablation import command
    from ondie.emu.paths.base import Options

    loaded, cfg = traces.load(trace), configuration(device, settings, devices)
    with progress_bar(quiet) as progress:
        command(cfg, loaded, Options(), json_path, None if quiet else console(), progress)


commands.add_command(stannis)


@commands.group(cls=Group)
def trace() -> None:
    """Look at traces; write block traces in another format."""


def reading(command: Callable[..., Any], volume: str = "--device") -> Callable[..., Any]:
    """The options that say how a file of block requests is read: arguments of `read_requests`."""
    for option in reversed((
        click.option("--time-unit", metavar="ps|ns|us", help="mqsim: unit of its times."),
        click.option("--event", metavar="D|Q|C", help="blkparse: which event counts, else D."),
        click.option("--wait", metavar="manual|program", help="fio 2: what its waits mean."),
        click.option(volume, "volume", help="Only the requests of this device."),
        click.option("--sort", is_flag=True, help="Order the requests by time."),
        click.option("--limit", type=click.IntRange(min=1), help="Only the first so many."),
    )):  # fmt: skip
        command = option(command)
    return command


def read_requests(
    name: str, form: str, *, time_unit: str | None = None, event: str | None = None,
    wait: str | None = None, volume: str | None = None, sort: bool = False,
    limit: int | None = None, progress: Callable[[str, float], None] | None = None,
) -> BlockTrace:  # fmt: skip
    """A file of block requests, after the options of `reading`: sort, then device, then limit."""
    from ondie.traces import block, block_edit

    early = limit if not sort and volume is None else None
    requests = block.read_block(
        name, form, time_unit=time_unit, event=event, wait=wait, sort=sort, limit=early,
        progress=progress and partial(progress, "read"),
    )  # fmt: skip
    if volume is not None:
        requests = block_edit.only(requests, volume)
    return block_edit.head(requests, limit) if limit is not None else requests


@trace.command()
@click.argument("name", required=False)
@click.option("--from", "form", metavar="FORMAT", help="Block requests: mqsim, msr, fio, blkparse.")
@reading
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def info(name: str | None, form: str | None, as_json: bool, **options: Any) -> None:
    """Describe a trace: a file, a recorded or a synthetic name. Without NAME, list the names."""
    from ondie import traces
    from ondie.traces.block_info import block_info

    screen = console()
    if form is not None and name is None:
        raise InputError(f"--from {form}: no file to read; NAME is missing")
    if form is None and any(options.values()):
        given = next(key for key, value in options.items() if value)
        flag = {"volume": "device"}.get(given, given).replace("_", "-")
        raise InputError(f"--{flag}: for block requests only; add --from FORMAT")
    if name is None:
        for source, known in traces.names().items():
            screen.print(f"{source}: {', '.join(known)}")
        return
    if form is not None:
        with progress_bar(as_json) as progress:
            data = block_info(read_requests(name, form, progress=progress, **options))
    else:
        data = traces.info(traces.load(name))
    if as_json:
        click.echo(json.dumps(data, indent=1, sort_keys=True, default=str))
        return
    table = Table(show_header=False, title=f"trace {name}", title_justify="left")
    for key, value in data.items():
        text = json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
        table.add_row(key, text)
    screen.print(table)


@trace.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--from", "form", required=True, metavar="FORMAT",
              help="mqsim, msr, fio (fio2, fio3) or blkparse.")  # fmt: skip
@click.option("--to", required=True, metavar="FORMAT", help="mqsim, msr, fio2 or fio3.")
@reading
@click.option("--out-time-unit", metavar="ps|ns|us", help="mqsim as OUT, else as --time-unit.")
@click.option("--out-wait", metavar="manual|program", help="fio2 as OUT: what its waits mean.")
@click.option("--side-by-side", is_flag=True, help="All devices as one address space.")
@click.option("--offset-wrap", metavar="BYTES", help='Offsets modulo this, such as "64 GiB".')
@click.option("--drop", default="", help="Leave out, comma separated: trim, flush, fua, time, ...")
def convert(
    source: str, target: str, form: str, to: str, time_unit: str | None,
    out_time_unit: str | None, out_wait: str | None, side_by_side: bool, offset_wrap: str | None,
    drop: str, **options: Any,
) -> None:  # fmt: skip
    """Write the block requests of IN in another format, such as an iolog that fio replays."""
    from ondie.emu.cli.files import check_apart
    from ondie.traces import block, block_edit

    check_apart(target, source)
    block.check_writing(target, to)
    if to == "mqsim":
        out_time_unit = out_time_unit or time_unit
        time_unit = time_unit if form == "mqsim" else None
    capacity = None
    if offset_wrap is not None:
        unit = " B" if offset_wrap.strip().isdecimal() else ""
        capacity = parse(offset_wrap + unit, KINDS["bytes"], "--offset-wrap")
    with progress_bar(False) as progress:
        requests = read_requests(source, form, time_unit=time_unit, progress=progress, **options)
        if side_by_side:
            requests = block_edit.beside(requests)
        if capacity is not None:
            requests = block_edit.wrap(requests, capacity)
        lost = block.write_block(
            requests, target, to, time_unit=out_time_unit, wait=out_wait,
            drop=[name.strip() for name in drop.split(",") if name.strip()],
            progress=progress and partial(progress, "write"),
        )  # fmt: skip
    screen = console()
    for line in (*requests.notes, *lost, f"written: {target}"):
        screen.print(line, markup=False)


@commands.command()
@click.option("-i", "ssdconfig", required=True, type=click.Path(path_type=Path), help="The drive.")
@click.option("-w", "workload", required=True, type=click.Path(path_type=Path), help="The flows.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Statistics as JSON: an object, or a list of them for several scenarios.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of MQSim's result files, else that of the workload.",
)
@click.option("--quirks", is_flag=True, help="Reproduce MQSim's known defects.")
@click.option("--quiet", is_flag=True, help="No progress bar, no tables and no remarks.")
def mqsim(
    ssdconfig: Path, workload: Path, json_path: Path | None, out: Path | None, quirks: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Run MQSim's own files: ondie mqsim -i ssdconfig.xml -w workload.xml"""
    from ondie.emu.cli.commands.mqsim import command

    with progress_bar(quiet) as progress:
        command(
            ssdconfig, workload, json_path=json_path, out=out, quirks=quirks,
            remark=remark_unless(quiet), console=None if quiet else console(), progress=progress,
        )  # fmt: skip


@commands.command()
@click.argument("name", metavar="BLOCKTRACE")
@click.option("--device", default="gen4-tlc", show_default=True, help="Preset or TOML file.")
@click.option("--from", "form", required=True, metavar="FORMAT",
              help="mqsim, msr, fio (fio2, fio3) or blkparse.")  # fmt: skip
@partial(reading, volume="--volume")
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
def replay(
    name: str, device: str, form: str, side_by_side: bool, settings: tuple[str, ...],
    queue_depth: int | None, by_time: bool, speed: float | None, fast: bool, kind: str,
    footprint: str, seed: int, json_path: Path | None, log_path: Path | None, quiet: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Replay a block trace through a drive."""
    from ondie.emu.cli.commands import replay as replaying
    from ondie.traces import block_edit

    cfg = configuration(device, settings, None)
    replaying.check_targets(json_path, log_path, name)
    with progress_bar(quiet) as progress:
        trace = read_requests(name, form, progress=progress, **options)
        if side_by_side:
            trace = block_edit.beside(trace)
        loop = replaying.loop(trace, cfg, queue_depth, by_time, speed, fast)
        replaying.command(
            trace, cfg, loop, kind=kind, footprint=footprint, seed=seed, json_path=json_path,
            log_path=log_path, remark=remark_unless(quiet), console=None if quiet else console(),
            progress=progress,
        )  # fmt: skip


def remark_unless(quiet: bool) -> Callable[[str], None]:
    """Writes a line on standard error, or nothing."""

    def remark(line: str) -> None:
        if not quiet:
            click.echo(f"ondie: {line}", err=True)

    return remark


@commands.group(cls=Group)
def preset() -> None:
    """Look at configurations."""


@preset.command("list")
def list_presets() -> None:
    """List the presets."""
    table = Table("preset", "capacity", "flash", "link up", "ISP", "PE", "constants", "assumed")
    for p in preset_list():
        table.add_row(
            p.name, p.capacity, p.flash, p.link, p.isp, p.pe, str(p.leaves), str(p.assumed)
        )
    console().print(table)


@preset.command("show")
@click.argument("name")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a constant.")
@click.option("--why", is_flag=True, help="Source of every constant, range of every assumed one.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def show_preset(name: str, settings: tuple[str, ...], why: bool, as_json: bool) -> None:
    """Show a preset, or a TOML file, after overrides."""
    cfg = load_preset(name, settings)
    if as_json:
        click.echo(json.dumps(cfg.resolved(), indent=1, sort_keys=True))
        return
    more = ("range", "source", "reference") if why else ("meaning",)
    table = Table(Column("key", no_wrap=True), "value", *more)  # a key is for copying
    for row in preset_table(cfg, why):
        cells = (row.range, row.source, row.ref) if why else (row.doc,)
        table.add_row(row.key, row.value, *cells)
    screen = console()
    screen.print(table)
    screen.print(f"{len(cfg.leaves())} constants, {len(cfg.assumed())} assumed")
    if cfg.ftl.pslc != "off":
        from ondie.emu.ftl.pslc import capacity as held
        from ondie.emu.replay.block_trace import capacity

        screen.print(
            f"{fmt_bytes(capacity(cfg))} offered; blocks in pSLC mode ({cfg.ftl.pslc}) hold at "
            f"most {fmt_bytes(held(cfg))}"
        )


@preset.command("diff")
@click.argument("a")
@click.argument("b")
def diff_presets(a: str, b: str) -> None:
    """Show in what two presets or files differ."""
    table = Table("key", a, b)
    for d in diff(load_preset(a), load_preset(b)):
        cells = [shown(x.value, x.unit) if x is not None else "-" for x in (d.a, d.b)]
        table.add_row(d.key, *cells)
    console().print(table)


@commands.group(cls=Group)
def bench() -> None:
    """Measure on this machine."""


@bench.command()
@click.option(
    "--size",
    "sizes",
    multiple=True,
    type=click.IntRange(min=1),
    help="Parameters; may be given several times.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--op", "ops", multiple=True, default=("adam", "sgd"), show_default=True,
              help="Operation; may be given several times.")  # fmt: skip
@click.option("--format", "formats", multiple=True, default=("fp32",), show_default=True,
              help="How arrays are stored: fp32, fp16, bf16, bf16_all, bf16_stochastic, "
                   "int8_dynamic, int8_linear; several, or all.")  # fmt: skip
@click.option("--shape", "shapes", multiple=True, default=("flat",), show_default=True,
              help="flat, page, tensors, pages; several, or all.")  # fmt: skip
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Rows as JSON.")
@click.option("--figure", type=click.Path(path_type=Path),
              help="Roofline, FILE.png or FILE.pdf.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="No table.")
def kernels(
    sizes: tuple[int, ...], threads: int, ops: tuple[str, ...], formats: tuple[str, ...],
    shapes: tuple[str, ...], json_path: Path | None, figure: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """Update kernels against the memory limit, torch and others, in one interleaved run."""
    from ondie.emu.cli.commands.bench_kernels import kernels_command
    from ondie.kernels import FORMATS
    from ondie.kernels.bench.contenders import SHAPES

    formats = tuple(FORMATS) if "all" in formats else formats
    shapes = SHAPES if "all" in shapes else shapes
    kernels_command(sizes or None, threads, json_path, quiet, ops, formats, shapes, figure)


@bench.command()
@click.option("--only", multiple=True, metavar="SECTION",
              help="flash, ftl, ftl-64g, peer, large or start; all by default.")  # fmt: skip
@click.option("--peer", type=click.Path(path_type=Path), help="MQSim's program, to be timed too.")
@click.option("--cases", type=click.Path(path_type=Path), help="Folder of cases, with --peer.")
@click.option("--quick", is_flag=True, help="Short runs: figures are rough.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Rows as JSON.")
@click.option("--quiet", is_flag=True, help="No table.")
def engine(
    only: tuple[str, ...], peer: Path | None, cases: Path | None, quick: bool,
    json_path: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """Page operations per second of the flash engine, beside memory and beside MQSim."""
    from ondie.emu.cli.commands.bench_engine import engine_command
    from ondie.emu.validate.speed.plan import SECTIONS, Plan

    plan = Plan(only or SECTIONS, quick, peer, cases)
    engine_command(plan, json_path, quiet)


def _seeds(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: want whole numbers, such as 1,2,3") from None


def _rates(text: str) -> list[float]:
    """Numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: want numbers, such as 1e-8,1e-6") from None


@commands.command()
@click.argument("name", required=False)
@click.option(
    "--cases",
    type=click.Path(path_type=Path),
    help="mqsim: folder of its cases, else those of the checkout.",
)
@click.option("--recorded", "runs", flag_value="recorded", help="mqsim: recorded addresses alone.")
@click.option("--own", "runs", flag_value="own", help="mqsim: own addresses alone.")
@click.option("--both", "runs", flag_value="both", help="mqsim: both, which is the default.")
@click.option("--model", help="smart-infinity: parameters in billions, such as 8.4b.")
@click.option("--drives", type=int, help="smart-infinity: drives behind the shared link.")
@click.option("--optimizer", help="smart-infinity: adam, momentum or adagrad.")
@click.option("--compression", help="smart-infinity: percent of the gradient's bytes, or none.")
@click.option("--steps", type=int, help="formats, errors: of each training; 1000, 200.")
@click.option("--seeds", type=_seeds, help="formats, errors: such as 1,2,3, the default.")
@click.option("--rates", type=_rates, help="errors: raw bit error rates, such as 1e-8,1e-6.")
@click.option(
    "--exposure", type=int, help="errors: how many times larger a model the small ones stand for."
)
@click.option("--figure", type=click.Path(path_type=Path),
              help="formats, errors: FILE.png or FILE.pdf.")  # fmt: skip
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Rows as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bar and no table.")
def validate(name: str | None, json_path: Path | None, quiet: bool, **options: Any) -> None:
    """Hold the simulation against published numbers and closed forms. Exit 1 on a miss.

    NAME is one of bytes, closed-forms and rates, which run without it; optimstore: what OptimStore
    published; mqsim: MQSim's results on its own files; zero: host offload as DeepSpeed does it, in
    every configuration; smart-infinity: its fit row and shapes, or any run of it; stannis: what
    Stannis published, and what other allocations give and risk; hypertune: new batches for nodes
    that others use as well; tunnel: commands and times of TCP/IP over NVMe; formats: a small GPT
    trained with each format of the update, beside FP32; errors: two small models trained with raw
    bit errors in the pages that the dies compute with.
    """
    from ondie.emu.cli.commands.validate import command

    with progress_bar(quiet) as progress:
        good = command(name, options, json_path, None if quiet else console(), progress)
    if not good:
        sys.exit(1)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one line and exit code 2 for whatever the user can mend."""
    from ondie.emu.analysis.ledger import Imbalance
    from ondie.emu.analysis.weight_check import Mismatch
    from ondie.emu.engine.run.errors import SimulationError

    code_cache.say = lambda message: click.echo(f"ondie: {message}", err=True)
    jit.on_compile = compiling
    try:
        code = commands.main(arguments, prog_name="ondie", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except (InputError, TraceError, KernelError) as error:
        _fail(str(error), 2)
    except MemoryError as error:
        _fail(f"not enough memory: {error or 'no room'}; fewer or smaller drives are right", 2)
    except (Mismatch, Imbalance, SimulationError) as error:
        _fail(f"defect: {error}", 1)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("interrupted; nothing was written", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    click.echo(f"ondie: {' '.join(message.split())}", err=True)
    sys.exit(code)
