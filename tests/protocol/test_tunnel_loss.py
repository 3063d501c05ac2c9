"""Does the stream of packets arrive once and in order when commands and completions are lost,
repeated and reordered, and when the controller is reset?"""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.nvme import wire as nvme
from ondie.emu.nvme.tunnel import device as tunnel_device
from ondie.emu.nvme.tunnel import framing, protocol
from ondie.emu.nvme.tunnel.device import DeviceRelay
from ondie.emu.nvme.tunnel.framing import Format
from ondie.emu.nvme.tunnel.host import HostRelay, State
from ondie.emu.nvme.tunnel.protocol import Closed, Failed, Opened, Packet
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from tests.protocol.tunnel_wire import Wire

MS = 10**9
HOLD = Format(payload=64, outstanding=3, mtu=60, notify="hold", hold_ps=20 * MS)
COMM = {"cdw10": protocol.COMMUNICATE, "cdw13": 1}


class Lossy(Wire):
    """A wire that loses and repeats, and a clock."""

    def __init__(self, form: Format, rng: random.Random, loss: float) -> None:
        super().__init__(form)
        self.host = HostRelay(form, timeout_ps=100 * MS, opening=rng.randrange(1, 1 << 32))
        self.rng, self.loss, self.now = rng, loss, 0

    def gather(self) -> None:
        for _ in range(2):
            self.down += self.host.commands(self.now)
            self.up += self.device.completions()
        self.at_host += self.host.events()
        self.at_device += self.device.events()

    def step(self, choice: int = -1) -> bool:
        """Something happens to one command or completion; False when none is on its way."""
        self.gather()
        n = len(self.down) + len(self.up)
        if not n:
            return False
        which = self.rng.randrange(n)
        queue, at = (self.down, which) if which < len(self.down) else (self.up, 0)
        if queue is self.up:
            at = which - len(self.down)
        fate = self.rng.random()
        if fate < self.loss:
            queue.pop(at)
            return True
        each = queue[at] if fate < 2 * self.loss else queue.pop(at)
        if isinstance(each, Command):
            self.device.command(each, self.now)
        else:
            self.host.completed(each)
        self.gather()
        return True

    def pass_time(self, ps: int) -> None:
        self.now += ps
        self.device.tick(self.now)
        self.host.tick(self.now)
        self.gather()

    def reset(self) -> None:
        """The controller is reset: what is on its way is lost."""
        self.down.clear()
        self.up.clear()
        self.device.reset()
        self.host.reset()
        self.gather()

    def settle(self, done) -> None:
        """Lose nothing more; let time pass until ``done``."""
        self.loss = 0.0
        for _ in range(40_000):
            if done():
                return
            if not (self.step() and self.rng.random() < 0.9):
                self.pass_time(30 * MS)
        raise AssertionError(f"the tunnel never comes to rest: {self.host.state}")


def packets_of(rng: random.Random, form: Format) -> list[bytes]:
    return [rng.randbytes(rng.randint(1, form.mtu)) for _ in range(rng.randint(0, 15))]


@pytest.mark.parametrize("notify", framing.NOTIFICATIONS)
def test_the_stream_arrives_once_and_in_order(notify, counts):
    repeated = resets = 0
    for seed in range(counts(30, 1000)):
        rng = random.Random(seed)
        form = Format(
            payload=rng.choice([7, 20, 64, 256]), outstanding=rng.randint(1, 5),
            mtu=rng.choice([1, 60, 300]), concatenate=rng.random() < 0.5, notify=notify,
            hold_ps=20 * MS,
        )  # fmt: skip
        wire = Lossy(form, rng, loss=rng.choice([0.02, 0.2]))
        down, up = packets_of(rng, form), packets_of(rng, form)
        wire.host.open()
        left = {id(wire.host): list(down), id(wire.device): list(up)}
        for _ in range(rng.randint(50, 400)):
            end = rng.choice([wire.host, wire.device])
            is_open = wire.device.state is not tunnel_device.State.CLOSED
            if left[id(end)] and rng.random() < 0.2 and (end is wire.host or is_open):
                assert end.send(left[id(end)].pop(0))
            if rng.random() < 0.02:
                wire.reset()
                resets += 1
            if not wire.step() or rng.random() < 0.1:
                wire.pass_time(rng.randint(0, 60) * MS)
        wire.settle(lambda wire=wire: wire.host.state is State.OPEN)
        for end in (wire.host, wire.device):
            for packet in left[id(end)]:
                assert end.send(packet)
        wire.loss = 0.1
        (wire.host if rng.random() < 0.5 else wire.device).close()
        for _ in range(rng.randint(0, 100)):
            wire.step()
        wire.settle(lambda wire=wire: wire.host.state is State.CLOSED)
        assert wire.received == (down, up) and not wire.failures and wire.closed
        assert [e for e in wire.at_device if isinstance(e, Opened | Closed)] == [
            Opened(1), Closed(),
        ]  # fmt: skip
        repeated += wire.host.repeated
    assert repeated > 60 and resets > 30


# --- hold


def opened(form: Format = HOLD, accepts=None) -> DeviceRelay:
    device = DeviceRelay(form, accepts)
    hold = form.hold_ps // MS << 16 | protocol.HOLD
    sizes = form.mtu | form.outstanding << 16
    sqe = Sqe(
        nvme.TUNNEL, cid=1, cdw10=protocol.OPEN, cdw11=hold, cdw12=form.payload, cdw13=77,
        cdw14=sizes,
    )  # fmt: skip
    assert sent(device, sqe) == [(1, nvme.SUCCESS)]
    return device


def sent(device: DeviceRelay, sqe: Sqe, data: bytes = b"", now: int = 0) -> list[tuple[int, int]]:
    device.command(Command(sqe.pack(), data), now)
    return answers(device)


def answers(device: DeviceRelay) -> list[tuple[int, int]]:
    return [(c.cid, c.status) for c in (Cqe.unpack(x.cqe) for x in device.completions())]


def receive(cid: int, number: int) -> Sqe:
    return Sqe(nvme.TUNNEL_RECEIVE, cid=cid, **COMM, cdw12=64, cdw14=number)


def test_a_receive_command_is_held_until_there_is_a_packet():
    device = opened()
    assert sent(device, receive(5, 0)) == sent(device, receive(6, 1), now=MS) == []
    assert device.deadline == 20 * MS
    device.send(b"abc")
    (done,) = device.completions()
    assert Cqe.unpack(done.cqe).cid == 5 and done.data == b"\x05\x00\x00\x00\x03\x00abc"
    assert device.deadline == 21 * MS


def test_a_held_command_ends_after_the_hold_time():
    device = opened()
    sent(device, receive(5, 0))
    device.tick(20 * MS - 1)
    assert answers(device) == [] and device.deadline == 20 * MS
    device.tick(20 * MS)
    (done,) = device.completions()
    assert Cqe.unpack(done.cqe) == Cqe(5) and done.data == bytes(4)
    assert device.deadline is None and device.counts["empty"] == 1
    assert sent(device, receive(7, 0)) == []  # its number is not used up
    device.send(b"abc")
    assert answers(device) == [(7, nvme.SUCCESS)]


def test_the_host_asks_again_and_needs_no_events():
    wire = Wire(HOLD)
    wire.open()
    assert wire.host.in_flight("receive") == 3 and wire.host.in_flight("event") == 0
    for _ in range(5):
        wire.device.tick(10**15)
        wire.run()
    assert wire.host.in_flight("receive") == 3 and wire.host.issued["receive"] == 18
    assert wire.device.send(b"abc")
    wire.run()
    assert wire.received == ([], [b"abc"]) and wire.host.issued["event"] == 0


@pytest.mark.parametrize(
    ("limits", "form"),
    [
        (HOLD, dataclasses.replace(HOLD, hold_ps=21 * MS)),
        (HOLD, dataclasses.replace(HOLD, notify="burst")),
        (dataclasses.replace(HOLD, notify="command"), HOLD),
    ],
)
def test_what_the_drive_does_not_offer_is_refused(limits, form):
    wire = Wire(form, limits)
    wire.open()
    assert wire.failures == [Failed(nvme.INVALID_FIELD, "open")]


# --- repetitions


def test_a_repeated_open_is_the_same_tunnel_and_a_late_one_opens_none():
    device = opened()
    again = Sqe(nvme.TUNNEL, cid=2, cdw10=protocol.OPEN, cdw12=64, cdw13=77, cdw14=60 | 3 << 16)
    assert sent(device, again) == [(2, nvme.SUCCESS)] and device.descriptor == 1
    close = Sqe(nvme.TUNNEL, cid=3, cdw10=protocol.CLOSE, cdw13=1)
    assert sent(device, close) == [(3, nvme.SUCCESS)]
    assert sent(device, again) == [(2, nvme.BAD_SEQUENCE)]
    assert device.state is tunnel_device.State.CLOSED


def test_another_host_may_take_over():
    device = opened()
    hold = 20 << 16 | protocol.HOLD
    other = Sqe(
        nvme.TUNNEL, cid=2, cdw10=protocol.OPEN, cdw11=hold, cdw12=64, cdw13=5, cdw14=60 | 3 << 16
    )
    assert sent(device, other) == [(2, nvme.NO_DESCRIPTOR)]
    assert sent(device, receive(4, 0)) == []
    taken = sent(device, other._replace(cdw11=hold | protocol.TAKE_OVER))
    assert taken == [(4, nvme.ABORTED), (2, nvme.SUCCESS)] and device.descriptor == 2
    assert device.events() == [Opened(1), Closed(), Opened(2)]
    assert sent(device, receive(4, 0)) == [(4, nvme.BAD_DESCRIPTOR)]


def test_a_block_is_sent_again_until_the_host_has_it():
    device = opened()
    device.send(b"abc")
    for cid in (5, 6, 7):
        device.command(Command(receive(cid, 0).pack()))
        (done,) = device.completions()
        assert done.data == b"\x05\x00\x00\x00\x03\x00abc" and Cqe.unpack(done.cqe).cid == cid
    for number in (1, 2, 3):
        device.send(b"x")
        assert sent(device, receive(5, number)) == [(5, nvme.SUCCESS)]
    assert sent(device, receive(8, 0)) == [(8, nvme.BAD_SEQUENCE)]
    assert device.counts["repeated"] == 2


def test_a_block_is_accepted_once():
    device = opened()
    write = Sqe(nvme.TUNNEL_SEND, cid=5, **COMM, cdw11=1, cdw12=5)
    for cid in (5, 6):
        assert sent(device, write._replace(cid=cid), b"\x03\x00abc") == [(cid, nvme.SUCCESS)]
    assert device.events() == [Opened(1), Packet(b"abc")] and device.numbers == (1, 0)


@pytest.mark.parametrize("status", sorted(protocol.TRANSIENT))
def test_a_status_of_the_way_is_no_failure(status):
    """The host's driver, or a reset, has ended a command."""
    wire = Wire(HOLD)
    wire.open()
    wire.host.send(b"abc")
    (command,) = wire.host.commands()
    sqe = Sqe.unpack(command.sqe)
    wire.host.completed(Completion(Cqe(sqe.cid, status).pack()))
    wire.run()
    assert wire.received[0] == [b"abc"] and wire.host.repeated == 1 and not wire.failures


def test_a_drive_that_never_takes_a_command_has_failed():
    wire = Wire(HOLD)
    wire.open()
    wire.host.send(b"abc")
    for _ in range(1000):
        commands = wire.host.commands()
        if not commands:
            break
        for command in commands:
            cid = Sqe.unpack(command.sqe).cid
            wire.host.completed(Completion(Cqe(cid, nvme.INTERRUPTED).pack()))
    assert Failed(nvme.INTERRUPTED, "write of block 0") in wire.host.events()


def test_the_end_of_an_earlier_issue_is_no_failure():
    """The drive has accepted the block at the second issue; the first arrives too late."""
    wire = Wire(HOLD)
    wire.host = HostRelay(HOLD, timeout_ps=100 * MS)
    wire.open()
    wire.host.send(b"abc")
    (first,) = wire.host.commands(0)
    wire.host.tick(200 * MS)
    repeated = [each for each in wire.host.commands(200 * MS) if each.data]
    assert [each.data for each in repeated] == [first.data]
    late = Cqe(Sqe.unpack(first.sqe).cid, nvme.BAD_SEQUENCE)
    wire.host.completed(Completion(late.pack()))
    assert wire.host.in_flight("write") == 1 and wire.host.events() == []
    wire.host.completed(Completion(Cqe(Sqe.unpack(repeated[0].sqe).cid).pack()))
    assert wire.host.in_flight("write") == 0 and wire.host.state is State.OPEN


@pytest.mark.parametrize("notify", ["command", "burst"])
def test_events_that_a_reset_has_lost_come_again(notify):
    device = DeviceRelay(dataclasses.replace(HOLD, notify=notify))
    opening = Sqe(nvme.TUNNEL, cid=1, cdw10=protocol.OPEN, cdw12=64, cdw14=60 | 3 << 16)
    assert sent(device, opening) == [(1, nvme.SUCCESS)]
    event = Sqe(nvme.ASYNC_EVENT_REQUEST)
    device.send(b"abc")
    device.close()
    for cid in (10, 20):
        found = []
        for at in range(2):
            device.command(Command(event._replace(cid=cid + at).pack()))
            found += [Cqe.unpack(each.cqe) for each in device.completions()]
        assert [(each.cid, each.dw0 >> 8 & 0xFF, each.dw1) for each in found] == [
            (cid, protocol.DATA, 1), (cid + 1, protocol.CLOSING, 1),
        ]  # fmt: skip
        device.reset()


# --- back-pressure, packets


def test_a_drive_that_pauses_holds_the_host_back():
    wire = Wire(HOLD)
    wire.open()
    wire.device.pause(True)
    for at in range(20):
        wire.host.send(bytes([at]) * 60)
    wire.run()
    assert wire.host.in_flight("write") == 3 and wire.host.waiting > 10 and not wire.received[0]
    wire.device.tick(20 * MS)  # they are answered before the driver takes them for lost
    for _ in range(12):
        wire.step(0)
    assert wire.host.repeated > 0
    wire.device.pause(False)
    wire.run()
    assert wire.received[0] == [bytes([at]) * 60 for at in range(20)]


def ip(size: int, version: int = 4) -> bytes:
    """A packet of ``size`` bytes with a header of IP."""
    if version == 4:
        return bytes([0x45, 0, size >> 8, size & 0xFF]).ljust(size, b"\x01")
    return bytes([0x60, 0, 0, 0, size - 40 >> 8, size - 40 & 0xFF]).ljust(size, b"\x01")


@pytest.mark.parametrize(
    ("packet", "good"),
    [
        (ip(20), True), (ip(60), True), (ip(40, 6), True), (ip(60, 6), True),
        (ip(60)[:59], False), (ip(60, 6)[:59], False), (ip(20)[:19], False),
        (b"\x44" + ip(60)[1:], False), (b"\x55" + ip(60)[1:], False), (b"x", False),
        (bytes(60), False), (b"\x60", False),
    ],
)  # fmt: skip
def test_what_is_no_ip_is_counted_and_not_passed_on(packet, good):
    assert framing.is_ip(packet) is good and framing.is_ip(memoryview(packet)) is good
    wire = Wire(dataclasses.replace(HOLD, payload=256))
    wire.device = DeviceRelay(wire.host.form, framing.is_ip)
    wire.open()
    for each in (ip(20), packet, ip(40, 6)):
        wire.host.send(each)
    wire.run()
    assert wire.received[0] == [ip(20), *[packet] * good, ip(40, 6)] and not wire.failures
    assert wire.device.counts["dropped"] == wire.host.dropped == (not good)
    assert wire.device.answered[nvme.NOT_IP] == (not good)


@given(st.binary(max_size=80))
def test_any_bytes_are_ip_or_not(data):
    if framing.is_ip(data):
        assert data[0] >> 4 in (4, 6) and not framing.is_ip(data + b"x")
