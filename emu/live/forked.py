"""A forked process that reports when it is ready.

Owns the fork, the pipe for this report, and the handling of errors. Does not own the work of the
process. Source: none.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from ondie.emu.units import InputError


def start(run: Callable[[Callable[[], None]], None], otherwise: str) -> int:
    """Fork a process, the leader of a new session, that calls ``run``; return it when it is ready.

    ``run``: called with the function that reports this, to be called once; the process ends when it
    returns, with exit code 0, or 1 if it raises. Raises InputError with the message of an
    InputError that ``run`` has raised before; with the message ``otherwise`` if the process has
    ended in another way. Later errors are printed by the process.
    """
    told, telling = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _be(run, telling)
    os.close(telling)
    with open(told, encoding="utf-8") as file:
        answer = file.readline().rstrip("\n")  # processes of the process have this pipe, too
    if answer != "ready":
        os.waitpid(pid, 0)
        raise InputError(answer or otherwise)
    return pid


def _be(run: Callable[[Callable[[], None]], None], telling: int) -> NoReturn:
    """Be the process."""
    code, is_ready = 1, False

    def ready() -> None:
        nonlocal is_ready
        is_ready = True  # from now on, the descriptor may be another file
        os.write(telling, b"ready\n")
        os.close(telling)

    try:
        os.setsid()
        run(ready)
        code = 0
    except InputError as error:
        os.write(2 if is_ready else telling, f"{error}\n".encode())
    except BaseException:  # noqa: BLE001 - the fork must not go on in the caller's frames
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
