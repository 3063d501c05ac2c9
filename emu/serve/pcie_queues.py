"""Queue pairs in the memory of a host: entries, heads, tails, phase tags.

Owns the state of queues, and the reading and writing of their entries. Does not own which queues
exist (controller/queues.py), doorbell accesses (pcie_function.py) or the commands.
Source: NVM Express NVMe over PCIe Transport Specification 1.0, section 3.1 (queues in memory,
doorbells); NVM Express Base Specification 2.0, section 3.3.1 (queue usage, full and empty).
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

from ondie.emu.nvme.wire import SQE_BYTES, Cqe
from ondie.kernels.guest import CompletionRing, Guest

HALVES = struct.Struct("<QQ")
"""The halves of a completion queue entry."""


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
    rung: int = 0
    """Last value of the doorbell, right or wrong."""
    signaled: int = 0
    """Tail at the last interrupt that has waited."""
    memory: CompletionRing = field(init=False)
    waiting: deque[Cqe] = field(default_factory=deque)
    """Completions for which there was no room."""

    def __post_init__(self) -> None:
        self.memory = CompletionRing(self.base, self.entries)

    @property
    def room(self) -> int:
        """Number of entries that can be posted before the host takes one."""
        return self.entries - 1 - self.used - len(self.waiting)

    @property
    def used(self) -> int:
        """Number of entries that the host has not taken."""
        return (self.memory.tail - self.head) % self.entries

    @property
    def unsignaled(self) -> int:
        """Number of entries that were posted since the last interrupt, and not taken."""
        return min((self.memory.tail - self.signaled) % self.entries, self.used)

    def ring(self, head: int) -> bool:
        """The host has written the head doorbell; return False for an invalid value."""
        self.rung = head
        if head >= self.entries or (head - self.head) % self.entries > self.used:
            return False
        self.head = head
        return True

    def post(self, guest: Guest, entries: list[Cqe]) -> bool:
        """Write completions, as far as there is room; the others wait. Return True if any was
        written. Raises QueueLost."""
        self.waiting += entries
        posted = False
        while self.waiting and self.used < self.entries - 1:
            if not self.memory.post(guest, *HALVES.unpack(self.waiting.popleft().pack())):
                raise QueueLost
            posted = True
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
    rung: int = 0
    """Last value of the doorbell, right or wrong."""
    running: set[int] = field(default_factory=set)
    """Identifiers of computation commands that were fetched and have not completed."""

    @property
    def used(self) -> int:
        """Number of entries that were not fetched."""
        return (self.tail - self.head) % self.entries

    def ring(self, tail: int) -> bool:
        """The host has written the tail doorbell; return False for an invalid value."""
        self.rung = tail
        if tail >= self.entries:
            return False
        self.tail = tail
        return True

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return where the next ``count`` entries are: (address, entries), two parts at most."""
        first = min(count, self.entries - self.head)
        found = [(self.base + self.head * SQE_BYTES, first)]
        return found if first == count else [*found, (self.base, count - first)]

    def fetched(self, count: int) -> None:
        """Count entries as fetched."""
        self.head = (self.head + count) % self.entries
