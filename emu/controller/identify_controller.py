"""Identify Controller data structures: the tables of their fields.

Owns the fields of CNS 01h and 06h and their values. Does not own the Identify command (identify.py)
or the structures of namespaces (identify_namespace.py).
Source: NVM Express Base Specification 2.0, figure "Identify - Identify Controller Data Structure,
I/O Command Set Independent"; NVM Command Set Specification 1.0, figure "I/O Command Set Specific
Identify Controller Data Structure for the NVM Command Set".

Fields that the tables omit are zero: the controller does not support the features that they
describe.
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.health import CRITICAL_KELVIN, WARNING_KELVIN
from ondie.emu.controller.structure import Field, Structure

VERSION = 2 << 16
"""Version 2.0.0 of the NVMe specification, as in the fields VS and VER."""
ABORTS, EVENTS = 4, 4
"""Maximum numbers of outstanding Abort commands and of outstanding Async Event Requests."""
ERROR_ENTRIES = 64
"""Number of entries of the Error Information log page."""
ENDURANCE_GROUP = 1
FLUSH_BROADCAST = 0b11 << 1
"""VWC bits 2:1: Flush supports NSID FFFFFFFFh (all namespaces)."""
MOST_RANGES = 256
"""Maximum number of ranges of a Dataset Management command."""


class ControllerFacts(NamedTuple):
    """Data from which the variable fields of Identify Controller data structures are computed."""

    capabilities: Capabilities
    unallocated_bytes: int


# Bits of the fields.
SEVERAL_CONTROLLERS = 1 << 1
SGL_OFFSET = 1 << 20
"""SGLS: an SGL descriptor can refer to data in a capsule by an offset."""
NAMESPACE_ATTRIBUTE_NOTICES = 1 << 8
HOST_IDENTIFIER_128 = 1 << 0
ENDURANCE_GROUPS = 1 << 4
FORMAT, NAMESPACE_MANAGEMENT, DOORBELL_BUFFERS = 1 << 1, 1 << 3, 1 << 8
EFFECTS_LOG, EXTENDED_LOG_DATA = 1 << 1, 1 << 2
BLOCK_ERASE, NO_DEALLOCATE_INHIBITED, MEDIA_NOT_MODIFIED = 1 << 1, 1 << 29, 0b01 << 30
COMPARE, WRITE_UNCORRECTABLE, DATASET_MANAGEMENT, WRITE_ZEROES = 1 << 0, 1 << 1, 1 << 2, 1 << 3
SAVE_AND_SELECT, VERIFY = 1 << 4, 1 << 7

IDENTIFY_CONTROLLER = Structure(
    "Identify Controller data structure",
    4096,
    "Base 2.0: Identify - Identify Controller Data Structure, I/O Command Set Independent",
    (
        Field(0, 2, "VID", "PCI Vendor ID", lambda facts: facts.capabilities.vendor_id),
        Field(2, 2, "SSVID", "PCI Subsystem Vendor ID", lambda facts: facts.capabilities.vendor_id),
        Field(4, 20, "SN", "Serial Number", lambda facts: facts.capabilities.serial),
        Field(24, 40, "MN", "Model Number", lambda facts: facts.capabilities.model),
        Field(64, 8, "FR", "Firmware Revision", lambda facts: facts.capabilities.firmware),
        Field(72, 1, "RAB", "Recommended Arbitration Burst", 0),
        Field(73, 3, "IEEE", "IEEE OUI Identifier", 0),
        Field(76, 1, "CMIC", "Multi-Path I/O and Namespace Sharing",
              lambda facts: SEVERAL_CONTROLLERS if facts.capabilities.several_controllers else 0),
        Field(77, 1, "MDTS", "Maximum Data Transfer Size",
              lambda facts: facts.capabilities.transfer_exponent),
        Field(78, 2, "CNTLID", "Controller ID", lambda facts: facts.capabilities.controller_id),
        Field(80, 4, "VER", "Version", VERSION),
        Field(84, 4, "RTD3R", "RTD3 Resume Latency", 0),
        Field(88, 4, "RTD3E", "RTD3 Entry Latency", 0),
        Field(92, 4, "OAES", "Optional Asynchronous Events Supported", NAMESPACE_ATTRIBUTE_NOTICES),
        Field(96, 4, "CTRATT", "Controller Attributes", HOST_IDENTIFIER_128 | ENDURANCE_GROUPS),
        Field(111, 1, "CNTRLTYPE", "Controller Type", 1),
        Field(256, 2, "OACS", "Optional Admin Command Support",
              lambda facts: FORMAT | NAMESPACE_MANAGEMENT
              | (DOORBELL_BUFFERS if facts.capabilities.has_doorbell_buffers else 0)),
        Field(258, 1, "ACL", "Abort Command Limit", ABORTS - 1),
        Field(259, 1, "AERL", "Asynchronous Event Request Limit", EVENTS - 1),
        Field(260, 1, "FRMW", "Firmware Updates", 1 << 1 | 1),  # one slot, read-only
        Field(261, 1, "LPA", "Log Page Attributes", EFFECTS_LOG | EXTENDED_LOG_DATA),
        Field(262, 1, "ELPE", "Error Log Page Entries", ERROR_ENTRIES - 1),
        Field(263, 1, "NPSS", "Number of Power States Support", 0),
        Field(264, 1, "AVSCC", "Admin Vendor Specific Command Configuration", 1),
        Field(265, 1, "APSTA", "Autonomous Power State Transition Attributes", 0),
        Field(266, 2, "WCTEMP", "Warning Composite Temperature Threshold", WARNING_KELVIN),
        Field(268, 2, "CCTEMP", "Critical Composite Temperature Threshold", CRITICAL_KELVIN),
        Field(280, 16, "TNVMCAP", "Total NVM Capacity",
              lambda facts: facts.capabilities.capacity_bytes),
        Field(296, 16, "UNVMCAP", "Unallocated NVM Capacity",
              lambda facts: facts.unallocated_bytes),
        Field(320, 2, "KAS", "Keep Alive Support", 1),  # units of 100 ms
        Field(328, 4, "SANICAP", "Sanitize Capabilities",
              BLOCK_ERASE | NO_DEALLOCATE_INHIBITED | MEDIA_NOT_MODIFIED),
        Field(340, 2, "ENDGIDMAX", "Endurance Group Identifier Maximum", ENDURANCE_GROUP),
        Field(512, 1, "SQES", "Submission Queue Entry Size", 6 << 4 | 6),  # 2**6 bytes
        Field(513, 1, "CQES", "Completion Queue Entry Size", 4 << 4 | 4),  # 2**4 bytes
        Field(514, 2, "MAXCMD", "Maximum Outstanding Commands",
              lambda facts: min(facts.capabilities.queue_entries, 65535)),
        Field(516, 4, "NN", "Number of Namespaces", lambda facts: facts.capabilities.namespaces),
        Field(520, 2, "ONCS", "Optional NVM Command Support",
              COMPARE | WRITE_UNCORRECTABLE | DATASET_MANAGEMENT | WRITE_ZEROES
              | SAVE_AND_SELECT | VERIFY),
        Field(522, 2, "FUSES", "Fused Operation Support", 0),
        Field(524, 1, "FNA", "Format NVM Attributes", 0),
        Field(525, 1, "VWC", "Volatile Write Cache",
              lambda facts: FLUSH_BROADCAST | facts.capabilities.volatile_cache),
        Field(526, 2, "AWUN", "Atomic Write Unit Normal",
              lambda facts: facts.capabilities.atomic_blocks),
        Field(528, 2, "AWUPF", "Atomic Write Unit Power Fail",
              lambda facts: facts.capabilities.atomic_blocks),
        Field(530, 1, "ICSVSCC", "I/O Command Set Vendor Specific Command Configuration", 1),
        Field(531, 1, "NWPC", "Namespace Write Protection Capabilities", 0),
        Field(532, 2, "ACWU", "Atomic Compare and Write Unit", 0),
        Field(536, 4, "SGLS", "SGL Support", lambda facts: facts.capabilities.sgl_support
              | (SGL_OFFSET if facts.capabilities.capsule_bytes else 0)),
        Field(768, 256, "SUBNQN", "NVM Subsystem NVMe Qualified Name",
              lambda facts: facts.capabilities.subsystem_name.encode()),
        Field(1792, 4, "IOCCSZ", "I/O Queue Command Capsule Supported Size",
              lambda facts: facts.capabilities.capsule_bytes // 16),
        Field(1796, 4, "IORCSZ", "I/O Queue Response Capsule Supported Size",
              lambda facts: 1 if facts.capabilities.capsule_bytes else 0),
        Field(1800, 2, "ICDOFF", "In Capsule Data Offset", 0),
        Field(1802, 1, "FCATT", "Fabrics Controller Attributes", 0),
        Field(1803, 1, "MSDBD", "Maximum SGL Data Block Descriptors",
              lambda facts: 1 if facts.capabilities.capsule_bytes else 0),
        Field(2048, 32, "PSD0", "Power State 0 Descriptor", b""),
    ),
)  # fmt: skip

CONTROLLER_NVM = Structure(
    "Identify Controller data structure of the NVM Command Set",
    4096,
    "NVM Command Set 1.0: I/O Command Set Specific Identify Controller Data Structure",
    (
        Field(0, 1, "VSL", "Verify Size Limit",
              lambda facts: facts.capabilities.transfer_exponent),
        Field(1, 1, "WZSL", "Write Zeroes Size Limit", 0),
        Field(2, 1, "WUSL", "Write Uncorrectable Size Limit", 0),
        Field(3, 1, "DMRL", "Dataset Management Ranges Limit", MOST_RANGES - 1),
        Field(4, 4, "DMRSL", "Dataset Management Range Size Limit", 0),
        Field(8, 8, "DMSL", "Dataset Management Size Limit", 0),
    ),
)  # fmt: skip
