"""Discovery controller: reports the addresses of the NVM subsystems that a host can reach.

Owns the Discovery log page, the Identify Controller data structure of a discovery controller, and
its admin commands. Does not own connections (a transport) or the controllers of the drive
(admin.py).
Source: NVM Express Base Specification 2.0, sections 3.1.2.3 (discovery controller), 5.16.1.23
(Discovery log page) and figure "Discovery Log Page Entry Data Structure".
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.controller import log_pages
from ondie.emu.controller.actions import Action
from ondie.emu.controller.admin import FLAGS_BYTE, FUSED, TO_HOST, Reply
from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.features import FID_BYTE, KEEP_ALIVE, Features
from ondie.emu.controller.identify_controller import SGL_OFFSET, VERSION
from ondie.emu.controller.namespaces import Namespaces
from ondie.emu.controller.opcodes import Admin
from ondie.emu.controller.registers import Registers
from ondie.emu.controller.status_code import Code, Refused, status_field
from ondie.emu.controller.structure import Field, Structure
from ondie.emu.nvme.wire import Cqe, Sqe

DISCOVERY_NAME = "nqn.2014-08.org.nvmexpress.discovery"
"""NQN of the discovery service, which the specification defines."""
DISCOVERY_LOG = 0x70
CNS_CONTROLLER = 0x01
TCP = 3
"""Transport type TCP (field TRTYPE)."""
IPV4, IPV6 = 1, 2
"""Address families (field ADRFAM)."""
NVM_SUBSYSTEM, THIS_DISCOVERY = 2, 3
"""Subsystem types of log entries (field SUBTYPE)."""
ANY_CONTROLLER = 0xFFFF
EXTENDED_LOG_DATA = 1 << 2

IDENTIFY = Structure(
    "Identify Controller data structure of a discovery controller",
    4096,
    "Base 2.0: Identify - Identify Controller Data Structure, I/O Command Set Independent",
    (
        Field(4, 20, "SN", "Serial Number", lambda offered: offered.serial),
        Field(24, 40, "MN", "Model Number", lambda offered: offered.model),
        Field(64, 8, "FR", "Firmware Revision", lambda offered: offered.firmware),
        Field(77, 1, "MDTS", "Maximum Data Transfer Size",
              lambda offered: offered.transfer_exponent),
        Field(78, 2, "CNTLID", "Controller ID", lambda offered: offered.controller_id),
        Field(80, 4, "VER", "Version", VERSION),
        Field(92, 4, "OAES", "Optional Asynchronous Events Supported", 0),
        Field(96, 4, "CTRATT", "Controller Attributes", 0),
        Field(111, 1, "CNTRLTYPE", "Controller Type", 2),
        Field(261, 1, "LPA", "Log Page Attributes", EXTENDED_LOG_DATA),
        Field(320, 2, "KAS", "Keep Alive Support", 1),  # units of 100 ms
        Field(514, 2, "MAXCMD", "Maximum Outstanding Commands",
              lambda offered: min(offered.queue_entries, 65535)),
        Field(536, 4, "SGLS", "SGL Support", lambda offered: offered.sgl_support
              | SGL_OFFSET),
        Field(768, 256, "SUBNQN", "NVM Subsystem NVMe Qualified Name", DISCOVERY_NAME.encode()),
        Field(1792, 4, "IOCCSZ", "I/O Queue Command Capsule Supported Size",
              lambda offered: offered.capsule_bytes // 16),
        Field(1796, 4, "IORCSZ", "I/O Queue Response Capsule Supported Size", 1),
        Field(1803, 1, "MSDBD", "Maximum SGL Data Block Descriptors", 1),
    ),
)  # fmt: skip


class Port(NamedTuple):
    """Address through which the host has connected to the discovery service, and name of the NVM
    subsystem at this address."""

    address: str
    """IP address to which the host has connected."""
    service: int
    """TCP port to which the host has connected."""
    subsystem: str
    """NVMe qualified name of the NVM subsystem at ``address`` and ``service``."""


class Listed(NamedTuple):
    """Data from which an entry of the Discovery log page is built."""

    port: Port
    kind: int
    name: str
    entries: int
    """Maximum number of entries of an admin submission queue (ASQSZ)."""


ENTRY = Structure(
    "Discovery Log Page Entry",
    1024,
    "Base 2.0: Discovery Log Page Entry Data Structure",
    (
        Field(0, 1, "TRTYPE", "Transport Type", TCP),
        Field(1, 1, "ADRFAM", "Address Family",
              lambda listed: IPV6 if ":" in listed.port.address else IPV4),
        Field(2, 1, "SUBTYPE", "Subsystem Type", lambda listed: listed.kind),
        Field(3, 1, "TREQ", "Transport Requirements", 0),  # a secure channel is not specified
        Field(4, 2, "PORTID", "Port ID", 1),
        Field(6, 2, "CNTLID", "Controller ID", ANY_CONTROLLER),
        Field(8, 2, "ASQSZ", "Admin Max SQ Size", lambda listed: listed.entries),
        Field(10, 2, "EFLAGS", "Entry Flags", 0),
        Field(32, 32, "TRSVCID", "Transport Service Identifier",
              lambda listed: str(listed.port.service)),
        Field(256, 256, "SUBNQN", "NVM Subsystem Qualified Name",
              lambda listed: listed.name.encode()),
        Field(512, 256, "TRADDR", "Transport Address", lambda listed: listed.port.address),
        Field(768, 256, "TSAS", "Transport Specific Address Subtype", b""),  # SECTYPE 0: no TLS
    ),
)  # fmt: skip
HEADER = Structure(
    "Discovery Log Page",
    1024,
    "Base 2.0: Discovery Log Page",
    (
        Field(0, 8, "GENCTR", "Generation Counter", 0),  # the entries never change
        Field(8, 8, "NUMREC", "Number of Records", lambda count: count),
        Field(16, 2, "RECFMT", "Record Format", 0),
    ),
)
ADMIN_ENTRIES = 128


def discovery_log(port: Port) -> bytes:
    """Return the Discovery log page, which lists the discovery service and the NVM subsystem."""
    listed = (
        Listed(port, THIS_DISCOVERY, DISCOVERY_NAME, ADMIN_ENTRIES),
        Listed(port, NVM_SUBSYSTEM, port.subsystem, ADMIN_ENTRIES),
    )
    return HEADER.pack(len(listed)) + b"".join(map(ENTRY.pack, listed))


def transfer_of(sqe: Sqe, most: int) -> tuple[int, int]:
    """Return (direction, bytes) of the data transfer of an admin command; see admin.transfer_of.
    ``most``: maximum transfer size, bytes."""
    if sqe.opcode == Admin.IDENTIFY:
        return TO_HOST, IDENTIFY.size
    if sqe.opcode == Admin.GET_LOG_PAGE:
        size = log_pages.data_bytes(sqe)
        return (TO_HOST, size) if size <= most else (0, 0)
    return 0, 0


class DiscoveryController:
    """Discovery controller that reports the discovery service and the NVM subsystem at ``port``."""

    def __init__(self, capabilities: Capabilities, port: Port) -> None:
        self.capabilities = capabilities
        self.port = port
        self.registers = Registers(capabilities)
        self.features = Features(capabilities, Namespaces(capabilities))

    def disabled(self) -> list[Action]:
        """Complete the action RESET: reset the features and the registers of the controller. Return
        the actions to perform next. The list is empty unless the host has enabled the controller
        again during the reset."""
        self.features.reset()
        return self.registers.disabled()

    def execute(self, entry: bytes, data: bytes = b"") -> Reply:
        """Execute an admin command and return the reply. ``entry``: submission queue entry,
        bytes[64]. ``data`` is ignored because no supported command transfers data to the
        controller."""
        sqe = Sqe.unpack(entry)
        try:
            return self._execute(sqe)
        except Refused as refused:
            return self._refuse(sqe, refused.code)

    def failed(self, entry: bytes, status: int = Code.INTERNAL_ERROR, where: int = 0) -> Reply:
        """Return the reply to a command whose data transfer has failed with ``status`` (status code
        type << 8 | code). ``where`` is ignored because the controller has no error log."""
        return self._refuse(Sqe.unpack(entry), Code(status))

    def _refuse(self, sqe: Sqe, code: Code) -> Reply:
        return Reply((Cqe(sqe.cid, status_field(code)),))

    def _execute(self, sqe: Sqe) -> Reply:
        if sqe.flags & FUSED:
            raise Refused(Code.INVALID_FIELD, FLAGS_BYTE)
        match sqe.opcode:
            case Admin.IDENTIFY:
                if sqe.cdw10 & 0xFF != CNS_CONTROLLER:
                    raise Refused(Code.INVALID_FIELD, log_pages.LID_BYTE)
                return Reply((Cqe(sqe.cid),), IDENTIFY.pack(self.capabilities))
            case Admin.GET_LOG_PAGE:
                return Reply((Cqe(sqe.cid),), self._log_page(sqe))
            case Admin.KEEP_ALIVE:
                return Reply((Cqe(sqe.cid),))
            case Admin.GET_FEATURES | Admin.SET_FEATURES:
                if sqe.cdw10 & 0xFF != KEEP_ALIVE:
                    raise Refused(Code.INVALID_FIELD, FID_BYTE)
                if sqe.opcode == Admin.GET_FEATURES:
                    return Reply((Cqe(sqe.cid, dw0=self.features.get(sqe)[0]),))
                return Reply((Cqe(sqe.cid, dw0=self.features.set(sqe, b"", False)[0]),))
        raise Refused(Code.INVALID_OPCODE)

    def _log_page(self, sqe: Sqe) -> bytes:
        if sqe.cdw10 & 0xFF != DISCOVERY_LOG:
            raise Refused(Code.LOG_PAGE_INVALID, log_pages.LID_BYTE)
        most = self.capabilities.transfer_bytes
        return log_pages.part_of(sqe, discovery_log(self.port), most)
