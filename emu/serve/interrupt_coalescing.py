"""Interrupt coalescing: delay of the interrupts of I/O queues as set with the features Interrupt
Coalescing and Interrupt Vector Configuration.

Owns the delayed interrupts and their deadlines. Does not own the queues (pcie_queues.py), the
values of the features (controller/features.py) or the event descriptors of the host (vfio_user.py).
Source: NVM Express Base Specification 2.0, sections 5.27.1.6 (Interrupt Coalescing, which does not
apply to admin queues) and 5.27.1.7 (Interrupt Vector Configuration).
"""

from __future__ import annotations

from collections.abc import Iterable

from ondie.emu.controller.features import INTERRUPT_COALESCING, INTERRUPT_VECTOR, Features
from ondie.emu.serve.pcie_queues import CompletionQueue

UNIT_NS = 100_000
"""Unit of the aggregation time in the feature Interrupt Coalescing, ns."""
DISABLED = 1 << 16
"""Bit of the Interrupt Vector Configuration that disables coalescing for a vector."""


class InterruptCoalescing:
    """Delayed interrupts of the I/O queues of one controller. An interrupt is delayed until the
    number of posted completions reaches the aggregation threshold, or until the deadline of the
    interrupt has passed."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._waiting: dict[int, tuple[int, set[CompletionQueue]]] = {}
        """(Deadline in ns, completion queues) of each delayed interrupt, by vector."""

    def posted(self, queues: Iterable[CompletionQueue], now_ns: int) -> set[int]:
        """Record that completions were posted to ``queues`` at time ``now_ns``; return the vectors
        whose interrupts must be sent immediately."""
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
        """Return the vectors of the interrupts whose deadlines have passed at time ``now_ns``. Drop
        each interrupt for which the host has already consumed all completions."""
        found = set()
        for vector, (until_ns, queues) in list(self._waiting.items()):
            if not any(each.used for each in queues):
                self.sent(vector)
            elif until_ns <= now_ns:
                found.add(vector)
        return found

    def sent(self, vector: int) -> None:
        """Record that the interrupt of ``vector`` was sent."""
        for queue in self._waiting.pop(vector, (0, ()))[1]:
            queue.signaled = queue.memory.tail

    def forget(self) -> None:
        """Drop all delayed interrupts because the queues were removed."""
        self._waiting.clear()

    def wait_ns(self, now_ns: int) -> int | None:
        """Return the time from ``now_ns`` to the next deadline, ns, or None if no interrupt is
        delayed."""
        if not self._waiting:
            return None
        return max(min(until_ns for until_ns, _ in self._waiting.values()) - now_ns, 0)
