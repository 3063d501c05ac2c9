"""`ondie serve`: what it refuses in one line, what it prints, and what its signals leave behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from ondie.emu.cli.console import COMPILING
from ondie.emu.cli.ending import EndOfServing, Terminated, interruption
from ondie.emu.config.config import configuration
from ondie.emu.drive import Drive
from ondie.emu.nand.store_folder import StoreFolder
from ondie.emu.serve.nbd_load import READ
from ondie.emu.serve.vfio_load import VfioLoad
from tests.serve import nbd_client as nbd
from tests.serve.nbd_client import client
from tests.serve.served import drive, path_in
from tests.smoke.commands import files, here, refused

SMALL = ("flash.channels=1", "flash.dies_per_channel=1", "flash.blocks_per_plane=16",
         "cache.capacity=1 MiB")  # fmt: skip
SETTINGS = [word for each in SMALL for word in ("--set", each)]


@contextlib.contextmanager
def process(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, the address that it prints) of `ondie serve` with a small drive."""
    started = subprocess.Popen(
        [sys.executable, "-m", "ondie.emu.cli", "serve", *map(str, arguments), *SETTINGS],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        assert line.startswith("nbd "), started.communicate(timeout=nbd.SECONDS)
        yield started, line.removeprefix("nbd ").rstrip()
    finally:
        started.kill()
        started.wait()


def without_progress(err: str) -> str:
    """Standard error without the line that is printed where nothing is compiled yet."""
    return err.replace(COMPILING + "\n", "")


def test_signals_end_it_and_the_store_is_clean(tmp_path):
    """Written without a flush, stopped by SIGTERM, and read again; --stats counts requests. A
    read-only export, which SIGINT stops, refuses writes and leaves the store as it is."""
    store, path = tmp_path / "store", path_in(tmp_path)
    with process("--nbd", f"unix:{path}", "--store", store, "--stats") as (server, address):
        assert address == f"unix:{path}"
        with client(path) as one:
            assert one.read(0, 4096) == bytes(4096)
            one.write(0, b"s" * 4096)
            server.send_signal(signal.SIGTERM)
            out, err = server.communicate(timeout=nbd.SECONDS)
            assert (server.returncode, without_progress(err)) == (0, "")
            assert "requests.reads 1\nrequests.writes 1\n" in out and "requests.errors 0\n" in out
            assert one.closed()
    assert not os.path.exists(path)
    before = {
        name: (store / name).read_bytes() for name in files(store) if (store / name).is_file()
    }
    with process("--nbd", ":0", "--store", store, "--read-only") as (server, address):
        host, port = address.split(":")
        assert host == "127.0.0.1"
        with client((host, int(port))) as one:
            assert one.flags & 2 and one.read(0, 4096) == b"s" * 4096
            assert one.ask(nbd.WRITE, 0, data=bytes(4096)).error == nbd.EPERM
            assert one.ask(nbd.TRIM, 0, 4096).error == nbd.EPERM
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=nbd.SECONDS)
        assert (server.returncode, out, without_progress(err)) == (0, "", "")
    assert before == {name: (store / name).read_bytes() for name in before}


def test_the_store_is_locked(capsys, tmp_path):
    """While another server has it; the socket of the refused one does not stay."""
    store = tmp_path / "store"
    with process("--nbd", ":0", "--store", store) as (server, _):
        path = path_in(tmp_path)
        words = ("serve", "--nbd", f"unix:{path}", "--store", store, *SETTINGS)
        refused(here(capsys, *words), f"{store}: is in use by another process (pid {server.pid})")
        assert not os.path.exists(path)
        server.send_signal(signal.SIGTERM)
        assert server.wait(nbd.SECONDS) == 0
    with Drive(configuration("gen4-tlc", SETTINGS[1::2]), True, store=store):
        refused(here(capsys, *words), "is in use by another drive or store check in this process")


def test_ctl_names_the_nearest_command_and_the_way_back(capsys, tmp_path):
    path = str(tmp_path / "ctl")
    refused(here(capsys, "ctl", path, "conters"), "COMMAND conters", "nearest: counters")
    with drive(tmp_path, options={"ctl": path}):
        cut = here(capsys, "ctl", path, "power-cut")
        hint = f"The power is off; `ondie ctl {path} power-on` switches it on.\n"
        assert (cut.code, cut.out, cut.err) == (0, "events 0\n", hint)
        on = here(capsys, "ctl", path, "power-on")
        assert (on.code, on.err) == (0, "") and on.out.startswith("condition online\n")
        both = here(capsys, "ctl", path, "power-cut", "--restart")
        assert (both.code, both.err) == (0, "") and "condition online\n" in both.out


def test_a_port_in_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused(here(capsys, "serve", "--nbd", f":{port}"), f"--nbd 127.0.0.1:{port}", "in use")


def test_sockets_that_are_there(capsys, tmp_path):
    """A live one is left alone, a stale one is taken over, and a file or folder is not touched."""
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        refused(here(capsys, "serve", "--nbd", f"unix:{path}"), path, "another program listens")
        assert os.path.exists(path)
    with process("--nbd", f"unix:{path}", "--null") as (server, address):
        assert address == f"unix:{path}"
        with client(path) as one:
            assert one.read(0, 4096) == bytes(4096)
        refused(here(capsys, "serve", "--nbd", f"unix:{path}", "--null"), "another program listens")
        server.send_signal(signal.SIGTERM)
        assert server.wait(nbd.SECONDS) == 0
    assert not os.path.exists(path)
    (tmp_path / "file").write_text("mine")
    found = here(capsys, "serve", "--nbd", f"unix:{tmp_path}/file")
    refused(found, "file", "is not a socket")
    refused(here(capsys, "serve", "--nbd", f"unix:{tmp_path}"), "is not a socket")
    assert files(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_memory_is_served_over_all_protocols(tmp_path):
    path, pcie = path_in(tmp_path), str(tmp_path / "pcie")
    with process("--nbd", f"unix:{path}", "--vfio-user", pcie, "--nvme-tcp", "127.0.0.1:0",
                 "--block", "4096", "--null") as (server, _):  # fmt: skip
        with client(path) as one:
            one.write(4096, b"x" * 4096)
        with contextlib.closing(VfioLoad(pcie)) as load:
            assert load.waits(4096, 3).all() and load.block == 4096
            load._run(READ, 4096, 1, np.array([1]), 0.0)
            place = load._data  # where the data of reads go
            assert load._memory[place : place + 4096].tobytes() == b"x" * 4096
        server.send_signal(signal.SIGTERM)
        assert server.wait(nbd.SECONDS) == 0


@pytest.fixture
def hang_up_ends():
    """SIGHUP ends a process, also where the shell of the tests ignores it (nohup)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up_ends")
def test_a_socket_that_another_server_took_over_stays(tmp_path):
    """The end of a server removes its own file only. SIGHUP ends it in order, too."""
    path = path_in(tmp_path)
    with process("--nbd", f"unix:{path}", "--null") as (server, _):
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(path)
            server.send_signal(signal.SIGHUP)
            assert server.wait(nbd.SECONDS) == 0
            assert os.path.exists(path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--nbd", "unix:" + "x" * 108], ["at most 107 bytes", "has 108"]),
        (["--nbd", "unix:" + "ü" * 54], ["at most 107 bytes", "has 108"]),
        (["--nbd", "unix:"], ["--nbd unix:", "must be unix:PATH or HOST:PORT"]),
        (["--nbd", "somewhere"], ["--nbd somewhere", "must be unix:PATH or HOST:PORT"]),
        (["--nbd", "localhost:65536"], ["localhost:65536", "from 0 to 65535"]),
        (["--nbd", "localhost:-1"], ["localhost:-1", "from 0 to 65535"]),
        (["--nbd", "unix:no/such/folder/a"], ["no/such/folder/a", "No such file"]),
        (["--nbd", "203.0.113.1:0"], ["--nbd 203.0.113.1:0", "assign"]),
        ([], ["--nbd"]),
        (["--nbd", ":0", "--block", "1000"], ["--block 1000: must be", "from 512 to 4096 (the"]),
        (["--nbd", ":0", "--block", "8192"], ["--block 8192: must be", "from 512 to 4096 (the"]),
        (["--nbd", ":0", "--clock", "lunar"], ["--clock", "lunar"]),
        (["--nbd", ":0", "--device", "newprot"], ["newprot", "newport"]),
        (["--nbd", ":0", "--states", "1e5"], ["--states", "1e5", "digits, such as 100000"]),
        (["--nbd", ":0", "--read-only"], ["--read-only: requires a store; set store to a folder"]),
        (["--nbd", ":0", "--durability", "process"],
         ["--durability process: requires a store; set store to a folder"]),
        (["--nbd", ":0", "--null", "--seed", "5"], ["--seed cannot be combined with --null"]),
        (["--nbd", ":0", "--null", "--ctl", "c"], ["--ctl cannot be combined with --null"]),
        (["--nbd", ":0", "--null", "--nvme-host", "nqn.a"], ["--nvme-host requires --nvme-tcp"]),
        (["--nbd", ":0", "--null", "--store", "a"], ["--store cannot be combined with --null"]),
        (["--nbd", ":0", "--no-doorbell-buffers"], ["--no-doorbell-buffers requires --vfio-user"]),
        (["--nbd", ":0", "--null", "--no-doorbell-buffers"],
         ["--no-doorbell-buffers requires --vfio-user"]),
        (["--nbd", ":0", "--null", "--clock", "real"], ["--clock cannot be combined with --null"]),
        (["--nbd", ":0", "--null", "--read-only"], ["--read-only cannot be combined with --null"]),
        (["--nbd", ":0", "--null", "--set", "flash.page=128 KiB",
          "--set", "ftl.mapping_unit=128 KiB"], ["at most 65536", "--block"]),
    ],
)  # fmt: skip
def test_what_is_refused(capsys, tmp_path, monkeypatch, given, words):
    monkeypatch.chdir(tmp_path)
    refused(here(capsys, "serve", *given), *words)
    assert files(tmp_path) == []


@pytest.mark.parametrize(("made", "given", "said"), [
    (512, 4096, "logical blocks are smaller than a mapping unit: open it with their size"),
    (4096, 512, "logical blocks are whole mapping units: open it without block_bytes (--block)"),
])  # fmt: skip
def test_a_store_of_other_blocks_is_named(capsys, tmp_path, made, given, said):
    store = tmp_path / "store"
    with Drive(configuration("gen4-tlc", SETTINGS[1::2]), True, block_bytes=made, store=store):
        pass
    words = ("serve", "--nbd", ":0", "--store", store, "--block", str(given), *SETTINGS)
    refused(here(capsys, *words), "--block", said)


def test_handlers_of_signals_are_restored(capsys):
    before = signal.getsignal(signal.SIGTERM)
    refused(here(capsys, "serve", "--nbd", ":0", "--block", "1000"))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_ends_the_start(tmp_path):
    """The engine is compiled, which is announced, when the signal comes; the new store is empty and
    whole, and the sockets are removed."""
    path, store = path_in(tmp_path), tmp_path / "store"
    words = ("serve", "--nbd", f"unix:{path}", "--ctl", f"{path}-ctl", "--store", store, *SETTINGS)
    server = subprocess.Popen(
        [sys.executable, "-m", "ondie.emu.cli", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cold")},
    )  # fmt: skip
    try:
        assert server.stderr is not None
        assert server.stderr.readline() == COMPILING + "\n"
        assert os.path.exists(path)
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=nbd.SECONDS)
        ended = "\nondie: ended by SIGTERM; the drive was not served\n"
        assert (server.returncode, out, err) == (143, "", ended)
    finally:
        server.kill()
        server.wait()
    assert not os.path.exists(path) and not os.path.exists(f"{path}-ctl")
    folder = StoreFolder.look(store, lock=True)
    assert folder.superblock.clean and not any(name.endswith(".new") for name in folder.names())
    folder.close()


@pytest.mark.usefixtures("hang_up_ends")
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGINT, ("interrupted; no", 130)), (signal.SIGHUP, ("ended by SIGHUP; no", 129))],
)
def test_a_signal_of_the_start_and_one_while_it_serves(number, said):
    """The first of the start raises; one that was dropped raises at the end of the start."""
    before = signal.getsignal(number)
    with EndOfServing("no") as end:
        with pytest.raises(Terminated) as raised:
            signal.raise_signal(number)
        signal.raise_signal(number)  # while the start cleans up
        assert interruption(raised.value) == said
        with pytest.raises(Terminated):
            end.ready()
    with EndOfServing("no") as end:
        end.ready()
        assert not end.came
        signal.raise_signal(number)
        assert end.came
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with EndOfServing("no") as end:
            signal.raise_signal(signal.SIGHUP)
            assert not end.came
    finally:
        signal.signal(signal.SIGHUP, before)
