"""Computation commands over vfio-user: their data are in the memory of the host, their completions
come by interrupt when the work is done, and resets leave nothing behind.
Source: docs/computation.md; ondie.kernels.
"""

import os
import socket
import threading
import time

import pytest

from ondie.emu.nvme.wire import Sqe
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.vfio_user import Session, VfioUserServer
from tests.protocol.compute_host import (
    ALLOCATE,
    EXECUTE,
    FETCH,
    NSID,
    ComputeHost,
    StatesDrive,
)
from tests.protocol.vfio_client import PAGE, Driver, VfioClient

CONFLICT, TRANSFER_ERROR = 0x003, 0x004


class PcieHost(ComputeHost):
    """Commands of a driver, whose data are two pages at most."""

    def __init__(self, driver):
        super().__init__(self._run, self._get, 2 * PAGE)
        self.driver = driver
        self.place = driver.take(2 * PAGE)
        self.queue = driver.create(1)

    def entry(self, opcode, **words):
        return Sqe(opcode, nsid=NSID, prp1=self.place, prp2=self.place + PAGE, **words)

    def _run(self, opcode, data=b"", **words):
        self.driver.view(self.place, 2 * PAGE)[: len(data)] = data
        done = self.driver.run(self.queue, self.entry(opcode, **words))[0]
        return done.status, done.dw0

    def _get(self, opcode, size, **words):
        status, _ = self._run(opcode, **words)
        return status, bytes(self.driver.view(self.place, size))


@pytest.fixture
def bench(tmp_path):
    drive = StatesDrive(several=False)
    server = VfioUserServer(
        drive.nvme, Listener(Address(path=str(tmp_path / "sock")), "--vfio-user")
    )
    with VfioClient(server.listener.address.path) as client:
        client.map()
        driver = Driver(client)
        driver.enable()
        yield drive, driver
    server.close()
    drive.close()


def test_update_over_pcie(bench):
    """Gradient in, update, weights out; a program; and reads of both namespaces beside them."""
    drive, driver = bench
    host = PcieHost(driver)
    gradient = drive.gradient()
    rsid = host.give(gradient)
    memory = host.ok(ALLOCATE, cdw10=1 << 16)
    program = host.set((memory, 0, 1 << 16))
    host.load(5, instructions=(50, 1))
    text = bytes(drive.rng.integers(0, 256, PAGE, "u1"))
    driver.view(host.place, PAGE)[:] = text
    assert driver.run(host.queue, host.entry(1)._replace(nsid=1))[0].status == 0
    other = driver.take(PAGE)
    done = driver.run(
        host.queue,
        host.entry(EXECUTE, cdw10=rsid << 16, cdw12=1),
        host.entry(EXECUTE, cdw10=5 | program << 16),
        host.entry(2)._replace(nsid=1, prp1=other),
        host.entry(2, cdw10=0)._replace(prp1=host.place),
    )
    assert [(each.status, each.dw0) for each in done] == [(0, 1), (0, 0), (0, 0), (0, 0)]
    assert bytes(driver.view(other, PAGE)) == text
    drive.by_kernel(gradient)
    drive.same(host.states(drive.states.bytes_of_all))
    assert host.report()["updates"] == 1


def test_a_reset_during_an_update(bench, monkeypatch):
    """The update goes on; its completion does not come to the new queues."""
    drive, driver = bench
    host = PcieHost(driver)
    gradient = drive.gradient()
    rsid = host.give(gradient)
    begun, begin = threading.Event(), drive.states.begin_update
    monkeypatch.setattr(drive.states, "begin_update", lambda *a: begun.set() or begin(*a))
    driver.push(host.queue, host.entry(EXECUTE, cdw10=rsid << 16, cdw12=1))
    driver.ring(host.queue)
    assert begun.wait(10)
    old = host.queue
    driver.disable()
    driver.start()
    assert driver.wait_status(1, 1)
    host = PcieHost(driver)
    for _ in range(10_000):
        found = host.report()
        if found["complete"] and found["step"] == 1 and not found["running"]:
            break
    drive.by_kernel(gradient)
    drive.same(host.states(drive.states.bytes_of_all))
    assert not driver.reap(host.queue) and not driver.reap(old)


def test_data_that_are_not_there(bench):
    """Pointers outside of memory: a status, and the drive goes on."""
    drive, driver = bench
    host = PcieHost(driver)
    handle = host.ok(ALLOCATE, cdw10=4096)
    host.store(handle, b"x" * 4096)
    for opcode in (FETCH, 0xF5):
        entry = host.entry(opcode, cdw10=handle, cdw11=4096)._replace(prp1=0x1000)
        assert driver.run(host.queue, entry)[0].status == TRANSFER_ERROR
    assert host.fetch(handle, 4096) == b"x" * 4096


def test_an_identifier_that_is_in_use(bench):
    """The same identifier as that of a command that runs."""
    drive, driver = bench
    host = PcieHost(driver)
    rsid = host.give(drive.gradient())
    queue = host.queue
    cid = driver.push(queue, host.entry(EXECUTE, cdw10=rsid << 16, cdw12=1))
    queue.cid -= 1
    again = driver.push(queue, host.entry(EXECUTE, cdw10=rsid << 16, cdw12=1))
    assert again == cid
    driver.ring(queue)
    statuses = sorted(each.status & 0x7FF for each in driver.wait(queue, 2))
    assert statuses == [0, CONFLICT]


def test_a_read_with_an_identifier_that_is_in_use(bench):
    """A plain read or write, which takes the short way, is refused too; others are not."""
    drive, driver = bench
    host = PcieHost(driver)
    rsid = host.give(drive.gradient())
    queue, held = host.queue, threading.Event()
    drive.service.call(lambda: held.wait(60))
    cid = driver.push(queue, host.entry(EXECUTE, cdw10=rsid << 16, cdw12=1))
    driver.ring(queue)
    while not drive.nvme.computation._running:
        time.sleep(0.01)
    for opcode in (2, 1):
        queue.cid = cid - 1
        assert driver.push(queue, host.entry(opcode)._replace(nsid=1)) == cid
        driver.ring(queue)
        assert driver.wait(queue, 1)[0].status & 0x7FF == CONFLICT
    other = driver.push(queue, host.entry(2)._replace(nsid=1))
    held.set()
    driver.ring(queue)
    done = {each.cid: each.status for each in driver.wait(queue, 2)}
    assert done == {cid: 0, other: 0}


def test_reads_of_states_as_many_as_the_queue_holds(bench):
    """They wait for each other, and for places in the completion queue."""
    drive, driver = bench
    host = PcieHost(driver)
    held = threading.Event()
    drive.service.call(lambda: held.wait(60))
    queue = driver.create(2, 128)
    count = queue.entries - 1
    cids = [driver.push(queue, host.entry(2, cdw10=at % 100)) for at in range(count)]
    driver.ring(queue)
    held.set()
    done = driver.wait(queue, count)
    assert sorted(each.cid for each in done) == sorted(cids)
    assert not any(each.status for each in done)


def test_a_completion_after_the_host_has_gone(bench):
    """It does not write to a file that was opened since and has the number of a closed one."""
    drive, _ = bench
    one, other = socket.socketpair()
    session = Session(one, drive.nvme)
    number = session._woken
    other.close()
    session.run()
    one.close()
    opened = os.eventfd(0, os.EFD_NONBLOCK)
    if opened != number:
        os.dup2(opened, number)
    session.wake()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(number)
    for each in {opened, number}:
        os.close(each)
