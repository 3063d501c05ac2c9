"""Tables of a calibration: constants, errors over all measurement points, errors of each point.

Owns titles, columns and units. Does not own any number.
Source: the document of `ondie calibrate --json` (analysis/calibrate/calibration.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.table import Column, Table

from ondie.emu.units import KINDS, exact, fmt_bytes, fmt_time

PS_PER_US = 10**6
KINDS_OF_FIGURE = {"iops": "IOPS", "mean": "mean", "p50": "p50", "p90": "p90", "p99": "p99"}
CORRELATED = 0.9
"""Minimum absolute correlation of two constants that the output names as correlated."""


def _shown(value: int, unit: str) -> str:
    """Return a value in the base unit ``unit`` as text with a suitable unit."""
    kind = next(kind for kind in KINDS.values() if kind.shown[0] == unit)
    return exact(value, kind)


def constants_table(data: Mapping[str, Any]) -> Table:
    """Return the table of the fitted constants: value in the preset, fitted value, 95 % confidence
    interval, relative error, and notes."""
    table = Table(
        "constant", Column("preset", justify="right"), Column("fitted", justify="right"),
        Column("95 % interval", justify="right"), Column("error", justify="right"), "note",
        title=f"Constants of {data['preset']} fitted to the measurement", title_justify="left",
        title_style="bold",
    )  # fmt: skip
    for row in data["constants"]:
        before = _shown(row["before"], row["unit"])
        error = f"{row['relative_error']:.1%}" if row["relative_error"] < 10 else "above 1000%"
        if row["kept"]:
            table.add_row(row["key"], before, "", "", error, "not determined; as in the preset")
            continue
        span = f"{_shown(row['low'], row['unit'])} .. {_shown(row['high'], row['unit'])}"
        notes = [] if row["determined"] else ["hardly determined"]
        note = "; ".join(notes + [f"at its {at} bound" for at in [row["at_bound"]] if at])
        table.add_row(row["key"], before, _shown(row["value"], row["unit"]), span, error, note)
    return table


def constants_words(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line on the singular values of the fit, and a line on correlated constants if there
    are any."""
    values = data["singular_values"]
    yield (
        f"singular values of the weighted derivatives: {values[0]:.3g} (best determined "
        f"combination of constants) to {values[-1]:.3g} (worst)"
    )
    keys = [row["key"] for row in data["constants"]]
    covariance = np.array(data["covariance"])
    error = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(error, error)
    pairs = [
        f"{keys[i]} and {keys[j]} ({correlation[i, j]:+.2f})"
        for i in range(len(keys))
        for j in range(i)
        if abs(correlation[i, j]) >= CORRELATED
    ]
    if pairs:
        yield f"correlated, so that their errors compensate: {', '.join(pairs)}"


def errors_table(data: Mapping[str, Any]) -> Table:
    """Return the table of mean and largest absolute errors, for the measurement points used in the
    fit and for the held-out points."""
    table = Table(
        "points", "", *(Column(name, justify="right") for name in KINDS_OF_FIGURE.values()),
        Column("all", justify="right"),
        title="Mean and largest absolute relative error of the simulated values (%)",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for name, words in (("fitted", "fitted"), ("held_out", "held out")):
        for key, when in ((f"{name}_before", "preset"), (name, "calibrated")):
            of = data["errors"][key]
            cells = (of[kind] for kind in (*KINDS_OF_FIGURE, "all"))
            table.add_row(words, when, *(f"{x['mean']:.1%}, {x['largest']:.0%}" for x in cells))
    return table


def points_table(data: Mapping[str, Any]) -> Table:
    """Return the table of the measurement points: measured values, and relative errors of the
    simulated values."""
    names = {"IOPS": "iops"}
    for direction in ("read", "write"):
        names |= {f"{direction} {kind}": f"{direction} {kind}" for kind in ("mean", "p50", "p99")}
    table = Table(
        Column("point", no_wrap=True), Column("measured", justify="right", no_wrap=True),
        *(Column(name, justify="right") for name in names),
        title="Errors of each point (relative), and measured IOPS and mean latencies (read, write)",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for held, words in ((False, "fitted"), (True, "held out")):
        table.add_section()
        table.add_row(words, style="bold")
        for row in data["points"]:
            if row["held_out"] == held:
                cells = (f"{row['error'][name]:+.1%}" if name in row["error"] else ""
                         for name in names.values())  # fmt: skip
                table.add_row(_pattern(row), _measured(row["measured"]), *cells)
    return table


def _measured(figures: Mapping[str, float]) -> str:
    """Return the IOPS and mean latencies in ``figures``, the measured values of a point, as a short
    text."""
    means = [figures[name] for name in ("read mean", "write mean") if name in figures]
    return ", ".join([f"{figures['iops']:,.0f}", *(fmt_time(mean * PS_PER_US) for mean in means)])


def _pattern(row: Mapping[str, Any]) -> str:
    """Return the workload of a measurement point as a short text, such as "4 KiB read x 16"."""
    share = row["read_share"]
    kind = {1.0: "read", 0.0: "write"}.get(share, f"{share:.0%} read")
    order = "" if row["random"] else "seq. "
    return f"{fmt_bytes(row['block_bytes'], binary=True)} {order}{kind} x {row['depth']}"


def run_words(data: Mapping[str, Any]) -> str:
    """Return a line with the median deviation of the fitted figures, the number of simulated points
    and the wall time."""
    return (
        f"half of the fitted figures deviate by less than "
        f"{data['errors']['fitted']['all']['median']:.1%}; {data['simulations']:,} simulated "
        f"points in {fmt_time(data['wall_s'] * 1e12)}"
    )
