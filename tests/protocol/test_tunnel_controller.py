"""The tunnel through the admin queue of the controller: submission entries of 64 bytes, as any
host's driver may send them."""

import dataclasses
import random
import struct

import pytest

from ondie.emu.controller import admin
from ondie.emu.controller.admin import TO_CONTROLLER, TO_HOST, Controller
from ondie.emu.controller.tunnel import STATUS_BYTES, STATUS_DATA, TunnelCommands
from ondie.emu.nvme.tunnel.framing import Format
from ondie.emu.nvme.tunnel.host import HostRelay, State
from ondie.emu.nvme.tunnel.protocol import Closed, Opened, Packet
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from ondie.emu.units import InputError
from tests.protocol.controller_host import Host, capabilities
from tests.protocol.test_tunnel_loss import ip

MS = 10**9
LIMITS = Format(4096, 4, 1500, notify="hold", hold_ps=1000 * MS)
BAD_DESCRIPTOR, BAD_LENGTH, BAD_FRAGMENT, BAD_SEQUENCE, NO_DESCRIPTOR, NOT_IP = range(0x7C0, 0x7C6)
DNR = 0x4000


def entry(opcode: int, cid: int = 7, *words: int) -> bytes:
    """Submission queue entry: opcode, identifier, dwords 10 to 15."""
    return struct.pack("<BBH36x6I", opcode, 0, cid, *words, *[0] * (6 - len(words)))


class TunnelHost(Host):
    """A host of a controller with a tunnel, and the time."""

    def __init__(self, limits: Format = LIMITS) -> None:
        super().__init__(dataclasses.replace(capabilities(), tunnel=True))
        self.now = 0
        self.tunnel = self.controller.shared.tunnel = TunnelCommands(limits, lambda: self.now)

    def second(self) -> Controller:
        """Another controller of the drive."""
        return Controller(self.offered, self.controller.shared, lambda: self.health, lambda _: 0)

    def submit(self, raw: bytes, data: bytes = b"", controller: Controller | None = None):
        """(identifier, status, dw0, dw1, data) of what a command ends."""
        controller = controller or self.controller
        reply = controller.execute(raw, data)
        found = [(each, reply.data) for each in reply.entries]
        found += [(each.cqe, bytes(each.data)) for each in self.tunnel.completions()]
        return [(cqe.cid, cqe.status, cqe.dw0, cqe.dw1, data) for cqe, data in found]

    def open(self, cid: int = 1, opening: int = 9, flags: int = 1, payload: int = 4096) -> bytes:
        return entry(0xC0, cid, 128, flags | 500 << 16, payload, opening, 1500 | 4 << 16)


@pytest.fixture
def host() -> TunnelHost:
    found = TunnelHost()
    assert found.submit(found.open()) == [(1, 0, 1, 0, b"")]
    return found


def block(*packets: bytes) -> bytes:
    return b"".join(len(each).to_bytes(2, "little") + each for each in packets)


def send(cid: int, number: int, data: bytes, first: int = 0, descriptor: int = 1) -> bytes:
    return entry(0xC1, cid, 64, 1, len(data), descriptor, number, first)


def receive(cid: int, number: int, size: int = 4096, descriptor: int = 1) -> bytes:
    return entry(0xC2, cid, 64, 0, size, descriptor, number)


def status(host: TunnelHost) -> dict:
    ((_, code, _, _, data),) = host.submit(entry(0xC2, 99, 130, 0, STATUS_BYTES))
    assert code == 0
    return STATUS_DATA.unpack(data)


def test_bits_of_the_opcode_are_the_direction():
    for opcode, direction in ((0xC0, 0), (0xC1, TO_CONTROLLER), (0xC2, TO_HOST)):
        assert opcode & 3 == direction
        sqe = Sqe.unpack(entry(opcode, 7, 64, 0, 4096))
        assert admin.transfer_of(sqe, 1 << 20, True) == (direction, 4096 if direction else 0)
        assert admin.transfer_of(sqe, 4095, True) == admin.transfer_of(sqe, 1 << 20) == (0, 0)


def test_packets_go_down_and_up(host):
    down, up = ip(60), ip(40, 6)
    assert host.submit(send(2, 0, block(down)), block(down)) == [(2, 0, 0, 0, b"")]
    assert host.tunnel.relay.events() == [Opened(1), Packet(down)]
    assert host.submit(receive(3, 0)) == host.submit(receive(4, 1)) == []
    assert host.tunnel.send(up)
    (ended,) = host.tunnel.completions()
    assert ended.controller is host.controller and ended.cqe == Cqe(3, 0, 0, 1)
    assert ended.data == (42).to_bytes(4, "little") + block(up)
    found = status(host)
    assert (found["STATE"], found["DESC"], found["USED"], found["OPENING"]) == (1, 1, 1, 9)
    assert (found["NEXTDOWN"], found["NEXTUP"], found["PACKETSDOWN"], found["PACKETSUP"]) == (
        1, 1, 1, 1,
    )  # fmt: skip
    assert (found["BYTESDOWN"], found["BYTESUP"], found["REFUSED"]) == (62, 42, 0)
    close = host.submit(entry(0xC0, 5, 129, 0, 0, 1))
    assert close == [(4, 0, 0, 1, bytes(4)), (5, 0, 1, 0, b"")]
    assert host.tunnel.relay.events() == [Closed()] and status(host)["STATE"] == 0


def test_a_held_command_ends_before_the_driver_gives_up(host):
    host.now = 10 * MS
    assert host.submit(receive(3, 0)) == []
    assert host.tunnel.relay.deadline == 510 * MS  # as the open has asked for
    host.now = 510 * MS
    host.tunnel.tick()
    (ended,) = host.tunnel.completions()
    assert ended.cqe == Cqe(3) and ended.data == bytes(4) and ended.issued == 10 * MS


BAD = [
    (send(7, 0, bytes(4097)), b"", BAD_LENGTH),  # more than the payload, which is more than MDTS
    (send(7, 0, block(ip(60)), descriptor=2), block(ip(60)), BAD_DESCRIPTOR),
    (send(7, 4, block(ip(60))), block(ip(60)), BAD_SEQUENCE),
    (send(7, 0, block(ip(60)), first=3), block(ip(60)), BAD_FRAGMENT),
    (send(7, 0, b"\0\0abc"), b"\0\0abc", BAD_LENGTH),
    (send(7, 0, block(bytes(1501))), block(bytes(1501)), BAD_LENGTH),
    (send(7, 0, block(b"abc")), block(b"abc"), NOT_IP),
    (entry(0xC1, 7, 64, 1, 0, 1), b"", BAD_LENGTH),
    (entry(0xC1, 7, 65, 1, 62, 1), block(ip(60)), 0x002),
    (receive(7, 0, size=100), b"", BAD_LENGTH),
    (receive(7, 0, descriptor=0), b"", BAD_DESCRIPTOR),
    (receive(7, 9), b"", BAD_SEQUENCE),
    (entry(0xC2, 7, 130, 0, 100), b"", 0x002 | DNR),
    (entry(0xC0, 7, 127), b"", 0x002),
    (entry(0xC0, 7, 128, 1, 4096, 10, 1500 | 4 << 16), b"", NO_DESCRIPTOR),
    (entry(0xC0, 7, 129, 0, 0, 3), b"", BAD_DESCRIPTOR),
    (entry(0xC3, 7), b"", 0x001 | DNR),
]


@pytest.mark.parametrize(("raw", "data", "code"), BAD)
def test_bad_commands_are_answered_counted_and_pass_nothing_on(host, raw, data, code):
    host.tunnel.relay.events()
    raw_size = admin.transfer_of(Sqe.unpack(raw), host.offered.transfer_bytes, True)[1]
    sent = bytes(raw_size) if raw[0] == 0xC1 and len(data) < raw_size else data
    ((cid, found, _, _, got),) = host.submit(raw, sent)
    assert (cid, found, got) == (7, code, b"")
    assert host.tunnel.relay.events() == []
    assert host.controller.errors.count == 1
    if code not in (0x001 | DNR, 0x002 | DNR):
        assert status(host)["REFUSED"] == 1
    good, number = block(ip(60)), int(code == NOT_IP)
    assert host.submit(send(8, number, good), good) == [(8, 0, 0, 0, b"")]
    assert host.tunnel.relay.events() == [Packet(ip(60))]


@pytest.mark.parametrize(
    ("payload", "size", "held_ms"), [(6, 1500, 500), (4097, 1500, 500), (0, 1500, 500),
                                     (4096, 0, 500), (4096, 1501, 500), (4096, 1500, 0),
                                     (4096, 1500, 1001)],
)  # fmt: skip
def test_an_open_outside_of_the_limits_is_refused(payload, size, held_ms):
    host = TunnelHost()
    raw = entry(0xC0, 7, 128, 1 | held_ms << 16, payload, 9, size | 4 << 16)
    assert host.submit(raw) == [(7, 0x002, 0, 0, b"")]
    assert host.submit(send(8, 0, block(ip(60)), descriptor=0), block(ip(60))) == [
        (8, BAD_DESCRIPTOR, 0, 0, b""),
    ]
    assert status(host)["STATE"] == 0 and host.tunnel.relay.events() == []


def test_without_a_tunnel_the_opcodes_do_not_exist():
    host = Host()
    for opcode in (0xC0, 0xC1, 0xC2):
        assert host.status(opcode) == 0x001
    effects = host.data(0x02, cdw10=0x05 | 1023 << 16)
    assert [effects[4 * opcode] for opcode in range(0xC0, 0xC4)] == [0, 0, 0, 0]
    effects = TunnelHost().data(0x02, cdw10=0x05 | 1023 << 16)
    assert [effects[4 * opcode] for opcode in range(0xC0, 0xC4)] == [1, 1, 1, 0]
    with pytest.raises(InputError, match="'burst': must be 'hold'; a controller does not support"):
        TunnelCommands(dataclasses.replace(LIMITS, notify="burst"), lambda: 0)


def test_an_identifier_of_a_held_command_is_in_use(host):
    assert host.submit(receive(3, 0)) == []
    for raw in (receive(3, 1), entry(0x06, 3, 1)):
        ((cid, code, *_),) = host.submit(raw)
        assert (cid, code & 0x7FF) == (3, 0x003)
    assert host.submit(entry(0x08, 4, 3 << 16)) == [(4, 0, 0, 0, b""), (3, 0x007, 0, 0, b"")]
    assert host.submit(entry(0x08, 4, 3 << 16)) == [(4, 0, 1, 0, b"")]  # there is none


def test_a_reset_keeps_the_tunnel(host):
    data = block(ip(60))
    host.submit(receive(3, 0))
    host.submit(send(4, 0, data), data)
    host.controller.disabled()
    assert host.tunnel.completions() == [] and host.tunnel.owner is None
    assert host.tunnel.send(ip(40)) and host.tunnel.completions() == []
    assert host.submit(send(4, 0, data), data) == [(4, 0, 0, 0, b"")]  # known by its number
    ((_, _, _, _, up),) = host.submit(receive(3, 0))
    assert up[4:] == block(ip(40)) and status(host)["REPEATED"] == 1
    assert host.tunnel.relay.events() == [Opened(1), Packet(ip(60))]


def test_one_controller_at_a_time(host):
    other = host.second()
    assert host.submit(receive(3, 0)) == []
    assert host.submit(receive(3, 1), controller=other) == [(3, BAD_DESCRIPTOR, 0, 0, b"")]
    found = host.submit(host.open(5, opening=10), controller=other)
    assert found == [(5, NO_DESCRIPTOR, 0, 0, b"")] and status(host)["REFUSED"] == 2
    assert other.errors.count == 2  # in the log of the controller that has sent them
    # the host of the tunnel comes by another controller
    assert host.submit(host.open(5), controller=other) == [
        (3, 0x007, 0, 0, b""), (5, 0, 1, 0, b""),
    ]  # fmt: skip
    assert host.submit(receive(6, 0)) == [(6, BAD_DESCRIPTOR, 0, 0, b"")]
    assert host.submit(host.open(7, opening=11, flags=3)) == [(7, 0, 2, 0, b"")]  # takes over
    assert host.tunnel.relay.events() == [Opened(1), Closed(), Opened(2)]


def test_a_relay_through_the_controller_survives_resets(host, counts):
    """All packets arrive once and in order, through a controller that is reset again and again."""
    for seed in range(counts(10, 300)):
        rng = random.Random(seed)
        host = TunnelHost()
        relay = HostRelay(
            dataclasses.replace(LIMITS, payload=rng.choice([100, 4096])),
            timeout_ps=100 * MS, opening=rng.randrange(1, 1 << 32),
        )  # fmt: skip
        relay.open()
        sizes = [rng.randint(20, 1500) for _ in range(60)]
        down, up = list(map(ip, sizes)), list(map(ip, sizes[::-1]))
        got: tuple[list, list] = [], []
        left = list(down), list(up)
        commands: list[Command] = []
        answers: list[Completion] = []
        for _ in range(20_000):
            if relay.state is State.CLOSED:
                break
            if left[0] and relay.waiting < 4:
                relay.send(left[0].pop(0))
            if left[1] and host.tunnel.relay.waiting < 4 and host.tunnel.send(left[1][0]):
                left[1].pop(0)
            if not any(left) and got == (down, up):
                relay.close()
            commands += relay.commands(host.now)
            if rng.random() < 0.01:
                host.controller.disabled()
                commands, answers = [], []
                relay.reset()
            elif commands:
                each = commands.pop(rng.randrange(len(commands)))
                assert host.controller.execute(each.sqe, each.data).entries == ()
            else:
                host.now += 30 * MS
                host.tunnel.tick()
                relay.tick(host.now)
            for ended in host.tunnel.completions():
                answers.append(Completion(ended.cqe.pack(), ended.data))
            if answers:
                relay.completed(answers.pop(rng.randrange(len(answers))))
            for events, found in ((host.tunnel.relay, got[0]), (relay, got[1])):
                found += [each.data for each in events.events() if isinstance(each, Packet)]
        assert relay.state is State.CLOSED and got == (down, up)


def test_a_drive_that_takes_no_packets_takes_none_after_a_reopen():
    host, packet = TunnelHost(), block(ip(60))
    host.submit(host.open())
    host.tunnel.pause(True)
    host.submit(host.open(3, 10, 3))
    assert host.submit(send(4, 0, packet, descriptor=2), packet) == []
    host.tunnel.pause(False)
    assert [(each.cqe.cid, each.cqe.status) for each in host.tunnel.completions()] == [(4, 0)]
