"""NBD requests and replies after the handshake: conversion of requests to drive commands, and of
the statuses of commands to replies.

Owns the compiled parser that writes commands and reply headers, the conversion of statuses to error
numbers, and the chunks of structured replies. Does not own the handshake (nbd_wire.py), sockets or
the execution of commands (nbd_session.py).
Source: the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md): transmission phase.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import numpy as np

from ondie.emu.nvme.command import FLUSH, READ, TRIM, WRITE
from ondie.emu.nvme.status import Status
from ondie.kernels.jit import njit

REQUEST_MAGIC, REPLY_MAGIC, CHUNK_MAGIC = 0x25609513, 0x67446698, 0x668E33EF
HEADER = struct.Struct(">IHHqQI")
"""Header of a request: magic, flags, type, cookie, offset, length."""
SIMPLE = struct.Struct(">IIq")
"""Header of a simple reply: magic, error, cookie."""
CHUNK = struct.Struct(">IHHqI")
"""Header of a chunk of a structured reply: magic, flags, type, cookie, length."""
CONTEXT = struct.Struct(">I")
"""Start of the data of a BLOCK_STATUS chunk: identifier of the metadata context."""

(NBD_READ, NBD_WRITE, NBD_DISC, NBD_FLUSH, NBD_TRIM, NBD_CACHE, NBD_WRITE_ZEROES,
 NBD_BLOCK_STATUS) = range(8)  # fmt: skip
FLAG_FUA, FLAG_NO_HOLE, FLAG_DF, FLAG_REQ_ONE, FLAG_FAST_ZERO = 1, 2, 4, 8, 16
CHUNK_DONE = 1
"""Flag of the last chunk of a structured reply."""
CHUNK_OFFSET_DATA, CHUNK_BLOCK_STATUS, CHUNK_ERROR = 1, 5, 0x8001
HOLE, ZERO = 1, 2
"""Status flags of an extent in the metadata context base:allocation: the extent is a hole (HOLE),
or reads as zeros (ZERO)."""
HEADER_BYTES, SIMPLE_BYTES, DATA_CHUNK_BYTES = 28, 16, 28


class NbdError(IntEnum):
    """Error numbers of NBD replies."""

    NONE = 0
    EPERM = 1
    EIO = 5
    ENOMEM = 12
    EINVAL = 22
    ENOSPC = 28
    EOVERFLOW = 75
    ENOTSUP = 95
    ESHUTDOWN = 108


ERRORS: dict[int, NbdError] = {
    Status.SUCCESS: NbdError.NONE,
    Status.NAMESPACE_WRITE_PROTECTED: NbdError.EPERM,
    Status.CAPACITY_EXCEEDED: NbdError.ENOSPC,
}
"""NBD error numbers by status of a drive command. A status that is not a key is reported as EIO."""

REQUEST = np.dtype(
    [
        ("cookie", "i8"),
        ("offset", "i8"),
        ("length", "i8"),
        ("out", "i8"),  # first byte of the reply in the memory of the batch
        ("out_size", "i8"),  # bytes of the reply if there is no error
        ("kind", "i4"),  # NBD_READ, ...
        ("flags", "i4"),
        ("first", "i4"),  # its first command
        ("count", "i4"),  # number of its commands
        ("error", "i4"),  # error that was found without the drive
    ],
    align=True,
)
LIMITS = np.dtype(
    [
        ("size", "i8"),  # bytes of the drive
        ("block", "i8"),  # smallest request
        ("unit", "i8"),  # mapping unit: what a TRIM can free
        ("transfer", "i8"),  # largest read or write of a command
        ("largest", "i8"),  # largest read or write of a request
        ("structured", "i8"),  # 1: structured replies were negotiated
        ("allocation", "i8"),  # 1: the context base:allocation was selected
        ("out", "i8"),  # first byte for replies in the memory of a batch
        ("end", "i8"),  # end of the memory of a batch
        ("commands", "i8"),  # largest number of commands of a batch
        ("read_only", "i8"),  # 1: the export is read-only
        ("tag", "i8"),  # tag of the commands of the first request
    ],
    align=True,
)

MORE, FULL, SLOW, LEFT, BAD = range(5)
"""Reasons why the parser stops. MORE: the next request is incomplete. FULL: the batch is full.
SLOW: the next request needs several steps (see is_slow). LEFT: the client has sent a disconnect
request. BAD: the next bytes are not a request."""
POSITION, COUNT, COMMANDS, OUT, SKIP, WHY, REFUSED, MISSING, KINDS = range(9)
"""Indexes of the values that the parser returns. POSITION: position after the last parsed request.
COUNT: number of requests. COMMANDS: number of commands. OUT: end of the replies. SKIP: number of
bytes of refused data that have not arrived. WHY: reason to stop. REFUSED: number of refused
requests. MISSING: number of bytes that are missing from the write at the position. KINDS and the
following 7 indexes: number of requests of each type."""
NUMBERS = KINDS + 8
"""Number of values that the parser returns (see POSITION)."""


@njit
def word(memory, at, size):
    """Return the big-endian number in the ``size`` bytes (at most 8) that start at ``memory[at]``.
    A number of 8 bytes is signed."""
    found = 0
    for i in range(min(size, 4)):
        found = (found << 8) | int(memory[at + i])
    if size <= 4:
        return found
    found -= (found >> 31) << 32
    for i in range(4, size):
        found = (found << 8) | int(memory[at + i])
    return found


@njit
def put_word(memory, at, size, value):
    """Write ``value`` as a big-endian number of ``size`` bytes that starts at ``memory[at]``."""
    rest = value
    for i in range(size):
        memory[at + size - 1 - i] = rest & 255
        rest >>= 8


@njit
def fault(kind, flags, offset, length, limits):
    """Return 0 if a request can be executed, or its error number if it is invalid or exceeds the
    limits of the export. ``limits``: LIMITS."""
    known = FLAG_FUA
    if kind == NBD_READ and limits.structured != 0:
        known |= FLAG_DF
    elif kind == NBD_WRITE_ZEROES:
        known |= FLAG_NO_HOLE | FLAG_FAST_ZERO
    elif kind == NBD_BLOCK_STATUS:
        known |= FLAG_REQ_ONE
    if flags & ~known != 0 or kind > NBD_BLOCK_STATUS:
        return 22
    if kind == NBD_FLUSH:
        return 22 if offset != 0 or length != 0 else 0
    writes = kind == NBD_WRITE or kind == NBD_WRITE_ZEROES
    if limits.read_only != 0 and (writes or kind == NBD_TRIM):
        return 1
    if kind == NBD_BLOCK_STATUS and limits.allocation == 0:
        return 22
    odd = limits.block - 1
    if length == 0 or offset & odd != 0 or length & odd != 0:
        return 22
    if offset < 0 or offset > limits.size or length > limits.size - offset:
        return 28 if writes else 22
    if length > limits.largest:
        if kind == NBD_READ or kind == NBD_WRITE:
            return 22
        if kind == NBD_CACHE:
            return 75
    return 0


@njit
def is_slow(kind, flags, offset, length, limits):
    """Return True if a request needs several steps. Such requests are BLOCK_STATUS, a TRIM with
    FUA, and a WRITE_ZEROES that is not equivalent to a single TRIM."""
    if kind == NBD_BLOCK_STATUS:
        return True
    odd = limits.unit - 1
    if kind == NBD_TRIM:
        return flags & FLAG_FUA != 0
    if kind == NBD_WRITE_ZEROES:
        return flags & (FLAG_FUA | FLAG_NO_HOLE) != 0 or (offset | length) & odd != 0
    return False


@njit
def add_commands(command_op, request, data, fua, limits, commands, first, tag):
    """Split ``request`` into commands with operation ``command_op``. Write the commands to
    ``commands``, starting at index ``first``, and return their number. ``data``: index of the first
    data byte in the memory of the batch, or -1 if the commands transfer no data. ``tag``: tag of
    the commands."""
    left, offset, count = request.length, request.offset, 0
    while True:
        size = left
        if (command_op == READ or command_op == WRITE) and size > limits.transfer:
            size = limits.transfer
        command = commands[first + count]
        command.op = command_op
        command.offset = offset
        command.size = size
        command.fua = fua
        command.data = data
        command.tag = tag
        count += 1
        left -= size
        offset += size
        if data >= 0:
            data += size
        if left == 0:
            return count


@njit
def parse(memory, begin, end, limits, requests, commands, found):
    """Parse the requests in ``memory[begin:end]``, uint8, into a batch.

    ``limits``: LIMITS[1]. The results are written to ``requests``, REQUEST[r], to ``commands``,
    COMMAND[c], and to ``found``, int64[NUMBERS] (see POSITION). The headers of the replies are
    written to ``memory``, as if all requests succeeded. All commands of a request have the same
    tag. The tag is ``limits.tag`` for the first request, and increases by 1 with each request. The
    data of a write is not moved: its commands refer to the location in ``memory`` where it has
    arrived. The data of a read is placed directly after the header of its reply.
    """
    limit = limits[0]
    at, count, made, out = begin, 0, 0, limit.out
    skip, why, refused, missing = 0, MORE, 0, 0
    found[KINDS:] = 0
    while at + HEADER_BYTES <= end:
        if count == requests.size:
            why = FULL
            break
        if word(memory, at, 4) != REQUEST_MAGIC:
            why = BAD
            break
        flags, kind = word(memory, at + 4, 2), word(memory, at + 6, 2)
        cookie = word(memory, at + 8, 8)
        offset, length = word(memory, at + 16, 8), word(memory, at + 24, 4)
        if kind == NBD_DISC:
            why = LEFT
            break
        error = fault(kind, flags, offset, length, limit)
        size = HEADER_BYTES
        if kind == NBD_WRITE:
            size += length
            if error == 0 and at + size > end:
                missing = at + size - end
                break
        if error == 0 and is_slow(kind, flags, offset, length, limit):
            why = SLOW
            break
        reads = kind == NBD_READ and error == 0
        head = DATA_CHUNK_BYTES if kind == NBD_READ and limit.structured != 0 else SIMPLE_BYTES
        reply = head + (length if reads else 0)
        steps = 0
        if error == 0:
            steps = 1
            if kind == NBD_READ or kind == NBD_WRITE or kind == NBD_CACHE:
                steps = (length + limit.transfer - 1) // limit.transfer
        if out + reply > limit.end or (made + steps > limit.commands and made > 0):
            why = FULL
            break
        refused += error != 0
        found[KINDS + (kind & 7)] += 1
        request = requests[count]
        request.cookie = cookie
        request.offset = offset
        request.length = length
        request.kind = kind
        request.flags = flags
        request.error = error
        request.out = out
        request.out_size = reply
        request.first = made
        if error == 0:
            data, fua, command_op = -1, 0, TRIM
            if kind == NBD_READ:
                data, command_op = out + head, READ
            elif kind == NBD_WRITE:
                data, command_op, fua = at + HEADER_BYTES, WRITE, flags & FLAG_FUA
            elif kind == NBD_CACHE:
                command_op = READ
            elif kind == NBD_FLUSH:
                command_op = FLUSH
            tag = limit.tag + count
            made += add_commands(command_op, request, data, fua, limit, commands, made, tag)
        request.count = made - request.first
        if head == DATA_CHUNK_BYTES:
            put_word(memory, out, 4, CHUNK_MAGIC)
            put_word(memory, out + 4, 2, CHUNK_DONE)
            put_word(memory, out + 6, 2, CHUNK_OFFSET_DATA)
            put_word(memory, out + 8, 8, cookie)
            put_word(memory, out + 16, 4, length + 8)
            put_word(memory, out + 20, 8, offset)
        else:
            put_word(memory, out, 4, REPLY_MAGIC)
            put_word(memory, out + 4, 4, error)
            put_word(memory, out + 8, 8, cookie)
        out += reply
        count += 1
        at += size
        if at > end:
            skip, at = at - end, end
            break
    found[0] = at
    found[1] = count
    found[2] = made
    found[3] = out
    found[4] = skip
    found[5] = why
    found[6] = refused
    found[7] = missing


def simple_reply(cookie: int, error: int = 0) -> bytes:
    """Return an NBD simple reply without data to the request ``cookie``. ``error``: an NbdError, or
    0 for success."""
    return SIMPLE.pack(REPLY_MAGIC, error, cookie)


def chunk(cookie: int, kind: int, data: bytes) -> bytes:
    """Return a structured reply that consists of one chunk of type ``kind`` with ``data``."""
    return CHUNK.pack(CHUNK_MAGIC, CHUNK_DONE, kind, cookie, len(data)) + data


def error_of(status: int) -> int:
    """Return the error number of the reply to a request whose drive command has completed with
    ``status``."""
    return ERRORS.get(status, NbdError.EIO)


def error_reply(kind: int, cookie: int, error: int, structured: bool) -> bytes:
    """Return the reply to a failed request of type ``kind``: an error chunk if structured replies
    were negotiated and the type requires them, otherwise a simple reply."""
    if structured and kind in (NBD_READ, NBD_BLOCK_STATUS):
        return chunk(cookie, CHUNK_ERROR, struct.pack(">IH", error, 0))
    return simple_reply(cookie, error)


def extents(mapped: np.ndarray, unit: int, offset: int, length: int, most: int) -> bytes:
    """Return the encoded extents (length, flags) of the context base:allocation for the ``length``
    bytes starting at ``offset``. At most ``most`` extents are returned.

    ``mapped``: bool[units], True for each mapping unit of the range that holds data. Mapping units
    without data read as zeros. ``unit``: size of a mapping unit, bytes.
    """
    edges = np.flatnonzero(np.diff(mapped)) + 1
    starts = np.concatenate(([0], edges))[:most]
    ends = np.concatenate((edges, [len(mapped)]))[:most]
    base = offset // unit * unit
    first = np.maximum(base + starts * unit, offset)
    sizes = np.minimum(base + ends * unit, offset + length) - first
    flags = np.where(mapped[starts], 0, HOLE | ZERO)
    return np.stack([sizes, flags], 1).astype(">u4").tobytes()
