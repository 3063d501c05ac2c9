"""`ondie serve --nvme-tcp`: one drive behind NBD and NVMe/TCP, stop and start, and bad input."""

import json
import signal
import socket
import subprocess
import sys

import pytest

from ondie.emu.nvme.wire import Sqe
from ondie.emu.serve import controller_state
from ondie.emu.serve.server import ServeOptions, Server
from ondie.emu.units import InputError
from tests.protocol.nvme_tcp_client import NAMED, Queue
from tests.smoke.commands import here, refused
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

BLOCK = 512
DNR = 0x4000


def server(**options) -> Server:
    return Server(
        config(**(SMALL | MODES["write back"])), ServeOptions(block_bytes=BLOCK, **options)
    )


def host(found: Server) -> tuple[Queue, Queue]:
    """Admin queue and I/O queue of a new association."""
    address = ("127.0.0.1", found.nvme_tcp.listener.address.port)
    name = found.nvme_tcp.subsystem.name
    admin, io = Queue(address), Queue(address)
    status, cntlid = admin.connect(name)
    assert status == 0
    admin.enable()
    assert io.connect(name, 1, cntlid) == (0, cntlid)
    return admin, io


def test_a_host_reconnects_to_a_server_that_starts_again(tmp_path):
    data = bytes(range(256)) * 64
    port = 0
    for turn in range(3):
        found = server(
            nvme_tcp=f"127.0.0.1:{port}", nbd=f"unix:{tmp_path}/n", store=str(tmp_path / "s")
        )
        port = found.nvme_tcp.listener.address.port
        admin, io = host(found)
        if turn == 0:
            assert io.write(8, data, BLOCK) == 0
            assert io.run(0, nsid=1)[0] == 0
        assert io.read(8, 32, BLOCK) == data
        found.close()
        for queue in (admin, io):
            with pytest.raises(OSError):
                queue.pdu()
            queue.close()


def test_a_part_that_cannot_close_leaves_the_others_closed(tmp_path, monkeypatch):
    found = server(nvme_tcp="127.0.0.1:0", store=str(tmp_path / "s"))

    def refuse(*given: object) -> None:
        raise InputError("no room")

    monkeypatch.setattr(controller_state, "save", refuse)
    with pytest.raises(InputError, match="no room"):
        found.close()
    monkeypatch.undo()
    assert not found.service._thread.is_alive()
    server(nvme_tcp="127.0.0.1:0", store=str(tmp_path / "s")).close()  # the store is free


def test_one_of_two_hosts_shuts_down(tmp_path):
    """A loss of power is an unsafe shutdown as long as one host is at work."""
    found = server(nvme_tcp="127.0.0.1:0", store=str(tmp_path / "s"))
    state = tmp_path / "s" / "nvme.json"
    (first, _), (second, _) = hosts = host(found), host(found)
    for admin, left in ((first, True), (second, False)):
        assert admin.set_property(0x14, 4 << 20 | 6 << 16 | 1 | 1 << 14) == 0
        assert json.loads(state.read_bytes())["running"] is left
    again = host(found)
    assert json.loads(state.read_bytes())["running"] is True
    for queue in (*hosts[0], *hosts[1], *again):
        queue.close()
    found.close()


def test_hosts_that_may_connect(tmp_path):
    found = server(nvme_tcp=":0", nvme_hosts=(NAMED, "nqn.2014-08.org.other"))
    try:
        address = ("127.0.0.1", found.nvme_tcp.listener.address.port)
        name = found.nvme_tcp.subsystem.name
        for given, status in ((NAMED, 0), ("nqn.2014-08.org.stranger", 0x184 | DNR)):
            queue = Queue(address)
            assert queue.connect(name, host=given)[0] == status
            queue.close()
    finally:
        found.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give at least one of"),
        ({"nvme_tcp": "here"}, "--nvme-tcp here: must be"),
        ({"nvme_tcp": "unix:/tmp/x"}, "--nvme-tcp unix:/tmp/x: must be HOST:PORT"),
        ({"nvme_tcp": "127.0.0.1:65536"}, "from 0 to 65535"),
        ({"nbd": ":0", "nvme_hosts": (NAMED,)}, "--nvme-host requires --nvme-tcp"),
        ({"nvme_tcp": ":0", "nvme_hosts": ("me",)}, "--nvme-host me: must be"),
        ({"nvme_tcp": ":0", "nvme_hosts": ("nqn." + "x" * 220,)}, "at most 219 bytes"),
    ],
)
def test_bad_options(options, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")) as found:
        server(**options)
    assert "\n" not in str(found.value)


def test_a_port_in_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = here(capsys, "serve", "--nvme-tcp", f":{port}", "--nbd", ":0")
    refused(found, f"--nvme-tcp 127.0.0.1:{port}: cannot listen: Address already in use")
    refused(here(capsys, "serve"), "give at least one of")


def test_the_command_ends_with_a_host_connected(tmp_path):
    command = [sys.executable, "-m", "ondie.emu.cli", "serve", "--nvme-tcp", ":0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            kind, address = process.stdout.readline().split()
            assert kind == "nvme-tcp"
            name = process.stdout.readline().split()[1]
            admin = Queue(("127.0.0.1", int(address.rpartition(":")[2])))
            assert admin.connect(name)[0] == 0
            admin.enable()
            process.send_signal(signal.SIGTERM)
            with pytest.raises(OSError):
                admin.pdu()
            admin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_controllers_of_two_transports_have_identifiers_of_their_own(tmp_path):
    """The one of PCIe has 1. Both say that the subsystem has several controllers; without TCP it
    has one."""
    for address in ("127.0.0.1:0", None):
        found = server(vfio_user=str(tmp_path / "pcie"), nvme_tcp=address)
        connected: list[Queue] = []
        try:
            controllers = [found.nvme.controller(lambda entries: None)]  # as pcie_function.py
            if address is not None:
                connected += host(found)
                controllers.append(found.nvme_tcp.subsystem.associations[0].controller)
            told = []
            for each in controllers:
                whole, space = (
                    found.nvme.execute(each, Sqe(6, nsid=nsid, cdw10=cns).pack()).data
                    for cns, nsid in ((1, 0), (0, 1))
                )
                told.append((int.from_bytes(whole[78:80], "little"), whole[76], space[30]))
            assert told == ([(1, 2, 1), (2, 2, 1)] if address else [(1, 0, 0)])
        finally:
            for queue in connected:
                queue.close()
            found.close()
