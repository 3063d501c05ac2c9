"""Uncertainty of the energy ratio: seeded Monte Carlo draws of the constants from their ranges.

Owns the draws, the probability that the rival consumes less energy than the baseline, the
break-even power of the host, and the bars of the tornado figure. Does not own the ranges (presets),
the quantities (analysis/ledger.py) or the effect of a constant on time (analysis/sensitivity.py).
Source: this project; Monte Carlo sampling. In each draw, both paths use the same values.

The quantities of the whole runs are multiplied by the energy constants and powers ("prices"); the
resulting energy is exact. A constant that affects time changes these quantities by a factor. At
both ends of the constant's range, the factor comes from simulations of a sample. Between low,
typical and high, the factor is interpolated as a power of the constant. The factors of several
constants are multiplied.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ondie.emu.analysis.energy import (
    COMPUTE_PART,
    DRIVE_PART,
    FJ_PER_J,
    HOST_BUSY,
    HOST_PART,
    HOST_WAITING,
    components,
    is_price,
)
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.sensitivity import USER_CHOICES, Swing
from ondie.emu.config.config import Config, Leaf, shown
from ondie.emu.config.schema.keys import KEYS
from ondie.emu.paths.statement import Work

DRAWS = 20_000
DECADE = 10.0
"""Ratio of the ends of a range above which the distribution "mixed" is log-uniform."""
DRAW_LAWS = ("mixed", "triangular")
"""Probability distributions of the draws. "triangular": triangular distribution with its mode at
the typical value. "mixed": log-uniform for ranges wider than a DECADE, otherwise triangular. In a
wide range, a triangular distribution would draw nearly all values from the uppermost decade. With
both distributions, a constant with discrete choices has its typical value in half of the draws and
an end of its range in the other half."""
DIGITS = 6
"""Number of significant digits of results computed from random draws. Further digits may differ
between CPUs whose logarithm functions differ in the last bit."""
TOGETHER = (
    ("link.down", "link.up"),
    ("energy.nand_read", "energy.nand_program", "energy.nand_erase"),
    ("energy.pe_add", "energy.pe_multiply"),
)
"""Groups of constants that are drawn together: in each draw, all constants of a group have the same
relative position in their ranges. For example, a link that is fast in one direction is also fast in
the other direction. The two powers of the host are drawn separately."""
DRIVE_ALONE, WITH_HOST = "drive", "drive_and_host"
"""Scopes of the energy ratio, both without forward and backward: energy of the drives alone, and
energy of drives and host."""
WHOLE_STEP = "step"
"""Scope of the energy ratio that includes forward and backward: drives, host and accelerator."""
GROUPS = (DRIVE_PART, HOST_PART, COMPUTE_PART)
SCOPES = {DRIVE_ALONE: GROUPS[:1], WITH_HOST: GROUPS[:2], WHOLE_STEP: GROUPS}
"""Groups of energy components that each scope of the energy ratio includes."""
POWERS = (HOST_BUSY, HOST_WAITING)
TINY = 1e-12
"""Smallest factor by which a constant changes a quantity of a run. It replaces a factor of 0, which
occurs if an energy component is zero at an end of the constant's range."""

Values = Mapping[str, np.ndarray]
Ends = tuple[float | None, float | None]
"""Values at the ends of a range, (low, high); None for an end at which a path cannot run."""


@dataclass(frozen=True)
class Span:
    """A constant with its range. If a path cannot run at an end of the range, this end of the range
    is replaced by the typical value."""

    key: str
    low: float
    typical: float
    high: float
    choice: bool
    """True if the constant is a discrete choice between low, typical and high."""
    texts: tuple[str, str]
    """(low, high) ends of the constant's range as text, with units."""
    swing: Swing | None
    """Effect of the constant on time; None if the constant is a price (an energy or power)."""

    def draw(self, seed: int, law: str) -> np.ndarray:
        """Return random values of the constant with the distribution ``law`` (one of DRAW_LAWS),
        float64[DRAWS].

        If ``choice`` is True, the values are positions: -1 for low, 0 for typical, 1 for high.
        """
        name = next((group[0] for group in TOGETHER if self.key in group), self.key)
        uniform = np.random.default_rng([seed, zlib.crc32(name.encode())]).random(DRAWS)
        low, mode, high = self.low, self.typical, self.high
        if self.choice:
            ends = [place for place, end in ((-1.0, low), (1.0, high)) if end != mode]
            if not ends:
                return np.zeros(DRAWS)
            return np.where(
                uniform < 0.5, 0.0, np.array(ends)[((uniform - 0.5) * 2 * len(ends)).astype(int)]
            )
        if low == high:
            return np.full(DRAWS, mode)
        if law == "mixed" and self.wide:
            return np.asarray(low * (high / low) ** uniform)
        below = low + np.sqrt(uniform * (high - low) * (mode - low))
        above = high - np.sqrt((1 - uniform) * (high - low) * (high - mode))
        return np.where(uniform * (high - low) < mode - low, below, above)

    @property
    def wide(self) -> bool:
        """True if ``choice`` is False, ``low`` > 0 and ``high`` / ``low`` > DECADE."""
        return not self.choice and self.low > 0 and self.high / self.low > DECADE

    def places(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (down, up) for ``values`` of the constant, float64[n] each. down: relative
        position from typical (0) to low (1). up: relative position from typical (0) to high (1)."""
        if self.choice:
            return (values < 0).astype(float), (values > 0).astype(float)
        scale = np.log if self.low > 0 else np.asarray
        low, mode, high = (float(scale(value)) for value in (self.low, self.typical, self.high))
        at = scale(values)
        down = (mode - at) / (mode - low) if mode > low else np.zeros_like(at)
        up = (at - mode) / (high - mode) if high > mode else np.zeros_like(at)
        return np.clip(down, 0, 1), np.clip(up, 0, 1)


@dataclass(frozen=True)
class Bar:
    """Energy and time ratios (baseline divided by rival) at both ends of the range of one constant.

    All other constants have typical values. A ratio is None if a path cannot run at that end.
    """

    key: str
    low: str
    high: str
    energy: Ends
    """Energy ratio of drives and host outside forward and backward, at the ends of the range."""
    drive: Ends
    """Energy ratio of the drives outside forward and backward, at the ends of the range."""
    speedup: Ends
    """Update time of the baseline divided by that of the rival, at the ends of the range."""
    step: Ends
    """Energy ratio of the whole step (drives, host, accelerator), at the ends of the range."""


@dataclass(frozen=True)
class Answer:
    """Distribution of the energy ratio (baseline divided by rival) in one scope, over all draws."""

    typical: float
    probability: float
    """Fraction of the draws in which the energy ratio is above 1, so that the rival consumes less
    energy."""
    error: float
    """Standard error of ``probability`` that results from the finite number of draws."""
    quantiles: tuple[float, float, float]
    """5 %, 50 % and 95 % quantiles of the energy ratio over all draws."""


ALONE, IN_PROPORTION, EQUAL = "alone", "in proportion", "equal"
"""Ways to vary the host powers until both paths consume equal energy: one power alone, both powers
in their typical ratio, or both powers with equal values (as for a host whose CPU draws the same
power while it waits)."""


@dataclass(frozen=True)
class Crossing:
    """Break-even power of the host: the power at which both paths consume equal energy if all other
    constants have their typical values."""

    keys: tuple[str, ...]
    """Configuration keys of the host powers that are varied until both energies are equal."""
    vary: str
    """Way in which the powers are varied: ALONE, IN_PROPORTION or EQUAL."""
    watts: tuple[float, ...] | None
    """Break-even values of the powers, W, in the order of ``keys``. If there are two keys, both
    powers have their break-even values at the same time. None if no powers above 0 make the
    energies equal."""
    below: str
    """Path that consumes less energy at powers below the break-even; at any power if ``watts`` is
    None."""
    above: str
    """Path that consumes less energy at powers above the break-even; at any power if ``watts`` is
    None."""
    quantiles: tuple[float, float, float] | None = None
    """5 %, 50 % and 95 % quantiles of the break-even power in W over the draws of all other
    constants; None if two powers are varied, or if the power does not affect the energy difference
    in some draw. A negative quantile means that no power of 0 or more makes the energies equal."""


@dataclass(frozen=True)
class Odds:
    """Uncertainty of the energy ratio of baseline and rival."""

    pair: tuple[str, str]
    drawn: int
    """Number of constants that were drawn at random from their ranges."""
    answers: Mapping[str, Mapping[str, Answer]]
    """Distribution of the energy ratio, by distribution of the draws (DRAW_LAWS) and by scope (such
    as DRIVE_ALONE)."""
    crossings: tuple[Crossing, ...]
    bars: tuple[Bar, ...]
    ratios: tuple[float, float, float]
    """Ratios with all constants at their typical values, from which the bars extend: (energy ratio
    of drives and host, energy ratio of the drives alone, speedup)."""


class EnergyModel:
    """Energy of several runs as a function of the uncertain constants.

    ``runs``: ledger and work of each run, by path. ``swings``: effects of the constants that affect
    time. These effects are known only for the two paths of the headline. If ``swings`` is empty,
    the energy is a function of the energy constants and powers only.
    """

    def __init__(
        self,
        cfg: Config,
        runs: Mapping[str, tuple[Ledger, Work]],
        swings: Sequence[Swing] = (),
    ) -> None:
        self.parts = {
            name: components(cfg, book.totals, work) for name, (book, work) in runs.items()
        }
        self.prices = {
            part.key: float(cfg.leaf(part.key).value)
            for parts in self.parts.values()
            for part in parts
        }
        self.spans = self._spans(cfg, swings)

    def _spans(self, cfg: Config, swings: Sequence[Swing]) -> list[Span]:
        spans = [span_of(cfg.leaf(key)) for key in self.prices if cfg.leaf(key).low is not None]
        spans += [
            span_of(cfg.leaf(swing.key), swing)
            for swing in swings
            if not is_price(swing.key) and swing.key not in USER_CHOICES
        ]
        order = {leaf.key: i for i, leaf in enumerate(cfg.leaves())}
        return sorted(spans, key=lambda span: order[span.key])

    @property
    def deciding(self) -> list[Span]:
        """Constants, with their ranges, that change the energy of at least one path."""
        return [span for span in self.spans if span.swing is None or any(_factors(span.swing))]

    def joules(self, values: Values, powers: bool = True) -> dict[str, dict[str, np.ndarray]]:
        """Return the energy in J by path and group, float64[n], for ``values`` of the constants,
        float64[n] each, by key.

        For a discrete choice, -1, 0 and 1 denote its low, typical and high value. Constants that
        are missing from ``values`` have their typical values. ``powers``: True to include the
        energy of the host powers.
        """
        count = _length(values)
        timed = [
            (span.swing.of_training, _factors(span.swing), span.places(values[span.key]))
            for span in self.spans
            if span.swing is not None and span.key in values
        ]
        out = {}
        for path, parts in self.parts.items():
            out[path] = sums = {group: np.zeros(count) for group in GROUPS}
            for part in parts:
                if part.name in POWERS and not powers:
                    continue
                log = np.zeros(count)
                for of_training, ends, places in timed:
                    if part.group == COMPUTE_PART and not of_training:
                        continue  # the sample has no forward and backward
                    for end, place in zip(ends, places, strict=True):
                        factor = end.get(path, {}).get(part.name)
                        if factor is not None:
                            log += place * math.log(max(factor, TINY))
                price = values.get(part.key, self.prices[part.key])
                sums[part.group] += part.quantity * price * np.exp(log) / FJ_PER_J
        return out


class Pair(EnergyModel):
    """Energy of the two paths of the headline (baseline and rival) as a function of the uncertain
    constants."""

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two paths: (baseline, rival)."""
        base, rival = self.parts
        return base, rival

    def both(self, values: Values, powers: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Return the energy of drives and host in J, excluding forward and backward: (baseline,
        rival), float64[n] each. ``values``, ``powers``: see :meth:`joules`."""
        base, rival = (j[DRIVE_PART] + j[HOST_PART] for j in self.joules(values, powers).values())
        return base, rival

    def ratios(self, values: Values) -> dict[str, np.ndarray]:
        """Return the energy of the baseline divided by that of the rival, float64[n], for each
        scope in SCOPES. ``values``: see :meth:`joules`."""
        base, rival = self.joules(values).values()
        return {
            scope: np.sum([base[group] for group in groups], axis=0)
            / np.sum([rival[group] for group in groups], axis=0)
            for scope, groups in SCOPES.items()
        }

    def power_keys(self) -> tuple[str, ...]:
        """Return the configuration keys of the host powers that contribute to the energy of at
        least one path."""
        parts = [part for parts in self.parts.values() for part in parts]
        return tuple(
            dict.fromkeys(part.key for name in POWERS for part in parts if part.name == name)
        )

    def slopes(self, values: Values) -> dict[str, np.ndarray]:
        """Return, for each host power, the change of the energy difference (baseline minus rival)
        per watt of this power, J/W, by configuration key of the power, float64[n] each.
        ``values``: see :meth:`joules`."""
        out: dict[str, np.ndarray] = {}
        gap = _minus(self.both(values, powers=False))
        keys = self.power_keys()
        for key in keys:
            watt = {name: np.full(_length(values), 1e3 if name == key else 0.0) for name in keys}
            out[key] = _minus(self.both({**values, **watt})) - gap
        return out


def _minus(pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return pair[0] - pair[1]


def _length(values: Values) -> int:
    return len(next(iter(values.values()))) if values else 1


def _factors(swing: Swing) -> tuple[Mapping[str, Mapping[str, float]], ...]:
    """Return the quantities at the (low, high) end of a constant's range, each divided by its
    typical value, by path and component; an empty mapping for an end at which none changes."""
    return tuple(
        ends if any(ends.values()) else {} for ends in (swing.factors_at_low, swing.factors_at_high)
    )


def span_of(leaf: Leaf, swing: Swing | None = None) -> Span:
    """Return the range of a configuration key. The key must have a range. ``swing``: effect of the
    key on time, or None."""
    spec = KEYS[leaf.key].spec if leaf.key in KEYS else None
    choice = isinstance(leaf.value, (bool, str)) or bool(spec and spec.choices)
    names = (leaf.low, leaf.value, leaf.high)
    if choice:
        low, typical, high = (
            0.0 if x == leaf.value else end for x, end in zip(names, (-1.0, 0.0, 1.0), strict=True)
        )
    else:
        low, typical, high = (float(x) for x in names if x is not None)
    if swing is not None:
        low = typical if swing.speedup_at_low is None else low
        high = typical if swing.speedup_at_high is None else high
    texts = shown(leaf.low, leaf.unit), shown(leaf.high, leaf.unit)
    return Span(leaf.key, low, typical, high, choice, texts, swing)


def assess(
    cfg: Config, runs: Mapping[str, tuple[Ledger, Work]], swings: Sequence[Swing], seed: int
) -> Odds:
    """Draw the constants, and return the uncertainty of the energy ratio of two paths. ``runs``:
    runs of the baseline and the rival, in this order. ``swings``: for each constant that affects
    time, the change of the headline's ratios over its range."""
    pair = Pair(cfg, runs, swings)
    base, rival = pair.names
    typical = {name: float(scope_values[0]) for name, scope_values in pair.ratios({}).items()}
    deciding = pair.deciding
    answers = {}
    drawn = {law: {span.key: span.draw(seed, law) for span in deciding} for law in DRAW_LAWS}
    for law, values in drawn.items():
        answers[law] = {
            name: _answer(typical[name], ratio) for name, ratio in pair.ratios(values).items()
        }
    speedup = runs[base][0].update_s / runs[rival][0].update_s
    return Odds(
        (base, rival),
        len(deciding),
        answers,
        tuple(crossings(pair, drawn[DRAW_LAWS[0]])),
        tuple(bars(pair, speedup)),
        (typical[WITH_HOST], typical[DRIVE_ALONE], speedup),
    )


def _answer(typical: float, ratio: np.ndarray) -> Answer:
    probability = float(np.count_nonzero(ratio > 1)) / len(ratio)
    error = rounded(math.sqrt(probability * (1 - probability) / len(ratio)))
    return Answer(typical, probability, error, quantiles(ratio))


def rounded(value: float) -> float:
    """Return ``value`` rounded to DIGITS significant digits."""
    return float(f"{float(value):.{DIGITS}g}")


def crossings(pair: Pair, drawn: Values) -> list[Crossing]:
    """Return the break-even powers: for both host powers varied in proportion, for both varied with
    equal values, and for each varied alone. The break-even powers have a closed form, because
    energy is linear in the powers. ``drawn``: values of the other constants by key, float64[DRAWS]
    each."""
    typical = {key: pair.prices[key] / 1e3 for key in pair.power_keys()}
    gap = float(_minus(pair.both({}, powers=False))[0])
    slopes = {key: float(scope_values[0]) for key, scope_values in pair.slopes({}).items()}
    out = []
    if len(slopes) > 1:
        for vary, unit in ((IN_PROPORTION, typical), (EQUAL, dict.fromkeys(typical, 1.0))):
            rise = sum(slopes[key] * unit[key] for key in slopes)
            scale = -gap / rise if rise else 0.0
            watts = tuple(scale * unit[key] for key in slopes)
            out.append(_crossing(pair, tuple(slopes), vary, watts, gap, rise))
    steep, gaps = pair.slopes(drawn), _minus(pair.both(drawn, powers=False))
    for key, slope in slopes.items():
        others = [other for other in slopes if other != key]
        rest = gap + sum(slopes[other] * typical[other] for other in others)
        rests = gaps + sum(
            steep[other] * drawn.get(other, pair.prices[other]) / 1e3 for other in others
        )
        met = (-rest / slope if slope else 0.0,)
        spread = quantiles(-rests / steep[key]) if steep[key].all() else None
        out.append(_crossing(pair, (key,), ALONE, met, rest, slope, spread))
    return out


def _crossing(
    pair: Pair,
    keys: tuple[str, ...],
    vary: str,
    watts: tuple[float, ...],
    at_zero: float,
    slope: float,
    spread: tuple[float, float, float] | None = None,
) -> Crossing:
    """Return one break-even power. ``at_zero``: energy of the baseline minus that of the rival (J)
    if the powers ``keys`` are 0. ``slope``: change of this difference as the powers increase; only
    the sign is used. ``spread``: quantiles of the break-even power, W, or None."""
    base, rival = pair.names
    if min(watts) <= 0:
        always = rival if at_zero > 0 or (at_zero == 0 and slope > 0) else base
        return Crossing(keys, vary, None, always, always, spread)
    return Crossing(
        keys, vary, watts, rival if at_zero > 0 else base, rival if slope > 0 else base, spread
    )


def quantiles(values: np.ndarray) -> tuple[float, float, float]:
    """Return the 5 %, 50 % and 95 % quantiles of ``values``, rounded to DIGITS significant
    digits."""
    low, middle, high = (rounded(value) for value in np.quantile(values, (0.05, 0.5, 0.95)))
    return low, middle, high


def bars(pair: Pair, speedup: float) -> list[Bar]:
    """Return a bar of the tornado figure for every constant with a range, in descending order of
    the change of the energy ratio. ``speedup``: speedup at the typical values of the constants."""
    count = 2 * len(pair.spans)
    values: dict[str, np.ndarray] = {}
    for i, span in enumerate(pair.spans):
        at = np.full(count, span.typical)
        at[2 * i], at[2 * i + 1] = span.low, span.high
        values[span.key] = at
    ratios = pair.ratios(values)
    out = []
    for i, span in enumerate(pair.spans):
        swing = span.swing
        fast = (1.0, 1.0) if swing is None else (swing.speedup_at_low, swing.speedup_at_high)
        energy: dict[str, Ends] = {}
        for name, ratio in ratios.items():
            low, high = (float(value) for value in ratio[2 * i : 2 * i + 2])
            energy[name] = (None if fast[0] is None else low, None if fast[1] is None else high)
        low_speed, high_speed = (None if value is None else speedup * value for value in fast)
        out.append(
            Bar(
                span.key, *span.texts, energy[WITH_HOST], energy[DRIVE_ALONE],
                (low_speed, high_speed), energy[WHOLE_STEP],
            )
        )  # fmt: skip
    typical = float(pair.ratios({})[WITH_HOST][0])
    return sorted(out, key=lambda bar: (-width(bar.energy, typical), bar.key))


def width(ends: Ends, typical: float) -> float:
    """Return the larger end of a bar divided by the smaller end. An end that is None is replaced by
    ``typical``."""
    low, high = (typical if value is None else value for value in ends)
    return max(low / high, high / low)
