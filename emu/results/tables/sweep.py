"""Tables of a sweep of configuration keys and options over lists of values.

Owns titles, columns, units and text. Does not own the rows (analysis/sweep.py). Source: this
project.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ondie.emu.analysis.result_json import seconds
from ondie.emu.analysis.step_budget import answer
from ondie.emu.analysis.sweep import ALL_PATHS, Sweep
from ondie.emu.config import nominal_capacity
from ondie.emu.config.rules.rule import GEOMETRY
from ondie.emu.units import fmt_bytes, fmt_count, fmt_energy, plural


def table(swept: Sweep) -> Table:
    """Return the table of a sweep, with one row for each path (update strategy) at each point
    (combination of swept values). Paths that did not run at any point are omitted."""
    keys = " and ".join(axis.key for axis in swept.axes)
    out = Table(
        title=f"Times and energy for each {keys}: {swept.trace.name} on "
        f"{swept.cfg.system.name}, mean of {plural(swept.steps, 'step')}",
        title_justify="left", title_style="bold", caption_justify="left",
    )  # fmt: skip
    for column in (*(axis.key.rpartition(".")[2] for axis in swept.axes), "path"):
        out.add_column(column, no_wrap=True)
    columns = [
        "update",
        "speedup",
        "step",
        "share",
        "energy, drive",
        "energy, drive + host",
        "bound by",
    ]
    columns += ["meets target"] if swept.target_s is not None else []
    for column in columns:
        out.add_column(column, justify="right", no_wrap=column == "bound by")
    before: tuple[str, ...] = ()
    ran = {row.path for row in swept.rows if row.update_s is not None}
    for row in swept.rows:
        if row.path not in ran and row.path != ALL_PATHS:
            continue
        if before and row.values != before:
            out.add_section()
        at = row.values if row.values != before else ("",) * len(row.values)
        before = row.values
        if row.update_s is None or row.step_s is None or row.update_share is None:
            out.add_row(*at, row.path, "n/a", *[""] * (len(columns) - 1))
            continue
        assert row.energy_drive_j is not None and row.energy_drive_and_host_j is not None
        out.add_row(
            *at, row.path, seconds(row.update_s), "" if row.speedup is None else
            f"{row.speedup:.2f}x", seconds(row.step_s), f"{row.update_share:.0%}",
            fmt_energy(row.energy_drive_j[1] * 1e15),
            fmt_energy(row.energy_drive_and_host_j[1] * 1e15),
            f"{row.bound_by} {row.bound_by_share:.0%}",
            *([answer(row.target)] if row.target is not None else []),
        )  # fmt: skip
    return out


def per_sample(swept: Sweep) -> Table:
    """Return the table of time and energy per step and per sample, including forward and
    backward.
    """
    out = Table(
        title="Time and energy per step and per sample, including forward and backward",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for column in (*(axis.key.rpartition(".")[2] for axis in swept.axes), "path"):
        out.add_column(column, no_wrap=True)
    for column in (
        "step",
        "sample",
        "samples/s",
        "energy / step",
        "energy / sample",
        "low .. high",
    ):
        out.add_column(column, justify="right")
    before: tuple[str, ...] = ()
    for row in swept.rows:
        if row.step_s is None or not row.samples_per_s:
            continue
        assert row.energy_step_j is not None and row.energy_sample_j is not None
        if before and row.values != before:
            out.add_section()
        at = row.values if row.values != before else ("",) * len(row.values)
        before = row.values
        low, typical, high = (fmt_energy(joules * 1e15) for joules in row.energy_sample_j)
        out.add_row(
            *at, row.path, seconds(row.step_s), seconds(1 / row.samples_per_s),
            fmt_count(row.samples_per_s), fmt_energy(row.energy_step_j[1] * 1e15), typical,
            f"{low} .. {high}",
        )  # fmt: skip
    return out


def reasons(swept: Sweep) -> list[str]:
    """Return a line for each reason why a path (update strategy) did not run, with the affected
    points (combinations of swept values)."""
    out: dict[tuple[str, str], list[str]] = {}
    for row in swept.rows:
        if row.reason is not None:
            out.setdefault((row.path, row.reason), []).append(", ".join(row.values))
    points = len({row.values for row in swept.rows})
    return [
        f"{path}{'' if len(at) == points else ' at ' + '; '.join(at)}: n/a: {reason}"
        for (path, reason), at in out.items()
    ]


def capacities(swept: Sweep) -> str | None:
    """Return a line with the nominal capacity of a drive at each point (combination of swept
    values), or None if the capacity does not change."""
    follows = [i for i, axis in enumerate(swept.axes) if axis.key in GEOMETRY]
    at = {
        tuple(row.values[i] for i in follows): row.capacity_bytes
        for row in swept.rows
        if row.capacity_bytes is not None
    }
    if set(at.values()) <= {swept.cfg.system.capacity_bytes}:
        return None
    points = ", ".join(f"{fmt_bytes(size)} at {' and '.join(x)}" for x, size in at.items())
    return f"{nominal_capacity.CAPACITY} follows the flash: {points}"


def show(swept: Sweep, console: Console) -> None:
    """Print the tables of a sweep and the reasons for missing rows."""
    console.print(table(swept))
    words = capacities(swept), nominal_capacity.note(swept.cfg.leaf(nominal_capacity.CAPACITY))
    for line in filter(None, words):
        console.print(line)
    console.print()
    console.print(per_sample(swept))
    for line in reasons(swept):
        console.print(line)
