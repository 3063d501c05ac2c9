"""`ondie bench engine`: the measurement's progress, table and JSON.

Owns the command. Does not own any figure (ondie.emu.validate.speed). Source: none.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ondie.emu.cli.console import console
from ondie.emu.cli.files import check_target, write_atomically
from ondie.emu.validate.speed.plan import Plan
from ondie.emu.validate.speed.sections import run
from ondie.kernels.bench import run as bench


def print_table(found: bench.Bench, screen: Console) -> None:
    """The rows as a table on a rich console."""
    words = ", ".join(f"{key} {value}" for key, value in found.machine.items())
    table = Table(title="Flash engine: best of its runs, one core", caption=words)
    for at, heading in enumerate(("", "value", "unit", "beside", "ratio")):
        table.add_column(heading, justify="left" if at in (0, 2, 3) else "right")
    for row in found.rows:
        beside, ratio = ("", "") if row.anchor == "itself" else (row.anchor, f"{row.ratio:.3g}")
        table.add_row(row.name, f"{row.value:.4g}", row.unit, beside, ratio)
    screen.print(table)


def engine_command(plan: Plan, json_path: Path | None, quiet: bool) -> None:
    """Measure, show progress on a terminal, print the table, write JSON whole or not at all.
    InputError for bad arguments."""
    if json_path is not None:
        check_target(json_path)
    visible = not quiet and sys.stderr.isatty()
    with Console(stderr=True).status("") if visible else nullcontext() as status:
        if status is not None:
            plan.progress = status.update
        found = run(plan)
    if json_path is not None:
        write_atomically({json_path: bench.as_json(found).encode()})
    if not quiet:
        print_table(found, console())
