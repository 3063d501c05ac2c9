"""Messages of the control socket (commands and arguments as lines of JSON), and its client side.

Owns the definitions that server and client share. Does not own the execution of commands
(control.py) or terminal output (cli). The module does not import modules of the drive, so that a
client starts fast.
Source: this project; JSON lines (jsonlines.org), as in QEMU's monitor protocol (QMP).

A request is a JSON object with the key "command" and the arguments of the command, and ends with a
newline. The reply is {"result": {...}} or {"error": "message"}. A client may send any number of
requests through one connection.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

from ondie.emu.units import InputError, quoted

MOST_BYTES = 4096
"""Maximum size of a request to the control socket, bytes."""
MOST_SHOWN = 40
"""Maximum number of characters of a value that an error message quotes."""
Result = dict[str, Any]


@dataclass(frozen=True)
class Arguments:
    """Arguments of a control command. ``types``: type of each argument, by name. ``required``:
    names of the arguments that must be given."""

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
    """Return ``message``, a request or a reply, as a line of JSON."""
    return json.dumps(message).encode() + b"\n"


def _shown(value: object) -> str:
    """Return ``value`` as JSON for an error message, shortened to MOST_SHOWN characters."""
    text = json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def parse(line: bytes) -> tuple[str, Result]:
    """Return (command, arguments) of the request ``line``. Raises InputError if the request is not
    a JSON object, if the command or an argument is invalid, or if a required argument is
    missing."""
    try:
        request = json.loads(line)
    except ValueError as error:  # also bytes that are no UTF-8
        raise InputError(f"request {quoted(repr(line[:40]))}: must be one JSON object") from error
    except RecursionError as error:
        raise InputError(
            f"request {quoted(repr(line[:40]))}: nested too deeply; must be one JSON object"
        ) from error
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
            raise InputError(f"{name}: argument {_shown(key)}: unknown; the arguments are: {names}")
        if type(value) is not kind:
            wanted = "a whole number" if kind is int else "true or false"
            raise InputError(f"{name}: {key} = {_shown(value)}: must be {wanted}")
    if missing := [key for key in known.required if key not in request]:
        raise InputError(f"{name}: {' and '.join(missing)} must be given")
    return name, request


def send(path: str, command: str, arguments: Result) -> Result:
    """Send a request to the control socket at ``path``; return the result of the command. Raises
    InputError if the socket does not reply, or if the reply is an error."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(path)
            with contextlib.suppress(BrokenPipeError):  # a refusal may have arrived already
                sock.sendall(line_of({"command": command, **arguments}))
            with sock.makefile("rb") as lines:
                line = lines.readline()
    except OSError as error:
        raise InputError(f"{path}: the command failed: {error.strerror or error}; give "
                         "the SOCKET of a running `ondie serve --ctl SOCKET`"
                         ) from error  # fmt: skip
    try:
        reply = json.loads(line)
    except ValueError as error:
        if line:
            why = "is not a control socket; give the SOCKET of `ondie serve --ctl SOCKET`"
        else:
            why = "no reply; give the SOCKET of a running `ondie serve --ctl SOCKET`"
        raise InputError(f"{path}: {why}") from error
    if "error" in reply:
        raise InputError(reply["error"])
    return reply["result"]


def flat(result: Result) -> list[tuple[str, Any]]:
    """Return (name, value) pairs of a result. The name of a value in an inner object has the form
    OBJECT.NAME."""
    found: list[tuple[str, Any]] = []
    for name, value in result.items():
        if isinstance(value, dict):
            found += [(f"{name}.{inner}", each) for inner, each in value.items()]
        else:
            found.append((name, value))
    return found
