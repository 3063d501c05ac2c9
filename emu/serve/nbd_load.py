"""NBD client that measures the request rate of a server with a fixed number of requests in flight.

Owns the handshake with the option EXPORT_NAME, the requests, and the check that every reply reports
success. Does not own the start of the servers (validate/speed/servers.py).
Source: the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md), with simple replies.

The client uses as little CPU time as Python allows. All replies to one kind of request have the
same size, so the client counts bytes instead of parsing replies.
"""

from __future__ import annotations

import socket
import struct
import time

import numpy as np

from ondie.emu.units import InputError

READ, WRITE = 0, 1
HEADER = struct.Struct(">IHHqQI")
REQUEST_MAGIC, REPLY_MAGIC = 0x25609513, 0x67446698
TIMEOUT_S = 30.0
SPAN = 256 << 20
"""Size of the part of the export, starting at byte 0, to which the requests are sent, bytes."""


class Load:
    """Client that measures the request rate of the NBD server at the Unix socket ``path``.

    Raises InputError if the connection fails, or if the peer is not an NBD server.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(path)
            greeting = receive(self._socket, 18)
            if greeting[:16] != b"NBDMAGICIHAVEOPT":
                raise InputError(
                    f"{path}: the peer is not an NBD server; give the socket of an NBD server"
                )
            self._socket.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 0))
            self.size, _ = struct.unpack(">QH", receive(self._socket, 10))
        except OSError as error:
            self.close()
            raise InputError(f"{path}: cannot connect to the NBD server: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def rate(self, kind: int, size: int, depth: int, seconds: float) -> float:
        """Measure the rate of requests of type ``kind`` with ``size`` bytes each, at random offsets
        in the first SPAN bytes, with ``depth`` requests in flight, for ``seconds``. Return the rate
        (requests per second). Raises InputError if a reply reports an error or the server
        disconnects."""
        reply = 16 + (size if kind == READ else 0)
        count = max(4 * depth, 256 if size < 65536 else 64)
        step = HEADER.size + (size if kind == WRITE else 0)
        sent = memoryview(requests(kind, size, count, min(self.size, SPAN)))
        buffer = np.empty(reply * depth, np.uint8)
        view = buffer.data
        self._socket.sendall(sent[: depth * step])
        at, held, done = depth, 0, 0
        begin = time.perf_counter()
        end = begin + seconds
        while True:
            got = self._socket.recv_into(view[held:])
            if not got:
                raise InputError(
                    "the NBD server has disconnected during the measurement; check its output"
                )
            held += got
            replies = held // reply
            if not replies:
                continue
            check(buffer, replies, reply)
            done += replies
            rest = held - replies * reply
            buffer[:rest] = buffer[replies * reply : held]
            held = rest
            now = time.perf_counter()
            if now >= end:
                break
            while replies:
                some = min(replies, count - at % count)
                first = at % count * step
                self._socket.sendall(sent[first : first + some * step])
                at, replies = at + some, replies - some
        rate = done / (now - begin)
        receive(self._socket, (at - done) * reply - held)
        return rate

    def waits(self, size: int, count: int) -> np.ndarray:
        """Measure ``count`` reads of ``size`` bytes, one at a time, at random offsets in the first
        SPAN bytes. Return their latencies (s), float64[count]. The bytes must have been written
        (see :meth:`fill`)."""
        sent = requests(READ, size, count, min(self.size, SPAN))
        found = np.zeros(count)
        for number in range(count):
            begin = time.perf_counter()
            self._socket.sendall(sent[number * HEADER.size : (number + 1) * HEADER.size])
            receive(self._socket, 16 + size)
            found[number] = time.perf_counter() - begin
        return found

    def fill(self) -> None:
        """Write the first SPAN bytes once with requests of 128 KiB. If the export is smaller, write
        all complete blocks of 128 KiB in it."""
        size = 128 << 10
        for place in range(0, min(self.size, SPAN) // size * size, size):
            header = HEADER.pack(REQUEST_MAGIC, 0, WRITE, 0, place, size)
            self._socket.sendall(header + bytes([place >> 17 & 255 or 1]) * size)
            check(np.frombuffer(receive(self._socket, 16), np.uint8), 1, 16)


def receive(sock: socket.socket, count: int) -> bytes:
    """Return the next ``count`` bytes from ``sock``. Raises InputError if the server has
    disconnected."""
    found = bytearray()
    while len(found) < count:
        part = sock.recv(count - len(found))
        if not part:
            raise InputError("the server has disconnected; check its output")
        found += part
    return bytes(found)


def requests(kind: int, size: int, count: int, span: int) -> bytes:
    """Return ``count`` encoded requests of type ``kind`` for ``size`` bytes each, at random offsets
    in the first ``span`` bytes of the export."""
    places = np.random.default_rng(0).integers(0, span // size, count) * size
    data = bytes([7]) * size if kind == WRITE else b""
    return b"".join(
        HEADER.pack(REQUEST_MAGIC, 0, kind, number, place, size) + data
        for number, place in enumerate(places.tolist())
    )


def check(buffer: np.ndarray, count: int, reply: int) -> None:
    """Raise InputError if any of the first ``count`` replies in ``buffer``, uint8, does not report
    success. ``reply``: size of a reply, bytes."""
    heads = buffer[: count * reply].reshape(count, reply)[:, :8]
    right = np.frombuffer(struct.pack(">II", REPLY_MAGIC, 0), np.uint8)
    wrong = np.flatnonzero((heads != right).any(axis=1))
    if len(wrong):
        magic, error = struct.unpack(">II", heads[wrong[0]].tobytes())
        raise InputError(
            f"NBD reply with magic 0x{magic:x} and error {error}: must have magic "
            f"0x{REPLY_MAGIC:x} and error 0 (success)"
        )
