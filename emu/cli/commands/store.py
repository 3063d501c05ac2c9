"""`ondie store info|check`: describe the stored pages of a drive, and check them.

Owns the options and the tables. Does not own the format or the check (emu/nand/store_check.py).
Source: this project.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from ondie.emu.cli.click_helpers import Group, progress_bar
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.nand.store_check import check_store, describe_store
from ondie.emu.results.tables.trace import trace_table


@click.group(cls=Group)
def store() -> None:
    """Describe and check the stored pages of a drive."""


@store.command()
@click.argument("folder", metavar="DIR")
@output_options("the description", quiet="table")
def info(folder: str, **values: Any) -> None:
    """Describe the store in folder DIR: its superblock, sizes and use.

    A drive may use the store meanwhile.
    """
    given = OutputOptions(**values)
    given.check()
    data = describe_store(folder)
    files = given.write(data)
    if (screen := given.console) is not None:
        screen.print(trace_table(f"Store {folder}", data))
    given.list_files(files)


@store.command()
@click.argument("folder", metavar="DIR")
@output_options("the report", quiet="report")
def check(folder: str, **values: Any) -> None:
    """Check all records and pages of the store in folder DIR.

    Every seal of out-of-band data and every checksum of a programmed page is computed anew. No
    drive may use the store meanwhile. Exit code 1: something is damaged.
    """
    given = OutputOptions(**values)
    given.check()
    with progress_bar(given.quiet) as progress:
        report = check_store(folder, progress)
    files = given.write(report.data())
    if (screen := given.console) is not None:
        for line in report.lines():
            screen.print(line, soft_wrap=True)
    given.list_files(files)
    if not report.intact:
        sys.exit(1)
