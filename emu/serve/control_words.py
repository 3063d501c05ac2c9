"""Messages of the control socket: the commands with their arguments, lines of JSON, the client's
side.

Owns the definitions that both sides share; it imports no part of a drive, so that a client starts
fast. Does not own the execution of commands (control.py) or the output (cli).
Source: this project; JSON lines (jsonlines.org), as QEMU's monitor (QMP) has them.

A request is an object with "command" and its arguments, and ends with a newline. The reply is
{"result": {...}} or {"error": "one sentence"}. A connection carries any number of requests.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

from ondie.emu.units import InputError, quoted

MOST_BYTES = 4096
"""Longest request, bytes."""
MOST_SHOWN = 40
"""Longest value that an error repeats, characters."""
Result = dict[str, Any]


@dataclass(frozen=True)
class Arguments:
    """Arguments of a command: their types by name, and the names of those that must be given."""

    types: dict[str, type]
    required: tuple[str, ...] = ()


COMMANDS = {
    "counters": Arguments({}),
    "power-cut": Arguments({"after": int, "restart": bool}),
    "power-on": Arguments({}),
    "inject-media-error": Arguments({"offset": int, "size": int}, ("offset", "size")),
    "wear-out": Arguments({}),
    "replace-die": Arguments({"die": int}, ("die",)),
}


def line_of(message: Result) -> bytes:
    """Return a request or a reply as a line."""
    return json.dumps(message).encode() + b"\n"


def _shown(value: object) -> str:
    """Return a value of a request as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def parse(line: bytes) -> tuple[str, Result]:
    """Return the command of a request and its arguments. Raises InputError."""
    try:
        request = json.loads(line)
    except ValueError as error:  # also bytes that are no UTF-8
        raise InputError(f"request {quoted(repr(line[:40]))}: must be one JSON object") from error
    except RecursionError as error:
        raise InputError("request: is nested too deeply") from error
    if not isinstance(request, dict):
        raise InputError(f"request {quoted(repr(line[:40]))}: must be one JSON object")
    name = request.pop("command", None)
    known = COMMANDS.get(name) if isinstance(name, str) else None
    if known is None:
        raise InputError(f"command {_shown(name)}: must be one of {', '.join(COMMANDS)}")
    for key, value in request.items():
        kind = known.types.get(key)
        if kind is None:
            names = ", ".join(known.types) or "none"
            raise InputError(f"{name}: argument {_shown(key)}: must be one of: {names}")
        if type(value) is not kind:
            wanted = "a whole number" if kind is int else "true or false"
            raise InputError(f"{name}: {key} = {_shown(value)}: must be {wanted}")
    if missing := [key for key in known.required if key not in request]:
        raise InputError(f"{name}: {' and '.join(missing)} must be given")
    return name, request


def send(path: str, command: str, arguments: Result) -> Result:
    """Send a request to the control socket at ``path``; return its result. Raises InputError if
    there is no answer, or with the error of the reply."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(path)
            with contextlib.suppress(BrokenPipeError):  # a refusal may have arrived already
                sock.sendall(line_of({"command": command, **arguments}))
            with sock.makefile("rb") as lines:
                line = lines.readline()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; is this the --ctl of a running "
                         "`ondie serve`?") from error  # fmt: skip
    try:
        reply = json.loads(line)
    except ValueError as error:
        if line:
            why = "is not a control socket; give the one of `ondie serve --ctl SOCKET`"
        else:
            why = "no reply; the server has ended, or this is not its --ctl socket"
        raise InputError(f"{path}: {why}") from error
    if "error" in reply:
        raise InputError(reply["error"])
    return reply["result"]


def flat(result: Result) -> list[tuple[str, Any]]:
    """Return the names and values of a result; those of an inner object have a prefix."""
    found: list[tuple[str, Any]] = []
    for name, value in result.items():
        if isinstance(value, dict):
            found += [(f"{name}.{inner}", each) for inner, each in value.items()]
        else:
            found.append((name, value))
    return found
