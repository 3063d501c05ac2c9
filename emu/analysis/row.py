"""Validation rows and their tables.

Owns the format of rows, the four kinds of rows, and the tables. Does not own the suites that
produce rows (emu/validate, emu/studies).
Source: this project.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ondie.emu.config.datasheet import ROW_KINDS

FIT, CHECK, SHOWN, IDENTITY = ROW_KINDS
KINDS = {
    CHECK: "check: a published number; no fitted constant determines the prediction",
    FIT: "fit: constants were chosen so that these rows match",
    SHOWN: "shown: neither fitted nor checked",
    IDENTITY: "identity: follows by arithmetic from inputs, other rows or our own models",
}
"""Titles of the tables by kind of row, in the order in which the tables are printed."""
RATIO = "x"
"""Unit of a row that is a ratio. A value above 1 is a gain; a value below 1 is a loss."""
Progress = Callable[[str, float], None] | None


@dataclass(frozen=True)
class Row:
    """One validated number: the expected value and the value that the simulation predicts.

    ``published``: the expected value, published or from a closed form; None is allowed for a shown
    row only. ``tolerance``: largest allowed relative difference; 0 requires equality. A check row
    must have a tolerance, and an identity row may have one. ``source``: text above the table.
    ``place``: document and table or page of the published number, such as "STANNIS (DAC 2020),
    Table I". Every check row of emu/validate has a place. Check rows of emu/studies have no place,
    because their expected values are not published. ``constants``: constants chosen so that a fit
    row matches, as configuration keys, as keys of emu/cluster/networks.toml beginning with
    "networks.", or as module.NAME. A fit row must have at least one constant; rows of other kinds
    must have none. ``trials``: number of random trials, if the prediction is a fraction or a count
    of random trials. ``interval``: bounds of the fraction. The table and --json contain ``trials``
    and ``interval`` only if they are given.

    Raises ValueError if the kind is unknown, if the tolerance is negative or NaN, if the row lacks
    a field that its kind requires, or if a row of another kind than fit has constants.
    """

    suite: str
    name: str
    kind: str
    published: float | None
    predicted: float
    unit: str
    tolerance: float | None
    source: str
    place: str = ""
    constants: tuple[str, ...] = ()
    trials: int | None = None
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        where = f"{self.suite}, {self.kind} row {self.name!r}"
        if self.kind not in KINDS:
            raise ValueError(
                f"{where}: kind {self.kind!r} is unknown; use one of {', '.join(KINDS)}"
            )
        if self.kind != SHOWN and self.published is None:
            raise ValueError(
                f"{where}: published = None is allowed only in a shown row; give a published "
                "value, or make this a shown row"
            )
        if self.kind == CHECK and self.tolerance is None:
            raise ValueError(f"{where}: tolerance is None; a check row must have a tolerance")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ValueError(f"{where}: tolerance is {self.tolerance}; it must be at least 0")
        if (self.kind == FIT) != bool(self.constants):
            raise ValueError(
                f"{where}: constants are {self.constants}; a fit row must name at least one "
                "constant, and other rows must not name any"
            )

    @property
    def difference(self) -> float:
        """Relative difference between the predicted and the published value: predicted / published
        - 1. The difference is NaN if ``published`` is None, and infinite if ``published`` is 0 and
        the prediction is not 0."""
        if self.published is None:
            return math.nan
        if not self.published:
            return math.inf if self.predicted else 0.0
        return self.predicted / self.published - 1

    @property
    def misses(self) -> bool:
        """True if a check row, or an identity row with a tolerance, is outside its tolerance. A
        check row also misses if the simulation predicts a loss where a gain is published, or vice
        versa.
        """
        if self.kind not in (CHECK, IDENTITY) or self.tolerance is None:
            return False
        assert self.published is not None
        gap = abs(self.predicted - self.published)
        return self.turned or not gap <= self.tolerance * abs(self.published)

    @property
    def turned(self) -> bool:
        """True for a check row whose predicted and published ratios are on opposite sides of 1."""
        if self.kind != CHECK or self.unit != RATIO:
            return False
        assert self.published is not None
        return (self.published - 1) * (self.predicted - 1) < 0

    def data(self) -> dict[str, Any]:
        """Return the row as a dictionary for --json."""
        data: dict[str, Any] = {
            "suite": self.suite,
            "name": self.name,
            "kind": self.kind,
            "published": self.published,
            "predicted": self.predicted,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "source": self.source,
            "place": self.place,
            "constants": list(self.constants),
        }
        if self.trials is not None:
            data["trials"] = self.trials
        if self.interval is not None:
            data["interval"] = list(self.interval)
        return data


def rows_of_parts(
    suite: str, parts: Sequence[Callable[[], Iterable[Row]]], progress: Progress
) -> list[Row]:
    """Return the rows of all parts of a suite, in order. Before each part, report the fraction of
    completed parts (0 to 1) to ``progress``."""
    rows: list[Row] = []
    for i, part in enumerate(parts):
        if progress is not None:
            progress(suite, i / len(parts))
        rows += part()
    return rows


def tables(rows: list[Row]) -> list[Table]:
    """Return one table for each combination of kind, suite, source, place of publication and fitted
    constants, in the order of KINDS."""
    out = []
    for kind, title in KINDS.items():
        grouped: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            if row.kind == kind:
                key = (row.suite, row.source, row.place, ", ".join(row.constants))
                grouped.setdefault(key, []).append(row)
        for (suite, source, place, constants), group in grouped.items():
            lines = [f"{suite} ({title})", source]
            lines += [f"Published: {place}"] if place else []
            lines += [f"Fitted: {constants}"] if constants else []
            table = Table(title="\n".join(lines), title_justify="left", title_style="bold")
            names = ["row", "expected", "predicted", "difference", "tolerance", "unit", ""]
            counted = any(row.trials is not None for row in group)
            names[3:3] = ["interval", "trials"] * counted
            for column in names:
                table.add_column(column, justify="left" if column == "row" else "right")
            for row in group:
                texts = list(cells(row))
                texts[3:3] = counts(row) * counted
                table.add_row(*texts)
            out.append(table)
    return out


def cells(row: Row) -> tuple[str, ...]:
    """Return the texts of the cells of ``row`` in a table of validated numbers, in the order of the
    columns."""
    gated = row.kind in (CHECK, IDENTITY) and row.tolerance is not None
    return (
        row.name,
        "" if row.published is None else f"{row.published:.6g}",
        f"{row.predicted:.6g}",
        "" if row.published is None else f"{row.difference:+z.2%}",
        "" if row.tolerance is None else f"{100 * row.tolerance:.3g}%",
        row.unit,
        "" if not gated else "MISS" if row.misses else "ok",
    )


def counts(row: Row) -> list[str]:
    """Return the interval and the number of random trials of ``row`` as the texts of two table
    cells; a text is empty if the row does not have the value."""
    low, high = row.interval or (0.0, 0.0)
    return [
        f"{low:.3g} .. {high:.3g}" if row.interval else "",
        f"{row.trials:,}" if row.trials is not None else "",
    ]


def show(rows: list[Row], console: Console) -> None:
    """Print the tables. Then print, for each suite and kind of row, the number of rows and how many
    of them are outside their tolerance."""
    for table in tables(rows):
        console.print(table)
        console.print()
    for suite in dict.fromkeys(row.suite for row in rows):
        mine = [row for row in rows if row.suite == suite]
        counts = Counter(row.kind for row in mine)
        missed = Counter(row.kind for row in mine if row.misses)
        words = [
            f"{counts[kind]} {kind}" + (f" ({missed[kind]} missed)" if missed[kind] else "")
            for kind in KINDS
            if counts[kind]
        ]
        console.print(f"{suite}: {', '.join(words)}")
    console.print(f"{len(rows)} rows, {sum(r.misses for r in rows)} outside their tolerance")
