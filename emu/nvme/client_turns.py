"""Turns of a service that a client runs in its thread while no other client uses the drive.

Owns the conditions under which a client may do so, and when it leaves the rest to the thread of the
service. Does not own that thread and its clock (service.py), the hand-over to and from clients
(client_queue.py) or the run of commands (engine/run/payload_system.py).
Source: none. It spares two changes of threads for each command.
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
"""Values that :meth:`ClientDrive.run_single` returns instead of a status."""
TAG, ARRIVAL = 7, 8
"""Indices of fields in a command as int64[9]."""
ALONE_NS = 100_000
"""Wall time by which the simulation may run ahead in turns of a client that is alone, in ns: a read
of flash is then simulated in one piece."""
LENT_NS = 2_000_000
"""Wall time, ns, for which the drive's events are left to a client that has run a batch alone."""


class Single:
    """The command ``commands``, COMMAND[1], with its bytes in ``memory``, which a client runs
    alone. Both arrays must keep their memory."""

    def __init__(self, commands: np.ndarray, memory: np.ndarray) -> None:
        self.commands, self.memory = as_records(commands), memory
        self.address, self.bytes = int(memory.ctypes.data), memory.nbytes
        self.words = commands.view(np.ndarray).view(np.int64).data
        """The command as int64[9]."""
        self.end_ps = 0
        """Simulated time at which it has completed."""


class ClientDrive(Protocol):
    """Part of a drive that a client uses; drive.py, Drive, has the meaning of each method."""

    owner: int | None
    off: bool
    strict: bool

    @property
    def now(self) -> int:
        """Current simulation time (ps)."""

    @property
    def earliest_arrival(self) -> int:
        """Earliest arrival of the next command (ps)."""

    @property
    def next_event(self) -> int:
        """Time of the next event (ps)."""

    @property
    def next_upkeep(self) -> int:
        """Time of the next check for blocks to be refreshed or scrubbed (ps)."""

    @property
    def takes_single(self) -> bool:
        """True if ``run_single`` can take a command."""

    def submit(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> None:
        """Accept commands."""

    def run_until(self, t_ps: int | None = None, *, completions: int = 0) -> int:
        """Handle events."""

    def completions(self) -> np.ndarray:
        """Return the completions since the last call."""

    def run_single(self, single: Single, arrival: int, until: int, tag: int) -> int:
        """Run one command; return its status, IN_FLIGHT or REFUSED."""


class ClientTurns(ABC):
    """Shared state of a service and its clients when a client runs its commands in its own thread.
    The fields are those of Service, which sets them."""

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
    """Held by the thread that uses the drive."""
    _lent_ns = 0
    """Wall time until which the thread leaves the drive's events to a client that is alone."""

    @abstractmethod
    def _accept(self, batch: Batch) -> None:
        """Submit a batch; its commands arrive now."""

    @abstractmethod
    def _follow(self) -> None:
        """Advance the drive with the wall clock, or ahead to the next completion; deliver."""

    @abstractmethod
    def _deliver(self) -> None:
        """Hand completions, if there are any, to their batches when their time has come."""

    @property
    @abstractmethod
    def _ahead_ns(self) -> int:
        """Wall time by which the simulation may run ahead now, ns."""

    def try_run(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray | None:
        """Run a batch of commands, COMMAND[n], in the calling thread, if the clock is ``virtual``
        and no other client uses the drive. Return COMPLETION[n] as Connection.run does, or None if
        the batch has to be handed over.

        Raises InputError for a batch that breaks a rule, or if the drive takes none.
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
        """Take ``batch`` in the calling thread, if the clock is ``real`` and no other client uses
        the drive, and run the turns of the service until it has ended. If a client hands over
        another one, something can be read from the file ``fd`` (-1: none), or the next event is
        far, the service's thread continues with the batch. Return False, without effect, if another
        client uses the drive.
        """
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
        """Do what :meth:`run_turns` does for one command, which has arrived at ``handed_ns``
        (time.perf_counter_ns), with less overhead: return its status when its time has come.

        Return IN_FLIGHT if it takes longer than a turn: ``fly`` has then made the
        batch in which it is in flight, or has ended; REFUSED, without effect, if another client
        uses the drive, or the command breaks a rule.
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
        """Run turns until no batch is in flight, or somebody else has to go on with them: see
        :meth:`run_turns`. ``seen``: rings of the service's doorbell before the batch was taken."""
        while self._batches:
            self._follow()
            if self._batches and not self._is_quiet(seen, fd):
                break

    def _fail(self, batch: Batch, error: Exception) -> None:
        """End the service with ``error``, which the client of ``batch`` gets."""
        self._closing, self._ended = True, f": {error}"
        self._batches.clear()
        batch.fail(error)

    def _hand_back(self, owner: int | None) -> None:
        """Give the drive back to ``owner``, and wake the service's thread if anything is left."""
        self.drive.owner = owner
        if left := bool(self._batches or self._closing):
            self._lent_ns = 0
        self._turns.release()
        if left:
            self._bell.ring()

    def _is_free(self, owner: int | None) -> bool:
        """Return True if a client that holds the turns may use the drive of ``owner``."""
        busy = self._inbox or self._batches or self._idle or self._plans or self._closing
        return not busy and self._ended is None and owner == self._thread.ident

    def _is_quiet(self, seen: int, fd: int) -> bool:
        """Wait for the wall time of the drive's next event; return False if a client that is alone
        must not wait for it: see run_turns."""
        event = min(self.drive.next_event, self.drive.next_upkeep)
        deadline_ns = self._wall.ns_of(event) - self._ahead_ns
        if self._inbox or self._closing or deadline_ns > time.perf_counter_ns() + LENT_NS:
            return False
        return self._bell.quiet(seen, fd, deadline_ns, last_ns=LAST_NS)
