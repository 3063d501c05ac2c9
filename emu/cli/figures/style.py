"""Colours of the paths, and the unit of an axis.

Owns the colour, marker and line of each path, the same in all figures. Does not own the drawing.
Source: colours that are distinct without red and green (Okabe and Ito).
"""

from __future__ import annotations

from matplotlib.colors import to_rgb

STYLES = {
    "host_offload": ("#000000", "o", "-"),
    "host_offload_pipelined": ("#e69f00", "D", "--"),
    "in_storage": ("#56b4e9", "s", "-"),
    "on_die": ("#d55e00", "^", "-"),
    "stannis": ("#009e73", "v", "-"),
}
OTHER = ("#999999", "x", "-")
PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


def colour(path: str) -> str:
    """Return the colour of a path."""
    return STYLES.get(path, OTHER)[0]


def tint(path: str, share: float) -> tuple[float, float, float]:
    """Return the colour of a path mixed with white; ``share`` 1: pure, 0: white."""
    red, green, blue = (1 - share * (1 - level) for level in to_rgb(colour(path)))
    return red, green, blue


def axis_scale(longest: float, unit: str) -> tuple[float, str]:
    """Return (scale, unit) with which the longest value is at least 1: (0.001, "ms")."""
    scale, prefix = next((each for each in PREFIXES if longest >= each[0]), PREFIXES[-1])
    return scale, prefix + unit
