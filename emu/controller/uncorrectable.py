"""Logical blocks that a host has marked uncorrectable with Write Uncorrectable.

Owns the marked ranges. Does not own flash reads that fail (ftl/read_retry.py).
Source: NVM Command Set Specification 1.0, section 3.2.7 (Write Uncorrectable).

The ranges are byte ranges of the drive. They are not stored on flash: the transport preserves
``ranges`` across power cycles, in a file in the store of the drive.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Uncorrectable:
    """Byte ranges of a drive that are marked as uncorrectable. ``ranges``: sorted list of disjoint
    ranges (first byte, end)."""

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self.ranges = list(ranges or [])

    def touches(self, first: int, size: int) -> bool:
        """Return True if any of the ``size`` bytes starting at byte ``first`` is marked as
        uncorrectable."""
        at = bisect_right(self.ranges, first, key=lambda each: each[1])
        return at < len(self.ranges) and self.ranges[at][0] < first + size

    def mark(self, first: int, size: int) -> None:
        """Mark the ``size`` bytes starting at byte ``first`` as uncorrectable."""
        begin = bisect_left(self.ranges, first, key=lambda each: each[1])
        end = bisect_right(self.ranges, first + size, key=lambda each: each[0])
        joined = self.ranges[begin:end]
        low = min([first, *(each[0] for each in joined)])
        high = max([first + size, *(each[1] for each in joined)])
        self.ranges[begin:end] = [(low, high)]

    def clear(self, first: int, size: int) -> None:
        """Remove the marks of the ``size`` bytes starting at byte ``first``, which were written or
        deallocated."""
        begin = bisect_right(self.ranges, first, key=lambda each: each[1])
        end = bisect_left(self.ranges, first + size, key=lambda each: each[0])
        left = []
        for low, high in self.ranges[begin:end]:
            left += [(low, first)] if low < first else []
            left += [(first + size, high)] if high > first + size else []
        self.ranges[begin:end] = left
