"""Owns: a client of NBD for tests, from the published protocol alone: options, requests, replies.
Does not own: any expectation. Source: NBD protocol, doc/proto.md.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

IHAVEOPT = b"IHAVEOPT"
READ, WRITE, DISC, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO = 1, 2, 4, 8, 16
EPERM, EIO, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP = 1, 5, 22, 28, 75, 95
OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS = 1, 2, 3, 5
OPT_INFO, OPT_GO, OPT_STRUCTURED, OPT_LIST_META, OPT_SET_META = 6, 7, 8, 9, 10
ACK, SERVER, INFO, META = 1, 2, 3, 4
ERR_UNSUP, ERR_POLICY, ERR_INVALID, ERR_UNKNOWN, ERR_TOO_BIG = (
    (1 << 31) + each for each in (1, 2, 3, 6, 9)
)
HOLE, ZERO = 1, 2
SECONDS = 30
"""Bound of every wait of a client."""


def until(condition, what):
    """Wait until a condition holds."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"awaited: {what}"
        time.sleep(0.002)


def option(number: int, data: bytes = b"") -> bytes:
    return IHAVEOPT + struct.pack(">II", number, len(data)) + data


def export_option(number: int, name: bytes = b"", infos: tuple[int, ...] = ()) -> bytes:
    kinds = struct.pack(f">H{len(infos)}H", len(infos), *infos)
    return option(number, struct.pack(">I", len(name)) + name + kinds)


def meta_option(number: int, *queries: bytes, name: bytes = b"") -> bytes:
    data = struct.pack(">I", len(name)) + name + struct.pack(">I", len(queries))
    return option(number, data + b"".join(struct.pack(">I", len(q)) + q for q in queries))


def option_reply(number: int, kind: int, data: bytes = b"") -> bytes:
    return struct.pack(">QIII", 0x3E889045565A9, number, kind, len(data)) + data


def request(
    kind: int, offset: int = 0, length: int = 0, flags: int = 0, cookie: int = 0, data: bytes = b""
) -> bytes:
    return struct.pack(">IHHQQI", 0x25609513, flags, kind, cookie, offset, length) + data


def simple(cookie: int, error: int = 0, data: bytes = b"") -> bytes:
    return struct.pack(">IIQ", 0x67446698, error, cookie) + data


def chunk(cookie: int, kind: int, data: bytes = b"", flags: int = 1) -> bytes:
    return struct.pack(">IHHQI", 0x668E33EF, flags, kind, cookie, len(data)) + data


def error_chunk(cookie: int, error: int) -> bytes:
    return chunk(cookie, 0x8001, struct.pack(">IH", error, 0))


def data_chunk(cookie: int, offset: int, data: bytes) -> bytes:
    return chunk(cookie, 1, struct.pack(">Q", offset) + data)


@dataclass
class Answer:
    """The reply to a request."""

    cookie: int
    error: int = 0
    data: bytes = b""
    extents: tuple[tuple[int, int], ...] = ()


class Client:
    """A connection to the server at ``address``: a path, or a host and port. The constructor
    negotiates unless ``name`` is None; with ``go`` by GO, else by EXPORT_NAME."""

    def __init__(
        self, address: Any, name: bytes | None = b"", structured: bool = True, meta: bool = True,
        go: bool = True,
    ) -> None:  # fmt: skip
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(SECONDS)
        self.socket.connect(address)
        self.structured = structured
        self.size = self.flags = 0
        self.blocks = (0, 0, 0)
        self._lengths: dict[int, int] = {}
        if name is None:
            return
        assert self.receive(18) == b"NBDMAGIC" + IHAVEOPT + b"\0\3"
        self.socket.sendall(struct.pack(">I", 3))
        if structured:
            assert self.haggle(option(OPT_STRUCTURED)) == [(OPT_STRUCTURED, ACK, b"")]
            if meta:
                found = self.haggle(meta_option(OPT_SET_META, b"base:allocation", name=name))
                assert [each[1] for each in found] == [META, ACK]
        if not go:
            self.socket.sendall(option(OPT_EXPORT_NAME, name))
            self.size, self.flags = struct.unpack(">QH", self.receive(10))
            return
        found = self.haggle(export_option(OPT_GO, name, (3,)))
        if found[-1][1] != ACK:
            raise ConnectionRefusedError(found[-1][2].decode())
        for _, _, data in found[:-1]:
            if data[:2] == b"\0\0":
                self.size, self.flags = struct.unpack(">QH", data[2:])
            elif data[:2] == b"\0\3":
                self.blocks = struct.unpack(">III", data[2:])

    def receive(self, count: int) -> bytes:
        """Receive exactly ``count`` bytes. Raises EOFError if the server has disconnected."""
        found = bytearray()
        while len(found) < count:
            part = self.socket.recv(count - len(found))
            if not part:
                raise EOFError(f"{len(found)} of {count} bytes")
            found += part
        return bytes(found)

    def haggle(self, sent: bytes) -> list[tuple[int, int, bytes]]:
        """Send an option; return its replies (option, kind, data) to the final one."""
        self.socket.sendall(sent)
        out = []
        while True:
            magic, number, kind, size = struct.unpack(">QIII", self.receive(20))
            assert magic == 0x3E889045565A9
            out.append((number, kind, self.receive(size)))
            if kind == ACK or kind >> 31:
                return out

    def send(
        self, kind: int, offset: int = 0, length: int = 0, flags: int = 0, cookie: int = 0,
        data: bytes = b"",
    ) -> None:  # fmt: skip
        """Send a request; :meth:`answer` returns its reply, or that of another one."""
        self._lengths[cookie] = length if kind == READ else 0
        self.socket.sendall(request(kind, offset, length or len(data), flags, cookie, data))

    def answer(self) -> Answer:
        """Receive the next reply."""
        (magic,) = struct.unpack(">I", self.receive(4))
        if magic == 0x67446698:
            error, cookie = struct.unpack(">IQ", self.receive(12))
            size = self._lengths.pop(cookie)
            assert not (self.structured and size), "a simple reply to a read"
            return Answer(cookie, error, b"" if error else self.receive(size))
        assert magic == 0x668E33EF and self.structured
        flags, kind, cookie, size = struct.unpack(">HHQI", self.receive(16))
        data = self.receive(size)
        self._lengths.pop(cookie)
        assert flags == 1
        if kind == 0x8001:
            error, length = struct.unpack(">IH", data[:6])
            assert error and length == size - 6
            return Answer(cookie, error)
        if kind == 1:
            return Answer(cookie, data=data[8:])
        assert kind == 5 and data[:4] == b"\0\0\0\1"
        return Answer(cookie, extents=tuple(struct.iter_unpack(">II", data[4:])))

    def ask(self, kind: int, offset: int = 0, length: int = 0, flags: int = 0, data: bytes = b"",
            cookie: int = 0) -> Answer:  # fmt: skip
        """Send a request and return its reply."""
        self.send(kind, offset, length, flags, cookie, data)
        found = self.answer()
        assert found.cookie == cookie
        return found

    def read(self, offset: int, length: int) -> bytes:
        found = self.ask(READ, offset, length)
        assert not found.error and len(found.data) == length
        return found.data

    def write(self, offset: int, data: bytes, flags: int = 0) -> None:
        assert self.ask(WRITE, offset, flags=flags, data=data) == Answer(0)

    def closed(self) -> bool:
        """Whether the server disconnects now."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def client(address: Any, **values: Any) -> Iterator[Client]:
    """A client that is closed at the end."""
    made = Client(address, **values)
    try:
        yield made
    finally:
        made.close()
