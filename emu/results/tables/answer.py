"""Default output of a comparison: a table of strategies, and sentences that name the winners.

Owns the layout within 80 columns and the text. Does not own any number (analysis/answer.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ondie.emu.analysis.answer import TIE, Answer, Certainty, Strategy, Verdict
from ondie.emu.analysis.compare import Comparison
from ondie.emu.analysis.error_notes import wrong_words
from ondie.emu.analysis.lifetime import Interval
from ondie.emu.analysis.monte_carlo import DRAWS
from ondie.emu.results.tables.compare import remarks
from ondie.emu.units import fmt_bytes, fmt_energy, fmt_time, plural, si_prefix

WIDTH = 80
"""Width of the output in characters, even on a wider terminal."""
NAME_WIDTH = 13
"""Maximum number of characters of a strategy's name in a line. Longer names take two lines."""
SMALL = 1.2
"""Speedup below which the speedup is printed as a percentage."""


def show(comparison: Comparison, found: Answer, console: Console) -> None:
    """Print the title, the table of strategies, and the sentences below it."""
    console.print(title(comparison), highlight=False, width=WIDTH)
    console.print(table(found), width=WIDTH)
    for line in lines(comparison, found):
        console.print(line, highlight=False, width=WIDTH)


def title(comparison: Comparison) -> str:
    """Return the title line: trace, optimizer, device and number of steps."""
    cfg, trace = comparison.cfg, comparison.trace
    drives = f"{cfg.system.devices} x " if cfg.system.devices > 1 else ""
    stored = "" if comparison.options.format == "fp32" else f" in {comparison.options.format}"
    steps = "1 step" if comparison.steps == 1 else f"the mean of {comparison.steps} steps"
    return (
        f"{trace.name} ({trace.n_params:,} parameters{stored}, {trace.op}) on {drives}"
        f"{cfg.system.name}: {steps}"
    )


def table(found: Answer) -> Table:
    """Return the table of strategies, with two lines for each strategy.

    The first line has time, energies, written bytes and bottleneck. The second line has samples/s,
    energy intervals, lifetime, and utilization of the bottleneck. "(wrong bits)" below a name marks
    a strategy that used data with bit errors.
    """
    ran = [row for row in found.strategies if row.reason is None]
    scales = [
        si_prefix(min((span(row)[1] for row in ran if span(row)[1] > 0), default=1.0))
        for span in (lambda row: row.drives_j_per_sample, lambda row: row.all_j_per_sample)
    ]
    out = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    out.add_column("strategy\n", no_wrap=True)
    heads = (
        "step\nsamples/s",
        f"drives,\n{scales[0][1]}J/sample",
        f"with host,\n{scales[1][1]}J/sample",
        "written per\nsample, life",
        "bound\nby",
    )
    for head in heads:
        out.add_column(head, justify="right", no_wrap=True)
    for row in found.strategies:
        if row.reason is not None:
            out.add_row(fold(row.name), "n/a")
            continue
        energies = (row.drives_j_per_sample, row.all_j_per_sample)
        out.add_row(
            fold(row.name) + ("\n(wrong bits)" if row.wrong else ""),
            f"{fmt_time(row.step_s * 1e12)}\n{row.samples_per_s:.4g}",
            *(interval(span, scale[0]) for span, scale in zip(energies, scales, strict=True)),
            f"{fmt_bytes(row.written_bytes_per_sample)}\n{years(row)}",
            f"{row.bound_by}\n{row.bound_by_share:.0%}",
        )
    return out


def fold(name: str) -> str:
    """Return ``name``, split into two lines after an underscore if it is longer than NAME_WIDTH."""
    if len(name) <= NAME_WIDTH:
        return name
    at = name.rfind("_", 0, NAME_WIDTH) + 1
    return f"{name[:at]}\n{name[at:]}"


def three(value: float) -> str:
    """Return a number as text with three significant digits, without an exponent if it is below a
    million.
    """
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:#.3g}".rstrip(".")


def interval(span: Interval, scale: float) -> str:
    """Return a range as text of two lines: the typical value, then "low .. high".

    ``span``: (low, typical, high) in a base unit. ``scale``: size of the printed unit in base
    units.
    """
    low, typical, high = (three(value / scale) for value in span)
    return f"{typical}\n{low} .. {high}"


def years(row: Strategy) -> str:
    """Return the typical lifetime of the drives in years, as text."""
    if row.lifetime_years is None:
        return "no wear"
    typical = row.lifetime_years[1]
    return f"{three(typical)} years" if typical < 1000 else ">1,000 years"


def lines(comparison: Comparison, found: Answer) -> list[str]:
    """Return the sentences below the table of strategies: notes, verdicts, and the number of
    assumed constants.
    """
    ran = [row for row in found.strategies if row.reason is None]
    out = remarks(comparison)
    if not found.equal_batches:
        batches = ", ".join(f"{row.name} {row.samples_per_step:,}" for row in ran)
        out.append(
            f"Samples per step differ ({batches}); compare the values per sample and the samples/s."
        )
    out += own_blocks(found)
    out += weights(comparison, found)
    out += ["", *verdicts(comparison, found)]
    assumed, all_leaves = len(comparison.cfg.assumed()), len(comparison.cfg.leaves())
    out.append(
        f"{assumed} of {all_leaves} constants are assumed; the ends of an interval have every "
        "constant at its low or high end. --verbose prints phases, traffic, wear and the effect of "
        "each constant."
    )
    return out


def verdicts(comparison: Comparison, found: Answer) -> list[str]:
    """Return the verdicts on time and on energy as text. If the winner used data with bit errors,
    the text also names the best strategy without bit errors.
    """
    return [
        time_words(comparison, found) + remark(found, found.fastest),
        energy_words(found) + remark(found, found.least_energy),
    ]


def winner(found: Answer, verdict: Verdict) -> str:
    """Return the name of the best strategy of ``verdict``. Append the numbers of bit errors and of
    uncorrectable pages per step in the data that the strategy used, unless both numbers are 0.
    """
    (row,) = (row for row in found.strategies if row.name == verdict.best)
    words = wrong_words(row.wrong_bits_per_step, row.uncorrectable_pages_per_step)
    return f"{verdict.best}, with {words}," if words else verdict.best


def remark(found: Answer, verdict: Verdict) -> str:
    """Return a sentence if the winner of ``verdict`` used data with bit errors, otherwise ""."""
    if verdict.best_right == verdict.best:
        return ""
    right = verdict.best_right
    rest = "every strategy used" if right is None else f"{right} is best of those that used no"
    return f" The result of {verdict.best} is wrong; {rest} data with bit errors."


def own_blocks(found: Answer) -> list[str]:
    """Return a sentence for each strategy that uses blocks of the drive exclusively, if these
    blocks wear out before the stated lifetime of the drive."""
    return [
        f"The blocks that only {row.name} uses last {three(row.own_blocks_years)} years; the "
        "lifetime in the table assumes that all blocks of the drive wear evenly."
        for row in found.strategies
        if row.own_blocks_years is not None and row.lifetime_years is not None
        and row.own_blocks_years < (1 - TIE) * row.lifetime_years[1]
    ]  # fmt: skip


def weights(comparison: Comparison, found: Answer) -> list[str]:
    """Return a list with a sentence on the final weights, or an empty list if no weights were
    compared.

    The sentence omits strategies whose weights are wrong because of bit errors. A separate note
    states the number of these weights.
    """
    damage = {row.name for row in found.strategies if row.wrong}
    checked = {
        result.name: result.weights.equal_bits == result.weights.elements
        for result in comparison.results
        if result.weights is not None
    }
    within = {name: equal for name, equal in checked.items() if equal or name not in damage}
    if not within:
        return []
    words = "equal" if all(within.values()) else "are within the limit (see --verbose) of"
    return [f"Weights read back from flash {words} the reference: {', '.join(within)}."]


def against(verdict: Verdict, word: str, gap: Callable[[float], str]) -> str:
    """Return a phrase that compares the winner with each other strategy.

    ``word``: comparative, such as "faster". ``gap``: function that formats a ratio above 1, other
    strategy over winner.
    """
    parts = [f"{gap(ratio)} {word} than {name}" for name, ratio in verdict.others.items()]
    if verdict.equal:
        parts.insert(0, f"within {TIE:.1%} of {', '.join(verdict.equal)}")
    return ", ".join(parts)


def speedup(ratio: float) -> str:
    """Return a speedup above 1 as text: a percentage if it is below SMALL, otherwise a factor."""
    return f"{ratio - 1:.1%}" if ratio < SMALL else f"{ratio:.3g}x"


def reduction(ratio: float) -> str:
    """Return the reduction 1 - 1 / ``ratio`` as a percentage. ``ratio``: energy of the other
    strategy divided by the energy of the best strategy, above 1.

    A reduction that would round to 100 % gets more digits.
    """
    left, digits = 1 / ratio, 1
    while left > 0 and left * 100 < 0.5 * 10**-digits:
        digits += 1
    return f"{1 - left:.{digits}%}"


def time_words(comparison: Comparison, found: Answer) -> str:
    """Return the verdict on time as text: the fastest strategy, its lead, and the certainty."""
    verdict = found.fastest
    each = fmt_time(verdict.value * 1e12)
    words = f"Time: {winner(found, verdict)} is fastest, {each} per sample"
    if more := against(verdict, "faster", speedup):
        words += f", {more}"
    return f"{words}. {time_certainty(comparison, verdict)}"


def time_certainty(comparison: Comparison, verdict: Verdict) -> str:
    """Return a sentence on the certainty of the verdict on time.

    The sentence states whether the fastest strategy wins at both ends of each constant's range, and
    names the constant with the largest effect. If the certainty was not determined, the sentence
    states the reason.
    """
    sure, pair = verdict.certainty, comparison.swing_pair
    if sure is None:
        exact = "Times are exact for these constants"
        if pair is None or not comparison.time_swings:
            return f"{exact}, which were not varied."
        if verdict.best not in pair:
            return f"{exact}, which were varied for {pair[0]} and {pair[1]} only."
        return f"{exact}: {pair[0]} or {pair[1]} cannot run at an end of each range."
    other = f"against {sure.other}"
    if sure.exceptions:
        first = ", ".join(sure.exceptions[:2])
        more = f" and {len(sure.exceptions) - 2} more" if len(sure.exceptions) > 2 else ""
        words = f"Not certain {other}: it loses at an end of the range of {first}{more}"
    else:
        ranges = "the range" if sure.constants == 1 else f"each of {sure.constants} ranges"
        words = f"It wins {other} at both ends of {ranges}"
    return f"{words}; {decider(sure, 'long')}."


def energy_words(found: Answer) -> str:
    """Return the verdict on energy as text: the strategy with the least energy, its lead, and the
    certainty."""
    verdict = found.least_energy
    words = (
        f"Energy: {winner(found, verdict)} uses the least, "
        f"{fmt_energy(verdict.value * 1e15)} per sample with the host"
    )
    if more := against(verdict, "less", reduction):
        words += f", {more}"
    sure = verdict.certainty
    if sure is None:
        return f"{words}. {overlap(found, verdict)}".rstrip()
    if len(verdict.others) == 1:
        beaten = sure.other
    else:
        beaten = "every other"
        if verdict.equal:
            beaten = f"every strategy that is more than {TIE:.1%} worse"
    assert sure.probability is not None
    words += (
        f". It uses less than {beaten} in {share(sure.probability)} of {DRAWS:,} draws of "
        f"{plural(sure.constants, 'energy constant')}"
    )
    if sure.with_times is not None:
        words += (
            f", and less than {sure.with_times.other} in {share(sure.with_times.probability)} if "
            f"constants that affect time are also drawn ({sure.with_times.constants} in total; "
            f"{sure.with_times.decided_by} matters most)"
        )
    return f"{words}; of the energy constants, {decider(sure, 'much')}."


def share(probability: float) -> str:
    """Return a probability as a percentage. "100%" and "0%" mean exactly 1 and 0."""
    if 0.995 <= probability < 1:
        return "more than 99%"
    return "less than 1%" if 0 < probability < 0.005 else f"{probability:.0%}"


def decider(sure: Certainty, quantity: str) -> str:
    """Return a phrase that names the constant with the largest effect on the ratio of the compared
    strategy to the best strategy. The phrase also states this ratio at both ends of the range of
    the constant, the smaller ratio first. ``sure``: uncertainty of the verdict.

    ``quantity``: "long" for a ratio of times, "much" for a ratio of energies ("2 times as long").
    """
    low, high = sorted(sure.ratio)
    takes = "takes" if quantity == "long" else "uses"
    return (
        f"{sure.decided_by} matters most: over its range {sure.other} {takes} {low:.2f} "
        f"to {high:.2f} times as {quantity}"
    )


def overlap(found: Answer, verdict: Verdict) -> str:
    """Return a sentence that states whether the energy intervals of the best strategy and of the
    next strategy overlap."""
    if not verdict.others:
        return ""
    rows = {row.name: row for row in found.strategies}
    name = next(iter(verdict.others))
    apart = rows[verdict.best].all_j_per_sample[2] < rows[name].all_j_per_sample[0]
    return f"Its interval and that of {name} {'do not overlap' if apart else 'overlap'}."
