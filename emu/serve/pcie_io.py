"""Execution of I/O commands from queues in host memory, in batches.

Owns the order in which queues are served, and the choice between two paths of execution. C code
(csrc/guest.c) decodes and completes plain commands, which are ordinary reads and writes. All other
commands are executed by nvme_io.py. Does not own the queues (pcie_queues.py) or the rules of
commands (controller/io_commands.py).
Source: NVM Express Base Specification 2.0, sections 3.4.2 (command processing) and 3.4.4 (round
robin arbitration).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ondie.emu.controller.admin import TO_CONTROLLER, Controller
from ondie.emu.controller.health_logs import FAILED as SANITIZE_FAILED
from ondie.emu.controller.health_logs import IN_PROGRESS as SANITIZE_IN_PROGRESS
from ondie.emu.controller.io_commands import record, transfer_of
from ondie.emu.controller.log_pages import NO_LOCATION
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.engine.core.state import as_records
from ondie.emu.nvme.command import COMMAND, READ, WRITE
from ondie.emu.nvme.wire import Cqe, Sqe
from ondie.emu.serve.guest_memory import GuestMemory
from ondie.emu.serve.host_data import POINTER_BYTE, Pieces, gather, pieces_of, scatter
from ondie.emu.serve.io_request import IoRequest, IoResult
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_io import IoRunner
from ondie.emu.serve.pcie_queues import CompletionQueue, QueueLost, SubmissionQueue
from ondie.emu.units import InputError
from ondie.kernels import guest
from ondie.kernels.errors import KernelError
from ondie.kernels.guest import Batch, Guest

MOST_COMMANDS = 256
"""Maximum number of commands in a batch."""
AREA_BYTES = 1 << 25
"""Size of the data area for the plain commands (ordinary reads and writes) of a batch, bytes.
Commands whose data does not fit in the area are executed by nvme_io.py, which is slower."""
CID_BYTE = 2


class Part(NamedTuple):
    """Part of a batch: the commands that were fetched from one submission queue."""

    queue: SubmissionQueue
    first: int
    """Index of the first command of the part in the batch."""
    size: int
    """Number of commands in the part."""


class MemoryIo:
    """Executor of the I/O commands of ``controller``, whose queues are in host memory. ``wake``:
    callback that causes the thread of this object to call ``complete_late``."""

    def __init__(self, drive: NvmeDrive, controller: Controller, wake: Callable[[], None]) -> None:
        self._drive, self._controller, self._wake = drive, controller, wake
        self._late: deque[tuple[SubmissionQueue, Pieces, IoRequest, IoResult]] = deque()
        """(Queue, pieces of host memory, command, completion) of computation commands that are
        done. Other threads add entries."""
        self._area = np.empty(AREA_BYTES, np.uint8)
        offered = drive.capabilities
        unit, transfer = offered.mapping_unit_bytes, offered.transfer_bytes
        self.guest = Guest(READ, WRITE, unit, transfer, self._area)
        self.memory = GuestMemory(self.guest)
        self._commands = as_records(np.zeros(MOST_COMMANDS, COMMAND))
        self._batch = Batch(self.guest, self._commands, MOST_COMMANDS)
        self._client = drive.served.connect()
        self._runner = IoRunner(drive, controller)
        self._first = 0
        """Index of the submission queue that was served first in the last batch (round robin)."""
        self._generation = -1

    def run(self, queues: Sequence[SubmissionQueue]) -> tuple[bool, set[CompletionQueue]]:
        """Fetch a batch of commands from ``queues``, and run it. Return (True if more commands may
        be waiting, completion queues to which completions were posted). Raises QueueLost if the
        memory of a queue is no longer available."""
        parts, more = self._fetch(queues)
        if not parts:
            return False, set()
        with self._drive.gate.together(self._drive.sanitizing) as passed:
            made = self._decode(parts, passed)  # what was decoded holds until it has run
            if made:
                self._run_plain(made)
        posted, plain = self._finish_plain(parts) if made else (set(), 0)
        if plain < sum(part.size for part in parts):
            posted |= self._run_others(parts)
        return more, posted

    def _fetch(self, queues: Sequence[SubmissionQueue]) -> tuple[list[Part], bool]:
        """Fetch commands from all queues in round-robin order, but not more than their completion
        queues have room for. Return (parts of the batch, True if more commands may be waiting).
        Raises QueueLost if the memory of a queue is no longer available."""
        parts: list[Part] = []
        left, more = MOST_COMMANDS, False
        taken: dict[CompletionQueue, int] = {}
        """Number of entries of each completion queue that are reserved for the commands of this
        batch and for running computation commands."""
        for queue in queues:
            taken[queue.completions] = taken.get(queue.completions, 0) + len(queue.running)
        self._first = (self._first + 1) % len(queues) if queues else 0
        for queue in [*queues[self._first :], *queues[: self._first]]:
            used, completions = queue.used, queue.completions
            if not used:
                continue
            room = completions.room - taken.get(completions, 0)
            count = min(used, room, left)
            if count > 0:
                first = MOST_COMMANDS - left
                at = first
                for address, entries in queue.parts(count):
                    if not self._batch.fetch(at, address, entries):
                        raise QueueLost
                    at += entries
                queue.fetched(count)
                parts.append(Part(queue, first, count))
                taken[completions] = taken.get(completions, 0) + count
                left -= count
            more |= used > count and room > count
        return parts, more

    def _decode(self, parts: list[Part], passed: bool) -> int:
        """Decode a batch; return the number of plain commands. ``passed``: True if the caller holds
        the gate of the drive; otherwise no command is treated as plain."""
        controller = self._controller
        with self._drive.lock:
            shared = controller.shared
            sanitizing = shared.sanitize.status in (SANITIZE_IN_PROGRESS, SANITIZE_FAILED)
            fast = passed and not sanitizing and not shared.uncorrectable.ranges
            through = not controller.features.cache_enabled
            if self._generation != self._drive.generation:
                self._generation = self._drive.generation
                self._set_spaces()
        self.guest.set_page(controller.registers.page_bytes, through)
        self.guest.begin()
        made = 0
        for queue, first, count in parts:
            made = self._batch.decode(
                first, count, fast and not self._in_use(queue, first, count), made
            )
        return made

    def _in_use(self, queue: SubmissionQueue, first: int, count: int) -> bool:
        """Return True if any of ``count`` commands of the batch, starting at index ``first``, has
        the identifier of a running computation command of ``queue``."""
        if not queue.running:
            return False
        found = self._batch.entries[first : first + count, CID_BYTE : CID_BYTE + 2]
        return not queue.running.isdisjoint(np.frombuffer(found.tobytes(), "<u2").tolist())

    def _set_spaces(self) -> None:
        """Pass the namespaces to the C code that decodes commands."""
        spaces = [(0, 0, 0, False)] * (self._drive.capabilities.namespaces + 1)
        for nsid, each in self._controller.namespaces.by_nsid.items():
            if each.attached and not each.states:
                spaces[nsid] = each.first, each.blocks, each.block_bytes, not each.write_protected
        self.guest.set_spaces(spaces)

    def _run_plain(self, made: int) -> None:
        """Run the ``made`` plain commands of a batch. The caller holds the gate of the drive."""
        statuses = self._batch.statuses
        try:
            done = self._client.run(self._commands[:made], self._area)
        except (InputError, KernelError):  # the power was cut, or the service has ended
            statuses[:made] = Code.INTERNAL_ERROR
            return
        statuses[done["tag"]] = done["status"]
        with self._drive.lock:  # they arrived together, and are in the order of their ends
            self._drive.add_busy(int(done[0]["arrival"]), int(done[-1]["end"]))

    def _finish_plain(self, parts: list[Part]) -> tuple[set[CompletionQueue], int]:
        """Complete the plain commands that have succeeded. Return (their completion queues, number
        of completed commands). Raises QueueLost if the memory of a queue is no longer available."""
        found, number, lost = set(), 0, False
        for queue, first, size in parts:
            ring = queue.completions.memory
            posted = self._batch.finish(first, size, queue.number, queue.head, ring)
            if posted:
                found.add(queue.completions)
            number += posted
            lost |= posted < 0
        reads, writes, unaligned = self.guest.take_counts()
        with self._drive.lock:
            shared = self._controller.shared
            shared.read_commands += reads
            shared.write_commands += writes
            shared.unaligned += unaligned
            if writes and shared.sanitize.erased:
                shared.sanitize = shared.sanitize._replace(erased=False)
        if lost:
            raise QueueLost
        return found, number

    # --- other commands

    def _run_others(self, parts: list[Part]) -> set[CompletionQueue]:
        """Run the commands of a batch that are not plain, and complete the failed plain commands.
        Return the completion queues to which completions were posted. Raises QueueLost if the
        memory of a queue is no longer available."""
        others = self._batch.requests["kind"] != guest.PLAIN
        posts: dict[CompletionQueue, list[Cqe]] = {}
        requests: list[IoRequest] = []
        targets: list[tuple[SubmissionQueue, Pieces]] = []
        for queue, first, count in parts:
            for at in (first + np.flatnonzero(others[first : first + count])).tolist():
                sqe = Sqe.unpack(self._batch.entries[at].tobytes())
                request = self._batch.requests[at]
                if request["kind"] == guest.FAILED:
                    status = int(self._batch.statuses[request["command"]])
                    self._complete(posts, queue, sqe, status, NO_LOCATION)
                    continue
                try:
                    self._prepare(int(request["kind"]), queue, sqe, requests, targets)
                except Refused as refused:
                    self._complete(posts, queue, sqe, refused.code, refused.where)
        places = {(each.sqid, each.sqe.cid): at for at, each in enumerate(requests)}

        def later(request: IoRequest, result: IoResult) -> None:
            queue, pieces = targets[places[request.sqid, request.sqe.cid]]
            self._late.append((queue, pieces, request, result))
            self._wake()

        for (queue, _), request in zip(targets, requests, strict=True):
            queue.running.add(request.sqe.cid)
        results = self._runner.run(requests, later) if requests else []
        for (queue, pieces), request, result in zip(targets, requests, results, strict=True):
            if result is not None:
                self._finish(posts, queue, pieces, request, result)
        return {each for each, entries in posts.items() if each.post(self.guest, entries)}

    def complete_late(self, queues: Sequence[SubmissionQueue]) -> set[CompletionQueue]:
        """Complete the computation commands of ``queues`` that are done. Drop the completions for
        queues that no longer exist. Return the completion queues to which completions were posted.
        Raises QueueLost if the memory of a queue is no longer available."""
        posts: dict[CompletionQueue, list[Cqe]] = {}
        while self._late:
            queue, pieces, request, result = self._late.popleft()
            if any(each is queue for each in queues):
                self._finish(posts, queue, pieces, request, result)
        return {each for each, entries in posts.items() if each.post(self.guest, entries)}

    def _finish(
        self, posts: dict[CompletionQueue, list[Cqe]], queue: SubmissionQueue, pieces: Pieces,
        request: IoRequest, result: IoResult,
    ) -> None:  # fmt: skip
        """Write the data of a command to host memory, and add its completion to ``posts``."""
        queue.running.discard(request.sqe.cid)
        if len(result.data) and not scatter(pieces, result.data, self.memory):
            self._complete(posts, queue, request.sqe, Code.DATA_TRANSFER_ERROR, POINTER_BYTE)
            return
        entry = result.cqe._replace(sqhd=queue.head, sqid=queue.number)
        posts.setdefault(queue.completions, []).append(entry)

    def _prepare(
        self,
        kind: int,
        queue: SubmissionQueue,
        sqe: Sqe,
        requests: list[IoRequest],
        targets: list[tuple[SubmissionQueue, Pieces]],
    ) -> None:
        """Append a command to ``requests``, and (its queue, its pieces of host memory) to
        ``targets``. ``kind``: result of the C decoder (kernels/guest.py). Raises Refused if the
        command identifier is in use, or if the host memory for the data is invalid."""
        if kind == guest.CONFLICT or sqe.cid in queue.running:
            raise Refused(Code.ID_CONFLICT, CID_BYTE)
        if kind == guest.LOST:
            raise Refused(Code.DATA_TRANSFER_ERROR, POINTER_BYTE)
        with self._drive.lock:
            direction, size = transfer_of(sqe, self._controller)
        to_controller = direction == TO_CONTROLLER
        page = self._controller.registers.page_bytes
        pieces = pieces_of(sqe, size, to_controller, page, self.memory)
        data = gather(pieces, self.memory) if to_controller else b""
        requests.append(IoRequest(queue.number, sqe, data))
        targets.append((queue, pieces))

    def _complete(
        self,
        posts: dict[CompletionQueue, list[Cqe]],
        queue: SubmissionQueue,
        sqe: Sqe,
        status: int,
        where: int,
    ) -> None:
        """Add the completion of a failed command to ``posts``, and the error to the error log."""
        with self._drive.lock:
            field = record(self._controller, queue.number, sqe, status, where)
        entry = Cqe(sqe.cid, field, sqhd=queue.head, sqid=queue.number)
        posts.setdefault(queue.completions, []).append(entry)
