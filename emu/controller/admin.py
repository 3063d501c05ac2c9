"""Admin commands: a state machine without I/O that converts submission queue entries to completion
queue entries.

Owns the state of a controller except its registers, the table of admin commands, and the order of
the commands' effects. Does not own registers (registers.py), the rules of individual commands
(identify.py, log_pages.py, features.py, queues.py, namespace_commands.py) or I/O commands
(io_commands.py).
Source: NVM Express Base Specification 2.0, sections 3.4 (command processing) and 5 (admin command
set).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ondie.emu.controller import features, log_pages, namespace_commands, tunnel
from ondie.emu.controller.actions import Action, Do
from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.events import WARNINGS, Event, Events
from ondie.emu.controller.features import Features
from ondie.emu.controller.health import COMPOSITE_KELVIN, Health
from ondie.emu.controller.health_logs import (
    FAILED,
    IN_PROGRESS,
    TEMPERATURE_WARNING,
    HealthFacts,
)
from ondie.emu.controller.identify import SIZE as IDENTIFY_BYTES
from ondie.emu.controller.identify import UsedBlocks, identify
from ondie.emu.controller.log_pages import ErrorLog, LogFacts
from ondie.emu.controller.opcodes import DURING_SANITIZE, Admin, Tunnel
from ondie.emu.controller.queues import Queues
from ondie.emu.controller.registers import Registers
from ondie.emu.controller.shared import Shared
from ondie.emu.controller.status_code import Code, Refused, status_field
from ondie.emu.nvme.wire import Cqe, Sqe

FUSED, SGL = 0b11, 0b11 << 6
"""Bit masks of the byte Flags of a submission queue entry: FUSE (fused operation) and PSDT (PRPs or
SGLs for the data transfer)."""
FLAGS_BYTE, CID_BYTE, PRP_BYTE, PRP2_BYTE = 1, 2, 24, 32
TO_CONTROLLER, TO_HOST = 1, 2
"""Direction of a command's data transfer, as in bits 1:0 of the opcode."""


class Reply(NamedTuple):
    """Reply to an admin command: completions, data and actions."""

    entries: tuple[Cqe, ...]
    """Completion queue entries, in order. Empty if the command completes later. The reply to a
    command may include the completions of other commands."""
    data: bytes = b""
    """Data to write to host memory at the command's data pointer."""
    actions: tuple[Action, ...] = ()
    """Actions that the transport performs before it posts the entries; Do.SANITIZE may end later.
    If an action fails, the transport calls Controller.failed instead of posting the entries."""


class Controller:
    """One controller of one drive.

    ``shared``: state that all controllers of the drive share. ``read_health``: function that
    returns the current health data of the drive for the health log pages.
    ``used_blocks``: function that returns the number of mapped logical blocks of a namespace.
    ``registers`` handles register accesses. A transport preserves ``shared`` and ``errors.count``
    across power cycles.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        shared: Shared,
        read_health: Callable[[], Health],
        used_blocks: UsedBlocks,
    ) -> None:
        self.capabilities = capabilities
        self.shared = shared
        self.namespaces = namespaces = shared.namespaces
        self.read_health = read_health
        self.used_blocks = used_blocks
        self.registers = Registers(capabilities)
        self.queues = Queues(capabilities, self.registers)
        self.features = Features(capabilities, namespaces, shared.saved_features)
        self.events = Events()
        self.errors = ErrorLog()
        self._warned = 0
        """Critical warnings that are set, enabled, and already reported to the host."""
        self.resets = 0
        """Number of resets of this controller."""
        self.changed: tuple[int, ...] = ()
        """Identifiers of the namespaces that the last admin command has changed."""

    def disabled(self) -> list[Action]:
        """Complete the action RESET: drop all queues, all Async Event Requests, and all feature
        values that are not saved, and reset the registers. Return the actions to perform next. The
        list is empty unless the host has enabled the controller again during the reset."""
        self._forget()
        return self.registers.disabled()

    def subsystem_reset(self) -> None:
        """Perform the controller's part of an NVM subsystem reset: clear the state that a
        controller reset clears, and reset all registers. The transport calls this method for the
        action SUBSYSTEM_RESET."""
        self._forget()
        self.registers.subsystem_reset()

    def _forget(self) -> None:
        self.queues.reset()
        self.features.reset()
        self.events.reset()
        self._warned = 0
        self.resets += 1
        if self.shared.tunnel is not None:
            self.shared.tunnel.forget(self)

    # --- commands

    def execute(self, entry: bytes, data: bytes = b"") -> Reply:
        """Execute an admin command and return the reply. ``entry``: submission queue entry,
        bytes[64]. ``data``: data that the host sends with the command, of the size given by
        :func:`transfer_of`."""
        sqe = Sqe.unpack(entry)
        self.changed = ()
        try:
            reply = self._execute(sqe, data)
        except Refused as refused:
            return self._refuse(sqe, refused)
        for action in reply.actions:
            if action.do in (Do.DEALLOCATE, Do.ERASE):
                self.shared.uncorrectable.clear(action.first, action.size)
            elif action.do is Do.SANITIZE:
                self.shared.uncorrectable.ranges.clear()
        return reply

    def _execute(self, sqe: Sqe, data: bytes) -> Reply:
        row = COMMANDS.get(sqe.opcode)
        if row is None:
            raise Refused(Code.INVALID_OPCODE)
        if sqe.flags & FUSED:
            raise Refused(Code.INVALID_FIELD, FLAGS_BYTE)
        if sqe.cid in self.events.requests or self._is_held(sqe.cid):
            raise Refused(Code.ID_CONFLICT, CID_BYTE)
        offered = self.capabilities
        direction, size = transfer_of(sqe, offered.transfer_bytes, offered.tunnel)
        if len(data) != (size if direction == TO_CONTROLLER else 0):
            raise Refused(Code.DATA_TRANSFER_ERROR)
        self.check_sanitize(
            sqe.opcode in DURING_SANITIZE,
            allowed_after_failure=sqe.opcode in DURING_SANITIZE | {Admin.SANITIZE},
        )
        return row(self, sqe, data)

    def _is_held(self, cid: int) -> bool:
        """Return True if a tunnel command of this controller with identifier ``cid`` is not
        completed yet."""
        return self.shared.tunnel is not None and self.shared.tunnel.holds(self, cid)

    def check_sanitize(self, allowed: bool, allowed_after_failure: bool = False) -> None:
        """Check whether the state of sanitize operations allows a command.

        Raises Refused if a sanitize operation is in progress and ``allowed`` is False, or if the
        last sanitize operation has failed and both ``allowed`` and ``allowed_after_failure`` are
        False.
        """
        if self.shared.sanitize.status == IN_PROGRESS and not allowed:
            raise Refused(Code.SANITIZE_IN_PROGRESS)
        if self.shared.sanitize.status == FAILED and not (allowed or allowed_after_failure):
            raise Refused(Code.SANITIZE_FAILED)

    def _refuse(self, sqe: Sqe, refused: Refused) -> Reply:
        status = status_field(refused.code)
        if refused.code not in (Code.ABORT_REQUESTED, Code.EVENT_LIMIT):
            self.errors.add(0, sqe.cid, status, refused.where, nsid=sqe.nsid)
        return Reply((Cqe(sqe.cid, status),))

    def failed(self, entry: bytes, status: int = Code.INTERNAL_ERROR, where: int = 0) -> Reply:
        """Return the reply to an admin command whose data transfer or action has failed, for
        example because a PRP list is outside host memory. ``status``: status code type << 8 | code.
        ``where``: Parameter Error Location."""
        return self._refuse(Sqe.unpack(entry), Refused(Code(status), where))

    # --- what happens in the drive or the transport

    def notify(self, event: Event, nsid: int = 0) -> tuple[Cqe, ...]:
        """Report an event; return the completions of the Async Event Requests that the event
        completes. ``nsid``: identifier of the changed namespace if the event is
        NAMESPACE_ATTRIBUTE."""
        if event is Event.NAMESPACE_ATTRIBUTE:
            self.events.change(nsid)
        if not self._enabled(event):
            return ()
        return tuple(self.events.occur(event))

    def look(self, warning: int) -> tuple[Cqe, ...]:
        """Report the critical warnings that are set, enabled and not yet reported. Return the
        completions of the Async Event Requests that the events complete.

        ``warning``: critical warnings of the drive (bits of nvme.status.CriticalWarning). A warning
        is reported again only after the warning was cleared, or after a reset of the controller.
        """
        if self.features.temperature_warning(COMPOSITE_KELVIN):
            warning |= TEMPERATURE_WARNING
        found = warning & self.features.value(features.EVENT_CONFIGURATION)
        new, self._warned = found & ~self._warned, found
        events = [event for event, bits in WARNINGS.items() if new & bits]
        return tuple(each for event in events for each in self.events.occur(event))

    def _enabled(self, event: Event) -> bool:
        """Return True if ``event`` is enabled. The host enables critical warnings and namespace
        notices with feature 0Bh (Asynchronous Event Configuration); other events are always
        enabled."""
        bits = self.features.value(features.EVENT_CONFIGURATION)
        enabling = {**WARNINGS, Event.NAMESPACE_ATTRIBUTE: features.NAMESPACE_NOTICES}
        return event not in enabling or bool(bits & enabling[event])

    def sanitized(self, success: bool) -> tuple[Cqe, ...]:
        """Record the end of the action SANITIZE and report it as an event; return the completions
        of the Async Event Requests that the event completes."""
        self.shared.sanitize = namespace_commands.ended(self.shared.sanitize, success)
        return self.notify(Event.SANITIZE_COMPLETED)

    # --- the rows of the table

    def _identify(self, sqe: Sqe, data: bytes) -> Reply:
        found = identify(sqe, self.capabilities, self.namespaces, self.used_blocks)
        return Reply((Cqe(sqe.cid),), found)

    def _get_log_page(self, sqe: Sqe, data: bytes) -> Reply:
        reported = sqe.cdw10 & 0xFF in log_pages.WITH_HEALTH
        facts = LogFacts(
            self.capabilities,
            self._health_facts() if reported else None,
            self.errors,
            self.events.changed,
            self.shared.sanitize,
        )
        found = log_pages.get_log_page(sqe, facts, self.capabilities.transfer_bytes)
        others: list[Cqe] = []
        if not sqe.cdw10 & log_pages.RETAIN:
            others = self.events.clear(sqe.cdw10 & 0xFF)
        return Reply((Cqe(sqe.cid), *others), found)

    def _health_facts(self) -> HealthFacts:
        health = self.read_health()
        return HealthFacts(
            self.capabilities,
            health,
            self.features.temperature_warning(health.kelvin),
            self.shared.read_commands,
            self.shared.write_commands,
            self.errors.count,
            self.namespaces.unallocated_bytes,
            self.shared.unaligned,
        )

    def _get_features(self, sqe: Sqe, data: bytes) -> Reply:
        dword, found = self.features.get(sqe)
        return Reply((Cqe(sqe.cid, dw0=dword),), found)

    def _set_features(self, sqe: Sqe, data: bytes) -> Reply:
        exist = bool(self.queues.submission or self.queues.completion)
        vectors = {queue.vector for queue in self.queues.completion.values()}
        dword, actions = self.features.set(sqe, data, exist, vectors)
        return Reply((Cqe(sqe.cid, dw0=dword),), actions=tuple(actions))

    def _create_cq(self, sqe: Sqe, data: bytes) -> Reply:
        most = (self.features.value(features.QUEUE_COUNT) >> 16) + 1
        return Reply((Cqe(sqe.cid),), actions=(self.queues.create_completion(sqe, most),))

    def _create_sq(self, sqe: Sqe, data: bytes) -> Reply:
        most = (self.features.value(features.QUEUE_COUNT) & 0xFFFF) + 1
        return Reply((Cqe(sqe.cid),), actions=(self.queues.create_submission(sqe, most),))

    def _delete_cq(self, sqe: Sqe, data: bytes) -> Reply:
        return Reply((Cqe(sqe.cid),), actions=(self.queues.delete_completion(sqe),))

    def _delete_sq(self, sqe: Sqe, data: bytes) -> Reply:
        return Reply((Cqe(sqe.cid),), actions=(self.queues.delete_submission(sqe),))

    def _async_event_request(self, sqe: Sqe, data: bytes) -> Reply:
        return Reply(tuple(self.events.request(sqe.cid)))

    def _abort(self, sqe: Sqe, data: bytes) -> Reply:
        """Abort an Async Event Request or a tunnel command. Commands of other kinds are not aborted
        and complete as usual; bit 0 of dword 0 of the completion of Abort is then 1."""
        queue, cid = sqe.cdw10 & 0xFFFF, sqe.cdw10 >> 16
        if queue != 0 and queue not in self.queues.submission:
            raise Refused(Code.INVALID_FIELD, 40)
        if queue == 0 and self.shared.tunnel is not None and self.shared.tunnel.abort(self, cid):
            return Reply((Cqe(sqe.cid),))
        if queue == 0 and cid in self.events.requests:
            self.events.requests.remove(cid)
            return Reply((Cqe(cid, Code.ABORT_REQUESTED), Cqe(sqe.cid)))
        return Reply((Cqe(sqe.cid, dw0=1),))

    def _keep_alive(self, sqe: Sqe, data: bytes) -> Reply:
        return Reply((Cqe(sqe.cid),))

    def _doorbell_buffer_config(self, sqe: Sqe, data: bytes) -> Reply:
        """Map the shadow doorbells (PRP1) and the event indexes (PRP2)."""
        if not self.capabilities.has_doorbell_buffers:
            raise Refused(Code.INVALID_OPCODE)
        page = self.registers.page_bytes
        for base, byte in ((sqe.prp1, PRP_BYTE), (sqe.prp2, PRP2_BYTE)):
            if base == 0 or base % page:
                raise Refused(Code.INVALID_FIELD, byte)
        action = Action(Do.MAP_DOORBELLS, base=sqe.prp1, event_base=sqe.prp2, size=page)
        return Reply((Cqe(sqe.cid),), actions=(action,))

    def _format_nvm(self, sqe: Sqe, data: bytes) -> Reply:
        actions, changed = namespace_commands.format_nvm(sqe, self.namespaces)
        return Reply((Cqe(sqe.cid), *self._changed(changed)), actions=tuple(actions))

    def _sanitize(self, sqe: Sqe, data: bytes) -> Reply:
        self.shared.sanitize, actions = namespace_commands.sanitize(
            sqe, self.shared.sanitize, self.namespaces
        )
        return Reply((Cqe(sqe.cid),), actions=tuple(actions))

    def _namespace_management(self, sqe: Sqe, data: bytes) -> Reply:
        nsid, actions, changed = namespace_commands.manage(sqe, data, self.namespaces)
        for each in changed:
            self.features.forget(each)
        return Reply((Cqe(sqe.cid, dw0=nsid), *self._changed(changed)), actions=tuple(actions))

    def _namespace_attachment(self, sqe: Sqe, data: bytes) -> Reply:
        namespace_commands.attach(sqe, data, self.namespaces, self.capabilities.controller_id)
        return Reply((Cqe(sqe.cid), *self._changed([sqe.nsid])))

    def _tunnel(self, sqe: Sqe, data: bytes) -> Reply:
        """Execute a tunnel command. The status command completes immediately. The completions of
        the other tunnel commands are returned by TunnelCommands.completions."""
        found = self.shared.tunnel
        if found is None or not self.capabilities.tunnel:
            raise Refused(Code.INVALID_OPCODE)
        if not tunnel.is_status(sqe):
            found.execute(self, sqe, data)
            return Reply(())
        if sqe.cdw12 != tunnel.STATUS_BYTES:
            raise Refused(Code.INVALID_FIELD, 48)
        return Reply((Cqe(sqe.cid),), found.status())

    def _changed(self, nsids: list[int]) -> list[Cqe]:
        """Report the namespaces ``nsids`` as changed; return the completions of the Async Event
        Requests that the events complete."""
        self.changed = tuple(nsids)
        return [each for nsid in nsids for each in self.notify(Event.NAMESPACE_ATTRIBUTE, nsid)]


COMMANDS: dict[int, Callable[[Controller, Sqe, bytes], Reply]] = {
    Admin.DELETE_SQ: Controller._delete_sq,
    Admin.CREATE_SQ: Controller._create_sq,
    Admin.GET_LOG_PAGE: Controller._get_log_page,
    Admin.DELETE_CQ: Controller._delete_cq,
    Admin.CREATE_CQ: Controller._create_cq,
    Admin.IDENTIFY: Controller._identify,
    Admin.ABORT: Controller._abort,
    Admin.SET_FEATURES: Controller._set_features,
    Admin.GET_FEATURES: Controller._get_features,
    Admin.ASYNC_EVENT_REQUEST: Controller._async_event_request,
    Admin.NAMESPACE_MANAGEMENT: Controller._namespace_management,
    Admin.NAMESPACE_ATTACHMENT: Controller._namespace_attachment,
    Admin.KEEP_ALIVE: Controller._keep_alive,
    Admin.DOORBELL_BUFFER_CONFIG: Controller._doorbell_buffer_config,
    Admin.FORMAT_NVM: Controller._format_nvm,
    Admin.SANITIZE: Controller._sanitize,
    **dict.fromkeys(Tunnel, Controller._tunnel),
}


def transfer_of(sqe: Sqe, most: int, with_tunnel: bool = False) -> tuple[int, int]:
    """Return (direction, bytes) of the data transfer of an admin command. The direction is
    TO_CONTROLLER, TO_HOST or 0.

    ``most``: maximum transfer size, bytes. ``with_tunnel``: True if the controller supports the
    tunnel commands. Return (0, 0) if the transfer is larger than ``most``;
    :meth:`Controller.execute` refuses such a command.
    """
    match sqe.opcode:
        case Admin.IDENTIFY:
            return TO_HOST, IDENTIFY_BYTES
        case Admin.GET_LOG_PAGE:
            size = log_pages.data_bytes(sqe)
            return (TO_HOST, size) if size <= most else (0, 0)
        case Admin.GET_FEATURES | Admin.SET_FEATURES:
            size = features.data_bytes(sqe)
            direction = TO_HOST if sqe.opcode == Admin.GET_FEATURES else TO_CONTROLLER
            return (direction, size) if size else (0, 0)
        case Admin.NAMESPACE_MANAGEMENT | Admin.NAMESPACE_ATTACHMENT:
            size = namespace_commands.data_bytes(sqe)
            return (TO_CONTROLLER, size) if size else (0, 0)
    return tunnel.transfer_of(sqe, most) if with_tunnel else (0, 0)
