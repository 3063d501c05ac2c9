"""Packets with an offload header: TCP segments that are not split yet, and incomplete checksums.

Owns the header, and the work of a network card on such a packet: splitting it into packets that fit
into the MTU, and completing checksums. Does not own devices (network_device.py).
Source: Virtual I/O Device (VIRTIO) 1.2, section 5.1.6 (struct virtio_net_hdr, little-endian); RFC
1071 (checksum), RFC 9293 (TCP), RFC 791 and RFC 8200 (pseudo-header and lengths of IP).

A device with offloads reads and writes every packet with a header of framing.OFFLOAD_HEADER bytes
in front. "Lead" is the number of bytes in front of the IP packet: the size of this header, or 0.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ondie.emu.nvme.tunnel.framing import OFFLOAD_HEADER, Data, is_ip

HEADER = struct.Struct("<BBHHHH")
"""Offload header: flags, segmentation type, size of all packet headers, data size of a segment,
start of the checksummed part, and offset of the checksum from that start. Sizes and offsets are in
bytes."""
assert HEADER.size == OFFLOAD_HEADER
NEEDS_CHECKSUM = 1
TCP_IPV4, TCP_IPV6, ECN = 1, 4, 0x80
NO_OFFLOADS = bytes(OFFLOAD_HEADER)
FIN, PSH, CWR = 0x01, 0x08, 0x80
LEAST_TCP = 20
SEQUENCE, TCP_SIZE, TCP_FLAGS, TCP_CHECKSUM = 4, 12, 13, 16
"""Offsets of the sequence number, the header size, the flags and the checksum in a TCP header,
bytes."""


def carried(packet: Data, lead: int, wanted: int) -> Sequence[Data]:
    """Return ``packet`` in the form that a receiver accepts, as one or more packets. ``lead``:
    number of bytes in front of the IP packet (the size of the offload header, or 0). ``wanted``:
    number of bytes that the receiver expects in front of each IP packet. The result is empty if the
    offload header is invalid."""
    if lead == wanted:
        return (packet,)
    if wanted:
        return (NO_OFFLOADS + packet,)
    return plain(packet)


def plain(packet: Data) -> list[bytes]:
    """Return the IP packets of ``packet``, which has an offload header, as a network without
    offloads carries them: unsplit TCP segments are split, and incomplete checksums are completed.
    The result is empty if the offload header is invalid. The only valid segmentation types are
    none, TCP over IPv4 and TCP over IPv6."""
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
    """Return the ones' complement sum of the 16-bit words of ``data``, from 1 to 65535. Data of an
    odd size is padded with a zero byte. The sum 0 is returned as 65535, which is equivalent."""
    size = len(data)
    return (int.from_bytes(data, "big") << 8 * (size & 1)) % 0xFFFF or 0xFFFF


def _with_checksum(whole: bytes, start: int, at: int) -> list[bytes]:
    """Return the packet ``whole`` with a complete checksum, as a list. ``start``: start of the
    checksummed part. ``at``: offset of the checksum field, which contains the sum of the
    pseudo-header. The list is empty if the offsets are invalid."""
    if not start <= at <= len(whole) - 2:
        return []
    value = 0xFFFF - ones_sum(whole[start:])
    return [whole[:at] + (value or 0xFFFF).to_bytes(2, "big") + whole[at + 2 :]]


def _segments(whole: bytes, start: int, size: int) -> list[bytes]:
    """Split a TCP segment, whose TCP header is at offset ``start``, into segments with at most
    ``size`` bytes of data each. The result is empty if the headers are invalid."""
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
    """Set the length in the IP header of segment ``number``, which has ``size`` bytes of data. With
    IPv4, also set the identification and the header checksum. ``head``: IP and TCP headers of the
    segment."""
    if head[0] >> 4 == 6:
        struct.pack_into(">H", head, 4, len(head) - 40 + size)
        return
    (identifier,) = struct.unpack_from(">H", head, 4)
    struct.pack_into(">HH", head, 2, len(head) + size, (identifier + number) & 0xFFFF)
    head[10:12] = bytes(2)
    struct.pack_into(">H", head, 10, 0xFFFF - ones_sum(bytes(head[: 4 * (head[0] & 0xF)])))
