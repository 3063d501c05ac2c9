"""Table of the properties of a trace or of a store, with units such as MB and ms.

Owns the row names, the units and the number of digits. Does not own any number (ondie.traces.info,
ondie.traces.block_info, ondie.emu.nand.store_check).
Source: this project.

`--json` has the full precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ondie.emu.units import fmt_bytes, fmt_count, fmt_time

NAMES = {
    "op": "optimizer operation",
    "form": "form of the equations",
    "params": "trainable parameters",
    "groups": "parameter groups",
    "gradient_dtype": "type of the gradient",
    "macs_forward": "MACs per sample, forward",
    "macs_backward": "MACs per sample, backward",
    "dataset_samples": "samples in the data set",
    "loss": "loss, first and last step",
    "first_count": "number of the first step",
    "loss_scale": "loss scale, first and last step",
    "median_s": "median time",
    "hyper": "hyperparameters of group",
    "sha256": "SHA-256",
    "file_bytes": "size of the file",
    "gradient_storage": "steps by stored type",
    "gradient_bytes": "size of the gradients",
    "gradient_shifts": "shifts of the gradients",
    "bytes": "total size",
    "size_bytes": "request size",
    "footprint_bytes": "addressed size",
    "aligned_4k_share": "share aligned to 4 KiB",
    "alignment": "requests by alignment (B)",
    "response_us": "response time",
    "fua_writes": "writes with FUA",
    "requests_per_s": "requests per second",
}
"""Names of the table's rows by key of the printed data. The row of any other key has the key as its
name, without the unit and with spaces instead of underscores."""
ATTRIBUTES = {"optimizer_s": "time of the optimizer"}
"""Row names of attributes of a training trace, by key: those whose default row name (the key
without the unit) is already the name of another attribute. For example, the default row name of
"optimizer_s" would be "optimizer"."""

PARTS_AS_THEY_ARE = frozenset({"hyperparameters"})
"""Keys of dictionaries whose inner keys are printed unchanged, because users type these names."""


def trace_table(title: str, data: Mapping[str, Any]) -> Table:
    """Return a table with one row for each value of ``data``, but one row for each entry of a value
    that is a dictionary."""
    table = Table(show_header=False, title=title, title_justify="left")
    for key, value in data.items():
        name = NAMES.get(key, _words(key))
        if isinstance(value, dict):
            for part, inner in value.items():
                words = part if key in PARTS_AS_THEY_ARE else ATTRIBUTES.get(part, _words(part))
                table.add_row(f"{name}: {words}", _shown(key, inner))
        elif key == "hyper":
            for number, group in enumerate(value):
                table.add_row(f"{name} {number}", _shown(key, group))
        else:
            table.add_row(name, _shown(key, value))
    return table


def _words(key: str) -> str:
    """Return a key as words: without its unit (_bytes, _us, _s), and with spaces instead of
    underscores."""
    for unit in ("_bytes", "_us", "_s"):
        key = key.removesuffix(unit)
    return key.replace("_", " ")


def _shown(key: str, value: Any) -> str:
    """Return a value as text, with the unit that the suffix of its key states."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(key, each) for each in value) or "none"
    if isinstance(value, dict):
        united = key.endswith(("_bytes", "_us", "_s"))
        return ", ".join(
            f"{_words(name)} {_shown(key if united else name, inner)}"
            for name, inner in value.items()
        )
    if isinstance(value, int | float) and (key == "bytes" or key.startswith("bytes_")):
        return fmt_bytes(value)
    if isinstance(value, int | float) and key.endswith("_bytes"):
        return fmt_bytes(value)
    if isinstance(value, int | float) and key.endswith("_us"):
        return fmt_time(value * 1e6)
    if isinstance(value, int | float) and key.endswith("_s") and not key.endswith("per_s"):
        return fmt_time(value * 1e12)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if key.endswith("share"):
            return f"{value:.1%}"
        return fmt_count(value) if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
