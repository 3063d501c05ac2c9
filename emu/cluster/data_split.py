"""Data split: the number of samples that each node trains on, per step and per epoch.

Owns Eq. 1, the leveling of private data (which stays on one drive) with public data or by
repetition, and the split of one global batch. Does not own batch sizes (batch_tuner.py), the order
in which samples are taken (epoch.py) or the location of samples on flash (paths/data_parallel.py).
Source: STANNIS (DAC 2020), Eq. 1: Dataset_i = BS_i / sum(BS) x Dataset, steps = Dataset / sum(BS);
unequal amounts of private data are leveled with public data, or private data is repeated.

All quantities are numbers of whole samples, int64, one value per node. No loop runs over nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ondie.emu.units import INT64_MAX, InputError, known_names

LEVELING = ("public", "repeat")
"""Methods to level unequal amounts of private data: "public" uses only public data; "repeat" also
repeats private data if public data does not suffice."""


@dataclass(frozen=True)
class Split:
    """Numbers of samples that the nodes train on in one epoch; arrays are int64[nodes]."""

    private: np.ndarray
    """Number of private samples of each node; other nodes may not use them. Repeated uses are not
    counted."""
    public: np.ndarray
    """Number of public samples that each node trains on in the epoch."""
    repeated: np.ndarray
    """Number of times that each node uses one of its private samples again in the epoch."""
    steps: Fraction
    """Number of steps of the epoch: number of samples / sum of the batches of all nodes, as an
    exact fraction. If private samples are repeated, it is the largest ratio of private samples to
    batch over all nodes."""
    left: int
    """Number of public samples that no node uses in this epoch. With Eq. 1 of STANNIS, this is the
    rounding remainder, which is less than the number of nodes."""

    @property
    def samples(self) -> np.ndarray:
        """Number of samples that each node trains on in the epoch, including repeated uses of
        private samples, int64[nodes]."""
        return self.private + self.public + self.repeated


def largest_remainder(total: int, weights: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return integers in proportion to ``weights`` that add up to ``total``, int64[nodes].

    Samples that remain after rounding down are given to the nodes with the largest remainders. If
    remainders are equal, the lower node number has priority. Raises InputError if ``total`` is
    negative or the weights are invalid (:func:`checked_batches`).
    """
    shares, whole = checked_batches("weight", weights)
    if total < 0:
        raise InputError(f"{total} samples to split: must be at least 0")
    part, rest = _shares(total, shares, whole)
    left = total - int(part.sum())
    part[np.argsort(-rest, kind="stable")[:left]] += 1
    return part


def split(
    batches: Sequence[int] | np.ndarray,
    public: int,
    private: Sequence[int] | np.ndarray,
    leveling: str = "public",
) -> Split:
    """Split an epoch with ``public`` samples, and ``private[i]`` samples that stay on node i.

    Each node gets its quota: first its private samples, then public samples. By Eq. 1 of STANNIS,
    the quota is proportional to the batch of the node, rounded down. If a node has more private
    samples than its quota, ``leveling`` "repeat" lengthens the epoch until all of them are used.
    The other nodes then fill their quotas with public samples and repetitions. Public samples are
    distributed so that private data is repeated equally often on all nodes.

    Raises InputError for invalid batches (:func:`checked_batches`), for a negative number of
    samples, if ``private`` and ``batches`` differ in length, for an unknown ``leveling``, or for
    private data that cannot be leveled.
    """
    sizes, whole = checked_batches("batch", batches)
    own = checked_private(public, private, len(sizes))
    check_leveling(leveling)
    data = public + int(own.sum())
    quota, _ = _shares(data, sizes, whole)
    over = own > quota
    if not over.any():
        rest = data - int(quota.sum())
        return Split(own, quota - own, np.zeros_like(own), Fraction(data, whole), rest)
    node = int(np.flatnonzero(over)[0])
    if leveling == "public":
        raise InputError(
            f"node {node}: {own[node]} private samples are more than its share of an epoch, "
            f"{quota[node]} (its batch size is {sizes[node]}, the sum of all batch sizes {whole}); "
            f"use a larger batch, fewer private samples or leveling = repeat"
        )
    none = np.flatnonzero((sizes == 0) & (own > 0))
    if len(none):
        node = int(none[0])
        raise InputError(
            f"node {node}: {own[node]} private samples and batch 0; the batch must be at least 1"
        )
    steps = longest(own, sizes)
    if steps * whole > INT64_MAX // 2:
        raise InputError(
            f"{float(steps):.4g} steps of {whole} samples, more than 2**62 samples in total, are "
            f"needed to use all private samples; use fewer private samples, or distribute them "
            f"more evenly"
        )
    goal, _ = _shares(steps.numerator, sizes, steps.denominator)
    given = repeated_least(own, goal, goal - own, public)
    return Split(own, given, goal - own - given, steps, public - int(given.sum()))


def levelled(own: np.ndarray, batches: np.ndarray, public: int, steps: int) -> np.ndarray:
    """Return the number of public samples that each node gets, int64[nodes]; the numbers add up to
    ``public``.

    Up to rounding, (private + public samples) / batch is equal on all nodes that receive public
    samples and are below their limit. The limit of a node's samples, including public samples, is
    ``steps`` x its batch. ``own``: private samples of each node.
    """
    return _raised(own, batches, steps * batches - own, public)


def repeated_least(own: np.ndarray, goal: np.ndarray, room: np.ndarray, public: int) -> np.ndarray:
    """Return the number of public samples of each node, int64[nodes], so that private data is
    repeated equally often.

    Up to rounding, the number of passes over private data, (goal - public samples) / own, is equal
    on all nodes that receive public samples and are below their limit. ``own``: private samples;
    ``goal``: samples that a node trains on; ``room``: limit of public samples. The numbers add up
    to ``public``, or to the sum of ``room`` if that sum is less. Raises InputError if the nodes
    without private data need more than ``public`` samples, because these nodes cannot repeat
    samples.
    """
    given = np.where(own == 0, room, 0)
    spare = public - int(given.sum())
    if spare < 0:
        node = int(np.flatnonzero(given)[0])
        raise InputError(
            f"node {node}: no private samples to repeat, and all nodes without private samples "
            f"need {given.sum()} public samples, but there are only {public}; use "
            f"fewer private samples on the other nodes, or more public samples"
        )
    return given + _raised(-goal, own, np.where(own == 0, 0, room), spare)


def _raised(base: np.ndarray, rate: np.ndarray, room: np.ndarray, total: int) -> np.ndarray:
    """Return the integers nearest to max(0, level x rate - base), at most ``room``, int64[nodes].

    The level is the number for which the integers add up to ``total``, or to the sum of ``room`` if
    that sum is less than ``total``. The result is 0 for entries with rate = 0.
    """
    given = np.zeros(len(base), np.int64)
    at = np.flatnonzero(rate > 0)
    if not len(at):
        return given
    at = at[np.argsort(base[at] / rate[at], kind="stable")]
    sums, weights = np.cumsum(base[at]), np.cumsum(rate[at])
    taken = base[at] / rate[at] * weights - sums  # raises all earlier nodes to this level
    last = max(int(np.searchsorted(taken, total, side="right")) - 1, 0)
    among = at[: last + 1]
    level = (total + sums[last]) / weights[last]
    given[among] = np.clip(np.floor(level * rate[among] - base[among]), 0, room[among])
    # Distribute the samples that rounding and full nodes left over, lowest level first.
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


def longest(own: np.ndarray, batches: np.ndarray) -> Fraction:
    """Return the largest number of steps, own / batches, that any node needs for its private
    samples ``own``. The result is 0 if no node has private samples. Nodes with batch 0 are ignored.
    """
    at = np.flatnonzero((batches > 0) & (own > 0))
    if not len(at):
        return Fraction(0)
    near = own[at] / batches[at]
    at = at[near >= near.max() * (1 - 1e-9)]  # floats select candidates, fractions decide
    pairs = np.unique(np.stack([own[at], batches[at]]), axis=1).T
    return max(Fraction(int(samples), int(batch)) for samples, batch in pairs)


# --- checks shared with other modules


def checked_batches(what: str, values: Sequence[int] | np.ndarray) -> tuple[np.ndarray, int]:
    """Return ``values`` as int64[nodes], and their sum, which is more than 0. ``what``: name of a
    value in error messages.

    Raises InputError if a value is negative or fractional, if all values are 0, or if the largest
    value x the sum exceeds 2^63 - 1.
    """
    numbers = whole_numbers(what, values)
    whole = int(numbers.sum())
    if whole <= 0:
        raise InputError(f"every node has {what} 0; at least one node must have more")
    if whole * int(numbers.max()) > INT64_MAX:
        raise InputError(
            f"largest {what} {int(numbers.max())}, sum {whole}: too large to split exactly; the "
            f"product of these two numbers must be at most {INT64_MAX}"
        )
    return numbers, whole


def checked_private(public: int, private: Sequence[int] | np.ndarray, nodes: int) -> np.ndarray:
    """Return the number of private samples of each node, int64[nodes], after validation. Raises
    InputError if ``private`` does not have one value per node, if one of its values is not a whole
    number, or if ``public`` or a value is negative."""
    if len(private) != nodes:
        raise InputError(
            f"private samples of {len(private)} nodes, batches of {nodes} nodes: give one "
            f"number of private samples and one batch per node"
        )
    if public < 0:
        raise InputError(f"public: {public} samples; must be at least 0")
    return whole_numbers("private samples", private)


def check_leveling(leveling: str) -> None:
    """Raise InputError unless ``leveling``, the method to level unequal amounts of private data, is
    an element of LEVELING."""
    if leveling not in LEVELING:
        raise InputError(f"leveling {leveling!r}: unknown; {known_names(leveling, LEVELING)}")


def whole_numbers(what: str, values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return a copy of ``values`` as int64[nodes]. ``what``: name of a value in error messages.
    Raises InputError if a value is negative or not a whole number."""
    given = np.asarray(values if len(values) else np.zeros(0, np.int64))
    if given.ndim != 1 or given.dtype.kind not in "iu":
        wrong = given[given != np.floor(given)] if given.dtype.kind == "f" else given
        shown = f", not {wrong.flat[0]}" if wrong.size else f", not {given.dtype}"
        raise InputError(f"{what}: must be whole numbers, one per node{shown}")
    low = np.flatnonzero(given < 0)
    if len(low):
        node = int(low[0])
        raise InputError(f"node {node}: {what} {given[node]}; must be at least 0")
    return given.astype(np.int64)


def _shares(total: int, weights: np.ndarray, whole: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the floors of total x weights / whole, and the remainders of these divisions,
    int64[nodes] each.

    With total = rounds x whole + remainder, the product remainder x weights fits into 64 bits if
    the product whole x weights does.
    """
    rounds, remainder = divmod(total, whole)
    part, rest = np.divmod(remainder * weights, whole)
    return rounds * weights + part, rest
