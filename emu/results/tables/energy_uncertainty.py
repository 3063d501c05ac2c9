"""Uncertainty of the ratio of the energies of two update strategies, as a table and sentences.

Owns the text. Does not own any number (analysis/monte_carlo.py). Source: this project.
"""

from __future__ import annotations

import math

from rich.table import Table

from ondie.emu.analysis.monte_carlo import (
    DRAW_LAWS,
    DRAWS,
    DRIVE_ALONE,
    EQUAL,
    IN_PROPORTION,
    WITH_HOST,
    Answer,
    Crossing,
    Ends,
    Odds,
)

MOST_NAMED = 3
"""Maximum number of constants that a sentence names."""
ROUNDING = 1e-4
"""Relative difference up to which two ratios count as equal, because quantiles are rounded."""
SCOPES = {DRIVE_ALONE: "SSD alone", WITH_HOST: "SSD and host"}


def odds_table(odds: Odds, table: Table) -> Table:
    """Add rows to ``table`` and return the table: ratios of the energies of two paths (update
    strategies), and the probability that the second path uses less energy."""
    base, rival = odds.pair
    table.title = f"Energy of {base} / energy of {rival}, {odds.drawn} constants drawn"
    for column in ("typical", "5 %", "median", "95 %", f"{rival} uses less"):
        table.add_column(column, justify="right")
    for law in DRAW_LAWS if laws_differ(odds) else DRAW_LAWS[:1]:
        for scope, words in SCOPES.items():
            answer = odds.answers[law][scope]
            name = words if law == DRAW_LAWS[0] else f"{words}, all triangular"
            table.add_row(
                name, *(f"{x:.2f}" for x in (answer.typical, *answer.quantiles)), chance(answer)
            )
    return table


def odds_words(odds: Odds) -> str:
    """Return sentences on the distributions from which constants are drawn, and on the host powers
    at which both paths use the same energy."""
    return outside_words(odds) + (
        f"{DRAWS:,} draws. Both paths use the same drawn values; related constants, such as both "
        "directions of the link, share a draw. The distribution is triangular around the typical "
        "value, or log-uniform if the range spans more than a decade. With SSD and host, all other "
        "constants typical: "
        f"{'; '.join(crossing_words(x) for x in odds.crossings)}."
    )


def outside_words(odds: Odds) -> str:
    """Return a sentence if a typical energy ratio is below the 5 % quantile or above the 95 %
    quantile of the random draws, otherwise "". The sentence names constants whose typical value is
    an end of their range."""
    drawn = odds.answers[DRAW_LAWS[0]]
    scopes = [words for scope, words in SCOPES.items() if _is_outside(drawn[scope])]
    if not scopes:
        return ""
    one_sided = [bar.key for bar in odds.bars if _one_sided(bar.energy, odds.ratios[0])]
    names = ", ".join(one_sided[:MOST_NAMED])
    why = f", because the typical value is an end of the range of {names}" if names else ""
    return (
        f"The typical ratio ({' and '.join(scopes)}) is outside the 5 % and 95 % quantiles{why}. "
    )


def _is_outside(answer: Answer) -> bool:
    """Return True if the typical energy ratio is below the 5 % quantile or above the 95 % quantile
    of ``answer`` by more than the rounding of the quantiles."""
    low, _, high = answer.quantiles
    return not low * (1 - ROUNDING) <= answer.typical <= high * (1 + ROUNDING)


def _one_sided(ends: Ends, typical: float) -> bool:
    """Return True if the energy ratio at exactly one end of a constant's range equals ``typical``.
    ``ends``: energy ratio at both ends; None for an end at which a path cannot run."""
    same = [end is not None and math.isclose(end, typical, rel_tol=1e-9) for end in ends]
    return same[0] != same[1]


def laws_differ(odds: Odds) -> bool:
    """Return True if the two distributions from which constants are drawn (DRAW_LAWS) give
    significantly different probabilities that the rival uses less energy.

    The limit is three times the sum of the standard errors of both probabilities.
    """
    return any(
        abs(
            odds.answers[DRAW_LAWS[0]][scope].probability
            - odds.answers[DRAW_LAWS[1]][scope].probability
        )
        > 3 * (odds.answers[DRAW_LAWS[0]][scope].error + odds.answers[DRAW_LAWS[1]][scope].error)
        for scope in SCOPES
    )


def chance(answer: Answer) -> str:
    """Return the probability that the rival uses less energy, with twice its standard error, as
    text.

    If all draws agree, the text states a bound instead: three divided by the number of draws (95 %
    confidence).
    """
    share = answer.probability
    if share in (0.0, 1.0):
        return f"{'>' if share else '<'} {abs(share - 3 / DRAWS):.2%}"
    return f"{share:.1%} ± {max(2 * answer.error, 0.0005):.1%}"


def crossing_words(crossing: Crossing) -> str:
    """Return a phrase on the path that uses less energy. If both paths use the same energy at some
    host power, the phrase names this power (W) and the path that uses less energy below or above
    it. Otherwise, it names the path that uses less energy at every host power."""
    names = " and ".join(crossing.keys)
    if crossing.vary == IN_PROPORTION:
        if crossing.watts is None:
            return f"if {names} change by the same factor, {crossing.below} always uses less"
        at = " and ".join(watts(power) for power in crossing.watts)
        return f"if {names} change by the same factor, {crossing.below} uses less below {at}"
    if crossing.vary == EQUAL:
        if crossing.watts is None:
            return f"if {names} are equal, {crossing.below} always uses less"
        at = watts(crossing.watts[0])
        return f"if {names} are equal, {crossing.above} uses less above {at}"
    if crossing.watts is None:
        return f"{crossing.below} uses less at every value of {names} alone"
    above = f"{crossing.above} uses less above {watts(crossing.watts[0])}"
    return f"if {names} alone changes, {above}"


def watts(power: float) -> str:
    """Return a power in watts as text, rounded to three significant digits, or to whole watts from
    999.5 W."""
    return f"{power:.3g} W" if power < 999.5 else f"{power:,.0f} W"
