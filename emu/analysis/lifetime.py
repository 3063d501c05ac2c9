"""Lifetime: how many steps a drive stands, and what capacity the states take.

Owns bytes written per step with everything that is programmed, steps and years until the rated
program/erase cycles are used up, how long blocks of a path's own last where wear is levelled and
where not, and the states' pages in the capacity of the same cells as TLC. Does not own the cycles
(presets), what the nominal capacity is (nominal.py), the counts (ledger.py) or levelling
(paths/levelling.py, backend/reservoir.py).
Source: drives are rated in bytes written, nominal capacity times cycles. Cycles are rated for a
retention (JESD218: client 1 year, enterprise 3 months); where less is required, as many more as the
preset says of it, in the optimizer's reservoir and elsewhere apart. pSLC keeps one of TLC's three
bits in a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ondie.emu.analysis.energy import bounds
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.config.config import Config
from ondie.emu.config.schema import RETENTIONS
from ondie.emu.engine.core.totals import Totals
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.statement import Share

YEAR_S = 8760 * 3600
RATED, RATED_RETENTION = "rated", "flash.rated_retention"
RETENTION, RESERVOIR_RETENTION = "flash.retention", "ftl.reservoir_retention"
RESERVOIR_PAGES = ("bpp_pages", "stored_pages", "kept_pages", "landed_pages")
"""Counters of pages programmed in the optimizer's reservoir; all others are behind the map."""
BITS = {"pSLC": 1, "SLC": 1, "MLC": 2, "TLC": 3, "QLC": 4}
"""Of a cell; flash in pSLC mode was made for TLC's."""
Interval = tuple[float, float, float]


def spread(worn: Sequence[Sequence[int]]) -> dict[str, tuple[int, float, int]]:
    """(least, mean, most) erases of a "plane" and of a "die" among ``worn``, those of each die by
    plane."""
    planes = [n for die in worn for n in die]
    dies = [sum(die) for die in worn]
    return {
        name: (min(its), sum(its) / len(its), max(its))
        for name, its in (("plane", planes), ("die", dies))
    }


@dataclass(frozen=True)
class Lifetime:
    """Of the drives of a system under one path; steps and years as (low, typical, high).

    Two measures of one wear. ``steps`` is the rating: what drives are sold by, cycles times nominal
    capacity. ``wear_out_steps`` is the flash itself: cycles times all of its pages, spare blocks
    included; longer, for every path and geometry, by flash over nominal capacity. Both take all
    blocks as worn alike; ``reservoir_steps`` does not."""

    written_bytes: float
    """Programmed per step: what is written, collection, padding and maps."""
    rated_bytes: Interval
    """That may be written, all drives: nominal capacity times cycles, those of the reservoir and of
    the rest as this path writes them."""
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
    wear_out_steps: float | None = None
    """Until every block of flash has its typical cycles."""
    reservoir_steps: tuple[float, float] | None = None
    """Until the first block of the path's own has its typical cycles, all others alive or not: with
    wear levelled as configured, and as laid out."""


def programmed_bytes(t: Totals) -> int:
    """Bytes of all pages programmed in a run, for whatever reason."""
    c = t.counters
    pages = c["program_pages"] + c["gc_program_pages"] + c["failed_pages"]
    pages += c["map_program_pages"] + c["padding_pages"] + c["fold_program_pages"]
    return pages * t.page_bytes + reservoir_bytes(t)


def reservoir_bytes(t: Totals) -> int:
    """The same of pages in the optimizer's reservoir."""
    return sum(t.counters[name] for name in RESERVOIR_PAGES) * t.page_bytes


def gain(cfg: Config, required: str, rated: str) -> Interval:
    """Cycles where a retention is ``required``, over those for another; RATED: the same."""
    if required in (RATED, rated):
        return 1.0, 1.0, 1.0
    mine, others = (
        (1.0, 1.0, 1.0) if name == RETENTIONS[0]
        else bounds(cfg, f"flash.cycles_{name.replace(' ', '_')}")
        for name in (required, rated)
    )  # fmt: skip
    return mine[0] / others[2], mine[1] / others[1], mine[2] / others[0]


def cycles(cfg: Config, key: str = RETENTION) -> Interval:
    """Program/erase cycles of a block, (low, typical, high), where the retention of ``key`` is
    required: low and high over the ranges of the rating, of its class and of what is required."""
    required, rated = cfg.leaf(key), cfg.leaf(RATED_RETENTION)
    ends = [
        gain(cfg, str(need), str(have))
        for need in (required.value, required.low, required.high) if need is not None
        for have in (rated.value, rated.low, rated.high) if have is not None
    ]  # fmt: skip
    low, typical, high = bounds(cfg, "flash.endurance_cycles")
    return low * min(e[0] for e in ends), typical * ends[0][1], high * max(e[2] for e in ends)


def cycles_as_written(cfg: Config, t: Totals) -> Interval:
    """Cycles by which a drive is worn that is written as in this run: its bytes over the share of
    life that they take, in the reservoir and behind the map."""
    inside, every = reservoir_bytes(t), programmed_bytes(t)
    behind, own = cycles(cfg), cycles(cfg, RESERVOIR_RETENTION)
    if not inside or behind == own:
        return behind
    if inside == every:
        return own
    low, typical, high = (
        every / (inside / mine + (every - inside) / other)
        for mine, other in zip(own, behind, strict=True)
    )
    return low, typical, high


def lifetime(
    cfg: Config, book: Ledger, on_flash: bool = True, share: Share | None = None
) -> Lifetime:
    """Of a path's run. ``on_flash``: the pages that hold data are those of the states; ``share``:
    how its programs fall on blocks of its own."""
    t = book.totals
    written = programmed_bytes(t) / book.steps
    nominal = cfg.system.capacity_bytes * t.devices
    low, typical, high = cycles_as_written(cfg, t)
    rated = (low * nominal, typical * nominal, high * nominal)
    steps = years = wear_out = None
    g = Geometry.of(cfg)
    if written:
        wear_out = typical * g.physical_pages * g.page_bytes * t.devices / written
        steps = (rated[0] / written, rated[1] / written, rated[2] / written)
        a_year = book.step_s / YEAR_S
        years = (steps[0] * a_year, steps[1] * a_year, steps[2] * a_year)
    held = t.mapped_pages * t.page_bytes + t.super_pages[1] * g.super_page_bytes
    held *= on_flash
    cells = held // BITS[cfg.flash.cell]
    own = None
    if share is not None and share.as_laid_out:
        alone = cycles(cfg, RESERVOIR_RETENTION)[1]
        own = alone / share.levelled, alone / share.as_laid_out
    return Lifetime(
        written, rated, steps, years, held, held / nominal, cells * BITS["TLC"],
        held * BITS["TLC"], wear_out, own,
    )  # fmt: skip
