"""Readers-writer lock ("gate"): commands such as Format NVM hold it alone, and all other commands
hold it together.

Owns the gate. Does not own the choice of the commands that run alone (controller/opcodes.py).
Source: NVM Express Base Specification 2.0, field Command Submission and Execution of the Commands
Supported and Effects data structure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Readers-writer lock: either any number of threads hold it together, or one thread holds it
    alone. While a thread waits to hold the gate alone, threads that arrive later must wait;
    otherwise the first thread could wait forever. The gate is not reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = 0
        """Number of threads that hold the gate alone or wait to do so."""

    @contextmanager
    def together(self, refused: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold the gate together with other threads during a ``with`` block; yield True.

        If another thread holds the gate alone or waits to do so, call ``refused``. If ``refused``
        returns True, yield False without holding the gate; otherwise wait. ``refused`` may be
        called repeatedly while this thread waits.
        """
        with self._changed:
            while self._alone and not refused():
                self._changed.wait()
            passed = not self._alone
            self._inside += passed
        if not passed:
            yield False
            return
        try:
            yield True
        finally:
            with self._changed:
                self._inside -= 1
                if self._alone and not self._inside:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the gate alone during a ``with`` block. Wait until all other threads have released
        the gate; other threads that arrive later must wait."""
        with self._changed:
            self._alone += 1
            while self._inside:
                self._changed.wait()
            self._inside = 1
        try:
            yield
        finally:
            with self._changed:
                self._inside = 0
                self._alone -= 1
                self._changed.notify_all()
