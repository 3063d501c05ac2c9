"""Who uses the drive of a service: its thread, a client that is alone, or a function between two
turns; and what happens to batches in flight when such a function cuts the power."""

import threading
import time

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.nvme.command import COMMAND, FLUSH, READ
from ondie.emu.service import NOBODY, Service
from ondie.emu.units import InputError
from tests.state.test_client_queue import writes
from tests.state.test_drive_service import CACHED, SECONDS, a_drive, batch


@pytest.mark.parametrize("changes", [{}, CACHED], ids=["no cache", "write back"])
def test_a_client_that_is_alone_gets_the_completions_of_the_drive(changes):
    """The same times as a drive without a service; batches that are handed over come in between."""
    rng = np.random.default_rng(5)
    plain, served = a_drive(**changes), a_drive(**changes)
    with Service(served) as service:
        for _ in range(40):
            commands = batch(rng, plain, int(rng.integers(1, 40)))
            if rng.random() < 0.5:
                found = service.try_run(commands)
                while found is None:  # the thread still ends its turn
                    found = service.try_run(commands)
            else:
                found = service.submit(commands).result(SECONDS)
            commands["arrival"] = plain.earliest_arrival
            plain.submit(commands)
            plain.run_until(completions=len(commands))
            assert (found == plain.completions()).all()
    assert served.now == plain.now and served.events == plain.events
    served.check()


def test_when_a_client_is_not_alone():
    """It is None with the wall clock, for a strict drive, while the thread is busy, and at the end;
    the client then hands its batch over."""
    commands = writes(a_drive(), 4)
    with Service(a_drive(), "real") as service:
        assert service.try_run(commands) is None
    strict = Drive(a_drive().cfg, strict=True)
    with Service(strict) as service:
        assert service.try_run(commands) is None
    with Service(a_drive()) as service:
        inside, leave = threading.Event(), threading.Event()

        def wait() -> None:
            inside.set()
            assert leave.wait(SECONDS)

        called = service.call(wait)
        assert inside.wait(SECONDS)
        assert service.try_run(commands) is None
        late = service.submit(commands)
        assert service.try_run(commands) is None
        leave.set()
        called.result(SECONDS)
        assert len(late.result(SECONDS)) == 4
    assert service.try_run(commands) is None
    assert service.drive.owner is None
    service.drive.close()


def test_a_client_before_the_thread_has_begun(monkeypatch):
    """It hands its batch over; the thread takes the drive between two turns."""
    begin, serve = threading.Event(), Service._serve

    def late(self: Service) -> None:
        assert begin.wait(SECONDS)
        serve(self)

    monkeypatch.setattr(Service, "_serve", late)
    drive = a_drive()
    with Service(drive) as service:
        assert service.try_run(writes(drive, 4)) is None
        with service._turns:
            begin.set()
            time.sleep(0.1)
            assert drive.owner == NOBODY
        assert len(service.submit(writes(drive, 4)).result(SECONDS)) == 4


def test_a_batch_that_breaks_a_rule_leaves_the_service_as_it_was():
    with Service(a_drive()) as service:
        wrong = writes(service.drive, 3)
        wrong["offset"][1] = -512
        with pytest.raises(InputError, match="command 1: offset"):
            while service.try_run(wrong) is None:
                pass
        assert (service.submit(writes(service.drive, 3)).result(SECONDS)["status"] == 0).all()
        with pytest.raises(InputError, match="belongs to a Service"):
            service.drive.check()


def test_clients_that_run_their_batches_themselves_and_others(counts):
    """Eight threads, half of which hand over: every batch is done once, with its own tags, and the
    books of the drive agree."""
    drive = a_drive(**CACHED)
    done = [0] * 8
    itself = [0] * 8

    def work(number: int) -> None:
        connection = service.connect()
        for turn in range(counts(60, 600)):
            commands = writes(drive, turn % 5 + 1, number * 8)
            commands["tag"] += number * 100
            found = service.try_run(commands) if number % 2 else None
            while number == 1 and turn == 0 and found is None:  # until the drive is free for once
                time.sleep(0.0001)
                found = service.try_run(commands)
            itself[number] += found is not None
            if found is None:
                found = connection.run(commands, timeout=SECONDS)
            assert sorted(found["tag"].tolist()) == commands["tag"].tolist()
            done[number] += len(found)

    with Service(drive) as service:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(SECONDS)
    assert len(set(done)) == 1 and done[0] and itself[1]
    drive.check()
    drive.close()


def test_the_end_waits_for_a_client_that_uses_the_drive():
    """close() in the middle of a batch that a client runs itself: the drive is free behind it."""
    for _ in range(20):
        drive = a_drive()
        service = Service(drive)
        client = threading.Thread(target=service.try_run, args=(writes(drive, 300),))
        client.start()
        time.sleep(0.001)
        service.close()
        client.join(SECONDS)
        assert drive.owner is None
        drive.close()


# --- functions between two turns


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_a_function_that_cuts_the_power(clock):
    """Batches in flight fail, as later ones do, until another function switches it on. What was
    flushed is there, and the service goes on."""
    drive = Drive(a_drive(**CACHED, flash__t_program="500 ms").cfg, payload=True, queues=2)
    with Service(drive, clock) as service:
        memory = np.full(drive.unit_bytes, 7, np.uint8)
        first = writes(drive, 1)
        first["data"] = 0
        assert service.submit(first, memory).result(SECONDS)["status"].tolist() == [0]
        flush = np.zeros(1, COMMAND)
        flush["op"], flush["data"] = FLUSH, -1
        assert service.submit(flush).result(SECONDS)["status"].tolist() == [0]

        def cut() -> str:
            drive.power_cut(0)
            return "cut"

        many = writes(drive, 8, 1)
        many["data"], many["fua"] = 0, 1
        flying = service.submit(many, memory) if clock == "real" else None
        if flying is not None:
            end = time.monotonic() + SECONDS
            while not service._batches and time.monotonic() < end:
                time.sleep(0.001)
        ticket = service.connect()
        assert service.call(cut).result(SECONDS) == "cut"
        if flying is not None:
            with pytest.raises(InputError, match="the power was cut"):
                flying.result(SECONDS)
        with pytest.raises(InputError, match="power"):
            service.submit(many, memory).result(SECONDS)
        with pytest.raises(InputError, match="power"):
            ticket.run(many, memory, timeout=SECONDS)
        if clock == "virtual":
            with pytest.raises(InputError, match="power"):
                while service.try_run(many, memory) is None:
                    pass
            with pytest.raises(InputError, match="power"):
                service.idle(1e-3).result(SECONDS)
        service.call(drive.power_on).result(SECONDS)
        read = writes(drive, 1)
        read["op"], read["data"] = READ, 0
        found = np.zeros(drive.unit_bytes, np.uint8)
        assert service.submit(read, found).result(SECONDS)["status"].tolist() == [0]
        assert (found == 7).all()
        assert (ticket.run(many, memory, timeout=SECONDS)["status"] == 0).all()
    drive.close()


def test_a_function_that_fails():
    """The client gets the error; the service goes on. After the end, no function is taken."""
    with Service(a_drive()) as service:
        with pytest.raises(ZeroDivisionError):
            service.call(lambda: 1 // 0).result(SECONDS)
        assert service.call(lambda: service.drive.now).result(SECONDS) == service.drive.now
        assert (service.submit(writes(service.drive, 3)).result(SECONDS)["status"] == 0).all()
    with pytest.raises(InputError, match="the service has ended"):
        service.call(lambda: 0)


def test_a_function_that_runs_the_drive_delivers_what_completes():
    """Batches in flight on the wall clock complete while a function runs the drive."""
    drive = a_drive(flash__t_program="200 ms")
    with Service(drive, "real") as service:
        flying = service.submit(writes(drive, 4))
        end = time.monotonic() + SECONDS
        while not service._batches and time.monotonic() < end:
            time.sleep(0.001)
        service.call(drive.run).result(SECONDS)
        assert (flying.result(SECONDS)["status"] == 0).all()
