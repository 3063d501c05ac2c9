"""`ondie preset list|show|diff`: look at configurations.

Owns the tables. Does not own the presets (emu/config). Source: own.
"""

from __future__ import annotations

import json

import click
from rich.table import Column, Table

from ondie.emu.cli.click_helpers import Group
from ondie.emu.cli.console import console
from ondie.emu.config.config import diff, load_preset, preset_list, preset_table, shown
from ondie.emu.units import fmt_bytes


@click.group(cls=Group)
def preset() -> None:
    """Look at configurations."""


@preset.command("list")
def list_presets() -> None:
    """List the presets."""
    table = Table("preset", "capacity", "flash", "link up", "ISP", "PE", "constants", "assumed")
    for entry in preset_list():
        table.add_row(
            entry.name, entry.capacity, entry.flash, entry.link, entry.isp, entry.pe,
            str(entry.leaves), str(entry.assumed),
        )  # fmt: skip
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
