"""Functions that all figures share: saving a file without a date, and the colors of the paths.

Owns the metadata (equal numbers produce identical PNG and PDF files), and the color, marker and
line style of each path. Does not own the drawing. Source: matplotlib; colors that readers with
red-green color blindness can tell apart (Okabe and Ito).
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
STYLES = {
    "host_offload": ("#000000", "o", "-"),
    "host_offload_pipelined": ("#e69f00", "D", "--"),
    "in_storage": ("#56b4e9", "s", "-"),
    "on_die": ("#d55e00", "^", "-"),
    "stannis": ("#009e73", "v", "-"),
    "ndpipe": ("#cc79a7", "P", "-"),
}
OTHER = ("#999999", "x", "-")


def saved(figure: Figure) -> dict[str, bytes]:
    """Return the figure as files: {"png": bytes, "pdf": bytes}."""
    out = {}
    for suffix, metadata in SUFFIXES.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
        out[suffix] = buffer.getvalue()
    return out


def color(path: str) -> str:
    """Return the color of an update path, as "#rrggbb"."""
    return STYLES.get(path, OTHER)[0]


def tint(path: str, share: float) -> tuple[float, float, float]:
    """Return the color of a path mixed with white, as red, green and blue from 0 to 1.

    ``share``: fraction of the path's color; 1 is the pure color, 0 is white.
    """
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - share * (1 - level) for level in to_rgb(color(path)))
    return red, green, blue
