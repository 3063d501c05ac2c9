"""The figure of gradients and trainings averaged over a host and its drives.

Owns the panels. Does not own a number in them (averaging_recorded.py, averaging_trained.py).
Source: own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ondie.emu.studies import averaging_nets as nets
from ondie.emu.studies.averaging_shown import SUBJECTS, Found
from ondie.emu.studies.averaging_trained import (
    ALIKE,
    KS,
    LATE,
    PLAIN,
    PRIVATE,
    SHARED,
    UNWEIGHTED,
    WEIGHTED,
    batched,
    local,
    rooted,
    runs,
    scaled,
)

COLOURS = {ALIKE: "C0", PRIVATE: "C1"}


def draw(found: Found, save: Callable[[Figure], dict[str, bytes]]) -> dict[str, bytes]:
    """For each network: distance of averaged gradients by recorded step; accuracy or loss by
    weights and data; the same by micro-batches or local steps between exchanges. {"png": bytes,
    "pdf": bytes}, without a date."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(13, 7.6), layout="constrained")
        panels = figure.subplots(len(nets.NETWORKS), 3, squeeze=False)
        for (left, middle, right), name in zip(panels, nets.NETWORKS, strict=True):
            _distances(left, found, name)
            _weights(middle, found, name)
            _intervals(right, found, name)
        figure.suptitle(
            f"Gradients of a host and {nets.DRIVES} drives, averaged by batch and by rank, and "
            f"fewer exchanges: {found.steps:,} micro-batches per node, {len(found.seeds)} seed(s): "
            f"mean, and from the least to the most of them. Private: {found.skew:.0%} of the "
            f"drives' data are their own",
            fontsize=9, wrap=True,
        )  # fmt: skip
        return save(figure)


def _distances(axes: Any, found: Found, name: str) -> None:
    for title, (network, still) in SUBJECTS.items():
        if network != name:
            continue
        m = found.measured[title]
        for by, marker in (("batch", "o"), ("rank", "s")):
            for data, colour in COLOURS.items():
                values = [at.means[by, data].relative for at in m.steps.values()]
                words = {"batch": "weighted", "rank": "unweighted"}[by]
                axes.plot(
                    list(m.steps), values, ":" if still else "-", marker=marker, markersize=4,
                    color=colour, linewidth=1, fillstyle="none" if by == "batch" else "full",
                    label=f"{words}, {data}{', statistics held' if still else ''}",
                )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(yscale="log", xlabel="recorded step", ylabel="distance / whole batch's gradient")
    axes.set_title(f"{name}: gradient of the recorded batches", fontsize=9)
    axes.legend(fontsize=7)


def _value(name: str) -> tuple[str, Any]:
    """What a network is judged by."""
    if nets.NETWORKS[name].has_statistics:
        return "accuracy, held out, %", lambda t: 100 * t.held_right
    return "loss, held out, nat/token", lambda t: t.held_loss


def _each(found: Found, name: str, data: str, way: str) -> np.ndarray:
    value = _value(name)[1]
    return np.array([value(t) for t in found.group(name, data, way)])


def _bar(axes: Any, x: Any, each: list[np.ndarray], **style: Any) -> None:
    mean = np.array([values.mean() for values in each])
    low = mean - [values.min() for values in each]
    high = np.array([values.max() for values in each]) - mean
    axes.errorbar(x, mean, [np.maximum(low, 0), np.maximum(high, 0)], capsize=3, **style)


def _weights(axes: Any, found: Found, name: str) -> None:
    ways = [w for w in (PLAIN, WEIGHTED, UNWEIGHTED, SHARED) if (PRIVATE, w) in runs(name)]
    for number, (data, colour) in enumerate(COLOURS.items()):
        mine = [way for way in ways if (data, way) in runs(name)]
        at = [ways.index(way) + 0.16 * (number - 0.5) for way in mine]
        each = [_each(found, name, data, way) for way in mine]
        _bar(axes, at, each, fmt="o", color=colour, label=f"data {data}")
    axes.set_xticks(range(len(ways)), [way.replace(", ", ",\n") for way in ways])
    axes.set(ylabel=_value(name)[0])
    axes.set_title(f"{name}: weights of the mean", fontsize=9)
    axes.margins(x=0.15)
    axes.legend(fontsize=7)


def _intervals(axes: Any, found: Found, name: str) -> None:
    lines = (
        ("micro-batches", ALIKE, [WEIGHTED, *map(batched, KS[1:])], KS, "C0o-"),
        ("micro-batches, rate x sqrt k", ALIKE, [WEIGHTED, *map(rooted, KS[1:])], KS, "C2^-"),
        ("micro-batches, rate x k", ALIKE, [scaled(KS[-1])], KS[-1:], "C3v"),
        ("local steps", ALIKE, list(map(local, KS)), KS, "C4s--"),
        ("local steps, private", PRIVATE, [local(KS[0]), local(KS[-1])], (KS[0], KS[-1]), "C1s:"),
        ("exchange late by one", ALIKE, [LATE], KS[:1], "C5x"),
    )  # fmt: skip
    for number, (label, data, ways, ks, style) in enumerate(lines):
        each = [_each(found, name, data, way) for way in ways]
        x = np.array(ks) * 1.03 ** (number - 2)  # beside each other
        _bar(axes, x, each, fmt=style, markersize=4, linewidth=1, label=label)
    plain = _each(found, name, ALIKE, PLAIN).mean()
    axes.axhline(plain, color="black", linewidth=0.8, linestyle=(0, (1, 2)), label=PLAIN)
    axes.set(xscale="log", ylabel=_value(name)[0], xlabel="k, between two exchanges")
    axes.set_xticks(KS, [str(k) for k in KS])
    axes.minorticks_off()
    axes.set_title(f"{name}: fewer exchanges, the same samples", fontsize=9)
    axes.legend(fontsize=7)
