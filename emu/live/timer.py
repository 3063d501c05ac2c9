"""A timer whose descriptor is readable when the time is over.

Owns the descriptor. Source: Linux, timerfd_create(2). Python has it from version 3.13.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from typing import Self

ITIMERSPEC = struct.Struct("4l")
"""Seconds and nanoseconds of the interval, and of the time until the end."""
LEAST_NS = 1
"""A time of 0 would stop the timer."""


class Timer:
    """A timer that does not run; leaving the context closes it. Raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK and TFD_CLOEXEC have their values
        self._fd = self._checked(self._libc.timerfd_create(time.CLOCK_MONOTONIC, flags))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        """Return the descriptor, for poll(2): readable from the end until the next :meth:`set`."""
        return self._fd

    def set(self, seconds: float | None) -> None:
        """Let the time be over ``seconds`` from now, at once if that is below 0; None: never."""
        total_ns = 0 if seconds is None else max(round(seconds * 1e9), LEAST_NS)
        spec = ITIMERSPEC.pack(0, 0, *divmod(total_ns, 10**9))
        self._checked(self._libc.timerfd_settime(self._fd, 0, spec, None))

    def _checked(self, result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
