"""Computation commands over NVMe/TCP and PCIe, byte for byte: gradient in, update, weights out are
the kernel's, also after a power cut; and what is wrong ends with the status that the page names.
Source: docs/computation.md; ondie.kernels.
"""

import struct
import threading
import time

import numpy as np
import pytest

from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.control import Controls
from ondie.emu.serve.nvme_tcp import NvmeTcpServer
from tests.protocol.compute_host import (
    ACTIVATE,
    ALLOCATE,
    COPY,
    EXECUTE,
    FETCH,
    FREE,
    LOAD,
    NSID,
    PARAMS,
    REPORT,
    SET,
    STORE,
    UNSET,
    ComputeHost,
    StatesDrive,
)
from tests.protocol.nvme_tcp_client import TRANSPORT, Queue, host_pdu, sgl

DNR = 0x4000
OPCODE, INVALID_FIELD, SEQUENCE, PROTECTED, RANGE, FULL, MISCOMPARE = (
    each | DNR for each in (0x001, 0x002, 0x00C, 0x020, 0x080, 0x081, 0x285)
)
INTERNAL, BUSY, CONFLICT = 0x006, 0x021, 0x003 | DNR


class TcpTarget(StatesDrive):
    """The drive over NVMe/TCP, and hosts."""

    def __init__(self, **options):
        super().__init__(**options)
        listener = Listener(Address.parse(":0", "--nvme-tcp"), "--nvme-tcp")
        self.server = NvmeTcpServer(self.nvme, listener, None)
        self.address = ("127.0.0.1", listener.address.port)
        self.queues = []

    def close(self):
        for each in self.queues:
            each.close()
        self.server.close()
        super().close()

    def connect(self):
        """Admin queue and I/O queue of a new host."""
        name = self.nvme.capabilities.subsystem_name
        admin, io = Queue(self.address), Queue(self.address)
        self.queues += [admin, io]
        status, cntlid = admin.connect(name)
        assert status == 0
        admin.enable()
        assert io.connect(name, 1, cntlid) == (0, cntlid)
        return admin, io

    def host(self):
        _, io = self.connect()
        return ComputeHost(
            lambda opcode, data=b"", **words: io.run(opcode, data, NSID, **words),
            lambda opcode, size, **words: io.get(opcode, size, NSID, **words),
        )


@pytest.fixture(scope="module")
def shared():
    found = TcpTarget()
    yield found
    found.close()


@pytest.fixture
def target(shared):
    """The drive of this file, without its hosts afterwards."""
    yield shared
    while shared.queues:
        shared.queues.pop().close()


@pytest.fixture
def fresh():
    found = TcpTarget()
    yield found
    found.close()


def test_update_over_tcp(target):
    """Gradient in, update, weights out: bit for bit the kernel's."""
    host = target.host()
    size = target.states.bytes_of_all
    target.same(host.states(size))
    begin = host.report()
    for _ in range(2):
        gradient = target.gradient()
        rsid = host.give(gradient)
        assert host.execute(0, rsid) == (0, target.updates + 1)
        target.by_kernel(gradient)
        target.same(host.states(size))
    found = host.report()
    assert (found["step"], found["complete"], found["running"]) == (target.updates, 1, 0)
    assert found["updates"] == begin["updates"] + 2 and found["done"] == found["stripes"]
    assert found["written"] == begin["written"] + 2 * gradient.nbytes
    assert found["time"] > begin["time"]
    assert (found["params"], found["vectors"], found["vsize"]) == (PARAMS, 3, size // 3)


def test_update_with_other_hyperparameters(target):
    """They replace those of the server from this update on."""
    host, size = target.host(), target.states.bytes_of_all
    gradient = target.gradient()
    hyper = target.hyper | {"lr": 0.5, "weight_decay": 0.25, "maximize": 0}
    data = struct.pack("<6d", *(hyper[name] for name in target.kernel.takes))
    assert host.execute(0, host.give(gradient), data=data)[0] == 0
    target.hyper = hyper | {"maximize": False}
    target.by_kernel(gradient)
    target.same(host.states(size))


def test_numbers_of_updates(target):
    """An update that is complete is not done again; another number is refused."""
    host = target.host()
    gradient = target.gradient()
    rsid, last = host.give(gradient), target.updates
    assert host.execute(0, rsid, last) == (0, last)
    assert host.execute(0, rsid, last + 2)[0] == INVALID_FIELD
    assert host.execute(0, rsid, last + 1) == (0, last + 1)
    target.by_kernel(gradient)
    assert host.execute(0, rsid, last + 1) == (0, last + 1)
    target.same(host.states(target.states.bytes_of_all))


def test_an_update_in_ranges(target):
    """The stripes up to the range's end are new, the others old; a further command goes on."""
    host, gradient = target.host(), target.gradient()
    rsid, number = host.give(gradient), target.updates + 1
    stop = 3 * target.states.stripe_params
    old = target.wanted["w"].copy()
    assert host.execute(0, rsid, number, stop) == (0, number)
    target.by_kernel(gradient)
    found = target.vectors(host.states(target.states.bytes_of_all))["w"]
    assert (found[:stop] == target.wanted["w"][:stop]).all() and (found[stop:] == old[stop:]).all()
    report = host.report()
    assert (report["done"], report["complete"], report["step"]) == (3, 0, number)
    assert host.execute(0, rsid, number + 1)[0] == INVALID_FIELD
    same = [target.hyper.get(name, 0) for name in target.kernel.takes]
    other = struct.pack("<6d", 2 * same[0], *same[1:])
    assert host.execute(0, rsid, number, data=other)[0] == INVALID_FIELD
    assert host.execute(0, rsid, number, data=struct.pack("<6d", *same)) == (0, number)
    target.same(host.states(target.states.bytes_of_all))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_has_overflowed(target, bad):
    """It is refused, and the states stay as they are."""
    host, gradient = target.host(), target.gradient()
    gradient[5] = bad
    before = host.report()
    assert host.execute(0, host.give(gradient))[0] == INVALID_FIELD
    assert host.report()["step"] == before["step"]
    target.same(host.states(target.states.bytes_of_all))


def test_memory(target):
    """Bytes come back as they were stored; freed handles are used again."""
    host = target.host()
    text = target.rng.integers(0, 256, 300_000, np.uint8).tobytes()
    one, two = host.ok(ALLOCATE, cdw10=len(text)), host.ok(ALLOCATE, cdw10=4)
    assert one != two
    host.store(one, text)
    assert host.fetch(one, len(text)) == text and host.fetch(two, 4) == bytes(4)
    assert host.fetch(one, 4096, 1000) == text[1000:5096]
    used = host.report()["used"]
    rsid = host.set((two, 0, 4))
    host.ok(FREE, cdw10=two)
    assert host.report()["used"] == used - 4
    assert host.run(UNSET, cdw10=rsid)[0] == INVALID_FIELD  # it has gone with its memory
    assert host.ok(ALLOCATE, cdw10=8) == two
    host.ok(FREE, cdw10=0xFFFFFFFF)
    assert host.report()["used"] == 0


def test_a_copy(target):
    """Blocks of namespace 1 in device memory, without the link."""
    host = target.host()
    text = target.rng.integers(0, 256, 16 * 4096, np.uint8).tobytes()
    io = target.queues[-1]
    assert io.write(8, text, 4096) == 0
    handle = host.ok(ALLOCATE, cdw10=1 << 17)
    host.ok(COPY, cdw10=handle, cdw11=12, cdw12=4096, cdw14=10)
    found = host.fetch(handle, 1 << 16)
    assert found[:4096] == bytes(4096) and found[4096 : 13 * 4096] == text[2 * 4096 : 14 * 4096]
    assert not any(found[13 * 4096 :])
    assert host.run(COPY, cdw10=handle, cdw11=1, cdw14=1 << 30)[0] == RANGE
    assert host.run(COPY, cdw10=handle, cdw11=32, cdw12=4096)[0] == RANGE
    assert host.run(COPY, cdw10=handle, cdw11=0)[0] == INVALID_FIELD


def test_a_program_of_the_host(target):
    """Its time is that of its instructions on the cores; its bytes stay as they are."""
    host = target.host()
    size, text = 1 << 16, target.rng.integers(0, 256, 1 << 16, np.uint8).tobytes()
    handle = host.ok(ALLOCATE, cdw10=size)
    host.store(handle, text)
    rsid = host.set((handle, 0, size))
    host.load(7, element=4, instructions=(250, 2), fixed=32_000, read=4, written=4)
    before = host.report()
    assert host.execute(7, rsid)[0] == 0
    after = host.report()
    instructions = 32_000 + 125 * size // 4
    assert after["instr"] - before["instr"] == instructions
    expected = instructions / (4 * 0.8 * 1e9)
    assert expected <= (after["time"] - before["time"]) / 1e12 <= 1.02 * expected
    assert after["execs"] == before["execs"] + 1 and host.fetch(handle, size) == text
    assert host.run(ACTIVATE, cdw10=7, cdw11=0)[0] == 0
    assert host.execute(7, rsid)[0] == SEQUENCE
    assert host.run(ACTIVATE, cdw10=7, cdw11=2)[0] == 0
    assert host.execute(7, rsid)[0] == INVALID_FIELD
    assert host.run(ACTIVATE, cdw10=7, cdw11=1)[0] == INVALID_FIELD


def test_many_commands_at_the_same_time(target):
    """An update, a program, reads, writes and transfers of two hosts are under way together, and
    all of them are right."""
    host, other = target.host(), target.host()
    beside = other.ok(ALLOCATE, cdw10=1 << 16)
    _, io = target.connect()
    gradient, size = target.gradient(), 1 << 20
    rsid, number = host.give(gradient), target.updates + 1
    memory = host.ok(ALLOCATE, cdw10=size)
    program = host.set((memory, 0, size))
    host.load(3, instructions=(40, 1))
    text = target.rng.integers(0, 256, 1 << 16, np.uint8).tobytes()
    waiting = [
        io.capsule(EXECUTE, NSID, struct.pack("<4I", 0 | rsid << 16, 0, number, 0)),
        io.capsule(EXECUTE, NSID, struct.pack("<4I", 3 | program << 16, 0, 0, 0)),
    ]
    last = target.queues[-3]
    for at in range(4):
        assert last.write(64 + 16 * at, text, 4096) == 0
        assert last.read(64 + 16 * at, 16, 4096) == text
        other.store(beside, text)
        assert other.fetch(beside, len(text)) == text
    found = {}
    for _ in waiting:
        kind, _, fields, _ = io.pdu()
        word, _, _, cid, status = struct.unpack("<QHHHH", fields)
        found[cid] = status >> 1, word
    assert found == {waiting[0]: (0, number), waiting[1]: (0, 0)}
    target.by_kernel(gradient)
    target.same(host.states(target.states.bytes_of_all))


def test_many_stores_at_the_same_time(target):
    """Data in capsules are those of their command, although the next ones have arrived."""
    host, size = target.host(), 8192
    io = target.queues[-1]
    handle = host.ok(ALLOCATE, cdw10=16 * size)
    parts = [target.rng.integers(0, 256, size, np.uint8).tobytes() for _ in range(16)]
    for at, part in enumerate(parts):
        words = struct.pack("<4I", handle, size, at * size, 0)
        io.capsule(STORE, NSID, words, part)
    for _ in parts:
        _, _, fields, _ = io.pdu()
        assert struct.unpack("<QHHHH", fields)[4] >> 1 == 0
    assert host.fetch(handle, 16 * size) == b"".join(parts)


def test_an_identifier_that_is_in_use(target):
    """A command with the identifier of one that runs is refused; the first one completes."""
    host = target.host()
    io = target.queues[-1]
    handle = host.ok(ALLOCATE, cdw10=1 << 20)
    rsid = host.set((handle, 0, 1 << 20))
    host.load(12, instructions=(100, 1))
    words = struct.pack("<2I", 12 | rsid << 16, 0)
    target.service.call(lambda: None).result()
    held = threading.Event()
    target.service.call(held.wait)  # nothing ends meanwhile
    try:
        cid = io.capsule(EXECUTE, NSID, words)
        io.cid -= 1
        assert io.capsule(REPORT, NSID, descriptor=sgl(TRANSPORT, 4096)) == cid
        assert io.answer()[0] == CONFLICT
    finally:
        held.set()
    assert io.answer()[0] == 0


def test_an_identifier_twice_in_a_batch(target):
    """The second command is refused, and so is a third one while the first one runs."""
    host = target.host()
    io, batch = target.queues[-1], []
    handle = host.ok(ALLOCATE, cdw10=1 << 20)
    rsid = host.set((handle, 0, 1 << 20))
    host.load(13, instructions=(100, 1))
    words = struct.pack("<2I", 13 | rsid << 16, 0)
    held = threading.Event()
    target.service.call(held.wait)
    try:
        io.send = lambda kind, fields, data=b"", flags=0: batch.append(
            host_pdu(kind, fields, data, io.framing)
        )
        cid = io.capsule(EXECUTE, NSID, words)
        io.cid -= 1
        io.capsule(EXECUTE, NSID, words)
        del io.send
        io.socket.sendall(b"".join(batch))
        assert io.answer()[0] == CONFLICT
        io.cid -= 1
        assert io.capsule(EXECUTE, NSID, words) == cid
        assert io.answer()[0] == CONFLICT
    finally:
        held.set()
    assert io.answer()[0] == 0
    io.cid -= 1
    assert io.run(0, b"", NSID)[0] == 0  # it is free again


def test_a_namespace_of_all_other_bytes(fresh):
    """States have addresses of their own, and take no room of other namespaces."""
    admin, _ = fresh.connect()
    blocks = fresh.drive.capacity // 4096
    assert admin.run(0x0D, b"", 1, cdw10=1)[0] == 0
    data = struct.pack("<QQ10xB", blocks, blocks, 0).ljust(4096, b"\0")
    assert admin.run(0x0D, data, 0) == (0, 1)
    assert admin.run(0x0D, struct.pack("<QQ", 1, 1).ljust(4096, b"\0"), 0)[0] == 0x115 | DNR


def test_what_a_host_finds(target):
    """Namespace 2 is write-protected, and complete; the log of effects has the commands."""
    host = target.host()
    admin, io = target.queues[-2:]
    status, data = admin.get(6, 4096, NSID)
    blocks = target.states.bytes_of_all // 4096
    assert status == 0 and struct.unpack_from("<QQQ", data) == (blocks,) * 3
    assert data[99] & 1 == 1
    status, data = admin.get(6, 4096, NSID, cdw10=8)
    assert status == 0 and data[8] & 1 == 1
    status, data = admin.get(6, 4096, 1)
    assert struct.unpack_from("<Q", data)[0] == target.drive.capacity // 4096 and not data[99] & 1
    status, data = admin.get(2, 4096, 0, cdw10=5 | 1023 << 16)
    assert status == 0
    effects = struct.unpack_from("<256I", data, 1024)
    assert {at for at in range(0x80, 0x100) if effects[at]} == {
        SET, UNSET, LOAD, ACTIVATE, ALLOCATE, FREE, COPY, EXECUTE, REPORT, FETCH, STORE,
    }  # fmt: skip
    assert effects[EXECUTE] == 3
    data = host.states(4096)
    for opcode, given, words in (
        (1, data, {}), (4, b"", {}), (8, b"", {}), (9, bytes(16), {"cdw11": 4}),
    ):  # fmt: skip
        assert io.run(opcode, given, NSID, **words)[0] == PROTECTED, opcode
    assert io.run(0, b"", NSID)[0] == 0  # Flush
    assert io.run(12, b"", NSID)[0] == 0  # Verify
    assert io.run(5, data, NSID)[0] == 0 and io.run(5, bytes(4096), NSID)[0] == MISCOMPARE
    assert io.get(2, 4096, NSID, cdw10=blocks)[0] == RANGE
    assert admin.run(0x80, b"", NSID)[0] == PROTECTED  # Format NVM
    assert admin.run(0x80, b"", 0xFFFFFFFF)[0] == PROTECTED
    assert admin.run(0x84, b"", 0, cdw10=2)[0] == PROTECTED  # Sanitize
    assert admin.run(0x0D, b"", NSID, cdw10=1)[0] == PROTECTED  # delete
    assert admin.run(0x0D, b"", 0xFFFFFFFF, cdw10=1)[0] == PROTECTED
    target.same(host.states(target.states.bytes_of_all))


WRONG = {
    "no bytes": (ALLOCATE, {"cdw10": 0}, INVALID_FIELD),
    "part of a word": (ALLOCATE, {"cdw10": 6}, INVALID_FIELD),
    "more than there is": (ALLOCATE, {"cdw10": 0xFFFFFFFC, "cdw11": 0xFFFF}, FULL),
    "free an unknown handle": (FREE, {"cdw10": 999}, INVALID_FIELD),
    "unknown set": (UNSET, {"cdw10": 999}, INVALID_FIELD),
    "set of no ranges": (SET, {"cdw10": 0}, INVALID_FIELD),
    "set of too many": (SET, {"cdw10": 65}, INVALID_FIELD),
    "execute on an unknown set": (EXECUTE, {"cdw10": 999 << 16}, INVALID_FIELD),
    "unknown program": (EXECUTE, {"cdw10": 99}, INVALID_FIELD),
    "parameters of a megabyte": (EXECUTE, {"cdw11": 1 << 20}, INVALID_FIELD),
    "activate the update": (ACTIVATE, {"cdw10": 0, "cdw11": 1}, INVALID_FIELD),
    "unknown selection": (ACTIVATE, {"cdw10": 5, "cdw11": 3}, INVALID_FIELD),
    "store nothing": (STORE, {"cdw10": 1, "cdw11": 0}, INVALID_FIELD),
    "store too much": (STORE, {"cdw10": 1, "cdw11": 1 << 24}, INVALID_FIELD),
    "store part of a word": (STORE, {"cdw10": 1, "cdw11": 6}, INVALID_FIELD),
    "opcode of nobody": (0xB1, {}, OPCODE),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_words(target, name):
    opcode, words, status = WRONG[name]
    assert target.host().run(opcode, **words)[0] == status


def test_wrong_ranges_and_descriptors(target):
    host = target.host()
    memory = host.ok(ALLOCATE, cdw10=4096)
    for offset, size, status in (
        (0, 4100, RANGE), (4096, 4, RANGE), (1 << 62, 4, RANGE), (2, 4, INVALID_FIELD),
        (0, 6, INVALID_FIELD), (0, 0, INVALID_FIELD),
    ):  # fmt: skip
        data = struct.pack("<IIQQ8x", memory, 0, offset, size)
        assert host.run(SET, data, cdw10=1)[0] == status, (offset, size)
    assert host.run(SET, struct.pack("<IIQQ8x", 999, 0, 0, 4), cdw10=1)[0] == INVALID_FIELD
    assert host.run(STORE, bytes(8), cdw10=memory, cdw11=8, cdw12=4092)[0] == RANGE
    assert host.run(STORE, bytes(8), cdw10=memory, cdw11=8, cdw13=1)[0] == RANGE
    assert host.get(FETCH, 8, cdw10=memory, cdw11=8, cdw12=4092)[0] == RANGE
    assert host.get(FETCH, 8, cdw10=999, cdw11=8)[0] == INVALID_FIELD
    short = host.set((memory, 0, 4096))
    assert host.execute(0, short)[0] == INVALID_FIELD  # no gradient of all parameters
    gradient = host.give(target.gradient())
    assert host.execute(0, gradient, data=bytes(40))[0] == INVALID_FIELD
    assert host.execute(0, gradient, stop=5)[0] == INVALID_FIELD
    assert host.execute(0, gradient, stop=PARAMS + 1)[0] == INVALID_FIELD
    wrong = struct.pack("<6d", 0.01, 2.0, 0.999, 1e-8, 0, 0)  # beta1
    assert host.execute(0, gradient, data=wrong)[0] == INVALID_FIELD
    good = (1, 4, 1, 1, 0, 0, 0)
    for at, value in ((0, 2), (1, 0), (1, 1 << 21), (3, 0), (4, 1 << 49), (5, 1 << 21)):
        fields = [*good[:at], value, *good[at + 1 :]]
        data = struct.pack("<IIIIQII32x", *fields)
        assert host.run(LOAD, data, cdw10=9, cdw11=64)[0] == INVALID_FIELD, at
    assert host.run(LOAD, bytes(63) + b"x", cdw10=9)[0] == INVALID_FIELD
    for slot in (0, 256, 1 << 20):
        assert host.run(LOAD, struct.pack("<IIIIQII32x", *good), cdw10=slot)[0] == INVALID_FIELD
    host.load(9, element=24)
    assert host.run(LOAD, struct.pack("<IIIIQII32x", *good), cdw10=9)[0] == INVALID_FIELD
    assert host.execute(9, short)[0] == INVALID_FIELD  # 4096 bytes are no whole elements
    assert host.execute(9, short, data=bytes(4))[0] == INVALID_FIELD
    target.same(host.states(target.states.bytes_of_all))


def test_other_namespaces_take_no_computation(target):
    io = target.connect()[1]
    assert io.run(ALLOCATE, b"", 1, cdw10=4096)[0] == OPCODE
    assert io.run(ALLOCATE, b"", 3, cdw10=4096)[0] == INVALID_FIELD
    assert io.run(ALLOCATE, b"", 99, cdw10=4096)[0] == 0x00B | DNR


def test_what_is_in_use(target):
    """Memory and programs of a running command cannot be changed or freed."""
    host, device = target.host(), target.nvme.computation.device
    handle = host.ok(ALLOCATE, cdw10=4096)
    host.load(11)
    memory = device.memory.memories[handle]
    memory.users = 1
    assert host.run(FREE, cdw10=handle)[0] == BUSY
    host.ok(STORE, bytes(4), cdw10=handle, cdw11=4)  # by another transfer
    memory.programs = 1
    device.programs.running[11] = 1
    for opcode, words in (
        (FREE, {"cdw10": handle}), (FREE, {"cdw10": 0xFFFFFFFF}),
        (COPY, {"cdw10": handle, "cdw11": 1}), (ACTIVATE, {"cdw10": 11, "cdw11": 0}),
        (ACTIVATE, {"cdw10": 11, "cdw11": 2}),
    ):  # fmt: skip
        assert host.run(opcode, **words)[0] == BUSY
    assert host.run(STORE, bytes(4), cdw10=handle, cdw11=4)[0] == BUSY
    assert host.fetch(handle, 4) == bytes(4)
    memory.users = memory.programs = 0
    del device.programs.running[11]
    host.ok(FREE, cdw10=handle)


def test_one_update_at_a_time(target, monkeypatch):
    """While one is running, another one is refused and may be sent again."""
    host = target.host()
    rsid = host.give(target.gradient())
    monkeypatch.setattr(type(target.states), "updating", True)
    assert host.execute(0, rsid) == (BUSY, 0)


# --- loss of power


@pytest.mark.parametrize("after", [40, 300])
def test_a_power_cut_during_an_update(fresh, after):
    """The command ends with an error; memory is gone; the states are recovered, and the host sends
    gradient and update again."""
    host, controls = fresh.host(), Controls(fresh.served)
    first, second = fresh.gradient(), fresh.gradient()
    assert host.execute(0, host.give(first), 1) == (0, 1)
    fresh.by_kernel(first)
    rsid = host.give(second)
    io = fresh.queues[-1]
    update = fresh.states.begin_update

    def cut(*arguments):  # the power fails while the engine runs the update
        plan = update(*arguments)
        fresh.drive.power_cut(after)
        return plan

    fresh.states.begin_update = cut
    io.capsule(EXECUTE, NSID, struct.pack("<6I", rsid << 16, 0, 2, 0, 0, 0))
    assert io.answer()[0] == INTERNAL
    fresh.states.begin_update = update
    assert host.run(ALLOCATE, cdw10=4)[0] == INTERNAL
    assert host.get(REPORT, 4096)[0] == INTERNAL
    assert host.get(2, 4096)[0] == INTERNAL
    assert host.execute(0, rsid, 2)[0] == INTERNAL
    assert controls.power_on()["condition"] == "online"
    found = host.report()
    assert (found["recovered"], found["used"]) == (1, 0)
    assert host.execute(0, rsid, 2)[0] == INVALID_FIELD  # the set is gone
    assert found["step"] in (1, 2)
    if after > 40:  # what was on flash is kept
        assert (found["step"], found["complete"]) == (2, 0) and 0 < found["done"] < found["stripes"]
    assert host.execute(0, host.give(second), 2) == (0, 2)
    fresh.by_kernel(second)
    fresh.same(host.states(fresh.states.bytes_of_all))


def test_a_host_that_leaves(fresh):
    """An update goes on without its host; the next host finds it complete."""
    host = fresh.host()
    gradient = fresh.gradient()
    rsid = host.give(gradient)
    io = fresh.queues[-1]
    io.capsule(EXECUTE, NSID, struct.pack("<6I", rsid << 16, 0, 1, 0, 0, 0))
    io.close()
    fresh.queues[-2].close()
    other = fresh.host()
    deadline = time.monotonic() + 120
    while not other.report()["complete"] or not other.report()["step"]:
        assert time.monotonic() < deadline
    fresh.by_kernel(gradient)
    fresh.same(other.states(fresh.states.bytes_of_all))
