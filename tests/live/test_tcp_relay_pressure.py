"""Do programs wait for an end that takes nothing, and no longer than stated for an answer?"""

import contextlib
import hashlib
import os
import random
import select
import signal
import socket
import threading
import time

import pytest

from ondie.emu.live import processes, tcp_relay
from ondie.emu.live.host_end import MOST_WAITING, SILENT_S
from ondie.emu.live.tcp_relay import ON_WAY
from ondie.emu.live.tcp_stream import BARE, HEAD, IP, WINDOW, Kind, Timer
from tests.live.processes import Live, alone, wait_for
from tests.live.test_tcp_relay import Pair, packet, take_all
from tests.live.test_tcp_relay_losses import FORM, given, kind_of, no_streams, opened, relayed
from tests.live.tunnel_cluster import NAME, up

STREAMS = 40
SIZE = 640 << 10


@contextlib.contextmanager
def connections(pair: Pair, count: int):
    """Sockets of programs at the host, and those of the drive's programs."""
    with pair.listen(pair.drive) as listener, contextlib.ExitStack() as undo:
        near, far = [], []
        for _ in range(count):
            near.append(undo.enter_context(pair.connect(pair.to_drive)))
            far.append(undo.enter_context(listener.accept()[0]))
        wait_for("open streams", lambda: all_send(pair, count), 20)
        yield near, far


def all_send(pair: Pair, count: int) -> bool:
    return all(sum(stream.sends for stream in list(end._streams.values())) == count
               for end in pair.ends)  # fmt: skip


def carried_bytes(packets) -> int:
    """Bytes of packets with those of programs."""
    return sum(len(each) for each in packets if kind_of(each) == Kind.DATA)


def message_of(relay) -> bytes:
    """The next message, when there is one."""
    found: list[bytes | None] = [None]

    def read() -> bool:
        found[0] = relay.read()
        return found[0] is not None

    wait_for("a message", read, 20)
    return found[0]


class Senders:
    """Threads that send ``data`` each, and say so to the other program. ``into``: sockets."""

    def __init__(self, into: list[socket.socket], data: list[bytes]) -> None:
        self.into, self.data = into, data
        self.threads = [threading.Thread(target=self._send, args=(number,))
                        for number in range(len(into))]  # fmt: skip
        for each in self.threads:
            each.start()

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the other end then has too little
            self.into[number].sendall(self.data[number])
            self.into[number].shutdown(socket.SHUT_WR)

    def join(self) -> None:
        for each in self.threads:
            each.join(60)


def hashes_of(sockets: list[socket.socket]) -> list[str]:
    """What all have got until the end, taken at the same time."""
    found = [""] * len(sockets)

    def take(number: int) -> None:
        sockets[number].settimeout(60)
        with contextlib.suppress(OSError):
            found[number] = hashlib.sha256(take_all(sockets[number])).hexdigest()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(sockets))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(90)
    return found


# --- a drive that takes nothing


def dropped_one(host, port) -> None:
    before = port.counts["dropped"]
    wait_for("the drop", lambda: host.take() or port.counts["dropped"] > before, 20)


def waiting_for(drive: int) -> int:
    """Bytes that wait in the host's relay for a drive, and room for those that the drive has been
    given."""
    found = processes.status(NAME)
    return (found["drives"][drive]["waiting_blocks"] + found["in_flight"]) * found["payload"]


def test_forty_streams_into_a_stopped_drive():
    """Half of them come from the host, half from another drive, which notices nothing."""
    port = 20000 + os.getpid() % 10000
    options = ["--network-device", "relay", "--port", str(port), "--pace", "none", "--mtu", "9000",
               "--payload", "65536"]  # fmt: skip
    data = [random.Random(number).randbytes(SIZE) for number in range(STREAMS)]
    with alone("tunnel"), Live() as live, up(live, *options) as made, contextlib.ExitStack() as all:
        listener = all.enter_context(socket.create_server((made.address(1), port)))
        other = all.enter_context(socket.create_server((made.address(0), port)))
        listener.settimeout(20)
        other.settimeout(20)
        near, far = [], []
        for number in range(STREAMS):
            place = made.seen(-1 if number % 2 else 0, 1)
            near.append(all.enter_context(socket.create_connection((place, port), 20)))
            far.append(all.enter_context(listener.accept()[0]))
            far[-1].sendall(b"x")
            assert near[-1].recv(1) == b"x"
            near[-1].settimeout(60)
        stopped = processes.status(NAME)["drives"][1]["process"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            senders = Senders(near, data)
            wait_for("a full tunnel", lambda: waiting_for(1) >= 2 * ON_WAY, 30)  # of two ends
            time.sleep(2 * SILENT_S)  # after which packets of a kernel's TCP would be dropped
            assert waiting_for(1) < 2.6 * ON_WAY
            with socket.create_connection((made.seen(-1, 0), port), 20) as quick:
                with other.accept()[0] as answering:
                    answering.sendall(b"y")
                    assert quick.recv(1) == b"y"
        finally:
            os.kill(stopped, signal.SIGCONT)
        found = hashes_of(far)
        senders.join()
        assert found == [hashlib.sha256(each).hexdigest() for each in data]
        after = made.settled()
        ends = [after["host"], *after["drives"]]
        assert [end["dropped"] for end in ends] == [0] * len(ends)
        assert not any(drive["drive_dropped"] for drive in after["drives"])


def test_so_many_bytes_are_on_their_way_and_no_more():
    with Pair(9000) as pair, connections(pair, STREAMS) as (near, far):
        pair.hold()
        data = [random.Random(number).randbytes(SIZE // 8) for number in range(STREAMS)]
        senders = Senders(near, data)
        relay = pair.ends[0]

        def full() -> bool:
            with relay._lock:
                relay._work()
            return relay._on_way[pair.drive.packed] >= ON_WAY

        wait_for("a full tunnel", full, 20)
        filled = carried_bytes(relay._packets)
        headers = -(-tcp_relay.MOST_READ // relay._most) * BARE  # of what was read last
        assert ON_WAY <= filled < ON_WAY + headers
        for _ in range(20):
            assert full() and carried_bytes(relay._packets) == filled
        pair.held = False
        assert hashes_of(far) == [hashlib.sha256(each).hexdigest() for each in data]
        senders.join()
        told = tcp_relay.TAKEN
        wait_for("the word of it", lambda: relay._on_way[pair.drive.packed] < told, 20)


def test_many_ends_may_send_to_one_that_takes_nothing():
    """Each sends ON_WAY bytes at most, and the host drops none of them and holds up nobody."""
    pair = Pair()
    host, ports, queues = relayed(pair, 2)
    opened(host, ports)
    message = bytearray(packet(pair, Kind.DATA, data=bytes(1000)))
    message[16:20] = ports[1].address
    for _ in range(MOST_WAITING // 900):
        assert ports[1].send(bytes(message))
    assert ports[1].relay.waiting * FORM.payload > MOST_WAITING
    assert not ports[1].full and not host.holds
    for end in pair.ends:
        end.close()


def test_messages_of_single_bytes_are_counted_with_their_headers(monkeypatch):
    monkeypatch.setattr(tcp_relay, "ON_WAY", 1 << 14)
    monkeypatch.setattr(tcp_relay, "TAKEN", 1 << 12)
    most = -(-tcp_relay.ON_WAY // (BARE + 1))
    with Pair() as pair, pair.connection() as (near, far):
        pair.hold()
        relay = pair.ends[0]
        (stream,) = relay._streams.values()

        def work() -> bool:
            with relay._lock:
                relay._work()
            return stream.sent > before

        for _ in range(most):
            before = stream.sent
            near.sendall(b"x")
            wait_for("a message", work, 20)
        near.sendall(b"yz")
        before = stream.sent
        for _ in range(20):
            assert not work()
        assert carried_bytes(relay._packets) == most * (BARE + 1)
        pair.held = False
        near.shutdown(socket.SHUT_WR)
        assert take_all(far) == most * b"x" + b"yz"
        wait_for("the word of it", lambda: relay._on_way[pair.drive.packed] < 1 << 12, 20)


def test_a_client_that_tries_again_fills_no_memory():
    """Each connection to a drive that takes nothing is a message to it, as is its reset."""
    pair = Pair()
    host, ports, queues = relayed(pair, 2)
    opened(host, ports)
    assert ports[1].most_waiting == MOST_WAITING + 2 * tcp_relay.TcpRelay.most_on_way
    for each in ports:
        each.most_waiting = 1 << 12
    queues[1].submit = lambda commands: None
    message = bytearray(packet(pair, Kind.OPEN))
    message[12:16], message[16:20] = ports[0].address, ports[1].address
    relay, count = ports[1].relay, 3 * ports[1].most_waiting // len(message)
    for _ in range(count):
        queues[0].drive.send(bytes(message))
        host.work(ports[0])
        if ports[1].full:
            break
    assert ports[1].full and not ports[1].counts["dropped"]
    filled = relay.waiting_bytes
    assert not given(queues[0])
    for _ in range(count):
        queues[0].drive.send(bytes(message))
        host.work(ports[0])
    assert relay.waiting_bytes == filled and ports[1].counts["dropped"] == count
    assert [kind_of(each) for each in given(queues[0])] == [Kind.RESET] * count
    ports[0].most_waiting = 0
    for _ in range(3):  # the host's own
        with pair.connect(pair.to_drive) as near:
            dropped_one(host, ports[0])
            with pytest.raises(ConnectionResetError):
                near.recv(1)
    assert ports[0].counts["dropped"] == 3
    assert not ports[0].relay.waiting_bytes and not pair.ends[0]._streams
    for end in pair.ends:
        end.close()


def test_a_new_stream_does_not_go_first(monkeypatch):
    """One that waits for room is asked for bytes before it."""
    room = 1 << 14
    monkeypatch.setattr(tcp_relay, "ON_WAY", room)
    with Pair(9000) as pair, pair.listen(pair.drive) as listener, contextlib.ExitStack() as all:
        relay, peer = pair.ends[0], pair.drive.packed
        old = all.enter_context(pair.connect(pair.to_drive))
        far = all.enter_context(listener.accept()[0])
        wait_for("an open stream", lambda: all_send(pair, 1), 20)
        (number,) = [stream.number for stream in relay._streams.values()]
        old.sendall(b"x")
        assert far.recv(1) == b"x"
        with relay._lock:
            relay._on_way[peer] = room
        new = all.enter_context(pair.connect(pair.to_drive))
        all.enter_context(listener.accept()[0])
        wait_for("another one", lambda: all_send(pair, 2), 20)
        pair.hold()
        for each in (new, old):
            each.sendall(bytes(room))
        with relay._lock:
            relay._has_arrived(peer, room)

        def taken() -> bool:
            with relay._lock:
                relay._work()
            return bool(relay._packets)

        wait_for("bytes", taken, 20)
        assert HEAD.unpack_from(relay._packets[0], IP.size)[0] == number


def test_streams_take_turns(monkeypatch):
    """There is room for one at a time: each of them gets it before another one does again."""
    count, room = 8, 1 << 14
    monkeypatch.setattr(tcp_relay, "ON_WAY", room)
    with Pair(9000) as pair, connections(pair, count) as (near, _):
        pair.hold()
        relay, peer = pair.ends[0], pair.drive.packed
        for each in near:
            each.sendall(bytes(2 * room))
        turns = []
        for _ in range(2 * count):
            with relay._lock:
                relay._packets.clear()
                relay._on_way[peer] = room
                relay._has_arrived(peer, room)

            def taken() -> bool:
                with relay._lock:
                    relay._work()
                return relay._on_way[peer] >= room

            wait_for("bytes", taken, 20)
            turns.append({HEAD.unpack_from(each, IP.size)[0] for each in relay._packets})
        rounds = turns[:count], turns[count:]
        assert all(sorted(map(len, each)) == [1] * count for each in rounds)
        assert all(len(set().union(*each)) == count for each in rounds)


def test_a_program_that_does_not_read_may_send():
    """The other one, which reads, has filled its own direction before."""
    with Pair() as pair, pair.connection() as (near, far):
        (stream,) = pair.ends[0]._streams.values()
        far.setblocking(False)

        def full() -> bool:
            with contextlib.suppress(BlockingIOError):
                while True:
                    far.send(bytes(1 << 16))
            return len(stream.waiting) + stream.owed == WINDOW and bool(stream.waiting)

        wait_for("a full direction", full, 20)
        far.setblocking(True)
        data = random.Random(1).randbytes(1 << 20)
        senders = Senders([near], [data])
        assert hashes_of([far]) == [hashlib.sha256(data).hexdigest()]
        senders.join()
        assert stream.waiting
        pair.hold()
        assert pair.ends[0].read() is None
        assert not select.select([pair.ends[0]], [], [], 0.2)[0]  # nothing keeps the relay awake


# --- losses


def test_dropped_bytes_are_on_their_way_no_more(monkeypatch):
    monkeypatch.setattr(tcp_relay, "ON_WAY", 1 << 16)
    monkeypatch.setattr(tcp_relay, "TAKEN", 1 << 14)
    losing = True
    with Pair(9000, drop=lambda each: losing and kind_of(each) == Kind.DATA) as pair:
        for _ in range(3):
            with pair.connection() as (near, far):
                with contextlib.suppress(OSError):
                    near.sendall(bytes(1 << 16))
                with pytest.raises(ConnectionResetError):
                    far.recv(1)
            wait_for("no streams", lambda: no_streams(pair), 20)
        wait_for("no bytes", lambda: not pair.ends[0]._on_way[pair.drive.packed], 20)
        losing = False
        with pair.connection() as (near, far):
            senders = Senders([near], [bytes(1 << 18)])
            assert len(take_all(far)) == 1 << 18
            senders.join()


def test_a_drop_between_drives_frees_the_way():
    pair = Pair()
    host, ports, queues = relayed(pair, 2)
    opened(host, ports)
    message = bytearray(packet(pair, Kind.DATA, number=9, data=b"12345"))
    message[12:16], message[16:20] = ports[0].address, ports[1].address
    ports[1].gone = "the drive has gone"
    given(queues[0])
    queues[0].drive.send(bytes(message))
    host.work(ports[0])
    arrived, reset = given(queues[0])
    assert HEAD.unpack_from(arrived, IP.size) == (0, 0, Kind.ARRIVED, 0, 0)
    assert arrived[BARE:] == (BARE + 5).to_bytes(4, "big")
    assert arrived[12:16] == ports[1].address and kind_of(reset) == Kind.RESET
    assert host.device.lost(arrived) == [arrived]  # again, so that it cannot get lost
    for end in pair.ends:
        end.close()


def test_an_end_that_has_gone_takes_nothing_that_is_counted():
    with Pair() as pair, pair.connection() as (near, far):
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        assert pair.ends[0]._on_way[pair.drive.packed] == BARE + 1
        pair.ends[0].left(pair.drive.packed, [])
        assert not pair.ends[0]._on_way
    for count in (0, 7):  # what arrives from before is no room to come
        pair.ends[0]._has_arrived(pair.drive.packed, count)
        assert pair.ends[0]._room(pair.drive.packed) == ON_WAY


# --- an answer that does not come


def test_a_connection_without_an_answer_is_reset(monkeypatch):
    """Also at the other end, if that gets the beginning late."""
    monkeypatch.setattr(tcp_relay, "OPEN_S", 0.4)
    pair = Pair()
    relay, drive = pair.ends
    with pair.listen(pair.drive) as listener, pair.connect(pair.to_drive) as near:
        began = time.monotonic()
        late = [message_of(relay), message_of(relay)]
        assert 0.4 < time.monotonic() - began < 5 and not relay._streams
        with pytest.raises(ConnectionResetError):
            near.recv(1)
        for each in late:
            assert drive.write(each)
        far, _ = listener.accept()
        with far, pytest.raises(ConnectionResetError):
            far.recv(1)
        assert not drive._streams
    for end in pair.ends:
        end.close()


def test_an_answered_connection_may_be_silent():
    with Pair() as pair, pair.connection() as (near, far):
        relay = pair.ends[0]
        with relay._lock:  # the time of all that wait is over
            relay._opening = dict.fromkeys(relay._opening, 0.0)
            relay._set_timer()
        time.sleep(0.2)
        far.sendall(b"x")
        assert near.recv(1) == b"x"


def test_the_relay_wakes_for_each_of_them():
    pair = Pair()
    relay = pair.ends[0]
    with pair.connect(pair.to_drive), pair.connect(pair.to_drive):
        opens = [message_of(relay), message_of(relay)]
        first, second = relay._opening
        with relay._lock:  # the times of the two lie far apart
            relay._opening = {first: 0.0, second: time.monotonic() + 2}
            relay._set_timer()
        resets = []
        for left in (1, 0):
            assert select.select([relay], [], [], 20)[0]
            resets.append(message_of(relay))
            assert relay.read() is None and len(relay._streams) == left
    assert [kind_of(each) for each in opens + resets] == [Kind.OPEN] * 2 + [Kind.RESET] * 2
    assert not select.select([relay], [], [], 0.3)[0] and not relay._streams
    for end in pair.ends:
        end.close()


def test_a_timer():
    with Timer() as timer:
        assert not select.select([timer], [], [], 0.05)[0]
        timer.set(0.05)
        assert select.select([timer], [], [], 20)[0]
        timer.set(60)
        assert not select.select([timer], [], [], 0)[0]
        timer.set(-1)
        assert select.select([timer], [], [], 5)[0]
        timer.set(None)
        assert not select.select([timer], [], [], 0.05)[0]
