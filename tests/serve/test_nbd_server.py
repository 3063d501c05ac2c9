"""Clients of a server of NBD in this process: their number, those that say nothing, leave or do not
read, and the end of the server."""

import contextlib
import gc
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ondie.emu.nvme.command import FLUSH, WRITE
from ondie.emu.serve import handshakes, nbd_session
from ondie.emu.serve import nbd as server_of
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.handshakes import MOST_SESSIONS
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd import NbdServer
from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.serve.nbd_client import Client, client
from tests.state.test_service import MODES, SMALL
from tests.state.written import config


def until(condition, what):
    """Wait until a condition holds."""
    end = time.monotonic() + nbd.SECONDS
    while not condition():
        assert time.monotonic() < end, f"awaited: {what}"
        time.sleep(0.002)


def test_an_export_by_every_way_in(tmp_path):
    with served.memory(tmp_path) as (server, path):
        export = server.served.export
        for values in ({}, {"go": False}, {"structured": False}, {"name": b"drive"}):
            with client(path, **values) as one:
                df = 1 << 7 if values.get("structured", True) else 0
                assert (one.size, one.flags) == (export.size, export.flags(False) | df)
                one.write(512, b"x" * 512)
                assert one.read(0, 1024) == bytes(512) + b"x" * 512
                assert one.ask(nbd.TRIM, 0, 4096) == nbd.Answer(0)
                assert one.read(0, 4096) == bytes(4096)
        assert server.served.statistics() == {
            "reads": 8, "writes": 4, "disconnects": 0, "flushes": 0, "trims": 4, "caches": 0,
            "write_zeroes": 0, "block_status": 0, "errors": 0,
        }  # fmt: skip


def test_over_tcp():
    listener = Listener(Address.parse(":0", "--nbd"), "--nbd")
    server = NbdServer(MemoryDrive(config(**SMALL), 512), listener)
    try:
        assert listener.address.host == "127.0.0.1" and listener.address.port > 0
        with client((listener.address.host, listener.address.port)) as one:
            one.write(0, b"y" * 4096)
            assert one.read(0, 4096) == b"y" * 4096
    finally:
        server.close()


def test_the_65th_client_is_refused(tmp_path):
    """With a reason; one that leaves makes room, and the others work."""
    with served.memory(tmp_path) as (server, path), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client(path, meta=False)) for _ in range(MOST_SESSIONS)]
        with pytest.raises(ConnectionRefusedError, match="all 64 connections are in use"):
            Client(path)
        with pytest.raises(EOFError):
            Client(path, go=False)
        clients[0].close()
        until(lambda: server.admitted < MOST_SESSIONS, "a place")
        with client(path) as late:
            late.write(0, b"z" * 512)
        assert clients[-1].read(0, 512) == b"z" * 512
    assert server.admitted == 0 and not server.handshakes._sessions


def test_a_place_is_given_back_in_every_way(tmp_path, monkeypatch):
    """By clients that leave during the handshake, when no thread starts or too many have not
    ended, and when there is no memory for a session."""

    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    def no_memory(*_):
        raise MemoryError

    with served.memory(tmp_path) as (server, path):
        for _ in range(70):
            one = Client(path, name=None)
            one.socket.sendall(b"\0\0\0\3" + nbd.option(nbd.OPT_EXPORT_NAME))
            one.close()
        until(lambda: server.admitted == 0, "no place in use")
        for place, name, value in (
            (threading.Thread, "start", no_thread),
            (handshakes, "MOST_SESSIONS", 0),
            (server_of, "session_of", no_memory),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(place, name, value)
                one = Client(path)
                assert one.closed()
                one.close()
            until(lambda: server.admitted == 0, "no place in use")
        until(lambda: not server.handshakes._sessions, "no threads")
        assert not server.handshakes._guests
        with client(path) as one:
            assert one.read(0, 512) == bytes(512)


def test_a_handshake_takes_ten_seconds_at_most(tmp_path, monkeypatch):
    """Bytes that come one by one do not extend it; clients in use are not touched."""
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.3)
    with served.memory(tmp_path) as (server, path), client(path) as used:
        slow, silent = Client(path, name=None), Client(path, name=None)
        begin = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < begin + nbd.SECONDS:
                slow.socket.sendall(b"\0")
                time.sleep(0.02)
        assert 0.2 < time.monotonic() - begin < 10
        assert len(silent.receive(18)) == 18 and silent.closed()
        until(lambda: server.handshakes.expired == 2, "two ended handshakes")
        assert used.read(0, 512) == bytes(512)
        slow.close()
        silent.close()


def test_half_open_connections(tmp_path, counts):
    """Ten thousand at full counts: a client with a proper handshake is served meanwhile, none has
    a thread, and each takes a few kilobytes."""
    count = counts(300, 10_000)
    files = handshakes.raise_file_limit()
    count = min(count, (files - 600) // 2)
    threads = threading.active_count()
    with served.memory(tmp_path) as (server, path), contextlib.ExitStack() as stack:
        running = threading.active_count()
        assert running == threads + 1
        before = memory_bytes()
        for _ in range(count):
            one = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.connect(path)  # waits while too many wait to be accepted
            one.sendall(b"\0\0\0\3" + nbd.IHAVEOPT)
        until(lambda: server.handshakes.accepted == count, f"{count} clients")
        with client(path) as used:
            used.write(0, b"a" * 512)
            assert used.read(0, 512) == b"a" * 512
        assert threading.active_count() <= running + 1
        assert memory_bytes() - before < 20e6 + count * 20_000
    assert not server.handshakes._guests


def memory_bytes() -> int:
    """Resident memory of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_the_oldest_makes_room(tmp_path):
    """With few open files: the ninth client in a handshake ends the first."""
    with served.memory(tmp_path) as (server, path), contextlib.ExitStack() as stack:
        server.handshakes._most_guests = 8
        clients = []
        for number in range(9):
            clients.append(stack.enter_context(client(path, name=None)))
            until(lambda number=number: server.handshakes.accepted == number + 1, "a client")
        assert len(clients[0].receive(18)) == 18 and clients[0].closed()
        assert len(clients[1].receive(18)) == 18
        with client(path) as used:
            assert used.read(0, 512) == bytes(512)


def test_a_process_with_few_files(monkeypatch):
    monkeypatch.setattr(handshakes, "raise_file_limit", lambda: 64)
    listener = Listener(Address.parse("127.0.0.1:0", "--nbd"), "--nbd")
    server = NbdServer(MemoryDrive(config(**SMALL), 512), listener)
    try:
        assert server.handshakes._most_guests == handshakes.LEAST_GUESTS
        with client(("127.0.0.1", listener.address.port)) as one:
            assert one.read(0, 512) == bytes(512)
    finally:
        server.close()


def test_replies_that_nobody_reads_end_a_handshake(tmp_path):
    """256 lists are answered at most, and a client that reads none of them takes little memory."""
    with served.memory(tmp_path) as (server, path):
        one = Client(path, name=None)
        flood = b"\0\0\0\3" + nbd.export_option(nbd.OPT_INFO, b"drive", (1, 2, 3)) * 4000
        with contextlib.suppress(OSError):
            one.socket.sendall(flood)
        until(lambda: not server.handshakes._guests, "the end of the client")
        one.close()
        with client(path) as used:
            assert used.read(0, 512) == bytes(512)


def test_bytes_after_the_handshake_stay_in_the_socket(tmp_path):
    """A client that sends requests with GO and does not read the replies: they wait, and nothing
    grows without bounds."""
    with served.memory(tmp_path) as (_, path):
        one = Client(path, name=None)
        requests = b"".join(nbd.request(nbd.FLUSH, cookie=n) for n in range(20_000))
        sender = threading.Thread(
            target=one.socket.sendall,
            args=(b"\0\0\0\3" + nbd.export_option(nbd.OPT_GO) + requests,),
        )
        sender.start()
        before = memory_bytes()
        found = one.receive(18 + 20 + 12 + 20 + 14 + 20 + 20_000 * 16)
        sender.join(nbd.SECONDS)
        assert found[-16:] == nbd.simple(19_999) and memory_bytes() - before < 50e6
        one.close()


# --- the drive behind it


def test_flush_covers_the_writes_of_all_connections(tmp_path):
    """Multi-conn: what was answered on one connection is clean after a flush on another."""
    with served.drive(tmp_path, "write back") as (server, path), client(path) as a:
        with client(path) as b:
            for number in range(8):
                a.write(number * 4096, bytes([number + 1]) * 4096)
            assert dirty(server) == 8
            assert b.ask(nbd.FLUSH) == nbd.Answer(0)
            assert dirty(server) == 0
            assert b.read(4096, 512) == b"\2" * 512


def test_fua_is_on_flash_before_its_reply(tmp_path):
    """A write with it leaves nothing dirty; zeros and trims with it are followed by a flush."""
    with served.drive(tmp_path, "write back") as (server, path), client(path) as one:
        seen = recorded(server)
        one.write(0, b"a" * 4096)
        assert dirty(server) == 1
        one.write(4096, b"b" * 4096, flags=nbd.FUA)
        one.ask(nbd.WRITE_ZEROES, 8192, 4096, flags=nbd.FUA)
        assert dirty(server) == 0
        one.ask(nbd.TRIM, 0, 4096, flags=nbd.FUA)
        assert one.ask(nbd.READ, 0, 8192, flags=nbd.FUA).data == bytes(4096) + b"b" * 4096
        ops = [op for batch in seen for op in batch]
        assert ops == [WRITE, WRITE, 2, FLUSH, 2, FLUSH, 0]


def dirty(server) -> int:
    """Number of units in the data cache that are not on flash."""
    return int(np.count_nonzero(server.drive.arrays.cpage["dirty"]))


def recorded(server) -> list[list[int]]:
    """The operations of each batch that reaches the drive from now on."""
    seen: list[list[int]] = []
    submit = server.drive.submit

    def record(commands, *rest):
        seen.append(commands["op"].tolist())
        return submit(commands, *rest)

    server.drive.submit = record
    return seen


def test_back_pressure_at_the_depth_of_the_drive(tmp_path):
    """A client that sends more than the drive takes: no batch is larger."""
    options = {"frontend__queue_depth": 4, "host__io_queue_depth": 4}
    with served.drive(tmp_path, **options) as (server, path), client(path) as one:
        assert server.served.depth == 4
        seen = recorded(server)
        batch = b"".join(nbd.request(nbd.READ, n * 512, 512, cookie=n) for n in range(64))
        one._lengths = dict.fromkeys(range(64), 512)
        one.socket.sendall(batch)
        assert {one.answer().cookie for _ in range(64)} == set(range(64))
        assert sum(map(len, seen)) == 64 and max(map(len, seen)) <= 4


def test_disconnects_in_mid_write(tmp_path, counts):
    """Clients that leave in the middle of a write, or with requests in flight: the drive goes on,
    and each of their writes took effect as a whole or not at all."""
    with served.drive(tmp_path) as (server, path):
        for number in range(counts(20, 200)):
            one = Client(path)
            data = bytes([number % 255 + 1]) * 8192
            sent = nbd.request(nbd.WRITE, 0, 8192, data=data) * 3
            one.socket.sendall(sent[: len(sent) - (number * 977) % 8192])
            one.close()
            with client(path) as other:
                found = other.read(0, 8192)
                assert len({found[at : at + 4096] for at in (0, 4096)}) <= 2
                assert found == found[:1] * 8192 or found[:4096] != found[4096:]
        until(lambda: server.nbd.admitted == 0, "no place in use")


def test_media_errors_are_those_of_the_blocks(tmp_path):
    """A batch in which the drive fails one read: EIO for that one, its neighbours have their
    bytes, and the client goes on."""
    with served.drive(tmp_path) as (server, path), client(path) as one:
        one.write(0, b"q" * 16384)
        completions = server.drive.completions

        def fail():
            done = completions()
            done["status"][done["tag"] == 1] = 0x281
            return done

        server.drive.completions = fail
        for cookie in range(3):
            one._lengths[cookie] = 4096
        one.socket.sendall(b"".join(
            nbd.request(nbd.READ, n * 4096, 4096, cookie=n) for n in range(3)
        ))  # fmt: skip
        found = {each.cookie: each for each in (one.answer() for _ in range(3))}
        failed = [each for each in found.values() if each.error]
        assert [(each.cookie, each.error) for each in failed] == [(1, nbd.EIO)]
        assert all(found[n].data == b"q" * 4096 for n in (0, 2))
        server.drive.completions = completions
        assert one.read(4096, 4096) == b"q" * 4096


def test_the_end_answers_what_was_sent(tmp_path):
    """Requests that have reached the server are answered, then it disconnects."""
    with served.drive(tmp_path) as (server, path):
        one = Client(path)
        for cookie in range(200):
            one.send(nbd.WRITE, cookie * 512, cookie=cookie, data=b"e" * 512)
        server.nbd.close()
        found = []
        with contextlib.suppress(EOFError):
            while True:
                found.append(one.answer())
        assert all(each.error == 0 for each in found) and len(found) == 200
        one.close()


def test_the_end_does_not_wait_for_who_does_not_read(tmp_path, monkeypatch):
    """A client that takes no replies is disconnected after a while."""
    monkeypatch.setattr(handshakes, "GRACE_S", 0.3)
    with served.memory(tmp_path) as (server, path):
        one = Client(path)
        one.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while True:
                one.send(nbd.READ, 0, 1 << 19)
        begin = time.monotonic()
        server.close()
        assert 0.2 < time.monotonic() - begin < 10
        one.close()


def test_the_power_is_cut_under_clients(tmp_path):
    """They get EIO until it is on again; what was flushed is there."""
    with served.drive(tmp_path, "write back") as (server, path), client(path) as one:
        one.write(0, b"p" * 4096)
        one.ask(nbd.FLUSH)
        server.service.call(lambda: server.drive.power_cut(0)).result(nbd.SECONDS)
        assert one.ask(nbd.READ, 0, 512).error == nbd.EIO
        assert one.ask(nbd.WRITE, 0, data=bytes(512)).error == nbd.EIO
        assert one.ask(nbd.FLUSH).error == nbd.EIO
        server.service.call(server.drive.power_on).result(nbd.SECONDS)
        assert one.read(0, 4096) == b"p" * 4096


def test_many_clients_at_once(tmp_path, counts):
    """Eight clients write and read their own sectors at the same time, on a drive and in memory."""

    def work(path, number):
        rng = np.random.default_rng(number)
        mine = {}
        with client(path) as one:
            for _ in range(counts(40, 400)):
                at = int(rng.integers(0, 32)) * 8 + number
                if rng.random() < 0.5 or at not in mine:
                    mine[at] = rng.bytes(512)
                    one.write(at * 512, mine[at])
                else:
                    assert one.read(at * 512, 512) == mine[at]
        return mine

    for make in (served.memory, served.drive):
        with make(tmp_path) as (_, path), ThreadPoolExecutor(8) as pool:
            for mine in pool.map(work, [path] * 8, range(8)):
                with client(path) as one:
                    for at, data in mine.items():
                        assert one.read(at * 512, 512) == data


@pytest.mark.parametrize("mode", MODES)
def test_block_status_knows_what_is_cached(tmp_path, mode):
    """Data in the cache are no hole, before and after a flush; trimmed units are one."""
    with served.drive(tmp_path, mode) as (_, path), client(path) as one:
        one.write(8192, b"c" * 4096)
        expected = ((8192, 3), (4096, 0), (8192, 3))
        assert one.ask(nbd.BLOCK_STATUS, 0, 20480).extents == expected
        assert one.ask(nbd.BLOCK_STATUS, 8704, 8192).extents == ((3584, 0), (4608, 3))
        one.ask(nbd.FLUSH)
        assert one.ask(nbd.BLOCK_STATUS, 0, 20480).extents == expected
        assert one.ask(nbd.BLOCK_STATUS, 8192, 20480, nbd.REQ_ONE).extents == ((4096, 0),)
        one.ask(nbd.TRIM, 8192, 4096)
        assert one.ask(nbd.BLOCK_STATUS, 0, 20480).extents == ((20480, 3),)
        units = one.size // 4096
        assert units > 2 * nbd_session.FIRST_STATUS_UNITS
        whole = units * 4096
        assert one.ask(nbd.BLOCK_STATUS, 0, whole, nbd.REQ_ONE).extents == ((whole, 3),)
        one.write(whole - 8192, b"e" * 4096)
        assert one.ask(nbd.BLOCK_STATUS, 0, whole, nbd.REQ_ONE).extents == ((whole - 8192, 3),)
        assert one.ask(nbd.BLOCK_STATUS, 1 << 40, 4096).error == nbd.EINVAL


# --- the wall clock


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
