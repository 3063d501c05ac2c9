"""Result of `ondie calibrate`: a preset whose constants are fitted to fio measurements.

Owns the result class. Does not own the fit (analysis/calibrate/) or the tables
(tables/calibration.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ondie.emu.analysis.calibrate.calibration import Calibration
from ondie.emu.results.result import Result, flat
from ondie.emu.results.tables import calibration as tables

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, repr=False)
class CalibrationResult(Result):
    """Result of a calibration. ``data`` is the document of `ondie calibrate --json`.

    run: the fitted constants, their covariance, and the measured and simulated values of all
    measurement points.
    """

    run: Calibration

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each measurement point: conditions, measured and simulated values,
        relative errors."""
        return [flat(row) for row in self.data["points"]]

    def table(self) -> RenderableType:
        """Return the table of the fitted constants."""
        return tables.constants_table(self.data)

    def parts(self) -> Iterator[RenderableType]:
        """Yield the tables and lines that `show` prints: constants, errors over all measurement
        points, errors of each point."""
        yield tables.constants_table(self.data)
        yield from tables.constants_words(self.data)
        yield tables.errors_table(self.data)
        yield tables.points_table(self.data)
        yield tables.run_words(self.data)
