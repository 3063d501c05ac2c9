"""MRG32k3a: the random number generator of a flow.

Owns the generator, its seeding, and exponential and normal random numbers. Does not own their use
(synthetic_flow.py).
Source: P. L'Ecuyer, Operations Research 47(1), 1999 (MRG32k3a, figure 1, jumps by powers of the
matrix); Marsaglia, Bray, SIAM Review 6(3), 1964 (polar method).

MQSim draws its requests from this generator, with separate streams for types, addresses, sizes and
intervals, so that a seed gives the same requests in this program as in MQSim. MQSim seeds by
jumping ahead (seed // 200 + 1) * 2^(seed mod 200) steps, but squares the matrices in 64 bits, where
a product of two residues overflows. The resulting start states differ from those of the exact jump.
This module computes the same start states as MQSim; the error changes only which random numbers are
drawn. As in MQSim, seeds 1 and 200, 2 and 201, ... give equal states.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from ondie.kernels.jit import njit

M1, M2 = 4294967087, 4294944443
A12, A13 = 1403580, -810728
A21, A23 = 527612, -1370589
UNIT = 1.0 / (M1 + 1)

State = npt.NDArray[np.int64]
Matrix = tuple[tuple[int, ...], ...]
_STEPS: tuple[tuple[int, Matrix], ...] = (
    (M1, ((0, 1, 0), (0, 0, 1), (A13 + M1, A12, 0))),
    (M2, ((0, 1, 0), (0, 0, 1), (A23 + M2, 0, A21))),
)


def start(seed: int) -> State:
    """Return the state of the generator, int64[6], for ``seed`` (at least 0).

    The state consists of the last three residues of each of the two components.
    """
    jumps, squarings = seed // 200 + 1, seed % 200
    state = np.zeros(6, np.int64)
    for component, (m, step) in enumerate(_STEPS):
        for _ in range(squarings):
            step = _product(step, step, m)
        column: Matrix = ((1,), (1,), (1,))
        n = jumps
        while n:
            if n & 1:
                column = _product(step, column, m)
            n >>= 1
            if n:
                step = _product(step, step, m)
        state[3 * component : 3 * component + 3] = [row[0] for row in column]
    return state


@functools.lru_cache(4096)
def _product(a: Matrix, b: Matrix, m: int) -> Matrix:
    """Return the matrix product a @ b modulo m as MQSim computes it.

    Sums wrap around at 64 bits, and remainders keep the sign of the sum.
    """
    rows = []
    for row in a:
        out = []
        for k in range(len(b[0])):
            total = 0
            for j in range(3):
                total = _wrapped(row[j] * b[j][k] + total)
                total = abs(total) % m * (1 if total >= 0 else -1)
            out.append(total)
        rows.append(tuple(out))
    return tuple(rows)


def _wrapped(x: int) -> int:
    """Return ``x`` wrapped around to a signed 64-bit integer."""
    return (x + 2**63) % 2**64 - 2**63


@njit
def remainder(total, m):
    """Return ``total`` modulo ``m``, both float64, as MQSim computes it.

    The result is inexact if the absolute value of ``total`` exceeds 2**53, which happens in the
    first three steps after a start with negative residues.
    """
    total -= np.float64(np.int64(total / m)) * m
    return total + m if total < 0.0 else total


@njit
def uniform(state):
    """Draw a uniform random number in (0, 1), float64, and advance ``state``."""
    first = np.float64(A12) * np.float64(state[1]) + np.float64(A13) * np.float64(state[0])
    p = np.int64(remainder(first, np.float64(M1)))
    state[0] = state[1]
    state[1] = state[2]
    state[2] = p
    second = np.float64(A21) * np.float64(state[5]) + np.float64(A23) * np.float64(state[3])
    q = np.int64(remainder(second, np.float64(M2)))
    state[3] = state[4]
    state[4] = state[5]
    state[5] = q
    d = p - q
    if d < 0:
        d += M1
    return (d + 1) * UNIT


@njit
def below(state, n):
    """Draw an integer from 0 to ``n`` - 1 with equal probabilities, int64. Advance ``state``."""
    return np.int64(np.float64(n) * uniform(state))


@njit
def exponential(state, mean):
    """Draw a number from the exponential distribution with mean ``mean``, float64, and advance
    ``state``."""
    return -mean * math.log(uniform(state))


@njit
def normal(state, spare, mean, deviation):
    """Draw a number from the normal distribution, float64; advances ``state``.

    ``spare``: float64[1], the unused second number of the last step of the polar method, or 0 if
    there is none.
    """
    z = spare[0]
    if z != 0.0:
        spare[0] = 0.0
        return mean + z * deviation
    while True:
        x = 2.0 * uniform(state) - 1.0
        y = 2.0 * uniform(state) - 1.0
        w = x * x + y * y
        if w < 1.0:
            break
    w = math.sqrt(-2.0 * math.log(w) / w)
    spare[0] = y * w
    return mean + x * w * deviation
