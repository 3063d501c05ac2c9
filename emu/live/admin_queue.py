"""Driver side of an NVMe controller's admin queue, accessed through vfio-user. The queue carries
the vendor-specific commands of the IP tunnel between a host and a drive.

Owns the queue in shared memory, a data buffer for each command identifier, the doorbells and the
interrupt. Does not own the meaning of commands (nvme/tunnel/) or the server (serve/vfio_user.py).
Source: vfio-user Protocol Specification; NVM Express Base Specification 2.0, sections 3.5.1
(initialization) and 4.1.1 (PRP).

The host's end (host_end.py) uses only the methods of :class:`AdminQueue`. The other implementation
of this interface passes commands through the kernel's NVMe driver (passthru_queue.py).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Protocol

from ondie.emu.controller.opcodes import Tunnel
from ondie.emu.nvme.tunnel.framing import READ_HEADER
from ondie.emu.nvme.wire import CQE_BYTES, SQE_BYTES, Command, Completion
from ondie.emu.serve import vfio_wire as wire
from ondie.emu.serve.vfio_wire import Irq, Message, Region
from ondie.emu.units import InputError

PAGE = 4096
ENTRIES = 64
"""Number of entries of the submission queue and of the completion queue. At most ENTRIES - 1
commands can be in flight."""
CIDS = ENTRIES - 1
STATUS_CID = CIDS - 1
"""Command identifier of the command that reads the status (counters) of the IP tunnel; no other
command may use it. All other commands of the tunnel have lower identifiers."""
ENTRY_OF_LIST = 8
BASE = 1 << 32
TIMEOUT_S = 10.0
AQA, ASQ, ACQ, CC, CSTS, DOORBELL = 0x24, 0x28, 0x30, 0x14, 0x1C, 0x1000
ENABLE = 0x0046_0001
BUS_MASTER = 0x6
POINTERS = struct.Struct("<QQ")
CDW12 = slice(48, 52)
Buffer = memoryview | mmap.mmap


class AdminQueue(Protocol):
    """Interface of an NVMe controller's admin queue, as far as the host's end of an IP tunnel uses
    it."""

    def fileno(self) -> int:
        """Return a descriptor that is readable if completions may have arrived."""

    def submit(self, commands: list[Command]) -> None:
        """Submit commands. The implementation supplies their data pointers. Raises OSError if the
        connection to the controller is lost, or if the kernel's NVMe driver has refused a
        command."""

    def completions(self) -> list[Completion]:
        """Return the completions that have arrived since the last call. The data of each completion
        is in the format of the tunnel's protocol. Raises OSError under the same conditions as
        :meth:`submit`."""


def data_bytes(command: Command) -> int:
    """Return the number of data bytes that a tunnel command transfers, in either direction."""
    if command.sqe[0] == Tunnel.CONTROL:
        return 0
    return len(command.data) or int.from_bytes(command.sqe[CDW12], "little")


def received_bytes(cid: int, buffer: Buffer, size: int) -> int:
    """Return the number of bytes in ``buffer`` that the command ``cid`` has transferred to the
    host, at most ``size``. For a receive command, this is the size of the header and of the block
    of packets that follows the header. For the status command, it is ``size``."""
    if cid == STATUS_CID:
        return size
    return min(size, READ_HEADER + int.from_bytes(buffer[:READ_HEADER], "little"))


class VfioAdminQueue:
    """Admin queue of the controller at the other end of the connected Unix socket ``sock``. The
    constructor enables the controller; the queue then accepts commands with identifiers below CIDS.
    ``payload``: maximum number of data bytes of a command.

    Raises InputError if ``payload`` is too large, if the shared memory cannot be set up, if the
    server disconnects, reports an error or sends an invalid reply, or if the controller is not
    ready within TIMEOUT_S.
    """

    def __init__(self, sock: socket.socket, payload: int) -> None:
        pages = -(-payload // PAGE)
        if pages > PAGE // ENTRY_OF_LIST + 1:
            most = PAGE * (PAGE // ENTRY_OF_LIST + 1)
            raise InputError(f"--payload {payload}: must be at most {most} bytes")
        self._span = (pages + 1) * PAGE  # a buffer, and its list of pages
        size = 2 * PAGE + CIDS * self._span
        self._socket = sock
        sock.settimeout(TIMEOUT_S)
        self._number = 0
        file = os.memfd_create("ondie tunnel", os.MFD_CLOEXEC)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            os.ftruncate(file, size)
            self._map = mmap.mmap(file, size)
            self._memory = memoryview(self._map)
            self._call(Message.VERSION, wire.VERSION.pack(wire.MAJOR, wire.MINOR))
            mapped = wire.MAP.pack(wire.MAP.size, wire.MAP_READ | wire.MAP_WRITE, 0, BASE, size)
            self._call(Message.DMA_MAP, mapped, file)
            flags = wire.DATA_EVENTFD | wire.ACTION_TRIGGER
            given = wire.IRQ_SET.pack(wire.IRQ_SET.size, flags, Irq.MSIX, 0, 1)
            self._call(Message.SET_IRQS, given, self._event)
            self._write(Region.CONFIG, 4, BUS_MASTER, 2)
            self._write_lists(pages)
            self._enable()
        except (OSError, struct.error) as error:
            self.close()
            raise InputError(f"controller of the tunnel: cannot be enabled: {error}") from error
        except InputError:
            self.close()
            raise
        finally:
            os.close(file)
        sock.setblocking(False)

    def close(self) -> None:
        """Close the connection to the controller."""
        self._socket.close()
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    def fileno(self) -> int:
        """Return the event descriptor of the controller's interrupt."""
        return self._event

    def reset(self) -> None:
        """Reset the controller, which discards all of its outstanding commands, and enable it
        again. Raises InputError if the server disconnects, reports an error or sends an invalid
        reply, or if the controller is not ready within TIMEOUT_S."""
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._write(Region.BAR0, CC, 0)
            self._await(lambda: self._read(CSTS) & 1 == 0)
            self._enable()
        except OSError as error:
            raise InputError(f"controller of the tunnel: cannot be reset: {error}") from error
        self._socket.setblocking(False)

    # --- messages

    def _call(self, command: Message, payload: bytes, *fds: int) -> bytes:
        self._number = (self._number + 1) & 0xFFFF
        size = wire.HEADER_BYTES + len(payload)
        head = wire.HEADER.pack(self._number, command, size, wire.COMMAND_TYPE, 0)
        socket.send_fds(self._socket, [head + payload], fds)
        number, _, size, flags, error = wire.HEADER.unpack(self._take(wire.HEADER_BYTES))
        if number != self._number or flags & wire.TYPE_MASK != wire.REPLY:
            raise InputError(
                f"the reply to vfio-user message {command.name} is invalid: number {number}, flags "
                f"{flags:#x}; must have number {self._number} and the type of a reply"
            )
        found = self._take(size - wire.HEADER_BYTES)
        if flags & wire.ERROR:
            raise InputError(
                f"the server refused the vfio-user message {command.name}: {os.strerror(error)}"
            )
        return found

    def _take(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise ConnectionError("the drive has disconnected")
            found += part
        return found

    def _write(self, region: Region, offset: int, value: int, size: int = 4) -> None:
        access = wire.ACCESS.pack(offset, region, size)
        self._call(Message.REGION_WRITE, access + value.to_bytes(size, "little"))

    def _read(self, offset: int) -> int:
        found = self._call(Message.REGION_READ, wire.ACCESS.pack(offset, Region.BAR0, 4))
        return int.from_bytes(found[wire.ACCESS.size :], "little")

    def _ring(self, number: int, value: int) -> None:
        """Write ``value`` to doorbell ``number`` without waiting for a reply."""
        self._socket.send(
            wire.POST.pack(
                0, Message.REGION_WRITE, wire.POST_BYTES, wire.NO_REPLY | wire.COMMAND_TYPE, 0,
                DOORBELL + 4 * number, Region.BAR0, 4, value,
            )
        )  # fmt: skip

    # --- the controller

    def _write_lists(self, pages: int) -> None:
        """Write the PRP list of each command identifier's buffer, and store the addresses of the
        buffer's pages and of the list."""
        self._buffers, self._pointers = [], []
        for cid in range(CIDS):
            at = 2 * PAGE + cid * self._span
            first = BASE + at
            rest = [first + PAGE * number for number in range(1, pages)]
            where = at + pages * PAGE
            self._memory[where : where + ENTRY_OF_LIST * len(rest)] = struct.pack(
                f"<{len(rest)}Q", *rest
            )
            self._buffers.append(at)
            self._pointers.append((first, rest, BASE + where))

    def _enable(self) -> None:
        """Initialize the admin submission and completion queues, and enable the controller. Raises
        OSError if the connection is lost, and InputError if the controller is not ready within
        TIMEOUT_S or the server sends an error or an invalid reply."""
        self._memory[: 2 * PAGE] = bytes(2 * PAGE)
        self._tail = self._head = 0
        self._phase = 1
        self._sizes: dict[int, int] = {}
        self._write(Region.BAR0, AQA, (ENTRIES - 1) * 0x1_0001)
        self._write(Region.BAR0, ASQ, BASE, 8)
        self._write(Region.BAR0, ACQ, BASE + PAGE, 8)
        self._write(Region.BAR0, CC, ENABLE)
        self._await(lambda: self._read(CSTS) & 1 == 1)

    def _await(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not ready():
            if time.monotonic() > end:
                raise InputError(
                    f"controller of the tunnel: CSTS.RDY did not change within {TIMEOUT_S:g} s of "
                    "a write to CC.EN"
                )
            time.sleep(0.001)

    # --- commands

    def submit(self, commands: list[Command]) -> None:
        """Submit commands (see :class:`AdminQueue`)."""
        memory = self._memory
        for entry, data in commands:
            cid = entry[2] | entry[3] << 8
            size = data_bytes(Command(entry, data))
            first, rest, where = self._pointers[cid]
            count = -(-size // PAGE)
            second = 0 if count < 2 else rest[0] if count == 2 else where
            if data:
                at = self._buffers[cid]
                memory[at : at + size] = data
            at = self._tail * SQE_BYTES
            pointers = POINTERS.pack(first if size else 0, second)
            memory[at : at + SQE_BYTES] = entry[:24] + pointers + entry[40:]
            self._sizes[cid] = 0 if data else size
            self._tail = (self._tail + 1) % ENTRIES
        if commands:
            self._ring(0, self._tail)

    def completions(self) -> list[Completion]:
        """Return the completions that have arrived since the last call (see
        :class:`AdminQueue`)."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._event, 8)
        memory, found = self._memory, []
        while True:
            at = PAGE + self._head * CQE_BYTES
            cqe = bytes(memory[at : at + CQE_BYTES])
            if cqe[14] & 1 != self._phase:
                break
            found.append(Completion(cqe, self._data_of(cqe)))
            self._head = (self._head + 1) % ENTRIES
            self._phase ^= self._head == 0
        if found:
            self._ring(1, self._head)
        return found

    def _data_of(self, cqe: bytes) -> bytes:
        """Return the data that a completed command has transferred to the host. The result is empty
        if the command failed or transferred data to the controller."""
        cid = cqe[12] | cqe[13] << 8
        size, at = self._sizes.pop(cid, 0), self._buffers[cid]
        if not size or cqe[14] & ~1 or cqe[15]:
            return b""
        size = received_bytes(cid, self._memory[at : at + size], size)
        return bytes(self._memory[at : at + size])
