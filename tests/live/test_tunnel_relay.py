"""Does a cluster without networks carry the connections of programs through its tunnels?"""

import hashlib
import ipaddress
import os
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ondie.emu.cli.main import commands
from ondie.emu.config.config import load_preset
from ondie.emu.live import loopback, namespaces, processes, request
from ondie.emu.live.request import Request, Way
from ondie.emu.units import InputError
from tests.live.processes import Live, alone
from tests.live.tunnel_cluster import NAME, up

PORT = 20000 + os.getpid() % 10000
SIZE = 1 << 20
FETCH = """
import hashlib, sys, urllib.request as u
print(hashlib.sha256(u.urlopen(sys.argv[1], timeout=30).read()).hexdigest())
"""


def test_http_crosses_as_commands():
    data = os.urandom(SIZE)
    options = ["--network-device", "relay", "--port", str(PORT), "--pace", "none", "--mtu", "9000"]
    with alone("tunnel"), Live() as live, up(live, *options) as made:
        lines = made.printed.split("\n")
        assert lines[0].endswith(": 2 x newport, TCP relays on the loopback device")
        assert lines[1] == f"carries TCP to these ports: {PORT}; no other ports, no UDP, no ping"
        others = made.seen(0, 1).rpartition(".")[0]
        assert lines[3] == f"drive 0 {made.address(0)}, reaches others in {others}.0/24"
        again = live.run(["ondie", "tunnel", "up", "--name", NAME, *options], code=2)
        assert f"--name {NAME}: a cluster of this name is up; `ondie tunnel down" in again
        (live.folder / "data").write_bytes(data)
        words = [sys.executable, "-m", "http.server", str(PORT), "--bind", made.address(0)]
        live.start(made.inside(0, *words), lambda log: "Serving HTTP" in log.read_text())
        before = made.settled()
        for end in (-1, 1):
            place = f"http://{made.seen(end, 0)}:{PORT}/data"
            printed = live.run(made.inside(end, sys.executable, "-c", FETCH, place))
            assert printed == f"{hashlib.sha256(data).hexdigest()}\n"
        after = made.settled()
        up_0, down_1 = (
            after["drives"][drive][key] - before["drives"][drive][key]
            for drive, key in ((0, "bytes_up"), (1, "bytes_down"))
        )
        assert 2 * SIZE < up_0 < 2.2 * SIZE and SIZE < down_1 < 1.1 * SIZE
        assert after["drives"][0]["forwarded"] > SIZE / 9000
        assert not after["host"]["dropped"]
        with pytest.raises(ConnectionRefusedError):  # a port that is not carried
            socket.create_connection((made.seen(-1, 0), PORT + 1), 5)
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection((made.seen(-1, 1), PORT), 5) as sock,
        ):  # no program is there
            sock.recv(1)
    assert not namespaces.start_of(after["pid"])


def test_each_end_has_addresses_for_the_others():
    network = loopback.loopback_network(ipaddress.ip_network("10.77.0.0/24"), 2)
    assert str(network) == "127.77.0.0/24"
    assert loopback.loopback_network(network, 2) == network
    seen = [str(loopback.seen_from(network, end)) for end in (-1, 0, 1)]
    assert seen == ["127.77.1.0/24", "127.77.2.0/24", "127.77.3.0/24"]


# --- bad input


@pytest.mark.parametrize("subnet", ["10.255.253.0/24", "10.192.0.0/10", "0.0.0.0/6"])
def test_networks_that_do_not_fit(subnet):
    with pytest.raises(InputError, match=f"--subnet {subnet}: 4 networks of this size must fit"):
        loopback.loopback_network(ipaddress.ip_network(subnet), 2)
    loopback.loopback_network(ipaddress.ip_network("10.255.252.0/24"), 2)


def test_ports_are_needed_and_checked():
    cfg = load_preset("newport")
    way = Way(False, "relay", "not root")
    said = (
        "--port: missing, but here are only TCP relays on the loopback device \\(not root\\); give"
    )
    with pytest.raises(InputError, match=said):
        Request.of(cfg).on(way)
    assert Request.of(cfg, ports=(8000, 80, 80)).on(way).ports == (80, 8000)
    for port in (0, 65536):
        with pytest.raises(InputError, match=f"--port {port}: must be from 1 to 65535"):
            Request.of(cfg, ports=(port,))
    with pytest.raises(InputError, match="--queues 2: needs TUN devices, and here is only TCP"):
        Request.of(cfg, queues=2, ports=(80,)).on(way)


def test_the_commands_end_with_2():
    words = ["tunnel", "up", "--name", NAME, "--network-device", "relay"]
    result = CliRunner().invoke(commands, words)
    assert "--port: missing" in str(result.exception) and processes.read_state(NAME) is None
    with socket.create_server(("127.77.2.3", PORT)):
        done = subprocess.run([sys.executable, "-m", "ondie.emu.cli", *words, "--port", str(PORT)],
                              capture_output=True, text=True, timeout=60)  # fmt: skip
    line = f"ondie: TCP relay at 127.77.2.3, port {PORT}: Address already in use\n"
    assert (done.returncode, done.stderr) == (2, line)
    assert processes.read_state(NAME) is None


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(request, "why_no_networks", lambda own_user: "ip: not found")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    way = request.way_of("auto")
    assert str(way) == "TCP relays on the loopback device (not root, ip: not found)"
    assert request.way_of("veth").device == "veth"  # asked for


def test_whether_there_may_be_networks_is_tried(monkeypatch):
    monkeypatch.setattr(namespaces, "PATH", "/nowhere")
    assert loopback.why_no_networks(False) == "ip: not found"
