"""Figures as files.

Owns their bytes: without a date, so that the same numbers draw the same ones. Does not own what is
drawn. Source: matplotlib.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ondie.emu.units import InputError

if TYPE_CHECKING:  # matplotlib takes a second to import
    from matplotlib.figure import Figure

SUFFIXES = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}


def saved(figure: Figure) -> dict[str, bytes]:
    """A figure as {"png": bytes, "pdf": bytes}."""
    out = {}
    for suffix, metadata in SUFFIXES.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
        out[suffix] = buffer.getvalue()
    return out


def suffix_of(path: Path) -> str:
    """Which of `saved` a file is to hold. Raises InputError for another suffix."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: want a file ending in .{' or .'.join(SUFFIXES)}")
    return suffix
