"""Lifetime of a drive in steps and years, and the capacity that the states occupy.

Owns the bytes programmed per step, and the steps and years until the rated program/erase cycles are
used up. Also owns the lifetime of the blocks reserved for a path, with and without wear leveling,
and the TLC capacity of the cells that hold the states. Does not own the number of cycles (presets),
the nominal capacity (config/nominal_capacity.py), the counts of a run (analysis/ledger.py) or wear
leveling (paths/on_die/wear_leveling.py, ftl/reservoir.py).
Source: drives are rated in bytes written: nominal capacity times cycles. Cycles are rated for a
retention (JESD218: client 1 year, enterprise 3 months). If a shorter retention is required, the
preset gives the factor by which cycles increase. The required retention of the optimizer's
reservoir and that of all other blocks are separate keys. pSLC stores one of TLC's three bits per
cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ondie.emu.analysis.energy import bounds
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.config.config import Config
from ondie.emu.config.schema.flash import RETENTIONS
from ondie.emu.engine.core.totals import Totals
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.statement import Share

YEAR_S = 8760 * 3600
RATED, RATED_RETENTION = "rated", "flash.rated_retention"
RETENTION, RESERVOIR_RETENTION = "flash.retention", "ftl.reservoir_retention"
RESERVOIR_PAGES = ("bpp_pages", "stored_pages", "kept_pages", "landed_pages")
"""Counters of pages programmed in the optimizer's reservoir. All other counters of programmed pages
refer to the blocks that the FTL maps."""
BITS_PER_CELL = {"pSLC": 1, "SLC": 1, "MLC": 2, "TLC": 3, "QLC": 4}
"""Bits per cell by cell type. pSLC is TLC flash that stores only one bit per cell."""
Interval = tuple[float, float, float]


def spread(worn: Sequence[Sequence[int]]) -> dict[str, tuple[int, float, int]]:
    """Return the (smallest, mean, largest) number of erases of a plane and of a die, under the keys
    "plane" and "die". ``worn``: number of erases of each plane, by die.
    """
    planes = [erases for die in worn for erases in die]
    dies = [sum(die) for die in worn]
    return {
        name: (min(its), sum(its) / len(its), max(its))
        for name, its in (("plane", planes), ("die", dies))
    }


@dataclass(frozen=True)
class Lifetime:
    """Lifetime of the drives of a system under one path; steps and years as (low, typical, high).

    ``steps`` and ``wear_out_steps`` measure the same wear. ``steps`` uses the rating of the drive:
    cycles times nominal capacity. ``wear_out_steps`` uses the flash: cycles times the capacity of
    all pages, including spare blocks. ``wear_out_steps`` exceeds ``steps`` by the ratio of flash
    capacity to nominal capacity. Both assume equal wear of all blocks; ``reservoir_steps`` does
    not.
    """

    written_bytes: float
    """Number of bytes programmed into flash per step, including garbage collection, padding and
    mapping pages."""
    rated_bytes: Interval
    """Rated bytes of all drives: nominal capacity times cycles. The cycles are the harmonic mean of
    the cycles of the reservoir and of the other blocks, weighted by the bytes that this path
    programs into each."""
    steps: Interval | None
    """Number of steps until the rated bytes are written; None if nothing is written."""
    years: Interval | None
    """Lifetime in years of 8,760 hours of training, at the simulated time of a step; None if
    nothing is written."""
    state_bytes: int
    """Number of bytes of the pages and super-pages that hold weights and states, over all
    drives."""
    share: float
    """Size of the pages that hold weights and states (``state_bytes``) divided by the nominal
    capacity of all drives."""
    tlc_bytes: int
    """Capacity in bytes, as TLC (three bits per cell), of the cells that hold the states."""
    pslc_bytes: int
    """Capacity in bytes, as TLC (three bits per cell), of the cells that the states would occupy in
    pSLC mode (one bit per cell)."""
    wear_out_steps: float | None = None
    """Number of steps until every block of the flash reaches its typical endurance (P/E cycles), if
    all blocks wear equally; None if nothing is written."""
    reservoir_steps: tuple[float, float] | None = None
    """(with the configured wear leveling, without wear leveling): number of steps until the first
    of the blocks that only this path uses reaches its typical endurance (P/E cycles). Other blocks
    are ignored. None if there are no such blocks."""


def programmed_bytes(totals: Totals) -> int:
    """Return the number of bytes of all pages programmed in a run, including pages of garbage
    collection, of the mapping table, of padding and of the reservoir."""
    counters = totals.counters
    pages = counters["program_pages"] + counters["gc_program_pages"] + counters["failed_pages"]
    pages += (
        counters["map_program_pages"]
        + counters["padding_pages"]
        + counters["fold_program_pages"]
        + counters["refresh_program_pages"]
    )
    return pages * totals.page_bytes + reservoir_bytes(totals)


def reservoir_bytes(totals: Totals) -> int:
    """Return the number of bytes of the pages programmed in the optimizer's reservoir in a run."""
    return sum(totals.counters[name] for name in RESERVOIR_PAGES) * totals.page_bytes


def gain(cfg: Config, required: str, rated: str) -> Interval:
    """Return the number of cycles at retention ``required`` divided by the number of cycles at
    retention ``rated``: (low, typical, high).

    The ratio is 1 if the two retentions are equal or ``required`` is RATED.
    """
    if required in (RATED, rated):
        return 1.0, 1.0, 1.0
    mine, others = (
        (1.0, 1.0, 1.0) if name == RETENTIONS[0]
        else bounds(cfg, f"flash.cycles_{name.replace(' ', '_')}")
        for name in (required, rated)
    )  # fmt: skip
    return mine[0] / others[2], mine[1] / others[1], mine[2] / others[0]


def cycles(cfg: Config, key: str = RETENTION) -> Interval:
    """Return the program/erase cycles of a block at the retention that configuration key ``key``
    requires: (low, typical, high).

    Low and high cover the ranges of the rated cycles, of the rated retention and of the required
    retention.
    """
    required, rated = cfg.leaf(key), cfg.leaf(RATED_RETENTION)
    ends = [
        gain(cfg, str(need), str(have))
        for need in (required.value, required.low, required.high) if need is not None
        for have in (rated.value, rated.low, rated.high) if have is not None
    ]  # fmt: skip
    low, typical, high = bounds(cfg, "flash.endurance_cycles")
    return (
        low * min(end[0] for end in ends),
        typical * ends[0][1],
        high * max(end[2] for end in ends),
    )


def cycles_as_written(cfg: Config, totals: Totals) -> Interval:
    """Return the endurance (program/erase cycles: low, typical, high) of a drive whose writes are
    distributed between the reservoir and the other blocks as in this run.

    This is the harmonic mean of the endurance of the reservoir and of the mapped blocks, weighted
    by the bytes that the run programs into each.
    """
    inside, every = reservoir_bytes(totals), programmed_bytes(totals)
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
    """Return the lifetime of the drives if they run a path continuously.

    ``book``: ledger of a run of the path. ``on_flash``: True if the pages of the run hold weights
    and states. ``share``: distribution of the path's page programs over the blocks that only this
    path uses; None if there are no such blocks.
    """
    totals = book.totals
    written = programmed_bytes(totals) / book.steps
    nominal = cfg.system.capacity_bytes * totals.devices
    low, typical, high = cycles_as_written(cfg, totals)
    rated = (low * nominal, typical * nominal, high * nominal)
    steps = years = wear_out = None
    geometry = Geometry.of(cfg)
    if written:
        wear_out = (
            typical * geometry.physical_pages * geometry.page_bytes * totals.devices / written
        )
        steps = (rated[0] / written, rated[1] / written, rated[2] / written)
        a_year = book.step_s / YEAR_S
        years = (steps[0] * a_year, steps[1] * a_year, steps[2] * a_year)
    held = (
        totals.mapped_pages * totals.page_bytes + totals.super_pages[1] * geometry.super_page_bytes
    )
    held *= on_flash
    cells = held // BITS_PER_CELL[cfg.flash.cell]
    own = None
    if share is not None and share.as_laid_out:
        alone = cycles(cfg, RESERVOIR_RETENTION)[1]
        own = alone / share.levelled, alone / share.as_laid_out
    return Lifetime(
        written, rated, steps, years, held, held / nominal, cells * BITS_PER_CELL["TLC"],
        held * BITS_PER_CELL["TLC"], wear_out, own,
    )  # fmt: skip
