"""Lifetime: how many steps a drive stands, and what capacity the states take.

Owns bytes written per step with everything that is programmed, steps and years until the rated
program/erase cycles are used up, how long blocks of a path's own last where wear is levelled and
where not, and the states' pages in the capacity of the same cells as TLC. Does not own the cycles
(presets), the counts (ledger.py) or levelling (paths/levelling.py, backend/reservoir.py).
Source: drives are rated in bytes written, nominal capacity times cycles; the cycles' range is that
of the preset, with the retention that each end of it stands for. pSLC keeps one of TLC's three bits
in a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
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
class Share:
    """How the programs of a step fall on blocks that a path has to itself: the reservoir's."""

    planes: int
    """Of a die."""
    used: int
    """Planes that a super-page fills; the others are idle."""
    programs: tuple[float, ...]
    """Super-pages that each die programs in a step, of all devices."""
    places: tuple[int, ...]
    """Super-pages that its good blocks have."""
    rotate: int
    """Cycles after which planes change roles; 0: never, or none is idle."""
    migrate: int
    """Difference of dies' cycles at which super-pages move; 0: never."""
    turn_s: float
    """What a change of roles adds to one step, on the fullest die."""

    @property
    def mean(self) -> float:
        """Cycles that a step takes of the blocks of planes in use, on the mean over dies."""
        return sum(self.programs) / sum(self.places)

    @property
    def as_laid_out(self) -> float:
        """Cycles that a step takes of the blocks worn most, nothing levelled: those of planes in
        use of the die that programs most for its room."""
        return max(n / room for n, room in zip(self.programs, self.places, strict=True))

    @property
    def levelled(self) -> float:
        """The same with the levelling that there is, but for the difference that it allows."""
        worn = self.as_laid_out
        if self.migrate:
            worn = self.mean
        return worn * self.used / self.planes if self.rotate else worn

    @property
    def turn_steps(self) -> float:
        """Steps from one change of roles to the next, on the die that comes to it first."""
        return self.rotate / self.as_laid_out


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
    reservoir_steps: tuple[float, float] | None = None
    """Until the first block of the path's own has its typical cycles, all others alive or not: with
    wear levelled as configured, and as laid out."""


def programmed_bytes(t: Totals) -> int:
    """Bytes of all pages programmed in a run, for whatever reason."""
    c = t.counters
    pages = c["program_pages"] + c["gc_program_pages"] + c["bpp_pages"]
    pages += c["map_program_pages"] + c["padding_pages"] + c["fold_program_pages"]
    pages += c["stored_pages"] + c["kept_pages"] + c["landed_pages"] + c["failed_pages"]
    return pages * t.page_bytes


def lifetime(
    cfg: Config, book: Ledger, on_flash: bool = True, share: Share | None = None
) -> Lifetime:
    """Of a path's run. ``on_flash``: the pages that hold data are those of the states; ``share``:
    how its programs fall on blocks of its own."""
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
    own = None
    if share is not None and share.as_laid_out:
        own = typical / share.levelled, typical / share.as_laid_out
    return Lifetime(
        written, rated, steps, years, held, held / nominal, cells * BITS["TLC"],
        held * BITS["TLC"], own,
    )  # fmt: skip
