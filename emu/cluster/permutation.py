"""Seeded permutation of 0 to n - 1 that needs no memory per element: maps position to index.

Owns the bijection. Does not own the assignment of positions to nodes (epoch.py).
Source: a Feistel network (Luby and Rackoff 1988) with cycle walking (Black and Rogaway 2002) to
reduce its domain to n; the round function is the finalizer of SplitMix64 (Steele et al. 2014). The
permutation only determines the training order; it is not a secure cipher.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.units import InputError

ROUNDS = 6
MOST_SAMPLES = 1 << 62
_MULTIPLIERS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
_SHIFTS = np.array([30, 27, 31], np.uint64)


class Shuffle:
    """Permutation of 0 to ``count`` - 1, determined by ``seed``.

    ``seed``: one or several integers, such as the seed of a run and the number of an epoch. Raises
    InputError if ``count`` is out of range.
    """

    def __init__(self, count: int, *seed: int) -> None:
        if not 0 <= count <= MOST_SAMPLES:
            raise InputError(f"{count} samples to shuffle: must be from 0 to 2**62")
        self.n = count
        bits = max((count - 1).bit_length() if count else 0, 2)
        self._half = np.uint64(-(-bits // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return the indices at ``positions``, int64 of any shape, each from 0 to ``count`` - 1.
        Raises InputError if a position is out of range."""
        where = np.asarray(positions, np.int64)
        if where.size and not 0 <= where.min() <= where.max() < self.n:
            wrong = where.min() if where.min() < 0 else where.max()
            raise InputError(f"position {wrong}: must be from 0 to {self.n - 1}")
        out = where.astype(np.uint64).reshape(-1)
        walking = np.arange(out.size)
        while len(walking):  # cycle walking: repeat for values of n or more
            out[walking] = self._once(out[walking])
            walking = walking[out[walking] >= self.n]
        return out.astype(np.int64).reshape(where.shape)

    def _once(self, values: np.ndarray) -> np.ndarray:
        """Return ``values`` after one application of the Feistel network, uint64. A result may be n
        or larger."""
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & self._mask)
        return (left << self._half) | right


def _mixed(values: np.ndarray) -> np.ndarray:
    """Return the SplitMix64 finalizer of each value, uint64."""
    values = (values ^ (values >> _SHIFTS[0])) * _MULTIPLIERS[0]
    values = (values ^ (values >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return values ^ (values >> _SHIFTS[2])
