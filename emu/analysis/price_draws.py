"""Energy per sample of every path over draws of the energy constants; probability of the winner.

Owns the energy as a linear function of these constants, over the same draws for all paths. Does not
own the draws of a constant (monte_carlo.py), the components (energy.py) or the verdict (answer.py).
Source: the energy of a run is the sum of quantities times constants, and no quantity depends on an
energy constant or a power, so the draws need no further simulation and are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ondie.emu.analysis.energy import FJ_PER_J, components
from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.monte_carlo import DRAW_LAWS, DRAWS, Span, span_of, width
from ondie.emu.config.config import Config
from ondie.emu.paths.statement import Work


@dataclass(frozen=True)
class PriceDraws:
    """Energy of the paths as a linear function of the energy constants."""

    quantities: Mapping[str, Mapping[str, float]]
    """Path -> energy constant -> energy in J per sample for a constant of 1 in its unit."""
    typical: Mapping[str, float]
    """Typical value of each constant."""
    spans: tuple[Span, ...]
    """Constants that have a range and contribute to the energy of at least one path."""
    seed: int

    @staticmethod
    def of(
        cfg: Config, runs: Mapping[str, tuple[Ledger, Work]], samples: Mapping[str, int], seed: int
    ) -> PriceDraws:
        """Return the energy of ``runs`` as a function of the energy constants. ``samples``: number
        of training samples in each path's run."""
        quantities: dict[str, dict[str, float]] = {}
        for name, (book, work) in runs.items():
            mine = quantities[name] = {}
            for part in components(cfg, book.totals, work):
                joules = part.quantity / FJ_PER_J / samples[name]
                mine[part.key] = mine.get(part.key, 0.0) + joules
        keys = [
            leaf.key for leaf in cfg.leaves() if any(leaf.key in q for q in quantities.values())
        ]
        ranged = [leaf for leaf in map(cfg.leaf, keys) if leaf.low != leaf.high]
        typical = {key: float(cfg.leaf(key).value) for key in keys}
        return PriceDraws(quantities, typical, tuple(span_of(leaf) for leaf in ranged), seed)

    def joules(self, name: str, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the energy of a path in J per sample, float64[n], for ``values`` of the constants,
        float64[n] each; n is 1 if ``values`` is empty. Constants without values are typical."""
        found = np.zeros(len(next(iter(values.values()), [0])))
        for key, quantity in self.quantities[name].items():
            found += quantity * values.get(key, self.typical[key])
        return found

    @cached_property
    def drawn(self) -> Mapping[str, np.ndarray]:
        """Constant -> values drawn from its range, float64[DRAWS]."""
        return {span.key: span.draw(self.seed, DRAW_LAWS[0]) for span in self.spans}

    def probability(self, best: str, others: Sequence[str]) -> float:
        """Return the share of the draws in which path ``best`` takes less energy than each of
        ``others``."""
        mine = self.joules(best, self.drawn)
        wins = np.ones(DRAWS, bool)
        for name in others:
            wins &= mine < self.joules(name, self.drawn)
        return float(np.count_nonzero(wins)) / DRAWS

    def deciding(self, best: str, other: str) -> tuple[str, tuple[float, float]]:
        """Return (constant, (low, high)): the constant whose range changes the energy of ``other``
        divided by that of ``best`` the most, and this ratio at the low and the high end of the
        range."""
        usual = float((self.joules(other, {}) / self.joules(best, {}))[0])
        ends = {}
        for span in self.spans:
            at = {span.key: np.array([span.low, span.high])}
            low, high = self.joules(other, at) / self.joules(best, at)
            ends[span.key] = float(low), float(high)
        key = max(ends, key=lambda key: width(ends[key], usual))
        return key, ends[key]
