"""Fabrics commands (Connect, Property Get, Property Set, Disconnect), and the admission of hosts
and queues.

Owns the layout of the fabrics commands, the subsystem with its associations, and the statuses of a
refused connection. Does not own connections and capsules (a transport), registers (registers.py),
or the controllers of associations (admin.py, discovery.py).
Source: NVM Express Base Specification 2.0, sections 3.3.1 (message-based queues) and 6 (fabrics
commands), figures "Connect Command - Submission Queue Entry", "Connect Command - Data", "Connect
Response", "Fabrics Command Specific Status Values".

Each association has a separate controller (dynamic controller model).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ondie.emu.controller.actions import Action
from ondie.emu.controller.admin import Controller
from ondie.emu.controller.discovery import DISCOVERY_NAME, DiscoveryController, Port
from ondie.emu.controller.features import KEEP_ALIVE, KEEP_ALIVE_UNIT_MS, QUEUE_COUNT
from ondie.emu.controller.opcodes import Admin
from ondie.emu.controller.queues import SubmissionQueue
from ondie.emu.controller.registers import Registers, State
from ondie.emu.controller.status_code import DO_NOT_RETRY, Code, Refused
from ondie.emu.nvme.wire import Cqe

OPCODE = 0x7F
"""Opcode of all fabrics commands."""


class FabricsType(IntEnum):
    """FCTYPE: type of a fabrics command (byte 4 of the submission queue entry)."""

    PROPERTY_SET = 0x00
    CONNECT = 0x01
    PROPERTY_GET = 0x04
    DISCONNECT = 0x08


class FabricsCode(IntEnum):
    """Statuses of fabrics commands: status code type << 8 | status code."""

    INCOMPATIBLE_FORMAT = 0x180
    CONTROLLER_BUSY = 0x181
    INVALID_PARAMETERS = 0x182
    INVALID_HOST = 0x184
    INVALID_QUEUE_TYPE = 0x185


FCTYPE_BYTE, RECFMT_BYTE, QID_BYTE, SQSIZE_BYTE, OFFSET_BYTE = 4, 40, 42, 44, 44
CNTLID_BYTE, SUBNQN_BYTE, HOSTNQN_BYTE = 16, 256, 512
"""Byte offsets of fields in the data of a Connect command."""
IN_DATA = 1 << 16
"""Flag in field IATTR: the offset of the invalid byte is relative to the start of the data, not of
the submission queue entry."""
CONNECT_BYTES = 1024
NAME_BYTES = 256
MOST_NAME_BYTES = 223
ANY_CONTROLLER = 0xFFFF
NO_FLOW_CONTROL = 1 << 2
"""CATTR: the host does not use the submission queue head pointer (SQHD)."""
MOST_CONTROLLERS = 64
LEAST_ADMIN_ENTRIES = 32
DISCOVERY_KEEP_ALIVE_MS = 120_000
NOT_OVER_FABRICS = frozenset(
    {
        Admin.DELETE_SQ, Admin.CREATE_SQ, Admin.DELETE_CQ, Admin.CREATE_CQ,
        Admin.DOORBELL_BUFFER_CONFIG,
    }
)  # fmt: skip
"""Admin commands that controllers of message-based transports do not support."""
PROPERTIES = {0x00: 8, 0x08: 4, 0x14: 4, 0x1C: 4, 0x20: 4, 0x68: 4}
"""Size of each property (bytes) by its offset: CAP, VS, CC, CSTS, NSSR, CRTO."""
_CONNECT = struct.Struct("<40xHHHBxI12x")
_DATA = struct.Struct("<16sH238x256s256s256x")
_PROPERTY = struct.Struct("<40xB3xIQ8x")


class ConnectRefused(Exception):
    """Error: a Connect command fails with status ``code``. ``dword``: dword 0 of the completion,
    which identifies the invalid byte of the submission queue entry or of the data."""

    def __init__(self, code: FabricsCode | Code, dword: int = 0) -> None:
        super().__init__(f"status 0x{code:03x}, {code.name.lower().replace('_', ' ')}")
        self.code, self.dword = code, dword

    def entry(self, cid: int) -> Cqe:
        """Return the completion of the command with identifier ``cid``. Do Not Retry is set unless
        the status is Controller Busy."""
        retry = self.code is FabricsCode.CONTROLLER_BUSY
        return Cqe(cid, self.code if retry else self.code | DO_NOT_RETRY, dw0=self.dword)


class Connect(NamedTuple):
    """Parsed Connect command."""

    qid: int
    entries: int
    """Number of entries of the submission queue."""
    flow_control: bool
    keep_alive_ms: int
    host_id: bytes
    cntlid: int
    subsystem: str
    host: str

    @classmethod
    def unpack(cls, entry: bytes, data: bytes) -> Connect:
        """Parse a submission queue entry, bytes[64], and its data. Raises ConnectRefused if the
        record format, the data size, the queue size or a name is invalid."""
        record_format, qid, size, attributes, keep_alive = _CONNECT.unpack(entry)
        if record_format != 0:
            raise ConnectRefused(FabricsCode.INCOMPATIBLE_FORMAT)
        if len(data) != CONNECT_BYTES:
            raise ConnectRefused(Code.SGL_LENGTH_INVALID)
        if size == 0:
            raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, SQSIZE_BYTE)
        host_id, cntlid, subsystem, host = _DATA.unpack(data)
        return cls(
            qid,
            size + 1,
            not attributes & NO_FLOW_CONTROL,
            keep_alive,
            host_id,
            cntlid,
            _name(subsystem, SUBNQN_BYTE),
            _name(host, HOSTNQN_BYTE),
        )


def _name(field_bytes: bytes, byte: int) -> str:
    """Return the NVMe Qualified Name in a field of the data of Connect. Raises ConnectRefused if
    the field does not contain a valid name."""
    name = field_bytes.split(b"\0", 1)[0]
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if not is_name(text):
        raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, IN_DATA | byte)
    return text


def is_name(text: str) -> bool:
    """Return True if ``text`` begins with "nqn." and has at most MOST_NAME_BYTES bytes."""
    return text.startswith("nqn.") and len(text.encode()) <= MOST_NAME_BYTES


class Property(NamedTuple):
    """Parsed Property Get or Property Set command."""

    offset: int
    size: int
    value: int

    @classmethod
    def unpack(cls, entry: bytes) -> Property:
        """Parse a submission queue entry. Raises Refused if the property does not exist, or if its
        size differs from the size in the entry."""
        attribute, offset, value = _PROPERTY.unpack(entry)
        size = {0: 4, 1: 8}.get(attribute & 0b111)
        if size is None or PROPERTIES.get(offset) is None:
            raise Refused(Code.INVALID_FIELD, RECFMT_BYTE if size is None else OFFSET_BYTE)
        if size != PROPERTIES[offset]:
            raise Refused(Code.INVALID_FIELD, RECFMT_BYTE)
        return cls(offset, size, value & (1 << 8 * size) - 1)


def property_get(entry: bytes, cid: int, registers: Registers) -> Cqe:
    """Execute Property Get and return its completion. Raises Refused if the property does not
    exist, or if its size differs from the size in the entry."""
    asked = Property.unpack(entry)
    value = registers.read(asked.offset, asked.size)
    return Cqe(cid, dw0=value & 0xFFFFFFFF, dw1=value >> 32)


def property_set(entry: bytes, registers: Registers) -> list[Action]:
    """Execute Property Set; return the actions that the write starts. Raises Refused if the
    property does not exist, or if its size differs from the size in the entry."""
    asked = Property.unpack(entry)
    return registers.write(asked.offset, asked.size, asked.value)


@dataclass(eq=False, slots=True)
class Association:
    """Association of NVMe over Fabrics: a host and the controller that serves only this host.
    ``queues``: identifiers of the connected queues."""

    cntlid: int
    host: str
    host_id: bytes
    controller: Controller | DiscoveryController
    connected_keep_alive_ms: int
    """Keep Alive timeout that the Connect command has set, ms."""
    queues: set[int] = field(default_factory=lambda: {0})

    def apply_connect(self) -> None:
        """Set the Keep Alive timeout and the host identifier of the controller to the values from
        the Connect command. A controller reset clears these two values."""
        self.controller.features.current[KEEP_ALIVE, 0] = self.connected_keep_alive_ms
        self.controller.features.host_identifier = self.host_id

    @property
    def discovery(self) -> bool:
        return isinstance(self.controller, DiscoveryController)

    @property
    def keep_alive_ms(self) -> int:
        """Keep Alive timeout, ms, or 0 if the association has no timeout. For a discovery
        controller, DISCOVERY_KEEP_ALIVE_MS applies if no timeout is set."""
        found = self.controller.features.value(KEEP_ALIVE)
        return DISCOVERY_KEEP_ALIVE_MS if self.discovery and not found else found


class Subsystem:
    """An NVM subsystem and its discovery service.

    ``name``: NQN of the subsystem. ``hosts``: NQNs of the hosts that may connect to the subsystem,
    or None to admit any host; the discovery service admits any host. ``make``: function that
    creates the controller with a given identifier. ``make_discovery``: function that creates the
    discovery controller with a given identifier for a given port. ``reserved``: identifiers of
    controllers of other transports, which are not assigned to associations.
    """

    def __init__(
        self,
        name: str,
        hosts: Collection[str] | None,
        make: Callable[[int], Controller],
        make_discovery: Callable[[int, Port], DiscoveryController],
        reserved: Collection[int] = (),
    ) -> None:
        self.name = name
        self._reserved = frozenset(reserved)
        self.hosts = None if hosts is None else frozenset(hosts)
        self._make, self._make_discovery = make, make_discovery
        self._associations: dict[int, Association] = {}
        self._last = 0

    def connect(self, asked: Connect, port: Port) -> Association:
        """Admit a queue and return its association. An admin queue (queue 0) creates a new
        association. ``port``: address to which the host has connected. Raises ConnectRefused if the
        command is invalid, or if the host may not connect."""
        discovery = asked.subsystem == DISCOVERY_NAME
        if not discovery and asked.subsystem != self.name:
            raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, IN_DATA | SUBNQN_BYTE)
        if not discovery and self.hosts is not None and asked.host not in self.hosts:
            raise ConnectRefused(FabricsCode.INVALID_HOST)
        if asked.qid:
            return self._io_queue(asked)
        return self._admin_queue(asked, port if discovery else None)

    def _admin_queue(self, asked: Connect, port: Port | None) -> Association:
        """Create an association with its admin queue. ``port``: address of the discovery service,
        or None for an I/O controller. Raises ConnectRefused if a field is invalid, or if the
        maximum number of controllers exists."""
        if asked.cntlid != ANY_CONTROLLER:
            raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, IN_DATA | CNTLID_BYTE)
        if not LEAST_ADMIN_ENTRIES <= asked.entries <= 1 << 12:
            raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, SQSIZE_BYTE)
        if len(self._associations) >= MOST_CONTROLLERS:
            raise ConnectRefused(FabricsCode.CONTROLLER_BUSY)
        cntlid = self._free()
        controller = self._make(cntlid) if port is None else self._make_discovery(cntlid, port)
        controller.registers.aqa = (asked.entries - 1) * 0x0001_0001
        timeout = -(-asked.keep_alive_ms // KEEP_ALIVE_UNIT_MS) * KEEP_ALIVE_UNIT_MS
        found = Association(cntlid, asked.host, asked.host_id, controller, timeout)
        found.apply_connect()
        self._associations[cntlid] = found
        return found

    def _free(self) -> int:
        """Return an unused controller identifier. Identifiers are assigned in ascending order, and
        start again at 1 after the largest identifier, so that the identifier of an ended
        association is not reused soon."""
        while True:
            self._last = self._last % (ANY_CONTROLLER - 0x10) + 1
            if self._last not in self._reserved and self._last not in self._associations:
                return self._last

    def _io_queue(self, asked: Connect) -> Association:
        found = self._associations.get(asked.cntlid)
        if found is None:
            raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, IN_DATA | CNTLID_BYTE)
        if (found.host, found.host_id) != (asked.host, asked.host_id):
            raise ConnectRefused(FabricsCode.INVALID_HOST)
        controller = found.controller
        if isinstance(controller, DiscoveryController) or asked.subsystem != self.name:
            raise ConnectRefused(FabricsCode.INVALID_QUEUE_TYPE)
        if controller.registers.state is not State.READY:
            raise ConnectRefused(Code.SEQUENCE_ERROR)
        if asked.qid > (controller.features.value(QUEUE_COUNT) & 0xFFFF) + 1:
            raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, QID_BYTE)
        if asked.qid in found.queues:
            raise ConnectRefused(Code.SEQUENCE_ERROR)
        if asked.entries > controller.capabilities.queue_entries:
            raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, SQSIZE_BYTE)
        found.queues.add(asked.qid)
        queue = SubmissionQueue(asked.qid, asked.entries, 0, asked.qid, 0)
        controller.queues.submission[asked.qid] = queue
        return found

    def disconnect(self, association: Association, qid: int) -> None:
        """Remove the queue with identifier ``qid``, whose connection has ended. If the queue is the
        admin queue (0), end the association."""
        association.queues.discard(qid)
        if isinstance(association.controller, Controller):
            association.controller.queues.submission.pop(qid, None)
        if qid == 0:
            self._associations.pop(association.cntlid, None)

    @property
    def associations(self) -> list[Association]:
        return list(self._associations.values())
