"""`ondie serve --states`: states that outlive the server, power cuts by the control socket, and bad
input. Source: docs/computation.md; ondie.kernels.
"""

import json
import re
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest

from ondie.emu.nand.store_folder import StoreFolder
from ondie.emu.nvme.plan_queue import LAST_S
from ondie.emu.serve.control import Controls
from ondie.emu.serve.served_states import StatesOptions, describe_states
from ondie.emu.serve.server import ServeOptions, Server
from ondie.emu.units import InputError
from ondie.kernels import get
from tests.protocol.compute_host import (
    ADAM,
    ALLOCATE,
    EXECUTE,
    FREE,
    LEAVES,
    NSID,
    REPORT,
    ComputeHost,
    config,
)
from tests.protocol.nvme_tcp_client import TRANSPORT, Queue, sgl
from tests.smoke.commands import here, refused

COUNT = 30_000
BUSY = 0x021
CLOSE_S = 40
"""Time to flush a drive and close its store on a busy machine, s."""


class States:
    """What the kernel makes of weights, and a host of the server that holds them."""

    def __init__(self, weights):
        self.rng = np.random.default_rng(8)
        self.kernel = get("adam", form="canonical")
        self.w = weights.copy()
        self.m, self.v = np.zeros((2, len(weights)), np.float32)
        self.updates = 0
        self.coefficients = {"lr": 0.5}

    def connect(self, port, name):
        admin, io = Queue(("127.0.0.1", port)), Queue(("127.0.0.1", port))
        status, cntlid = admin.connect(name)
        assert status == 0
        admin.enable()
        assert io.connect(name, 1, cntlid) == (0, cntlid)
        self.host = ComputeHost(
            lambda opcode, data=b"", **words: io.run(opcode, data, NSID, **words),
            lambda opcode, size, **words: io.get(opcode, size, NSID, **words),
        )
        self.queues = admin, io

    def update(self):
        """Let drive and kernel do an update."""
        gradient = self.rng.normal(size=len(self.w)).astype(np.float32)
        self.updates += 1
        rsid = self.host.give(gradient)
        assert self.host.execute(0, rsid, self.updates) == (0, self.updates)
        hyper = ADAM | self.coefficients
        self.kernel(self.w, gradient, [self.m, self.v],
                    self.kernel.coefficients(hyper, self.updates))  # fmt: skip

    def look(self):
        """Compare all vectors on the drive with the kernel's."""
        size = self.host.report()["vsize"]
        data = self.host.states(3 * size)
        for at, wanted in enumerate((self.w, self.m, self.v)):
            found = np.frombuffer(data[at * size :][: wanted.nbytes], np.float32)
            assert (found.view("u4") == wanted.view("u4")).all(), at


@pytest.fixture
def weights(tmp_path):
    found = np.random.default_rng(7).normal(size=COUNT).astype(np.float32)
    np.save(tmp_path / "w.npy", found)
    return found


def served(tmp_path, first=False, **changes):
    options = {"count": COUNT, "optimizer": "adam", "hyper": ("lr=0.5",)} | changes
    if first:
        options["weights"] = str(tmp_path / "w.npy")
    return Server(
        config(),
        ServeOptions(nvme_tcp=":0", store=str(tmp_path / "s"), states=StatesOptions(**options)),
    )


def test_states_outlive_the_server(tmp_path, weights):
    """A clean stop, and a power cut by the control socket."""
    states = States(weights)
    for turn in range(2):
        server = served(tmp_path, turn == 0)
        states.connect(server.nvme_tcp.listener.address.port, server.nvme_tcp.subsystem.name)
        states.look()
        states.update()
        states.look()
        if turn:
            Controls(server.served).power_cut(0, restart=True)
            states.look()
            states.update()
            states.look()
        server.close()


def test_other_states_than_those_of_the_store(tmp_path, weights, capsys):
    served(tmp_path, True).close()
    for changes, said in (
        ({"count": COUNT + 1}, "holds states of 30000 parameters for adam"),
        ({"optimizer": "sgd"}, "holds states of 30000 parameters for adam"),
        ({"weights": str(tmp_path / "w.npy")}, "the store already contains weights"),
    ):
        with pytest.raises(InputError, match=said):
            served(tmp_path, **changes)
    with pytest.raises(InputError, match="serve it with --states 30000 --optimizer adam"):
        Server(config(), ServeOptions(nvme_tcp=":0", store=str(tmp_path / "s")))
    assert describe_states(str(tmp_path / "s")) == {
        "states": COUNT,
        "optimizer": "adam",
        "hyperparameters": ADAM | {"lr": 0.5, "weight_decay": 0, "maximize": False},
    }
    shown = here(capsys, "store", "info", tmp_path / "s").out
    for name, value in {"lr": "0.5", "eps": "1e-08", "weight_decay": "0"}.items():
        assert re.search(rf"hyperparameters: {name} +│ +{value} ", shown), shown
    (tmp_path / "s" / "states.json").write_text("[]")
    with pytest.raises(InputError, match=r"states\.json: cannot be read"):
        describe_states(str(tmp_path / "s"))
    with pytest.raises(InputError, match="states.json: cannot be read"):
        served(tmp_path)


def test_other_hyperparameters_than_those_of_the_store(tmp_path, weights, capsys):
    """Refused by name; those that are left out are the store's, and not the defaults."""
    served(tmp_path, True, hyper=("lr=0.5", "eps=0")).close()
    for given, said in (
        ("lr=0.25", "--hyper lr=0.25: .* holds states with lr=0.5; omit the option, or set"),
        ("eps=1e-8", "holds states with eps=0;"),
        ("weight_decay=0.1", "holds states with weight_decay=0;"),
    ):
        with pytest.raises(InputError, match=said):
            served(tmp_path, hyper=("beta1=0.9", given))
    states = States(weights)
    states.coefficients["eps"] = 0
    for hyper in ((), ("weight_decay=0", "lr=0.5")):
        server = served(tmp_path, hyper=hyper)
        states.connect(server.nvme_tcp.listener.address.port, server.nvme_tcp.subsystem.name)
        states.update()
        states.look()
        server.close()
    note = tmp_path / "s" / "states.json"
    note.write_text(json.dumps({"states": COUNT, "optimizer": "adam"}))  # before they were stored
    assert "hyperparameters" not in describe_states(str(tmp_path / "s"))
    capsys.readouterr()
    served(tmp_path, hyper=("lr=0.25",)).close()
    said = capsys.readouterr().err
    words = "states.json: contained no hyperparameters; these were added: lr=0.25, beta1=0.9, "
    assert words in said, said
    assert describe_states(str(tmp_path / "s"))["hyperparameters"]["lr"] == 0.25
    for wrong in ('{"lr": "much"}', '{"momentum": 1}', '{"lr": NaN}', "7", "[]"):
        note.write_text(f'{{"states": {COUNT}, "optimizer": "adam", "hyper": {wrong}}}')
        with pytest.raises(InputError, match=r"states\.json: cannot be read: "):
            describe_states(str(tmp_path / "s"))


def test_a_store_without_states(tmp_path, weights):
    server = Server(config(), ServeOptions(nvme_tcp=":0", store=str(tmp_path / "s")))
    server.service.call(lambda: server.drive.write(0, bytes(4096))).result()
    server.close()
    with pytest.raises(InputError, match="store of a drive without optimizer states"):
        served(tmp_path)


def test_a_server_that_is_killed(tmp_path, weights):
    """After kill -9, the states are as the last update has left them."""
    states = States(weights)
    arguments = [
        sys.executable, "-m", "ondie.emu.cli", "serve", "--nvme-tcp", ":0", "--device", "csd-pe",
        "--store", str(tmp_path / "s"), "--states", str(COUNT), "--hyper", "lr=0.5",
    ]  # fmt: skip
    for name, value in LEAVES.items():
        arguments += ["--set", f"{name}={value}"]
    for first in (True, False):
        more = ["--weights", str(tmp_path / "w.npy")] if first else []
        with subprocess.Popen(arguments + more, stdout=subprocess.PIPE, text=True) as process:
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            states.connect(port, process.stdout.readline().split()[1])
            states.look()
            states.update()
            states.look()
            process.send_signal(signal.SIGKILL)


def test_sigterm_ends_a_server_whose_program_runs_long(tmp_path, weights):
    """A program of 819 s with the wall clock gets no more time than docs/serve.md says; the server
    ends in order, and leaves a clean store."""
    states = States(weights)
    arguments = [
        sys.executable, "-m", "ondie.emu.cli", "serve", "--nvme-tcp", ":0", "--device", "csd-pe",
        "--clock", "real", "--store", str(tmp_path / "s"), "--states", str(COUNT),
        "--weights", str(tmp_path / "w.npy"),
    ]  # fmt: skip
    for name, value in LEAVES.items():
        arguments += ["--set", f"{name}={value}"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            states.connect(port, process.stdout.readline().split()[1])
            host, (_, io) = states.host, states.queues
            handle = host.ok(ALLOCATE, cdw10=1 << 20)
            rsid = host.set((handle, 0, 1 << 20))
            host.load(1, instructions=(10_000_000, 1))
            io.capsule(EXECUTE, NSID, struct.pack("<2I", 1 | rsid << 16, 0))
            io.capsule(REPORT, NSID, descriptor=sgl(TRANSPORT, 4096))
            assert io.answer()[0] == 0
            assert host.run(FREE, cdw10=handle)[0] & 0x7FF == BUSY  # the program runs
            process.send_signal(signal.SIGTERM)
            assert process.wait(LAST_S + CLOSE_S) == 0
            with pytest.raises(ConnectionError):
                io.pdu()
        finally:
            process.kill()
    folder = StoreFolder.look(tmp_path / "s", lock=True)
    assert folder.superblock.clean
    folder.close()


@pytest.mark.parametrize(
    "options, said",
    [
        ("--nvme-tcp :0 --states 0", "--states = 0: must be from 1"),
        ("--nvme-tcp :0 --states 9", "no processing elements on the dies"),
        ("--nvme-tcp :0 --states 9 --optimizer adma", "nearest: adam"),
        ("--nvme-tcp :0 --states 9 --hyper lr", "must be NAME=VALUE"),
        (
            "--nvme-tcp :0 --states 9 --hyper foo=1",
            'adam has no hyperparameter "foo"; it has lr, beta1',
        ),
        ("--nvme-tcp :0 --states 9 --hyper lr=1 --hyper lr=2", "lr is given twice"),
        ("--nvme-tcp :0 --states 99999999999 --device csd-pe", "--states 99999999999: "),
        ("--nvme-tcp :0 --states 9 --hyper lr=fast", "is not a number"),
        ("--nvme-tcp :0 --states 9 --hyper lr=1_0", '"1_0" is not a number'),
        ("--nvme-tcp :0 --states 9 --hyper lr=nan", '"nan" is not a number'),
        ("--nbd :0 --states 0", "--states = 0: must be from 1"),
        ("--nbd :0 --states 9 --optimizer adma", "nearest: adam"),
        ("--nbd :0 --states 9 --hyper lr=fast", "is not a number"),
        ("--nbd :0 --states 9 --weights none.npy", "none.npy: cannot be read"),
        ("--nvme-tcp :0 --states 9 --hyper maximize=2", "must be 0 or 1"),
        ("--nvme-tcp :0 --states 9 --device csd-pe --hyper lr=-1", "--hyper: adam: lr = -1"),
        ("--nvme-tcp :0 --optimizer adam", "--optimizer requires --states COUNT"),
        ("--nbd :0 --states 9", "--states requires --vfio-user or --nvme-tcp"),
        ("--nbd :0 --null --states 9", "--states cannot be combined with --null"),
    ],
)
def test_bad_options(capsys, options, said):
    refused(here(capsys, "serve", *options.split()), said)


def test_weights_that_do_not_fit(tmp_path, weights):
    for values in (weights[:-1], weights.astype(np.float64)):
        np.save(tmp_path / "w.npy", values)
        with pytest.raises(InputError, match=r"must be a .npy file of float32\[30000\]"):
            served(tmp_path, True)
    np.save(tmp_path / "w.npy", weights.astype(">f4"))
    with pytest.raises(InputError, match="in the wrong byte order"):
        served(tmp_path, True)
    weights[7] = np.inf
    np.save(tmp_path / "w.npy", weights)
    with pytest.raises(InputError, match="element 7 is inf; it must be finite"):
        served(tmp_path, True)
    saved = (tmp_path / "w.npy").read_bytes()
    for data, said in ((b"", "is not a .npy file"), (bytes(120000), "is not a .npy file"),
                       (b"PK\x03\x04", "is not a .npy file"), (b"1 2", "is not a .npy file"),
                       (saved[:300], "cannot be read as an array"),
                       (saved[:9], "cannot be read as an array")):  # fmt: skip
        (tmp_path / "w.npy").write_bytes(data)
        with pytest.raises(InputError, match=said + r".*must be a .npy file of float32\[30000\]"):
            served(tmp_path, True)
    with pytest.raises(InputError, match="none.npy: cannot be read: No such file or directory$"):
        served(tmp_path, weights="none.npy")
    assert not (tmp_path / "s").exists()  # a refusal leaves nothing
