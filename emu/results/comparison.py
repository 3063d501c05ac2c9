"""Comparison of update strategies, as `ondie compare` makes it: the run and its result.

Owns the arguments of a comparison in Python. Does not own the runs (analysis/compare.py), the
document (analysis/result_json.py) or the tables (tables/). Source: none.
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

    ``comparison``: the runs. ``target_s``: time of a step that was asked for, or None.
    """

    comparison: Comparison
    target_s: float | None = None
    sort_keys: ClassVar[bool] = True
    answer: Answer = field(init=False)
    """Figures of the strategies for a whole step, and the verdicts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "answer", answer(self.comparison))

    @classmethod
    def of(cls, runs: Comparison, target_s: float | None = None) -> ComparisonResult:
        """Return the result of the runs."""
        return cls(result_data(runs, runs.options.seed, target_s), runs, target_s)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each strategy: figures per step and per sample, then all metrics.

        A strategy that did not run has only "strategy" and "reason".
        """
        return rows_of_document(self.data)

    def table(self) -> RenderableType:
        """Return the table of strategies."""
        return first_screen.table(self.answer)

    def show(self, console: Console, verbose: bool = False) -> None:
        """Print the strategies and the verdicts; with ``verbose``, all tables instead."""
        if verbose:
            report.show(self.comparison, console, self.target_s)
            return
        first_screen.show(self.comparison, self.answer, console)
        if self.target_s is not None:
            report.show_target(self.comparison, self.target_s, console)


def rows_of_document(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of ComparisonResult.rows from the content of result.json."""
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

    trace: a shipped or synthetic trace by name, a file, or a trace. device: a preset by name, a
    TOML file, or a configuration. paths: names of strategies; all that apply by default. settings:
    overrides such as "flash.channels=8". devices: number of drives. steps: number of recorded
    steps. options: formats, batches and the other options of the strategies. target_step: time of
    a step, such as "2 s", that the drive should reach. swing: vary each constant over its range.
    sampled: simulate samples of a large model. timeline: maximum number of intervals to record per
    strategy. progress: callback (what, share done).

    Raises InputError or TraceError, with one line, for a wrong choice before anything runs.
    """
    loaded = trace if isinstance(trace, traces.Trace) else traces.load(trace)
    cfg = configuration(device, settings, devices)
    target_s = None if target_step is None else step_budget.seconds(target_step)
    runs = comparison.compare(
        loaded, cfg, paths=paths, options=options, steps=steps, timeline=timeline, swing=swing,
        sampled=sampled, progress=progress,
    )  # fmt: skip
    return ComparisonResult.of(runs, target_s)
