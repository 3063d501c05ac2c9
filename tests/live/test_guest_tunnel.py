"""The host's end of the tunnel in a virtual machine, behind the unmodified NVMe driver of Linux:
ping, iperf3, copies and two drives, in one boot.

The guest has Python without packages, and no special driver. The programs of a drive run on this
machine, in the namespace of its server. `test_tunnel_passthru.py` has the same host's end behind a
stand-in for the driver, at small counts.
"""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.generate import ROOT
from tests.live import guest_qemu
from tests.live.guest_python import MODULE, PLACE, add_python, iperf3
from tests.live.pcie_guest import OURS, VERIFIED, Machine, machine
from tests.live.processes import needs_tunnels, wait_for
from tests.live.test_tunnel_cluster import SINK

pytestmark = pytest.mark.soak
PAGE = (ROOT / "docs" / "tunnel.md").read_text("utf-8")
SERVE = re.findall(r"^ondie serve --vfio-user \S+ (.*)$", PAGE, re.MULTILINE)[0].split()
HOST_WORDS = re.findall(r"^ondie tunnel host (.*)$", PAGE, re.MULTILINE)[0]
HOST, DRIVE, SECOND = "10.78.0.1", "10.78.0.2", "10.78.0.3"
OTHER = "nvme2"
"""The second served drive, as the guest names it."""
HOST_END = (f"PYTHONPATH=/{PLACE} python3 -m {MODULE} {HOST_WORDS} --stats "
            f"--dev /dev/{OTHER}={SECOND}")  # fmt: skip
COPY_BYTES, UNCUT_BYTES = 4 << 20, 1 << 19
IPERF_S = 5
PING = "ping -c 5 -i 0.2 -W 10 -s 1000"
SERVER = ("import socket, sys\nlistener = socket.create_server((sys.argv[1], 5002))\n"
          "print('ready', flush=True)\nclient, _ = listener.accept()\n"
          "client.sendall(open(sys.argv[2], 'rb').read())\nclient.shutdown(1)\n"
          "client.recv(1)\n")  # fmt: skip
"""Sends a file to the first client, and waits until that has gone."""


def options(address: str) -> list[str]:
    """Options of a server whose drive has a tunnel, as on the page but for the address."""
    return [*(word.replace(DRIVE, address) for word in SERVE), "--tunnel-pace", "none"]


class Tunnels:
    """The machine with the host's end, and the drives' programs."""

    def __init__(self, pc: Machine) -> None:
        self.pc = pc
        assert pc.second is not None
        self.spaces = [f"ondie-{process.pid}-0" for process in (pc.server, pc.second)]

    def start_host(self, *words: str) -> None:
        self.pc.ok(f"({HOST_END} {' '.join(words)} > /tmp/host 2>&1 & echo $! > /tmp/pid) "
                   "< /dev/null")  # fmt: skip
        self.pc.ok("until grep 'drive .*nvme2' /tmp/host > /dev/null; do "
                   "kill -0 $(cat /tmp/pid) || { cat /tmp/host; exit 1; }; sleep 0.1; "
                   "done")  # fmt: skip

    def stop_host(self) -> dict:
        """End it in order; return what it has counted."""
        text = self.pc.ok("kill $(cat /tmp/pid); while kill -0 $(cat /tmp/pid) 2> /dev/null; do "
                          "sleep 0.1; done; cat /tmp/host")  # fmt: skip
        return json.loads(text[text.index("{") :])

    def inside(self, drive: int, *words: str) -> list[str]:
        """The command line of a program of a drive."""
        return ["ip", "netns", "exec", self.spaces[drive], *words]

    def start(self, drive: int, *words: str, ready: str) -> "subprocess.Popen[bytes]":
        """Start a program of a drive; return when it has printed ``ready``."""
        return self.pc.live.start(
            self.inside(drive, *words), lambda log: ready in log.read_text("utf-8", "replace")
        )

    def kernel(self, drive: int) -> dict[str, int]:
        """The kernel's counters of the drive's device."""
        words = self.inside(drive, "ip", "-j", "-s", "link", "show", "dev", "tun0")
        (row,) = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
        return {f"{way}_{what}": row["stats64"][way][what] for way in ("rx", "tx")
                for what in ("packets", "bytes")}  # fmt: skip


@pytest.fixture(scope="module")
def tunnels(tmp_path_factory) -> Iterator[Tunnels]:
    if why := guest_qemu.why_not():
        pytest.skip(why)
    needs_tunnels()
    with machine(tmp_path_factory.mktemp("reference"), *options(DRIVE), second=options(SECOND),
                 more=add_python) as pc:  # fmt: skip
        found = Tunnels(pc)
        found.start_host()
        yield found


def test_the_page_says_what_is_tested():
    assert HOST_WORDS.split() == ["--dev", f"/dev/{OURS}={DRIVE}", "--address", f"{HOST}/24"]
    assert SERVE == ["--device", "newport", "--tunnel", f"{DRIVE}/24"]


def test_ping(tunnels):
    for address in (DRIVE, SECOND):
        assert "5 packets transmitted, 5 packets received" in tunnels.pc.ok(f"{PING} {address}")


def test_a_drive_reaches_the_guest_and_the_other_drive(tunnels):
    """From drive to drive, packets cross the guest."""
    pc = tunnels.pc
    tunnels.start(1, sys.executable, "-c", SERVER, SECOND, __file__, ready="ready")
    words = ("import socket, sys\nclient = socket.create_connection((sys.argv[1], 5002), 20)\n"
             "data = b''\nwhile part := client.recv(1 << 16):\n    data += part\n"
             "sys.stdout.buffer.write(data)\n")  # fmt: skip
    done = subprocess.run(tunnels.inside(0, sys.executable, "-c", words, SECOND),
                          capture_output=True, timeout=60)  # fmt: skip
    assert done.stdout == Path(__file__).read_bytes()
    pc.ok("(nc -l -p 5003 > /tmp/taken &) < /dev/null")
    words = (
        "import socket, sys\nsocket.create_connection((sys.argv[1], 5003), 20).sendall(b'x' * 9)"
    )
    wait_for("the guest's server", lambda: subprocess.run(
        tunnels.inside(0, sys.executable, "-c", words, HOST), capture_output=True, timeout=60
    ).returncode == 0)  # fmt: skip
    pc.ok("until [ $(wc -c < /tmp/taken) = 9 ]; do sleep 0.1; done")


def test_copies_in_both_directions(tunnels):
    pc = tunnels.pc
    sink = tunnels.start(0, sys.executable, "-c", SINK, DRIVE, ready="ready")
    sums = pc.ok(f"head -c {COPY_BYTES} /dev/urandom > /tmp/x; nc {DRIVE} 5001 < /tmp/x; "
                 "sha256sum < /tmp/x")  # fmt: skip
    assert sink.wait(60) == 0
    taken = pc.live.log_of(sink).split()
    assert int(taken[1]) == COPY_BYTES and taken[3] == sums.split()[0]
    data = random.Random(27).randbytes(COPY_BYTES)
    file = pc.live.folder / "data"
    file.write_bytes(data)
    tunnels.start(0, sys.executable, "-c", SERVER, DRIVE, str(file), ready="ready")
    sums = pc.ok(f"nc {DRIVE} 5002 < /dev/null | sha256sum")
    assert sums.split()[0] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("direction", ["", "-R"])
def test_iperf3(tunnels, direction):
    tool, paths = iperf3()
    environment = ["env", f"LD_LIBRARY_PATH={paths}"] if paths else []
    tunnels.start(0, *environment, str(tool), "-s", "-1", "-B", DRIVE, "--forceflush",
                  ready="Server listening")  # fmt: skip
    text = tunnels.pc.ok(f"iperf3 -c {DRIVE} -t {IPERF_S} -J {direction}", 120)
    found = json.loads(text[text.index("{") :])["end"]
    assert found["sum_received"]["bytes"] > 1 << 20
    print(f"iperf3 {direction}: {found['sum_received']['bits_per_second'] / 8e6:.2f} MB/s")


def test_beside_disk_commands_and_over_a_reset(tunnels):
    """fio verifies, and a reset of the controller cancels the held commands: TCP goes on."""
    pc = tunnels.pc
    sink = tunnels.start(0, sys.executable, "-c", SINK, DRIVE, ready="ready")
    pc.ok(f"(nc {DRIVE} 5001 < /tmp/x > /dev/null 2>&1; echo $? > /tmp/ended) < /dev/null & "
          f"sleep 0.3; nvme reset /dev/{OURS}")  # fmt: skip
    assert pc.fio(f"{OURS}n1", f"{VERIFIED} --size=1M")["read"]["io_bytes"] == 1 << 20
    assert pc.ok("until [ -s /tmp/ended ]; do sleep 0.1; done; cat /tmp/ended").strip() == "0"
    assert sink.wait(60) == 0
    sums = pc.ok("sha256sum < /tmp/x").split()[0]
    assert pc.live.log_of(sink).split()[1:4:2] == [str(COPY_BYTES), sums]
    assert re.search(rf"{OURS}: .*timeout", pc.ok("dmesg")) is None


def test_the_counters_agree(tunnels):
    """What the guest's kernel, the host's end, the controllers and the drives' kernels have
    counted, and a host that was killed is taken over from."""
    pc = tunnels.pc
    texts = {}
    for _ in range(60):  # until nothing moves any more
        names = [f"{way}_{what}" for way in ("tx", "rx") for what in ("packets", "bytes")]
        line = pc.ok(f"cd /sys/class/net/tun0/statistics; cat {' '.join(names)}; sleep 0.5")
        now = (
            dict(zip(names, map(int, line.split()), strict=True)),
            tunnels.kernel(0),
            tunnels.kernel(1),
        )
        if texts == now:
            break
        texts = now
    guest, *kernels = texts
    found = tunnels.stop_host()
    host, drives = found["host"], list(found["drives"].values())
    assert host["packets_in"] == guest["tx_packets"] > 1000
    assert host["bytes_in"] == guest["tx_bytes"] and host["packets_out"] == guest["rx_packets"]
    for drive, kernel in zip(drives, kernels, strict=True):
        assert drive["state"] == "open" and drive["dropped"] == drive["drive_dropped"] == 0
        for way, other in (("down", "rx"), ("up", "tx")):
            assert drive[f"drive_packets{way}"] == drive[f"packets_{way}"]
            assert kernel[f"{other}_packets"] == drive[f"packets_{way}"] > 10
            assert kernel[f"{other}_bytes"] == drive[f"bytes_{way}"]
    assert drives[1]["forwarded"] > 0 and drives[0]["drive_empty"] > 0
    assert drives[0]["repeated"] > 0 == drives[1]["repeated"]  # only one was reset
    tunnels.start_host()
    pc.ok("kill -9 $(cat /tmp/pid); while kill -0 $(cat /tmp/pid) 2> /dev/null; do sleep 0.1; "
          "done")  # fmt: skip
    status, text = pc.guest.run(f"{HOST_END} < /dev/null", 60)
    assert status == 2 and "that no other host has open (or use --take-over)" in text
    tunnels.start_host("--take-over", "--gso")
    assert "5 packets received" in pc.ok(f"{PING} {DRIVE}")
    sink = tunnels.start(0, sys.executable, "-c", SINK, DRIVE, ready="ready")
    sums = pc.ok(f"head -c {UNCUT_BYTES} /tmp/x > /tmp/y; nc {DRIVE} 5001 < /tmp/y; "
                 "sha256sum < /tmp/y")  # fmt: skip
    assert sink.wait(60) == 0
    assert pc.live.log_of(sink).split()[1:4:2] == [str(UNCUT_BYTES), sums.split()[0]]
    drives = list(tunnels.stop_host()["drives"].values())
    assert [drive["offloads"] for drive in drives] == [1, 1]
    assert drives[0]["bytes_down"] / drives[0]["packets_down"] > 1500
    for process in (pc.server, pc.second):
        pc.live.stop(process)
    assert not any(os.path.exists(f"/run/netns/{space}") for space in tunnels.spaces)
