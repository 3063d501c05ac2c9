"""Framing: packs IP packets into the data blocks of commands, and unpacks them.

Owns the stream of packets, each preceded by its length, and its split into blocks, one per command.
Does not own commands (host.py, device.py) or the cost of the blocks (cost.py).
Source: NGD's public patents: the relay strips, concatenates or fragments packets. The length
headers, and the offset of the first header in a block, are defined here without a source.

A stream is `length, 2 bytes little-endian | packet | length | packet | ...`. With concatenation, a
block holds as much of the stream as its size allows. Without it, a block ends where a packet ends.
Each block carries the offset of the first header that begins in the block, or NONE. The receiver
thus detects a truncated block, or a block of another stream, before it accepts any packet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ondie.emu.nvme import wire
from ondie.emu.units import InputError

HEADER = 2
"""Size in bytes of the length field in front of a packet."""
READ_HEADER = 4
"""Size in bytes of the header in the data of a receive command, which holds the length of the
block."""
LONGEST = (1 << 8 * HEADER) - 1
"""Maximum length of a packet in bytes, equal to the maximum in an IP header."""
LARGEST = 1 << 24
"""Maximum size of a command's data buffer in bytes."""
NONE = 0xFFFFFFFF
NOTIFICATIONS = ("burst", "command")


@dataclass(frozen=True)
class Format:
    """Parameters of the packet stream on which host and drive must agree."""

    payload: int = 4096
    """Size of a command's data buffer in bytes. From drive to host, READ_HEADER of these bytes hold
    no stream data.
    """
    outstanding: int = 1
    """Maximum number of commands in flight in each direction."""
    mtu: int = 1500
    """Maximum size of a packet in bytes, including the IP header."""
    concatenate: bool = True
    """True if a block may hold several packets."""
    notify: str = "command"
    """"command": the drive signals each block. "burst": the drive signals only when a block becomes
    available and no earlier block is left to receive.
    """

    def __post_init__(self) -> None:
        if not HEADER + READ_HEADER < self.payload <= LARGEST:
            raise InputError(f"tunnel payload {self.payload} B: must be from 7 B to {LARGEST} B")
        if not 1 <= self.outstanding <= 1 << 12:
            raise InputError(
                f"{self.outstanding} outstanding tunnel commands: must be from 1 to 4096"
            )
        if not 1 <= self.mtu <= LONGEST:
            raise InputError(f"tunnel mtu {self.mtu} B: must be from 1 B to {LONGEST} B")
        if self.notify not in NOTIFICATIONS:
            raise InputError(f"tunnel notify {self.notify!r}: must be {' or '.join(NOTIFICATIONS)}")

    @property
    def down(self) -> int:
        """Maximum number of stream bytes that one command carries from host to drive."""
        return self.payload

    @property
    def up(self) -> int:
        """Maximum number of stream bytes that one command carries from drive to host."""
        return self.payload - READ_HEADER


class Packer:
    """Packs packets into blocks of at most ``room`` bytes."""

    def __init__(self, room: int, concatenate: bool) -> None:
        self.room = room
        self.concatenate = concatenate
        self._records: deque[bytes] = deque()
        self._cut = 0  # bytes of the first record already packed
        self._bytes = 0
        self._blocks = 0  # number of blocks without concatenation

    def push(self, packet: bytes) -> None:
        """Append a packet to the stream."""
        record = len(packet).to_bytes(HEADER, "little") + packet
        self._records.append(record)
        self._bytes += len(record)
        self._blocks += -(-len(record) // self.room)

    @property
    def blocks(self) -> int:
        """Number of blocks that the packets not yet packed will fill."""
        return -(-self._bytes // self.room) if self.concatenate else self._blocks

    def cut(self) -> tuple[bytes, int]:
        """Return (next block, offset of the first header in the block). A packet must be waiting.

        The offset is NONE if no header begins in the block.
        """
        parts: list[bytes] = []
        room, first = self.room, NONE
        while room and self._records:
            if self._cut == 0 and first == NONE:
                first = self.room - room
            record = self._records[0]
            part = record[self._cut : self._cut + room]
            parts.append(part)
            room -= len(part)
            self._cut += len(part)
            if self._cut == len(record):
                self._records.popleft()
                self._cut = 0
            if not self.concatenate:
                break
        data = b"".join(parts)
        self._bytes -= len(data)
        self._blocks -= 1
        return data, first


class Unpacker:
    """Unpacks packets from blocks given in the order in which they were packed."""

    def __init__(self, mtu: int) -> None:
        self.mtu = mtu
        self._record = b""  # start of an incomplete packet, with its header

    @property
    def partial(self) -> bool:
        """True if the last packet is incomplete: its end has not been received."""
        return bool(self._record)

    def feed(self, data: bytes, first: int) -> tuple[int, list[bytes]]:
        """Unpack one block. ``first``: offset of the first header in the block, or NONE.

        Returns (SUCCESS, packets that this block completes). Returns (error status, []) for an
        invalid block, of which no byte is accepted.
        """
        record, at, found = self._record, 0, NONE
        packets = []
        while at < len(data):
            if not record and found == NONE:
                found = at
                if found != first:
                    return wire.BAD_FRAGMENT, []
            need = HEADER - len(record)
            if need > 0:
                record += data[at : at + need]
                at += need
                if len(record) < HEADER:
                    break
            length = int.from_bytes(record[:HEADER], "little")
            if not 0 < length <= self.mtu:
                return wire.BAD_LENGTH, []
            need = HEADER + length - len(record)
            record += data[at : at + need]
            at += need
            if len(record) == HEADER + length:
                packets.append(record[HEADER:])
                record = b""
        if found != first:
            return wire.BAD_FRAGMENT, []
        self._record = record
        return wire.SUCCESS, packets
