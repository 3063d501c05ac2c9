"""One NBD client after the handshake: a thread that runs its requests in batches.

Owns the memory of a client, the execution of its requests, and its replies. Does not own the
messages (nbd_request.py), connections before that (handshakes.py), replies at their time on the
wall clock (nbd_paced.py) or the drive's clock (service.py). Source: the NBD protocol, transmission
phase; batches as in io_uring: all requests that have arrived are submitted together.
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
"""Largest number of requests in a batch."""
ROOM = 1 << 20
"""Memory for requests and for replies beyond that of the largest one, bytes."""
WHOLE = 1 << 16
"""Number of missing bytes of a write from which on the session waits for all of them at once."""
SEND_BUFFER = 1 << 20
"""Bytes that the system keeps of replies that the client has not taken."""
CLEARS = (words.NBD_WRITE, words.NBD_TRIM, words.NBD_WRITE_ZEROES)
"""Requests that clear marks of Write Uncorrectable, as their commands of NVMe do."""
MOST_EXTENTS = 4096
"""Largest number of extents in a reply to BLOCK_STATUS."""
FIRST_STATUS_UNITS = 64
"""Number of mapping units that are examined first for one extent."""
MOST_STATUS_UNITS = 1 << 20
"""Largest number of mapping units whose state a reply may contain."""


class Batch:
    """Memory of the requests that have arrived and of their replies, and both as records. Only
    touched parts occupy memory."""

    def __init__(self, served: Served, largest: int, number: int = 0) -> None:
        """``largest``: bytes of the largest read or write. ``number``: of this batch among those of
        its client, 0 to 65535."""
        self.input = 4 * (largest + words.HEADER_BYTES) + ROOM
        """Bytes for requests; replies follow. With room for several large ones, the rest of one is
        seldom moved to the beginning."""
        self.memory = np.empty(self.input + largest + words.DATA_CHUNK_BYTES + ROOM, np.uint8)
        self.view = self.memory.data
        self.requests = as_records(np.zeros(MOST_REQUESTS, words.REQUEST))
        most = served.depth + -(-largest // served.transfer)
        self.commands = as_records(np.zeros(most, COMMAND))
        self.single = Single(self.commands[:1], self.memory)
        """The first command, if it is the only one."""
        self.number = number
        self.begin = self.end = 0
        """Bytes that have arrived and are not parsed: from begin to end."""


class Session:
    """The requests of one client of ``served``, after ``handshake``. :meth:`run` returns when the
    client has gone, or when the socket receives no more and all requests that had arrived are
    done."""

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
        """time.perf_counter_ns after the last bytes have arrived; 0: unknown."""
        self._skip = 0
        """Bytes of refused data that are still to arrive."""

    def run(self) -> None:
        """Execute requests until the client has gone or has sent an invalid one."""
        try:
            while self._turn():
                pass
        except OSError:
            return  # the client has gone; requests in flight take effect

    def send(self, data: bytes | memoryview) -> None:
        """Send ``data``. Raises OSError if the client has gone."""
        self.socket.sendall(data)

    def _turn(self) -> bool:
        """Execute what has arrived, or wait for more. Return False at the end."""
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
        """Wait for bytes; ``missing``: number without which the next request cannot be executed, or
        0. Return False if there will be none."""
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
        """Run the first ``commands`` commands, of ``count`` requests, of which ``refused`` have
        none; reply to them. ``out``: end of their replies."""
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
        """Refuse the reads of marked blocks among the first ``count`` requests; return the number
        of commands that are left, and of requests without any."""
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
        """Clear the marks of Write Uncorrectable of the bytes that successful requests (fields of
        words.REQUEST, by number) have written or deallocated, and record that data were written.
        Return the numbers of requests that fail because the change cannot be saved."""
        done = {
            at: (kind, (offset, length))
            for at, (_, offset, length, _, _, kind, _, _, _, refused) in requests.items()
            if kind in CLEARS and not refused
        }
        written = any(kind == words.NBD_WRITE for kind, _ in done.values())
        kept = self.served.marks.clear([place for _, place in done.values()], written)
        return [] if kept else list(done)

    def replies(self, batch: Batch, count: int, errors: dict[int, int]) -> list[bytes]:
        """Return the replies to the first ``count`` requests of ``batch``; ``errors``: of requests
        that the drive has failed, by number."""
        return [
            self.reply(batch, request, errors.get(number, 0))
            for number, request in enumerate(batch.requests[:count].tolist())
        ]

    def reply(self, batch: Batch, request: tuple[int, ...], error: int) -> bytes:
        """Return the reply to a request (fields of words.REQUEST) of ``batch``, with ``error`` of
        the drive or 0."""
        cookie, _, _, out, size, kind, _, _, _, refused = request
        if error := refused or error:
            return words.error_reply(kind, cookie, error, self.structured)
        return bytes(batch.view[out : out + size])

    # --- requests of several steps

    def _execute_slow(self) -> None:
        """Execute and answer the request at the beginning of what has arrived."""
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
        """Run commands, writes of zeros among them. Return an error or 0."""
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
        """Make a range read as zeros: trim whole mapping units and write the rest, or all of it
        with NO_HOLE. Return an error or 0."""
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
        """Return the reply to BLOCK_STATUS, and its error or 0."""
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
        """Return which of ``count`` mapping units from ``first`` on do not read as zeros, as far as
        the drive knows, bool[count]: marked ones are no holes. Raises InputError if the drive
        serves no more."""
        mapped, marks = self.served.mapped(first, count), self.served.marks
        return mapped | marks.units(first, count, self.served.unit) if marks else mapped


def warm_up(served: Served) -> None:
    """Load or compile the functions that sessions of ``served`` need, so that no client waits for
    it."""
    batch = Batch(served, served.export.largest)
    parser(batch, as_records(np.zeros(1, words.LIMITS)), np.zeros(words.NUMBERS, np.int64))


def parser(batch: Batch, limits: np.ndarray, found: np.ndarray) -> Callable[..., None]:
    """Return the compiled parser of requests (nbd_request.parse)."""
    found_entry: Callable[..., None] = entry(
        words.parse, batch.memory, 0, 0, limits, batch.requests, batch.commands, found
    )
    return found_entry


def run(connection: Commands, commands: np.ndarray, memory: np.ndarray) -> np.ndarray | None:
    """Run commands with their bytes in ``memory``. Return COMPLETION[n], or None if the drive
    executes none: its power was cut, its service has ended, or it has a defect, which is
    printed."""
    try:
        return connection.run(commands, memory)
    except (InputError, KernelError):
        return None
    except Exception:  # noqa: BLE001 - the client gets an error, and the operator the reason
        show_exception("commands of NBD")
        return None
