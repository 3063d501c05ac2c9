"""Does every program learn of what a relay of TCP has lost, and of no loss where there is none?"""

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys

import pytest

from ondie.emu.live.host_end import HostEnd, Port
from ondie.emu.live.tcp_stream import HEAD, IP, WINDOW, Kind
from ondie.emu.nvme.tunnel.framing import Format
from ondie.emu.nvme.tunnel.protocol import Packet
from tests.live.processes import wait_for
from tests.live.test_tcp_relay import PORT, Pair, packet, take_all
from tests.live.test_tunnel_offloads import Queue

FORM = Format(1 << 16, 4, 1500, notify="hold")


def kind_of(packet: bytes) -> int:
    return HEAD.unpack_from(packet, IP.size)[2]


def first_of(kind: Kind):
    """Drops the first message of a kind."""
    dropped: list[bytes] = []

    def drop(packet: bytes) -> bool:
        if dropped or kind_of(packet) != kind:
            return False
        dropped.append(packet)
        return True

    return drop


def no_streams(pair: Pair) -> bool:
    return not any(end._streams for end in pair.ends)


# --- a right transfer


def test_a_slow_reader_of_a_long_answer_gets_all_of_it():
    """A client says that it sends no more, and the server closes before the client has read."""
    size = 1 << 20
    with Pair() as pair, pair.connection() as (near, far):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        (stream,) = pair.ends[0]._streams.values()
        stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        near.sendall(b"question")
        near.shutdown(socket.SHUT_WR)
        assert take_all(far) == b"question"
        data = os.urandom(size)
        found = bytearray()
        far.setblocking(False)
        sent = 0
        while len(found) < size:
            if sent < size:
                with contextlib.suppress(BlockingIOError):
                    sent += far.send(data[sent:])
                if sent == size:
                    far.close()
            wait_for(  # so that much waits there when the end arrives
                "a near relay with no more room",
                lambda: stream.ends or len(stream.waiting) + stream.owed == WINDOW,
                20,
            )
            found += near.recv(1 << 14)
        assert found == data and near.recv(1) == b""
        wait_for("no stream", lambda: no_streams(pair), 20)
        assert not any(kind_of(each) == Kind.RESET for each in pair.packets)


# --- losses


def test_a_killed_relay_is_no_end_of_data():
    program = """
import ipaddress, os, select, sys
from ondie.emu.live.tcp_relay import TcpRelay
own, place, other = map(ipaddress.IPv4Address, sys.argv[1:4])
relay = TcpRelay(own, {place: other}, (int(sys.argv[4]),), 1500)
print("ready", flush=True)
while relay.read() is None:
    select.select([relay], [], [])
print("open", flush=True)
select.select([], [], [])
"""
    net = f"127.{100 + os.getpid() % 100}.250"
    words = [sys.executable, "-c", program, f"{net}.2", f"{net}.21", f"{net}.1", str(PORT)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        with socket.create_connection((f"{net}.21", PORT), 20) as sock:
            assert process.stdout.readline() == "open\n"
            process.send_signal(signal.SIGKILL)
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", [Kind.OPEN, Kind.OPENED])
def test_a_lost_opening_is_a_reset(kind):
    with Pair(drop=first_of(kind)) as pair, pair.listen(pair.drive) as listener:
        with pytest.raises(ConnectionResetError), pair.connect(pair.to_drive) as near:
            near.recv(1)
        if kind == Kind.OPENED:
            far, _ = listener.accept()
            with far, pytest.raises(ConnectionResetError):
                far.settimeout(20)
                far.recv(1)
        wait_for("no stream", lambda: no_streams(pair), 20)
        with pair.connect(pair.to_drive) as near, listener.accept()[0] as far:
            far.sendall(b"x")
            assert near.recv(1) == b"x"


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.END])
def test_a_loss_without_a_successor_is_a_reset(kind):
    with Pair(drop=first_of(kind)) as pair, pair.connection() as (near, far):
        near.sendall(b"x")
        if kind == Kind.END:
            assert far.recv(1) == b"x"
            near.shutdown(socket.SHUT_WR)
        near.settimeout(20)
        for each in (far, near):
            with pytest.raises(ConnectionResetError):
                each.recv(1)
        assert no_streams(pair)


def test_a_relay_that_starts_anew_has_no_connection():
    """Neither end has it when both do, as when the host's relay has ended."""
    with Pair() as pair, pair.connection() as (near, far):
        before = [end._next for end in pair.ends]
        for end in pair.ends:
            end.restart()
        near.settimeout(20)
        for each in (near, far):
            with pytest.raises(ConnectionResetError):
                each.recv(1)
        assert no_streams(pair) and all(
            abs(end._next - old) > 1 for end, old in zip(pair.ends, before, strict=True)
        )


def test_each_process_draws_its_numbers():
    pair = Pair()
    found = set()
    for _ in range(3):
        told, telling = os.pipe()
        pid = os.fork()
        if pid == 0:
            HostEnd(pair.ends[0], pair.host.packed)
            os.write(telling, b"%d" % pair.ends[0]._next)
            os._exit(0)
        os.waitpid(pid, 0)
        found.add(os.read(told, 100))
        os.close(told)
        os.close(telling)
    assert len(found) == 3
    for end in pair.ends:
        end.close()


# --- who tells


def relayed(pair: Pair, drives: int = 1):
    """The host's end with the relay of a pair and tunnels that are not open yet."""
    host = HostEnd(pair.ends[0], pair.host.packed)
    queues = [Queue(FORM) for _ in range(drives)]
    for number, queue in enumerate(queues):
        address = bytes([*pair.drive.packed[:3], pair.drive.packed[3] + number])
        host.add(Port(queue, FORM, address))
    return host, list(host.ports.values()), queues


def opened(host, ports) -> None:
    for port in ports:
        host.work(port)
    assert all(port.open for port in ports)


def given(queue: Queue) -> list[bytes]:
    return [bytes(each.data) for each in queue.drive.events() if isinstance(each, Packet)]


def accepted(pair: Pair, host) -> None:
    wait_for("a connection", lambda: host.take() or pair.ends[0]._streams, 20)


def test_a_connection_waits_until_the_tunnel_is_open():
    pair = Pair()
    host, ports, (queue,) = relayed(pair)
    with pair.connect(pair.to_drive):
        for _ in range(3):
            host.take()
        assert host.holds and not pair.ends[0]._streams
        opened(host, ports)
        accepted(pair, host)
        assert [kind_of(each) for each in given(queue)] == [Kind.OPEN]
    for end in pair.ends:
        end.close()


def test_a_connection_to_a_drive_that_has_gone_is_reset():
    pair = Pair()
    host, ports, queues = relayed(pair, 2)
    opened(host, ports)
    near = pair.connect(pair.to_drive)
    accepted(pair, host)
    ports[0].gone = "the drive has gone"
    with near, pytest.raises(ConnectionResetError):
        near.recv(1)
    (told,) = given(queues[1])  # so that it resets its connections with that drive
    assert kind_of(told) == Kind.GONE and told[12:16] == ports[0].address
    assert told[16:20] == ports[1].address
    with pair.connect(pair.to_drive) as near:
        wait_for("the packet", lambda: host.take() or ports[0].counts["dropped"], 20)
        with pytest.raises(ConnectionResetError):
            near.recv(1)
    for end in pair.ends:
        end.close()


def test_a_drop_between_drives_is_told_to_both():
    pair = Pair()
    host, ports, queues = relayed(pair, 2)
    opened(host, ports)
    message = bytearray(packet(pair, Kind.END, number=9))
    message[12:16], message[16:20] = ports[0].address, ports[1].address
    type(ports[1]).full = property(lambda port: port is ports[1])  # it takes nothing
    try:
        queues[0].drive.send(bytes(message))
        host.work(ports[0])
    finally:
        type(ports[1]).full = FULL
    for queue, opener, source in ((queues[0], 0, 1), (queues[1], 1, 0)):
        (told,) = given(queue)
        assert HEAD.unpack_from(told, IP.size) == (9, 0, Kind.RESET, opener, 0)
        assert told[12:16] == ports[source].address
    for end in pair.ends:
        end.close()


FULL = Port.full


def test_an_end_that_has_gone_is_the_end_of_its_connections():
    with Pair() as pair, pair.connection() as (_, far):
        (told,) = pair.ends[0].left(pair.host.packed, [pair.drive.packed])
        assert pair.ends[1].write(told)
        with pytest.raises(ConnectionResetError):
            far.recv(1)


# --- no descriptors


@contextlib.contextmanager
def no_descriptors():
    """No file can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_descriptor_for_a_connection_is_a_reset():
    pair = Pair()
    with no_descriptors():
        assert pair.ends[1].write(packet(pair, Kind.OPEN))
    assert kind_of(pair.ends[1].read()) == Kind.RESET
    for end in pair.ends:
        end.close()


def test_no_descriptor_to_accept_with_is_a_wait():
    """The relay sleeps meanwhile, and accepts when a connection has ended."""
    with Pair() as pair, pair.listen(pair.drive) as listener, socket.socket() as waiting:
        relay = pair.ends[0]
        with pair.connect(pair.to_drive) as near, listener.accept()[0] as far:
            wait_for("an open stream", pair.is_open, 20)
            with no_descriptors():
                waiting.connect((str(pair.to_drive), PORT))
                wait_for("a relay that waits", lambda: relay._paused, 20)
                assert not select.select([relay], [], [], 0.2)[0]
                far.sendall(b"x")
                assert near.recv(1) == b"x"
            assert relay._paused
        with listener.accept()[0] as far:
            far.sendall(b"y")
            assert waiting.recv(1) == b"y"


def test_many_connections_wait_for_a_descriptor():
    pair = Pair()
    relay = pair.ends[0]
    clients = [socket.socket() for _ in range(2)]
    with no_descriptors():
        for each in clients:
            each.connect((str(pair.to_drive), PORT))
        assert relay.read() is None and relay._paused
    assert relay.read() is None and not relay._streams
    assert relay.write(packet_to(pair, Kind.CREDIT))  # any message: there may be some again
    wait_for("both", lambda: (relay.read(), len(relay._streams) == 2)[1], 20)
    assert not relay._paused
    for each in (*clients, *pair.ends):
        each.close()


def packet_to(pair: Pair, kind: int) -> bytes:
    """A message for the host."""
    found = bytearray(packet(pair, kind))
    found[12:16], found[16:20] = pair.drive.packed, pair.host.packed
    return bytes(found)
