"""`ondie trace info|convert`: describe a trace, and write block requests in another format.

Owns the options and the table. Does not own any format (ondie.traces). Source: own.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click
from rich.table import Table

from ondie import traces
from ondie.emu.cli.click_helpers import Group, progress_bar
from ondie.emu.cli.commands.block_requests import read_requests, reading_options
from ondie.emu.cli.console import console
from ondie.emu.cli.files import check_apart
from ondie.emu.units import KINDS, InputError, parse
from ondie.traces import block, block_edit
from ondie.traces.block_info import block_info


@click.group(cls=Group)
def trace() -> None:
    """Look at traces; write block traces in another format."""


@trace.command()
@click.argument("name", required=False)
@click.option("--from", "form", metavar="FORMAT", help="Block requests: mqsim, msr, fio, blkparse.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def info(name: str | None, form: str | None, as_json: bool, **options: Any) -> None:
    """Describe a trace: a file, a recorded or a synthetic name. Without NAME, list the names."""
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
@reading_options
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
