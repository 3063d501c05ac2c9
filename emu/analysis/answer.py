"""The answer of a comparison: one row per strategy for the whole training step, and the winners.

Owns the figures of a strategy per step and per sample, and the verdicts on time and on energy:
which strategy wins, by which factor, with which certainty, and which constant decides. Does not own
the runs (compare.py), the uncertainty (sensitivity.py, monte_carlo.py, energy_draws.py) or the
printed tables (results/tables/answer.py).
Source: this project's rule that all strategies train on the same samples per step. If the batches
of two strategies differ, only figures per sample are compared.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ondie.emu.analysis.compare import Comparison, Result
from ondie.emu.analysis.energy_draws import EnergyDraws
from ondie.emu.analysis.error_notes import wrong_data
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.lifetime import YEAR_S, Interval, lifetime
from ondie.emu.analysis.monte_carlo import DRAW_LAWS, WHOLE_STEP, width

TIE = 0.005
"""Relative difference of two figures up to which two strategies are reported as equal."""


@dataclass(frozen=True)
class Strategy:
    """Figures of one strategy for a whole step, forward and backward included."""

    name: str
    reason: str | None = None
    """Reason why the strategy did not run; None if it ran. If it did not run, all figures have
    their defaults."""
    samples_per_step: int = 0
    step_s: float = 0.0
    samples_per_s: float = 0.0
    drives_j_per_sample: Interval = (0.0, 0.0, 0.0)
    """Energy of all drives per sample, J: (low, typical, high)."""
    all_j_per_sample: Interval = (0.0, 0.0, 0.0)
    """Energy of drives, host and accelerator per sample, J: (low, typical, high)."""
    written_bytes_per_sample: float = 0.0
    """Bytes programmed into flash per sample, including write amplification."""
    lifetime_years: Interval | None = None
    """Lifetime of the drives in years of continuous training: (low, typical, high). None if nothing
    is written."""
    bound_by: str = ""
    """Resource class, such as "channels", that is busy for the largest share of the step."""
    bound_by_share: float = 0.0
    """Busy time of that resource class divided by the time of the step."""
    own_blocks_years: float | None = None
    """Lifetime in years of the blocks that only this strategy uses, with the configured wear
    leveling; None if there are no such blocks. In contrast, ``lifetime_years`` assumes that all
    blocks of the drives wear evenly."""
    wrong_bits_per_step: float = 0.0
    """Wrong bits per step in reservoir pages that the strategy used without correction."""
    uncorrectable_pages_per_step: float = 0.0
    """Pages per step that ECC could not correct."""

    @property
    def wrong(self) -> bool:
        """True if the strategy used wrong data, so that its result is wrong."""
        return bool(self.wrong_bits_per_step or self.uncorrectable_pages_per_step)

    @property
    def s_per_sample(self) -> float:
        """Time of a step divided by its number of samples, seconds."""
        return self.step_s / self.samples_per_step


@dataclass(frozen=True)
class WithTimes:
    """Uncertainty of a verdict on energy if the constants that affect time are also drawn.

    It exists only for the two strategies that the headline compares, because only they are
    simulated at both ends of the ranges of these constants.
    """

    other: str
    """Other strategy of the headline."""
    constants: int
    """Number of constants drawn together: energy constants and constants that affect time."""
    probability: float
    """Fraction of the random draws in which the best strategy consumes less energy than
    ``other``."""
    decided_by: str
    """Constant whose range changes ``ratio`` the most, among all drawn constants."""
    ratio: tuple[float | None, float | None]
    """Energy of ``other`` divided by that of the best strategy, at the (low, high) end of the range
    of ``decided_by``; None if a strategy cannot run at that end."""


@dataclass(frozen=True)
class Certainty:
    """Uncertainty of a verdict: comparison of the best strategy with others over the ranges of the
    constants.

    Verdict on energy: the best strategy is compared with all others over random draws of the energy
    constants; all times are the simulated ones. Verdict on time: the best strategy is compared with
    the other one of the two that the headline compares, and each constant is varied alone. If the
    headline does not include the best strategy, a verdict on time has no Certainty.
    """

    other: str
    """Strategy to which ``decided_by`` and ``ratio`` refer. Verdict on energy: the first of
    ``Verdict.others``. Verdict on time: the other strategy of the headline."""
    constants: int
    """Number of constants that were varied one by one (verdict on time) or drawn together (verdict
    on energy)."""
    probability: float | None
    """Verdict on energy: fraction of the random draws in which the best strategy consumes less
    energy than each of ``Verdict.others``. None for the verdict on time."""
    exceptions: tuple[str, ...]
    """Verdict on time: constants for which the other strategy is faster at one end of the range."""
    decided_by: str
    """Constant whose range changes ``ratio`` the most. For the verdict on energy, only energy
    constants are considered; ``with_times.decided_by`` considers all constants."""
    ratio: tuple[float, float]
    """Figure of ``other`` divided by that of the best strategy, at the (low, high) end of the range
    of ``decided_by``."""
    with_times: WithTimes | None = None
    """Verdict on energy: uncertainty if constants that affect time are also drawn; None if the
    headline does not include the best strategy. None for the verdict on time."""


@dataclass(frozen=True)
class Verdict:
    """The best strategy by one figure per sample; less is better."""

    best: str
    value: float
    """Figure of the best strategy: time in s per sample, or energy of drives, host and accelerator
    in J per sample."""
    equal: tuple[str, ...]
    """Other strategies whose figure is within TIE of the best one."""
    others: Mapping[str, float]
    """For each strategy outside TIE, its figure divided by that of the best one, in ascending
    order."""
    best_right: str | None
    """Best strategy among those that used no wrong data; None if all used wrong data."""
    certainty: Certainty | None = None


@dataclass(frozen=True)
class Answer:
    """Answer of a comparison: the rows, in the order of the results, and the two verdicts."""

    strategies: tuple[Strategy, ...]
    equal_batches: bool
    """True if all strategies train on the same number of samples per step."""
    fastest: Verdict
    least_energy: Verdict

    def data(self) -> dict[str, Any]:
        """Return the answer as it is written to result.json."""
        return asdict(self)


def answer(comparison: Comparison) -> Answer:
    """Return the answer of a comparison. At least one of its strategies must have run."""
    rows = tuple(_strategy(comparison, result) for result in comparison.results)
    ran = [row for row in rows if row.reason is None]
    right = {row.name for row in ran if not row.wrong}
    time = _verdict({row.name: row.s_per_sample for row in ran}, right)
    energy = _verdict({row.name: row.all_j_per_sample[1] for row in ran}, right)
    return Answer(
        rows,
        len({row.samples_per_step for row in ran}) == 1,
        replace(time, certainty=_time_certainty(comparison, time.best)),
        replace(energy, certainty=_energy_certainty(comparison, energy)),
    )


def _strategy(comparison: Comparison, result: Result) -> Strategy:
    book, energy = result.ledger, result.energy
    if book is None or energy is None:
        return Strategy(result.name, result.reason or "it did not run")
    per_sample = 1 / (comparison.steps * book.samples)
    worn = lifetime(comparison.cfg, book, result.updates_weights, result.share)
    name, share = _bound_by(book)
    own = worn.reservoir_steps

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
        None if own is None else own[0] * book.step_s / YEAR_S,
        *wrong_data(book.totals, comparison.steps),
    )


def _bound_by(book: Ledger) -> tuple[str, float]:
    """Return (name, utilization) of the resource class with the highest utilization in the whole
    step."""
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


def _verdict(values: Mapping[str, float], right: Container[str]) -> Verdict:
    """Return the verdict on a figure. ``values``: its value for each strategy. ``right``:
    strategies that used no wrong data. If several strategies are equal, the first one is the
    best."""
    best = min(values, key=lambda name: values[name])
    least = values[best]
    others = {
        name: value / least for name, value in sorted(values.items(), key=lambda item: item[1])
        if name != best
    }  # fmt: skip
    equal = tuple(name for name, ratio in others.items() if ratio <= 1 + TIE)
    outside = {name: ratio for name, ratio in others.items() if name not in equal}
    best_right = next((name for name in (best, *others) if name in right), None)
    return Verdict(best, least, equal, outside, best_right)


def _other(comparison: Comparison, best: str) -> str | None:
    """Return the strategy that the headline compares with ``best``, or None if ``best`` is not in
    the headline."""
    pair = comparison.swing_pair
    if pair is None or best not in pair:
        return None
    return pair[0] if best == pair[1] else pair[1]


def _time_certainty(comparison: Comparison, best: str) -> Certainty | None:
    """Return the uncertainty of the verdict on time: the effect of each constant with a range on
    the step time of the other strategy divided by that of the best.

    Return None if the headline does not include the best strategy, or if there is no constant at
    both ends of which both strategies can run. The source of a constant does not matter. Energy
    constants and powers are left out, because they change no time.

    A constant that sets the rate of the accelerator changes the whole step by the factor simulated
    on the sample. Any other constant changes only the update stage.
    """
    other = _other(comparison, best)
    if other is None:
        return None
    books = [_ran(comparison, name).ledger for name in (best, other)]

    def ratio(times: Mapping[str, float], steps: Mapping[str, float]) -> float:
        mine, others = (
            book.step_s * steps[name]
            if steps
            else book.step_s + book.update_s * (times.get(name, 1.0) - 1)
            for name, book in zip((best, other), books, strict=True)
            if book is not None
        )
        return others / mine

    ends = {
        swing.key: (
            ratio(swing.times_at_low, swing.steps_at_low),
            ratio(swing.times_at_high, swing.steps_at_high),
        )
        for swing in comparison.time_swings
        if not swing.fails  # at such an end there is no ratio
    }
    if not ends:
        return None
    widest = max(ends, key=lambda key: max(ends[key]) / min(ends[key]))
    losing = tuple(key for key, both in ends.items() if min(both) < 1)
    return Certainty(other, len(ends), None, losing, widest, ends[widest])


def _energy_certainty(comparison: Comparison, verdict: Verdict) -> Certainty | None:
    """Return the uncertainty of a verdict on energy; None if there is no other strategy, or no
    constant has a range."""
    runs = {
        result.name: (result.ledger, result.work)
        for result in comparison.results
        if result.ledger is not None and result.work is not None
    }
    samples = {name: comparison.steps * book.samples for name, (book, _) in runs.items()}
    draws = EnergyDraws(comparison.cfg, runs, samples, comparison.options.seed)
    others = list(verdict.others)
    if not others or not draws.spans:
        return None
    key, ratio = draws.deciding(verdict.best, others[0])
    probability = draws.probability(verdict.best, others)
    found = Certainty(others[0], len(draws.spans), probability, (), key, ratio)
    other, odds = _other(comparison, verdict.best), comparison.odds
    if other is None or odds is None:
        return found
    wins = verdict.best == odds.pair[1]  # the draws are of the baseline over the rival
    drawn = odds.answers[DRAW_LAWS[0]][WHOLE_STEP]
    odds_of_best = drawn.probability if wins else 1 - drawn.probability
    bar = max(odds.bars, key=lambda bar: width(bar.step, drawn.typical))
    low, high = (None if end is None else end if wins else 1 / end for end in bar.step)
    with_times = WithTimes(other, odds.drawn, odds_of_best, bar.key, (low, high))
    return replace(found, with_times=with_times)
