"""Protocol data units (PDUs) of NVMe/TCP: lengths, digests and fields, without I/O.

Owns the layout of all PDUs, the checks of every length before its bytes arrive, and the header and
data digests. Does not own sockets or the order of PDUs (nvme_tcp_session.py), the commands in
capsules (ondie.emu.controller) or the checksum (kernels/crc.py).
Source: NVM Express TCP Transport Specification 1.0, sections 3.6 (PDU definitions), 3.3 (error
handling) and 3.4 (digests).
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np

from ondie.kernels.crc import crc32c


class PduType(IntEnum):
    """PDU-Type. Hosts send even types, and controllers send odd types."""

    ICREQ = 0x00
    ICRESP = 0x01
    H2C_TERM_REQ = 0x02
    C2H_TERM_REQ = 0x03
    CAPSULE_CMD = 0x04
    CAPSULE_RESP = 0x05
    H2C_DATA = 0x06
    C2H_DATA = 0x07
    R2T = 0x09


class PduFlag(IntFlag):
    """Bits of the field FLAGS of the common header."""

    HEADER_DIGEST = 1 << 0
    DATA_DIGEST = 1 << 1
    LAST_PDU = 1 << 2
    SUCCESS = 1 << 3


class FatalStatus(IntEnum):
    """Fatal Error Status (FES) of a C2HTermReq."""

    INVALID_HEADER_FIELD = 0x01
    SEQUENCE_ERROR = 0x02
    HEADER_DIGEST_ERROR = 0x03
    DATA_OUT_OF_RANGE = 0x04
    DATA_LIMIT_EXCEEDED = 0x05
    UNSUPPORTED_PARAMETER = 0x06


COMMON = struct.Struct("<BBBBI")
"""Common header: PDU-Type, FLAGS, HLEN, PDO, PLEN."""
FLAGS_BYTE, HLEN_BYTE, PDO_BYTE, PLEN_BYTE = 1, 2, 3, 4
IC = struct.Struct("<HBBI112x")
"""Fields of ICReq and ICResp after the common header: PFV, HPDA or CPDA, DGST, MAXR2T or
MAXH2CDATA."""
PFV_BYTE, PDA_BYTE = 8, 10
DATA = struct.Struct("<HHII4x")
"""Fields of H2CData, C2HData and R2T after the common header: CCCID, TTAG (reserved in C2HData),
offset, length."""
CCCID_BYTE, TTAG_BYTE, DATAO_BYTE, DATAL_BYTE = 8, 10, 12, 16
TERM = struct.Struct("<HI10x")
"""Fields of H2CTermReq and C2HTermReq after the common header: FES, FEI."""
IC_BYTES, TERM_BYTES, CAPSULE_CMD_BYTES, DATA_BYTES = 128, 24, 72, 24
DIGEST_BYTES = 4
MOST_TERM_DATA = 128
"""Maximum size of the part of an invalid PDU's header that a termination request contains,
bytes."""
MOST_PDA = 31
"""Maximum value of HPDA and CPDA. The data in a PDU begins at a multiple of (PDA + 1) * 4 bytes."""
IN_HEADER = frozenset({FatalStatus.INVALID_HEADER_FIELD, FatalStatus.UNSUPPORTED_PARAMETER})
"""Statuses for which FEI is the offset of the invalid byte in the header."""


class Fatal(Exception):
    """Error: the connection must end with a C2HTermReq.

    ``where``: offset of the invalid byte in the header if ``status`` is in IN_HEADER, otherwise 0.
    ``header``: header of the invalid PDU, as far as it has arrived.
    """

    def __init__(self, status: FatalStatus, where: int = 0, header: bytes = b"") -> None:
        super().__init__(f"{status.name.lower().replace('_', ' ')}, byte {where}")
        self.status, self.where, self.header = status, where, header


class Layout(NamedTuple):
    """Layout of a type of PDU that a host sends: a row of the table LAYOUTS."""

    header: int
    """Length of the PDU's header (HLEN), bytes."""
    digests: bool
    """True if the PDU contains the negotiated digests."""
    data: bool
    """True if data may follow the header."""


LAYOUTS = {
    PduType.ICREQ: Layout(IC_BYTES, digests=False, data=False),
    PduType.H2C_TERM_REQ: Layout(TERM_BYTES, digests=False, data=True),
    PduType.CAPSULE_CMD: Layout(CAPSULE_CMD_BYTES, digests=True, data=True),
    PduType.H2C_DATA: Layout(DATA_BYTES, digests=True, data=True),
}
BEFORE_IC = frozenset({PduType.ICREQ})
AFTER_IC = frozenset({PduType.CAPSULE_CMD, PduType.H2C_DATA, PduType.H2C_TERM_REQ})


class Framing(NamedTuple):
    """Parameters of a connection that the host and the controller have negotiated."""

    header_digest: bool = False
    data_digest: bool = False
    host_alignment: int = 4
    """Alignment of the data in PDUs that are sent to the host, bytes: (HPDA + 1) * 4."""
    most_capsule: int = 8192
    """Maximum size of the data in a command capsule, bytes."""
    most_data: int = 1 << 18
    """MAXH2CDATA: maximum size of the data in an H2CData PDU, bytes."""


class Pdu(NamedTuple):
    """PDU from a host."""

    kind: PduType
    flags: int
    header: bytes
    """Common and PDU-specific header, HLEN bytes."""
    data: memoryview
    intact: bool
    """True if the data digest is correct or the PDU contains no data digest."""
    size: int
    """Length of the PDU (PLEN), bytes."""


def digest(data: bytes | memoryview) -> bytes:
    """Return the digest (CRC32C) of ``data``, a header or the data of a PDU, as bytes[4]."""
    return crc32c(np.frombuffer(data, np.uint8)).to_bytes(DIGEST_BYTES, "little")


def parse(view: memoryview, framing: Framing, expected: frozenset[PduType]) -> Pdu | None:
    """Return the PDU at the start of ``view``, or None if it is incomplete.

    ``expected``: PDU types that are allowed at this point. The data of the result is a part of
    ``view``, not a copy. Lengths are checked as soon as the common header has arrived, so a valid
    PDU has at most :func:`most_bytes` bytes. Raises Fatal if the PDU is invalid, or if its type is
    not in ``expected``.
    """
    if len(view) < COMMON.size:
        return None
    number, flags, header_bytes, offset, size = COMMON.unpack_from(view)
    layout = LAYOUTS.get(number)
    if layout is None:
        raise Fatal(FatalStatus.INVALID_HEADER_FIELD, 0, bytes(view[: COMMON.size]))
    kind = PduType(number)
    try:
        if kind not in expected:
            raise Fatal(FatalStatus.SEQUENCE_ERROR)
        if header_bytes != layout.header:
            raise Fatal(FatalStatus.INVALID_HEADER_FIELD, HLEN_BYTE)
        begin, end = _data_range(kind, layout, framing, offset, size)
        _check_flags(layout, framing, flags, end > begin)
        if len(view) < size:
            return None
        _check_header(view, layout, framing)
    except Fatal as fatal:
        fatal.header = bytes(view[: min(layout.header, len(view))])
        raise
    intact = True
    if layout.digests and framing.data_digest and end > begin:
        intact = bytes(view[end : end + DIGEST_BYTES]) == digest(view[begin:end])
    return Pdu(kind, flags, bytes(view[:header_bytes]), view[begin:end], intact, size)


def _data_range(
    kind: PduType, layout: Layout, framing: Framing, offset: int, size: int
) -> tuple[int, int]:
    """Return (begin, end) of the data in a PDU. ``offset``: PDO. ``size``: PLEN. Raises Fatal if
    PDO or PLEN is invalid."""
    head = layout.header
    if layout.digests and framing.header_digest:
        head += DIGEST_BYTES
    if kind is PduType.H2C_TERM_REQ:
        if not head <= size <= head + MOST_TERM_DATA:
            raise Fatal(FatalStatus.INVALID_HEADER_FIELD, PLEN_BYTE)
        return head, size
    if size == head and kind is not PduType.H2C_DATA:
        return head, head
    tail = DIGEST_BYTES if framing.data_digest else 0
    most = framing.most_data if kind is PduType.H2C_DATA else framing.most_capsule
    if not layout.data or not head + tail < size <= head + 4 * MOST_PDA + most + tail:
        raise Fatal(FatalStatus.INVALID_HEADER_FIELD, PLEN_BYTE)
    if offset < head or offset % 4:
        raise Fatal(FatalStatus.INVALID_HEADER_FIELD, PDO_BYTE)
    if not 0 < size - tail - offset <= most:
        raise Fatal(FatalStatus.INVALID_HEADER_FIELD, PLEN_BYTE)
    return offset, size - tail


def _check_flags(layout: Layout, framing: Framing, flags: int, has_data: bool) -> None:
    """Raise Fatal if the digest flags of a PDU differ from the negotiated digests."""
    if not layout.digests:
        return
    if bool(flags & PduFlag.HEADER_DIGEST) != framing.header_digest:
        raise Fatal(FatalStatus.INVALID_HEADER_FIELD, FLAGS_BYTE)
    if bool(flags & PduFlag.DATA_DIGEST) != (framing.data_digest and has_data):
        raise Fatal(FatalStatus.INVALID_HEADER_FIELD, FLAGS_BYTE)


def _check_header(view: memoryview, layout: Layout, framing: Framing) -> None:
    """Raise Fatal if the header digest of a PDU is incorrect."""
    if layout.digests and framing.header_digest:
        found = bytes(view[layout.header : layout.header + DIGEST_BYTES])
        if found != digest(view[: layout.header]):
            raise Fatal(FatalStatus.HEADER_DIGEST_ERROR)


def most_bytes(framing: Framing) -> int:
    """Return the maximum size of a PDU that :func:`parse` accepts, bytes."""
    head, tail = CAPSULE_CMD_BYTES + DIGEST_BYTES, DIGEST_BYTES
    return head + 4 * MOST_PDA + max(framing.most_capsule, framing.most_data) + tail


# --- fields of the host's PDUs


def negotiate(pdu: Pdu, framing: Framing) -> tuple[Framing, int]:
    """Return (negotiated parameters, maximum number of outstanding R2Ts per command) for an ICReq.
    ``framing``: default parameters. Raises Fatal if the version or the alignment in the ICReq is
    invalid."""
    version, alignment, digests, most_r2t = IC.unpack_from(pdu.header, COMMON.size)
    if version != 0:
        raise Fatal(FatalStatus.UNSUPPORTED_PARAMETER, PFV_BYTE, pdu.header)
    if alignment > MOST_PDA:
        raise Fatal(FatalStatus.INVALID_HEADER_FIELD, PDA_BYTE, pdu.header)
    agreed = framing._replace(
        header_digest=bool(digests & 1),
        data_digest=bool(digests & 2),
        host_alignment=4 * (alignment + 1),
    )
    return agreed, most_r2t + 1


class Transfer(NamedTuple):
    """Header fields of an H2CData PDU: CCCID, TTAG, DATAO and DATAL."""

    cid: int
    tag: int
    offset: int
    size: int


def transfer_of(pdu: Pdu) -> Transfer:
    """Return the header fields of an H2CData PDU. Raises Fatal if DATAL differs from the size of
    the data in the PDU."""
    found = Transfer(*DATA.unpack_from(pdu.header, COMMON.size))
    if found.size != len(pdu.data):
        raise Fatal(FatalStatus.INVALID_HEADER_FIELD, DATAL_BYTE, pdu.header)
    return found


# --- PDUs of the controller


def _pdu(
    kind: PduType,
    flags: int,
    fields: bytes,
    framing: Framing | None,
    data: bytes | memoryview = b"",
) -> list[bytes | memoryview]:
    """Return a PDU as a list of parts, which are sent one after the other. ``fields``: header
    fields after the common header. ``framing``: negotiated parameters, or None for a PDU without
    digests."""
    header_bytes = COMMON.size + len(fields)
    head, tail = header_bytes, 0
    offset = 0
    if framing is not None and framing.header_digest:
        flags |= PduFlag.HEADER_DIGEST
        head += DIGEST_BYTES
    if framing is not None and len(data):
        offset = -(-head // framing.host_alignment) * framing.host_alignment
        if framing.data_digest:
            flags |= PduFlag.DATA_DIGEST
            tail = DIGEST_BYTES
    size = max(offset, head) + len(data) + tail
    header = COMMON.pack(kind, flags, header_bytes, offset, size) + fields
    if flags & PduFlag.HEADER_DIGEST:
        header += digest(header)
    parts: list[bytes | memoryview] = [header.ljust(max(offset, head), b"\0")]
    if len(data):
        parts.append(data)
    if tail:
        parts.append(digest(data))
    return parts


def icresp(framing: Framing) -> bytes:
    """Return the ICResp PDU that accepts the parameters ``framing``. CPDA is 0, so the data from
    the host only has to be aligned to 4 bytes."""
    digests = framing.header_digest | framing.data_digest << 1
    fields = IC.pack(0, 0, digests, framing.most_data)
    return b"".join(_pdu(PduType.ICRESP, 0, fields, None))


def capsule_resp(entry: bytes, framing: Framing) -> bytes:
    """Return the CapsuleResp PDU with the completion queue entry ``entry``, bytes[16]."""
    return b"".join(_pdu(PduType.CAPSULE_RESP, 0, entry, framing))


def r2t(cid: int, tag: int, offset: int, size: int, framing: Framing) -> bytes:
    """Return the R2T PDU that requests ``size`` data bytes of command ``cid``, starting at
    ``offset``. ``tag``: transfer tag."""
    return b"".join(_pdu(PduType.R2T, 0, DATA.pack(cid, tag, offset, size), framing))


def c2h_data(
    cid: int, data: bytes | memoryview, framing: Framing, success: bool = False
) -> list[bytes | memoryview]:
    """Return the C2HData PDU with all data of command ``cid`` as a list of parts. ``success``: True
    if the PDU completes the command, so that no CapsuleResp follows."""
    flags = PduFlag.LAST_PDU | (PduFlag.SUCCESS if success else 0)
    return _pdu(PduType.C2H_DATA, flags, DATA.pack(cid, 0, 0, len(data)), framing, data)


def c2h_term_req(fatal: Fatal) -> bytes:
    """Return the C2HTermReq PDU that reports the error ``fatal``."""
    where = fatal.where if fatal.status in IN_HEADER else 0
    data = fatal.header[:MOST_TERM_DATA]
    size = TERM_BYTES + len(data)
    header = COMMON.pack(PduType.C2H_TERM_REQ, 0, TERM_BYTES, 0, size)
    return header + TERM.pack(fatal.status, where) + data
