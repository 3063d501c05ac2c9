"""Answer of a comparison: one row per strategy for the whole training step, and the winners.

Owns the time, energy and lifetime of each strategy per step and per sample, and the verdicts on
time and on energy. A verdict states the best strategy, its advantage over the other strategies, the
uncertainty, and the most influential constant. Does not own the runs (compare.py), the variation of
constants (sensitivity.py, monte_carlo.py, energy_draws.py) or the printed tables
(results/tables/answer.py).
Source: this project's rule that strategies with different batch sizes are compared by values per
sample only.
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
"""Relative difference in time or energy up to which two strategies are reported as equal."""


@dataclass(frozen=True)
class Strategy:
    """Results of one strategy (an update path of the comparison) for a whole training step,
    including forward and backward."""

    name: str
    reason: str | None = None
    """Reason why the strategy did not run; None if it ran. If it did not run, all fields except
    ``name`` and ``reason`` have their default values."""
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
    """Resource class with the highest utilization in the whole step, such as "channels"; "nothing"
    if no resource was busy, "" if the strategy did not run."""
    bound_by_share: float = 0.0
    """Utilization, in the whole step, of the resource class that ``bound_by`` names."""
    own_blocks_years: float | None = None
    """Lifetime in years of the blocks that only this strategy uses, with the configured wear
    leveling; None if there are no such blocks. In contrast, ``lifetime_years`` assumes that all
    blocks of the drives wear evenly."""
    wrong_bits_per_step: float = 0.0
    """Number of uncorrected bit errors per step in the reservoir pages that the strategy used."""
    uncorrectable_pages_per_step: float = 0.0
    """Number of flash pages per step that ECC could not correct."""

    @property
    def wrong(self) -> bool:
        """True if the strategy used incorrect data, so that its result is incorrect."""
        return bool(self.wrong_bits_per_step or self.uncorrectable_pages_per_step)

    @property
    def s_per_sample(self) -> float:
        """Time of a step in seconds divided by its number of samples."""
        return self.step_s / self.samples_per_step


@dataclass(frozen=True)
class WithTimes:
    """Uncertainty of a verdict on energy if constants that affect time are drawn at random together
    with the energy constants.

    This record exists only if the best strategy is one of the two strategies of the headline
    (path_choice.headline_pair), because only these two are simulated at both ends of the ranges of
    the constants that affect time.
    """

    other: str
    """The other strategy of the headline pair, with which the best strategy is compared."""
    constants: int
    """Number of constants that are drawn at random: energy constants and constants that affect
    time."""
    probability: float
    """Fraction of the random draws in which the best strategy consumes less energy than
    ``other``."""
    decided_by: str
    """Configuration key of the constant whose range changes ``ratio`` the most, among all drawn
    constants."""
    ratio: tuple[float | None, float | None]
    """Energy of ``other`` divided by the energy of the best strategy, at the (low, high) end of the
    range of ``decided_by``; None if a strategy cannot run at that end."""


@dataclass(frozen=True)
class Certainty:
    """Uncertainty of a verdict over the ranges of the constants.

    Verdict on energy: the energy constants are drawn at random, the simulated times stay fixed, and
    the best strategy is compared with every strategy of ``Verdict.others``. Verdict on time: each
    constant is varied alone, and the best strategy, which must be one of the headline's two
    strategies (path_choice.headline_pair), is compared with the other strategy of this pair. If the
    best strategy is not in this pair, a verdict on time has no Certainty.
    """

    other: str
    """Strategy to which ``decided_by`` and ``ratio`` refer. Verdict on energy: the first strategy
    of ``Verdict.others``. Verdict on time: the other strategy of the headline pair
    (path_choice.headline_pair)."""
    constants: int
    """Number of constants that were varied one by one (verdict on time) or drawn together (verdict
    on energy)."""
    probability: float | None
    """Fraction of the random draws in which the best strategy consumes less energy than each of
    ``Verdict.others`` (verdict on energy); None for the verdict on time."""
    exceptions: tuple[str, ...]
    """Verdict on time: configuration keys of the constants for which the strategy ``other`` is
    faster than the best strategy at one end or both ends of the constant's range. Empty for the
    verdict on energy."""
    decided_by: str
    """Configuration key of the constant whose range changes ``ratio`` the most. For the verdict on
    energy, only energy constants are considered; ``with_times.decided_by`` considers all
    constants."""
    ratio: tuple[float, float]
    """Time or energy of ``other`` divided by that of the best strategy, at the (low, high) end of
    the range of ``decided_by``."""
    with_times: WithTimes | None = None
    """Verdict on energy: uncertainty if the random draws also include the constants that affect
    time. The value is None for the verdict on time, if the best strategy is not in the headline
    pair (path_choice.headline_pair), or if the constants were not varied."""


@dataclass(frozen=True)
class Verdict:
    """Best strategy by one criterion, time or energy per sample; a smaller value is better."""

    best: str
    value: float
    """Value of the best strategy: time in s per sample, or energy of drives, host and accelerator
    in J per sample."""
    equal: tuple[str, ...]
    """Other strategies whose value exceeds that of the best strategy by at most the fraction
    TIE."""
    others: Mapping[str, float]
    """Mapping from the name of each other strategy to its value divided by the value of the best
    strategy, in ascending order of this ratio. Strategies in ``equal`` are omitted."""
    best_right: str | None
    """Best strategy among those that used no incorrect data; None if all strategies used incorrect
    data."""
    certainty: Certainty | None = None


@dataclass(frozen=True)
class Answer:
    """Summary of a comparison: one Strategy per path, in the order of the comparison's results, and
    the verdicts on time and on energy."""

    strategies: tuple[Strategy, ...]
    equal_batches: bool
    """True if all strategies train on the same number of samples per step."""
    fastest: Verdict
    least_energy: Verdict

    def data(self) -> dict[str, Any]:
        """Return the summary of the comparison as a dictionary for result.json."""
        return asdict(self)


def answer(comparison: Comparison) -> Answer:
    """Return the rows and the verdicts of a comparison. At least one of its strategies must have
    run."""
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
    step; ("nothing", 0) if no resource was busy."""
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
    """Return the verdict by one criterion. If several strategies have the lowest value, the first
    of them is the best strategy. ``values``: value of each strategy, by name. ``right``: names of
    the strategies that used no incorrect data."""
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
    """Return the strategy with which the headline compares ``best``, or None if the headline does
    not compare ``best``."""
    pair = comparison.swing_pair
    if pair is None or best not in pair:
        return None
    return pair[0] if best == pair[1] else pair[1]


def _time_certainty(comparison: Comparison, best: str) -> Certainty | None:
    """Return the uncertainty of the verdict on time: the effect of each constant with a range on
    the ratio of two step times. The ratio is the step time of the other strategy of the headline
    pair divided by the step time of the best strategy.

    Return None if the best strategy is not in the headline pair (path_choice.headline_pair), or if
    no constant allows both strategies to run at both ends of its range. Constants are included
    regardless of their source. Energy constants and powers are omitted, because they do not affect
    time.

    A constant that sets the rate of the accelerator changes the time of the whole step by the
    factor simulated on the sample (a shortened run, sensitivity.py). Any other constant changes
    only the time of the update stage.
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
    """Return the uncertainty of the verdict on energy; None if ``verdict.others`` is empty or no
    energy constant has a range."""
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
