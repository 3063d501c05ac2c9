"""Doorbells: hand-overs between threads, and waits for them in C, without Python's lock.

Owns access to the C functions and their limits of time. Does not own the data that are handed over
(emu/nvme/client_queue.py) or the waits themselves (csrc/doorbell.c).
Source: NVMe base specification, for the name: who hands something over rings a doorbell.
"""

from typing import Any

from . import native
from .errors import KernelError

NEVER_NS = (1 << 63) - 1
POLL_NS = 100_000
"""Time after its last work for which a thread polls before it sleeps, ns: waking a sleeping thread
takes up to this time."""
CLIENT_POLL_NS = 200_000
"""Time for which a client polls before it sleeps, ns: twice the latency of a read of flash."""
LAST_NS = 100_000
"""Time before a deadline from which a thread polls the clock, ns: a sleep may end late by this
time."""
SIGNAL_NS = 100_000_000
"""Longest wait of a client in C, ns, so that Python handles signals in between."""
LATE_NS = 100_000
"""Lag from which a completion counts as late, ns."""


class Doorbell:
    """A count that threads increase and wait for. Raises KernelError without the C extension."""

    def __init__(self) -> None:
        if native.lib is None:
            raise KernelError("doorbells need the C extension; it is not built")
        self._bell = native.ffi.new("ondie_doorbell *")

    @property
    def rung(self) -> int:
        """Number of rings so far. Memory writes before a ring are visible to the threads that see
        it."""
        return int(native.lib.ondie_rung(self._bell))

    def ring(self, count: int = 1) -> None:
        """Ring ``count`` times, and wake all threads that wait."""
        native.lib.ondie_ring(self._bell, count)

    def wait(
        self, seen: int, poll_ns: int = POLL_NS, deadline_ns: int = NEVER_NS, *,
        last_ns: int = 0, other: "Doorbell | None" = None,
    ) -> bool:  # fmt: skip
        """Wait until the number of rings differs from ``seen``, until ``deadline_ns``
        (time.perf_counter_ns), or until a signal. Return True if it was rung.

        Poll for the first ``poll_ns`` and the ``last_ns`` before the deadline; sleep otherwise.
        ``other``: doorbell of the thread that will ring. A client, which names it, polls only on
        a processor that this thread does not need, and returns after SIGNAL_NS at the latest.
        """
        if other is not None:
            deadline_ns = min(deadline_ns, native.lib.ondie_now() + SIGNAL_NS)
        found = native.lib.ondie_await(
            self._bell,
            seen,
            poll_ns,
            last_ns,
            deadline_ns,
            native.ffi.NULL if other is None else other._bell,
        )
        return bool(found == native.lib.ONDIE_RUNG)

    def quiet(self, seen: int, fd: int, deadline_ns: int, *, last_ns: int = 0) -> bool:
        """Wait until ``deadline_ns`` (time.perf_counter_ns). Return False, before, if the number of
        rings is not ``seen``, if something can be read from the file ``fd`` (-1: none) or it has
        ended, or after a signal. Poll for the ``last_ns`` before the deadline."""
        found = native.lib.ondie_await_quietly(self._bell, seen, fd, last_ns, deadline_ns)
        return bool(found == native.lib.ONDIE_TIMEOUT)

    def ring_and_wait(self, other: "Doorbell", seen: int, deadline_ns: int = NEVER_NS) -> bool:
        """Ring ``other`` and wait for this doorbell as a client does, without Python's lock in
        between."""
        deadline_ns = min(deadline_ns, native.lib.ondie_now() + SIGNAL_NS)
        found = native.lib.ondie_ring_and_await(
            other._bell, self._bell, seen, CLIENT_POLL_NS, deadline_ns
        )
        return bool(found == native.lib.ONDIE_RUNG)


def sleep_exactly() -> None:
    """Let sleeps of the calling thread end as early as the kernel can end them."""
    native.lib.ondie_sleep_exactly()


class Delivery:
    """Delivery of completions at their time, and the count of their lag."""

    def __init__(self, own: Doorbell) -> None:
        """``own``: the doorbell that clients ring for the thread that delivers."""
        self._own = own
        self._lag: Any = native.ffi.new("ondie_lag *")
        self._lag.late_ns = LATE_NS
        self._reserve(64)

    def _reserve(self, count: int) -> None:
        """Make room for ``count`` clients and completions."""
        self._room = count
        self._bells = native.ffi.new("ondie_doorbell *[]", count)
        self._counts = native.ffi.new("uint64_t[]", count)
        self._due_ns = native.ffi.new("int64_t[]", count)

    def deliver(self, at_ns: int, clients: dict[Doorbell, int], due_ns: list[int]) -> bool:
        """Wait until ``at_ns`` (time.perf_counter_ns), count the lag of completions that were due
        at ``due_ns``, and ring each doorbell of ``clients`` as often as it says. Return True if one
        of them slept: it may need this processor."""
        if max(len(clients), len(due_ns)) > self._room:
            self._reserve(2 * max(len(clients), len(due_ns)))
        for at, (bell, count) in enumerate(clients.items()):
            self._bells[at], self._counts[at] = bell._bell, count
        self._due_ns[0 : len(due_ns)] = due_ns
        asleep = native.lib.ondie_deliver(
            at_ns, LAST_NS, self._bells, self._counts, len(clients), self._due_ns, len(due_ns),
            self._lag, self._own._bell,
        )  # fmt: skip
        return bool(asleep)

    def deliver_one(self, at_ns: int, due_ns: int) -> None:
        """Wait until ``at_ns``, and count the lag of a completion that was due at ``due_ns`` and
        that no client waits for."""
        self._due_ns[0] = due_ns
        native.lib.ondie_deliver(
            at_ns, LAST_NS, self._bells, self._counts, 0, self._due_ns, 1, self._lag,
            self._own._bell,
        )  # fmt: skip

    def lag(self) -> tuple[list[int], int, float, int]:
        """Return the histogram, the number of late completions, and the sum and the maximum of the
        lags in ns."""
        lag = self._lag
        return list(lag.histogram), int(lag.late), float(lag.sum_ns), int(lag.max_ns)
