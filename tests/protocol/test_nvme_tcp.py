"""NVMe/TCP target over loopback: a host of the tests connects, reads, writes, and breaks rules."""

import os
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ondie.emu.controller.discovery import DISCOVERY_NAME
from ondie.emu.drive import Drive
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_tcp import NvmeTcpServer
from ondie.emu.serve.nvme_tcp_wire import Framing
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from tests.protocol.nvme_tcp_client import (
    IN_CAPSULE,
    NAMED,
    TRANSPORT,
    Queue,
    Terminated,
    host_pdu,
    icreq,
    sgl,
)
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

BLOCK = 512
FRAMING = Framing()
DNR = 0x4000
INVALID_FIELD, SEQUENCE, TYPE_INVALID, LENGTH_INVALID, OFFSET_INVALID, TRANSIENT = (
    0x002 | DNR, 0x00C | DNR, 0x011 | DNR, 0x00F | DNR, 0x016 | DNR, 0x022,
)  # fmt: skip


class Target:
    """A small drive that is served over NVMe/TCP."""

    def __init__(self, hosts: list[str] | None = None) -> None:
        self.drive = Drive(config(**(SMALL | MODES["write back"])), payload=True,
                           block_bytes=BLOCK)  # fmt: skip
        self.service = Service(self.drive)
        self.nvme = NvmeDrive(ServedDrive(self.drive, self.service))
        listener = Listener(Address.parse(":0", "--nvme-tcp"), "--nvme-tcp")
        self.server = NvmeTcpServer(self.nvme, listener, hosts)
        self.name = self.nvme.capabilities.subsystem_name
        self.address = ("127.0.0.1", self.server.listener.address.port)
        self.queues: list[Queue] = []

    def forget(self) -> None:
        """Disconnect all hosts, and wait until the target has noticed."""
        for queue in self.queues:
            queue.close()
        self.queues.clear()
        wait_for(lambda: not self.server.subsystem.associations)

    def close(self) -> None:
        self.forget()
        self.server.close()
        self.nvme.close()
        self.service.close()
        self.drive.close()

    def queue(self, header: bool = False, data: bool = False) -> Queue:
        self.queues.append(Queue(self.address, header, data))
        return self.queues[-1]

    def host(self, queues: int = 1, header: bool = False, data: bool = False,
             attributes: int = 0, keep_alive: int = 0) -> list[Queue]:  # fmt: skip
        """Admin queue and I/O queues of a new association."""
        admin = self.queue(header, data)
        status, cntlid = admin.connect(self.name, keep_alive=keep_alive, attributes=attributes)
        assert status == 0 and cntlid >= 1
        admin.enable()
        admin.cntlid = cntlid
        out = [admin]
        for qid in range(1, queues + 1):
            found = self.queue(header, data)
            assert found.connect(self.name, qid, cntlid, attributes=attributes) == (0, cntlid)
            out.append(found)
        return out


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    found = Target()
    yield found
    found.close()


def text(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def wait_for(what, limit: float = 60.0) -> None:
    """Wait until ``what()`` is true."""
    deadline = time.monotonic() + limit
    while not what():
        assert time.monotonic() < deadline, "the condition has not come true"
        time.sleep(0.005)


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("digests", [False, True])
def test_a_host_reads_what_it_has_written(target, header, digests):
    admin, io = target.host(1, header, digests)
    status, data = admin.get(6, 4096, cdw10=1)
    assert status == 0 and data[768:1024].rstrip(b"\0").decode() == target.name
    assert struct.unpack_from("<H", data, 78) == (admin.cntlid,)
    assert data[76] == 2 and struct.unpack_from("<H", data, 320) == (1,)
    assert struct.unpack_from("<I", data, 536) == (1 | 1 << 20,)
    assert struct.unpack_from("<IIH", data, 1792) == (516, 1, 0)
    assert struct.unpack_from("<H", data, 256)[0] & 1 << 8 == 0  # no doorbell buffers
    status, data = admin.get(6, 4096, 1)
    assert status == 0 and struct.unpack_from("<Q", data) == (target.drive.capacity // BLOCK,)
    assert data[30] == 1
    for seed, (first, blocks) in enumerate(((0, 1), (3, 16), (40, 17), (100, 64))):
        wanted = text(seed, blocks * BLOCK)  # in the capsule up to 8 KiB, otherwise by R2T
        assert io.write(first, wanted, BLOCK) == 0
        assert io.read(first, blocks, BLOCK) == wanted
    assert io.run(0, nsid=1)[0] == 0
    ranges = struct.pack("<IIQ", 0, 16, 3)
    assert io.run(9, ranges, 1, cdw11=4)[0] == 0
    assert io.run(5, text(3, 64 * BLOCK), 1, cdw10=100, cdw12=63)[0] == 0
    assert io.run(5, text(4, 64 * BLOCK), 1, cdw10=100, cdw12=63)[0] == 0x285 | DNR
    assert io.get(2, BLOCK, 1, cdw10=1 << 31)[0] == 0x080 | DNR
    assert (io.sqid, io.head) == (1, io.cid % 64)
    status, log = admin.get(2, 512, 0xFFFFFFFF, cdw10=2 | 127 << 16)
    assert status == 0 and int.from_bytes(log[64:80], "little") >= 4


def test_several_hosts_and_queues(target):
    first, second = target.host(3), target.host(2)
    assert first[0].cntlid != second[0].cntlid
    writes = []
    for at, queue in enumerate((*first[1:], *second[1:])):
        data = text(at, 32 * BLOCK)
        for part in range(4):  # all of them are under way at the same time
            words = struct.pack("<QI", 128 * at + 32 * part, 31)
            writes.append((queue, queue.capsule(1, 1, words, descriptor=sgl(TRANSPORT, len(data))),
                           data))  # fmt: skip
    for queue in (*first[1:], *second[1:]):
        mine = {cid: data for each, cid, data in writes if each is queue}
        asked, done = 0, set()
        while len(done) < 4:
            kind, _, fields, _ = queue.pdu()
            if kind == 9:
                cid, tag, offset, size = struct.unpack_from("<HHII", fields)
                queue.push(cid, tag, mine[cid][offset : offset + size])
                asked += size
            else:
                words, _, _, cid, status = struct.unpack("<QHHHH", fields)
                assert status == 0
                done.add(cid)
        assert done == set(mine) and asked == 4 * 32 * BLOCK
    for at in range(5):
        assert second[1].read(128 * at + 96, 32, BLOCK) == text(at, 32 * BLOCK)


def test_success_without_a_response(target):
    admin, io = target.host(1, attributes=4)
    assert io.write(7, text(1, BLOCK), BLOCK) == 0
    assert io.head == 0xFFFF
    io.capsule(2, 1, struct.pack("<QI", 7, 0), descriptor=sgl(TRANSPORT, BLOCK))
    kind, flags, _, data = io.pdu()
    assert (kind, flags & 0xC) == (7, 0xC) and data == text(1, BLOCK)
    assert io.run(0, nsid=1)[0] == 0  # nothing came in between


def test_discovery(target):
    admin = target.queue()
    assert admin.connect(DISCOVERY_NAME, host="nqn.2014-08.org.other:host")[0] == 0
    admin.enable()
    status, data = admin.get(6, 4096, cdw10=1)
    assert status == 0 and data[111] == 2
    status, log = admin.get(2, 3072, cdw10=0x70 | 767 << 16)
    assert status == 0 and struct.unpack_from("<QQ", log) == (0, 2)
    entry = log[2048:]
    assert entry[256:512].rstrip(b"\0").decode() == target.name
    assert entry[32:64].decode().strip() == str(target.address[1])
    assert entry[512:768].decode().strip() == "127.0.0.1"
    assert admin.run(0x18) == (0, 0)
    assert admin.run(1, b"x" * 512)[0] == 0x001 | DNR


def test_refused_connections():
    found = Target(hosts=[NAMED])
    try:
        assert found.queue().connect(found.name, host=NAMED + "x") == (0x184 | DNR, 0)
        assert found.queue().connect(found.name + "x") == (0x182 | DNR, 1 << 16 | 256)
        assert found.queue().connect(found.name, 1, 1) == (0x182 | DNR, 1 << 16 | 16)
        assert found.queue().connect(found.name, entries=8) == (0x182 | DNR, 44)
        admin, io = found.host()
        assert found.queue().connect(found.name, 1, admin.cntlid) == (SEQUENCE, 0)
        assert found.queue().connect(found.name, 17, admin.cntlid) == (0x182 | DNR, 42)
        # no other command comes before Connect
        early = found.queue()
        early.capsule(6, words=b"\1", descriptor=sgl(TRANSPORT, 4096))
        assert early.answer()[0] == SEQUENCE
        with pytest.raises(ConnectionError):
            early.pdu()
        # Connect does not come twice, and its data must be whole
        assert admin.connect(found.name) == (SEQUENCE, 0)
        short = found.queue()
        short.capsule(0x7F, fctype=1, words=bytes(24), data=bytes(1000))
        assert short.answer()[0] == LENGTH_INVALID
        assert io.write(0, bytes(BLOCK), BLOCK) == 0
    finally:
        found.close()


def test_descriptors(target):
    admin, io = target.host()
    words = struct.pack("<QI", 0, 1)  # two blocks

    def status(descriptor: bytes, data: bytes = b"", opcode: int = 1, flags: int = 0x40) -> int:
        io.capsule(opcode, 1, words, data, descriptor, flags=flags)
        return io.answer(bytes(2 * BLOCK))[0]

    good = bytes(2 * BLOCK)
    assert status(sgl(IN_CAPSULE, len(good)), good) == 0
    assert status(sgl(IN_CAPSULE, len(good), 1), good) == OFFSET_INVALID
    assert status(sgl(IN_CAPSULE, len(good), 2**64 - 1), good) == OFFSET_INVALID
    assert status(sgl(IN_CAPSULE, len(good)), good[:-1]) == OFFSET_INVALID
    assert status(sgl(IN_CAPSULE, 2**32 - 1), good) == 0  # the command needs less
    assert status(sgl(IN_CAPSULE, len(good) - 1), good) == LENGTH_INVALID
    assert status(sgl(IN_CAPSULE, len(good)), b"") == OFFSET_INVALID
    assert status(sgl(TRANSPORT, len(good) - 1)) == LENGTH_INVALID
    assert status(sgl(TRANSPORT, 2**32 - 1)) == 0
    assert status(sgl(TRANSPORT, 0)) == LENGTH_INVALID
    for kind in (0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0xFF):
        assert status(sgl(kind, len(good)), good) in (TYPE_INVALID, 0x004), hex(kind)
    assert status(sgl(IN_CAPSULE, len(good)), good, opcode=2) == TYPE_INVALID
    for flags in (0x00, 0x80, 0xC0):
        assert status(sgl(TRANSPORT, len(good)), flags=flags) == INVALID_FIELD
    assert status(sgl(TRANSPORT, len(good)), opcode=0x7E) == 0x001 | DNR
    assert io.write(0, text(9, 2 * BLOCK), BLOCK) == 0 and io.read(0, 2, BLOCK) == text(9, 1024)
    # queues do not come by commands, nor does the host's identifier
    for opcode in (0, 1, 4, 5, 0x7C):
        assert admin.run(opcode)[0] == 0x001 | DNR
    assert admin.run(9, bytes(16), cdw10=0x81, cdw11=1)[0] == SEQUENCE
    assert admin.get(0x0A, 16, cdw10=0x81, cdw11=1) == (0, b"host" * 4)


def asked_for(io: Queue, size: int) -> tuple[int, int]:
    """Identifier and transfer tag of a write that has asked for ``size`` bytes."""
    cid = io.capsule(
        1, 1, struct.pack("<QI", 0, size // BLOCK - 1), descriptor=sgl(TRANSPORT, size)
    )
    kind, _, fields, _ = io.pdu()
    got, tag, offset, length = struct.unpack_from("<HHII", fields)
    assert (kind, got, offset, length) == (9, cid, 0, size)
    return cid, tag


SIZE = 32 * BLOCK


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tag": 7}, (1, 10)),
        ({"cid": 7}, (1, 8)),
        ({"offset": 512}, (4, 0)),
        ({"offset": 512, "data": 512, "size": 512}, (1, 12)),
        ({"offset": SIZE}, (4, 0)),
        ({"offset": 2**32 - 4}, (4, 0)),
        ({"size": 2**32 - 1}, (1, 16)),
        ({"size": 0}, (1, 16)),
        ({"flags": 0}, (1, 1)),
        ({"data": SIZE + 4, "size": SIZE + 4}, (4, 0)),
        ({"data": 512, "size": 512}, (1, 1)),
    ],
)
def test_wrong_data_ends_the_connection(target, change, why):
    admin, io = target.host()
    assert io.write(0, text(0, SIZE), BLOCK) == 0
    cid, tag = asked_for(io, SIZE)
    fields = struct.pack(
        "<HHII4x", cid ^ change.get("cid", 0), tag ^ change.get("tag", 0), change.get("offset", 0),
        change.get("size", SIZE),
    )  # fmt: skip
    io.send(6, fields, bytes(change.get("data", SIZE)), change.get("flags", 4))
    with pytest.raises(Terminated) as found:
        io.answer()
    assert found.value.args == why
    io.close()
    again = target.queue()
    wait_for(lambda: 1 not in target.server.subsystem.associations[-1].queues)
    assert again.connect(target.name, 1, admin.cntlid)[0] == 0  # the association lives on
    assert again.read(0, 32, BLOCK) == text(0, SIZE)


def test_rules_of_the_connection(target):
    entry = struct.pack("<BBHI16x16x24x", 0, 0x40, 1, 1)

    def end(data: bytes, header: bool = False) -> tuple[int, int]:
        admin, queue = target.host(1, header)
        queue.socket.sendall(data)
        with pytest.raises(Terminated) as found:
            queue.answer()
        with pytest.raises(ConnectionError):
            queue.pdu()
        admin.close()
        return found.value.args

    plain = host_pdu(4, entry, b"", FRAMING)
    assert end(icreq()) == (2, 0)
    assert end(b"\xff" + plain[1:]) == (1, 0)
    assert end(plain[:2] + b"\x47" + plain[3:]) == (1, 2)
    assert end(plain[:4] + b"\xff\xff\xff\xff" + plain[8:]) == (1, 4)
    assert end(plain, header=True) == (1, 4)
    assert end(plain[:4] + b"\x4c" + plain[5:] + bytes(4), header=True) == (1, 1)
    wrong = bytearray(host_pdu(4, entry, b"", FRAMING._replace(header_digest=True)))
    wrong[20] ^= 1
    assert end(bytes(wrong), header=True) == (3, 0)
    # more commands than the queue has entries
    writes = host_pdu(4, struct.pack("<BBHI16x", 1, 0x40, 1, 1) + sgl(TRANSPORT, 512)
                      + struct.pack("<QI12x", 0, 0), b"", FRAMING)  # fmt: skip
    many = b"".join(writes[:10] + struct.pack("<H", at) + writes[12:] for at in range(70))
    admin, queue = target.host()
    queue.socket.sendall(many)
    with pytest.raises(Terminated) as found:
        while True:
            queue.pdu()
    assert found.value.args == (2, 0)


def test_data_are_asked_for_in_turn(target, monkeypatch):
    """Few bytes are under way at a time, and a write does not overtake its identifier."""
    monkeypatch.setattr("ondie.emu.serve.nvme_tcp_session.MOST_ASKED", SIZE + 1)
    admin, io = target.host()
    words = struct.pack("<QI", 0, 31)
    first, second = (io.capsule(1, 1, words, descriptor=sgl(TRANSPORT, SIZE)) for _ in range(2))
    io.cid = second - 1
    assert io.capsule(2, 1, words, descriptor=sgl(TRANSPORT, SIZE)) == second
    asked = io.pdu()
    assert asked[0] == 9 and struct.unpack_from("<H", asked[2]) == (first,)
    assert io.answer(cid=second)[0] == 0x003 | DNR  # the second write waits under this identifier
    io.push(first, struct.unpack_from("<HH", asked[2])[1], text(1, SIZE))
    asked = io.pdu()
    assert asked[0] == 9 and struct.unpack_from("<H", asked[2]) == (second,)
    assert io.answer(cid=first)[0] == 0
    io.push(second, struct.unpack_from("<HH", asked[2])[1], text(2, SIZE))
    assert io.answer(cid=second)[0] == 0
    assert io.read(0, 32, BLOCK) == text(2, SIZE)


def test_termination_by_the_host(target):
    admin, io = target.host()
    io.send(2, struct.pack("<HI10x", 1, 4), b"header")
    with pytest.raises(ConnectionError):
        io.pdu()
    assert admin.run(0x18) == (0, 0)
    early = target.queue()
    early.send(2, struct.pack("<HI10x", 1, 4))
    with pytest.raises(ConnectionError):
        early.pdu()


def test_data_digests(target):
    admin, io = target.host(1, data=True)
    assert io.write(5, text(1, BLOCK), BLOCK) == 0
    for size in (BLOCK, SIZE):
        if size == BLOCK:
            io.cid += 1
            head = struct.pack("<BBHI16x", 1, 0x40, io.cid, 1)
            fields = head + sgl(IN_CAPSULE, size) + struct.pack("<QI12x", 5, 0)
            raw = bytearray(host_pdu(4, fields, text(2, size), io.framing))
        else:
            cid, tag = asked_for(io, size)
            fields = struct.pack("<HHII4x", cid, tag, 0, size)
            raw = bytearray(host_pdu(6, fields, text(2, size), io.framing, flags=4))
        raw[-40] ^= 1
        io.socket.sendall(bytes(raw))
        assert io.answer()[0] == TRANSIENT
    assert io.read(5, 1, BLOCK) == text(1, BLOCK)  # the connection lives, the data are the old ones


def test_a_host_that_goes_away_in_a_write(target):
    admin, io = target.host()
    assert io.write(0, text(1, SIZE), BLOCK) == 0
    cid, tag = asked_for(io, SIZE)
    io.send(6, struct.pack("<HHII4x", cid, tag, 0, 512), text(2, 512))
    raw = host_pdu(6, struct.pack("<HHII4x", cid, tag, 512, 8192), bytes(8192), io.framing)
    io.socket.sendall(raw[:4000])
    io.close()
    admin.close()
    wait_for(lambda: not any(each.cntlid == admin.cntlid
                             for each in target.server.subsystem.associations))  # fmt: skip
    admin, io = target.host()  # it comes back
    assert io.read(0, 32, BLOCK) == text(1, SIZE)
    # without its admin queue, the association and all its queues end
    admin.close()
    with pytest.raises(ConnectionError):
        io.pdu()


def test_disconnect_and_reset(target):
    admin, io, other = target.host(2)
    io.capsule(0x7F, fctype=8)
    assert io.answer()[0] == 0
    with pytest.raises(ConnectionError):
        io.pdu()
    assert other.write(0, bytes(BLOCK), BLOCK) == 0
    admin.capsule(0x7F, fctype=8)
    assert admin.answer()[0] == 0x185
    other.capsule(0x7F, fctype=4)
    assert other.answer()[0] == 0x001 | DNR
    assert admin.set_property(0x14, 4 << 20 | 6 << 16 | 1 | 1 << 14) == 0  # shutdown
    assert admin.get_property(0x1C) == (0, 1 | 0b10 << 2)
    assert admin.set_property(0x14, 0) == 0  # reset
    assert admin.get_property(0x1C) == (0, 0)
    with pytest.raises(ConnectionError):
        other.pdu()
    assert target.queue().connect(target.name, 1, admin.cntlid) == (SEQUENCE, 0)
    admin.enable()
    # what Connect has set is there again
    assert admin.get(0x0A, 16, cdw10=0x81, cdw11=1) == (0, b"host" * 4)
    assert target.queue().connect(target.name, 1, admin.cntlid)[0] == 0
    assert admin.get_property(0x24)[0] == INVALID_FIELD


def test_keep_alive(target):
    quiet, talking, silent = (target.host(1, keep_alive=each)[0] for each in (0, 3000, 1000))
    assert silent.get(0x0A, 0, cdw10=0x0F)[0] == 0
    before = target.server.expired
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline or target.server.expired == before:
        assert talking.run(0x18) == (0, 0)
        time.sleep(0.05)
    assert target.server.expired == before + 1
    with pytest.raises(ConnectionError):
        silent.pdu()
    assert quiet.run(0x18) == (0, 0)


def test_events(target):
    first, second = target.host(1), target.host(1)
    assert first[0].run(9, cdw10=0x0B, cdw11=1 << 8)[0] == 0
    waiting = first[0].capsule(0x0C)
    controllers = struct.pack("<HH", 1, second[0].cntlid).ljust(4096, b"\0")
    assert second[0].run(0x15, controllers, 1, cdw10=1)[0] == 0
    status, words, _ = first[0].answer(cid=waiting)
    assert status == 0 and words == 0x040002
    assert second[0].run(0x15, controllers, 1)[0] == 0


def test_a_reset_of_the_subsystem_ends_all_hosts():
    found = Target()
    try:
        first, second = found.host(1), found.host(1)
        first[0].capsule(0x7F, words=struct.pack("<BxxxIQ", 0, 0x20, 0x4E564D65))
        for queue in (*first, *second):
            with pytest.raises(ConnectionError):
                queue.pdu()
        wait_for(lambda: not found.server.subsystem.associations)
        assert found.host()[1].write(0, bytes(BLOCK), BLOCK) == 0
    finally:
        found.close()


def test_a_host_too_many():
    """All threads of hosts are in use; the others are served as before."""
    found = Target()
    try:
        some = found.host(15) + found.host(15) + found.host(15) + found.host(15)
        assert len(some) == 64
        assert found.queue().connect(found.name) == (0x181, 0)
        assert some[63].write(0, text(1, BLOCK), BLOCK) == 0
        assert some[1].read(0, 1, BLOCK) == text(1, BLOCK)
        some[63].close()
        wait_for(lambda: sum(len(each.queues) for each in found.server.subsystem.associations) < 64)
        assert found.queue().connect(found.name)[0] == 0
    finally:
        found.close()


def test_a_handshake_takes_a_limited_time(target, monkeypatch):
    monkeypatch.setattr("ondie.emu.serve.handshakes.HANDSHAKE_S", 1.0)
    silent = target.queue()
    with pytest.raises(ConnectionError):
        silent.pdu()
    admin, io = target.host()
    time.sleep(1.3)
    assert admin.run(0x18) == (0, 0) and io.run(0, nsid=1) == (0, 0)


def test_many_hosts_come_and_go(target, counts):
    """Threads and associations do not grow."""
    target.forget()
    for _ in range(counts(20, 300)):  # the server may be slower than they are
        wait_for(lambda: len(target.server.subsystem.associations) < 20)
        admin, io = target.host()
        (io if os.urandom(1)[0] & 1 else admin).socket.close()
        admin.close()
    target.forget()
