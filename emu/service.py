"""Service of one drive: a thread that owns engine and clock and accepts batches from clients.

Owns the thread, the clock (virtual, or real time with a scale), and the assignment of completions
to batches. Does not own the drive (drive.py), iterations of the service's loop that a client thread
runs itself (nvme/client_turns.py), the hand-over to and from clients (nvme/client_queue.py), the
rules of commands (nvme/submission.py) or sockets. Source: NVMeVirt and FEMU, which complete a
command when the wall clock reaches its modeled end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

import numpy as np

from ondie.emu.clock import NEVER, PS_PER_S, WallClock
from ondie.emu.drive import Drive
from ondie.emu.nand.memory_ahead import MemoryAhead
from ondie.emu.nvme.client_queue import (
    TAG_SHIFT,
    Batch,
    Connection,
    FutureBatch,
    Lag,
    Ticket,
    assigned,
    checked,
    idle_ps_of,
    kept,
)
from ondie.emu.nvme.client_turns import ALONE_NS, ClientTurns
from ondie.emu.nvme.plan_queue import PlanQueue, Running, error_to
from ondie.emu.units import InputError, quoted, real_number
from ondie.kernels import native
from ondie.kernels.doorbell import LAST_NS, NEVER_NS, POLL_NS, Delivery, Doorbell, sleep_exactly

CLOCKS = ("virtual", "real")
AHEAD_NS = 50_000
"""Maximum lead of the simulation over the wall clock while commands are in flight (ns of wall
time)."""
MOST_SCALE = 1e6
"""Maximum scale of the clock ``real`` (simulated seconds per second of wall time)."""
PLAN_EVENTS = 1 << 12
"""Number of events between two checks for new commands while a plan runs and no command is in
flight.
"""
NOBODY = -1  # number of no thread


class Service(ClientTurns):
    """Service that operates ``drive`` in a separate thread until :meth:`close`.

    ``clock``: "virtual" or "real". With "virtual", simulated time advances as fast as possible
    while commands are in flight, and otherwise stands still. With "real", simulated time follows
    the wall clock (``scale`` simulated seconds per second). A completion is delivered when the wall
    clock reaches its modeled end, or later if the simulation is slower (:attr:`lag`). Until the
    service is closed, it owns the drive, and other uses of the drive raise InputError. Callbacks of
    futures must not use the drive.

    With the clock "real", the simulation runs up to AHEAD_NS of wall time ahead while commands are
    in flight, so that a completion is ready at its time. (If a client's thread runs its single
    command itself, the limit is ALONE_NS.) A batch that is handed over while the simulation is
    ahead arrives later by the amount of the lead, which counts as lag. A client thread that runs
    its command itself notices new requests later by the same amount.

    Raises InputError for an unknown clock, for a scale that is not above 0 and at most MOST_SCALE,
    or for a scale with the clock "virtual". Also raises InputError if the drive is closed, has no
    power, belongs to another service, or has commands in flight or completions that were not taken,
    and if the C extension is not built.
    """

    drive: Drive

    def __init__(self, drive: Drive, clock: str = "virtual", scale: float = 1.0) -> None:
        if not isinstance(drive, Drive):
            raise InputError(f"drive = {quoted(repr(drive))}: must be a Drive")
        if clock not in CLOCKS:
            raise InputError(f"clock = {clock!r}: must be one of {', '.join(CLOCKS)}")
        scale = real_number("scale", scale)
        if not 0 < scale <= MOST_SCALE:
            raise InputError(f"scale = {scale:g}: must be positive, and at most {MOST_SCALE:g}")
        if clock == "virtual" and scale != 1.0:
            raise InputError(
                f"scale = {scale:g}: only the clock 'real' has a scale; use clock='real'"
            )
        if drive.outstanding or drive.has_completions:
            raise InputError(
                f"drive: {drive.outstanding} commands are in flight, or completions were not "
                "taken; call drive.run() and drive.completions() first"
            )
        if native.lib is None:
            raise InputError("a service requires the package's C extension, which is not built")
        self.drive, self.clock = drive, clock
        self._bell = Doorbell()
        """Doorbell that clients ring after a hand-over."""
        self._inbox: deque[Batch] = deque()
        self._batches: dict[int, Batch] = {}
        self._idle: list[FutureBatch] = []
        self._plans = PlanQueue()
        self._next, self._closing = 0, False
        self._ended: str | None = None
        self._lock, self._turns = threading.Lock(), threading.Lock()
        """``_lock`` protects the inbox. The thread that uses the drive holds ``_turns``."""
        self._delivery, self._worked_ns = Delivery(self._bell), 0
        """``_worked_ns``: wall time of the last hand-over or delivery."""
        drive.warm_up()  # raises InputError if another service owns the drive
        self._wall = WallClock(drive.now, scale)
        self._thread = threading.Thread(target=self._serve, name="ondie service", daemon=True)
        drive.owner = NOBODY  # until the thread has begun
        self._thread.start()

    # --- clients

    def submit(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> Future[np.ndarray]:
        """Hand over a batch of commands, COMMAND[n], from any thread.

        The commands arrive at the time of this call, and their field ``arrival`` is ignored.
        ``buffer``: memory for the data of the commands (see Drive.submit). The caller must not
        access this memory until the batch is done. The result of the future is
        COMPLETION[n], in the order in which the commands completed, with the tags of the batch. A
        callback of the future runs in the thread of the service and may submit further batches. A
        batch that violates a rule of nvme/submission.py has no effect, and its future raises
        InputError. Raises InputError if ``commands`` is not an array of commands, is empty or has
        too many elements (more than client_queue.MOST_COMMANDS), or if the service has ended.
        """
        handed_ns = time.perf_counter_ns()
        batch = FutureBatch(checked(commands), handed_ns, buffer)
        self._hand_over(batch)
        self._bell.ring()
        return batch.future

    def connect(self) -> Connection:
        """Return a connection for a client that waits in a separate thread; see Connection."""
        return Connection(self._hand_over, self._bell, lambda: self._thread, self)

    def idle(self, seconds: float) -> Future[np.ndarray]:
        """Advance simulated time by ``seconds`` (clock "virtual") when the commands in flight have
        completed, so that the drive does its background work. The result of the future is empty.

        ``seconds``: simulated time in seconds, not in ps as for Drive.run_until; 0.002 is 2 ms, and
        86_400 is a day. Raises InputError with the clock "real", if ``seconds`` is negative or too
        large (the clock of a drive ends after 53 days), or after the end of the service.
        """
        if self.clock != "virtual":
            raise InputError(
                "idle: requires the clock 'virtual'; with 'real', time follows the wall clock"
            )
        batch = FutureBatch(None, idle_ps=idle_ps_of(seconds))
        self._hand_over(batch)
        self._bell.ring()
        return batch.future

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Call ``function`` in the thread of the service between two iterations of its loop. The
        function may use the drive.

        The result of the future is the result of the function, or the exception that it raises. If
        the function cuts the power of the drive, the batches in flight fail with InputError. Later
        batches also fail, until another function restores the power. Raises InputError after the
        end of the service.
        """
        batch = FutureBatch(None, function=function)
        self._hand_over(batch)
        self._bell.ring()
        return batch.future

    def run_plan(self, begin: Callable[[], Running], end: Callable[[], Any]) -> Future[Any]:
        """Run a plan on the drive, concurrently with the commands of all clients and with other
        plans.

        The thread of the service calls ``begin``, which starts the plan and returns it, and calls
        ``end`` when the plan is done. The result of the future is the result of ``end``, or the
        error raised by ``begin``, ``end`` or the plan. The error is an InputError if the power is
        cut or the drive fails during the plan. Raises InputError after the end of the service.
        """
        future: Future[Any] = Future()

        def start() -> None:
            if self.clock == "real" and not self.drive.off:  # it begins now
                self.drive.run_until(max(self._target(), self.drive.now))
            self._plans.add(begin(), end, future)

        self.call(start).add_done_callback(error_to(future))
        return future

    def _hand_over(self, batch: Batch) -> None:
        """Append a batch to the inbox of the service. The caller then wakes the thread of the
        service. Raises InputError after the end of the service."""
        with self._lock:
            if self._ended is not None or self._closing:
                raise InputError(f"the service has ended{self._ended or ''}")
            self._inbox.append(batch)

    def close(self) -> None:
        """Complete the commands and plans that were handed over, and end the thread. Plans no
        longer follow the wall clock. A plan that takes longer than plan_queue.LAST_S is aborted
        with InputError.
        """
        with self._lock:
            self._closing = True
            self._plans.end_soon()
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def lag(self) -> Lag:
        """Lag of the completions so far: wall time of the delivery minus wall time of the modeled
        end. A completion is counted before its client receives it."""
        return Lag.of(self._delivery)

    # --- the thread

    def _serve(self) -> None:
        with self._turns:
            self.drive.owner = threading.get_ident()
        sleep_exactly()
        try:
            with MemoryAhead() as ahead:
                with self._turns:
                    self.drive.prepare_memory(ahead)
                while self._ended is None and self._turn():
                    pass
            self._end(self._ended or "", InputError(f"the service has ended{self._ended or ''}"))
        except BaseException as error:
            self._end(f": {error}", error)  # clients get it from their futures
            if not isinstance(error, Exception):
                raise
        finally:
            with self._turns:
                self.drive.prepare_memory(None)
                self.drive.owner = None

    def _end(self, why: str, error: BaseException) -> None:
        """End the service. No further batch is accepted, and the remaining batches and plans fail
        with ``error``. ``why``: end of the message of later errors.
        """
        with self._turns, self._lock:
            self._ended = why
        for batch in (*self._batches.values(), *self._idle, *self._inbox):
            batch.fail(error)
        self._plans.fail(error)

    def _turn(self) -> bool:
        """Accept batches, advance the clock, and deliver completions. Return False at the end."""
        if self.clock == "virtual":
            seen = self._bell.rung
            with self._turns:
                busy = self._take() or bool(self._batches or self._idle or self._plans)
                self._advance()
            if not (busy or self._closing):
                self._bell.wait(seen, self._poll_ns())
        else:
            self._wait()
            with self._turns:
                self._follow()
        return not self._closing or bool(self._batches or self._idle or self._plans or self._inbox)

    def _poll_ns(self) -> int:
        """Return the time for which the thread polls before it sleeps (ns): the time that is left
        until POLL_NS after its last work."""
        return max(self._worked_ns + POLL_NS - time.perf_counter_ns(), 0)

    def _take(self) -> bool:
        """Submit all batches of the inbox. Return True if the inbox was not empty."""
        if not self._inbox:
            return False
        while self._inbox:
            self._accept(self._inbox.popleft())
        self._worked_ns = time.perf_counter_ns()
        return True

    def _accept(self, batch: Batch) -> None:
        """Process a batch: submit its commands, which arrive now, call its function, or queue its
        idle period.
        """
        if not batch.start():
            return
        if isinstance(batch, FutureBatch) and batch.commands is None:
            if batch.function is not None:
                self._call(batch)
            elif self.drive.off:
                batch.fail(InputError("idle: the drive has no power; call power_on() first"))
            else:
                self._idle.append(batch)
            return
        assert batch.commands is not None
        commands, number = batch.commands, self._next
        batch.tags = commands["tag"].copy()
        arrival = self.drive.earliest_arrival
        if self.clock == "real":
            handed = min(self._wall.at(batch.handed_ns), NEVER)
            batch.moved_ps = max(arrival - handed, 0)
            arrival = handed + batch.moved_ps
        commands["arrival"] = arrival
        commands["tag"] = number << TAG_SHIFT
        if len(commands) > 1:
            commands["tag"] += np.arange(len(commands))
        batch.left = len(commands)
        self._next, self._batches[number] = number + 1, batch
        try:
            self.drive.submit(commands, batch.buffer)
        except InputError as error:
            del self._batches[number]
            batch.fail(error)

    def _call(self, batch: FutureBatch) -> None:
        """Call the function of a batch, and deliver the commands that have completed during the
        call.
        """
        assert batch.function is not None
        was_off = self.drive.off
        try:
            result = batch.function()
        except Exception as error:  # noqa: BLE001 - the client gets it
            batch.fail(error)
        else:
            batch.future.set_result(result)
        self._deliver()
        if self.drive.off:
            lost = InputError("the power was cut before the operation completed")
            for each in (*self._batches.values(), *self._idle):
                each.fail(lost)
            self._batches.clear()
            self._idle.clear()
            self._plans.fail(lost)
        elif was_off:
            self._wall = WallClock(self.drive.now, self._wall.scale)

    def _advance(self) -> None:
        """Advance the virtual clock until a batch, a plan or an idle period can complete."""
        if self._batches:
            wanted = min(each.wanted for each in self._batches.values())
            self.drive.run_until(completions=wanted, plan_end=bool(self._plans))
            self._deliver()
            self._end_plans()
        elif self._plans:
            self._end_plans()  # those that have nothing to do take no time
            if self._plans:
                self.drive.run_until(None, PLAN_EVENTS, plan_end=True)
                self._end_plans()
        elif self._idle:
            batch, now = self._idle[0], self.drive.now
            if now + batch.idle_ps < NEVER:
                self.drive.run_until(now + batch.idle_ps)
                batch.succeed(self.drive.completions())
            else:
                idle, rest = (ps / PS_PER_S for ps in (batch.idle_ps, NEVER - now))
                wrong = f"idle = {idle:g} s: must be below {rest:g} s"
                batch.fail(InputError(f"{wrong}, the time left on the drive's clock"))
            del self._idle[0]

    def _end_plans(self) -> None:
        """End the plans that are done. If the drive has a defect, all plans fail."""
        if self._plans and self.drive.defect is not None:
            self._plans.fail(InputError(f"the drive is offline: {self.drive.why}"))
        self._plans.end_done()

    def _deliver(self) -> None:
        """Assign new completions to their batches. Deliver the results of the batches that are
        done. With the clock "real", no result is delivered before the wall clock has reached its
        time.
        """
        if not self.drive.has_completions:
            return
        found = self.drive.completions()
        ready, due = assigned(found, self._batches)
        if self.clock == "real":
            self._deliver_at(int(found["end"][-1]), due, ready)
        else:
            for batch, done in ready:
                batch.succeed(done)
        self._worked_ns = time.perf_counter_ns()

    # --- wall clock

    def _target(self) -> int:
        """Return the simulated time (ps) that the wall clock has reached."""
        return min(self._wall.at(time.perf_counter_ns()), NEVER - 1)

    @property
    def _ahead_ns(self) -> int:
        """Wall time by which the simulation may currently run ahead (ns)."""
        ahead_ns = AHEAD_NS if self.drive.owner == self._thread.ident else ALONE_NS
        return ahead_ns if self._batches else 0

    def _wait(self) -> None:
        """Wait for a batch or for the wall time of the drive's next event. Submit the batches that
        have arrived.

        The thread polls for a while after its last work. If commands are in flight, it also polls
        shortly before an event. Otherwise it sleeps.
        """
        while True:
            seen, lent_ns = self._bell.rung, self._lent_ns
            busy = self._inbox or self._plans or self._closing
            if not busy and time.perf_counter_ns() < lent_ns:
                self._bell.wait(seen, 0, lent_ns)
                continue
            with self._turns:
                if self._take() or (self._closing and not self._batches):
                    return
                drive = self.drive
                event = NEVER if drive.off else min(drive.next_event, drive.next_upkeep)
                deadline_ns = NEVER_NS
                if event < NEVER:
                    deadline_ns = self._wall.ns_of(event) - self._ahead_ns
                    if deadline_ns <= time.perf_counter_ns():
                        return
                last_ns = LAST_NS if self._batches else 0
            self._bell.wait(seen, self._poll_ns(), deadline_ns, last_ns=last_ns)

    def _follow(self) -> None:
        """Advance the drive to the time of the wall clock, and deliver completions. While batches
        are in flight, advance the drive further by up to ``_ahead_ns``, but not beyond the next
        completion. Do nothing if the drive has no power.
        """
        drive = self.drive
        if drive.off or self._ended is not None:
            return
        until = min(self._target() + int(self._ahead_ns * self._wall.ps_per_ns), NEVER - 1)
        if self._closing and self._plans and not self._batches:
            drive.run_until(None, PLAN_EVENTS, plan_end=True)
        elif until > drive.now or self._plans:
            drive.run_until(max(until, drive.now), completions=int(bool(self._batches)))
        self._deliver()
        self._end_plans()

    def _deliver_at(
        self, end_ps: int, due: list[int], ready: list[tuple[Batch, np.ndarray]]
    ) -> None:
        """Deliver the batches ``ready`` to the clients at simulated time ``end_ps``. Record the lag
        of completions with end times ``due`` (ps).
        """
        at_ns, seen = self._wall.ns_of(end_ps), self._bell.rung
        next_ns = self._wall.ns_of(self.drive.next_event) - self._ahead_ns
        stay_until_ns = min(max(at_ns, time.perf_counter_ns()) + POLL_NS, next_ns)
        own = self.drive.owner == self._thread.ident
        clients = kept(ready, early=not own)
        slept = self._delivery.deliver(at_ns, clients, [self._wall.ns_of(end) for end in due])
        for batch, done in ready:
            if not isinstance(batch, Ticket):
                batch.succeed(done)
        if own and not self._inbox and sum(clients.values()) == len(ready):
            self._turns.release()  # leave them, and Python's lock, to the clients
            self._bell.wait(seen, 0 if slept else POLL_NS, stay_until_ns)
            self._turns.acquire()
