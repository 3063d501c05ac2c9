"""Execution of one function over chunks of a flat array on several threads.

This module owns the thread pools and the partition into chunks. It does not split short arrays, and
it splits long arrays only at multiples of 4096 elements.
Source: measurements, in which one thread was faster than two below about 32 k parameters.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from .errors import KernelError

GRAIN = 4096  # elements; one block of the norm, and at least 64 cache lines of any type
LEAST = 16384  # elements per thread


MOST_THREADS = 1024  # maximum number of threads; ONDIE_THREADS


def checked(threads: int) -> int:
    """Return ``threads`` if it is a valid number of threads.

    Raises KernelError for a number outside 1 .. MOST_THREADS.
    """
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise KernelError(f"threads: {threads!r}; must be from 1 to {MOST_THREADS}")
    return threads


def pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of ``threads`` threads; later calls in this process reuse the pool."""
    return _pool(threads, os.getpid())


@lru_cache(maxsize=8)
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    """Return the thread pool of process ``pid``; a forked child gets a new one."""
    return ThreadPoolExecutor(threads, thread_name_prefix="ondie-kernels")


def chunks(count: int, threads: int) -> list[tuple[int, int]]:
    """Divide the elements 0 .. count - 1 into at most ``threads`` chunks (start, stop).

    All chunks but the last have at least LEAST elements; each begins at a multiple of GRAIN.
    """
    parts = max(1, min(checked(threads), count // LEAST))
    size = -(-count // parts)
    size += -size % GRAIN
    return (
        [(start, min(start + size, count)) for start in range(0, count, size)]
        if count
        else [(0, 0)]
    )


def run(count: int, threads: int, work: Callable[[int, int], object]) -> list[object]:
    """Divide ``count`` elements into chunks (see :func:`chunks`) and call work(start, stop) for
    every chunk, in at most ``threads`` threads. Return the results in the order of the chunks."""
    parts = chunks(count, threads)
    if len(parts) == 1:
        return [work(*parts[0])]
    return list(pool(len(parts)).map(lambda part: work(*part), parts))
