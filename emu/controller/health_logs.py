"""Fields of the log pages that report the state of the drive.

Owns the fields of SMART / Health Information (02h), Endurance Group Information (09h), Sanitize
Status (81h), SMART / Health Information Extended of OCP (C0h), and of an entry of Error Information
(01h). Does not own the Get Log Page command (log_pages.py) or the counters (health.py).
Source: NVM Express Base Specification 2.0, sections 5.16.1.2, 5.16.1.3, 5.16.1.10 and 5.16.1.25,
figures of the log pages; OCP Datacenter NVMe SSD Specification 2.0, section 4.8.6 (log page version
3).

Fields that a table omits are zero.
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.health import Health
from ondie.emu.controller.structure import Field, Structure

DATA_UNIT_BYTES = 512 * 1000
"""Unit of the fields Data Units Read and Data Units Written of the SMART log page, bytes. The
values are rounded up."""
BILLION = 10**9
"""Unit of the byte counts of the Endurance Group Information log page, bytes."""
HOUR_PS, MINUTE_PS = 3600 * 10**12, 60 * 10**12
TEMPERATURE_WARNING = 1 << 1
"""Critical warning: the temperature is at or above the over temperature threshold, or at or below
the under temperature threshold."""
GROUP_WARNINGS = 1 << 0 | 1 << 2 | 1 << 3
"""Critical warnings that the Endurance Group Information log page reports: spare, reliability and
read-only."""
OCP_GUID = 0xAFD514C97C6F4F9CA4F2BFEA2810AFC5
OCP_VERSION = 3


class HealthFacts(NamedTuple):
    """Data from which the fields of the health log pages are computed."""

    capabilities: Capabilities
    health: Health
    temperature_warning: bool
    read_commands: int
    """Number of completed Read, Compare and Verify commands, successful or not."""
    write_commands: int
    """Number of completed Write commands, successful or not."""
    errors: int
    """Error Count of the last entry of the Error Information log page."""
    unallocated_bytes: int
    unaligned: int
    """Number of Write commands whose range begins or ends inside a mapping unit."""

    @property
    def warning(self) -> int:
        temperature = TEMPERATURE_WARNING if self.temperature_warning else 0
        return self.health.critical_warning | temperature


def _up(count: int, unit: int) -> int:
    """Return ``count`` divided by ``unit``, rounded up."""
    return -(-count // unit)


SMART = Structure(
    "SMART / Health Information",
    512,
    "Base 2.0: Get Log Page - SMART / Health Information Log Page",
    (
        Field(0, 1, "CW", "Critical Warning", lambda facts: facts.warning),
        Field(1, 2, "CTEMP", "Composite Temperature", lambda facts: facts.health.kelvin),
        Field(3, 1, "AVSP", "Available Spare", lambda facts: facts.health.spare),
        Field(4, 1, "AVSPT", "Available Spare Threshold",
              lambda facts: facts.health.spare_threshold),
        Field(5, 1, "PUSED", "Percentage Used", lambda facts: facts.health.percentage_used),
        Field(6, 1, "EGCWS", "Endurance Group Critical Warning Summary",
              lambda facts: facts.health.critical_warning & GROUP_WARNINGS),
        Field(32, 16, "DUR", "Data Units Read",
              lambda facts: _up(facts.health.host_read_bytes, DATA_UNIT_BYTES)),
        Field(48, 16, "DUW", "Data Units Written",
              lambda facts: _up(facts.health.host_write_bytes, DATA_UNIT_BYTES)),
        Field(64, 16, "HRC", "Host Read Commands", lambda facts: facts.read_commands),
        Field(80, 16, "HWC", "Host Write Commands", lambda facts: facts.write_commands),
        Field(96, 16, "CBT", "Controller Busy Time",
              lambda facts: facts.health.busy_ps // MINUTE_PS),
        Field(112, 16, "PWRC", "Power Cycles", lambda facts: facts.health.power_cycles),
        Field(128, 16, "POH", "Power On Hours", lambda facts: facts.health.power_on_ps // HOUR_PS),
        Field(144, 16, "UPL", "Unsafe Shutdowns", lambda facts: facts.health.unsafe_shutdowns),
        Field(160, 16, "MDIE", "Media and Data Integrity Errors",
              lambda facts: facts.health.media_errors),
        Field(176, 16, "NEILE", "Number of Error Information Log Entries",
              lambda facts: facts.errors),
        Field(192, 4, "WCTT", "Warning Composite Temperature Time", 0),
        Field(196, 4, "CCTT", "Critical Composite Temperature Time", 0),
    ),
)  # fmt: skip

ENDURANCE_GROUP_INFORMATION = Structure(
    "Endurance Group Information",
    512,
    "Base 2.0: Get Log Page - Endurance Group Information Log Page",
    (
        Field(0, 1, "EGCW", "Critical Warning",
              lambda facts: facts.health.critical_warning & GROUP_WARNINGS),
        Field(1, 1, "EGF", "Endurance Group Features", 0),
        Field(3, 1, "AVSP", "Available Spare", lambda facts: facts.health.spare),
        Field(4, 1, "AVSPT", "Available Spare Threshold",
              lambda facts: facts.health.spare_threshold),
        Field(5, 1, "PUSED", "Percentage Used", lambda facts: facts.health.percentage_used),
        Field(6, 2, "DID", "Domain Identifier", 0),
        Field(32, 16, "EE", "Endurance Estimate",
              lambda facts: _up(facts.capabilities.endurance_bytes, BILLION)),
        Field(48, 16, "DUR", "Data Units Read",
              lambda facts: _up(facts.health.host_read_bytes, BILLION)),
        Field(64, 16, "DUW", "Data Units Written",
              lambda facts: _up(facts.health.host_write_bytes, BILLION)),
        Field(80, 16, "MUW", "Media Units Written",
              lambda facts: _up(facts.health.media_write_bytes, BILLION)),
        Field(96, 16, "HRC", "Host Read Commands", lambda facts: facts.read_commands),
        Field(112, 16, "HWC", "Host Write Commands", lambda facts: facts.write_commands),
        Field(128, 16, "MDIE", "Media and Data Integrity Errors",
              lambda facts: facts.health.media_errors),
        Field(144, 16, "NEILE", "Number of Error Information Log Entries",
              lambda facts: facts.errors),
        Field(160, 16, "TEGCAP", "Total Endurance Group Capacity",
              lambda facts: facts.capabilities.capacity_bytes),
        Field(176, 16, "UEGCAP", "Unallocated Endurance Group Capacity",
              lambda facts: facts.unallocated_bytes),
    ),
)  # fmt: skip

OCP_SMART = Structure(
    "SMART / Health Information Extended",
    512,
    "OCP Datacenter NVMe SSD 2.0: SMART / Health Information Extended (Log Identifier C0h)",
    (
        Field(0, 16, "PMUW", "Physical Media Units Written",
              lambda facts: facts.health.media_write_bytes),
        Field(16, 16, "PMUR", "Physical Media Units Read",
              lambda facts: facts.health.media_read_bytes),
        Field(32, 6, "BUNBR", "Bad User NAND Blocks, raw count",
              lambda facts: facts.health.bad_blocks),
        Field(38, 2, "BUNBN", "Bad User NAND Blocks, normalized",
              lambda facts: facts.health.spare),
        Field(40, 6, "BSNBR", "Bad System NAND Blocks, raw count", (1 << 48) - 1),  # none exist
        Field(46, 2, "BSNBN", "Bad System NAND Blocks, normalized", (1 << 16) - 1),
        Field(48, 8, "XRC", "XOR Recovery Count", 0),
        Field(56, 8, "UREC", "Uncorrectable Read Error Count",
              lambda facts: facts.health.uncorrectable_pages),
        Field(64, 8, "SEEC", "Soft ECC Error Count", lambda facts: facts.health.retried_pages),
        Field(72, 8, "EEDC", "End to End Correction Counts", 0),
        Field(80, 1, "SDPU", "System Data Percent Used", 0),
        Field(81, 7, "RFSC", "Refresh Counts", lambda facts: facts.health.refreshed_blocks),
        Field(88, 4, "MXUDEC", "Maximum User Data Erase Count",
              lambda facts: facts.health.most_erases),
        Field(92, 4, "MNUDEC", "Minimum User Data Erase Count",
              lambda facts: facts.health.least_erases),
        Field(96, 1, "NTTE", "Number of Thermal Throttling Events", 0),
        Field(97, 1, "CTS", "Current Throttling Status", 0),
        Field(104, 8, "PCEC", "PCIe Correctable Error Count", 0),
        Field(112, 4, "ICS", "Incomplete Shutdowns",
              lambda facts: facts.health.unsafe_shutdowns),
        Field(120, 1, "PFB", "Percent Free Blocks", lambda facts: facts.health.free_blocks),
        Field(128, 2, "CPH", "Capacitor Health", (1 << 16) - 1),  # not measured
        Field(136, 8, "UIO", "Unaligned I/O", lambda facts: facts.unaligned),
        Field(144, 8, "SVN", "Security Version Number", 0),
        Field(152, 8, "NUSE", "Total NUSE",
              lambda facts: facts.health.used_bytes // facts.capabilities.block_bytes),
        Field(160, 16, "PSC", "PLP Start Count", lambda facts: facts.health.power_loss_saves),
        Field(176, 16, "EEST", "Endurance Estimate",
              lambda facts: facts.capabilities.endurance_bytes),
        Field(494, 2, "LPV", "Log Page Version", OCP_VERSION),
        Field(496, 16, "LPG", "Log page GUID", OCP_GUID),
    ),
)  # fmt: skip


class SanitizeState(NamedTuple):
    """Fields of the Sanitize Status log page that are not constant."""

    status: int = 0
    """SSTAT bits 2:0: NEVER, DONE, IN_PROGRESS or FAILED."""
    erased: bool = False
    """SSTAT bit 8 (Global Data Erased): True if no data was written since the last successful
    sanitize operation."""
    dword: int = 0
    """SCDW10: dword 10 of the last Sanitize command that started an operation."""
    progress: int = 0xFFFF
    """SPROG: completed fraction of the sanitize operation, in units of 1/65536."""


NEVER, DONE, IN_PROGRESS, FAILED = range(4)
NO_ESTIMATE = 0xFFFF_FFFF
SANITIZE_STATUS = Structure(
    "Sanitize Status",
    512,
    "Base 2.0: Get Log Page - Sanitize Status Log Page",
    (
        Field(0, 2, "SPROG", "Sanitize Progress", lambda state: state.progress),
        Field(2, 2, "SSTAT", "Sanitize Status", lambda state: state.status | state.erased << 8),
        Field(4, 4, "SCDW10", "Sanitize Command Dword 10 Information", lambda state: state.dword),
        Field(8, 4, "ETO", "Estimated Time For Overwrite", NO_ESTIMATE),
        Field(12, 4, "ETBE", "Estimated Time For Block Erase", NO_ESTIMATE),
        Field(16, 4, "ETCE", "Estimated Time For Crypto Erase", NO_ESTIMATE),
        Field(20, 4, "ETOND", "Estimated Time For Overwrite With No-Deallocate", NO_ESTIMATE),
        Field(24, 4, "ETBEND", "Estimated Time For Block Erase With No-Deallocate", NO_ESTIMATE),
        Field(28, 4, "ETCEND", "Estimated Time For Crypto Erase With No-Deallocate", NO_ESTIMATE),
    ),
)


class ErrorEntry(NamedTuple):
    """Entry of the Error Information log page."""

    number: int
    """Error Count: number of the error, starting at 1."""
    sqid: int
    cid: int
    status: int
    """Status field of the failed command's completion queue entry, without the phase tag."""
    where: int
    """Parameter Error Location, or FFFFh if no parameter caused the error."""
    lba: int
    nsid: int


ERROR_ENTRY = Structure(
    "Error Information Log Entry",
    64,
    "Base 2.0: Get Log Page - Error Information Log Entry",
    (
        Field(0, 8, "ECNT", "Error Count", lambda entry: entry.number),
        Field(8, 2, "SQID", "Submission Queue ID", lambda entry: entry.sqid),
        Field(10, 2, "CID", "Command ID", lambda entry: entry.cid),
        Field(12, 2, "SFLD", "Status Field", lambda entry: entry.status << 1),
        Field(14, 2, "PEL", "Parameter Error Location", lambda entry: entry.where),
        Field(16, 8, "LBA", "LBA", lambda entry: entry.lba),
        Field(24, 4, "NSID", "Namespace", lambda entry: entry.nsid),
        Field(28, 1, "VSIA", "Vendor Specific Information Available", 0),
        Field(29, 1, "TRTYPE", "Transport Type", 0),
        Field(32, 8, "CSI", "Command Specific Information", 0),
        Field(40, 2, "TTSI", "Transport Type Specific Information", 0),
    ),
)
