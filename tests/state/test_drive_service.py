"""The service of a drive: completions as from the drive itself, several clients, the wall clock,
and errors that end nothing else."""

import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from ondie.emu import service as service_of_drives
from ondie.emu.clock import NEVER
from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import HOST_WRITE_BYTES
from ondie.emu.nvme.client_queue import FutureBatch
from ondie.emu.nvme.command import COMMAND, COMPLETION, FLUSH, READ, TRIM, WRITE
from ondie.emu.service import Lag, Service
from ondie.emu.units import InputError
from tests.state.test_service import SMALL
from tests.state.written import config

CACHED: dict[str, Any] = {"cache__mode": "write_back", "cache__capacity": "64 KiB"}
SECONDS = 60
"""Bound of every wait; nothing here takes as long."""


def a_drive(payload: bool = False, **changes: Any) -> Drive:
    return Drive(config(**{**SMALL, **changes}), payload, queues=2)


def batch(rng: np.random.Generator, drive: Drive, count: int) -> np.ndarray:
    out = np.zeros(count, COMMAND)
    out["op"] = rng.choice([READ, WRITE, TRIM, FLUSH], count, p=[0.4, 0.45, 0.1, 0.05])
    out["queue"] = rng.integers(0, 2, count)
    out["size"] = np.where(out["op"] == FLUSH, 0, drive.unit_bytes)
    out["offset"] = rng.integers(0, drive.units, count) * np.where(
        out["op"] == FLUSH, 0, drive.unit_bytes
    )
    out["data"] = -1
    out["tag"] = rng.integers(0, 4, count)
    return out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("changes", [{}, CACHED], ids=["no cache", "write back"])
def test_completions_are_those_of_the_drive(seed, changes):
    """Batches one after the other, with idle time between: the service adds no time."""
    rng = np.random.default_rng(seed)
    plain, served = a_drive(**changes), a_drive(**changes)
    with Service(served) as service:
        for _ in range(30):
            commands = batch(rng, plain, int(rng.integers(1, 40)))
            found = service.submit(commands).result(SECONDS)
            commands["arrival"] = plain.earliest_arrival
            plain.submit(commands)
            plain.run_until(completions=len(commands))
            assert (found == plain.completions()).all()
            if rng.random() < 0.3:
                assert not len(service.idle(1e-3).result(SECONDS))
                plain.run_until(plain.now + 10**9)
    assert served.now == plain.now and served.events == plain.events
    served.check()


def test_idle_time_destages():
    drive = a_drive(**CACHED, cache__destage_idle="true")
    commands = np.zeros(4, COMMAND)
    commands["op"], commands["size"], commands["data"] = WRITE, drive.unit_bytes, -1
    commands["offset"] = np.arange(4) * drive.unit_bytes
    with Service(drive) as service:
        service.submit(commands).result(SECONDS)
        before = int(drive.arrays.cache.contents[0])
        begin = time.perf_counter()
        service.idle(3600).result(SECONDS)
        assert time.perf_counter() - begin < 20  # a bound against real hours, not a measurement
    assert before > 0 and int(drive.arrays.cache.contents[0]) == 0
    assert drive.now > 3600 * 10**12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_clients_of_several_threads_get_their_own(seed, clock):
    """Equal tags, own memory for each batch: every client reads back what it wrote."""
    drive = a_drive(payload=True, **CACHED)
    unit, share = drive.unit_bytes, drive.units // 4
    wrong: list[str] = []

    def client(number: int) -> None:
        rng = np.random.default_rng((seed, number))
        held: dict[int, int] = {}
        for turn in range(12):
            count = int(rng.integers(1, 6))
            at = number * share + rng.choice(share, count, replace=False)
            memory = np.zeros((count, unit), np.uint8)
            commands = np.zeros(count, COMMAND)
            commands["op"] = WRITE if turn % 2 == 0 else READ
            commands["offset"], commands["size"] = at * unit, unit
            commands["data"], commands["tag"] = np.arange(count) * unit, np.arange(count)
            if turn % 2 == 0:
                memory[:] = rng.integers(1, 255, (count, 1))
                held.update(zip(at.tolist(), memory[:, 0].tolist(), strict=True))
            done = service.submit(commands, memory).result(SECONDS)
            if sorted(done["tag"].tolist()) != list(range(count)) or done["status"].any():
                wrong.append(f"client {number}: {done}")
            right = [held.get(unit_at, 0) for unit_at in at.tolist()]
            if turn % 2 and not (memory == np.array(right, np.uint8)[:, None]).all():
                wrong.append(f"client {number}: {at}, {memory[:, 0]}, not {right}")

    with Service(drive, clock) as service:
        threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert not wrong
    drive.check()


def test_the_wall_clock_is_never_ahead(monkeypatch):
    """A completion comes when its modeled end has passed, at a scale at which that takes time,
    although the simulation may be 5 ms ahead."""
    monkeypatch.setattr(service_of_drives, "AHEAD_NS", 5_000_000)
    drive = a_drive()
    early: list[float] = []
    scale = 0.01
    command = np.zeros(1, COMMAND)
    command["op"], command["size"], command["data"] = WRITE, drive.unit_bytes, -1
    with Service(drive, "real", scale) as service:
        for _ in range(10):
            begin = time.perf_counter()
            done = service.submit(command).result(SECONDS)
            model = (int(done["end"][0]) - int(done["arrival"][0])) / 1e12 / scale
            early.append(model - (time.perf_counter() - begin))
        assert service.lag.completions == 10
    assert max(early) <= 0


def test_lag_is_counted():
    """A callback that holds the thread makes the command that it has handed over late. At this
    scale no command is done before it gets its callback."""
    drive, scale = a_drive(), 0.01
    command = np.zeros(1, COMMAND)
    command["op"], command["size"], command["data"] = WRITE, drive.unit_bytes, -1
    late: list[Future[np.ndarray]] = []

    def hold(done: Future[np.ndarray]) -> None:
        late.append(service.submit(command))
        handed.set()
        time.sleep(0.05)

    handed = threading.Event()
    with Service(drive, "real", scale) as service:
        service.submit(command).add_done_callback(hold)
        assert handed.wait(SECONDS)
    done = late[0].result(SECONDS)
    modeled = (int(done["end"][0]) - int(done["arrival"][0])) / 1e12 / scale
    lag = service.lag
    assert lag.completions == 2 and 1 <= lag.late <= 2 and lag.max_s >= 0.05 - modeled
    assert lag.max_s <= lag.percentile(1.0) <= 2.1 * lag.max_s
    assert sum(lag.histogram) == 2 and lag.mean_s <= lag.max_s


def test_lag_of_nothing():
    lag = Lag(0, 0, 0.0, 0.0, (0,) * 64)
    assert lag.percentile(0.5) == 0.0
    drive = a_drive()
    with Service(drive) as service:
        service.idle(1).result(SECONDS)
        assert service.lag.completions == service.lag.late == 0


def test_the_real_clock_does_idle_work():
    drive = a_drive(**CACHED, cache__destage_idle="true")
    command = np.zeros(1, COMMAND)
    command["op"], command["size"], command["data"] = WRITE, drive.unit_bytes, -1
    with Service(drive, "real") as service:
        service.submit(command).result(SECONDS)
        end = time.monotonic() + SECONDS
        while drive.arrays.cache.contents[0] and time.monotonic() < end:
            time.sleep(0.01)
        assert not drive.arrays.cache.contents[0]


def test_bad_batches_leave_the_others_alone():
    drive = a_drive()
    good = np.zeros(1, COMMAND)
    good["op"], good["size"], good["data"] = WRITE, drive.unit_bytes, -1
    bad = good.copy()
    bad["offset"] = drive.capacity
    with Service(drive) as service:
        futures = [service.submit(each) for each in (good, bad, good)]
        with pytest.raises(InputError, match="command 0: offset"):
            futures[1].result(SECONDS)
        assert [len(futures[i].result(SECONDS)) for i in (0, 2)] == [1, 1]
        with pytest.raises(InputError, match="payload"):
            service.submit(good, np.zeros(4096, np.uint8)).result(SECONDS)
        with pytest.raises(InputError, match=r"batch of 0 commands: must have from 1"):
            service.submit(good[:0])
        with pytest.raises(InputError, match="commands: int64"):
            service.submit(np.zeros(3, np.int64))
        for seconds in (-1, float("nan"), NEVER):
            with pytest.raises(InputError, match="idle = "):
                service.idle(seconds)
        most = (NEVER - 1) // 10**12 - 1
        service.idle(most).result(SECONDS)
        with pytest.raises(InputError, match="the time left on the drive's clock"):
            service.idle(most).result(SECONDS)
        assert service.submit(good).result(SECONDS).dtype == COMPLETION
    with pytest.raises(InputError, match="the service has ended"):
        service.submit(good)
    service.close()


def test_a_cancelled_batch_is_not_submitted():
    drive = a_drive()
    command = np.zeros(1, COMMAND)
    command["op"], command["size"], command["data"] = WRITE, drive.unit_bytes, -1
    held = threading.Event()
    with Service(drive) as service:
        service.call(lambda: held.wait(SECONDS))
        second = service.submit(command)
        assert second.cancel()
        held.set()
        done = service.submit(command).result(SECONDS)
    assert len(done) == 1 and second.cancelled()
    assert drive.arrays.count[0, HOST_WRITE_BYTES] == drive.unit_bytes


@pytest.mark.parametrize("clock", ["virtual", "real"])
@pytest.mark.parametrize("method", ["run_until", "submit"])
def test_an_error_of_the_engine_ends_the_service(clock, method, monkeypatch):
    drive = a_drive()
    command = np.zeros(1, COMMAND)
    command["op"], command["size"], command["data"] = WRITE, drive.unit_bytes, -1

    def broken(*values: Any, **names: Any) -> int:
        raise RuntimeError("a defect")

    with Service(drive, clock) as service:
        service.submit(command).result(SECONDS)
        monkeypatch.setattr(drive, method, broken)
        futures: list[Future[np.ndarray]] = [service.submit(command)]
        with pytest.raises(RuntimeError, match="a defect"):
            futures[0].result(SECONDS)
        service._thread.join(SECONDS)
        with pytest.raises(InputError, match="the service has ended: a defect"):
            service.submit(command)


def test_an_error_in_idle_time_ends_the_service(monkeypatch):
    drive = a_drive()

    def broken(*values: Any) -> int:
        raise RuntimeError("a defect")

    monkeypatch.setattr(drive, "run_until", broken)
    with Service(drive) as service, pytest.raises(RuntimeError, match="a defect"):
        service.idle(1).result(SECONDS)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"clock": "wall"}, "clock = 'wall': must be one of virtual, real"),
        ({"clock": "real", "scale": 0.0}, "scale = 0: must be positive"),
        ({"clock": "real", "scale": float("inf")}, "scale = inf: must be a finite number"),
        ({"scale": 2.0}, "only the clock 'real' has a scale"),
    ],
)
def test_bad_clocks(changes, message):
    with pytest.raises(InputError, match=message):
        Service(a_drive(), **changes)


def test_idle_is_for_the_virtual_clock():
    with (
        Service(a_drive(), "real") as service,
        pytest.raises(InputError, match="idle: requires the clock 'virtual'"),
    ):
        service.idle(1)


def test_a_drive_at_work_is_refused():
    drive = a_drive()
    command = np.zeros(1, COMMAND)
    command["op"], command["size"], command["data"] = WRITE, drive.unit_bytes, -1
    drive.submit(command)
    with pytest.raises(InputError, match="1 commands are in flight"):
        Service(drive)
    drive.run_until()
    with pytest.raises(InputError, match="completions were not taken"):
        Service(drive)
    drive.completions()
    Service(drive).close()


def test_a_batch_that_finds_the_simulation_ahead_is_late():
    """It arrives at the time that the simulation has reached, here 0.1 s ahead of the wall clock,
    and its lag says so. The turns of the thread, which has ended, are taken here."""
    drive = a_drive()
    command = np.zeros(1, COMMAND)
    command["op"], command["size"], command["data"] = WRITE, drive.unit_bytes, -1
    service = Service(drive, "real")
    service.close()
    service._ended = None
    drive.run_until(service._target() + 10**11)
    batch = FutureBatch(command.copy(), time.perf_counter_ns())
    service._accept(batch)
    assert 0 < batch.moved_ps <= 10**11
    while service._batches:
        service._turn()
    assert len(batch.future.result(0)) == 1
    assert service.lag.max_s * 1e12 >= batch.moved_ps


def test_a_short_batch_does_not_wait_for_a_long_one():
    """With the virtual clock: the drive stops when the first batch can be done."""
    drive = a_drive()
    long = np.zeros(16, COMMAND)
    long["op"], long["size"], long["data"] = WRITE, drive.unit_bytes, -1
    long["offset"] = np.arange(16) * drive.unit_bytes
    begun, held = threading.Event(), threading.Event()
    left: list[int] = []

    def hold(done):
        """Stops the service's thread. What is done before it is asked for is called here."""
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            held.wait(SECONDS)

    with Service(drive) as service:
        for _ in range(100):
            service.submit(long[:1]).add_done_callback(hold)
            if begun.wait(0.2):
                break
        assert begun.is_set()
        service.submit(long[:1]).add_done_callback(lambda done: left.append(drive.outstanding))
        service.submit(long)
        held.set()
    assert left and left[0] >= 8


def test_memory_of_a_drive_that_is_never_idle_is_released():
    """Four commands are always in flight; the drive does not keep the memory of all that were, but
    that of these."""
    drive = a_drive(payload=True)
    command = np.zeros(1, COMMAND)
    command["op"], command["size"] = WRITE, drive.unit_bytes
    freed: list[int] = []
    done: set[int] = set()
    for number in range(1000):
        memory = np.full(drive.unit_bytes, number % 250, np.uint8)
        weakref.finalize(memory, freed.append, number)
        command["arrival"], command["tag"] = drive.earliest_arrival, number
        command["offset"] = number % drive.units * drive.unit_bytes
        command["queue"] = 1
        drive.submit(command, memory)
        del memory
        assert done.issuperset(freed)
        if number >= 4:
            drive.run_until(completions=1)
            assert drive.outstanding == 4
            done |= set(drive.completions()["tag"].tolist())
            assert done.issuperset(freed)
    assert len(freed) > 800
    drive.run_until()
    drive.completions()
    assert len(freed) == 1000
    last = max(range(3, 1000, drive.units))
    assert drive.read(3 * drive.unit_bytes, drive.unit_bytes)[0] == last % 250
