"""Recorded load: number of busy cores of this machine over time.

Owns the reading of the kernel's counters. Does not own loads (trace.py) or their cost
(contention.py).
Source: proc(5): /proc/stat counts the time that all cores together have spent in each state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ondie.emu.cluster.load.trace import Load
from ondie.emu.units import InputError

COUNTERS = Path("/proc/stat")
IDLE = (3, 4)
"""Indices of the idle counters in a line of /proc/stat: idle, and idle while waiting for I/O."""
GUEST = 8
"""Index of the first counter in a line of /proc/stat whose time is also contained in an earlier
counter. This counter and all later counters are ignored."""


def counted(text: str) -> tuple[int, int]:
    """Return (busy, total) clock ticks of all cores since boot. ``text``: content of /proc/stat.

    Raises InputError if the first line is not the line of all cores.
    """
    words = text.split("\n", 1)[0].split()
    try:
        if words[0] != "cpu":
            raise ValueError
        ticks = [int(word) for word in words[1:]][:GUEST]
        idle = sum(ticks[i] for i in IDLE)
    except (ValueError, IndexError):
        raise InputError(
            f"{COUNTERS}: its first line is {text.partition(chr(10))[0][:40]!r}; must be "
            "'cpu' and the ticks of all cores"
        ) from None
    return sum(ticks) - idle, sum(ticks)


def record(
    seconds: float,
    every_s: float,
    node: int = 0,
    *,
    cores: int | None = None,
    read: Callable[[], str] = COUNTERS.read_text,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Load:
    """Record the number of busy cores of this machine every ``every_s`` seconds for ``seconds``
    seconds, as the load of node ``node``.

    Each sample is the mean number of busy cores since the previous sample, and applies from the
    time of the previous sample. ``cores``: number of cores of this machine; default: as reported by
    the operating system. ``read``, ``clock``, ``sleep``: replaceable for tests. Raises InputError
    if a duration is not positive, or if /proc/stat cannot be read or has another format.
    """
    for name, value in (("seconds", seconds), ("every", every_s)):
        if not 0 < value < np.inf:
            raise InputError(f"--{name} {value}: must be a finite number above 0")
    whole = cores or os.cpu_count() or 1
    try:
        busy, total = counted(read())
    except OSError as error:
        raise InputError(
            f"{COUNTERS}: cannot be read: {error}; the recording requires Linux"
        ) from error
    start = last = clock()
    at, taken = [], []
    while last - start < seconds:
        sleep(min(every_s, seconds - (last - start)))
        now = clock()
        new_busy, new_total = counted(read())
        if new_total > total:
            at.append(last - start)
            taken.append(round(whole * (new_busy - busy) / (new_total - total), 2))
        busy, total, last = new_busy, new_total, now
    at.append(last - start)
    taken.append(0.0)
    return Load(np.array(at), np.full(len(at), node), np.array(taken))
