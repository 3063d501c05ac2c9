"""The tornado figure: effect of each constant on the ratios of the comparison.

Owns the drawing. Does not own any number (analysis/monte_carlo.py). Source: matplotlib; colors that
readers with red-green color blindness can tell apart (Okabe and Ito).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ondie.emu.analysis.compare import Comparison
from ondie.emu.analysis.monte_carlo import Bar, Ends, Odds, width
from ondie.emu.cli.figures import saved

SHOWN = 12
LEAST_WIDTH = 1.005
"""Minimum width of a bar of the tornado figure, as the larger ratio divided by the smaller one;
narrower bars are not drawn."""
LOW, HIGH = "#0072b2", "#e69f00"
NOTHING = 1e-3
"""Threshold of abs(ln(ratio at a bar's end / typical ratio)): up to this value, the end counts as
equal to the typical ratio."""
Of = Callable[[Bar], Ends]


def draw(c: Comparison) -> dict[str, bytes]:
    """Draw the tornado figure. Returns {"png": bytes, "pdf": bytes}.

    ``c.odds`` (the uncertainty of the energy ratio) must not be None.
    """
    odds = c.odds
    assert odds is not None
    base, rival = (name.replace("_", " ") for name in odds.pair)
    panels: list[tuple[str, str, Of, float]] = [
        (
            "Energy, SSD and host",
            f"energy of {base} / energy of {rival}",
            lambda b: b.energy,
            odds.ratios[0],
        ),
        (
            "Energy, SSD alone",
            f"energy of {base} / energy of {rival}",
            lambda b: b.drive,
            odds.ratios[1],
        ),
        (
            "Speed of the update stage",
            f"update time of {base} / update time of {rival}",
            lambda b: b.speedup,
            odds.ratios[2],
        ),
    ]
    rows = [widest(odds, ends, typical) for _, _, ends, typical in panels]
    heights = [max(len(found), 2) for found in rows]
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(9.5, 2.2 + 0.27 * sum(heights) + 0.75 * 3), layout="constrained")
        axes = figure.subplots(3, 1, gridspec_kw={"height_ratios": [h + 1.5 for h in heights]})
        for at, (title, label, ends, typical), found in zip(axes, panels, rows, strict=True):
            _panel(at, found, ends, typical)
            at.set_title(f"{title} (typical ratio: {typical:.2f})", fontsize=10, loc="left")
            at.set_xlabel(f"{label}  (values above 1 favor {rival})")
        figure.suptitle(
            f"{c.trace.name} on {c.cfg.system.devices} x {c.cfg.system.name}: each constant at the "
            "ends of its range, all others typical",
            fontsize=10,
        )
        figure.legend(
            handles=[Patch(color=LOW, label="low end"), Patch(color=HIGH, label="high end")],
            loc="outside lower center", ncols=2, frameon=False,
        )  # fmt: skip
        return saved(figure)


def widest(odds: Odds, ends: Of, typical: float) -> list[Bar]:
    """Return the bars of a panel that are wider than LEAST_WIDTH, widest first, at most SHOWN
    bars."""
    wide = [b for b in odds.bars if width(ends(b), typical) > LEAST_WIDTH]
    return sorted(wide, key=lambda b: (-width(ends(b), typical), b.key))[:SHOWN]


def _panel(at: Axes, found: list[Bar], ends: Of, typical: float) -> None:
    at.set_xscale("log")
    reach = [x for b in found for x in ends(b) if x is not None] + [typical]
    for i, bar in enumerate(found):
        (first, last), texts = ends(bar), [bar.low, bar.high]
        texts = [
            text if end is not None else f"{text}: cannot run"
            for text, end in zip(texts, (first, last), strict=True)
        ]
        _bar(at, i, typical, (first or typical, texts[0], LOW), (last or typical, texts[1], HIGH))
    at.set_yticks(range(len(found)), [b.key for b in found])
    at.set_ylim(max(len(found), 2) - 0.4, -0.6)
    at.axvline(typical, color="black", linewidth=1)
    span = max(max(reach) / min(reach), 1.1)
    at.set_xlim(min(reach) / span**0.25, max(reach) * span**0.25)
    if at.get_xlim()[0] < 1 < at.get_xlim()[1]:
        at.axvline(1, color="black", linewidth=1, linestyle=":")
    at.xaxis.set_major_locator(FixedLocator(ticks(*at.get_xlim())))
    at.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    at.xaxis.set_minor_locator(NullLocator())
    at.grid(axis="x", color="#d9d9d9", linewidth=0.6)
    at.set_axisbelow(True)


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` to ``high`` for a logarithmic axis.

    If ``high`` / ``low`` is below 2.5, the numbers are evenly spaced. Otherwise, they are the same
    multiples of each power of ten, such as 1, 2 and 5.
    """
    if high / low < 2.5:
        found = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    else:
        digits = (1, 1.5, 2, 3, 4, 5, 7) if high / low < 20 else (1, 2, 5)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [digit * 10.0**k for k in decades for digit in digits]
    return [float(x) for x in found if low <= x <= high]


def _bar(at: Axes, y: int, typical: float, *ends: tuple[float, str, str]) -> None:
    """Draw the bars from the typical ratio to both ends of a constant's range.

    The farther end is drawn first, so that a nearer end on the same side covers it.
    """
    far, near = sorted(ends, key=lambda end: -abs(math.log(end[0] / typical)))
    for value, _, color in (far, near):
        at.barh(y, value - typical, left=typical, color=color, height=0.66)
    seen = abs(math.log(near[0] / typical)) > NOTHING
    same_side = seen and (far[0] > typical) == (near[0] > typical)
    text = f"{far[1]}  (nearer: {near[1]})" if same_side else far[1]
    _label(at, far[0], y, text, far[0] > typical)
    if not same_side:
        _label(at, near[0], y, near[1], far[0] < typical)


def _label(at: Axes, x: float, y: int, text: str, right: bool) -> None:
    at.annotate(
        text, (x, y), xytext=(4 if right else -4, 0), textcoords="offset points",
        ha="left" if right else "right", va="center", fontsize=7.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
    )  # fmt: skip
