"""Commercial drives: values of their data sheets compared with the simulation.

Owns the list of drives, the tolerance and the rows. Does not own the workloads
(analysis/headlines.py), the data sheets (the table [datasheet] of each preset) or the rules for the
choice of constants (docs/drives.md). Source: data sheets of Samsung 970 PRO, 970 EVO and PM9A3, WD
Black SN750, Micron 7450 and 7500, Intel D5-P4320; the fit row is NVMeVirt's measurement of the 970
PRO (FAST 2023).
"""

from __future__ import annotations

from ondie.emu.analysis.headlines import Headline, simulate
from ondie.emu.analysis.row import CHECK, IDENTITY, Progress, Row
from ondie.emu.config.config import load_preset
from ondie.emu.config.datasheet import UNITS, DataSheet, load_datasheet
from ondie.emu.units import fmt_bytes

DRIVES = ("970-pro", "970-evo", "sn750", "pm9a3", "7450", "7500", "p4320")
"""Presets of drives with a data sheet, in the order in which their rows are printed."""
TOLERANCE = 0.15
"""Relative tolerance of the validation rows of kind "check"."""
SHOWN_UNITS = {
    "bytes_per_s": ("MB/s", 1e6),
    "iops": ("kIOPS", 1e3),
    "ps": ("us", 1e6),
    "mw": ("W", 1e3),
    "bytes": ("TB", 1e12),
}
"""Unit that the rows show instead of each base unit, and the size of this unit in base units."""


def drives_rows(progress: Progress = None) -> list[Row]:
    """Return a row for each value of each data sheet."""
    rows: list[Row] = []
    for at, name in enumerate(DRIVES):

        def step(what: str, done: float, at: int = at) -> None:
            if progress is not None:
                progress("drives", (at + done) / len(DRIVES))

        rows += drive_rows(name, step)
    return rows


def drive_rows(name: str, progress: Progress = None) -> list[Row]:
    """Return a row for each value of the data sheet of the preset ``name``."""
    cfg = load_preset(name)
    sheet = load_datasheet(name, cfg)
    return [row(name, sheet, found) for found in simulate(cfg, sheet, progress=progress)]


def row(name: str, sheet: DataSheet, headline: Headline) -> Row:
    """Return the row that compares one value of the data sheet of the preset ``name`` with the
    simulation."""
    figure = headline.figure
    unit, size = SHOWN_UNITS[UNITS[figure.what]]
    assert figure.value is not None
    return Row(
        suite="drives",
        name=f"{name}: {figure.title}",
        kind=figure.kind,
        published=figure.value / size,
        predicted=headline.value / size,
        unit=unit,
        tolerance=TOLERANCE if figure.kind in (CHECK, IDENTITY) else None,
        source=f"{name}, {fmt_bytes(sheet.capacity_bytes)}, writes to a {sheet.state} drive",
        place=figure.source or sheet.source,
        constants=figure.constants,
    )
