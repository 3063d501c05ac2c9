"""What clients get when the server has a defect or no thread, and when NVMe takes the bytes of NBD:
an error, and nobody else is disturbed."""

import struct
import threading

import pytest

from ondie.emu.nvme.wire import Sqe
from ondie.emu.serve import control, defects, handshakes
from ondie.emu.serve.control_words import send
from ondie.emu.serve.handshakes import MOST_SESSIONS, SPARE_FILES
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.served import DriveClient
from ondie.emu.units import InputError
from tests.protocol.nvme_tcp_client import Queue
from tests.serve import nbd_client as nbd
from tests.serve.served import drive
from tests.state.test_nvme_drive import FORMAT, Side

EIO, ESHUTDOWN = 5, 108
CONTROLLER_BUSY = 0x181
MANAGEMENT, ATTACHMENT = 0x0D, 0x15


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch):
    monkeypatch.setattr(defects, "_said", set())


def test_a_defect_below_nbd_is_shown_once_and_answered(tmp_path, monkeypatch, capfd):
    with drive(tmp_path) as (_, path), nbd.client(path) as client:

        def break_down(*_: object) -> None:
            raise ZeroDivisionError("nobody expects this")

        client.write(0, b"a" * 512)
        with monkeypatch.context() as patch:
            patch.setattr(DriveClient, "run", break_down)
            assert [client.ask(nbd.READ, 0, 512).error for _ in range(2)] == [EIO, EIO]
        assert client.read(0, 512) == b"a" * 512
    said = capfd.readouterr().err
    assert said.count("ZeroDivisionError: nobody") == 1 and "Traceback" in said and "NBD" in said


def test_a_defect_of_a_control_command_is_answered(tmp_path, monkeypatch, capfd):
    path = str(tmp_path / "ctl")
    with drive(tmp_path, options={"ctl": path}):

        def break_down(*_: object) -> None:
            raise KeyError("lost")

        monkeypatch.setitem(control.RUN, "counters", break_down)
        for _ in range(2):
            with pytest.raises(InputError, match="a defect of the server: KeyError: 'lost'"):
                send(path, "counters", {})
        assert send(path, "power-cut", {"restart": True})["condition"] == "online"
    assert capfd.readouterr().err.count("Traceback") == 1


class NoThreads:
    """While it is entered, threads with ``name`` in their names cannot start."""

    def __init__(self, monkeypatch, name: str) -> None:
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if name in thread.name:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_control_client_without_a_thread_is_told(tmp_path, monkeypatch):
    path = str(tmp_path / "ctl")
    said = "cannot start a thread for another client: can't start"
    with drive(tmp_path, options={"ctl": path}):
        with monkeypatch.context() as patch:
            NoThreads(patch, "Thread-")
            with pytest.raises(InputError, match=said):
                send(path, "counters", {})
        assert send(path, "counters", {})["condition"] == "online"


def test_a_host_without_a_thread_is_told(tmp_path, monkeypatch):
    with drive(tmp_path, options={"nvme_tcp": "127.0.0.1:0"}) as (server, _):
        address = ("127.0.0.1", server.nvme_tcp.listener.address.port)
        name = server.nvme.capabilities.subsystem_name
        with monkeypatch.context() as patch:
            NoThreads(patch, "nvme-tcp client")
            queue = Queue(address)
            assert queue.connect(name)[0] == CONTROLLER_BUSY  # it may try again: no DNR
            assert queue.socket.recv(1) == b""
            queue.close()
        queue = Queue(address)
        assert queue.connect(name)[0] == 0
        queue.close()


def test_listeners_share_the_room_for_handshakes(tmp_path, monkeypatch):
    files = 4 * MOST_SESSIONS * 2 + SPARE_FILES + 200
    monkeypatch.setattr(handshakes, "raise_file_limit", lambda: files)
    with drive(tmp_path, options={"nvme_tcp": "127.0.0.1:0"}) as (server, _):
        most = [each.handshakes._most_guests for each in (server.nbd, server.nvme_tcp)]
        assert most == [100, 100]
    with drive(tmp_path) as (server, _):
        assert server.nbd.handshakes._most_guests == 200 + 4 * MOST_SESSIONS
    monkeypatch.setattr(handshakes, "raise_file_limit", lambda: 1 << 20)
    with drive(tmp_path, options={"nvme_tcp": "127.0.0.1:0"}) as (server, _):
        assert server.nvme_tcp.handshakes._most_guests == handshakes.MOST_GUESTS // 2


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_nbd_without_its_namespace(tmp_path, clock):
    """Each kind of request ends with ESHUTDOWN until namespace 1 has all bytes again."""
    with drive(tmp_path, "write back", {"clock": clock}) as (server, path):
        nvme = NvmeDrive(server.served)
        side = Side(nvme)
        with nbd.client(path) as client:
            client.write(0, b"a" * 512)
            assert side.admin(FORMAT, nsid=1)[0] == 0
            assert client.read(0, 512) == bytes(512)  # it has no data any more, and goes on
            client.write(512, b"b" * 512)
            blocks = nvme.shared.namespaces.by_nsid[1].blocks
            assert side.admin(MANAGEMENT, nsid=1, cdw10=1)[0] == 0
            asked = [(nbd.READ, 0, 512, b""), (nbd.WRITE, 0, 0, b"c" * 512), (nbd.FLUSH, 0, 0, b""),
                     (nbd.TRIM, 0, 4096, b""), (nbd.WRITE_ZEROES, 0, 4096, b""),
                     (nbd.BLOCK_STATUS, 0, 4096, b"")]  # fmt: skip
            for kind, offset, length, data in asked:
                assert client.ask(kind, offset, length, data=data).error == ESHUTDOWN, kind
            create(side, blocks // 2)
            assert client.ask(nbd.READ, 0, 512).error == ESHUTDOWN  # it is not the whole drive
            with nbd.client(path) as other:
                assert other.ask(nbd.READ, 0, 512).error == ESHUTDOWN
            assert side.admin(MANAGEMENT, nsid=1, cdw10=1)[0] == 0
            create(side, blocks)
            assert client.read(0, 1024) == bytes(1024)  # nothing of the old one
            client.write(0, b"d" * 512)
            assert client.read(0, 512) == b"d" * 512


def create(side: Side, blocks: int) -> None:
    """Create namespace 1 with ``blocks`` and attach it."""
    data = struct.pack("<QQ", blocks, blocks).ljust(4096, b"\0")
    reply = side.drive.execute(side.controller, Sqe(MANAGEMENT, cid=9).pack(), data)
    assert (reply.entries[0].status, reply.entries[0].dw0) == (0, 1)
    controllers = struct.pack("<HH", 1, side.controller.capabilities.controller_id)
    assert side.admin(ATTACHMENT, controllers.ljust(4096, b"\0"), nsid=1)[0] == 0
