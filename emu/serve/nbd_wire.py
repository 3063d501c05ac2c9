"""Messages of the NBD protocol, and the handshake of one client as a state machine without I/O.

Owns the constants of the protocol, the description of the export, and the options that a client
negotiates. Does not own requests and replies after the handshake (nbd_request.py) or sockets
(handshakes.py).
Source: the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md): fixed newstyle
negotiation, structured replies, metadata querying, block size constraints.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from ondie.emu.serve.handshakes import Phase

GREETING = struct.Struct(">8sQH")
OPTION = struct.Struct(">QII")
OPTION_REPLY = struct.Struct(">QIII")
NBD_MAGIC = b"NBDMAGIC"
IHAVEOPT = 0x49484156454F5054
OPTION_REPLY_MAGIC = 0x0003E889045565A9

FIXED_NEWSTYLE, NO_ZEROES = 1, 2
"""Handshake flags in the server's greeting and in the client's answer."""
MOST_OPTION_BYTES = 8192
"""Maximum size of the data of an option, bytes. The data may contain a name of up to 4096 bytes."""
MOST_OPTIONS = 256
"""Maximum number of options in a handshake. A client that sends more options is disconnected."""
MOST_QUERIES = 64
"""Maximum number of queries in an option about metadata contexts."""
MOST_BLOCK = 1 << 16
"""Maximum size of a logical block, bytes."""
EXPORT_NAMES = (b"", b"drive")
"""Names of the export that a client may use: the empty default name, and the name that LIST
returns."""
ALLOCATION = b"base:allocation"
ALLOCATION_ID = 1
"""Identifier of the metadata context base:allocation."""


class Option(IntEnum):
    """Options that a client sends in the handshake."""

    EXPORT_NAME = 1
    ABORT = 2
    LIST = 3
    STARTTLS = 5
    INFO = 6
    GO = 7
    STRUCTURED_REPLY = 8
    LIST_META_CONTEXT = 9
    SET_META_CONTEXT = 10


class Reply(IntEnum):
    """Types of replies to options."""

    ACK = 1
    SERVER = 2
    INFO = 3
    META_CONTEXT = 4
    ERR_UNSUP = (1 << 31) + 1
    ERR_POLICY = (1 << 31) + 2
    ERR_INVALID = (1 << 31) + 3
    ERR_UNKNOWN = (1 << 31) + 6
    ERR_SHUTDOWN = (1 << 31) + 7
    ERR_TOO_BIG = (1 << 31) + 9


class Info(IntEnum):
    """Types of information about an export."""

    EXPORT = 0
    NAME = 1
    DESCRIPTION = 2
    BLOCK_SIZE = 3


class ExportFlag(IntFlag):
    """Transmission flags, with which the server reports the capabilities of an export."""

    HAS_FLAGS = 1 << 0
    READ_ONLY = 1 << 1
    SEND_FLUSH = 1 << 2
    SEND_FUA = 1 << 3
    SEND_TRIM = 1 << 5
    SEND_WRITE_ZEROES = 1 << 6
    SEND_DF = 1 << 7
    CAN_MULTI_CONN = 1 << 8
    SEND_CACHE = 1 << 10
    SEND_FAST_ZERO = 1 << 11


WRITABLE = (
    ExportFlag.SEND_FLUSH | ExportFlag.SEND_FUA | ExportFlag.SEND_TRIM
    | ExportFlag.SEND_WRITE_ZEROES | ExportFlag.SEND_FAST_ZERO
)  # fmt: skip


@dataclass(frozen=True)
class Export:
    """Properties of the drive that NBD reports. Sizes are in bytes."""

    size: int
    block: int
    """Logical block size, bytes: the minimum size and the granularity of requests."""
    preferred: int
    """Preferred request size, bytes. A write whose offset and length are multiples of this size
    causes no reads of mapping units."""
    largest: int
    """Maximum size of a read or write request, bytes."""
    description: str
    read_only: bool = False

    def flags(self, structured: bool) -> int:
        """Return the transmission flags. ``structured``: True if structured replies were
        negotiated."""
        found = ExportFlag.HAS_FLAGS | ExportFlag.CAN_MULTI_CONN | ExportFlag.SEND_CACHE
        found |= ExportFlag.READ_ONLY if self.read_only else WRITABLE
        return int(found | (ExportFlag.SEND_DF if structured else 0))


class Handshake:
    """Handshake of one client for ``export``.

    :meth:`feed` processes bytes from the client and returns the bytes to send. When :attr:`phase`
    is SERVED, the caller must not call :meth:`feed` any more; :attr:`rest` then contains the bytes
    that arrived after the handshake. ``admit``: function that reserves a connection for a client to
    be served; it returns "", or the reason if no connection is free. ``leave``: function that
    releases the connection if the client disconnects before it is served. The size of the buffer is
    limited to MOST_OPTION_BYTES plus the bytes of one call of :meth:`feed`: if the data of an
    option is larger, it is discarded when it arrives. A client that does not set the flag
    FIXED_NEWSTYLE can only use the option EXPORT_NAME.
    """

    def __init__(self, export: Export, admit: Callable[[], str], leave: Callable[[], None]) -> None:
        self.export = export
        self.phase = Phase.OPEN
        self.structured = False
        """True if structured replies were negotiated."""
        self.rest = b""
        self._admit, self._leave = admit, leave
        self._flags_taken = False
        """True if the client's flags have arrived. The options of the client follow its flags."""
        self._fixed = self._no_zeroes = False
        """Handshake flags of the client."""
        self._selected: bytes | None = None
        """Name of the export for which the client has selected the context base:allocation, or None
        if the client has not selected this context."""
        self._export_named = b""
        """Export name with which the client entered the transmission phase."""
        self._options = 0
        self._skip = 0
        """Number of data bytes of an oversized option that have not arrived."""
        self._late_reply = b""
        """Reply that is sent when all bytes of the oversized option have arrived."""
        self._aborted = False
        """True if the oversized option is ABORT, so that the connection ends when all its bytes
        have arrived."""

    @property
    def allocation(self) -> bool:
        """True if the client has selected the context base:allocation for the export name with
        which it entered the transmission phase."""
        return self._selected is not None and self._selected == self._export_named

    def greeting(self) -> bytes:
        """Return the greeting, which the server sends when the client has connected."""
        return GREETING.pack(NBD_MAGIC, IHAVEOPT, FIXED_NEWSTYLE | NO_ZEROES)

    def feed(self, data: bytes) -> bytes:
        """Process ``data`` from the client; return the bytes to send."""
        self.rest += data
        out = []
        while self.phase is Phase.OPEN:
            reply = self._step()
            if reply is None:
                break
            out.append(reply)
        if self.phase is Phase.ENDED:
            self.rest = b""
        return b"".join(out)

    def drop(self) -> bytes:
        """Release the connection of a client that has disconnected or cannot be served. Return no
        bytes, because the protocol defines no message for this case."""
        self._leave()
        return b""

    def _step(self) -> bytes | None:
        """Process the next message from the client; return the bytes to send, or None if the
        message is incomplete."""
        if self._skip:
            count = min(self._skip, len(self.rest))
            self.rest, self._skip = self.rest[count:], self._skip - count
            if self._skip:
                return None
            if self._aborted:
                self.phase = Phase.ENDED
            return self._late_reply
        if not self._flags_taken:
            return self._take_flags()
        if len(self.rest) < OPTION.size:
            return None
        magic, option, size = OPTION.unpack_from(self.rest)
        if magic != IHAVEOPT or self._options == MOST_OPTIONS:
            self.phase = Phase.ENDED
            return b""
        if not self._fixed and option != Option.EXPORT_NAME:
            self.phase = Phase.ENDED
            return b""
        if size > MOST_OPTION_BYTES:
            return self._skip_data(option, size)
        end = OPTION.size + size
        if len(self.rest) < end:
            return None
        data, self.rest = self.rest[OPTION.size : end], self.rest[end:]
        self._options += 1
        return self._answer(option, data)

    def _skip_data(self, option: int, size: int) -> bytes:
        """Start discarding the ``size`` data bytes of an oversized option, and prepare the reply.
        The replies to ABORT and to unknown options do not depend on the size of the data."""
        self._options += 1
        self.rest, self._skip = self.rest[OPTION.size :], size
        if option == Option.EXPORT_NAME:  # this option has no reply for errors
            self.phase = Phase.ENDED
        elif option == Option.ABORT:
            self._aborted, self._late_reply = True, reply_to(option, Reply.ACK)
        elif option in list(Option):
            text = f"{size} bytes of data: must be at most {MOST_OPTION_BYTES}"
            self._late_reply = reply_to(option, Reply.ERR_TOO_BIG, text.encode())
        else:
            self._late_reply = reply_to(option, Reply.ERR_UNSUP, b"unknown option")
        if option == Option.SET_META_CONTEXT:
            self._selected = None
        return b""

    def _take_flags(self) -> bytes | None:
        if len(self.rest) < 4:
            return None
        flags = int.from_bytes(self.rest[:4], "big")
        self.rest = self.rest[4:]
        self._flags_taken = True
        if flags & ~(FIXED_NEWSTYLE | NO_ZEROES):
            self.phase = Phase.ENDED
        self._fixed, self._no_zeroes = bool(flags & FIXED_NEWSTYLE), bool(flags & NO_ZEROES)
        return b""

    def _answer(self, option: int, data: bytes) -> bytes:
        """Process ``option`` with its ``data``; return the replies."""
        match option:
            case Option.EXPORT_NAME:
                return self._export_name(data)
            case Option.ABORT:
                self.phase = Phase.ENDED
                return reply_to(option, Reply.ACK)
            case Option.LIST:
                if data:
                    return reply_to(option, Reply.ERR_INVALID, b"LIST must have no data")
                name = EXPORT_NAMES[-1]
                listed = len(name).to_bytes(4, "big") + name
                return reply_to(option, Reply.SERVER, listed) + reply_to(option, Reply.ACK)
            case Option.STRUCTURED_REPLY:
                if data:
                    return reply_to(
                        option, Reply.ERR_INVALID, b"STRUCTURED_REPLY must have no data"
                    )
                self.structured = True
                return reply_to(option, Reply.ACK)
            case Option.INFO | Option.GO:
                return self._info(option, data)
            case Option.LIST_META_CONTEXT | Option.SET_META_CONTEXT:
                return self._meta_context(option, data)
            case Option.STARTTLS:
                return reply_to(
                    option, Reply.ERR_POLICY, b"TLS is not supported; use a Unix socket"
                )
        return reply_to(option, Reply.ERR_UNSUP, b"unknown option")

    def _export_name(self, name: bytes) -> bytes:
        if name not in EXPORT_NAMES or self._admit():
            self.phase = Phase.ENDED  # this option has no reply for errors
            return b""
        self.phase, self._export_named = Phase.SERVED, name
        found = struct.pack(">QH", self.export.size, self.export.flags(self.structured))
        return found + (b"" if self._no_zeroes else bytes(124))

    def _info(self, option: int, data: bytes) -> bytes:
        name, rest = _string(data)
        if name is None or len(rest) < 2 or len(rest) != 2 + 2 * int.from_bytes(rest[:2], "big"):
            return reply_to(option, Reply.ERR_INVALID, b"data must be a name and types")
        if name not in EXPORT_NAMES:
            return reply_to(option, Reply.ERR_UNKNOWN, b"the export is named 'drive'")
        asked = set(struct.unpack(f">{len(rest) // 2 - 1}H", rest[2:]))
        export = self.export
        flags = export.flags(self.structured)
        infos = [
            struct.pack(">HQH", Info.EXPORT, export.size, flags),
            struct.pack(">HIII", Info.BLOCK_SIZE, export.block, export.preferred, export.largest),
        ]
        if Info.NAME in asked:
            infos.append(Info.NAME.to_bytes(2, "big") + EXPORT_NAMES[-1])
        if Info.DESCRIPTION in asked:
            infos.append(Info.DESCRIPTION.to_bytes(2, "big") + export.description.encode())
        if option == Option.GO:
            if why := self._admit():
                return reply_to(option, Reply.ERR_POLICY, why.encode())
            self.phase, self._export_named = Phase.SERVED, name
        found = b"".join(reply_to(option, Reply.INFO, each) for each in infos)
        return found + reply_to(option, Reply.ACK)

    def _meta_context(self, option: int, data: bytes) -> bytes:
        """Process LIST_META_CONTEXT or SET_META_CONTEXT; return the replies. SET_META_CONTEXT
        replaces an earlier selection of the client."""
        select = option == Option.SET_META_CONTEXT
        if select:
            self._selected = None
        if not self.structured:
            return reply_to(option, Reply.ERR_INVALID, b"negotiate STRUCTURED_REPLY first")
        name, rest = _string(data)
        if name is None or len(rest) < 4:
            return reply_to(option, Reply.ERR_INVALID, b"data must be a name and queries")
        if name not in EXPORT_NAMES:
            return reply_to(option, Reply.ERR_UNKNOWN, b"the export is named 'drive'")
        count, rest = int.from_bytes(rest[:4], "big"), rest[4:]
        if count > MOST_QUERIES:
            return reply_to(option, Reply.ERR_TOO_BIG, b"too many queries")
        queries = []
        for _ in range(count):
            query, rest = _string(rest)
            if query is None:
                return reply_to(option, Reply.ERR_INVALID, b"a query exceeds the data")
            queries.append(query)
        if rest:
            return reply_to(option, Reply.ERR_INVALID, b"bytes after the queries")
        found = ALLOCATION in queries or (not select and (not queries or b"base:" in queries))
        if not found:
            return reply_to(option, Reply.ACK)
        if select:
            self._selected = name
        number = ALLOCATION_ID if select else 0
        context = number.to_bytes(4, "big") + ALLOCATION
        return reply_to(option, Reply.META_CONTEXT, context) + reply_to(option, Reply.ACK)


def _string(data: bytes) -> tuple[bytes | None, bytes]:
    """Return (string, remaining bytes) of ``data``, which begins with the length of the string in 4
    bytes and the string. Return (None, b"") if ``data`` is too short."""
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 or len(data) < 4 + size:
        return None, b""
    return data[4 : 4 + size], data[4 + size :]


def reply_to(option: int, reply: Reply, data: bytes = b"") -> bytes:
    """Return a reply of type ``reply`` with ``data`` to ``option``."""
    return OPTION_REPLY.pack(OPTION_REPLY_MAGIC, option, reply, len(data)) + data
