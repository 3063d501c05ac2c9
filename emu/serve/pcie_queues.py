"""Queue pairs in the memory of a host: entries, heads, tails, phase tags.

Owns the state of queues, and the reading and writing of their entries. Does not own which queues
exist (controller/queues.py), doorbell accesses (pcie_function.py) or the commands.
Source: NVM Express NVMe over PCIe Transport Specification 1.0, section 3.1 (queues in memory,
doorbells); NVM Express Base Specification 2.0, section 3.3.1 (queue usage, full and empty).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ondie.emu.nvme.wire import CQE_BYTES, SQE_BYTES, Cqe
from ondie.emu.serve.guest_memory import GuestMemory

PHASE_BYTE = 14
"""Byte of a completion with the phase tag in bit 0."""


class QueueLost(Exception):
    """The memory of a queue is not there any more: the controller cannot continue."""


@dataclass(eq=False, slots=True)
class CompletionQueue:
    """Completion queue of ``entries`` at address ``base``."""

    number: int
    base: int
    entries: int
    vector: int
    """Interrupt vector; -1: none."""
    head: int = 0
    """First entry that the host has not taken."""
    tail: int = 0
    phase: int = 1
    waiting: deque[Cqe] = field(default_factory=deque)
    """Completions for which there was no room."""

    @property
    def room(self) -> int:
        """Number of entries that can be posted before the host takes one."""
        return self.entries - 1 - self.used - len(self.waiting)

    @property
    def used(self) -> int:
        """Number of entries that the host has not taken."""
        return (self.tail - self.head) % self.entries

    def ring(self, head: int) -> bool:
        """The host has written the head doorbell; return False for an invalid value."""
        if head >= self.entries or (head - self.head) % self.entries > self.used:
            return False
        self.head = head
        return True

    def post(self, memory: GuestMemory, entries: list[Cqe]) -> bool:
        """Write completions, as far as there is room; the others wait. Return True if any was
        written. Raises QueueLost."""
        self.waiting += entries
        posted = False
        while self.waiting and self.used < self.entries - 1:
            data = bytearray(self.waiting.popleft().pack())
            data[PHASE_BYTE] |= self.phase
            if not memory.write_entry(self.base + self.tail * CQE_BYTES, bytes(data)):
                raise QueueLost
            posted = True
            self.tail += 1
            if self.tail == self.entries:
                self.tail, self.phase = 0, self.phase ^ 1
        return posted


@dataclass(eq=False, slots=True)
class SubmissionQueue:
    """Submission queue of ``entries`` at address ``base``."""

    number: int
    base: int
    entries: int
    completions: CompletionQueue
    head: int = 0
    tail: int = 0
    """As the host has written it to the doorbell."""

    @property
    def used(self) -> int:
        """Number of entries that were not fetched."""
        return (self.tail - self.head) % self.entries

    def ring(self, tail: int) -> bool:
        """The host has written the tail doorbell; return False for an invalid value."""
        if tail >= self.entries:
            return False
        self.tail = tail
        return True

    def fetch(self, memory: GuestMemory, most: int) -> list[bytes]:
        """Return up to ``most`` entries, bytes[64] each. Raises QueueLost."""
        found = []
        for _ in range(min(most, self.used)):
            entry = memory.read(self.base + self.head * SQE_BYTES, SQE_BYTES)
            if entry is None:
                raise QueueLost
            found.append(entry)
            self.head = (self.head + 1) % self.entries
        return found
