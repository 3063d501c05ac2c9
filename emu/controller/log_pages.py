"""The Get Log Page command: which page an identifier returns, offsets and lengths.

Owns the table of log pages, the slice that a command requests, and the Error Information log. Does
not own the fields of the pages about health (health_logs.py) or events (events.py). Source: NVM
Express Base Specification 2.0, section 5.16 and figures "Get Log Page - Log Page Identifiers",
"Firmware Slot Information", "Changed Namespace List", "Commands Supported and Effects Log Page",
"Supported Log Pages".
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
"""RAE: the event that the page describes stays masked."""
INDEX_OFFSET = 1 << 23
"""OT: the offset is the index of a list entry; no page supports it."""
NO_LOCATION = 0xFFFF
WITH_HEALTH = frozenset({HEALTH, ENDURANCE, OCP_HEALTH})
"""Pages that report counters of the drive."""

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
    """The last ERROR_ENTRIES errors of a drive."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        """Error Count of the last entry; kept over power cycles by the transport."""
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
        """Add an error. ``status``: status field without the phase tag."""
        self.count += 1
        self.entries.appendleft(ErrorEntry(self.count, sqid, cid, status, where, lba, nsid))

    def pack(self) -> bytes:
        """Return the log page, the newest entry first."""
        data = b"".join(ERROR_ENTRY.pack(entry) for entry in self.entries)
        return data.ljust(ERROR_ENTRIES * ERROR_ENTRY.size, b"\0")


class LogFacts(NamedTuple):
    """Values of the log pages."""

    capabilities: Capabilities
    health: HealthFacts | None
    """Values for the pages of WITH_HEALTH; None for other pages."""
    errors: ErrorLog
    changed: list[int]
    """Namespaces that have changed."""
    sanitize: SanitizeState


class LogPage(NamedTuple):
    """Row of the table of log pages."""

    title: str
    pack: Callable[[LogFacts], bytes]


def _changed(facts: LogFacts) -> bytes:
    """Return up to 1,024 namespaces; more are FFFFFFFFh alone."""
    found = sorted(set(facts.changed))
    return number_list(found if len(found) <= 1024 else [BROADCAST], 4, 4096)


def _effects(facts: LogFacts) -> bytes:
    """Return the effects of all admin and I/O opcodes: 256 of each, 4 bytes."""
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
    """Return bit LSUPP for every identifier, 4 bytes each."""
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
    """Return the number of bytes that Get Log Page requests: NUMD, 0's based, in dwords."""
    return 4 * ((sqe.cdw10 >> 16 | (sqe.cdw11 & 0xFFFF) << 16) + 1)


def get_log_page(sqe: Sqe, facts: LogFacts, most: int) -> bytes:
    """Return the data of Get Log Page; bytes past the end of the page are zero.

    ``most``: largest transfer, bytes. Raises Refused: Invalid Log Page for an unknown page, Invalid
    Field for an offset outside of the page or between dwords, more than ``most`` bytes, an unknown
    endurance group, or a namespace of a page that has none.
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
    """Return the part of a log page that Get Log Page requests; bytes past its end are zero. Raises
    Refused as get_log_page does."""
    size, offset = data_bytes(sqe), sqe.cdw12 | sqe.cdw13 << 32
    if size > most:
        raise Refused(Code.INVALID_FIELD, NUMD_BYTE)
    if sqe.cdw14 & INDEX_OFFSET:
        raise Refused(Code.INVALID_FIELD, OT_BYTE)
    if offset % 4 or offset > len(data):
        raise Refused(Code.INVALID_FIELD, OFFSET_BYTE)
    return data[offset : offset + size].ljust(size, b"\0")
