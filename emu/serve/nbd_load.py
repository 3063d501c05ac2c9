"""A client of NBD that measures a server: requests in flight at a fixed depth, and their rate.

Owns the handshake by EXPORT_NAME, the load, and the check that every reply is a success. Does not
own the servers (validate/speed/servers.py). It is as cheap as Python allows: the replies to one
kind of request have one size, so that their number is that of the bytes.
Source: the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md), with simple replies.
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
"""Bytes of the export to which requests go."""


class Load:
    """A connection to the server with the unix socket ``path``.

    Raises InputError if it does not answer as a server of NBD does.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(path)
            greeting = receive(self._socket, 18)
            if greeting[:16] != b"NBDMAGICIHAVEOPT":
                raise InputError(f"{path}: the server does not speak NBD")
            self._socket.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 0))
            self.size, _ = struct.unpack(">QH", receive(self._socket, 10))
        except OSError as error:
            self.close()
            raise InputError(f"{path}: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def rate(self, kind: int, size: int, depth: int, seconds: float) -> float:
        """Return the requests per second of ``kind`` and ``size`` bytes at random places of the
        first SPAN bytes, with ``depth`` in flight. Raises InputError for a reply with an error."""
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
                raise InputError("the server has disconnected")
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
        """Return the times in s that ``count`` reads of ``size`` bytes take one after the other, at
        random places of the first SPAN bytes that were written, float64[count]."""
        sent = requests(READ, size, count, min(self.size, SPAN))
        found = np.zeros(count)
        for number in range(count):
            begin = time.perf_counter()
            self._socket.sendall(sent[number * HEADER.size : (number + 1) * HEADER.size])
            receive(self._socket, 16 + size)
            found[number] = time.perf_counter() - begin
        return found

    def fill(self) -> None:
        """Write the first SPAN bytes once."""
        size = 128 << 10
        for place in range(0, min(self.size, SPAN) // size * size, size):
            header = HEADER.pack(REQUEST_MAGIC, 0, WRITE, 0, place, size)
            self._socket.sendall(header + bytes([place >> 17 & 255 or 1]) * size)
            check(np.frombuffer(receive(self._socket, 16), np.uint8), 1, 16)


def receive(sock: socket.socket, count: int) -> bytes:
    """Return the next ``count`` bytes. Raises InputError if the server has disconnected."""
    found = bytearray()
    while len(found) < count:
        part = sock.recv(count - len(found))
        if not part:
            raise InputError("the server has disconnected")
        found += part
    return bytes(found)


def requests(kind: int, size: int, count: int, span: int) -> bytes:
    """Return ``count`` requests of ``kind`` at random places of the first ``span`` bytes."""
    places = np.random.default_rng(0).integers(0, span // size, count) * size
    data = bytes([7]) * size if kind == WRITE else b""
    return b"".join(
        HEADER.pack(REQUEST_MAGIC, 0, kind, number, place, size) + data
        for number, place in enumerate(places.tolist())
    )


def check(buffer: np.ndarray, count: int, reply: int) -> None:
    """Raise InputError unless the first ``count`` replies of ``buffer``, uint8, are successes of
    ``reply`` bytes each."""
    heads = buffer[: count * reply].reshape(count, reply)[:, :8]
    right = np.frombuffer(struct.pack(">II", REPLY_MAGIC, 0), np.uint8)
    wrong = np.flatnonzero((heads != right).any(axis=1))
    if len(wrong):
        magic, error = struct.unpack(">II", heads[wrong[0]].tobytes())
        raise InputError(f"a reply has magic 0x{magic:x} and error {error}")
