"""One NBD client after the handshake: a thread that runs its requests in batches.

Owns the memory of a client, the execution of its requests, and its replies. Does not own the words
(nbd_request.py), connections before that (nbd.py) or the drive's clock (service.py).
Source: the NBD protocol, transmission phase; batches as in io_uring: whatever has arrived is handed
over at once.
"""

from __future__ import annotations

import socket

import numpy as np

from ondie.emu.engine.core.state import as_records
from ondie.emu.nvme.client_queue import Connection
from ondie.emu.nvme.command import COMMAND, FLUSH, TRIM, WRITE
from ondie.emu.nvme.status import Status
from ondie.emu.serve import nbd_request as words
from ondie.emu.serve.nbd_request import ERRORS, NbdError
from ondie.emu.serve.nbd_wire import ALLOCATION_ID
from ondie.emu.serve.served import Served
from ondie.emu.units import InputError
from ondie.kernels.errors import KernelError

MOST_REQUESTS = 256
"""Largest number of requests in a batch."""
ROOM = 1 << 20
"""Memory for requests and for replies beyond that of the largest one, bytes."""
MOST_EXTENTS = 4096
"""Largest number of extents in a reply to BLOCK_STATUS."""
MOST_STATUS_UNITS = 1 << 20
"""Largest number of mapping units whose state is told at once."""


class Session:
    """The requests of one client of ``served``. :meth:`run` returns when the client has gone.

    ``rest``: bytes that have followed the handshake. ``structured``, ``allocation``: what was
    negotiated.
    """

    def __init__(
        self, sock: socket.socket, served: Served, structured: bool, allocation: bool, rest: bytes
    ) -> None:
        self._socket, self._served = sock, served
        self._structured = structured
        self._connection: Connection = served.service.connect()
        largest = served.export.largest
        self._input = largest + words.HEADER_BYTES + ROOM
        limits = {
            "size": served.export.size,
            "block": served.export.block,
            "unit": served.unit,
            "transfer": served.transfer,
            "largest": largest,
            "structured": structured,
            "allocation": allocation,
            "out": self._input,
            "end": self._input + largest + words.DATA_CHUNK_BYTES + ROOM,
            "commands": served.depth,
        }
        self._limits = as_records(np.zeros(1, words.LIMITS))
        for name, value in limits.items():
            self._limits[name] = value
        self._memory = np.empty(limits["end"], np.uint8)
        self._view = self._memory.data
        self._requests = as_records(np.zeros(MOST_REQUESTS, words.REQUEST))
        most = served.depth + -(-largest // served.transfer)
        self._commands = as_records(np.zeros(most, COMMAND))
        self._found = np.zeros(6, np.int64)
        self._view[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)
        self._skip = 0

    def run(self) -> None:
        """Execute requests until the client has gone, or sends what is no request."""
        try:
            while self._turn():
                pass
        except OSError:
            return  # the client has gone; requests in flight take effect

    def _turn(self) -> bool:
        """Execute what has arrived, or wait for more. Return False at the end."""
        found = self._found
        words.parse(
            self._memory, self._begin, self._end, self._limits, self._requests, self._commands,
            found,
        )  # fmt: skip
        _, count, commands, out, skip, why = found.tolist()
        if count:
            self._execute(count, commands, out)
        self._begin = int(found[words.POSITION])
        if why == words.SLOW:
            self._execute_slow()
        elif why in (words.BAD, words.LEFT):
            return False
        elif why == words.MORE:
            self._skip += skip
            return self._receive()
        return True

    def _receive(self) -> bool:
        """Wait for bytes. Return False if there will be none."""
        while True:
            if self._begin == self._end:
                self._begin = self._end = 0
            elif self._input - self._end < ROOM:
                left = self._end - self._begin
                self._memory[:left] = self._memory[self._begin : self._end].copy()
                self._begin, self._end = 0, left
            count = self._socket.recv_into(self._view[self._end : self._input])
            if count == 0:
                return False
            skipped = min(count, self._skip)
            self._skip -= skipped
            if skipped < count:
                if skipped:
                    self._begin += skipped  # nothing was before them
                self._end += count
                return True

    # --- batches

    def _execute(self, count: int, commands: int, out: int) -> None:
        """Run the first ``commands`` commands, of ``count`` requests; reply to them."""
        given, requests = self._commands[:commands], self._requests[:count]
        errors = requests["error"].copy()
        if commands:
            done = self._run(given, self._memory)
            if done is None:
                errors[errors == 0] = NbdError.EIO
            elif done["status"].any():
                for tag, status in zip(done["tag"].tolist(), done["status"].tolist(), strict=True):
                    if status and not errors[tag]:
                        errors[tag] = error_of(status)
        self._served.count(requests, errors)
        first = int(self._limits["out"][0])
        if not errors.any():
            self._socket.sendall(self._view[first:out])
            return
        parts = []
        for request, error in zip(requests.tolist(), errors.tolist(), strict=True):
            cookie, _, _, place, size, kind, *_ = request
            if error:
                parts.append(words.error_reply(kind, cookie, error, self._structured))
            else:
                parts.append(bytes(self._view[place : place + size]))
        self._socket.sendall(b"".join(parts))

    def _run(self, commands: np.ndarray, memory: np.ndarray) -> np.ndarray | None:
        """Run commands. Return COMPLETION[n], or None if the drive takes none."""
        try:
            return self._connection.run(commands, memory)
        except (InputError, KernelError):
            return None

    # --- requests of several steps

    def _execute_slow(self) -> None:
        """Execute and answer the request at the beginning of what has arrived."""
        _, flags, kind, cookie, offset, length = words.HEADER.unpack_from(self._view, self._begin)
        self._begin += words.HEADER_BYTES
        if kind == words.NBD_BLOCK_STATUS:
            reply, error = self._block_status(cookie, offset, length, flags)
        else:
            if kind == words.NBD_TRIM:
                error = self._steps([(TRIM, offset, length, 0)])
            else:
                error = self._write_zeroes(offset, length, flags)
            if not error and flags & words.FLAG_FUA:
                error = self._steps([(FLUSH, 0, 0, 0)])
            reply = words.error_reply(kind, cookie, error, self._structured)
        self._served.count_one(kind, bool(error))
        self._socket.sendall(reply)

    def _steps(self, steps: list[tuple[int, int, int, int]]) -> int:
        """Run commands (operation, offset, size, FUA), writes of zeros among them. Return an error
        or 0."""
        for first in range(0, len(steps), self._served.depth):
            some = steps[first : first + self._served.depth]
            commands = np.zeros(len(some), COMMAND)
            commands["op"], commands["offset"], commands["size"], commands["fua"] = zip(
                *some, strict=True
            )
            commands["data"] = np.where(commands["op"] == WRITE, 0, -1)
            done = self._run(commands, self._served.zeros)
            if done is None:
                return NbdError.EIO
            wrong = done["status"][done["status"] != 0]
            if len(wrong):
                return error_of(int(wrong[0]))
        return 0

    def _write_zeroes(self, offset: int, length: int, flags: int) -> int:
        """Make a range read as zeros: trim whole mapping units and write the rest, or all of it
        with NO_HOLE. Return an error or 0."""
        unit, end = self._served.unit, offset + length
        first, last = -(-offset // unit) * unit, end // unit * unit
        if flags & words.FLAG_NO_HOLE or first >= last:
            if flags & words.FLAG_FAST_ZERO:
                return NbdError.ENOTSUP
            first = last = end
        steps = []
        transfer = self._served.transfer
        for begin, stop in ((offset, first), (last, end)):
            for at in range(begin, stop, transfer):
                steps.append((WRITE, at, min(transfer, stop - at), 0))
        if first < last:
            steps.append((TRIM, first, last - first, 0))
        return self._steps(steps)

    def _block_status(self, cookie: int, offset: int, length: int, flags: int) -> tuple[bytes, int]:
        """Return the reply to BLOCK_STATUS, and its error or 0."""
        unit = self._served.unit
        first = offset // unit
        count = min(-(-(offset + length) // unit) - first, MOST_STATUS_UNITS)
        length = min(length, (first + count) * unit - offset)
        try:
            mapped = self._served.mapped(first, count)
        except InputError:
            error = NbdError.EIO
            return words.error_reply(words.NBD_BLOCK_STATUS, cookie, error, True), error
        most = 1 if flags & words.FLAG_REQ_ONE else MOST_EXTENTS
        found = words.extents(mapped, unit, offset, length, most)
        context = words.CONTEXT.pack(ALLOCATION_ID)
        return words.chunk(cookie, words.CHUNK_BLOCK_STATUS, context + found), 0


def error_of(status: int) -> int:
    """Return the error of a reply for the status of a command."""
    return ERRORS.get(Status(status), NbdError.EIO)
