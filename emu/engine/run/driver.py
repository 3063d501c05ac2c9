"""Driver of the engine: the only Python code that runs the compiled event loop.

Owns the state of a simulation, the execution of the event loop in batches, the loop's errors, log
and wall time, power cuts, and the check that no work is left. Does not own the work. Subclasses
supply work between two batches: plans (system.py), commands of one drive (command_system.py) or
requests through queue pairs (replay/player.py).
Source: this project. engine/run/loop.py lists the reasons for which the event loop pauses.
"""

from __future__ import annotations

import time

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.core.events import REG
from ondie.emu.engine.core.state import Arrays, as_records
from ondie.emu.engine.run import loop
from ondie.emu.engine.run.errors import raise_error, raise_stuck
from ondie.emu.nand.geometry import Geometry
from ondie.emu.units import InputError

NOW, EVENTS, ERROR, TAIL, NEXT_ROW, LOGGED, CLOSING, PAUSE, COMPLETED, WANTED, UPKEEP = map(
    list(REG.names or ()).index,
    (
        "now", "events", "error", "tail", "next_row", "logged", "closing", "pause", "completed",
        "wanted", "upkeep",
    ),
)  # fmt: skip
"""Indices in ``Driver.registers`` of the engine's registers (fields of events.REG)."""
EVENTS_PER_CALL = 1 << 22
"""Maximum number of events in one call of the event loop. Between two calls, the driver checks for
interrupts and reports progress. These events take less than a second of wall time."""


class PowerCut(Exception):
    """Raised if the power has been cut. The driver then handles no further events."""


class Driver:
    """Driver of the event loop on ``arrays``, which engine/run/build.py made from ``cfg``.

    A subclass may override four methods. :meth:`supply` loads work, :meth:`batch_limit` limits the
    number of events in a batch, :meth:`take_log` receives the log, and :meth:`report` is called
    after each batch.
    """

    def __init__(self, cfg: Config, arrays: Arrays) -> None:
        self.cfg = cfg
        self.arrays = arrays
        self.geometry = Geometry.of(cfg)
        self.state = arrays.handle()
        self.registers = arrays.reg.view(np.ndarray).view(np.int64).data
        """The engine's registers, int64[registers], in the order of events.REG.

        Items of this memoryview are read as Python numbers, which is faster than reading an array.
        """
        self._keys = arrays.key.data
        self._keeps_up = bool(arrays.cfg.upkeep[0])
        self.rows_wanted = 0
        """Number of free rows in the ring at which the loop pauses to load more rows; 0 if it does
        not pause.
        """
        self.events_left: int | None = None
        """Number of events until the power cut; None if no power cut is scheduled."""
        self.off = False
        """True after a power cut."""
        self.last_logged = 0
        """Number of records that the last batch of events has written to ``arrays.log``."""
        self.loop_s = self.loop_cpu_s = 0.0
        """Wall time and CPU time of the event loop so far, in seconds."""

    @property
    def now(self) -> int:
        """Simulated time (ps): the time of the last event."""
        return int(self.registers[NOW])

    @property
    def next_event(self) -> int:
        """Time of the next event (ps), or NEVER if no event is pending."""
        return int(self._keys[1])

    @property
    def next_upkeep(self) -> int:
        """Time of the next check for blocks to be refreshed or scrubbed (ps), or NEVER if refresh
        and scrubbing are off.

        This check is not an event, so it does not prolong a run.
        """
        return int(self.registers[UPKEEP]) if self._keeps_up else NEVER

    @property
    def events(self) -> int:
        """Number of events handled so far."""
        return int(self.registers[EVENTS])

    @property
    def rows_done(self) -> int:
        """Number of plan rows before the oldest incomplete row. All of these rows are complete."""
        return int(self.registers[TAIL])

    @property
    def next_row(self) -> int:
        """Id of the next plan row to be loaded."""
        return int(self.registers[NEXT_ROW])

    @property
    def free_rows(self) -> int:
        """Number of plan rows for which the ring has room."""
        return int(plan_rows.room(self.state))

    @property
    def transactions_in_flight(self) -> int:
        """Number of transactions that have not returned to the pool."""
        return len(self.arrays.txn) - int(self.arrays.reg.txns_free[0])

    @property
    def idle(self) -> bool:
        """True if no event is pending and no page is in transit from the data cache to flash."""
        return self.next_event >= NEVER and not self.arrays.cache.flying.any()

    def load_rows(self, rows: np.ndarray) -> None:
        """Load plan rows (plan_rows.PLAN[n], n at most ``free_rows``) into the ring."""
        plan_rows.load(self.state, as_records(rows))

    # --- hooks

    def supply(self) -> bool:
        """Collect completed work, and load further work while the ring and the queues have room.

        Return True if any work was loaded.
        """
        return False

    def batch_limit(self) -> int:
        """Return the maximum number of events until the next call of :meth:`supply`."""
        return EVENTS_PER_CALL

    def take_log(self, count: int) -> None:
        """Receive the first ``count`` records of the log, ``arrays.log``, in order of events.

        The engine logs only if the arrays were built with ``payload``.
        """

    def report(self) -> None:
        """Report the progress of the simulation. The driver calls this hook after each batch of
        events."""

    # --- running

    def warm_up(self) -> float:
        """Compile the event loop, or load it from the cache, by a call that handles no events.

        Return the elapsed wall time, seconds.
        """
        begin = time.perf_counter()
        loop.run(self.state, -1, 0, 0)
        return time.perf_counter() - begin

    def run_until(self, t_ps: int = NEVER - 1, max_events: int | None = None) -> int:
        """Handle events up to ``t_ps``, at most ``max_events``; return the number of events
        handled.

        Stops early if no event is pending and no work can be loaded. Raises PowerCut when
        ``events_left`` reaches 0, and InputError or SimulationError for an error of the engine.
        """
        self.check_power()
        limit = NEVER if max_events is None else max_events
        done, count = 0, -1
        while True:
            loaded = self.supply()
            if done >= limit or (count == 0 and not loaded):
                return done
            count = self._run_batch(t_ps, min(limit - done, self.batch_limit()))
            done += count
            self.report()

    def _run_batch(self, t_ps: int, max_events: int) -> int:
        """Call the event loop once, deliver the log, and raise the engine's error if there is one.

        Return the number of events handled.
        """
        if self.events_left is not None:
            self._cut_power_if_due()
            max_events = min(max_events, self.events_left)
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        count = int(loop.run(self.state, t_ps, max_events, self.rows_wanted))
        self.loop_s += time.perf_counter() - begin
        self.loop_cpu_s += time.thread_time() - begin_cpu
        self.finish_batch()
        if self.events_left is not None:
            self.events_left -= count
            self._cut_power_if_due()
        return count

    def finish_batch(self) -> None:
        """Pass the log of the last batch of events to :meth:`take_log`, and raise the error of the
        batch, if there is one.
        """
        logged = self.last_logged = int(self.registers[LOGGED])
        if logged:
            try:
                self.take_log(logged)
            finally:
                self.registers[LOGGED] = 0
        if self.registers[ERROR]:
            raise_error(self.arrays, self.cfg)

    def _cut_power_if_due(self) -> None:
        if self.events_left == 0:
            self.off = True
            raise PowerCut

    def check_power(self) -> None:
        """Raise InputError if the power has been cut."""
        if self.off:
            raise InputError(
                "the drive is offline after a power cut and cannot execute commands; turn the "
                "power on first"
            )

    def check_finished(self) -> None:
        """Raise an error if plan rows, requests, or writes from the data cache to flash are
        incomplete.

        The caller must have handled all events. Raises InputError for a full drive, otherwise
        SimulationError.
        """
        if (
            self.rows_done != self.next_row
            or self.arrays.pair.outstanding.any()
            or self.arrays.cache.flying.any()
        ):
            raise_stuck(self.arrays, self.cfg)
