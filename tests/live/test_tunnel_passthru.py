"""Does the host's end behind a driver that passes commands through move packets, as in a virtual
machine?

The driver is a stand-in: what is given to its ioctl goes to an emulated controller with a tunnel,
and the call returns when that has completed it. `test_guest_tunnel.py` has the driver of Linux.
"""

import ctypes
import errno
import hashlib
import itertools
import os
import queue
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from ondie.emu.cli.commands.serve import run_serve
from ondie.emu.config.config import load_preset
from ondie.emu.controller.opcodes import Tunnel
from ondie.emu.live import passthru_host, passthru_queue
from ondie.emu.live.host_end import HostEnd, Port
from ondie.emu.live.network_device import Networked
from ondie.emu.live.passthru_host import HostRequest, PassthruHost
from ondie.emu.live.passthru_queue import (
    ADMIN64_CMD,
    MOST_THREADS,
    PASSTHRU,
    RESULT,
    PassthruQueue,
)
from ondie.emu.live.served_end import ServedEnd
from ondie.emu.nvme.tunnel.device import State as DriveState
from ondie.emu.nvme.tunnel.framing import PS_PER_MS, Format
from ondie.emu.nvme.wire import Sqe
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.tunnel import DriveTunnel
from ondie.emu.units import InputError
from tests.live import guest_python
from tests.live.pcie_guest import SMALL
from tests.live.processes import needs_tunnels, wait_for
from tests.live.test_tunnel_cluster import PING, SINK, SOURCE

CFG = load_preset("newport", SMALL)
FORM = Format(4096, 3, 1500, notify="hold", hold_ps=100 * PS_PER_MS)
HOST, DRIVE = bytes((10, 78, 0, 1)), bytes((10, 78, 0, 2))
DO_NOT_RETRY = 0x4000
END_S = 20.0
COUNT = 300
NET = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 256}"
DEVICE = f"odt{os.getpid()}"


class Driver:
    """Stands for the driver of Linux: ``ioctl`` returns when a command has completed. A command
    has an identifier of the driver's own."""

    def __init__(self, tunnel: DriveTunnel) -> None:
        self.nvme = NvmeDrive(MemoryDrive(CFG), tunnel=tunnel)
        self.controller = self.nvme.controller(lambda entries: None, self._deliver)
        self.opcodes: list[int] = []
        self.most = 0
        """Calls at the same time."""
        self.fault = lambda number: None
        """Raises what a call shall raise."""
        self._numbers, self._waiting = itertools.count(), {}
        self._lock = threading.Lock()

    def _deliver(self, ended) -> None:
        self._waiting[ended.cqe.cid].put((ended.cqe, ended.data))

    def ioctl(self, file: int, request: int, asked: bytearray, mutate: bool) -> int:
        assert request == ADMIN64_CMD and mutate and len(asked) == PASSTHRU.size == 80
        opcode, flags, _, nsid, *rest = PASSTHRU.unpack(asked)
        cdw2, cdw3, metadata, address, metadata_bytes, size, *words, _, _, _ = rest
        assert not (flags or nsid or metadata or metadata_bytes)
        with self._lock:
            number = next(self._numbers)
            cid = number + 1000
            self._waiting[cid] = answer = queue.SimpleQueue()
            self.opcodes.append(opcode)
            self.most = max(self.most, len(self._waiting))
        try:
            self.fault(number)
            sqe = Sqe(opcode, 0, cid, 0, cdw2, cdw3, 0, 0, 0, *words)
            data = ctypes.string_at(address, size) if opcode & 1 else b""
            reply = self.nvme.execute(self.controller, sqe.pack(), data)
            if reply.entries:
                answer.put((reply.entries[0], reply.data))
            cqe, back = answer.get(timeout=END_S)
        finally:
            with self._lock:
                del self._waiting[cid]
        ctypes.memmove(address, bytes(back), len(back))
        asked[RESULT] = struct.pack("<II", cqe.dw0, cqe.dw1)
        return cqe.status | DO_NOT_RETRY if cqe.status else 0


class Wire(Networked):
    """Stands for a TUN: what the test puts in is read, and what is written comes out."""

    lead = 0

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.near.setblocking(False)
        self.far.settimeout(END_S)
        self.out: list[bytes] = []

    def fileno(self) -> int:
        return self.near.fileno()

    def read(self) -> bytes | None:
        try:
            return self.near.recv(1 << 16)
        except BlockingIOError:
            return None

    def write(self, packet) -> bool:
        self.out.append(bytes(packet))
        return True

    def close(self) -> None:
        self.near.close()
        self.far.close()


class Ends:
    """Both ends, with a stand-in for everything below them. ``form``: what the host asks for."""

    def __init__(self, form: Format = FORM) -> None:
        self.at_drive: list[bytes] = []
        self.tunnel = DriveTunnel(FORM, lambda packet: self.at_drive.append(bytes(packet)))
        self.driver = Driver(self.tunnel)
        self.queue = PassthruQueue("/dev/null", FORM.payload, END_S, self.driver.ioctl)
        self.wire = Wire()
        self.host = HostEnd(self.wire, HOST)
        self.port = Port(self.queue, form, DRIVE)
        self.host.add(self.port)
        self._poll = select.poll()
        self._poll.register(self.queue, select.POLLIN)
        self._poll.register(self.wire, select.POLLIN)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self.port.close()
        self.until("the close", lambda: self.port.closed)
        self.queue.close()
        self.wire.close()
        self.tunnel.close()

    def until(self, what: str, ready) -> None:
        deadline = time.monotonic() + END_S
        while not ready():
            assert time.monotonic() < deadline, f"still awaited: {what}; {self.port.report()}"
            for fd, _ in self._poll.poll(20):
                self.host.work(self.port) if fd == self.queue.fileno() else self.host.take()


def packet(rng: random.Random, source: bytes, target: bytes) -> bytes:
    size = rng.choice((20, 21, 576, 1499, 1500))
    head = struct.pack(">BBHHHBBH", 0x45, 0, size, rng.randrange(1 << 16), 0, 64, 17, 0)
    return head + source + target + rng.randbytes(size - 20)


def cross(ends: Ends, seed: int) -> None:
    """Send packets in both directions; they must arrive in order, bit for bit."""
    rng = random.Random(seed)
    down = [packet(rng, HOST, DRIVE) for _ in range(COUNT)]
    up = [packet(rng, DRIVE, HOST) for _ in range(COUNT)]
    before = len(ends.at_drive), len(ends.wire.out)

    def send() -> None:
        for one, other in zip(down, up, strict=True):
            ends.wire.far.send(one)
            assert ends.tunnel.send(other)

    thread = threading.Thread(target=send)
    thread.start()
    ends.until("packets", lambda: len(ends.at_drive) >= before[0] + COUNT
               and len(ends.wire.out) >= before[1] + COUNT)  # fmt: skip
    thread.join(END_S)
    assert ends.at_drive[before[0] :] == down
    assert ends.wire.out[before[1] :] == up


def test_packets_cross_as_commands_of_the_driver():
    with Ends() as ends:
        ends.until("the tunnel", lambda: ends.port.open)
        cross(ends, 1)
        idle = ends.port.report()["receives"]
        ends.until("held commands that end", lambda: ends.port.report()["receives"] > idle + 5)
        ends.port.ask()
        ends.until("the status", lambda: ends.port.answered)
        found = ends.port.report()
        assert found["packets_down"] == found["packets_up"] == COUNT
        assert found["drive_packetsdown"] == found["drive_packetsup"] == COUNT
        assert found["drive_bytesdown"] == found["bytes_down"] + 2 * COUNT
        assert found["drive_blocksdown"] == found["writes"] and found["drive_empty"] > 3
        assert found["repeated"] == found["dropped"] == found["drive_refused"] == 0
        sent = ends.driver.opcodes
        assert sent.count(Tunnel.SEND) == found["writes"]
        assert FORM.outstanding < ends.driver.most <= 2 * FORM.outstanding + 2 <= MOST_THREADS
    assert ends.tunnel.commands.relay.state is DriveState.CLOSED


@pytest.mark.parametrize("number_of_error", [errno.EINTR, errno.EIO])
def test_commands_that_a_reset_cancels_or_refuses_are_given_again(number_of_error):
    with Ends() as ends:
        ends.until("the tunnel", lambda: ends.port.open)

        def fault(number: int) -> None:
            if number % 7 == 3:
                raise OSError(number_of_error, os.strerror(number_of_error))

        ends.driver.fault = fault
        cross(ends, 2)
        assert ends.port.report()["repeated"] > 5
        ends.driver.fault = lambda number: None


def test_a_device_that_goes_ends_the_tunnel():
    with Ends() as ends:
        ends.until("the tunnel", lambda: ends.port.open)

        def fault(number: int) -> None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

        ends.driver.fault = fault
        ends.wire.far.send(packet(random.Random(3), HOST, DRIVE))
        ends.until("the end", lambda: ends.port.gone)
        assert ends.port.gone == "No such device" and ends.port.closed


def test_a_driver_that_refuses_for_long_ends_the_tunnel(monkeypatch):
    monkeypatch.setattr(passthru_queue, "RESET_S", 0.3)
    with Ends() as ends:
        ends.until("the tunnel", lambda: ends.port.open)

        def fault(number: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        begun = time.monotonic()
        ends.driver.fault = fault
        ends.wire.far.send(packet(random.Random(3), HOST, DRIVE))
        ends.until("the end", lambda: ends.port.gone)
        assert time.monotonic() - begun > 0.3 and ends.port.gone == "Input/output error"


def test_a_drive_that_offers_less_refuses():
    with Ends(Format(4096, 4, 1500, notify="hold", hold_ps=100 * PS_PER_MS)) as ends:
        ends.until("the end", lambda: ends.port.gone)
        assert ends.port.gone == "open: status 0x2"


def address(number: int) -> str:
    return f"{NET}.{number}"


@pytest.fixture
def served(request):
    """A drive with its end in a namespace, behind the stand-in for the driver. The parameter is its
    pace."""
    needs_tunnels()
    with ServedEnd(CFG, f"{address(2)}/24", request.param) as end:
        driver = Driver(end.tunnel)
        yield end, driver


def request_of(**options) -> HostRequest:
    return HostRequest.of((f"/dev/null={address(2)}",), f"{address(1)}/24", name=DEVICE, **options)


@pytest.mark.parametrize(
    ("served", "gso", "uncut"),
    [("none", True, True), ("none", False, False), ("1GB/s", True, False)],
    indirect=["served"],
)
def test_programs_reach_the_drive_through_a_tun(served, gso, uncut, monkeypatch):
    """A drive with a pace takes no segments uncut, and a host need not give them."""
    end, driver = served

    def open_queue(path: str, payload: int) -> PassthruQueue:
        return PassthruQueue(path, payload, 3, driver.ioctl)

    monkeypatch.setattr(passthru_host, "open_queue", open_queue)
    monkeypatch.setattr(passthru_host, "ANSWER_S", 20.0)
    host = PassthruHost(request_of(gso=gso))
    thread = threading.Thread(target=host.run)
    thread.start()
    inside = ["ip", "netns", "exec", end.namespace]
    try:
        words = [sys.executable, "-c", PING, address(2), "10"]
        assert subprocess.run(words, capture_output=True, text=True).stdout == "reply\n"
        words = [*inside, sys.executable, "-c", PING, address(1), "10"]
        assert subprocess.run(words, capture_output=True, text=True).stdout == "reply\n"
        words = [*inside, sys.executable, "-c", SINK, address(2)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as sink:
            assert sink.stdout.readline() == "ready\n"
            words = [sys.executable, "-c", SOURCE, address(2), "5", "0"]
            count = int(subprocess.run(words, capture_output=True, timeout=END_S).stdout)
            size, _, digest = sink.communicate(timeout=END_S)[0].split()
        assert int(size) == count << 20 and count >= 8
        assert digest == hashlib.sha256(random.Random(5).randbytes(1 << 20) * count).hexdigest()
        with pytest.raises(
            InputError, match=r"null: open: status 0x7c4; the controller must have a"
        ):
            PassthruHost(HostRequest.of((f"/dev/null={address(2)}",), f"{address(1)}/24",
                                        name=f"{DEVICE}x"))  # fmt: skip
    finally:
        host.end()
        thread.join(END_S)
        found = host.close()
    drive = found["drives"]["/dev/null"]
    assert drive["offloads"] == uncut
    on_way = drive["packets_down"] - drive["drive_packetsdown"]  # the last acknowledgements
    assert 0 <= on_way <= 4 and drive["packets_down"] > 10 and drive["dropped"] == 0
    mean = drive["bytes_down"] / drive["packets_down"]
    assert 3000 < mean if uncut else 500 < mean <= 1500
    assert found["host"]["packets_in"] == drive["packets_down"]
    assert found["host"]["packets_out"] == drive["packets_up"] > 10
    wait_for("the close", lambda: end.tunnel.commands.relay.state is DriveState.CLOSED)


# --- bad input


@pytest.mark.parametrize(
    ("devs", "own", "options", "why"),
    [
        ((), "10.78.0.1/24", {}, "--dev: missing; give it for each drive"),
        (("/dev/nvme0",), "10.78.0.1/24", {}, "--dev /dev/nvme0: must be DEVICE=ADDRESS"),
        (("/dev/nvme0=x",), "10.78.0.1/24", {}, "--dev /dev/nvme0=x: "),
        (("/dev/nvme0=10.79.0.2",), "10.78.0.1/24", {}, "must be an address of 10.78.0.0/24"),
        (("/dev/nvme0=10.78.0.1",), "10.78.0.1/24", {}, "two ends of the tunnel have this"),
        (("a=10.78.0.2", "a=10.78.0.3"), "10.78.0.1/24", {}, "--dev a=10.78.0.3: given twice"),
        (("a=10.78.0.2",), "10.78.0.1", {}, "--address 10.78.0.1: must be an address of a host"),
        (("a=10.78.0.2",), "10.78.0.0/24", {}, "--address 10.78.0.0/24: must be an address of"),
        (("a=10.78.0.2",), "ten", {}, "--address ten: .*; use for example 10.78.0.1/24"),
        (("a=10.78.0.2",), "10.78.0.1/24", {"mtu": 67}, "--mtu 67: must be from 68 to 65535"),
        (("a=10.78.0.2",), "10.78.0.1/24", {"mtu": 65526, "gso": True}, "--mtu 65526: .* 65525 b"),
        (("a=10.78.0.2",), "10.78.0.1/24", {"in_flight": 13}, "--in-flight 13: must be from 1 to"),
        (("a=10.78.0.2",), "10.78.0.1/24", {"payload": 6}, "--payload 6: tunnel payload 6 B"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(devs, own, options, why):
    with pytest.raises(InputError, match=why):
        HostRequest.of(devs, own, **options)


@pytest.mark.parametrize(("path", "why"), [
    ("/dev/none", "--dev /dev/none: cannot be opened: No such file or directory"),
    (__file__, "must be the character device of a controller"),
])  # fmt: skip
def test_a_file_that_is_no_controller(path, why):
    with pytest.raises(InputError, match=why):
        PassthruQueue(path, 4096)


@pytest.mark.parametrize(("words", "why"), [
    (["--tunnel-pace", "none"], "--tunnel-pace requires --tunnel"),
    (["--tunnel", "10.78.0.2"], "--tunnel 10.78.0.2: must be an address of a drive in a network"),
    (["--tunnel", "10.78.0.0/24"], "--tunnel 10.78.0.0/24: must be an address of a drive"),
    (["--tunnel", "drive"], "--tunnel drive: .*; use for example 10.78.0.2/24"),
    (["--tunnel", "10.78.0.2/24"], "gen4-tlc: no tunnel between host and drives"),
    (["--tunnel", "10.78.0.2/24", "--device", "newport", "--tunnel-pace", "x"],
     '--tunnel-pace: "x" is not a rate'),
])  # fmt: skip
def test_bad_options_of_a_server(words, why):
    found = CliRunner().invoke(run_serve, ["--vfio-user", "/nowhere/x", *words])
    assert isinstance(found.exception, InputError)
    with pytest.raises(InputError, match=why):
        raise found.exception


def test_it_needs_nothing_but_python():
    """The program starts without the packages that a guest lacks, and refuses in one line."""
    found = guest_python.loaded()
    assert {"ondie.emu.live.passthru_host", guest_python.MODULE} <= found.keys()
    assert not any(name.startswith("ondie.emu.config") for name in found)
    words = [sys.executable, "-m", guest_python.MODULE, "--dev", "/dev/null=10.78.0.2",
             "--address", "10.78.0.3"]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("Error: --address 10.78.0.3: must be")
    assert done.stderr.count("\n") == 1
