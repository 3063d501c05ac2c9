"""Arithmetic operations of updates and the compute limit of this machine.

This module owns the operations per parameter and the loop that measures the compute limit. It does
not own the memory limit (contenders.py) or timing (run.py).
Source: the definitions in csrc/ondie.h; Williams, Waterman and Patterson, "Roofline", CACM 52(4),
2009.

The compute limit is the rate of fused FP32 multiply-adds. The compiler chooses the vector width and
enough independent chains to hide the latency. The loop runs PER_LOAD multiply-adds between load and
store of each number, and the numbers stay in the first-level cache. Updates cannot reach this
limit. Their definitions round after every operation, so a multiplication and an addition are two
instructions. Divisions and roots take longer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np

from ondie.kernels.threads import pool

PEAK = "compute limit"
PER_LOAD = 8
NUMBERS = 1024  # per thread: 4 KiB
TIMES = 20_000  # passes over the numbers: about 1 ms, so the start of threads is negligible


class Operations(NamedTuple):
    """Number of arithmetic operations of one update per parameter, by kind."""

    adds: int  # additions and subtractions
    multiplies: int
    divides: int = 0
    roots: int = 0


OPERATIONS = {
    "sgd": Operations(1, 1),
    "momentum": Operations(2, 3),
    "nesterov": Operations(3, 4),
    "adam": Operations(4, 8, 1, 1),
    "adamw": Operations(4, 8, 1, 1),
    "adagrad": Operations(3, 2, 1, 1),
}
"""Number of arithmetic operations per parameter of each update, in the canonical form.

The line for l2 is not counted, because it is skipped when l2 = 0. Casts, codes and random bits of
other formats are not counted, because they belong to the storage and not to the update.
"""


def multiply_adds(values: Any, times: int) -> None:
    """Run ``times`` passes of multiply-adds over ``values`` (float32[n]), which converge to 1."""
    half = np.float32(0.5)
    for _ in range(times):
        for i in range(len(values)):
            value = values[i]
            for _ in range(PER_LOAD):
                value = value * half + half
            values[i] = value


@cache
def compiled() -> Any:
    """Return `multiply_adds` compiled directly by Numba.

    `ondie.kernels.jit` cannot compile it here, because its rules exclude fused multiply-adds.
    """
    return numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})(multiply_adds)


def peak(threads: int) -> tuple[Callable[[], object], int]:
    """Return a function that runs only multiply-adds on ``threads`` threads, and the number of
    floating-point operations of one call."""
    loop = compiled()
    arrays = [np.full(NUMBERS, 2, np.float32) for _ in range(threads)]

    def call() -> object:
        if threads == 1:
            return loop(arrays[0], TIMES)
        return list(pool(threads).map(lambda values: loop(values, TIMES), arrays))

    return call, 2 * PER_LOAD * NUMBERS * TIMES * threads
