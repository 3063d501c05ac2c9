"""Media state of a served drive for all protocols: byte ranges marked uncorrectable, and whether
data was written since the last sanitize operation.

Owns the protection of this state by a lock, and the saving of changes. Does not own the ranges
(controller/uncorrectable.py), the NVMe commands (controller/io_commands.py) or the NBD requests
(nbd_session.py) that set, check or remove marks.
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
    """Do nothing: default of the argument ``save`` of MarkedBlocks, for a drive whose store
    contains no state of an NVMe controller."""


class MarkedBlocks:
    """Access to the media state ``state`` of one drive: the byte ranges that are marked
    uncorrectable, and the sanitize state.

    ``lock``: lock that is held for every access to the state. ``save``: function that writes the
    state to the store; it is called without holding ``lock``, and raises InputError if it fails.
    The truth value of the object is False if no range is marked, no write has to be recorded and no
    change has to be saved; clients then do not need to call its methods.
    """

    def __init__(
        self,
        state: Shared | MediaState,
        lock: threading.Lock,
        save: Callable[[], None] = keep_nothing,
    ) -> None:
        self._state, self._lock, self._save = state, lock, save
        self._kept = True
        """False if the last change could not be saved. The next call of ``change`` then saves the
        state, even if it does not change it."""

    def __bool__(self) -> bool:
        sanitize = self._state.sanitize
        erased = sanitize.erased or sanitize.status == IN_PROGRESS
        return erased or not self._kept or bool(self._marked.ranges)

    @property
    def _marked(self) -> Uncorrectable:
        return self._state.uncorrectable

    def touched(self, ranges: Iterable[tuple[int, int]]) -> list[bool]:
        """Return a list with one value for each of ``ranges`` (first byte, number of bytes): True
        if the range contains a marked byte."""
        with self._lock:
            return [self._marked.touches(first, size) for first, size in ranges]

    def units(self, first: int, count: int, unit: int) -> np.ndarray:
        """Return a mask, bool[count], of the mapping units ``first`` to ``first + count - 1``: True
        if the mapping unit contains a marked byte. ``unit``: size of a mapping unit, bytes."""
        found = np.zeros(count, bool)
        with self._lock:
            for low, high in self._marked.ranges:
                begin, end = low // unit - first, -(-high // unit) - first
                found[max(begin, 0) : max(end, 0)] = True
        return found

    def clear(self, ranges: Iterable[tuple[int, int]], written: bool = False) -> bool:
        """Remove the marks in ``ranges`` (first byte, number of bytes), which a client that is not
        an NVMe host has written or deallocated.

        ``written``: True if the client has written data. Return True, or False if the change cannot
        be saved; the marks may then exist again after the next start of the drive.
        """

        def clear_all() -> None:
            for first, size in ranges:
                self._marked.clear(first, size)
            if written:
                self._state.sanitize = self._state.sanitize._replace(erased=False)
                self._state.written_beside = True

        return self.change(clear_all)[1]

    def change(self, function: Callable[[], Found]) -> tuple[Found, bool]:
        """Call ``function``, which may change the state, while holding the lock. Then save the
        state if it has changed. Return (result of ``function``, False if the state cannot be saved,
        otherwise True)."""
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
