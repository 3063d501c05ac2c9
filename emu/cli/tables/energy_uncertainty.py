"""How sure the energy answer is, in words: a table, sentences, and what result.json says of it.

Owns words. Does not own any number (uncertainty.py). Source: own.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ondie.emu.analysis.compare import Comparison
from ondie.emu.analysis.energy import bounds
from ondie.emu.analysis.monte_carlo import (
    DRAWS,
    DRIVE_ALONE,
    LAWS,
    TOGETHER,
    WITH_HOST,
    Answer,
    Crossing,
    Ends,
    Odds,
    rounded,
)
from ondie.emu.config.config import shown

SCOPES = {DRIVE_ALONE: "SSD alone", WITH_HOST: "SSD and host"}


def odds_table(odds: Odds, table: Table) -> Table:
    """Fill ``table``: energy of the baseline over the rival's, and how likely the rival wins."""
    base, rival = odds.pair
    table.title = f"Energy of {base} / energy of {rival}, {odds.drawn} constants drawn"
    for column in ("typical", "5 %", "median", "95 %", f"{rival} takes less"):
        table.add_column(column, justify="right")
    for law in LAWS if laws_differ(odds) else LAWS[:1]:
        for scope, words in SCOPES.items():
            a = odds.answers[law][scope]
            name = words if law == LAWS[0] else f"{words}, all triangular"
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
        abs(odds.answers[LAWS[0]][scope].probability - odds.answers[LAWS[1]][scope].probability)
        > 3 * (odds.answers[LAWS[0]][scope].error + odds.answers[LAWS[1]][scope].error)
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


def odds_data(c: Comparison) -> dict[str, Any] | None:
    """What result.json says of it; None without."""
    if c.odds is None:
        return None
    o = c.odds
    return {
        "baseline": o.pair[0],
        "rival": o.pair[1],
        "draws": DRAWS,
        "seed": c.options.seed,
        "constants_drawn": o.drawn,
        "share_a_draw": [list(group) for group in TOGETHER],
        "energy_ratio": {
            law: {
                scope: {
                    "typical": a.typical,
                    "probability_rival_takes_less": a.probability,
                    "standard_error": a.error,
                    "quantiles_5_50_95": list(a.quantiles),
                }
                for scope, a in answers.items()
            }
            for law, answers in o.answers.items()
        },
        "host_power_where_the_winner_changes": [
            {
                "keys": list(x.keys),
                "watts": None if x.watts is None else list(x.watts),
                "takes_less_below": x.below,
                "takes_less_above": x.above,
                "quantiles_5_50_95": None if x.quantiles is None else list(x.quantiles),
                "ranges_watts": [[y / 1e3 for y in bounds(c.cfg, key)] for key in x.keys],
            }
            for x in o.crossings
        ],
        "tornado": [
            {
                "key": b.key,
                "low": b.low,
                "typical": shown(c.cfg.leaf(b.key).value, c.cfg.leaf(b.key).unit),
                "high": b.high,
                "source": c.cfg.leaf(b.key).source,
                "energy_ratio_drive_and_host": _rounded(b.energy),
                "energy_ratio_drive": _rounded(b.drive),
                "speedup": _rounded(b.speedup),
            }
            for b in o.bars
        ],
    }


def _rounded(ends: Ends) -> list[float | None]:
    return [None if x is None else rounded(x) for x in ends]
