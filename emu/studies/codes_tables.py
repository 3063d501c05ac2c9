"""Rows, table and figure of training runs with implemented codes, each compared with the capability
model.

Owns the check rows, the rows that show differences from the capability model, the table and the
figure. Does not own the training runs (codes.py), or the calculation and the limit of the loss
reduction that a training run misses (errors_tables.py).
Source: this project. A BCH code with a CRC corrects exactly the words with at most t bit errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from ondie.emu.analysis.row import CHECK, SHOWN, Row
from ondie.emu.nand.codec import BareCounts
from ondie.emu.studies.errors_tables import DISTANCE, Trained, end, gone, share, written
from ondie.emu.units import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL = "capability model"


@dataclass(frozen=True)
class Coded:
    """Two training runs with equal model, rate and seed: one with an implemented code, and one with
    the capability model."""

    trained: Trained
    """Results of the training run with the implemented code."""
    counts: BareCounts
    """Counters of the implemented code's decoder."""
    beside: Trained
    """Results of the training run with the capability model instead of the implemented code."""
    drawn: np.ndarray
    """Counts for each step, from bit errors that were drawn before training, int64[steps, 3].

    Column 0: bit errors in data that the capability model does not correct. Column 1: words that
    the capability model cannot correct. Column 2: words with more bit errors, including those in
    check bits, than the limit of the capability model."""

    @property
    def words(self) -> tuple[int, int]:
        """Sums of :attr:`drawn` over the steps that the run with the code completed: (words that
        the capability model cannot correct, words with more bit errors than the limit of this model
        if the bit errors in check bits are included)."""
        model, whole = self.drawn[: self.trained.steps, 1:].sum(axis=0)
        return int(model), int(whole)


@dataclass(frozen=True)
class CodesFound:
    """Results of all runs of one call of `run_study`."""

    cells: Mapping[tuple[str, str, float, int], Coded]
    """Pairs of training runs (see Coded) by (model, code, raw bit error rate, seed)."""
    plain: Mapping[tuple[str, int], Trained]
    """Results of the training runs without bit errors, by (model, seed)."""
    rates: Mapping[str, Sequence[float]]
    """Raw bit error rates by code."""
    seeds: Sequence[int]
    steps: int

    @property
    def models(self) -> list[str]:
        """Names of the trained models in the order of the tables."""
        return sorted({model for model, _ in self.plain})

    def group(self, model: str, code: str, rate: float) -> list[Coded]:
        """Return the pair of training runs (see Coded) of each seed, in the order of ``seeds``.
        ``model``, ``code``, ``rate``: model, code and raw bit error rate of the pairs."""
        return [self.cells[model, code, rate, seed] for seed in self.seeds]

    def missed(self, model: str, code: str, rate: float) -> tuple[list[float], list[float]]:
        """Return (fractions with the code, fractions with the capability model), one fraction per
        seed: the part of the error-free loss reduction that a training run misses."""
        each = [
            tuple(share(run, self.plain[model, seed], self.steps) for run in (c.trained, c.beside))
            for seed, c in zip(self.seeds, self.group(model, code, rate), strict=True)
        ]
        return [code for code, _ in each], [beside for _, beside in each]


def equal(one: Trained, other: Trained) -> bool:
    """Return True if two training runs have the same losses and weights, bit for bit."""
    losses = np.array_equal(one.losses, other.losses, equal_nan=True)
    return losses and one.weights.tobytes() == other.weights.tobytes()


def rows(found: CodesFound) -> list[Row]:
    """Return the rows of the study.

    Check rows: words that BCH could not correct, and words decoded to incorrect data with a
    matching CRC. Shown rows: words on which the code and the capability model differ, and the final
    losses.
    """
    out = []
    for model in found.models:
        for code, rates in found.rates.items():
            cells = [c for rate in rates for c in found.group(model, code, rate)]
            counts = BareCounts()
            for cell in cells:
                counts = counts.plus(cell.counts)
            name = f"{model}, {code}"
            if code.startswith("BCH"):
                whole = sum(cell.words[1] for cell in cells)
                source = (
                    "BCH: words that the decoder could not correct, compared with the words drawn "
                    "before training with more bit errors than the code corrects, check bits "
                    "included"
                )
                out.append(
                    Row(
                        "errors", f"{name}: words not corrected", CHECK, float(whole),
                        float(counts.failed_words), "words", 0, source, trials=counts.words,
                    )
                )  # fmt: skip
            source = "words that were decoded to incorrect data with a matching CRC"
            out.append(
                Row(
                    "errors", f"{name}: undetected errors (CRC matches)", CHECK, 0,
                    float(counts.miscorrected_words), "words", 0, source, trials=counts.words,
                )
            )  # fmt: skip
    for model in found.models:
        for code, rates in found.rates.items():
            for rate in rates:
                out += _shown(found, model, code, rate)
    return out


def _shown(found: CodesFound, model: str, code: str, rate: float) -> list[Row]:
    """Return the rows of kind "shown" for one code at one raw bit error rate."""
    cells = found.group(model, code, rate)
    name = f"{model}, {code}, {written(rate)}"
    source = f"compared with the {MODEL} with the same limit and seeds: words not corrected"
    decoded = sum(c.counts.words for c in cells)
    failed = sum(c.counts.failed_words for c in cells)
    modelled = sum(c.words[0] for c in cells)
    first = Row(
        "errors", f"{name}: words not corrected", SHOWN, float(modelled), float(failed),
        "words", None, source, trials=decoded,
    )  # fmt: skip
    theirs, own = [
        float(np.mean([end(run, found.steps) for run in runs]))
        for runs in ([c.beside for c in cells], [c.trained for c in cells])
    ]
    source = (
        f"compared with the {MODEL}, {found.steps:,} steps, {len(cells)} seeds; the first loss if "
        "a run ends in NaN"
    )
    return [
        first,
        Row("errors", f"{name}: loss at the end", SHOWN, theirs, own, "nat", None, source),
    ]


def tables(found: CodesFound) -> list[Table]:
    """Return a list with one table, which has a row for each model, code and bit error rate.

    A row counts the decoded words and the words that are not corrected: by the code, by the
    capability model, by the code only, and by the model only. It also has the fraction of the
    error-free loss reduction that a training run misses: once for the runs with the code, and once
    for the runs with the capability model."""
    title = (
        f"Training runs of {found.steps:,} steps with implemented codes, "
        f"{plural(len(found.seeds), 'seed')}, compared with the {MODEL} with the same limit\n"
        "Share of the loss reduction that the run misses; =: losses and weights equal those "
        "without errors"
    )
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("model", "code") else "right")
    for model in found.models:
        for code, rates in found.rates.items():
            for rate in rates:
                table.add_row(
                    model, code, *line(found, model, code, rate), end_section=rate == rates[-1]
                )
    return [table]


COLUMNS = (
    "model", "code", "rate", "words decoded", "code fails", "model fails", "only code",
    "only model", "loss: code", "loss: model",
)  # fmt: skip
"""Columns of the table. "only code": number of words that the capability model corrects and the
code does not. "only model": number of words that the code corrects and the capability model does
not."""


def line(found: CodesFound, model: str, code: str, rate: float) -> tuple[str, ...]:
    """Return the cells of one table row, starting with the rate. The number in column "model fails"
    counts only the steps that the training run with the code completed."""
    cells = found.group(model, code, rate)
    numbers = [
        sum(getattr(c.counts, name) for c in cells)
        for name in ("words", "failed_words", "fails_beside_model", "corrects_beside_model")
    ]
    numbers.insert(2, sum(c.words[0] for c in cells))
    return (
        written(rate), *(f"{number:,}" for number in numbers),
        _loss(found, model, [c.trained for c in cells]),
        _loss(found, model, [c.beside for c in cells]),
    )  # fmt: skip


def _loss(found: CodesFound, model: str, runs: Sequence[Trained]) -> str:
    """Return the fraction of the error-free loss reduction that training runs miss, as text, with
    the number of runs that end in NaN; "=" if all runs equal those without errors."""
    pairs = [(run, found.plain[model, s]) for run, s in zip(runs, found.seeds, strict=True)]
    if all(equal(*pair) for pair in pairs):
        return "="
    mean = np.mean([share(*pair, found.steps) for pair in pairs])
    nan = sum(gone(run) for run in runs)
    return f"{mean:+z.1%}" + (f", {nan} NaN" if nan else "")


def draw(found: CodesFound, save: Callable[[Figure], dict[str, bytes]]) -> dict[str, bytes]:
    """Draw the fraction of the error-free loss reduction that training runs miss, by error rate,
    one panel per model.

    Solid lines show the codes, and dashed lines with crosses show the capability model. Returns
    {"png": bytes, "pdf": bytes}; the files contain no date.
    """
    import matplotlib  # takes a second, which each training process would spend
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        panels = figure.subplots(1, len(found.models), squeeze=False)[0]
        for axes, model in zip(panels, found.models, strict=True):
            for number, (code, rates) in enumerate(found.rates.items()):
                both = [found.missed(model, code, rate) for rate in rates]
                own, beside = (np.mean([pair[i] for pair in both], axis=1) for i in (0, 1))
                color = f"C{number}"
                axes.plot(rates, own, "o-", color=color, label=code, fillstyle="none")
                axes.plot(
                    rates, beside, "x--", color=color, markersize=9, linewidth=0.8,
                    label=f"{MODEL} with the same limit",
                )  # fmt: skip
            axes.axhspan(-DISTANCE, DISTANCE, color="gray", alpha=0.25, lw=0)
            axes.set(xscale="log", ylim=(-0.08, 1.08), xlabel="raw bit error rate", title=model)
        panels[0].set_ylabel("loss reduction missed because of bit errors (fraction)")
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
        )
        figure.suptitle(
            f"Training with implemented codes: {found.steps:,} steps, "
            f"{plural(len(found.seeds), 'seed')}. Gray: {DISTANCE:.0%}",
            fontsize=9,
        )
        return save(figure)
