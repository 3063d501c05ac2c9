"""Figures of a fleet: samples per second over time, and over the number of drives.

Owns the drawing. Does not own any number (stannis/).
Source: matplotlib; the first is like Fig. 6 of HyperTune (before and after cores are taken), the
second like Fig. 7 of STANNIS (DAC 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ondie.emu.cli.figures.save import saved
from ondie.emu.cluster.history import History

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osv^Dx+"
MOST_NOTES = 12


def over_time(runs: Mapping[str, History], title: str) -> dict[str, bytes]:
    """Samples per second and batches of each run over its time, as {"png": …, "pdf": …}."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(7.5, 5.0), layout="constrained")
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        for (name, run), colour in zip(runs.items(), COLOURS, strict=False):
            s = run.steps
            length = s["compute_s"] + s["exchange_s"] + s["update_s"]
            edges = np.append(s["start_s"], s["start_s"][-1] + length[-1])
            top.stairs(s["samples"] / length, edges, color=colour, label=name, baseline=None)
            below.stairs(s["samples"], edges, color=colour, baseline=None)
            for note in [n for n in run.notes if n.what != "epoch"][:MOST_NOTES]:
                top.axvline(note.seconds, color=colour, linewidth=0.6, linestyle=":")
        top.set_ylabel("samples / s")
        top.set_ylim(bottom=0)
        top.legend(loc="lower right")
        top.set_title(title, loc="left")
        below.set_ylabel("samples / step")
        below.set_ylim(bottom=0)
        below.set_xlabel("time, s (dotted: batches changed, nodes came or went)")
        return saved(figure)


def over_drives(
    counts: Sequence[int], speedups: Mapping[str, Sequence[float]], title: str
) -> dict[str, bytes]:
    """Speed over that of the host alone, a line for each network, as {"png": …, "pdf": …}."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(6.0, 4.0), layout="constrained")
        at = figure.subplots()
        for (name, values), colour, marker in zip(speedups.items(), COLOURS, MARKERS, strict=False):
            at.plot(counts, values, color=colour, marker=marker, markersize=4, label=name)
        at.axhline(1.0, color="#999999", linewidth=0.8)
        at.set_xlabel("drives beside the host")
        at.set_ylabel("samples / s, over the host alone")
        at.set_ylim(bottom=0)
        at.legend()
        at.set_title(title, loc="left")
        return saved(figure)
