"""The Get Log Page command: selection of the log page and of the requested part.

Owns the table of log pages, the selection of the requested bytes, and the Error Information log.
Does not own the fields of the health log pages (health_logs.py) or events (events.py).
Source: NVM Express Base Specification 2.0, section 5.16 and figures "Get Log Page - Log Page
Identifiers", "Firmware Slot Information", "Changed Namespace List", "Commands Supported and Effects
Log Page", "Supported Log Pages".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.health_logs import (
    ENDURANCE_GROUP_INFORMATION,
    ERROR_ENTRY,
    OCP_SMART,
    SANITIZE_STATUS,
    SMART,
    ErrorEntry,
    HealthFacts,
    SanitizeState,
)
from ondie.emu.controller.identify_controller import ENDURANCE_GROUP, ERROR_ENTRIES
from ondie.emu.controller.namespaces import BROADCAST
from ondie.emu.controller.opcodes import (
    ADMIN_EFFECTS,
    COMPUTE_EFFECTS,
    NVM_EFFECTS,
    TUNNEL_EFFECTS,
    Admin,
)
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.controller.structure import Field, Structure, number_list
from ondie.emu.nvme.wire import Sqe

(
    SUPPORTED_PAGES, ERROR_INFORMATION, HEALTH, FIRMWARE_SLOT, CHANGED_NAMESPACES, EFFECTS,
    ENDURANCE, SANITIZE, OCP_HEALTH,
) = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x09, 0x81, 0xC0  # fmt: skip
LID_BYTE, NUMD_BYTE, LSI_BYTE, OFFSET_BYTE, OT_BYTE, NSID_BYTE = 40, 42, 46, 48, 58, 4
RETAIN = 1 << 15
"""RAE (Retain Asynchronous Event): reading the log page does not unmask its event types."""
INDEX_OFFSET = 1 << 23
"""OT (Offset Type): the log page offset is the index of a list entry. No log page supports this
type."""
NO_LOCATION = 0xFFFF
WITH_HEALTH = frozenset({HEALTH, ENDURANCE, OCP_HEALTH})
"""Log pages that report the health data of the drive."""

FIRMWARE_SLOTS = Structure(
    "Firmware Slot Information",
    512,
    "Base 2.0: Get Log Page - Firmware Slot Information Log Page",
    (
        Field(0, 1, "AFI", "Active Firmware Info", 1),
        Field(8, 8, "FRS1", "Firmware Revision for Slot 1",
              lambda facts: facts.capabilities.firmware),
    ),
)  # fmt: skip


class ErrorLog:
    """The most recent ERROR_ENTRIES errors of a controller."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        """Error Count of the last entry. The transport may preserve this number across power
        cycles."""
        self.entries: deque[ErrorEntry] = deque(maxlen=ERROR_ENTRIES)

    def add(
        self,
        sqid: int,
        cid: int,
        status: int,
        where: int = NO_LOCATION,
        lba: int = 0,
        nsid: int = 0,
    ) -> None:
        """Add an entry for a command that has failed. ``sqid``, ``cid``: identifiers of its
        submission queue and of the command. ``status``: status field without the phase tag.
        ``where``: Parameter Error Location. ``lba``: first LBA of the command."""
        self.count += 1
        self.entries.appendleft(ErrorEntry(self.count, sqid, cid, status, where, lba, nsid))

    def pack(self) -> bytes:
        """Return the Error Information log page as bytes; the newest entry is the first."""
        data = b"".join(ERROR_ENTRY.pack(entry) for entry in self.entries)
        return data.ljust(ERROR_ENTRIES * ERROR_ENTRY.size, b"\0")


class LogFacts(NamedTuple):
    """Data from which the log pages are built."""

    capabilities: Capabilities
    health: HealthFacts | None
    """Data for the log pages in WITH_HEALTH, or None if another log page is requested."""
    errors: ErrorLog
    changed: list[int]
    """Identifiers of the namespaces that have changed since the host last read the Changed
    Namespace List."""
    sanitize: SanitizeState


class LogPage(NamedTuple):
    """Row of the table of log pages: title of a log page, and the function that builds the page."""

    title: str
    pack: Callable[[LogFacts], bytes]


def _changed(facts: LogFacts) -> bytes:
    """Return the Changed Namespace List: up to 1,024 identifiers, or the single entry FFFFFFFFh if
    more namespaces have changed."""
    found = sorted(set(facts.changed))
    return number_list(found if len(found) <= 1024 else [BROADCAST], 4, 4096)


def _effects(facts: LogFacts) -> bytes:
    """Return the Commands Supported and Effects log page: the effects of 256 admin opcodes, then of
    256 I/O opcodes, 4 bytes per opcode."""
    admin = {int(opcode): int(effect) for opcode, effect in ADMIN_EFFECTS.items()}
    if not facts.capabilities.has_doorbell_buffers:
        del admin[Admin.DOORBELL_BUFFER_CONFIG]
    if facts.capabilities.tunnel:
        admin |= {int(opcode): int(effect) for opcode, effect in TUNNEL_EFFECTS.items()}
    nvm = {int(opcode): int(effect) for opcode, effect in NVM_EFFECTS.items()}
    if facts.capabilities.computation:
        nvm |= {int(opcode): int(effect) for opcode, effect in COMPUTE_EFFECTS.items()}
    return (number_list(admin, 4, 1024) + number_list(nvm, 4, 1024)).ljust(4096, b"\0")


def _supported(facts: LogFacts) -> bytes:
    """Return the Supported Log Pages log page: 4 bytes for each of the 256 log page identifiers.
    Bit LSUPP is set if the log page is supported."""
    return number_list(dict.fromkeys(LOG_PAGES, 1), 4, 1024)


LOG_PAGES = {
    SUPPORTED_PAGES: LogPage("Supported Log Pages", _supported),
    ERROR_INFORMATION: LogPage("Error Information", lambda facts: facts.errors.pack()),
    HEALTH: LogPage("SMART / Health Information", lambda facts: SMART.pack(facts.health)),
    FIRMWARE_SLOT: LogPage("Firmware Slot Information",
                           lambda facts: FIRMWARE_SLOTS.pack(facts)),
    CHANGED_NAMESPACES: LogPage("Changed Namespace List", _changed),
    EFFECTS: LogPage("Commands Supported and Effects", _effects),
    ENDURANCE: LogPage("Endurance Group Information",
                       lambda facts: ENDURANCE_GROUP_INFORMATION.pack(facts.health)),
    SANITIZE: LogPage("Sanitize Status", lambda facts: SANITIZE_STATUS.pack(facts.sanitize)),
    OCP_HEALTH: LogPage("SMART / Health Information Extended (OCP)",
                        lambda facts: OCP_SMART.pack(facts.health)),
}  # fmt: skip


def data_bytes(sqe: Sqe) -> int:
    """Return the number of bytes that a Get Log Page command requests (field NUMD, a 0's based
    number of dwords)."""
    return 4 * ((sqe.cdw10 >> 16 | (sqe.cdw11 & 0xFFFF) << 16) + 1)


def get_log_page(sqe: Sqe, facts: LogFacts, most: int) -> bytes:
    """Return the data of Get Log Page. Bytes beyond the end of the log page are zero.

    ``most``: maximum transfer size, bytes. Raises Refused with Invalid Log Page if the log page is
    not supported. Raises Refused with Invalid Field if more than ``most`` bytes are requested, or
    if the offset is an index, is not a multiple of 4 or is outside the log page. Also raises
    Refused with Invalid Field if the endurance group does not exist, or if the SMART log page of a
    single namespace is requested.
    """
    page = LOG_PAGES.get(sqe.cdw10 & 0xFF)
    if page is None:
        raise Refused(Code.LOG_PAGE_INVALID, LID_BYTE)
    if sqe.cdw10 & 0xFF == ENDURANCE and sqe.cdw11 >> 16 != ENDURANCE_GROUP:
        raise Refused(Code.INVALID_FIELD, LSI_BYTE)
    if sqe.cdw10 & 0xFF == HEALTH and sqe.nsid not in (0, BROADCAST):
        raise Refused(Code.INVALID_FIELD, NSID_BYTE)
    return part_of(sqe, page.pack(facts), most)


def part_of(sqe: Sqe, data: bytes, most: int) -> bytes:
    """Return the part of the log page ``data`` that a Get Log Page command requests. Bytes beyond
    the end of the log page are zero. ``most``: maximum transfer size, bytes. Raises Refused with
    Invalid Field if the size or the offset is invalid."""
    size, offset = data_bytes(sqe), sqe.cdw12 | sqe.cdw13 << 32
    if size > most:
        raise Refused(Code.INVALID_FIELD, NUMD_BYTE)
    if sqe.cdw14 & INDEX_OFFSET:
        raise Refused(Code.INVALID_FIELD, OT_BYTE)
    if offset % 4 or offset > len(data):
        raise Refused(Code.INVALID_FIELD, OFFSET_BYTE)
    return data[offset : offset + size].ljust(size, b"\0")
