"""Speed of `ondie serve` over NBD and vfio-user with and without a model of flash, and of nbdkit's
memory plugin.

Owns the processes of the servers, the rounds and the rows. Does not own the clients
(serve/nbd_load.py, serve/vfio_load.py) or nbdkit, which the user has installed.
Source: this project.

Every round measures each server once. Requests arrive over a Unix socket and address 256 MiB that
were written before.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from ondie.emu.config.config import load_preset
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd_load import READ, SPAN, WRITE, Load
from ondie.emu.serve.vfio_load import VfioLoad
from ondie.emu.units import InputError, fmt_bytes
from ondie.emu.validate.speed import service
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.run import Row

PRESET = service.PRESET


class Client(Protocol):
    """Interface of a client that measures a server (see nbd_load.Load)."""

    def rate(self, kind: int, size: int, depth: int, seconds: float) -> float: ...
    def waits(self, size: int, count: int) -> np.ndarray: ...
    def fill(self) -> None: ...
    def close(self) -> None: ...


NULL, FLASH, NBDKIT = "no timing", "flash model", "nbdkit memory"
VFIO_NULL, VFIO_FLASH = "vfio-user, no timing", "vfio-user, flash model"
DEPTH, VFIO_DEPTH = 32, 16
"""Number of requests in flight over NBD and over vfio-user."""
SIZES = {"4 KiB": 4096, "128 KiB": 128 << 10}


class Case(NamedTuple):
    """Kind of requests that is measured on each server of ``servers`` in every round. ``kind``:
    READ or WRITE. ``depth``: number of requests in flight."""

    name: str
    kind: int
    size: int
    """Size of a request (bytes)."""
    depth: int
    servers: tuple[str, ...]
    targets: dict[str, float]
    """Target rates (requests per second), by server."""


def cases() -> list[Case]:
    """Return all kinds of requests that are measured: first over NBD, then over vfio-user."""
    found = []
    for text, size in SIZES.items():
        small = size == 4096
        goals = {NULL: 150e3, FLASH: 100e3} if small else {NULL: (2 << 30) / size}
        for word, kind in (("reads", READ), ("writes", WRITE)):
            name = f"{word} of {text}"
            found.append(Case(name, kind, size, DEPTH, (NULL, FLASH, NBDKIT), goals))
    for text, size in SIZES.items():
        goals = {VFIO_NULL: 150e3} if size == 4096 else {}
        for word, kind in (("reads", READ), ("writes", WRITE)):
            name = f"{word} of {text}"
            found.append(Case(name, kind, size, VFIO_DEPTH, (VFIO_NULL, VFIO_FLASH), goals))
    return found


CASES = tuple(cases())
ABOVE_US = 20.0
"""Target (us) for the delay that the wall clock adds to a request of a client at queue depth 1: the
wait for the server with a model of flash, minus the modeled latency, minus the wait for the server
without a model of flash."""
HALF = 0.5
"""Target: minimum ratio of the rate of the server without a model of flash (NULL) to the rate of
nbdkit's memory plugin."""
START_S = 300.0
"""Maximum time from the start of a server until it listens (s). The first server may have to
compile the engine."""


def run(quick: bool, nbdkit: Path | None, progress: Callable[[str], object]) -> bench.Bench:
    """Measure every server in several rounds, and the waits of a client at queue depth 1.

    Returns the rows of the waits and of each server's best rate. The ratio of a server's rate to
    that of nbdkit is the median over the rounds. ``nbdkit``: path of nbdkit's program; nbdkit is
    not measured if it is None.
    """
    vfio = ("--vfio-user", "{path}", "--block", "4096")
    nbd = ("--nbd", "unix:{path}")
    commands = {
        NULL: ondie(*nbd, "--null"), FLASH: ondie(*nbd),
        VFIO_NULL: ondie(*vfio, "--null"), VFIO_FLASH: ondie(*vfio),
    }  # fmt: skip
    remarks = []
    if nbdkit is None:
        remarks.append(
            "nbdkit: not found, so the table has no comparison with nbdkit's memory "
            "plugin; install nbdkit, or name its program with --nbdkit"
        )
    else:
        commands[NBDKIT] = [str(nbdkit), "--foreground", "--unix", "{path}", "memory", "1G"]
    seconds, rounds = (0.1, 2) if quick else (1.0, 5)
    rates: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        loads: dict[str, Client] = {}
        for name, command in commands.items():
            progress(f"{name} starts")
            client = VfioLoad if name in (VFIO_NULL, VFIO_FLASH) else Load
            loads[name] = stack.enter_context(server(name, command, client))
            loads[name].fill()
        for number in range(rounds):
            for case in CASES:
                for name in case.servers:
                    if name in loads:
                        progress(f"round {number + 1}: {case.name}, {name}")
                        rate = loads[name].rate(case.kind, case.size, case.depth, seconds)
                        rates.setdefault((case.name, name), []).append(rate)
        progress("depth 1, the wall clock")
        timed = stack.enter_context(server("the wall clock", ondie(*nbd, "--clock", "real")))
        timed.fill()
        count = 100 if quick else 2000
        waits = {NULL: loads[NULL].waits(4096, count), "real": timed.waits(4096, count)}
    rows = rate_rows(rates) + wait_rows(waits[NULL], waits["real"], modeled_latency())
    return bench.Bench(rows, bench.machine(1), remarks)


def ondie(*options: str) -> list[str]:
    """Return the command line that starts a server of this package with ``options``."""
    start = [sys.executable, "-c", "from ondie.emu.cli import start; start()", "serve"]
    return [*start, "--device", PRESET, *options]


@contextlib.contextmanager
def server(
    name: str, command: list[str], client: Callable[[str], Client] = Load
) -> Iterator[Client]:
    """Start a server with ``command`` for the duration of the context, and yield a ``client`` that
    is connected to it.

    The path of the server's socket replaces {path} in ``command``. Raises InputError if the server
    does not listen at this socket.
    """
    with tempfile.TemporaryDirectory(prefix="ondie-bench-") as folder, open(
        os.path.join(folder, "log"), "w+"
    ) as log:  # fmt: skip
        path = os.path.join(folder, "socket")
        words = [each.replace("{path}", path) for each in command]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        load: Client | None = None
        try:
            end = time.monotonic() + START_S
            while load is None:
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    said = log.read().strip().splitlines()[-1:] or [_silence(process.returncode)]
                    raise InputError(f"{name}: does not listen: {said[0]}")
                with contextlib.suppress(InputError):
                    load = client(path)
                if load is None:
                    time.sleep(0.05)
            yield load
        finally:
            if load is not None:
                load.close()
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _silence(code: int | None) -> str:
    """Return the reason why a program that has printed nothing is not a server.

    ``code``: exit code of the program; None if it is still running.
    """
    if code is None:
        return f"it has printed nothing in {START_S:g} s"
    return f"it has ended with exit code {code} and printed nothing"


def conditions() -> str:
    """Return the text with the conditions of all measurements and the meaning of the table's
    columns."""
    served = MemoryDrive(load_preset(PRESET))
    return (
        f"Drive: {PRESET}, {fmt_bytes(served.capacity)}. Requests: one connection, {DEPTH} in "
        f"flight over NBD, {VFIO_DEPTH} over vfio-user (one queue pair, doorbells in memory, the "
        f"client polls) unless a depth is named, uniformly random in {SPAN >> 20} MiB that were "
        "written before. A value is the best of all rounds. Each round measures every server "
        f"once, and a ratio to {NBDKIT} is the median of the rounds' ratios, so it is not the "
        "quotient of two values."
    )


def rate_rows(rates: dict[tuple[str, str], list[float]]) -> list[Row]:
    """Return the rows of ``rates``: requests per second in each round, by (case, server)."""
    rows = []
    for case in CASES:
        large = case.size > 4096
        scale, unit = (case.size / (1 << 30), "GiB/s") if large else (1e-3, "k/s")
        kit = rates.get((case.name, NBDKIT)) if NBDKIT in case.servers else None
        for name in case.servers:
            found = rates.get((case.name, name))
            if found is None:
                continue
            best, title = max(found), f"{case.name}, {name}"
            rows.append(Row(title, best * scale, unit, "itself", 1))
            if name in case.targets:
                target = case.targets[name]
                goal = f"target {target * scale:g} {unit}"
                rows.append(Row(title, best * scale, unit, goal, best / target))
            if kit is not None and name != NBDKIT:
                ratio = float(np.median(np.array(found) / np.array(kit)))
                rows.append(Row(title, best * scale, unit, NBDKIT, ratio))
            if kit is not None and name == NULL:
                half = f"target {HALF:g} of {NBDKIT}"
                rows.append(Row(title, best * scale, unit, half, ratio / HALF))
    return rows


def wait_rows(null: np.ndarray, timed: np.ndarray, modeled: float) -> list[Row]:
    """Return the rows that compare the time for which a client at queue depth 1 waits for a read
    with the modeled latency of the drive.

    ``null``: waiting times with the server without a model of flash. ``timed``: waiting times with
    the server that follows the wall clock. Both are float64[n] in s. ``modeled``: latency (s).
    """
    bare, seen = float(np.median(null)) * 1e6, float(np.median(timed)) * 1e6
    above = seen - modeled * 1e6 - bare
    return [
        Row("modeled latency of a read, depth 1", modeled * 1e6, "us", "itself", 1),
        Row("wait for a read without a flash model, median", bare, "us", "itself", 1),
        Row("wait for a read with the wall clock, median", seen, "us", "itself", 1),
        Row("wait with the wall clock minus modeled latency and wait without a flash model", above,
            "us", f"target {ABOVE_US:g} us", above / ABOVE_US),
    ]  # fmt: skip


def modeled_latency() -> float:
    """Return the modeled latency of a read of 4 KiB on an idle drive (s)."""
    _, modeled, _ = service.null_client(load_preset(PRESET), 1)
    return float(modeled[0])
