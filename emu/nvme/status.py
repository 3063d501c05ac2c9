"""Statuses of commands, condition of a drive, and critical warnings.

Owns the codes and their meaning. Does not own the choice of a command's status (write_errors.py,
ftl/read_retry.py, engine/run/command_system.py).
Source: NVMe base specification: figures "Generic Command Status Values", "Command Specific Status
Values" and "Media and Data Integrity Error Values"; field Critical Warning of the SMART / Health
Information log page.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag


class Status(IntEnum):
    """Status of a completion: status code type << 8 | status code."""

    SUCCESS = 0x000
    INTERNAL_ERROR = 0x006
    """Internal Error: the engine has a defect, and the drive is offline."""
    NAMESPACE_WRITE_PROTECTED = 0x020
    """Namespace is Write Protected: the drive is read-only."""
    CAPACITY_EXCEEDED = 0x081
    """Capacity Exceeded: no block is free for the data, and garbage collection cannot free one."""
    WRITE_FAULT = 0x280
    """Write Fault: the data could not be committed to flash."""
    UNRECOVERED_READ_ERROR = 0x281
    """Unrecovered Read Error: a page could not be corrected."""


class Condition(Enum):
    """Operating condition of a drive, which determines the commands that it executes."""

    ONLINE = "online"
    """The drive executes commands. Writes may fail for lack of space."""
    READ_ONLY = "read-only"
    """The spare blocks are used up, or the store cannot be changed. The drive executes reads, but
    no writes or trims."""
    OFFLINE = "offline"
    """The drive does not execute commands, because the engine has a defect or the power was cut."""


class CriticalWarning(IntFlag):
    """Bits of the field Critical Warning (SMART / Health Information log page)."""

    NONE = 0
    SPARE_BELOW_THRESHOLD = 1 << 0
    RELIABILITY_DEGRADED = 1 << 2
    READ_ONLY = 1 << 3
    VOLATILE_MEMORY_BACKUP_FAILED = 1 << 4


SPARE_THRESHOLD = 0.1
"""Fraction of the initial spare blocks below which SPARE_BELOW_THRESHOLD is set."""
