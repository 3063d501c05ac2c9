"""A batch of commands over NVMe/TCP that is run in parts, because its reads ask for over 16 MiB: an
identifier that is used twice in it is refused in all of them. Source: NVM Express Base
Specification 2.0, field Command Identifier."""

import struct
import threading

import pytest

from ondie.emu.serve import nvme_tcp_session
from ondie.emu.serve.nvme_io import IoRunner
from tests.protocol.compute_host import ALLOCATE, EXECUTE, NSID
from tests.protocol.nvme_tcp_client import TRANSPORT, Queue, host_pdu, sgl
from tests.protocol.test_computation import CONFLICT, TcpTarget

FLUSH, READ = 0, 2
BLOCK, MOST = 4096, 1 << 17
"""Logical block and largest transfer of the drive, bytes."""


@pytest.fixture(scope="module")
def target():
    found = TcpTarget()
    yield found
    found.close()


class Batch:
    """Capsules that ``io`` sends at once, so that they are one batch."""

    def __init__(self, io):
        self._io, self._capsules = io, []
        io.send = lambda kind, fields, data=b"", flags=0: self._capsules.append(
            host_pdu(kind, fields, data, io.framing)
        )

    def read(self, cid, size=MOST):
        self._io.cid = cid - 1
        words = struct.pack("<QI", 0, size // BLOCK - 1)
        self._io.capsule(READ, 1, words, descriptor=sgl(TRANSPORT, size))

    def add(self, cid, opcode, nsid, words=b""):
        self._io.cid = cid - 1
        self._io.capsule(opcode, nsid, words)

    def send(self):
        del self._io.send
        sent = b"".join(self._capsules)
        assert len(sent) < 1 << 15  # one segment of loopback
        self._io.socket.sendall(sent)


def connected(target, entries=64):
    """I/O queue of a new host."""
    name = target.nvme.capabilities.subsystem_name
    target.queues += [Queue(target.address), Queue(target.address)]
    admin, io = target.queues[-2:]
    status, cntlid = admin.connect(name)
    assert status == 0
    admin.enable()
    assert io.connect(name, 1, cntlid, entries) == (0, cntlid)
    return io


def test_an_identifier_in_two_parts_of_a_batch(target):
    """The second command ends with Command ID Conflict; then the identifier is free."""
    count = nvme_tcp_session.MOST_ASKED // MOST + 1
    io = connected(target, 256)
    batch = Batch(io)
    for cid in range(1, count + 1):
        batch.read(cid)
    batch.read(1)
    batch.add(2, FLUSH, 1)
    batch.add(count + 1, FLUSH, 1)
    batch.send()
    for cid in range(1, count + 1):
        status, _, data = io.answer(cid=cid)
        assert status == 0 and len(data) == MOST
    assert [io.answer(cid=cid)[0] for cid in (1, 2, count + 1)] == [CONFLICT, CONFLICT, 0]
    for cid in (1, 2):
        io.cid = cid - 1
        assert io.run(FLUSH, nsid=1)[0] == 0


@pytest.mark.parametrize("runs", [True, False])
def test_an_identifier_of_a_computation_command(target, monkeypatch, runs):
    """It is in use until that command has completed: after the last part, or before the second one.
    Then it is free."""
    monkeypatch.setattr(nvme_tcp_session, "MOST_ASKED", BLOCK)
    host = target.host()
    io = target.queues[-1]
    handle = host.ok(ALLOCATE, cdw10=1 << 20)
    rsid = host.set((handle, 0, 1 << 20))
    host.load(3 + runs, instructions=(100, 1))
    words = struct.pack("<2I", 3 + runs | rsid << 16, 0)
    held, run = threading.Event(), IoRunner.run

    def run_to_the_end(self, requests, later, seen):
        ended = threading.Event()
        found = run(self, requests, lambda *done: (later(*done), ended.set()), seen)
        assert None not in found or ended.wait(60)
        return found

    if runs:
        target.service.call(held.wait)  # nothing ends meanwhile
    else:
        monkeypatch.setattr(IoRunner, "run", run_to_the_end)
    try:
        batch = Batch(io)
        batch.add(500, EXECUTE, NSID, words)
        batch.read(500, 2 * BLOCK)
        batch.read(500, 2 * BLOCK)
        batch.send()
        statuses = [io.answer(cid=500)[0] for _ in range(2)]
        if runs:
            io.cid = 499
            io.capsule(FLUSH, 1)
            statuses.append(io.answer(cid=500)[0])
    finally:
        held.set()
    statuses.append(io.answer(cid=500)[0])
    assert statuses == ([CONFLICT] * 3 + [0] if runs else [0] + [CONFLICT] * 2)
    io.cid = 499
    assert io.run(FLUSH, nsid=1)[0] == 0
