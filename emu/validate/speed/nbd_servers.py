"""Speed of `ondie serve` over NBD with and without a model of flash, and of nbdkit's memory plugin.

The servers run in turns.

Owns the processes of the servers, the rounds and the rows. Does not own the client
(serve/nbd_load.py) or nbdkit, which the user has installed.
Source: none. Requests go to 256 MiB that were written before, over a unix socket.
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

import numpy as np

from ondie.emu.config.config import load_preset
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd_load import READ, SPAN, WRITE, Load
from ondie.emu.units import InputError, fmt_bytes
from ondie.emu.validate.speed import service
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.run import Row

PRESET = service.PRESET
NULL, FLASH, NBDKIT = "no timing", "flash model", "nbdkit memory"
CASES = (
    ("reads of 4 KiB", READ, 4096, {NULL: 150e3, FLASH: 100e3}),
    ("writes of 4 KiB", WRITE, 4096, {NULL: 150e3, FLASH: 100e3}),
    ("reads of 128 KiB", READ, 128 << 10, {NULL: (2 << 30) / (128 << 10)}),
    ("writes of 128 KiB", WRITE, 128 << 10, {NULL: (2 << 30) / (128 << 10)}),
)
"""Name, kind, bytes, and target in requests per second by server."""
DEPTH = 32
ABOVE_US = 20.0
"""Target for the wait of a client at depth 1 beyond the modeled latency and the same server without
a drive, us."""
HALF = 0.5
"""Target for the ratio to nbdkit's memory plugin."""
START_S = 300.0
"""Time in which a server must listen, s; the first one may compile the engine."""


def run(quick: bool, nbdkit: Path | None, progress: Callable[[str], object]) -> bench.Bench:
    """Measure all servers in turns. ``nbdkit``: its program; None: without it. Return the best rate
    of several rounds, and the median ratio of the rounds."""
    commands = {NULL: ondie("--null"), FLASH: ondie()}
    remarks = []
    if nbdkit is None:
        remarks.append("nbdkit: not found; without it, there is no comparison with its memory")
    else:
        commands[NBDKIT] = [str(nbdkit), "--foreground", "--unix", "{path}", "memory", "1G"]
    seconds, rounds = (0.1, 2) if quick else (1.0, 5)
    rates: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        loads = {}
        for name, command in commands.items():
            progress(f"{name} starts")
            loads[name] = stack.enter_context(server(name, command))
            loads[name].fill()
        for number in range(rounds):
            for case, kind, size, _ in CASES:
                for name, load in loads.items():
                    progress(f"round {number + 1}: {case}, {name}")
                    rate = load.rate(kind, size, DEPTH, seconds)
                    rates.setdefault((case, name), []).append(rate)
        progress("depth 1, the wall clock")
        timed = stack.enter_context(server("the wall clock", ondie("--clock", "real")))
        timed.fill()
        count = 100 if quick else 2000
        waits = {NULL: loads[NULL].waits(4096, count), "real": timed.waits(4096, count)}
    rows = rate_rows(rates) + wait_rows(waits[NULL], waits["real"], modeled_latency())
    return bench.Bench(rows, bench.machine(1), remarks)


def ondie(*options: str) -> list[str]:
    """Return the command of a server of this package."""
    start = [sys.executable, "-c", "from ondie.emu.cli import start; start()", "serve"]
    return [*start, "--nbd", "unix:{path}", "--device", PRESET, *options]


@contextlib.contextmanager
def server(name: str, command: list[str]) -> Iterator[Load]:
    """A connection to a server that runs ``command`` meanwhile. Raises InputError unless it listens
    at its socket, whose path replaces {path}."""
    with tempfile.TemporaryDirectory(prefix="ondie-bench-") as folder, open(
        os.path.join(folder, "log"), "w+"
    ) as log:  # fmt: skip
        path = os.path.join(folder, "socket")
        words = [each.replace("{path}", path) for each in command]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        load = None
        try:
            end = time.monotonic() + START_S
            while load is None:
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    said = log.read().strip().splitlines()[-1:] or [_silence(process.returncode)]
                    raise InputError(f"{name}: does not listen: {said[0]}")
                with contextlib.suppress(InputError):
                    load = Load(path)
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
    """Return why a program that has printed nothing is no server. ``code``: its exit code; None: it
    still runs."""
    if code is None:
        return f"it has printed nothing in {START_S:g} s"
    return f"it has ended with exit code {code} and printed nothing"


def conditions() -> str:
    """Return what is the same in all measurements, and what the columns of their table are."""
    served = MemoryDrive(load_preset(PRESET))
    return (
        f"Drive: {PRESET}, {fmt_bytes(served.capacity)}. Requests: one connection, {DEPTH} in "
        f"flight unless a depth is named, uniformly random in {SPAN >> 20} MiB that were "
        "written before. A value is the best of all rounds. The servers run in turns in each "
        f"round, and a ratio to {NBDKIT} is the median of the rounds' ratios, so it is not the "
        "quotient of two values."
    )


def rate_rows(rates: dict[tuple[str, str], list[float]]) -> list[Row]:
    """Return rows of ``rates``, requests per second by case and server in rounds."""
    rows = []
    for case, _, size, targets in CASES:
        large = size > 4096
        scale, unit = (size / (1 << 30), "GiB/s") if large else (1e-3, "k/s")
        kit = rates.get((case, NBDKIT))
        for name in (NULL, FLASH, NBDKIT):
            found = rates.get((case, name))
            if found is None:
                continue
            best, title = max(found), f"{case}, {name}"
            rows.append(Row(title, best * scale, unit, "itself", 1))
            if name in targets:
                goal = f"target {targets[name] * scale:g} {unit}"
                rows.append(Row(title, best * scale, unit, goal, best / targets[name]))
            if kit is not None and name != NBDKIT:
                ratio = float(np.median(np.array(found) / np.array(kit)))
                rows.append(Row(title, best * scale, unit, NBDKIT, ratio))
            if kit is not None and name == NULL:
                half = f"target {HALF:g} of {NBDKIT}"
                rows.append(Row(title, best * scale, unit, half, ratio / HALF))
    return rows


def wait_rows(null: np.ndarray, timed: np.ndarray, modeled: float) -> list[Row]:
    """Return rows of the waits at depth 1: without a drive, and with the wall clock, both
    float64[n] in s; ``modeled``: latency of the drive, s."""
    bare, seen = float(np.median(null)) * 1e6, float(np.median(timed)) * 1e6
    above = seen - modeled * 1e6 - bare
    return [
        Row("modeled latency of a read, depth 1", modeled * 1e6, "us", "itself", 1),
        Row("wait of a client, no timing, median", bare, "us", "itself", 1),
        Row("wait of a client, the wall clock, median", seen, "us", "itself", 1),
        Row("the wall clock above both, median", above, "us", f"target {ABOVE_US:g} us",
            above / ABOVE_US),
    ]  # fmt: skip


def modeled_latency() -> float:
    """Return the latency in s of a read of 4 KiB of an idle drive."""
    _, modeled, _ = service.null_client(load_preset(PRESET), 1)
    return float(modeled[0])
