"""Reports of internal defects of a server. Each defect is reported once, on standard error.

Owns the text of reports, and the record of earlier reports. Does not own the reply to a client (the
protocols). The server continues after a defect.
Source: this project.
"""

from __future__ import annotations

import sys
import threading
import traceback

_said: set[object] = set()
_lock = threading.Lock()


def say_once(text: str) -> None:
    """Write ``text`` to standard error unless this process has written it before."""
    _write_once(text, f"ondie serve: {text}\n")


def show_exception(where: str) -> None:
    """Write the traceback of the current exception to standard error, but only once for each
    exception type and source line. ``where``: task during which the exception was raised."""
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
