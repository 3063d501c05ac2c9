"""A native vfio-user client with the driver's side of NVMe over PCIe, for tests and benchmarks.

Guest memory is one memfd. The driver does what Linux does: AQA, ASQ, ACQ, CC.EN, CSTS.RDY,
Identify, Set Features (queues), create queues with one MSI-X vector each. Source: vfio-user
Protocol Specification; NVM Express Base Specification 2.0, section 3.5.1.
"""

import contextlib
import json
import mmap
import os
import select
import socket
import struct
import threading
import time
from typing import Any

from ondie.emu.nvme.wire import Cqe, Sqe

HEADER = struct.Struct("<HHIII")
VERSION, DMA_MAP, DMA_UNMAP, INFO, REGION_INFO, IO_FDS, IRQ_INFO, SET_IRQS, READ, WRITE = range(
    1, 11
)
RESET, WRITE_MULTI = 13, 15
BAR0, CONFIG = 0, 7
MSIX, REQ = 2, 4
PAGE = 4096
AWAIT_S = 20.0
MOST_FDS, MOST_BYTES = 16, 64 << 20
"""QEMU 11.1 ends the connection of a server that offers more descriptors or bytes of a message."""


class VfioError(OSError):
    """The server has answered with an error."""


class VfioClient:
    """A connection to the server at ``path``, with ``size`` bytes of memory at address ``base``."""

    def __init__(self, path: Any, size: int = 4 << 20, base: int = 1 << 32, agree: bool = True):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(AWAIT_S)
        self.socket.connect(str(path))
        self.number = 0
        self.size, self.base = size, base
        self.file = os.memfd_create("guest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, size)
        self.memory = mmap.mmap(self.file, size)
        self.events: list[int] = []
        if agree:
            self.version()

    def close(self) -> None:
        self.socket.close()
        with contextlib.suppress(BufferError):
            self.memory.close()
        for fd in (self.file, *self.events):
            os.close(fd)

    def __enter__(self) -> "VfioClient":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- messages

    def send(
        self, command: int, payload: bytes = b"", fds: tuple[int, ...] = (), flags: int = 0
    ) -> int:
        self.number = (self.number + 1) & 0xFFFF
        head = HEADER.pack(self.number, command, HEADER.size + len(payload), flags, 0)
        if fds:
            socket.send_fds(self.socket, [head + payload], list(fds))
        else:
            self.socket.sendall(head + payload)
        return self.number

    def receive(self) -> tuple[int, int, bytes]:
        """(message identifier, error number, payload) of the next reply."""
        number, _, size, flags, error = HEADER.unpack(self._take(HEADER.size))
        assert flags & 0xF == 1
        payload = self._take(size - HEADER.size)
        return number, error if flags & 32 else 0, payload

    def _take(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            data = self.socket.recv(size - len(found))
            if not data:
                raise ConnectionError("the server has closed the connection")
            found += data
        return bytes(found)

    def call(self, command: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> bytes:
        number = self.send(command, payload, fds)
        answered, error, found = self.receive()
        assert answered == number
        if error:
            raise VfioError(error, os.strerror(error))
        return found

    def version(self, major: int = 0, minor: int = 1, text: bytes | None = None) -> dict[str, Any]:
        if text is None:
            text = json.dumps({"capabilities": {"max_msg_fds": 8}}).encode() + b"\0"
        found = self.call(VERSION, struct.pack("<HH", major, minor) + text)
        assert struct.unpack("<HH", found[:4]) == (0, min(minor, 1))
        offered = dict(json.loads(found[4:-1])["capabilities"])
        assert offered["max_msg_fds"] <= MOST_FDS and offered["max_data_xfer_size"] <= MOST_BYTES
        return offered

    def map(self, address: int | None = None, size: int | None = None, offset: int = 0,
            flags: int = 3, file: int | None = None) -> None:  # fmt: skip
        address = self.base if address is None else address
        size = self.size if size is None else size
        payload = struct.pack("<IIQQQ", 32, flags, offset, address, size)
        fds = (self.file if file is None else file,) if file != -1 else ()
        self.call(DMA_MAP, payload, fds)

    def unmap(self, address: int | None = None, size: int | None = None, flags: int = 0) -> None:
        address = self.base if address is None else address
        size = self.size if size is None else size
        payload = struct.pack("<IIQQ", 24, flags, address, size)
        assert self.call(DMA_UNMAP, payload) == payload

    def read(self, region: int, offset: int, size: int = 4) -> int:
        payload = struct.pack("<QII", offset, region, size)
        found = self.call(READ, payload)
        assert found[:16] == payload and len(found) == 16 + size
        return int.from_bytes(found[16:], "little")

    def write(self, region: int, offset: int, value: int, size: int = 4) -> None:
        head = struct.pack("<QII", offset, region, size)
        assert self.call(WRITE, head + value.to_bytes(size, "little")) == head

    def post(self, region: int, offset: int, value: int, size: int = 4) -> None:
        """Write without a reply."""
        head = struct.pack("<QII", offset, region, size)
        self.send(WRITE, head + value.to_bytes(size, "little"), flags=16)

    def irqs(self, index: int, start: int, count: int, flags: int = 4 | 32,
             fds: tuple[int, ...] = (), data: bytes = b"") -> None:  # fmt: skip
        head = struct.pack("<IIIII", 20 + len(data), flags, index, start, count)
        self.call(SET_IRQS, head + data, fds)

    def event(self) -> int:
        self.events.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        return self.events[-1]


class Queue:
    """A queue pair in guest memory."""

    def __init__(self, number: int, submission: int, completion: int, entries: int, event: int):
        self.number, self.entries, self.event = number, entries, event
        self.submission, self.completion = submission, completion
        """Addresses."""
        self.tail = self.head = self.heard = 0
        """Tail and head that the driver writes; head of the submission queue by completions."""
        self.phase = 1
        self.cid = 0


class Driver:
    """The driver's side of one controller behind ``client``, whose memory it lays out: the admin
    queues, then queue pairs, then pages for data."""

    def __init__(self, client: VfioClient, entries: int = 32, vectors: int = 5) -> None:
        self.client, self.entries = client, entries
        self.base = client.base
        self.next = 0
        self.shadow = self.events = 0
        """Addresses of the doorbells in memory and of their event indexes; 0: there are none."""
        self.fence = threading.Lock()
        self.rung = 0
        """Number of doorbells written to registers."""
        self.vectors = [client.event() for _ in range(vectors)]
        self.admin = Queue(0, self.take(PAGE), self.take(PAGE), entries, self.vectors[0])
        self.queues = [self.admin]

    def take(self, size: int) -> int:
        """Address of ``size`` bytes of memory, page aligned."""
        at, self.next = self.next, self.next + -(-size // PAGE) * PAGE
        assert self.next <= self.client.size
        return self.base + at

    def view(self, address: int, size: int) -> memoryview:
        at = address - self.base
        return memoryview(self.client.memory)[at : at + size]

    # --- registers

    def enable(self, cc: int = 0x0046_0001) -> None:
        """As Linux: map memory, give interrupts, set the admin queues, enable, wait."""
        client = self.client
        client.write(CONFIG, 4, 0x6, 2)
        client.irqs(MSIX, 0, len(self.vectors), fds=tuple(self.vectors))
        self.start(cc)
        assert self.wait_status(1, 1)

    def start(self, cc: int = 0x0046_0001) -> None:
        client, last = self.client, self.admin.entries - 1
        client.write(BAR0, 0x24, last | last << 16)
        client.write(BAR0, 0x28, self.admin.submission, 8)
        client.write(BAR0, 0x30, self.admin.completion, 8)
        self.view(self.admin.completion, PAGE)[:] = bytes(PAGE)
        self.admin.tail = self.admin.head = self.admin.heard = 0
        self.admin.phase = 1
        self.queues = [self.admin]
        self.shadow = self.events = 0
        client.write(BAR0, 0x14, cc)

    def disable(self) -> None:
        self.client.write(BAR0, 0x14, 0x0046_0000)
        assert self.wait_status(1, 0)

    def wait_status(self, mask: int, value: int) -> bool:
        deadline = time.monotonic() + AWAIT_S
        while time.monotonic() < deadline:
            if self.client.read(BAR0, 0x1C) & mask == value:
                return True
        return False

    # --- commands

    def push(self, queue: Queue, sqe: Sqe) -> int:
        """Write an entry; return its identifier. The doorbell is not rung."""
        cid = queue.cid = (queue.cid + 1) & 0x7FFF
        at = queue.submission + queue.tail * 64
        self.view(at, 64)[:] = sqe._replace(cid=cid).pack()
        queue.tail = (queue.tail + 1) % queue.entries
        return cid

    def ring(self, queue: Queue) -> None:
        self.write_doorbell(2 * queue.number, queue.tail)

    def write_doorbell(self, number: int, value: int) -> None:
        """Write a doorbell, in memory first if there are such; the register if its event says so,
        as the specification's annex B.5 has it."""
        if self.shadow and number > 1:
            place = self.view(self.shadow + 4 * number, 4).cast("I")
            old, place[0] = place[0], value
            with self.fence:  # the value before the event
                pass
            event = self.view(self.events + 4 * number, 4).cast("I")[0]
            if (value - event - 1) & 0xFFFF >= (value - old) & 0xFFFF:
                return
        self.rung += 1
        self.client.post(BAR0, 0x1000 + 4 * number, value)

    def use_shadow(self) -> None:
        """Keep the doorbells of I/O queues in memory."""
        shadow, events = self.take(PAGE), self.take(PAGE)
        for place in (shadow, events):
            self.view(place, PAGE)[:] = bytes(PAGE)
        assert self.command(0x7C, prp1=shadow, prp2=events).status == 0
        self.shadow, self.events = shadow, events

    def reap(self, queue: Queue) -> list[Cqe]:
        """Take the completions that are there."""
        found = []
        while True:
            data = bytes(self.view(queue.completion + queue.head * 16, 16))
            if data[14] & 1 != queue.phase:
                break
            found.append(Cqe.unpack(data))
            queue.heard = found[-1].sqhd
            queue.head += 1
            if queue.head == queue.entries:
                queue.head, queue.phase = 0, queue.phase ^ 1
        if found:
            self.write_doorbell(2 * queue.number + 1, queue.head)
        return found

    def wait(self, queue: Queue, count: int, timeout: float = AWAIT_S) -> list[Cqe]:
        """Wait for ``count`` completions by interrupts."""
        found: list[Cqe] = []
        deadline = time.monotonic() + timeout
        while len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([queue.event], [], [], left)[0]:
                found += self.reap(queue)
                raise TimeoutError(f"{len(found)} of {count} completions in {timeout:g} s")
            os.eventfd_read(queue.event)
            found += self.reap(queue)
        return found

    def run(self, queue: Queue, *entries: Sqe) -> list[Cqe]:
        """Run commands at the same time; return their completions by identifier."""
        cids = [self.push(queue, each) for each in entries]
        self.ring(queue)
        found = {each.cid: each for each in self.wait(queue, len(cids))}
        return [found[cid] for cid in cids]

    def command(self, opcode: int, **fields: int) -> Cqe:
        """Run an admin command."""
        return self.run(self.admin, Sqe(opcode, **fields))[0]

    def data(self, opcode: int, size: int = PAGE, **fields: int) -> bytes:
        """Run an admin command that returns data."""
        place = self.take(size)
        done = self.command(opcode, prp1=place, prp2=place + PAGE, **fields)
        assert done.status == 0, hex(done.status)
        return bytes(self.view(place, size))

    def create(self, number: int, entries: int | None = None) -> Queue:
        """Create a queue pair with its vector."""
        entries = entries or self.entries
        vector = number % len(self.vectors)
        queue = Queue(number, self.take(64 * entries), self.take(16 * entries), entries,
                      self.vectors[vector])  # fmt: skip
        self.view(queue.completion, 16 * entries)[:] = bytes(16 * entries)
        size = (entries - 1) << 16
        done = self.command(5, prp1=queue.completion, cdw10=number | size, cdw11=3 | vector << 16)
        assert done.status == 0, hex(done.status)
        done = self.command(1, prp1=queue.submission, cdw10=number | size, cdw11=1 | number << 16)
        assert done.status == 0, hex(done.status)
        self.queues.append(queue)
        return queue
