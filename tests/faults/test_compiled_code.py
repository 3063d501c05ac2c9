"""Is the result of a command right when its compiled code on disk is cut short, damaged, refused,
or has no room?

Owns: commands with a cache folder of their own. Does not: hold what is stored (test_jit.py).
Source: none; a run with an empty cache folder gives the result that all others must give.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ondie.kernels import code_cache

SMALL = (
    "stannis simulate squeezenet --drives newport=2 --steps 5 --draw-load 0.5,2 --no-reading"
    " --private 0 --public 100000 --seed 3 --quiet --json simulation.json"
).split()
"""A command that compiles six small functions: the on-off load."""
ENGINE = "compare gpt-small --steps 1 --no-swing --out out".split()
"""A command that compiles the engine."""
ROOM = {"simulation.json": 100 << 10, "out/result.json": 800 << 10}
"""Bytes of a cache folder that holds some of a command's compiled functions, not all."""
NOT_STORED = "ondie: compiled code is not stored in "
STOPPED = """
import os, signal, sys
from ondie.emu.cli.main import main

def kill(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith(".code"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
main(sys.argv[1:])
"""
"""Runs a command that kills itself between the write of its first file and the renaming."""
Running = subprocess.Popen[str]


class Command:
    """A command with a cache folder and a working folder of its own."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.words = words
        self.place = folder
        self.result = folder / ("out/result.json" if "--out" in words else words[-1])
        self.stored = folder / "cache" / "ondie" / "compiled"
        folder.mkdir()

    def start(self, *before: str, program: tuple[str, ...] = ("-m", "ondie.emu.cli")) -> Running:
        """Start the command; ``before`` is a program that starts it."""
        return subprocess.Popen(
            [*before, sys.executable, *program, *self.words],
            cwd=self.place,
            env={**os.environ, "XDG_CACHE_HOME": str(self.place / "cache")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *before: str) -> tuple[bytes, str]:
        """Its result and its messages."""
        process = self.start(*before)
        _, messages = process.communicate(timeout=300)
        assert process.returncode == 0, messages
        return self.result.read_bytes(), messages

    def names(self) -> list[str]:
        """The files of the cache folder."""
        return sorted(path.name for path in self.stored.glob("*"))

    def kill_after(self, functions: int) -> None:
        """Start the command, and kill it when ``functions`` of its functions are stored."""
        process = self.start()
        try:
            limit = time.monotonic() + 200
            while not self.stored.is_dir() or len(list(self.stored.glob("*.code"))) < functions:
                assert process.poll() is None, "it ended before it could be killed"
                assert time.monotonic() < limit
                time.sleep(0.001)
        finally:
            process.kill()
            process.communicate()
        self.ends_killed(process)

    def kill_while_it_writes(self) -> None:
        """Start the command; it is killed when a file has its content, and not yet its name."""
        process = self.start(program=("-c", STOPPED))
        process.communicate(timeout=300)
        self.ends_killed(process)

    def ends_killed(self, process: Running) -> None:
        """No file of a killed command has its name without its content."""
        assert process.returncode == -signal.SIGKILL
        assert not self.result.exists()
        assert all(intact(path) for path in self.stored.glob("*.code"))


def intact(path: Path) -> bool:
    """Whether the content of a stored file has the checksum that it begins with."""
    head, _, rest = path.read_bytes().partition(b"\n")
    return head.startswith(b"ondie") and hashlib.sha256(rest[32:]).digest() == rest[:32]


DAMAGES = (
    lambda content: b"",
    lambda content: content[: len(content) // 2],
    lambda content: content[:-1],
    lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
    lambda content: b"x" + content[1:],
    lambda content: b"text\n",
)


def mounts() -> bool:
    """Whether this process may mount a file system that it alone sees."""
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def without_privilege() -> tuple[str, ...]:
    """A program that starts another one without root's right to write everywhere."""
    if os.geteuid():
        return ()
    return ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SMALL, id="small"),
        # One process has them all at full counts, and begins early: conftest.TOGETHER.
        pytest.param(ENGINE, id="engine", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def clean(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A command that has run with an empty cache folder."""
    command = Command(request.param, tmp_path_factory.mktemp("compiled") / "clean")
    _, messages = command.run()
    assert NOT_STORED not in messages
    assert len(command.names()) >= 6
    assert all(intact(path) for path in command.stored.iterdir())
    return command


only_small = pytest.mark.parametrize("clean", [SMALL], ids=["small"], indirect=True, scope="module")
"""For tests of the folder, for which it does not matter what is compiled."""


@pytest.fixture
def command(clean: Command, tmp_path: Path) -> Command:
    """The same command in folders of its own, with an empty cache."""
    return Command(clean.words, tmp_path / "run")


@pytest.mark.soak
def test_killed_while_it_compiles(clean, command):
    """Again and again, and once while it writes; then it runs to its end. The engine, which takes
    long to compile, is killed once, when some of its functions are stored."""
    if command.words is SMALL:
        command.kill_after(0)
        command.kill_while_it_writes()
        (left,) = command.stored.iterdir()
        assert left.name.startswith(".")
    command.kill_after(2)
    if command.words is SMALL:
        assert left.exists()  # for an hour, another process may be writing it
        os.utime(left, (1000, time.time() - code_cache.STALE_SECONDS - 1))
    assert command.run() == (clean.result.read_bytes(), "")
    assert command.names() == clean.names()


@pytest.mark.soak
def test_two_commands_compile_at_once(clean, command, tmp_path):
    """Both have the right result; one folder has each function once."""
    other = Command(clean.words, tmp_path / "other")
    (command.place / "cache").mkdir()
    (other.place / "cache").symlink_to(command.place / "cache")
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(Command.run, (command, other)))
    assert outcomes == 2 * [(clean.result.read_bytes(), "")]
    assert command.names() == clean.names()
    assert all(intact(path) for path in command.stored.iterdir())


def test_damaged_files(clean, command):
    """Each file in another way: all are compiled again, and stored."""
    shutil.copytree(clean.stored, command.stored)
    for path, damage in zip(sorted(command.stored.iterdir()), DAMAGES, strict=False):
        content = path.read_bytes()
        path.write_bytes(damage(content))
        assert not intact(path)
    assert command.run() == (clean.result.read_bytes(), "")
    assert command.names() == clean.names()
    assert all(intact(path) for path in command.stored.iterdir())


@pytest.mark.soak
@only_small
def test_folder_without_room(clean, command):
    """A small file system, or a small limit of the size of files where none may be mounted."""
    stored = command.stored
    stored.mkdir(parents=True)
    room = ROOM[str(command.result.relative_to(command.place))]
    script = (
        f'mount -t tmpfs -o size={room} none "$0"; "$@"; code=$?; ls -A "$0" >names; exit $code'
    )
    if mounts():
        result, messages = command.run("unshare", "-m", "sh", "-c", script, str(stored))
        names = (command.place / "names").read_text().split()
        assert not command.names()  # outside the mount namespace
    else:
        largest = max(path.stat().st_size for path in clean.stored.iterdir())
        result, messages = command.run("prlimit", f"--fsize={largest - 1}")
        names = command.names()
    assert result == clean.result.read_bytes()
    assert messages.count(NOT_STORED) == len(messages.splitlines()) == 1
    assert set() < set(names) < set(clean.names())


@only_small
def test_read_only_folder(clean, command):
    """It holds half of the functions."""
    shutil.copytree(clean.stored, command.stored)
    for path in sorted(command.stored.iterdir())[::2]:
        path.unlink()
    before = command.names()
    command.stored.chmod(0o555)
    try:
        result, messages = command.run(*without_privilege())
    finally:
        command.stored.chmod(0o755)
    assert result == clean.result.read_bytes()
    assert messages.count(NOT_STORED) == len(messages.splitlines()) == 1
    assert command.names() == before
