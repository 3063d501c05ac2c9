"""Do connections of programs cross two relays on the loopback device, and nothing else?"""

import contextlib
import hashlib
import ipaddress
import itertools
import os
import random
import select
import socket
import struct
import threading
from collections.abc import Callable

import pytest

from ondie.emu.live.tcp_relay import TcpRelay
from ondie.emu.live.tcp_stream import HEAD, IP, WINDOW, Kind
from ondie.emu.units import InputError
from tests.live.processes import wait_for

PORT = 8000
SIZE = 3 << 20
_number = itertools.count(1)


class Pair:
    """Relays of a host and a drive, and a thread that takes packets from one to the other.

    ``lose``: the numbers of packets that get lost. ``drop``: says of a packet whether it is
    dropped, of which the relay that gave it is told. After :meth:`hold`, packets wait until
    ``held`` is False."""

    def __init__(self, mtu: int = 1500, lose: tuple[int, ...] = (),
                 drop: Callable[[bytes], bool] = lambda packet: False) -> None:  # fmt: skip
        net = f"127.{100 + os.getpid() % 100}.{next(_number)}"
        self.host, self.drive = (ipaddress.IPv4Address(f"{net}.{end}") for end in (1, 2))
        self.to_drive, self.to_host = (ipaddress.IPv4Address(f"{net}.{end}") for end in (12, 21))
        self.ends = [
            TcpRelay(self.host, {self.to_drive: self.drive}, (PORT,), mtu),
            TcpRelay(self.drive, {self.to_host: self.host}, (PORT,), mtu),
        ]
        self.mtu, self.lose, self.held, self.closing = mtu, lose, False, False
        self.drop, self.turns = drop, 0
        self.packets: list[bytes] = []
        self.thread = threading.Thread(target=self._pump)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error) -> None:
        self.closing = True
        self.thread.join()
        for end in self.ends:
            end.close()

    def _pump(self) -> None:
        poll = select.poll()
        for end in self.ends:
            poll.register(end, select.POLLIN)
        while not self.closing:
            poll.poll(20)
            for giver, taker in (self.ends, self.ends[::-1]):
                while not self.held and (packet := giver.read()) is not None:
                    assert len(packet) <= self.mtu
                    self.packets.append(packet)
                    if self.drop(packet):
                        for each in giver.lost(packet):
                            assert taker.write(each)
                    elif len(self.packets) not in self.lose:
                        assert taker.write(packet)
            self.turns += 1

    def hold(self) -> None:
        """Let packets wait; none is on its way when it returns."""
        self.held = True
        before = self.turns
        wait_for("the end of a turn", lambda: self.turns > before, 20)

    def listen(self, place) -> socket.socket:
        listener = socket.create_server((str(place), PORT))
        listener.settimeout(20)
        return listener

    def connect(self, place) -> socket.socket:
        return socket.create_connection((str(place), PORT), 20)

    def is_open(self) -> bool:
        """A stream is open at both ends."""
        streams = [list(end._streams.values()) for end in self.ends]
        return all(any(stream.sends for stream in each) for each in streams)

    @contextlib.contextmanager
    def connection(self):
        """A socket of a program at the host, and that of the drive's program."""
        with self.listen(self.drive) as listener, self.connect(self.to_drive) as near:
            far, (source, _) = listener.accept()
            assert source == str(self.host)
            far.settimeout(20)
            wait_for("an open stream", self.is_open, 20)
            with far:
                yield near, far


def take_all(sock: socket.socket) -> bytes:
    found = b""
    while part := sock.recv(1 << 16):
        found += part
    return found


@pytest.mark.parametrize("mtu", [68, 1500, 65535])
def test_bytes_cross_in_both_directions_at_once(mtu):
    size = SIZE if mtu > 68 else SIZE // 20
    data = [random.Random(seed).randbytes(size) for seed in (1, 2)]
    with Pair(mtu) as pair, pair.connection() as ends:
        found = [b"", b""]

        def run(number: int) -> None:
            found[number] = hashlib.sha256(take_all(ends[number])).digest()

        def send(number: int) -> None:
            ends[number].sendall(data[number])
            ends[number].shutdown(socket.SHUT_WR)

        threads = [threading.Thread(target=each, args=(number,))
                   for each in (run, send) for number in (0, 1)]  # fmt: skip
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert found == [hashlib.sha256(each).digest() for each in data[::-1]]
        wait_for("the end of the streams", lambda: not any(e._streams for e in pair.ends), 20)
    assert sum(len(each) for each in pair.packets) > 2 * size


def test_an_end_of_one_direction_leaves_the_other():
    with Pair() as pair, pair.connection() as (near, far):
        near.sendall(b"question")
        near.shutdown(socket.SHUT_WR)
        assert take_all(far) == b"question"
        far.sendall(b"answer")
        far.close()
        assert take_all(near) == b"answer"


def test_both_ends_can_connect_to_the_other():
    with Pair() as pair, pair.listen(pair.host) as listener, pair.connect(pair.to_host) as near:
        far, (source, _) = listener.accept()
        with far:
            assert source == str(pair.drive)
            far.sendall(b"x")
            assert near.recv(1) == b"x"


def test_no_program_is_a_reset():
    with Pair() as pair:
        with pytest.raises(ConnectionResetError), pair.connect(pair.to_drive) as near:
            near.recv(1)
        wait_for("no stream", lambda: not any(end._streams for end in pair.ends), 20)


def test_a_reset_arrives():
    with Pair() as pair, pair.connection() as (near, far):
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        near.close()
        with pytest.raises(ConnectionResetError):
            far.recv(1)


def test_a_program_that_takes_nothing_fills_no_memory_and_holds_up_nobody():
    with Pair() as pair, pair.listen(pair.drive) as listener, pair.connect(pair.to_drive) as slow:
        far, _ = listener.accept()
        wait_for("an open stream", pair.is_open, 20)
        slow.setblocking(False)
        sent = 0

        def full() -> bool:
            nonlocal sent
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent += slow.send(bytes(1 << 16))
            ((near,), (stream,)) = [list(end._streams.values()) for end in pair.ends]
            assert len(stream.waiting) <= WINDOW
            return near.sends and not near.credit and len(stream.waiting) + stream.owed == WINDOW

        wait_for("a relay with no more room", full, 20)
        with pair.connect(pair.to_drive) as quick, listener.accept()[0] as other:
            quick.sendall(b"x")
            assert other.recv(1) == b"x"
        with far:
            taken = 0
            slow.setblocking(True)
            slow.shutdown(socket.SHUT_WR)
            while part := far.recv(1 << 20):
                taken += len(part)
        assert taken == sent > WINDOW


@pytest.mark.parametrize("number", [4, 30, 60])
def test_a_lost_message_is_a_reset_and_no_wrong_byte(number):
    data = random.Random(3).randbytes(1 << 18)
    with Pair(lose=(number,)) as pair, pair.connection() as (near, far):
        with contextlib.suppress(OSError):  # the reset may come before the last byte
            near.sendall(data)
            near.shutdown(socket.SHUT_WR)
        found = b""
        with pytest.raises(ConnectionResetError):
            while part := far.recv(1 << 16):
                found += part
        assert data.startswith(found) and len(found) < len(data)


def test_a_hundred_connections():
    with Pair() as pair, pair.listen(pair.drive) as listener:
        near = [pair.connect(pair.to_drive) for _ in range(100)]
        far = [listener.accept()[0] for _ in near]
        for number, each in enumerate(near):
            each.sendall(bytes([number]))
            each.shutdown(socket.SHUT_WR)
        assert sorted(take_all(each) for each in far) == [bytes([n]) for n in range(100)]
        for each in (*near, *far):
            each.close()
        wait_for("no stream", lambda: not any(end._streams for end in pair.ends), 20)


def test_packets_of_an_ended_process_keep_nobody_awake():
    """The process that takes over has the same descriptors, and none of the packets."""
    pair = Pair()
    os.eventfd_write(pair.ends[0]._wake, 1)
    for readable in (True, False):
        assert bool(select.select([pair.ends[0]], [], [], 0)[0]) == readable
        assert pair.ends[0].read() is None
    for end in pair.ends:
        end.close()


# --- bad input


def packet(pair: Pair, kind: int, number: int = 7, count: int = 1, opener: int = 1,
           data: bytes = b"") -> bytes:  # fmt: skip
    size = IP.size + HEAD.size + len(data)
    head = IP.pack(0x45, 0, size, 0, 0, 64, 253, 0, pair.host.packed, pair.drive.packed)
    return head + HEAD.pack(number, count, kind, opener, PORT) + data


def test_packets_of_others_are_refused():
    pair = Pair()
    drive = pair.ends[1]
    right = packet(pair, Kind.OPEN)
    udp, longer = bytearray(right), bytearray(right)
    udp[9], longer[3] = 17, 99
    elsewhere = right[:16] + pair.host.packed + right[20:]
    for wrong in (b"", right[:-1], bytes(udp), bytes(longer), elsewhere, b"\x60" + right[1:]):
        assert drive.write(wrong) is False and drive.read() is None
    for end in pair.ends:
        end.close()


@pytest.mark.parametrize("kind", [Kind.OPENED, Kind.DATA, Kind.END])
def test_a_message_of_no_stream_is_answered_by_a_reset(kind):
    pair = Pair()
    assert pair.ends[1].write(packet(pair, kind))
    answer = pair.ends[1].read()
    assert HEAD.unpack_from(answer, IP.size) == (7, 0, Kind.RESET, 0, 0)
    total = sum(struct.unpack(">10H", answer[: IP.size]))
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF  # the checksum
    assert not pair.ends[1].write(answer) and pair.ends[0].write(answer)
    assert [end.read() for end in pair.ends] == [None, None]
    for end in pair.ends:
        end.close()


@pytest.mark.parametrize("kind", [Kind.CREDIT, Kind.RESET, Kind.GONE, Kind.ARRIVED, 8, 255])
def test_others_are_not(kind):
    """A credit may come after the end of a stream, which was a right one."""
    pair = Pair()
    assert pair.ends[1].write(packet(pair, kind))
    assert pair.ends[1].read() is None
    for end in pair.ends:
        end.close()


@pytest.mark.parametrize(
    ("kind", "data"),
    [(Kind.OPENED, b""), (Kind.CREDIT, bytes(3)), (Kind.CREDIT, b"\0\0\0\1"), (9, b""),
     (Kind.DATA, bytes(WINDOW + 1))],
)  # fmt: skip
def test_a_wrong_message_of_a_stream_resets_it(kind, data):
    with Pair(65535) as pair, pair.connection() as (near, far):
        (stream,) = pair.ends[1]._streams.values()
        parts = [data[at : at + 65000] for at in range(0, len(data), 65000)] or [b""]
        with pair.ends[1]._lock:
            count = stream.received
            for number, part in enumerate(parts):
                wrong = packet(pair, kind, stream.number, count + number + 1, 1, part)
                stream.connecting = kind == Kind.DATA  # so that nothing is taken
                pair.ends[1]._handle(pair.host.packed, wrong)
            pair.ends[1]._signal()
        for each in (near, far):
            with pytest.raises(ConnectionResetError):
                each.recv(1)


def test_an_address_in_use_is_one_line():
    taken = f"127.{100 + os.getpid() % 100}.{next(_number)}.9"
    place = ipaddress.IPv4Address(taken)
    with socket.create_server((taken, PORT)):
        with pytest.raises(
            InputError, match=f"relay: cannot listen at {taken}:8000: Address already"
        ):
            TcpRelay(place, {place: place}, (PORT,), 1500)
