"""Does the control socket answer every request with one line, whatever it is?"""

import json
import os
import re
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.drive import Drive
from ondie.emu.nvme.status import Condition
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.control import MOST_CLIENTS, RUN, ControlServer, report
from ondie.emu.serve.control_words import COMMANDS, MOST_BYTES, flat, line_of, parse, send
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from ondie.emu.units import InputError
from tests.state import small


@pytest.fixture
def socket_path(tmp_path_factory):
    """The path of a socket, short enough for one."""
    return os.path.relpath(tmp_path_factory.mktemp("ctl") / "s")


@pytest.fixture
def server(socket_path):
    """A small drive with a control socket."""
    drive = Drive(small.config(ftl__initial="fresh", ftl__trim_maps="true"), True)
    with Service(drive) as service:
        served = ServedDrive(drive, service)
        listener = Listener(Address(path=socket_path), "--ctl", private=True)
        control = ControlServer(served, listener)
        yield control
        control.close()
    drive.close()


def answer(path, *parts: bytes) -> bytes:
    """All that the server answers to these bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(path)
        for part in parts:
            sock.sendall(part)
        sock.shutdown(socket.SHUT_WR)
        found = b""
        while data := sock.recv(1 << 16):
            found += data
    return found


def drive_of(server):
    return server._controls._served.drive


def test_a_connection_has_many_requests(server, socket_path):
    lines = answer(socket_path, line_of({"command": "counters"}) * 3).splitlines()
    assert len(lines) == 3
    result = json.loads(lines[0])["result"]
    assert result == send(socket_path, "counters", {})
    assert (result["condition"], result["why"], result["mapped_units"]) == ("online", "", 0)
    assert dict(flat(result))["counters.media_errors"] == 0 == result["requests"]["reads"]
    assert set(COMMANDS) == set(RUN)


def test_power(server, socket_path):
    """A cut ends what is in flight; only one of two cuts, and of two starts, is right."""
    service = server._controls._served.service
    assert send(socket_path, "power-cut", {"after": 3}) == {"events": 0}
    assert drive_of(server).condition is Condition.OFFLINE
    with pytest.raises(InputError, match="idle: the drive has no power"):
        service.idle(0.001).result(10)
    with pytest.raises(InputError, match="after a power cut"):
        send(socket_path, "power-cut", {})
    assert send(socket_path, "counters", {})["condition"] == "offline"
    assert send(socket_path, "power-on", {}) == {"condition": "online", "why": ""}
    with pytest.raises(InputError, match="the power is already on"):
        send(socket_path, "power-on", {})
    assert send(socket_path, "power-cut", {"restart": True})["condition"] == "online"
    assert send(socket_path, "wear-out", {})["condition"] == "read-only"
    assert send(socket_path, "counters", {}) == service.call(
        lambda: report(server._controls._served)
    ).result(10)


@pytest.mark.parametrize(
    ("request_line", "error"),
    [
        (b"\n", "must be one JSON object"),
        (b"[1]\n", "must be one JSON object"),
        (b"\xff\xfe{}\n", "must be one JSON object"),
        (b"[" * 4000 + b"\n", "nested too deeply|one JSON object"),
        (b"{}\n", "command null: must be one of counters, power-cut, power-on, inject-"),
        (b'{"command": ["counters"]}\n', "must be one of counters"),
        (
            b'{"command": "counters", "size": 1}\n',
            'argument "size": unknown; the arguments are: none',
        ),
        (b'{"command": "power-cut", "after": true}\n', "after = true: must be a whole number"),
        (b'{"command": "power-cut", "after": -1}\n', "after = -1: must be"),
        (b'{"command": "power-cut", "after": 1e3}\n', "after = 1000.0: must be a whole number"),
        (b'{"command": "power-cut", "restart": 1}\n', "restart = 1: must be true or false"),
        (b'{"command": "inject-media-error"}\n', "offset and size must be given"),
        (
            b'{"command": "inject-media-error", "offset": 0, "size": 512}\n',
            "no data; write data first",
        ),
        (b"x" * MOST_BYTES + b"\n", "at most 4096 bytes"),
        (b'{"command": "counters"}', "end with"),
    ],
)
def test_what_is_no_request(server, socket_path, request_line, error):
    (line,) = answer(socket_path, request_line).splitlines()
    reply = json.loads(line)
    assert list(reply) == ["error"] and "\n" not in reply["error"]
    assert re.search(error, reply["error"]), reply
    assert drive_of(server).condition is Condition.ONLINE


@given(st.binary(max_size=200) | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.dictionaries(
        st.sampled_from(["command", "after", "restart", "offset", "size", "x"]), inner
    ) | st.lists(inner, max_size=3), max_leaves=6,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_line_is_parsed_or_refused(line):
    try:
        command, arguments = parse(line)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        known = COMMANDS[command]
        assert set(known.required) <= set(arguments) <= set(known.types)
        assert all(type(value) is known.types[name] for name, value in arguments.items())


def test_too_many_clients(server, socket_path):
    """One more than may be is told so; the others go on."""
    socks = []
    for _ in range(MOST_CLIENTS):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(20)
        sock.connect(socket_path)
        socks.append(sock)
    for sock in socks:
        sock.sendall(line_of({"command": "counters"}))
        assert json.loads(sock.makefile("rb").readline())["result"]["condition"] == "online"
    assert answer(socket_path) == line_of({"error": "all 16 connections are in use"})
    for sock in socks:
        sock.close()


def test_the_end_disconnects_clients(server, socket_path):
    """A client that sends nothing does not hold the server up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(socket_path)
        sock.sendall(line_of({"command": "counters"}))
        assert sock.recv(1 << 16)
        server.close()
        while sock.recv(1 << 16):
            pass
    assert not os.path.exists(socket_path)
    assert not any(each.name == "ondie control" for each in threading.enumerate())
    with pytest.raises(InputError, match="give the SOCKET of a running `ondie serve --ctl SOCKET`"):
        send(socket_path, "counters", {})
    server._thread.join()


@pytest.mark.parametrize(
    ("greeting", "said"), [(b"NBDMAGICIHAVEOPT\0\3", "is not a control socket"), (b"", "no reply")]
)
def test_the_socket_of_another_protocol(socket_path, greeting, said):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(socket_path)
        listener.listen()

        def greet():
            with listener.accept()[0] as sock:
                sock.sendall(greeting)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(InputError, match=said):
            send(socket_path, "counters", {})
        thread.join()


def test_a_file_that_is_no_socket(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(InputError, match="Connection refused"):
        send(str(path), "counters", {})
    with pytest.raises(InputError, match="the file exists and is not a socket"):
        Listener(Address(path=str(path)), "--ctl", private=True)
    assert path.read_text() == "x"
