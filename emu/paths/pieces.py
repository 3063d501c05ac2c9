"""Pieces of a large model: smaller models that are simulated in place of the whole model.

Owns the sizes of the pieces. Does not own their simulation or the extrapolation
(ondie.emu.analysis.extrapolate).
Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

SHORTEST = 64
"""Minimum size of a unit (see PERIODS) in granules. A granule is a number of parameters; the sizes
of units and sub-groups are multiples of it. Large differences between the pieces keep the effect of
overlap at the ends of a piece small."""


PERIODS = (1, 3, 5)
"""Length of each piece in units, without the remainder at the end of the model. A unit is about a
whole number of periods; in one period, the update fills one block of every plane. The middle piece
is not fitted but predicted, as a check. Erases come in bursts, so a piece shorter than a period
might contain no erase."""


PIECE_GROUPS = (8, 10, 12, 14, 16)
"""Candidates for the number of sub-groups in a unit (see PERIODS). The total size of the sub-groups
should be close to a whole number of periods; the first candidate with the smallest difference is
used. Each fitted size is simulated twice: with these sub-groups, and with sub-groups of twice the
size."""


FEWEST_GRANULES = 16
"""Minimum size of a sub-group in granules (see SHORTEST). Latencies would dominate the update time
of a smaller sub-group."""


@dataclass(frozen=True)
class Piece:
    """Piece of a model: ``params`` parameters, updated in sub-groups of ``group`` parameters.
    ``group`` is 0 if there are no sub-groups."""

    params: int
    group: int = 0

    @property
    def terms(self) -> list[float]:
        """Terms of the linear model that extrapolates times, bytes and counts from the simulated
        pieces to the whole model: 1, number of parameters and, with sub-groups, parameters per
        sub-group and number of sub-groups."""
        params, group = float(self.params), float(self.group)
        return [1.0, params, group, params / group] if group else [1.0, params]


@dataclass(frozen=True)
class Pieces:
    """Pieces that are simulated in place of the ``whole`` model. Weighted sums over the ``fitted``
    pieces predict the whole model. Piece ``held`` is also predicted, as a check."""

    whole: Piece
    fitted: tuple[Piece, ...]
    held: Piece

    @property
    def all(self) -> tuple[Piece, ...]:
        return (*self.fitted, self.held)

    def of(self, n_params: int) -> Pieces:
        """Return the pieces of a complete model with ``n_params`` parameters, given these pieces of
        a part of the model. The sizes of the pieces are scaled in proportion. The sizes of their
        sub-groups do not change."""
        found = [
            Piece(round(Fraction(piece.params * n_params, self.whole.params)), piece.group)
            for piece in (self.whole, *self.all)
        ]
        return Pieces(found[0], tuple(found[1:-1]), found[-1])

    def weights(self, piece: Piece) -> np.ndarray:
        """Return the weight of each fitted piece in the prediction of ``piece``,
        float64[len(fitted)]."""
        terms = np.array([p.terms for p in self.fitted]).T
        scale = np.abs(terms).max(axis=1)
        found: np.ndarray = np.linalg.solve(terms / scale[:, None], np.array(piece.terms) / scale)
        return found


def pieces(n_params: int, period: int, granule: int, group: int = 0) -> Pieces | None:
    """Return the pieces to simulate in place of a model of ``n_params`` parameters that is updated
    in sub-groups of ``group`` parameters (0 for no sub-groups). Return None if the model is no
    longer than the longest piece, or if its sub-groups are no larger than the largest sub-groups of
    the pieces. ``period``: number of parameters that fill one block of every plane. The sizes of
    units and sub-groups are multiples of ``granule`` parameters.

    Each piece is shorter than the model by a whole number of units, that is, by about a whole
    number of periods (see PERIODS). The end of a piece therefore has about the same position within
    a block and within a round of the dies as the end of the model. This position determines the
    dies that erase together.
    """
    small, unit = 0, -(-period // granule) * granule
    if group:
        periods = -(-PIECE_GROUPS[0] * FEWEST_GRANULES * granule // period)
        small, count = _groups(Fraction(periods * period, granule))
        small, unit = small * granule, small * count * granule
    unit *= -(-SHORTEST * granule // unit)
    short, held, long = (n_params % unit + multiple * unit for multiple in PERIODS)
    if n_params <= long or (group and group <= 2 * small):
        return None
    sizes = (small, 2 * small) if group else (0,)
    fitted = tuple(Piece(length, size) for length in (short, long) for size in sizes)
    return Pieces(Piece(n_params, group), fitted, Piece(held, sizes[0]))


def _groups(granules: Fraction) -> tuple[int, int]:
    """Return (granules in a sub-group, number of sub-groups) whose product is close to
    ``granules``."""
    sizes = [(max(round(granules / count), FEWEST_GRANULES), count) for count in PIECE_GROUPS]
    return min(sizes, key=lambda item: abs(item[0] * item[1] - granules))
