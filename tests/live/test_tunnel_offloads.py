"""Are uncut segments and open checksums what a network card would make of them, and do ends without
offloads get packets that they can take?
"""

import random
import struct

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.live.gso import HEADER, carried, plain
from ondie.emu.live.host_end import HostEnd, Port
from ondie.emu.live.network_device import Networked
from ondie.emu.live.request import Request, Way
from ondie.emu.nvme import wire
from ondie.emu.nvme.tunnel.device import DeviceRelay
from ondie.emu.nvme.tunnel.framing import Format, is_ip
from ondie.emu.nvme.tunnel.protocol import OFFLOADS, Packet
from ondie.emu.nvme.wire import Completion, Sqe
from ondie.emu.units import InputError

FORM = Format(1 << 17, 4, 1504, notify="hold", offloads=True)
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80


def folded(data: bytes) -> int:
    """Sum of 16-bit words, word by word, as RFC 1071 describes it."""
    total = 0
    for at in range(0, len(data), 2):
        total += int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big")
        total = (total & 0xFFFF) + (total >> 16)
    return total


def pseudo(packet: bytes, start: int, protocol: int) -> bytes:
    ends = packet[8:40] if packet[0] >> 4 == 6 else packet[12:20]
    return ends + struct.pack(">HH", protocol, len(packet) - start)


def ip(version: int, body: bytes, protocol: int, to: bytes = b"\x0a\x4d\0\2") -> tuple[bytes, int]:
    """A packet, and where its body begins; the checksum of the header of IPv4 is right."""
    if version == 6:
        return struct.pack(">IHBB", 6 << 28, len(body), protocol, 64) + bytes(range(32)) + body, 40
    head = struct.pack(">BBHHHBBH4s4s", 0x46, 0, 24 + len(body), 0xFFFE, 0, 64, protocol, 0,
                       b"\x0a\x4d\0\1", to) + bytes(4)  # fmt: skip
    value = 0xFFFF - folded(head)
    return head[:10] + struct.pack(">H", value) + head[12:] + body, 24


def tcp(version: int, data: bytes, size: int, flags: int = ACK, kind: int = 0) -> bytes:
    """A segment with a header of offloads, as the kernel gives it: its checksum field has the sum
    of the pseudo-header."""
    head = struct.pack(">HHIIBBHHH", 5001, 40000, 0xFFFFFF00, 7, 8 << 4, flags, 100, 0, 0)
    packet, start = ip(version, head + b"option 12 by" + data, 6)
    summed = folded(pseudo(packet, start, 6))
    packet = packet[: start + 16] + struct.pack(">H", summed) + packet[start + 18 :]
    kind |= (1 if version == 4 else 4) if size else 0
    return HEADER.pack(1, kind, start + 32, size, start, 16) + packet


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("count", "size"), [(1, 1448), (1448, 1448), (65001, 1448), (9, 4)])
def test_segments_are_cut_as_tcp_wants_them(version, count, size):
    data = random.Random(count).randbytes(count)
    found = plain(tcp(version, data, size, FIN | PSH | ACK | CWR, kind=0x80))
    start = 40 if version == 6 else 24
    assert b"".join(each[start + 32 :] for each in found) == data
    assert [len(each) - start - 32 for each in found[:-1]] == [size] * (len(found) - 1)
    for number, each in enumerate(found):
        assert is_ip(each)
        assert folded(pseudo(each, start, 6) + each[start:]) == 0xFFFF
        sequence = int.from_bytes(each[start + 4 : start + 8], "big")
        assert sequence == (0xFFFFFF00 + number * size) % (1 << 32)
        last = number == len(found) - 1
        wanted = ACK | (0 if number else CWR) | ((FIN | PSH) if last else 0)
        assert each[start + 13] == wanted
        assert each[start + 20 : start + 32] == b"option 12 by"
        if version == 4:
            assert folded(each[:24]) == 0xFFFF
            assert int.from_bytes(each[4:6], "big") == (0xFFFE + number) % (1 << 16)


def test_an_open_checksum_is_completed_and_others_stay():
    packet = tcp(4, b"abc", 0)
    (found,) = plain(packet)
    assert folded(pseudo(found, 24, 6) + found[24:]) == 0xFFFF
    assert found[:40] == packet[10:50] and found[42:] == packet[52:]
    assert carried(found, 0, 10) == (bytes(10) + found,)
    assert carried(bytes(10) + found, 10, 0) == [found]
    assert carried(packet, 10, 10) == (packet,)
    # UDP has no checksum 0: here the sum of all words is 0xFFFF
    head = struct.pack(">HHHH", 1, 2, 10, 0)
    whole, start = ip(4, head + bytes(2), 17)
    rest = 0xFFFF - folded(pseudo(whole, start, 17) + whole[start:])
    whole = whole[: start + 8] + struct.pack(">H", rest) + whole[start + 10 :]
    summed = folded(pseudo(whole, start, 17))
    whole = whole[: start + 6] + struct.pack(">H", summed) + whole[start + 8 :]
    (found,) = plain(HEADER.pack(1, 0, 0, 0, start, 6) + whole)
    assert found[start + 6 : start + 8] == b"\xff\xff"


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        ("checksum outside", (1, 0, 0, 0, 24, 60000)),
        ("start outside", (1, 1, 56, 1448, 5000, 16)),
        ("start in the header of IP", (1, 1, 56, 1448, 20, 16)),
        ("no size", (1, 1, 56, 0, 24, 16)),
        ("IPv6 as IPv4", (1, 4, 56, 1448, 24, 16)),
        ("a kind of UDP", (1, 5, 56, 1448, 24, 6)),
    ],
)
def test_wrong_headers_give_no_packet(place, fields):
    assert plain(HEADER.pack(*fields) + tcp(4, bytes(3000), 1448)[10:]) == []
    assert plain(bytes(5)) == plain(b"") == []
    bad = bytearray(tcp(4, bytes(3000), 1448))
    bad[10 + 24 + 12] = 0xF0  # a header of TCP that is longer than 32 bytes, within the packet
    assert b"".join(each[24 + 60 :] for each in plain(bad)) == bytes(3000 - 28)
    bad[10 + 24 + 12] = 0x10
    assert plain(bad) == []


# --- negotiation


class Queue:
    """The relay of a drive with ``limits`` behind a host's queue, without a transport."""

    def __init__(self, limits: Format) -> None:
        self.drive = DeviceRelay(limits, is_ip)
        self.opens: list[int] = []

    def fileno(self) -> int:
        return -1

    def submit(self, commands) -> None:
        for each in commands:
            sqe = Sqe.unpack(each.sqe)
            if sqe.opcode == wire.TUNNEL:
                self.opens.append(sqe.cdw11 & OFFLOADS)
            self.drive.command(each)

    def completions(self) -> list[Completion]:
        return self.drive.completions()


class Device(Networked):
    """A network device with a header in front of each packet, or none."""

    def __init__(self, lead: int) -> None:
        self.lead = lead
        self.given: list[bytes] = []
        self.taken: list[bytes] = []

    def read(self):
        return self.given.pop(0) if self.given else None

    def write(self, packet) -> bool:
        self.taken.append(bytes(packet))
        return True


def host_with(*limits: Format, lead: int = 10) -> tuple[HostEnd, Device, list[Queue]]:
    """The host's end, and drives with addresses from 10.77.0.2 on."""
    device, queues = Device(lead), [Queue(each) for each in limits]
    host = HostEnd(device, b"\x0a\x4d\0\1")
    for number, queue in enumerate(queues):
        host.add(Port(queue, FORM, bytes((10, 77, 0, 2 + number))))
    for _ in range(3):
        for port in host.ports.values():
            host.work(port)
    assert all(port.open for port in host.ports.values())
    return host, device, queues


def packets_of(queue: Queue) -> list[bytes]:
    return [bytes(each.data) for each in queue.drive.events() if isinstance(each, Packet)]


PLAIN = Format(1 << 17, 4, 1504, notify="hold")


def test_a_drive_with_offloads_gets_the_segment_with_its_header():
    host, device, (queue,) = host_with(FORM)
    assert queue.opens == [OFFLOADS] and queue.drive.form.offloads
    segment = tcp(4, random.Random(1).randbytes(60000), 1448)
    device.given.append(segment)
    host.take()
    assert packets_of(queue) == [segment]
    (port,) = host.ports.values()
    assert port.counts["bytes_down"] == len(segment) - 10
    wrong = HEADER.pack(0, 0, 0, 0, 0, 0) + b"no packet of IP"
    port.send(wrong)
    port.pump()
    assert packets_of(queue) == [] and queue.drive.counts["dropped"] == 1


def test_a_drive_without_is_asked_again_and_gets_cut_segments():
    host, device, (queue,) = host_with(PLAIN)
    assert queue.opens == [OFFLOADS, 0] and not queue.drive.form.offloads
    segment = tcp(4, random.Random(1).randbytes(60000), 1448)
    device.given.append(segment)
    host.take()
    assert packets_of(queue) == plain(segment)
    found = plain(segment)[0][:16] + b"\x0a\x4d\0\1" + plain(segment)[0][20:]
    queue.drive.send(found)
    (port,) = host.ports.values()
    host.work(port)
    assert device.taken == [bytes(10) + found]


def test_from_a_drive_with_offloads_to_one_without():
    host, device, (queue, other) = host_with(FORM, PLAIN)
    segment = bytearray(tcp(4, random.Random(1).randbytes(60000), 1448))
    segment[10 + 19] = 3
    queue.drive.send(bytes(segment))
    host.work(host.ports[bytes((10, 77, 0, 2))])
    assert packets_of(other) == plain(segment) and len(plain(segment)) == 42
    other.drive.send(plain(segment)[0][:16] + bytes((10, 77, 0, 2)) + plain(segment)[0][20:])
    host.work(host.ports[bytes((10, 77, 0, 3))])
    (found,) = packets_of(queue)
    assert found[:10] == bytes(10) and found[10:26] == plain(segment)[0][:16]
    assert not device.taken


# --- bad input


def test_bad_options_are_one_line():
    cfg = load_preset("newport")
    with pytest.raises(InputError, match="--mtu 65535: must be at most 65525 bytes with --gso"):
        Request.of(cfg, mtu=65535, pace="none", gso=True)
    assert not Request.of(cfg, mtu=65535, pace="none").form.offloads
    with pytest.raises(InputError, match="--queues 17: must be from 1 to 16"):
        Request.of(cfg, queues=17)
    assert Request.of(cfg, pace="none").form.offloads
    assert not Request.of(cfg).form.offloads and not Request.of(cfg, pace="36MB/s").form.offloads
    veth = Way(False, "veth", "/dev/net/tun: cannot be opened: No such file")
    for options, option in (({"gso": True}, "--gso"), ({"queues": 2}, "--queues 2")):
        said = f"{option}: needs TUN devices; this machine supports only root"
        with pytest.raises(InputError, match=said):
            Request.of(cfg, **options).on(veth)
    assert not Request.of(cfg, pace="none").on(veth).form.offloads
