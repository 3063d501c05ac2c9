"""Pieces of a model whose simulation stands for the simulation of the whole model.

Owns the sizes of the pieces. Does not own their simulation or the extrapolation
(ondie.emu.analysis.extrapolate). Source: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

SHORTEST = 64
"""Granules at least between one piece and the next: what overlaps at their ends is then little."""


PERIODS = (1, 3, 5)
"""Times that blocks of every plane fill in the pieces, beside what is left over at the end of the
model; what the middle one takes is foretold. Erases come in bursts: fewer periods may miss them."""


GROUPS = (8, 10, 12, 14, 16)
"""Sub-groups between one piece and the next, in one half of the pieces; in the other they are twice
as large. The first of those that come closest to whole periods."""


FEWEST = 16
"""Granules of a sub-group at least: a shorter one is mostly its latencies, not a short long one."""


@dataclass(frozen=True)
class Piece:
    """``params`` of a model, worked on in sub-groups of ``group``; 0: there are none."""

    params: int
    group: int = 0

    @property
    def terms(self) -> list[float]:
        """What its quantities are a sum of multiples of."""
        n, s = float(self.params), float(self.group)
        return [1.0, n, s, n / s] if s else [1.0, n]


@dataclass(frozen=True)
class Pieces:
    """What is simulated for a whole: ``fitted``, of which its quantities are sums, and ``held``,
    which is foretold by them."""

    whole: Piece
    fitted: tuple[Piece, ...]
    held: Piece

    @property
    def all(self) -> tuple[Piece, ...]:
        return (*self.fitted, self.held)

    def of(self, n_params: int) -> Pieces:
        """Pieces of a model of which the whole here is a part: each with as much of the rest as
        the model has."""
        found = [
            Piece(round(Fraction(p.params * n_params, self.whole.params)), p.group)
            for p in (self.whole, *self.all)
        ]
        return Pieces(found[0], tuple(found[1:-1]), found[-1])

    def weights(self, piece: Piece) -> np.ndarray:
        """How often each fitted piece counts in another, float64[len(fitted)]."""
        terms = np.array([p.terms for p in self.fitted]).T
        scale = np.abs(terms).max(axis=1)
        found: np.ndarray = np.linalg.solve(terms / scale[:, None], np.array(piece.terms) / scale)
        return found


def pieces(n_params: int, period: int, granule: int, group: int = 0) -> Pieces | None:
    """Pieces of a model of ``n_params`` that are shorter by whole periods. ``period``: parameters
    that fill blocks of every plane; ``granule``: at whose multiples parameters may be cut;
    ``group``: those of a sub-group. None where the model is no longer than the pieces.

    Shorter by periods, and not just short: where a model ends within a block and a round of the
    dies decides which of them erase together.
    """
    small, unit = 0, -(-period // granule) * granule
    if group:
        periods = -(-GROUPS[0] * FEWEST * granule // period)
        small, count = _groups(Fraction(periods * period, granule))
        small, unit = small * granule, small * count * granule
    unit *= -(-SHORTEST * granule // unit)
    short, held, long = (n_params % unit + k * unit for k in PERIODS)
    if n_params <= long or (group and group <= 2 * small):
        return None
    sizes = (small, 2 * small) if group else (0,)
    fitted = tuple(Piece(n, s) for n in (short, long) for s in sizes)
    return Pieces(Piece(n_params, group), fitted, Piece(held, sizes[0]))


def _groups(granules: Fraction) -> tuple[int, int]:
    """(granules of a sub-group, how many of them) in about so many granules."""
    sizes = [(max(round(granules / count), FEWEST), count) for count in GROUPS]
    return min(sizes, key=lambda item: abs(item[0] * item[1] - granules))
