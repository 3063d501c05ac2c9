"""A recorded load: how many of this machine's cores are busy, over time.

Owns the reading of the kernel's counters. Does not own loads (load.py) or what they cost.
Source: proc(5): /proc/stat counts the time that all cores together spent in each state.
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
"""Of the counters of a line: idle, and waiting for a device."""
STOLEN = 8
"""Counters from here on are parts of those before."""


def counted(text: str) -> tuple[int, int]:
    """(busy, all) ticks of all cores since the start, from the counters' first line."""
    words = text.split("\n", 1)[0].split()
    try:
        if words[0] != "cpu":
            raise ValueError
        ticks = [int(word) for word in words[1:]][:STOLEN]
        idle = sum(ticks[i] for i in IDLE)
    except (ValueError, IndexError):
        raise InputError(f"{COUNTERS}: its first line is no count of all cores") from None
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
    """Busy cores of this machine, looked at every so often, as the load of one node.

    Each look says what was busy since the one before, from whose time on it counts. ``cores``: of
    this machine. InputError where nothing can be recorded.
    """
    for name, value in (("seconds", seconds), ("every", every_s)):
        if not 0 < value < np.inf:
            raise InputError(f"--{name} {value}: more than 0 is right")
    whole = cores or os.cpu_count() or 1
    try:
        busy, total = counted(read())
    except OSError as error:
        raise InputError(f"{COUNTERS}: cannot be read: {error}; Linux has it") from error
    start = last = clock()
    at, taken = [], []
    while last - start < seconds:
        sleep(min(every_s, seconds - (last - start)))
        now = clock()
        b, t = counted(read())
        if t > total:
            at.append(last - start)
            taken.append(round(whole * (b - busy) / (t - total), 2))
        busy, total, last = b, t, now
    at.append(last - start)
    taken.append(0.0)
    return Load(np.array(at), np.full(len(at), node), np.array(taken))
