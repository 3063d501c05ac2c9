"""Execution of the turns of a service in the thread of a client, while no other client uses the
drive. A turn is one iteration of the service's loop: simulate events, and deliver completions.

Owns the conditions under which a client may run turns, and the hand-over of the remaining work to
the service thread. Does not own that thread and its clock (service.py), the hand-over of batches
and completions (client_queue.py) or the execution of commands (engine/run/payload_system.py).
Source: this project. Running turns in the client's thread saves two context switches per command.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ondie.emu.clock import NEVER, WallClock
from ondie.emu.engine.core.state import as_records
from ondie.emu.nvme.client_queue import TAG_SHIFT, Batch, FutureBatch, Stream, checked
from ondie.emu.nvme.plan_queue import PlanQueue
from ondie.kernels.doorbell import LAST_NS, Delivery, Doorbell

REFUSED, IN_FLIGHT = -2, -1
"""Results of :meth:`ClientDrive.run_single` that are not a status: the command cannot run now and
was not started (REFUSED), or it has not completed yet (IN_FLIGHT)."""
TAG, ARRIVAL = 7, 8
"""Positions of the fields ``tag`` and ``arrival`` in a command (COMMAND) viewed as int64[9]."""
ALONE_NS = 100_000
"""Time in ns by which the simulation may run ahead of the wall clock while no other client uses the
drive. The value is large enough to simulate a flash read in one call."""
LENT_NS = 2_000_000
"""Wall time in ns for which the service thread leaves the simulation of the drive's events to a
client that has just run a batch in its own thread."""


class Single:
    """One command that a client runs alone in its own thread: ``commands``, COMMAND[1], with its
    data in ``memory``. The arrays must not be moved or freed."""

    def __init__(self, commands: np.ndarray, memory: np.ndarray) -> None:
        self.commands, self.memory = as_records(commands), memory
        self.address, self.bytes = int(memory.ctypes.data), memory.nbytes
        self.words = commands.view(np.ndarray).view(np.int64).data
        """The command as int64[9]."""
        self.end_ps = 0
        """Simulated time at which the command completed, ps."""


class ClientDrive(Protocol):
    """Interface of a drive whose events a client may simulate in its own thread. Class Drive in
    drive.py documents each member."""

    owner: int | None
    off: bool
    strict: bool

    @property
    def now(self) -> int:
        """Current simulation time of the drive, ps."""

    @property
    def earliest_arrival(self) -> int:
        """Earliest time at which the next command may arrive at the drive, ps."""

    @property
    def next_event(self) -> int:
        """Time of the drive's next simulation event, ps."""

    @property
    def next_upkeep(self) -> int:
        """Time at which the drive next checks for blocks to be refreshed or scrubbed, ps."""

    @property
    def takes_single(self) -> bool:
        """True if the drive can run a single command with :meth:`run_single` now."""

    def submit(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> None:
        """Submit ``commands``, COMMAND[n], to the drive. ``buffer``: memory of their data."""

    def run_until(self, t_ps: int | None = None, *, completions: int = 0) -> int:
        """Simulate events of the drive up to time ``t_ps`` (None: until no work is left), or until
        ``completions`` further commands have completed (0: no such limit). Return the number of
        events."""

    def completions(self) -> np.ndarray:
        """Return the completions of commands since the last call, COMPLETION[n]."""

    def run_single(self, single: Single, arrival: int, until: int, tag: int) -> int:
        """Run the command ``single``, which arrives at time ``arrival``, up to time ``until`` (both
        in ps). Return its status, IN_FLIGHT or REFUSED. ``tag``: tag of the command in the
        drive."""


class ClientTurns(ABC):
    """Base class of Service: runs turns (iterations of the service's loop) in the thread of a
    client, and holds the state that clients and the service thread share for this purpose. Service
    defines and sets the fields."""

    drive: ClientDrive
    clock: str
    _bell: Doorbell
    _delivery: Delivery
    _wall: WallClock
    _thread: threading.Thread
    _inbox: deque[Batch]
    _batches: dict[int, Batch]
    _idle: list[FutureBatch]
    _plans: PlanQueue
    _closing: bool
    _ended: str | None
    _next: int
    """Number of the next batch."""
    _turns: threading.Lock
    """Lock held by the thread that uses the drive."""
    _lent_ns = 0
    """Wall time until which the service thread leaves the simulation of the drive's events to a
    client that uses the drive alone, ns."""

    @abstractmethod
    def _accept(self, batch: Batch) -> None:
        """Submit a batch whose commands arrive now."""

    @abstractmethod
    def _follow(self) -> None:
        """Simulate to the current wall time, or beyond it to the next completion. Deliver
        completions."""

    @abstractmethod
    def _deliver(self) -> None:
        """Deliver completions, if there are any, to their batches when they are due."""

    @property
    @abstractmethod
    def _ahead_ns(self) -> int:
        """Wall time by which the simulation may currently run ahead of the wall clock, ns."""

    def try_run(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray | None:
        """Run a batch of commands, COMMAND[n], in the calling thread, if the clock is ``virtual``
        and no other client uses the drive. Return COMPLETION[n] as Connection.run does, or None if
        the batch must be handed over to the service thread.

        Raises InputError if a command of the batch breaks a rule of nvme/submission.py, or if the
        drive does not accept commands.
        """
        drive = self.drive
        if self.clock != "virtual" or drive.strict or not self._turns.acquire(blocking=False):
            return None
        owner = drive.owner
        try:
            if not self._is_free(owner):
                return None
            drive.owner = threading.get_ident()
            given = checked(commands)
            given["arrival"] = drive.earliest_arrival
            drive.submit(given, buffer)
            drive.run_until(completions=len(given))
            return drive.completions()
        finally:
            drive.owner = owner
            self._turns.release()

    def run_turns(self, batch: Batch, fd: int = -1) -> bool:
        """Accept ``batch`` in the calling thread, if the clock is ``real`` and no other client uses
        the drive, and run turns (iterations of the service's loop) until the batch ends. The
        service thread continues the batch if another batch is handed over, data can be read from
        the file descriptor ``fd`` (-1 for none), or the next event is more than LENT_NS away.
        Return False, without effect, if the batch cannot run in the calling thread."""
        drive = self.drive
        if self.clock != "real" or drive.strict or not self._turns.acquire(blocking=False):
            return False
        owner = drive.owner
        try:
            if drive.off or not self._is_free(owner):
                return False
            drive.owner = threading.get_ident()
            self._lent_ns = time.perf_counter_ns() + LENT_NS
            seen = self._bell.rung
            self._accept(batch)
            self._run_out(seen, fd)
        except Exception as error:  # noqa: BLE001 - the client gets it, and the service ends
            self._fail(batch, error)
        finally:
            self._hand_back(owner)
        return True

    def run_single(self, single: Single, handed_ns: int, fd: int, fly: Callable[[], Stream]) -> int:
        """Run one command as :meth:`run_turns` runs a batch, with less overhead, and return its
        status when its completion is due. ``handed_ns``: time.perf_counter_ns at which the command
        arrived.

        Return IN_FLIGHT if the command has not completed when the simulation is ALONE_NS ahead of
        the wall clock. The batch that ``fly`` returns then contains the command, and this batch may
        already have ended. Return REFUSED, without effect, if the command cannot run in the calling
        thread or breaks a rule of nvme/submission.py.
        """
        drive = self.drive
        if self.clock != "real" or not self._turns.acquire(blocking=False):
            return REFUSED
        owner = drive.owner
        batch: Stream | None = None
        try:
            if not self._is_free(owner) or not drive.takes_single:
                return REFUSED
            drive.owner = threading.get_ident()
            wall, number = self._wall, self._next
            handed = wall.at(handed_ns)
            arrival = max(handed, drive.earliest_arrival)
            now_ns = time.perf_counter_ns()
            self._lent_ns = now_ns + LENT_NS
            until = min(max(wall.at(now_ns + ALONE_NS), drive.now), NEVER - 1)
            status = drive.run_single(single, arrival, until, number << TAG_SHIFT)
            if status >= 0:
                end = single.end_ps
                self._delivery.deliver_one(wall.ns_of(end), wall.ns_of(end - arrival + handed))
            elif status != REFUSED:
                seen = self._bell.rung
                batch = fly()
                batch.moved_ps, batch.left = arrival - handed, 1
                batch.tags = single.commands["tag"].copy()
                self._next, self._batches[number] = number + 1, batch
                self._deliver()
                self._run_out(seen, fd)
        except Exception as error:
            if batch is None:
                self._closing, self._ended = True, f": {error}"
                raise
            self._fail(batch, error)
        finally:
            self._hand_back(owner)
        return status

    def _run_out(self, seen: int, fd: int) -> None:
        """Run turns until no batch is in flight or another thread must continue; see
        :meth:`run_turns`. ``seen``: count of rings of the service's doorbell before the batch was
        accepted."""
        while self._batches:
            self._follow()
            if self._batches and not self._is_quiet(seen, fd):
                break

    def _fail(self, batch: Batch, error: Exception) -> None:
        """End the service with ``error`` and deliver the error to the client of ``batch``."""
        self._closing, self._ended = True, f": {error}"
        self._batches.clear()
        batch.fail(error)

    def _hand_back(self, owner: int | None) -> None:
        """Give the drive back to thread ``owner``, which used the drive before (None: no thread),
        and wake the service thread if batches are left."""
        self.drive.owner = owner
        if left := bool(self._batches or self._closing):
            self._lent_ns = 0
        self._turns.release()
        if left:
            self._bell.ring()

    def _is_free(self, owner: int | None) -> bool:
        """Return True if a client may use the drive: the service thread owns the drive and has no
        work. ``owner``: identifier of the drive's owner thread. The caller must hold the lock
        ``_turns``."""
        busy = self._inbox or self._batches or self._idle or self._plans or self._closing
        return not busy and self._ended is None and owner == self._thread.ident

    def _is_quiet(self, seen: int, fd: int) -> bool:
        """Wait until the wall time of the drive's next event. Return False if the calling thread
        must hand over to the service thread instead; see :meth:`run_turns`."""
        event = min(self.drive.next_event, self.drive.next_upkeep)
        deadline_ns = self._wall.ns_of(event) - self._ahead_ns
        if self._inbox or self._closing or deadline_ns > time.perf_counter_ns() + LENT_NS:
            return False
        return self._bell.quiet(seen, fd, deadline_ns, last_ns=LAST_NS)
