"""Reports of a server's internal defects: each is printed once, to standard error.

Owns the text and the record of earlier reports. Does not own the reply to a client (the protocols):
after such an error, the server continues. Source: none.
"""

from __future__ import annotations

import sys
import threading
import traceback

_said: set[object] = set()
_lock = threading.Lock()


def say_once(text: str) -> None:
    """Write ``text`` to standard error, unless it was written before."""
    _write_once(text, f"ondie serve: {text}\n")


def show_exception(where: str) -> None:
    """Write the traceback of the exception that is handled to standard error, once for each place
    that has raised it. ``where``: the task of the server at that time."""
    kind, error, trace = sys.exc_info()
    frames = traceback.extract_tb(trace)
    place = (kind, frames[-1].filename, frames[-1].lineno) if frames else (kind, where)
    text = "".join(traceback.format_exception(kind, error, trace))
    _write_once(place, f"ondie serve: {where}: a defect, which is shown once:\n{text}")


def _write_once(key: object, text: str) -> None:
    with _lock:
        new = key not in _said
        _said.add(key)
    if new:
        sys.stderr.write(text)
        sys.stderr.flush()
