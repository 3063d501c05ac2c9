"""Queue pairs in host memory: entries, heads, tails, phase tags, and shadow doorbells.

Owns the state of queues, the writing of completion queue entries, the pages with shadow doorbells
and event indexes, and the values of the event indexes. Does not own the creation of queues
(controller/queues.py), accesses to doorbell registers (pcie_function.py), the wait for register
accesses (vfio_user.py) or the commands.
Source: NVM Express NVMe over PCIe Transport Specification 1.0, section 3.1 (queues in memory,
doorbells); NVM Express Base Specification 2.0, sections 3.3.1 (queue usage, full and empty), 5.8
(Doorbell Buffer Config) and annex B.5.

The host creates shadow doorbells in its memory with the command Doorbell Buffer Config. They apply
to I/O queues; the admin queues use only doorbell registers. The host writes a register if the value
of a shadow doorbell passes its event index. Before the server sleeps, it sets the event index of a
submission queue to the tail that it has read. The host then writes the register for the next
command. The event index of a completion queue is set just before its head, so that the host does
not write the register. If the completion queue is full, the event index is its head, so that the
host writes the register when it consumes an entry.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ondie.emu.nvme.wire import SQE_BYTES, Cqe
from ondie.kernels.guest import CompletionRing, Doorbells, Guest

HALVES = struct.Struct("<QQ")
"""Completion queue entry as two 64-bit words."""
SPIN_NS = 20_000
"""Time for which shadow doorbells are polled before the server sleeps, ns."""


class QueueLost(Exception):
    """Error: the memory of a queue, or of the shadow doorbells, is no longer host memory. The
    controller cannot continue."""


@dataclass(eq=False, slots=True)
class CompletionQueue:
    """Completion queue of ``entries`` entries at host address ``base``."""

    number: int
    base: int
    entries: int
    vector: int
    """Interrupt vector, or -1 if the interrupts of the queue are disabled."""
    head: int = 0
    """Index of the oldest entry that the host has not consumed."""
    rung: int = 0
    """Last value that the host has written to the head doorbell, valid or not."""
    signaled: int = 0
    """Value of the tail when the last coalesced interrupt was sent."""
    memory: CompletionRing = field(init=False)
    waiting: deque[Cqe] = field(default_factory=deque)
    """Completions that wait for room in the queue."""

    def __post_init__(self) -> None:
        self.memory = CompletionRing(self.base, self.entries)

    @property
    def room(self) -> int:
        """Number of entries that can be posted before the host consumes another entry."""
        return self.entries - 1 - self.used - len(self.waiting)

    @property
    def used(self) -> int:
        """Number of entries that the host has not consumed."""
        return (self.memory.tail - self.head) % self.entries

    @property
    def unsignaled(self) -> int:
        """Number of entries posted since the last coalesced interrupt and not consumed by the
        host."""
        return min((self.memory.tail - self.signaled) % self.entries, self.used)

    def ring(self, head: int) -> bool:
        """Apply a write of ``head`` to the head doorbell; return False if the value is invalid."""
        self.rung = head
        if head >= self.entries or (head - self.head) % self.entries > self.used:
            return False
        self.head = head
        return True

    def post(self, guest: Guest, entries: list[Cqe]) -> bool:
        """Write ``entries`` to the queue after the entries in ``waiting``. Entries for which the
        queue has no room remain in ``waiting``. Return True if any entry was written. Raises
        QueueLost if the memory of the queue is no longer available."""
        self.waiting += entries
        posted = False
        while self.waiting and self.used < self.entries - 1:
            if not self.memory.post(guest, *HALVES.unpack(self.waiting.popleft().pack())):
                raise QueueLost
            posted = True
        return posted


@dataclass(eq=False, slots=True)
class SubmissionQueue:
    """Submission queue of ``entries`` entries at host address ``base``. ``completions``: completion
    queue for its commands."""

    number: int
    base: int
    entries: int
    completions: CompletionQueue
    head: int = 0
    tail: int = 0
    """Last valid tail that the host has written to the doorbell."""
    rung: int = 0
    """Last value that the host has written to the tail doorbell, valid or not."""
    running: set[int] = field(default_factory=set)
    """Identifiers of the uncompleted commands from this queue that nvme_io.py executes, such as
    running computation commands."""

    @property
    def used(self) -> int:
        """Number of entries that the host has submitted and the controller has not fetched yet."""
        return (self.tail - self.head) % self.entries

    def ring(self, tail: int) -> bool:
        """Apply a write of ``tail`` to the tail doorbell; return False if the value is invalid."""
        self.rung = tail
        if tail >= self.entries:
            return False
        self.tail = tail
        return True

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return the locations of the next ``count`` entries as a list of (host address, number of
        entries). The list has two parts if the entries wrap around the end of the queue."""
        first = min(count, self.entries - self.head)
        found = [(self.base + self.head * SQE_BYTES, first)]
        return found if first == count else [*found, (self.base, count - first)]

    def fetched(self, count: int) -> None:
        """Advance the head by ``count`` fetched entries."""
        self.head = (self.head + count) % self.entries


class ShadowDoorbells:
    """Shadow doorbells of the I/O queues of one controller. ``shadow``: host address of the page
    with the doorbells. ``events``: host address of the page with the event indexes. ``most``:
    maximum number of queue pairs."""

    def __init__(self, guest: Guest, shadow: int, events: int, most: int) -> None:
        self._memory = Doorbells(guest, shadow, events, 2 * most)

    def look(
        self,
        submission: Mapping[int, SubmissionQueue],
        completion: Mapping[int, CompletionQueue],
        sleep: bool = False,
    ) -> tuple[bool, int]:
        """Read the shadow doorbells, and apply their values to the queues. Return (True if any
        doorbell has changed, number of invalid values).

        ``sleep``: True if the server will sleep unless a doorbell has changed. In this case, the
        doorbells are polled for up to SPIN_NS. Raises QueueLost if the pages are no longer host
        memory.
        """
        queues: list[SubmissionQueue | CompletionQueue] = []
        bells = self._memory.bells
        for number, queue in submission.items():
            if number:
                bells[len(queues)] = 2 * number, queue.rung, queue.tail, 0
                queues.append(queue)
        for number, completions in completion.items():
            if number:
                full = bool(completions.waiting) or completions.room <= 0
                event = completions.head if full else completions.head - 1 & 0xFFFF
                bells[len(queues)] = 2 * number + 1, completions.rung, event, 0
                queues.append(completions)
        found = self._memory.look(len(queues), SPIN_NS if sleep else 0, sleep)
        if found < 0:
            raise QueueLost
        wrong = 0
        if found:
            for each, bell in zip(queues, bells["seen"][: len(queues)].tolist(), strict=True):
                if bell != each.rung:
                    wrong += not each.ring(bell)
        return bool(found), wrong
