"""Do programs reach the drives of `ondie tunnel` by TCP/IP, through NVMe commands and nothing else?

Each cluster has a name and a network of this process. Programs talk by plain sockets inside the
namespaces; a helper process holds them.
"""

import gc
import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ondie.emu.cli.main import commands
from ondie.emu.config.config import load_preset
from ondie.emu.live import namespaces, processes, request
from ondie.emu.live.network_device import TUN_FILE
from ondie.emu.live.request import Request, way_of
from ondie.emu.live.tunnel_bench import children
from ondie.emu.units import InputError
from tests.live.processes import alone, needs_tunnels, wait_for
from tests.live.tunnel_cluster import disagreements, settled

NAME = f"test{os.getpid()}"
NET = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 256}"
SINK = """
import hashlib, socket, sys, time
listener = socket.create_server((sys.argv[1], 5001))
print("ready", flush=True)
client, _ = listener.accept()
digest, size, began = hashlib.sha256(), 0, None
while data := client.recv(1 << 20):
    began = began or time.monotonic()
    digest.update(data)
    size += len(data)
print(size, time.monotonic() - began, digest.hexdigest(), flush=True)
"""
SOURCE = """
import random, socket, sys, time
client = socket.create_connection((sys.argv[1], 5001), 20)
data, seconds = random.Random(int(sys.argv[2])).randbytes(1 << 20), float(sys.argv[3])
began, count = time.monotonic(), 0
while count < 8 or time.monotonic() - began < seconds:
    client.sendall(data)
    count += 1
print(count)
"""
PING = """
import os, socket, struct, sys
icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
icmp.settimeout(float(sys.argv[2]))
def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
body = struct.pack(">HH", os.getpid() & 0xFFFF, 1) + bytes(56)
icmp.sendto(struct.pack(">BBH", 8, 0, checksum(b"\\x08\\0\\0\\0" + body)) + body, (sys.argv[1], 0))
try:
    while True:
        data, (sender, _) = icmp.recvfrom(2048)
        if data[20] == 0 and data[24:28] == body[:4] and sender == sys.argv[1]:
            print("reply")
            break
except TimeoutError:
    print("none")
"""


@pytest.fixture(autouse=True)
def only_clusters():
    """Every start and end of a cluster sweeps what ended ones have left on the machine."""
    with alone("tunnel"):
        yield


class Running:
    """A cluster of the test in the background."""

    def __init__(self, **options) -> None:
        needs_tunnels()
        cfg = load_preset("newport")
        asked = Request.of(cfg, name=NAME, subnet=f"{NET}.0/24", **options)
        words = [sys.executable, "-m", "ondie.emu.cli", "tunnel", "up", "--name", NAME, "--subnet",
                 f"{NET}.0/24", "--drives", str(asked.drives)]  # fmt: skip
        for key in ("pace", "mtu", "pcap", "inject", "queues"):
            if key in options:
                words += [f"--{key}", str(options[key])]
        if "gso" in options:
            words += ["--gso" if options["gso"] else "--no-gso"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stdout + done.stderr
        except BaseException:
            processes.stop(NAME)
            raise
        self.printed = done.stdout
        self.pid = processes.read_state(NAME)["pid"]

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        processes.stop(NAME)

    def start(self, where: int, program: str, *words: str) -> subprocess.Popen:
        """Run a program at the host (-1) or a drive."""
        inside = ["ip", "netns", "exec", f"ondie-{self.pid}-{where}"] if where >= 0 else []
        return subprocess.Popen([*inside, sys.executable, "-c", program, *words],
                                stdout=subprocess.PIPE, text=True)  # fmt: skip

    def ping(self, where: int, other: int, seconds: float = 10.0) -> bool:
        asked = self.start(where, PING, address(other), str(seconds))
        return asked.communicate(timeout=seconds + 20)[0] == "reply\n"

    def copy(self, source: int, sink: int, seconds: float = 0.0, seed: int = 1) -> float:
        """Copy by TCP, compare the checksums, and return bytes/s."""
        taker, giver = self.start(sink, SINK, address(sink)), None
        try:
            assert taker.stdout.readline() == "ready\n"
            giver = self.start(source, SOURCE, address(sink), str(seed), str(seconds))
            count = int(giver.communicate(timeout=seconds + 40)[0])
            size, took, digest = taker.communicate(timeout=20)[0].split()
        finally:
            for each in (taker, giver):
                if each is not None:
                    each.kill()
        data = random.Random(seed).randbytes(1 << 20)
        expected = hashlib.sha256()
        for _ in range(count):
            expected.update(data)
        assert int(size) == count << 20 and digest == expected.hexdigest()
        return int(size) / float(took)


def address(number: int) -> str:
    return f"{NET}.{number + 2}"


def ends_of(pid: int) -> tuple[int, int]:
    """Number of sockets and of network devices that a process has open."""
    found = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return sum("socket:" in each for each in found), found.count(TUN_FILE)


def checksums_of(packet: bytes) -> list[int]:
    """Those of the IP header and of TCP or ICMP: 0 if they are right."""
    size = 4 * (packet[0] & 0xF)
    summed = [packet[:size], packet[size:]]
    if packet[9] == 6:
        summed[1] = packet[12:20] + bytes((0, 6)) + (len(packet) - size).to_bytes(2) + summed[1]
    found = []
    for each in summed:
        words = struct.unpack(f">{(len(each) + 1) // 2}H", each + bytes(len(each) % 2))
        found.append(0xFFFF - (sum(words) % 0xFFFF or 0xFFFF))
    return found


@pytest.mark.parametrize(("gso", "queues"), [(False, 1), (True, 3)])
def test_packets_cross_as_commands_and_all_counters_agree(gso, queues, tmp_path):
    with Running(mtu=9000, pace="none", gso=gso, queues=queues, pcap=tmp_path) as cluster:
        assert ends_of(cluster.pid) == (3, queues)
        *drives, relay = children(cluster.pid)
        assert [ends_of(each) for each in drives] == [(2, queues)] * 2  # none of others
        assert ends_of(relay) == (3, queues)
        assert all(cluster.ping(*ends) for ends in ((-1, 0), (-1, 1), (0, 1), (1, -1)))
        for ends in ((-1, 0), (1, -1), (0, 1)):
            cluster.copy(*ends)
        found = settled(NAME)
        host, drives = found["host"], found["drives"]
        assert host["kernel"]["rx_bytes"] == host["bytes_out"] > 8 << 20
        for drive in drives:
            assert drive["dropped"] == drive["drive_dropped"] == drive["repeated"] == 0
            assert drive["packets_down"] > 0 < drive["packets_up"]
            assert drive["drive_blocksdown"] == drive["writes"]
            ended = drive["drive_blocksup"] + drive["drive_empty"]
            assert 0 <= drive["receives"] - ended <= 2 * found["in_flight"]  # two moments
        assert drives[0]["forwarded"] > 0 and drives[1]["forwarded"] > 0
        assert all(drive["offloads"] == gso for drive in drives)
        assert host["bytes_in"] / host["packets_in"] > 9000 or not gso  # with acknowledgements
        printed = CliRunner().invoke(commands, ["tunnel", "status", "--name", NAME]).output
        assert f"{drives[0]['packets_down']} packets" in printed
        words = ["tunnel", "status", "--name", NAME, "--json", "-"]
        raw = CliRunner().invoke(commands, words).output
        assert json.loads(raw)["drives"][0]["bytes_down"] == drives[0]["bytes_down"]
    ends = {"host": host["packets_in"] + host["packets_out"]}
    ends |= {
        f"drive{n}": each["packets_down"] + each["packets_up"] for n, each in enumerate(drives)
    }
    for name, count in ends.items():
        data, at, packets = (tmp_path / f"{name}.pcap").read_bytes(), 24, []
        while at < len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "little")
            packets.append(data[at + 16 : at + 16 + size])
            at += 16 + size
        assert at == len(data) and (len(packets) > count if gso else len(packets) == count)
        assert max(map(len, packets)) <= 9000
        assert not any(map(sum, map(checksums_of, packets[:2000])))
    assert not [each for each in namespaces.namespaces() if f"-{cluster.pid}-" in each]
    assert processes.stop(NAME) is False  # again


def test_with_the_emulator_stopped_nothing_passes_and_a_kill_is_swept():
    with Running(drives=1, pace="none") as cluster:
        assert cluster.ping(-1, 0)
        drive, _ = children(cluster.pid)
        os.kill(drive, signal.SIGSTOP)
        assert not cluster.ping(-1, 0, 1.0)
        for _ in range(3):  # the first question still waits for its answer
            assert "does not answer" in processes.status(NAME)["drives"][0]["state"]
        os.kill(drive, signal.SIGCONT)
        assert cluster.ping(-1, 0)
        wait_for("the answer", lambda: processes.status(NAME)["drives"][0]["state"] == "open")
        assert processes.status(NAME)["drives"][0]["drive_refused"] == 0
        os.kill(drive, signal.SIGKILL)
        wait_for("the end", lambda: "disconnected" in processes.status(NAME)["drives"][0]["state"])
        assert not cluster.ping(-1, 0, 0.5)
        found = processes.status(NAME)  # the device has gone with the drive
        missing = found["drives"][0]["kernel_missing"]
        assert not found["drives"][0]["kernel"] and "tun0" in missing
        assert f"drive 0 up: the kernel's counters are missing: {missing}" in disagreements(found)
        assert found["host"]["kernel_missing"] == ""
        printed = CliRunner().invoke(commands, ["tunnel", "status", "--name", NAME]).output
        assert printed.count(f"  counters of the kernel are missing: {missing}\n") == 1
        os.kill(cluster.pid, signal.SIGKILL)
        wait_for("the end of the process", lambda: not namespaces.start_of(cluster.pid))
        left = f"ondie-{cluster.pid}-0"
        assert left in namespaces.namespaces()
        with pytest.raises(InputError, match="no cluster with this name is up"):
            processes.status(NAME)
        processes.stop(NAME)
        assert left not in namespaces.namespaces()


@pytest.mark.soak
@pytest.mark.parametrize(("pace", "rate"), [("36MB/s", 36e6), ("14.5MB/s", 14.5e6)])
@pytest.mark.parametrize("ends", [(-1, 0), (0, -1)], ids=["down", "up"])
def test_the_pace_is_that_of_the_model(pace, rate, ends):
    """A busy machine may be too slow for some seconds, but no pace is ever too fast."""
    with Running(drives=1, mtu=9000, pace=pace) as cluster:
        for _ in range(5):
            found = cluster.copy(*ends, 6.0)
            assert found <= 1.05 * rate
            if found >= 0.95 * rate:
                return
        pytest.fail(f"{found / 1e6:.1f} MB/s at a pace of {pace}")


def present(pid: int) -> list[str]:
    """What this machine has of a cluster: namespaces, devices and routes."""
    found = [each for each in namespaces.namespaces() if f"-{pid}-" in each]
    words = [word for kind in ("link", "route") for word in namespaces.run(kind).split()]
    return found + [word for word in words if word.startswith((f"ondie{pid}", NET))]


@pytest.mark.soak
def test_ups_and_downs_leave_nothing():
    gc.collect()  # what other tests of this process have left
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with Running(drives=2, pace="none") as cluster:
            assert cluster.ping(-1, 1)
            assert len(present(cluster.pid)) >= 4
        assert not present(cluster.pid)
    assert set(os.listdir("/proc/self/fd")) <= before


# --- bad input


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mtu": 65536}, "--mtu 65536: must be from 68 to 65535 bytes"),
        ({"payload": 6}, "--payload 6: tunnel payload 6 B: must be from 7 B"),
        ({"payload": 2 << 20}, "--payload 2097152: must be at most 1048576"),
        ({"drives": 0}, "--drives 0: must be from 1 to 64"),
        ({"subnet": "10.1.2.3/24"}, "--subnet 10.1.2.3/24: .*has host bits set"),
        ({"subnet": "10.1.2.0/30"}, "--subnet 10.1.2.0/30: has 4 addresses; must have 5"),
        ({"pace": "fast"}, '--pace: "fast" is not a rate'),
        ({"pcap": "/nowhere"}, "--pcap /nowhere: must be an existing folder"),
        ({"name": "a/b"}, "--name a/b: must be 1 to 32 letters"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(options, why):
    with pytest.raises(InputError, match=why):
        Request.of(load_preset("newport"), **options)


def test_a_drive_without_a_tunnel_and_a_machine_without_tun(monkeypatch):
    with pytest.raises(InputError, match="no tunnel between host and drives"):
        Request.of(load_preset("gen4-tlc"))
    monkeypatch.setattr(request, "TUN_FILE", "/dev/net/none")
    monkeypatch.setattr(request, "why_no_networks", lambda own_user: "")
    assert way_of("auto").device == "veth"
    assert "/dev/net/none: cannot be opened: No such file" in str(way_of("auto"))
    said = "--network-device tun: /dev/net/none: cannot be opened: No such file"
    with pytest.raises(InputError, match=said):
        way_of("tun")


def test_a_network_in_use_is_refused():
    needs_tunnels()
    words = ["up", "--name", NAME, "--subnet", "127.0.0.0/8"]
    done = subprocess.run([sys.executable, "-m", "ondie.emu.cli", "tunnel", *words],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 2 and "--subnet 127.0.0.0/8: address in use" in done.stderr
    assert processes.read_state(NAME) is None
