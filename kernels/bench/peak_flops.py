"""Arithmetic of updates, and how much of it this machine could do: the compute limit.

Owns the operations per parameter and the loop that measures the limit. Does not own memory's limit
(bench_cases.py) or timing (bench.py). Source: the definitions in csrc/ondie.h; Williams, Waterman
and Patterson, "Roofline", CACM 52(4), 2009.

The limit: multiply-adds in FP32, fused, on vectors as wide as the compiler finds best, as many side
by side as hide their latency, PER_LOAD of them between load and store of a number that never leaves
the first cache. Updates cannot reach it: their definitions round after every operation, so that a
multiplication and an addition are two instructions, and divisions and roots take longer.
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
NUMBERS = 1024  # of a thread: 4 KiB
TIMES = 20_000  # over them: about a millisecond, so that starting threads does not count


class Operations(NamedTuple):
    """Of one update, per parameter."""

    adds: int  # and subtractions
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
"""As the canonical definitions write them, without the line that is left out when l2 = 0. Casts,
codes and random bits of other formats are not counted: they are ways of storing, not the update."""


def multiply_adds(x: Any, times: int) -> None:
    """The loop: x tends to 1."""
    half = np.float32(0.5)
    for _ in range(times):
        for i in range(len(x)):
            a = x[i]
            for _ in range(PER_LOAD):
                a = a * half + half
            x[i] = a


@cache
def compiled() -> Any:
    """`multiply_adds` by Numba itself: what `ondie.kernels.jit` compiles of this room has no
    vectors, and no multiplication fused with an addition."""
    return numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})(multiply_adds)


def peak(threads: int) -> tuple[Callable[[], object], int]:
    """A call that does nothing but multiply-adds on so many threads, and its operations."""
    loop = compiled()
    arrays = [np.full(NUMBERS, 2, np.float32) for _ in range(threads)]

    def call() -> object:
        if threads == 1:
            return loop(arrays[0], TIMES)
        return list(pool(threads).map(lambda x: loop(x, TIMES), arrays))

    return call, 2 * PER_LOAD * NUMBERS * TIMES * threads
