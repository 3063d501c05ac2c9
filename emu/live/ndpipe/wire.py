"""Frames between stores and Tuner, and their counters.

Owns the format of a frame, its checksum, the lengths that each kind may have, and the counts of
bytes by kind. Does not own the meaning of frames (store_process.py, tuner.py). Source: this
project.
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ondie.emu.units import InputError

MAGIC = b"NDPW"
HEADER = struct.Struct("<4sHHIQI")
"""Header of a frame: magic, kind, 0, bytes of the fields, bytes of the body, CRC-32 of header,
fields and body."""
MOST_FIELDS = 1 << 16
"""Largest size of the fields of a frame, bytes."""
BATCH = 32
"""Largest number of photos whose features, labels or errors are in one frame."""
MOST_TEXT = 1000
"""Largest number of characters of an error in a frame; a longer one is cut."""
CHUNK_BYTES = 1 << 16
"""Largest part of an update in a frame, bytes."""
MOST_UPDATE = 1 << 30
"""Largest update, bytes."""
MOST_JPEG = 1 << 26
"""Largest photo, bytes."""
MOST_PHOTOS = 1 << 21
"""Largest number of photos of one request."""


class Kind(IntEnum):
    """Kinds of frames; S: from a store, T: from the Tuner."""

    HELLO = 1
    """S: token, number, version and checksum of the model, photos."""
    EXTRACT = 2
    """T: photos whose features are wanted."""
    FEATURES = 3
    """S: numbers of photos, then their features."""
    END = 4
    """S: the end marker of a request."""
    UPDATE = 5
    """T: form, version, checksum and size of a message that updates the model."""
    RESUME = 6
    """S: bytes of the message that it has already."""
    CHUNK = 7
    """T: bytes of the message."""
    APPLIED = 8
    """S: version and checksum of its model."""
    RELABEL = 9
    """T: photos whose labels are wanted."""
    LABELS = 10
    """S: numbers of photos and their labels."""
    INSERT = 11
    """T: number of a photo, then the JPEG file."""
    REFUSED = 12
    """S: reason why a request is refused."""
    STOP = 13
    """T: the end marker of a connection."""
    SKIPPED = 14
    """S: photos of a request that cannot be used, each with the reason."""


MOST_BODY = {
    Kind.EXTRACT: 8 * MOST_PHOTOS, Kind.RELABEL: 8 * MOST_PHOTOS, Kind.FEATURES: 1 << 24,
    Kind.CHUNK: CHUNK_BYTES, Kind.LABELS: 12 * BATCH, Kind.INSERT: MOST_JPEG,
}  # fmt: skip
"""Largest body of a frame by kind, bytes; other kinds have none."""


class LinkLost(ConnectionError):
    """Error: the other end is gone, or has sent an invalid frame."""


@dataclass
class Count:
    """Frames of one kind, and their bytes: headers, fields, bodies."""

    frames: int = 0
    header_bytes: int = 0
    field_bytes: int = 0
    body_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of headers, fields and bodies together."""
        return self.header_bytes + self.field_bytes + self.body_bytes

    def add(self, fields: int, body: int) -> None:
        """Count one frame."""
        self.frames += 1
        self.header_bytes += HEADER.size
        self.field_bytes += fields
        self.body_bytes += body


@dataclass(frozen=True)
class Frame:
    """One frame. ``fields``: a JSON object. ``body``: bytes."""

    kind: Kind
    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""


class Link:
    """A connection that carries frames and counts them in ``sent`` and ``received``, by kind."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sent: dict[Kind, Count] = {}
        self.received: dict[Kind, Count] = {}

    def send(self, kind: Kind, body: bytes = b"", **fields: Any) -> None:
        """Send a frame. Raises LinkLost if the other end is gone, InputError if the frame is longer
        than its kind may be."""
        text = json.dumps(fields, separators=(",", ":")).encode() if fields else b""
        if wrong := too_long(kind, len(text), len(body)):
            raise InputError(wrong)
        data = encoded(kind, text, body)
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise LinkLost(str(error)) from error
        self.sent.setdefault(kind, Count()).add(len(text), len(body))

    def receive(self) -> Frame:
        """Return the next frame. Raises LinkLost at the end of the connection, and for bytes that
        are not a frame, announce more than its kind may have, or have another checksum."""
        head = self._bytes(HEADER.size)
        magic, kind, zero, fields, size, checksum = HEADER.unpack(head)
        if magic != MAGIC or zero or kind not in list(Kind):
            raise LinkLost("these bytes begin no frame")
        if wrong := too_long(Kind(kind), fields, size):
            raise LinkLost(wrong)
        text, body = self._bytes(fields), self._bytes(size)
        if _checksum(head[: -struct.calcsize("<I")], text, body) != checksum:
            raise LinkLost("a frame has another checksum than stated")
        try:
            found = Frame(Kind(kind), json.loads(text) if text else {}, body)
        except ValueError as error:
            raise LinkLost(f"frame {Kind(kind).name}: {error}") from error
        if not isinstance(found.fields, dict):
            raise LinkLost(f"frame {found.kind.name}: its fields are no JSON object")
        self.received.setdefault(found.kind, Count()).add(fields, size)
        return found

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def _bytes(self, size: int) -> bytes:
        data = bytearray()  # memory for what has come, not for what a header announces
        while len(data) < size:
            try:
                part = self.sock.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                raise LinkLost(str(error)) from error
            if not part:
                raise LinkLost("the connection has ended")
            data += part
        return bytes(data)


def too_long(kind: Kind, fields: int, body: int) -> str:
    """Return why a frame of ``kind`` is too long; "" if it is not."""
    most = MOST_BODY.get(kind, 0)
    for what, size, limit in (("fields", fields, MOST_FIELDS), ("body", body, most)):
        if size > limit:
            return f"frame {kind.name}: {what} of {size:,} bytes; must be at most {limit:,}"
    return ""


def encoded(kind: Kind, text: bytes, body: bytes) -> bytes:
    """Return the bytes of a frame."""
    start = HEADER.pack(MAGIC, kind, 0, len(text), len(body), 0)[: -struct.calcsize("<I")]
    return start + struct.pack("<I", _checksum(start, text, body)) + text + body


def _checksum(start: bytes, text: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(text, zlib.crc32(start)))
