"""Python interface of `ondie compare`: the comparison of update strategies and its result.

Owns the arguments of a comparison in Python, and the result class. Does not own the runs
(analysis/compare.py), the content of result.json (analysis/result_json.py) or the tables (tables/).
Source: this project.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ondie import traces
from ondie.emu.analysis import compare as comparison
from ondie.emu.analysis import step_budget
from ondie.emu.analysis.answer import Answer, answer
from ondie.emu.analysis.compare import Comparison
from ondie.emu.analysis.result_json import result_data
from ondie.emu.config.config import Config, configuration
from ondie.emu.paths.base import Options
from ondie.emu.results.result import Result, flat
from ondie.emu.results.tables import answer as first_screen
from ondie.emu.results.tables import compare as report

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ENDS = ("low", "typical", "high")


@dataclass(frozen=True, repr=False)
class ComparisonResult(Result):
    """Result of a comparison. ``data`` is the content of result.json (docs/result-json.md).

    ``comparison``: results of the runs. ``target_s``: target step time in seconds, or None.
    """

    comparison: Comparison
    target_s: float | None = None
    sort_keys: ClassVar[bool] = True
    answer: Answer = field(init=False)
    """Times, energies and other values of each strategy for a whole step, and the verdicts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "answer", answer(self.comparison))

    @classmethod
    def of(cls, runs: Comparison, target_s: float | None = None) -> ComparisonResult:
        """Return the result object of a comparison. ``target_s``: target step time in seconds."""
        return cls(result_data(runs, runs.options.seed, target_s), runs, target_s)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each strategy: values per step and per sample, then all metrics.

        The row of a strategy that did not run has only "strategy" and "reason".
        """
        return rows_of_document(self.data)

    def table(self) -> RenderableType:
        """Return the table of strategies."""
        return first_screen.table(self.answer)

    def show(self, console: Console, verbose: bool = False) -> None:
        """Print the table of strategies and the verdicts. With ``verbose``, print all tables
        instead. If there is a target step time, also print the table that compares the strategies
        with it."""
        if verbose:
            report.show(self.comparison, console, self.target_s)
            return
        first_screen.show(self.comparison, self.answer, console)
        if self.target_s is not None:
            report.show_target(self.comparison, self.target_s, console)


def rows_of_document(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows for :meth:`ComparisonResult.rows` from the content of result.json."""
    metrics = {path["name"]: path.get("metrics", {}) for path in document["paths"]}
    found = []
    for row in document["answer"]["strategies"]:
        name = row["name"]
        figures = {key: value for key, value in row.items() if key != "name"}
        if row["reason"] is not None:
            figures = {"reason": row["reason"]}
        spans = {
            f"{key}_{end}": value[i]
            for key, value in figures.items()
            if isinstance(value, list | tuple) and len(value) == len(ENDS)
            for i, end in enumerate(ENDS)
        }
        plain = {key: value for key, value in figures.items() if f"{key}_low" not in spans}
        more = {key: metric["value"] for key, metric in metrics[name].items()}
        found.append(flat({"strategy": name, **plain, **spans, **more}))
    return found


def compare(
    trace: str | os.PathLike[str] | traces.Trace,
    device: str | os.PathLike[str] | Config = "optimstore-r1",
    *,
    paths: Sequence[str] | None = None,
    settings: Iterable[str] = (),
    devices: int | None = None,
    steps: int | None = None,
    options: Options | None = None,
    target_step: str | None = None,
    swing: bool = True,
    sampled: bool = False,
    timeline: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> ComparisonResult:
    """Replay a training trace through the update strategies on a device, and compare them.

    trace: name of a shipped or synthetic trace, a file, or a Trace object. device: name of a
    preset, a TOML file, or a Config object. paths: names of strategies; by default, all that apply.
    settings: overrides such as "flash.channels=8". devices: number of drives. steps: number of
    steps to simulate. options: formats, batches and other options of the strategies. target_step:
    target step time, such as "2 s". swing: True to vary each constant over its range. sampled: True
    to simulate samples of a large model and extrapolate. timeline: maximum number of intervals to
    record per strategy. progress: callback (name of the strategy, completed fraction).

    Raises InputError or TraceError with a one-line message if an argument is invalid.
    """
    loaded = trace if isinstance(trace, traces.Trace) else traces.load(trace)
    cfg = configuration(device, settings, devices)
    target_s = None if target_step is None else step_budget.seconds(target_step)
    runs = comparison.compare(
        loaded, cfg, paths=paths, options=options, steps=steps, timeline=timeline, swing=swing,
        sampled=sampled, progress=progress,
    )  # fmt: skip
    return ComparisonResult.of(runs, target_s)
