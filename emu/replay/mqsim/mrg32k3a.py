"""MRG32k3a: the random number generator of a flow.

Owns the generator, its seeding, and exponential and normal numbers. Does not own their use
(synthetic_flow.py).
Source: P. L'Ecuyer, Operations Research 47(1), 1999 (MRG32k3a, figure 1, jumps by powers of the
matrix); Marsaglia, Bray, SIAM Review 6(3), 1964 (polar method).

MQSim draws its requests from this generator, with one stream each for types, addresses, sizes and
intervals, so that a seed gives identical requests here. It seeds by jumping ahead (seed // 200 + 1)
* 2^(seed mod 200) steps, but squares the matrices in 64 bits, where a product of two residues
overflows: its starting points are not those of the true jump. They are kept, because they only
decide which random numbers are drawn. Seeds 1 and 200, 2 and 201, ... also coincide as in MQSim.
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
    """Return the state of a seed from 0: int64[6], the last three residues of each component."""
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
    """Return a @ b modulo m in 64 bits: sums wrap around, remainders keep their sign."""
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
    return (x + 2**63) % 2**64 - 2**63


@njit
def uniform(state):
    """Return the next number of state ``state``, float64 in (0, 1)."""
    p = (A12 * state[1] + A13 * state[0]) % M1
    state[0] = state[1]
    state[1] = state[2]
    state[2] = p
    q = (A21 * state[5] + A23 * state[3]) % M2
    state[3] = state[4]
    state[4] = state[5]
    state[5] = q
    d = p - q
    if d < 0:
        d += M1
    return (d + 1) * UNIT


@njit
def below(state, n):
    """Return an integer from 0 to ``n`` - 1, int64."""
    return np.int64(np.float64(n) * uniform(state))


@njit
def exponential(state, mean):
    """Return a number of an exponential distribution, float64."""
    return -mean * math.log(uniform(state))


@njit
def normal(state, spare, mean, deviation):
    """Return a number of a normal distribution, float64.

    ``spare``: float64[1], the second number of the last polar step, 0 if there is none.
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
