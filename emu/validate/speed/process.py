"""Processes that are started for measurements of time or memory.

Owns the start of a process and the measurement of its wall time and CPU time. Does not own the
commands that run in the processes; the commands measure their memory themselves. Source: this
project.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ondie.emu.units import InputError


@dataclass(frozen=True)
class Ended:
    """Output and times (s) of a process that has ended with exit status 0."""

    out: str
    wall_s: float
    cpu_s: float


def run(
    command: Sequence[str], folder: Path | None = None, env: dict[str, str] | None = None
) -> Ended:
    """Run a program to its end, without input on standard input.

    Raises InputError with the program's last line of output if its exit status is not 0.
    """
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    took, after = time.perf_counter() - begin, os.times()
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise InputError(f"{command[0]} ended with exit status {done.returncode}: {''.join(said)}")
    cpu_s = after.children_user + after.children_system
    return Ended(done.stdout, took, cpu_s - before.children_user - before.children_system)


def python(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run this Python interpreter with ``arguments`` and return its output."""
    return run([sys.executable, *arguments], env=env).out
