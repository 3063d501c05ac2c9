"""Framing: IP packets cut into the data of commands, and put together again.

Owns the stream of packets, each behind its length, and how it is cut into blocks, one per command.
Does not own commands (tunnel.py) or how many blocks that makes (tunnel_cost.py).
Source: NGD's public patents: the relay strips, concatenates or fragments packets. Length headers
and the offset of a block's first header are this project's own.

A stream is `length, 2 bytes little-endian | packet | length | packet | ...`. With concatenation a
block holds as much of it as it has room for; without, it ends where a packet does. With each block
goes the offset of the first header that begins in it, NONE if none does: a block that was cut short
or comes from another stream is found out before any of it is taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ondie.emu.nvme import wire as nvme
from ondie.emu.units import InputError

HEADER = 2
"""Bytes of a packet's length."""
READ_HEADER = 4
"""Bytes at the head of what a command brings up: how many follow."""
LONGEST = (1 << 8 * HEADER) - 1
"""Longest packet: what an IP header can say, too."""
LARGEST = 1 << 24
"""Largest buffer of a command."""
NONE = 0xFFFFFFFF
NOTIFICATIONS = ("burst", "command")


@dataclass(frozen=True)
class Format:
    """What host and drive have to agree on."""

    payload: int = 4096
    """Bytes of a command's buffer; upward READ_HEADER of them are not for packets."""
    outstanding: int = 1
    """Commands in flight each way."""
    mtu: int = 1500
    """Largest packet, with its IP header."""
    concatenate: bool = True
    """May a block hold several packets?"""
    notify: str = "command"
    """The drive signals once for every block, or when it has some after it had none ("burst")."""

    def __post_init__(self) -> None:
        if not HEADER + READ_HEADER < self.payload <= LARGEST:
            raise InputError(f"tunnel payload {self.payload} B: 7 B to {LARGEST} are right")
        if not 1 <= self.outstanding <= 1 << 12:
            raise InputError(f"{self.outstanding} commands outstanding: 1 to 4096 are right")
        if not 1 <= self.mtu <= LONGEST:
            raise InputError(f"tunnel mtu {self.mtu} B: 1 to {LONGEST} are right")
        if self.notify not in NOTIFICATIONS:
            raise InputError(f"notify {self.notify!r}: {' or '.join(NOTIFICATIONS)} is right")

    @property
    def down(self) -> int:
        """Bytes of the stream that a command takes down."""
        return self.payload

    @property
    def up(self) -> int:
        """Bytes of the stream that a command brings up."""
        return self.payload - READ_HEADER


class Packer:
    """Packets in, blocks of at most ``room`` bytes out."""

    def __init__(self, room: int, concatenate: bool) -> None:
        self.room = room
        self.concatenate = concatenate
        self._records: deque[bytes] = deque()
        self._cut = 0  # bytes of the first record that have left
        self._bytes = 0
        self._blocks = 0  # without concatenation

    def push(self, packet: bytes) -> None:
        """A packet goes behind the others."""
        record = len(packet).to_bytes(HEADER, "little") + packet
        self._records.append(record)
        self._bytes += len(record)
        self._blocks += -(-len(record) // self.room)

    @property
    def blocks(self) -> int:
        """Blocks that hold what waits."""
        return -(-self._bytes // self.room) if self.concatenate else self._blocks

    def cut(self) -> tuple[bytes, int]:
        """The next block, and the offset of the first header in it. There must be something."""
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
    """Blocks in, in the order in which they were cut; packets out."""

    def __init__(self, mtu: int) -> None:
        self.mtu = mtu
        self._record = b""  # the beginning of a packet, with its header

    @property
    def partial(self) -> bool:
        """Is a packet only here in part?"""
        return bool(self._record)

    def feed(self, data: bytes, first: int) -> tuple[int, list[bytes]]:
        """(SUCCESS, packets that are whole now), or (status, nothing): then nothing was taken."""
        record, at, found = self._record, 0, NONE
        packets = []
        while at < len(data):
            if not record and found == NONE:
                found = at
                if found != first:
                    return nvme.BAD_FRAGMENT, []
            need = HEADER - len(record)
            if need > 0:
                record += data[at : at + need]
                at += need
                if len(record) < HEADER:
                    break
            length = int.from_bytes(record[:HEADER], "little")
            if not 0 < length <= self.mtu:
                return nvme.BAD_LENGTH, []
            need = HEADER + length - len(record)
            record += data[at : at + need]
            at += need
            if len(record) == HEADER + length:
                packets.append(record[HEADER:])
                record = b""
        if found != first:
            return nvme.BAD_FRAGMENT, []
        self._record = record
        return nvme.SUCCESS, packets
