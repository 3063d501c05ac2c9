"""Gate for commands that must run alone, such as Format NVM, among those that run together.

Owns the gate. Does not own which commands run alone (controller/opcodes.py).
Source: NVM Express Base Specification 2.0, field Command Submission and Execution of the Commands
Supported and Effects data structure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Gate that threads enter together, or one thread alone. A thread that waits to be alone stops
    later ones, so that it does not wait forever. A thread must not enter it twice."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = 0
        """Threads that are alone or wait for it."""

    @contextmanager
    def together(self, refused: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Enter the gate together with other threads; yield True. If ``refused`` returns True while
        another thread is alone or waits for it, yield False without passing. ``refused`` is called
        at the start, and whenever a thread is no longer alone."""
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
        """Enter the gate alone: wait until the threads inside have left, and let others wait."""
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
