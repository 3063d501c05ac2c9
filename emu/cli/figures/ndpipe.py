"""Figure of NDPipe: throughput, traffic, energy and cost of three systems by number of stores.

Owns the drawing. Does not own the computation of the values (emu/ndpipe/cost.py).
Source: matplotlib; the three systems are those that NDPipe (ASPLOS 2024) compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.figure import Figure

from ondie.emu.cli.figures import saved
from ondie.emu.ndpipe.cost import IDEAL, NDPIPE, TYPICAL, Point

STYLES = {
    TYPICAL: ("#000000", "o", "-"),
    NDPIPE: ("#d55e00", "^", "-"),
    IDEAL: ("#0072b2", "s", "--"),
}
PANELS: tuple[tuple[str, Callable[[Point], float]], ...] = (
    ("Throughput (photos/s)", lambda point: point.photos_per_s),
    ("Network traffic (KB/photo)", lambda point: point.traffic_bytes / 1e3),
    ("Energy (J/photo)", lambda point: point.joules),
    ("Cost (US dollars per million photos)", lambda point: 1e6 * point.dollars),
)


def over_stores(points: Sequence[Point], title: str) -> dict[str, bytes]:
    """Draw throughput, network traffic, energy and cost as functions of the number of stores: one
    panel each (PANELS), with a line for each system.

    A traffic of 0 is not drawn, because the axis of the traffic is logarithmic. Returns {"png":
    bytes, "pdf": bytes}.
    """
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(7.5, 6.0), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True)
        for at, (label, value) in zip(grid.flat, PANELS, strict=True):
            for system, (color, marker, line) in STYLES.items():
                mine = [point for point in points if point.system == system]
                values = [value(point) for point in mine]
                at.plot(
                    [point.stores for point in mine], values, color=color, marker=marker,
                    linestyle=line, markersize=4, label=system,
                )  # fmt: skip
            at.set_ylabel(label)
            at.grid(axis="y", color="#d9d9d9", linewidth=0.6)
            if "traffic" in label:
                at.set_yscale("log")
                at.set_title(f"{IDEAL}: 0 KB/photo (not drawn on a logarithmic axis)", fontsize=8)
            else:
                at.set_ylim(bottom=0)
        for at in grid[1]:
            at.set_xlabel("Number of stores")
        figure.legend(
            *grid[0, 0].get_legend_handles_labels(), loc="outside lower center", frameon=False,
            ncols=len(STYLES),
        )  # fmt: skip
        figure.suptitle(title, fontsize=10)
        return saved(figure)
