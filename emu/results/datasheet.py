"""Result of `ondie preset check`: the data sheet of a drive compared with its simulation.

Owns the JSON document, its rows and its table. Does not own the data sheets (config/datasheet.py)
or the simulations (analysis/headlines.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ondie.emu.analysis.headlines import Headline, Progress, simulate
from ondie.emu.config.config import Config, shown
from ondie.emu.config.datasheet import UNITS, DataSheet, find_datasheet
from ondie.emu.results.result import Result
from ondie.emu.units import fmt_bytes, fmt_count, fmt_rate, fmt_time

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMATS = {
    "bytes_per_s": fmt_rate,
    "iops": lambda value: f"{fmt_count(value)} IOPS",
    "ps": fmt_time,
    "mw": lambda value: f"{value / 1e3:.3g} W",
    "bytes": fmt_bytes,
}
"""Function that formats a value as text, by the base unit of the value."""


@dataclass(frozen=True, repr=False)
class DataSheetResult(Result):
    """Result of the check of a data sheet. ``data`` is the document of `ondie preset check --json`.

    headlines: the simulated performance figures of the data sheet. config: configuration of the
    drive.
    """

    headlines: tuple[Headline, ...]
    config: Config

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each performance figure of the data sheet, in base units."""
        return [dict(row) for row in self.data["figures"]]

    def table(self) -> RenderableType:
        """Return the table of stated and simulated performance figures, with the configuration
        constant that limits each figure."""
        from rich.table import Column, Table

        right = [Column(name, justify="right") for name in ("stated", "simulated", "difference")]
        out = Table("figure", *right, "limited by")
        for found in self.headlines:
            figure, difference = found.figure, found.difference
            text = FORMATS[UNITS[figure.what]]
            leaf = self.config.leaf(found.limit)
            out.add_row(
                figure.title,
                "" if figure.value is None else text(figure.value),
                text(found.value),
                "" if difference is None else f"{difference:+.1%}",
                f"{found.limit} = {shown(leaf.value, leaf.unit)}, {found.share:.0%} of {found.why}",
            )
        return out

    def parts(self) -> Iterable[RenderableType]:
        """Yield the table, and a line with the capacity and the state of the drive and the source
        of the data sheet.
        """
        yield self.table()
        source = self.data["source"] or "no data sheet is stated"
        yield (
            f"{self.data['drive']}, {fmt_bytes(self.data['capacity_bytes'])}; writes to a "
            f"{self.data['state']} drive; {source}"
        )


def check_datasheet(
    source: str, cfg: Config, *, seed: int = 0, progress: Progress = None
) -> DataSheetResult:
    """Simulate the figures of the data sheet of ``source``, a preset or TOML file with
    configuration ``cfg``.

    Figures that most data sheets state are simulated even if this data sheet does not state them.
    Raises InputError if the file cannot be read, if the data sheet is invalid or contradicts
    ``cfg``, or if the nominal capacity contradicts the flash.
    """
    sheet = find_datasheet(source, cfg)
    found = tuple(simulate(cfg, sheet, seed=seed, progress=progress))
    return DataSheetResult(document(cfg, sheet, found), found, cfg)


def document(cfg: Config, sheet: DataSheet, found: Iterable[Headline]) -> dict[str, Any]:
    """Return the JSON document of a checked data sheet. ``found``: the simulated figures."""
    return {
        "drive": cfg.system.name,
        "capacity_bytes": sheet.capacity_bytes,
        "state": sheet.state,
        "source": sheet.source,
        "figures": [
            {
                "figure": one.figure.title,
                "unit": UNITS[one.figure.what],
                "stated": one.figure.value,
                "simulated": one.value,
                "difference": one.difference,
                "limited_by": one.limit,
                "share": one.share,
                "share_of": one.why,
                "requests": one.requests,
            }
            for one in found
        ],
    }
