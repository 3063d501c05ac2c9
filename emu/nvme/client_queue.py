"""Hand-over of batches between the clients of a served drive and the service thread, which owns the
drive.

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
"""Interval at which a client that waits for completions checks whether the service has ended,
ns."""
MOST_COMMANDS = 1 << 20
"""Maximum number of commands in a batch."""
TAG_SHIFT = MOST_COMMANDS.bit_length() - 1
"""Number of low bits of a tag that hold the position of a command in its batch; the higher bits
hold the number of the batch."""
NO_COMMANDS = np.zeros(0, COMMAND)


@dataclass(frozen=True)
class Lag:
    """Lag of completions: the wall time at which a completion is delivered minus the wall time of
    its modeled end. The clock ``virtual`` has no lag."""

    completions: int
    late: int
    """Number of late completions: those with a lag of at least kernels.doorbell.LATE_NS."""
    mean_s: float
    max_s: float
    histogram: tuple[int, ...]
    """Histogram of lags: element ``i`` is the number of completions with a lag from 2**(i - 1) to
    below 2**i ns."""

    @classmethod
    def of(cls, delivery: doorbell.Delivery) -> Lag:
        """Return the lag of all completions that ``delivery`` has delivered to clients so far."""
        histogram, late, sum_ns, max_ns = delivery.lag()
        count = sum(histogram)
        mean_s = sum_ns / count / 1e9 if count else 0.0
        return cls(count, late, mean_s, max_ns / 1e9, tuple(histogram))

    def percentile(self, share: float) -> float:
        """Return the smallest power of two in nanoseconds, converted to seconds, that bounds the
        lag of at least the fraction ``share`` (0 to 1) of the completions; 0 if there are no
        completions."""
        if not self.completions:
            return 0.0
        within = np.cumsum(self.histogram) >= math.ceil(share * self.completions)
        return float(2.0 ** int(np.argmax(within)) / 1e9)


@dataclass(eq=False)
class Batch(ABC):
    """Base class of batches: commands that a client hands over together, COMMAND[n], with the
    buffer of their data. ``commands`` is None if the batch only lets time pass or calls a
    function."""

    commands: np.ndarray | None
    handed_ns: int = 0
    """Value of time.perf_counter_ns when the client handed over the batch."""
    buffer: np.ndarray | None = None
    idle_ps: int = 0
    moved_ps: int = 0
    """Simulated time from the hand-over of the batch to the arrival of its commands, ps."""
    tags: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Tags that the client has assigned to the commands of the batch, int64[n]."""
    parts: list[np.ndarray] = field(default_factory=list)
    """Completions of the batch so far, one array COMPLETION[n] for each delivery."""
    left: int = 0

    def start(self) -> bool:
        """Mark the batch as running, so that the caller can submit it. Return False if the client
        has cancelled the batch; the caller then does not submit it."""
        return True

    @property
    def wanted(self) -> int:
        """Number of further completions of the batch that the client waits for."""
        return self.left

    @abstractmethod
    def succeed(self, done: np.ndarray) -> None:
        """Deliver ``done``, completions of the batch (COMPLETION[n]), to the client."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Deliver ``error``, which ended the batch, to the client."""


@dataclass(eq=False)
class FutureBatch(Batch):
    """A batch (or function call) whose result the client receives through a future."""

    future: Future[Any] = field(default_factory=Future)
    function: Callable[[], Any] | None = None
    """Function that the service thread calls instead of running commands; None if the batch has
    commands."""

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
        """Position of the batch in the order in which the connection's batches end, from 1."""
        self.result: np.ndarray | BaseException | None = None
        self.taken = False
        self.early: Callable[[np.ndarray], None] | None = None
        """Function that receives completions before their due time if the client's thread simulates
        them; see :meth:`Connection.try_stream`."""

    def ended(self, rung: int) -> bool:
        """Return True if the batch has ended and the client may see its result. ``rung``: number of
        rings of the connection's doorbell, which rings once for each batch that ended."""
        return self.result is not None and self.number <= rung

    @property
    def done(self) -> bool:
        """True if the batch has ended, so that :meth:`wait` returns without waiting."""
        return self.ended(self.client.bell.rung)

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Wait until the batch is done, for at most ``timeout`` seconds (None: without a limit).
        Return COMPLETION[n] in the order in which the commands completed, with the client's tags.

        Raises TimeoutError if the timeout expires. Raises InputError if a command of the batch
        breaks a rule of submission.py, if the timeout is negative or NaN, or if the service thread
        calls this method. Raises the error that ended the service, if there is one.
        """
        return self.wait_until(self.client.deadline(timeout))

    def wait_until(self, deadline_ns: int) -> np.ndarray:
        """Wait as :meth:`wait` does. The timeout expires when time.perf_counter_ns reaches
        ``deadline_ns``."""
        while True:
            rung = self.client.bell.rung
            if self.ended(rung):
                return self._take()
            if deadline_ns <= time.perf_counter_ns():
                raise TimeoutError("the batch is not done yet; call the ticket's wait() again")
            self.client.bell.wait(rung, CLIENT_POLL_NS, deadline_ns, other=self.client.service)

    def _take(self) -> np.ndarray:
        self.taken = True
        if isinstance(self.result, BaseException):
            raise self.result
        assert self.result is not None
        return self.result

    def keep(self, result: np.ndarray | BaseException) -> None:
        """Store ``result``, the completions of the batch or the error that ended it. The client
        sees it when the connection's doorbell rings."""
        self.client.append(self)
        self.result = result

    def succeed(self, done: np.ndarray) -> None:
        self.keep(done)
        self.client.bell.ring()

    def fail(self, error: BaseException) -> None:
        self.keep(error)
        self.client.bell.ring()


class Stream(Ticket):
    """A batch whose completions are delivered in parts. Each part has a separate ticket, which
    Connection.next returns. Connection.next returns the ticket of the batch itself only if the
    batch fails."""

    @property
    def wanted(self) -> int:
        return 1

    def part(self) -> Ticket:
        """Return a new ticket for the next delivery of completions of this batch."""
        part = Ticket(self.client, NO_COMMANDS, self.handed_ns, None)
        part.early = self.early
        return part


class Turns(Protocol):
    """Interface of a service that lets a client run batches in the client's thread. Class
    ClientTurns (nvme/client_turns.py) implements it."""

    def run_turns(self, batch: Batch, fd: int = -1) -> bool:
        """Run a batch in the calling thread; see ClientTurns.run_turns for arguments and result."""

    def run_single(self, single: Any, handed_ns: int, fd: int, fly: Callable[[], Stream]) -> int:
        """Run one command in the calling thread; see ClientTurns.run_single for arguments and
        result."""


class Connection:
    """Connection of one client to a service. It hands over batches and waits for their completions
    in C, without holding Python's global interpreter lock.

    Any thread may use a connection. Completions arrive sooner than through futures: a waiting
    thread polls for up to 0.2 ms before it sleeps, and it wakes up before the completion is due.
    """

    def __init__(
        self,
        hand_over: Callable[[Batch], None],
        service: Doorbell,
        thread: Callable[[], threading.Thread],
        turns: Turns,
    ) -> None:
        """``hand_over``: function that queues a batch without ringing a doorbell. ``service``:
        doorbell of the service. ``thread``: function that returns the service thread. ``turns``:
        the service, which can also run batches in the calling thread."""
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
        due. Return the ticket of the batch itself, which :meth:`next` returns only if the batch
        fails."""
        ticket = Stream(self, checked(commands), time.perf_counter_ns(), buffer)
        self._hand_over(ticket)
        self.service.ring()
        return ticket

    def try_stream(
        self, commands: np.ndarray, buffer: np.ndarray | None = None, fd: int = -1,
        handed_ns: int = 0, early: Callable[[np.ndarray], None] | None = None,
    ) -> Stream | None:  # fmt: skip
        """Run a batch as :meth:`stream` does, but in the calling thread, which saves two context
        switches. The batch runs there until it ends or until the service thread must continue it,
        for example because data can be read from the file descriptor ``fd`` (-1 for none); see
        ClientTurns.run_turns. Return None, without effect, if the batch cannot run in the calling
        thread, for example because the clock is not ``real`` or another client uses the drive.

        ``handed_ns``: time.perf_counter_ns at which the commands arrived, or 0 for the current
        time. ``early``: function that receives completions before their due time, which allows the
        client to prepare replies without the drive. These completions are due when this method
        returns. :meth:`next` returns the completions that the service thread delivers.
        """
        ticket = Stream(self, checked(commands), handed_ns or time.perf_counter_ns(), buffer)
        ticket.early = early
        return ticket if self._turns.run_turns(ticket, fd) else None

    def try_single(self, single: Any, handed_ns: int, fd: int, fly: Callable[[], Stream]) -> int:
        """Run one command in the calling thread, as ClientTurns.run_single does. ``single``: a
        client_turns.Single. ``handed_ns``: time.perf_counter_ns at which the command arrived.
        ``fd``: as in :meth:`try_stream`. ``fly``: function that returns a batch from :meth:`begun`;
        it is called if the command does not complete immediately, and the command then belongs to
        this batch."""
        return self._turns.run_single(single, handed_ns, fd, fly)

    def begun(
        self, commands: np.ndarray, buffer: np.ndarray, early: Callable[[np.ndarray], None]
    ) -> Stream:
        """Return the batch of a command that :meth:`try_single` has started. ``early``: see
        :meth:`try_stream`."""
        stream = Stream(self, commands, time.perf_counter_ns(), buffer)
        stream.early = early
        return stream

    def run(
        self, commands: np.ndarray, buffer: np.ndarray | None = None, timeout: float | None = None
    ) -> np.ndarray:
        """Hand over a batch and wait for its completions, like :meth:`submit` followed by
        Ticket.wait, but ring the doorbell and wait in a single C call. If ``timeout`` is None and
        the batch can run in the calling thread (see :meth:`try_stream`), run it there instead.
        Return COMPLETION[n]."""
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
        """Wait until a batch is done, for at most ``timeout`` seconds (None: without a limit).
        Return the ticket of the first finished batch that neither this method nor Ticket.wait has
        returned yet.

        Raises TimeoutError if the timeout expires. Raises InputError if the timeout is negative or
        NaN, if the service thread calls this method, or if the service has ended and all finished
        batches were returned.
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
                raise InputError("the service has ended; all finished batches were returned")
            now_ns = time.perf_counter_ns()
            if deadline_ns <= now_ns:
                raise TimeoutError(f"no batch was finished within {timeout} s")
            look_ns = min(deadline_ns, now_ns + LOOK_NS)
            self.bell.wait(rung, CLIENT_POLL_NS, look_ns, other=self.service)

    def deadline(self, timeout: float | None) -> int:
        """Return the wall time in ns at which ``timeout`` (s) expires. Raises InputError if the
        timeout is negative or NaN, or if the service thread calls this method, because this thread
        would wait for itself."""
        if threading.current_thread() is self._thread():
            raise InputError("wait: the service thread would wait for itself; use another thread")
        if timeout is None:
            return NEVER_NS
        if not timeout >= 0:
            raise InputError(f"timeout = {timeout:g} s: must not be negative")
        return min(time.perf_counter_ns() + int(min(timeout, 1e9) * 1e9), NEVER_NS)

    def append(self, ticket: Ticket) -> None:
        """Assign the next number to ``ticket`` and append it to the list of batches that ended.
        Only the thread that runs the drive calls this method."""
        self._count += 1
        ticket.number = self._count
        with self._lock:
            while self._ended and self._ended[0].taken:
                self._ended.popleft()
            self._ended.append(ticket)


def checked(commands: np.ndarray) -> np.ndarray:
    """Return a copy of ``commands``, COMMAND[n]. Raises InputError if ``commands`` is not a
    one-dimensional array of COMMAND, is empty, or has more than MOST_COMMANDS elements."""
    given = as_commands(commands)
    if not 0 < len(given) <= MOST_COMMANDS:
        raise InputError(f"batch of {len(given)} commands: must have from 1 to {MOST_COMMANDS}")
    return given


def idle_ps_of(seconds: float) -> int:
    """Convert the idle time ``seconds`` to ps. Raises InputError if ``seconds`` is negative, is not
    a finite number, or exceeds the range of the simulation clock (NEVER ps)."""
    seconds = real_number("idle", seconds)
    if not 0 <= seconds * PS_PER_S < NEVER:
        raise InputError(f"idle = {seconds:g} s: must be from 0 to {NEVER / PS_PER_S:.3g} s")
    return round(seconds * PS_PER_S)


def assigned(
    found: np.ndarray, batches: dict[int, Batch]
) -> tuple[list[tuple[Batch, np.ndarray]], list[int]]:
    """Assign the completions ``found``, COMPLETION[n], to the batches in ``batches`` (keyed by
    batch number), and remove the batches that are done. Return two lists: first the pairs (batch,
    completions with the client's tags) to deliver, then the times at which the completions are due
    (ps)."""
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
    """Store completions in their tickets. Clients see them when their doorbells ring. Return the
    number of times that the caller must then ring the doorbell of each client. ``ready``: pairs
    (batch, completions of the batch); batches that are not tickets are skipped. ``early``: True to
    pass completions to the function ``early`` of the ticket, if the ticket has one, instead of
    storing them; the client then waits for the due time."""
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
