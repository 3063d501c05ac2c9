"""Does a Linux host update weights with nvme-cli alone, as docs/computation.md says? The commands
of the page run in a virtual machine, in its order, against its server.
"""

import base64
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ondie.kernels import get
from tests.live import guest_packages
from tests.live.guest import HOST, Guest
from tests.protocol.compute_host import ADAM

pytestmark = pytest.mark.soak
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "computation.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
SERVE, CUT = re.findall(r"^\$ ondie (.*)$", PAGE, re.M)
COUNT = 100_000
END_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def weights(folder) -> np.ndarray:
    found = np.random.default_rng(3).normal(size=COUNT).astype(np.float32)
    np.save(folder / "w.npy", found)
    return found


@pytest.fixture(scope="module")
def guest(folder, weights, tmp_path_factory) -> Iterator[Guest]:
    """A host that has connected to the server of the page, with other weights than zeros."""
    if why := guest_packages.why_not():
        pytest.skip(why)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = SERVE.replace("4420", str(port)).split()
    command = [sys.executable, "-m", "ondie.emu.cli", *words, "--weights", "w.npy"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            name = [process.stdout.readline().split() for _ in range(2)][1][1]
            with Guest(tmp_path_factory.mktemp("guest")) as found:
                found.ok(f"nvme connect -t tcp -a {HOST} -s {port} -n {name}")
                found.ok("for each in $(seq 100); do [ -b /dev/nvme0n2 ] && exit 0; sleep 0.1; "
                         "done; exit 2")  # fmt: skip
                yield found
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_S) == 0
        finally:
            process.kill()


def commands(block: str) -> list[str]:
    return block.strip().splitlines()


def taken(guest: Guest, name: str) -> np.ndarray:
    """The bytes of a file of the guest, uint8[n]."""
    return np.frombuffer(base64.b64decode(guest.ok(f"base64 /tmp/{name}")), np.uint8)


def test_the_page(guest, folder, weights):
    """Gradient in, update, weights out; a part, a power cut, the rest; a program: all vectors are
    bit for bit the kernel's."""
    assert len(BLOCKS) == 5
    guest.ok("head -c 400000 /dev/urandom | tr '\\100-\\377' '\\000-\\077\\000-\\077\\000-\\077' "
             "> /tmp/gradient")  # fmt: skip
    gradient = taken(guest, "gradient").view(np.float32)
    assert gradient.shape == (COUNT,) and np.isfinite(gradient).all() and gradient.any()
    first, update, part, rest, program = map(commands, BLOCKS)
    kernel = get("adam", form="canonical")
    w, m, v = weights.copy(), *np.zeros((2, COUNT), np.float32)
    hyper = ADAM | {"lr": 0.001}

    def run(lines):
        return [guest.ok(f"cd /tmp && {line}") for line in lines]

    said = run(first)[0]
    assert re.search(r"result: ?(0x0*)?1\b", said), said
    said = run(update)[1]
    assert re.search(r"result: ?(0x0*)?1\b", said), said
    kernel(w, gradient, [m, v], kernel.coefficients(hyper, 1))
    found = taken(guest, "weights")
    assert (found[: w.nbytes].view("u4") == w.view("u4")).all() and not found[w.nbytes :].any()
    assert run(part)[-1].split() == ["2", "24", "49"]
    cut = [sys.executable, "-m", "ondie.emu.cli", *CUT.split()]
    subprocess.run(cut, cwd=folder, check=True, timeout=END_S)
    run(rest)
    kernel(w, gradient, [m, v], kernel.coefficients(hyper, 2))
    data = taken(guest, "states")
    for at, wanted in enumerate((w, m, v)):
        held = data[at * 401408 :][: wanted.nbytes]
        assert (held.view("u4") == wanted.view("u4")).all(), at
    run(program)
    status, said = guest.run(
        "nvme write /dev/nvme0n2 --start-block=0 --block-count=0 --data-size=4096 "
        "--data=/tmp/gradient"
    )
    assert status and "write protected" in said.lower().replace("_", " "), said
