"""Ranges of sample positions that no node has taken, and their distribution to the nodes.

Owns these ranges. Does not own the number of positions that a node takes (epoch.py) or the mapping
from position to sample (permutation.py).
Source: this project.
"""

from __future__ import annotations

import numpy as np


class Ranges:
    """Queue of the positions 0 to ``count`` - 1 in the shuffled order of an epoch's public samples,
    stored as ranges. Positions are taken from the front and put back at the front."""

    def __init__(self, count: int) -> None:
        self._start = np.array([0] if count else [], np.int64)
        self._length = np.array([count] if count else [], np.int64)

    @property
    def total(self) -> int:
        """Number of positions in the queue, that is, of positions that no node has taken."""
        return int(self._length.sum())

    def take(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take ``wanted[i]`` positions for node i. ``wanted`` is int64[nodes], and its sum must be
        at most :attr:`total`.

        Returns the arrays (node, start, length), int64[ranges] each, with ascending nodes. A node
        gets several ranges if its positions are not contiguous.
        """
        ends, sizes = np.cumsum(wanted), np.cumsum(self._length)
        total = int(ends[-1])
        cuts = np.union1d(ends, sizes[: int(np.searchsorted(sizes, total))])
        cuts = cuts[cuts > 0]
        begin = np.concatenate([np.zeros(min(len(cuts), 1), np.int64), cuts[:-1]])
        node = np.searchsorted(ends, begin, side="right")
        of = np.searchsorted(sizes, begin, side="right")
        start = self._start[of] + begin - (sizes - self._length)[of]
        used = int(np.searchsorted(sizes, total, side="right"))
        part = total - (int(sizes[used - 1]) if used else 0)  # used part of the first range left
        self._start, self._length = self._start[used:].copy(), self._length[used:].copy()
        if part:
            self._start[0] += part
            self._length[0] -= part
        return node, start, cuts - begin

    def put_back(self, start: np.ndarray, length: np.ndarray) -> None:
        """Insert ranges of previously taken positions at the front of the queue. ``start``: first
        position of each range; ``length``: number of its positions; int64[ranges] each."""
        self._start = np.concatenate([start, self._start])
        self._length = np.concatenate([length, self._length])
