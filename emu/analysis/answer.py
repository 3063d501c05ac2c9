"""The answer of a comparison: one row per strategy for the whole training step, and the winners.

Owns the figures of a strategy per step and per sample, and the verdicts on time and on energy:
which strategy wins, by how much, how certain that is and which constant decides. Does not own the
runs (compare.py), the uncertainty (sensitivity.py, monte_carlo.py) or the screen
(cli/tables/answer.py).
Source: this project's contract of results: all strategies train on the same samples per step. Where
batches differ, only figures per sample are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ondie.emu.analysis.compare import Comparison, Result
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.lifetime import Interval, lifetime
from ondie.emu.analysis.monte_carlo import DRAW_LAWS, WHOLE_STEP, width

TIE = 0.005
"""Relative difference up to which two strategies are reported as equal."""


@dataclass(frozen=True)
class Strategy:
    """Figures of one strategy for a whole step, forward and backward included."""

    name: str
    reason: str | None = None
    """Why the strategy did not run; None if it ran. The remaining fields then have defaults."""
    samples_per_step: int = 0
    step_s: float = 0.0
    samples_per_s: float = 0.0
    drives_j_per_sample: Interval = (0.0, 0.0, 0.0)
    """Energy of all drives, J as (low, typical, high)."""
    all_j_per_sample: Interval = (0.0, 0.0, 0.0)
    """Energy of drives, host and accelerator, J as (low, typical, high)."""
    written_bytes_per_sample: float = 0.0
    """Bytes programmed into flash, write amplification included."""
    lifetime_years: Interval | None = None
    """Lifetime of the drives in years of continuous training; None if nothing is written."""
    bound_by: str = ""
    """Resource class that works for the largest share of the step."""
    bound_by_share: float = 0.0

    @property
    def s_per_sample(self) -> float:
        """Seconds per sample."""
        return self.step_s / self.samples_per_step


@dataclass(frozen=True)
class Certainty:
    """Uncertainty of a verdict: the best strategy against another, over the constants' ranges.

    Computed for the pair of the headline only, of which the best strategy must be one.
    """

    other: str
    constants: int
    """Constants that were varied, one by one (time), or drawn together (energy)."""
    probability: float | None
    """Energy: share of DRAWS draws in which the best takes less than the other."""
    exceptions: tuple[str, ...]
    """Time: constants at one end of whose range the other is faster."""
    decided_by: str
    """Constant over whose range the ratio, other over best, changes most."""
    ratio: tuple[float, float]
    """That ratio at the low and at the high end."""


@dataclass(frozen=True)
class Verdict:
    """The best strategy by one figure per sample, of which less is better."""

    best: str
    value: float
    """The figure of the best: s per sample, or J per sample with host and accelerator."""
    equal: tuple[str, ...]
    """Other strategies within TIE of the best."""
    others: Mapping[str, float]
    """Each strategy outside TIE -> its figure over the best's, ascending."""
    certainty: Certainty | None = None


@dataclass(frozen=True)
class Answer:
    """Rows of a comparison in the order of its results, and the verdicts; None if nothing ran."""

    strategies: tuple[Strategy, ...]
    equal_batches: bool
    """Whether all strategies train on the same number of samples per step."""
    fastest: Verdict
    least_energy: Verdict

    def data(self) -> dict[str, Any]:
        """Return the content of result.json."""
        return asdict(self)


def answer(comparison: Comparison) -> Answer:
    """Return the answer of a comparison in which at least one strategy ran."""
    rows = tuple(_strategy(comparison, result) for result in comparison.results)
    ran = [row for row in rows if row.reason is None]
    time = _verdict({row.name: row.s_per_sample for row in ran})
    energy = _verdict({row.name: row.all_j_per_sample[1] for row in ran})
    return Answer(
        rows,
        len({row.samples_per_step for row in ran}) == 1,
        replace(time, certainty=_time_certainty(comparison, time.best)),
        replace(energy, certainty=_energy_certainty(comparison, energy.best)),
    )


def _strategy(comparison: Comparison, result: Result) -> Strategy:
    book, energy = result.ledger, result.energy
    if book is None or energy is None:
        return Strategy(result.name, result.reason or "it did not run")
    per_sample = 1 / (comparison.steps * book.samples)
    worn = lifetime(comparison.cfg, book, result.updates_weights)
    name, share = _bound_by(book)

    def each(span: Interval) -> Interval:
        low, typical, high = (joules * per_sample for joules in span)
        return low, typical, high

    return Strategy(
        result.name,
        None,
        book.samples,
        book.step_s,
        book.samples / book.step_s,
        each(energy.drives),
        each(energy.all),
        worn.written_bytes / book.samples,
        worn.years,
        name,
        share,
    )


def _bound_by(book: Ledger) -> tuple[str, float]:
    """Return (resource class that works most, its share) of the whole step."""
    busy: dict[str, int] = {}
    for (_, resource), busy_ps in book.totals.busy_ps.items():
        busy[resource] = busy.get(resource, 0) + busy_ps
    whole = sum(stop - start for spans in book.totals.steps for start, stop in [spans["step"]])
    if not busy or not whole:
        return "nothing", 0.0
    name = max(busy, key=lambda resource: busy[resource])
    return name, busy[name] / whole


def _ran(comparison: Comparison, name: str) -> Result:
    found = comparison.result(name)
    assert found is not None
    return found


def _verdict(values: Mapping[str, float]) -> Verdict:
    """Return the verdict on a figure by strategy; the first of equal ones is the best."""
    best = min(values, key=lambda name: values[name])
    least = values[best]
    others = {
        name: value / least for name, value in sorted(values.items(), key=lambda item: item[1])
        if name != best
    }  # fmt: skip
    equal = tuple(name for name, ratio in others.items() if ratio <= 1 + TIE)
    return Verdict(best, least, equal, {n: r for n, r in others.items() if n not in equal})


def _other(comparison: Comparison, best: str) -> str | None:
    """Return the other strategy of the headline's pair, or None if ``best`` is not in it."""
    pair = comparison.swing_pair
    if pair is None or best not in pair:
        return None
    return pair[0] if best == pair[1] else pair[1]


def _time_certainty(comparison: Comparison, best: str) -> Certainty | None:
    """Return the effect of each assumed constant on the ratio of the steps, other over best.

    Only the update stage changes with a constant; its factor is that of the sample.
    """
    other = _other(comparison, best)
    if other is None or not comparison.swings:
        return None
    books = [_ran(comparison, name).ledger for name in (best, other)]

    def ratio(times: Mapping[str, float]) -> float:
        mine, others = (
            book.step_s + book.update_s * (times.get(name, 1.0) - 1)
            for name, book in zip((best, other), books, strict=True)
            if book is not None
        )
        return others / mine

    ends = {
        swing.key: (ratio(swing.times_at_low), ratio(swing.times_at_high))
        for swing in comparison.swings
        if not swing.fails  # at such an end there is no ratio
    }
    if not ends:
        return None
    widest = max(ends, key=lambda key: max(ends[key]) / min(ends[key]))
    losing = tuple(key for key, both in ends.items() if min(both) < 1)
    return Certainty(other, len(ends), None, losing, widest, ends[widest])


def _energy_certainty(comparison: Comparison, best: str) -> Certainty | None:
    """Return the uncertainty of the energy ratio, other over best.

    Constants of forward and backward have their typical values: both strategies of the pair spend
    the same energy there, whatever the constants are.
    """
    other, odds = _other(comparison, best), comparison.odds
    if other is None or odds is None:
        return None
    drawn = odds.answers[DRAW_LAWS[0]][WHOLE_STEP].probability
    wins = best == odds.pair[1]  # the draws are of the baseline over the rival
    joules = [_ran(comparison, name).energy for name in (other, best)]
    theirs, mine = (energy.all[1] for energy in joules if energy is not None)
    typical = theirs / mine
    bar = max(odds.bars, key=lambda bar: width(bar.step, typical))
    ends = [typical if end is None else end if wins else 1 / end for end in bar.step]
    return Certainty(
        other, odds.drawn, drawn if wins else 1 - drawn, (), bar.key, (ends[0], ends[1])
    )
