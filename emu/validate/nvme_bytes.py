"""Bytes per parameter of each path, counted at the device: `ondie validate bytes`.

Owns the rows of this suite. Does not own the paths (ondie.emu.paths). Source: DeepSpeed's NVMe
optimizer swapper; OptimStore (HPCA 2023); Smart-Infinity (HPCA 2024).

Each path plans the transfers that its source describes. The rows are identities: the number of
bytes that the device counts must equal the planned number.
"""

from __future__ import annotations

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.row import IDENTITY, Progress, Row
from ondie.emu.config.config import Config, load_preset
from ondie.emu.paths.base import Options
from ondie.emu.validate.synthetic_models import SAMPLE_PARAMS, model


def traffic_rows(progress: Progress) -> list[Row]:
    """Return rows that compare the bytes per parameter counted by a device in one step with the
    planned number, for each path."""
    cfg = load_preset("optimstore-r1")
    text = "NVMe bytes per parameter and step of ZeRO-Infinity, from DeepSpeed's sources"
    rows = []
    for op, total in (("adam", 32), ("momentum", 24), ("adagrad", 24), ("sgd", 16)):
        c = _counters("host_offload", cfg, op)
        read, written = c["host_read_bytes"], c["host_write_bytes"]
        name = f"host offload, {op}"
        rows += [
            _row(name, total, (read + written) / SAMPLE_PARAMS, text),
            _row(f"{name}: gradient and states written", total // 2, written / SAMPLE_PARAMS, text),
            _row(f"{name}: states and gradient read", total // 2, read / SAMPLE_PARAMS, text),
        ]
    c = _counters("in_storage", cfg, "adam")
    flash = (c["isp_read_bytes"] + c["isp_write_bytes"]) / SAMPLE_PARAMS
    link = (c["down_bytes"] + c["up_bytes"]) / SAMPLE_PARAMS
    text = (
        "C-ISP: 24 B over the channels (OptimStore, HPCA 2023), 8 B over the link (Smart-Infinity)"
    )
    rows += [
        _row("in storage, adam: states over the channels", 24, flash, text),
        _row("in storage, adam: over the link", 8, link, text),
    ]
    c = _counters("on_die", cfg, "adam")
    page = cfg.flash.page_bytes
    padded = -(-SAMPLE_PARAMS // (page // 4)) * (page // 4)
    channel = (c["load_bytes"] + c["reservoir_up_bytes"]) / padded
    array = (c["bpr_pages"] + c["bpp_pages"]) * page / padded
    text = (
        "Gradients down, weights up; w, m, v read and programmed in place (OptimStore, HPCA 2023)"
    )
    rows += [
        _row("on die, adam: over the channels", 8, channel, text),
        _row("on die, adam: inside the dies", 24, array, text),
    ]
    return rows


def _row(name: str, planned: float, found: float, source: str) -> Row:
    """Return a row that compares two values in B/param, which must be equal."""
    return Row("bytes", name, IDENTITY, planned, found, "B/param", 0, source)


def _counters(path: str, cfg: Config, op: str) -> dict[str, int]:
    """Simulate one step of a path without payload and return the counters of the device, by
    name."""
    result = run_path(path, cfg, model(op, SAMPLE_PARAMS), Options(), steps=1, payload=False)
    assert result.ledger is not None
    return dict(result.ledger.totals.counters)
