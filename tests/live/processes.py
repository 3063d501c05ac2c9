"""Owns: the processes, mounts and loop devices of live tests, from their start to their end.
Does not own: what a test asks of them.
Source: own.

A folder's name has the number of this process, so that what a killed run has left is found and
removed by the next one. Every process is the leader of a group, which is killed and reaped at the
end. Ready is a condition that is asked for again and again, never a time.
"""

import contextlib
import fcntl
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

PREFIX = "ondie-live-"
OURS = re.compile(rf"/{PREFIX}(\d+)-\d+-")
PATH = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
READY_S, RUN_S, END_S = 60.0, 60.0, 20.0
"""Limits of a start, of a command, and of a clean end; a first start compiles."""
TAIL = 3000
"""Characters of a log that an error shows."""
_number = itertools.count()


def needs(*tools: str) -> None:
    """Skip the test that lacks a tool; where CI is set, tests/conftest.py lets it fail."""
    missing = [tool for tool in tools if shutil.which(tool, path=PATH) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")


def needs_mounts() -> None:
    """Skip the test that needs FUSE and loop devices where there are none for this user."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            pytest.skip(f"{device} does not exist")


def needs_tunnels() -> None:
    """Skip the test that needs network namespaces and TUN devices where this user has none."""
    needs("ip", "unshare")
    if os.geteuid() != 0:
        pytest.skip("only root may make network devices")
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("/dev/net/tun does not exist")
    if subprocess.run(["unshare", "-nm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("/proc/self/ns/net cannot be left")


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """Wait until no other process of this machine tests ``what``, which all of it shares."""
    with open(os.path.join(tempfile.gettempdir(), f"{PREFIX}{what}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wait_for(what: str, ready: Callable[[], object], seconds: float = READY_S) -> None:
    """Ask ``ready`` until it is true. Raises TimeoutError that says what was awaited."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s still awaited: {what}")
        time.sleep(0.01)


def of_ended_runs(text: str) -> bool:
    """Whether a path is in a folder of a run whose process has gone."""
    found = OURS.search(text)
    return found is not None and not os.path.exists(f"/proc/{found[1]}")


def mounts() -> list[str]:
    """Every mount point below a folder of live tests, the latest first."""
    lines = Path("/proc/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines]
    return [point for point in reversed(points) if OURS.search(point)]


def loops() -> list[tuple[str, str]]:
    """(device, file) of each loop device of live tests."""
    if shutil.which("losetup", path=PATH) is None:
        return []
    words = ["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PATH": PATH})
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return [(row[0], row[1]) for row in rows if len(row) == 2 and OURS.search(row[1])]


def detach(wanted: Callable[[str], bool]) -> None:
    """Unmount and detach what is in a folder that ``wanted`` takes: first the file systems on loop
    devices, then these, then the file systems of FUSE below them."""
    env = os.environ | {"PATH": PATH}

    def run(*words: str) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return (
                subprocess.run(words, capture_output=True, env=env, timeout=END_S).returncode == 0
            )
        return False

    fuse = re.compile(r"^\S+ (\S+) fuse", re.MULTILINE).findall(Path("/proc/mounts").read_text())
    for last in (False, True):
        for point in mounts():
            if wanted(point) and (point in fuse) == last and not run("umount", point):
                run("umount", "-l", point)
        if not last:
            for device, file in loops():
                if wanted(file):
                    run("losetup", "-d", device)


def sweep() -> None:
    """Remove what ended runs have left."""
    detach(of_ended_runs)
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if of_ended_runs(f"{folder}-"):
            shutil.rmtree(folder, ignore_errors=True)


class Live:
    """A folder and the processes that a test starts in it. Leaving it ends all of them.

    ``env``: further variables. Programs named ``ondie`` are those of this checkout.
    """

    def __init__(self, **env: str) -> None:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{next(_number)}-"))
        self.env = os.environ | {"PATH": PATH, "PYTHONUNBUFFERED": "1"} | env
        self._running: list[tuple[str, subprocess.Popen[bytes], Path]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        detach(lambda text: str(self.folder) + "/" in text)
        for name, process, log in reversed(self._running):
            self._end(process)
            if error[0] is not None and log.exists():
                print(f"--- {name}, ended with {process.returncode}:\n{self.tail(log)}")
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def _end(process: "subprocess.Popen[bytes]") -> None:
        """End a process and its group: asked first, then killed, and reaped."""
        for number, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
            if process.poll() is None or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)

    @staticmethod
    def tail(log: Path) -> str:
        return log.read_text("utf-8", "replace")[-TAIL:]

    def words(self, command: str | list[str]) -> list[str]:
        """The command, in a shell if it is a line, with this checkout's ``ondie``."""
        if isinstance(command, str):
            return [
                "bash",
                "-c",
                f'ondie() {{ {sys.executable} -m ondie.emu.cli "$@"; }}\n{command}',
            ]
        if command[0] == "ondie":
            return [sys.executable, "-m", "ondie.emu.cli", *command[1:]]
        return command

    @staticmethod
    def split(command: str) -> list[str]:
        """The words of a line."""
        return shlex.split(command)

    def start(
        self, command: list[str], ready: Callable[[Path], object], seconds: float = READY_S
    ) -> "subprocess.Popen[bytes]":
        """Start a process; return when ``ready`` of its log file is true. If it ends before, the
        test fails with the end of the log."""
        log = self.folder / f"log-{len(self._running)}"
        name = " ".join(command)
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.words(command), cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._running.append((name, process, log))

        def is_ready() -> object:
            if process.poll() is not None:
                pytest.fail(f"{name} ended with {process.returncode}:\n{self.tail(log)}")
            return ready(log)

        wait_for(name, is_ready, seconds)
        return process

    def stop(self, process: "subprocess.Popen[bytes]") -> str:
        """End a process cleanly; return what it printed. It must end with 0."""
        process.send_signal(signal.SIGTERM)
        code = process.wait(END_S)
        text = self.log_of(process)
        assert code == 0, text[-TAIL:]
        return text

    def log_of(self, process: "subprocess.Popen[bytes]") -> str:
        """What a process has printed."""
        log = next(log for _, each, log in self._running if each is process)
        return log.read_text("utf-8", "replace")

    def run(self, command: str | list[str], code: int | None = 0, seconds: float = RUN_S) -> str:
        """Run a command to its end; return what it printed, errors too. Its exit code must be
        ``code`` (None: any but 0)."""
        process = subprocess.Popen(
            self.words(command), cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"after {seconds} s still running: {command}")
        finally:
            self._end(process)
        text = output.decode("utf-8", "replace")
        right = process.returncode != 0 if code is None else process.returncode == code
        assert right, f"{command} ended with {process.returncode}:\n{text[-TAIL:]}"
        return text

    # --- a served drive

    def serve(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start `ondie serve` at the sockets nbd and ctl; return when it accepts clients."""
        words = ["ondie", "serve", "--nbd", f"unix:{self.folder}/nbd", "--ctl", "ctl", *options]
        return self.start(words, lambda log: log.read_text().startswith("nbd "))

    @property
    def uri(self) -> str:
        return f"nbd+unix:///drive?socket={self.folder}/nbd"

    def attach(self, *options: str) -> None:
        """Make the bytes of the served drive the file fuse/disk."""
        (self.folder / "fuse").mkdir(exist_ok=True)
        disk = self.folder / "fuse" / "disk"
        words = ["nbdfuse", *options, str(disk), "--unix", f"{self.folder}/nbd"]
        self.start(words, lambda log: disk.is_file())

    def mount_disk(self, option: str = "discard") -> None:
        """Mount the ext4 in fuse/disk at mnt, through a loop device."""
        (self.folder / "mnt").mkdir(exist_ok=True)
        self.run(f"mount -o {option} $(losetup -f --show --direct-io=on fuse/disk) mnt")

    def detach(self) -> None:
        """Unmount all of it."""
        detach(lambda text: str(self.folder) + "/" in text)
