"""What this machine's memory does: anchors beside which figures of the engine mean something.

Owns a copy between arrays and a chase of pointers, both larger than the caches. Does not own what
is measured beside them. Source: own; McCalpin's STREAM copy, and the chase of LMbench's lat_mem_rd.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ondie.kernels.jit import njit

LINE = 64
"""Bytes of a cache line."""
COPY_BYTES = 1 << 28
CHASE_BYTES = 1 << 28
STEPS, PIECES = 1 << 17, 8
"""Steps of a piece of the chase, and pieces, of which the best counts."""


@dataclass(frozen=True)
class Anchors:
    """Per cache line copied, and per step of a chase: each address is in the line before."""

    copy_ns: float
    chase_ns: float

    @property
    def copy_bytes_per_s(self) -> float:
        """Bytes copied per second: each is read and written."""
        return LINE / self.copy_ns * 1e9


@njit
def chase(following, at, steps):
    """Follow ``steps`` links from place ``at``. Returns where that ends."""
    for _ in range(steps):
        at = following[at]
    return at


class Memory:
    """The arrays, made once, and measured as often as one likes: the best counts."""

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
        """Once more; about a fifth of a second."""
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
        """The best so far."""
        return Anchors(self.copy_ns, self.chase_ns)
