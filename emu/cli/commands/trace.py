"""`ondie trace info|convert`: describe a trace, and write block requests in another format.

Owns the options and the table. Does not own any format (ondie.traces). Source: this project.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click

from ondie import traces
from ondie.emu.cli.click_helpers import Group, progress_bar
from ondie.emu.cli.commands.block_requests import ReadOptions, read_options
from ondie.emu.cli.console import console
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.files import check_apart
from ondie.emu.results.tables.trace import trace_table
from ondie.emu.units import KINDS, InputError, parse
from ondie.traces import block, block_edit
from ondie.traces.block_info import block_info


@click.group(cls=Group)
def trace() -> None:
    """Describe traces, and convert block traces between formats."""


@dataclass(frozen=True, kw_only=True)
class InfoOptions(ReadOptions, OutputOptions):
    """The options of `ondie trace info`."""

    def check_reading(self, name: str | None) -> None:
        """Raise InputError if an option is given without the argument or option that it requires
        (NAME, the trace to describe, or --from)."""
        if name is None:
            if self.form is not None:
                raise InputError(f"--from {self.form} requires NAME, the file to read")
            if self.json_path is not None or self.csv_path is not None or self.out is not None:
                raise InputError(
                    "--json, --csv and --out require NAME, the trace to describe; --json takes a "
                    "file, or - for standard output: --json -"
                )
        if self.form is None:
            for field in ("time_unit", "event", "wait", "volume", "sort", "limit"):
                if getattr(self, field):
                    flag = "device" if field == "volume" else field.replace("_", "-")
                    raise InputError(
                        f"--{flag} requires --from FORMAT; it applies only to block traces"
                    )


@trace.command()
@click.argument("name", required=False)
@read_options(required=False)
@output_options("the description", quiet="table")
def info(name: str | None, **values: Any) -> None:
    """Describe a training trace, or with --from a block trace.

    NAME is a file, or the name of a recorded or synthetic trace. Without NAME, the command lists
    the known names.
    """
    given = InfoOptions(**values)
    given.check_reading(name)
    if name is None:
        for source, known in traces.names().items():
            console().print(f"{source}: {', '.join(known)}")
        return
    given.check(name)
    if given.form is not None:
        with progress_bar(given.quiet) as progress:
            data = block_info(given.read_requests(name, progress))
    else:
        data = traces.info(traces.load(name))
    files = given.write(json.dumps(data, indent=1, sort_keys=True, default=str) + "\n")
    if (screen := given.console) is not None:
        screen.print(trace_table(f"Trace {name}", data))
    given.list_files(files)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(ReadOptions):
    """The options of `ondie trace convert`."""

    to: str
    out_time_unit: str | None
    out_wait: str | None
    side_by_side: bool
    offset_wrap: str | None
    drop: str

    def units(self) -> tuple[str | None, str | None]:
        """Return the timestamp units of the input and of the output.

        If the output format is mqsim, the output unit defaults to --time-unit, and the input unit
        is None unless the input format is also mqsim. For other output formats, both options are
        returned unchanged.
        """
        if self.to != "mqsim":
            return self.time_unit, self.out_time_unit
        read = self.time_unit if self.form == "mqsim" else None
        return read, self.out_time_unit or self.time_unit

    def wrap_bytes(self) -> int | None:
        """Return the value of --offset-wrap in bytes, or None without the option. A number without
        a unit means bytes. Raises InputError for an invalid value."""
        if self.offset_wrap is None:
            return None
        unit = " B" if self.offset_wrap.strip().isdecimal() else ""
        return parse(self.offset_wrap + unit, KINDS["bytes"], "--offset-wrap")

    def dropped_types(self) -> list[str]:
        """Return the names of the request types and fields that --drop removes from the trace."""
        return [name.strip() for name in self.drop.split(",") if name.strip()]


@trace.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--to", required=True, metavar="FORMAT",
              help="Write OUT in this format: mqsim, msr, fio2 or fio3.")  # fmt: skip
@read_options()
@click.option("--out-time-unit", metavar="ps|ns|us",
              help="With --to mqsim, write the timestamps in this unit.  [default: "
                   "--time-unit]")  # fmt: skip
@click.option("--out-wait", metavar="manual|program",
              help="With --to fio2, write wait lines with this meaning: manual (us since the "
                   "previous wait) or program (ms since the start).  [default: "
                   "program]")  # fmt: skip
@click.option("--side-by-side", is_flag=True,
              help="Concatenate the address spaces of all devices.")  # fmt: skip
@click.option(
    "--offset-wrap", metavar="BYTES", help='Reduce offsets modulo BYTES, such as "64 GiB".'
)
@click.option("--drop", default="", metavar="TYPE,…",
              help="Leave out request types or fields (comma-separated): trim, flush, fua, time, "
                   "...")  # fmt: skip
def convert(source: str, target: str, **values: Any) -> None:
    """Convert the block requests of file IN to another format, and write them to OUT."""
    given = ConvertOptions(**values)
    check_apart(target, source)
    block.check_writing(target, given.to)
    time_unit, out_time_unit = given.units()
    capacity = given.wrap_bytes()
    with progress_bar(False) as progress:
        requests = replace(given, time_unit=time_unit).read_requests(source, progress)
        if given.side_by_side:
            requests = block_edit.beside(requests)
        if capacity is not None:
            requests = block_edit.wrap(requests, capacity)
        lost = block.write_block(
            requests, target, given.to, time_unit=out_time_unit, wait=given.out_wait,
            drop=given.dropped_types(), progress=progress and partial(progress, "write"),
        )  # fmt: skip
    screen = console()
    for line in (*requests.notes, *lost, f"written: {target}"):
        screen.print(line, markup=False)
