"""Doorbells that a host keeps in its memory, so that it need not write registers.

Owns the pages that the command Doorbell Buffer Config names, and when a host is told to write a
register after all. Does not own the queues (pcie_queues.py) or the wait for registers
(vfio_user.py).
Source: NVM Express Base Specification 2.0, section 5.8 (Doorbell Buffer Config) and annex B.5.

The admin queues stay with their registers. The host writes a register if a doorbell passes its
event index: that of a submission queue is what was fetched, so the host writes the register for
the next entry; that of a completion queue is behind its head, so it never does, unless completions
wait for room.
"""

from __future__ import annotations

from collections.abc import Mapping

from ondie.emu.serve.pcie_queues import CompletionQueue, QueueLost, SubmissionQueue
from ondie.kernels.guest import Doorbells, Guest

SPIN_NS = 20_000
"""Time for which doorbells are read again before the server sleeps, ns."""


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
        """Take the values of the doorbells; return (some have changed, number of wrong ones).

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
