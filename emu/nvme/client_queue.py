"""Hand-over of batches between the clients of a served drive and the thread that owns it.

Owns batches, their futures and tickets, the connections of clients, and the lag of completions.
Does not own the thread and its clock (service.py) or the waits in C (kernels/doorbell.py).
Source: NVMe base specification: queues in memory, and a doorbell for each side.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ondie.emu.clock import NEVER, PS_PER_S
from ondie.emu.nvme.command import COMMAND
from ondie.emu.nvme.submission import as_commands
from ondie.emu.units import InputError, real_number
from ondie.kernels import doorbell
from ondie.kernels.doorbell import CLIENT_POLL_NS, NEVER_NS, Doorbell

LOOK_NS = 10**8
"""Interval at which a waiting client checks whether the service has ended, ns."""
MOST_COMMANDS = 1 << 20
"""Largest number of commands in a batch."""
TAG_SHIFT = MOST_COMMANDS.bit_length() - 1
"""Tags of commands in flight: number of the batch, and below this bit number of the command."""
NO_COMMANDS = np.zeros(0, COMMAND)


@dataclass(frozen=True)
class Lag:
    """Delay of the delivery of completions: its wall time minus that of the modeled end. The clock
    ``virtual`` has no lag."""

    completions: int
    late: int
    """Completions with a lag of at least kernels.doorbell.LATE_NS."""
    mean_s: float
    max_s: float
    histogram: tuple[int, ...]
    """Number of completions by the binary logarithm of their lag in nanoseconds: element ``i``
    counts lags from 2**(i - 1) to below 2**i ns."""

    @classmethod
    def of(cls, delivery: doorbell.Delivery) -> Lag:
        """Return the lag of the completions that ``delivery`` has delivered so far."""
        histogram, late, sum_ns, max_ns = delivery.lag()
        count = sum(histogram)
        mean_s = sum_ns / count / 1e9 if count else 0.0
        return cls(count, late, mean_s, max_ns / 1e9, tuple(histogram))

    def percentile(self, share: float) -> float:
        """Return the lag in seconds that at least ``share`` (0 to 1) of the completions do not
        exceed, rounded up to the next power of two in nanoseconds; 0 without completions."""
        if not self.completions:
            return 0.0
        within = np.cumsum(self.histogram) >= math.ceil(share * self.completions)
        return float(2.0 ** int(np.argmax(within)) / 1e9)


@dataclass(eq=False)
class Batch(ABC):
    """Commands of a client (COMMAND[n], or None for idle time) and their memory."""

    commands: np.ndarray | None
    handed_ns: int = 0
    """Wall time of the hand-over, time.perf_counter_ns."""
    buffer: np.ndarray | None = None
    idle_ps: int = 0
    moved_ps: int = 0
    """Simulated time from the hand-over to the arrival."""
    tags: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Tags of the commands, int64[n]."""
    parts: list[np.ndarray] = field(default_factory=list)
    """Completions so far, COMPLETION[n] each."""
    left: int = 0

    def start(self) -> bool:
        """Return True if the batch is to be submitted, False if it was cancelled."""
        return True

    @property
    def wanted(self) -> int:
        """Number of completions for which the client waits next."""
        return self.left

    @abstractmethod
    def succeed(self, done: np.ndarray) -> None:
        """Deliver the completions ``done`` (COMPLETION[n]) to the client."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Deliver ``error`` to the client."""


@dataclass(eq=False)
class FutureBatch(Batch):
    """A batch whose client has a future."""

    future: Future[Any] = field(default_factory=Future)
    function: Callable[[], Any] | None = None
    """Function that the thread of the service calls; None: the batch has commands instead."""

    def start(self) -> bool:
        return self.future.set_running_or_notify_cancel()

    def succeed(self, done: np.ndarray) -> None:
        self.future.set_result(done)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):  # cancelled
            self.future.set_exception(error)


class Ticket(Batch):
    """A batch that a client has handed over through a connection; :meth:`wait` returns its
    completions."""

    def __init__(
        self, client: Connection, commands: np.ndarray, handed_ns: int, buffer: np.ndarray | None
    ) -> None:
        super().__init__(commands, handed_ns, buffer)
        self.client = client
        self.number = 0
        """Position among the batches of the connection in the order in which they end, from 1."""
        self.result: np.ndarray | BaseException | None = None
        self.taken = False
        self.early: Callable[[np.ndarray], None] | None = None
        """Takes the completions of a turn that the client itself runs, before their time."""

    def ended(self, rung: int) -> bool:
        """Return True if the batch was among the first ``rung`` that have ended."""
        return self.result is not None and self.number <= rung

    @property
    def done(self) -> bool:
        """True if the batch has ended, so that :meth:`wait` returns at once."""
        return self.ended(self.client.bell.rung)

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Wait until the batch is done, for up to ``timeout`` seconds. Return COMPLETION[n] in the
        order in which the commands completed, with the tags of the batch.

        Raises TimeoutError, the InputError of a batch that breaks a rule, or the error that has
        ended the service; InputError in the thread of the service.
        """
        return self.wait_until(self.client.deadline(timeout))

    def wait_until(self, deadline_ns: int) -> np.ndarray:
        """Wait as :meth:`wait` does, until ``deadline_ns`` (time.perf_counter_ns)."""
        while True:
            rung = self.client.bell.rung
            if self.ended(rung):
                return self._take()
            if deadline_ns <= time.perf_counter_ns():
                raise TimeoutError("the batch is not done; call wait() of its ticket again")
            self.client.bell.wait(rung, CLIENT_POLL_NS, deadline_ns, other=self.client.service)

    def _take(self) -> np.ndarray:
        self.taken = True
        if isinstance(self.result, BaseException):
            raise self.result
        assert self.result is not None
        return self.result

    def keep(self, result: np.ndarray | BaseException) -> None:
        """Keep the result; the client sees it when the connection's doorbell rings."""
        self.client.append(self)
        self.result = result

    def succeed(self, done: np.ndarray) -> None:
        self.keep(done)
        self.client.bell.ring()

    def fail(self, error: BaseException) -> None:
        self.keep(error)
        self.client.bell.ring()


class Stream(Ticket):
    """A batch whose completions are delivered in parts: each part has a separate ticket, which
    Connection.next returns. Only a batch that fails is returned as this ticket."""

    @property
    def wanted(self) -> int:
        return 1

    def part(self) -> Ticket:
        """Return the ticket of the next completions."""
        part = Ticket(self.client, NO_COMMANDS, self.handed_ns, None)
        part.early = self.early
        return part


class Turns(Protocol):
    """A service whose turns a client may run (nvme/client_turns.py: ClientTurns)."""

    def run_turns(self, batch: Batch, fd: int = -1) -> bool:
        """Run a batch; see ClientTurns.run_turns."""

    def run_single(self, single: Any, handed_ns: int, fd: int, fly: Callable[[], Stream]) -> int:
        """Run one command; see ClientTurns.run_single."""


class Connection:
    """One client of a service: hands over batches, and waits for them in C, without Python's lock.

    Any thread may use it. Completions come sooner than through futures, since a thread that waits
    polls before it sleeps, for up to 0.2 ms, and is awake when its completion is due.
    """

    def __init__(
        self,
        hand_over: Callable[[Batch], None],
        service: Doorbell,
        thread: Callable[[], threading.Thread],
        turns: Turns,
    ) -> None:
        """``hand_over``: takes a batch without ringing. ``service``: doorbell of the service.
        ``thread``: returns its thread. ``turns``: the service."""
        self.bell = Doorbell()
        self.service = service
        self._hand_over, self._thread, self._turns = hand_over, thread, turns
        self._ended: deque[Ticket] = deque()
        self._count = 0
        self._lock = threading.Lock()

    def submit(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> Ticket:
        """Hand over a batch of commands, COMMAND[n], as Service.submit does; return its ticket."""
        ticket = Ticket(self, checked(commands), time.perf_counter_ns(), buffer)
        self._hand_over(ticket)
        self.service.ring()
        return ticket

    def stream(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> Stream:
        """Hand over a batch whose completions :meth:`next` returns in parts, as soon as they are
        due. Return the ticket that :meth:`next` returns if the batch fails."""
        ticket = Stream(self, checked(commands), time.perf_counter_ns(), buffer)
        self._hand_over(ticket)
        self.service.ring()
        return ticket

    def try_stream(
        self, commands: np.ndarray, buffer: np.ndarray | None = None, fd: int = -1,
        handed_ns: int = 0, early: Callable[[np.ndarray], None] | None = None,
    ) -> Stream | None:  # fmt: skip
        """Do what :meth:`stream` does in the calling thread, if no other client uses the drive and
        the clock is ``real``: run the batch there until the batch has ended, or something can be
        read from the file ``fd`` (-1: none). That spares two context switches. Return None, without
        effect, if another client uses it.

        ``handed_ns``: time.perf_counter_ns at which the commands have arrived, 0: now. ``early``:
        function that gets the completions before their time has come, to prepare replies without
        the drive; their time has come when this method returns. Those that the thread of the
        service delivers, :meth:`next` returns.
        """
        ticket = Stream(self, checked(commands), handed_ns or time.perf_counter_ns(), buffer)
        ticket.early = early
        return ticket if self._turns.run_turns(ticket, fd) else None

    def try_single(self, single: Any, handed_ns: int, fd: int, fly: Callable[[], Stream]) -> int:
        """Run one command in the calling thread as ClientTurns.run_single does, ``single``:
        client_turns.Single. A command that is in flight then belongs to the batch that ``fly``
        has got from :meth:`begun`."""
        return self._turns.run_single(single, handed_ns, fd, fly)

    def begun(
        self, commands: np.ndarray, buffer: np.ndarray, early: Callable[[np.ndarray], None]
    ) -> Stream:
        """Return the batch of a command that :meth:`try_single` has begun. ``early``: see
        :meth:`try_stream`."""
        stream = Stream(self, commands, time.perf_counter_ns(), buffer)
        stream.early = early
        return stream

    def run(
        self, commands: np.ndarray, buffer: np.ndarray | None = None, timeout: float | None = None
    ) -> np.ndarray:
        """Hand over a batch and wait for it: :meth:`submit` and Ticket.wait, with one call of C;
        or run it in the calling thread (see :meth:`try_stream`)."""
        handed_ns = time.perf_counter_ns()
        deadline_ns, rung = self.deadline(timeout), self.bell.rung
        ticket = Ticket(self, checked(commands), handed_ns, buffer)
        done: list[np.ndarray] = []
        ticket.early = done.append
        if timeout is not None or not self._turns.run_turns(ticket, -1):
            self._hand_over(ticket)
            self.bell.ring_and_wait(self.service, rung, deadline_ns)
        return done[0] if done else ticket.wait_until(deadline_ns)

    def next(self, timeout: float | None = None) -> Ticket:
        """Wait for up to ``timeout`` seconds until a batch is done, and return the ticket of the
        first such batch that neither this method nor Ticket.wait has returned.

        Raises TimeoutError, and InputError in the thread of the service, or if the service has
        ended and no ticket is left.
        """
        deadline_ns = self.deadline(timeout)
        while True:
            alive, rung = self._thread().is_alive(), self.bell.rung
            with self._lock:
                while self._ended and self._ended[0].ended(rung):
                    ticket = self._ended.popleft()
                    if not ticket.taken:
                        ticket.taken = True
                        return ticket
            if not alive:
                raise InputError("the service has ended")
            now_ns = time.perf_counter_ns()
            if deadline_ns <= now_ns:
                raise TimeoutError(f"no batch is done in {timeout} s")
            look_ns = min(deadline_ns, now_ns + LOOK_NS)
            self.bell.wait(rung, CLIENT_POLL_NS, look_ns, other=self.service)

    def deadline(self, timeout: float | None) -> int:
        """Return the wall time in ns at which ``timeout`` seconds are over. Raises InputError for a
        negative timeout or NaN, and in the thread of the service, which would wait for itself."""
        if threading.current_thread() is self._thread():
            raise InputError("wait: the thread of the service must not wait for itself")
        if timeout is None:
            return NEVER_NS
        if not timeout >= 0:
            raise InputError(f"timeout = {timeout:g} s: must not be negative")
        return min(time.perf_counter_ns() + int(min(timeout, 1e9) * 1e9), NEVER_NS)

    def append(self, ticket: Ticket) -> None:
        """Give ``ticket`` its number; only the thread of the service calls this."""
        self._count += 1
        ticket.number = self._count
        with self._lock:
            while self._ended and self._ended[0].taken:
                self._ended.popleft()
            self._ended.append(ticket)


def checked(commands: np.ndarray) -> np.ndarray:
    """Return a copy of ``commands``, COMMAND[n]. Raises InputError for anything but commands, none,
    or more than MOST_COMMANDS."""
    given = as_commands(commands)
    if not 0 < len(given) <= MOST_COMMANDS:
        raise InputError(f"commands: {len(given)}: must be from 1 to {MOST_COMMANDS}")
    return given


def idle_ps_of(seconds: float) -> int:
    """Return idle time in ps. Raises InputError for negative or too many ``seconds``."""
    seconds = real_number("idle", seconds)
    if not 0 <= seconds * PS_PER_S < NEVER:
        raise InputError(f"idle = {seconds:g} s: must be from 0 to {NEVER / PS_PER_S:.3g} s")
    return round(seconds * PS_PER_S)


def assigned(
    found: np.ndarray, batches: dict[int, Batch]
) -> tuple[list[tuple[Batch, np.ndarray]], list[int]]:
    """Assign completions ``found``, COMPLETION[n], to ``batches``, by number; those that are done
    leave. Return the results that are complete, with the tags of their clients, and the times (ps)
    at which the completions are due."""
    ends, tags = found["end"].tolist(), found["tag"].tolist()
    ready: list[tuple[Batch, np.ndarray]] = []
    due: list[int] = []
    first = 0
    for at, tag in enumerate(tags):  # runs of completions of one batch
        number = tag >> TAG_SHIFT
        batch = batches[number]
        due.append(ends[at] - batch.moved_ps)
        if at + 1 < len(tags) and tags[at + 1] >> TAG_SHIFT == number:
            continue
        part = found[first : at + 1]
        batch.left -= at + 1 - first
        first = at + 1
        if batch.left == 0:
            del batches[number]
        if isinstance(batch, Stream):
            part["tag"] = batch.tags[part["tag"] & MOST_COMMANDS - 1]
            ready.append((batch.part(), part))
            continue
        batch.parts.append(part)
        if batch.left == 0:
            done = batch.parts[0] if len(batch.parts) == 1 else np.concatenate(batch.parts)
            if len(done) == 1:
                done["tag"] = batch.tags
            else:
                at_batch = done["tag"] & MOST_COMMANDS - 1
                done["tag"] = batch.tags[at_batch]
            ready.append((batch, done))
    return ready, due


def kept(ready: list[tuple[Batch, np.ndarray]], early: bool) -> dict[Doorbell, int]:
    """Let the tickets among ``ready`` keep their completions until they are rung for; return how
    often the doorbell of each client is to be rung. ``early``: their clients, which are about to
    wait for the time of the completions themselves, get them now."""
    rings: dict[Doorbell, int] = {}
    for batch, done in ready:
        if not isinstance(batch, Ticket):
            continue
        if early and batch.early is not None:
            batch.early(done)
            continue
        batch.keep(done)
        rings[batch.client.bell] = rings.get(batch.client.bell, 0) + 1
    return rings
