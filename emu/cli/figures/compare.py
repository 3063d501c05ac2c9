"""The figure of a comparison: time of a step, and energy per sample of drives and of the host.

Owns the drawing. Does not own any number (analysis/answer.py, analysis/ledger.py).
Source: matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ondie.emu.analysis.answer import Strategy, answer
from ondie.emu.analysis.compare import Comparison
from ondie.emu.cli.figures import color, saved, tint
from ondie.emu.units import si_prefix

PHASES = (
    ("forward", "backward"), ("samples",), ("gradients",), ("synchronise",),
    ("update", "levelling"), ("weights_up",),
)  # fmt: skip
LABELS = (
    "forward and backward", "sample reads", "gradient writes", "gradient exchange", "update",
    "weights to host",
)  # fmt: skip
TINTS = (0.15, 0.3, 0.45, 0.6, 1.0, 0.3)
HATCHES = ("", "", "", "", "", "////")
RANGE = "#666666"
TRAINING = 1
"""Number of entries at the start of PHASES that are not drawn in the panel of the time outside
forward and backward. The first entry of PHASES is forward and backward."""


def draw(c: Comparison) -> dict[str, bytes]:
    """Draw the figure of a comparison. Returns {"png": bytes, "pdf": bytes}."""
    found = answer(c)
    rows = [row for row in found.strategies if row.reason is None]
    books = [r.ledger for r in c.results if r.ledger is not None]
    phases = np.array(
        [[sum(book.phases_s.get(n, 0.0) for n in names) for book in books] for names in PHASES]
    )
    with matplotlib.rc_context({"font.size": 9, "hatch.linewidth": 0.6}):
        figure = Figure(figsize=(10, 2.4 + 0.6 * len(rows)), layout="constrained")
        axes = figure.subplots(2, 2, sharey=True)
        _stacks(axes[0, 0], rows, phases, "Time per step", 0)
        _stacks(axes[0, 1], rows, phases, "Time per step outside forward and backward", TRAINING)
        drives = np.array([row.drives_j_per_sample for row in rows])
        every = np.array([row.all_j_per_sample for row in rows])
        _energies(axes[1, 0], rows, drives, "Energy of the drives per sample")
        _energies(axes[1, 1], rows, every - drives, "Energy of host and accelerator per sample")
        axes[0, 0].invert_yaxis()
        shown = [i for i in range(len(PHASES)) if phases[i].any()]
        figure.legend(
            handles=[
                Patch(facecolor=tint("host_offload", TINTS[i]), edgecolor="black", linewidth=0.4,
                      hatch=HATCHES[i], label=LABELS[i])
                for i in shown
            ] + [Line2D([], [], color=RANGE, marker="|", label="range of the constants")],
            loc="outside lower center", ncols=min(len(shown) + 1, 5), frameon=False,
        )  # fmt: skip
        figure.suptitle(
            f"{c.trace.name} ({c.trace.n_params:,} parameters, {c.trace.op}) on "
            f"{c.cfg.system.devices} x {c.cfg.system.name}",
            fontsize=10,
        )
        return saved(figure)


def _stacks(
    axes: Axes, rows: Sequence[Strategy], phases: np.ndarray, title: str, first: int
) -> None:
    """Draw a stacked bar for each path, with the phases from index ``first`` to the last.

    ``phases``: seconds per step, float64[phases, paths]. The phases are tints of the path's color.
    """
    scale, prefix = si_prefix(float(phases[first:].sum(axis=0).max(initial=0.0)))
    for y, row in enumerate(rows):
        left = 0.0
        for i in range(first, len(PHASES)):
            length = phases[i, y] / scale
            if length:
                axes.barh(
                    row.name, length, left=left, height=0.7, color=tint(row.name, TINTS[i]),
                    edgecolor=color(row.name), linewidth=0.4, hatch=HATCHES[i],
                )  # fmt: skip
                left += length
        if not left:
            axes.barh(row.name, 0)
    _finish(axes, f"{title} ({prefix}s)")


def _energies(axes: Axes, rows: Sequence[Strategy], spans: np.ndarray, title: str) -> None:
    """Draw the typical energy of each strategy with an error bar from its low to its high value.

    ``spans``: low, typical and high energy (J), float64[strategies, 3].
    """
    scale, prefix = si_prefix(float(spans[:, 1].max(initial=0.0)))
    low, typical, high = np.maximum(spans.T, 0) / scale
    names = [row.name for row in rows]
    axes.barh(names, typical, height=0.7, color=[color(name) for name in names])
    reach = [np.maximum(typical - low, 0), np.maximum(high - typical, 0)]
    axes.errorbar(typical, names, xerr=reach, fmt="none", ecolor=RANGE, elinewidth=1.2, capsize=3)
    _finish(axes, f"{title} ({prefix}J)")


def _finish(axes: Axes, label: str) -> None:
    axes.set_xlabel(label, fontsize=8)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="x", color="#d9d9d9", linewidth=0.6)
    axes.set_axisbelow(True)
