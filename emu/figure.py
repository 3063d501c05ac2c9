"""The figure of a comparison: time per step by phase, and energy per step by component.

Owns the drawing. Does not own any number. Source: matplotlib; files carry no date, so that the same
comparison draws the same bytes.
"""

from __future__ import annotations

import io

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ondie.emu.compare import Comparison, Result

PHASES = {
    "samples": ("reading samples", "#b8b8b8"),
    "forward": ("forward", "#d9d2c3"),
    "backward": ("backward", "#b3a78c"),
    "gradients": ("gradients written", "#e0a458"),
    "synchronise": ("synchronise", "#7a6fa6"),
    "update": ("update stage", "#c8553d"),
    "weights_up": ("weights up", "#588b8b"),
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
    "host power": (("host power",), "#d0d0d0"),
}


def draw(c: Comparison) -> dict[str, bytes]:
    """The figure as {"png": bytes, "pdf": bytes}."""
    ran = [r for r in c.results if r.ledger is not None]
    with matplotlib.rc_context({"font.size": 9, "pdf.fonttype": 42, "svg.hashsalt": "ondie"}):
        figure = Figure(figsize=(11, 1.6 + 0.55 * len(ran)), layout="constrained")
        left, right = figure.subplots(1, 2)
        _times(left, ran)
        _energies(right, ran, c.steps)
        figure.suptitle(
            f"{c.trace.name} ({c.trace.n_params / 1e6:,.4g} M parameters, {c.trace.op}) on "
            f"{c.cfg.system.devices} x {c.cfg.system.name}",
            fontsize=10,
        )
        out = {}
        for suffix, metadata in (
            ("png", {"Software": None}),
            ("pdf", {"CreationDate": None, "Producer": None, "Creator": None}),
        ):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, dpi=150, metadata=metadata)
            out[suffix] = buffer.getvalue()
    return out


def _times(axes, ran: list[Result]) -> None:
    names = [r.name for r in ran]
    at = np.zeros(len(ran))
    for phase, (label, colour) in PHASES.items():
        length = np.array([r.ledger.phases_s.get(phase, 0.0) for r in ran if r.ledger])
        if length.any():
            axes.barh(names, length, left=at, color=colour, label=label, height=0.7)
            at += length
    axes.invert_yaxis()
    axes.set_xlabel("seconds per step")
    axes.set_title("Time per step by phase", fontsize=9)
    axes.legend(fontsize=7, ncols=2, loc="lower right", framealpha=0.9)


def _energies(axes, ran: list[Result], steps: int) -> None:
    names = [r.name for r in ran]
    at = np.zeros(len(ran))
    for label, (parts, colour) in ENERGY.items():
        length = np.array(
            [
                sum(r.energy.by_component.get(p, (0.0, 0.0, 0.0))[1] for p in parts) / steps
                for r in ran
                if r.energy
            ]
        )
        if length.any():
            axes.barh(names, length, left=at, color=colour, label=label, height=0.7)
            at += length
    low = np.array([r.energy.storage_and_host[0] / steps for r in ran if r.energy])
    high = np.array([r.energy.storage_and_host[2] / steps for r in ran if r.energy])
    axes.errorbar(
        at, names, xerr=[at - low, high - at], fmt="none", ecolor="black", elinewidth=1, capsize=3
    )
    axes.invert_yaxis()
    axes.set_yticklabels([])
    axes.set_xlabel("joules per step outside forward and backward (bar: all constants low .. high)")
    axes.set_title("Energy per step by component", fontsize=9)
    axes.legend(fontsize=7, ncols=2, loc="lower right", framealpha=0.9)
