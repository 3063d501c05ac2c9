"""Does a cluster without networks carry the connections of programs through its tunnels?"""

import contextlib
import hashlib
import ipaddress
import os
import signal
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
from tests.live.processes import Live, alone, needs_tunnels, wait_for
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
        ports = f"the TCP relays carry only connections to these ports: {PORT} (no UDP, no ping)"
        assert lines[1] == ports
        others = made.seen(0, 1).rpartition(".")[0]
        assert lines[3] == f"drive 0 {made.address(0)}, reaches others in {others}.0/24"
        again = live.run(["ondie", "tunnel", "up", "--name", NAME, *options], code=2)
        said = f"--name {NAME}: a cluster with this name is up; end it with `ondie tunnel down"
        assert said in again
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


def ended_relay(found: dict) -> None:
    """Kill the host's relay of a cluster with this status; return when it has gone."""
    os.kill(found["relay_process"], signal.SIGKILL)
    wait_for("the end of the relay", lambda: not namespaces.start_of(found["relay_process"]))


def connect(place: str) -> socket.socket:
    return socket.create_connection((place, PORT), 30)


@contextlib.contextmanager
def connection(place: str, listener: socket.socket):
    """A connection to another end; a byte has crossed it."""
    with connect(place) as near, listener.accept()[0] as far:
        far.settimeout(30)
        far.sendall(b"x")
        assert near.recv(1) == b"x"
        yield near, far


def test_programs_learn_of_an_end_of_the_relay_and_of_a_drive():
    options = ["--network-device", "relay", "--port", str(PORT), "--pace", "none"]
    with alone("tunnel"), Live() as live, up(live, *options) as made:
        with socket.create_server((made.address(0), PORT)) as listener:
            listener.settimeout(30)
            to_0, across = made.seen(-1, 0), made.seen(1, 0)
            found = processes.status(NAME)
            with connection(to_0, listener) as ends, connection(across, listener) as others:
                ended_relay(found)
                for _ in range(3):  # the next relay takes them when the tunnel is open
                    with connection(to_0, listener) as (near, far):
                        near.shutdown(socket.SHUT_WR)
                        assert far.recv(1) == b""
                for each in (*ends, *others):
                    each.settimeout(30)
                    with pytest.raises(ConnectionResetError):
                        each.recv(1)
            assert processes.status(NAME)["relay_starts"] == 2
            with connection(to_0, listener) as (near, _), connection(across, listener) as (far, _):
                os.kill(found["drives"][0]["process"], signal.SIGKILL)
                for each in (near, far):
                    with pytest.raises(ConnectionResetError):
                        each.recv(1)
            for place in (to_0, across):
                with pytest.raises(ConnectionResetError), connect(place) as near:
                    near.recv(1)
        words = ["ondie", "tunnel", "up", "--name", f"{NAME}x", "--subnet", found["host"]["others"]]
        said = live.run([*words, *options], code=2)
        first, last = ipaddress.ip_network(found["subnet"])[0], found["drives"][1]["others"]
        used = f"another cluster uses {first} to {ipaddress.ip_network(last)[-1]}"
        used += ", and this cluster needs"
        assert f"--subnet {found['host']['others']}: address in use: {used}" in said


def test_many_drives_need_no_descriptors_of_the_others():
    """Each has 4 x 12 listeners; the limit is above that, and below those of three."""
    ports = " ".join(f"--port {PORT + number}" for number in range(12))
    words = f"ondie tunnel up --name {NAME} --drives 4 --network-device relay {ports}"
    with alone("tunnel"), Live() as live:
        try:
            assert f"to these ports: {PORT}, " in live.run(f"ulimit -n 140; {words}")
        finally:
            live.run(["ondie", "tunnel", "down", "--name", NAME])


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
        "--port: missing, but this machine supports only TCP relays on the loopback device "
        "\\(not root\\); give"
    )
    with pytest.raises(InputError, match=said):
        Request.of(cfg).on(way)
    assert Request.of(cfg, ports=(8000, 80, 80)).on(way).ports == (80, 8000)
    for port in (0, 65536):
        with pytest.raises(InputError, match=f"--port {port}: must be from 1 to 65535"):
            Request.of(cfg, ports=(port,))
    said = "--queues 2: needs TUN devices; this machine supports only TCP"
    with pytest.raises(InputError, match=said):
        Request.of(cfg, queues=2, ports=(80,)).on(way)


def test_the_commands_end_with_2():
    words = ["tunnel", "up", "--name", NAME, "--network-device", "relay"]
    result = CliRunner().invoke(commands, words)
    assert "--port: missing" in str(result.exception) and processes.read_state(NAME) is None
    with socket.create_server(("127.77.2.3", PORT)):
        done = subprocess.run([sys.executable, "-m", "ondie.emu.cli", *words, "--port", str(PORT)],
                              capture_output=True, text=True, timeout=60)  # fmt: skip
    line = f"ondie: relay: cannot listen at 127.77.2.3:{PORT}: Address already in use\n"
    assert (done.returncode, done.stderr) == (2, line)
    assert processes.read_state(NAME) is None


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(request, "why_no_networks", lambda own_user: "ip: not found")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    way = request.way_of("auto")
    assert str(way) == "TCP relays on the loopback device (not root, ip: not found)"
    assert request.way_of("veth").device == "veth"  # asked for


def in_child(before, own_user: bool) -> str:
    """What a process says of networks after ``before``."""
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before()
            os.write(telling, loopback.why_no_networks(own_user).encode())
        finally:
            os._exit(0)
    os.close(telling)
    with open(told) as file:
        found = file.read()
    os.waitpid(pid, 0)
    return found


def test_whether_there_may_be_networks_is_tried(monkeypatch, tmp_path):
    needs_tunnels()
    assert loopback.why_no_networks(False) == loopback.why_no_networks(True) == ""
    said = in_child(lambda: os.setuid(65534), False)
    assert said == "cannot create a network namespace: Operation not permitted"
    with monkeypatch.context() as patch:
        patch.setattr(loopback.shutil, "which", lambda name, path: name)
        said = in_child(lambda: os.chroot(tmp_path), True)  # Linux lets no such process have any
        assert said == "cannot create a user namespace: Operation not permitted"
        patch.setattr(namespaces, "tool", lambda name: "/bin/false")
        assert loopback.why_no_networks(True) == "mount --make-rprivate /:"
    for trial, said in (
        (
            lambda own_user: os.kill(os.getpid(), signal.SIGKILL),
            "the test of network namespaces was aborted",
        ),
        (lambda own_user: 1 // 0, "the test of network namespaces has failed: ZeroDivisionError"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(loopback, "_try_networks", trial)
            assert loopback.why_no_networks(True).startswith(said)
    monkeypatch.setattr(namespaces, "PATH", "/nowhere")
    assert loopback.why_no_networks(False) == "ip: not found"


def test_clusters_with_a_network_in_common_are_refused():
    def network(third: int, prefix: int = 24) -> ipaddress.IPv4Network:
        return ipaddress.ip_network(f"127.{100 + os.getpid() % 100}.{third}.0/{prefix}")

    caught = []  # with their frames: a refusal holds no address
    with loopback.reserve(network(8), 1):
        for third, prefix, drives in ((8, 24, 1), (10, 24, 1), (6, 24, 1), (8, 25, 1), (0, 21, 1)):
            other = network(third, prefix)
            with pytest.raises(
                InputError, match=f"--subnet {other}: address in use: another"
            ) as error:
                loopback.reserve(other, drives)
            caught.append(error)
        for third in (5, 11):
            loopback.reserve(network(third), 1).close()
    loopback.reserve(network(10), 1).close()
