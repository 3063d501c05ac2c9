"""Packets with an offload header: segments of TCP that are not cut yet, and missing checksums.

Owns the header, and the work of a network card on such a packet: cut it into packets of the
MTU, and complete checksums. Does not own devices (network_device.py).
Source: Virtual I/O Device (VIRTIO) 1.2, section 5.1.6 (struct virtio_net_hdr, little-endian);
RFC 1071 (checksum), RFC 9293 (TCP), RFC 791 and RFC 8200 (pseudo-header and lengths of IP).

A device with offloads gives and takes each packet behind a header of framing.OFFLOAD_HEADER bytes.
"Lead" is the number of bytes in front of the IP packet: that number, or 0.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ondie.emu.nvme.tunnel.framing import OFFLOAD_HEADER, Data, is_ip

HEADER = struct.Struct("<BBHHHH")
"""Offload header: flags, kind of segments, bytes of all headers, bytes of a segment's data, first
byte of the checksummed part, and offset of the checksum from there."""
assert HEADER.size == OFFLOAD_HEADER
NEEDS_CHECKSUM = 1
TCP_IPV4, TCP_IPV6, ECN = 1, 4, 0x80
NO_OFFLOADS = bytes(OFFLOAD_HEADER)
FIN, PSH, CWR = 0x01, 0x08, 0x80
LEAST_TCP = 20
SEQUENCE, TCP_SIZE, TCP_FLAGS, TCP_CHECKSUM = 4, 12, 13, 16
"""Offsets of fields in the TCP header."""


def carried(packet: Data, lead: int, wanted: int) -> Sequence[Data]:
    """Return ``packet``, which has ``lead`` bytes in front, for an end that expects ``wanted``
    bytes there; none if its header is wrong."""
    if lead == wanted:
        return (packet,)
    if wanted:
        return (NO_OFFLOADS + packet,)
    return plain(packet)


def plain(packet: Data) -> list[bytes]:
    """Return the packets without header that a packet with header combines, as a network without
    offloads carries them; none if the header is wrong, or of a kind that no device here uses."""
    if len(packet) <= OFFLOAD_HEADER:
        return []
    flags, kind, _, size, start, at = HEADER.unpack_from(packet)
    whole = bytes(packet[OFFLOAD_HEADER:])
    kind &= ~ECN
    if kind == 0:
        return [whole] if not flags & NEEDS_CHECKSUM else _with_checksum(whole, start, start + at)
    version = {TCP_IPV4: 4, TCP_IPV6: 6}.get(kind)
    if version is None or whole[0] >> 4 != version or size == 0 or not is_ip(whole):
        return []
    return _segments(whole, start, size)


def ones_sum(data: Data) -> int:
    """Return the ones' complement sum of 16-bit words, from 1 to 65535; data that are all zero have
    65535, too, which is equivalent to 0."""
    size = len(data)
    return (int.from_bytes(data, "big") << 8 * (size & 1)) % 0xFFFF or 0xFFFF


def _with_checksum(whole: bytes, start: int, at: int) -> list[bytes]:
    """Complete the checksum at ``at``, where the sum of the pseudo-header is."""
    if not start <= at <= len(whole) - 2:
        return []
    value = 0xFFFF - ones_sum(whole[start:])
    return [whole[:at] + (value or 0xFFFF).to_bytes(2, "big") + whole[at + 2 :]]


def _segments(whole: bytes, start: int, size: int) -> list[bytes]:
    """Cut a segment of TCP, whose header is at ``start``, into ones of ``size`` bytes of data."""
    least = 40 if whole[0] >> 4 == 6 else 4 * (whole[0] & 0xF)
    if not least <= start <= len(whole) - LEAST_TCP:
        return []
    body = start + 4 * (whole[start + TCP_SIZE] >> 4)
    if not start + LEAST_TCP <= body < len(whole):
        return []
    (sequence,) = struct.unpack_from(">I", whole, start + SEQUENCE)
    flags = whole[start + TCP_FLAGS]
    found = []
    for number, first in enumerate(range(body, len(whole), size)):
        data = whole[first : first + size]
        head = bytearray(whole[:body])
        moved = (sequence + first - body) & 0xFFFFFFFF
        struct.pack_into(">I", head, start + SEQUENCE, moved)
        clear = (CWR if number else 0) | (FIN | PSH if first + size < len(whole) else 0)
        head[start + TCP_FLAGS] = flags & ~clear
        _set_lengths(head, len(data), number)
        pseudo = head[8:40] if head[0] >> 4 == 6 else head[12:20]
        head[start + TCP_CHECKSUM : start + TCP_CHECKSUM + 2] = bytes(2)
        summed = bytes(pseudo) + struct.pack(">HH", 6, body - start + len(data)) + head[start:]
        value = 0xFFFF - ones_sum(bytes(summed) + data)
        struct.pack_into(">H", head, start + TCP_CHECKSUM, value)
        found.append(bytes(head) + data)
    return found


def _set_lengths(head: bytearray, size: int, number: int) -> None:
    """Set the length in the IP header of segment ``number``, which has ``size`` bytes of data, and
    what depends on it. ``head``: its headers."""
    if head[0] >> 4 == 6:
        struct.pack_into(">H", head, 4, len(head) - 40 + size)
        return
    (identifier,) = struct.unpack_from(">H", head, 4)
    struct.pack_into(">HH", head, 2, len(head) + size, (identifier + number) & 0xFFFF)
    head[10:12] = bytes(2)
    struct.pack_into(">H", head, 10, 0xFFFF - ones_sum(bytes(head[: 4 * (head[0] & 0xF)])))
