"""`ondie ablation`: what on-die update breaks, and what each repair costs, as tables and JSON.

Owns the files. Does not own the rows (validate/ablation.py). Source: own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from ondie import traces
from ondie.emu.cli.arguments import configuration
from ondie.emu.cli.click_helpers import progress_bar
from ondie.emu.cli.console import console as screen
from ondie.emu.cli.files import check_target, write_atomically
from ondie.emu.config.config import Config
from ondie.emu.paths.base import Options
from ondie.emu.units import InputError
from ondie.emu.validate.ablation import ablation, tables
from ondie.kernels import OPS
from ondie.traces import Trace


def command(
    cfg: Config,
    trace: Trace,
    options: Options,
    json_path: Path | None,
    console: Console | None,
    progress: Callable[[str, float], None] | None,
) -> None:
    """Run and write. ``console``: where tables are shown. InputError: nothing is written."""
    if trace.op not in OPS:
        reason = trace.attrs.get("op_reason", "no update kernel is known for it")
        raise InputError(f"{trace.origin}: optimizer operation {trace.op!r}: {reason}")
    if trace.steps[0].skipped:
        raise InputError(f"{trace.origin}: its first step is skipped: nothing is updated in it")
    if json_path is not None:
        check_target(json_path)
    found = ablation(cfg, trace, options, progress)
    if json_path is not None:
        data = {
            "device": cfg.system.name,
            "trace": trace.name,
            "params": trace.n_params,
            "optimizer": trace.op,
            "rows": [row.data() for row in found],
        }
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
        write_atomically({json_path: text.encode()})
    if console is not None:
        title = f"{trace.name}, {trace.op}, on {cfg.system.name}"
        for table in tables(found, title):
            console.print(table)
            console.print()


@click.command("ablation")
@click.argument("trace")
@click.option("--device", default="optimstore-r1", show_default=True, help="Preset or TOML file.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a constant.")
@click.option("--devices", type=int, help="Number of drives, as --set system.devices=N.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="The table as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bar and no tables.")
def run_ablation(
    trace: str, device: str, settings: tuple[str, ...], devices: int | None,
    json_path: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """What on-die update of TRACE breaks, and what each repair costs."""
    loaded, cfg = traces.load(trace), configuration(device, settings, devices)
    with progress_bar(quiet) as progress:
        command(cfg, loaded, Options(), json_path, None if quiet else screen(), progress)
