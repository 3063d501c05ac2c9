"""Rows, tables and the figure of trainings with raw bit errors.

Owns what is claimed of them, their distance from the training without errors, and the interval in
which the number of flips has to lie. Does not own the trainings (errors.py).
Source: own; expected flips are the rate times the bits that were read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from ondie.emu.analysis.row import CHECK, SHOWN, Row
from ondie.emu.nand.ecc import log_above, log_up_to
from ondie.emu.nand.rber import MOST

BYPASSED, COMPARED = "ECC bypassed", "NaN comparator"
MODES = {
    BYPASSED: "none",
    COMPARED: "nan_comparator",
    "on-die ECC": "on_die_ecc",
    "controller's ECC": "controller_ecc",
}
"""pe.protection, by what it is called here."""
CLAIMED = 1e-8
"""OptimStore (HPCA 2023): pSLC stays below this rate, so that ECC can be bypassed."""
DOUBT = 0.01
"""Chance that any of a call's counts of flips lies outside its interval."""
LAST = 10  # the loss at the end is the mean of the last tenth of the steps
DISTANCE = 0.03
"""Share of the fall of the loss that a training may miss before it has departed. Two trainings that
differ in roundings only (FP32 with torch's in place of ours, 200 steps, seeds 1, 2 and 3) ended at
most 1.3 % (GPT) and 1.2 % (MobileNetV2) of it apart; this is twice that, and a little."""


@dataclass(frozen=True)
class Trained:
    """A training on the drive."""

    losses: tuple[float, ...]
    """Of every step, up to the first that is no number."""
    weights: np.ndarray
    steps: int
    """That were taken."""
    raw: int
    """Wrong bits that the drive counted in the optimizer's pages: of the array, and those left."""
    left: int
    met: bool
    """Was there a value that a comparator would have changed?"""
    update_s: float
    drive_j: float
    """Of a step."""


@dataclass
class Cell:
    """A run: model, mode, rate, seed."""

    flips: np.ndarray
    """Drawn ahead, int64[steps, 2]: wrong bits of the array, those left."""
    trained: Trained | None = None
    """How it went: its own training, or the one that stands for it."""
    run: Trained | None = None
    """Its own training, where there was one."""

    @property
    def raw(self) -> int:
        return int(self.flips[:, 0].sum())

    @property
    def left(self) -> int:
        return int(self.flips[:, 1].sum())


@dataclass(frozen=True)
class Found:
    """All runs of a call."""

    cells: Mapping[tuple[str, str, float, int], Cell]
    plain: Mapping[tuple[str, int], Trained]
    """Without errors, by model and seed."""
    readings: Mapping[tuple[str, int], int]
    """Pages read, by model and seed."""
    page_bits: int
    rates: Sequence[float]
    seeds: Sequence[int]
    steps: int
    exposure: int

    @property
    def models(self) -> list[str]:
        """In the order in which they are shown."""
        return sorted({model for model, _ in self.plain})

    def group(self, model: str, mode: str, rate: float) -> list[Cell]:
        """The runs of every seed."""
        return [self.cells[model, mode, rate, seed] for seed in self.seeds]

    def missed(self, model: str, mode: str, rate: float) -> list[float]:
        """Of each seed the share of the fall of the loss that is missed."""
        cells = zip(self.seeds, self.group(model, mode, rate), strict=True)
        return [share(cell.trained, self.plain[model, seed], self.steps) for seed, cell in cells]

    def bits(self, model: str) -> int:
        """That all seeds' trainings of a model read."""
        return self.page_bits * sum(self.readings[model, seed] for seed in self.seeds)

    @property
    def label(self) -> str:
        """Said wherever rates are: whose flips they are."""
        return "" if self.exposure == 1 else f", exposure x {self.exposure:,}"


def written(rate: float) -> str:
    """A rate, such as 1e-8."""
    return np.format_float_scientific(rate, trim="-", exp_digits=1)


def named(found: Found, model: str, mode: str, rate: float) -> str:
    """What a row calls the trainings of all seeds."""
    return f"{model}, {mode}, {written(rate)}{found.label}"


def end(trained: Trained, steps: int) -> float:
    """Mean loss of the last tenth of ``steps``; of one that ended before, or higher than it began,
    that of the first: nothing was learnt."""
    first = trained.losses[0]
    if len(trained.losses) < steps or math.isnan(trained.losses[-1]):
        return first
    mean = float(np.mean(trained.losses[-max(1, steps // LAST) :]))
    return mean if mean < first else first


def share(trained: Trained | None, plain: Trained, steps: int) -> float:
    """Share of the fall of the loss without errors that a training misses: 0 as without, 1 nothing
    was learnt."""
    assert trained is not None
    low, high = end(plain, steps), plain.losses[0]
    gap = end(trained, steps) - low
    return gap / (high - low) if high > low else float(gap > 0)


def gone(trained: Trained | None) -> bool:
    """Has its loss become no number?"""
    return trained is not None and math.isnan(trained.losses[-1])


def interval(n: int, p: float, doubt: float) -> tuple[int, int]:
    """(least, most) between which a binomial number lies but with a chance of ``doubt``, half of it
    at either end."""
    edge = math.log(doubt / 2)
    top = int(n * p + 40 * math.sqrt(n * p) + 200)

    def first(holds) -> int:  # type: ignore[no-untyped-def]
        low, high = 0, top
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    least = first(lambda k: log_up_to(n, k, p) > edge)
    return least, first(lambda k: log_above(n, k, p) <= edge)


@dataclass(frozen=True)
class Flips:
    """Flips of the array in all trainings of a model at a rate."""

    expected: float
    least: int
    most: int
    drawn: int


def flips(found: Found, model: str, rate: float) -> Flips:
    """Their number, and where it has to lie: with ``DOUBT`` for all of the call together."""
    n, p = found.bits(model), min(rate * found.exposure, MOST)
    doubt = DOUBT / (len(found.models) * len(found.rates))
    drawn = sum(cell.raw for cell in found.group(model, BYPASSED, rate))
    return Flips(n * p, *interval(n, p, doubt), drawn)


def departs(found: Found, model: str, mode: str) -> float | None:
    """The least rate at which a training of some seed misses more than DISTANCE."""
    for rate in found.rates:
        if max(found.missed(model, mode, rate)) > DISTANCE:
            return rate
    return None


def rows(found: Found) -> list[Row]:
    """Check rows on the flips, on the drive's count of them and on runs without any; the losses,
    and where training departs."""
    out = []
    many = f"{found.steps:,} steps, {len(found.seeds)} seeds"
    for model in found.models:
        for rate in found.rates:
            f = flips(found, model, rate)
            wide = max(f.most - f.expected, f.expected - f.least) / f.expected
            name = f"{model}, {written(rate)}{found.label}: flips, {f.least:,} to {f.most:,}"
            source = f"rate x bits read; {1 - DOUBT:.0%} interval of all these rows together"
            out.append(Row("errors", name, CHECK, f.expected, f.drawn, "flips", wide, source))
    for model in found.models:
        counted, ahead, runs = 0, 0, 0
        for (name, *_), cell in found.cells.items():
            if name == model and cell.run is not None:
                done = cell.flips[: cell.run.steps].sum(axis=0)
                counted += abs(cell.run.raw - done[0]) + abs(cell.run.left - done[1])
                ahead += int(done[0])
                runs += 1
        name = f"{model}{found.label}: {ahead:,} flips in {runs} trainings; the drive counts others"
        source = "flips drawn ahead are those that the drive met in training"
        out.append(Row("errors", name, CHECK, 0, float(counted), "flips", 0, source))
    for (model, mode, rate, seed), cell in found.cells.items():
        if cell.left or cell.run is None:
            continue
        plain = found.plain[model, seed]
        wrong = int((cell.run.weights.view("u4") != plain.weights.view("u4")).sum())
        wrong += sum(a != b for a, b in zip(cell.run.losses, plain.losses, strict=True))
        name = f"{named(found, model, mode, rate)}, seed {seed}: {cell.raw:,} flips, 0 left"
        source = "runs without a flip that is left, trained: weights and losses that differ"
        out.append(Row("errors", name, CHECK, 0, float(wrong), "numbers", 0, source))
    for model in found.models:
        low = float(np.mean([end(found.plain[model, s], found.steps) for s in found.seeds]))
        for mode in MODES:
            for rate in found.rates:
                cells = found.group(model, mode, rate)
                assert all(cell.trained is not None for cell in cells)
                loss = float(np.mean([end(c.trained, found.steps) for c in cells if c.trained]))
                name = f"{named(found, model, mode, rate)}: loss at the end"
                source = f"without errors beside it, {many}; the first loss where it is no number"
                out.append(Row("errors", name, SHOWN, low, loss, "nat", None, source))
    for model in found.models:
        for mode in MODES:
            from_rate = departs(found, model, mode)
            if from_rate is not None:
                name = f"{model}, {mode}{found.label}: training departs from"
                source = f"OptimStore: pSLC below 1e-8; departs: misses {DISTANCE:.0%} of the fall"
                out.append(Row("errors", name, SHOWN, CLAIMED, from_rate, "rate", None, source))
    return out


def tables(found: Found) -> list[Table]:
    """What became of each model at each rate behind each protection; what the protections cost."""
    title = (
        f"Trainings of {found.steps:,} steps with raw bit errors on the die, "
        f"{len(found.seeds)} seed(s){found.label}\n"
        "share of the loss's fall that is missed; = none is left of the flips, as without errors"
    )
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("model", "rate", "flips", "expected", "interval", *MODES):
        table.add_column(column, justify="left" if column == "model" else "right")
    for model in found.models:
        for rate in found.rates:
            f = flips(found, model, rate)
            table.add_row(
                model, written(rate), f"{f.drawn:,}",
                f"{f.expected:,.0f}" if f.expected > 100 else f"{f.expected:.1f}",
                f"{f.least:,} .. {f.most:,}", *(_cell(found, model, mode, rate) for mode in MODES),
            )  # fmt: skip
        table.add_row(
            model, "departs", "", "", "",
            *(_from(departs(found, model, mode), found.rates[-1]) for mode in MODES),
            end_section=True,
        )  # fmt: skip
    costs = Table(
        title="What the protection costs: update stage and drive, of a step",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for column in ("model", "protection", "update stage", "drive"):
        costs.add_column(column, justify="left" if column in ("model", "protection") else "right")
    for model, mode, run in _costs(found):
        costs.add_row(model, mode, f"{run.update_s * 1e6:.1f} us", f"{run.drive_j * 1e6:.0f} uJ")
    return [table, costs]


def _from(rate: float | None, most: float) -> str:
    return f"not up to {written(most)}" if rate is None else f"{written(rate)}"


def _cell(found: Found, model: str, mode: str, rate: float) -> str:
    """What became of the seeds' trainings."""
    cells = found.group(model, mode, rate)
    left = sum(cell.left for cell in cells)
    if not left:
        return "="
    missed = found.missed(model, mode, rate)
    text = f"{np.mean(missed):+.1%}"
    nan = sum(gone(cell.trained) for cell in cells)
    far = sum(x > DISTANCE for x in missed)
    if far:
        text += f"\n{far} of {len(missed)} depart"
    if nan:
        text += f", {nan} NaN"
    return text


def _costs(found: Found) -> Iterator[tuple[str, str, Trained]]:
    """A training of each model behind each protection, where there was one."""
    for model in found.models:
        yield model, "none", found.plain[model, found.seeds[0]]
        for mode in MODES:
            runs = [
                cell.run
                for (name, which, *_), cell in found.cells.items()
                if (name, which) == (model, mode) and cell.run is not None and cell.run.steps
            ]
            if runs and mode != BYPASSED:
                yield model, mode, max(runs, key=lambda run: run.steps)


STYLES = {  # marker, line, size: modes that lie on each other stay apart
    BYPASSED: ("o", "-", 9),
    COMPARED: ("x", "--", 7),
    "on-die ECC": ("s", "-", 5),
    "controller's ECC": (".", ":", 6),
}


def draw(found: Found, save: Callable[[Figure], dict[str, bytes]]) -> dict[str, bytes]:
    """Share of the fall of the loss that is missed, by rate; a panel for each model: mean over
    seeds, and from the least to the most of them. {"png": bytes, "pdf": bytes}, without a date."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        for axes, model in zip(figure.subplots(1, len(found.models), squeeze=False)[0],
                               found.models, strict=True):  # fmt: skip
            for number, mode in enumerate(MODES):
                each = np.array([found.missed(model, mode, rate) for rate in found.rates])
                marker, line, size = STYLES[mode]
                axes.plot(
                    found.rates, each.mean(1), line, marker=marker, markersize=size,
                    color=f"C{number}", linewidth=1.2, label=mode, zorder=3 + number,
                    fillstyle="none" if marker in "os" else None,
                )  # fmt: skip
                axes.fill_between(
                    found.rates, each.min(1), each.max(1), color=f"C{number}", alpha=0.12, lw=0
                )
            axes.axhspan(-DISTANCE, DISTANCE, color="grey", alpha=0.25, lw=0)
            axes.axvline(CLAIMED, color="black", linewidth=0.8, linestyle=(0, (1, 2)))
            axes.text(CLAIMED, 0.33, "OptimStore: pSLC is below", rotation=90, ha="right",
                      va="center", fontsize=8)  # fmt: skip
            of_step = found.bits(model) / len(found.seeds) / found.steps * found.exposure
            axes.set(xscale="log", ylim=(-0.08, 1.08), xlabel="raw bit error rate")
            if model == found.models[0]:
                axes.set_ylabel("share of the loss's fall that is missed")
            axes.set_title(f"{model}{found.label}", fontsize=10)
            top = axes.secondary_xaxis(
                "top", functions=(lambda x, k=of_step: x * k, lambda x, k=of_step: x / k)
            )
            top.set_xlabel("expected flips per step", fontsize=8)
            top.tick_params(labelsize=8)
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(MODES),
            fontsize=8,
        )  # fmt: skip
        figure.suptitle(
            f"Training with raw bit errors in the pages that the dies compute with: "
            f"{found.steps:,} steps, {len(found.seeds)} seed(s)"
            f"{found.label}. 0: as without errors; 1: nothing learnt, or no number. "
            f"Area: least to most of the seeds; grey: {DISTANCE:.0%}",
            fontsize=9, wrap=True,
        )  # fmt: skip
        return save(figure)
