"""Logical blocks that a host has marked with Write Uncorrectable.

Owns the ranges. Does not own reads that fail on flash (ftl/read_retry.py).
Source: NVM Command Set Specification 1.0, section 3.2.7 (Write Uncorrectable).

The ranges are bytes of the drive. Flash does not store them: the transport keeps ``ranges`` over
power cycles, together with the store of the drive.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Uncorrectable:
    """Ranges of bytes, sorted and disjoint: ``ranges`` is a list of (first, end)."""

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self.ranges = list(ranges or [])

    def touches(self, first: int, size: int) -> bool:
        """Return True if a byte from ``first`` on is marked."""
        at = bisect_right(self.ranges, first, key=lambda each: each[1])
        return at < len(self.ranges) and self.ranges[at][0] < first + size

    def mark(self, first: int, size: int) -> None:
        """Mark ``size`` bytes."""
        begin = bisect_left(self.ranges, first, key=lambda each: each[1])
        end = bisect_right(self.ranges, first + size, key=lambda each: each[0])
        joined = self.ranges[begin:end]
        low = min([first, *(each[0] for each in joined)])
        high = max([first + size, *(each[1] for each in joined)])
        self.ranges[begin:end] = [(low, high)]

    def clear(self, first: int, size: int) -> None:
        """Remove the marks of ``size`` bytes that were written or deallocated."""
        begin = bisect_right(self.ranges, first, key=lambda each: each[1])
        end = bisect_left(self.ranges, first + size, key=lambda each: each[0])
        left = []
        for low, high in self.ranges[begin:end]:
            left += [(low, first)] if low < first else []
            left += [(first + size, high)] if high > first + size else []
        self.ranges[begin:end] = left
