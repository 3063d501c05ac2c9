"""Does the controller go through its states, and do queue, namespace and other admin commands end
with the status that the specification names?"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.controller.actions import Do
from ondie.emu.controller.admin import TO_CONTROLLER, transfer_of
from ondie.emu.controller.capabilities import MEMORY_PAGE_BYTES
from ondie.emu.controller.namespaces import Namespaces
from ondie.emu.controller.registers import PROCESSING, Registers, State
from ondie.emu.nvme.wire import Sqe
from tests.protocol.controller_host import ENABLED, Host, capabilities

IDENTIFY, CREATE_SQ, CREATE_CQ, DELETE_SQ, DELETE_CQ = 0x06, 0x01, 0x05, 0x00, 0x04
MANAGE, ATTACH, FORMAT, SANITIZE, DOORBELLS = 0x0D, 0x15, 0x80, 0x84, 0x7C
ALL = 0xFFFFFFFF
CC, CSTS = 0x14, 0x1C


# --- registers


def test_reset_values():
    registers = Registers(capabilities())
    cap = registers.read(0, 8)
    assert cap & 0xFFFF == 4095 and cap >> 16 & 1 == 1 and cap >> 24 & 0xFF == 120
    assert cap >> 32 & 0xF == 0 and cap >> 36 & 1 == 1 and cap >> 37 & 0xFF == 0b1000001
    assert cap >> 48 & 0xF == 0 and cap >> 52 & 0xF == 4 and cap >> 59 & 1 == 1
    assert registers.read(0, 4) | registers.read(4, 4) << 32 == cap
    assert registers.read(8, 4) == 0x20000 and registers.read(CSTS, 4) == 0
    assert registers.read(0x40, 4) == 0 and registers.read(5, 2) == cap >> 40 & 0xFFFF


def test_enable_reset_and_shutdown():
    registers = Registers(capabilities())
    registers.write(0x24, 4, 0x001F001F)
    registers.write(0x28, 4, 0x3000)
    registers.write(0x2C, 4, 0x1)
    registers.write(0x30, 8, 0x4000)
    assert registers.asq == 0x1_0000_3000 and registers.admin_entries == (32, 32)
    assert [action.do for action in registers.write(CC, 4, ENABLED)] == [Do.ENABLE]
    assert registers.read(CSTS, 4) == 0
    registers.enabled()
    assert registers.read(CSTS, 4) == 1
    (action,) = registers.write(CC, 4, ENABLED | 1 << 14)
    assert action.do is Do.SHUT_DOWN and not action.abrupt and registers.read(CSTS, 4) == 0b0101
    assert registers.write(CC, 4, ENABLED | 1 << 14) == []
    assert registers.notified
    registers.shut_down()
    assert registers.read(CSTS, 4) == 0b1001 and registers.notified
    assert [action.do for action in registers.write(CC, 4, 0)] == [Do.RESET]
    assert registers.read(CSTS, 4) & 1 == 1  # commands are still in flight
    assert registers.disabled() == []
    assert not registers.notified
    assert registers.read(CSTS, 4) == 0 and registers.asq == 0x1_0000_3000
    assert registers.write(CC, 4, ENABLED | 1 << 15)[-1].abrupt


def test_enabled_again_under_load():
    host = Host()
    registers = host.controller.registers
    assert [action.do for action in registers.write(CC, 4, 0)] == [Do.RESET]
    assert registers.write(CC, 4, ENABLED) == []  # while the reset waits
    assert [action.do for action in registers.disabled()] == [Do.ENABLE]
    assert registers.state is State.ENABLING and registers.read(CSTS, 4) == 0
    registers.enabled()
    registers.enabled()
    assert registers.read(CSTS, 4) == 1


def test_a_configuration_that_is_not_supported_is_fatal():
    for offset, size, value in (
        (CC, 4, ENABLED | 2 << 4), (CC, 4, ENABLED | 1 << 11), (CC, 4, ENABLED | 5 << 7),
        (0x24, 4, 0x001F0000), (0x24, 4, 0x0000001F),
    ):  # fmt: skip
        registers = Registers(capabilities())
        for each in ((0x24, 4, 0x001F001F), (0x28, 8, 0x1000), (0x30, 8, 0x2000)):
            registers.write(*each)
        registers.write(offset, size, value)
        assert registers.write(CC, 4, value if offset == CC else ENABLED) == []
        assert registers.read(CSTS, 4) == 0b10, (offset, value)
        assert [action.do for action in registers.write(CC, 4, 0)] == [Do.RESET]
        registers.disabled()
        assert registers.read(CSTS, 4) == 0
    far = Registers(capabilities())
    far.write(0x24, 4, 0x001F001F)
    far.write(0x28, 8, 0x1000)  # not aligned to pages of 8 KiB
    far.write(CC, 4, ENABLED | 1 << 7)
    assert far.read(CSTS, 4) == 0b10


def test_masks_and_subsystem_reset():
    registers = Host().controller.registers
    registers.write(0x0C, 4, 0b1010)
    registers.write(0x10, 4, 0b0010)
    assert registers.read(0x0C, 4) == registers.read(0x10, 4) == 0b1000
    assert registers.write(0x20, 4, 1) == []
    assert [action.do for action in registers.write(0x20, 4, 0x4E564D65)] == [Do.SUBSYSTEM_RESET]
    registers.subsystem_reset()
    assert registers.read(CSTS, 4) == 0b10000 and registers.asq == 0
    registers.write(CSTS, 4, 0b10000)
    assert registers.read(CSTS, 4) == 0


@given(st.lists(st.tuples(
    st.sampled_from((0, 0x0C, 0x10, 0x14, 0x1C, 0x20, 0x24, 0x28, 0x2C, 0x30, 0x41, 0x1000)),
    st.sampled_from((1, 2, 4, 8)),
    st.one_of(st.sampled_from((0, 1, ENABLED, ENABLED | 1 << 14, 0x4E564D65)),
              st.integers(0, (1 << 64) - 1)),
    st.sampled_from(("", "enabled", "disabled", "shut_down", "fail")),
)))  # fmt: skip
def test_any_sequence_of_accesses(steps):
    registers = Registers(capabilities())
    for offset, size, value, report in steps:
        registers.write(offset, size, value)
        if report:
            getattr(registers, report)()
        csts = registers.read(CSTS, 4)
        assert csts & ~0b11111 == 0 and csts & 0b1100 != 0b1100
        assert not (registers.state is State.READY and not csts & 1)
        assert not (registers.state is State.DISABLED and csts & 1)
        assert registers.read(0, 8) == registers.cap
        assert registers.shutdown in (0, PROCESSING, PROCESSING << 1)


# --- queues


def test_bad_queues():
    host = Host()

    def cq(queue: int = 1, size: int = 7, base: int = 4096, flags: int = 1, vector: int = 0) -> int:
        return host.status(
            CREATE_CQ, prp1=base, cdw10=queue | size << 16, cdw11=flags | vector << 16
        )

    def sq(queue: int = 1, size: int = 7, base: int = 4096, flags: int = 1, other: int = 1) -> int:
        return host.status(
            CREATE_SQ, prp1=base, cdw10=queue | size << 16, cdw11=flags | other << 16
        )

    for create in (cq, sq):
        assert [create(queue=each) for each in (0, 5, 0xFFFF)] == [0x101] * 3
        assert [create(size=each) for each in (0, 4096, 65535)] == [0x102] * 3  # 0's based
        assert create(flags=0) == 0x002
        assert [create(base=each) for each in (1, 4, 2048)] == [0x013] * 3
    assert cq(flags=3, vector=3) == 0x108 and cq(vector=3) == 0
    assert cq() == 0x101
    assert [sq(other=each) for each in (0, 5)] == [0x101] * 2 and sq(other=2) == 0x100
    assert sq() == 0 and sq() == 0x101 and sq(queue=2) == 0 and cq(queue=2, size=4095) == 0
    assert [host.status(DELETE_CQ, cdw10=each) for each in (0, 1, 3)] == [0x101, 0x10C, 0x101]
    assert [host.status(DELETE_SQ, cdw10=each) for each in (0, 1, 1, 2)] == [0x101, 0, 0x101, 0]
    assert host.status(DELETE_CQ, cdw10=1) == 0
    host.controller.registers.cc = 1
    assert cq(queue=3) == 0x102 == sq(queue=3)


def test_a_vector_is_configured_that_a_completion_queue_uses():
    """Base Specification 2.0, section 5.27.1.7: otherwise Invalid Field, with the place of the
    dword, and the value stays. That a vector exists is not enough."""
    host, set_features, get_features = Host(), 0x09, 0x0A

    def configure(vector: int) -> int:
        return host.status(set_features, cdw10=0x09, cdw11=vector | 1 << 16)

    def held(vector: int) -> int:
        return host.run(get_features, cdw10=0x09, cdw11=vector).entries[0].dw0

    assert [configure(vector) for vector in range(4)] == [0x002] * 4
    assert host.controller.errors.entries[0].where == 44
    for queue, flags in ((1, 3 | 2 << 16), (2, 1 | 1 << 16)):  # queue 2 without interrupts
        assert host.status(CREATE_CQ, prp1=4096, cdw10=queue | 7 << 16, cdw11=flags) == 0
    assert [configure(vector) for vector in range(4)] == [0x002, 0x002, 0, 0x002]
    assert [held(vector) for vector in range(3)] == [0, 1, 2 | 1 << 16]
    assert host.status(DELETE_CQ, cdw10=1) == 0
    assert configure(2) == 0x002 and held(2) == 2 | 1 << 16


def test_actions_of_queues():
    host = Host()
    (made,) = host.run(CREATE_CQ, prp1=8192, cdw10=2 | 7 << 16, cdw11=3 | 2 << 16).actions
    assert (made.do, made.queue, made.entries) == (Do.CREATE_CQ, 2, 8)
    assert (made.base, made.vector) == (8192, 2)
    (made,) = host.run(CREATE_SQ, prp1=4096, cdw10=1 | 15 << 16, cdw11=0b101 | 2 << 16).actions
    assert (made.do, made.queue, made.entries) == (Do.CREATE_SQ, 1, 16)
    assert (made.completion_queue, made.priority) == (2, 2)
    host.controller.registers.write(0x14, 4, 0)
    host.controller.disabled()
    assert host.status(DELETE_SQ, cdw10=1) == 0x101
    assert host.status(0x08, cdw10=1) == 0x002  # Abort in a queue that does not exist
    assert host.run(0x08, cdw10=5 << 16).entries[0].dw0 == 1


# --- namespaces


def sizes(blocks: int, capacity: int | None = None, **fields: int) -> bytes:
    """Data of Namespace Management, create."""
    data = bytearray(4096)
    data[0:8] = blocks.to_bytes(8, "little")
    data[8:16] = (blocks if capacity is None else capacity).to_bytes(8, "little")
    for offset, value in fields.items():
        data[int(offset.removeprefix("at"))] = value
    return bytes(data)


ONE = bytes([1, 0, 1, 0]).ljust(4096, b"\0")
"""Controller list of controller 1."""


def test_namespaces_are_created_attached_and_deleted():
    host = Host(whole=False)
    unit, whole = 8, (64 << 20) // 512
    assert host.run(MANAGE, sizes(unit + 1)).entries[0].dw0 == 1
    second = host.run(MANAGE, sizes(16, at26=1))
    assert second.entries[0].dw0 == 2 and host.namespaces.by_nsid[2].block_bytes == 4096
    assert [each.first for each in host.namespaces.by_nsid.values()] == [0, 8192]
    assert host.namespaces.unallocated_bytes == (64 << 20) - 8192 - 65536
    assert host.status(MANAGE, sizes(whole)) == 0x115
    assert host.data(IDENTIFY, cdw10=0x02) == bytes(4096)
    assert host.data(IDENTIFY, cdw10=0x10)[:8] == bytes([1, 0, 0, 0, 2, 0, 0, 0])
    assert host.status(ATTACH, ONE, nsid=2) == 0 and host.status(ATTACH, ONE, nsid=2) == 0x118
    assert host.data(IDENTIFY, cdw10=0x02)[:8] == bytes([2, 0, 0, 0]) + bytes(4)
    changed = host.data(0x02, cdw10=0x04 | 1023 << 16)
    assert changed[:8] == bytes([2, 0, 0, 0]) + bytes(4)
    assert host.data(0x02, cdw10=0x04 | 1023 << 16) == bytes(4096)  # read: cleared
    assert host.status(ATTACH, ONE, nsid=2, cdw10=1) == 0
    assert host.status(ATTACH, ONE, nsid=2, cdw10=1) == 0x11A
    (action,) = host.run(MANAGE, nsid=1, cdw10=1).actions
    assert (action.do, action.first, action.size) == (Do.DEALLOCATE, 0, 8192)
    before = host.namespaces.by_nsid[2].uuid
    assert host.run(MANAGE, sizes(unit)).entries[0].dw0 == 1
    assert host.namespaces.by_nsid[1].first == 0 and host.namespaces.by_nsid[1].uuid != before
    assert len(host.run(MANAGE, nsid=ALL, cdw10=1).actions) == 2
    for _ in range(16):
        assert host.status(MANAGE, sizes(unit)) == 0
    assert host.status(MANAGE, sizes(unit)) == 0x116


def test_bad_namespaces():
    host = Host()
    assert host.status(MANAGE, sizes(8)) == 0x115
    for data, fields, status in (
        (sizes(8, 7), {}, 0x11B), (sizes(0), {}, 0x002), (sizes(8, at26=2), {}, 0x10A),
        (sizes(8, at29=1), {}, 0x002), (sizes(8, at102=2), {}, 0x002),
        (sizes(8), {"nsid": 1}, 0x002), (sizes(8), {"cdw11": 2 << 24}, 0x002),
        (sizes((1 << 64) - 1), {}, 0x115), (bytes(4095), {}, 0x004),
    ):  # fmt: skip
        assert host.status(MANAGE, data, **fields) == status, fields
    assert host.status(MANAGE, nsid=1, cdw10=2) == 0x002
    assert host.status(MANAGE, nsid=2, cdw10=1) == 0x002
    for data in (bytes(4096), bytes([1, 0, 2, 0]).ljust(4096, b"\0"), b"\xff" * 4096):
        assert host.status(ATTACH, data, nsid=1) == 0x11C
    assert host.status(ATTACH, ONE, nsid=1, cdw10=2) == 0x002
    assert host.status(ATTACH, ONE, nsid=17) == 0x00B


def test_format():
    host = Host()
    (action,) = host.run(FORMAT, nsid=1, cdw10=1).actions
    assert (action.do, action.size) == (Do.DEALLOCATE, 64 << 20)
    assert host.data(IDENTIFY, nsid=1, cdw10=0)[26] == 1
    assert host.namespaces.by_nsid[1].blocks == (64 << 20) // 4096
    assert host.run(FORMAT, nsid=ALL, cdw10=1 << 9).actions[0].do is Do.ERASE
    for cdw10 in (2, 1 << 4, 1 << 5, 1 << 12):
        assert host.status(FORMAT, nsid=1, cdw10=cdw10) == 0x10A
    assert host.status(FORMAT, nsid=1, cdw10=2 << 9) == 0x002
    host.namespaces.by_nsid[1].write_protected = True
    assert host.status(FORMAT, nsid=1) == 0x020


def test_sanitize():
    host = Host()
    page = 0x81 | 127 << 16
    data = host.data(0x02, cdw10=page)
    assert data[:4] == b"\xff\xff\0\0"
    for cdw10 in (0, 3, 4, 2 | 1 << 9):
        assert host.status(SANITIZE, cdw10=cdw10) == 0x002
    assert [action.do for action in host.run(SANITIZE, cdw10=2).actions] == [Do.SANITIZE]
    assert host.data(0x02, cdw10=page)[:8] == bytes([0, 0, 2, 0, 2, 0, 0, 0])
    assert host.status(SANITIZE, cdw10=2) == 0x01D == host.status(FORMAT, nsid=1)
    assert host.run(0x0C).entries == ()
    (event,) = host.controller.sanitized(success=False)
    assert event.dw0 == 6 | 1 << 8 | 0x81 << 16
    assert host.status(FORMAT, nsid=1) == 0x01C and host.data(0x02, cdw10=page)[2] == 3
    assert host.status(SANITIZE, cdw10=1) == 0x01C  # restricted: only another one helps
    assert host.status(SANITIZE, cdw10=2 | 1 << 3) == 0x01C
    assert host.status(SANITIZE, cdw10=2) == 0
    host.controller.sanitized(success=True)
    assert host.status(SANITIZE, cdw10=2 | 1 << 3) == 0
    host.controller.sanitized(success=False)
    assert host.status(SANITIZE, cdw10=1) == 0 == host.status(FORMAT, nsid=1)
    assert host.status(SANITIZE, cdw10=2) == 0
    host.controller.sanitized(success=True)
    assert host.data(0x02, cdw10=page)[:4] == b"\xff\xff\1\1" and host.status(FORMAT, nsid=1) == 0


def test_doorbell_buffers():
    host = Host()
    (action,) = host.run(DOORBELLS, prp1=4096, prp2=8192).actions
    assert (action.do, action.base, action.event_base) == (Do.MAP_DOORBELLS, 4096, 8192)
    for prp1, prp2 in ((0, 4096), (4096, 0), (4100, 8192), (4096, 8200)):
        assert host.status(DOORBELLS, prp1=prp1, prp2=prp2) == 0x002


@pytest.mark.parametrize("has", [True, False])
def test_doorbell_buffers_can_be_off(has):
    host = Host(replace(capabilities(), shadow_doorbells=has))
    assert host.status(DOORBELLS, prp1=4096, prp2=8192) == (0 if has else 0x001)
    assert host.data(0x06, cdw10=0x01)[257] & 1 == has  # OACS bit 8
    effects = host.data(0x02, nsid=ALL, cdw10=0x05 | 1023 << 16)
    assert effects[4 * DOORBELLS] == has and effects[0x06 * 4] == 1


# --- any entry

WORD = st.one_of(st.integers(0, 15), st.integers(0, (1 << 32) - 1), st.just(ALL))


@given(st.lists(st.builds(
    Sqe,
    opcode=st.one_of(st.sampled_from((0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 21, 24, 124, 128, 132)),
                     st.integers(0, 255)),
    flags=st.integers(0, 255), cid=st.integers(0, 65535), nsid=WORD,
    prp1=st.integers(0, (1 << 64) - 1).map(lambda address: address & ~0xFFF),
    prp2=st.integers(0, (1 << 64) - 1), cdw10=WORD, cdw11=WORD, cdw12=WORD, cdw13=WORD,
    cdw14=WORD, cdw15=st.just(0), cdw2=st.just(0), cdw3=st.just(0), mptr=st.just(0),
), max_size=12), st.binary(max_size=64))  # fmt: skip
def test_any_admin_command_ends_with_a_status(entries, data):
    host = Host(whole=False)
    host.namespaces.create(64)
    most = host.offered.transfer_bytes
    for sqe in entries:
        direction, size = transfer_of(sqe, most)
        assert size <= most
        sent = data.ljust(size, b"\1")[:size] if direction == TO_CONTROLLER else b""
        reply = host.controller.execute(sqe.pack(), sent)
        assert len(reply.data) in (0, size)
        assert all(0 <= entry.status < 1 << 15 for entry in reply.entries)
        assert all(0 <= entry.dw0 < 1 << 32 for entry in reply.entries)
        if reply.data:
            assert reply.entries[0].status == 0
        spaces = sorted((each.first, each.size) for each in host.namespaces.by_nsid.values())
        assert all(first + size <= 64 << 20 for first, size in spaces)
        assert all(a[0] + a[1] <= b[0] for a, b in zip(spaces, spaces[1:], strict=False))


@given(st.lists(st.tuples(st.integers(1, 17), st.integers(1, 40_000)), max_size=60))
def test_namespaces_never_overlap(steps):
    spaces = Namespaces(capabilities())
    for nsid, blocks in steps:
        if nsid in spaces.by_nsid:
            spaces.delete(nsid)
        elif len(spaces.by_nsid) < 16 and spaces._gap(-(-blocks // 8) * 4096) is not None:
            spaces.create(blocks)
        taken = sorted((each.first, each.size) for each in spaces.by_nsid.values())
        assert all(first % MEMORY_PAGE_BYTES == 0 for first, _ in taken)
        assert sum(size for _, size in taken) + spaces.unallocated_bytes == 64 << 20
        assert all(a[0] + a[1] <= b[0] for a, b in zip(taken, taken[1:], strict=False))
