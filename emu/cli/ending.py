"""Termination of a command by a signal, and the message and exit code of an interrupted command.

Owns the handlers of SIGTERM and SIGHUP, and those of SIGINT, SIGTERM and SIGHUP while a server
runs. Does not own Ctrl-C of other commands, which Python handles, or the interruption of a
user-defined policy that does not return (__init__.py). Source: POSIX shells: 128 plus the number of
the signal.
"""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command in the same way as Ctrl-C. A signal that is ignored (nohup) stays
ignored."""


NOTHING = "nothing was written"


class Terminated(KeyboardInterrupt):
    """Exception that a signal raises in the main thread.

    ``number``: the signal, SIGINT or one of ENDING. ``effect``: text about the work that the
    command had done before the signal.
    """

    def __init__(self, number: int, effect: str = NOTHING) -> None:
        super().__init__()
        self.number = signal.Signals(number)
        self.effect = effect


@contextmanager
def effect_of_interruption(effect: Callable[[], str]) -> Iterator[None]:
    """Add the text that ``effect`` returns to the message about an interruption in this context.
    The text describes the files that the command has written."""
    try:
        yield
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, Terminated) else signal.SIGINT
        raise Terminated(number, effect()) from error


class EndOfServing:
    """Signal handlers of a command that starts a server and serves until SIGINT or a signal of
    ENDING.

    A signal that is ignored stays ignored. Before :meth:`ready`, the first signal raises Terminated
    with ``effect`` in the main thread. After :meth:`ready`, the first signal sets :attr:`came`, so
    that the command can close the server in order. Further signals are ignored. At the end of the
    context, the previous handlers are restored.
    """

    def __init__(self, effect: str) -> None:
        self._effect = effect
        self._starting = True
        self._number = 0  # a lock of an Event could be held where the handler runs
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, *ENDING):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def came(self) -> bool:
        """True if a signal that ends the server has arrived."""
        return self._number != 0

    def ready(self) -> None:
        """Mark the server as started. Raises Terminated if a signal has arrived but its exception
        was lost: Python drops exceptions that are raised in a finalizer."""
        self._starting = False
        if self.came:
            raise Terminated(self._number, self._effect)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            return
        self._number = number
        if self._starting:
            raise Terminated(number, self._effect)


def end_in_order() -> None:
    """Make the first signal of ENDING raise Terminated in the main thread, so that partial files
    are removed. Further signals are ignored, so that they do not interrupt the removal."""

    ending = False

    def terminate(number: int, frame: object) -> None:
        nonlocal ending
        if not ending:  # SIG_IGN instead would let Python report one that is already pending
            ending = True
            atexit.register(_ignore_further)
            raise Terminated(number)

    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, terminate)


def _ignore_further() -> None:
    """Ignore the signals of ENDING until the process has ended.

    The interpreter removes its handlers some milliseconds before the process ends. A second signal
    during this time would replace the exit code of the first signal.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # what is pending has run on return
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def interruption(error: BaseException | None) -> tuple[str, int]:
    """Return the message and the exit code of an interrupted command.

    ``error``: exception that interrupted the command, or an exception raised from this exception or
    while it was handled. The exit code is 130 after Ctrl-C, else 128 plus the number of the signal.
    """
    while error is not None and not isinstance(error, Terminated):
        error = error.__cause__ or error.__context__
    if error is None:
        return f"interrupted; {NOTHING}", 128 + signal.SIGINT
    ended = "interrupted" if error.number == signal.SIGINT else f"ended by {error.number.name}"
    return f"{ended}; {error.effect}", 128 + error.number
