"""NVMe's bytes: submission and completion queue entries, status codes, asynchronous events.

Owns the layout of entries and the names of opcodes and statuses used here. Does not own what a
command means (tunnel.py) or how entries reach a queue: data pointers are for whoever puts them
there. Source: NVMe base specification 2.0: common command format, completion queue entry, status
field, asynchronous events.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

CIDS = 1 << 16
"""Command identifiers of a queue."""
ASYNC_EVENT_REQUEST = 0x0C
EVENT_VENDOR = 0x7
"""Type of an asynchronous event that is the vendor's (dw0, bits 0 to 2)."""
TUNNEL = 0xC0
"""Admin opcode of the tunnel's commands, the first of the vendor's."""

# Status: type << 8 | code, as a completion has them above its phase tag.
SUCCESS = 0x000
INVALID_OPCODE = 0x001
INVALID_FIELD = 0x002
ID_CONFLICT = 0x003
ABORTED = 0x007
EVENT_LIMIT = 0x105
# Type 7 is the vendor's, and codes from C0 on: the tunnel's own.
BAD_DESCRIPTOR = 0x7C0
BAD_LENGTH = 0x7C1
BAD_FRAGMENT = 0x7C2
BAD_SEQUENCE = 0x7C3
NO_DESCRIPTOR = 0x7C4


class Sqe(NamedTuple):
    """A submission queue entry, its fields in the order of its bytes."""

    opcode: int
    flags: int = 0
    """Fused operation, PRP or SGL."""
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
        """64 bytes, little-endian."""
        return _SQE.pack(*self)

    @classmethod
    def unpack(cls, entry: bytes) -> Self:
        """Of 64 bytes."""
        return cls(*_SQE.unpack(entry))


class Cqe(NamedTuple):
    """A completion queue entry. Queue, its head and phase tag are for whoever owns the queue."""

    cid: int
    status: int = SUCCESS
    """Type << 8 | code."""
    dw0: int = 0
    dw1: int = 0
    sqhd: int = 0
    sqid: int = 0

    def pack(self) -> bytes:
        """16 bytes, little-endian."""
        return _CQE.pack(self.dw0, self.dw1, self.sqhd, self.sqid, self.cid, self.status << 1)

    @classmethod
    def unpack(cls, entry: bytes) -> Self:
        """Of 16 bytes."""
        dw0, dw1, sqhd, sqid, cid, status = _CQE.unpack(entry)
        return cls(cid, status >> 1 & 0x7FF, dw0, dw1, sqhd, sqid)


_SQE = struct.Struct("<BBHIIIQQQIIIIII")
_CQE = struct.Struct("<IIHHHH")
SQE_BYTES, CQE_BYTES = _SQE.size, _CQE.size


class Command(NamedTuple):
    """A submission queue entry, 64 bytes, and what the device fetches by its data pointer."""

    sqe: bytes
    data: bytes = b""


class Completion(NamedTuple):
    """A completion queue entry, 16 bytes, and what the device has put where the pointer says."""

    cqe: bytes
    data: bytes = b""
