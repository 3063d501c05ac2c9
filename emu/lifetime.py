"""Lifetime: how many steps a drive stands, and what capacity the states take.

Owns bytes written per step with everything that is programmed, steps and years until the rated
program/erase cycles are used up, and the states' pages in the capacity of the same cells as TLC.
Does not own the cycles (presets) or the counts (ledger.py).
Source: drives are rated in bytes written, nominal capacity times cycles; the cycles' range is that
of the preset, with the retention that each end of it stands for. pSLC keeps one of TLC's three bits
in a cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.backend.geometry import Geometry
from ondie.emu.config import Config
from ondie.emu.energy import bounds
from ondie.emu.ledger import Ledger, Totals

YEAR_S = 8760 * 3600
BITS = {"pSLC": 1, "SLC": 1, "MLC": 2, "TLC": 3, "QLC": 4}
"""Of a cell; flash in pSLC mode was made for TLC's."""
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Lifetime:
    """Of the drives of a system under one path; steps and years as (low, typical, high)."""

    written_bytes: float
    """Programmed per step: what is written, collection, padding and maps."""
    rated_bytes: Interval
    """That may be written, all drives."""
    steps: Interval | None
    """None when nothing is written."""
    years: Interval | None
    """Of 8,760 hours of training, at the simulated time of a step."""
    state_bytes: int
    """Of the pages and super-pages that hold the states, all drives."""
    share: float
    """Of the nominal capacity."""
    tlc_bytes: int
    """What their cells hold as TLC."""
    pslc_bytes: int
    """The same, were the states in pSLC mode."""


def programmed_bytes(t: Totals) -> int:
    """Bytes of all pages programmed in a run, for whatever reason."""
    c = t.counters
    pages = c["program_pages"] + c["gc_program_pages"] + c["bpp_pages"]
    pages += c["map_program_pages"] + c["padding_pages"] + c["fold_program_pages"]
    return pages * t.page_bytes


def lifetime(cfg: Config, book: Ledger, on_flash: bool = True) -> Lifetime:
    """Of a path's run. ``on_flash``: the pages that hold data are those of the states."""
    t = book.totals
    written = programmed_bytes(t) / book.steps
    nominal = cfg.system.capacity_bytes * t.devices
    low, typical, high = bounds(cfg, "flash.endurance_cycles")
    rated = (low * nominal, typical * nominal, high * nominal)
    steps = years = None
    if written:
        steps = (rated[0] / written, rated[1] / written, rated[2] / written)
        a_year = book.step_s / YEAR_S
        years = (steps[0] * a_year, steps[1] * a_year, steps[2] * a_year)
    held = t.mapped_pages * t.page_bytes + t.super_pages[1] * Geometry.of(cfg).super_page_bytes
    held *= on_flash
    cells = held // BITS[cfg.flash.cell]
    return Lifetime(
        written, rated, steps, years, held, held / nominal, cells * BITS["TLC"], held * BITS["TLC"]
    )
