"""A client that is alone runs the turns of a service with the wall clock itself: is nothing else
different, and does the service's thread go on as soon as somebody else comes?"""

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from ondie.emu.nvme import client_turns
from ondie.emu.nvme.client_queue import Batch, Stream
from ondie.emu.nvme.client_turns import IN_FLIGHT, REFUSED
from ondie.emu.nvme.command import COMMAND, FLUSH, READ
from ondie.emu.service import Service
from ondie.emu.units import InputError
from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.serve.nbd_client import client
from tests.state.test_client_queue import writes
from tests.state.test_drive_service import SECONDS, a_drive

SLOW = 0.0005
"""Scale at which a read of flash takes about 0.1 s of the wall clock."""
TRIES = 300
"""A machine that is busy may keep a thread waiting for longer than a read: it is tried again."""


def turns_by_thread(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Identifiers of the threads that submit batches, as they do."""
    found: list[int] = []
    accept = service._accept

    def record(batch: Batch) -> None:
        found.append(threading.get_ident())
        accept(batch)

    monkeypatch.setattr(service, "_accept", record)
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is too far for a client that is alone."""
    monkeypatch.setattr(client_turns, "LENT_NS", 10**11)


def reads(drive: Any, count: int) -> np.ndarray:
    out = writes(drive, count)
    out["op"] = READ
    return out


def filled() -> Any:
    """A drive of which each unit is on flash."""
    drive = a_drive()
    flush = np.zeros(1, COMMAND)
    flush["op"], flush["data"] = FLUSH, -1
    with Service(drive) as service:
        connection = service.connect()
        connection.run(writes(drive, drive.units))
        connection.run(flush)
    return drive


def test_one_command_at_a_time_runs_in_the_thread_of_its_client(monkeypatch):
    """They complete with the latency of an idle drive, and none before its time."""
    drive = filled()
    with Service(drive) as service:
        one = service.connect().run(reads(drive, 1))
    latency = int(one["end"][0] - one["arrival"][0])
    with Service(drive, "real") as service:
        connection, threads = service.connect(), turns_by_thread(service, monkeypatch)
        for _ in range(TRIES):
            begin = time.perf_counter_ns()
            done = connection.run(reads(drive, 1))
            assert (time.perf_counter_ns() - begin) * 1000 >= done["end"][0] - done["arrival"][0]
            assert done["end"][0] - done["arrival"][0] == latency
            if threads.count(threading.get_ident()) == 15:  # the others came beside a turn
                break
        else:
            pytest.fail("most commands ran in the service's thread")
        assert service.lag.completions == len(threads)


def test_a_batch_of_another_client_is_not_kept_waiting(monkeypatch, patient):
    """The service's thread takes both, and their times overlap."""
    drive = filled()
    with Service(drive, "real", SLOW) as service:
        one, two = service.connect(), service.connect()
        threads = turns_by_thread(service, monkeypatch)
        for _ in range(TRIES):
            time.sleep(0.005)
            del threads[:]
            ticket: list[Any] = []

            def other(ticket: list[Any] = ticket) -> None:
                while not threads:  # until the first is in flight
                    time.sleep(0.0003)
                ticket.append(two.submit(reads(drive, 3)[-1:]))

            thread = threading.Thread(target=other, daemon=True)
            thread.start()
            first = one.run(reads(drive, 1))
            thread.join(SECONDS)
            second = ticket[0].wait(SECONDS)
            if (threads == [threading.get_ident(), service._thread.ident]
                    and second["arrival"][0] < first["end"][0]):  # fmt: skip
                break
        else:
            pytest.fail("the two were never in flight together")


def test_input_ends_the_turns(patient):
    """The batch is then in flight, and another one can be handed over beside it."""
    drive = filled()
    ready, writer = os.pipe()
    with Service(drive, "real", SLOW) as service:
        connection = service.connect()
        os.write(writer, b"x")
        for _ in range(TRIES):
            time.sleep(0.005)
            stream = connection.try_stream(reads(drive, 1), fd=ready)
            if stream is None:  # the service's thread has a turn
                continue
            assert isinstance(stream, Stream)
            second = connection.submit(reads(drive, 3)[-1:])
            first = connection.next(SECONDS).wait()
            done = second.wait(SECONDS)
            if done["arrival"][0] < first["end"][0]:
                break
        else:
            pytest.fail("the two were never in flight together")
    os.close(ready)
    os.close(writer)


def test_what_is_prepared_before_a_completion():
    """A client has its completion before the wall clock has reached it, and goes on when it has.
    The command has arrived when the client says."""
    drive, before_ns = filled(), 300_000
    with Service(drive, "real", SLOW * 100) as service:  # a read takes 1 ms
        connection = service.connect()
        for _ in range(TRIES):
            time.sleep(0.005)
            seen, rung, begin = list[Any](), connection.bell.rung, time.perf_counter_ns()

            def early(done: Any, seen: list[Any] = seen) -> None:
                seen.append((done.copy(), time.perf_counter_ns(), connection.bell.rung))

            if connection.try_stream(
                reads(drive, 1), handed_ns=begin - before_ns, early=early
            ) is None:  # fmt: skip
                continue  # the service's thread has a turn
            ended = time.perf_counter_ns()
            if not seen:  # it has waited for too long
                connection.next(SECONDS).wait()
                continue
            done = seen[0][0]
            due = service._wall.ns_of(int(done["end"][0]))
            assert due <= ended
            if seen[0][1] < due and done["arrival"][0] == service._wall.at(
                begin - before_ns
            ):  # fmt: skip
                break
        else:
            pytest.fail("never before the completion, or never at the time of the client")
        assert len(seen) == len(done) == 1 and not done["status"].any()
        assert seen[0][2] == rung == connection.bell.rung
        with pytest.raises(TimeoutError):  # nobody gets it twice
            connection.next(0)


def test_the_service_prepares_nothing():
    """What its own thread delivers is taken by the client."""
    drive, seen = filled(), []
    with Service(drive, "real", SLOW / 20) as service:
        connection = service.connect()
        ready, writer = os.pipe()
        os.write(writer, b"x")
        for _ in range(TRIES):
            time.sleep(0.005)
            if connection.try_stream(reads(drive, 1), fd=ready, early=seen.append) is not None:
                break
        assert len(connection.next(SECONDS).wait()) == 1 and not seen
    os.close(ready)
    os.close(writer)


def test_who_is_not_alone_has_no_turns():
    drive = filled()
    with Service(drive, "real", SLOW / 20) as service:
        one, two = service.connect(), service.connect()
        flying = one.submit(reads(drive, 1))  # it takes 2 s
        assert two.try_stream(reads(drive, 1)) is None
        flying.wait(SECONDS)
        assert drive.outstanding == 0
    assert two.try_stream(reads(drive, 1)) is None
    with Service(drive) as service:
        assert service.connect().try_stream(reads(drive, 1)) is None
    drive.check()


def test_a_batch_that_breaks_a_rule_has_no_effect():
    drive = filled()
    wrong = np.zeros(1, COMMAND)
    wrong["op"], wrong["size"], wrong["data"] = READ, 1, -1
    with Service(drive, "real") as service:
        connection = service.connect()
        for _ in range(20):
            with pytest.raises(InputError, match="size"):
                connection.run(wrong)
            assert len(connection.run(reads(drive, 1))) == 1
    drive.check()


def test_a_defect_in_a_turn_of_a_client(monkeypatch):
    """The client gets it, as from a turn of the service's thread, and the service ends with it."""
    drive = filled()
    with Service(drive, "real") as service:
        connection, other = service.connect(), service.connect()
        run_until, thread = drive.run_until, service._thread.ident

        def fails(*given, **options):
            if threading.get_ident() != thread:
                raise RuntimeError("a defect")
            return run_until(*given, **options)

        monkeypatch.setattr(drive, "run_until", fails)
        for _ in range(100):
            time.sleep(0.005)
            try:
                connection.run(reads(drive, 1))
            except RuntimeError:
                break
        else:
            pytest.fail("no turn of the client's thread")
        with pytest.raises(InputError, match="the service has ended: a defect"):
            other.run(reads(drive, 1))
        service._thread.join(SECONDS)
        assert not service._thread.is_alive() and drive.owner is None


@pytest.mark.parametrize("clients", [1, 3])
def test_clients_that_come_and_go(clients, counts):
    """Each command completes once, in times that do not overlap for one client."""
    drive, wrong = filled(), []
    with Service(drive, "real") as service:

        def work(number: int) -> None:
            rng, connection, last = np.random.default_rng(number), service.connect(), 0
            for _ in range(counts(40, 400)):
                time.sleep(float(rng.choice([0, 0, 0.0005, 0.003])))
                count = int(rng.choice([1, 1, 1, 4]))
                commands = writes(drive, count, int(rng.integers(drive.units)))
                commands["op"] = rng.choice([READ, 1], count)
                done = connection.run(commands)
                ends = np.sort(done["tag"])
                if len(done) != count or (ends != np.arange(count)).any() or done["status"].any():
                    wrong.append((number, done))
                if done["arrival"].min() < last:
                    wrong.append((number, last))
                last = int(done["end"].max())

        threads = [threading.Thread(target=work, args=(each,)) for each in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
    assert not wrong
    drive.check()
    drive.close()


def test_requests_of_nbd_alone_and_together(tmp_path, counts):
    """Between requests one at a time, two or three at once: each is answered, with its data."""
    with served.drive(tmp_path, "no cache", {"clock": "real"}) as (server, path):
        with client(path) as one:
            data = np.random.default_rng(1).bytes(64 << 10)
            one.write(0, data)
            alone = []
            try_single = server.service.run_single

            def run_single(*given):
                alone.append(try_single(*given))
                return alone[-1]

            server.service.run_single = run_single
            rng = np.random.default_rng(2)
            for _ in range(counts(60, 600)):
                count = int(rng.choice([1, 1, 1, 2, 3]))
                places = rng.choice(128, count, replace=False).tolist()
                for cookie, at in enumerate(places):
                    one.send(nbd.READ, at * 512, 512, cookie=cookie)
                    time.sleep(float(rng.choice([0, 0, 5e-5])))
                found = {each.cookie: each.data for each in (one.answer() for _ in range(count))}
                assert found == {n: data[at * 512 : at * 512 + 512] for n, at in enumerate(places)}
        with client(path) as two:  # its connection was made with the function of this test
            for at in range(20):
                assert two.read(at * 512, 512) == data[at * 512 : at * 512 + 512]
            server.service.call(lambda: server.drive.power_cut(0)).result(nbd.SECONDS)
            assert two.ask(nbd.READ, 0, 512).error == nbd.EIO
            server.service.call(server.drive.power_on).result(nbd.SECONDS)
            assert two.read(0, 512) == data[:512]
        assert alone.count(0) >= 5 and set(alone) <= {0, IN_FLIGHT, REFUSED}
