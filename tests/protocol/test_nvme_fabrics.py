"""Fabrics commands and the discovery controller, without any transport.

Source: NVM Express Base Specification 2.0, section 6, and figure "Discovery Log Page Entry Data
Structure".
"""

import dataclasses
import struct

import pytest

from ondie.emu.controller import fabrics
from ondie.emu.controller.discovery import DISCOVERY_NAME, DiscoveryController, Port
from ondie.emu.controller.fabrics import Connect, ConnectRefused, Subsystem
from ondie.emu.controller.registers import READY
from ondie.emu.controller.status_code import Code, Refused
from ondie.emu.nvme.wire import Sqe
from tests.protocol.controller_host import ENABLED, Host, capabilities

NAME, HOST = "nqn.2014-08.org.nvmexpress:uuid:1", "nqn.2014-08.org.nvmexpress:uuid:2"
INVALID_PARAMETERS, INVALID_HOST, BUSY = 0x182, 0x184, 0x181
DNR = 0x4000
PORT = Port("10.0.2.2", 4420, NAME)


def connect_entry(qid=0, size=31, attributes=0, keep_alive=5000, record_format=0) -> bytes:
    head = struct.pack("<BBHB19x16x", 0x7F, 0x40, 1, 1)
    return head + struct.pack("<HHHBxI12x", record_format, qid, size, attributes, keep_alive)


def connect_data(cntlid=0xFFFF, subsystem=NAME, host=HOST, host_id=b"h" * 16) -> bytes:
    head = struct.pack("<16sH", host_id, cntlid).ljust(256, b"\0")
    return head + subsystem.encode().ljust(256, b"\0") + host.encode().ljust(512, b"\0")


def asked(entry: dict | None = None, **data) -> Connect:
    return Connect.unpack(connect_entry(**(entry or {})), connect_data(**data))


def subsystem(hosts=None) -> Subsystem:
    def make(cntlid):
        return Host(dataclasses.replace(capabilities(), controller_id=cntlid)).controller

    def discovery(cntlid, port):
        return DiscoveryController(
            dataclasses.replace(capabilities(), controller_id=cntlid, capsule_bytes=8256), port
        )

    return Subsystem(NAME, hosts, make, discovery)


def refused(found: Subsystem, entry: dict | None = None, **data) -> tuple[int, int]:
    """Status and dword 0 of a Connect that is refused."""
    with pytest.raises(ConnectRefused) as error:
        found.connect(asked(entry, **data), PORT)
    answer = error.value.entry(9)
    assert answer.cid == 9
    return answer.status, answer.dw0


def test_words_of_connect():
    found = asked({"qid": 3, "size": 127, "attributes": 4, "keep_alive": 7}, cntlid=5)
    assert found == Connect(3, 128, False, 7, b"h" * 16, 5, NAME, HOST)
    assert asked().flow_control
    for entry, data, status, dword in (
        (connect_entry(record_format=1), connect_data(), 0x180, 0),
        (connect_entry(), connect_data()[:-1], Code.SGL_LENGTH_INVALID, 0),
        (connect_entry(), b"", Code.SGL_LENGTH_INVALID, 0),
        (connect_entry(size=0), connect_data(), INVALID_PARAMETERS, 44),
        (connect_entry(), connect_data(subsystem="x"), INVALID_PARAMETERS, 1 << 16 | 256),
        (connect_entry(), connect_data(host=""), INVALID_PARAMETERS, 1 << 16 | 512),
        (connect_entry(), connect_data(host="nqn." + "x" * 220), INVALID_PARAMETERS, 1 << 16 | 512),
    ):
        with pytest.raises(ConnectRefused) as error:
            Connect.unpack(entry, data)
        assert (error.value.entry(0).status, error.value.dword) == (status | DNR, dword)
    broken = connect_data()[:256] + b"nqn.\xff\xff" + connect_data()[262:]
    with pytest.raises(ConnectRefused):
        Connect.unpack(connect_entry(), broken)


def test_associations():
    found = subsystem()
    first, second = found.connect(asked(), PORT), found.connect(asked(), PORT)
    assert (first.cntlid, second.cntlid) == (1, 2) and not first.discovery
    assert first.controller.capabilities.controller_id == 1
    assert first.controller.registers.admin_entries == (32, 32)
    assert first.keep_alive_ms == 5000
    io = {"qid": 1, "size": 63}
    assert found.connect(asked(io, cntlid=2), PORT) is second and second.queues == {0, 1}
    assert list(second.controller.queues.submission) == [1]
    found.disconnect(second, 1)
    assert second.queues == {0} and not second.controller.queues.submission
    assert found.connect(asked(io, cntlid=2), PORT) is second
    found.disconnect(first, 0)
    assert found.associations == [second]
    assert (
        found.connect(asked(), PORT).cntlid == 3
    )  # the number of one that has ended comes back late


def test_refused_connections():
    found = subsystem(hosts=[HOST])
    other = HOST[:-1] + "3"
    assert refused(found, host=other) == (INVALID_HOST | DNR, 0)
    assert refused(found, subsystem=NAME[:-1]) == (INVALID_PARAMETERS | DNR, 1 << 16 | 256)
    assert refused(found, cntlid=1) == (INVALID_PARAMETERS | DNR, 1 << 16 | 16)
    assert refused(found, {"size": 30}) == (INVALID_PARAMETERS | DNR, 44)
    assert refused(found, {"size": 4096}) == (INVALID_PARAMETERS | DNR, 44)
    io = {"qid": 1}
    assert refused(found, io, cntlid=1) == (INVALID_PARAMETERS | DNR, 1 << 16 | 16)
    mine = found.connect(asked(), PORT)
    assert refused(found, io, cntlid=1, host_id=b"x" * 16) == (INVALID_HOST | DNR, 0)
    assert refused(found, {"qid": 5}, cntlid=1) == (INVALID_PARAMETERS | DNR, 42)
    assert refused(found, {"qid": 1, "size": 4096}, cntlid=1) == (INVALID_PARAMETERS | DNR, 44)
    found.connect(asked(io, cntlid=1), PORT)
    assert refused(found, io, cntlid=1) == (Code.SEQUENCE_ERROR | DNR, 0)
    mine.controller.registers.write(0x14, 4, 0)
    assert refused(found, {"qid": 2}, cntlid=1) == (Code.SEQUENCE_ERROR | DNR, 0)
    # a discovery service lets any host in, and has no I/O queues
    listed = found.connect(asked(subsystem=DISCOVERY_NAME, host=other), PORT)
    assert listed.discovery
    assert refused(found, io, subsystem=DISCOVERY_NAME, host=other, cntlid=2) == (0x185 | DNR, 0)
    while len(found.associations) < fabrics.MOST_CONTROLLERS:
        found.connect(asked(), PORT)
    assert refused(found) == (BUSY, 0)


def property_entry(kind: int, offset: int, size: int = 4, value: int = 0) -> bytes:
    head = struct.pack("<BBHB35x", 0x7F, 0x40, 1, kind)
    return head + struct.pack("<B3xIQ8x", 1 if size == 8 else 0, offset, value)


def test_properties():
    registers = subsystem().connect(asked(), PORT).controller.registers
    registers.write(0x14, 4, 0)
    registers.disabled()
    got = fabrics.property_get(property_entry(4, 0, 8), 3, registers)
    assert got.cid == 3 and got.dw0 | got.dw1 << 32 == registers.cap
    assert fabrics.property_get(property_entry(4, 8), 3, registers).dw0 == 0x20000
    actions = fabrics.property_set(property_entry(0, 0x14, 4, ENABLED), registers)
    assert [each.do.name for each in actions] == ["ENABLE"]
    registers.enabled()
    assert fabrics.property_get(property_entry(4, 0x1C), 3, registers).dw0 == READY
    for offset, size, byte in ((0x24, 4, 44), (0x1000, 4, 44), (0x14, 8, 40), (0, 4, 40)):
        for run in (
            lambda entry: fabrics.property_get(entry, 3, registers),
            lambda entry: fabrics.property_set(entry, registers),
        ):
            with pytest.raises(Refused) as error:
                run(property_entry(0, offset, size, 1))
            assert error.value.code == Code.INVALID_FIELD and error.value.where == byte
    with pytest.raises(Refused):
        fabrics.property_get(bytes(40) + b"\2" + bytes(23), 3, registers)


def discovery_run(opcode: int, **fields: int):
    controller = subsystem().connect(asked(subsystem=DISCOVERY_NAME), PORT).controller
    reply = controller.execute(Sqe(opcode, cid=4, **fields).pack())
    return reply.entries[0].status & 0x7FF, reply.entries[0].dw0, reply.data


def test_discovery_log():
    status, _, log = discovery_run(0x02, cdw10=0x70 | 1023 << 16)
    assert status == 0 and len(log) == 4096
    assert struct.unpack_from("<QQH", log) == (0, 2, 0)
    for at, kind, name in ((1024, 3, DISCOVERY_NAME), (2048, 2, NAME)):
        row = log[at : at + 1024]
        assert struct.unpack_from("<BBBBHHHH", row) == (3, 1, kind, 0, 1, 0xFFFF, 128, 0)
        assert row[32:64] == b"4420".ljust(32)
        assert row[256:512] == name.encode().ljust(256, b"\0")
        assert row[512:768] == b"10.0.2.2".ljust(256)
        assert row[768:] == bytes(256)
    assert log[3072:] == bytes(1024)
    part = discovery_run(0x02, cdw10=0x70 | 255 << 16, cdw12=2048)[2]
    assert part == log[2048:3072]
    assert discovery_run(0x02, cdw10=0x70, cdw12=2)[0] == Code.INVALID_FIELD
    assert discovery_run(0x02, cdw10=0x70, cdw12=1 << 20)[0] == Code.INVALID_FIELD
    assert discovery_run(0x02, cdw10=0x02)[0] == Code.LOG_PAGE_INVALID


def test_discovery_commands():
    status, _, data = discovery_run(0x06, cdw10=1)
    assert (
        status == 0 and data[111] == 2 and data[768:1024].rstrip(b"\0").decode() == DISCOVERY_NAME
    )
    assert struct.unpack_from("<H", data, 78) == (1,) and struct.unpack_from("<I", data, 1792) == (
        516,
    )
    assert discovery_run(0x06, cdw10=0)[0] == Code.INVALID_FIELD
    assert discovery_run(0x18)[0] == 0
    assert discovery_run(0x0A, cdw10=0x0F)[:2] == (0, 5000)
    assert discovery_run(0x09, cdw10=0x0F, cdw11=150)[0] == 0
    assert discovery_run(0x0A, cdw10=0x07)[0] == Code.INVALID_FIELD
    assert discovery_run(0x01)[0] == Code.INVALID_OPCODE
    assert discovery_run(0x0C)[0] == Code.INVALID_OPCODE
