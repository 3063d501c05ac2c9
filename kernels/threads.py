"""Owns: running one function over chunks of a flat array on a few threads.
Does not: split short arrays, or split anywhere but at multiples of 4096 elements.
Source: measured: below about 32 k parameters one thread is faster than two.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from .errors import KernelError

GRAIN = 4096  # elements; a block of the norm, and 64 cache lines or more of any type
LEAST = 16384  # elements per thread


def pool(threads: int) -> ThreadPoolExecutor:
    """Idle threads, kept for the next call."""
    return _pool(threads, os.getpid())


@lru_cache(maxsize=8)
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    """Idle threads are kept for the next call; a forked child gets its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="ondie-kernels")


def chunks(n: int, threads: int) -> list[tuple[int, int]]:
    """Cut [0, n) into at most `threads` runs of at least LEAST elements, at multiples of GRAIN."""
    if threads < 1:
        raise KernelError(f"threads: {threads}, want 1 or more")
    parts = max(1, min(threads, n // LEAST))
    size = -(-n // parts)
    size += -size % GRAIN
    return [(start, min(start + size, n)) for start in range(0, n, size)] if n else [(0, 0)]


def run(n: int, threads: int, work: Callable[[int, int], object]) -> list[object]:
    """Call work(start, stop) for every chunk of [0, n) and return the results in order."""
    parts = chunks(n, threads)
    if len(parts) == 1:
        return [work(*parts[0])]
    return list(pool(len(parts)).map(lambda part: work(*part), parts))
