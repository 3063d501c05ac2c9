"""NVMe controller as a PCIe function: accesses to its registers, queues in host memory, and
interrupts.

Owns the queues and doorbells of the function, the execution of the actions that register writes and
admin commands start, and the transfer of the data of admin commands. Does not own the state of the
controller (emu/controller), the drive (nvme_drive.py), host memory (guest_memory.py) or the
protocol messages for register accesses (vfio_user.py).
Source: NVM Express NVMe over PCIe Transport Specification 1.0; NVM Express Base Specification 2.0,
sections 3.4 to 3.7.

All commands of a batch have completed when ``work`` returns. Therefore no command is in flight when
the host resets the controller or unmaps memory. Commands that were not fetched are not executed.
Computation commands and tunnel commands are an exception: they may complete in a later call of
``work``, which checks again that their host memory is accessible.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from ondie.emu.controller.actions import Action, Do
from ondie.emu.controller.admin import TO_CONTROLLER
from ondie.emu.controller.admin import transfer_of as admin_transfer_of
from ondie.emu.controller.events import Event
from ondie.emu.controller.opcodes import Tunnel
from ondie.emu.controller.registers import DOORBELLS, State
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.controller.tunnel import Ended
from ondie.emu.nvme.wire import CQE_BYTES, SQE_BYTES, Cqe, Sqe
from ondie.emu.serve.host_data import PSDT, Pieces, gather, pieces_of, scatter
from ondie.emu.serve.interrupt_coalescing import InterruptCoalescing
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.pci_space import (
    BAR0_BYTES,
    MSIX_PENDING,
    MSIX_TABLE,
    PciSpace,
)
from ondie.emu.serve.pcie_io import MOST_COMMANDS, MemoryIo
from ondie.emu.serve.pcie_queues import (
    CompletionQueue,
    QueueLost,
    ShadowDoorbells,
    SubmissionQueue,
)

PSDT_BYTE = 1
TUNNEL = frozenset(Tunnel)


class PcieFunction:
    """PCIe function with a controller of ``drive``.

    ``interrupt``: callback that sends the interrupt of a vector, and returns False if the host has
    not enabled the interrupt. ``wake``: callback that causes the thread of this object to call
    ``work``. Other threads call ``wake``.
    """

    def __init__(
        self,
        drive: NvmeDrive,
        interrupt: Callable[[int], bool],
        wake: Callable[[], None],
    ) -> None:
        self.drive = drive
        self._interrupt, self._wake = interrupt, wake
        self.controller = drive.controller(self._post_later, self._deliver)
        self.registers = self.controller.registers
        self.space = PciSpace(drive.capabilities)
        self._io = MemoryIo(drive, self.controller, wake)
        self.memory = self._io.memory
        self._msix = bytearray(BAR0_BYTES - MSIX_TABLE)
        self._submission: dict[int, SubmissionQueue] = {}
        self._completion: dict[int, CompletionQueue] = {}
        self._shadow: ShadowDoorbells | None = None
        self._coalescing = InterruptCoalescing(self.controller.features)
        self.late_doorbells = 0
        """Number of times that a changed shadow doorbell was found after a sleep, although the host
        should have written the doorbell register."""
        self._later: deque[Cqe] = deque()
        """Completions for the admin queue. Other threads may add entries."""
        self._ended: deque[Ended] = deque()
        """Ended tunnel commands whose completions are not posted yet. Other threads add entries."""
        self._pointers: dict[int, tuple[Sqe, Pieces]] = {}
        """(Submission queue entry, pieces of host memory for the data) of each tunnel command that
        has not ended, by command identifier."""

    def close(self) -> None:
        """Remove the controller from the drive because the client has disconnected."""
        self.drive.remove(self.controller)

    # --- accesses of the host

    def read(self, offset: int, size: int) -> bytes:
        """Return the ``size`` bytes of BAR0 starting at ``offset``. ``offset + size`` must be at
        most BAR0_BYTES."""
        if offset >= MSIX_TABLE:
            return bytes(self._msix[offset - MSIX_TABLE : offset - MSIX_TABLE + size])
        if offset >= DOORBELLS:  # reading a doorbell returns nothing that is defined
            return bytes(size)
        with self.drive.lock:
            return self.registers.read(offset, size).to_bytes(size, "little")

    def write(self, offset: int, data: bytes) -> None:
        """Write ``data`` to BAR0 at ``offset``, and perform the actions that the write starts."""
        if offset >= MSIX_TABLE:
            end = min(offset + len(data), MSIX_PENDING)  # pending bits are read-only
            if offset < end:
                self._msix[offset - MSIX_TABLE : end - MSIX_TABLE] = data[: end - offset]
        elif offset >= DOORBELLS:
            if len(data) == 4:
                self.write_word(offset, int.from_bytes(data, "little"))
        else:
            with self.drive.lock:
                value = int.from_bytes(data, "little")
                actions = self.registers.write(offset, len(data), value)
            self._perform(actions)

    def write_word(self, offset: int, value: int) -> None:
        """Write ``value``, 4 bytes, to BAR0 at ``offset``."""
        if DOORBELLS <= offset < MSIX_TABLE:
            if offset % 4 == 0:
                self.ring((offset - DOORBELLS) // 4, value & 0xFFFF)
        else:
            self.write(offset, value.to_bytes(4, "little"))

    def set_pending(self, vector: int, pending: bool) -> None:
        """Set the MSI-X pending bit of ``vector``, or clear it if ``pending`` is False."""
        at, bit = MSIX_PENDING - MSIX_TABLE + vector // 8, 1 << vector % 8
        self._msix[at] = self._msix[at] | bit if pending else self._msix[at] & ~bit

    def ring(self, number: int, value: int) -> None:
        """Apply a write of ``value`` to doorbell register ``number``. An even number selects the
        tail of a submission queue, an odd number the head of a completion queue."""
        if self.registers.state is not State.READY:
            return
        if self._shadow is not None and number > 1:
            return  # the value in memory is at least as new
        queues = self._completion if number & 1 else self._submission
        queue = queues.get(number >> 1)
        if queue is None:
            self._report(Event.INVALID_DOORBELL)
        elif not queue.ring(value):
            self._report(Event.INVALID_DOORBELL_VALUE)

    def reset(self) -> None:
        """Perform a function level reset: set the function to its state after power-on. The data of
        the drive does not change."""
        self._drop_queues()
        with self.drive.lock:
            self.controller.subsystem_reset()
            self.registers.reset_occurred = 0
        self.space.reset()
        self._msix[:] = bytes(len(self._msix))

    # --- actions

    def _perform(self, actions: Sequence[Action]) -> None:
        """Perform the actions that a register write has started."""
        for action in actions:
            match action.do:
                case Do.ENABLE:
                    self._enable()
                case Do.RESET:
                    self._drop_queues()
                    with self.drive.lock:
                        again = self.controller.disabled()
                    self._perform(again)
                case Do.SHUT_DOWN:
                    self.drive.shut_down(self.controller, action.abrupt)
                case Do.SUBSYSTEM_RESET:
                    self._drop_queues()
                    with self.drive.lock:
                        self.controller.subsystem_reset()

    def _enable(self) -> None:
        """Map the admin queues and set CSTS.RDY, or set the controller to the failed state if the
        queues are not in host memory."""
        registers = self.registers
        submission, completion = registers.admin_entries
        held = self.memory.holds(registers.asq, submission * SQE_BYTES)
        if not (held and self.memory.accepts(registers.acq, completion * CQE_BYTES)):
            with self.drive.lock:
                registers.fail()
            return
        self._io.guest.set_page(registers.page_bytes, False)
        queue = CompletionQueue(0, registers.acq, completion, vector=0)
        self._completion[0] = queue
        self._submission[0] = SubmissionQueue(0, registers.asq, submission, queue)
        self.drive.enabled(self.controller)

    def _drop_queues(self) -> None:
        self._shadow = None
        self._submission.clear()
        self._completion.clear()
        self._coalescing.forget()
        self._later.clear()
        self._pointers.clear()

    def _fail(self) -> None:
        """Set the controller to the failed state (CSTS.CFS = 1), in which it processes no commands
        until the host resets it."""
        with self.drive.lock:
            self.registers.fail()

    def _perform_admin(self, action: Action) -> bool:
        """Perform an action of an admin command. Return False if an address of the action is not in
        host memory."""
        match action.do:
            case Do.CREATE_CQ:
                if not self.memory.accepts(action.base, action.entries * CQE_BYTES):
                    self.controller.queues.completion.pop(action.queue)
                    return False
                self._completion[action.queue] = CompletionQueue(
                    action.queue, action.base, action.entries, action.vector
                )
            case Do.CREATE_SQ:
                if not self.memory.holds(action.base, action.entries * SQE_BYTES):
                    self.controller.queues.submission.pop(action.queue)
                    return False
                self._submission[action.queue] = SubmissionQueue(
                    action.queue, action.base, action.entries,
                    self._completion[action.completion_queue],
                )  # fmt: skip
            case Do.MAP_DOORBELLS:
                for base in (action.base, action.event_base):
                    if not self.memory.accepts(base, action.size):
                        return False
                most = self.drive.capabilities.io_queues
                self._shadow = ShadowDoorbells(self._io.guest, action.base, action.event_base, most)
            case Do.DELETE_CQ:
                del self._completion[action.queue]
            case Do.DELETE_SQ:
                del self._submission[action.queue]
        return True

    # --- commands

    def work(self) -> bool:
        """Fetch and execute commands, and post completions. Return True if more commands may be
        waiting."""
        if self.registers.state is not State.READY or not self.space.may_use_memory:
            return False
        try:
            return self._work()
        except QueueLost:
            self._fail()
            return False

    def _work(self) -> bool:
        posts = {queue: list[Cqe]() for queue in self._completion.values() if queue.waiting}
        while self._later:
            entry = self._later.popleft()._replace(sqhd=self._submission[0].head)
            posts.setdefault(self._completion[0], []).append(entry)
        while self._ended:
            for cqe in self._end(self._ended.popleft()):
                entry = cqe._replace(sqhd=self._submission[0].head)
                posts.setdefault(self._completion[0], []).append(entry)
        self._post(posts)
        more = self._work_admin()
        return self._work_io() or more

    def _work_admin(self) -> bool:
        """Execute admin commands one after the other. Return True if more admin commands may be
        waiting. Raises QueueLost if the memory of the queue is no longer available."""
        queue = self._submission[0]
        done = 0
        while queue.used and queue.completions.room > 0 and done < MOST_COMMANDS:
            entry = self.memory.read(queue.parts(1)[0][0], SQE_BYTES)
            if entry is None:
                raise QueueLost
            queue.fetched(1)
            entries = self._execute_admin(entry)
            if self.registers.state is not State.READY:
                return False
            made = [each._replace(sqhd=queue.head) for each in entries]
            self._post({queue.completions: made})
            done += 1
        return bool(queue.used and queue.completions.room > 0)

    def _execute_admin(self, entry: bytes) -> tuple[Cqe, ...]:
        """Execute an admin command; return the completions of all commands that it completes."""
        sqe, controller = Sqe.unpack(entry), self.controller
        try:
            if sqe.flags & PSDT:  # PRP only
                raise Refused(Code.INVALID_FIELD, PSDT_BYTE)
            offered = controller.capabilities
            direction, size = admin_transfer_of(sqe, offered.transfer_bytes, offered.tunnel)
            to_controller = direction == TO_CONTROLLER
            pieces = pieces_of(sqe, size, to_controller, self.registers.page_bytes, self.memory)
            data = gather(pieces, self.memory) if to_controller else b""
        except Refused as refused:
            with self.drive.lock:
                return controller.failed(entry, refused.code, refused.where).entries
        later = sqe.opcode in TUNNEL and sqe.cid not in self._pointers
        if later:
            self._pointers[sqe.cid] = sqe, pieces
        reply = self.drive.execute(controller, entry, data)
        if later and reply.entries:
            del self._pointers[sqe.cid]
        for action in reply.actions:
            if not self._perform_admin(action):
                with self.drive.lock:
                    return controller.failed(entry, Code.INVALID_FIELD, 24).entries
        if reply.data and not scatter(pieces, reply.data, self.memory):
            with self.drive.lock:
                return controller.failed(entry, Code.DATA_TRANSFER_ERROR, 24).entries
        return reply.entries

    def _end(self, ended: Ended) -> tuple[Cqe, ...]:
        """Copy the data of an ended tunnel command to host memory. Return the completion of the
        command, or () if the controller was reset after the command had arrived."""
        cqe, found = ended.cqe, self._pointers.get(ended.cqe.cid)
        if found is None or not ended.live:
            return ()
        sqe, pieces = self._pointers.pop(cqe.cid)
        # the host's pointers are for all that it asks for, also if the block is shorter
        if cqe.status or scatter(pieces, bytes(ended.data), self.memory):
            return (cqe,)
        with self.drive.lock:  # the memory that was checked when the command came has gone
            return self.controller.failed(sqe.pack(), Code.DATA_TRANSFER_ERROR, 24).entries

    def _deliver(self, ended: Ended) -> None:
        """Complete a tunnel command. Any thread may call this method."""
        self._ended.append(ended)
        self._wake()

    def _look(self, sleep: bool = False) -> bool:
        """Read the shadow doorbells; return True if any of them has changed. ``sleep``: True if the
        server will sleep unless a doorbell has changed."""
        if self._shadow is None:
            return False
        changed, wrong = self._shadow.look(self._submission, self._completion, sleep)
        if wrong:
            self._report(Event.INVALID_DOORBELL_VALUE)
        return changed

    def may_sleep(self) -> bool:
        """Return True if the server may sleep, because the host will write a doorbell register when
        it submits a command. If the host uses shadow doorbells, they are polled for a short time
        first."""
        if self.registers.state is not State.READY:
            return True
        try:
            return not self._look(sleep=True)
        except QueueLost:
            self._fail()
            return True

    @property
    def has_shadow(self) -> bool:
        """True if the host uses shadow doorbells."""
        return self._shadow is not None

    def look_late(self) -> None:
        """Check for changed shadow doorbells after a sleep that no register access has ended. A
        change is counted in ``late_doorbells``, because the host should have written the
        register."""
        if self.registers.state is State.READY and not self.may_sleep():
            self.late_doorbells += 1

    def _work_io(self) -> bool:
        """Run a batch of I/O commands; return True if more I/O commands may be waiting."""
        self._look()
        queues = [queue for number, queue in self._submission.items() if number]
        late = self._io.complete_late(queues)
        more, posted = self._io.run(queues)
        if posted or late:
            with self.drive.lock:
                vectors = self._coalescing.posted(posted | late, time.monotonic_ns())
            self._send(vectors)
        return more

    def send_waiting(self) -> float | None:
        """Send the delayed interrupts whose aggregation time has passed. Return the time until the
        next deadline, s, or None if no interrupt is delayed."""
        now_ns = time.monotonic_ns()
        self._send(self._coalescing.due(now_ns))
        left_ns = self._coalescing.wait_ns(now_ns)
        return None if left_ns is None else left_ns / 1e9

    # --- completions

    def _post(self, posts: dict[CompletionQueue, list[Cqe]]) -> None:
        """Post the completions of each queue, then send one interrupt per vector. Raises QueueLost
        if the memory of a queue is no longer available."""
        guest = self._io.guest
        self._send({queue.vector for queue, some in posts.items() if queue.post(guest, some)})

    def _send(self, vectors: set[int]) -> None:
        """Send the interrupts of ``vectors``. Vector -1 (interrupts are disabled) is ignored."""
        for vector in vectors - {-1}:
            self._coalescing.sent(vector)
            self.set_pending(vector, not self._interrupt(vector))

    def _post_later(self, entries: tuple[Cqe, ...]) -> None:
        """Post completions to the admin queue. Any thread may call this method."""
        self._later += entries
        self._wake()

    def _report(self, event: Event) -> None:
        """Report an event that an error of the host has caused."""
        with self.drive.lock:
            self._later += self.controller.notify(event)
