"""Update rates of the preset optimstore-r1: `ondie validate rates`.

Owns the rows of this suite. Does not own the preset. Source: OptimStore (HPCA 2023).
"""

from __future__ import annotations

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.row import FIT, IDENTITY, Progress, Row
from ondie.emu.config.config import load_preset
from ondie.emu.paths.base import Options
from ondie.emu.validate.synthetic_models import SAMPLE_PARAMS, model

BASELINE = (
    "OptimStore (HPCA 2023): 6.7 B parameters in 13.5 s, taken as the baseline; the "
    "host's rate of Adam was chosen to meet it"
)
ARITHMETIC = (
    "arithmetic of interpretation R1: C-ISP 8 channels x 800 MB/s / 24 B; on die 64 dies x 2,048 "
    "parameters per tR + 5 page/bus + tPROG + 8 page/bus = 263 us. Tolerance: the arithmetic omits "
    "commands (1.5 % of a transfer) and erases (in lockstep two of 2 ms per 256 stripes, 6 %)"
)


def rate_rows(progress: Progress) -> list[Row]:
    """Return the rows of the update rates: the fitted rate of the baseline, and two rates that are
    calculated from it."""
    cfg = load_preset("optimstore-r1")
    rates = {}
    for path in ("host_offload", "in_storage", "on_die"):
        result = run_path(
            path, cfg, model("adam", SAMPLE_PARAMS), Options(), steps=1, payload=False
        )
        assert result.ledger is not None
        rates[path] = SAMPLE_PARAMS / result.ledger.update_s
    rows = (
        ("baseline, adam", FIT, 177e6, "host_offload", 0.1, BASELINE, ("host.adam",)),
        ("C-ISP, adam", IDENTITY, 267e6, "in_storage", 0.08, ARITHMETIC, ()),
        ("on die in lockstep, adam", IDENTITY, 498e6, "on_die", 0.08, ARITHMETIC, ()),
    )
    return [
        Row("rates", name, kind, rate, rates[path], "param/s", within, text, constants=constants)
        for name, kind, rate, path, within, text, constants in rows
    ]
