"""A forked process that reports when it is ready.

Owns the fork, the pipe for this report, and the handling of errors. Does not own the work that the
process does.
Source: this project.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from ondie.emu.units import InputError


def start(run: Callable[[Callable[[], None]], None], message_on_exit: str) -> int:
    """Fork a process that becomes the leader of a new session and calls ``run``. Return its process
    ID when the process is ready.

    ``run`` receives a function that it must call once, when the process is ready. The process exits
    with code 0 when ``run`` returns, and with code 1 when ``run`` raises an exception. If ``run``
    raises InputError before the process is ready, this function raises InputError with the same
    message. If the process terminates in another way before it is ready, this function raises
    InputError with the message ``message_on_exit``. The process prints later errors to standard
    error.
    """
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _run_child(run, write_end)
    os.close(write_end)
    with open(read_end, encoding="utf-8") as file:
        answer = file.readline().rstrip("\n")  # processes of the process have this pipe, too
    if answer != "ready":
        os.waitpid(pid, 0)
        raise InputError(answer or message_on_exit)
    return pid


def _run_child(run: Callable[[Callable[[], None]], None], write_end: int) -> NoReturn:
    """Call ``run`` in the child process, report to ``write_end``, and exit."""
    code, is_ready = 1, False

    def ready() -> None:
        nonlocal is_ready
        is_ready = True  # from now on, the descriptor may be another file
        os.write(write_end, b"ready\n")
        os.close(write_end)

    try:
        os.setsid()
        run(ready)
        code = 0
    except InputError as error:
        os.write(2 if is_ready else write_end, f"{error}\n".encode())
    except BaseException:  # noqa: BLE001 - the fork must not go on in the caller's frames
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
