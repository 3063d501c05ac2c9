"""A row of validation, and how rows are shown.

Owns the row format and its tables. Does not own where rows come from (the files beside this one).
Source: own. Fit rows were used to set a free parameter and are only shown; check rows were not, and
one outside its tolerance fails.
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
    """One number: published (or by closed form) and predicted by the simulation.

    ``tolerance`` is relative; 0 means equal, None that the row is only shown. ``published`` is None
    for a row that is only shown because nothing is published beside it.
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
        """Relative difference of predicted to published; infinite where that is 0 and the other
        is not, no number where nothing is published."""
        if self.published is None:
            return math.nan
        if not self.published:
            return math.inf if self.predicted else 0.0
        return self.predicted / self.published - 1

    @property
    def misses(self) -> bool:
        """Is this a check row outside its tolerance, or without a number?"""
        if self.kind != CHECK:
            return False
        assert self.tolerance is not None and self.published is not None
        gap = abs(self.predicted - self.published)
        return not gap <= self.tolerance * abs(self.published)

    def data(self) -> dict[str, Any]:
        """The row as --json writes it."""
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
    """A table per suite, kind and source; check rows, among them those only shown, before fit
    rows."""
    out = []
    for kind, title in TITLES.items():
        mine = [r for r in rows if r.kind == kind or (r.kind == SHOWN and kind == CHECK)]
        for suite, source in dict.fromkeys((r.suite, r.source) for r in mine):
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
                difference = "" if row.published is None else f"{row.difference:+.2%}"
                table.add_row(
                    row.name, expected, f"{row.predicted:.6g}", difference, tolerance, row.unit,
                    verdict,
                )  # fmt: skip
            out.append(table)
    return out


def show(rows: list[Row], console: Console) -> None:
    """Print the tables and how many check rows miss."""
    for table in tables(rows):
        console.print(table)
        console.print()
    missed, checks = sum(row.misses for row in rows), sum(row.kind == CHECK for row in rows)
    if checks < len(rows):
        console.print(f"{checks} of the rows are checks; the others say what they are")
    console.print(f"{len(rows)} rows, {missed} check rows outside their tolerance")
