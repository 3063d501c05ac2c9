"""Messages of the vfio-user protocol: layouts, encoding, decoding and checks, without I/O.

Owns the layout of messages, and the constants of the protocol. Does not own sockets and file
descriptors (vfio_user.py), guest memory (guest_memory.py) or the device (pcie_function.py).
Source: vfio-user Protocol Specification, version 0.9.1 and later: "Message Format", "Message
Contents"; Linux, include/uapi/linux/vfio.h, for the numbers of regions, interrupts and flags.

Version 0.9 of the specification assigns number 14 to the command DEVICE_RESET. Later versions of
the specification and QEMU use number 13.
"""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

MAJOR, MINOR = 0, 1
"""Version of the vfio-user protocol that the server supports: major and minor number."""
HEADER = struct.Struct("<HHIII")
HEADER_BYTES = HEADER.size
COMMAND_TYPE, REPLY = 0, 1
"""Message types (bits 3:0 of the flags in the header)."""
TYPE_MASK, NO_REPLY, ERROR = 0xF, 1 << 4, 1 << 5
MOST_DATA = 1 << 20
"""Maximum size of a region access, bytes."""
MOST_FDS = 16
"""Maximum number of file descriptors of a message. QEMU refuses a server that announces a larger
number."""
MOST_MESSAGE = HEADER_BYTES + 64 + MOST_DATA
"""Maximum size of a message, bytes."""


class Message(IntEnum):
    """Commands of the vfio-user protocol."""

    VERSION = 1
    DMA_MAP = 2
    DMA_UNMAP = 3
    GET_INFO = 4
    GET_REGION_INFO = 5
    GET_REGION_IO_FDS = 6
    GET_IRQ_INFO = 7
    SET_IRQS = 8
    REGION_READ = 9
    REGION_WRITE = 10
    DMA_READ = 11
    DMA_WRITE = 12
    RESET = 13
    RESET_0_9 = 14
    REGION_WRITE_MULTI = 15
    DEVICE_FEATURE = 16


class Region(IntEnum):
    """Indexes of the regions of a PCI device."""

    BAR0 = 0
    ROM = 6
    CONFIG = 7
    VGA = 8


REGIONS = 9


class Irq(IntEnum):
    """Indexes of the interrupt types of a PCI device."""

    INTX = 0
    MSI = 1
    MSIX = 2
    ERR = 3
    REQ = 4


IRQS = 5
# Flags
INFO_RESET, INFO_PCI = 1 << 0, 1 << 1
REGION_READABLE, REGION_WRITABLE = 1 << 0, 1 << 1
IRQ_EVENTFD, IRQ_NORESIZE = 1 << 0, 1 << 3
MAP_READ, MAP_WRITE = 1 << 0, 1 << 1
UNMAP_ALL = 1 << 1
DATA_NONE, DATA_BOOL, DATA_EVENTFD = 1 << 0, 1 << 1, 1 << 2
ACTION_MASK, ACTION_UNMASK, ACTION_TRIGGER = 1 << 3, 1 << 4, 1 << 5
# Payloads
VERSION = struct.Struct("<HH")
MAP = struct.Struct("<IIQQQ")
UNMAP = struct.Struct("<IIQQ")
INFO = struct.Struct("<IIII")
REGION_INFO = struct.Struct("<IIIIQQ")
IO_FDS = struct.Struct("<IIII")
IRQ_INFO = struct.Struct("<IIII")
IRQ_SET = struct.Struct("<IIIII")
ACCESS = struct.Struct("<QII")
MULTI = struct.Struct("<Q")
MULTI_WRITE = struct.Struct("<QIIQ")


POST = struct.Struct("<HHIIIQIII")
POST_BYTES = POST.size
_POSTED = (Message.REGION_WRITE, POST_BYTES, COMMAND_TYPE | NO_REPLY, Region.BAR0, 4)
BAR_END = 1 << 14
"""Size of BAR0, bytes."""


class Refused(Exception):
    """Error: the server refuses a message. The reply contains the error number ``number``
    (errno)."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode.get(number, str(number)))
        self.number = number


class Broken(Exception):
    """Error: the client has violated the protocol, so that the connection must be closed."""


class Header(NamedTuple):
    """Header of a vfio-user message."""

    number: int
    """Message identifier, which the reply repeats."""
    command: int
    size: int
    """Size of header and payload, bytes."""
    flags: int
    error: int

    @property
    def wants_reply(self) -> bool:
        return not self.flags & NO_REPLY


def parse_header(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """Return the message header that starts at ``data[at]``. Raises Broken if the size in the
    header is invalid, or if the message is not a command."""
    found = Header(*HEADER.unpack_from(data, at))
    if not HEADER_BYTES <= found.size <= MOST_MESSAGE:
        raise Broken(f"message of {found.size} bytes: must be {HEADER_BYTES} to {MOST_MESSAGE}")
    if found.flags & TYPE_MASK != COMMAND_TYPE:
        raise Broken(f"message of type {found.flags & TYPE_MASK}: must be type 0 (command)")
    return found


def posted_word(data: bytearray, at: int) -> tuple[int, int] | None:
    """Return (offset, value) if the message that starts at ``data[at]`` writes 4 bytes of BAR0 and
    requests no reply, otherwise None. Clients write doorbells with such messages. ``data`` must
    contain at least POST_BYTES bytes after index ``at``."""
    _, command, size, flags, _, offset, region, count, value = POST.unpack_from(data, at)
    if (command, size, flags, region, count) != _POSTED or offset > BAR_END - 4:
        return None
    return offset, value


def reply(header: Header, payload: bytes = b"") -> bytes:
    """Return the reply to the message with header ``header``."""
    size = HEADER_BYTES + len(payload)
    return HEADER.pack(header.number, header.command, size, REPLY, 0) + payload


def refusal(header: Header, number: int) -> bytes:
    """Return the reply to a message that has failed. ``number``: error number (errno)."""
    return HEADER.pack(header.number, header.command, HEADER_BYTES, REPLY | ERROR, number)


def unpack(form: struct.Struct, payload: bytes | memoryview, exact: bool = True) -> tuple[Any, ...]:
    """Return the fields of a payload with layout ``form``. Raises Refused if the payload is shorter
    than ``form``, or if it is longer and ``exact`` is True."""
    if len(payload) < form.size or (exact and len(payload) != form.size):
        raise Refused(errno.EINVAL)
    return form.unpack_from(payload)


def parse_version(payload: bytes | memoryview) -> tuple[int, int, dict[str, Any]]:
    """Return (major, minor, capabilities) from the payload of a VERSION message. Raises Refused if
    the payload is invalid."""
    major, minor = unpack(VERSION, payload, exact=False)
    text = bytes(payload[VERSION.size :])
    if not text:
        return major, minor, {}
    if text[-1] != 0:
        raise Refused(errno.EINVAL)
    try:
        found = json.loads(text[:-1]) if text != b"\0" else {}
    except (ValueError, RecursionError) as error:
        raise Refused(errno.EINVAL) from error
    capabilities = found.get("capabilities", {}) if isinstance(found, dict) else None
    if not isinstance(capabilities, dict):
        raise Refused(errno.EINVAL)
    return major, minor, capabilities


def version_payload(minor: int) -> bytes:
    """Return the payload of the server's reply to VERSION. ``minor``: minor version that the client
    proposes."""
    capabilities = {
        "max_msg_fds": MOST_FDS,
        "max_data_xfer_size": MOST_DATA,
        "write_multiple": True,
    }
    text = json.dumps({"capabilities": capabilities}, separators=(",", ":")).encode()
    return VERSION.pack(MAJOR, min(minor, MINOR)) + text + b"\0"


class IrqSet(NamedTuple):
    """Fields of the message SET_IRQS."""

    flags: int
    irq: int
    """Interrupt index (see Irq)."""
    first: int
    number: int
    """Number of interrupts to which the message applies, starting with ``first``."""
    values: bytes
    """One byte for each interrupt if the flag DATA_BOOL is set, otherwise empty."""


def parse_irq_set(payload: bytes | memoryview, counts: Sequence[int]) -> IrqSet:
    """Return the fields of the message SET_IRQS. ``counts``: number of interrupts of each interrupt
    index. Raises Refused if a field is invalid."""
    argsz, flags, index, start, count = unpack(IRQ_SET, payload, exact=False)
    values = bytes(payload[IRQ_SET.size :])
    kind, action = flags & 0b111, flags >> 3
    if kind not in (DATA_NONE, DATA_BOOL, DATA_EVENTFD) or action not in (1, 2, 4) or flags >> 6:
        raise Refused(errno.EINVAL)
    if index >= len(counts) or start + count > counts[index]:
        raise Refused(errno.EINVAL)
    if kind == DATA_BOOL and len(values) != count:
        raise Refused(errno.EINVAL)
    if count == 0 and not (kind == DATA_NONE and action == ACTION_TRIGGER >> 3 and start == 0):
        raise Refused(errno.EINVAL)
    return IrqSet(flags, index, start, count, values if kind == DATA_BOOL else b"")


def parse_writes(payload: bytes | memoryview) -> list[tuple[int, int, bytes]]:
    """Return (region, offset, data) of each write in a REGION_WRITE_MULTI message. Raises Refused
    if the payload is invalid."""
    (count,) = unpack(MULTI, payload, exact=False)
    if len(payload) != MULTI.size + count * MULTI_WRITE.size:
        raise Refused(errno.EINVAL)
    found = []
    for at in range(MULTI.size, len(payload), MULTI_WRITE.size):
        offset, region, size, value = MULTI_WRITE.unpack_from(payload, at)
        if not 1 <= size <= 8:
            raise Refused(errno.EINVAL)
        found.append((region, offset, value.to_bytes(8, "little")[:size]))
    return found
