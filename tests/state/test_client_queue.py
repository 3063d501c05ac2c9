"""Hand-over between clients and the thread of a served drive: no ring is lost, tickets end in any
order, every wait ends, and nobody polls for long."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from ondie.emu.nvme.client_queue import Lag
from ondie.emu.nvme.command import COMMAND, READ, WRITE
from ondie.emu.service import Service
from ondie.emu.units import InputError
from ondie.kernels.doorbell import Delivery, Doorbell
from tests.state.test_drive_service import SECONDS, a_drive


def writes(drive: Any, count: int, first: int = 0) -> np.ndarray:
    out = np.zeros(count, COMMAND)
    out["op"], out["size"], out["data"] = WRITE, drive.unit_bytes, -1
    out["offset"] = (first + np.arange(count)) % drive.units * drive.unit_bytes
    out["tag"] = np.arange(count)
    return out


# --- doorbells


@pytest.mark.parametrize("poll_ns", [0, 2_000, 10**9])
def test_no_ring_is_lost(poll_ns, counts):
    """Two threads ring each other in turns, 180,000 hand-overs at full counts: they sleep at
    once, about when the ring comes, or never."""
    total = counts(1_000, 30_000)
    there, back = Doorbell(), Doorbell()
    late: list[int] = []

    def other() -> None:
        for number in range(total):
            end = time.perf_counter_ns() + SECONDS * 10**9
            if not there.wait(number, poll_ns, end):
                late.append(number)
                return
            back.ring()

    thread = threading.Thread(target=other)
    thread.start()
    for number in range(total):
        there.ring()
        end = time.perf_counter_ns() + SECONDS * 10**9
        while back.rung == number and time.perf_counter_ns() < end:
            back.wait(number, poll_ns, end, other=there)
        if back.rung != number + 1:
            late.append(number)
            break
    thread.join(SECONDS)
    assert not late and there.rung == back.rung == total


def test_a_wait_ends_at_its_deadline_and_not_before():
    bell = Doorbell()
    for poll_ns, last_ns in ((0, 0), (0, 10**6), (10**9, 0)):
        end = time.perf_counter_ns() + 3_000_000
        assert not bell.wait(0, poll_ns, end, last_ns=last_ns)
        assert time.perf_counter_ns() >= end
    bell.ring(3)
    assert bell.rung == 3 and bell.wait(2, 0) and not bell.wait(3, 0, 0)


def test_a_delivery_counts_lags_and_rings_at_its_time():
    """Due 1 ms before, at, and 0.5 ms after the delivery: the lags are at least 1 ms, 0 and 0."""
    own, one, two = Doorbell(), Doorbell(), Doorbell()
    delivery = Delivery(own)
    at = time.perf_counter_ns() + 2_000_000
    delivery.deliver(at, {one: 2, two: 1}, [at - 1_000_000, at, at + 10**12])
    assert time.perf_counter_ns() >= at
    assert (one.rung, two.rung, own.rung) == (2, 1, 0)
    histogram, late, sum_ns, max_ns = delivery.lag()
    assert sum(histogram) == 3 and histogram[0] >= 1 and 1 <= late <= 2
    assert sum_ns >= max_ns >= 1_000_000 and histogram[max_ns.bit_length()] >= 1
    delivery.deliver(0, {Doorbell(): 1 for _ in range(100)}, [0] * 200)
    assert sum(delivery.lag()[0]) == 203


# --- connections


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_clients_wait_in_any_order(clock, counts):
    """Three connections on two threads and this one: some batches are run, some waited for in
    another order, some taken in the order in which they end. Each has its own tags."""
    drive = a_drive()
    wrong: list[str] = []

    def client(number: int, connection: Any) -> None:
        rng = np.random.default_rng(number)
        for _ in range(counts(5, 300)):
            sizes = rng.integers(1, 6, 6)
            tickets = [connection.submit(writes(drive, int(n))) for n in sizes]
            for at in rng.permutation(4):
                done = tickets[at].wait(SECONDS)
                if not tickets[at].done or sorted(done["tag"]) != list(range(sizes[at])):
                    wrong.append(f"client {number}, batch {at}: {done}")
            rest = {connection.next(SECONDS) for _ in range(2)}
            if rest != set(tickets[4:]) or any(not ticket.done for ticket in rest):
                wrong.append(f"client {number}: {rest}")
            if len(connection.run(writes(drive, 3), timeout=SECONDS)) != 3:
                wrong.append(f"client {number}: run")

    with Service(drive, clock) as service:
        threads = [threading.Thread(target=client, args=(i, service.connect())) for i in range(2)]
        for thread in threads:
            thread.start()
        client(2, service.connect())
        for thread in threads:
            thread.join(SECONDS)
    assert not wrong
    drive.check()


def test_next_returns_batches_in_the_order_in_which_they_end():
    drive = a_drive()
    with Service(drive) as service:
        client = service.connect()
        tickets = [client.submit(writes(drive, count)) for count in (30, 1, 1)]
        found = [client.next(SECONDS) for _ in tickets]
        assert set(found) == set(tickets)
        assert [each.number for each in found] == [1, 2, 3]
        ends = [int(each.wait(0)["end"].max()) for each in found]
        assert ends == sorted(ends)
        with pytest.raises(TimeoutError, match="no batch was finished within 0.01 s"):
            client.next(0.01)


def test_a_ticket_is_not_done_before_its_time(monkeypatch):
    """Although the simulation is up to 20 ms ahead, and the client looks all the time."""
    monkeypatch.setattr("ondie.emu.service.AHEAD_NS", 20_000_000)
    drive, scale = a_drive(), 0.01
    with Service(drive, "real", scale) as service:
        client = service.connect()
        for _ in range(5):
            begin = time.perf_counter()
            ticket = client.submit(writes(drive, 1))
            while not ticket.done:
                time.sleep(1e-4)
            elapsed, done = time.perf_counter() - begin, ticket.wait(0)
            assert elapsed >= int(done["end"][0] - done["arrival"][0]) / 1e12 / scale


def test_timeouts_and_errors_of_a_batch():
    drive = a_drive()
    with Service(drive, "real", 0.001) as service:  # a write takes 0.1 s or more
        client = service.connect()
        ticket = client.submit(writes(drive, 1))
        assert not ticket.done
        with pytest.raises(TimeoutError, match="not done"):
            ticket.wait(0)
        with pytest.raises(TimeoutError):
            client.run(writes(drive, 1), timeout=0.001)
        with pytest.raises(InputError, match="timeout = -1 s: must not be negative"):
            ticket.wait(-1)
        with pytest.raises(InputError, match="timeout = nan s"):
            client.next(float("nan"))
        assert len(ticket.wait(SECONDS)) == 1 and ticket.done
        assert (ticket.wait() == ticket.wait(0)).all()
        bad = writes(drive, 1)
        bad["offset"] = drive.capacity
        with pytest.raises(InputError, match="command 0: offset"):
            client.run(bad, timeout=SECONDS)
        with pytest.raises(InputError, match="batch of 0 commands: must have from 1"):
            client.submit(bad[:0])
    with pytest.raises(InputError, match="the service has ended"):
        client.run(bad)


def test_the_thread_of_the_service_does_not_wait_for_itself():
    drive = a_drive()
    errors: list[BaseException] = []
    with Service(drive, "real", 0.01) as service:
        client = service.connect()

        def wait(done: Any) -> None:
            try:
                client.run(writes(drive, 1))
            except InputError as error:
                errors.append(error)

        added = threading.Event()
        service.call(lambda: added.wait(SECONDS))
        service.submit(writes(drive, 1)).add_done_callback(wait)
        added.set()
    assert len(errors) == 1 and "would wait for itself" in str(errors[0])


def waiter(ticket: Any, found: list[Any]) -> threading.Thread:
    def wait() -> None:
        try:
            found.append(ticket.wait(SECONDS))
        except (RuntimeError, TimeoutError) as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_close_completes_what_is_waited_for():
    drive, found = a_drive(), []
    service = Service(drive, "real", 0.001)
    thread = waiter(service.connect().submit(writes(drive, 2)), found)
    service.close()
    thread.join(SECONDS)
    assert len(found) == 1 and len(found[0]) == 2


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_an_error_of_the_engine_ends_every_wait(clock, monkeypatch):
    drive, found = a_drive(), []

    def broken(*values: Any, **names: Any) -> int:
        raise RuntimeError("a defect")

    with Service(drive, clock) as service:
        clients = [service.connect() for _ in range(3)]
        assert len(clients[0].run(writes(drive, 1), timeout=SECONDS)) == 1
        monkeypatch.setattr(drive, "run_until", broken)
        threads = [waiter(client.submit(writes(drive, 1)), found) for client in clients[:1]]
        for thread in threads:
            thread.join(SECONDS)
        service._thread.join(SECONDS)
        with pytest.raises(InputError, match="the service has ended: a defect"):
            clients[1].submit(writes(drive, 1))
    assert [str(each) for each in found] == ["a defect"]


# --- processor time


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_who_waits_sleeps(clock):
    """An idle service, and a client that waits for a batch of another, use little of a processor;
    a thread that polls uses a whole one."""
    drive = a_drive()
    with Service(drive, clock) as service:
        client = service.connect()
        command = writes(drive, 1)
        command["op"] = READ
        client.run(command, timeout=SECONDS)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        with pytest.raises(TimeoutError):
            client.next(0.5)
        wall, busy = time.perf_counter() - begin, time.process_time() - begin_cpu
    assert busy < 0.2 * wall


# --- lag


def test_percentiles_of_the_lag():
    """Four completions: none late, 1 ns, 2 to 3 ns, 4 to 7 ns. The bound of a bucket is its end."""
    lag = Lag(4, 0, 0.0, 7e-9, (1, 1, 1, 1))
    assert [lag.percentile(share) for share in (0.25, 0.5, 0.75, 1)] == [1e-9, 2e-9, 4e-9, 8e-9]
    assert lag.percentile(0.51) == 4e-9 and lag.percentile(0.5) == 2e-9
    late = Lag(3, 0, 0.0, 7e-9, (0, 0, 0, 3))
    assert {late.percentile(share) for share in (0.1, 0.5, 1)} == {8e-9}
    assert Lag(0, 0, 0.0, 0.0, (0,)).percentile(0.5) == 0
