"""Rows, tables and figure of training runs with raw bit errors.

Owns the check rows, the difference between a training run and the training run without errors, the
interval that must contain the number of bit flips, the tables and the figure. Does not own the
training runs (errors.py).
Source: this project. The expected number of flips is the error rate times the number of bits read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from ondie.emu.analysis.row import CHECK, SHOWN, Row
from ondie.emu.nand.ecc import log_above, log_up_to
from ondie.emu.nand.rber import MOST_RBER
from ondie.emu.units import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BYPASSED, COMPARED = "ECC bypassed", "NaN comparator"
MODES = {
    BYPASSED: "none",
    COMPARED: "nan_comparator",
    "on-die ECC": "on_die_ecc",
    "controller's ECC": "controller_ecc",
}
"""Values of pe.protection by name of the protection mode in tables."""
CLAIMED = 1e-8
"""Upper bound of the raw bit error rate of pSLC according to OptimStore (HPCA 2023), which bypasses
ECC for this reason."""
DOUBT = 0.01
"""Probability that, by chance, at least one number of bit flips of a study is outside the interval
in which it is expected."""
LAST = 10  # the final loss is the mean of the last tenth of the steps
DISTANCE = 0.03
"""Fraction of the error-free loss reduction that a training run may miss. In the tables, a run that
misses more "departs" from training without errors.

Two training runs that differ only in rounding (FP32 with torch's rounding and with this project's
rounding, 200 steps, seeds 1, 2 and 3) differed by at most 1.3 % (GPT) and 1.2 % (MobileNetV2) of
the loss reduction. The limit is slightly more than twice that difference.
"""


@dataclass(frozen=True)
class Trained:
    """Results of one training run whose optimizer states are on the emulated drive."""

    losses: tuple[float, ...]
    """Training loss of every step, up to and including the first NaN."""
    weights: np.ndarray
    steps: int
    """Number of completed steps."""
    raw: int
    """Number of bit errors of the flash array in the optimizer's pages, as counted by the drive."""
    left: int
    """Number of bit errors in the optimizer's pages that remained after correction."""
    met: bool
    """True if a NaN comparator on the dies would have changed a value in this run."""
    update_s: float
    """Simulated time of the update stage per step, seconds."""
    drive_j: float
    """Simulated energy of the drive per step, J."""


@dataclass
class Cell:
    """One run of a study: a model with a protection mode, an error rate and a seed."""

    flips: np.ndarray
    """Number of bit flips in each step, drawn before training, int64[steps, 2].

    Column 0 counts the bit errors of the flash array, column 1 those that remain after correction.
    """
    trained: Trained | None = None
    """Results of this run. If the run was not executed, these are the results of another training
    run, which must have the same results. None until the results are available."""
    run: Trained | None = None
    """Results of this run if it was executed; None otherwise."""

    @property
    def raw(self) -> int:
        """Total number of drawn bit errors of the flash array in all steps."""
        return int(self.flips[:, 0].sum())

    @property
    def left(self) -> int:
        """Total number of drawn bit errors that remain after correction in all steps."""
        return int(self.flips[:, 1].sum())


@dataclass(frozen=True)
class Found:
    """Results of all runs of one call of `run_study`."""

    cells: Mapping[tuple[str, str, float, int], Cell]
    """Runs of the study by (model, protection mode, raw bit error rate, seed)."""
    plain: Mapping[tuple[str, int], Trained]
    """Results of the training runs without errors, by (model, seed)."""
    readings: Mapping[tuple[str, int], int]
    """Number of page reads of a training run, by (model, seed)."""
    page_bits: int
    rates: Sequence[float]
    seeds: Sequence[int]
    steps: int
    exposure: int

    @property
    def models(self) -> list[str]:
        """Names of the trained models in the order of the tables."""
        return sorted({model for model, _ in self.plain})

    def group(self, model: str, mode: str, rate: float) -> list[Cell]:
        """Return the runs of all seeds for a model, a mode and an error rate."""
        return [self.cells[model, mode, rate, seed] for seed in self.seeds]

    def missed(self, model: str, mode: str, rate: float) -> list[float]:
        """Return, for each seed, the fraction of the error-free loss reduction that the training
        run misses."""
        cells = zip(self.seeds, self.group(model, mode, rate), strict=True)
        return [share(cell.trained, self.plain[model, seed], self.steps) for seed, cell in cells]

    def bits(self, model: str) -> int:
        """Return the number of bits that the training runs of a model read, over all seeds."""
        return self.page_bits * sum(self.readings[model, seed] for seed in self.seeds)

    @property
    def label(self) -> str:
        """Suffix of row names and titles that gives the exposure (factor on the error rate); empty
        if the exposure is 1."""
        return "" if self.exposure == 1 else f", exposure x {self.exposure:,}"


def written(rate: float) -> str:
    """Return an error rate as text in scientific notation, such as "1e-8"."""
    return np.format_float_scientific(rate, trim="-", exp_digits=1)


def named(found: Found, model: str, mode: str, rate: float) -> str:
    """Return the name of the row for a model, a protection mode and a raw bit error rate."""
    return f"{model}, {mode}, {written(rate)}{found.label}"


def end(trained: Trained, steps: int) -> float:
    """Return the final loss of a training run: the mean loss of the last tenth of ``steps`` steps.

    If the run ended early, or if its final loss is not below its first loss, the function returns
    the first loss, as if the model had learned nothing.
    """
    first = trained.losses[0]
    if len(trained.losses) < steps or math.isnan(trained.losses[-1]):
        return first
    mean = float(np.mean(trained.losses[-max(1, steps // LAST) :]))
    return mean if mean < first else first


def share(trained: Trained | None, plain: Trained, steps: int) -> float:
    """Return the fraction of the error-free loss reduction that a training run misses.

    The fraction is 0 if the final loss equals the final loss without errors, and 1 if the model
    learned nothing. ``trained``: results of the run with errors; must not be None. ``plain``:
    results without errors. ``steps``: number of steps of a complete run.
    """
    assert trained is not None
    low, high = end(plain, steps), plain.losses[0]
    gap = end(trained, steps) - low
    return gap / (high - low) if high > low else float(gap > 0)


def gone(trained: Trained | None) -> bool:
    """Return True if the last loss of a training run is NaN."""
    return trained is not None and math.isnan(trained.losses[-1])


def interval(n: int, p: float, doubt: float) -> tuple[int, int]:
    """Return (least, most): an interval for the number of successes in ``n`` independent trials,
    each with success probability ``p``.

    The number is below the interval with a probability of at most ``doubt / 2``, and above the
    interval with a probability of at most ``doubt / 2``.
    """
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
    """Number of bit flips of the flash array in the training runs of all seeds of a model at one
    error rate.

    ``expected``: error rate times number of bits read. ``drawn``: number of drawn flips. ``least``,
    ``most``: interval that must contain ``drawn``.
    """

    expected: float
    least: int
    most: int
    drawn: int


def flips(found: Found, model: str, rate: float) -> Flips:
    """Return the drawn and the expected number of flips of a model at an error rate, and the
    interval that must contain the drawn number.

    With probability 1 - DOUBT, all intervals of a study contain their drawn numbers.
    """
    n, p = found.bits(model), min(rate * found.exposure, MOST_RBER)
    doubt = DOUBT / (len(found.models) * len(found.rates))
    drawn = sum(cell.raw for cell in found.group(model, BYPASSED, rate))
    return Flips(n * p, *interval(n, p, doubt), drawn)


def departs(found: Found, model: str, mode: str) -> float | None:
    """Return the lowest error rate at which the training run of any seed departs from the training
    run without errors: it misses more than the fraction DISTANCE of that run's loss reduction.

    Returns None if there is no such rate.
    """
    for rate in found.rates:
        if max(found.missed(model, mode, rate)) > DISTANCE:
            return rate
    return None


def rows(found: Found) -> list[Row]:
    """Return the rows of all training runs.

    Check rows: the number of drawn flips, the number of flips that the drive counts, and the runs
    without remaining flips. Shown rows: the final losses, and the lowest error rate at which
    training departs from training without errors (:func:`departs`).
    """
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
        name = f"{model}{found.label}: flips on the drive that differ from the {ahead:,} predicted"
        source = (
            f"flips that the drive counted in {runs} training runs, compared with the drawn flips"
        )
        out.append(Row("errors", name, CHECK, 0, float(counted), "flips", 0, source))
    for (model, mode, rate, seed), cell in found.cells.items():
        if cell.left or cell.run is None:
            continue
        plain = found.plain[model, seed]
        wrong = int((cell.run.weights.view("u4") != plain.weights.view("u4")).sum())
        wrong += sum(a != b for a, b in zip(cell.run.losses, plain.losses, strict=True))
        name = f"{named(found, model, mode, rate)}, seed {seed}: {cell.raw:,} flips, all corrected"
        source = (
            "run without remaining flips: weights and losses that differ from those without errors"
        )
        out.append(Row("errors", name, CHECK, 0, float(wrong), "numbers", 0, source))
    for model in found.models:
        low = float(np.mean([end(found.plain[model, s], found.steps) for s in found.seeds]))
        for mode in MODES:
            for rate in found.rates:
                cells = found.group(model, mode, rate)
                assert all(cell.trained is not None for cell in cells)
                loss = float(np.mean([end(c.trained, found.steps) for c in cells if c.trained]))
                name = f"{named(found, model, mode, rate)}: loss at the end"
                source = f"compared with no bit errors, {many}; the first loss if a run ends in NaN"
                out.append(Row("errors", name, SHOWN, low, loss, "nat", None, source))
    for model in found.models:
        for mode in MODES:
            from_rate = departs(found, model, mode)
            if from_rate is not None:
                name = f"{model}, {mode}{found.label}: lowest rate at which training departs"
                source = (
                    f"OptimStore: pSLC below 1e-8; departs: misses more than {DISTANCE:.0%} of the "
                    "loss reduction"
                )
                out.append(Row("errors", name, SHOWN, CLAIMED, from_rate, "rate", None, source))
    return out


def tables(found: Found) -> list[Table]:
    """Return two tables: the fraction of the error-free loss reduction that training runs miss, by
    model, error rate and protection mode; and the time and energy of each protection mode.
    """
    title = (
        f"Training runs of {found.steps:,} steps with raw bit errors on the die, "
        f"{plural(len(found.seeds), 'seed')}{found.label}\n"
        "Share of the loss reduction that the run misses; =: no flip remains after correction, so "
        "that the run equals the run without errors"
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
        title="Cost of each protection per step: time of the update stage, energy of the drive",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for column in ("model", "protection", "update stage", "drive"):
        costs.add_column(column, justify="left" if column in ("model", "protection") else "right")
    for model, mode, run in _costs(found):
        costs.add_row(model, mode, f"{run.update_s * 1e6:.1f} us", f"{run.drive_j * 1e6:.0f} uJ")
    return [table, costs]


def _from(rate: float | None, most: float) -> str:
    return f"none up to {written(most)}" if rate is None else f"{written(rate)}"


def _cell(found: Found, model: str, mode: str, rate: float) -> str:
    """Return the text of a table cell: the mean of the missed fraction over the seeds, and the
    numbers of seeds that depart or end in NaN; "=" if no flip remains after correction."""
    cells = found.group(model, mode, rate)
    left = sum(cell.left for cell in cells)
    if not left:
        return "="
    missed = found.missed(model, mode, rate)
    text = f"{np.mean(missed):+z.1%}"
    nan = sum(gone(cell.trained) for cell in cells)
    far = sum(x > DISTANCE for x in missed)
    if far:
        text += f"\n{far} of {len(missed)} depart"
    if nan:
        text += f", {nan} NaN"
    return text


def _costs(found: Found) -> Iterator[tuple[str, str, Trained]]:
    """Yield (model, mode, results) for the table of costs: for each model, the run without errors,
    and the longest executed run of each mode except bypassed ECC, if such a run exists."""
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


STYLES = {  # marker, line, size: differ so that coinciding modes are visible
    BYPASSED: ("o", "-", 9),
    COMPARED: ("x", "--", 7),
    "on-die ECC": ("s", "-", 5),
    "controller's ECC": (".", ":", 6),
}


def draw(found: Found, save: Callable[[Figure], dict[str, bytes]]) -> dict[str, bytes]:
    """Draw the missed fraction of the loss reduction by error rate, one panel per model.

    Lines are means over the seeds. Areas span the smallest to the largest value of all seeds.
    Returns {"png": bytes, "pdf": bytes}; the files contain no date.
    """
    import matplotlib  # takes a second, which each training process would spend
    from matplotlib.figure import Figure

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
            axes.axhspan(-DISTANCE, DISTANCE, color="gray", alpha=0.25, lw=0)
            axes.axvline(CLAIMED, color="black", linewidth=0.8, linestyle=(0, (1, 2)))
            axes.text(CLAIMED, 0.33, "OptimStore: pSLC is below", rotation=90, ha="right",
                      va="center", fontsize=8)  # fmt: skip
            of_step = found.bits(model) / len(found.seeds) / found.steps * found.exposure
            axes.set(xscale="log", ylim=(-0.08, 1.08), xlabel="raw bit error rate")
            if model == found.models[0]:
                axes.set_ylabel("loss reduction missed because of bit errors (fraction)")
            axes.set_title(f"{model}{found.label}", fontsize=10)
            top = axes.secondary_xaxis(
                "top", functions=(lambda x, k=of_step: x * k, lambda x, k=of_step: x / k)
            )
            top.set_xlabel("expected bit flips per step", fontsize=8)
            top.tick_params(labelsize=8)
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(MODES),
            fontsize=8,
        )  # fmt: skip
        figure.suptitle(
            f"Training with raw bit errors in the pages that the dies compute with: "
            f"{found.steps:,} steps, {plural(len(found.seeds), 'seed')}"
            f"{found.label}. 0: as without errors; 1: nothing learned, or NaN. "
            f"Area: range of the seeds; gray: {DISTANCE:.0%}",
            fontsize=9, wrap=True,
        )  # fmt: skip
        return save(figure)
