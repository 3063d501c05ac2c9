"""vfio-user client that measures the command rate of a server with a fixed number of NVMe commands
in flight.

Owns the handshake and the host side of one controller, as far as the measurements need them. Does
not own the loop that submits commands (csrc/host_queue.c) or the start of the servers
(validate/speed/servers.py).
Source: vfio-user Protocol Specification; NVM Express Base Specification 2.0, sections 3.1.3
(registers) and 3.5.1 (initialization), annex B.5 (doorbells in memory).

The client polls for completions, as user-space drivers do, and does not use interrupts.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import time
from collections.abc import Callable

import numpy as np

from ondie.emu.controller.opcodes import Admin, Nvm
from ondie.emu.nvme.wire import Cqe, Sqe
from ondie.emu.serve import vfio_wire as wire
from ondie.emu.serve.nbd_load import READ, SPAN, TIMEOUT_S, WRITE, receive
from ondie.emu.serve.vfio_wire import Message, Region
from ondie.emu.units import InputError
from ondie.kernels.errors import KernelError
from ondie.kernels.guest import HostQueue

PAGE = 4096
BASE = 1 << 32
"""Guest address of the first byte of the client's memory."""
MEMORY = 128 << 20
"""Size of the client's memory, bytes."""
ENTRIES, ADMIN_ENTRIES = 256, 16
"""Number of entries of each I/O queue (ENTRIES) and of each admin queue (ADMIN_ENTRIES)."""
OPCODES = {READ: int(Nvm.READ), WRITE: int(Nvm.WRITE)}
AQA, ASQ, ACQ, CC, CSTS = 0x24, 0x28, 0x30, 0x14, 0x1C
DOORBELLS = 0x1000
ENABLE = 0x0046_0001
"""Value of register CC: queue entries of 64 and 16 bytes, memory pages of 4 KiB, controller
enabled."""
BUS_MASTER = 0x6
"""Bits of the PCI command register: memory space enable, bus master enable."""


class VfioLoad:
    """Connection to the vfio-user server at the Unix socket ``path``. ``doorbells``: doorbells of
    the I/O queues, "memory" for shadow doorbells or "registers".

    Raises InputError if the connection fails, or if the peer is not a vfio-user server of an NVMe
    controller.
    """

    def __init__(self, path: str, doorbells: str = "memory") -> None:
        self._file = os.memfd_create("ondie load", os.MFD_CLOEXEC)
        os.ftruncate(self._file, MEMORY)
        self._memory = np.frombuffer(mmap.mmap(self._file, MEMORY), np.uint8)
        self._used, self._tail, self._phase, self._number = 0, 0, 1, 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(path)
            self._agree()
            self._enable()
            self.size, self.block = self._identify()
            self._queue = self._create(doorbells == "memory")
        except (OSError, struct.error) as error:
            self.close()
            raise InputError(f"{path}: cannot use the vfio-user server: {error}") from error
        except InputError as error:
            self.close()
            raise InputError(f"{path}: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        os.close(self._file)

    @property
    def messages(self) -> int:
        """Number of messages that were sent to write doorbell registers of the I/O queues."""
        return self._queue.messages

    # --- messages

    def _call(self, command: Message, payload: bytes, *fds: int) -> bytes:
        """Send a message with ``payload`` and file descriptors ``fds``; return the payload of the
        reply. Raises InputError if the reply is invalid or reports an error."""
        self._number = (self._number + 1) & 0xFFFF
        size = wire.HEADER_BYTES + len(payload)
        data = wire.HEADER.pack(self._number, command, size, wire.COMMAND_TYPE, 0) + payload
        socket.send_fds(self._socket, [data], fds)
        number, _, size, flags, error = wire.HEADER.unpack(receive(self._socket, wire.HEADER_BYTES))
        if number != self._number or flags & wire.TYPE_MASK != wire.REPLY:
            raise InputError(
                "the peer is not a vfio-user server; give the socket of a vfio-user server"
            )
        found = receive(self._socket, size - wire.HEADER_BYTES)
        if flags & wire.ERROR:
            raise InputError(
                f"the server refused the vfio-user message {command.name}: {os.strerror(error)}"
            )
        return found

    def _agree(self) -> None:
        """Negotiate the protocol version, and map the client's memory."""
        self._call(Message.VERSION, wire.VERSION.pack(wire.MAJOR, wire.MINOR))
        payload = wire.MAP.pack(wire.MAP.size, wire.MAP_READ | wire.MAP_WRITE, 0, BASE, MEMORY)
        self._call(Message.DMA_MAP, payload, self._file)

    def _write(self, region: Region, offset: int, value: int, size: int = 4) -> None:
        access = wire.ACCESS.pack(offset, region, size)
        self._call(Message.REGION_WRITE, access + value.to_bytes(size, "little"))

    def _status(self) -> int:
        """Return the value of register CSTS."""
        found = self._call(Message.REGION_READ, wire.ACCESS.pack(CSTS, Region.BAR0, 4))
        return int.from_bytes(found[wire.ACCESS.size :], "little")

    # --- controller

    def _take(self, size: int) -> tuple[int, np.ndarray]:
        """Allocate ``size`` bytes of the client's memory, aligned to a page. Return (guest address,
        memory as uint8[size]). Raises InputError if the memory is too small."""
        at = self._used
        self._used += -(-size // PAGE) * PAGE
        if self._used > MEMORY:
            raise InputError(
                f"the commands in flight need more than {MEMORY} bytes of memory; use fewer or "
                "smaller commands"
            )
        return BASE + at, self._memory[at : at + size]

    def _enable(self) -> None:
        """Create the admin queues and enable the controller."""
        submission, self._entries = self._take(64 * ADMIN_ENTRIES)
        completion, self._completions = self._take(16 * ADMIN_ENTRIES)
        self._write(Region.CONFIG, 4, BUS_MASTER, 2)
        self._write(Region.BAR0, AQA, (ADMIN_ENTRIES - 1) * 0x1_0001)
        self._write(Region.BAR0, ASQ, submission, 8)
        self._write(Region.BAR0, ACQ, completion, 8)
        self._write(Region.BAR0, CC, ENABLE)
        self._await(lambda: self._status() & 1 == 1, "the controller is not ready")

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not ready():
            if time.monotonic() > end:
                raise InputError(f"{what} after {TIMEOUT_S:g} s")

    def _command(self, opcode: Admin, **fields: int) -> None:
        """Run an admin command. ``fields``: fields of its submission queue entry. Raises InputError
        if the command fails, or if it does not complete within TIMEOUT_S."""
        at = self._tail
        entry = Sqe(opcode, cid=at, **fields).pack()
        self._entries[64 * at : 64 * at + 64] = np.frombuffer(entry, np.uint8)
        self._tail = (at + 1) % ADMIN_ENTRIES
        self._write(Region.BAR0, DOORBELLS, self._tail)
        found = self._completions[16 * at : 16 * at + 16]
        self._await(lambda: int(found[14]) & 1 == self._phase, f"{opcode.name} has not completed")
        status = Cqe.unpack(found.tobytes()).status
        if status:
            raise InputError(f"admin command {opcode.name} has failed with status 0x{status:x}")
        self._phase ^= self._tail == 0
        self._write(Region.BAR0, DOORBELLS + 4, self._tail)

    def _identify(self) -> tuple[int, int]:
        """Return (size of namespace 1, size of its logical blocks), bytes."""
        address, found = self._take(PAGE)
        self._command(Admin.IDENTIFY, nsid=1, prp1=address)
        blocks = int.from_bytes(found[:8].tobytes(), "little")
        form = 128 + 4 * (int(found[26]) & 15)
        block = 1 << int(found[form + 2])
        return blocks * block, block

    def _create(self, in_memory: bool) -> HostQueue:
        """Create the I/O queues. ``in_memory``: True to use shadow doorbells."""
        submission, entries = self._take(64 * ENTRIES)
        completion, completions = self._take(16 * ENTRIES)
        size = (ENTRIES - 1) << 16 | 1
        self._command(Admin.CREATE_CQ, prp1=completion, cdw10=size, cdw11=1)
        self._command(Admin.CREATE_SQ, prp1=submission, cdw10=size, cdw11=1 << 16 | 1)
        posts = [
            wire.POST.pack(
                0, Message.REGION_WRITE, wire.POST_BYTES, wire.NO_REPLY | wire.COMMAND_TYPE, 0,
                DOORBELLS + 4 * number, Region.BAR0, 4, 0,
            )
            for number in (2, 3)
        ]  # fmt: skip
        queue = HostQueue(entries, completions, self._socket.fileno(), (2, 3), (posts[0], posts[1]))
        if in_memory:
            bell, bells = self._take(PAGE)
            event, events = self._take(PAGE)
            self._command(Admin.DOORBELL_BUFFER_CONFIG, prp1=bell, prp2=event)
            queue.use_memory(bells, events)
        self._data = self._used
        return queue

    # --- load

    def _entries_of(self, kind: int, size: int, depth: int) -> np.ndarray:
        """Return ``depth`` submission queue entries, uint8[depth, 64], for commands of type
        ``kind`` with ``size`` bytes of data. Each command uses different memory for its data."""
        self._used = self._data
        found = np.zeros((depth, 64), np.uint8)
        for each in found:
            address, _ = self._take(size)
            second = address + PAGE if size > PAGE else 0
            pages = np.arange(address + PAGE, address + size, PAGE, dtype=np.uint64)
            if len(pages) > 1:
                second, memory = self._take(pages.nbytes)
                memory[:] = pages.view(np.uint8)
            sqe = Sqe(OPCODES[kind], nsid=1, prp1=address, prp2=second,
                      cdw12=size // self.block - 1)  # fmt: skip
            each[:] = np.frombuffer(sqe.pack(), np.uint8)
        return found

    def _run(
        self, kind: int, size: int, depth: int, places: np.ndarray, seconds: float
    ) -> tuple[int, float]:
        """Run commands of type ``kind`` with ``size`` bytes of data for ``seconds``, with ``depth``
        commands in flight. Return (number of completed commands, elapsed time in s). ``places``:
        offsets of the commands in namespace 1, in units of ``size``. Raises InputError if a command
        fails."""
        blocks = places.astype(np.uint64) * np.uint64(size // self.block)
        entries = self._entries_of(kind, size, depth)
        try:
            return self._queue.run(entries, blocks, seconds)
        except KernelError as error:
            raise InputError(str(error)) from error

    def rate(self, kind: int, size: int, depth: int, seconds: float) -> float:
        """Measure the rate of commands of ``kind`` and ``size`` bytes at random offsets in the
        first SPAN bytes, with ``depth`` commands in flight, for ``seconds``. Return the rate
        (commands per second). Raises InputError if a command fails."""
        span = min(self.size, SPAN) // size
        places = np.random.default_rng(0).integers(0, span, max(1 << 16, depth))
        done, ran = self._run(kind, size, depth, places, seconds)
        return done / ran

    def waits(self, size: int, count: int) -> np.ndarray:
        """Measure ``count`` reads of ``size`` bytes, one at a time, at random offsets in the first
        SPAN bytes. Return their latencies (s), float64[count]. The bytes must have been written
        (see :meth:`fill`)."""
        span = min(self.size, SPAN) // size
        places = np.random.default_rng(0).integers(0, span, count)
        return np.array([self._run(READ, size, 1, each, 0.0)[1] for each in places[:, None]])

    def fill(self) -> None:
        """Write the first SPAN bytes once with commands of 128 KiB. If the namespace is smaller,
        write all complete blocks of 128 KiB in it."""
        size, depth = 128 << 10, 16
        places = np.arange(min(self.size, SPAN) // size)
        for some in np.split(places, range(depth, len(places), depth)):
            self._run(WRITE, size, len(some), some, 0.0)
