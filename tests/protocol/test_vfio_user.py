"""The drive as a PCIe function behind vfio-user: does a driver that does what Linux does find it,
read back what it wrote, and survive resets; does each wrong message, pointer, doorbell and region
get the status that the specification names, and touch nothing else?"""

import errno
import os
import select
import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ondie.emu.drive import Drive
from ondie.emu.nvme.wire import Sqe
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.pcie_io import MemoryIo, Part
from ondie.emu.serve.served import ServedDrive
from ondie.emu.serve.vfio_user import VfioUserServer
from ondie.emu.service import Service
from tests.protocol import vfio_client
from tests.protocol.vfio_client import (
    BAR0,
    CONFIG,
    DMA_MAP,
    INFO,
    MSIX,
    PAGE,
    READ,
    REGION_INFO,
    REQ,
    RESET,
    SET_IRQS,
    VERSION,
    WRITE,
    WRITE_MULTI,
    Driver,
    VfioClient,
    VfioError,
)
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

BLOCK = 512
FATAL = 2
FLUSH, WRITE_, READ_, COMPARE = 0, 1, 2, 5
IDENTIFY, GET_LOG, CREATE_SQ, DELETE_SQ, CREATE_CQ, DELETE_CQ, GET_FEATURES, SET_FEATURES, EVENT = (
    6, 2, 1, 0, 5, 4, 10, 9, 12,
)  # fmt: skip


@pytest.fixture(scope="module")
def served():
    """A drive of 2 MB and less for all tests of this file."""
    drive = Drive(config(**(SMALL | MODES["write back"])), payload=True, block_bytes=BLOCK)
    service = Service(drive)
    yield NvmeDrive(ServedDrive(drive, service))
    service.close()
    drive.check()
    drive.close()


@pytest.fixture
def server(served, tmp_path):
    found = VfioUserServer(served, Listener(Address(path=str(tmp_path / "sock")), "--vfio-user"))
    yield found
    found.close()


@pytest.fixture
def client(server):
    with VfioClient(server.listener.address.path) as found:
        found.map()
        yield found


@pytest.fixture
def driver(client):
    found = Driver(client)
    found.enable()
    return found


def rw(opcode: int, first: int, blocks: int, prp1: int, prp2: int = 0, **fields: int) -> Sqe:
    return Sqe(opcode, nsid=1, cdw10=first, cdw12=blocks - 1, prp1=prp1, prp2=prp2, **fields)


# --- as a driver does


def test_a_driver_finds_the_device(client):
    assert struct.unpack("<IIII", client.call(INFO, struct.pack("<IIII", 16, 0, 0, 0))) == (
        16, 3, 9, 5,
    )  # fmt: skip
    sizes = {}
    for index in range(9):
        asked = struct.pack("<IIIIQQ", 32, 0, index, 0, 0, 0)
        _, flags, found, _, sizes[index], _ = struct.unpack(
            "<IIIIQQ", client.call(REGION_INFO, asked)
        )
        assert found == index and flags == (3 if sizes[index] else 0)
    assert {index: size for index, size in sizes.items() if size} == {BAR0: 1 << 14, CONFIG: 4096}
    assert client.read(CONFIG, 9, 3) == 0x010802 and client.read(CONFIG, 6, 2) & 16
    capabilities, at = {}, client.read(CONFIG, 0x34, 1)
    while at:
        capabilities[client.read(CONFIG, at, 1)] = at
        at = client.read(CONFIG, at + 1, 1)
    assert set(capabilities) == {0x01, 0x10, 0x11}  # power, PCI Express, MSI-X
    vectors = client.read(CONFIG, capabilities[0x11] + 2, 2) + 1
    found = client.call(vfio_client.IRQ_INFO, struct.pack("<IIII", 16, 0, MSIX, 0))
    assert struct.unpack("<IIII", found)[3] == vectors == 17
    client.write(CONFIG, 0x10, 0xFFFFFFFF)  # the size of BAR0
    client.write(CONFIG, 0x14, 0xFFFFFFFF)
    assert -(client.read(CONFIG, 0x10, 8) & ~0xF) & (1 << 64) - 1 == 1 << 14
    client.write(CONFIG, 0, 0x1234, 2)
    assert client.read(CONFIG, 0, 2) == 0  # read-only
    assert client.read(BAR0, 0, 8) >> 37 & 1 and client.read(BAR0, 8) == 2 << 16


def test_a_driver_writes_and_reads(driver, served, counts):
    """Random commands in two queues, from and to scattered pages, beside a dictionary."""
    identify = driver.data(IDENTIFY, cdw10=1)
    assert identify[24:29] == b"ondie" and identify[77] == 3  # MDTS: 32 KiB
    assert driver.command(SET_FEATURES, cdw10=7, cdw11=0x0001_0001).dw0 == 0x0001_0001
    queues = [driver.create(1), driver.create(2)]
    rng, blocks = np.random.default_rng(4), served.capabilities.capacity_bytes // BLOCK
    model = np.zeros((blocks, BLOCK), np.uint8)
    pages = [driver.take(PAGE) for _ in range(9 * 16)]
    lists = [driver.take(PAGE) for _ in range(16)]
    for turn in range(counts(40, 400)):
        queue = queues[turn % 2]
        starts = rng.permutation(blocks // 64)[:16] * 64
        given, wanted = [], []
        for at, start in enumerate(starts.tolist()):
            first, count = start + int(rng.integers(8)), int(rng.integers(1, 57))
            mine = [pages[at * 9 + each] for each in rng.permutation(9)]
            offset = int(rng.integers(PAGE // 4)) * 4
            size, needed = count * BLOCK, -(-(count * BLOCK + offset) // PAGE)
            second = 0
            if needed == 2:
                second = mine[1]
            elif needed > 2:
                words = struct.pack(f"<{needed - 1}Q", *mine[1:needed])
                second = lists[at] + int(rng.integers(0, 400)) * 8
                driver.view(second, len(words))[:] = words
            pieces = cut(mine, offset, size)
            if rng.integers(2):
                opcode, data = WRITE_, rng.integers(256, size=size, dtype=np.uint8)
                model[first : first + count] = data.reshape(count, BLOCK)
                put(driver, pieces, data.tobytes())
                wanted.append((pieces, None))
            else:
                opcode = READ_
                put(driver, pieces, bytes(size))
                wanted.append((pieces, model[first : first + count].tobytes()))
            given.append(rw(opcode, first, count, mine[0] + offset, second))
        done = driver.run(queue, *given)
        assert [each.status for each in done] == [0] * 16
        assert {each.sqid for each in done} == {queue.number}
        for pieces, data in wanted:
            if data is not None:
                assert taken(driver, pieces) == data
    assert driver.admin.heard == driver.admin.tail


def cut(pages: list[int], offset: int, size: int) -> list[tuple[int, int]]:
    found = []
    for page in pages:
        count = min(size, PAGE - offset)
        if count:
            found.append((page + offset, count))
        size, offset = size - count, 0
    return found


def put(driver: Driver, pieces: list[tuple[int, int]], data: bytes) -> None:
    at = 0
    for address, count in pieces:
        driver.view(address, count)[:] = data[at : at + count]
        at += count


def taken(driver: Driver, pieces: list[tuple[int, int]]) -> bytes:
    return b"".join(bytes(driver.view(*each)) for each in pieces)


def test_sgl_and_writes_of_several_registers_at_once(driver):
    queue, place = driver.create(1), driver.take(PAGE)
    driver.view(place, BLOCK)[:] = b"s" * BLOCK
    at = driver.take(PAGE)
    half = BLOCK // 2
    listed = struct.pack("<QI4xQI4x", place, half, place + half, half)
    driver.view(at, 32)[:] = listed
    sgl = Sqe(WRITE_, flags=1 << 6, nsid=1, cdw10=7, prp1=at, prp2=32 | 3 << 60)
    assert driver.run(queue, sgl)[0].status == 0
    cid = driver.push(queue, rw(READ_, 7, 1, place + 1024))
    driver.client.call(
        WRITE_MULTI,
        struct.pack("<Q", 2)
        + struct.pack("<QIIQ", 0x1000 + 8, BAR0, 4, queue.tail)
        + struct.pack("<QIIQ", 0x0C, BAR0, 4, 0),
    )
    assert driver.wait(queue, 1)[0].cid == cid
    assert bytes(driver.view(place + 1024, BLOCK)) == b"s" * BLOCK
    assert driver.run(driver.admin, Sqe(IDENTIFY, flags=1 << 6, cdw10=1))[0].status == 2


def look(driver: Driver) -> None:
    """Let the server work on all that it was sent, three times."""
    for _ in range(4):  # it answers what has come, then works
        driver.client.read(BAR0, 0x1C)


def test_a_sanitize_operation(driver):
    """Its end is an event from another thread; the log says so until something is written."""
    queue, place = driver.create(1), driver.take(PAGE)
    driver.view(place, BLOCK)[:] = b"s" * BLOCK
    assert driver.run(queue, rw(WRITE_, 7, 1, place))[0].status == 0
    event = driver.push(driver.admin, Sqe(EVENT))
    driver.push(driver.admin, Sqe(0x84, cdw10=2))
    driver.ring(driver.admin)
    done = {each.cid: each for each in driver.wait(driver.admin, 2)}
    assert [each.status for each in done.values()] == [0, 0]
    assert done[event].dw0 == 6 | 1 << 8 | 0x81 << 16
    assert driver.data(GET_LOG, cdw10=0x81 | 127 << 16)[2:4] == b"\x01\x01"
    assert driver.run(queue, rw(READ_, 7, 1, place))[0].status == 0
    assert not any(driver.view(place, BLOCK))
    assert driver.run(queue, rw(WRITE_, 7, 1, place))[0].status == 0
    assert driver.data(GET_LOG, cdw10=0x81 | 127 << 16)[2:4] == b"\x01\x00"


def test_no_command_of_another_controller_comes_between_decoding_and_running(
    driver, served, monkeypatch
):
    """The other one formats the namespace: afterwards nothing is left of the write."""
    queue, place = driver.create(1), driver.take(PAGE)
    other = served.controller(lambda entries: None, controller_id=7)
    formatting = threading.Thread(
        target=served.execute, args=(other, Sqe(0x80, nsid=1).pack()), daemon=True
    )
    decode = MemoryIo._decode

    def first(self: MemoryIo, parts: list[Part], passed: bool) -> int:
        made = decode(self, parts, passed)
        if not formatting.ident:
            formatting.start()
            formatting.join(0.3)
        return made

    monkeypatch.setattr(MemoryIo, "_decode", first)
    driver.view(place, BLOCK)[:] = b"w" * BLOCK
    assert driver.run(queue, rw(WRITE_, 5, 1, place))[0].status == 0
    formatting.join(10)
    assert not formatting.is_alive()
    served.remove(other)
    assert driver.run(queue, rw(READ_, 5, 1, place))[0].status == 0
    assert not any(driver.view(place, BLOCK))


def test_queues_wrap_and_wait_for_room(driver):
    """A completion queue of 4 entries behind a submission queue of 32: no completion is lost, and
    each comes when the driver has made room."""
    place = driver.take(PAGE)
    completion = driver.take(PAGE)
    assert driver.command(CREATE_CQ, prp1=completion, cdw10=1 | 3 << 16, cdw11=1).status == 0
    submission = driver.take(PAGE)
    assert driver.command(CREATE_SQ, prp1=submission, cdw10=1 | 31 << 16,
                          cdw11=1 | 1 << 16).status == 0  # fmt: skip
    queue = vfio_client.Queue(1, submission, completion, 4, driver.vectors[0])
    ring = vfio_client.Queue(1, submission, completion, 32, driver.vectors[0])
    seen = []
    for _ in range(3):
        cids = [driver.push(ring, rw(READ_, at, 1, place)) for at in range(20)]
        driver.ring(ring)
        look(driver)
        for _ in range(100):
            driver.client.read(BAR0, 0x1C)  # the server has seen what came before
            seen += [each.cid for each in driver.reap(queue)]
            if len(seen) == len(cids):
                break
        assert sorted(seen) == cids
        seen.clear()


def test_doorbells_in_memory(driver, server, counts):
    """No command is lost, whether the server reads doorbells or sleeps, and registers are written
    for some of them only; after a reset, registers count again."""
    queues = [driver.create(1), driver.create(2, entries=8)]
    driver.use_shadow()
    place, before, total = driver.take(PAGE), driver.rung, 0
    rng = np.random.default_rng(9)
    for turn in range(counts(60, 1000)):
        queue = queues[turn % 2]
        for _ in range(int(rng.integers(1, 4))):  # without a pause
            count = int(rng.integers(1, queue.entries))
            done = driver.run(queue, *[rw(READ_, 8 * at, 1, place) for at in range(count)])
            assert [each.status for each in done] == [0] * count
            total += count
        if turn % 20 == 0:
            time.sleep(0.005)  # the server sleeps
    assert driver.rung - before < total // 2
    function = server.session.function
    assert function.late_doorbells == 0
    event = driver.push(driver.admin, Sqe(EVENT))
    driver.ring(driver.admin)
    driver.view(driver.shadow + 8, 4)[:] = struct.pack("<I", 99)
    driver.client.post(BAR0, 0x1008, 0)  # its value does not count
    (done,) = driver.wait(driver.admin, 1)
    assert (done.cid, done.dw0) == (event, 0 | 1 << 8 | 1 << 16)
    driver.disable()
    driver.next = 2 * PAGE
    driver.enable()
    assert not function.has_shadow
    queue = driver.create(1)
    assert driver.run(queue, rw(READ_, 0, 1, place))[0].status == 0


@pytest.mark.parametrize("shadow", [False, True])
def test_interrupts_that_wait_for_more(driver, shadow):
    """With Interrupt Coalescing, a completion alone is announced after the time; as many as the
    threshold, the admin queue and a vector without it need not wait."""
    queue = driver.create(1)
    if shadow:
        driver.use_shadow()
    place = driver.take(PAGE)
    read = Sqe(READ_, nsid=1, prp1=place)
    assert driver.command(9, cdw10=8, cdw11=255 << 8 | 7).status == 0
    begin = time.monotonic()
    assert driver.run(queue, read)[0].status == 0
    assert time.monotonic() - begin >= 0.0255
    assert [each.status for each in driver.run(queue, *[read] * 21)] == [0] * 21
    took = []
    for value in (1, *[1 | 1 << 16] * 3):  # the machine may be busy in one of three
        assert driver.command(9, cdw10=9, cdw11=value).status == 0
        begin = time.monotonic()
        for _ in range(10):
            assert driver.run(queue, read)[0].status == 0
        took.append(time.monotonic() - begin)
    assert took[0] >= 0.255 and min(took[1:]) < took[0], took


def test_wrong_doorbells_in_memory(driver):
    place = driver.take(PAGE)
    for prp1, prp2 in ((place + 4, place), (place, 0), (place, driver.base + driver.client.size)):
        assert driver.command(0x7C, prp1=prp1, prp2=prp2).status == 2
    driver.create(1)
    VfioMemory(driver.client, 1 << 20, 2 * PAGE)
    assert driver.command(0x7C, prp1=1 << 20, prp2=(1 << 20) + PAGE).status == 0
    driver.client.unmap(1 << 20, 2 * PAGE)
    assert driver.wait_status(FATAL, FATAL)


# --- wrong pointers, queues and doorbells


def test_wrong_data_pointers(driver):
    queue, place = driver.create(1), driver.take(4 * PAGE)
    outside, end = driver.base + driver.client.size, driver.base + driver.client.size - PAGE
    loop = driver.take(PAGE)
    last = loop + PAGE - 16  # two entries: a page of data, and the next list
    driver.view(last, 16)[:] = struct.pack("<2Q", place + PAGE, loop)
    before = bytes(driver.view(place, 4 * PAGE))
    for sqe, status in (
        (rw(READ_, 0, 1, outside), 0x004),
        (rw(READ_, 0, 1, outside - 4), 0x004),
        (rw(READ_, 0, 1, 0), 0x004),
        (rw(READ_, 0, 1, (1 << 64) - 512), 0x004),
        (rw(READ_, 0, 16, place, outside), 0x004),
        (rw(READ_, 0, 64, place, outside), 0x004),
        (rw(READ_, 0, 1, place + 2), 0x013),
        (rw(READ_, 0, 16, place, place + 8), 0x013),
        (rw(READ_, 0, 64, place, loop + 4), 0x013),
        (rw(READ_, 0, 64, place, last), 0x002),  # the list comes back to its page
        (rw(WRITE_, 0, 64, place, last), 0x002),
        (rw(READ_, 0, 1 << 16, place), 0x002),
        (rw(READ_, 0, 1, place, prp2=4 << 60, flags=1 << 6), 0x011),  # no such descriptor
        (rw(READ_, 0, 1, outside, prp2=BLOCK, flags=1 << 6), 0x004),
        (rw(READ_, 0, 1, place, prp2=BLOCK - 1, flags=1 << 6), 0x00F),
    ):
        assert driver.run(queue, sqe)[0].status == status, sqe
    assert bytes(driver.view(place, 4 * PAGE)) == before
    good = driver.run(queue, rw(READ_, 0, 8, end), rw(READ_, 0, 1, outside))
    assert [each.status for each in good] == [0, 4]


def test_wrong_queues(driver):
    place = driver.take(PAGE)
    for opcode, fields, status in (
        (CREATE_CQ, {"cdw10": 1}, 0x102),  # one entry
        (CREATE_CQ, {"cdw10": 1 | 0xFFFF << 16}, 0x102),  # 65,536
        (CREATE_CQ, {"cdw10": 0 | 3 << 16}, 0x101),
        (CREATE_CQ, {"cdw10": 99 | 3 << 16}, 0x101),
        (CREATE_CQ, {"cdw10": 1 | 3 << 16, "cdw11": 3 | 17 << 16}, 0x108),
        (CREATE_CQ, {"cdw10": 1 | 3 << 16, "prp1": place + 8}, 0x013),
        (CREATE_CQ, {"cdw10": 1 | 3 << 16, "prp1": 0}, 0x002),
        (CREATE_CQ, {"cdw10": 1 | 3 << 16, "cdw11": 0}, 0x002),
        (CREATE_SQ, {"cdw10": 1 | 3 << 16, "cdw11": 1 | 1 << 16}, 0x100),
        (DELETE_CQ, {"cdw10": 1}, 0x101),
        (DELETE_SQ, {"cdw10": 1}, 0x101),
    ):
        done = driver.command(opcode, **({"prp1": place, "cdw11": 1} | fields))
        assert done.status == status, (opcode, fields)
    queue = driver.create(1)
    assert driver.command(CREATE_CQ, prp1=place, cdw10=1 | 3 << 16, cdw11=1).status == 0x101
    assert driver.command(DELETE_CQ, cdw10=1).status == 0x10C
    outside = driver.base + driver.client.size
    assert driver.command(CREATE_CQ, prp1=outside, cdw10=2 | 3 << 16, cdw11=1).status == 2
    assert driver.command(CREATE_CQ, prp1=place, cdw10=2 | 3 << 16, cdw11=1).status == 0
    assert driver.command(DELETE_SQ, cdw10=1).status == 0
    assert driver.command(DELETE_CQ, cdw10=1).status == 0
    driver.ring(queue)  # of a queue that does not exist any more
    assert driver.command(EVENT).dw0 == 0 | 0 << 8 | 1 << 16


def test_wrong_doorbells_are_reported(driver):
    queue = driver.create(1)
    event = driver.push(driver.admin, Sqe(EVENT))
    driver.ring(driver.admin)
    driver.client.post(BAR0, 0x1008, queue.entries)
    done = driver.wait(driver.admin, 1)
    assert done[0].cid == event and done[0].dw0 == 0 | 1 << 8 | 1 << 16
    driver.data(GET_LOG, cdw10=1 | 15 << 16)
    driver.client.post(BAR0, 0x100C, 1)  # more than was posted
    assert driver.command(EVENT).dw0 == 0 | 1 << 8 | 1 << 16
    place = driver.take(PAGE)
    assert driver.run(queue, rw(READ_, 0, 1, place))[0].status == 0


def test_identifiers_in_use(driver):
    queue, place = driver.create(1), driver.take(PAGE)
    for _ in range(3):
        driver.push(queue, rw(READ_, 0, 1, place))
        queue.cid = 0
    driver.ring(queue)
    assert sorted(each.status for each in driver.wait(queue, 3)) == [0, 3, 3]
    cid = driver.push(driver.admin, Sqe(EVENT))
    driver.admin.cid = cid - 1
    driver.push(driver.admin, Sqe(IDENTIFY, cdw10=1, prp1=place))
    driver.ring(driver.admin)
    (done,) = driver.wait(driver.admin, 1)
    assert (done.cid, done.status) == (cid, 3)


def test_without_bus_mastering_nothing_moves(driver):
    queue, place = driver.create(1), driver.take(PAGE)
    driver.client.write(CONFIG, 4, 2, 2)
    driver.push(queue, rw(READ_, 0, 1, place))
    driver.ring(queue)
    look(driver)
    assert not driver.reap(queue)
    driver.client.write(CONFIG, 4, 6, 2)
    assert driver.wait(queue, 1)[0].status == 0


# --- memory that is wrong, or goes away


def test_wrong_regions(client):
    size, base = client.size, client.base
    for number, changes in (
        (errno.EINVAL, {"size": 0}),
        (errno.EINVAL, {"address": 1, "size": PAGE}),
        (errno.EINVAL, {"address": (1 << 64) - PAGE, "size": 2 * PAGE}),
        (errno.EINVAL, {"address": 0, "offset": size}),
        (errno.EINVAL, {"address": 0, "offset": (1 << 64) - PAGE, "size": PAGE}),
        (errno.EINVAL, {"address": 0, "size": PAGE, "offset": 8}),
        (errno.EINVAL, {"address": 0, "flags": 0}),
        (errno.EINVAL, {"address": 0, "flags": 4}),
        (errno.EEXIST, {}),
        (errno.EEXIST, {"address": base - PAGE, "size": 2 * PAGE}),
        (errno.EEXIST, {"address": base + size - PAGE, "size": 2 * PAGE}),
        (errno.EEXIST, {"address": base + PAGE, "size": PAGE}),
    ):
        with pytest.raises(VfioError) as error:
            client.map(**changes)
        assert error.value.errno == number, changes
    read_end, write_end = os.pipe()
    with pytest.raises(VfioError):
        client.map(address=0, size=PAGE, file=read_end)
    os.close(read_end)
    os.close(write_end)
    for changes in ({"size": PAGE}, {"address": 0}, {"address": base + PAGE}, {"flags": 1}):
        with pytest.raises(VfioError) as error:
            client.unmap(**changes)
        assert error.value.errno == errno.EINVAL
    client.map(address=0, size=PAGE, file=-1)  # without a file: not reachable
    client.unmap()
    client.map()
    client.unmap(0, 0, flags=2)
    client.map()


def test_data_in_memory_that_goes_away(driver):
    queue = driver.create(1)
    other = VfioMemory(driver.client, 1 << 20, PAGE)
    assert driver.run(queue, rw(READ_, 0, 1, 1 << 20))[0].status == 0
    other.unmap()
    assert driver.run(queue, rw(READ_, 0, 1, 1 << 20))[0].status == 4
    other = VfioMemory(driver.client, 1 << 20, PAGE, flags=1)  # the device may not write it
    done = driver.run(queue, rw(READ_, 0, 1, 1 << 20), rw(WRITE_, 0, 1, 1 << 20))
    assert [each.status for each in done] == [4, 0]
    driver.client.map(address=2 << 20, size=PAGE, file=-1)
    assert driver.run(queue, rw(READ_, 0, 1, 2 << 20))[0].status == 4


def test_files_that_shrink(driver):
    """The pages of a truncated file cannot be accessed: the server lives, commands that need them
    fail, and so does a controller whose queues were there."""
    queue = driver.create(1)
    file = os.memfd_create("other")
    os.ftruncate(file, 4 * PAGE)
    driver.client.map(1 << 20, 4 * PAGE, file=file)
    assert driver.run(queue, rw(WRITE_, 0, 8, 1 << 20))[0].status == 0
    done = driver.command(CREATE_CQ, prp1=1 << 20, cdw10=2 | 3 << 16, cdw11=1)
    assert done.status == 0
    done = driver.command(CREATE_SQ, prp1=(1 << 20) + PAGE, cdw10=2 | 3 << 16, cdw11=1 | 2 << 16)
    assert done.status == 0
    os.ftruncate(file, 0)
    os.close(file)
    compare = rw(COMPARE, 0, 8, 1 << 20)
    done = driver.run(queue, rw(READ_, 0, 8, 1 << 20), rw(WRITE_, 0, 8, 1 << 20), compare)
    assert [each.status for each in done] == [4, 4, 4]
    assert driver.command(IDENTIFY, cdw10=1, prp1=1 << 20).status == 4
    assert driver.run(queue, rw(READ_, 0, 8, driver.take(PAGE)))[0].status == 0
    driver.client.post(BAR0, 0x1010, 1)
    assert driver.wait_status(FATAL, FATAL)


class VfioMemory:
    """Another mapping of the first pages of the file."""

    def __init__(self, client: VfioClient, address: int, size: int, flags: int = 3) -> None:
        self.client, self.range = client, (address, size)
        client.map(address, size, flags=flags)

    def unmap(self) -> None:
        self.client.unmap(*self.range)


def test_queues_in_memory_that_goes_away(driver):
    """The controller fails, and a reset helps."""
    driver.create(1)
    driver.client.unmap()
    driver.ring(driver.queues[1])
    driver.client.post(BAR0, 0x1008, 1)
    assert driver.wait_status(FATAL, FATAL)
    driver.client.write(BAR0, 0x14, 0)
    assert driver.wait_status(FATAL | 1, 0)
    driver.start()  # without memory
    assert driver.wait_status(FATAL, FATAL)
    driver.client.write(BAR0, 0x14, 0)
    driver.client.map()
    driver.start()
    assert driver.wait_status(1, 1)
    assert driver.data(IDENTIFY, cdw10=1)[24:29] == b"ondie"


# --- resets, interrupts, the end


def test_resets_under_load(driver, counts):
    """Whole commands or nothing: each block has one of the values that were written to it."""
    rng = np.random.default_rng(6)
    place = [driver.take(PAGE) for _ in range(16)]
    model = {at: {0} for at in range(16)}
    queue, zeros = driver.create(2), driver.take(2 * PAGE)
    assert driver.run(queue, rw(WRITE_, 1000, 16, zeros, zeros + PAGE))[0].status == 0
    driver.next = 2 * PAGE + 16 * PAGE
    for turn in range(counts(8, 60)):
        queue = driver.create(1)
        for at in range(16):
            value = 1 + (turn * 16 + at) % 255
            driver.view(place[at], BLOCK)[:] = bytes([value]) * BLOCK
            model[at].add(value)
            driver.push(queue, rw(WRITE_, 1000 + at, 1, place[at]))
        driver.ring(queue)
        how = int(rng.integers(4))
        if how == 0:
            driver.client.write(BAR0, 0x14, 0x0046_0000)
        elif how == 1:
            driver.client.call(RESET)
        elif how == 2:
            driver.client.write(BAR0, 0x20, 0x4E564D65)
            assert driver.client.read(BAR0, 0x1C) & 16
        else:
            driver.client.write(CONFIG, 0x58, 1 << 15, 2)  # function level reset
        assert driver.wait_status(1, 0)
        driver.next = 2 * PAGE + 16 * PAGE
        driver.enable()
        queue = driver.create(1)
        read = driver.take(PAGE * 16)
        driver.run(queue, *[rw(READ_, 1000 + at, 1, read + at * PAGE) for at in range(16)])
        for at in range(16):
            data = bytes(driver.view(read + at * PAGE, BLOCK))
            assert data == data[:1] * BLOCK and data[0] in model[at]
            model[at] = {data[0]}
        driver.disable()
        driver.next = 2 * PAGE + 16 * PAGE
        driver.enable()


def test_a_shutdown_writes_the_cache_to_flash(driver, served):
    queue, place = driver.create(1), driver.take(PAGE)
    assert driver.run(queue, rw(WRITE_, 64, 8, place))[0].status == 0
    drive = served.served.drive
    assert served.served.service.call(lambda: int(drive.arrays.cache.dirty[0])).result() > 0
    driver.client.write(BAR0, 0x14, 0x0046_4001)
    assert driver.wait_status(0b11 << 2, 0b10 << 2)
    assert served.served.service.call(lambda: int(drive.arrays.cache.dirty[0])).result() == 0


def test_masked_interrupts_wait(driver):
    queue, place = driver.create(1), driver.take(PAGE)
    client = driver.client
    client.irqs(MSIX, 1, 1, flags=1 | 8)  # mask
    driver.push(queue, rw(READ_, 0, 1, place))
    driver.ring(queue)
    client.read(BAR0, 0x1C)
    assert not select.select([queue.event], [], [], 0)[0]
    assert client.read(BAR0, 0x3000) & 2
    client.irqs(MSIX, 1, 1, flags=1 | 16)
    assert driver.wait(queue, 1)[0].status == 0
    client.irqs(MSIX, 1, 1, fds=())  # none any more
    driver.push(queue, rw(READ_, 0, 1, place))
    driver.ring(queue)
    client.read(BAR0, 0x1C)
    client.irqs(MSIX, 1, 1, fds=(queue.event,))
    assert driver.wait(queue, 1)[0].status == 0
    client.irqs(MSIX, 0, 2, flags=2 | 32, data=b"\0\1")  # a test by the host
    assert select.select([queue.event], [], [], 0)[0]
    client.irqs(MSIX, 0, 0, flags=1 | 32)


@pytest.mark.parametrize("payload", [
    struct.pack("<IIIII", 20, 4 | 32, MSIX, 16, 2),
    struct.pack("<IIIII", 20, 4 | 32, 9, 0, 1),
    struct.pack("<IIIII", 20, 1 | 2 | 32, MSIX, 0, 1),
    struct.pack("<IIIII", 20, 1, MSIX, 0, 1),
    struct.pack("<IIIII", 20, 2 | 32, MSIX, 0, 2) + b"\1",
    struct.pack("<IIIII", 20, 4 | 32, MSIX, 0, 0),
    struct.pack("<IIIII", 20, 1 | 32, MSIX, 0xFFFFFFFF, 0xFFFFFFFF),
    b"\0" * 8,
])  # fmt: skip
def test_wrong_interrupts(client, payload):
    with pytest.raises(VfioError) as error:
        client.call(SET_IRQS, payload)
    assert error.value.errno == errno.EINVAL


def test_interrupts_never_wait(client):
    """Only an eventfd is accepted, and one that is full or blocks does not stop the server."""
    readable, writable = os.pipe()
    with pytest.raises(VfioError) as error:
        client.irqs(MSIX, 0, 1, fds=(writable,))
    assert error.value.errno == errno.EINVAL
    full = os.eventfd(0)
    os.write(full, (2**64 - 2).to_bytes(8, "little"))
    client.irqs(MSIX, 0, 1, fds=(full,))
    os.set_blocking(full, True)
    client.irqs(MSIX, 0, 1, flags=1 | 32)
    assert os.eventfd_read(full) == 2**64 - 2
    for fd in (readable, writable, full):
        os.close(fd)


def test_the_server_asks_for_the_device(client, server):
    event = client.event()
    client.irqs(REQ, 0, 1, fds=(event,))
    assert server.unplug()
    assert select.select([event], [], [], 10)[0]
    client.socket.close()
    deadline = time.monotonic() + 10
    while server.unplug() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not server.unplug()


def test_a_client_that_leaves_in_the_middle_of_a_write(server):
    """Its whole commands take effect, the half message does not; the next client is served."""
    for half in (b"", b"\x01\0\x0a\0\x24\0\0\0", bytes(20)):
        with VfioClient(server.listener.address.path) as client:
            client.map()
            driver = Driver(client)
            driver.enable()
            queue, place = driver.create(1), driver.take(PAGE)
            driver.view(place, PAGE)[:] = b"w" * PAGE
            for at in range(16):
                driver.push(queue, rw(WRITE_, 8 * at, 8, place))
            driver.ring(queue)
            client.socket.sendall(half)
    with VfioClient(server.listener.address.path) as client:
        client.map()
        driver = Driver(client)
        assert client.read(BAR0, 0x1C) == 0
        driver.enable()
        queue, place = driver.create(1), driver.take(PAGE)
        for at in range(16):
            assert driver.run(queue, rw(READ_, 8 * at, 8, place))[0].status == 0
            found = bytes(driver.view(place, PAGE))
            assert found == found[:1] * PAGE
    assert server.sessions == 4


# --- messages that are wrong


@pytest.mark.parametrize(("command", "payload", "number"), [
    (DMA_MAP, bytes(31), errno.EINVAL),
    (3, bytes(23), errno.EINVAL),
    (INFO, struct.pack("<IIII", 15, 0, 0, 0), errno.EINVAL),
    (REGION_INFO, struct.pack("<IIIIQQ", 32, 0, 9, 0, 0, 0), errno.EINVAL),
    (7, struct.pack("<IIII", 16, 0, 5, 0), errno.EINVAL),
    (READ, struct.pack("<QII", 0, BAR0, 0), errno.EINVAL),
    (READ, struct.pack("<QII", 1 << 14, BAR0, 4), errno.EINVAL),
    (READ, struct.pack("<QII", (1 << 64) - 1, BAR0, 4), errno.EINVAL),
    (READ, struct.pack("<QII", 0, 1, 4), errno.EINVAL),
    (READ, struct.pack("<QII", 0, BAR0, 0xFFFFFFFF), errno.EINVAL),
    (WRITE, struct.pack("<QII", 0, BAR0, 8) + bytes(4), errno.EINVAL),
    (WRITE_MULTI, struct.pack("<Q", 1 << 60), errno.EINVAL),
    (WRITE_MULTI, struct.pack("<QQIIQ", 1, 0, BAR0, 9, 0), errno.EINVAL),
    (VERSION, struct.pack("<HH", 0, 1), errno.EINVAL),
    (RESET, b"x", errno.EINVAL),
    (11, bytes(16), errno.EOPNOTSUPP),
    (16, bytes(16), errno.EOPNOTSUPP),
    (99, b"", errno.EOPNOTSUPP),
])  # fmt: skip
def test_wrong_messages(client, command, payload, number):
    with pytest.raises(VfioError) as error:
        client.call(command, payload)
    assert error.value.errno == number
    assert client.read(BAR0, 8) == 2 << 16


@pytest.mark.parametrize("data", [
    struct.pack("<HHIII", 1, READ, 15, 0, 0),
    struct.pack("<HHIII", 1, READ, 0xFFFFFFFF, 0, 0),
    struct.pack("<HHIII", 1, READ, 16, 1, 0),  # a reply
])  # fmt: skip
def test_what_is_no_message_ends_the_connection(client, server, data):
    client.socket.sendall(data)
    assert client.socket.recv(1) == b""
    with VfioClient(server.listener.address.path) as other:
        assert other.read(BAR0, 8) == 2 << 16


@pytest.mark.parametrize(
    "text", [b"{", b"[]\0", b'{"capabilities": 3}\0', b"\xff\0", b"[" * 9000 + b"\0"]
)
def test_wrong_versions(server, text):
    with VfioClient(server.listener.address.path, agree=False) as client:
        with pytest.raises(VfioError):
            client.version(text=text)
        with pytest.raises(VfioError):
            client.version(major=1)
        assert client.version(minor=7)["write_multiple"] is True


def test_the_version_comes_first(server):
    with VfioClient(server.listener.address.path, agree=False) as client:
        client.send(INFO, struct.pack("<IIII", 16, 0, 0, 0))
        assert client.socket.recv(1) == b""


def test_descriptors_that_nobody_asked_for_are_closed(client):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        client.call(INFO, struct.pack("<IIII", 16, 0, 0, 0), (client.file,) * 8)
        with pytest.raises(VfioError):
            client.call(DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, PAGE), (client.file,) * 2)
    assert len(os.listdir("/proc/self/fd")) == before
    socket.send_fds(client.socket, [b"\x01"], [client.file] * 40)
    assert client.socket.recv(1) == b""


def test_one_message_has_few_descriptors(client):
    """Also if they come one by one, so that a client cannot use up those of the server."""
    client.socket.sendall(vfio_client.HEADER.pack(1, READ, 1 << 19, 0, 0))
    with pytest.raises(ConnectionError):
        for _ in range(1000):
            socket.send_fds(client.socket, [b"x"], [client.file])
            time.sleep(0.001)


def test_messages_in_any_pieces(client):
    """One byte at a time, and all at once with descriptors in the middle."""
    head = vfio_client.HEADER.pack(7, READ, 32, 0, 0) + struct.pack("<QII", 8, BAR0, 4)
    for at in range(len(head)):
        client.socket.sendall(head[at : at + 1])
    assert client.receive()[2][16:] == (2 << 16).to_bytes(4, "little")
    event = client.event()
    client.socket.sendall(head * 3)
    client.send(SET_IRQS, struct.pack("<IIIII", 20, 4 | 32, MSIX, 0, 1), (event,))
    client.socket.sendall(head * 3)
    assert [client.receive()[1] for _ in range(7)] == [0] * 7
    client.irqs(MSIX, 0, 1, flags=1 | 32)
    assert select.select([event], [], [], 0)[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_messages(server, data):
    """Random messages: each is answered, or ends the connection; the server lives."""
    payloads = st.one_of(
        st.binary(max_size=64),
        st.tuples(st.integers(0, 1 << 14), st.sampled_from([BAR0, CONFIG]), st.integers(0, 8)).map(
            lambda each: struct.pack("<QII", *each) + bytes(each[2])
        ),
    )
    with VfioClient(server.listener.address.path) as client:
        client.map()
        driver = Driver(client)
        driver.enable()
        for _ in range(data.draw(st.integers(1, 12))):
            command = data.draw(st.integers(0, 17))
            payload = data.draw(payloads)
            fds = (client.file,) * data.draw(st.integers(0, 2))
            try:
                client.call(command, payload, fds)
            except VfioError:
                continue
        client.call(INFO, struct.pack("<IIII", 16, 0, 0, 0))
