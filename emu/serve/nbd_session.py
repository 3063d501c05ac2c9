"""Session of one NBD client after the handshake: executes the client's requests in batches.

Owns the buffers of a client, the execution of its requests, and the replies to the requests. Does
not own the messages (nbd_request.py), the connection before the session (handshakes.py), replies at
modeled times on the wall clock (nbd_paced.py) or the drive's clock (emu/service.py).
Source: the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md), transmission phase;
batches as in Linux's io_uring: all requests that have arrived are submitted together.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import numpy as np

from ondie.emu.engine.core.state import as_records
from ondie.emu.nvme.client_turns import Single
from ondie.emu.nvme.command import COMMAND, FLUSH, TRIM, WRITE, Row, commands_of, first_error
from ondie.emu.serve import nbd_request as words
from ondie.emu.serve.defects import show_exception
from ondie.emu.serve.nbd_request import NbdError, error_of
from ondie.emu.serve.nbd_wire import ALLOCATION_ID, Handshake
from ondie.emu.serve.served import Commands, Served
from ondie.emu.units import InputError
from ondie.kernels.errors import KernelError
from ondie.kernels.jit import entry

MOST_REQUESTS = 256
"""Maximum number of NBD requests that a session executes in one batch."""
ROOM = 1 << 20
"""Extra space in each of the two parts of a batch's buffer (requests and replies), in addition to
the space for the largest requests and the largest reply, bytes."""
WHOLE = 1 << 16
"""If at least this number of bytes of a write has not arrived yet, the session waits for all of
these bytes with one system call."""
SEND_BUFFER = 1 << 20
"""Size of the socket's send buffer, bytes."""
CLEARS = (words.NBD_WRITE, words.NBD_TRIM, words.NBD_WRITE_ZEROES)
"""Types of the requests that remove marks (Write Uncorrectable) from the written or deallocated
bytes."""
MOST_EXTENTS = 4096
"""Maximum number of extents in a reply to BLOCK_STATUS."""
FIRST_STATUS_UNITS = 64
"""Number of mapping units that are examined first if BLOCK_STATUS requests only one extent."""
MOST_STATUS_UNITS = 1 << 20
"""Maximum number of mapping units that one reply to BLOCK_STATUS covers."""


class Batch:
    """Memory for a batch of requests: a buffer for the requests that have arrived and for their
    replies, and the records of the parsed requests and of their drive commands. Memory pages of the
    buffer that are never used do not occupy memory."""

    def __init__(self, served: Served, largest: int, number: int = 0) -> None:
        """``largest``: maximum size of a read or write, bytes. ``number``: number of this batch
        among the batches of the client, 0 to 65535."""
        self.input = 4 * (largest + words.HEADER_BYTES) + ROOM
        """Size of the part of ``memory`` for requests, bytes; the rest is for replies. This part
        has room for several large requests, so that an incomplete request is seldom moved to the
        start of the part."""
        self.memory = np.empty(self.input + largest + words.DATA_CHUNK_BYTES + ROOM, np.uint8)
        self.view = self.memory.data
        self.requests = as_records(np.zeros(MOST_REQUESTS, words.REQUEST))
        most = served.depth + -(-largest // served.transfer)
        self.commands = as_records(np.zeros(most, COMMAND))
        self.single = Single(self.commands[:1], self.memory)
        """The first command of ``commands``, for execution without other commands."""
        self.number = number
        self.begin = self.end = 0
        """Range ``memory[begin:end]`` of the bytes that have arrived but are not parsed."""


class Session:
    """Session of one client of ``served`` after ``handshake``. :meth:`run` executes the requests of
    the client. It returns when the client has disconnected, or when the socket is shut down for
    receiving and all requests that have arrived are done."""

    def __init__(self, sock: socket.socket, served: Served, handshake: Handshake) -> None:
        self.socket, self.served = sock, served
        self.structured = handshake.structured
        self.connection: Commands = served.connect()
        export = handshake.export
        self.largest = export.largest
        self.batch = Batch(served, self.largest)
        limits = {
            "size": export.size,
            "block": export.block,
            "unit": served.unit,
            "transfer": served.transfer,
            "largest": self.largest,
            "structured": self.structured,
            "allocation": handshake.allocation,
            "out": self.batch.input,
            "end": len(self.batch.memory),
            "commands": served.depth,
            "read_only": export.read_only,
        }
        self.limits = as_records(np.zeros(1, words.LIMITS))
        for name, value in limits.items():
            self.limits[name] = value
        self._found = np.zeros(words.NUMBERS, np.int64)
        self._parse = parser(self.batch, self.limits, self._found)
        rest = handshake.rest
        self.batch.view[: len(rest)] = rest
        self.batch.end = len(rest)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self.received_ns = 0
        """Time at which the last bytes arrived (time.perf_counter_ns), or 0 if this time is
        unknown."""
        self._skip = 0
        """Number of data bytes of refused writes that have not arrived. They are discarded."""

    def run(self) -> None:
        """Execute requests until the client disconnects or sends an invalid request."""
        try:
            while self._turn():
                pass
        except OSError:
            return  # the client has gone; requests in flight take effect

    def send(self, data: bytes | memoryview) -> None:
        """Send ``data`` to the client. Raises OSError if the client has disconnected."""
        self.socket.sendall(data)

    def _turn(self) -> bool:
        """Execute the requests that have arrived, or wait for more bytes. Return False at the end
        of the session."""
        batch = self.batch
        self._parse(
            batch.memory, batch.begin, batch.end, self.limits, batch.requests, batch.commands,
            self._found,
        )  # fmt: skip
        position, count, commands, out, skip, why, refused, missing, *kinds = self._found.tolist()
        batch.begin = position
        if count:
            if self.served.marks:
                commands, refused = self._refuse_marked(count, commands, refused)
            if count == 1:
                self.served.count_one(kinds.index(1), refused > 0)
            else:
                self.served.count(kinds, refused)
            self.execute(count, commands, out, refused)
        if why == words.SLOW:
            self._execute_slow()
        elif why == words.LEFT:
            self.served.count_one(words.NBD_DISC, failed=False)
            return False
        elif why == words.BAD:
            return False
        elif why == words.MORE:
            self._skip += skip
            return self._receive(missing)
        return True

    def _receive(self, missing: int) -> bool:
        """Wait for bytes. Return False if the client has disconnected. ``missing``: number of bytes
        that must arrive before the next request can be executed, or 0 if this number is unknown."""
        batch = self.batch
        while True:
            if batch.begin == batch.end:
                batch.begin = batch.end = 0
            elif batch.input - batch.end < max(ROOM, missing):
                left = batch.end - batch.begin
                batch.memory[:left] = batch.memory[batch.begin : batch.end]
                batch.begin, batch.end = 0, left
            if missing >= WHOLE:
                space = batch.view[batch.end : batch.end + missing]
                count = self.socket.recv_into(space, 0, socket.MSG_WAITALL)
            else:
                count = self.socket.recv_into(batch.view[batch.end : batch.input])
            self.received_ns = time.perf_counter_ns()
            if count == 0:
                return False
            skipped = min(count, self._skip)
            self._skip -= skipped
            if skipped < count:
                batch.begin += skipped  # if bytes are skipped, nothing was before them
                batch.end += count
                return True

    # --- batches

    def execute(self, count: int, commands: int, out: int, refused: int) -> None:
        """Run the commands of the batch, and reply to its requests.

        ``count``: number of requests. ``commands``: number of commands. ``out``: end of the replies
        in the memory of the batch. ``refused``: number of requests that have no command because of
        an error.
        """
        batch = self.batch
        errors: dict[int, int] = {}
        if self.served.detached:
            errors = dict.fromkeys(range(count), int(NbdError.ESHUTDOWN))
            self.served.count([0] * 8, count - refused)
        elif commands:
            done = run(self.connection, batch.commands[:commands], batch.memory)
            if done is None:
                errors = dict.fromkeys(range(count), int(NbdError.EIO))
            elif done["status"].any():
                failed = done[done["status"] != 0]
                for tag, status in zip(
                    failed["tag"].tolist(), failed["status"].tolist(), strict=True
                ):
                    errors.setdefault(tag, error_of(status))
            if self.served.marks:
                requests = enumerate(batch.requests[:count].tolist())
                left = {at: each for at, each in requests if at not in errors}
                errors |= dict.fromkeys(self.clear_marks(left), int(NbdError.EIO))
            if errors:
                self.served.count([0] * 8, len(errors))
        if not errors and not refused:
            self.send(batch.view[batch.input : out])
        else:
            self.send(b"".join(self.replies(batch, count, errors)))

    def _refuse_marked(self, count: int, commands: int, refused: int) -> tuple[int, int]:
        """Refuse those of the first ``count`` requests that read blocks marked uncorrectable, and
        remove their commands. Return (number of remaining commands, number of refused requests)."""
        requests, place = self.batch.requests[:count], self.batch.commands[:commands]
        reads = np.isin(requests["kind"], (words.NBD_READ, words.NBD_CACHE)) & (
            requests["error"] == 0
        )
        numbers = np.flatnonzero(reads)
        ranges = zip(
            requests["offset"][numbers].tolist(), requests["length"][numbers].tolist(), strict=True
        )
        marked = numbers[self.served.marks.touched(ranges)]
        if not len(marked):
            return commands, refused
        requests["error"][marked] = NbdError.EIO
        requests["count"][marked] = 0
        left = place[~np.isin(place["tag"] - self.limits["tag"][0], marked)]
        place[: len(left)] = left
        return len(left), refused + len(marked)

    def clear_marks(self, requests: dict[int, tuple[int, ...]]) -> list[int]:
        """Remove the marks (Write Uncorrectable) from the ranges that successful requests have
        written or deallocated, and record whether data was written.

        ``requests``: fields of each request (words.REQUEST) by request number. Return the numbers
        of the requests that fail because the change cannot be saved.
        """
        done = {
            at: (kind, (offset, length))
            for at, (_, offset, length, _, _, kind, _, _, _, refused) in requests.items()
            if kind in CLEARS and not refused
        }
        written = any(kind == words.NBD_WRITE for kind, _ in done.values())
        kept = self.served.marks.clear([place for _, place in done.values()], written)
        return [] if kept else list(done)

    def replies(self, batch: Batch, count: int, errors: dict[int, int]) -> list[bytes]:
        """Return the replies to the first ``count`` requests of ``batch``. ``errors``: error
        numbers of failed requests, by request number."""
        return [
            self.reply(batch, request, errors.get(number, 0))
            for number, request in enumerate(batch.requests[:count].tolist())
        ]

    def reply(self, batch: Batch, request: tuple[int, ...], error: int) -> bytes:
        """Return the reply to ``request`` (fields of words.REQUEST) of ``batch``. ``error``: error
        number of the execution, or 0."""
        cookie, _, _, out, size, kind, _, _, _, refused = request
        if error := refused or error:
            return words.error_reply(kind, cookie, error, self.structured)
        return bytes(batch.view[out : out + size])

    # --- requests of several steps

    def _execute_slow(self) -> None:
        """Execute the next request, which needs several steps, and reply to it."""
        batch = self.batch
        _, flags, kind, cookie, offset, length = words.HEADER.unpack_from(batch.view, batch.begin)
        batch.begin += words.HEADER_BYTES
        if kind == words.NBD_BLOCK_STATUS:
            reply, error = self._block_status(cookie, offset, length, flags)
        else:
            if kind == words.NBD_TRIM:
                error = self._steps([(TRIM, offset, length, -1, 0)])
            else:
                error = self._write_zeroes(offset, length, flags)
            if not error and flags & words.FLAG_FUA:
                error = self._steps([(FLUSH, 0, 0, -1, 0)])
            marks = self.served.marks
            if not error and marks and not marks.clear([(offset, length)]):
                error = NbdError.EIO
            reply = words.error_reply(kind, cookie, error, self.structured)
        self.served.count_one(kind, bool(error))
        self.send(reply)

    def _steps(self, steps: list[Row]) -> int:
        """Run the commands ``steps``, which write zeros or transfer no data. Return 0 or an error
        number."""
        if self.served.detached:
            return NbdError.ESHUTDOWN
        for first in range(0, len(steps), self.served.depth):
            commands = commands_of(steps[first : first + self.served.depth])
            done = run(self.connection, as_records(commands), self.served.zeros)
            if done is None:
                return NbdError.EIO
            if status := first_error(done):
                return error_of(status)
        return 0

    def _write_zeroes(self, offset: int, length: int, flags: int) -> int:
        """Execute WRITE_ZEROES: trim the whole mapping units in the range, and write zeros to the
        rest of the range. If the flag NO_HOLE is set, write zeros to the whole range. Return 0 or
        an error number, which is ENOTSUP if the flag FAST_ZERO is set and nothing can be
        trimmed."""
        unit, end = self.served.unit, offset + length
        first, last = -(-offset // unit) * unit, end // unit * unit
        if flags & words.FLAG_NO_HOLE or first >= last:
            if flags & words.FLAG_FAST_ZERO:
                return NbdError.ENOTSUP
            first = last = end
        steps: list[Row] = []
        transfer = self.served.transfer
        for begin, stop in ((offset, first), (last, end)):
            for at in range(begin, stop, transfer):
                steps.append((WRITE, at, min(transfer, stop - at), 0, 0))
        if first < last:
            steps.append((TRIM, first, last - first, -1, 0))
        return self._steps(steps)

    def _block_status(self, cookie: int, offset: int, length: int, flags: int) -> tuple[bytes, int]:
        """Execute BLOCK_STATUS; return (reply, 0 or an error number)."""
        unit, one = self.served.unit, bool(flags & words.FLAG_REQ_ONE)
        first = offset // unit
        count = min(-(-(offset + length) // unit) - first, MOST_STATUS_UNITS)
        some = min(count, FIRST_STATUS_UNITS) if one else count
        try:
            mapped = self._data(first, some)
            while some < count and mapped.all() == mapped.any():  # the extent goes on
                some = min(count, 8 * some)
                mapped = self._data(first, some)
        except InputError:
            mapped, error = None, NbdError.EIO
        if self.served.detached:
            mapped, error = None, NbdError.ESHUTDOWN
        if mapped is None:
            return words.error_reply(words.NBD_BLOCK_STATUS, cookie, error, True), error
        length = min(length, (first + some) * unit - offset)
        most = 1 if one else MOST_EXTENTS
        found = words.extents(mapped, unit, offset, length, most)
        context = words.CONTEXT.pack(ALLOCATION_ID)
        return words.chunk(cookie, words.CHUNK_BLOCK_STATUS, context + found), 0

    def _data(self, first: int, count: int) -> np.ndarray:
        """Return a mask, bool[count], of the mapping units ``first`` to ``first + count - 1``. An
        entry is True if the mapping unit holds data or contains a byte that is marked
        uncorrectable. Raises InputError if the drive is no longer served."""
        mapped, marks = self.served.mapped(first, count), self.served.marks
        return mapped | marks.units(first, count, self.served.unit) if marks else mapped


def warm_up(served: Served) -> None:
    """Load or compile the functions used by sessions of ``served``, so that no client has to wait
    for the compilation."""
    batch = Batch(served, served.export.largest)
    parser(batch, as_records(np.zeros(1, words.LIMITS)), np.zeros(words.NUMBERS, np.int64))


def parser(batch: Batch, limits: np.ndarray, found: np.ndarray) -> Callable[..., None]:
    """Return the function nbd_request.parse, compiled for the types of these arguments."""
    found_entry: Callable[..., None] = entry(
        words.parse, batch.memory, 0, 0, limits, batch.requests, batch.commands, found
    )
    return found_entry


def run(connection: Commands, commands: np.ndarray, memory: np.ndarray) -> np.ndarray | None:
    """Run ``commands``, COMMAND[n], with their data in ``memory``, uint8. Return the completions,
    COMPLETION[n], or None if the drive cannot execute the commands because its power was cut, its
    service has ended, or a defect has occurred. A defect is reported on standard error."""
    try:
        return connection.run(commands, memory)
    except (InputError, KernelError):
        return None
    except Exception:  # noqa: BLE001 - the client gets an error, and the operator the reason
        show_exception("commands of NBD")
        return None
