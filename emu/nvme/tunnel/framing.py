"""Framing: packs IP packets into the data blocks of commands, and unpacks them.

Owns the stream of packets, each preceded by its length, and its split into blocks, one per command.
Does not own commands (host.py, device.py) or the cost of the blocks (cost.py).
Source: NGD's public patents: the relay strips, concatenates or fragments packets. The length
headers, and the offset of the first header in a block, are this project's.

A stream is `length, 2 bytes little-endian | packet | length | packet | ...`. With concatenation, a
block holds as much of the stream as its size allows. Without concatenation, a block also ends where
a packet ends. Each block carries the offset of the first header that begins in the block, or NONE.
Thus, the receiver detects a truncated block, or a block of another stream, before it accepts any
packet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ondie.emu.nvme import wire
from ondie.emu.units import InputError

HEADER = 2
"""Size in bytes of the length field in front of an IP packet in the stream."""
READ_HEADER = 4
"""Size in bytes of the header in the data of a receive command. The header contains the length of
the block."""
LONGEST = (1 << 8 * HEADER) - 1
"""Maximum length of an IP packet in bytes, equal to the maximum in an IP header."""
OFFLOAD_HEADER = 10
"""Size in bytes of the header virtio_net_hdr, which precedes each packet of a tunnel with
offloads."""
LARGEST = 1 << 24
"""Maximum size of the data buffer of a tunnel command, bytes."""
NONE = 0xFFFFFFFF
NOTIFICATIONS = ("burst", "command", "hold")
PS_PER_MS = 10**9
MOST_HOLD_MS = (1 << 16) - 1
Data = bytes | memoryview
"""Bytes of an IP packet or of a data block."""


@dataclass(frozen=True)
class Format:
    """Parameters of the packet stream, on which host and drive must agree. Raises InputError if a
    value is invalid."""

    payload: int = 4096
    """Size of the data buffer of a tunnel command in bytes. From drive to host, READ_HEADER of
    these bytes do not contain stream data."""
    outstanding: int = 1
    """Maximum number of tunnel commands in flight in each direction."""
    mtu: int = 1500
    """Maximum size of an IP packet in bytes, including its header."""
    concatenate: bool = True
    """True if a block may hold several IP packets."""
    notify: str = "command"
    """"command": the drive signals each block. "burst": the drive signals a block only if all
    earlier blocks have been received. "hold": the drive does not signal; it holds receive commands
    until there is a block for them, or until ``hold_ps`` has passed."""
    hold_ps: int = 10 * 10**12
    """Maximum time for which the drive holds a tunnel command before it completes the command, ps.
    It must be whole milliseconds and shorter than the timeout of the host's driver."""
    offloads: bool = False
    """True if each packet is preceded by an OFFLOAD_HEADER, may be longer than the mtu, and may
    lack its checksum; the receiver then splits the TCP segments."""

    def __post_init__(self) -> None:
        if not HEADER + READ_HEADER < self.payload <= LARGEST:
            raise InputError(f"tunnel payload {self.payload} B: must be from 7 B to {LARGEST} B")
        if not 1 <= self.outstanding <= 1 << 12:
            raise InputError(
                f"{self.outstanding} outstanding tunnel commands: must be from 1 to 4096"
            )
        if not 1 <= self.mtu <= LONGEST:
            raise InputError(f"tunnel mtu {self.mtu} B: must be from 1 B to {LONGEST} B")
        if self.offloads and self.mtu > LONGEST - OFFLOAD_HEADER:
            raise InputError(
                f"tunnel mtu {self.mtu} B: must be at most {LONGEST - OFFLOAD_HEADER} B with "
                "offloads, which add a header to each packet"
            )
        if self.notify not in NOTIFICATIONS:
            raise InputError(f"tunnel notify {self.notify!r}: must be {' or '.join(NOTIFICATIONS)}")
        if not 1 <= self.hold_ps // PS_PER_MS <= MOST_HOLD_MS or self.hold_ps % PS_PER_MS:
            raise InputError(
                f"tunnel hold {self.hold_ps} ps: must be a whole number of milliseconds from 1 to "
                f"{MOST_HOLD_MS}"
            )

    @property
    def lead(self) -> int:
        """Number of bytes between the length field of a packet in the stream and the IP packet."""
        return OFFLOAD_HEADER if self.offloads else 0

    @property
    def longest(self) -> int:
        """Maximum size in bytes of a packet in the stream, including the header that precedes
        it."""
        return LONGEST if self.offloads else self.mtu

    @property
    def down(self) -> int:
        """Maximum number of stream bytes that one command carries from host to drive."""
        return self.payload

    @property
    def up(self) -> int:
        """Maximum number of stream bytes that one command carries from drive to host."""
        return self.payload - READ_HEADER


def is_ip(packet: Data) -> bool:
    """Return True if ``packet`` is an IPv4 or IPv6 packet whose header states the length of the
    packet."""
    size = len(packet)
    if size >= 20 and packet[0] >> 4 == 4:
        return packet[0] & 0xF >= 5 and (packet[2] << 8 | packet[3]) == size
    if size >= 40 and packet[0] >> 4 == 6:
        return (packet[4] << 8 | packet[5]) + 40 == size
    return False


class Packer:
    """Buffer that packs IP packets into blocks of at most ``room`` stream bytes. Each byte of a
    packet is copied once. ``concatenate``: True if a block may contain data of several packets."""

    def __init__(self, room: int, concatenate: bool) -> None:
        self.room = room
        self.concatenate = concatenate
        self._pieces: deque[Data] = deque()  # header, packet, header, packet, ...
        self._in_packet = False  # the first piece is a packet
        self._cut = 0  # bytes of the first piece already packed
        self._bytes = 0
        self._blocks = 0  # number of blocks without concatenation

    def push(self, packet: Data) -> None:
        """Append an IP packet to the stream. The packet must not change before it is packed."""
        size = len(packet)
        self._pieces.append(size.to_bytes(HEADER, "little"))
        self._pieces.append(packet)
        self._bytes += HEADER + size
        self._blocks += -(-(HEADER + size) // self.room)

    @property
    def size(self) -> int:
        """Number of bytes of the stream that are not packed yet."""
        return self._bytes

    @property
    def blocks(self) -> int:
        """Number of blocks that the waiting packets (not yet packed into blocks) will fill."""
        return -(-self._bytes // self.room) if self.concatenate else self._blocks

    def cut(self, lead: int = 0) -> tuple[bytes, int]:
        """Return (next block, offset of the first header in the block). A packet must be waiting.

        The offset is NONE if no header begins in the block. ``lead``: size in bytes of a field that
        precedes the block and states its size (little-endian); 0 for no field.
        """
        pieces, room, first = self._pieces, self.room, NONE
        parts: list[Data] = [b""]
        size = 0
        while size < room and pieces:
            if not (self._in_packet or self._cut) and first == NONE:
                first = size
            piece = pieces[0]
            left = len(piece) - self._cut
            if left > room - size:
                parts.append(memoryview(piece)[self._cut : self._cut + room - size])
                self._cut += room - size
                size = room
                break
            parts.append(memoryview(piece)[self._cut :] if self._cut else piece)
            size += left
            pieces.popleft()
            self._cut = 0
            self._in_packet = not self._in_packet
            if not (self._in_packet or self.concatenate):
                break
        if lead:
            parts[0] = size.to_bytes(lead, "little")
        self._bytes -= size
        self._blocks -= 1
        return b"".join(parts), first


class Unpacker:
    """Buffer that recovers the IP packets from blocks, which are given in the order in which they
    were packed."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._head = b""  # start of an incomplete header
        self._parts: list[Data] = []  # of an incomplete packet, whose header is complete
        self._missing = 0  # its bytes that have not been received

    @property
    def partial(self) -> bool:
        """True if the end of the last packet of the stream has not been received."""
        return bool(self._head or self._missing)

    def feed(self, data: Data, first: int) -> tuple[int, list[Data]]:
        """Unpack one block. ``first``: offset of the first header in the block, or NONE.

        Returns (SUCCESS, packets that this block completes). If the block is invalid, accepts no
        byte of the block and returns (error status, []). A packet that lies in one block is a view
        of ``data``, so ``data`` must not change while the packet is used.
        """
        view, end, longest = memoryview(data), len(data), self.longest
        at = min(self._missing, end)
        begun, head, missing = view[:at], self._head, self._missing - at
        found = NONE
        packets: list[Data] = []
        while at < end:
            if not head:
                if found == NONE:
                    found = at
                    if found != first:
                        return wire.BAD_FRAGMENT, []
                if at + HEADER > end:
                    head = bytes(view[at:])
                    break
                length = view[at] | view[at + 1] << 8
                at += HEADER
            else:
                length = head[0] | view[at] << 8
                at += HEADER - len(head)
                head = b""
            if not 0 < length <= longest:
                return wire.BAD_LENGTH, []
            packets.append(view[at : at + length])
            at += length
        if found != first:
            return wire.BAD_FRAGMENT, []
        self._accept(begun, missing, packets, max(at - end, 0))
        self._head = head
        return wire.SUCCESS, packets

    def _accept(self, begun: Data, missing: int, packets: list[Data], short: int) -> None:
        """Accept a block. ``begun``: bytes that continue the incomplete packet. ``missing``: number
        of bytes still missing from this packet. ``short``: number of bytes missing from the last
        element of ``packets``. On return, ``packets`` contains only complete packets."""
        if len(begun):
            self._parts.append(begun)
            if not missing:
                packets.insert(0, b"".join(self._parts))
                self._parts = []
        self._missing = missing
        if short:
            self._missing = short
            last = packets.pop()
            self._parts = [last] if len(last) else []
