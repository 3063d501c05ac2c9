"""Connection of a TCP relay (tcp_relay.py), the messages that carry it, and the timer for
connections being opened.

Owns the format of a message in its IP packet, the state of a connection at one end, and the timer's
descriptor (the Python functions for such timers exist only since version 3.13). Does not own
listening sockets, or the reaction of an end to a message.
Source: RFC 791; RFC 3692 for the protocol number; Linux, timerfd_create(2). The messages are
defined by this project.

A packet consists of an IPv4 header with protocol 253, HEAD, and the data of the message.
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
"""Protocol number in the IP headers of messages. RFC 3692 assigns this number to experiments."""
HEAD = struct.Struct(">IIBBH")
"""Header of a message: number of the stream (TCP connection), number of the message, kind, opener
(1 if the sender has opened the stream, else 0), and port."""
BARE = IP.size + HEAD.size
"""Size of the IP packet of a message without data, bytes."""
WINDOW = 256 << 10
"""Maximum number of bytes that one end of a connection has sent and the other end has not yet
written to the receiving program."""
ITIMERSPEC = struct.Struct("4l")
"""struct itimerspec: seconds and nanoseconds of the interval, and of the time until the expiry."""
LEAST_NS = 1
"""Shortest time to which a timer is set, ns. The value 0 would stop the timer."""


class Kind(IntEnum):
    """Kinds of messages between two TCP relays about a stream (TCP connection) or an end. The data
    of CREDIT and of ARRIVED is a number of bytes, 4 bytes big-endian. CREDIT returns credit to the
    sender of a stream. ARRIVED does not belong to a stream: it acknowledges the bytes of packets
    with DATA from one end to another. GONE resets all streams with a disconnected drive: the host
    sends it to the other drives, with the disconnected drive's address as the source address."""

    OPEN, OPENED, DATA, END, CREDIT, RESET, GONE, ARRIVED = range(8)


class Stream:
    """State of one TCP connection at one end. ``peer``: address of the other end, bytes[4].
    ``number``: number of the stream. ``opener``: True if a program at this end has opened the
    connection."""

    def __init__(self, sock: socket.socket, peer: bytes, number: int, opener: bool) -> None:
        self.sock, self.peer, self.number, self.opener = sock, peer, number, opener
        self.connecting = not opener
        self.sends = False
        """True if the other end accepts bytes."""
        self.sent = self.received = 0
        """Number of messages sent, and number of messages received."""
        self.credit, self.owed = WINDOW, 0
        """``credit``: number of bytes that may be sent. ``owed``: number of bytes that were written
        to the program since the last CREDIT."""
        self.waiting = bytearray()
        """Bytes that wait to be written to the program."""
        self.ended = False
        """True if the program sends no more bytes."""
        self.ends = self.shut = False
        """``ends``: True if the other end sends no more bytes. ``shut``: True if the program has
        been notified of this."""
        self.mask = 0
        self.turn = 0
        """Number of the last turn in which bytes were read from the program. It determines the
        order of the streams."""

    @property
    def key(self) -> tuple[bytes, int, bool]:
        """Key that identifies the stream at this end: (peer, number, opener)."""
        return self.peer, self.number, self.opener

    def wants(self, room: bool) -> int:
        """Return the events of epoll(7) for which the stream must wait now. ``room``: True if more
        bytes may be sent to the other end."""
        reads = self.sends and not self.ended and self.credit > 0 and room
        writes = self.connecting or bool(self.waiting)
        return select.EPOLLIN * reads | select.EPOLLOUT * writes


class Timer:
    """Timer with a file descriptor (timerfd), initially stopped. Leaving the context closes it.
    Raises OSError if it cannot be created."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        flags = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK and TFD_CLOEXEC have their values
        self._fd = self._checked(self._libc.timerfd_create(time.CLOCK_MONOTONIC, flags))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        """Return the descriptor, for poll(2). It is readable from the expiry of the timer until the
        next :meth:`set`."""
        return self._fd

    def set(self, seconds: float | None) -> None:
        """Let the timer expire after ``seconds``, or immediately if the value is not positive. None
        stops the timer."""
        total_ns = 0 if seconds is None else max(round(seconds * 1e9), LEAST_NS)
        spec = ITIMERSPEC.pack(0, 0, *divmod(total_ns, 10**9))
        self._checked(self._libc.timerfd_settime(self._fd, 0, spec, None))

    def _checked(self, result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def is_message(packet: bytes) -> bool:
    """Return True if ``packet`` is a message of a TCP relay."""
    right = len(packet) >= BARE and packet[0] == 0x45 and packet[9] == PROTOCOL
    return right and int.from_bytes(packet[2:4], "big") == len(packet)


def packet_of(identity: int, source: bytes, to: bytes, head: bytes, data: bytes) -> bytes:
    """Return the packet of a message. ``identity``: identification field of the IP header, 16 bits.
    ``source``, ``to``: addresses, bytes[4]. ``head``: packed HEAD. ``data``: data of the message.
    """
    size = IP.size + len(head) + len(data)
    fields = (0x45, 0, size, identity, 0, 64, PROTOCOL)
    return b"".join((
        IP.pack(*fields, 0xFFFF - ones_sum(IP.pack(*fields, 0, source, to)), source, to),
        head,
        data,
    ))  # fmt: skip
