"""Figures as PNG and PDF.

Owns the metadata: it has no date, so equal numbers give equal bytes. Does not own the drawing.
Source: matplotlib.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

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
