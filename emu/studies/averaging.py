"""Gradients weighted by batch, and what fewer exchanges cost: `ondie validate averaging`.

Owns which measurements and trainings are made. Does not own any of them (averaging_recorded.py,
averaging_trained.py), rows (averaging_shown.py), tables (averaging_tables.py) or the figure
(averaging_figure.py).
Source: the networks of the traces gpt-small and mobilenetv2-digits, whose recorded batches are
split over a host and its drives in the ratio of tuned batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from ondie.emu.analysis.row import Progress, Row
from ondie.emu.studies import averaging_shown as shown
from ondie.emu.studies.averaging_figure import draw
from ondie.emu.studies.averaging_nets import NETWORKS
from ondie.emu.studies.averaging_recorded import measure
from ondie.emu.studies.averaging_shown import SUBJECTS, Found
from ondie.emu.studies.averaging_tables import tables
from ondie.emu.studies.averaging_trained import KS, PRIVATE, runs, train
from ondie.emu.studies.workers import Runner, pool
from ondie.emu.units import InputError

STEPS, SEEDS, SKEW = 64, (1, 2, 3), 1.0


def check(seeds: Sequence[int], steps: int, skew: float) -> None:
    """Raise InputError for what cannot be run."""
    if steps < KS[-1] or steps % KS[-1]:
        raise InputError(
            f"steps: {steps}, want a multiple of {KS[-1]}, the most micro-batches between exchanges"
        )
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds: {', '.join(map(str, seeds)) or 'none'}, want different ones")
    if not all(0 <= seed < 1 << 32 for seed in seeds):
        raise InputError(f"seeds: {', '.join(map(str, seeds))}, want 0 to 2**32 - 1")
    if not 0 < skew <= 1:
        raise InputError(f"skew: {skew:g}, want more than 0 and at most 1")


def find(
    run: Runner, seeds: Sequence[int], steps: int, skew: float, recorded: int | None = None,
    progress: Progress = None,
) -> Found:  # fmt: skip
    """Measure at recorded steps, up to ``recorded``, and train everything."""
    gradients = [(*SUBJECTS[title], skew, tuple(seeds), recorded) for title in SUBJECTS]
    trainings = [
        (name, way, skew * (data == PRIVATE), seed, steps)
        for name in reversed(NETWORKS)  # the longest first
        for data, way in runs(name)
        for seed in seeds
    ]
    wanted = [*(("measure", *g) for g in gradients), *(("train", *t) for t in trainings)]
    made: dict[tuple[Any, ...], Any] = {}
    for arguments, found in run(_make, wanted):
        made[arguments] = found
        if progress is not None:
            progress("averaging", len(made) / len(wanted))
    measured = {title: made["measure", *g] for title, g in zip(SUBJECTS, gradients, strict=True)}
    trained = {
        (name, data, way, seed): made["train", name, way, skew * (data == PRIVATE), seed, steps]
        for name in NETWORKS
        for data, way in runs(name)
        for seed in seeds
    }
    return Found(measured, trained, seeds, steps, skew)


def _make(what: str, *arguments: Any) -> Any:
    """A measurement or a training, in a process that has others to do before and after."""
    return measure(*arguments) if what == "measure" else train(*arguments)


def validate(
    save: Callable[[Figure], dict[str, bytes]],
    seeds: Sequence[int] = SEEDS,
    steps: int = STEPS,
    skew: float = SKEW,
    jobs: int | None = None,
    progress: Progress = None,
) -> tuple[list[Row], dict[str, bytes], list[Any]]:
    """Measure and train: the rows, the figure by suffix, the tables. Raises InputError."""
    check(seeds, steps, skew)
    with pool("averaging", jobs or os.cpu_count() or 1) as run:
        found = find(run, seeds, steps, skew, progress=progress)
    return shown.rows(found), draw(found, save), tables(found)
