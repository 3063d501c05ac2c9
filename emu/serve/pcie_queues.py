"""Queue pairs in the memory of a host: entries, heads, tails, phase tags, doorbells in memory.

Owns the state of queues, the reading and writing of their entries, the pages that the command
Doorbell Buffer Config names, and the event index, which makes a host write the register. Does not
own which queues exist (controller/queues.py), accesses to doorbell registers (pcie_function.py),
the wait for them (vfio_user.py) or the commands. Source: NVM Express NVMe over PCIe Transport
Specification 1.0, section 3.1 (queues in memory, doorbells); NVM Express Base Specification 2.0,
sections 3.3.1 (queue usage, full and empty), 5.8 (Doorbell Buffer Config) and annex B.5.

With doorbells in memory, the admin queues stay with their registers. The host writes a register if
a doorbell passes its event index: that of a submission queue is the number of fetched entries, so
the host writes the register for the next entry; that of a completion queue is behind its head, so
it never does, unless completions wait for room.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ondie.emu.nvme.wire import SQE_BYTES, Cqe
from ondie.kernels.guest import CompletionRing, Doorbells, Guest

HALVES = struct.Struct("<QQ")
"""Layout of a completion queue entry as two 64-bit words."""
SPIN_NS = 20_000
"""Time for which doorbells are read again before the server sleeps, ns."""


class QueueLost(Exception):
    """Error: the memory of a queue has gone, so that the controller cannot continue."""


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
        """Apply a write of the head doorbell; return False for an invalid value."""
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
    """Tail that the host has written to the doorbell."""
    rung: int = 0
    """Last value of the doorbell, right or wrong."""
    running: set[int] = field(default_factory=set)
    """Identifiers of computation commands that were fetched and have not completed."""

    @property
    def used(self) -> int:
        """Number of entries that were not fetched."""
        return (self.tail - self.head) % self.entries

    def ring(self, tail: int) -> bool:
        """Apply a write of the tail doorbell; return False for an invalid value."""
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


class ShadowDoorbells:
    """The doorbells of the I/O queues of one controller with up to ``most`` queue pairs."""

    def __init__(self, guest: Guest, shadow: int, events: int, most: int) -> None:
        self._memory = Doorbells(guest, shadow, events, 2 * most)

    def look(
        self,
        submission: Mapping[int, SubmissionQueue],
        completion: Mapping[int, CompletionQueue],
        sleep: bool = False,
    ) -> tuple[bool, int]:
        """Apply the values of the doorbells; return (True if any has changed, number of invalid
        values).

        ``sleep``: the server sleeps if none has changed. Raises QueueLost if the pages are not
        there.
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
