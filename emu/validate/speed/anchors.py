"""Memory bandwidth and latency of this machine, as a reference for the engine's speed.

Owns a copy between arrays and a pointer chase, both over arrays larger than the caches. Does not
own the measurements of the engine (speed.py). Source: the copy of McCalpin's STREAM, and the
pointer chase of LMbench's lat_mem_rd.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ondie.kernels.jit import njit

LINE = 64
"""Size of a cache line (bytes)."""
COPY_BYTES = 1 << 28
CHASE_BYTES = 1 << 28
STEPS, PIECES = 1 << 17, 8
"""Number of links per timed piece of the pointer chase, and number of pieces. The time of the
fastest piece is used."""


@dataclass(frozen=True)
class Anchors:
    """Memory times (ns): per copied cache line, and per link of a pointer chase.

    In a pointer chase, each address is read from the previous cache line.
    """

    copy_ns: float
    chase_ns: float

    @property
    def copy_bytes_per_s(self) -> float:
        """Bytes copied per second. Each byte is read once and written once."""
        return LINE / self.copy_ns * 1e9


@njit
def chase(following, at, steps):
    """Follow ``steps`` links of a pointer chase from index ``at`` and return the last index.
    ``following``: for each index, the next index."""
    for _ in range(steps):
        at = following[at]
    return at


class Memory:
    """Memory benchmark. It allocates its arrays once and keeps the best of all measurements."""

    def __init__(self, copy_bytes: int = COPY_BYTES, chase_bytes: int = CHASE_BYTES) -> None:
        self.source = np.ones(copy_bytes // 8, np.int64)
        self.target = np.zeros_like(self.source)
        lines = chase_bytes // LINE
        order = np.random.default_rng(1).permutation(lines) * (LINE // 8)
        self.following = np.zeros(chase_bytes // 8, np.int64)
        self.following[order] = np.roll(order, -1)
        chase(self.following, 0, 1)
        self.copy_ns = self.chase_ns = float("inf")

    def measure(self) -> None:
        """Repeat the copy and the pointer chase (about 0.2 s in total), and keep the best times."""
        begin = time.perf_counter()
        np.copyto(self.target, self.source)
        took = (time.perf_counter() - begin) * 1e9
        self.copy_ns = min(self.copy_ns, took / (self.source.nbytes / LINE))
        at = 0
        for _ in range(PIECES):
            begin = time.perf_counter()
            at = chase(self.following, at, STEPS)
            self.chase_ns = min(self.chase_ns, (time.perf_counter() - begin) * 1e9 / STEPS)

    def anchors(self) -> Anchors:
        """Return the shortest times per cache line and per link that were measured so far."""
        return Anchors(self.copy_ns, self.chase_ns)
