"""A drive behind NBD whose completions come at their time on the wall clock: each request is
answered when it completes, the depth of the queue, refusals, and clients that leave."""

import threading
import time

import numpy as np

from ondie.emu.nvme.client_turns import IN_FLIGHT
from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.serve.nbd_client import Client, client, until


def test_back_pressure_with_the_wall_clock(tmp_path):
    """64 reads at a depth of 4: never more in flight, each answered once, large ones too."""
    options = {"frontend__queue_depth": 4, "host__io_queue_depth": 4, "flash__t_read": "1 ms"}
    with served.drive(tmp_path, "no cache", {"clock": "real"}, **options) as (server, path):
        with client(path) as one:
            data = np.random.default_rng(1).bytes(100 << 10)
            one.write(0, data)
            flying = []
            submit = server.drive.submit

            def record(commands, *rest):
                flying.append(server.drive.outstanding + len(commands))
                return submit(commands, *rest)

            server.drive.submit = record
            for cookie in range(64):
                one.send(nbd.READ, cookie * 512, 512, cookie=cookie)
            found = {each.cookie: each.data for each in (one.answer() for _ in range(64))}
            assert found == {n: data[n * 512 : n * 512 + 512] for n in range(64)}
            assert max(flying) <= 4 and len(flying) >= 16
            one.send(nbd.READ, 512, 99 << 10, cookie=1)  # four commands of up to 32 KiB
            one.send(nbd.READ, 0, 512, cookie=2)
            found = {each.cookie: each.data for each in (one.answer() for _ in range(2))}
            assert found == {1: data[512 : 512 + (99 << 10)], 2: data[:512]}


def test_replies_come_one_by_one_with_the_wall_clock(tmp_path):
    """A read that takes long and, sent after it, one of memory that was never written: the second
    reply comes first, and at most as many commands are in flight as the drive takes."""
    options = {"clock": "real"}
    with served.drive(tmp_path, "no cache", options, flash__t_read="2 s") as (server, path):
        with client(path) as one:
            one.write(0, b"w" * 4096)
            begin = time.monotonic()
            one.send(nbd.READ, 0, 4096, cookie=1)
            one.send(nbd.READ, 65536, 4096, cookie=2)
            assert one.answer() == nbd.Answer(2, data=bytes(4096))
            early = time.monotonic() - begin
            one.send(nbd.FLUSH, cookie=3)
            assert {one.answer().cookie, one.answer().cookie} == {1, 3}
            assert early < 2 <= time.monotonic() - begin
        assert server.served.statistics()["errors"] == 0


def test_any_requests_with_the_wall_clock(tmp_path):
    """Reads and writes at depth 16 against a dictionary, refusals and slow requests among them."""
    with served.drive(tmp_path, "write back", {"clock": "real"}) as (server, path):
        rng = np.random.default_rng(3)
        known: dict[int, bytes] = {}
        with client(path) as one:
            for _ in range(20):
                places = rng.choice(200, 16, replace=False).tolist()
                expected = {}
                for cookie, at in enumerate(places):
                    kind = int(rng.choice([0, 1, 6, 9]))
                    data = rng.bytes(512) if kind == 1 else b""
                    if kind == nbd.READ:
                        expected[cookie] = nbd.Answer(cookie, data=known.get(at, bytes(512)))
                    else:
                        expected[cookie] = nbd.Answer(cookie, nbd.EINVAL if kind == 9 else 0)
                    if kind == 1:
                        known[at] = data
                    elif kind == nbd.WRITE_ZEROES:
                        known[at] = bytes(512)
                    one.send(kind, at * 512, 512, cookie=cookie, data=data)
                found = {each.cookie: each for each in (one.answer() for _ in range(16))}
                assert found == expected
            assert one.ask(nbd.BLOCK_STATUS, 0, 4096).extents
            server.service.call(lambda: server.drive.power_cut(0)).result(nbd.SECONDS)
            assert one.ask(nbd.READ, 0, 512).error == nbd.EIO
            server.service.call(server.drive.power_on).result(nbd.SECONDS)
            assert one.ask(nbd.READ, 0, 512).error == 0
    assert server.nbd.admitted == 0


def test_a_client_leaves_with_requests_in_flight(tmp_path):
    """With the wall clock: its writes take effect, and its threads end."""
    options = {"clock": "real"}
    with served.drive(tmp_path, "no cache", options, flash__t_program="30 ms") as (server, path):
        one = Client(path)
        for number in range(4):
            one.send(nbd.WRITE, number * 4096, cookie=number, data=b"l" * 4096)
        one.close()
        with client(path) as other:
            until(lambda: other.read(12288, 4096) == b"l" * 4096, "the last write")
        until(lambda: server.nbd.admitted == 0, "no place in use")
        names = [each.name for each in threading.enumerate()]
        assert "ondie nbd replies" not in names


def recorded(server):
    """What the calls of run_single of ``server`` return from now on."""
    found = []
    run_single = server.service.run_single

    def record(*given):
        found.append(run_single(*given))
        return found[-1]

    server.service.run_single = record
    return found


def test_one_request_at_a_time_is_answered_at_its_time(tmp_path):
    """None before the 70 us of flash have passed; most in one run, each counted in the lag, which
    is measured from the time at which a request has arrived."""
    with served.drive(tmp_path, "no cache", {"clock": "real"}, flash__t_read="70 us") as (
        server, path,
    ):  # fmt: skip
        found = recorded(server)
        with client(path) as one:
            one.write(0, b"t" * 4096)
            for number in range(100):
                begin, before = time.perf_counter_ns(), server.service.lag
                assert one.read(0, 4096) == b"t" * 4096
                took = time.perf_counter_ns() - begin
                after = server.service.lag
                assert took >= 70_000 and after.completions == 2 + number
                lag = after.mean_s * after.completions - before.mean_s * before.completions
                assert lag * 1e9 < took - 70_000 + 1000
        assert found.count(0) >= 30


def test_one_request_at_a_time_that_takes_longer_than_a_turn(tmp_path):
    """Reads of 0.6 ms: the first run of each does not complete it, whoever goes on with it."""
    options = {"clock": "real"}
    with served.drive(tmp_path, "no cache", options, flash__t_read="600 us") as (server, path):
        found = recorded(server)
        with client(path) as one:
            data = np.random.default_rng(5).bytes(64 << 10)
            one.write(0, data)
            for number in range(40):
                at = number % 16 * 4096
                assert one.read(at, 4096) == data[at : at + 4096]
        assert found.count(IN_FLIGHT) >= 10
        assert server.served.statistics()["errors"] == 0


def test_an_error_of_one_request_at_a_time(tmp_path):
    """It is answered with EIO and counted, and the next one succeeds."""
    with served.drive(tmp_path, "no cache", {"clock": "real"}) as (server, path):
        with client(path) as one:
            one.write(0, b"m" * 8192)
            inject = server.drive.inject_media_errors
            server.service.call(lambda: inject(4096, 4096)).result(nbd.SECONDS)
            for number in range(20):
                assert one.ask(nbd.READ, 4096, 4096).error == nbd.EIO
                assert one.read(0, 4096) == b"m" * 4096
                assert server.served.statistics()["errors"] == number + 1
