"""Roofline figure of update kernels: operations per second over operations per byte of traffic.

This module owns the drawing. Each combination of shape and size has a panel with its points. Every
panel shows the memory limits of all sizes as slanted roofs, and the compute limit as a flat roof.
The module does not own the numbers, which come from the rows of a bench.
Source: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009; matplotlib.

The traffic of a point is the traffic that the update requires, for every contender. A contender
that passes over the arrays several times is therefore lower, not further to the left. A short
horizontal bar marks the memory limit of each case (operation and format). The roof of a size is the
highest memory limit of the cases of that size. Roofs and points are medians.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ondie.kernels.bench.codecs import UNIT
from ondie.kernels.bench.contenders import LIMIT, PEAK, SHAPES

if TYPE_CHECKING:
    from ondie.kernels.bench.run import Bench

MARKERS = "osD^vP*X<>phd8H"
ACROSS = 3  # panels per row


@dataclass
class Column:
    """One case of a bench in the figure: the points of its contenders, which form a column because
    they have the same arithmetic intensity."""

    update: str  # operation and format
    shape: str
    n: int
    limit: float | None = None  # GB/s
    peak: float = 0.0  # Gop/s
    rates: dict[str, float] = field(default_factory=dict)  # Gop/s by contender
    intensity: float = 0.0  # operations per byte


def columns(bench: Bench) -> list[Column]:
    """Return one Column for each case of a bench, in the order of the bench's rows. Cases of
    error-correcting codes are omitted."""
    found: dict[str, Column] = {}
    traffic = {row.name: row.value for row in bench.rows if row.unit == "GB/s"}
    for row in bench.rows:
        if row.unit == UNIT:
            continue  # an error correcting code
        name, size, contender = row.name.split(" ", 2)
        *update, shape = name.split("/") if name.split("/")[-1] in SHAPES else (name, "flat")
        column = found.setdefault(
            f"{name} {size}", Column("/".join(update), shape, int(size.removeprefix("n=")))
        )
        if contender == PEAK:
            column.peak = row.value
        elif row.unit == "Gop/s":
            column.rates[contender] = row.value
            column.intensity = row.value / traffic[row.name]
        elif row.unit == "GB/s" and contender == LIMIT:
            column.limit = row.value
    return list(found.values())


def draw(bench: Bench, save: Callable[[Figure], dict[str, bytes]]) -> dict[str, bytes]:
    """Draw the roofline figure of ``bench``. Return the result of ``save``: the files of the
    figure, {"png": ..., "pdf": ...}."""
    cases = columns(bench)
    panels = list(dict.fromkeys((column.shape, column.n) for column in cases))
    who = list(dict.fromkeys(name for column in cases for name in column.rates))
    updates = list(dict.fromkeys(column.update for column in cases))
    markers = {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(who)}
    colors = dict(zip(updates, _colors(len(updates)), strict=True))
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    height = max(4.2 * down, 1 + 0.19 * (len(who) + len(updates) + 1))  # includes the legend
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(4.6 * across + 2.4, height), layout="constrained")
        grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
        for axes, (shape, count) in zip(grid, panels, strict=False):
            mine = [column for column in cases if (column.shape, column.n) == (shape, count)]
            _roofs(axes, cases, count)
            for column in mine:
                _points(axes, column, markers, colors[column.update])
            axes.set_title(f"{shape}, {count:,} parameters", fontsize=9)
            axes.set_xlabel("Operations per byte of DRAM traffic")
            axes.set_ylabel("Operations per second (1e9)")
        for axes in list(grid)[len(panels) :]:
            axes.set_visible(False)
        _limits(grid[0], cases)
        figure.legend(handles=_legend(markers, colors), loc="outside right center", fontsize=8)
        threads = bench.machine["threads"]
        figure.suptitle(
            f"Update kernels on {bench.machine['processor']}, {bench.machine['isa']}, {threads} "
            f"thread{'' if threads == 1 else 's'}",
            fontsize=10,
        )
        return save(figure)


def roofs(cases: Sequence[Column]) -> dict[int, float]:
    """Return the roofs by number of parameters. A roof is the highest memory limit (bandwidth,
    GB/s) that was measured in the cases with this number of parameters."""
    found: dict[int, float] = {}
    for column in cases:
        if column.limit is not None:
            found[column.n] = max(column.limit, found.get(column.n, 0.0))
    return found


def _roofs(axes: Axes, cases: Sequence[Column], here: int) -> None:
    """Draw the compute limit and the roofs of all sizes. The roof for ``here`` parameters is black;
    the roofs of other sizes are gray."""
    top = max(column.peak for column in cases)
    axes.axhline(top, color="black", linewidth=1)
    axes.annotate(f"{PEAK}, {top:,.0f} Gop/s", (0.02, top), xycoords=("axes fraction", "data"),
                  textcoords="offset points", xytext=(0, 3), fontsize=7)  # fmt: skip
    for count, speed in roofs(cases).items():
        ends = np.array([1e-3, top / speed])
        own = count == here
        axes.plot(ends, ends * speed, color="black" if own else "#b0b0b0", linewidth=1, zorder=1)
        if own:  # left of the corner of the roofs and above the line, because points lie below it
            at = 0.8 * top / speed
            axes.text(
                at, 1.05 * at * speed, f"{LIMIT}, {speed:,.0f} GB/s", fontsize=7, ha="right",
                va="bottom", rotation=np.degrees(np.arctan(speed)), rotation_mode="anchor",
                transform_rotates_text=True,
            )  # fmt: skip


def _points(axes: Axes, column: Column, markers: dict[str, str], color: Any) -> None:
    """Draw the points of a case and the bar of its memory limit."""
    if column.limit is not None:
        axes.plot(
            column.intensity,
            column.limit * column.intensity,
            "_",
            color=color,
            markersize=16,
            zorder=2,
        )
    for name, rate in column.rates.items():
        axes.plot(
            column.intensity, rate, markers[name], color=color, markersize=5, alpha=0.8, zorder=3
        )


def _limits(axes: Axes, cases: Sequence[Column]) -> None:
    """Set the limits of both axes so that all points and the corners of the roofs are visible."""
    top = max(column.peak for column in cases)
    ends = [column.intensity for column in cases] + [top / speed for speed in roofs(cases).values()]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlim(min(ends) / 1.6, max(ends) * 1.6)
    axes.set_ylim(min(rate for column in cases for rate in column.rates.values()) / 1.6, top * 1.6)


def _legend(markers: dict[str, str], colors: dict[str, Any]) -> list[Line2D]:
    """Return the legend's entries: one for each contender, and one for each operation and
    format."""
    found = [
        Line2D([], [], linestyle="", marker=marker, color="#606060", label=name)
        for name, marker in markers.items()
    ]
    found.append(Line2D([], [], linestyle="", marker="_", markersize=12, color="#606060",
                        label=f"{LIMIT} of the case"))  # fmt: skip
    return found + [
        Line2D([], [], linewidth=5, color=colors[update], label=update) for update in colors
    ]


def _colors(count: int) -> list[Any]:
    """Return ``count`` distinct colors for matplotlib."""
    if count <= 10:
        return [f"C{i}" for i in range(count)]
    return [matplotlib.colormaps["turbo"](place) for place in np.linspace(0.03, 0.97, count)]
