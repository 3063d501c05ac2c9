"""Does a Linux host update weights with nvme-cli alone, as docs/computation.md says? The commands
of the page run in a virtual machine, in its order, against its server; then programs of the host,
alone and beside fio, take the time that the model gives them.
"""

import base64
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config, load_preset
from ondie.emu.drive import Drive
from ondie.emu.serve.control_words import send
from ondie.emu.service import Service
from ondie.emu.states import device_program
from ondie.emu.states.resident import ResidentStates
from ondie.kernels import get
from tests.live.guest import HOST, Guest
from tests.live.pcie_guest import FIO, VERIFIED
from tests.protocol.compute_host import ADAM

pytestmark = pytest.mark.soak
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "computation.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
SERVE, CUT = re.findall(r"^\$ ondie (.*)$", PAGE, re.M)
COUNT = 100_000
END_S = 60
MEMORY_BYTES = 64 << 20
"""Input of a program that keeps DRAM busy."""
READ_BYTES = 640
"""Bytes that it reads for each value of 4 bytes: DRAM needs 80 times as long as the cores."""
FIO_BYTES = 1 << 20
"""Bytes that fio has moved before the programs begin."""
PASSES = 2
"""Times that the data of a command pass DRAM: into it and out of it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def weights(folder) -> np.ndarray:
    found = np.random.default_rng(3).normal(size=COUNT).astype(np.float32)
    np.save(folder / "w.npy", found)
    return found


@pytest.fixture(scope="module")
def guest(folder, weights, borrow) -> Iterator[Guest]:
    """A host that has connected to the server of the page, with other weights than zeros."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = SERVE.replace("4420", str(port)).split()
    command = [sys.executable, "-m", "ondie.emu.cli", *words, "--weights", "w.npy"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            name = [process.stdout.readline().split() for _ in range(2)][1][1]
            with borrow() as found:
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
    assert len(BLOCKS) == 6
    guest.ok("head -c 400000 /dev/urandom | tr '\\100-\\377' '\\000-\\077\\000-\\077\\000-\\077' "
             "> /tmp/gradient")  # fmt: skip
    gradient = taken(guest, "gradient").view(np.float32)
    assert gradient.shape == (COUNT,) and np.isfinite(gradient).all() and gradient.any()
    first, update, part, rest, program, last = map(commands, BLOCKS)
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
    assert (
        int(run(last)[-1]) == COUNT * 12 * PS_PER_S // (4 * 800_000_000) == native_ps(COUNT, 12, 4)
    )
    status, said = guest.run(
        "nvme write /dev/nvme0n2 --start-block=0 --block-count=0 --data-size=4096 "
        "--data=/tmp/gradient"
    )
    assert status and "write protected" in said.lower().replace("_", " "), said


# --- programs of the host


def served_config() -> Config:
    """That of the server of the page."""
    words = shlex.split(SERVE)
    settings = [word for at, word in enumerate(words) if words[at - 1] == "--set"]
    return load_preset(words[words.index("--device") + 1], overrides=settings)


def native_ps(elements: int, instructions: int, read_bytes: int) -> int:
    """Time of a program for elements of 4 bytes on a drive like that of the page, without a server
    and a host, ps."""
    hyper = ADAM | {"lr": 0.001}
    states = ResidentStates(served_config(), "adam", COUNT, hyper)
    with Drive(states.cfg, payload=True, reservoir=states.reservoir, block_bytes=4096) as drive:
        states.create(drive, dict.fromkeys("wmv", np.zeros(COUNT, np.float32)))
        program = device_program.execution(
            states.cfg, elements, 4, Fraction(instructions), 0, read_bytes, 0
        )
        begun: list[int] = []
        with Service(drive) as service:
            plan = service.run_plan(
                lambda: (begun.append(drive.now), drive.start_beside(program))[1],
                lambda: drive.now,
            )
            return int(plan.result(END_S)) - begun[0]


def passthru(opcode: int, words: str) -> str:
    return f"nvme io-passthru /dev/nvme0n2 --namespace-id=2 --opcode={opcode:#x} {words}"


def given(name: str, data: bytes) -> str:
    """Words of a command that gets ``data``, which a file of the guest has."""
    return f"--data-len={len(data)} --write --input-file=/tmp/{name}"


def load_program(guest: Guest) -> str:
    """Load program 2, which keeps DRAM busy, and return the command that runs it."""
    said = guest.ok(passthru(0xB0, f"--cdw10={MEMORY_BYTES}"))
    handle = int(re.search(r"result: ?(\S+)", said)[1], 0)  # type: ignore[index]
    files = {"set2": struct.pack("<IIQQ8x", handle, 0, 0, MEMORY_BYTES),
             "program2": struct.pack("<IIIIQII32x", 1, 4, 1, 1, 0, READ_BYTES, 0)}  # fmt: skip
    for name, data in files.items():
        guest.ok(f"echo {base64.b64encode(data).decode()} | base64 -d > /tmp/{name}")
    said = guest.ok(passthru(0xA1, "--cdw10=1 " + given("set2", files["set2"])))
    number = int(re.search(r"result: ?(\S+)", said)[1], 0)  # type: ignore[index]
    guest.ok(passthru(0xA5, "--cdw10=2 --cdw11=64 " + given("program2", files["program2"])))
    guest.ok(passthru(0xA8, "--cdw10=2 --cdw11=1"))
    return passthru(0xE1, f"--cdw10={2 | number << 16}")


LAST = (passthru(0xE2, "--data-len=4096 --read --raw-binary") + " > /tmp/report 2> /dev/null && "
        "od -An -t u8 -j 136 -N 8 /tmp/report")  # fmt: skip
"""Prints the time of the last program, ps."""
COMPUTES = passthru(0xE1, "--cdw10=0x10001")
"""The program of the page."""


def host_bytes(folder: Path) -> int:
    """Bytes of all reads and writes of the host so far."""
    counters = send(str(folder / "ctl"), "counters", {})["counters"]
    return int(counters["host_read_bytes"] + counters["host_write_bytes"])


def test_programs_alone_and_beside_fio(guest, folder, weights):
    """A program that waits for the cores alone takes the same time beside fio, to the picosecond. A
    program that waits for DRAM takes longer, by the time in which DRAM serves fio at most."""
    moves = load_program(guest)
    alone_ps = native_ps(MEMORY_BYTES // 4, 1, READ_BYTES)
    rate = served_config().dram.bandwidth_bytes_per_s
    assert alone_ps == MEMORY_BYTES // 4 * READ_BYTES * PS_PER_S // rate
    assert int(guest.ok(f"{moves} > /dev/null 2>&1 && {LAST}")) == alone_ps
    guest.ok(f"({FIO} --filename=/dev/nvme0n1 {VERIFIED} --size=16M --loops=3 > /tmp/load 2>&1; "
             "echo ended-$? >> /tmp/load) < /dev/null > /dev/null 2>&1 &")  # fmt: skip
    begun, deadline = host_bytes(folder), time.monotonic() + END_S
    while host_bytes(folder) < begun + FIO_BYTES:
        assert time.monotonic() < deadline, guest.ok("cat /tmp/load")
        time.sleep(0.05)
    before = host_bytes(folder)
    each = f"{moves} > /dev/null 2>&1 && {LAST}"
    found = guest.ok(f"{each} && {each} && {each} && {COMPUTES} > /dev/null 2>&1 && {LAST}").split()
    assert guest.run("grep ended- /tmp/load")[0] == 1, "fio has ended before the programs"
    moved_ps = PASSES * (host_bytes(folder) - before) * PS_PER_S // rate
    *moving, computing = map(int, found)
    assert computing == native_ps(COUNT, 12, 4)
    assert (
        alone_ps <= min(moving) and alone_ps < max(moving) and sum(moving) < 3 * alone_ps + moved_ps
    )
    text = guest.ok(
        "until grep ended- /tmp/load > /dev/null; do sleep 0.05; done; cat /tmp/load", limit=240
    )
    assert "ended-0" in text and "err= 0" in text, text
