"""What nobody has taken of one order of samples, and its handing out to all nodes at once.

Owns ranges of positions. Does not own how many a node takes (epoch.py) or which sample lies at a
position (shuffle.py). Source: own.
"""

from __future__ import annotations

import numpy as np


class Ranges:
    """Positions 0 to n - 1, taken from the front; what comes back goes to the front."""

    def __init__(self, n: int) -> None:
        self._start = np.array([0] if n else [], np.int64)
        self._length = np.array([n] if n else [], np.int64)

    @property
    def total(self) -> int:
        """Positions that are left."""
        return int(self._length.sum())

    def take(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As many positions as each node wants, int64[nodes], together at most ``total``: ranges
        (node, start, length), nodes ascending, a node's parted where the positions are."""
        ends, sizes = np.cumsum(wanted), np.cumsum(self._length)
        total = int(ends[-1])
        cuts = np.union1d(ends, sizes[: int(np.searchsorted(sizes, total))])
        cuts = cuts[cuts > 0]
        begin = np.concatenate([np.zeros(min(len(cuts), 1), np.int64), cuts[:-1]])
        node = np.searchsorted(ends, begin, side="right")
        of = np.searchsorted(sizes, begin, side="right")
        start = self._start[of] + begin - (sizes - self._length)[of]
        used = int(np.searchsorted(sizes, total, side="right"))
        part = total - (int(sizes[used - 1]) if used else 0)  # of the first that is not used up
        self._start, self._length = self._start[used:].copy(), self._length[used:].copy()
        if part:
            self._start[0] += part
            self._length[0] -= part
        return node, start, cuts - begin

    def put_back(self, start: np.ndarray, length: np.ndarray) -> None:
        """Ranges that were taken, int64[ranges] each."""
        self._start = np.concatenate([start, self._start])
        self._length = np.concatenate([length, self._length])
