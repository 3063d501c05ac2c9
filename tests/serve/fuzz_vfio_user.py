"""Owns: what must hold of vfio-user for any bytes of a client: its messages with descriptors, and
the function behind them with its queues, registers, doorbells, pointers and regions of memory.
Does not own: the meaning of commands, or the drive (fuzz_drive.py). Source: own.
"""

import errno
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ondie.emu.nvme.wire import Cqe
from ondie.emu.serve import vfio_user
from ondie.emu.serve.pci_space import BAR0_BYTES, CONFIG_BYTES
from ondie.emu.serve.pcie_function import PcieFunction
from ondie.emu.serve.pcie_queues import CompletionQueue
from ondie.emu.serve.vfio_wire import HEADER, MAP_READ, MAP_WRITE, Message, Refused
from ondie.kernels.guest import Guest
from tests.serve.fuzz_drive import as_new, await_computation, check_status

PAGE = mmap.PAGESIZE
ERRORS = frozenset({errno.EINVAL, errno.EEXIST, errno.ENOSPC, errno.EOPNOTSUPP, errno.EACCES,
                    errno.ENODEV, errno.EPERM, errno.ENOMEM})  # fmt: skip
"""What a message may be refused with; the last ones are mmap(2)'s."""
MOST_TURNS = 64
"""Turns in which a function must have done what 6,000 bytes ask for."""
ENABLED = 4 << 20 | 6 << 16 | 1
ENTRIES = 16
COMPUTE = 0xFF
"""First byte of an input for the drive with states. In such an input, it is also the record that
waits for computation commands."""


class Recorded:
    """A connection whose client takes everything at once."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.sent = bytearray()
        self.fileno, self.recvmsg = sock.fileno, sock.recvmsg
        self.setblocking = sock.setblocking

    def send(self, data: memoryview) -> int:
        self.sent += data
        return len(data)


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def send_messages(sock: socket.socket, data: bytes) -> None:
    """Send the messages in ``data``. Those that map memory have a descriptor of a file, and those
    that set interrupts one for each; the low byte of the header's field Error, which a request does
    not use, asks for another number."""
    at = 0
    while at + HEADER.size <= len(data):
        _, command, size, _, asked = HEADER.unpack_from(data, at)
        if not HEADER.size <= size <= len(data) - at:
            break
        number = 0
        if command == Message.DMA_MAP:
            number = 1
        elif command == Message.SET_IRQS and size >= HEADER.size + 20:
            number = min(struct.unpack_from("<I", data, at + HEADER.size + 16)[0], 17)
        if asked & 0xFF:
            number = (asked & 0xFF) - 1 & 0x3F
        fds = [memory() if command == Message.DMA_MAP else os.eventfd(0) for _ in range(number)]
        try:
            socket.send_fds(sock, [data[at : at + size]], fds)
        finally:
            for fd in fds:
                os.close(fd)
        at += size
    sock.sendall(data[at:])


def memory(pages: int = 8) -> int:
    """A file of memory."""
    fd = os.memfd_create("guest", os.MFD_CLOEXEC)
    os.ftruncate(fd, pages * PAGE)
    return fd


def messages(data: bytes) -> None:
    """A session ends without an exception, each reply is one to a message, in order, with a known
    error, and no descriptor is left open."""
    open_before = files_open()
    numbers = []
    at = 0
    while at + HEADER.size <= len(data):
        number, command, size, *_ = HEADER.unpack_from(data, at)
        if size < HEADER.size:
            break
        numbers.append((number, command))
        at += size
    here, there = socket.socketpair()
    with as_new() as drive, here, there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        send_messages(there, data)
        there.shutdown(socket.SHUT_WR)
        found = Recorded(here)
        vfio_user.Session(found, drive).run()
    sent, at = bytes(found.sent), 0
    while at < len(sent):
        number, command, size, flags, error = HEADER.unpack_from(sent, at)
        while numbers and numbers[0] != (number, command):
            numbers.pop(0)
        assert numbers, "a reply to no message"
        numbers.pop(0)
        assert HEADER.size <= size <= len(sent) - at and flags in (1, 1 | 32)
        assert (error in ERRORS and size == HEADER.size) if flags & 32 else error == 0
        at += size
    assert files_open() == open_before


class Host:
    """A function with two regions of memory and one that it may only read, as a host has them, and
    what the host does."""

    REGIONS = (
        (0, 8 * PAGE, MAP_READ | MAP_WRITE, 2 * PAGE),
        (16 * PAGE, 2 * PAGE, MAP_READ, 12 * PAGE),
        (1 << 40, 8 * PAGE, MAP_READ | MAP_WRITE, 16 * PAGE),
    )
    """(address, size, flags, offset in the file)."""
    PAGES = 26
    """Of the file; those of no region must not change, nor those of the second one."""

    def __init__(self, function: PcieFunction) -> None:
        self.function = function
        self.file = memory(self.PAGES)
        self.whole = True
        """The file was not truncated."""
        self.kept = {page: bytes([page]) * PAGE for page in (0, 1, 10, 11, 12, 13, 14, 15, 24, 25)}
        for page, data in self.kept.items():
            os.pwrite(self.file, data, page * PAGE)
        for number in range(len(self.REGIONS)):
            self.map(number)
        self.tails = [0, 0]
        self.base = self.REGIONS[2][0]
        self._begin()

    def _begin(self) -> None:
        """Enable the controller, and create a queue pair of 16 entries, as a driver does."""
        write = self.function.write
        self.function.space.write(4, b"\x06\x00")
        last = ENTRIES - 1
        for offset, value, size in ((0x24, last | last << 16, 4), (0x28, self.base, 8),
                                    (0x30, self.base + PAGE, 8), (0x14, ENABLED, 4)):  # fmt: skip
            write(offset, value.to_bytes(size, "little"))
        for opcode, place, more in ((5, 3, 1), (1, 2, 1 | 1 << 16)):
            entry = struct.pack("<BBHI16xQ8x2I16x", opcode, 0, opcode, 0, self.base + place * PAGE,
                                1 | last << 16, more)  # fmt: skip
            self.push(0, entry)
            self.ring(0)
        assert self.function.controller.queues.submission.keys() == {1}

    def map(self, number: int) -> None:
        first, size, flags, offset = self.REGIONS[number]
        try:
            self.function.memory.map(first, size, flags, self.file, offset)
        except Refused as refused:
            assert refused.number in ERRORS

    def unmap(self, number: int) -> None:
        try:
            self.function.memory.unmap(*self.REGIONS[number][:2])
        except Refused as refused:
            assert refused.number == errno.EINVAL

    def push(self, queue: int, entry: bytes) -> None:
        """Write an entry of the admin queue or the I/O queue."""
        offset = (16 + 2 * queue) * PAGE + self.tails[queue] * 64
        os.pwrite(self.file, entry.ljust(64, b"\0"), offset)
        self.tails[queue] = (self.tails[queue] + 1) % ENTRIES

    def ring(self, queue: int) -> None:
        """Write a doorbell, let the function work, and take the completions."""
        self.function.ring(2 * queue, self.tails[queue])
        self.work()

    def work(self) -> None:
        for _ in range(MOST_TURNS):
            more = self.function.work()
            for number, found in list(self.function._completion.items()):
                self.function.ring(2 * number + 1, found.memory.tail)
            if not more and self.function.may_sleep():
                return
        raise AssertionError(f"the function works for more than {MOST_TURNS} turns")

    def do(self, kind: int, rest: bytes) -> int:
        """Do what a record says; return the number of bytes of ``rest`` that it has taken."""
        function = self.function
        if kind == COMPUTE and function.drive.computation is not None:
            await_computation()
            self.work()
            return 0
        word = int.from_bytes(rest[:2], "little")
        match kind % 12:
            case 0 | 1:
                self.push(kind % 2, rest[:64])
                self.ring(kind % 2)
                return 64
            case 2:
                self.push(1, rest[:64])  # rung later: several run at the same time
                return 64
            case 3:
                size = min(rest[2] if len(rest) > 2 else 0, 8 * PAGE - word % (8 * PAGE))
                os.pwrite(self.file, rest[3 : 3 + size], 2 * PAGE + word % (8 * PAGE))
                return 3 + size
            case 4 | 5:
                size = 1 << word % 4
                offset = word // 4 % (BAR0_BYTES - size + 1)
                if kind % 12 == 4:
                    function.write(offset, rest[2 : 2 + size].ljust(size, b"\0"))
                    self.work()
                    return 2 + size
                assert len(function.read(offset, size)) == size
                return 2
            case 6 | 7:
                (self.unmap if kind % 12 == 6 else self.map)(word % len(self.REGIONS))
                return 1
            case 8:
                size = 1 << word % 3
                offset = word // 4 % (CONFIG_BYTES - size + 1)
                if function.space.write(offset, rest[2 : 2 + size].ljust(size, b"\0")):
                    function.reset()
                assert len(function.space.read(offset, size)) == size
                return 2 + size
            case 9:
                function.ring(rest[0] if rest else 0, int.from_bytes(rest[1:3], "little"))
                self.work()
                return 3
            case 10:
                self.whole = False
                os.ftruncate(self.file, word % (self.PAGES + 1) * PAGE)
                return 2
        function.reset()
        self.tails = [0, 0]
        return 0

    def check(self) -> None:
        """What lies outside of the regions that a controller may write has not changed."""
        if self.whole:
            for page, data in self.kept.items():
                assert os.pread(self.file, PAGE, page * PAGE) == data, f"page {page} has changed"


@contextmanager
def checked_completions() -> Iterator[None]:
    """Check the status of every completion that is posted by its entry."""
    post = CompletionQueue.post

    def checked(self: CompletionQueue, guest: Guest, entries: list[Cqe]) -> bool:
        for entry in entries:
            check_status(entry.status)
        return post(self, guest, entries)

    CompletionQueue.post = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        CompletionQueue.post = post  # type: ignore[method-assign]


def function(data: bytes) -> None:
    """No exception, an end of all work, known statuses, and nothing outside of the memory that the
    controller may write is touched. The bytes are records of Host.do."""
    with as_new(data[:1] == bytes([COMPUTE])) as drive, checked_completions():
        found = PcieFunction(drive, lambda vector: bool(vector % 2), lambda: None)
        host = Host(found)
        try:
            at = 0
            while at < len(data):
                at += 1 + host.do(data[at], data[at + 1 :])
            await_computation()
            host.work()
            host.check()
            drive.close()  # a sanitize operation may still report its end
            host.work()
        finally:
            found.close()
            found.memory.clear()
            os.close(host.file)


TARGETS = {"messages": messages, "function": function}
