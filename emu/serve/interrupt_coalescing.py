"""Times of the interrupts of I/O queues: features Interrupt Coalescing and Interrupt Vector
Configuration.

Owns which interrupts wait, and until when. Does not own the queues (pcie_queues.py), the values of
the features (controller/features.py) or the events of the host (vfio_user.py).
Source: NVM Express Base Specification 2.0, section 5.27.1.6 (Interrupt Coalescing, which does not
apply to admin queues) and 5.27.1.7 (Interrupt Vector Configuration).
"""

from __future__ import annotations

from collections.abc import Iterable

from ondie.emu.controller.features import INTERRUPT_COALESCING, INTERRUPT_VECTOR, Features
from ondie.emu.serve.pcie_queues import CompletionQueue

UNIT_NS = 100_000
"""Unit of the aggregation time, ns."""
DISABLED = 1 << 16
"""Bit of the configuration of a vector: its interrupts do not wait."""


class InterruptCoalescing:
    """Interrupts of the I/O queues of a controller that wait for more completions or for a time."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._waiting: dict[int, tuple[int, set[CompletionQueue]]] = {}
        """Time at which the interrupt of a vector is due (ns), and the queues that it is for."""

    def posted(self, queues: Iterable[CompletionQueue], now_ns: int) -> set[int]:
        """Record completions that were posted to ``queues`` at ``now_ns``; return the vectors whose
        interrupts are to be sent now."""
        setting = self._features.value(INTERRUPT_COALESCING)
        most, wait_ns = (setting & 0xFF) + 1, (setting >> 8) * UNIT_NS
        found = set()
        for queue in queues:
            vector = queue.vector
            if vector < 0:
                continue
            config = self._features.value(INTERRUPT_VECTOR, vector)
            if most == 1 or not wait_ns or config & DISABLED:
                found.add(vector)
                continue
            self._waiting.setdefault(vector, (now_ns + wait_ns, set()))[1].add(queue)
            if sum(each.unsignaled for each in self._waiting[vector][1]) >= most:
                found.add(vector)
        return found

    def due(self, now_ns: int) -> set[int]:
        """Return the vectors whose interrupts have waited until ``now_ns``. A host that has taken
        all completions in the meantime needs none."""
        found = set()
        for vector, (until_ns, queues) in list(self._waiting.items()):
            if not any(each.used for each in queues):
                self.sent(vector)
            elif until_ns <= now_ns:
                found.add(vector)
        return found

    def sent(self, vector: int) -> None:
        """Record that the interrupt of a vector has been sent."""
        for queue in self._waiting.pop(vector, (0, ()))[1]:
            queue.signaled = queue.memory.tail

    def forget(self) -> None:
        """Drop all interrupts: the queues are gone."""
        self._waiting.clear()

    def wait_ns(self, now_ns: int) -> int | None:
        """Return the time from ``now_ns`` until an interrupt is due, or None."""
        if not self._waiting:
            return None
        return max(min(until_ns for until_ns, _ in self._waiting.values()) - now_ns, 0)
