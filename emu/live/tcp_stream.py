"""One connection of a TCP relay (tcp_relay.py), the messages that carry it, and the timer of those
that open.

Owns the form of a message in its IP packet, the state of a connection at one end, and the timer's
descriptor, which Python has from version 3.13. Does not own sockets that listen, or the reaction of
an end to a message.
Source: RFC 791; RFC 3692 for the number of the protocol; Linux, timerfd_create(2). The messages are
defined here.

A packet has a header of IPv4 with protocol 253, then HEAD, then the data of the message.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import time
from enum import IntEnum
from typing import Self

from ondie.emu.live.gso import ones_sum

IP = struct.Struct(">BBHHHBBH4s4s")
PROTOCOL = 253
"""IP protocol number that RFC 3692 assigns to experiments."""
HEAD = struct.Struct(">IIBBH")
"""Header of a message: number of the stream, number of the message, kind, whether its sender has
opened the stream, port."""
BARE = IP.size + HEAD.size
"""Bytes of a packet whose message has no data."""
WINDOW = 256 << 10
"""Largest number of bytes of a connection that its program has not read."""
ITIMERSPEC = struct.Struct("4l")
"""struct itimerspec: seconds and nanoseconds of the interval, and of the time until the expiry."""
LEAST_NS = 1
"""Shortest time of the timer, ns: 0 would stop it."""


class Kind(IntEnum):
    """Kinds of messages. CREDIT has the bytes in its data, 4 bytes big-endian. GONE is of all
    streams of the end that it names as its source, and no message of that end. ARRIVED is of all
    streams between two ends: bytes of packets with DATA that have crossed the tunnels, as in
    CREDIT."""

    OPEN, OPENED, DATA, END, CREDIT, RESET, GONE, ARRIVED = range(8)


class Stream:
    """One connection. ``peer``: address of the other end, bytes[4]. ``number``: of the stream.
    ``opener``: this end has opened it."""

    def __init__(self, sock: socket.socket, peer: bytes, number: int, opener: bool) -> None:
        self.sock, self.peer, self.number, self.opener = sock, peer, number, opener
        self.connecting = not opener
        self.sends = False
        """The other end takes bytes."""
        self.sent = self.received = 0
        """Messages."""
        self.credit, self.owed = WINDOW, 0
        """Bytes that may be sent, and that the program has taken since the last CREDIT."""
        self.waiting = bytearray()
        """Bytes for the program."""
        self.ended = False
        """The program sends no more."""
        self.ends = self.shut = False
        """The other end sends no more; the program knows."""
        self.mask = 0
        self.turn = 0
        """When its program was last asked for bytes: another order than that of time has none."""

    @property
    def key(self) -> tuple[bytes, int, bool]:
        """Key that identifies the stream at this end: (peer, number, opener)."""
        return self.peer, self.number, self.opener

    def wants(self, room: bool) -> int:
        """Return the events of epoll(7) to wait for now. ``room``: True if more bytes may cross the
        tunnels."""
        reads = self.sends and not self.ended and self.credit > 0 and room
        writes = self.connecting or bool(self.waiting)
        return select.EPOLLIN * reads | select.EPOLLOUT * writes


class Timer:
    """A timer, stopped at first; leaving the context closes it. Raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK and TFD_CLOEXEC have their values
        self._fd = self._checked(self._libc.timerfd_create(time.CLOCK_MONOTONIC, flags))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        """Return the descriptor, for poll(2): readable from the end until the next :meth:`set`."""
        return self._fd

    def set(self, seconds: float | None) -> None:
        """Let the timer expire ``seconds`` from now, at once if that is below 0; None: never."""
        total_ns = 0 if seconds is None else max(round(seconds * 1e9), LEAST_NS)
        spec = ITIMERSPEC.pack(0, 0, *divmod(total_ns, 10**9))
        self._checked(self._libc.timerfd_settime(self._fd, 0, spec, None))

    def _checked(self, result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def is_message(packet: bytes) -> bool:
    """Return True for a packet of a relay."""
    right = len(packet) >= BARE and packet[0] == 0x45 and packet[9] == PROTOCOL
    return right and int.from_bytes(packet[2:4], "big") == len(packet)


def packet_of(identity: int, source: bytes, to: bytes, head: bytes, data: bytes) -> bytes:
    """Return the packet of a message. ``identity``: of the packet, 16 bits. ``source``, ``to``:
    addresses, bytes[4]. ``head``: HEAD, packed."""
    size = IP.size + len(head) + len(data)
    fields = (0x45, 0, size, identity, 0, 64, PROTOCOL)
    return b"".join((
        IP.pack(*fields, 0xFFFF - ones_sum(IP.pack(*fields, 0, source, to)), source, to),
        head,
        data,
    ))  # fmt: skip
