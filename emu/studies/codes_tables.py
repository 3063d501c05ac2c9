"""Rows, table and figure of trainings behind real codes, each compared with the capability model.

Owns the checks and the text of the rows on the differences. Does not own the trainings (codes.py),
the share of the loss reduction that is missed or its limit (errors_tables.py).
Source: none. A BCH code with a CRC corrects exactly the words of which at most t bits are wrong.
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
    """One pair of runs: a model with a code, a rate and a seed, and the model with the capability
    model instead of the code."""

    trained: Trained
    """Results behind the code."""
    counts: BareCounts
    """Counters of the code's decoder."""
    beside: Trained
    """Results behind the capability model."""
    drawn: np.ndarray
    """int64[steps, 3]: wrong bits that the model leaves, words that it cannot correct, words with
    more wrong bits than its limit with their check bits; drawn before training."""

    @property
    def words(self) -> tuple[int, int]:
        """Words of the steps that the training behind the code completed: (those that the model
        cannot correct, those above its limit with their check bits)."""
        model, whole = self.drawn[: self.trained.steps, 1:].sum(axis=0)
        return int(model), int(whole)


@dataclass(frozen=True)
class CodesFound:
    """Results of all runs of one call of `run_study`."""

    cells: Mapping[tuple[str, str, float, int], Coded]
    """Runs by (model, code, rate, seed)."""
    plain: Mapping[tuple[str, int], Trained]
    """Results of the trainings without errors, by (model, seed)."""
    rates: Mapping[str, Sequence[float]]
    """Raw bit error rates by code."""
    seeds: Sequence[int]
    steps: int

    @property
    def models(self) -> list[str]:
        """Model names in display order."""
        return sorted({model for model, _ in self.plain})

    def group(self, model: str, code: str, rate: float) -> list[Coded]:
        """Return the runs of all seeds."""
        return [self.cells[model, code, rate, seed] for seed in self.seeds]

    def missed(self, model: str, code: str, rate: float) -> tuple[list[float], list[float]]:
        """Return the fractions of the error-free loss reduction that the trainings miss, by seed:
        (behind the code, behind the model)."""
        each = [
            tuple(share(run, self.plain[model, seed], self.steps) for run in (c.trained, c.beside))
            for seed, c in zip(self.seeds, self.group(model, code, rate), strict=True)
        ]
        return [code for code, _ in each], [beside for _, beside in each]


def equal(one: Trained, other: Trained) -> bool:
    """Return True if two trainings have the same losses and weights, bit for bit."""
    losses = np.array_equal(one.losses, other.losses, equal_nan=True)
    return losses and one.weights.tobytes() == other.weights.tobytes()


def rows(found: CodesFound) -> list[Row]:
    """Return the rows. Check rows: words that BCH could not correct, and wrong data with the right
    CRC. Shown rows: the words on which code and model differ, and the final losses."""
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
                    "before training with more wrong bits than the code corrects, check bits "
                    "included"
                )
                out.append(
                    Row(
                        "errors", f"{name}: words not corrected", CHECK, float(whole),
                        float(counts.failed_words), "words", 0, source, trials=counts.words,
                    )
                )  # fmt: skip
            source = "words that were decoded to other data than were written, with the right CRC"
            out.append(
                Row(
                    "errors", f"{name}: wrong data with the right CRC", CHECK, 0,
                    float(counts.miscorrected_words), "words", 0, source, trials=counts.words,
                )
            )  # fmt: skip
    for model in found.models:
        for code, rates in found.rates.items():
            for rate in rates:
                out += _shown(found, model, code, rate)
    return out


def _shown(found: CodesFound, model: str, code: str, rate: float) -> list[Row]:
    """Return the shown rows of one code at one rate."""
    cells = found.group(model, code, rate)
    name = f"{model}, {code}, {written(rate)}"
    source = (
        f"compared with the {MODEL} with the same limit and seeds: words that are not corrected"
    )
    decoded = sum(c.counts.words for c in cells)
    failed = sum(c.counts.failed_words for c in cells)
    modelled = sum(c.words[0] for c in cells)
    first = Row(
        "errors", f"{name}: words not corrected", SHOWN, float(modelled), float(failed), "words",
        None, source, trials=decoded,
    )  # fmt: skip
    theirs, own = [
        float(np.mean([end(run, found.steps) for run in runs]))
        for runs in ([c.beside for c in cells], [c.trained for c in cells])
    ]
    source = (
        f"compared with the {MODEL}, {found.steps:,} steps, {len(cells)} seeds; the first loss if "
        "it ends in NaN"
    )
    return [
        first,
        Row("errors", f"{name}: loss at the end", SHOWN, theirs, own, "nat", None, source),
    ]


def tables(found: CodesFound) -> list[Table]:
    """Return the table: for each code and rate the words that code and model do not correct, where
    they differ, and the missed loss reduction behind both."""
    title = (
        f"Trainings of {found.steps:,} steps behind real codes, {plural(len(found.seeds), 'seed')}"
        f", beside the {MODEL} with the same limit\n"
        "Share of the loss reduction that the training misses; =: losses and weights equal those "
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
"""Columns of the table. "only code": words that the code does not correct and the model does."""


def line(found: CodesFound, model: str, code: str, rate: float) -> tuple[str, ...]:
    """Return the cells of one line of the table, from the rate on. The model's words are those of
    the steps that the training behind the code completed."""
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
    """Return the missed fraction as text, and the number of seeds that end in NaN."""
    pairs = [(run, found.plain[model, s]) for run, s in zip(runs, found.seeds, strict=True)]
    if all(equal(*pair) for pair in pairs):
        return "="
    mean = np.mean([share(*pair, found.steps) for pair in pairs])
    nan = sum(gone(run) for run in runs)
    return f"{mean:+z.1%}" + (f", {nan} NaN" if nan else "")


def draw(found: CodesFound, save: Callable[[Figure], dict[str, bytes]]) -> dict[str, bytes]:
    """Draw the missed fraction of the loss reduction by error rate, one panel per model: lines for
    codes, crosses for the model. Returns {"png": bytes, "pdf": bytes}, without a date."""
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
                    label=f"{MODEL} of the same limit",
                )  # fmt: skip
            axes.axhspan(-DISTANCE, DISTANCE, color="gray", alpha=0.25, lw=0)
            axes.set(xscale="log", ylim=(-0.08, 1.08), xlabel="raw bit error rate", title=model)
        panels[0].set_ylabel("share of the loss reduction missed")
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
        )
        figure.suptitle(
            f"Training behind codes that decode every word: {found.steps:,} steps, "
            f"{plural(len(found.seeds), 'seed')}. Gray: {DISTANCE:.0%}",
            fontsize=9,
        )
        return save(figure)
