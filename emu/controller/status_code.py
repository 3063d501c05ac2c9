"""Statuses of NVMe commands, and the status field of a completion queue entry.

Owns the codes that the controller uses, and the choice of the Do Not Retry bit. Does not own the
statuses of the drive's reads and writes (nvme/status.py), which are reported unchanged.
Source: NVM Express Base Specification 2.0, figures "Status Code - Generic Command Status Values"
and "Status Code - Command Specific Status Values"; NVM Command Set Specification 1.0, the figures
with the same titles, and figure "Media and Data Integrity Error Values".
"""

from __future__ import annotations

from enum import IntEnum

DO_NOT_RETRY = 1 << 14
"""Bit DNR of the status field: a retry of the command would fail again."""


class Code(IntEnum):
    """Status of a command: status code type << 8 | status code."""

    SUCCESS = 0x000
    INVALID_OPCODE = 0x001
    INVALID_FIELD = 0x002
    ID_CONFLICT = 0x003
    DATA_TRANSFER_ERROR = 0x004
    INTERNAL_ERROR = 0x006
    ABORT_REQUESTED = 0x007
    SQ_DELETED = 0x008
    INVALID_NAMESPACE = 0x00B
    SEQUENCE_ERROR = 0x00C
    INVALID_SGL_SEGMENT = 0x00D
    INVALID_SGL_COUNT = 0x00E
    SGL_LENGTH_INVALID = 0x00F
    SGL_TYPE_INVALID = 0x011
    PRP_OFFSET_INVALID = 0x013
    SGL_OFFSET_INVALID = 0x016
    HOST_ID_FORMAT = 0x018
    KEEP_ALIVE_INVALID = 0x01A
    SANITIZE_FAILED = 0x01C
    SANITIZE_IN_PROGRESS = 0x01D
    NAMESPACE_WRITE_PROTECTED = 0x020
    COMMAND_INTERRUPTED = 0x021
    TRANSIENT_TRANSPORT = 0x022
    LBA_OUT_OF_RANGE = 0x080
    CAPACITY_EXCEEDED = 0x081
    FORMAT_IN_PROGRESS = 0x084
    CQ_INVALID = 0x100
    QUEUE_ID_INVALID = 0x101
    QUEUE_SIZE_INVALID = 0x102
    ABORT_LIMIT = 0x103
    EVENT_LIMIT = 0x105
    VECTOR_INVALID = 0x108
    LOG_PAGE_INVALID = 0x109
    FORMAT_INVALID = 0x10A
    QUEUE_DELETION_INVALID = 0x10C
    FEATURE_NOT_SAVEABLE = 0x10D
    FEATURE_NOT_CHANGEABLE = 0x10E
    FEATURE_NOT_NAMESPACE = 0x10F
    NAMESPACE_CAPACITY = 0x115
    NAMESPACE_ID_UNAVAILABLE = 0x116
    NAMESPACE_ATTACHED = 0x118
    NAMESPACE_NOT_ATTACHED = 0x11A
    THIN_PROVISIONING = 0x11B
    CONTROLLER_LIST_INVALID = 0x11C
    COMMAND_SET_REJECTED = 0x12B
    CONFLICTING_ATTRIBUTES = 0x180
    WRITE_FAULT = 0x280
    UNRECOVERED_READ_ERROR = 0x281
    COMPARE_FAILURE = 0x285


RETRY = frozenset(
    {
        Code.SUCCESS,
        Code.INTERNAL_ERROR,
        Code.DATA_TRANSFER_ERROR,
        Code.ABORT_REQUESTED,
        Code.SQ_DELETED,
        Code.SANITIZE_IN_PROGRESS,
        Code.FORMAT_IN_PROGRESS,
        Code.COMMAND_INTERRUPTED,
        Code.TRANSIENT_TRANSPORT,
        Code.ABORT_LIMIT,
        Code.EVENT_LIMIT,
    }
)
"""Statuses for which the bit DNR is not set, because a retry of the command may succeed."""


_CODES = frozenset(map(int, Code))


class Refused(Exception):
    """Error: a command fails with status ``code``. ``where``: location of the invalid field in the
    submission queue entry (byte | bit << 8), in the format of the field Parameter Error Location of
    the Error Information log page."""

    def __init__(self, code: Code, byte: int = 0, bit: int = 0) -> None:
        super().__init__(f"status 0x{code:03x}, {code.name.lower().replace('_', ' ')}")
        self.code = code
        self.where = byte | bit << 8


def status_field(status: int) -> int:
    """Return the Status field of a completion queue entry, without the phase tag. ``status``:
    status code type << 8 | code. The bit Do Not Retry is set if ``status`` is a member of Code but
    not of RETRY."""
    return status if status in RETRY or status not in _CODES else status | DO_NOT_RETRY
