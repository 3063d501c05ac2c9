"""Validation rows and their tables.

Owns the row format and the tables. Does not own the suites that produce rows (ondie.emu.validate).
Source: none. Fit rows were used to set a free parameter; they are shown, not checked. Check rows
were not used to set one; a check row outside its tolerance fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

FIT, CHECK, SHOWN, IDENTITY, SHAPE = "fit", "check", "shown", "identity", "shape"
Progress = Callable[[str, float], None] | None


@dataclass(frozen=True)
class Row:
    """One number: the published (or closed-form) value and the value that the simulation predicts.

    ``tolerance`` is relative: 0 requires equality; None means that the row is shown, not checked.
    ``published`` is None if no published value exists; the row is then shown, not checked.
    """

    suite: str
    name: str
    kind: str
    published: float | None
    predicted: float
    unit: str
    tolerance: float | None
    source: str

    @property
    def difference(self) -> float:
        """Relative difference, predicted over published - 1.

        Infinite if published is 0 and predicted is not; NaN if nothing is published.
        """
        if self.published is None:
            return math.nan
        if not self.published:
            return math.inf if self.predicted else 0.0
        return self.predicted / self.published - 1

    @property
    def misses(self) -> bool:
        """True for a check row that is outside its tolerance or whose difference is NaN."""
        if self.kind != CHECK:
            return False
        assert self.tolerance is not None and self.published is not None
        gap = abs(self.predicted - self.published)
        return not gap <= self.tolerance * abs(self.published)

    def data(self) -> dict[str, Any]:
        """Return the row as --json writes it."""
        return {
            "suite": self.suite,
            "name": self.name,
            "kind": self.kind,
            "published": self.published,
            "predicted": self.predicted,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "source": self.source,
        }


TITLES = {
    CHECK: "check: predicted, never fitted",
    FIT: "fit: the preset was chosen to meet them; shown, not checked",
    IDENTITY: "identity: follows from other rows by arithmetic; shown, not checked",
    SHAPE: "shape: no configuration is published; shown, not checked",
}


def tables(rows: list[Row]) -> list[Table]:
    """Return one table per suite, kind and source.

    The tables of check rows come before those of fit rows and include the rows of kind SHOWN.
    """
    out = []
    for kind, title in TITLES.items():
        mine = [one for one in rows if one.kind == kind or (one.kind == SHOWN and kind == CHECK)]
        for suite, source in dict.fromkeys((one.suite, one.source) for one in mine):
            of_it = [row.kind for row in mine if (row.suite, row.source) == (suite, source)]
            head = title if kind in of_it else "shown: neither fitted nor checked"
            table = Table(
                title=f"{suite} ({head})\n{source}", title_justify="left", title_style="bold"
            )
            for column in ("row", "expected", "predicted", "difference", "tolerance", "unit", ""):
                table.add_column(column, justify="left" if column == "row" else "right")
            for row in mine:
                if (row.suite, row.source) != (suite, source):
                    continue
                verdict = "" if row.kind != CHECK else "MISS" if row.misses else "ok"
                tolerance = "" if row.tolerance is None else f"{row.tolerance:.0%}"
                expected = "" if row.published is None else f"{row.published:.6g}"
                difference = "" if row.published is None else f"{row.difference:+z.2%}"
                table.add_row(
                    row.name, expected, f"{row.predicted:.6g}", difference, tolerance, row.unit,
                    verdict,
                )  # fmt: skip
            out.append(table)
    return out


def show(rows: list[Row], console: Console) -> None:
    """Print the tables and the number of check rows outside their tolerance."""
    for table in tables(rows):
        console.print(table)
        console.print()
    missed, checks = sum(row.misses for row in rows), sum(row.kind == CHECK for row in rows)
    if checks < len(rows):
        console.print(f"{checks} rows are checks; the titles say why the others are not")
    console.print(f"{len(rows)} rows, {missed} check rows outside their tolerance")
