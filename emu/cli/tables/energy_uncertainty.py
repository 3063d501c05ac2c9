"""How sure the energy answer is, in words: a table, sentences, and what result.json says of it.

Owns words. Does not own any number (uncertainty.py). Source: own.
"""

from __future__ import annotations

from rich.table import Table

from ondie.emu.analysis.monte_carlo import (
    DRAW_LAWS,
    DRAWS,
    DRIVE_ALONE,
    WITH_HOST,
    Answer,
    Crossing,
    Odds,
)

SCOPES = {DRIVE_ALONE: "SSD alone", WITH_HOST: "SSD and host"}


def odds_table(odds: Odds, table: Table) -> Table:
    """Fill ``table``: energy of the baseline over the rival's, and how likely the rival wins."""
    base, rival = odds.pair
    table.title = f"Energy of {base} / energy of {rival}, {odds.drawn} constants drawn"
    for column in ("typical", "5 %", "median", "95 %", f"{rival} takes less"):
        table.add_column(column, justify="right")
    for law in DRAW_LAWS if laws_differ(odds) else DRAW_LAWS[:1]:
        for scope, words in SCOPES.items():
            a = odds.answers[law][scope]
            name = words if law == DRAW_LAWS[0] else f"{words}, all triangular"
            table.add_row(name, *(f"{x:.2f}" for x in (a.typical, *a.quantiles)), chance(a))
    return table


def odds_words(odds: Odds) -> str:
    """How was drawn, and the host power at which the winner changes."""
    return (
        f"{DRAWS:,} draws, each constant once for both paths (those of one thing, such as the "
        "host's powers, together): triangular around its typical value, log-uniform where its "
        "range spans more than a decade. With SSD and host, all else typical: "
        f"{'; '.join(crossing_words(x) for x in odds.crossings)}."
    )


def laws_differ(odds: Odds) -> bool:
    """Does the other law give another probability, beyond what the drawing leaves open?"""
    return any(
        abs(
            odds.answers[DRAW_LAWS[0]][scope].probability
            - odds.answers[DRAW_LAWS[1]][scope].probability
        )
        > 3 * (odds.answers[DRAW_LAWS[0]][scope].error + odds.answers[DRAW_LAWS[1]][scope].error)
        for scope in SCOPES
    )


def chance(a: Answer) -> str:
    """A probability with the error of its drawing; where no draw says otherwise, three over the
    number of draws is left open (with 95 % confidence)."""
    if a.probability in (0.0, 1.0):
        return f"{'>' if a.probability else '<'} {abs(a.probability - 3 / DRAWS):.2%}"
    return f"{a.probability:.1%} ± {max(2 * a.error, 0.0005):.1%}"


def crossing_words(x: Crossing) -> str:
    """Where the winner changes."""
    names = " and ".join(x.keys)
    if len(x.keys) > 1:
        if x.watts is None:
            return f"no host power changes the winner while {names} keep their ratio"
        at = " and ".join(watts(w) for w in x.watts)
        return f"below {at} ({names} in proportion) {x.below} takes less"
    if x.watts is None:
        return f"no {names} changes the winner"
    return f"above {names} = {watts(x.watts[0])} {x.above} takes less"


def watts(power: float) -> str:
    """A power with three digits."""
    return f"{power:.3g} W" if power < 999.5 else f"{power:,.0f} W"
