"""Marks of Write Uncorrectable, and that nothing was written since a sanitize operation, as all
protocols of a served drive respect them.

Owns the lock around both, and the storage of changes. Does not own the ranges
(controller/uncorrectable.py), or the commands that read or clear them: those of NVMe
(controller/io_commands.py) and of NBD (nbd_session.py).
Source: NVM Command Set Specification 1.0, section 3.2.7 (Write Uncorrectable); NVM Express Base
Specification 2.0, Sanitize Status log page (Global Data Erased).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from ondie.emu.controller.health_logs import IN_PROGRESS
from ondie.emu.controller.shared import MediaState, Shared
from ondie.emu.controller.uncorrectable import Uncorrectable
from ondie.emu.units import InputError

Found = TypeVar("Found")


def keep_nothing() -> None:
    """Do nothing when marks change: the drive has had no NVMe controller, and so no marks."""


class MarkedBlocks:
    """The marks of one drive in ``state``. ``lock``: held for every use of the state. ``save``:
    writes the state to the store, without ``lock``; raises InputError. The truth value is True if a
    read may fail, or writes must be recorded."""

    def __init__(
        self,
        state: Shared | MediaState,
        lock: threading.Lock,
        save: Callable[[], None] = keep_nothing,
    ) -> None:
        self._state, self._lock, self._save = state, lock, save
        self._kept = True
        """False: a change could not be kept. The next one tries again."""

    def __bool__(self) -> bool:
        sanitize = self._state.sanitize
        erased = sanitize.erased or sanitize.status == IN_PROGRESS
        return erased or not self._kept or bool(self._marked.ranges)

    @property
    def _marked(self) -> Uncorrectable:
        return self._state.uncorrectable

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

    def clear(self, ranges: Iterable[tuple[int, int]], written: bool = False) -> bool:
        """Remove the marks of ``ranges``, (first byte, bytes), that a client other than an NVMe
        host has written or deallocated. ``written``: data of that client were written. Return False
        if a change cannot be kept: after the next start, blocks of them may be marked."""

        def clear_all() -> None:
            for first, size in ranges:
                self._marked.clear(first, size)
            if written:
                self._state.sanitize = self._state.sanitize._replace(erased=False)
                self._state.written_beside = True

        return self.change(clear_all)[1]

    def change(self, function: Callable[[], Found]) -> tuple[Found, bool]:
        """Call ``function``, which may change the state, with the lock, and save a change. Return
        its result, and False if there is a change that cannot be saved."""
        with self._lock:
            before = list(self._marked.ranges), self._state.sanitize
            found = function()
            changed = before != (self._marked.ranges, self._state.sanitize)
        if changed or not self._kept:
            # before the change is kept: that of another thread may fail meanwhile
            self._kept = True
            try:
                self._save()
            except InputError:
                self._kept = False
                return found, False
        return found, True
