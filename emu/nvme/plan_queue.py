"""Update plans that clients run on a served drive concurrently with its commands.

An update plan is a sequence of operations that an update path generates. Owns the list of running
plans, and the delivery of their results. Does not own the drive and its thread (service.py), or the
work of a plan (paths/, states/). Source: this project.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from ondie.emu.units import InputError

LAST_S = 10.0
"""Wall time for which running plans may continue after the end of the service was requested, s."""


class Running(Protocol):
    """Interface of an update plan that runs on a served drive."""

    @property
    def done(self) -> bool:
        """True if the update plan is complete or has ended early."""

    @property
    def error(self) -> Exception | None:
        """Error that ended the update plan early, or None if the plan has not ended early."""

    def stop(self, error: Exception) -> None:
        """End the plan early with ``error``, including the operations that it has started."""


def error_to(future: Future[Any]) -> Callable[[Future[Any]], None]:
    """Return a done callback for another future. If that future has an error, the callback copies
    the error to ``future``."""

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
    """Update plans that run on a served drive. Only the thread that owns the drive may use the
    queue, except for :meth:`end_soon`."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._last = math.inf
        """Wall time at which all plans are ended early, s (time.monotonic)."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, plan: Running, end: Callable[[], Any], future: Future[Any]) -> None:
        """Add a running plan. ``end``: function that is called when the plan is complete.
        ``future``: receives the result of ``end``, or the error of a plan that ended early."""
        self._entries.append(_Entry(plan, end, future))

    def end_done(self) -> None:
        """Remove the plans that are done and deliver their results. After the wall time set by
        :meth:`end_soon`, end all plans early."""
        if self._entries and time.monotonic() > self._last:
            for each in self._entries:
                each.plan.stop(InputError("the service has ended before the plan was complete"))
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
        """Set the time at which plans that are still running are ended: LAST_S from now, unless an
        earlier time is already set. Any thread may call this method."""
        self._last = min(time.monotonic() + LAST_S, self._last)

    def fail(self, error: BaseException) -> None:
        """Remove all plans and deliver ``error`` to their clients."""
        entries, self._entries = self._entries, []
        for _, _, future in entries:
            future.set_exception(error)
