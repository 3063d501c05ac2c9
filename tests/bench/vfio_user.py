"""Speed of `ondie serve --vfio-user` as a native client sees it: python -m tests.bench.vfio_user

Starts a server with the clock `virtual`, and measures random reads and writes of one queue with
doorbells in registers and in memory. The client is one process, so it needs a processor beside the
server's two threads. Prints; asserts only that commands succeed. tests/bench/test_vfio_user.py runs
it for a moment.
"""

import contextlib
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ondie.emu.nvme.wire import Sqe
from tests.protocol.vfio_client import BAR0, HEADER, PAGE, WRITE, Driver, Queue, VfioClient

CASES = (
    ("read", 4096, 1), ("read", 4096, 16), ("write", 4096, 16), ("read", 131072, 16),
)  # fmt: skip
"""Operation, bytes, commands in flight."""
OPCODES = {"read": 2, "write": 1}
ENTRIES = 256
SPAN_BYTES = 16 << 20
SERVER = ("serve", "--device", "gen4-tlc", "--block", "4096")


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Path]:
    """A server of its own; yields its socket."""
    path = folder / "sock"
    command = [sys.executable, "-m", "ondie.emu.cli", *SERVER, "--vfio-user", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("vfio-user")
        yield path
    finally:
        process.terminate()
        process.wait(30)


class Load:
    """Random commands of ``size`` bytes, ``depth`` at a time."""

    def __init__(self, driver: Driver, op: str, size: int, depth: int) -> None:
        self.driver, self.queue = driver, driver.create(1, ENTRIES)
        self.depth, self.blocks = depth, size // PAGE
        self.entries = []
        for _ in range(depth):
            data = driver.take(size)
            pages = [data + at for at in range(PAGE, size, PAGE)]
            second = pages[0] if pages else 0
            if len(pages) > 1:
                second = driver.take(8 * len(pages))
                words = struct.pack(f"<{len(pages)}Q", *pages)
                driver.view(second, len(words))[:] = words
            sqe = Sqe(OPCODES[op], nsid=1, cdw12=self.blocks - 1, prp1=data, prp2=second)
            self.entries.append(sqe.pack())
        head = HEADER.pack(0, WRITE, 36, 16, 0)
        self.posts = {
            number: head + struct.pack("<QII", 0x1000 + 4 * number, BAR0, 4) for number in (2, 3)
        }
        self.messages = 0

    def fill(self) -> None:
        """Write all that is read."""
        last = self.blocks - 1
        for first in range(0, SPAN_BYTES // PAGE, self.blocks):
            sqe = Sqe.unpack(self.entries[0])
            sqe = sqe._replace(opcode=1, cdw10=first, cdw12=last)
            assert self.driver.run(self.queue, sqe)[0].status == 0

    def run(self, seconds: float) -> float:
        """Commands per second."""
        draw, span = random.Random(1).randrange, SPAN_BYTES // PAGE // self.blocks
        queue, free = self.queue, list(range(self.depth))
        done, begin = 0, time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            messages = self._submit(free, [draw(span) * self.blocks for _ in free])
            if messages:
                self.driver.client.socket.sendall(messages)
                self.messages += len(messages) // 36
            free = self._reap(queue)
            done += len(free)
        return done / (now - begin)

    def _submit(self, free: list[int], places: list[int]) -> bytes:
        queue, memory = self.queue, memoryview(self.driver.client.memory)
        base = queue.submission - self.driver.base
        for cid, place in zip(free, places, strict=True):
            at = base + 64 * queue.tail
            memory[at : at + 64] = self.entries[cid]
            struct.pack_into("<H", memory, at + 2, cid)
            struct.pack_into("<I", memory, at + 40, place)
            queue.tail = (queue.tail + 1) % ENTRIES
        return self._doorbell(3, queue.head) + self._doorbell(2, queue.tail)

    def _doorbell(self, number: int, value: int) -> bytes:
        """The message of a doorbell, if it needs one."""
        driver = self.driver
        if driver.shadow:
            place = driver.view(driver.shadow + 4 * number, 4).cast("I")
            old, place[0] = place[0], value
            with driver.fence:
                pass
            event = driver.view(driver.events + 4 * number, 4).cast("I")[0]
            if (value - event - 1) & 0xFFFF >= (value - old) & 0xFFFF:
                return b""
        return self.posts[number] + value.to_bytes(4, "little")

    def _reap(self, queue: Queue) -> list[int]:
        """Identifiers of the completions; waits for the first by interrupts."""
        memory, base = memoryview(self.driver.client.memory), queue.completion - self.driver.base
        found: list[int] = []
        while True:
            at = base + 16 * queue.head
            while memory[at + 14] & 1 == queue.phase:
                assert memory[at + 14] < 2 and memory[at + 15] == 0
                found.append(memory[at + 12])
                queue.head += 1
                if queue.head == ENTRIES:
                    queue.head, queue.phase = 0, queue.phase ^ 1
                at = base + 16 * queue.head
            if found:
                return found
            assert select.select([queue.event], [], [], 20)[0]
            os.eventfd_read(queue.event)


def measure(
    path: Path, op: str, size: int, depth: int, shadow: bool, seconds: float
) -> tuple[float, float]:
    """(commands per second, messages per command) of a client of its own."""
    with VfioClient(path, size=16 << 20) as client:
        client.map()
        driver = Driver(client)
        driver.enable()
        if shadow:
            driver.use_shadow()
        load = Load(driver, op, size, depth)
        load.fill()
        load.run(seconds / 4)
        load.messages = 0
        rate = load.run(seconds)
        return rate, load.messages / max(rate * seconds, 1)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as path:
        print("operation  bytes  in flight  doorbells    k IOPS   GB/s  messages per command")
        for op, size, depth in CASES:
            for shadow in (False, True):
                rate, messages = measure(path, op, size, depth, shadow, 3.0)
                where = "memory" if shadow else "registers"
                print(f"{op:9} {size:6} {depth:10}  {where:10} {rate / 1e3:8.1f} "
                      f"{rate * size / 1e9:6.2f} {messages:11.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
