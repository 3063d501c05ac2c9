"""The figure of a sweep: time of the update stage over the values, a line for each path.

Owns the drawing: a panel for each value of a second key. Does not own any number (sweep.py).
Source: matplotlib; colours that are told apart without red and green (Okabe and Ito).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ondie.emu.drawing import saved
from ondie.emu.units import fmt_time

if TYPE_CHECKING:
    from ondie.emu.sweep import Sweep

STYLES = {
    "host_offload": ("#000000", "o", "-"),
    "host_offload_pipelined": ("#e69f00", "D", "--"),
    "in_storage": ("#56b4e9", "s", "-"),
    "on_die": ("#d55e00", "^", "-"),
    "stannis": ("#009e73", "v", "-"),
}
OTHER = ("#999999", "x", "-")
ACROSS = 3
WIDE = 8.0
"""Times that differ by more are drawn on a logarithmic axis."""


def draw(s: Sweep) -> dict[str, bytes]:
    """The figure as {"png": bytes, "pdf": bytes}."""
    panels = s.axes[1].texts if len(s.axes) > 1 else ("",)
    first = s.axes[0].texts
    named = any(isinstance(x, str) for x in s.axes[0].values)  # nothing lies between names
    across = min(len(panels), ACROSS)
    down = math.ceil(len(panels) / across)
    times = {(row.values, row.path): row.update_s for row in s.rows if row.update_s}
    paths = list(dict.fromkeys(path for _, path in times))
    with matplotlib.rc_context({"font.size": 9}):
        width = max(across * max(3.2, 0.7 * len(first) + 1.2), 6.0)
        figure = Figure(figsize=(width, 3.3 * down + 1.2), layout="constrained")
        grid = figure.subplots(down, across, sharey=True, sharex=True, squeeze=False)
        for i, at in enumerate(grid.flat):
            if i >= len(panels):
                at.set_axis_off()
                continue
            second = s.axes[1].texts[i : i + 1] if len(s.axes) > 1 else ()
            for path in paths:
                colour, marker, line = STYLES.get(path, OTHER)
                y = [times.get(((x, *second), path), math.nan) for x in first]
                hollow = "none" if line == "--" else colour
                at.plot(
                    range(len(first)), y, color=colour, marker=marker, label=path,
                    linestyle="none" if named else line, markersize=8 if line == "--" else 5,
                    markerfacecolor=hollow,
                )  # fmt: skip
            crowded = sum(map(len, first)) > (40 if len(panels) == 1 else 24)
            tilted = len(first) > 5 or crowded
            at.set_xticks(range(len(first)), first, rotation=30 if tilted else 0)
            at.set_xlabel(s.axes[0].key)
            at.grid(axis="y", color="#d9d9d9", linewidth=0.6)
            if second:
                at.set_title(f"{s.axes[1].key} = {second[0]}", fontsize=9)
        low, high = min(times.values()), max(times.values())
        for at in grid[:, 0]:
            at.set_ylabel("update stage per step")
        at = grid[0, 0]
        if high > WIDE * low:
            at.set_yscale("log")
            decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            marks = [d * 10.0**k for k in decades for d in (1, 2, 5)]
            at.set_ylim(low / 1.3, high * 1.3)
            at.set_yticks([x for x in marks if low / 1.3 <= x <= high * 1.3])
            at.yaxis.set_minor_locator(NullLocator())
        else:
            at.set_ylim(0, high * 1.08)
        at.yaxis.set_major_formatter(FuncFormatter(lambda x, _: fmt_time(x * 1e12) if x else "0"))
        figure.legend(
            *grid[0, 0].get_legend_handles_labels(), loc="outside lower center", frameon=False,
            ncols=min(len(paths), 3),
        )  # fmt: skip
        figure.suptitle(
            f"{s.trace.name} ({s.trace.n_params / 1e6:,.4g} M parameters, {s.trace.op}) on "
            f"{s.cfg.system.name}",
            fontsize=10,
        )
        return saved(figure)
