"""Commands that wait for their time on the wall clock: Abort of one, and Keep Alive meanwhile."""

import select
import time

import pytest

from ondie.emu.nvme.wire import Sqe
from tests.protocol.nvme_tcp_client import Queue
from tests.protocol.test_nvme_tcp import INVALID_FIELD, wait_for
from tests.protocol.vfio_client import Driver, VfioClient
from tests.serve.served import drive

WRITE_, READ_, ABORT, KEEP_ALIVE = 1, 2, 0x08, 0x18
BLOCK, BLOCKS = 512, 8
SLOW = {"clock": "real", "scale": 3e-5}
"""A write, some 120 us of the drive, takes about four seconds."""
BRIEF = {"clock": "real", "scale": 4e-4}
"""A write takes about 0.3 s."""
KEEP_ALIVE_MS = 2000
"""Timeout of the hosts: less than a write takes, and more than a busy machine pauses a process."""


def hosts(server, keep_alive: int = 0) -> tuple[Queue, Queue]:
    """Admin queue and an I/O queue of one host."""
    address = ("127.0.0.1", server.nvme_tcp.listener.address.port)
    name = server.nvme.capabilities.subsystem_name
    admin, io = Queue(address), Queue(address)
    status, cntlid = admin.connect(name, keep_alive=keep_alive)
    assert status == 0
    admin.enable()
    assert io.connect(name, 1, cntlid)[0] == 0
    return admin, io


def begin_write(io: Queue) -> int:
    """Send a write, and return its identifier."""
    words = (0).to_bytes(8, "little") + (BLOCKS - 1).to_bytes(4, "little")
    io.capsule(WRITE_, 1, words.ljust(24, b"\0"), b"x" * BLOCKS * BLOCK)
    return io.cid


def quiet(io: Queue) -> bool:
    """Whether nothing has arrived."""
    return not select.select([io.socket], [], [], 0)[0]


def test_over_tcp_an_abort_does_not_wait_and_does_not_abort(tmp_path):
    options = {"nvme_tcp": "127.0.0.1:0", **SLOW}
    with drive(tmp_path, "no cache", options) as (server, _):
        admin, io = hosts(server, keep_alive=KEEP_ALIVE_MS)
        cid = begin_write(io)
        began = time.monotonic()
        assert admin.run(ABORT, cdw10=1 | cid << 16) == (0, 1)  # it was not aborted
        assert admin.run(ABORT, cdw10=1 | 999 << 16) == (0, 1)  # nor one that does not exist
        assert admin.run(ABORT, cdw10=2 | cid << 16)[0] == INVALID_FIELD
        beats = 0
        while quiet(io):
            assert admin.run(KEEP_ALIVE) == (0, 0)
            beats += 1
            assert time.monotonic() < began + 100
            time.sleep(0.05)
        assert beats > 1 and time.monotonic() - began > KEEP_ALIVE_MS / 1000
        assert io.answer()[0] == 0 and server.nvme_tcp.expired == 0
        admin.close(), io.close()


def test_over_tcp_a_timeout_ends_the_host_and_not_its_command(tmp_path):
    options = {"nvme_tcp": "127.0.0.1:0", **SLOW}
    with drive(tmp_path, "no cache", options) as (server, _):
        admin, io = hosts(server, keep_alive=KEEP_ALIVE_MS)
        begin_write(io)
        wait_for(lambda: server.nvme_tcp.expired == 1)
        wait_for(lambda: not server.nvme_tcp.handshakes._sessions)  # the command has ended too
        for queue in (admin, io):
            with pytest.raises(ConnectionError):
                queue.answer()
            queue.close()
        admin, io = hosts(server)
        assert io.read(0, BLOCKS, BLOCK) == b"x" * BLOCKS * BLOCK
        admin.close(), io.close()


def test_over_vfio_user_an_abort_is_answered_after_the_batch(tmp_path):
    path = str(tmp_path / "v")
    with drive(tmp_path, "no cache", {"vfio_user": path, **BRIEF}), VfioClient(path) as client:
        client.map()
        driver = Driver(client)
        driver.enable()
        queue, page = driver.create(1), driver.take(4096)
        driver.view(page, 4096)[:] = b"y" * 4096
        cid = driver.push(queue, Sqe(WRITE_, nsid=1, prp1=page, cdw12=BLOCKS - 1))
        driver.ring(queue)
        done = driver.command(ABORT, cdw10=1 | cid << 16)
        assert (done.status, done.dw0) == (0, 1)
        (written,) = driver.wait(queue, 1)
        assert (written.cid, written.status) == (cid, 0)
        assert driver.command(ABORT, cdw10=7 | cid << 16).status & 0x7FF == INVALID_FIELD & 0x7FF
        driver.view(page, 4096)[:] = bytes(4096)
        (read,) = driver.run(queue, Sqe(READ_, nsid=1, prp1=page, cdw12=BLOCKS - 1))
        assert read.status == 0 and bytes(driver.view(page, 4096)) == b"y" * 4096
