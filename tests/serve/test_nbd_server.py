"""Clients of a server of NBD in this process: their number, those that say nothing, leave or do not
read, and the end of the server."""

import contextlib
import gc
import resource
import socket
import threading
import time

import pytest

from ondie.emu.serve import handshakes
from ondie.emu.serve import nbd as server_of
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.handshakes import MOST_SESSIONS
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd import NbdServer
from tests.serve import nbd_client as nbd
from tests.serve import served
from tests.serve.nbd_client import Client, client, until
from tests.state.test_service import SMALL
from tests.state.written import config


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
    with served.memory(tmp_path) as (server, path), client(path) as used:
        monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.3)
        begin = time.monotonic()
        slow, silent = Client(path, name=None), Client(path, name=None)
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
        assert running <= threads + 1  # a thread of an earlier test may end meanwhile
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
