"""Computation commands that a drive must refuse although their words are right, and what it reports
of others, through the runner of a transport. Source: docs/computation.md; NVM Express Base
Specification 2.0, figure "Command Dword 0" (FUSE).
"""

import threading
import time
from dataclasses import replace

import pytest

from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run import build
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nand.segment_files import SegmentFiles
from ondie.emu.nand.store_folder import StoreFull
from ondie.emu.nvme.command import TRIM
from ondie.emu.nvme.status import Condition
from ondie.emu.nvme.wire import Sqe
from ondie.emu.serve.computation import MOST_READING, MOST_RUNNING
from ondie.emu.serve.io_request import IoRequest
from ondie.emu.serve.nvme_io import IoRunner
from ondie.emu.states import device_program
from ondie.emu.states.resident import NotStored
from ondie.emu.units import InputError
from tests.protocol.compute_host import (
    ALLOCATE,
    COPY,
    EXECUTE,
    NSID,
    REPORT,
    STORE,
    ComputeHost,
    StatesDrive,
)

SECONDS = 60
BLOCKS = 100
INVALID_FIELD, INTERNAL, BUSY, CONFLICT, UNRECOVERED = 0x002, 0x006, 0x021, 0x003, 0x281
WRITE_FAULT, PROTECTED = 0x280, 0x020
CODE = 0x7FF
"""Status code and its type in a status field."""


class Target(StatesDrive):
    """The drive with one controller and its runner of I/O commands."""

    def __init__(self, **options):
        super().__init__(**options)
        self.controller = self.nvme.controller(lambda entries: None)
        self.runner = IoRunner(self.nvme, self.controller)
        self.host = ComputeHost(self.run, self.get)

    def results(self, *requests):
        """Run a batch; return the results in the order of the requests."""
        late, done = {}, threading.Semaphore(0)

        def later(request, result):
            late[id(request.sqe)] = result
            done.release()

        found = self.runner.run(requests, later)
        for _ in range(found.count(None)):
            assert done.acquire(timeout=SECONDS)
        return [
            late[id(each.sqe)] if result is None else result
            for each, result in zip(requests, found, strict=True)
        ]

    def request(self, opcode, data=b"", cid=7, nsid=NSID, flags=0, **words):
        return IoRequest(1, Sqe(opcode, cid=cid, nsid=nsid, flags=flags, **words), data)

    def run(self, opcode, data=b"", **words):
        (found,) = self.results(self.request(opcode, data, **words))
        return found.cqe.status & CODE, found.cqe.dw0

    def get(self, opcode, size, **words):
        (found,) = self.results(self.request(opcode, **words))
        assert len(found.data) == (0 if found.cqe.status else size)
        return found.cqe.status & CODE, bytes(found.data)


@pytest.fixture(scope="module")
def target():
    found = Target()
    yield found
    found.close()


@pytest.mark.parametrize(
    "cost", [{"instructions": (0xFFFFFFFF, 1)}, {"fixed": 1 << 48}, {"read": 1 << 20}]
)
def test_a_program_that_would_not_end(target, cost):
    """It would take more than an hour; the drive serves the others nevertheless."""
    host = target.host
    host.ok(0xC0, cdw10=0xFFFFFFFF)
    size = 512 << 20
    handle = host.ok(ALLOCATE, cdw10=size)
    host.load(1, **cost)
    assert host.execute(1, host.set((handle, 0, size)))[0] == INVALID_FIELD
    assert target.drive.condition is Condition.ONLINE
    host.ok(0xA8, cdw10=1, cdw11=2)
    host.ok(0xC0, cdw10=0xFFFFFFFF)


def test_a_fused_command(target):
    assert target.run(ALLOCATE, flags=1, cdw10=4096)[0] == INVALID_FIELD
    assert target.host.report()["used"] == 0


def test_two_commands_with_one_identifier(target):
    """The second one of a batch is refused, whichever of them computes."""
    host = target.host
    handle = host.ok(ALLOCATE, cdw10=4096)
    store = {"opcode": STORE, "data": bytes(4), "cdw10": handle, "cdw11": 4}
    read = {"opcode": 2, "nsid": 1}
    for one, other in ((store, store), (store, read), (read, store)):
        results = target.results(target.request(**one), target.request(**other))
        assert [each.cqe.status & CODE for each in results] == [0, CONFLICT]
    host.ok(0xC0, cdw10=0xFFFFFFFF)


def held(target):
    """Let nothing begin or end in the drive until the event that is returned is set."""
    found = threading.Event()
    target.service.call(lambda: found.wait(SECONDS))
    return found


def send(target, *requests):
    """Run commands that are not ready at once; return the list that gets their results."""
    late = []
    found = target.runner.run(requests, lambda request, result: late.append(result))
    assert found == [None] * len(requests)
    return late


def wait_for(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_copy_of_blocks_that_are_marked(target):
    """Write Uncorrectable marks a block until it is written."""
    host = target.host
    handle = host.ok(ALLOCATE, cdw10=3 * 4096)
    text = bytes(range(256)) * 16
    for block in range(3):
        assert target.run(1, text, nsid=1, cdw10=block)[0] == 0
    assert target.run(4, nsid=1, cdw10=1)[0] == 0
    for first, blocks, status in ((0, 3, UNRECOVERED), (1, 1, UNRECOVERED), (0, 1, 0), (2, 1, 0)):
        assert target.run(COPY, cdw10=handle, cdw11=blocks, cdw14=first)[0] == status
    assert target.run(1, text, nsid=1, cdw10=1)[0] == 0
    assert target.run(COPY, cdw10=handle, cdw11=3)[0] == 0
    assert host.fetch(handle, 3 * 4096) == 3 * text
    host.ok(0xC0, cdw10=handle)


def test_a_copy_beside_a_format(target):
    """Each runs alone: a Format waits for a copy that has begun, and a copy for a Format."""
    host = target.host
    handle = host.ok(ALLOCATE, cdw10=4096)
    text = bytes(range(256)) * 16
    assert target.run(1, text, nsid=1)[0] == 0
    copy = target.request(COPY, cdw10=handle, cdw11=1)
    done = []
    entry = Sqe(0x80, cid=1, nsid=1).pack()
    formatting = threading.Thread(
        target=lambda: done.append(target.nvme.execute(target.controller, entry))
    )
    free = held(target)
    late = send(target, copy)
    wait_for(lambda: target.nvme.gate._inside == 1)
    formatting.start()
    formatting.join(0.2)
    assert formatting.is_alive() and not late
    free.set()
    formatting.join(SECONDS)
    assert done[0].entries[0].status == 0 and late[0].cqe.status == 0
    assert host.fetch(handle, 4096) == text
    assert target.run(COPY, cdw10=handle, cdw11=1)[0] == 0
    assert host.fetch(handle, 4096) == bytes(4096)
    assert target.run(1, text, nsid=1)[0] == 0
    with target.nvme.gate.alone():
        late = send(target, copy)
        time.sleep(0.2)
        assert not late and target.served.run_one(TRIM, 0, 4096) == 0
    wait_for(lambda: late)
    assert host.fetch(handle, 4096) == bytes(4096)
    host.ok(0xC0, cdw10=handle)


def test_a_copy_that_waited_for_another_size_of_blocks(target):
    """It has been checked with the blocks of before, and is sent again."""
    handle = target.host.ok(ALLOCATE, cdw10=4096)
    namespaces = target.nvme.shared.namespaces
    before = namespaces.by_nsid[1]
    with target.nvme.gate.alone():
        late = send(target, target.request(COPY, cdw10=handle, cdw11=1))
        namespaces.by_nsid[1] = replace(before, block_bytes=512, blocks=before.size // 512)
    wait_for(lambda: late)
    namespaces.by_nsid[1] = before
    assert late[0].cqe.status & CODE == BUSY
    target.host.ok(0xC0, cdw10=handle)


def test_many_reads_of_states(target):
    """More than run at a time wait for each other; other commands do not wait for them."""
    count = MOST_READING + 40
    free = held(target)
    late = send(target, *(
        target.request(2, cid=100 + at, cdw10=at % BLOCKS)
        for at in range(count)
    ))  # fmt: skip
    report = send(target, target.request(REPORT, cid=99))
    assert sum(each.name == "ondie computation" for each in threading.enumerate()) < count
    free.set()
    wait_for(lambda: len(late) == count and report)
    assert sorted(each.cqe.cid for each in late) == list(range(100, 100 + count))
    wanted = target.states.stored_bytes(0, target.states.bytes_of_all)
    for each in late:
        at = (each.cqe.cid - 100) % BLOCKS * 4096
        assert each.cqe.status == 0 and (each.data == wanted[at : at + 4096]).all()
    wait_for(lambda: target.nvme.computation._reading == 0)


@pytest.mark.parametrize("threads", [True, False])
def test_reads_beside_a_host_that_takes_nothing(target, monkeypatch, threads):
    """Reads that wait do not wait until another host has taken its results, if there are threads;
    without, they do, and none is lost."""
    slow, fast, taken = [], [], threading.Event()
    reads = [target.request(2, cid=at, cdw10=at % BLOCKS) for at in range(MOST_READING + 4)]
    free = held(target)
    target.runner.run(
        reads[:MOST_READING], lambda *found: (taken.wait(SECONDS), slow.append(found))
    )
    target.runner.run(reads[MOST_READING:], lambda *found: fast.append(found))
    with monkeypatch.context() as patched:
        if not threads:
            patched.setattr(threading.Thread, "start", fails)
        free.set()
        if threads:
            wait_for(lambda: len(fast) == 4)
            assert not slow
        taken.set()
        wait_for(lambda: len(slow) == MOST_READING and len(fast) == 4)
    assert not any(result.cqe.status for _, result in slow + fast)
    wait_for(lambda: target.nvme.computation._reading == 0)


def test_an_end_of_an_update_with_parity():
    """Parity is of whole updates: the report says so, and another end is refused."""
    target = Target(pe__rain=3)
    found, rsid = target.host.report(), target.host.give(target.gradient())
    assert found["granule"] == found["params"]
    assert target.host.execute(0, rsid, stop=target.states.stripe_params)[0] == INVALID_FIELD
    assert target.host.execute(0, rsid, stop=found["params"]) == (0, 1)
    with pytest.raises(InputError, match=r"stop = 1024: must be the number of .* parity .*: 40910"):
        target.states.start_update(target.gradient(), 1024)
    target.close()


def fails(thread):
    """As if there were no more threads."""
    raise RuntimeError("can't start new thread")


def test_no_thread_is_left(target, monkeypatch):
    """The command may be sent again, and nothing of it is left."""

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        for _ in range(MOST_RUNNING):
            assert target.run(REPORT)[0] == BUSY
    target.host.report()


def broken(plan, chunks):
    """A plan that has a defect after ``chunks`` chunks of its rows."""

    def rows(*given, **named):
        for _, chunk in zip(range(chunks), plan(*given, **named), strict=False):
            yield chunk
        raise ZeroDivisionError

    return rows


def test_a_defect_of_a_plan(target, monkeypatch, capfd):
    """It ends its command with an error and is shown once; the command may be sent again."""
    host, states = target.host, target.states
    monkeypatch.setattr(plan_rows, "MAX_CHUNK", 16)
    handle = host.ok(ALLOCATE, cdw10=8192)
    gradient = target.gradient()
    rsid, program = host.give(gradient), host.set((handle, 0, 4096))
    host.load(2)
    store = {"opcode": STORE, "data": bytes(4096), "cdw10": handle, "cdw11": 4096}
    copy = {"opcode": COPY, "cdw10": handle, "cdw11": 2}
    execute = {"opcode": EXECUTE, "cdw10": 2 | program << 16}
    number = states.step + 1
    update = {"opcode": EXECUTE, "cdw10": rsid << 16, "cdw12": number}
    for where, name, words in (
        (device_program, "transfer", store), (device_program, "copy", copy),
        (device_program, "execution", execute), (states, "_plan", update),
    ):  # fmt: skip
        for chunks in (0, 1, 2) if where is states else (0, 1):
            with monkeypatch.context() as patched:
                patched.setattr(where, name, broken(getattr(where, name), chunks))
                wrong, right = target.results(
                    target.request(**words), target.request(2, nsid=1, cid=8)
                )
            assert (wrong.cqe.status & CODE, right.cqe.status) == (INTERNAL, 0), (name, chunks)
            assert host.report()["running"] == 0 and states._copying == []
    assert 0 < host.report()["done"] < states.stripes  # of the first chunks
    assert capfd.readouterr().err.count("a defect, which is shown once") == 1
    for words in (store, copy, execute):
        assert target.run(**words)[0] == 0
    assert target.run(**update) == (0, number)
    target.by_kernel(gradient)
    target.same(host.states(states.bytes_of_all))
    host.ok(0xC0, cdw10=0xFFFFFFFF)  # nothing is in use
    assert target.drive.condition is Condition.ONLINE


@pytest.mark.parametrize("stripes", [0, 10])
@pytest.mark.parametrize("durability", ["process", "host"])
def test_a_store_without_room_for_an_update(tmp_path, monkeypatch, durability, stripes):
    """What is in memory only is no result: neither if a page finds no room, nor if the results
    cannot be synced."""
    target = Target(store=tmp_path / "store", durability=durability)
    rsid = target.host.give(target.gradient())
    owner, name = (PageStore, "reserve") if durability == "process" else (SegmentFiles, "sync")
    work, calls = getattr(owner, name), []

    def fails(*given):
        calls.append(given)
        if len(calls) == 5 or durability == "host":
            raise StoreFull("no room: test")
        return work(*given)

    begin = target.states.begin_update

    def begun(*given):
        plan = begin(*given)
        monkeypatch.setattr(owner, name, fails)
        return plan

    monkeypatch.setattr(target.states, "begin_update", begun)
    stop = stripes * target.states.stripe_params
    assert target.host.execute(0, rsid, 1, stop)[0] == WRITE_FAULT
    found = target.host.report()
    assert (found["complete"], found["running"], found["updates"]) == (0, 0, 0)
    assert target.drive.condition is Condition.READ_ONLY
    assert target.host.execute(0, rsid, 1)[0] == PROTECTED
    target.close()


@pytest.mark.parametrize("flush", [False, True])
def test_a_store_that_cannot_be_synced_in_mid_update(tmp_path, monkeypatch, flush):
    """A report, or a flush of another client, finds it: DONE does not count what is not durable,
    and the update ends with the status of its command, as soon as what it has loaded is done."""
    monkeypatch.setattr(build, "ROWS", 1 << 7)  # less than the update has
    monkeypatch.setattr(plan_rows, "PIECE", 1 << 4)
    target = Target(
        store=tmp_path / "store", durability="host", clock="real", scale=0.02,
        params=400 * 1024, flash__blocks_per_plane=300,
    )  # fmt: skip
    rsid, stripes = target.host.give(target.gradient()), target.host.report()["stripes"]
    late = send(target, target.request(EXECUTE, cdw10=rsid << 16, cdw12=1))
    found = {"done": stripes}
    wait_for(lambda: found.update(target.host.report()) or 0 < found["done"] < stripes)
    payload = target.states._payload

    def fails(files):
        raise StoreFull("cannot be synced: test")

    monkeypatch.setattr(SegmentFiles, "sync", fails)
    wait_for(lambda: payload.updated.sum() > found["done"] + 4)
    if flush:
        assert target.run(0, nsid=1)[0] != 0
    for _ in range(3):
        assert target.host.report()["done"] == found["done"]
    assert isinstance(target.states._update.error, NotStored)
    wait_for(lambda: late)
    assert late[0].cqe.status & CODE == WRITE_FAULT
    assert found["done"] < payload.updated.sum() < stripes
    report = target.host.report()
    assert (report["done"], report["complete"], report["running"]) == (found["done"], 0, 0)
    assert target.host.execute(0, rsid, 1)[0] == PROTECTED
    target.close()


def test_the_time_of_a_program_by_the_wall_clock():
    """The report has its simulated time, also if the server is late."""
    target = Target(clock="real")
    host = target.host
    handle = host.ok(ALLOCATE, cdw10=4096)
    program = host.set((handle, 0, 4096))
    host.load(3, instructions=(100_000, 1))
    late = send(target, target.request(EXECUTE, cdw10=3 | program << 16))
    target.service.call(lambda: time.sleep(0.2)).result(SECONDS)
    wait_for(lambda: late)
    assert host.report()["last"] == 1024 * 100_000 * 1e12 / (4 * 0.8e9)
    target.close()


def test_a_drive_without_power():
    """Nothing can be allocated before it has power again, and what began before does not run."""
    target = Target()
    host = target.host
    before = target.nvme.computation.device
    handle = host.ok(ALLOCATE, cdw10=4096)
    target.service.call(lambda: target.served.power_cut(0)).result()
    assert target.run(ALLOCATE, cdw10=4096)[0] == INTERNAL
    assert target.run(STORE, bytes(4), cdw10=handle, cdw11=4)[0] == INTERNAL
    target.service.call(target.served.power_on).result()
    computation, data = target.nvme.computation, bytes(range(1, 5))
    new, hold = computation.device, computation._hold
    began = threading.Event()
    computation.device = before

    def power_comes_on(*given):
        hold(*given)
        computation.device = new
        began.set()

    computation._hold = power_comes_on
    run_plan = target.service.run_plan
    target.service.run_plan = lambda *given: (began.wait(SECONDS), run_plan(*given))[1]
    assert target.run(STORE, data, cdw10=handle, cdw11=4)[0] == INTERNAL
    assert not before.memory.memories[handle].data.any()
    target.close()
