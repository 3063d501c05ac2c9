"""Execution of a training command under the recorder in a separate process.

This module owns the parsing of the command, the start of its Python with the bootstrap module, its
exit code and the removal of its temporary files. It does not import torch and does not record; the
child process does both (bootstrap.py).
Source: Python's command line (python -h): options, then a script, -m module or -c code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ondie.traces.errors import TraceError
from ondie.traces.hdf5 import check_target
from ondie.traces.options import Options

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?[a-z]?(\.exe)?", re.IGNORECASE)
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_PROBE = (
    "import importlib.util as u, sys\n"
    "def there(n):\n"
    "    try: return u.find_spec(n) is not None\n"
    "    except ImportError: return False\n"
    "sys.exit(3 if not there('ondie.traces') else 4 if not there('torch') else 0)"
)


def split_command(command: list[str]) -> tuple[list[str], list[str]]:
    """Split a command into its Python part and its program part.

    Returns ([python, options...], [script | -m module | -c code, arguments...]). Raises TraceError
    if the command does not start with Python, has no program to record, or has an option without
    its value, or if the script does not exist.
    """
    if not command:
        raise TraceError("no command to record: state it after --, for example -- python train.py")
    if not _PYTHON.fullmatch(Path(command[0]).name):
        raise TraceError(
            f"the command starts with {command[0]!r}: must start with a Python interpreter, for "
            "example python train.py or python -m package"
        )
    at = 1
    while at < len(command):
        word = command[at]
        if word in ("-m", "-c"):
            if at + 1 == len(command):
                raise TraceError(f"{word} at the end of the command requires a value")
            return command[:at], command[at:]
        if word.startswith(("-c", "-m")):  # a value without a space
            return command[:at], [word[:2], word[2:], *command[at + 1 :]]
        if word == "-" or not word.startswith("-"):
            break
        at += 2 if word in _WITH_VALUE else 1
    if at >= len(command) or command[at] == "-":
        raise TraceError(
            f"the command {' '.join(command)!r} runs no script; it must run a file, "
            "-m module or -c code"
        )
    if not Path(command[at]).exists():
        raise TraceError(f"{command[at]}: no such script; give the path of a Python file")
    return command[:at], command[at:]


def launch(out: Path, command: list[str], options: Options) -> int:
    """Run the command under the recorder and return its exit code (see record.main).

    Raises TraceError if the command cannot be run or recorded.
    """
    check_target(out)
    python, program = split_command(command)
    if shutil.which(python[0]) is None:
        raise TraceError(f"{python[0]}: no such program; give a Python interpreter, or its path")
    _probe(python)
    out = out.absolute()  # the script may change its working directory
    partial = Path(f"{out}.{os.getpid()}.partial")
    status = Path(f"{out}.{os.getpid()}.status.partial")
    given = json.dumps({"options": asdict(options), "partial": str(partial), "status": str(status)})
    try:
        code = _run([*python, "-m", "ondie.traces.bootstrap", str(out), given, "--", *program])
        told = _told(status)
    finally:
        partial.unlink(missing_ok=True)
        status.unlink(missing_ok=True)
    if told.get("error"):
        raise TraceError(str(told["error"]))
    if code == 0 and not told.get("steps"):
        raise TraceError(
            f"{out.name}: the command ended with os._exit or exec before the "
            "recorder could write: nothing was recorded"
        )
    return code


def _probe(python: list[str]) -> None:
    """Raise TraceError if this Python does not start with these options or cannot import ondie and
    torch."""
    done = subprocess.run([*python, "-c", _PROBE], check=False, capture_output=True, text=True)
    if done.returncode == 3:
        raise TraceError(
            f"{python[0]} cannot import ondie.traces; install ondie in the Python environment of "
            "the training script"
        )
    if done.returncode == 4:
        raise TraceError(
            f"{python[0]} has no PyTorch; run pip install 'ondie[train]' in the Python environment "
            "of the training script"
        )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["unknown reason"])[-1]
        raise TraceError(f"{' '.join(python)} does not start: {reason}")


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code; it is 128 + signal if a signal ended the command."""
    with subprocess.Popen(arguments) as child, _forwarding(child):
        while True:
            try:
                code = child.wait()
                break
            except KeyboardInterrupt:
                continue  # the terminal also sends the interrupt to the child, which handles it
    return 128 - code if code < 0 else code


@contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward SIGTERM and SIGHUP to the child, so that the child ends. A signal that this process
    ignores is not forwarded (SIGHUP with nohup)."""

    def forward(number: int, frame: Any) -> None:
        child.send_signal(number)

    numbers = [
        each
        for each in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN
    ]
    try:
        before = {number: signal.signal(number, forward) for number in numbers}
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told(status: Path) -> dict[str, Any]:
    """Return the report that the child process wrote to the file ``status``.

    The report is {"steps": n} or {"error": text}; it is {} if the child was killed.
    """
    try:
        told: dict[str, Any] = json.loads(status.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return told
