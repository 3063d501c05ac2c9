"""Bytes per parameter of each path, counted at the device: `ondie validate bytes`.

Owns these rows. Does not own the paths (ondie.emu.paths). Each path plans what its source moves, so
the rows are identities: the device counts no more and no less than the plan.
Source: DeepSpeed's NVMe optimizer swapper; OptimStore (HPCA 2023); Smart-Infinity (HPCA 2024).
"""

from __future__ import annotations

from ondie.emu.analysis.compare import run_path
from ondie.emu.analysis.row import IDENTITY, Progress, Row
from ondie.emu.config.config import Config, load_preset
from ondie.emu.paths.base import Options
from ondie.emu.validate.synthetic_models import SAMPLE_PARAMS, model


def traffic_rows(progress: Progress) -> list[Row]:
    """Return rows of the bytes per parameter of one step, counted at the device."""
    cfg = load_preset("optimstore-r1")
    offload = "NVMe bytes per parameter and step of ZeRO-Infinity, from DeepSpeed's sources"
    rows = []
    for op, total in (("adam", 32), ("momentum", 24), ("adagrad", 24), ("sgd", 16)):
        c = _counters("host_offload", cfg, op)
        moved = (c["host_read_bytes"] + c["host_write_bytes"]) / SAMPLE_PARAMS
        rows.append(
            Row("bytes", f"host offload, {op}", IDENTITY, total, moved, "B/param", 0, offload)
        )
        for name, way, column in (
            ("gradient and states written", "host_write_bytes", total // 2),
            ("states and gradient read", "host_read_bytes", total // 2),
        ):
            rows.append(
                Row(
                    "bytes", f"host offload, {op}: {name}", IDENTITY, column,
                    c[way] / SAMPLE_PARAMS, "B/param", 0, offload,
                )
            )  # fmt: skip
    c = _counters("in_storage", cfg, "adam")
    flash = (c["isp_read_bytes"] + c["isp_write_bytes"]) / SAMPLE_PARAMS
    link = (c["down_bytes"] + c["up_bytes"]) / SAMPLE_PARAMS
    text = (
        "C-ISP: 24 B over the channels (OptimStore, HPCA 2023), 8 B over the link (Smart-Infinity)"
    )
    rows += [
        Row("bytes", "in storage, adam: states over the channels", IDENTITY, 24, flash, "B/param", 0,
        text), Row("bytes", "in storage, adam: over the link", IDENTITY, 8, link, "B/param", 0, text),
    ]  # fmt: skip
    c = _counters("on_die", cfg, "adam")
    page = cfg.flash.page_bytes
    padded = -(-SAMPLE_PARAMS // (page // 4)) * (page // 4)
    channel = (c["load_bytes"] + c["reservoir_up_bytes"]) / padded
    array = (c["bpr_pages"] + c["bpp_pages"]) * page / padded
    text = (
        "Gradients down, weights up; w, m, v read and programmed in place (OptimStore, HPCA 2023)"
    )
    rows += [
        Row("bytes", "on die, adam: over the channels", IDENTITY, 8, channel, "B/param", 0, text),
        Row("bytes", "on die, adam: inside the dies", IDENTITY, 24, array, "B/param", 0,
        text),
    ]  # fmt: skip
    return rows


def _counters(path: str, cfg: Config, op: str) -> dict[str, int]:
    """Simulate one step without payload and return the device's counters."""
    result = run_path(path, cfg, model(op, SAMPLE_PARAMS), Options(), steps=1, payload=False)
    assert result.ledger is not None
    return dict(result.ledger.totals.counters)
