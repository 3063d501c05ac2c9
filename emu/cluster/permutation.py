"""A seeded permutation that is never stored: position -> index, for any number of positions.

Owns the bijection. Does not own who takes which positions (epoch.py).
Source: Luby and Rackoff 1988, a Feistel network, with cycle walking (Black and Rogaway 2002) down
to the number wanted; its round function is the finaliser of SplitMix64 (Steele et al. 2014). An
order for training, no cipher.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.units import InputError

ROUNDS = 6
MOST = 1 << 62
_MULTIPLIERS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
_SHIFTS = np.array([30, 27, 31], np.uint64)


class Shuffle:
    """A permutation of 0 to n - 1, the same for the same ``seed``: whole numbers, one or several
    (a run's, and an epoch's or a node's)."""

    def __init__(self, n: int, *seed: int) -> None:
        if not 0 <= n <= MOST:
            raise InputError(f"{n} samples to shuffle: 0 to 2**62 are right")
        self.n = n
        bits = max((n - 1).bit_length() if n else 0, 2)
        self._half = np.uint64(-(-bits // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Indices at ``positions``, int64 of any shape, each from 0 to n - 1."""
        where = np.asarray(positions, np.int64)
        if where.size and not 0 <= where.min() <= where.max() < self.n:
            wrong = where.min() if where.min() < 0 else where.max()
            raise InputError(f"position {wrong}: 0 to {self.n - 1} is right")
        out = where.astype(np.uint64).reshape(-1)
        walking = np.arange(out.size)
        while len(walking):  # what falls beyond n goes on until it is within
            out[walking] = self._once(out[walking])
            walking = walking[out[walking] >= self.n]
        return out.astype(np.int64).reshape(where.shape)

    def _once(self, x: np.ndarray) -> np.ndarray:
        left, right = x >> self._half, x & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right + key) & self._mask)
        return (left << self._half) | right


def _mixed(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> _SHIFTS[0])) * _MULTIPLIERS[0]
    z = (z ^ (z >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return z ^ (z >> _SHIFTS[2])
