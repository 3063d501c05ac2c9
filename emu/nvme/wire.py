"""NVMe wire format: submission and completion queue entries, status codes, asynchronous events.

Owns the layout of queue entries and the opcodes and statuses that the tunnel uses. Does not own the
meaning of a command (tunnel/host.py, tunnel/device.py) or the transport of entries to a queue,
which sets the data pointers.
Source: NVMe base specification 2.0: common command format, completion queue entry, status field,
asynchronous events.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

CIDS = 1 << 16
"""Number of possible command identifiers of an NVMe queue."""
ASYNC_EVENT_REQUEST = 0x0C
EVENT_VENDOR = 0x7
"""Type of a vendor-specific asynchronous event (dw0, bits 0 to 2)."""
TUNNEL, TUNNEL_SEND, TUNNEL_RECEIVE = 0xC0, 0xC1, 0xC2
"""Admin opcodes of the tunnel's commands: the first vendor-specific opcodes. Bits 1:0 encode the
direction of the data: 0 for no data, 1 to the drive, 2 to the host."""

# Status: type << 8 | code, the bits above the phase tag of a completion.
SUCCESS = 0x000
INVALID_OPCODE = 0x001
INVALID_FIELD = 0x002
ID_CONFLICT = 0x003
ABORTED = 0x007
SQ_DELETED = 0x008
INTERRUPTED = 0x021
TRANSIENT_TRANSPORT = 0x022
EVENT_LIMIT = 0x105
PATH_ERROR, ABORTED_BY_HOST = 0x370, 0x371
"""NVMe statuses that a host's driver generates for a command whose completion it has not
received."""
# Type 7 and codes from C0 on are vendor-specific; the tunnel defines these.
BAD_DESCRIPTOR = 0x7C0
BAD_LENGTH = 0x7C1
BAD_FRAGMENT = 0x7C2
BAD_SEQUENCE = 0x7C3
NO_DESCRIPTOR = 0x7C4
NOT_IP = 0x7C5


class Sqe(NamedTuple):
    """NVMe submission queue entry (64 bytes). The fields are in the order of their bytes in the
    entry."""

    opcode: int
    flags: int = 0
    """Flag bits of the entry: fused operation; PRP or SGL data pointer."""
    cid: int = 0
    nsid: int = 0
    cdw2: int = 0
    cdw3: int = 0
    mptr: int = 0
    prp1: int = 0
    prp2: int = 0
    cdw10: int = 0
    cdw11: int = 0
    cdw12: int = 0
    cdw13: int = 0
    cdw14: int = 0
    cdw15: int = 0

    def pack(self) -> bytes:
        """Return the entry as 64 bytes, little-endian."""
        return _SQE.pack(*self)

    @classmethod
    def unpack(cls, entry: bytes) -> Self:
        """Return the entry encoded in ``entry``, 64 bytes."""
        return cls(*_SQE.unpack(entry))


class Cqe(NamedTuple):
    """NVMe completion queue entry (16 bytes). The owner of the queue sets the queue identifier, the
    queue head and the phase tag."""

    cid: int
    status: int = SUCCESS
    """Status field without the phase tag: status code type << 8 | status code, and the bit Do Not
    Retry (controller/status_code.py: status_field)."""
    dw0: int = 0
    dw1: int = 0
    sqhd: int = 0
    sqid: int = 0

    def pack(self) -> bytes:
        """Return the entry as 16 bytes, little-endian."""
        return _CQE.pack(self.dw0, self.dw1, self.sqhd, self.sqid, self.cid, self.status << 1)

    @classmethod
    def unpack(cls, entry: bytes) -> Self:
        """Return the entry encoded in ``entry``, 16 bytes."""
        dw0, dw1, sqhd, sqid, cid, status = _CQE.unpack(entry)
        return cls(cid, status >> 1 & 0x7FF, dw0, dw1, sqhd, sqid)


_SQE = struct.Struct("<BBHIIIQQQIIIIII")
_CQE = struct.Struct("<IIHHHH")
SQE_BYTES, CQE_BYTES = _SQE.size, _CQE.size


class Command(NamedTuple):
    """Command as bytes: submission queue entry (64 bytes), and the data that the device fetches
    from the memory at the data pointer."""

    sqe: bytes
    data: bytes | memoryview = b""


class Completion(NamedTuple):
    """Completion as bytes: completion queue entry (16 bytes), and the data that the device wrote to
    the memory at the data pointer."""

    cqe: bytes
    data: bytes | memoryview = b""
