"""Session of one NVMe/TCP queue after Connect; it runs the host's commands in batches.

Owns the receive buffer of a connection, the transfers of data, and the order of commands and
responses. Does not own the layout of PDUs (nvme_tcp_wire.py), the rules of commands
(emu/controller), their execution (nvme_drive.py, nvme_io.py) or connections and associations
(nvme_tcp.py).
Source: NVM Express TCP Transport Specification 1.0, sections 3.3 (error handling), 3.5 (data
transfer); NVM Express Base Specification 2.0, section 3.3.1 (message-based queues).

A batch consists of the commands that have arrived; its I/O commands run at the same time. If the
data of a command is not in its capsule, one R2T requests all of the data. A command waits for its
R2T while the outstanding R2Ts request MOST_ASKED bytes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ondie.emu.controller import admin, discovery, fabrics, io_commands
from ondie.emu.controller.actions import Action, Do
from ondie.emu.controller.admin import SGL, TO_CONTROLLER, TO_HOST, Controller, Reply
from ondie.emu.controller.fabrics import Association, FabricsCode, FabricsType
from ondie.emu.controller.features import HOST_IDENTIFIER
from ondie.emu.controller.opcodes import Admin, Tunnel
from ondie.emu.controller.status_code import Code, Refused, status_field
from ondie.emu.controller.tunnel import Ended
from ondie.emu.nvme.wire import Cqe, Sqe
from ondie.emu.serve import nvme_tcp_wire as wire
from ondie.emu.serve.io_request import IoRequest, IoResult
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_io import IoRunner
from ondie.emu.serve.nvme_tcp_handshake import Handshake, in_capsule
from ondie.emu.serve.nvme_tcp_wire import Fatal, FatalStatus, Pdu, PduFlag, PduType

MOST_BATCH = 256
"""Maximum number of commands in a batch."""
MOST_ASKED = 1 << 24
"""Maximum total size of the data requested by outstanding R2Ts, and of the data returned by the
commands in one part of a batch, bytes. A single command may exceed this limit."""
ROOM = 1 << 20
"""Size by which the receive buffer exceeds the largest PDU, bytes."""
TERM_S = 2.0
"""Time limit for the host to close the connection after a termination request, s."""
POST_S = 1.0
"""Time limit for other threads to finish sending before an Async Event Request is completed, s."""
CONTIGUOUS_MPTR = 0b01 << 6
"""Value of PSDT that NVMe over Fabrics requires: SGL, and a contiguous metadata buffer."""
NO_DATA = memoryview(b"")
TUNNEL = frozenset(Tunnel)


@dataclass(slots=True, eq=False)
class Command:
    """NVMe command that a session has received from the host. ``data``: data that the host sends
    with the command. ``received``: number of bytes of ``data`` that have arrived in H2CData PDUs.
    ``intact``: False if a data digest was incorrect."""

    entry: bytes
    sqe: Sqe
    data: memoryview
    received: int = 0
    intact: bool = True
    size: int = 0
    """Number of data bytes that the R2T for the command requests from the host; 0 if the command
    needs no R2T."""


class Target(Protocol):
    """Interface of the NVMe/TCP server that a session uses."""

    drive: NvmeDrive

    def end_io_queues(self, association: Association) -> None:
        """Disconnect the I/O queues of an association, and wait until their commands have ended."""

    def reset_subsystem(self) -> None:
        """Disconnect all hosts because of an NVM subsystem reset."""

    def alive(self, association: Association) -> None:
        """Restart the Keep Alive timer of an association."""


class Session:
    """Session of one connected queue. :meth:`run` returns when the connection has ended."""

    def __init__(self, sock: socket.socket, shake: Handshake, target: Target) -> None:
        self.socket, self.association = sock, shake.association
        self.qid = shake.connect.qid
        self._target, self._drive = target, target.drive
        self._framing = shake.framing
        self._entries, self._flow = shake.connect.entries, shake.connect.flow_control
        self._head = 1 % self._entries
        """SQHD. Its initial value is 1, because Connect is the first entry of the queue."""
        self._connect_cid = shake.cid
        self._memory = memoryview(bytearray(wire.most_bytes(self._framing) + ROOM))
        self._begin, self._end = 0, len(shake.rest)
        self._memory[: self._end] = shake.rest
        self._ready: list[Command] = []
        self._waiting: dict[int, Command] = {}
        """Commands whose data an R2T has requested, by transfer tag."""
        self._queued: deque[Command] = deque()
        """Commands for whose data no R2T was sent yet."""
        self._later: set[int] = set()
        """Identifiers of the commands that another thread completes."""
        self._asked = 0
        self._tag = 0
        self._sending = threading.Lock()
        controller = self.association.controller
        self._runner = None
        if self.qid and isinstance(controller, Controller):
            self._runner = IoRunner(self._drive, controller)

    def run(self) -> None:
        """Complete Connect, then run commands until the host disconnects or violates the
        protocol."""
        try:
            self._respond(Cqe(self._connect_cid, dw0=self.association.cntlid))
            while self._turn():
                pass
        except Fatal as fatal:
            self._terminate(fatal)
        except OSError:
            return  # the host has gone; commands in flight take effect

    def close(self) -> None:
        """End the connection, so that :meth:`run` returns. Another thread may call this method."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def post(self, entries: tuple[Cqe, ...]) -> None:
        """Send completions to the host; disconnect the host if it does not receive them. Call this
        method only from threads other than the thread of :meth:`run`."""
        data = b"".join(self._capsule(each) for each in entries)
        if not self._sending.acquire(timeout=POST_S):
            self.close()
            return
        try:
            if self.socket.send(data, socket.MSG_DONTWAIT) < len(data):
                self.close()
        except OSError:
            self.close()
        finally:
            self._sending.release()

    # --- bytes

    def _turn(self) -> bool:
        """Run the commands that have arrived, or wait for more bytes. Return False at the end of
        the session."""
        whole = True
        while whole and len(self._ready) < MOST_BATCH:
            view = self._memory[self._begin : self._end]
            pdu = wire.parse(view, self._framing, wire.AFTER_IC)
            whole = pdu is not None
            if pdu is not None:
                self._begin += pdu.size
                if not self._take(pdu):
                    return False
        self._execute()
        return whole or self._receive()

    def _receive(self) -> bool:
        """Wait for bytes. Return False if the host has disconnected."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif len(self._memory) - self._end < ROOM:
            left = bytes(self._memory[self._begin : self._end])
            self._memory[: len(left)] = left
            self._begin, self._end = 0, len(left)
        count = self.socket.recv_into(self._memory[self._end :])
        self._end += count
        return count > 0

    def _send(self, data: bytes) -> None:
        with self._sending:
            self.socket.sendall(data)

    def _capsule(self, entry: Cqe) -> bytes:
        head = self._head if self._flow else 0xFFFF
        return wire.capsule_resp(entry._replace(sqhd=head, sqid=self.qid).pack(), self._framing)

    def _respond(self, *entries: Cqe) -> None:
        self._send(b"".join(self._capsule(each) for each in entries))

    def _data(self, cid: int, data: memoryview, entry: Cqe) -> list[bytes | memoryview]:
        """Return the parts of the PDUs with the data and the response of a successful command. No
        separate response is necessary if the host does not use SQHD and dwords 0 and 1 of ``entry``
        are 0."""
        alone = not self._flow and entry.dw0 == entry.dw1 == 0
        parts = wire.c2h_data(cid, data, self._framing, success=alone)
        return parts if alone else [*parts, self._capsule(entry)]

    def _terminate(self, fatal: Fatal) -> None:
        """Send a termination request, and wait until the host closes the connection. No thread can
        send anything after the termination request."""
        with contextlib.suppress(OSError):
            with self._sending:
                self.socket.sendall(wire.c2h_term_req(fatal))
                self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(TERM_S)
            while self.socket.recv_into(self._memory):
                pass

    # --- PDUs

    def _take(self, pdu: Pdu) -> bool:
        """Process a PDU. Return False if the PDU ends the connection. Raises Fatal if the PDU
        violates the protocol."""
        match pdu.kind:
            case PduType.H2C_TERM_REQ:
                return False
            case PduType.H2C_DATA:
                self._take_data(pdu)
                return True
        entry = pdu.header[wire.COMMON.size :]
        sqe = Sqe.unpack(entry)
        held = (self._waiting, self._queued, self._ready, self._later)
        if sum(map(len, held)) >= self._entries:
            raise Fatal(FatalStatus.SEQUENCE_ERROR, 0, pdu.header)
        self._head = (self._head + 1) % self._entries
        if self.association.discovery:
            self._target.alive(self.association)
        if sqe.opcode == fabrics.OPCODE:
            self._execute()
            return self._fabrics(entry, sqe)
        try:
            self._take_command(entry, sqe, pdu)
        except Refused as refused:
            self._refuse(entry, sqe, refused)
        return True

    def _take_command(self, entry: bytes, sqe: Sqe, pdu: Pdu) -> None:
        """Accept a command. If its data is in the capsule or it needs no data from the host, the
        command is ready; otherwise an R2T requests the data. Raises Refused if the command is
        invalid."""
        others = (*self._waiting.values(), *self._queued)
        if sqe.cid in self._later or any(each.sqe.cid == sqe.cid for each in others):
            raise Refused(Code.ID_CONFLICT, 2)
        if sqe.flags & SGL != CONTIGUOUS_MPTR:
            raise Refused(Code.INVALID_FIELD, 1)
        if not pdu.intact:
            raise Refused(Code.TRANSIENT_TRANSPORT)
        direction, size = self._transfer_of(sqe)
        place = in_capsule(entry, size, len(pdu.data)) if size else slice(0, 0)
        if direction == TO_HOST and place is not None:
            raise Refused(Code.SGL_TYPE_INVALID, 39)
        if direction == TO_CONTROLLER and place is None:
            self._queued.append(Command(entry, sqe, NO_DATA, size=size))
            self._ask()
            return
        data = NO_DATA if direction == TO_HOST or place is None else pdu.data[place]
        self._ready.append(Command(entry, sqe, data))

    def _transfer_of(self, sqe: Sqe) -> tuple[int, int]:
        """Return (direction, bytes) of the data transfer of a command."""
        controller = self.association.controller
        most = controller.capabilities.transfer_bytes
        if not isinstance(controller, Controller):
            return discovery.transfer_of(sqe, most)
        if self.qid == 0:
            return admin.transfer_of(sqe, most, controller.capabilities.tunnel)
        with self._drive.lock:
            return io_commands.transfer_of(sqe, controller)

    def _ask(self) -> None:
        """Send R2Ts for queued commands, as long as the outstanding R2Ts request at most MOST_ASKED
        bytes."""
        out = []
        while self._queued:
            command = self._queued[0]
            if self._asked and self._asked + command.size > MOST_ASKED:
                break
            self._queued.popleft()
            command.data = memoryview(bytearray(command.size))
            self._asked += command.size
            while self._tag in self._waiting:
                self._tag = (self._tag + 1) & 0xFFFF
            self._waiting[self._tag] = command
            cid = command.sqe.cid
            out.append(wire.r2t(cid, self._tag, 0, command.size, self._framing))
            self._tag = (self._tag + 1) & 0xFFFF
        if out:
            self._send(b"".join(out))

    def _take_data(self, pdu: Pdu) -> None:
        """Store the data of an H2CData PDU. Raises Fatal if no R2T has requested the data, or if it
        arrives out of order."""
        found = wire.transfer_of(pdu)
        command = self._waiting.get(found.tag)
        if command is None:
            raise Fatal(FatalStatus.INVALID_HEADER_FIELD, wire.TTAG_BYTE, pdu.header)
        if command.sqe.cid != found.cid:
            raise Fatal(FatalStatus.INVALID_HEADER_FIELD, wire.CCCID_BYTE, pdu.header)
        end = found.offset + found.size
        if found.offset >= command.size or end > command.size:
            raise Fatal(FatalStatus.DATA_OUT_OF_RANGE, 0, pdu.header)
        if found.offset != command.received:
            raise Fatal(FatalStatus.INVALID_HEADER_FIELD, wire.DATAO_BYTE, pdu.header)
        if bool(pdu.flags & PduFlag.LAST_PDU) != (end == command.size):
            raise Fatal(FatalStatus.INVALID_HEADER_FIELD, wire.FLAGS_BYTE, pdu.header)
        command.data[found.offset : end] = pdu.data
        command.received = end
        command.intact &= pdu.intact
        if end < command.size:
            return
        del self._waiting[found.tag]
        self._asked -= command.size
        if command.intact:
            self._ready.append(command)
        else:
            self._refuse(command.entry, command.sqe, Refused(Code.TRANSIENT_TRANSPORT))
        self._ask()

    # --- commands

    def _refuse(self, entry: bytes, sqe: Sqe, refused: Refused) -> None:
        """Complete a command with an error without executing the command, and add the error to the
        error log."""
        controller = self.association.controller
        if not isinstance(controller, Controller) or self.qid == 0:
            with self._drive.lock:
                reply = controller.failed(entry, refused.code, refused.where)
            self._respond(*reply.entries)
            return
        with self._drive.lock:
            status = io_commands.record(controller, self.qid, sqe, refused.code, refused.where)
        self._respond(Cqe(sqe.cid, status))

    def _execute(self) -> None:
        """Run the commands that are ready, and send the responses."""
        ready, self._ready = self._ready, []
        if not ready:
            return
        if self._runner is None:
            for command in ready:
                self._execute_admin(command)
            return
        requests = [IoRequest(self.qid, each.sqe, each.data) for each in ready]
        seen: set[tuple[int, int]] = set()
        late: set[int] = set()
        while requests:
            asked = np.cumsum([self._answered(each.sqe) for each in requests])
            count = max(int(np.searchsorted(asked, MOST_ASKED, "right")), 1)
            self._run(self._runner, requests[:count], seen, late)
            requests = requests[count:]

    def _answered(self, sqe: Sqe) -> int:
        """Return the number of data bytes that an I/O command returns to the host if it
        succeeds."""
        controller = self.association.controller
        assert isinstance(controller, Controller)
        direction, size = io_commands.transfer_of(sqe, controller)
        return size if direction == TO_HOST else 0

    def _run(
        self,
        runner: IoRunner,
        requests: list[IoRequest],
        seen: set[tuple[int, int]],
        late: set[int],
    ) -> None:
        """Run a part of a batch of I/O commands, and send the responses. ``seen``: commands of
        earlier parts as (queue, command identifier). ``late``: identifiers of the commands of
        earlier parts that another thread completes. The commands of this part are added to both
        sets."""
        new = {each.sqe.cid for each in requests if (each.sqid, each.sqe.cid) not in seen}
        self._later |= new
        results = runner.run(requests, self._complete_later, seen)
        pairs = list(zip(requests, results, strict=True))
        late |= {each.sqe.cid for each, result in pairs if result is None}
        parts: list[bytes | memoryview] = []
        for request, result in pairs:
            if result is not None:
                if request.sqe.cid not in late:  # an identifier that was used twice
                    self._later.discard(request.sqe.cid)
                parts += self._result_parts(result)
        if parts:
            self._send(b"".join(parts))

    def _result_parts(self, result: IoResult) -> list[bytes | memoryview]:
        """Return the parts of the PDUs with the data and the response of an I/O command."""
        if len(result.data):
            return self._data(result.cqe.cid, result.data.data, result.cqe)
        return [self._capsule(result.cqe)]

    def deliver(self, ended: Ended) -> None:
        """Send the response to a tunnel command. Any thread may call this method."""
        self._later.discard(ended.cqe.cid)
        with contextlib.suppress(OSError):  # the host has gone
            self._send(b"".join(self._ended_parts(ended)))

    def _ended_parts(self, ended: Ended) -> list[bytes | memoryview]:
        if len(ended.data) and not ended.cqe.status:
            return self._data(ended.cqe.cid, memoryview(ended.data), ended.cqe)
        return [self._capsule(ended.cqe)]

    def _complete_later(self, request: IoRequest, result: IoResult) -> None:
        """Send the response to a computation command. Another thread calls this method."""
        self._later.discard(result.cqe.cid)
        with contextlib.suppress(OSError):  # the host has gone
            self._send(b"".join(self._result_parts(result)))

    def _execute_admin(self, command: Command) -> None:
        """Run an admin command, and send the responses."""
        sqe, controller = command.sqe, self.association.controller
        if sqe.opcode == Admin.KEEP_ALIVE:
            self._target.alive(self.association)
        if not isinstance(controller, Controller):
            reply = controller.execute(command.entry, bytes(command.data))
        elif refused := not_over_fabrics(sqe):
            with self._drive.lock:
                reply = controller.failed(command.entry, refused.code, refused.where)
        else:
            self._later.add(sqe.cid)  # for a command of the tunnel
            reply = self._drive.execute(controller, command.entry, bytes(command.data))
            if any(entry.cid == sqe.cid for entry in reply.entries) or sqe.opcode not in TUNNEL:
                self._later.discard(sqe.cid)
        self._send(b"".join(self._reply_parts(sqe, reply)))

    def _reply_parts(self, sqe: Sqe, reply: Reply) -> list[bytes | memoryview]:
        """Return the parts of the PDUs with the data and the responses of an admin command."""
        parts: list[bytes | memoryview] = []
        for entry in reply.entries:
            if entry.cid == sqe.cid and reply.data and not entry.status:
                parts += self._data(sqe.cid, memoryview(reply.data), entry)
            else:
                parts.append(self._capsule(entry))
        return parts

    # --- fabrics commands

    def _fabrics(self, entry: bytes, sqe: Sqe) -> bool:
        """Run a fabrics command, and send the response. Return False if the command ends the
        connection."""
        registers = self.association.controller.registers
        try:
            match entry[fabrics.FCTYPE_BYTE]:
                case FabricsType.CONNECT:
                    raise Refused(Code.SEQUENCE_ERROR)
                case FabricsType.DISCONNECT if self.qid == 0:
                    self._respond(Cqe(sqe.cid, status_field(FabricsCode.INVALID_QUEUE_TYPE)))
                case FabricsType.DISCONNECT:
                    self._respond(Cqe(sqe.cid))
                    return False
                case FabricsType.PROPERTY_GET if self.qid == 0:
                    with self._drive.lock:
                        found = fabrics.property_get(entry, sqe.cid, registers)
                    self._respond(found)
                case FabricsType.PROPERTY_SET if self.qid == 0:
                    with self._drive.lock:
                        actions = fabrics.property_set(entry, registers)
                    self._perform(actions)
                    self._respond(Cqe(sqe.cid))
                case _:
                    raise Refused(Code.INVALID_OPCODE)
        except Refused as refused:
            self._respond(Cqe(sqe.cid, status_field(refused.code)))
        return True

    def _perform(self, actions: list[Action]) -> None:
        """Perform the actions that a Property Set command has started."""
        controller = self.association.controller
        while actions:
            action, *actions = actions
            match action.do:
                case Do.ENABLE:
                    if isinstance(controller, Controller):
                        self._drive.enabled(controller)
                    else:
                        controller.registers.enabled()
                    self._target.alive(self.association)
                case Do.RESET:
                    self._target.end_io_queues(self.association)
                    with self._drive.lock:
                        actions += controller.disabled()
                        self._later.clear()  # commands of the tunnel
                        self.association.apply_connect()
                case Do.SHUT_DOWN if isinstance(controller, Controller):
                    self._drive.shut_down(controller, action.abrupt)
                case Do.SHUT_DOWN:
                    controller.registers.shut_down()
                case Do.SUBSYSTEM_RESET:
                    self._target.reset_subsystem()


def not_over_fabrics(sqe: Sqe) -> Refused | None:
    """Return the error of an admin command that is not allowed with NVMe over Fabrics, or None if
    the command is allowed. A host may not change the host identifier, which Connect has set."""
    if sqe.opcode in fabrics.NOT_OVER_FABRICS:
        return Refused(Code.INVALID_OPCODE)
    if sqe.opcode == Admin.SET_FEATURES and sqe.cdw10 & 0xFF == HOST_IDENTIFIER:
        return Refused(Code.SEQUENCE_ERROR)
    return None
