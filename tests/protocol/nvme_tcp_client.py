"""A host of NVMe/TCP over a socket: words of its own, one command after the other, and wrong ones.

Written from the specification, not with the program's own words, so that both must agree.
"""

import struct

from ondie.emu.serve.nvme_tcp_wire import Framing, PduType

_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _TABLE.append(_byte)


def crc(data: bytes) -> bytes:
    """CRC-32C, little-endian."""
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 255]
    return (found ^ 0xFFFFFFFF).to_bytes(4, "little")


def icreq(header: bool = False, data: bool = False, alignment: int = 0, most_r2t: int = 0) -> bytes:
    fields = struct.pack("<HBBI112x", 0, alignment, header | data << 1, most_r2t)
    return struct.pack("<BBBBI", 0, 0, 128, 0, 128) + fields


def host_pdu(
    kind: int, fields: bytes, data: bytes, framing: Framing, padding: int = 0, flags: int = 0
) -> bytes:
    """PDU of a host. ``padding``: bytes between header and data."""
    head = 8 + len(fields)
    digests = kind != PduType.H2C_TERM_REQ
    offset = head + (4 if digests and framing.header_digest else 0)
    tail = 4 if digests and framing.data_digest and data else 0
    if data:
        offset += padding
    if digests:
        flags |= framing.header_digest | (2 if tail else 0)
    size = offset + len(data) + tail
    out = struct.pack("<BBBBI", kind, flags, head, offset if data and digests else 0, size) + fields
    if digests and framing.header_digest:
        out += crc(out)
    return out.ljust(offset, b"\0") + data + (crc(data) if tail else b"")
