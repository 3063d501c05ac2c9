"""A relay of TCP connections on the loopback device: the device of an end without a network
namespace, for users who may make neither network devices nor namespaces.

Owns listening sockets, connections, and the packets that carry their bytes. Does not own the way of
packets through the tunnel, or addresses (loopback.py).
Source: Linux, ip(7), tcp(7), epoll(7).

It has the interface of network_device.py. A program connects to an address that represents another
end; this relay accepts, and the relay of that end connects to the program there. Between them each
connection is a stream of messages, one in each IP packet (tcp_stream.py). A sender has a credit in
bytes, which the receiver returns when a program has read the bytes. Of all connections to another
end, ON_WAY bytes cross the tunnels at a time: while that end takes none, programs that send to it
wait, and no packet is dropped for lack of room. A connection that the other end does not answer
within OPEN_S is reset. A message that is missing, or of no stream, resets the connection. Nothing
is repeated: an end that drops a message reports it (``lost``), and both ends reset that connection.
When the tunnels open anew, an end resets all (``restart``), and when another end has gone, all with
that one (``left``).
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
"""Largest number of bytes in flight through the tunnels to one end, over all connections: messages
that have data, with their headers except those of the last read."""
TAKEN = ON_WAY // 4
"""Number of bytes received from an end after which their arrival is acknowledged."""
OPEN_S = 30.0
"""Time in which the other end must confirm that it has connected to a program there, s."""
BACKLOG = 128
MOST_READ = 64 << 10
IP_BIND_ADDRESS_NO_PORT = 24
RESETS, ENDS = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
"""SO_LINGER: a close, also that of a process that ends, resets the connection; or ends it."""
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept(2) that persist until a resource is released."""


class TcpRelay:
    """The relay of the end with address ``own``.

    ``others``: loopback address of this end that represents another end -> address of that end.
    ``ports``: to which programs can connect. ``mtu``: longest packet, bytes. Raises InputError for
    an address or port that cannot be used.
    """

    kind = "TCP relay"
    lead = 0
    most_on_way = ON_WAY * 5 // 4
    """With the packets' lengths in a tunnel, and all headers."""

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
        """Bytes to each end that have not arrived there, as far as this end knows."""
        self._arrived: Counter[bytes] = Counter()
        """Bytes of each end that have arrived, of which it does not know yet."""
        self._opening: dict[tuple[bytes, int, bool], float] = {}
        """When the streams that wait for OPENED are reset, s of the monotonic clock; in order."""
        self._paused = False
        """The listeners are not in the epoll, since there are no descriptors."""
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
        """Return the descriptor, for poll(2)."""
        return self._epoll.fileno()

    def offload(self, on: bool) -> None:
        """Do nothing: packets have no offload header."""

    def read(self) -> bytes | None:
        """Return the next packet for another end, or None if there is none."""
        with self._lock:
            if not self._packets:
                self._work()
            found = self._packets.popleft() if self._packets else None
            self._signal()
            return found

    def write(self, packet: Data) -> bool:
        """Handle a packet of another end; return False for one that no relay has sent."""
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
        """Reset all connections at this end, because messages have been lost: the tunnel was opened
        again, or the relay ran in another process before."""
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
        """Reset the connection of a packet that was dropped; return the packets that inform the
        other ends. They must not be dropped for lack of room."""
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
        """Reset the connections with the end ``peer`` (address, bytes[4]), which has gone; return
        the packets that let the ends ``others`` reset theirs."""
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
        """Handle what has happened at the sockets; of streams, those first whose turn was long
        ago, since there may not be room for the bytes of all."""
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
        """Have the timer end when the time of the first stream does that waits for OPENED."""
        first = next(iter(self._opening.values()), None)
        self._timer.set(None if first is None else first - time.monotonic())

    def _end_unanswered(self) -> None:
        """Reset the connections to which the other end has said nothing in time."""
        now = time.monotonic()
        for key in [key for key, deadline in self._opening.items() if deadline <= now]:
            self._reset(self._streams[key])
        self._set_timer()

    def _pause(self) -> None:
        """Accept nothing until a connection has ended: programs wait meanwhile."""
        if not self._paused:
            self._paused = True
            for fd in self._listeners:
                self._epoll.unregister(fd)

    def _resume(self, again: bool = False) -> None:
        """Accept connections, if not so. ``again``: an earlier process may have paused."""
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
        """Give the program what waits for it, as :meth:`_flush` does; or do all of a ``turn``. A
        program that does not take it resets the connection."""
        try:
            (turn or self._flush)(stream)
        except BlockingIOError:
            pass
        except OSError:
            self._reset(stream)
            return
        self._settle(stream)

    def _turn(self, stream: Stream) -> None:
        """Take what the program sends, and give it what waits. Raises OSError."""
        if stream.connecting:
            self._connected(stream)
        with contextlib.suppress(BlockingIOError):  # one direction does not wait for the other
            self._flush(stream)
        if stream.sends and not stream.ended and stream.credit and self._room(stream.peer) > 0:
            self._take(stream)

    def _connected(self, stream: Stream) -> None:
        """A connection to a program is made, or not. Raises OSError."""
        if code := stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        stream.sock.getpeername()
        stream.connecting, stream.sends = False, True
        self._send(stream, Kind.OPENED)

    def _take(self, stream: Stream) -> None:
        """Send bytes of the program. Raises OSError."""
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
        """Return the bytes that may be sent to an end now; below 1: none."""
        return ON_WAY - self._on_way[peer]

    def _has_arrived(self, peer: bytes, size: int) -> None:
        """``size`` bytes to an end are on their way no more. Some may be of an earlier time, before
        this end had restarted."""
        full = self._room(peer) <= 0
        self._on_way[peer] = max(self._on_way[peer] - size, 0)
        if full and self._room(peer) > 0:
            for stream in self._streams.values():
                if stream.peer == peer:
                    self._watch(stream)

    def _flush(self, stream: Stream) -> None:
        """Give the program what waits for it. Raises OSError."""
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
        """Close a stream whose both directions have ended; else watch its socket."""
        if stream.ended and stream.shut:
            self._forget(stream)
            stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ENDS)
            stream.sock.close()
        else:
            self._watch(stream)

    def _watch(self, stream: Stream) -> None:
        """Have the socket in the epoll for what matters, and not at all if nothing does."""
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
        """Reset the connections with an end at this end."""
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
        """``size`` bytes of an end have crossed the tunnels: say so, a part of ON_WAY at a time."""
        self._arrived[peer] += size
        if (count := self._arrived[peer]) >= TAKEN:
            self._queue(peer, 0, 0, Kind.ARRIVED, False, count.to_bytes(4, "big"))
            self._arrived[peer] = 0

    def _open(self, peer: bytes, number: int, port: int) -> None:
        """Connect to a program of this end, for one of the end ``peer``."""
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
        """Do what a message says; return False for one that may not come now."""
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
        """Have a packet with a message read; return its size, bytes."""
        packet = self._packet(self._own, peer, number, count, kind, opener, data, port)
        self._packets.append(packet)
        return len(packet)

    def _packet(
        self, source: bytes, to: bytes, number: int, count: int, kind: Kind, opener: bool,
        data: bytes = b"", port: int = 0,
    ) -> bytes:  # fmt: skip
        """Return a packet with a message."""
        self._identity = (self._identity + 1) & 0xFFFF
        fields = HEAD.pack(number, count, kind, opener, port)
        return packet_of(self._identity, source, to, fields, data)

    def _signal(self) -> None:
        """Let the descriptor be readable while packets wait."""
        if bool(self._packets) != self._awake:
            self._awake = not self._awake
            (os.eventfd_write(self._wake, 1) if self._awake else os.eventfd_read(self._wake))


def new_socket() -> socket.socket:
    """Return a non-blocking TCP socket. Raises OSError."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def listen(place: ipaddress.IPv4Address, port: int) -> socket.socket:
    """Return a TCP socket that listens at an address and port. Raises InputError."""
    with contextlib.ExitStack() as undo:
        try:
            sock = undo.enter_context(new_socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((str(place), port))
            sock.listen(BACKLOG)
        except OSError as error:
            raise InputError(f"TCP relay at {place}, port {port}: {error.strerror}") from error
        undo.pop_all()
    return sock
