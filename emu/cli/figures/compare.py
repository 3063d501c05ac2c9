"""The figure of a comparison: time per step by phase, and energy per step by component.

Owns the drawing. Does not own any number. Source: matplotlib.
"""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ondie.emu.analysis.compare import Comparison, Result
from ondie.emu.cli.figures.save import saved

PHASES = {
    "samples": ("sample reads", "#b8b8b8"),
    "forward": ("forward", "#d9d2c3"),
    "backward": ("backward", "#b3a78c"),
    "gradients": ("gradient writes", "#e0a458"),
    "synchronise": ("gradient exchange", "#7a6fa6"),
    "update": ("update stage", "#c8553d"),
    "weights_up": ("weights to host", "#588b8b"),
}
ENERGY = {
    "NAND": (("NAND read", "NAND program", "NAND erase"), "#c8553d"),
    "channels, PCIe": (("channels", "PCIe"), "#e0a458"),
    "DRAM, ECC": (("drive DRAM", "ECC"), "#b3a78c"),
    "ISP, PE": (
        ("ISP busy", "ISP idle", "PE additions", "PE multiplications", "page registers"),
        "#588b8b",
    ),
    "controller": (("controller",), "#7a6fa6"),
    "host DRAM": (("host DRAM",), "#8fb8de"),
    "host power": (("host busy", "host waiting"), "#d0d0d0"),
    "accelerator waits": (("accelerator waiting",), "#e8c8c8"),
}


STORAGE = ("gradients", "synchronise", "update", "weights_up")


def draw(c: Comparison) -> dict[str, bytes]:
    """Draw the figure: {"png": bytes, "pdf": bytes}."""
    ran = [r for r in c.results if r.ledger is not None]
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(13, 2.6 + 0.45 * len(ran)), layout="constrained")
        whole, storage, power = figure.subplots(1, 3, sharey=True)
        _bars(
            whole, ran, {label: (_seconds(ran, p), color) for p, (label, color) in PHASES.items()}
        )
        whole.set_title("Time per step (s)", fontsize=9)
        whole.set_xlabel("time (s)")
        _bars(storage, ran, {PHASES[p][0]: (_seconds(ran, p), PHASES[p][1]) for p in STORAGE})
        storage.set_title("Update phases per step (s)", fontsize=9)
        storage.set_xlabel("time (s)")
        ends = _bars(
            power,
            ran,
            {
                label: (_joules(ran, parts, c.steps), color)
                for label, (parts, color) in ENERGY.items()
            },
        )
        _interval(power, ran, ends, c.steps)
        power.set_title("Energy per step, excluding forward and backward (J)", fontsize=9)
        power.set_xlabel("energy (J); error bars: range of the constants")
        whole.invert_yaxis()
        figure.suptitle(
            f"{c.trace.name} ({c.trace.n_params / 1e6:,.4g} M parameters, {c.trace.op}) on "
            f"{c.cfg.system.devices} x {c.cfg.system.name}",
            fontsize=10,
        )
        return saved(figure)


def _seconds(ran: list[Result], phase: str) -> np.ndarray:
    return np.array([r.ledger.phases_s.get(phase, 0.0) for r in ran if r.ledger])


def _joules(ran: list[Result], parts: tuple[str, ...], steps: int) -> np.ndarray:
    nothing = (0.0, 0.0, 0.0)
    found = [r.energy.by_component for r in ran if r.energy]
    return np.array([sum(x.get(p, nothing)[1] for p in parts) / steps for x in found])


def _bars(axes: Axes, ran: list[Result], parts: dict[str, tuple[np.ndarray, str]]) -> np.ndarray:
    """Draw stacked bars, one per path, without parts that are 0 everywhere. Returns their ends."""
    names = [r.name for r in ran]
    at = np.zeros(len(ran))
    for label, (length, color) in parts.items():
        if length.any():
            axes.barh(names, length, left=at, color=color, label=label, height=0.7)
            at += length
    axes.set_xlim(0, max(at.max() * 1.05, 1e-12))
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    return at


def _interval(axes: Axes, ran: list[Result], ends: np.ndarray, steps: int) -> None:
    """Draw error bars from the low to the high end of the energy."""
    spans = np.array([r.energy.storage_and_host for r in ran if r.energy]) / steps
    names = [r.name for r in ran]
    reach = [np.maximum(ends - spans[:, 0], 0), np.maximum(spans[:, 2] - ends, 0)]
    axes.errorbar(ends, names, xerr=reach, fmt="none", ecolor="black", elinewidth=1, capsize=3)
    axes.set_xlim(0, spans[:, 2].max() * 1.05)
