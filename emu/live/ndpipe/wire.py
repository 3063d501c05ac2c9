"""Frames (messages) between NDPipe's stores and the Tuner, and their counters.

Owns the format of a frame, its checksum, the maximum size of each kind of frame, and the byte
counts by kind. Does not own the meaning of frames (store_process.py, tuner.py).
Source: this project.
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
"""Header of a frame: magic number, kind, 0, size of the JSON fields, size of the body, and CRC-32
of header, fields and body. Sizes are in bytes."""
MOST_FIELDS = 1 << 16
"""Maximum size of the JSON fields of a frame, bytes."""
BATCH = 32
"""Maximum number of photos whose features, labels or errors are in one frame."""
MOST_TEXT = 1000
"""Maximum number of characters of an error text in a frame; longer texts are shortened."""
CHUNK_BYTES = 1 << 16
"""Maximum size of the part of a model update in one frame, bytes."""
MOST_UPDATE = 1 << 30
"""Maximum size of a model update, bytes."""
MOST_JPEG = 1 << 26
"""Maximum size of the JPEG file of a photo, bytes."""
MOST_PHOTOS = 1 << 21
"""Maximum number of photos in one request to a store."""


class Kind(IntEnum):
    """Kinds of frames between an NDPipe store and the Tuner. Frames identify each photo by its
    number."""

    HELLO = 1
    """Store to Tuner: token of the job, store number, total number of photos, and version and
    checksum of the store's model."""
    EXTRACT = 2
    """Tuner to store: request for the features of photos (outputs of one layer of the network)."""
    FEATURES = 3
    """Store to Tuner: photo numbers of the requested photos, followed by the features of these
    photos."""
    END = 4
    """Store to Tuner: end of the results for one request."""
    UPDATE = 5
    """Tuner to store: form, version, checksum and size of a model update that the Tuner will
    send."""
    RESUME = 6
    """Store to Tuner: number of bytes of the model update that the store has already received."""
    CHUNK = 7
    """Tuner to store: part of a model update."""
    APPLIED = 8
    """Store to Tuner: version and checksum of the store's model after a model update."""
    RELABEL = 9
    """Tuner to store: request for the labels (classes) of photos, computed with the store's current
    model."""
    LABELS = 10
    """Store to Tuner: photo number and label of each requested photo."""
    INSERT = 11
    """Tuner to store: photo number and JPEG file of a new photo."""
    REFUSED = 12
    """Store to Tuner: reason why the store refuses a request."""
    STOP = 13
    """Tuner to store: end of all requests; the store then closes the connection."""
    SKIPPED = 14
    """Store to Tuner: unreadable and undecodable photos of a request, with the reason for each
    photo."""


MOST_BODY = {
    Kind.EXTRACT: 8 * MOST_PHOTOS, Kind.RELABEL: 8 * MOST_PHOTOS, Kind.FEATURES: 1 << 24,
    Kind.CHUNK: CHUNK_BYTES, Kind.LABELS: 12 * BATCH, Kind.INSERT: MOST_JPEG,
}  # fmt: skip
"""Maximum size of the body of a frame by kind, bytes. Frames of other kinds have no body."""


class LinkLost(ConnectionError):
    """Error that is raised if the connection is lost, or if the other end has sent an invalid
    frame."""


@dataclass
class Count:
    """Number of frames of one kind, and the total bytes of their headers, fields and bodies."""

    frames: int = 0
    header_bytes: int = 0
    field_bytes: int = 0
    body_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Total number of bytes of the counted frames."""
        return self.header_bytes + self.field_bytes + self.body_bytes

    def add(self, fields: int, body: int) -> None:
        """Count one frame. ``fields``, ``body``: sizes in bytes."""
        self.frames += 1
        self.header_bytes += HEADER.size
        self.field_bytes += fields
        self.body_bytes += body


@dataclass(frozen=True)
class Frame:
    """One frame between a store and the Tuner. ``fields``: content of the JSON object in the frame.
    ``body``: binary data."""

    kind: Kind
    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""


class Link:
    """Connection between a store and the Tuner. It counts the sent and received frames in ``sent``
    and ``received``, by kind."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sent: dict[Kind, Count] = {}
        self.received: dict[Kind, Count] = {}

    def send(self, kind: Kind, body: bytes = b"", **fields: Any) -> None:
        """Send a frame. Raises LinkLost if the connection is lost, and InputError if the frame
        exceeds the maximum size of its kind."""
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
        """Return the next frame. Raises LinkLost if the connection ends, or if the received bytes
        are not a valid frame, exceed the maximum size of the frame's kind, or do not match the
        checksum."""
        head = self._bytes(HEADER.size)
        magic, kind, zero, fields, size, checksum = HEADER.unpack(head)
        if magic != MAGIC or zero or kind not in list(Kind):
            raise LinkLost("the received bytes are not a frame")
        if wrong := too_long(Kind(kind), fields, size):
            raise LinkLost(wrong)
        text, body = self._bytes(fields), self._bytes(size)
        if _checksum(head[: -struct.calcsize("<I")], text, body) != checksum:
            raise LinkLost("the checksum of a frame does not match")
        try:
            found = Frame(Kind(kind), json.loads(text) if text else {}, body)
        except ValueError as error:
            raise LinkLost(f"frame {Kind(kind).name}: {error}") from error
        if not isinstance(found.fields, dict):
            raise LinkLost(f"frame {found.kind.name}: its fields are not a JSON object")
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
    """Return the reason why a frame of ``kind`` is longer than its kind allows, or "" if its size
    is allowed. ``fields``, ``body``: sizes in bytes."""
    most = MOST_BODY.get(kind, 0)
    for what, size, limit in (("fields", fields, MOST_FIELDS), ("body", body, most)):
        if size > limit:
            return f"frame {kind.name}: {what} of {size:,} bytes; must be at most {limit:,}"
    return ""


def encoded(kind: Kind, text: bytes, body: bytes) -> bytes:
    """Return the bytes of a frame. ``text``: the fields as JSON."""
    start = HEADER.pack(MAGIC, kind, 0, len(text), len(body), 0)[: -struct.calcsize("<I")]
    return start + struct.pack("<I", _checksum(start, text, body)) + text + body


def _checksum(start: bytes, text: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(text, zlib.crc32(start)))
