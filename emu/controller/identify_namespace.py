"""Identify Namespace data structures: the tables of their fields.

Owns the fields of CNS 00h, 05h and 08h, their values, and the descriptors of CNS 03h. Does not own
the Identify command (identify.py) or the namespaces (namespaces.py).
Source: NVM Command Set Specification 1.0, figure "Identify - Identify Namespace Data Structure, NVM
Command Set", and "NVM Command Set I/O Command Set Specific Identify Namespace Data Structure";
NVM Express Base Specification 2.0, figures "Identify - I/O Command Set Independent Identify
Namespace Data Structure" and "Identify - Namespace Identification Descriptor".
"""

from __future__ import annotations

from typing import NamedTuple

from ondie.emu.controller.capabilities import Capabilities
from ondie.emu.controller.identify_controller import ENDURANCE_GROUP
from ondie.emu.controller.namespaces import Namespace
from ondie.emu.controller.structure import Field, Structure


class NamespaceFacts(NamedTuple):
    """Data from which the variable fields of Identify Namespace data structures are computed."""

    capabilities: Capabilities
    namespace: Namespace
    used_blocks: int
    """NUSE: number of logical blocks in mapped mapping units, at most NCAP."""

    def per(self, size: int) -> int:
        """Return the number of logical blocks of this namespace in ``size`` bytes, as a 0's based
        value of at most FFFFh."""
        return min(size // self.namespace.block_bytes, 1 << 16) - 1


ATOMIC_FIELDS, OPTIMAL_FIELDS = 1 << 1, 1 << 4
"""Bits of NSFEAT. ATOMIC_FIELDS: the fields NAWUN, NAWUPF and NACWU are defined. OPTIMAL_FIELDS:
the fields NPWG to NOWS are defined."""
READS_ZEROS, WRITE_ZEROES_DEALLOCATES = 0b001, 1 << 3
"""Bits of DLFEAT. READS_ZEROS: deallocated blocks read as zeros. WRITE_ZEROES_DEALLOCATES: Write
Zeroes supports deallocation."""
RELATIVE_BEST, RELATIVE_GOOD = 0b00, 0b10
"""Values of the relative performance (RP) of an LBA format."""


def _unit(facts: NamespaceFacts) -> int:
    return facts.per(facts.capabilities.mapping_unit_bytes)


def _sharing(facts: NamespaceFacts) -> int:
    """Return NMIC: 1 if the namespace may be attached to several controllers, otherwise 0."""
    return int(facts.capabilities.several_controllers)


def _formats(facts: NamespaceFacts) -> bytes:
    """Return the LBA formats, 4 bytes each: LBADS in bits 23:16, RP in bits 25:24, no metadata."""
    unit, out = facts.capabilities.mapping_unit_bytes, b""
    for size in facts.capabilities.formats:
        relative = RELATIVE_BEST if size == unit else RELATIVE_GOOD
        out += (relative << 24 | (size.bit_length() - 1) << 16).to_bytes(4, "little")
    return out


IDENTIFY_NAMESPACE = Structure(
    "Identify Namespace data structure",
    4096,
    "NVM Command Set 1.0: Identify - Identify Namespace Data Structure, NVM Command Set",
    (
        Field(0, 8, "NSZE", "Namespace Size", lambda facts: facts.namespace.blocks),
        Field(8, 8, "NCAP", "Namespace Capacity", lambda facts: facts.namespace.blocks),
        Field(16, 8, "NUSE", "Namespace Utilization", lambda facts: facts.used_blocks),
        Field(24, 1, "NSFEAT", "Namespace Features", ATOMIC_FIELDS | OPTIMAL_FIELDS),
        Field(25, 1, "NLBAF", "Number of LBA Formats",
              lambda facts: len(facts.capabilities.formats) - 1),
        Field(26, 1, "FLBAS", "Formatted LBA Size", lambda facts: facts.namespace.block_format),
        Field(27, 1, "MC", "Metadata Capabilities", 0),
        Field(28, 1, "DPC", "End-to-end Data Protection Capabilities", 0),
        Field(29, 1, "DPS", "End-to-end Data Protection Type Settings", 0),
        Field(30, 1, "NMIC", "Multi-path I/O and Namespace Sharing", _sharing),
        Field(31, 1, "RESCAP", "Reservation Capabilities", 0),
        Field(32, 1, "FPI", "Format Progress Indicator", 0),
        Field(33, 1, "DLFEAT", "Deallocate Logical Block Features",
              READS_ZEROS | WRITE_ZEROES_DEALLOCATES),
        Field(34, 2, "NAWUN", "Namespace Atomic Write Unit Normal", _unit),
        Field(36, 2, "NAWUPF", "Namespace Atomic Write Unit Power Fail", _unit),
        Field(38, 2, "NACWU", "Namespace Atomic Compare and Write Unit", 0),
        Field(40, 2, "NABSN", "Namespace Atomic Boundary Size Normal", _unit),
        Field(42, 2, "NABO", "Namespace Atomic Boundary Offset", 0),
        Field(44, 2, "NABSPF", "Namespace Atomic Boundary Size Power Fail", _unit),
        Field(46, 2, "NOIOB", "Namespace Optimal I/O Boundary", 0),
        Field(48, 16, "NVMCAP", "NVM Capacity", lambda facts: facts.namespace.size),
        Field(64, 2, "NPWG", "Namespace Preferred Write Granularity", _unit),
        Field(66, 2, "NPWA", "Namespace Preferred Write Alignment", _unit),
        Field(68, 2, "NPDG", "Namespace Preferred Deallocate Granularity", _unit),
        Field(70, 2, "NPDA", "Namespace Preferred Deallocate Alignment", _unit),
        Field(72, 2, "NOWS", "Namespace Optimal Write Size",
              lambda facts: facts.per(facts.capabilities.optimal_write_bytes)),
        Field(92, 4, "ANAGRPID", "ANA Group Identifier", 0),
        Field(99, 1, "NSATTR", "Namespace Attributes",
              lambda facts: int(facts.namespace.write_protected)),
        Field(100, 2, "NVMSETID", "NVM Set Identifier", 0),
        Field(102, 2, "ENDGID", "Endurance Group Identifier", ENDURANCE_GROUP),
        Field(104, 16, "NGUID", "Namespace Globally Unique Identifier", 0),
        Field(120, 8, "EUI64", "IEEE Extended Unique Identifier", 0),
        Field(128, 256, "LBAF", "LBA Format 0 to 63 Support", _formats),
    ),
)  # fmt: skip

NAMESPACE_NVM = Structure(
    "Identify Namespace data structure of the NVM Command Set",
    4096,
    "NVM Command Set 1.0: I/O Command Set Specific Identify Namespace Data Structure",
    (
        Field(0, 8, "LBSTM", "Logical Block Storage Tag Mask", 0),
        Field(8, 1, "PIC", "Protection Information Capabilities", 0),
        Field(12, 256, "ELBAF", "Extended LBA Format 0 to 63 Support", b""),
    ),
)

NAMESPACE_INDEPENDENT = Structure(
    "I/O Command Set Independent Identify Namespace data structure",
    4096,
    "Base 2.0: Identify - I/O Command Set Independent Identify Namespace Data Structure",
    (
        Field(0, 1, "NSFEAT", "Common Namespace Features", 0),
        Field(1, 1, "NMIC", "Multi-path I/O and Namespace Sharing", _sharing),
        Field(2, 1, "RESCAP", "Reservation Capabilities", 0),
        Field(3, 1, "FPI", "Format Progress Indicator", 0),
        Field(4, 4, "ANAGRPID", "ANA Group Identifier", 0),
        Field(8, 1, "NSATTR", "Namespace Attributes",
              lambda facts: int(facts.namespace.write_protected)),
        Field(10, 2, "NVMSETID", "NVM Set Identifier", 0),
        Field(12, 2, "ENDGID", "Endurance Group Identifier", ENDURANCE_GROUP),
        Field(14, 1, "NSTAT", "Namespace Status", 1),  # ready
    ),
)  # fmt: skip

UUID_TYPE, COMMAND_SET_TYPE = 3, 4
"""Identifier types (NIDT) of a namespace identification descriptor: UUID, and command set
identifier."""
NVM_COMMAND_SET = 0
"""Command set identifier (CSI) of the NVM Command Set."""


def descriptors(namespace: Namespace) -> bytes:
    """Return the namespace identification descriptors (CNS 03h), bytes[4096]. A descriptor consists
    of NIDT, NIDL, two reserved bytes, and NID. A descriptor with type 0 ends the list."""
    out = b""
    for kind, name in (
        (UUID_TYPE, namespace.uuid.bytes),
        (COMMAND_SET_TYPE, bytes([NVM_COMMAND_SET])),
    ):
        out += bytes([kind, len(name), 0, 0]) + name
    return out.ljust(4096, b"\0")
