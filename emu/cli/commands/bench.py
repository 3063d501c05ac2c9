"""`ondie bench kernels|engine`: the options of measurements on this machine.

Owns the options. Does not own the measurements (kernels/bench, emu/validate/speed). Source: own.
"""

from __future__ import annotations

from pathlib import Path

import click

from ondie.emu.cli.click_helpers import Group


@click.group(cls=Group)
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
