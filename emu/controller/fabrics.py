"""Fabrics commands: Connect, Property Get and Set, Disconnect; which hosts and queues are admitted.

Owns the layout of these commands, the subsystem with its associations, and the statuses of a
refused connection. Does not own connections and capsules (a transport), registers (registers.py),
or the controllers that an association has (admin.py, discovery.py).
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
    """FCTYPE: byte 4 of the entry."""

    PROPERTY_SET = 0x00
    CONNECT = 0x01
    PROPERTY_GET = 0x04
    DISCONNECT = 0x08


class FabricsCode(IntEnum):
    """Status code type << 8 | status code of fabrics commands."""

    INCOMPATIBLE_FORMAT = 0x180
    CONTROLLER_BUSY = 0x181
    INVALID_PARAMETERS = 0x182
    INVALID_HOST = 0x184
    INVALID_QUEUE_TYPE = 0x185


FCTYPE_BYTE, RECFMT_BYTE, QID_BYTE, SQSIZE_BYTE, OFFSET_BYTE = 4, 40, 42, 44, 44
CNTLID_BYTE, SUBNQN_BYTE, HOSTNQN_BYTE = 16, 256, 512
"""Bytes of the data of Connect."""
IN_DATA = 1 << 16
"""IATTR: the byte in error counts from the start of the data."""
CONNECT_BYTES = 1024
NAME_BYTES = 256
MOST_NAME_BYTES = 223
ANY_CONTROLLER = 0xFFFF
NO_FLOW_CONTROL = 1 << 2
"""CATTR: the host does not use the head of the submission queue (SQHD)."""
MOST_CONTROLLERS = 64
LEAST_ADMIN_ENTRIES = 32
DISCOVERY_KEEP_ALIVE_MS = 120_000
NOT_OVER_FABRICS = frozenset(
    {
        Admin.DELETE_SQ, Admin.CREATE_SQ, Admin.DELETE_CQ, Admin.CREATE_CQ,
        Admin.DOORBELL_BUFFER_CONFIG,
    }
)  # fmt: skip
"""Admin commands that message-based controllers do not have."""
PROPERTIES = {0x00: 8, 0x08: 4, 0x14: 4, 0x1C: 4, 0x20: 4, 0x68: 4}
"""Size of each property by offset: CAP, VS, CC, CSTS, NSSR, CRTO."""
_CONNECT = struct.Struct("<40xHHHBxI12x")
_DATA = struct.Struct("<16sH238x256s256s256x")
_PROPERTY = struct.Struct("<40xB3xIQ8x")


class ConnectRefused(Exception):
    """Error: a Connect command ends with ``code``. ``dword``: dword 0 of its completion, which says
    which byte of the entry or of the data is wrong."""

    def __init__(self, code: FabricsCode | Code, dword: int = 0) -> None:
        super().__init__(f"status 0x{code:03x}, {code.name.lower().replace('_', ' ')}")
        self.code, self.dword = code, dword

    def entry(self, cid: int) -> Cqe:
        """Return the completion. A host may try again only later, if the controller is busy."""
        retry = self.code is FabricsCode.CONTROLLER_BUSY
        return Cqe(cid, self.code if retry else self.code | DO_NOT_RETRY, dw0=self.dword)


class Connect(NamedTuple):
    """The Connect command."""

    qid: int
    entries: int
    """Entries of the submission queue."""
    flow_control: bool
    keep_alive_ms: int
    host_id: bytes
    cntlid: int
    subsystem: str
    host: str

    @classmethod
    def unpack(cls, entry: bytes, data: bytes) -> Connect:
        """Parse an entry, bytes[64], and its data. Raises ConnectRefused."""
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
    """Return an NVMe Qualified Name. Raises ConnectRefused for what is none."""
    name = field_bytes.split(b"\0", 1)[0]
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if not is_name(text):
        raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, IN_DATA | byte)
    return text


def is_name(text: str) -> bool:
    """Return True if ``text`` may be an NVMe Qualified Name."""
    return text.startswith("nqn.") and len(text.encode()) <= MOST_NAME_BYTES


class Property(NamedTuple):
    """The Property Get or Property Set command."""

    offset: int
    size: int
    value: int

    @classmethod
    def unpack(cls, entry: bytes) -> Property:
        """Parse an entry. Raises Refused for a property that does not exist, or another size."""
        attribute, offset, value = _PROPERTY.unpack(entry)
        size = {0: 4, 1: 8}.get(attribute & 0b111)
        if size is None or PROPERTIES.get(offset) is None:
            raise Refused(Code.INVALID_FIELD, RECFMT_BYTE if size is None else OFFSET_BYTE)
        if size != PROPERTIES[offset]:
            raise Refused(Code.INVALID_FIELD, RECFMT_BYTE)
        return cls(offset, size, value & (1 << 8 * size) - 1)


def property_get(entry: bytes, cid: int, registers: Registers) -> Cqe:
    """Return the completion of Property Get. Raises Refused."""
    asked = Property.unpack(entry)
    value = registers.read(asked.offset, asked.size)
    return Cqe(cid, dw0=value & 0xFFFFFFFF, dw1=value >> 32)


def property_set(entry: bytes, registers: Registers) -> list[Action]:
    """Write a property; return the actions that start. Raises Refused."""
    asked = Property.unpack(entry)
    return registers.write(asked.offset, asked.size, asked.value)


@dataclass(eq=False, slots=True)
class Association:
    """A host and its controller. ``queues``: identifiers of the queues that are connected."""

    cntlid: int
    host: str
    host_id: bytes
    controller: Controller | DiscoveryController
    connected_keep_alive_ms: int
    """Keep alive timeout that Connect has set."""
    queues: set[int] = field(default_factory=lambda: {0})

    def apply_connect(self) -> None:
        """Set the features that Connect determines; a reset of the controller forgets them."""
        self.controller.features.current[KEEP_ALIVE, 0] = self.connected_keep_alive_ms
        self.controller.features.host_identifier = self.host_id

    @property
    def discovery(self) -> bool:
        return isinstance(self.controller, DiscoveryController)

    @property
    def keep_alive_ms(self) -> int:
        """Time without a Keep Alive after which the association ends; 0: never. A discovery
        controller for which Connect has set no time has a fixed one."""
        found = self.controller.features.value(KEEP_ALIVE)
        return DISCOVERY_KEEP_ALIVE_MS if self.discovery and not found else found


class Subsystem:
    """An NVM subsystem and its discovery service, which hosts connect to.

    ``name``: NQN of the subsystem. ``hosts``: NQNs that may connect; None: any. ``make``,
    ``make_discovery``: return the controller with an identifier; the latter lists a port.
    ``reserved``: identifiers that controllers of other transports have.
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
        """Admit a queue and return its association; a new one for queue 0. ``port``: where the host
        has connected. Raises ConnectRefused."""
        discovery = asked.subsystem == DISCOVERY_NAME
        if not discovery and asked.subsystem != self.name:
            raise ConnectRefused(FabricsCode.INVALID_PARAMETERS, IN_DATA | SUBNQN_BYTE)
        if not discovery and self.hosts is not None and asked.host not in self.hosts:
            raise ConnectRefused(FabricsCode.INVALID_HOST)
        if asked.qid:
            return self._io_queue(asked)
        return self._admin_queue(asked, port if discovery else None)

    def _admin_queue(self, asked: Connect, port: Port | None) -> Association:
        """Admit the admin queue of a new association. ``port``: of a discovery service."""
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
        """Return the next identifier of a controller; one that has ended comes back late."""
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
        """Remove a queue whose connection has ended; with queue 0, end the association."""
        association.queues.discard(qid)
        if isinstance(association.controller, Controller):
            association.controller.queues.submission.pop(qid, None)
        if qid == 0:
            self._associations.pop(association.cntlid, None)

    @property
    def associations(self) -> list[Association]:
        return list(self._associations.values())
