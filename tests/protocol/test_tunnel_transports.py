"""The tunnel of a served drive through NVMe/TCP and through a PCIe function: packets cross in the
admin queue, beside other commands."""

import dataclasses
import queue
import random
import struct
import threading
import time

import pytest

from ondie.emu.config.config import load_preset
from ondie.emu.drive import Drive
from ondie.emu.live.request import cost_of
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.framing import Format
from ondie.emu.nvme.tunnel.host import HostRelay, State
from ondie.emu.nvme.tunnel.protocol import Failed, Packet
from ondie.emu.nvme.wire import Completion, Cqe, Sqe
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_tcp import NvmeTcpServer
from ondie.emu.serve.served import ServedDrive
from ondie.emu.serve.tunnel import DriveTunnel, limits_of
from ondie.emu.serve.vfio_user import VfioUserServer
from ondie.emu.service import Service
from ondie.emu.units import InputError
from tests.protocol.nvme_tcp_client import C2H_DATA, CAPSULE_RESP, TRANSPORT, Queue, sgl
from tests.protocol.test_nvme_tcp import wait_for
from tests.protocol.test_tunnel_controller import entry, receive
from tests.protocol.test_tunnel_loss import MS, ip
from tests.protocol.vfio_client import Driver, VfioClient
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

BLOCK, PAGE = 512, 4096
LIMITS = Format(4096, 4, 1500, notify="hold", hold_ps=1000 * MS)
R2T = 9


class TunnelDrive:
    """A small served drive with a tunnel. With ``echo``, it sends every packet back."""

    def __init__(self, cost: TunnelCost | None = None, echo: bool = True) -> None:
        self.drive = Drive(config(**(SMALL | MODES["write back"])), payload=True, block_bytes=BLOCK)
        self.service = Service(self.drive)
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.tunnel = DriveTunnel(LIMITS, self.inbox.put, cost)
        self.nvme = NvmeDrive(ServedDrive(self.drive, self.service), tunnel=self.tunnel)
        self.echo = threading.Thread(target=self._echo, daemon=True) if echo else None
        if self.echo is not None:
            self.echo.start()

    def _echo(self) -> None:
        while (packet := self.inbox.get()) is not None:
            self.tunnel.send(bytes(packet))

    def close(self) -> None:
        self.inbox.put(None)
        if self.echo is not None:
            self.echo.join()
        self.tunnel.close()
        self.nvme.close()
        self.service.close()
        self.drive.close()


class TcpHost:
    """A host's relay whose commands go through an admin queue of NVMe/TCP."""

    def __init__(self, drive: TunnelDrive, server: NvmeTcpServer, form: Format = LIMITS) -> None:
        self.name = drive.nvme.capabilities.subsystem_name
        self.address = ("127.0.0.1", server.listener.address.port)
        self.relay = HostRelay(form, opening=random.SystemRandom().randrange(1, 1 << 32))
        self.connect()
        self.events: list = []

    def connect(self) -> None:
        self.admin = Queue(self.address)
        assert self.admin.connect(self.name)[0] == 0
        self.admin.enable()
        self.sent: dict[int, tuple[int, bytes]] = {}
        self.data: dict[int, bytes] = {}
        self.others: dict[int, tuple[int, bytes]] = {}

    def submit(self) -> None:
        """Send the commands that may be sent."""
        for command in self.relay.commands():
            sqe = Sqe.unpack(command.sqe)
            words = command.sqe[40:]
            if sqe.opcode == 0xC2:
                cid = self.admin.capsule(0xC2, words=words, descriptor=sgl(TRANSPORT, sqe.cdw12))
            else:
                cid = self.admin.capsule(sqe.opcode, words=words, data=bytes(command.data))
            self.sent[cid] = sqe.cid, bytes(command.data)

    def step(self) -> None:
        """Send what may be sent, and handle one message."""
        self.submit()
        kind, flags, fields, data = self.admin.pdu()
        if kind == CAPSULE_RESP:
            words, _, _, cid, status = struct.unpack("<QHHHH", fields)
            self.end(cid, Cqe(0, status >> 1 & 0x7FF, words & 0xFFFFFFFF, words >> 32))
        elif kind == R2T:
            cid, tag, offset, size = struct.unpack_from("<HHII", fields)
            self.admin.push(cid, tag, self.sent[cid][1][offset : offset + size], offset)
        else:
            assert kind == C2H_DATA
            (cid,) = struct.unpack_from("<H", fields)
            self.data[cid] = self.data.get(cid, b"") + data
            if flags & 8:
                self.end(cid, Cqe(0))
        self.events += self.relay.events()

    def end(self, cid: int, cqe: Cqe) -> None:
        data = self.data.pop(cid, b"")
        if cid in self.sent:
            own, _ = self.sent.pop(cid)
            self.relay.completed(Completion(cqe._replace(cid=own).pack(), data))
        else:
            self.others[cid] = cqe.status, data

    def wait(self, cid: int) -> tuple[int, bytes]:
        """Status and data of a command that is none of the relay's."""
        self.until(lambda: cid in self.others)
        return self.others.pop(cid)

    def reset(self) -> None:
        """Reset the controller, with all commands that it has."""
        for value in (0, 4 << 20 | 6 << 16 | 1):
            words = struct.pack("<BxxxIQ", 0, 0x14, value)
            cid = self.admin.capsule(0x7F, fctype=0, words=words)
            while True:
                kind, _, fields, _ = self.admin.pdu()
                if kind == CAPSULE_RESP and struct.unpack("<QHHHH", fields)[3] == cid:
                    break
            self.sent.clear()
            self.data.clear()
        self.relay.reset()

    @property
    def packets(self) -> list:
        return [each.data for each in self.events if isinstance(each, Packet)]

    def until(self, done) -> None:
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline
            self.step()


@pytest.fixture
def drive():
    found = TunnelDrive()
    yield found
    found.close()


@pytest.fixture
def server(drive):
    found = NvmeTcpServer(drive.nvme, Listener(Address.parse(":0", "--nvme-tcp"), "--nvme-tcp"))
    yield found
    found.close()


def test_packets_cross_nvme_tcp_and_resets(drive, server, counts):
    host, rng = TcpHost(drive, server), random.Random(1)
    packets = [ip(rng.randint(20, 1500)) for _ in range(counts(200, 5000))]
    host.relay.open()
    for at, packet in enumerate(packets):
        host.relay.send(packet)
        if at % 40 == 20:
            host.step()
            host.submit()
        if at % 40 == 39:  # the controller is reset under load, or the connection is lost
            if rng.random() < 0.5:
                host.reset()
            else:
                host.admin.close()
                wait_for(lambda: not server.subsystem.associations)  # the tunnel's owner, till then
                host.connect()
                host.relay.reset()
    host.until(lambda: len(host.packets) == len(packets))
    assert host.packets == packets
    assert not [each for each in host.events if isinstance(each, Failed)]
    assert host.relay.repeated > 0
    dwords = struct.pack("<6I", 1, 0, 0, 0, 0, 0)
    status, data = host.wait(host.admin.capsule(6, 0, dwords, descriptor=sgl(TRANSPORT, PAGE)))
    assert status == 0 and len(data) == PAGE and host.relay.in_flight("receive") == 4
    host.relay.close()
    host.until(lambda: host.relay.state is State.CLOSED)
    host.admin.close()
    wait_for(lambda: not server.subsystem.associations)
    assert drive.tunnel.commands.owner is None


def test_a_reset_frees_identifiers(drive, server):
    host = TcpHost(drive, server)
    host.relay.open()
    host.until(lambda: host.relay.in_flight("receive") == 4)
    host.submit()
    held = list(host.sent)
    assert len(held) == 4
    host.reset()
    dwords = struct.pack("<6I", 1, 0, 0, 0, 0, 0)
    for cid in held:
        host.admin.cid = cid - 1
        assert host.admin.capsule(6, 0, dwords, descriptor=sgl(TRANSPORT, PAGE)) == cid
        assert host.admin.answer()[0] == 0  # the relay has sent nothing yet
    host.admin.close()


def test_what_was_under_way_at_a_reset_is_not_completed():
    cost = TunnelCost.of(load_preset("newport", ("tunnel.command=50 ms",)))
    drive, found = TunnelDrive(cost), []
    controller = drive.nvme.controller(lambda entries: None, found.append)
    opened = entry(0xC0, 1, 128, 1 | 500 << 16, PAGE, 9, 1500 | 4 << 16)
    for reset in (True, False):
        assert drive.nvme.execute(controller, opened).entries == ()
        assert not found
        if reset:
            with drive.nvme.lock:
                controller.disabled()
            time.sleep(0.08)
            assert not found
    wait_for(lambda: found)
    assert (found[0].cqe.cid, found[0].cqe.status, found[0].cqe.dw0) == (1, 0, 1)
    drive.nvme.remove(controller)
    drive.close()


def test_the_drive_ends_what_it_holds_by_itself(drive, server):
    form = dataclasses.replace(LIMITS, hold_ps=50 * MS)
    host = TcpHost(drive, server, form)
    host.relay.open()
    host.until(lambda: host.relay.issued["receive"] >= 13)
    assert drive.tunnel.commands.relay.counts["empty"] >= 9
    host.admin.close()


def test_a_paused_drive_holds_the_host_back(drive, server):
    host = TcpHost(drive, server)
    host.relay.open()
    host.until(lambda: host.relay.state is State.OPEN)
    drive.tunnel.pause(True)
    packets = [ip(1500) for _ in range(40)]
    for packet in packets:
        host.relay.send(packet)
    host.submit()
    dwords = struct.pack("<6I", 1, 0, 0, 0, 0, 0)
    for _ in range(3):
        host.wait(host.admin.capsule(6, 0, dwords, descriptor=sgl(TRANSPORT, PAGE)))
    assert host.relay.in_flight("write") == 4 and drive.inbox.empty() and not host.packets
    drive.tunnel.pause(False)
    host.until(lambda: len(host.packets) == 40)
    host.admin.close()


def test_a_receiver_that_raises_stops_nothing_else(drive, server, monkeypatch, capfd):
    taken = []

    def take(packet):
        taken.append(bytes(packet))
        if len(taken) == 1:
            raise OSError("gone")
        drive.inbox.put(packet)

    monkeypatch.setattr(drive.tunnel, "_take", take)
    host = TcpHost(drive, server)
    host.relay.open()
    host.until(lambda: host.relay.state is State.OPEN)
    packets = [ip(1500 - i) for i in range(12)]  # several blocks, of several packets each
    for packet in packets:
        host.relay.send(packet)
    host.until(lambda: len(host.packets) == 11 and not host.relay.in_flight("write"))
    assert taken == packets and [bytes(each) for each in host.packets] == packets[1:]
    assert "ondie serve: tunnel" in capfd.readouterr().err
    host.admin.close()


# --- the time of commands


def test_commands_take_the_time_of_the_model():
    """Each command takes its command time at least, so one direction has at most
    payload / time x outstanding; the cost model's rate is that, too."""
    cost = TunnelCost.of(load_preset("newport", ("tunnel.command=20 ms", "tunnel.outstanding=2")))
    assert limits_of(cost).notify == "hold" and limits_of(cost).outstanding == 2
    drive = TunnelDrive(cost, echo=False)
    server = NvmeTcpServer(drive.nvme, Listener(Address.parse(":0", "--nvme-tcp"), "--nvme-tcp"))
    try:
        form = dataclasses.replace(LIMITS, outstanding=2)
        host = TcpHost(drive, server, form)
        host.relay.open()
        host.until(lambda: host.relay.state is State.OPEN)
        for _ in range(30):
            host.relay.send(ip(1500))
        blocks = host.relay.waiting
        began = time.monotonic()
        host.until(lambda: drive.inbox.qsize() == 30)
        took = time.monotonic() - began
        assert blocks == 12 and took >= 0.020 * 6 - 0.001  # of two at a time
        for _ in range(30):
            assert drive.tunnel.send(ip(1500))
        began = time.monotonic()
        host.until(lambda: len(host.packets) == 30)
        # the first two commands were held for longer than their time; ten others follow
        assert time.monotonic() - began >= 0.020 * 5 - 0.001
        host.admin.close()
    finally:
        server.close()
        drive.close()


@pytest.mark.parametrize("way", ["down", "up"])
def test_no_message_is_faster_than_the_link_also_after_an_idle_time(way, monkeypatch, counts):
    """A direction that was idle has no credit: 600 KB take their time from the first byte on."""
    form = dataclasses.replace(LIMITS, outstanding=8)
    monkeypatch.setitem(globals(), "LIMITS", form)
    cost = cost_of(TunnelCost.of(load_preset("laguna")), "model", form.mtu)
    drive = TunnelDrive(cost, echo=False)
    server = NvmeTcpServer(drive.nvme, Listener(Address.parse(":0", "--nvme-tcp"), "--nvme-tcp"))
    try:
        host = TcpHost(drive, server, form)
        host.relay.open()
        host.until(lambda: host.relay.in_flight("receive") == 8)
        packets = [ip(1500)] * 400
        least = 400 * 1502 / (cost.down.link if way == "down" else cost.up.link)
        assert least == pytest.approx(0.04, rel=0.1)
        for number in (1, 2, 3):
            time.sleep(counts(0.1, 1.0))
            began = time.monotonic()
            if way == "down":
                for packet in packets:
                    host.relay.send(packet)
                host.submit()
                host.until(lambda: drive.inbox.qsize() == 400)
                took = time.monotonic() - began
                for _ in packets:
                    drive.inbox.get()
            else:
                for packet in packets[1:]:
                    assert drive.tunnel.send(packet, more=True)
                assert drive.tunnel.send(packets[0])
                host.until(lambda wanted=400 * number: len(host.packets) == wanted)
                took = time.monotonic() - began
            assert took >= least
        host.admin.close()
    finally:
        server.close()
        drive.close()


def test_a_payload_above_the_largest_transfer_is_refused():
    tunnel = DriveTunnel(dataclasses.replace(LIMITS, payload=1 << 24), lambda packet: None)
    drive = Drive(config(**SMALL), payload=True, block_bytes=BLOCK)
    service = Service(drive)
    with pytest.raises(InputError, match="tunnel.payload = 16777216: must be at most"):
        NvmeDrive(ServedDrive(drive, service), tunnel=tunnel)
    tunnel.close()
    service.close()
    drive.close()


# --- PCIe


@pytest.fixture
def driver(drive, tmp_path):
    listener = Listener(Address(path=str(tmp_path / "sock")), "--vfio-user")
    server = VfioUserServer(drive.nvme, listener)
    with VfioClient(server.listener.address.path) as client:
        client.map()
        found = Driver(client)
        found.enable()
        yield found
    server.close()


def push(driver: Driver, raw: bytes, place: int = 0) -> int:
    """Submit an entry with its data at ``place``; return its identifier."""
    return driver.push(driver.admin, Sqe.unpack(raw)._replace(prp1=place))


def test_packets_cross_a_pcie_function(drive, driver):
    opened = driver.command(0xC0, cdw10=128, cdw11=1 | 500 << 16, cdw12=PAGE, cdw13=9,
                            cdw14=1500 | 4 << 16)  # fmt: skip
    assert (opened.status, opened.dw0) == (0, 1)
    up, down = [driver.take(PAGE) for _ in range(2)], driver.take(PAGE)
    held = [push(driver, receive(0, number), up[number]) for number in range(2)]
    driver.ring(driver.admin)
    assert driver.data(0x06, cdw10=1)[24:29] == b"ondie"  # the two commands wait
    packet = ip(1000)
    block = len(packet).to_bytes(2, "little") + packet
    driver.view(down, len(block))[:] = block
    written = push(driver, entry(0xC1, 0, 64, 1, len(block), 1), down)
    driver.ring(driver.admin)
    done = {each.cid: each for each in driver.wait(driver.admin, 2)}  # and its echo
    assert set(done) == {written, held[0]} and all(each.status == 0 for each in done.values())
    echo = bytes(driver.view(up[0], 4 + len(block)))
    assert echo == len(block).to_bytes(4, "little") + block
    (ended,) = driver.wait(driver.admin, 1)  # after 0.5 s
    assert (ended.cid, ended.status) == (held[1], 0) and not any(driver.view(up[1], 4))


def test_a_short_block_keeps_to_the_pointers_of_all_that_was_asked_for(monkeypatch, tmp_path):
    """With more than two pages asked for, PRP2 is a list, also if the block has two pages."""
    size = 4 * PAGE
    form = dataclasses.replace(LIMITS, payload=size, mtu=6000)
    monkeypatch.setitem(globals(), "LIMITS", form)
    drive = TunnelDrive()
    listener = Listener(Address(path=str(tmp_path / "sock")), "--vfio-user")
    server = VfioUserServer(drive.nvme, listener)
    with VfioClient(server.listener.address.path) as client:
        client.map()
        driver = Driver(client)
        driver.enable()
        opened = driver.command(0xC0, cdw10=128, cdw11=1 | 500 << 16, cdw12=size, cdw13=9,
                                cdw14=6000 | 4 << 16)  # fmt: skip
        assert opened.status == 0
        first, others, where = driver.take(PAGE), driver.take(3 * PAGE), driver.take(PAGE)
        pages = struct.pack("<3Q", *range(others, others + 3 * PAGE, PAGE))
        driver.view(where, len(pages))[:] = pages
        held = Sqe.unpack(receive(0, 0, size))._replace(prp1=first, prp2=where)
        cid = driver.push(driver.admin, held)
        driver.ring(driver.admin)
        packet = ip(6000)
        assert drive.tunnel.send(packet)
        (ended,) = driver.wait(driver.admin, 1)
        assert (ended.cid, ended.status) == (cid, 0)
        found = bytes(driver.view(first, PAGE)) + bytes(driver.view(others, PAGE))
        assert found[6 : 6 + 6000] == packet
        assert bytes(driver.view(where, len(pages))) == pages
    server.close()
    drive.close()
