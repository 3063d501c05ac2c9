"""Figures of a cluster: samples per second over time, and over the number of drives.

Owns the drawing. Does not own any number (emu/cluster). Source: matplotlib. The first figure
resembles Fig. 6 of HyperTune (before and after cores are taken). The second figure resembles Fig. 7
of STANNIS (DAC 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ondie.emu.cli.figures import saved
from ondie.emu.cluster.history import History

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osv^Dx+"
MOST_NOTES = 12
HEADROOM = 1.1
"""Upper limit of the vertical axis divided by the largest value, so that no curve touches the
frame."""


def over_time(runs: Mapping[str, History], title: str) -> dict[str, bytes]:
    """Draw samples per second and samples per step of each run over time.

    Returns {"png": bytes, "pdf": bytes}.
    """
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(7.5, 5.0), layout="constrained")
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        for (name, run), color in zip(runs.items(), COLORS, strict=False):
            steps = run.steps
            compute, exchange, update = steps["compute_s"], steps["exchange_s"], steps["update_s"]
            length = compute + exchange + update
            edges = np.append(steps["start_s"], steps["start_s"][-1] + length[-1])
            top.stairs(steps["samples"] / length, edges, color=color, label=name, baseline=None)
            below.stairs(steps["samples"], edges, color=color, baseline=None)
            for note in [each for each in run.notes if each.what != "epoch"][:MOST_NOTES]:
                top.axvline(note.seconds, color=color, linewidth=0.6, linestyle=":")
        top.set_ylabel("Speed (samples/s)")
        top.set_ylim(bottom=0)
        top.legend(loc="lower right")
        top.set_title(title, loc="left")
        below.set_ylabel("Samples per step")
        below.set_ylim(0, HEADROOM * max(run.steps["samples"].max() for run in runs.values()))
        below.set_xlabel("Time (s); dotted lines: changes of batch sizes or nodes")
        return saved(figure)


def over_drives(
    counts: Sequence[int], speedups: Mapping[str, Sequence[float]], title: str
) -> dict[str, bytes]:
    """Draw the speedup over the host alone by number of drives, with a line for each network.

    Returns {"png": bytes, "pdf": bytes}.
    """
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(6.0, 4.0), layout="constrained")
        at = figure.subplots()
        for (name, values), color, marker in zip(speedups.items(), COLORS, MARKERS, strict=False):
            at.plot(counts, values, color=color, marker=marker, markersize=4, label=name)
        at.axhline(1.0, color="#999999", linewidth=0.8)
        at.set_xlabel("Number of drives")
        at.set_ylabel("Speedup over the host alone")
        at.set_ylim(bottom=0)
        at.legend()
        at.set_title(title, loc="left")
        return saved(figure)
