"""Are I/O commands decoded to what the specification says, do they do it on a drive, and do walks
of PRPs and SGLs end with its statuses, bounded, for any contents of memory?"""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.controller import prp, sgl
from ondie.emu.controller.io_commands import decode, finish, record, transfer_of
from ondie.emu.controller.status_code import Refused
from ondie.emu.controller.uncorrectable import Uncorrectable
from ondie.emu.drive import Drive
from ondie.emu.nvme.command import FLUSH, READ, TRIM, WRITE
from ondie.emu.nvme.wire import Sqe
from tests.protocol.controller_host import Host, capabilities
from tests.state.written import config

FLUSH_, WRITE_, READ_, UNCORRECTABLE_, COMPARE_, ZEROES_, DEALLOCATE_, VERIFY_ = (
    0x00, 0x01, 0x02, 0x04, 0x05, 0x08, 0x09, 0x0C,
)  # fmt: skip
FUA = 1 << 30
UNIT = 4096


def rows(host: Host, opcode: int, slba: int = 0, blocks: int = 1, **fields: int) -> list[list]:
    """Stages of a command's plan as (op, offset, size, fua)."""
    data = fields.pop("data", b"")
    fields["cdw12"] = fields.get("cdw12", 0) | blocks - 1
    sqe = Sqe(opcode, **({"nsid": 1, "cdw10": slba} | fields))
    plan = decode(sqe, host.controller, data)
    return [
        [tuple(int(each[name]) for name in ("op", "offset", "size", "fua")) for each in stage]
        for stage in plan.stages
    ]


def refused(host: Host, opcode: int, **fields: int) -> int:
    with pytest.raises(Refused) as found:
        decode(Sqe(opcode, **({"nsid": 1} | fields)), host.controller)
    return int(found.value.code)


def test_reads_writes_and_flushes():
    host = Host()
    assert rows(host, READ_, 3, 5) == [[(READ, 1536, 2560, 0)]]
    assert rows(host, READ_, 3, 5, cdw12=FUA) == [[(FLUSH, 0, 0, 0)], [(READ, 1536, 2560, 0)]]
    assert rows(host, WRITE_, 8, 8) == [[(WRITE, 4096, 4096, 0)]]
    assert rows(host, WRITE_, 8, 8, cdw12=FUA) == [[(WRITE, 4096, 4096, 1)]]
    for nsid in (1, 0xFFFFFFFF):
        assert rows(host, FLUSH_, nsid=nsid) == [[(FLUSH, 0, 0, 0)]]
    assert host.status(0x09, cdw10=0x06, cdw11=0) == 0  # the write cache is disabled
    assert rows(host, WRITE_, 8, 8) == [[(WRITE, 4096, 4096, 1)]]
    assert transfer_of(Sqe(WRITE_, nsid=1, cdw12=7), host.controller) == (1, 4096)
    assert transfer_of(Sqe(READ_, nsid=1, cdw12=7), host.controller) == (2, 4096)
    assert transfer_of(Sqe(DEALLOCATE_, nsid=1, cdw10=2), host.controller) == (1, 48)
    assert transfer_of(Sqe(ZEROES_, nsid=1, cdw12=7), host.controller) == (0, 0)


def test_a_second_namespace_is_at_its_place():
    host = Host(whole=False)
    host.namespaces.create(9)
    host.namespaces.create(16).attached = True
    assert rows(host, READ_, 15, nsid=2) == [[(READ, 8192 + 15 * 512, 512, 0)]]
    assert refused(host, READ_, nsid=2, cdw10=16) == 0x080
    assert refused(host, READ_, nsid=1) == 0x002  # not attached


def test_write_zeroes_deallocates_whole_units_and_writes_the_rest():
    host = Host()
    assert rows(host, ZEROES_, 8, 16) == [[(TRIM, 4096, 8192, 0)]]
    assert rows(host, ZEROES_, 7, 10) == [
        [(TRIM, 4096, 4096, 0), (WRITE, 3584, 512, 0), (WRITE, 8192, 512, 0)]
    ]
    assert rows(host, ZEROES_, 7, 2) == [[(WRITE, 3584, 512, 0), (WRITE, 4096, 512, 0)]]
    assert rows(host, ZEROES_, 9, 3) == [[(WRITE, 4608, 1536, 0)]]
    assert rows(host, ZEROES_, 8, 9, cdw12=FUA) == [
        [(TRIM, 4096, 4096, 0), (WRITE, 8192, 512, 1)], [(FLUSH, 0, 0, 0)]
    ]  # fmt: skip
    none = Host(capabilities(**{"cache.mode": "off"}))
    assert rows(none, ZEROES_, 8, 8) == [[(TRIM, 4096, 4096, 0)], [(FLUSH, 0, 0, 0)]]


def test_dataset_management():
    host = Host()
    data = b"".join(struct.pack("<IIQ", 0, *each) for each in ((8, 16), (0, 5), (1, 0)))
    found = rows(host, DEALLOCATE_, 2, cdw11=4, data=data)
    assert found == [[(TRIM, 8192, 4096, 0), (TRIM, 0, 512, 0)]]
    past = struct.pack("<IIQ", 0, 1, (64 << 20) // 512)
    with pytest.raises(Refused, match="0x080"):
        decode(Sqe(DEALLOCATE_, nsid=1, cdw11=4), host.controller, past)
    with pytest.raises(Refused, match="0x004"):
        decode(Sqe(DEALLOCATE_, nsid=1, cdw11=4), host.controller, past[:15])
    assert decode(Sqe(DEALLOCATE_, nsid=1), host.controller, bytes(16)).stages == ()


def test_bad_commands():
    host = Host()
    last = (64 << 20) // 512
    for fields, status in (
        ({"nsid": 0}, 0x00B), ({"nsid": 17}, 0x00B), ({"nsid": 0xFFFFFFFF}, 0x00B),
        ({"nsid": 2}, 0x002), ({"flags": 1}, 0x002), ({"cdw12": 1 << 29}, 0x002),
        ({"cdw12": 2048}, 0x002), ({"cdw10": last}, 0x080),
        ({"cdw10": last - 1, "cdw12": 1}, 0x080),
        ({"cdw10": 0xFFFFFFFF, "cdw11": 0xFFFFFFFF}, 0x080),
    ):  # fmt: skip
        for opcode in (READ_, WRITE_, COMPARE_):
            assert refused(host, opcode, **fields) == status, fields
    assert refused(host, 0x7F) == 0x001 and refused(host, 0x19) == 0x001
    host.namespaces.by_nsid[1].write_protected = True
    for opcode in (WRITE_, ZEROES_, UNCORRECTABLE_, DEALLOCATE_):
        assert refused(host, opcode) == 0x020
    host.run(0x84, cdw10=2)  # is refused too
    decode(Sqe(READ_, nsid=1), host.controller)
    host.namespaces.by_nsid[1].write_protected = False
    host.run(0x84, cdw10=2)
    assert refused(host, READ_) == 0x01D
    assert record(host.controller, 3, Sqe(READ_, cid=9, nsid=1, cdw10=5), 0x281, 40) == 0x4281
    entry = host.controller.errors.entries[0]
    assert (entry.sqid, entry.cid, entry.status, entry.lba, entry.nsid) == (3, 9, 0x4281, 5, 1)
    assert record(host.controller, 3, Sqe(READ_), 0x080) == 0x4080


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 12)), max_size=40))
def test_marked_ranges_are_a_set(steps):
    marked, bytes_ = Uncorrectable(), set()
    for mark, first, size in steps:
        (marked.mark if mark else marked.clear)(first, size)
        bytes_ = (bytes_ | set(range(first, first + size)) if mark
                  else bytes_ - set(range(first, first + size)))  # fmt: skip
        assert marked.ranges == sorted(marked.ranges)
        assert all(a[1] < b[0] for a, b in zip(marked.ranges, marked.ranges[1:], strict=False))
        for at in range(54):
            assert marked.touches(at, 2) == bool(bytes_ & {at, at + 1})


def test_commands_on_a_drive():
    with Drive(config(cache__mode="off"), payload=True) as drive:
        block, unit = drive.block_bytes, drive.unit_bytes
        offered = capabilities(**{"cache.mode": "off"})
        offered = type(offered)(
            **{name: getattr(offered, name) for name in offered.__slots__}
            | {"block_bytes": block, "mapping_unit_bytes": unit,
               "capacity_bytes": drive.units * unit}
        )  # fmt: skip
        host = Host(offered)

        def run(opcode: int, slba: int, data: bytes = b"", ranges: bytes = b"", **fields: int):
            sqe = Sqe(opcode, nsid=1, cdw10=slba, **fields)
            try:
                plan = decode(sqe, host.controller, ranges)
            except Refused as wrong:
                return int(wrong.code), b""
            area = np.zeros(max(plan.area, 1), np.uint8)
            area[: len(data)] = np.frombuffer(data, np.uint8)
            statuses: list[int] = []
            for stage in plan.stages:
                drive.buffer = area
                stage["arrival"] = drive.earliest_arrival
                stage["tag"] = np.arange(len(stage))
                drive.submit(stage)
                drive.run_until(completions=len(stage))
                statuses += drive.completions()["status"].tolist()
            status = finish(plan, statuses, area, host.controller)
            return status, area[: plan.size].tobytes()

        first, second = bytes([7]) * block, bytes([8]) * block
        assert run(WRITE_, 2, first)[0] == 0 and run(WRITE_, 3, second)[0] == 0
        assert run(READ_, 2, cdw12=1) == (0, first + second)
        assert run(COMPARE_, 2, first)[0] == 0 and run(COMPARE_, 3, first)[0] == 0x285
        assert run(VERIFY_, 3)[0] == 0 and run(FLUSH_, 0)[0] == 0
        assert run(UNCORRECTABLE_, 2)[0] == 0
        assert run(READ_, 1, cdw12=1)[0] == 0x281 and run(VERIFY_, 2)[0] == 0x281
        assert run(READ_, 3) == (0, second)
        assert host.status(0x80, nsid=1) == 0 and run(READ_, 2)[0] == 0  # Format takes marks away
        assert run(UNCORRECTABLE_, 2)[0] == 0
        assert run(WRITE_, 2, second)[0] == 0 and run(READ_, 2) == (0, second)
        assert run(ZEROES_, 2)[0] == 0 and run(READ_, 2, cdw12=1) == (0, bytes(block) + second)
        ranges = struct.pack("<IIQ", 0, 1, 3)
        assert run(DEALLOCATE_, 0, ranges=ranges, cdw11=4)[0] == 0
        assert run(READ_, 3) == (0, bytes(block))
        counts = host.controller.shared
        assert counts.write_commands == 3 and counts.read_commands == 9


# --- pieces of host memory


class Ram:
    """Host memory of ``size`` bytes from ``base`` on; counts what is read."""

    def __init__(self, size: int = 64 * UNIT, base: int = 0x10000) -> None:
        self.base, self.bytes = base, bytearray(size)
        self.read_bytes = 0

    def holds(self, address: int, size: int) -> bool:
        return self.base <= address and address + size <= self.base + len(self.bytes)

    def read(self, address: int, size: int) -> bytes | None:
        self.read_bytes += size
        if not self.holds(address, size):
            return None
        return bytes(self.bytes[address - self.base : address - self.base + size])

    def put(self, address: int, data: bytes) -> None:
        self.bytes[address - self.base : address - self.base + len(data)] = data


def page(number: int) -> int:
    return 0x10000 + number * UNIT


def walk_status(*arguments: object) -> int:
    with pytest.raises(Refused) as found:
        prp.walk(*arguments)  # type: ignore[arg-type]
    return int(found.value.code)


def test_prps_of_one_and_two_pages():
    ram = Ram()
    assert prp.walk(page(1) + 8, 0, 100, UNIT, ram) == [(page(1) + 8, 100)]
    assert prp.walk(page(1) + 4000, page(5), 512, UNIT, ram) == [
        (page(1) + 4000, 96),
        (page(5), 416),
    ]
    assert prp.walk(page(1), page(2), 2 * UNIT, UNIT, ram) == [(page(1), 2 * UNIT)]
    assert prp.walk(page(1), 1, UNIT, UNIT, ram) == [(page(1), UNIT)] and ram.read_bytes == 0
    assert walk_status(page(1) + 2, 0, 8, UNIT, ram) == 0x013
    assert walk_status(page(1), page(2) + 8, 2 * UNIT, UNIT, ram) == 0x013
    assert walk_status(page(1) + 8, page(2) + 8, UNIT, UNIT, ram) == 0x013
    for prp1, prp2 in ((0, 0), (page(64), 0), (page(63), page(64)), (1 << 63, 0)):
        assert walk_status(prp1, prp2, 2 * UNIT, UNIT, ram) == 0x004


def test_prp_lists():
    ram = Ram()
    ram.put(page(9) + 4080, struct.pack("<QQ", page(20), page(10)))  # one entry, then a list
    ram.put(page(10), struct.pack("<QQ", page(30), page(22)))
    size = 3 * UNIT + 16
    found = prp.walk(page(1) + 16, page(9) + 4080, size, UNIT, ram)
    assert found == [(page(1) + 16, UNIT - 16), (page(20), UNIT), (page(30), UNIT), (page(22), 32)]
    assert walk_status(page(1), page(9) + 4, size, UNIT, ram) == 0x013
    full = prp.walk(page(1), page(9) + 4080, 3 * UNIT, UNIT, ram)  # two entries fill the page
    assert full == [(page(1), UNIT), (page(20), UNIT), (page(10), UNIT)]
    ram.put(page(10), struct.pack("<QQ", page(30) + 4, page(22)))
    assert walk_status(page(1), page(9) + 4080, size, UNIT, ram) == 0x013
    ram.put(page(10), struct.pack("<QQ", page(30), page(64)))
    assert walk_status(page(1), page(9) + 4080, size, UNIT, ram) == 0x004
    ram.put(page(9) + 4088, struct.pack("<Q", page(70)))  # a list outside of memory
    assert walk_status(page(1), page(9) + 4080, size, UNIT, ram) == 0x004
    ram.put(page(9) + 4088, struct.pack("<Q", page(11) + 8))
    assert walk_status(page(1), page(9) + 4080, size, UNIT, ram) == 0x013
    ram.put(page(9), struct.pack("<512Q", *[page(3)] * 511, page(9)))  # returns to itself
    assert walk_status(page(1), page(9) + 4088, 4 * UNIT, UNIT, ram) == 0x002
    assert walk_status(page(1), page(9), 2000 * UNIT, UNIT, ram) == 0x002


@given(st.integers(0, 1 << 18), st.integers(0, 1 << 20), st.integers(1, 48), st.data())
def test_any_prps_end_bounded(prp1, size, pages, data):
    ram = Ram()
    places = st.integers(0, 70).map(page)
    entries = st.one_of(
        places, places, places.map(lambda at: at + 8), st.integers(0, (1 << 64) - 1)
    )
    for number in range(pages):
        filled = data.draw(st.lists(entries, min_size=4, max_size=4))
        ram.put(page(number), struct.pack("<512Q", *(filled * 128)))
    prp2 = data.draw(entries)
    try:
        found = prp.walk(prp1, prp2, size, UNIT, ram)
    except Refused as wrong:
        assert int(wrong.code) in (0x002, 0x004, 0x013)
    else:
        assert sum(piece.size for piece in found) == size
        assert all(ram.holds(*piece) for piece in found)
    assert ram.read_bytes <= 8 * (size // UNIT + 2) * 2


def block(address: int, size: int, kind: int = 0, subtype: int = 0) -> bytes:
    return struct.pack("<QI3xB", address, size, kind << 4 | subtype)


def sgl_status(descriptor: bytes, size: int, ram: Ram, capsule: int | None = None) -> int:
    with pytest.raises(Refused) as found:
        sgl.walk(descriptor, size, ram, capsule)
    return int(found.value.code)


def test_sgls():
    ram, memory = Ram(), sgl.Place.MEMORY
    assert sgl.walk(block(page(1), 600), 512, ram) == [(page(1), 512, memory)]
    ram.put(page(2), block(page(3) + 1, 100) + block(0, 0) + block(page(4), 32, 3))
    ram.put(page(4), block(page(5), 200) + block(page(6), 300))
    found = sgl.walk(block(page(2), 48, 2), 512, ram)
    assert found == [(page(3) + 1, 100, memory), (page(5), 200, memory), (page(6), 212, memory)]
    assert sgl_status(block(page(1), 511), 512, ram) == 0x00F
    assert sgl_status(block(page(2), 48, 2), 601, ram) == 0x00F
    assert sgl_status(block(page(2), 40, 2), 512, ram) == 0x00D
    assert sgl_status(block(page(2), 0, 3), 512, ram) == 0x00D
    assert sgl_status(block(page(2), 32, 2), 512, ram) == 0x00D  # does not end with a segment
    assert sgl_status(block(page(2), 48, 3), 512, ram) == 0x00D  # a last segment that goes on
    for kind, subtype in ((1, 0), (4, 0), (5, 10), (0, 1), (0, 2), (15, 0), (2, 1)):
        assert sgl_status(block(page(1), 512, kind, subtype), 512, ram) == 0x011
    assert sgl_status(block(page(64), 512), 512, ram) == 0x004
    assert sgl_status(block(page(64), 32, 2), 512, ram) == 0x004
    ram.put(page(7), block(page(7), 16, 2))  # returns to itself
    assert sgl_status(block(page(7), 16, 2), 512, ram) == 0x00E
    assert sgl_status(block(page(7), 0xFFFFFFF0, 2), 512, ram) == 0x00E


def test_sgls_in_capsules():
    ram = Ram()
    assert sgl.walk(block(16, 512, 0, 1), 512, ram, 4096) == [(16, 512, sgl.Place.CAPSULE)]
    assert sgl.walk(block(0, 512, 5, 10), 512, ram, 0) == [(0, 512, sgl.Place.TRANSPORT)]
    assert sgl_status(block(3600, 512, 0, 1), 512, ram, 4096) == 0x016
    assert sgl_status(block(0, 2**32 - 1, 0, 1), 8192, ram, 4096) == 0x016


DESCRIPTOR = st.builds(
    block,
    st.one_of(st.integers(0, 66).map(page), st.integers(0, (1 << 64) - 1)),
    st.one_of(st.integers(0, 20).map(lambda count: 16 * count), st.integers(0, (1 << 32) - 1)),
    st.sampled_from((0, 0, 2, 2, 3, 5, 7)),
    st.sampled_from((0, 0, 0, 1, 10)),
)


@given(DESCRIPTOR, st.lists(DESCRIPTOR, min_size=1, max_size=20), st.integers(0, 1 << 20),
       st.sampled_from((None, 0, 8192)))  # fmt: skip
def test_any_sgl_ends_bounded(first, descriptors, size, capsule):
    ram = Ram()
    filled = (b"".join(descriptors) * 256)[:UNIT]
    for number in range(64):
        ram.put(page(number), filled)
    try:
        found = sgl.walk(first, size, ram, capsule)
    except Refused as wrong:
        assert int(wrong.code) in (0x004, 0x00D, 0x00E, 0x00F, 0x011, 0x016)
    else:
        assert sum(piece.size for piece in found) == size
        inside = [piece for piece in found if piece.place is sgl.Place.MEMORY]
        assert all(ram.holds(piece.address, piece.size) for piece in inside)
    assert ram.read_bytes <= 2 * sgl.MOST_DESCRIPTORS * 16


@given(st.binary(min_size=64, max_size=64), st.sampled_from((0, 1, 2, 4, 5, 8, 9, 12, 255)))
def test_any_io_command_stays_inside_of_its_namespace(entry, opcode):
    host = Host(whole=False)
    host.namespaces.create(64)
    host.namespaces.create(4096).attached = True
    sqe = Sqe.unpack(entry)._replace(opcode=opcode, nsid=2, flags=0)
    sqe = sqe._replace(cdw10=sqe.cdw10 & 0x1FFF, cdw11=sqe.cdw11 & 4, cdw12=sqe.cdw12 & ~(15 << 26))
    direction, size = transfer_of(sqe, host.controller)
    data = (entry * (size // 64 + 1))[:size] if direction == 1 and opcode == 9 else b""
    try:
        plan = decode(sqe, host.controller, data)
    except Refused:
        return
    first, end = 32768, 32768 + 4096 * 512
    for stage in plan.stages:
        for each in stage:
            if each["op"] != FLUSH:
                assert first <= each["offset"] and each["offset"] + each["size"] <= end
                assert each["size"] > 0 and each["data"] + each["size"] * (
                    each["data"] >= 0
                ) <= max(plan.area, 0)
