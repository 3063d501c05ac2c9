"""Do the commands of docs/tunnel.md do what the page says, in its order?"""

import re
import sys

import pytest

from tests.docs.generate import ROOT
from tests.live.processes import PATH, Live, alone, needs, needs_tunnels, wait_for

PAGE = (ROOT / "docs" / "tunnel.md").read_text("utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    command for block in BLOCKS for command in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.M)
]
FILES = dict(re.findall(r"```(?:c|python)\n(?=(?:/\*|#) (sum\.\w+)\b)(.*?)```", PAGE, re.DOTALL))
"""The programs of the page."""
RELAY = re.findall(r"```sh\n(ondie tunnel up --network-device relay .*?)```", PAGE, re.DOTALL)
SUM = 0 + 1 + 2


@pytest.fixture
def live():
    """A folder with the programs of the page, and with `ondie` and `torchrun` on the path."""
    with Live() as found:
        for name, text in FILES.items():
            (found.folder / name).write_text(text, "utf-8")
        for name, module in (("ondie", "ondie.emu.cli"), ("torchrun", "torch.distributed.run")):
            program = found.folder / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            program.chmod(0o755)
        found.env |= {"PATH": f"{found.folder}:{PATH}", "TMPDIR": str(found.folder)}
        yield found


def test_the_page_has_its_commands():
    """In this order: those between up and down need a cluster."""
    assert set(FILES) == {"sum.c", "sum.py"}
    words = [command.split()[0] for command in COMMANDS]
    assert words == [*["ondie"] * 6, "iperf3", "mpicc", "mpirun", *["ondie"] * 4]
    assert COMMANDS[0].startswith("ondie tunnel up") and COMMANDS[-1] == "ondie tunnel down"


@pytest.mark.soak
def test_the_commands(live):
    needs_tunnels()
    needs("ping", "iperf3", "mpirun", "mpicc")
    pytest.importorskip("torch", reason="torch is not installed")
    live.env["OMP_NUM_THREADS"] = "1"
    up, server, client, status, ping, sink, source, mpicc, mpirun, *torchruns, down = COMMANDS

    def start(command: str, printed: str) -> "object":
        words = live.split(command.removesuffix(" &"))
        return live.start(words, lambda log: printed in log.read_text())

    with alone("tunnel"):
        printed = live.run(up)
        try:
            assert "drive 1 10.77.0.3" in printed and "root, TUN" in printed
            start(server, "Serving HTTP")
            assert live.run(client) == "200\n"
            counts = live.run(status)
            assert "forwarded to drives 0" not in counts
            assert " 3 received, 0% packet loss" in live.run(ping)
            live.env["PYTHONUNBUFFERED"] = "1"
            start(sink.replace(" --one-off", " --one-off --forceflush"), "Server listening")
            assert "receiver" in live.run(source)
            live.run(mpicc)
            printed = live.run(mpirun)
            assert all(f"rank {rank}: sum {SUM}\n" in printed for rank in range(3))
            *background, last = torchruns
            running = [start(command, "") for command in background]
            assert f"rank 2: sum {SUM}\n" in live.run(last, seconds=120)
            for rank, process in enumerate(running):
                wait_for("the end of a rank", lambda each=process: each.poll() is not None)
                assert f"rank {rank}: sum {SUM}\n" in live.log_of(process)
        finally:
            assert live.run(down) == "cluster: down\n"


@pytest.mark.soak
def test_the_commands_without_networks(live):
    (block,) = RELAY
    up, server, client = block.splitlines()
    with alone("tunnel"):
        try:
            printed = live.run(up)
            for line in ("host 127.77.0.1, reaches others in 127.77.1.0/24",
                         "drive 0 127.77.0.2, reaches others in 127.77.2.0/24"):  # fmt: skip
                assert line in printed
            live.start(live.split(server), lambda log: "Serving HTTP" in log.read_text())
            assert live.run(client) == "200\n"
        finally:
            assert live.run("ondie tunnel down") == "cluster: down\n"
