"""Computation commands of a served drive: execution as plans (sequences of simulated operations) on
the drive, and completion.

Owns the hand-over of commands to the thread that owns the drive, the set of running commands, and
the loss of their state at a power cut. Does not own the rules of the commands
(controller/computation.py), the plans (states/device_program.py, states/resident.py) or the
transports.
Source: NVM Express Base Specification 2.0, section 3.4 (commands complete in any order).

A command that takes simulated time runs concurrently with the commands of all clients. When the
plan of the command is done, a separate thread completes the command. A controller reset does not
stop the plan; after a reset, the transport drops the completion.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ondie.emu.clock import NEVER, PS_PER_S
from ondie.emu.controller import computation
from ondie.emu.controller.admin import FLAGS_BYTE, FUSED, Controller
from ondie.emu.controller.computation import (
    CDW10_BYTE,
    CDW11_BYTE,
    CDW12_BYTE,
    Copy,
    Device,
    Done,
    Execution,
    Report,
    ReportFacts,
    Task,
    Transfer,
    Update,
)
from ondie.emu.controller.device_memory import DeviceMemory, Memory
from ondie.emu.controller.io_commands import READS, NamespaceRead, namespace_read, record
from ondie.emu.controller.namespaces import Namespace
from ondie.emu.controller.opcodes import Compute, Nvm
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.engine.core.plan_rows import MixedPlan
from ondie.emu.engine.run.driver import PowerCut
from ondie.emu.ftl.reservoir_recovery import Unrecoverable
from ondie.emu.nvme.wire import Cqe
from ondie.emu.serve.defects import show_exception
from ondie.emu.serve.gate import Gate
from ondie.emu.serve.io_request import NO_DATA, IoRequest, IoResult
from ondie.emu.serve.served import ServedDrive
from ondie.emu.states import device_program
from ondie.emu.states.resident import NotStored, ResidentStates
from ondie.emu.units import InputError

Later = Callable[[IoRequest, IoResult], None]
"""Function that receives the completion of a command if the command did not complete immediately.
The function is called from another thread."""


def drop(request: IoRequest, result: IoResult) -> None:
    """Drop the completion of a command whose host has disconnected."""


MOST_EXECUTION_PS = 3600 * PS_PER_S
"""Maximum simulated execution time of a program on an idle drive, ps. Longer executions are
refused."""
MOST_RUNNING = 64
"""Maximum number of running computation commands. Further commands are refused. Reads of the
namespace of optimizer states do not count."""
MOST_READING = 64
"""Maximum number of running reads of the namespace of optimizer states. Further reads wait until a
running read has ended."""
OPCODES = frozenset(map(int, Compute))


class Outcome(NamedTuple):
    """Result of a computation command whose plan is done: dword 0 of the command's completion, and
    the data for the host."""

    dw0: int = 0
    data: np.ndarray = NO_DATA


class Ended(NamedTuple):
    """Plan without operations for a command that takes no simulated time. The plan is done as soon
    as it is created."""

    done: bool = True
    error: Exception | None = None

    def stop(self, error: Exception) -> None:
        """Do nothing, because the plan is already done."""


class _Started(NamedTuple):
    """Accepted command: a computation command, or a read of the namespace of optimizer states.
    ``device``: drive state that the command uses. ``later``: function that receives the
    completion."""

    controller: Controller
    request: IoRequest
    task: Task | NamespaceRead
    device: Device
    later: Later


class Computation:
    """Executor of computation commands on the drive ``served``, whose weights and optimizer states
    are ``states``. It also executes reads of the namespace of optimizer states.

    ``namespace``: namespace through which hosts access the states. ``tables``: lock that protects
    the state of all controllers. A thread that holds this lock must not call a method of this
    object. ``gate``: lock that commands hold while they access other namespaces.
    """

    def __init__(
        self, served: ServedDrive, states: ResidentStates, namespace: Namespace,
        tables: threading.Lock, gate: Gate,
    ) -> None:  # fmt: skip
        self._served, self.states, self._tables, self._gate = served, states, tables, gate
        self._lock = threading.Lock()
        self._running = self._reading = 0
        """Number of running reads of states (``_reading``), and of all other running commands
        (``_running``)."""
        self._waiting: deque[_Started] = deque()
        """Reads of states that wait until another read has ended."""
        self.namespace = namespace
        self._reset()
        served.at_power_on.append(self._power_on)

    def _reset(self) -> None:
        """Initialize the state that is lost at a power cut."""
        cfg = self.states.cfg
        self.device = Device(
            self.namespace,
            DeviceMemory(cfg.dram.isp_bytes),
            self.states.n_params,
            self.states.stop_params,
            len(self.states.hyper_names),
            processor=cfg.isp.kind != "none",
        )
        self._counts = dict.fromkeys(
            ("updates", "executions", "instructions", "written_bytes", "read_bytes",
             "copied_bytes"), 0,
        )  # fmt: skip
        self._last_ps = 0
        """Simulated execution time of the last completed program, ps."""

    def _power_on(self) -> None:
        """Recover the states after power-on. Raises InputError if the states cannot be
        recovered."""
        with self._lock:
            self._reset()
        try:
            self.states.open(self._served.drive)
        except Unrecoverable as error:
            raise InputError(f"the optimizer states cannot be recovered: {error}") from error

    def takes(self, request: IoRequest) -> bool:
        """Return True if this object executes the command ``request``: a computation command, or a
        read of the namespace of optimizer states."""
        sqe = request.sqe
        return sqe.opcode in OPCODES or (sqe.opcode in READS and sqe.nsid == self.namespace.nsid)

    # --- commands

    def start(
        self, controller: Controller, request: IoRequest, later: Later, most: int
    ) -> IoResult | None:
        """Start the command ``request`` of ``controller``. Return the completion, or None if
        ``later`` will receive it. ``most``: maximum transfer size, bytes."""
        sqe = request.sqe
        request = request._replace(data=bytes(request.data))  # the memory is the transport's
        try:
            with self._tables, self._lock:
                task = self._decode(controller, request, most)
                if isinstance(task, Done):
                    return IoResult(Cqe(sqe.cid, dw0=task.dw0))
                self._begin(_Started(controller, request, task, self.device, later))
        except Refused as refused:
            return self._refused(controller, request, refused)
        return None

    def _begin(self, started: _Started) -> None:
        """Start a thread that runs a command. Put a read in the queue instead if MOST_READING reads
        are running, or if no thread can be started while another read is running. The caller holds
        ``_lock``. Raises Refused if MOST_RUNNING other commands are running, or if no thread can be
        started and the command cannot be queued."""
        is_read = isinstance(started.task, NamespaceRead)
        if not is_read and self._running >= MOST_RUNNING:
            raise Refused(Code.COMMAND_INTERRUPTED)
        if is_read and self._reading >= MOST_READING:
            self._waiting.append(started)
            return
        work = threading.Thread(
            target=self._run, args=(started,), name="ondie computation", daemon=True
        )
        try:
            work.start()  # it waits for the lock before it ends
        except RuntimeError:  # no more threads
            if is_read and self._reading:
                self._waiting.append(started)
                return
            raise Refused(Code.COMMAND_INTERRUPTED) from None
        if is_read:
            self._reading += 1
        else:
            self._hold(started.task, started.device, 1)

    def _decode(
        self, controller: Controller, request: IoRequest, most: int
    ) -> Task | NamespaceRead:
        """Return the task of a command. Raises Refused if the command is invalid, if its namespace
        does not hold the states, if the state of sanitize operations does not allow the command, or
        if the power is off."""
        sqe = request.sqe
        if sqe.flags & FUSED:
            raise Refused(Code.INVALID_FIELD, FLAGS_BYTE)
        controller.check_sanitize(allowed=False)
        namespace = controller.namespaces.active(sqe.nsid)
        if namespace is not self.namespace:
            raise Refused(Code.INVALID_OPCODE)
        if self._served.drive.off:  # what it has at power-on is new
            raise Refused(Code.INTERNAL_ERROR)
        if sqe.opcode in READS:
            return namespace_read(sqe, namespace, controller, len(request.data))
        marked = controller.shared.uncorrectable
        return computation.decode(
            sqe, bytes(request.data), self.device, most, _source(controller), marked
        )

    def _hold(self, task: Task | NamespaceRead, device: Device, change: int) -> None:
        """Update the number of running commands, and the usage counts of the memories and programs
        of ``device``, when a command starts (``change`` = 1) or has ended (``change`` = -1). The
        caller holds ``_lock``."""
        self._running += change
        for each in _memories(task):
            each.users += change
            each.programs += change * isinstance(task, Update | Execution)
        if isinstance(task, Execution):
            running = device.programs.running
            running[task.number] = running.get(task.number, 0) + change

    def _refused(self, controller: Controller, request: IoRequest, refused: Refused) -> IoResult:
        with self._tables:
            status = record(controller, request.sqid, request.sqe, refused.code, refused.where)
        return IoResult(Cqe(request.sqe.cid, status))

    def _run(self, started: _Started) -> None:
        """Run a command until its plan is done, and complete the command. After a read, run a
        waiting read in this thread if no other thread can be started for it."""
        left: _Started | None = started
        while left is not None:
            controller, request, task, device, later = left
            if isinstance(task, Copy):
                with self._gate.together():
                    result = self._run_copy(controller, request, task, device)
            else:
                result = self._result(controller, request, task, device)
            with self._lock:
                if isinstance(task, NamespaceRead):
                    left = self._next_read()
                else:
                    self._hold(task, device, -1)
                    left = None
            later(request, result)  # waits for a host that takes nothing

    def _next_read(self) -> _Started | None:
        """Start the next waiting read after another read has ended. Return the waiting read if no
        thread can be started for it, otherwise None. The caller holds ``_lock``."""
        self._reading -= 1
        if not self._waiting:
            return None
        following = self._waiting.popleft()
        try:
            self._begin(following)
        except Refused:
            self._reading += 1
            return following
        return None

    def _run_copy(
        self, controller: Controller, request: IoRequest, task: Copy, device: Device
    ) -> IoResult:
        """Run a copy until its plan is done; return the completion of the command.

        The caller holds the gate. The source is checked again, because a command that held the gate
        alone may have changed the namespace after the first check.
        """
        try:
            with self._tables:
                controller.check_sanitize(allowed=False)
                first, size = computation.copied_bytes(
                    request.sqe, _source(controller), controller.shared.uncorrectable
                )
            if size != task.range.size:  # it has other blocks
                raise Refused(Code.COMMAND_INTERRUPTED)
        except Refused as refused:
            return self._refused(controller, request, refused)
        return self._result(controller, request, task._replace(first=first), device)

    def _result(
        self, controller: Controller, request: IoRequest, task: Task | NamespaceRead,
        device: Device,
    ) -> IoResult:  # fmt: skip
        """Run a command until its plan is done; return the completion of the command."""
        begin, end = self._work(task, request)

        def begin_here() -> Any:
            if device is not self.device:
                raise InputError(
                    "the command was aborted because the power of the drive was cut; send it again "
                    "after power-on"
                )
            return begin()

        try:
            found = self._served.service.run_plan(begin_here, end).result()
            return IoResult(Cqe(request.sqe.cid, dw0=found.dw0), found.data)
        except Refused as refused:
            return self._refused(controller, request, refused)
        except NotStored:
            return self._refused(controller, request, Refused(Code.WRITE_FAULT))
        except Exception as error:  # noqa: BLE001 - the host gets a status, the operator a defect
            if not isinstance(error, InputError | PowerCut):  # no power, or the end of the service
                show_exception("a computation command")
            return self._refused(controller, request, Refused(Code.INTERNAL_ERROR))

    def _work(
        self, task: Task | NamespaceRead, request: IoRequest
    ) -> tuple[Callable[[], Any], Callable[[], Outcome]]:
        """Return two functions to be called in the thread that owns the drive. The first function
        starts the plan of a command. The second returns the result when the plan is done."""
        match task:
            case Transfer():
                return lambda: self._begin_transfer(task), lambda: self._transferred(task, request)
            case Copy():
                return lambda: self._begin_copy(task), lambda: self._copied(task)
            case Update():
                return lambda: self._begin_update(task), lambda: self._updated(task)
            case Execution():
                begun: list[tuple[int, MixedPlan]] = []
                return (
                    lambda: self._begin_execution(task, begun),
                    lambda: self._executed(task, *begun[0]),
                )
            case NamespaceRead():
                return (
                    lambda: self.states.begin_read(task.first, task.size),
                    lambda: self._read(task, request),
                )
            case Report():
                return Ended, self._report
        raise AssertionError(task)

    # --- in the thread that owns the drive

    def _begin_transfer(self, task: Transfer) -> Any:
        drive = self._served.drive
        return drive.start_beside(device_program.transfer(task.range.size, task.to_host))

    def _transferred(self, task: Transfer, request: IoRequest) -> Outcome:
        if task.to_host:
            self._counts["read_bytes"] += task.range.size
            return Outcome(data=task.range.data.copy())
        task.range.data[:] = np.frombuffer(request.data, np.uint8)
        self._counts["written_bytes"] += task.range.size
        return Outcome()

    def _begin_copy(self, task: Copy) -> Any:
        return self.states.begin_copy(task.first, task.range.size)

    def _copied(self, task: Copy) -> Outcome:
        task.range.data[:] = self.states.take_copy(task.first, task.range.size)
        self._counts["copied_bytes"] += task.range.size
        return Outcome()

    def _begin_update(self, task: Update) -> Any:
        states = self.states
        if self._served.drive.off:
            raise InputError(
                "the command was aborted because the power of the drive was cut; send it again "
                "after power-on"
            )
        if states.updating:
            raise Refused(Code.COMMAND_INTERRUPTED)
        step, complete = states.step, states.complete
        if task.number and task.number == step and complete:
            return Ended()
        if task.number and task.number != step + complete:
            raise Refused(Code.INVALID_FIELD, CDW12_BYTE)
        if not states.online:
            raise Refused(Code.NAMESPACE_WRITE_PROTECTED)
        gradient = task.gradient.data.view(np.float32).copy()
        if not np.isfinite(gradient).all():
            raise Refused(Code.INVALID_FIELD, CDW10_BYTE)
        if task.hyper:
            try:
                states.set_hyper(task.hyper, going_on=not complete)
            except InputError:
                raise Refused(Code.INVALID_FIELD, CDW11_BYTE) from None
        return states.begin_update(gradient, task.stop or None)

    def _updated(self, task: Update) -> Outcome:
        states = self.states
        wanted = -(-(task.stop or states.n_params) // states.stripe_params)
        if not states.stored_all or (not states.complete and states.stripes_done < wanted):
            raise Refused(Code.WRITE_FAULT)  # the store had no room
        self._counts["updates"] += 1
        return Outcome(states.step & 0xFFFFFFFF)

    def _begin_execution(
        self, task: Execution, begun: list[tuple[int, MixedPlan]]
    ) -> MixedPlan:  # fmt: skip
        """Start the execution of a program and return its plan. Append (start time in ps, plan) to
        ``begun``. Raises Refused if the execution takes longer than MOST_EXECUTION_PS, and
        InputError if the drive's clock could overflow."""
        drive, cfg, program = self._served.drive, self.states.cfg, task.program
        cost = (
            program.instructions, program.fixed_instructions, program.read_bytes,
            program.written_bytes,
        )  # fmt: skip
        takes_ps = device_program.execution_ps(cfg, task.elements, *cost)
        if takes_ps > MOST_EXECUTION_PS:
            raise Refused(Code.INVALID_FIELD, CDW10_BYTE)
        if drive.now + MOST_RUNNING * MOST_EXECUTION_PS > NEVER:
            raise InputError(
                f"the program is refused at the simulated time {drive.now} ps, because its "
                f"execution could exceed the maximum time of the drive's clock, {NEVER} ps"
            )
        plan = drive.start_beside(
            device_program.execution(cfg, task.elements, program.element_bytes, *cost)
        )
        begun.append((drive.now, plan))
        return plan

    def _executed(self, task: Execution, begin_ps: int, plan: MixedPlan) -> Outcome:
        program = task.program
        self._last_ps = plan.end_ps - begin_ps  # the drive may be ahead of it
        made = program.fixed_instructions + program.instructions * task.elements
        self._counts["executions"] += 1
        self._counts["instructions"] += -int(-made // 1)
        return Outcome()

    def _read(self, task: NamespaceRead, request: IoRequest) -> Outcome:
        data = self.states.stored_bytes(task.first, task.size)
        if request.sqe.opcode == Nvm.READ:
            return Outcome(data=data)
        if request.sqe.opcode == Nvm.COMPARE:
            if not np.array_equal(data, np.frombuffer(request.data, np.uint8)):
                raise Refused(Code.COMPARE_FAILURE)
        return Outcome()

    def _report(self) -> Outcome:
        states, drive = self.states, self._served.drive
        if drive.off:
            raise InputError(
                "the command was aborted because the power of the drive was cut; send it again "
                "after power-on"
            )
        facts = ReportFacts(
            params=states.n_params, granule=states.stop_params, stripes=states.stripes,
            stripes_done=states.stripes_done, step=states.step, complete=states.complete,
            updating=states.updating, recovered=states.recovered is not None,
            vectors=len(states.places), vector_bytes=states.bytes_of_all // len(states.places),
            capacity=self.device.memory.capacity, allocated=self.device.memory.allocated,
            now_ps=drive.now, last_ps=self._last_ps, **self._counts,
        )  # fmt: skip
        return Outcome(data=np.frombuffer(computation.REPORT.pack(facts), np.uint8))


def _source(controller: Controller) -> Namespace | None:
    """Return the namespace that COPY reads (namespace 1), or None if namespace 1 does not exist, is
    not attached, or holds states. The caller holds the lock ``tables``."""
    found = controller.namespaces.by_nsid.get(1)
    return found if found is not None and found.attached and not found.states else None


def _memories(task: Task | NamespaceRead) -> tuple[Memory, ...]:
    """Return the device memories that a command uses while it runs."""
    match task:
        case Transfer() | Copy():
            return (task.range.memory,)
        case Update():
            return (task.gradient.memory,)
        case Execution():
            return tuple(each.memory for each in task.ranges)
    return ()
