"""Stochastic rounding to BF16: add 16 random bits to the discarded bits and truncate the sum.

This module owns the random number generator and the rounding in NumPy and Numba. The random numbers
depend only on element, step and seed. C has its own implementation in update.c. The module does not
own formats (formats.py).
Source: stochastic rounding after Gupta et al., ICML 2015. The generator is counter-based, as in
Salmon et al., SC 2011, so any number of threads and any partition gives the same bits. The
constants of the hash come from Wellons' search for 32-bit bijections with low bias.

A number between two neighbors is rounded up with a probability equal to its distance from the
lower neighbor in units of the gap, so the result is unbiased. With rounding to nearest, a BF16
value would never change by an update below 2^-9 of its magnitude.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .exact import bits
from .jit import njit

MASK = 0xFFFFFFFF
SPREAD, FIRST, SECOND, HIGH = 0x9E3779B9, 0x21F0AAAD, 0xD35A2D97, 0x85EBCA6B


def _hash(x: int) -> int:
    """Return the 32-bit hash of a 32-bit integer."""
    x = (x ^ (x >> 16)) * FIRST & MASK
    x = (x ^ (x >> 15)) * SECOND & MASK
    return x ^ (x >> 15)


def key(step: int, seed: int = 0) -> int:
    """Return the 32-bit key from which the random bits of a step are derived. Steps count from
    1."""
    return _hash((_hash(seed & MASK) + (seed >> 32 & MASK) * HIGH + step * SPREAD) & MASK)


def numpy_draws(n: int, first: int, key: int) -> NDArray[np.uint32]:
    """Return 32 random bits for each of the elements first .. first + n - 1, uint32[n]."""
    i = np.arange(first, first + n, dtype=np.uint64)
    x = (i + (i >> np.uint64(32)) * HIGH + key) & MASK
    x = ((x ^ (x >> np.uint64(16))) * FIRST) & MASK
    x = ((x ^ (x >> np.uint64(15))) * SECOND) & MASK
    return (x ^ (x >> np.uint64(15))).astype(np.uint32)


def numpy_to_bf16(x: np.ndarray, more: np.ndarray) -> NDArray[np.uint16]:
    """Round float32[n] stochastically to BF16, uint16[n]. ``more``: 16 random bits for each
    element."""
    wide = x.view(np.uint32)
    return np.where(np.isnan(x), (wide >> 16) | 0x40, (wide + more) >> 16).astype(np.uint16)


@njit
def draw(i, key):
    """Return the 32 random bits of element ``i`` in the step whose key is ``key``."""
    x = (i + (i >> 32) * HIGH + key) & MASK
    x = ((x ^ (x >> 16)) * FIRST) & MASK
    x = ((x ^ (x >> 15)) * SECOND) & MASK
    return x ^ (x >> 15)


@njit
def numba_to_bf16(x, y, first, key, shift):
    """Round float32 ``x`` stochastically and write the BF16 bits to uint16 ``y``.

    ``first``: number of the element x[0] for its random bits (argument ``i`` of `draw`). ``key``:
    key of the step (see the function `key`). ``shift``: the 16 bits to use are bits shift to shift
    + 15 of the 32 random bits of an element.
    """
    for i in range(x.size):
        word = np.int64(bits(x[i])) & MASK
        if word & 0x7FFFFFFF > 0x7F800000:
            y[i] = (word >> 16) | 0x40
        else:
            more = (draw(np.int64(first + i), np.int64(key)) >> shift) & 0xFFFF
            y[i] = ((word + more) & MASK) >> 16
