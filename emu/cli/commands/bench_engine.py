"""`ondie bench engine`: progress, table and JSON of the measurement.

Owns the command. Does not own any number (ondie.emu.validate.speed). Source: none.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ondie.emu.cli.output import OutputOptions
from ondie.emu.validate.speed.plan import SECTIONS, Plan
from ondie.emu.validate.speed.sections import run
from ondie.kernels.bench import run as bench


@dataclass(frozen=True, kw_only=True)
class EngineBenchOptions(OutputOptions):
    """The options of `ondie bench engine`."""

    only: tuple[str, ...] = ()
    peer: Path | None = None
    cases: Path | None = None
    quick: bool = False


def table_of_rows(measured: bench.Bench) -> Table:
    """Return the rows as a table."""
    caption = ", ".join(f"{key} {value}" for key, value in measured.machine.items())
    table = Table(title="Flash engine on one core, best of several runs", caption=caption)
    for column, heading in enumerate(("measurement", "value", "unit", "compared with", "ratio")):
        table.add_column(heading, justify="left" if column in (0, 2, 3) else "right")
    for row in measured.rows:
        anchor, ratio = ("", "") if row.anchor == "itself" else (row.anchor, f"{row.ratio:.3g}")
        table.add_row(row.name, f"{row.value:.4g}", row.unit, anchor, ratio)
    return table


def engine_command(given: EngineBenchOptions) -> None:
    """Measure, show progress on a terminal, print the table, write JSON. Raises InputError."""
    given.check()
    plan = Plan(given.only or SECTIONS, given.quick, given.peer, given.cases)
    visible = not given.quiet and sys.stderr.isatty()
    with Console(stderr=True).status("") if visible else nullcontext() as status:
        if status is not None:
            plan.progress = status.update
        measured = run(plan)
    files = given.write(bench.as_json(measured))
    if (screen := given.console) is not None:
        screen.print(table_of_rows(measured))
    given.list_files(files)
