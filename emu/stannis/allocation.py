"""Allocation: which node trains on how many samples, of a step and of an epoch.

Owns Eq. 1, private data kept on its own drive and levelled with public data, and the split of one
global batch. Does not own batch sizes (tuner.py) or where samples lie on flash (paths/stannis.py).
Source: STANNIS (DAC 2020), Eq. 1: Dataset_i = BS_i / sum(BS) x Dataset, steps = Dataset / sum(BS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ondie.emu.units import InputError


@dataclass(frozen=True)
class Share:
    """One node's samples of an epoch."""

    private: int
    """Its own, which never leave it."""
    public: int

    @property
    def samples(self) -> int:
        return self.private + self.public


@dataclass(frozen=True)
class Split:
    """An epoch's data by node."""

    shares: tuple[Share, ...]
    steps: Fraction
    """Dataset / sum(BS), exactly."""
    left: int
    """Public samples, fewer than nodes, that Eq. 1 leaves to the next epoch."""


def largest_remainder(total: int, weights: Sequence[int]) -> tuple[int, ...]:
    """``total`` split in proportion to the weights into whole numbers that sum to it exactly.

    What the floors leave goes to the largest remainders, to the earlier node among equals.
    """
    whole = _weights("weight", weights)
    if total < 0:
        raise InputError(f"{total} samples to split: 0 or more is right")
    parts = [divmod(total * w, whole) for w in weights]
    left = total - sum(part for part, _ in parts)
    order = sorted(range(len(parts)), key=lambda i: (-parts[i][1], i))
    extra = set(order[:left])
    return tuple(part + (i in extra) for i, (part, _) in enumerate(parts))


def split(batches: Sequence[int], public: int, private: Sequence[int]) -> Split:
    """An epoch over ``public`` samples and ``private[i]`` ones that stay with node i.

    Each node gets the floor of its share of Eq. 1: first its private samples, then public ones that
    level it with the others. Raises InputError for negative counts and for private data beyond a
    node's share.
    """
    whole = _weights("batch", batches)
    if len(private) != len(batches):
        raise InputError(
            f"private data of {len(private)} nodes, batches of {len(batches)}: one of each per node"
        )
    if public < 0 or any(p < 0 for p in private):
        raise InputError(f"{min(public, *private)} samples: 0 or more is right")
    data = public + sum(private)
    shares = []
    for i, (batch, own) in enumerate(zip(batches, private, strict=True)):
        quota = data * batch // whole
        if own > quota:
            raise InputError(
                f"node {i}: {own} private samples are more than its share of an epoch, {quota} "
                f"(batch {batch} of {whole}); a larger batch or fewer private samples are needed"
            )
        shares.append(Share(own, quota - own))
    return Split(tuple(shares), Fraction(data, whole), data - sum(s.samples for s in shares))


def _weights(what: str, weights: Sequence[int]) -> int:
    """Their sum, checked."""
    for i, w in enumerate(weights):
        if w < 0:
            raise InputError(f"node {i}: {what} {w}; 0 or more is right")
    whole = sum(weights)
    if whole <= 0:
        raise InputError(f"every node has {what} 0; at least one must have more")
    return whole
