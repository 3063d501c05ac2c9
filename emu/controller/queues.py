"""I/O queues of a controller: their records, and the commands that create and delete queues.

Owns the records of the queues, and the statuses for invalid sizes and identifiers. Does not own the
memory, heads, tails and doorbells of the queues (the transport).
Source: NVM Express Base Specification 2.0, sections 5.4 to 5.7 (Create and Delete I/O Completion
and Submission Queue), figures "Command Specific Status Values" of these sections.
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.controller.actions import Action, Do
from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.registers import Registers
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.nvme.wire import Sqe

QID_BYTE, QSIZE_BYTE, CDW11_BYTE, CQID_BYTE, PRP_BYTE = 40, 42, 44, 46, 24
CONTIGUOUS, INTERRUPTS = 1 << 0, 1 << 1


class CompletionQueue(NamedTuple):
    queue: int
    entries: int
    base: int
    vector: int
    """Interrupt vector, or -1 if the interrupts of the queue are disabled."""


class SubmissionQueue(NamedTuple):
    queue: int
    entries: int
    base: int
    completion_queue: int
    priority: int


class Queues:
    """The I/O queues of one controller. The admin queues (identifier 0) always exist and are not
    included."""

    def __init__(self, capabilities: Capabilities, registers: Registers) -> None:
        self.capabilities = capabilities
        self.registers = registers
        self.submission: dict[int, SubmissionQueue] = {}
        self.completion: dict[int, CompletionQueue] = {}

    def reset(self) -> None:
        """Drop all I/O queues because of a controller reset."""
        self.submission.clear()
        self.completion.clear()

    def _check_new(self, sqe: Sqe, most: int, exponent: int, taken: bool) -> tuple[int, int]:
        """Check a command that creates a queue; return (identifier, number of entries).

        ``most``: largest valid identifier. ``exponent``: CC.IOSQES or CC.IOCQES. ``taken``: True if
        the identifier is in use. Raises Refused if the identifier, the size or the address is
        invalid, or if the memory of the queue is not contiguous.
        """
        queue, entries = sqe.cdw10 & 0xFFFF, (sqe.cdw10 >> 16) + 1
        if not 1 <= queue <= most or taken:
            raise Refused(Code.QUEUE_ID_INVALID, QID_BYTE)
        if not 2 <= entries <= self.capabilities.queue_entries or exponent == 0:
            raise Refused(Code.QUEUE_SIZE_INVALID, QSIZE_BYTE)
        if not sqe.cdw11 & CONTIGUOUS:
            raise Refused(Code.INVALID_FIELD, CDW11_BYTE)
        if sqe.prp1 % self.registers.page_bytes:
            raise Refused(Code.PRP_OFFSET_INVALID, PRP_BYTE)
        return queue, entries

    def create_completion(self, sqe: Sqe, most: int) -> Action:
        """Create an I/O completion queue; return the action for the transport. ``most``: largest
        valid queue identifier (feature Number of Queues). Raises Refused if a field of the command
        is invalid."""
        exponent, taken = self.registers.cc >> 20 & 0xF, sqe.cdw10 & 0xFFFF in self.completion
        queue, entries = self._check_new(sqe, most, exponent, taken)
        vector = sqe.cdw11 >> 16 if sqe.cdw11 & INTERRUPTS else -1
        if vector >= self.capabilities.vectors:
            raise Refused(Code.VECTOR_INVALID, CQID_BYTE)
        self.completion[queue] = CompletionQueue(queue, entries, sqe.prp1, vector)
        return Action(Do.CREATE_CQ, queue=queue, entries=entries, base=sqe.prp1, vector=vector)

    def create_submission(self, sqe: Sqe, most: int) -> Action:
        """Create an I/O submission queue; return the action for the transport. ``most``: largest
        valid queue identifier (feature Number of Queues). Raises Refused if a field of the command
        is invalid, or if the completion queue does not exist."""
        exponent, taken = self.registers.cc >> 16 & 0xF, sqe.cdw10 & 0xFFFF in self.submission
        queue, entries = self._check_new(sqe, most, exponent, taken)
        other = sqe.cdw11 >> 16
        if not 1 <= other <= self.capabilities.io_queues:
            raise Refused(Code.QUEUE_ID_INVALID, CQID_BYTE)
        if other not in self.completion:
            raise Refused(Code.CQ_INVALID, CQID_BYTE)
        priority = sqe.cdw11 >> 1 & 0b11
        found = SubmissionQueue(queue, entries, sqe.prp1, other, priority)
        self.submission[queue] = found
        return Action(
            Do.CREATE_SQ,
            queue=queue,
            completion_queue=other,
            entries=entries,
            base=sqe.prp1,
            priority=priority,
        )

    def delete_submission(self, sqe: Sqe) -> Action:
        """Delete an I/O submission queue; return the action for the transport. Raises Refused if
        the queue does not exist."""
        queue = sqe.cdw10 & 0xFFFF
        if queue not in self.submission:
            raise Refused(Code.QUEUE_ID_INVALID, QID_BYTE)
        del self.submission[queue]
        return Action(Do.DELETE_SQ, queue=queue)

    def delete_completion(self, sqe: Sqe) -> Action:
        """Delete an I/O completion queue; return the action for the transport. Raises Refused if
        the queue does not exist, or if a submission queue uses it."""
        queue = sqe.cdw10 & 0xFFFF
        if queue not in self.completion:
            raise Refused(Code.QUEUE_ID_INVALID, QID_BYTE)
        if any(each.completion_queue == queue for each in self.submission.values()):
            raise Refused(Code.QUEUE_DELETION_INVALID, QID_BYTE)
        del self.completion[queue]
        return Action(Do.DELETE_CQ, queue=queue)
