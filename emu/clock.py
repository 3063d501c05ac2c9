"""Simulation clock: integer picoseconds (int64), and the transfer time of bytes at a rate.

This module owns the unit of time, the rounding rule of all transfers, and the conversion between
wall time and simulated time. It does not own the transfers themselves, or waits (service.py).
Source: this project; 2**63 ps are 106 days, longer than any run.
"""

from __future__ import annotations

import math
import time

from ondie.emu.units import InputError
from ondie.kernels.jit import inline

PS_PER_S = 10**12
NEVER = 1 << 62
"""Time (ps) that is later than every event."""
LONGEST_S = 1_000_000
"""Maximum simulated time (s). Beyond this time the clock may overflow."""
LAST_WALL_NS = (1 << 63) - 1
"""Maximum wall time (ns) that :meth:`WallClock.ns_of` returns. This time is never reached."""
_SCALE_LIMIT = 1 << 27


def rate_scale(bytes_per_s: int) -> tuple[int, int]:
    """Return ``(scale, shift)`` such that ``bytes * scale >> shift`` is the transfer time in ps.

    ``bytes_per_s``: transfer rate. The scale has about 27 significant bits (relative error below
    2e-8). The product of the scale and up to 64 GiB fits into int64, so the clock never uses
    floats. Raises ValueError if the rate is not positive.
    """
    if bytes_per_s <= 0:
        raise ValueError(f"rate = {bytes_per_s} B/s: must be positive")
    shift = 0
    while ((PS_PER_S << (shift + 1)) // bytes_per_s) < _SCALE_LIMIT and shift < 40:
        shift += 1
    scale = ((PS_PER_S << shift) + bytes_per_s // 2) // bytes_per_s
    return max(scale, 1), shift


@inline
def transfer_ps(n_bytes, scale, shift):
    """Return the time to transfer ``n_bytes`` (ps), rounded up. ``scale``, ``shift``: rate as
    returned by :func:`rate_scale`.
    """
    return (n_bytes * scale + (1 << shift) - 1) >> shift


def ps_from_seconds(seconds: float) -> int:
    """Convert a measured duration in seconds to the nearest whole picosecond."""
    return round(seconds * PS_PER_S)


def seconds(ps: int) -> float:
    """Convert a duration in ps to seconds. Use the result only in reports."""
    return ps / PS_PER_S


def check_seconds(duration_s: float, what: str) -> None:
    """Raise InputError if ``duration_s`` exceeds LONGEST_S. ``what``: start of the error message,
    which must state the duration; the function appends the limit.
    """
    if duration_s > LONGEST_S:
        raise InputError(f"{what}; the limit is {LONGEST_S:,} s")


class WallClock:
    """Simulated time that follows the wall clock (time.perf_counter_ns). ``now_ps``: simulated time
    at the creation of the object (ps); ``scale``: simulated seconds per second of wall time.
    """

    def __init__(self, now_ps: int, scale: float) -> None:
        self.scale = scale
        self.ps_per_ns = scale * PS_PER_S / 1e9
        self._begin_ps, self._begin_ns = now_ps, time.perf_counter_ns()

    def at(self, wall_ns: int) -> int:
        """Return the simulated time (ps) at wall time ``wall_ns``."""
        return self._begin_ps + int((wall_ns - self._begin_ns) * self.ps_per_ns)

    def ns_of(self, time_ps: int) -> int:
        """Return the first wall time (ns) at which the simulated time is ``time_ps`` or later."""
        wall_ns = self._begin_ns + math.ceil((time_ps - self._begin_ps) / self.ps_per_ns)
        return min(wall_ns, LAST_WALL_NS)
