"""The figure of a sweep, with a line for each path over the values of the first key.

Owns the drawing. Does not own any number (analysis/sweep.py). Source: matplotlib.

A sweep of one key has three panels: update stage, samples per second, and energy per sample. A
sweep of two keys shows the update stage, with a panel for each value of the second key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ondie.emu.cli.figures import OTHER, STYLES, saved
from ondie.emu.units import fmt_energy, fmt_time

if TYPE_CHECKING:
    from ondie.emu.analysis.sweep import Sweep, SweepRow

ACROSS = 3
WIDE = 8.0
"""Ratio of the largest to the smallest value of a panel above which its y axis is logarithmic."""


@dataclass(frozen=True)
class Measure:
    """A quantity shown in a panel: label of the axis, function that returns the value for a row,
    and formatting function."""

    title: str
    of: Callable[[SweepRow], float | None]
    text: Callable[[float], str]


UPDATE = Measure("update stage (time per step)", lambda r: r.update_s, lambda x: fmt_time(x * 1e12))
MEASURES = (
    UPDATE,
    Measure("speed (samples/s)", lambda r: r.samples_per_s, lambda x: f"{x:g}"),
    Measure(
        "energy per sample (whole step)",
        lambda r: r.energy_sample_j and r.energy_sample_j[1],
        lambda x: fmt_energy(x * 1e15),
    ),
)


def draw(swept: Sweep) -> dict[str, bytes]:
    """Draw the figure of a sweep. Returns {"png": bytes, "pdf": bytes}."""
    first = swept.axes[0].texts
    seconds = [(x,) for x in swept.axes[1].texts] if len(swept.axes) > 1 else [()]
    panels = [(m, ()) for m in MEASURES] if len(swept.axes) == 1 else [(UPDATE, x) for x in seconds]
    paths = list(dict.fromkeys(row.path for row in swept.rows if row.update_s))
    panels = [(m, x) for m, x in panels if any(m.of(row) for row in swept.rows)] or panels[:1]
    across = min(len(panels), ACROSS)
    down = math.ceil(len(panels) / across)
    shared = len(swept.axes) > 1
    with matplotlib.rc_context({"font.size": 9}):
        width = max(across * max(3.2, 0.55 * len(first) + 1.2), 6.0)
        figure = Figure(figsize=(width, 3.3 * down + 1.2), layout="constrained")
        grid = figure.subplots(down, across, sharey=shared, sharex=True, squeeze=False)
        for at, (measure, second) in zip(grid.flat, panels, strict=False):
            found = {
                (row.values, row.path): value for row in swept.rows if (value := measure.of(row))
            }
            _panel(at, swept, paths, found, second)
            if second:
                at.set_title(f"{swept.axes[1].key} = {second[0]}", fontsize=9)
            if not shared or at in grid[:, 0]:
                at.set_ylabel(measure.title)
            if not shared or at is grid[0, 0]:
                _scale(at, list(found.values()), measure)
        for at in grid.flat[len(panels) :]:
            at.set_axis_off()
        figure.legend(
            *grid[0, 0].get_legend_handles_labels(), loc="outside lower center", frameon=False,
            ncols=min(len(paths), 3),
        )  # fmt: skip
        figure.suptitle(
            f"{swept.trace.name} ({swept.trace.n_params / 1e6:,.4g} M parameters, "
            f"{swept.trace.op}) on {swept.cfg.system.name}",
            fontsize=10,
        )
        return saved(figure)


def _panel(
    at: Axes,
    swept: Sweep,
    paths: list[str],
    found: dict[tuple[tuple[str, ...], str], float],
    second: tuple[str, ...],
) -> None:
    """Draw a line for each path in one panel. ``found``: value by (texts of a point of the sweep,
    path). ``second``: value of the second key of the sweep, or () if only one key is swept."""
    first = swept.axes[0].texts
    named = any(isinstance(x, str) for x in swept.axes[0].values)  # names have no values in between
    for path in paths:
        color, marker, line = STYLES.get(path, OTHER)
        y = [found.get(((x, *second), path), math.nan) for x in first]
        hollow = "none" if line == "--" else color
        at.plot(
            range(len(first)), y, color=color, marker=marker, label=path,
            linestyle="none" if named else line, markersize=8 if line == "--" else 5,
            markerfacecolor=hollow,
        )  # fmt: skip
    crowded = sum(map(len, first)) > 24
    at.set_xticks(range(len(first)), first, rotation=30 if len(first) > 5 or crowded else 0)
    at.set_xlabel(swept.axes[0].key)
    at.grid(axis="y", color="#d9d9d9", linewidth=0.6)


def _scale(at: Axes, values: list[float], measure: Measure) -> None:
    """Start the y axis at 0, or make it logarithmic if the values differ by more than a factor
    WIDE."""
    low, high = min(values), max(values)
    if high > WIDE * low:
        at.set_yscale("log")
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [d * 10.0**k for k in decades for d in (1, 2, 5)]
        at.set_ylim(low / 1.3, high * 1.3)
        at.set_yticks([x for x in marks if low / 1.3 <= x <= high * 1.3])
        at.yaxis.set_minor_locator(NullLocator())
    else:
        at.set_ylim(0, high * 1.08)
    at.yaxis.set_major_formatter(FuncFormatter(lambda x, _: measure.text(x) if x else "0"))
