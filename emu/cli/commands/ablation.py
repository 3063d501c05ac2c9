"""`ondie ablation`: the protections that on-die update bypasses, and the cost of adding them.

Owns the options and the output. Does not own the rows (validate/ablation.py). Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

from ondie import traces
from ondie.emu.cli.click_helpers import progress_bar
from ondie.emu.cli.options import DriveOptions, drive_options
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.config.config import Config
from ondie.emu.paths.base import Options
from ondie.emu.units import InputError
from ondie.emu.validate.ablation import Repaired, ablation, tables
from ondie.kernels import OPS
from ondie.traces import Trace


@dataclass(frozen=True, kw_only=True)
class AblationOptions(DriveOptions, OutputOptions):
    """The options of `ondie ablation`."""


@click.command("ablation")
@click.argument("trace")
@drive_options("optimstore-r1")
@output_options("the tables")
def run_ablation(trace: str, **values: Any) -> None:
    """List the data protections that an on-die update of TRACE bypasses, and the cost of adding
    each."""
    given = AblationOptions(**values)
    loaded, cfg = traces.load(trace), given.load_drive()
    check_trace(loaded)
    given.check()
    with progress_bar(given.quiet) as progress:
        rows = ablation(cfg, loaded, Options(), progress)
    result = {
        "device": cfg.system.name,
        "trace": loaded.name,
        "params": loaded.n_params,
        "optimizer": loaded.op,
        "rows": [row.data() for row in rows],
    }
    files = given.write(result)
    if (screen := given.console) is not None:
        print_tables(rows, loaded, cfg, screen)
    given.list_files(files)


def print_tables(rows: list[Repaired], trace: Trace, cfg: Config, screen: Console) -> None:
    """Print the tables of the costs and of the purposes of the protections."""
    for table in tables(rows, f"{trace.name}, {trace.op}, on {cfg.system.name}"):
        screen.print(table)
        screen.print()


def check_trace(trace: Trace) -> None:
    """Raise InputError if the optimizer of the trace has no update kernel, or if the first step of
    the trace is skipped."""
    if trace.op not in OPS:
        reason = trace.attrs.get("op_reason", "no update kernel is known for it")
        raise InputError(f"{trace.origin}: optimizer operation {trace.op!r}: {reason}")
    if trace.steps[0].skipped:
        raise InputError(
            f"{trace.origin}: the first step is skipped, so no weight changes; use another trace"
        )
