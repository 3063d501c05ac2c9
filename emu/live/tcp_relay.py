"""Relay of TCP connections on the loopback device, for ends without a network namespace and users
who may create neither network devices nor namespaces.

Owns listening sockets, connections, and the packets that carry their bytes. Does not own the
transfer of packets through the tunnel, or addresses (loopback.py).
Source: Linux, ip(7), tcp(7), epoll(7).

The relay has the interface of network_device.py. A program connects to an address that represents
another end. This relay accepts, and the relay of that end connects to the program there. Between
the two relays, each connection is a stream of messages, one in each IP packet (tcp_stream.py). A
sender has a credit in bytes, which the receiver returns when it has written bytes to its program.
At most ON_WAY bytes of all connections to another end cross the tunnels at a time. While that end
accepts no bytes, programs sending to it wait, and no packet is dropped for lack of room. A
connection is reset if the other end does not confirm it within OPEN_S, or if a message is missing.
A lost message is not repeated: an end that drops a message reports the loss (``lost``), and both
ends reset the connection. When the tunnels open again, an end resets all connections (``restart``).
When another end disconnects, it resets the connections with that end (``left``).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import random
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from ondie.emu.live.tcp_stream import HEAD, IP, WINDOW, Kind, Stream, Timer, is_message, packet_of
from ondie.emu.nvme.tunnel.framing import Data
from ondie.emu.units import InputError

ON_WAY = 1 << 20
"""Maximum number of bytes in flight through the tunnels to one end, over all connections. It
applies to messages with data; the headers of the messages of the last read may exceed it."""
TAKEN = ON_WAY // 4
"""Number of packet bytes received from another end after which the receiver acknowledges them."""
OPEN_S = 30.0
"""Time in which the other end must confirm its connection to a program there, s."""
BACKLOG = 128
MOST_READ = 64 << 10
IP_BIND_ADDRESS_NO_PORT = 24
RESETS, ENDS = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
"""Values of SO_LINGER. When a socket is closed or its process terminates, RESETS resets the
connection and ENDS ends it normally."""
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept(2) that persist until a resource is released."""


class TcpRelay:
    """Relay of the TCP connections between programs at this end and programs at other ends.

    ``own``: address of this end. ``others``: addresses of the other ends, by the loopback address
    that represents the end. ``ports``: ports to which programs can connect. ``mtu``: maximum packet
    size, bytes. Raises InputError if an address or port cannot be used.
    """

    kind = "TCP relay"
    lead = 0
    most_on_way = ON_WAY * 5 // 4
    """Maximum number of bytes in flight to one end: ON_WAY, and 25 % more for packet headers."""

    def __init__(
        self,
        own: ipaddress.IPv4Address,
        others: Mapping[ipaddress.IPv4Address, ipaddress.IPv4Address],
        ports: tuple[int, ...],
        mtu: int,
    ) -> None:
        self.name = str(own)
        self._own, self._most = own.packed, mtu - IP.size - HEAD.size
        self._lock = threading.Lock()
        self._streams: dict[tuple[bytes, int, bool], Stream] = {}
        self._by_file: dict[int, Stream] = {}
        self._packets: deque[bytes] = deque()
        self._next = self._identity = self._turns = 0
        self._on_way: Counter[bytes] = Counter()
        """Number of bytes sent to each end whose arrival the end has not acknowledged."""
        self._arrived: Counter[bytes] = Counter()
        """Number of bytes received from each end whose arrival has not been acknowledged."""
        self._opening: dict[tuple[bytes, int, bool], float] = {}
        """Deadlines of the streams that wait for OPENED, s of the monotonic clock, in ascending
        order."""
        self._paused = False
        """True if the listeners are not in the epoll because no descriptors are available."""
        with contextlib.ExitStack() as undo:
            self._epoll = select.epoll()
            undo.callback(self._epoll.close)
            self._wake, self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), False
            undo.callback(os.close, self._wake)
            self._epoll.register(self._wake, select.EPOLLIN)
            self._timer = undo.enter_context(Timer())
            self._epoll.register(self._timer, select.EPOLLIN)
            self._listeners = {}
            for place, other in others.items():
                for port in ports:
                    listener = undo.enter_context(listen(place, port))
                    self._listeners[listener.fileno()] = listener, other.packed, port
                    self._epoll.register(listener, select.EPOLLIN)
            self._undo = undo.pop_all()
        self.restart()

    def fileno(self) -> int:
        """Return the file descriptor of the epoll object, which poll(2) accepts."""
        return self._epoll.fileno()

    def offload(self, on: bool) -> None:
        """Ignore ``on``, because packets have no offload header."""

    def read(self) -> bytes | None:
        """Return the next packet to be sent to another end, or None if no packet is available."""
        with self._lock:
            if not self._packets:
                self._work()
            found = self._packets.popleft() if self._packets else None
            self._signal()
            return found

    def write(self, packet: Data) -> bool:
        """Handle a packet from another end. Return False if the packet is not a message from a
        relay to this end."""
        data = bytes(packet)
        if not is_message(data) or data[16:20] != self._own:
            return False
        with self._lock:
            self._handle(data[12:16], data)
            if not self._streams:
                self._resume()
            self._signal()
        return True

    def restart(self) -> None:
        """Reset all connections at this end, because messages may have been lost: either the tunnel
        was opened again, or the relay ran in another process before."""
        with self._lock:
            for stream in list(self._streams.values()):
                self._drop(stream)
            self._packets.clear()
            self._on_way.clear()
            self._arrived.clear()
            self._set_timer()  # that of another process
            self._next = random.SystemRandom().randrange(1 << 32)  # not that of the earlier process
            self._resume(again=True)
            self._signal()

    def lost(self, packet: Data) -> list[bytes]:
        """Reset the connection of the dropped packet ``packet`` if this end has the connection.
        Return packets that report the loss to the other ends; they must not be dropped for lack of
        room. For a message GONE or ARRIVED, only return ``packet``."""
        data = bytes(packet)
        if not is_message(data):
            return []
        number, _, kind, opener, _ = HEAD.unpack_from(data, IP.size)
        if kind in (Kind.GONE, Kind.ARRIVED):
            return [data]
        found = []
        source, to = data[12:16], data[16:20]
        size = len(data) if kind == Kind.DATA else 0
        with self._lock:
            if size and source == self._own:  # its bytes are on their way no more
                self._has_arrived(to, size)
            elif size:
                size_field = size.to_bytes(4, "big")
                found.append(self._packet(to, source, 0, 0, Kind.ARRIVED, False, size_field))
            for end, other, opened in ((source, to, bool(opener)), (to, source, not opener)):
                stream = self._streams.get((other, number, opened)) if end == self._own else None
                if stream is not None:
                    self._drop(stream)
                elif end != self._own and not (kind == Kind.OPEN and end == to):
                    found.append(self._packet(other, end, number, 0, Kind.RESET, not opened))
        return found

    def left(self, peer: bytes, others: Iterable[bytes]) -> list[bytes]:
        """Reset the connections with the disconnected end ``peer`` (address, bytes[4]). Return the
        packets that make the ends ``others`` reset their connections with ``peer``."""
        with self._lock:
            self._leave(peer)
            return [self._packet(peer, other, 0, 0, Kind.GONE, False) for other in others]

    def close(self) -> None:
        """Reset all connections, and close the listening sockets."""
        for stream in list(self._streams.values()):
            self._drop(stream)
        self._undo.close()

    # --- this end's programs

    def _work(self) -> None:
        """Handle the events of all sockets. Streams whose last turn is longest ago are handled
        first, because there may not be room for the bytes of all streams."""
        for fd in sorted((fd for fd, _ in self._epoll.poll(0)), key=self._turn_of):
            if fd in self._listeners:
                self._accept(*self._listeners[fd])
            elif (stream := self._by_file.get(fd)) is not None:
                self._serve(stream, self._turn)
            elif fd == self._wake and not self._awake:  # set by a process that has ended
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif fd == self._timer.fileno():
                self._end_unanswered()

    def _turn_of(self, fd: int) -> int:
        stream = self._by_file.get(fd)
        return stream.turn if stream is not None else 0

    def _accept(self, listener: socket.socket, other: bytes, port: int) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:  # it has gone, or there are no descriptors
            if error.errno in SHORT:
                self._pause()
            return
        sock.setblocking(False)
        self._next = (self._next + 1) & 0xFFFFFFFF
        stream = self._add(Stream(sock, other, self._next, True))
        self._send(stream, Kind.OPEN, port=port)
        self._opening[stream.key] = time.monotonic() + OPEN_S
        if len(self._opening) == 1:
            self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer to the earliest deadline of a stream that waits for OPENED."""
        first = next(iter(self._opening.values()), None)
        self._timer.set(None if first is None else first - time.monotonic())

    def _end_unanswered(self) -> None:
        """Reset the connections that the other end has not confirmed in time."""
        now = time.monotonic()
        for key in [key for key, deadline in self._opening.items() if deadline <= now]:
            self._reset(self._streams[key])
        self._set_timer()

    def _pause(self) -> None:
        """Stop accepting connections until a connection has ended."""
        if not self._paused:
            self._paused = True
            for fd in self._listeners:
                self._epoll.unregister(fd)

    def _resume(self, again: bool = False) -> None:
        """Accept connections again. ``again``: True if an earlier process may have paused."""
        if self._paused or again:
            self._paused = False
            for fd in self._listeners:
                with contextlib.suppress(FileExistsError):
                    self._epoll.register(fd, select.EPOLLIN)

    def _add(self, stream: Stream) -> Stream:
        stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        stream.turn = self._turns  # not before those that wait
        self._streams[stream.key] = stream
        self._by_file[stream.sock.fileno()] = stream
        self._watch(stream)
        return stream

    def _serve(self, stream: Stream, turn: Callable[[Stream], None] | None = None) -> None:
        """Call ``turn`` (default: :meth:`_flush`) for a stream. If the socket of the program fails,
        reset the connection."""
        try:
            (turn or self._flush)(stream)
        except BlockingIOError:
            pass
        except OSError:
            self._reset(stream)
            return
        self._settle(stream)

    def _turn(self, stream: Stream) -> None:
        """Read bytes from the program of a stream, and write waiting bytes to it. Raises OSError if
        its socket fails."""
        if stream.connecting:
            self._connected(stream)
        with contextlib.suppress(BlockingIOError):  # one direction does not wait for the other
            self._flush(stream)
        if stream.sends and not stream.ended and stream.credit and self._room(stream.peer) > 0:
            self._take(stream)

    def _connected(self, stream: Stream) -> None:
        """Complete a connection to a program. Raises OSError if the connection has failed."""
        if code := stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        stream.sock.getpeername()
        stream.connecting, stream.sends = False, True
        self._send(stream, Kind.OPENED)

    def _take(self, stream: Stream) -> None:
        """Read bytes from the program and send them. Raises OSError if its socket fails."""
        data = stream.sock.recv(min(stream.credit, MOST_READ, self._room(stream.peer)))
        self._turns += 1
        stream.turn = self._turns
        if not data:
            stream.ended = True
            self._send(stream, Kind.END)
        stream.credit -= len(data)
        for at in range(0, len(data), self._most):
            self._on_way[stream.peer] += self._send(stream, Kind.DATA, data[at : at + self._most])

    def _room(self, peer: bytes) -> int:
        """Return the number of bytes that may be sent to an end now; it may be negative."""
        return ON_WAY - self._on_way[peer]

    def _has_arrived(self, peer: bytes, size: int) -> None:
        """Handle an acknowledgment of ``size`` bytes by an end. Some of the bytes may have been
        sent before this end restarted."""
        full = self._room(peer) <= 0
        self._on_way[peer] = max(self._on_way[peer] - size, 0)
        if full and self._room(peer) > 0:
            for stream in self._streams.values():
                if stream.peer == peer:
                    self._watch(stream)

    def _flush(self, stream: Stream) -> None:
        """Write waiting bytes to the program. Raises OSError if its socket fails."""
        if stream.waiting and not stream.connecting:
            count = stream.sock.send(stream.waiting)
            del stream.waiting[:count]
            stream.owed += count
            if stream.owed >= WINDOW // 2 and not stream.ends:  # who sends no more may have gone
                self._send(stream, Kind.CREDIT, stream.owed.to_bytes(4, "big"))
                stream.owed = 0
        if stream.ends and not stream.shut and not stream.waiting:
            stream.shut = True
            stream.sock.shutdown(socket.SHUT_WR)

    def _settle(self, stream: Stream) -> None:
        """Close a stream if both of its directions have ended; else watch its socket."""
        if stream.ended and stream.shut:
            self._forget(stream)
            stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ENDS)
            stream.sock.close()
        else:
            self._watch(stream)

    def _watch(self, stream: Stream) -> None:
        """Register the socket in the epoll instance for the events that the stream needs, or
        unregister it."""
        mask, old = stream.wants(self._room(stream.peer) > 0), stream.mask
        stream.mask = mask
        if mask and old:
            if mask != old:
                self._epoll.modify(stream.sock, mask)
        elif mask:
            self._epoll.register(stream.sock, mask)
        elif old:
            self._epoll.unregister(stream.sock)

    def _reset(self, stream: Stream) -> None:
        """Reset a connection at both ends."""
        self._send(stream, Kind.RESET)
        self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        """Reset a connection at this end."""
        self._forget(stream)
        stream.sock.close()

    def _leave(self, peer: bytes) -> None:
        """Reset the connections with the end ``peer`` at this end."""
        for stream in [each for each in self._streams.values() if each.peer == peer]:
            self._drop(stream)
        del self._on_way[peer], self._arrived[peer]

    def _forget(self, stream: Stream) -> None:
        if stream.mask:
            self._epoll.unregister(stream.sock)
            stream.mask = 0
        self._streams.pop(stream.key, None)
        self._opening.pop(stream.key, None)
        self._by_file.pop(stream.sock.fileno(), None)
        self._resume()

    # --- other ends

    def _handle(self, peer: bytes, packet: bytes) -> None:
        """Handle a message of the end ``peer``."""
        number, count, kind, opener, port = HEAD.unpack_from(packet, IP.size)
        data = packet[IP.size + HEAD.size :]
        key = (peer, number, not opener)
        if kind == Kind.OPEN and opener:
            self._open(peer, number, port)
            return
        if kind == Kind.GONE:
            self._leave(peer)
            return
        if kind == Kind.ARRIVED:
            if len(data) == 4:
                self._has_arrived(peer, int.from_bytes(data, "big"))
            return
        if kind == Kind.DATA:
            self._tell_arrived(peer, len(packet))
        stream = self._streams.get(key)
        if stream is None:
            if kind in (Kind.OPENED, Kind.DATA, Kind.END):  # CREDIT may follow a right end
                self._queue(peer, number, 0, Kind.RESET, not opener)
            return
        stream.received += 1
        if kind == Kind.RESET:
            self._drop(stream)
        elif count != stream.received or not self._obey(stream, kind, data):
            self._reset(stream)
        else:
            self._serve(stream)

    def _tell_arrived(self, peer: bytes, size: int) -> None:
        """Count ``size`` bytes as received from an end; acknowledge TAKEN or more at a time."""
        self._arrived[peer] += size
        if (count := self._arrived[peer]) >= TAKEN:
            self._queue(peer, 0, 0, Kind.ARRIVED, False, count.to_bytes(4, "big"))
            self._arrived[peer] = 0

    def _open(self, peer: bytes, number: int, port: int) -> None:
        """Connect to a program of this end for a stream that the end ``peer`` has opened."""
        old = self._streams.get((peer, number, False))
        if old is not None:  # of a relay that has been started anew
            self._drop(old)
        with contextlib.ExitStack() as undo:
            try:
                sock = new_socket()
                undo.callback(sock.close)
                sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind((socket.inet_ntoa(peer), 0))
                code = sock.connect_ex((socket.inet_ntoa(self._own), port))
            except OSError as error:
                code = error.errno or errno.EIO
            if code not in (0, errno.EINPROGRESS):
                self._queue(peer, number, 1, Kind.RESET, False)
                return
            stream = self._add(Stream(sock, peer, number, False))
            stream.received = 1
            undo.pop_all()

    def _obey(self, stream: Stream, kind: int, data: bytes) -> bool:
        """Execute a message of a stream. Return False if the stream's state does not allow it."""
        if kind == Kind.OPENED and stream.opener and not stream.sends:
            stream.sends = True
            self._opening.pop(stream.key, None)
        elif kind == Kind.DATA and not stream.ends and len(data) + len(stream.waiting) <= WINDOW:
            stream.waiting += data
        elif kind == Kind.END and not stream.ends:
            stream.ends = True
        elif kind == Kind.CREDIT and len(data) == 4:
            stream.credit += int.from_bytes(data, "big")
            return stream.credit <= WINDOW
        else:
            return False
        return True

    def _send(self, stream: Stream, kind: Kind, data: bytes = b"", port: int = 0) -> int:
        stream.sent += 1
        return self._queue(stream.peer, stream.number, stream.sent, kind, stream.opener, data, port)

    def _queue(
        self, peer: bytes, number: int, count: int, kind: Kind, opener: bool, data: bytes = b"",
        port: int = 0,
    ) -> int:  # fmt: skip
        """Queue a packet with a message for :meth:`read`; return the size of the packet, bytes."""
        packet = self._packet(self._own, peer, number, count, kind, opener, data, port)
        self._packets.append(packet)
        return len(packet)

    def _packet(
        self, source: bytes, to: bytes, number: int, count: int, kind: Kind, opener: bool,
        data: bytes = b"", port: int = 0,
    ) -> bytes:  # fmt: skip
        """Return an IP packet that contains the message with these fields."""
        self._identity = (self._identity + 1) & 0xFFFF
        fields = HEAD.pack(number, count, kind, opener, port)
        return packet_of(self._identity, source, to, fields, data)

    def _signal(self) -> None:
        """Make the descriptor readable while packets wait."""
        if bool(self._packets) != self._awake:
            self._awake = not self._awake
            (os.eventfd_write(self._wake, 1) if self._awake else os.eventfd_read(self._wake))


def new_socket() -> socket.socket:
    """Return a non-blocking TCP socket. Raises OSError if it cannot be created."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def listen(place: ipaddress.IPv4Address, port: int) -> socket.socket:
    """Return a TCP socket that listens at an address and port. Raises InputError if this fails."""
    with contextlib.ExitStack() as undo:
        try:
            sock = undo.enter_context(new_socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(place), port))
            sock.listen(BACKLOG)
        except OSError as error:
            raise InputError(f"relay: cannot listen at {place}:{port}: {error.strerror}") from error
        undo.pop_all()
    return sock
