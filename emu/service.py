"""Service of one drive: a thread that owns engine and clock, to which clients hand batches.

Owns the thread, the clock (virtual, or real time with a scale), the assignment of completions to
clients, and the lag behind the wall clock. Does not own the drive (drive.py), the rules of commands
(nvme/submission.py) or sockets.
Source: NVMeVirt and FEMU, which complete a command when the wall clock reaches its modeled end.
"""

from __future__ import annotations

import math
import queue
import select
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.drive import Drive
from ondie.emu.nvme.submission import as_commands
from ondie.emu.units import InputError, quoted, real_number

CLOCKS = ("virtual", "real")
MOST_COMMANDS = 1 << 20
"""Largest number of commands in a batch."""
_SHIFT = MOST_COMMANDS.bit_length() - 1
AWAKE_S = 3e-4
"""Time before a deadline from which the thread does not sleep, in seconds: an ordinary sleep
ends up to this much late."""
AHEAD_S = 5e-5
"""Wall time by which the simulation may run ahead while commands are in flight, in seconds."""
MOST_SCALE = 1e6
"""Largest scale of the clock ``real``, simulated seconds per second."""
NOBODY = -1
"""Number of no thread."""
LATE_S = 1e-4
"""Lag from which a completion counts as late, in seconds."""
PS = 10**12
_BUCKETS = 64


@dataclass(frozen=True)
class Lag:
    """How far completions were delivered behind the wall clock: the wall time of the delivery minus
    that of the modeled end. The clock ``virtual`` has no lag."""

    completions: int
    late: int
    """Completions with a lag of at least LATE_S."""
    mean_s: float
    max_s: float
    histogram: tuple[int, ...]
    """Number of completions by the binary logarithm of their lag in nanoseconds: element ``i``
    counts lags from 2**(i - 1) to below 2**i ns."""

    def percentile(self, share: float) -> float:
        """Return the lag in seconds that at least ``share`` (0 to 1) of the completions do not
        exceed, rounded up to the next power of two in nanoseconds; 0 without completions."""
        if not self.completions:
            return 0.0
        within = np.cumsum(self.histogram) >= math.ceil(share * self.completions)
        return float(2.0 ** int(np.argmax(within)) / 1e9)


@dataclass
class _Batch:
    """Commands of a client (COMMAND[n], or None for idle time), their memory, and their future."""

    commands: np.ndarray | None
    future: Future[np.ndarray]
    handed_ns: int = 0
    """Wall time of the hand-over, time.perf_counter_ns."""
    moved_ps: int = 0
    """Simulated time from the hand-over to the arrival."""
    idle_ps: int = 0
    buffer: np.ndarray | None = None
    tags: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Tags of the commands, int64[n]."""
    done: list[np.ndarray] = field(default_factory=list)
    left: int = 0


class Service:
    """Serves ``drive`` from a thread of its own until :meth:`close`.

    ``clock``: ``virtual``, simulated time advances as fast as possible while commands are in
    flight, and stands still otherwise; ``real``, simulated time follows the wall clock, ``scale``
    simulated seconds per second, and a completion is delivered when the wall clock has reached its
    end, or later if the simulation is slower (:attr:`lag`). Until the end of the service, the
    drive belongs to it: other users of the drive get InputError. Do not use the drive in a callback
    of a future either.

    With the clock ``real``, the simulation runs up to AHEAD_S of wall time ahead while commands are
    in flight, so that a completion is at hand when its time has come. A batch that is handed over
    meanwhile arrives as much later, which counts as lag.

    Raises InputError for an unknown clock, a scale that is not above 0 and at most MOST_SCALE, or a
    scale with the clock ``virtual``; for a drive that is closed, has no power, belongs to another
    service, or has commands in flight or completions that were not taken.
    """

    def __init__(self, drive: Drive, clock: str = "virtual", scale: float = 1.0) -> None:
        if not isinstance(drive, Drive):
            raise InputError(f"drive = {quoted(repr(drive))}: must be a Drive")
        if clock not in CLOCKS:
            raise InputError(f"clock = {clock!r}: must be one of {', '.join(CLOCKS)}")
        scale = real_number("scale", scale)
        if not 0 < scale <= MOST_SCALE:
            raise InputError(f"scale = {scale:g}: must be positive, and at most {MOST_SCALE:g}")
        if clock == "virtual" and scale != 1.0:
            raise InputError(f"scale = {scale:g}: only the clock 'real' has a scale")
        if drive.outstanding or drive.has_completions:
            raise InputError(
                f"drive: {drive.outstanding} commands are in flight, or completions were not "
                "taken; run it until none are, and take them"
            )
        self.drive = drive
        self.clock = clock
        self._ps_per_s = scale * PS
        self._inbox: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._batches: dict[int, _Batch] = {}
        self._idle: list[_Batch] = []
        self._next = 0
        self._closing = False
        self._ended: str | None = None
        self._lock = threading.Lock()
        self._lags = [0] * _BUCKETS
        self._late, self._lag_sum, self._lag_max = 0, 0.0, 0.0
        drive.warm_up()  # raises InputError if another service owns the drive
        self._sim0, self._wall0 = drive.now, time.perf_counter_ns()
        self._thread = threading.Thread(target=self._serve, name="ondie service", daemon=True)
        drive.owner = NOBODY  # until the thread has begun
        self._thread.start()

    # --- clients

    def submit(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> Future[np.ndarray]:
        """Hand over a batch of commands, COMMAND[n], from any thread; they arrive now.

        The field ``arrival`` is not read. ``buffer``: memory of these commands (Drive.submit); the
        caller must not touch it until the batch is done. The result of the future is
        COMPLETION[n] in the order in which the commands completed, with the tags of the batch. A
        callback of the future runs in the thread of the service, where it may submit. A batch that
        breaks a rule of nvme/submission.py has no effect, and its future raises InputError. Raises
        InputError for anything but commands, too many, or after the end of the service.
        """
        given = as_commands(commands)
        if not 0 < len(given) <= MOST_COMMANDS:
            raise InputError(f"commands: {len(given)}: must be from 1 to {MOST_COMMANDS}")
        return self._hand_over(_Batch(given, Future(), time.perf_counter_ns(), buffer=buffer))

    def idle(self, seconds: float) -> Future[np.ndarray]:
        """Let ``seconds`` of simulated time pass after the commands in flight (clock ``virtual``),
        so that the drive does its work of idle times. The result of the future is empty.

        Raises InputError with the clock ``real``, for negative or too many seconds, or after the
        end of the service.
        """
        if self.clock != "virtual":
            raise InputError("idle: time passes by itself with the clock 'real'")
        seconds = real_number("idle", seconds)
        if not 0 <= seconds * PS < NEVER:
            raise InputError(f"idle = {seconds:g} s: must be from 0 to {NEVER / PS:.3g} s")
        return self._hand_over(_Batch(None, Future(), idle_ps=round(seconds * PS)))

    def _hand_over(self, batch: _Batch) -> Future[np.ndarray]:
        with self._lock:
            if self._ended is not None or self._closing:
                raise InputError(f"the service has ended{self._ended or ''}")
            self._inbox.put(batch)
        return batch.future

    def close(self) -> None:
        """Complete what has been handed over, and end the thread."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def lag(self) -> Lag:
        """Lag of the completions so far. Exact once the futures of all batches are done."""
        count = sum(self._lags)
        mean = self._lag_sum / count if count else 0.0
        return Lag(count, self._late, mean, self._lag_max, tuple(self._lags))

    # --- the thread

    def _serve(self) -> None:
        self.drive.owner = threading.get_ident()
        try:
            while self._turn():
                pass
            self._end("", InputError("the service has ended"))
        except BaseException as error:
            self._end(f": {error}", error)  # clients get it from their futures
            if not isinstance(error, Exception):
                raise
        finally:
            self.drive.owner = None

    def _end(self, why: str, error: BaseException) -> None:
        """End the service: no batch is accepted any more, and the futures that are left raise
        ``error``."""
        with self._lock:
            self._ended = why
        left = [*self._batches.values(), *self._idle]
        with suppress(queue.Empty):
            while True:
                batch = self._inbox.get_nowait()
                left += [] if batch is None else [batch]
        for batch in left:
            with suppress(InvalidStateError):  # cancelled
                batch.future.set_exception(error)

    def _turn(self) -> bool:
        """Take batches, advance the clock, deliver completions. Return False at the end."""
        busy = bool(self._batches or self._idle)
        if self.clock == "virtual":
            self._take(None if not busy and not self._closing else 0.0)
            self._advance()
        else:
            self._wait()
            self._follow()
        return not self._closing or bool(self._batches or self._idle) or not self._inbox.empty()

    def _take(self, timeout: float | None) -> bool:
        """Submit all batches of the inbox; wait up to ``timeout`` seconds for the first (None:
        until there is one). Return True if there was any."""
        try:
            batch = self._inbox.get(timeout=timeout) if timeout != 0 else self._inbox.get_nowait()
        except queue.Empty:
            return False
        while True:
            if batch is not None:
                self._accept(batch)
            try:
                batch = self._inbox.get_nowait()
            except queue.Empty:
                return True

    def _accept(self, batch: _Batch) -> None:
        """Submit a batch; its commands arrive now."""
        if not batch.future.set_running_or_notify_cancel():
            return
        if batch.commands is None:
            self._idle.append(batch)
            return
        commands, number = batch.commands, self._next
        batch.tags = commands["tag"].copy()
        arrival = self.drive.earliest_arrival
        if self.clock == "real":
            handed = min(self._at(batch.handed_ns), NEVER)
            batch.moved_ps = max(arrival - handed, 0)
            arrival = handed + batch.moved_ps
        commands["arrival"] = arrival
        commands["tag"] = (number << _SHIFT) + np.arange(len(commands))
        batch.left = len(commands)
        self._next, self._batches[number] = number + 1, batch
        try:
            self.drive.submit(commands, batch.buffer)
        except InputError as error:
            del self._batches[number]
            batch.future.set_exception(error)

    def _advance(self) -> None:
        """Advance the virtual clock until a batch can be done, or by the idle time asked for."""
        if self._batches:
            self.drive.run_until(completions=min(each.left for each in self._batches.values()))
            self._deliver()
        elif self._idle:
            batch, now = self._idle[0], self.drive.now
            if now + batch.idle_ps < NEVER:
                self.drive.run_until(now + batch.idle_ps)
                batch.future.set_result(self.drive.completions())
            else:
                wrong = f"idle = {batch.idle_ps / PS:g} s: {now / PS:g} s have passed, and"
                batch.future.set_exception(InputError(f"{wrong} a clock ends at {NEVER / PS:g} s"))
            del self._idle[0]

    def _deliver(self) -> None:
        """Hand completions to their batches, and the results of the batches that are done, when
        their time has come."""
        found = self.drive.completions()
        ends, tags = found["end"].tolist(), found["tag"].tolist()
        ready: list[tuple[_Batch, np.ndarray]] = []
        due: list[int] = []
        first = 0
        for at, tag in enumerate(tags):  # runs of completions of one batch
            number = tag >> _SHIFT
            batch = self._batches[number]
            due.append(ends[at] - batch.moved_ps)
            if at + 1 < len(tags) and tags[at + 1] >> _SHIFT == number:
                continue
            batch.done.append(found[first : at + 1])
            batch.left -= at + 1 - first
            first = at + 1
            if batch.left == 0:
                del self._batches[number]
                done = batch.done[0] if len(batch.done) == 1 else np.concatenate(batch.done)
                done["tag"] = batch.tags[done["tag"] & MOST_COMMANDS - 1]
                ready.append((batch, done))
        if self.clock == "real":
            while self._target() < ends[-1]:
                select.select((), (), (), 0)
            self._count_lag(due)
        for batch, done in ready:
            batch.future.set_result(done)

    # --- wall clock

    def _at(self, wall_ns: int) -> int:
        """Return the simulated time (ps) at wall time ``wall_ns``."""
        return self._sim0 + int((wall_ns - self._wall0) * self._ps_per_s / 1e9)

    def _target(self) -> int:
        """Return the simulated time (ps) that the wall clock has reached."""
        return min(self._at(time.perf_counter_ns()), NEVER - 1)

    @property
    def _ahead_s(self) -> float:
        """Wall time by which the simulation may run ahead now, s."""
        return AHEAD_S if self._batches else 0.0

    def _wait(self) -> None:
        """Wait for a batch or for the wall time of the drive's next event, and submit batches.

        The thread does not sleep during the last AWAKE_S.
        """
        self._take(0.0)  # also if events are always due
        while True:
            event = min(self.drive.next_event, self.drive.next_upkeep)
            left = math.inf
            if event < NEVER:
                left = (event - self._target()) / self._ps_per_s - self._ahead_s
            if left <= 0 or (self._closing and not self._batches):
                return
            if left <= AWAKE_S:
                if self._take(0.0):
                    return
                select.select((), (), (), 0)  # lets other threads run; time.sleep(0) takes 80 us
            elif self._take(None if left == math.inf else left - AWAKE_S):
                return

    def _follow(self) -> None:
        """Advance the drive to the time of the wall clock, or ahead of it to the next completion,
        and deliver what has completed."""
        drive = self.drive
        until = min(self._target() + int(self._ahead_s * self._ps_per_s), NEVER - 1)
        if until > drive.now:
            drive.run_until(until, completions=int(bool(self._batches)))
        if drive.has_completions:
            self._deliver()

    def _count_lag(self, due: list[int]) -> None:
        """Count the lag of completions that were due at simulated times ``due`` (ps)."""
        target = self._target()
        for end in due:
            lag_s = (target - end) / self._ps_per_s
            self._lags[min(max(int(lag_s * 1e9), 0).bit_length(), _BUCKETS - 1)] += 1
            self._late += lag_s >= LATE_S
            self._lag_sum += lag_s
            self._lag_max = max(self._lag_max, lag_s)
