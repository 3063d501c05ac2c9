"""Plans of clients that run on a served drive concurrently with its commands.

Owns which plans run, and their ends. Does not own the drive and its thread (service.py), or the
work of a plan (paths/, states/). Source: none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from ondie.emu.units import InputError

LAST_S = 10.0
"""Wall time for which plans continue after the end of the service was requested, s."""


class Running(Protocol):
    """A plan that runs on the drive."""

    @property
    def done(self) -> bool:
        """True if it is complete, or has ended early."""

    @property
    def error(self) -> Exception | None:
        """Error that has ended the plan early; None: none has."""

    def stop(self, error: Exception) -> None:
        """End the plan early with ``error``, together with the operations that it has begun."""


def error_to(future: Future[Any]) -> Callable[[Future[Any]], None]:
    """Return a callback that sets the error of another future, if it has one, in ``future``."""

    def ended(other: Future[Any]) -> None:
        error = other.exception()
        if error is not None:
            future.set_exception(error)

    return ended


class _Entry(NamedTuple):
    plan: Running
    end: Callable[[], Any]
    future: Future[Any]


class PlanQueue:
    """Plans that run; only the thread that owns the drive may use it."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._last = math.inf
        """Wall time, s, at which all plans end early."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, plan: Running, end: Callable[[], Any], future: Future[Any]) -> None:
        """Add a plan. ``end``: called when it is complete; its result is that of ``future``, which
        gets the error of a plan that has ended early."""
        self._entries.append(_Entry(plan, end, future))

    def end_done(self) -> None:
        """End the plans that are done."""
        if self._entries and time.monotonic() > self._last:
            for each in self._entries:
                each.plan.stop(InputError("the service has ended"))
        ended = [each for each in self._entries if each.plan.done]
        self._entries = [each for each in self._entries if each not in ended]
        for plan, end, future in ended:
            try:
                if plan.error is not None:
                    raise plan.error
                future.set_result(end())
            except Exception as error:  # noqa: BLE001 - the client gets it
                future.set_exception(error)

    def end_soon(self) -> None:
        """End the plans that are not done after LAST_S. Any thread may call this."""
        self._last = min(time.monotonic() + LAST_S, self._last)

    def fail(self, error: BaseException) -> None:
        """End all plans with ``error``."""
        entries, self._entries = self._entries, []
        for _, _, future in entries:
            future.set_exception(error)
