"""Doorbells: event counts that threads ring and wait for, in C without Python's global interpreter
lock.

Owns access to the C functions and their time limits. Does not own the data that the threads
exchange (emu/nvme/client_queue.py) or the implementation of the waits (csrc/doorbell.c).
Source: NVMe base specification, for the name: a host rings a doorbell to announce new entries.
"""

from typing import Any

from . import native
from .errors import KernelError

NEVER_NS = (1 << 63) - 1
POLL_NS = 100_000
"""Time for which a thread polls after its last work before it sleeps, ns. Waking a sleeping thread
takes up to this time."""
CLIENT_POLL_NS = 200_000
"""Time for which a client polls before it sleeps, ns: twice the latency of a flash read."""
LAST_NS = 100_000
"""Time before a deadline at which a thread stops sleeping and polls, ns. A sleep may end up to this
time too late."""
SIGNAL_NS = 100_000_000
"""Maximum time of a client's wait in C, ns. Python handles signals between two waits."""
LATE_NS = 100_000
"""Smallest lag that counts as late, ns. The lag of a completion is the time from its due time to
its delivery."""


class Doorbell:
    """Counter of events ("rings"): threads increase it and wait until it increases. Raises
    KernelError if the C extension is not built."""

    def __init__(self) -> None:
        if native.lib is None:
            raise KernelError("doorbells require the C extension, which is not built")
        self._bell = native.ffi.new("ondie_doorbell *")

    @property
    def rung(self) -> int:
        """Number of rings of this doorbell so far. A thread that sees a ring also sees all memory
        writes before the ring."""
        return int(native.lib.ondie_rung(self._bell))

    def ring(self, count: int = 1) -> None:
        """Add ``count`` rings and wake all threads that wait for this doorbell."""
        native.lib.ondie_ring(self._bell, count)

    def wait(
        self, seen: int, poll_ns: int = POLL_NS, deadline_ns: int = NEVER_NS, *,
        last_ns: int = 0, other: "Doorbell | None" = None,
    ) -> bool:  # fmt: skip
        """Wait until the number of rings differs from ``seen``, until ``deadline_ns``
        (time.perf_counter_ns), or until a signal arrives. Return True if the number of rings
        differs.

        The thread polls for the first ``poll_ns`` and for the last ``last_ns`` before the deadline;
        it sleeps otherwise. ``other``: given if the calling thread is a client; the doorbell for
        which the thread that will ring this doorbell waits. A client polls only on a processor that
        this other thread does not need, and waits for at most SIGNAL_NS.
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
        """Wait until ``deadline_ns`` (time.perf_counter_ns) and return True. Return False earlier
        if the number of rings differs from ``seen``, if the file ``fd`` has input or has ended, or
        if a signal arrives. ``fd``: -1 for no file. The thread polls for the last ``last_ns`` ns
        before the deadline."""
        found = native.lib.ondie_await_quietly(self._bell, seen, fd, last_ns, deadline_ns)
        return bool(found == native.lib.ONDIE_TIMEOUT)

    def ring_and_wait(self, other: "Doorbell", seen: int, deadline_ns: int = NEVER_NS) -> bool:
        """Ring ``other`` once, then wait for this doorbell as a client. One C call does both, so
        the thread does not take Python's global interpreter lock in between."""
        deadline_ns = min(deadline_ns, native.lib.ondie_now() + SIGNAL_NS)
        found = native.lib.ondie_ring_and_await(
            other._bell, self._bell, seen, CLIENT_POLL_NS, deadline_ns
        )
        return bool(found == native.lib.ONDIE_RUNG)


def sleep_exactly() -> None:
    """Minimize the timer slack of the calling thread, so that its sleeps end as early as
    possible."""
    native.lib.ondie_sleep_exactly()


class Delivery:
    """Object that delivers completions to clients at given times and records the lag of each
    completion: the time from its due time to its delivery."""

    def __init__(self, own: Doorbell) -> None:
        """``own``: doorbell that clients ring to wake the delivering thread."""
        self._own = own
        self._lag: Any = native.ffi.new("ondie_lag *")
        self._lag.late_ns = LATE_NS
        self._reserve(64)

    def _reserve(self, count: int) -> None:
        """Allocate arrays for ``count`` clients and ``count`` completions."""
        self._room = count
        self._bells = native.ffi.new("ondie_doorbell *[]", count)
        self._counts = native.ffi.new("uint64_t[]", count)
        self._due_ns = native.ffi.new("int64_t[]", count)

    def deliver(self, at_ns: int, clients: dict[Doorbell, int], due_ns: list[int]) -> bool:
        """Wait until ``at_ns`` (time.perf_counter_ns), add the lags of the completions that were
        due at ``due_ns`` to the statistics of :meth:`lag`, and add clients[bell] rings to each
        doorbell ``bell``. Return True if a client was asleep; this client may need the processor of
        the calling thread."""
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
        """Wait until ``at_ns`` (time.perf_counter_ns), and add the lag of one completion to the
        statistics of :meth:`lag`. The completion was due at ``due_ns``, and no client waits for it.
        """
        self._due_ns[0] = due_ns
        native.lib.ondie_deliver(
            at_ns, LAST_NS, self._bells, self._counts, 0, self._due_ns, 1, self._lag,
            self._own._bell,
        )  # fmt: skip

    def lag(self) -> tuple[list[int], int, float, int]:
        """Return (histogram, number of late completions, sum of the lags in ns, maximum lag in ns).
        Bin i of the histogram counts the lags from 2^(i - 1) to 2^i - 1 ns; bin 0 counts the lags
        of 0 ns."""
        lag = self._lag
        return list(lag.histogram), int(lag.late), float(lag.sum_ns), int(lag.max_ns)
