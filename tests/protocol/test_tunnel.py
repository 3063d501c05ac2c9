"""Do packets arrive whole and in order, whatever the sizes and whoever overtakes whom; and is
whatever else may come answered?"""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.nvme import wire as nvme
from ondie.emu.nvme.tunnel import device as tunnel_device
from ondie.emu.nvme.tunnel import framing
from ondie.emu.nvme.tunnel import host as tunnel
from ondie.emu.nvme.tunnel import protocol as words
from ondie.emu.nvme.tunnel.device import DeviceRelay
from ondie.emu.nvme.tunnel.framing import Format, Packer, Unpacker
from ondie.emu.nvme.tunnel.host import HostRelay, State
from ondie.emu.nvme.tunnel.protocol import Closed, Failed, Opened, Packet
from ondie.emu.nvme.wire import Command, Completion, Cqe, Sqe
from ondie.emu.units import InputError
from tests.protocol.tunnel_wire import Wire

STATUSES = {
    nvme.SUCCESS, nvme.INVALID_OPCODE, nvme.INVALID_FIELD, nvme.ID_CONFLICT, nvme.ABORTED,
    nvme.EVENT_LIMIT, nvme.BAD_DESCRIPTOR, nvme.BAD_LENGTH, nvme.BAD_FRAGMENT, nvme.BAD_SEQUENCE,
    nvme.NO_DESCRIPTOR, nvme.INTERRUPTED, nvme.NOT_IP,
}  # fmt: skip
"""Of every completion."""

OPEN = Format()
MASK = words.MASK


def numbered(sizes: list[int], seed: int = 0) -> list[bytes]:
    """Packets of given sizes, no two alike where they are long enough."""
    return [
        bytes((seed + 7 * i + 131 * j + j * j // 251) % 256 for j in range(n))
        for i, n in enumerate(sizes)
    ]


formats = st.builds(
    Format,
    payload=st.one_of(st.integers(7, 64), st.sampled_from([256, 4096])),
    outstanding=st.integers(1, 5),
    mtu=st.sampled_from([1, 2, 60, 300, 1500]),
    concatenate=st.booleans(),
    notify=st.sampled_from(framing.NOTIFICATIONS),
)


def sizes_for(form: Format) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, form.mtu), max_size=12)


# --- bytes


def test_entries_are_nvmes():
    """NVMe base specification: opcode at byte 0, cid at 2, dwords 10 to 15 from byte 40 on."""
    sqe = Sqe(0xC0, cid=0x1234, cdw10=64, cdw11=1, cdw12=4096, cdw13=5, cdw14=6, cdw15=7)
    raw = sqe.pack()
    assert len(raw) == 64 and raw[0] == 0xC0 and raw[2:4] == b"\x34\x12"
    words_ = [int.from_bytes(raw[at : at + 4], "little") for at in range(40, 64, 4)]
    assert words_ == [64, 1, 4096, 5, 6, 7] and Sqe.unpack(raw) == sqe
    cqe = Cqe(9, nvme.BAD_LENGTH, dw0=3, dw1=4)
    raw = cqe.pack()
    assert len(raw) == 16 and raw[12:14] == b"\x09\x00"
    # status code in bits 1 to 8, its type in 9 to 11
    assert int.from_bytes(raw[14:], "little") == 0xC1 << 1 | 7 << 9
    assert Cqe.unpack(raw) == cqe


def test_the_open_relays_commands():
    """Opcodes from C0h on; open 128, communicate 64, close 129; write flag, length, descriptor; 4
    KiB of packets down at most."""
    wire = Wire(dataclasses.replace(OPEN, mtu=9000))
    wire.open()
    wire.host.send(bytes(5000))
    wire.device.send(bytes(5000))
    wire.run()
    wire.host.close()
    done = []
    collect, wire.up = wire.device.completions, []
    wire.device.completions = lambda: (done.extend(new := collect()), new)[1]
    wire.run()
    assert wire.closed and not wire.failures
    entries = [Sqe.unpack(c.sqe) for c in wire.commands]
    assert {e.opcode for e in entries} == {0xC0, 0xC1, 0xC2, 0x0C}
    told = [(e.cdw10, e.cdw11, e.cdw12, e.cdw13) for e in entries if e.opcode != 0x0C]
    assert told[0] == (128, 0, 4096, 1) and told[-1] == (129, 0, 0, 1)
    assert {(e.opcode & 3, bool(e.cdw11)) for e in entries if e.cdw10 == 64} == {(1, 1), (2, 0)}
    # 5,002 B with the length: 4,096 + 906 down
    assert [x for x in told if x[:2] == (64, 1)] == [(64, 1, 4096, 1), (64, 1, 906, 1)]
    assert [x for x in told if x[:2] == (64, 0)] == [(64, 0, 4096, 1)] * 2
    assert [len(c.data) for c in wire.commands if c.data] == [4096, 906]


def test_what_comes_up_is_behind_its_length():
    wire = Wire(dataclasses.replace(OPEN, mtu=9000))
    wire.open()
    wire.device.send(bytes(5000))
    seen = []
    take = wire.host.completed
    wire.host.completed = lambda c: (seen.append(c), take(c))[1]
    wire.run()
    blocks = [c.data for c in seen if c.data]
    assert [len(b) for b in blocks] == [4096, 4 + 5002 - 4092]
    assert [int.from_bytes(b[:4], "little") for b in blocks] == [4092, 910]


# --- framing


@given(st.data(), st.integers(1, 40), st.booleans())
def test_framing_gives_back_what_it_cut(data, room, concatenate):
    packets = numbered(data.draw(st.lists(st.integers(1, 100), max_size=20)))
    packer, unpacker = Packer(room, concatenate), Unpacker(100)
    found = []
    for packet in packets:
        packer.push(packet)
        while packer.blocks and data.draw(st.booleans()):
            block, first = packer.cut()
            found += unpacker.feed(block, first)[1]
    left = packer.blocks
    for _ in range(left):
        block, first = packer.cut()
        assert 0 < len(block) <= room
        status, whole = unpacker.feed(block, first)
        assert status == nvme.SUCCESS
        found += whole
    assert found == packets and packer.blocks == 0 and not unpacker.partial


def test_concatenation_fills_blocks():
    """Ten packets of 100 B with lengths are 1,020 B: 4 blocks of 256 B; each by itself, 10."""
    for concatenate, blocks in ((True, 4), (False, 10)):
        packer = Packer(256, concatenate)
        for packet in numbered([100] * 10):
            packer.push(packet)
        assert packer.blocks == blocks
        sizes = [len(packer.cut()[0]) for _ in range(blocks)]
        assert sizes == ([256, 256, 256, 252] if concatenate else [102] * 10)


@given(st.binary(min_size=1, max_size=64), st.integers(0, 70))
def test_any_bytes_are_taken_whole_or_not_at_all(data, first):
    unpacker = Unpacker(20)
    assert unpacker.feed(b"\x05\x00ab", 0) == (nvme.SUCCESS, [])
    status, packets = unpacker.feed(data, first)
    if status:
        assert packets == [] and unpacker.feed(b"cde", framing.NONE) == (nvme.SUCCESS, [b"abcde"])
    else:
        assert all(0 < len(p) <= 20 for p in packets)


@pytest.mark.parametrize(
    ("block", "first", "status"),
    [
        (b"cde", framing.NONE, nvme.SUCCESS),
        (b"cde\x01\x00x", 3, nvme.SUCCESS),
        (b"cd", framing.NONE, nvme.SUCCESS),
        (b"de\x01\x00x", 2, nvme.BAD_FRAGMENT),  # c is missing
        (b"\x01\x00x", 0, nvme.BAD_FRAGMENT),  # the rest is
        (b"cde\x00\x00", 3, nvme.BAD_LENGTH),
        (b"cde\x15\x00x", 3, nvme.BAD_LENGTH),  # 21 B: the mtu is 20
    ],
)
def test_a_truncated_fragment_is_found_out(block, first, status):
    unpacker = Unpacker(20)
    unpacker.feed(b"\x05\x00ab", 0)
    assert unpacker.feed(block, first)[0] == status


# --- both directions, in any order


@given(st.data())
def test_packets_arrive_whole_and_in_order(data):
    form = data.draw(formats)
    down, up = (numbered(data.draw(sizes_for(form)), seed) for seed in (0, 90))
    choices = data.draw(st.lists(st.integers(0, 50), max_size=60))
    wire = Wire(form)
    wire.host.open()
    to_send = [(wire.host, p) for p in down] + [(wire.device, p) for p in up]
    order = data.draw(st.permutations(range(len(to_send))))
    queues = {wire.host: list(down), wire.device: list(up)}
    early = data.draw(st.booleans())  # packets before the tunnel is open, where that can be
    if not early:
        wire.run()
    for at in order:
        end = to_send[at][0]
        while end is wire.device and wire.device.state is tunnel_device.State.CLOSED:
            assert wire.step(choices.pop() if choices else 0)
        assert end.send(queues[end].pop(0))
        for _ in range(data.draw(st.integers(0, 3))):
            wire.step(choices.pop() if choices else 0)
    if data.draw(st.booleans()):
        wire.run(choices)
        assert wire.received == (down, up)
    end = data.draw(st.sampled_from(["host", "device"]))
    if end == "device" and wire.device.state is tunnel_device.State.OPEN:
        wire.device.close()
    else:
        wire.host.close()
    wire.run(choices)
    assert wire.received == (down, up)  # nothing is lost on close
    assert wire.closed and not wire.failures and wire.host.strays == wire.host.repeated == 0
    assert wire.host.state is State.CLOSED
    assert not wire.host.send(bytes(form.mtu))


@pytest.mark.parametrize("notify", framing.NOTIFICATIONS)
@pytest.mark.parametrize("outstanding", [2, 5])
def test_the_last_overtakes_all_others(outstanding, notify):
    """Whatever is on its way longest arrives last: blocks wait for those before, and a close may be
    over while the last of them are still coming."""
    wire = Wire(Format(64, outstanding, 300, notify=notify))
    wire.open()
    down, up = numbered([300, 5, 200, 1] * 5), numbered([7, 300, 120] * 6, 90)
    for packet in down:
        assert wire.host.send(packet)
    for packet in up:
        assert wire.device.send(packet)
    wire.host.close()
    wire.run(itertools.repeat(-1))
    assert wire.received == (down, up) and wire.closed and not wire.failures


@given(st.data())
def test_never_more_commands_than_may_be_outstanding(data):
    form = data.draw(formats)
    wire = Wire(form)
    wire.open()
    for packet in numbered(data.draw(sizes_for(form))):
        wire.host.send(packet)
    for packet in numbered(data.draw(sizes_for(form))):
        wire.device.send(packet)
    numbers = data.draw(st.lists(st.integers(0, 50), max_size=60))
    for choice in numbers:
        if not wire.step(choice):
            break
        for kind in ("write", "receive", "event"):
            assert 0 <= wire.host.in_flight(kind) <= form.outstanding


@given(st.data())
def test_numbers_wrap(data):
    """Blocks are numbered in 32 bits: a tunnel near the end of them goes on from 0."""
    form = data.draw(formats)
    start = (1 << 32) - data.draw(st.integers(1, 4))
    wire = Wire(form)
    wire.open()
    for name in ("_written", "_confirmed", "_received", "_taken", "_announced"):
        setattr(wire.host, name, start)
    for name in ("_expected", "_cut", "_announced"):
        setattr(wire.device, name, start)
    down, up = (numbered(data.draw(sizes_for(form)), seed) for seed in (0, 90))
    for packet in down:
        assert wire.host.send(packet)
    for packet in up:
        assert wire.device.send(packet)
    wire.host.close()
    wire.run(data.draw(st.lists(st.integers(0, 50), max_size=60)))
    assert wire.received == (down, up) and wire.closed and not wire.failures


def test_a_second_tunnel_has_a_descriptor_of_its_own():
    wire = Wire(OPEN)
    for n in range(1, 4):
        wire.open()
        assert wire.host.descriptor == wire.device.descriptor == n
        wire.host.send(b"x" * n)
        wire.host.close()
        wire.run()
        assert wire.host.state is State.CLOSED
    assert [e for e in wire.at_host if isinstance(e, Opened)] == [Opened(1), Opened(2), Opened(3)]
    assert wire.received[0] == [b"x", b"xx", b"xxx"]


@pytest.mark.parametrize(
    ("notify", "signals"), [("command", 3), ("burst", 1)]
)  # 3 x 1,502 B upward in blocks of 1,600 B
def test_the_drive_signals_for_each_block_or_for_the_first(notify, signals):
    wire = Wire(Format(payload=1604, notify=notify))
    wire.open()
    for packet in numbered([1500] * 3):
        wire.device.send(packet)
    wire.run()
    assert wire.host.issued["receive"] == 3 and wire.device.signals == signals
    wire.device.send(b"x")
    wire.run()
    assert wire.host.issued["receive"] == 4 and wire.device.signals == signals + 1
    assert len(wire.received[1]) == 4


def test_both_ends_agree_on_the_smaller_sizes():
    wire = Wire(Format(512, 2, 400), Format(4096, 8, 1500))
    wire.open()
    assert (wire.device.form.payload, wire.device.form.mtu) == (512, 400)
    with pytest.raises(InputError, match="packet of 401 B: must be from 1 to 400 B"):
        wire.device.send(bytes(401))
    for asked in (Format(8192), Format(4096, 2), Format(4096, 1, 1501)):
        refused = Wire(asked, Format(4096, 1, 1500))
        refused.host.open()
        refused.host.send(b"x")
        refused.run()
        assert refused.failures == [Failed(nvme.INVALID_FIELD, "open")]
        assert refused.host.state is State.CLOSED and Closed() in refused.at_host


# --- what must not be


def sent(device: DeviceRelay, sqe: Sqe, data: bytes = b"") -> list[tuple[int, int]]:
    """(cid, status) of what a command completes."""
    device.command(Command(sqe.pack(), data))
    return [(c.cid, c.status) for c in (Cqe.unpack(x.cqe) for x in device.completions())]


def opened(form: Format = OPEN) -> DeviceRelay:
    device = DeviceRelay(form)
    sizes = form.mtu | form.outstanding << 16
    sqe = Sqe(nvme.TUNNEL, cid=1, cdw10=words.OPEN, cdw12=form.payload, cdw14=sizes)
    assert sent(device, sqe) == [(1, nvme.SUCCESS)]
    return device


COMM = {"cdw10": words.COMMUNICATE, "cdw13": 1}
TAKE = COMM | {"cdw12": 4096}
"""Fields of a receive command."""
BLOCK = b"\x03\x00abc"


@pytest.mark.parametrize(
    ("sqe", "data", "status"),
    [
        (Sqe(0xC3, cid=7), b"", nvme.INVALID_OPCODE),
        (Sqe(0xC0, cid=7, cdw10=65), b"", nvme.INVALID_FIELD),
        (Sqe(0xC0, cid=7, cdw10=words.OPEN, cdw12=4096), b"", nvme.NO_DESCRIPTOR),
        (Sqe(0xC0, cid=7, cdw10=words.OPEN, cdw11=2, cdw12=4097), b"", nvme.INVALID_FIELD),
        (Sqe(0xC0, cid=7, cdw10=words.OPEN, cdw11=6, cdw12=4096), b"", nvme.INVALID_FIELD),
        (Sqe(0xC0, **COMM, cid=7), b"", nvme.INVALID_FIELD),
        (Sqe(0xC1, cid=7, cdw10=words.COMMUNICATE, cdw13=2), b"", nvme.BAD_DESCRIPTOR),
        (Sqe(0xC2, cid=7, cdw10=words.COMMUNICATE, cdw13=2), b"", nvme.BAD_DESCRIPTOR),
        (Sqe(0xC0, cid=7, cdw10=words.CLOSE), b"", nvme.BAD_DESCRIPTOR),
        (Sqe(0xC0, cid=7, cdw10=words.CLOSE, cdw13=1, cdw11=2), b"", nvme.INVALID_FIELD),
        (Sqe(0xC2, cid=7, **TAKE, cdw11=1), b"", nvme.INVALID_FIELD),
        (Sqe(0xC1, cid=7, **COMM, cdw11=0, cdw12=5), BLOCK, nvme.INVALID_FIELD),
        (Sqe(0xC2, cid=7, **COMM, cdw12=4095), b"", nvme.BAD_LENGTH),
        (Sqe(0xC2, cid=7, **TAKE, cdw14=1), b"", nvme.BAD_SEQUENCE),
        (Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=0), BLOCK, nvme.BAD_LENGTH),
        (Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=6), BLOCK, nvme.BAD_LENGTH),
        (Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=4097), bytes(5000), nvme.BAD_LENGTH),
        (Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=5, cdw14=1), BLOCK, nvme.BAD_SEQUENCE),
        (Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=5, cdw14=MASK), BLOCK, nvme.BAD_SEQUENCE),
        (Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=5, cdw15=2), BLOCK, nvme.BAD_FRAGMENT),
        (Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=5), b"\x00\x00abc", nvme.BAD_LENGTH),
        (Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=5), b"\xff\xffabc", nvme.BAD_LENGTH),
    ],
)
def test_malformed_commands_have_a_status(sqe, data, status):
    device = opened()
    assert sent(device, sqe, data) == [(7, status)]
    good = Sqe(0xC1, cid=8, **COMM, cdw11=1, cdw12=5)  # and nothing of them is left
    assert sent(device, good, BLOCK) == [(8, nvme.SUCCESS)]
    assert device.events() == [Opened(1), Packet(b"abc")]


def test_a_block_out_of_turn_waits_for_those_before():
    device = opened(dataclasses.replace(OPEN, outstanding=3))
    later = Sqe(0xC1, cid=5, **COMM, cdw11=1, cdw12=4, cdw14=1, cdw15=1)
    assert sent(device, later, b"c\x01\x00d") == []
    again = later._replace(cid=6)
    assert sent(device, later, b"c\x01\x00d") == [(5, nvme.ID_CONFLICT)]
    assert sent(device, again, b"c\x01\x00d") == [(5, nvme.ABORTED)]
    first = Sqe(0xC1, cid=7, **COMM, cdw11=1, cdw12=4)
    assert sent(device, first, b"\x03\x00ab") == [(7, nvme.SUCCESS), (6, nvme.SUCCESS)]
    assert device.events()[1:] == [Packet(b"abc"), Packet(b"d")]


def test_a_close_in_the_middle_of_a_packet_says_so():
    device = opened()
    assert sent(device, Sqe(0xC1, cid=2, **COMM, cdw11=1, cdw12=4), b"\x03\x00ab")
    close = Sqe(0xC0, cid=3, cdw10=words.CLOSE, cdw13=1)
    assert sent(device, close) == [(3, nvme.BAD_FRAGMENT)]
    assert device.events() == [Opened(1), Closed()]
    assert sent(device, close) == [(3, nvme.BAD_FRAGMENT)]  # the same once more
    assert sent(device, close._replace(cdw13=2)) == [(3, nvme.BAD_DESCRIPTOR)]


def test_a_close_waits_until_everything_is_received_or_drops_it():
    for at_once, answers in ((0, []), (1, [(5, nvme.ABORTED), (4, nvme.SUCCESS)])):
        device = opened()
        assert device.send(b"abc")
        listen = Sqe(nvme.ASYNC_EVENT_REQUEST, cid=5)
        assert sent(device, listen) == [(5, nvme.SUCCESS)]  # there is something
        assert sent(device, listen) == []
        assert sent(device, listen._replace(cid=6)) == [(6, nvme.EVENT_LIMIT)]
        close = Sqe(0xC0, cid=4, cdw10=words.CLOSE, cdw11=at_once, cdw13=1)
        assert sent(device, close) == answers
        if not at_once:
            done = sent(device, Sqe(0xC2, cid=7, **TAKE))
            assert done == [(7, nvme.SUCCESS), (5, nvme.ABORTED), (4, nvme.SUCCESS)]
        assert not device.send(b"abc")
        assert sent(device, listen) == [(5, nvme.ABORTED)]


def test_a_reception_without_anything_there_is_empty():
    device = opened()
    device.command(Command(Sqe(0xC2, cid=7, **TAKE).pack()))
    (done,) = device.completions()
    assert done.data == bytes(4) and Cqe.unpack(done.cqe).status == nvme.SUCCESS
    device.send(b"abc")  # its number is not used up
    device.command(Command(Sqe(0xC2, cid=7, **TAKE).pack()))
    assert device.completions()[0].data == b"\x05\x00\x00\x00\x03\x00abc"


@given(st.data())
def test_a_drive_survives_any_commands(data):
    """Every command is answered once at most, with a status that has a name; and a host that knows
    the protocol gets through afterwards."""
    form = Format(64, data.draw(st.integers(1, 3)), 60)
    device = DeviceRelay(form)
    word = st.one_of(st.integers(0, 3), st.sampled_from([64, 128, 129, 60]), st.integers(0, MASK))
    sequence = data.draw(
        st.lists(
            st.builds(
                lambda opcode, cid, cdws: Sqe(opcode, 0, cid, 0, 0, 0, 0, 0, 0, *cdws),
                st.sampled_from([0xC0, 0xC0, 0xC1, 0xC2, 0x0C, 0x00, 0xFF]),
                st.integers(0, 9),
                st.lists(word, min_size=6, max_size=6),
            ),
            max_size=30,
        )
    )
    given_out, answered = 0, 0
    for sqe in sequence:
        raw = sqe.pack()[: data.draw(st.sampled_from([64, 64, 64, 10]))]
        device.command(Command(raw, data.draw(st.binary(max_size=70))))
        given_out += 1
        if data.draw(st.booleans()):
            device.send(b"x" * data.draw(st.integers(1, device.form.mtu)))
        done = device.completions()
        answered += len(done)
        assert all(Cqe.unpack(c.cqe).status in STATUSES for c in done)
        assert answered <= given_out
    if device.state is not tunnel_device.State.CLOSED:
        at_once = Sqe(0xC0, cid=100, cdw10=words.CLOSE, cdw11=1, cdw13=device.descriptor)
        assert sent(device, at_once)[-1][0] == 100
    wire = Wire(form, opening=1 << 31)
    wire.device = device
    device.events()
    wire.open()
    packets = numbered([5, 60, 1])
    for packet in packets:
        assert wire.host.send(packet) and device.send(packet)
    wire.host.close()
    wire.run()
    assert wire.received == (packets, packets) and wire.closed


@pytest.mark.parametrize(
    ("cqe", "data", "status"),
    [
        ({"status": nvme.BAD_SEQUENCE}, b"", nvme.BAD_SEQUENCE),
        ({}, b"", nvme.BAD_LENGTH),
        ({}, b"\x00\x00\x00\x00", nvme.BAD_LENGTH),
        ({}, b"\x06\x00\x00\x00\x03\x00abc", nvme.BAD_LENGTH),
        ({}, (4093).to_bytes(4, "little") + bytes(4093), nvme.BAD_LENGTH),
        ({"dw0": 1}, b"\x05\x00\x00\x00\x03\x00abc", nvme.BAD_FRAGMENT),
        ({}, b"\x05\x00\x00\x00\x00\x00abc", nvme.BAD_LENGTH),
    ],
)
def test_what_a_drive_must_not_answer_closes_the_tunnel(cqe, data, status):
    wire = Wire(OPEN)
    wire.open()
    wire.device.send(b"abc")
    take = wire.host.completed

    def spoilt(completion: Completion) -> None:
        entry = Cqe.unpack(completion.cqe)
        if completion.data:
            completion = Completion(entry._replace(**cqe).pack(), data)
        take(completion)

    wire.host.completed = spoilt
    wire.run()
    assert wire.failures == [Failed(status, "receive of block 0")]
    assert wire.closed and wire.host.state is State.CLOSED and wire.received == ([], [])


@given(st.data())
def test_a_host_survives_any_completions(data):
    host = HostRelay(Format(64, 2, 60))
    host.open()
    host.send(b"hello")
    for _ in range(data.draw(st.integers(0, 40))):
        host.commands()
        cqe = Cqe(
            data.draw(st.integers(0, 8)),
            data.draw(st.sampled_from([0, 0, 0, nvme.ABORTED, nvme.BAD_LENGTH])),
            data.draw(st.one_of(st.sampled_from([0, 1, 0x10107, 0x10207]), st.integers(0, MASK))),
            data.draw(st.integers(0, 4)),
        )
        raw = cqe.pack()[: data.draw(st.sampled_from([16, 16, 16, 3]))]
        host.completed(Completion(raw, data.draw(st.binary(max_size=70))))
        assert isinstance(host.state, State)
        for event in host.events():
            assert isinstance(event, Opened | Packet | Failed | Closed)


def test_completions_of_others_are_left_alone():
    wire = Wire(OPEN)
    wire.open()
    wire.host.completed(Completion(Cqe(4000).pack()))
    wire.host.completed(Completion(b"short"))
    assert wire.host.strays == 2 and wire.host.state is State.OPEN
    assert not wire.failures


def test_every_state_can_be_reached_and_left():
    found = {State.CLOSED}
    while True:
        more = {to for (state, _), to in tunnel.TRANSITIONS.items() if state in found}
        if more <= found:
            break
        found |= more
    assert found == set(State) == {state for state, _ in tunnel.TRANSITIONS}


def test_identifiers_are_its_own():
    """Three for each outstanding command, and one."""
    host = HostRelay(dataclasses.replace(OPEN, outstanding=2), range(100, 110))
    host.open()
    assert 100 <= Sqe.unpack(host.commands()[0].sqe).cid < 110
    with pytest.raises(InputError, match="has 6 command identifiers; must have at least 7"):
        HostRelay(dataclasses.replace(OPEN, outstanding=2), range(6))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"payload": 6}, "payload 6 B"),
        ({"outstanding": 0}, "0 outstanding tunnel commands"),
        ({"mtu": 65536}, "mtu 65536 B: must be from 1 B to 65535 B"),
        ({"notify": "never"}, "burst or command or hold"),
        ({"hold_ps": 0}, "hold 0 ps: must be a whole number of milliseconds from 1 to 65535"),
    ],
)
def test_formats_that_cannot_be(changes, match):
    with pytest.raises(InputError, match=match):
        dataclasses.replace(OPEN, **changes)


def test_packets_that_cannot_be():
    host = HostRelay(OPEN)
    host.open()
    for size in (0, 1501):
        with pytest.raises(InputError, match=f"packet of {size} B: must be from 1 to 1500 B"):
            host.send(bytes(size))
