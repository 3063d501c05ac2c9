"""Marks of Write Uncorrectable, as all protocols of a served drive respect them.

Owns the lock around the marks, and that a change is kept in the store. Does not own the ranges
(controller/uncorrectable.py), or which commands look at them or clear them: those of NVMe
(controller/io_commands.py) and of NBD (nbd_session.py).
Source: NVM Command Set Specification 1.0, section 3.2.7 (Write Uncorrectable).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from ondie.emu.controller.uncorrectable import Uncorrectable
from ondie.emu.units import InputError

Found = TypeVar("Found")


def keep_nothing() -> None:
    """Do nothing when marks change: the drive has no NVMe controller, and so no marks."""


class MarkedBlocks:
    """The marks ``marked`` of one drive. ``lock``: held for every use of them. ``save``: keeps them
    in the store, without ``lock``; raises InputError. True if anything is marked."""

    def __init__(
        self,
        marked: Uncorrectable,
        lock: threading.Lock,
        save: Callable[[], None] = keep_nothing,
    ) -> None:
        self._marked, self._lock, self._save = marked, lock, save

    def __bool__(self) -> bool:
        return bool(self._marked.ranges)

    def touched(self, ranges: Iterable[tuple[int, int]]) -> list[bool]:
        """Return for each of ``ranges``, (first byte, bytes), whether a byte of it is marked."""
        with self._lock:
            return [self._marked.touches(first, size) for first, size in ranges]

    def units(self, first: int, count: int, unit: int) -> np.ndarray:
        """Return which of ``count`` mapping units of ``unit`` bytes from number ``first`` on hold a
        marked byte, bool[count]."""
        found = np.zeros(count, bool)
        with self._lock:
            for low, high in self._marked.ranges:
                begin, end = low // unit - first, -(-high // unit) - first
                found[max(begin, 0) : max(end, 0)] = True
        return found

    def clear(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Take the marks of ``ranges``, (first byte, bytes), away, which were written or
        deallocated."""

        def clear_all() -> None:
            for first, size in ranges:
                self._marked.clear(first, size)

        self.change(clear_all)

    def change(self, function: Callable[[], Found]) -> tuple[Found, bool]:
        """Call ``function``, which may change the marks, with the lock, and keep a change. Return
        its result, and False if there is a change that cannot be kept."""
        with self._lock:
            before = list(self._marked.ranges)
            found = function()
            changed = before != self._marked.ranges
        if changed:
            try:
                self._save()
            except InputError:
                return found, False
        return found, True
