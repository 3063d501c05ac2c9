"""Simulated update stages compared with closed forms: `ondie validate closed-forms`.

Owns the rows of this suite. Does not own the closed forms (paths/closed_form.py). Source: the
papers that the rows name.
"""

from __future__ import annotations

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.row import IDENTITY, Progress, Row
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.validate.synthetic_models import SAMPLE_PARAMS, model

CLOSED_SOURCE = (
    "serial T = N(16/R + 12/W + 1/c) (ZeRO-Infinity); C-ISP channels x rate / 24 B and stripe time "
    "tR + passes x page/bus + tPROG + dies x page/bus (OptimStore, HPCA 2023), with the preset's "
    "commands, erases and queue depth"
)
CLOSED = (
    ("host_offload", "optimstore-r1", "adam", ()),
    ("host_offload", "optimstore-r1", "momentum", ()),
    ("host_offload", "optimstore-r2", "adam", ()),
    ("host_offload", "gen4-tlc", "adam", ()),
    ("host_offload_pipelined", "optimstore-r1", "adam", ("host.subgroup_params=1000000",)),
    ("host_offload_pipelined", "optimstore-r2", "adam", ("host.subgroup_params=1000000",)),
    ("host_offload_pipelined", "newport", "adam", ("host.subgroup_params=1000000",)),
    ("in_storage", "optimstore-r1", "adam", ()),
    ("in_storage", "optimstore-r2", "adam", ()),
    ("in_storage", "newport", "adam", ()),
    ("on_die", "optimstore-r1", "adam", ("pe.dispatch=lockstep",)),
    ("on_die", "optimstore-r1", "momentum", ("pe.dispatch=lockstep",)),
    ("on_die", "optimstore-r1", "adam", ("pe.dispatch=free",)),
    ("on_die", "optimstore-r1", "momentum", ("pe.dispatch=free",)),
    ("on_die", "optimstore-r1", "adam", ("pe.dispatch=double_buffered",)),
    ("on_die", "optimstore-r2", "adam", ("pe.dispatch=lockstep",)),
    ("on_die", "optimstore-r2", "adam", ("pe.dispatch=free",)),
)


def closed_form_rows(progress: Progress) -> list[Row]:
    """Return rows that compare each simulated update stage with the closed form of its
    bottleneck."""
    rows = []
    for i, (path, preset, op, settings) in enumerate(CLOSED):
        if progress is not None:
            progress("closed-forms", i / len(CLOSED))
        cfg = load_preset(preset, settings)
        result = run_path(path, cfg, model(op, SAMPLE_PARAMS), Options(), steps=1, payload=False)
        assert result.bound is not None and result.ledger is not None
        extra = f", {settings[0].split('=')[1]}" if path == "on_die" else ""
        rows.append(
            Row(
                "closed-forms",
                f"{path} on {preset}, {op}{extra} ({result.bound.name})",
                IDENTITY,
                result.bound.seconds,
                result.ledger.update_s,
                "s",
                0.05,
                CLOSED_SOURCE,
            )
        )
    return rows
