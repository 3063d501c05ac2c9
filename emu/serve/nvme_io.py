"""I/O commands of an NVMe transport: execution of batches of commands on the served drive.

Owns the data area of a batch, the order of the stages of its commands, and the completions of the
commands. Does not own the rules of the commands (controller/io_commands.py), host memory, capsules
or queues (the transports), or the drive and its clock (emu/service.py).
Source: NVM Express Base Specification 2.0, section 3.4 (command processing); batches as in
nbd_session.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ondie.emu.controller.admin import Controller
from ondie.emu.controller.io_commands import WITH_DATA, IoPlan, decode, finish, record
from ondie.emu.controller.opcodes import Nvm
from ondie.emu.controller.status_code import Code, Refused, status_field
from ondie.emu.nvme.wire import Cqe
from ondie.emu.serve.computation import Later, drop
from ondie.emu.serve.io_request import NO_DATA, IoRequest, IoResult
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.units import InputError
from ondie.kernels.errors import KernelError

CID_BYTE = 2
CHANGES_MARKS = (Nvm.WRITE, Nvm.WRITE_ZEROES, Nvm.DATASET_MANAGEMENT, Nvm.WRITE_UNCORRECTABLE)
"""Commands that mark blocks as uncorrectable or remove such marks."""
MOST_AREA = 1 << 24
"""Maximum size of the data area of a part of a batch, bytes. A batch that needs a larger data area
is run in several parts."""


@dataclass(eq=False)
class _Running:
    """Valid I/O command of a batch: its plan, and the statuses of its drive commands."""

    at: int
    """Index of the command in the batch."""
    request: IoRequest
    plan: IoPlan
    first: int = 0
    """Offset of the command's data in the data area of the batch, bytes."""
    statuses: list[int] = field(default_factory=list)


class IoRunner:
    """Executor of batches of I/O commands for ``controller`` of ``drive``, for use by one thread.

    All commands of a batch are in flight at the same time and may complete in any order, as NVMe
    allows.
    """

    def __init__(self, drive: NvmeDrive, controller: Controller) -> None:
        self._drive, self._controller = drive, controller
        self._client = drive.served.connect()
        self._area = np.zeros(1 << 16, np.uint8)

    def run(
        self,
        requests: Sequence[IoRequest],
        later: Later = drop,
        seen: set[tuple[int, int]] | None = None,
    ) -> list[IoResult | None]:
        """Run ``requests``; return their completions in the same order.

        The result for a computation command that does not complete immediately is None; ``later``
        receives its completion. ``seen``: set of the commands in earlier parts of the batch as
        (queue, command identifier); the commands of ``requests`` are added to it. If two commands
        of the same queue in the batch have the same identifier, the later command fails with
        Command ID Conflict.
        """
        computation = self._drive.computation
        seen = set() if seen is None else seen
        if computation is None or not any(map(computation.takes, requests)):
            return list(self._run_commands(requests, seen))
        most = self._drive.capabilities.transfer_bytes
        results: list[IoResult | None] = [None] * len(requests)
        others: list[int] = []
        for at, request in enumerate(requests):
            identifier = request.sqid, request.sqe.cid
            if identifier in seen:
                refused = Refused(Code.ID_CONFLICT, CID_BYTE)
                with self._drive.lock:
                    results[at] = self._refused(request, refused)
            elif computation.takes(request):
                results[at] = computation.start(self._controller, request, later, most)
            else:
                others.append(at)
            seen.add(identifier)
        if others:  # otherwise they need not pass the gate
            found = self._run_commands([requests[at] for at in others], set())
            for at, result in zip(others, found, strict=True):
                results[at] = result
        return results

    def _refused(self, request: IoRequest, refused: Refused) -> IoResult:
        """Return the completion of a refused command, and add the error to the error log. The
        caller holds the lock of the drive."""
        sqid, sqe, _ = request
        status = record(self._controller, sqid, sqe, refused.code, refused.where)
        return IoResult(Cqe(sqe.cid, status))

    def _run_commands(
        self, requests: Sequence[IoRequest], seen: set[tuple[int, int]]
    ) -> list[IoResult]:
        """Run commands of the NVM Command Set; return their completions. ``seen``: see
        :meth:`run`."""
        while True:
            with self._drive.gate.together(self._drive.sanitizing) as passed:
                if passed:
                    return self._run_all(requests, seen)
            with self._drive.lock:
                if self._drive.sanitizing():  # it refuses all of them
                    refused: list[IoResult | None] = [None] * len(requests)
                    self._decode(requests, refused, seen)
                    return [each for each in refused if each is not None]

    def _run_all(self, requests: Sequence[IoRequest], seen: set[tuple[int, int]]) -> list[IoResult]:
        """Run ``requests``; return their completions. The caller holds the gate of the drive.
        ``seen``: see :meth:`run`."""
        results: list[IoResult | None] = [None] * len(requests)
        with self._drive.lock:
            running = self._decode(requests, results, seen)
        first, parts = 0, []
        area = 0
        for at, each in enumerate(running):
            if area + each.plan.area > MOST_AREA and at > first:
                parts.append(running[first:at])
                first, area = at, 0
            each.first = area
            area += each.plan.area
        parts.append(running[first:])
        several = len(parts) > 1
        for part in parts:
            self._run_part(part, results, several)
        return [each for each in results if each is not None]

    def _decode(
        self,
        requests: Sequence[IoRequest],
        results: list[IoResult | None],
        seen: set[tuple[int, int]],
    ) -> list[_Running]:
        """Decode ``requests``. Return the valid commands, and write the completions of refused
        commands to ``results``. The caller holds the lock of the drive. ``seen``: see
        :meth:`run`."""
        running = []
        for at, request in enumerate(requests):
            sqid, sqe, data = request
            try:
                if (sqid, sqe.cid) in seen:
                    raise Refused(Code.ID_CONFLICT, CID_BYTE)
                seen.add((sqid, sqe.cid))
                ranges = bytes(data) if sqe.opcode == Nvm.DATASET_MANAGEMENT else b""
                plan = decode(sqe, self._controller, ranges)
                moved = plan.size if plan.opcode in (Nvm.WRITE, Nvm.COMPARE) else 0
                if plan.opcode != Nvm.DATASET_MANAGEMENT and len(data) != moved:
                    raise Refused(Code.DATA_TRANSFER_ERROR)
            except Refused as refused:
                results[at] = self._refused(request, refused)
            else:
                running.append(_Running(at, request, plan))
        return running

    def _run_part(
        self, part: list[_Running], results: list[IoResult | None], several: bool
    ) -> None:
        """Run the commands of one part of a batch; write their completions to ``results``.
        ``several``: True if the batch has several parts, so that the next part overwrites the data
        area and the data of the results must be copied."""
        size = sum(each.plan.area for each in part)
        if size > len(self._area):
            self._area = np.zeros(max(size, 2 * len(self._area)), np.uint8)
        for each in part:
            self._load(each)
        stage = 0
        while True:
            current = [
                each
                for each in part
                if stage < len(each.plan.stages) and not any(each.statuses)
            ]  # fmt: skip
            if not current:
                break
            self._run_stage(current, stage)
            stage += 1
        marks = self._drive.served.marks
        found, kept = marks.change(lambda: [self._finish(each) for each in part])
        for each, result in zip(part, found, strict=True):
            if each.plan.opcode in CHANGES_MARKS and not kept:
                result = IoResult(Cqe(each.request.sqe.cid, int(Code.INTERNAL_ERROR)))
            results[each.at] = result._replace(data=result.data.copy()) if several else result

    def _load(self, each: _Running) -> None:
        """Initialize the data area of a command with the data from the host or, if the command
        transfers no data, with zeros."""
        plan, first = each.plan, each.first
        if plan.opcode in (Nvm.WRITE, Nvm.COMPARE):
            self._area[first : first + plan.size] = np.frombuffer(each.request.data, np.uint8)
        elif plan.area and plan.opcode not in WITH_DATA:
            self._area[first : first + plan.area] = 0

    def _run_stage(self, current: list[_Running], stage: int) -> None:
        """Run stage number ``stage`` of all commands in ``current``, and append the statuses of the
        drive commands to ``statuses`` of the commands."""
        rows = [each.plan.stages[stage] for each in current]
        commands = np.concatenate(rows)
        at = 0
        for number, (each, some) in enumerate(zip(current, rows, strict=True)):
            part = commands[at : at + len(some)]
            part["data"][some["data"] >= 0] += each.first
            part["tag"] = number
            at += len(some)
        try:
            done = self._client.run(commands, self._area)
        except (InputError, KernelError):  # the power was cut, or the service has ended
            for each in current:
                each.statuses.append(int(Code.INTERNAL_ERROR))
            return
        for tag, status in zip(done["tag"].tolist(), done["status"].tolist(), strict=True):
            current[tag].statuses.append(status)
        with self._drive.lock:
            self._drive.add_busy(int(done["arrival"].min()), int(done["end"].max()))

    def _finish(self, each: _Running) -> IoResult:
        """Return the completion of a command whose stages have ended. The caller holds the lock of
        the drive."""
        plan, (sqid, sqe, _) = each.plan, each.request
        area = self._area[each.first : each.first + plan.area]
        status = finish(plan, each.statuses, area, self._controller)
        if status:
            return IoResult(Cqe(sqe.cid, record(self._controller, sqid, sqe, status)))
        data = area[: plan.size] if plan.opcode == Nvm.READ else NO_DATA
        return IoResult(Cqe(sqe.cid, status_field(status)), data)
