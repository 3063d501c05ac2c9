"""Rounding at random: 16 random bits are added to those that go, and the sum is cut off.

Owns the random numbers, of element, step and seed alone, and the rounding in NumPy and Numba; C has
both in update.c. Does not own formats (formats.py).
Source: stochastic rounding after Gupta et al., ICML 2015. A counter-based generator as Salmon et
al., SC 2011, argue for: the same bits for any number of threads and any cut. The hash's constants
are of Wellons' search for bijections of 32 bits with little bias.

A number between two neighbours becomes the upper one with the chance that is its distance from the
lower one, so that its mean is right: in BF16, what changes by less than 2^-9 of itself would
otherwise never change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .exact import bits
from .jit import njit

MASK = 0xFFFFFFFF
SPREAD, FIRST, SECOND, HIGH = 0x9E3779B9, 0x21F0AAAD, 0xD35A2D97, 0x85EBCA6B


def _hash(x: int) -> int:
    x = (x ^ (x >> 16)) * FIRST & MASK
    x = (x ^ (x >> 15)) * SECOND & MASK
    return x ^ (x >> 15)


def key(step: int, seed: int = 0) -> int:
    """The key of a step, counted from 1, of a run: 32 bits."""
    return _hash((_hash(seed & MASK) + (seed >> 32 & MASK) * HIGH + step * SPREAD) & MASK)


def numpy_draws(n: int, first: int, key: int) -> NDArray[np.uint32]:
    """32 random bits of elements first .. first + n. uint32[n]."""
    i = np.arange(first, first + n, dtype=np.uint64)
    x = (i + (i >> np.uint64(32)) * HIGH + key) & MASK
    x = ((x ^ (x >> np.uint64(16))) * FIRST) & MASK
    x = ((x ^ (x >> np.uint64(15))) * SECOND) & MASK
    return (x ^ (x >> np.uint64(15))).astype(np.uint32)


def numpy_to_bf16(x: np.ndarray, more: np.ndarray) -> NDArray[np.uint16]:
    """float32[n] and 16 random bits each, as BF16."""
    wide = x.view(np.uint32)
    return np.where(np.isnan(x), (wide >> 16) | 0x40, (wide + more) >> 16).astype(np.uint16)


@njit
def draw(i, key):
    """32 random bits of element ``i``."""
    x = (i + (i >> 32) * HIGH + key) & MASK
    x = ((x ^ (x >> 16)) * FIRST) & MASK
    x = ((x ^ (x >> 15)) * SECOND) & MASK
    return x ^ (x >> 15)


@njit
def numba_to_bf16(x, y, first, key, shift):
    for i in range(x.size):
        word = np.int64(bits(x[i])) & MASK
        if word & 0x7FFFFFFF > 0x7F800000:
            y[i] = (word >> 16) | 0x40
        else:
            more = (draw(np.int64(first + i), np.int64(key)) >> shift) & 0xFFFF
            y[i] = ((word + more) & MASK) >> 16
