"""Counter-based random numbers: each number depends only on its key, not on earlier draws.

Owns the hash of (seed, page, erase count, read count), and uniform and binomial random numbers.
Does not own the use of random numbers (nand/ecc.py, nand/bit_errors.py).
Source: Steele, Lea, Flood, OOPSLA 2014 (SplitMix64's mixer as a counter-based generator); Hörmann,
J. Stat. Comput. Simul. 46, 1993 (BTRS); Kachitvichyanukul, Schmeiser, CACM 31(2), 1988 (inversion
for small means).
"""

from __future__ import annotations

import math

import numba
import numpy as np

from ondie.kernels.jit import njit

MASK = 0xFFFF_FFFF_FFFF_FFFF
GAMMA = 0x9E37_79B9_7F4A_7C15
M1 = 0xBF58_476D_1CE4_E5B9
M2 = 0x94D0_49BB_1331_11EB
UNIT = 1.0 / (1 << 53)
SMALL_MEAN = 10.0
"""Smallest mean for which the transformed rejection is valid (Hörmann, section 3)."""
_LOG_ROOT = 0.5 * math.log(2 * math.pi)
_RESTS = np.array(
    [
        math.log(math.factorial(k)) - ((k + 0.5) * math.log(k + 1) - (k + 1) + _LOG_ROOT)
        for k in range(10)
    ]
)
"""Values of stirling_rest(k) for k < 10, where the series is inaccurate.

They are tabulated because lgamma differs between platforms.
"""

if numba.config.DISABLE_JIT:

    def u64(x):
        """Return the low 64 bits of an integer as an unsigned integer."""
        return int(x) & MASK

else:

    @njit
    def u64(x):
        """Return the low 64 bits of an integer as an unsigned integer."""
        return np.uint64(x)


@njit
def mix(x):
    """Apply SplitMix64's finalizer: a bijection of uint64; each output bit depends on all input
    bits."""
    x = (x ^ (x >> 30)) * M1 & MASK
    x = (x ^ (x >> 27)) * M2 & MASK
    return x ^ (x >> 31)


@njit
def absorb(key, value):
    """Return the uint64 key that combines ``key`` with one more integer. Different integers give
    different keys.
    """
    return mix(((u64(key) ^ (u64(value) * GAMMA & MASK)) + GAMMA) & MASK)


@njit
def page_key(seed, ppn, cycles, reads):
    """Return the uint64 key of one read of one page.

    ``seed``: seed of the run, or of a device (``absorb(seed, device)``). ``ppn``: physical page.
    ``cycles``: erase count of the page's block. ``reads``: number of reads of the page, including
    this read.
    """
    return absorb(absorb(absorb(seed, ppn), cycles), reads)


@njit
def uniform(key, at):
    """Return the random number at index ``at`` of the sequence of ``key``: a float64 in (0, 1) with
    a spacing of 2**-53.
    """
    return ((absorb(key, at) >> 11) + 0.5) * UNIT


@njit
def below(key, at, n):
    """Return the random number at index ``at`` of the sequence of ``key`` as an int64 in [0, n).
    ``n`` must be less than 2**32.

    The deviation from uniform is at most n / 2**32.
    """
    return np.int64((absorb(key, at) >> 32) * u64(n) >> 32)


@njit
def stirling_rest(k):
    """Return log k! minus Stirling's approximation (k + 1/2) log(k + 1) - (k + 1) + log(2 pi)/2,
    for k >= 0.

    Accurate to 4e-11.
    """
    if k < 10:
        return _RESTS[int(k)]
    inverse = 1.0 / (k + 1.0)
    square = inverse * inverse
    return (1.0 / 12 - (1.0 / 360 - square / 1260) * square) * inverse


@njit
def binomial(key, n, p):
    """Draw the number of bit errors (int64) among ``n`` bits with error probability ``p``, at most
    1/2.

    The distribution is exactly binomial up to the rounding of float64.
    """
    mean = n * p
    if not mean > 0.0:
        return np.int64(0)
    if mean < SMALL_MEAN:
        return _inverted(key, n, p)
    return _rejected(key, n, p)


@njit
def _inverted(key, n, p):
    """Draw a binomial count by inversion: sum up probabilities until the sum reaches a uniform
    random number."""
    u = uniform(key, 0)
    if u <= 1.0 - n * p:  # Bernoulli's inequality: (1 - p)**n >= 1 - n * p
        return np.int64(0)
    odds = p / (1.0 - p)
    mass = math.exp(n * math.log1p(-p))
    k = 0
    while u > mass and k < n:
        u -= mass
        k += 1
        mass *= odds * ((n + 1.0) / k - 1.0)
        if mass < 1e-300:  # the rest of u is rounding error
            break
    return np.int64(k)


@njit
def _rejected(key, n, p):
    """Draw a binomial count by BTRS (Hörmann): transformed rejection with a squeeze.

    Takes about 1.15 iterations on average; each iteration uses two uniform numbers.
    """
    q = 1.0 - p
    spread = math.sqrt(n * p * q)
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    center = n * p + 0.5
    squeeze = 0.92 - 4.2 / b
    at = 0
    while True:
        u = uniform(key, at) - 0.5
        v = uniform(key, at + 1)
        at += 2
        edge = 0.5 - abs(u)
        k = math.floor((2.0 * a / edge + b) * u + center)
        if edge >= 0.07 and v <= squeeze:
            return np.int64(k)
        if k < 0 or k > n:
            continue
        alpha = (2.83 + 5.1 / b) * spread
        mode = math.floor((n + 1.0) * p)
        odds = p / q
        v = math.log(v * alpha / (a / (edge * edge) + b))
        bound = (
            (mode + 0.5) * math.log((mode + 1.0) / (odds * (n - mode + 1.0)))
            + (n + 1.0) * math.log((n - mode + 1.0) / (n - k + 1.0))
            + (k + 0.5) * math.log(odds * (n - k + 1.0) / (k + 1.0))
            + stirling_rest(mode)
            + stirling_rest(n - mode)
            - stirling_rest(k)
            - stirling_rest(n - k)
        )
        if v <= bound:
            return np.int64(k)
