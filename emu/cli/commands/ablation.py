"""`ondie ablation`: what on-die update breaks, and what each repair costs, as tables and JSON.

Owns the files. Does not own the rows (validate/ablation.py). Source: own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

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
