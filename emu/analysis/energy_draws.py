"""Energy per sample of every path for random draws of the energy constants.

Owns the probability that one path consumes less energy than all others, and the constant with the
largest effect on the energy ratio of two paths. Does not own the draws, the energy as a function of
the constants (monte_carlo.py) or the verdict (answer.py).
Source: this project. The quantities of a run do not depend on energy constants or powers. The
energy of a draw is therefore exact and needs no further simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ondie.emu.analysis.ledger import Ledger
from ondie.emu.analysis.monte_carlo import DRAW_LAWS, DRAWS, EnergyModel, Span, Values, width
from ondie.emu.config.config import Config
from ondie.emu.paths.statement import Work


class EnergyDraws:
    """Energy of all paths over the random draws of the energy constants.

    ``runs``: ledger and work of each run, by path. ``samples``: number of training samples in each
    run, by path.
    """

    def __init__(
        self, cfg: Config, runs: Mapping[str, tuple[Ledger, Work]], samples: Mapping[str, int],
        seed: int,
    ) -> None:  # fmt: skip
        self.model = EnergyModel(cfg, runs)
        self.samples = samples
        self.seed = seed

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Constants that have a range and contribute to the energy of at least one path."""
        return tuple(span for span in self.model.spans if span.low != span.high)

    def joules(self, values: Values) -> dict[str, np.ndarray]:
        """Return the energy of each path in J per sample, float64[n], for ``values`` of the
        constants, float64[n] each, by key. Constants that are missing from ``values`` have their
        typical values. If ``values`` is empty, n is 1."""
        return {
            name: np.sum(list(groups.values()), axis=0) / self.samples[name]
            for name, groups in self.model.joules(values).items()
        }

    @cached_property
    def drawn(self) -> Mapping[str, np.ndarray]:
        """Energy of each path in J per sample in every draw, float64[DRAWS]."""
        return self.joules({span.key: span.draw(self.seed, DRAW_LAWS[0]) for span in self.spans})

    def probability(self, best: str, others: Sequence[str]) -> float:
        """Return the fraction of the draws in which path ``best`` consumes less energy than each of
        ``others``."""
        wins = np.all([self.drawn[best] < self.drawn[name] for name in others], axis=0)
        return float(np.count_nonzero(wins)) / DRAWS

    def deciding(self, best: str, other: str) -> tuple[str, tuple[float, float]]:
        """Return (key, (low, high)) of the constant whose range changes the energy ratio the most.
        (low, high) are the energy ratios, ``other`` divided by ``best``, at the two ends of the
        range."""
        typical = self.joules({})
        ends = {}
        for span in self.spans:
            at = self.joules({span.key: np.array([span.low, span.high])})
            low, high = at[other] / at[best]
            ends[span.key] = float(low), float(high)
        usual = float((typical[other] / typical[best])[0])
        key = max(ends, key=lambda key: width(ends[key], usual))
        return key, ends[key]
