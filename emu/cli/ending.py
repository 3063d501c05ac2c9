"""Signals that end a command in order, and the message and exit code of an interrupted command.

Owns the handlers of SIGTERM and SIGHUP. Does not own Ctrl-C, which Python handles, or policies that
do not return (__init__.py).
Source: POSIX shells: 128 plus the number of the signal.
"""

from __future__ import annotations

import signal

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does. A signal that is ignored (nohup) stays ignored."""


class Terminated(KeyboardInterrupt):
    """Raised in the main thread by the signal ``number``, one of ENDING."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = signal.Signals(number)


def end_in_order() -> None:
    """Let the first of the signals ENDING raise Terminated in the main thread, so that partial
    files are removed. Further ones are ignored: they must not interrupt that."""

    ending = False

    def terminate(number: int, frame: object) -> None:
        nonlocal ending
        if not ending:  # SIG_IGN instead would let Python report one that is already pending
            ending = True
            raise Terminated(number)

    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, terminate)


def interruption(error: BaseException | None) -> tuple[str, int]:
    """Return the message and the exit code of a command that ``error``, or the error that caused
    it, has interrupted: 130 after Ctrl-C, else 128 plus the number of the signal."""
    while error is not None and not isinstance(error, Terminated):
        error = error.__cause__ or error.__context__
    if error is None:
        return "interrupted; nothing was written", 130
    return f"ended by {error.number.name}; nothing was written", 128 + error.number
