"""`ondie preset list|show|diff|timing|new|check`: configurations as tables, JSON and TOML.

Owns the tables and the new file. Does not own the presets (emu/config) or the simulation of a data
sheet (results/datasheet.py).
Source: this project.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from ondie.emu.cli.click_helpers import Group, progress_bar
from ondie.emu.cli.options import seed_option, settings_option
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.config.config import Config, diff, load_preset, preset_list, preset_table, shown
from ondie.emu.config.new_preset import preset_text
from ondie.emu.files import check_target, write_atomically
from ondie.emu.units import InputError, fmt_bytes, fmt_time


@click.group(cls=Group)
def preset() -> None:
    """List, show, compare, create and check configurations."""


@preset.command("list")
@output_options("the list", quiet="table")
def list_presets(**values: Any) -> None:
    """List the presets that ship with ondie, with their main properties."""
    given, entries = OutputOptions(**values), preset_list()
    given.check()
    files = given.write([asdict(entry) for entry in entries])
    if (screen := given.console) is not None:
        table = Table("preset", "capacity", "flash", "link up", "ISP", "PE", "constants", "assumed")
        for entry in entries:
            table.add_row(
                entry.name, entry.capacity, entry.flash, entry.link, entry.isp, entry.pe,
                str(entry.leaves), str(entry.assumed),
            )  # fmt: skip
        screen.print(table)
    given.list_files(files)


def key_rows(cfg: Config) -> list[dict[str, Any]]:
    """Return a row for each key of a configuration: value, unit, source and range."""
    return [
        {"key": f"{section}.{key}", **leaf}
        for section, leaves in cfg.resolved().items()
        for key, leaf in leaves.items()
    ]


@preset.command("show")
@click.argument("name")
@settings_option
@click.option("--why", is_flag=True,
              help="Show the source of every constant and the ranges of assumed ones.")  # fmt: skip
@output_options("the configuration", quiet="table")
def show_preset(name: str, settings: tuple[str, ...], why: bool, **values: Any) -> None:
    """Show the constants of a preset or of a TOML file, with overrides applied."""
    given, cfg = OutputOptions(**values), load_preset(name, settings)
    given.check(name)
    files = given.write(cfg.resolved(), sort_keys=True, rows=lambda: key_rows(cfg))
    if (screen := given.console) is not None:
        print_preset(cfg, why, screen)
    given.list_files(files)


def print_preset(cfg: Config, why: bool, screen: Console) -> None:
    """Print the constants of a configuration, their number, and the capacity of pSLC blocks."""
    more = ("range", "source", "reference") if why else ("meaning",)
    table = Table(Column("key", no_wrap=True), "value", *more)  # keys are copied, so never folded
    for row in preset_table(cfg, why):
        cells = (row.range, row.source, row.ref) if why else (row.doc,)
        table.add_row(row.key, row.value, *cells)
    screen.print(table)
    screen.print(f"{len(cfg.leaves())} constants, {len(cfg.assumed())} assumed")
    if cfg.ftl.pslc != "off":
        from ondie.emu.ftl import pslc
        from ondie.emu.replay.block_trace import capacity

        screen.print(
            f"The drive has a capacity of {fmt_bytes(capacity(cfg))}. Blocks in pSLC mode "
            f"({cfg.ftl.pslc}) hold at most {fmt_bytes(pslc.capacity(cfg))}."
        )


@preset.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@output_options("the differences", quiet="table")
def diff_presets(first: str, second: str, **values: Any) -> None:
    """Show the keys in which two presets or TOML files differ."""
    given = OutputOptions(**values)
    given.check(first, second)
    rows = [
        (found.key, *("-" if leaf is None else shown(leaf.value, leaf.unit)
                      for leaf in (found.a, found.b)))
        for found in diff(load_preset(first), load_preset(second))
    ]  # fmt: skip
    files = given.write([{"key": key, "a": a, "b": b} for key, a, b in rows])
    if (screen := given.console) is not None:
        table = Table("key", first, second)
        for row in rows:
            table.add_row(*row)
        screen.print(table)
    given.list_files(files)


@preset.command("timing")
@click.argument("name")
@settings_option
@output_options("the constraints", quiet="table")
def show_timing(name: str, settings: tuple[str, ...], **values: Any) -> None:
    """Show the minimum times between flash operations for a preset or a TOML file."""
    from ondie.emu.nand.constraints import timing_rows  # imports the kernels

    given = OutputOptions(**values)
    given.check(name)
    rows = timing_rows(load_preset(name, settings))
    files = given.write([asdict(row) for row in rows])
    if (screen := given.console) is not None:
        table = Table("scope", "after", "before", "wait", Column("least time", justify="right"))
        for row in rows:
            table.add_row(row.scope, row.after, ", ".join(row.before), row.wait, fmt_time(row.ps))
        screen.print(table)
    given.list_files(files)


@preset.command("new")
@click.argument("path", metavar="FILE.toml", type=click.Path(path_type=Path))
@click.option("--from", "base", required=True, metavar="PRESET",
              help="Base the new file on this preset or TOML file.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def new_preset(path: Path, base: str, force: bool) -> None:
    """Write a TOML file that describes your own drive.

    The file contains every key of the preset as a comment, with its meaning. Uncomment and change
    the keys in which your drive differs.
    """
    cfg = load_preset(base)
    if path.suffix != ".toml":
        raise InputError(f"{path}: must end in .toml; for example {path.with_suffix('.toml')}")
    if path.exists() and not force:
        raise InputError(f"{path}: exists; use --force to replace it, or use another name")
    check_target(path, base)
    name = base if Path(base).suffix != ".toml" else str(Path(base).resolve())
    write_atomically({path: preset_text(cfg, name, path.stem).encode()})
    click.echo(f"Wrote {path}. It describes {base} until you edit it. After editing, run")
    click.echo(f"  ondie preset diff {base} {path}\n  ondie preset check {path}")


@preset.command("check")
@click.argument("name", metavar="PRESET|FILE")
@settings_option
@seed_option("addresses")
@output_options("the values")
def check_preset(name: str, settings: tuple[str, ...], seed: int, **values: Any) -> None:
    """Simulate the values of a data sheet, and report the constant that limits each value.

    The values are rates, latencies, power and bytes written. They are compared with the table
    [datasheet] of the preset or file.
    """
    from ondie.emu.results.datasheet import check_datasheet  # imports the engine

    given, cfg = OutputOptions(**values), load_preset(name, settings)
    given.check(name)
    with progress_bar(given.quiet) as progress:
        result = check_datasheet(name, cfg, seed=seed, progress=progress)
    files = given.write(result.data, rows=result.rows)
    if (screen := given.console) is not None:
        result.show(screen)
    given.list_files(files)
