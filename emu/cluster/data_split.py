"""Allocation: which node trains on how many samples, of a step and of an epoch.

Owns Eq. 1, private data kept on its own drive and levelled with public data or by repetition, and
the split of one global batch. Does not own batch sizes (tuner.py), which sample is taken when
(epoch.py) or where samples lie on flash (paths/stannis.py).
Source: STANNIS (DAC 2020), Eq. 1: Dataset_i = BS_i / sum(BS) x Dataset, steps = Dataset / sum(BS);
unequal private parts are levelled with public data, or private data are repeated.

Everything is in whole samples, int64, one value per node, and no loop runs over nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ondie.emu.units import INT64_MAX, InputError, nearest

LEVELLING = ("public", "repeat")
"""How unequal private parts are levelled: with public data alone, or where these do not suffice by
repeating private data."""


@dataclass(frozen=True)
class Split:
    """An epoch's data by node, int64[nodes] each."""

    private: np.ndarray
    """Its own, which never leave it."""
    public: np.ndarray
    repeated: np.ndarray
    """Private samples that it trains on once more."""
    steps: Fraction
    """Dataset / sum(BS), exactly; with repeated samples, private data / BS of the node where that
    is most."""
    left: int
    """Public samples, fewer than nodes, that the whole numbers of Eq. 1 leave to the next epoch."""

    @property
    def samples(self) -> np.ndarray:
        return self.private + self.public + self.repeated


def largest_remainder(total: int, weights: Sequence[int] | np.ndarray) -> np.ndarray:
    """``total`` split in proportion to the weights into whole numbers that sum to it, int64[nodes].

    What the floors leave goes to the largest remainders, to the earlier node among equals.
    """
    w, whole = checked_batches("weight", weights)
    if total < 0:
        raise InputError(f"{total} samples to split: 0 or more is right")
    part, rest = _shares(total, w, whole)
    left = total - int(part.sum())
    part[np.argsort(-rest, kind="stable")[:left]] += 1
    return part


def split(
    batches: Sequence[int] | np.ndarray,
    public: int,
    private: Sequence[int] | np.ndarray,
    levelling: str = "public",
) -> Split:
    """An epoch over ``public`` samples and ``private[i]`` ones that stay with node i.

    Each node gets the floor of its share of Eq. 1: first its private samples, then public ones that
    level it with the others. Where a node's private samples alone are more than that, ``levelling``
    "repeat" lengthens the epoch to what it needs; the others fill theirs with public samples, given
    out so that nobody's private data are repeated more often than needed, and with repetitions.

    Raises InputError for negative counts and for private data that cannot be levelled.
    """
    w, whole = checked_batches("batch", batches)
    own = checked_private(public, private, len(w))
    check_levelling(levelling)
    data = public + int(own.sum())
    quota, _ = _shares(data, w, whole)
    over = own > quota
    if not over.any():
        rest = data - int(quota.sum())
        return Split(own, quota - own, np.zeros_like(own), Fraction(data, whole), rest)
    i = int(np.flatnonzero(over)[0])
    if levelling == "public":
        raise InputError(
            f"node {i}: {own[i]} private samples are more than its share of an epoch, {quota[i]} "
            f"(batch {w[i]} of {whole}); a larger batch, fewer private samples or levelling by "
            f"repetition is needed"
        )
    none = np.flatnonzero((w == 0) & (own > 0))
    if len(none):
        i = int(none[0])
        raise InputError(f"node {i}: {own[i]} private samples and batch 0; a batch of 1 is needed")
    steps = longest(own, w)
    if steps * whole > INT64_MAX // 2:
        raise InputError(
            f"{float(steps):.4g} steps of {whole} samples, so that all private data are trained "
            f"on: more than 2**62; fewer private samples, or less unequal ones, are right"
        )
    goal, _ = _shares(steps.numerator, w, steps.denominator)
    given = repeated_least(own, goal, goal - own, public)
    return Split(own, given, goal - own - given, steps, public - int(given.sum()))


def levelled(own: np.ndarray, w: np.ndarray, public: int, steps: int) -> np.ndarray:
    """Public samples of each node, together ``public``, that raise (own + given) / w to one level
    wherever any are given, and nobody beyond ``steps`` batches, int64[nodes]."""
    return _raised(own, w, steps * w - own, public)


def repeated_least(own: np.ndarray, goal: np.ndarray, room: np.ndarray, public: int) -> np.ndarray:
    """Public samples of each node, at most ``room`` and together ``public`` or all room, that bring
    (goal - given) / own, the passes over its private data, down to one level wherever any are
    given, int64[nodes].

    Raises InputError where nodes without private data, which have none to repeat, need more.
    """
    given = np.where(own == 0, room, 0)
    spare = public - int(given.sum())
    if spare < 0:
        i = int(np.flatnonzero(given)[0])
        raise InputError(
            f"node {i}: no private samples to repeat, and the nodes like it need {given.sum()} "
            f"public samples of {public}; fewer private samples on the others, or more public ones"
        )
    return given + _raised(-goal, own, np.where(own == 0, 0, room), spare)


def _raised(a: np.ndarray, w: np.ndarray, room: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers nearest to max(0, level x w - a), at most ``room``, that sum to ``total`` (or
    to all room, if that is less); 0 where w is."""
    given = np.zeros(len(a), np.int64)
    at = np.flatnonzero(w > 0)
    if not len(at):
        return given
    at = at[np.argsort(a[at] / w[at], kind="stable")]
    sums, weights = np.cumsum(a[at]), np.cumsum(w[at])
    taken = a[at] / w[at] * weights - sums  # by those before each, once they are at its level
    last = max(int(np.searchsorted(taken, total, side="right")) - 1, 0)
    among = at[: last + 1]
    level = (total + sums[last]) / weights[last]
    given[among] = np.clip(np.floor(level * w[among] - a[among]), 0, room[among])
    # What rounding, and nodes that are full, have left; those below the level first.
    while missing := total - int(given.sum()):
        free = room[at] - given[at] if missing > 0 else given[at]
        there = at[free > 0][: abs(missing)]
        if not len(there):
            break
        each = max(abs(missing) // len(there), 1)
        if missing > 0:
            given[there] += np.minimum(room[there] - given[there], each)
        else:
            given[there] -= np.minimum(given[there], each)
    return given


def longest(own: np.ndarray, w: np.ndarray) -> Fraction:
    """Steps that the node with most private samples for its batch needs for them; 0 if none has
    any. Nodes of batch 0 do not count."""
    at = np.flatnonzero((w > 0) & (own > 0))
    if not len(at):
        return Fraction(0)
    near = own[at] / w[at]
    at = at[near >= near.max() * (1 - 1e-9)]  # floats find the few, fractions the one
    pairs = np.unique(np.stack([own[at], w[at]]), axis=1).T
    return max(Fraction(int(p), int(b)) for p, b in pairs)


# --- checks that other files share


def checked_batches(what: str, values: Sequence[int] | np.ndarray) -> tuple[np.ndarray, int]:
    """One value per node as int64[nodes], and their sum, which is more than 0."""
    w = whole_numbers(what, values)
    whole = int(w.sum())
    if whole <= 0:
        raise InputError(f"every node has {what} 0; at least one must have more")
    if whole * int(w.max()) > INT64_MAX:
        raise InputError(f"{what} {int(w.max())} of {whole} together: too large to split exactly")
    return w, whole


def checked_private(public: int, private: Sequence[int] | np.ndarray, nodes: int) -> np.ndarray:
    """Private samples of each node, int64[nodes], beside ``public`` ones."""
    if len(private) != nodes:
        raise InputError(
            f"private data of {len(private)} nodes, batches of {nodes}: one of each per node"
        )
    if public < 0:
        raise InputError(f"{public} samples: 0 or more is right")
    return whole_numbers("private samples", private)


def check_levelling(levelling: str) -> None:
    if levelling not in LEVELLING:
        raise InputError(
            f"levelling {levelling!r}: nearest: {nearest(levelling, LEVELLING) or 'none'} "
            f"(of {', '.join(LEVELLING)})"
        )


def whole_numbers(what: str, values: Sequence[int] | np.ndarray) -> np.ndarray:
    """A copy as int64[nodes]; InputError for a fraction or a negative value, with its node."""
    given = np.asarray(values if len(values) else np.zeros(0, np.int64))
    if given.ndim != 1 or given.dtype.kind not in "iu":
        wrong = given[given != np.floor(given)] if given.dtype.kind == "f" else given
        shown = f", not {wrong.flat[0]}" if wrong.size else f", not {given.dtype}"
        raise InputError(f"{what}: whole numbers, one per node, are right{shown}")
    low = np.flatnonzero(given < 0)
    if len(low):
        i = int(low[0])
        raise InputError(f"node {i}: {what} {given[i]}; 0 or more is right")
    return given.astype(np.int64)


def _shares(total: int, w: np.ndarray, whole: int) -> tuple[np.ndarray, np.ndarray]:
    """Floors of total x w / whole, and the remainders (times whole), exactly: total = q whole + r,
    and r x w fits where whole x w does."""
    q, r = divmod(total, whole)
    part, rest = np.divmod(r * w, whole)
    return q * w + part, rest
