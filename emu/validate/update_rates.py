"""Update rates that the preset optimstore-r1 was fitted to: `ondie validate rates`.

Owns these rows. Does not own the preset. Source: OptimStore (HPCA 2023).
"""

from __future__ import annotations

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.row import FIT, Progress, Row
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.validate.synthetic_models import SAMPLE_PARAMS, model


def rate_rows(progress: Progress) -> list[Row]:
    """Return rows of the update rates that the preset R1 was fitted to: shown, not checked."""
    cfg = load_preset("optimstore-r1")
    rates = {}
    for path in ("host_offload", "in_storage", "on_die"):
        result = run_path(
            path, cfg, model("adam", SAMPLE_PARAMS), Options(), steps=1, payload=False
        )
        assert result.ledger is not None
        rates[path] = SAMPLE_PARAMS / result.ledger.update_s
    text = "Reading R1 of OptimStore (HPCA 2023)"
    return [
        Row("rates", "baseline, adam", FIT, 177e6, rates["host_offload"], "param/s", 0.1, text),
        Row("rates", "C-ISP, adam", FIT, 267e6, rates["in_storage"], "param/s", 0.1, text),
        Row("rates", "on die in lockstep, adam", FIT, 498e6, rates["on_die"], "param/s", 0.1, text),
    ]
