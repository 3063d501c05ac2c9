"""System that executes commands from queue pairs and concurrent plans, in simulated time.

Owns the acceptance of commands, the commands that wait for room in the ring of their queue pair,
the current simulated time, the completions, and the termination of all commands after a defect of
the engine. Does not own the event loop (driver.py), the rules and records of commands
(nvme/submission.py), the termination of single commands (nvme/write_errors.py), the drive's
condition (nvme/condition.py) or the bytes that commands move (payload_system.py).
Source: NVMe base specification (submission and completion queues)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.core.plan_rows import MixedPlan
from ondie.emu.engine.core.state import as_records
from ondie.emu.engine.run import loop
from ondie.emu.engine.run.driver import (
    CLOSING,
    COMPLETED,
    EVENTS_PER_CALL,
    NOW,
    PAUSE,
    WANTED,
    PowerCut,
)
from ondie.emu.engine.run.system import NO_RESERVOIR, ReservoirOptions, System
from ondie.emu.nvme import submission, write_errors
from ondie.emu.nvme.command import COMMAND, COMPLETION, TRANSFER
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError, whole_number
from ondie.kernels.jit import entry

REPORTED = 1 << 12
"""Maximum number of completions that are copied from the queue pairs at a time."""


class Entries(NamedTuple):
    """Functions compiled for a drive's arrays: accept commands, run events, take completions."""

    accept: Callable[..., int]
    run: Callable[..., int]
    take: Callable[..., int]


@dataclass(frozen=True)
class CommandOptions:
    """Options of a system that takes commands, in addition to its configuration."""

    queues: int
    """Number of queue pairs."""
    queue_depth: int | None
    """Maximum number of commands of a queue pair in flight; further commands wait in order. None
    selects the smaller of the host's and the drive's queue depth."""
    block_bytes: int
    """Size of a logical block in bytes."""
    payload: bool
    """True if the engine writes the log of moved bytes."""
    seed: int
    """Seed of the bad blocks, failed operations and bit errors."""
    strict: bool
    """True if a full drive or a defect of the engine raises an error instead of ending commands
    with a status."""
    reservoir: ReservoirOptions = NO_RESERVOIR
    """Reservoir that the plans use, outside the namespace of the commands."""


class CommandSystem(System):
    """System of one device and its host, with queue pairs. Executes commands (nvme/command.py:
    COMMAND) that arrive at given times.

    A command that cannot be executed ends with a status (nvme/status.py). After an error of the
    engine, which is stored in ``defect``, no events are handled, and all commands end with
    INTERNAL_ERROR. With ``options.strict``, a full drive raises InputError and the engine's errors
    are raised, as in plans."""

    def __init__(
        self,
        cfg: Config,
        options: CommandOptions,
    ) -> None:
        own = self.reservoir = options.reservoir
        super().__init__(
            cfg, own.phases, pairs=options.queues, queue_depth=options.queue_depth,
            payload=options.payload, seed=options.seed,
            reservoir_super_pages=own.super_pages, reservoir_planes=own.planes,
        )  # fmt: skip
        self.strict = options.strict
        self.defect: Exception | None = None
        """Error of the engine after which the drive handles no events; None if no error
        occurred."""
        self.block_bytes = options.block_bytes
        self.unit_bytes = self.geometry.page_bytes
        """Size of a mapping unit in bytes."""
        self.units = int(self.arrays.cfg.lpns[0])
        """Number of mapping units of the drive."""
        self.capacity = self.units * self.unit_bytes
        """Capacity of the drive in bytes."""
        self.requested = np.zeros(4, np.int64)
        """Number of mapping units accessed and number of bytes transferred by the loaded reads and
        writes: int64[units read, units written, bytes read, bytes written]."""
        self._transfers = as_records(np.zeros(len(self.arrays.req), TRANSFER))
        pair = self.arrays.pair
        pair["depth"] = self.arrays.cfg["queue_depth"]
        pair["by_request"] = 1
        self._limits = as_records(np.zeros(1, submission.LIMITS))
        limits = {
            "capacity": self.capacity,
            "block": self.block_bytes,
            "transfer": cfg.frontend.max_transfer_bytes,
            "buffer": 0 if options.payload else -1,
            "streams": cfg.ftl.write_streams,
            "queues": options.queues,
        }
        for name, value in limits.items():
            self._limits[name] = value
        self._reached = self._accepted = self._taken = self.planned_commands = 0
        self._ended = 0
        """Number of commands that were completed outside the engine, after a defect."""
        self._planning = False
        self._settled = 0
        """Number of completions whose bytes have been moved."""
        self._doubt, self._full = self.arrays.dev["doubt"], self.arrays.dev["full"]
        self.arrays.dev["ends"] = not options.strict
        self._waiting: list[list[tuple[np.ndarray, int]]] = [[] for _ in range(options.queues)]
        """Commands of each queue pair that are not in its ring yet, with the address of their
        buffer."""
        self._waits = np.zeros(REPORTED, np.uint8)
        self._out = as_records(np.zeros(REPORTED, COMPLETION))
        self._out_bytes = self._out.view(np.ndarray).view(np.uint8)
        self._reports: list[np.ndarray] = []
        self._earliest, self._base = self._limits["arrival"], self._limits["base"]
        self._flying = self.arrays.cache["flying"]

    @cached_property
    def _entries(self) -> Entries:
        """Compiled functions that are called for every command."""
        none = as_records(np.zeros(0, COMMAND))
        records = self._limits, self._transfers, self.requested, self._waits
        return Entries(
            entry(submission.accept, self.state, none, *records),
            entry(loop.run, self.state, 0, 0, 0),
            entry(submission.take_completions, self.state, self._transfers, 0, self._out),
        )

    # --- commands

    def submit(self, commands: np.ndarray) -> None:
        """Accept all commands (command.COMMAND[n], sorted by arrival), or none of them.

        Raises InputError if a command breaks a rule of nvme/submission.py, for example if its bytes
        are outside the drive, if it arrives before ``now`` or before the previous command, or if a
        field is not supported. The message names the first such command.
        """
        self._submit(commands, int(self._base[0]))

    def _submit(self, commands: np.ndarray, base: int) -> None:
        """Check and accept ``commands`` (COMMAND[n]), whose data buffer is at address ``base``."""
        self.check_power()
        self._earliest[0] = self.earliest_arrival
        if (
            not isinstance(commands, np.ndarray)
            or commands.dtype != COMMAND
            or commands.ndim != 1
            or not commands.flags.carray  # the layout for which the code is compiled
        ):
            commands = submission.as_commands(commands)
        count = len(commands)
        if self.defect is not None:
            self._end_at_once(commands)
            return
        if count > len(self._waits):
            self._waits = np.zeros(count, np.uint8)
        self._collect()  # places in the rings are used again
        loaded = self._entries.accept(
            self.state, as_records(commands), self._limits, self._transfers, self.requested,
            self._waits,
        )  # fmt: skip
        if loaded < 0:
            submission.check(commands, self._limits)
        self._accepted += count
        if loaded < count:
            self._keep_waiting(commands, base)

    def _keep_waiting(self, commands: np.ndarray, base: int) -> None:
        """Add the commands that were not loaded to the waiting commands of their queue pairs, and
        clear the marks in ``_waits``."""
        left = commands[self._waits[: len(commands)] != 0]
        self._waits[: len(commands)] = 0
        for queue in np.unique(left["queue"]).tolist():
            self._waiting[queue].append((left[left["queue"] == queue], base))

    def _load_waiting(self, queue: int) -> bool:
        """Load waiting commands of queue pair ``queue`` while its ring has room. Return True if any
        command was loaded."""
        waiting, self._waiting[queue] = self._waiting[queue], []
        self.arrays.pair["more"][queue] = 0
        any_loaded = False
        self._collect()  # places in the ring are used again
        for commands, base in waiting:
            loaded = submission.load(
                self.state, as_records(commands), self._transfers, base, self.requested,
                self._waits,
            )  # fmt: skip
            any_loaded |= loaded > 0
            if loaded < len(commands):
                self._keep_waiting(commands, base)
        return any_loaded

    def _load(self, chunk: np.ndarray) -> None:
        """Load a chunk of plan rows, and count its NVMe commands."""
        self.planned_commands += int((chunk["resource"] == plan_rows.NVME).sum())
        super()._load(chunk)

    def supply(self) -> bool:
        """Load rows of plans into the engine, and waiting commands into queue pairs that have room.
        Return True if anything was loaded, or if the event loop may have other work."""
        self._planning = True  # an error of the plan's generator is none of the engine
        loaded = super().supply()
        self._planning = False
        self.registers[CLOSING] = 0  # commands may follow
        self.registers[PAUSE] = 0
        for queue, waiting in enumerate(self._waiting):
            if waiting:
                loaded |= self._load_waiting(queue)
        return self._end_waiting(False) or loaded

    # --- time

    def warm_up(self) -> float:
        """Compile the event loop and the functions that commands need, or load them from the cache.
        Return the elapsed wall time, seconds."""
        begin = time.perf_counter()
        super().warm_up()
        self.submit(np.zeros(0, COMMAND))  # also refuses a drive that is closed or owned
        return time.perf_counter() - begin

    @property
    def outstanding(self) -> int:
        """Number of accepted commands that have not been completed."""
        return self._accepted - int(self.registers[COMPLETED]) - self._ended

    @property
    def now(self) -> int:
        """Current simulation time (ps), before which no newly submitted command may arrive."""
        return self._reached

    @property
    def earliest_arrival(self) -> int:
        """Earliest permitted arrival (ps): the later of ``now`` and the last command's arrival."""
        return max(int(self._earliest[0]), self._reached)

    def run_until(
        self, t_ps: int | None = None, max_events: int | None = None, completions: int = 0,
        plan_end: bool = False,
    ) -> int:  # fmt: skip
        """Handle events up to time ``t_ps``, at most ``max_events``; return the number of events
        handled.

        If ``t_ps`` is None, run until no work is left, and leave the clock at the last event. If
        ``completions`` is not 0, stop after this number of further completions. If ``plan_end`` is
        set, stop when all plans are done.

        Raises InputError if ``t_ps`` is before ``now`` or not below clock.NEVER, if ``max_events``
        or ``completions`` is negative, or if a plan waits for space that garbage collection cannot
        free. An error of the engine is stored in :attr:`defect`; the drive is then offline. With
        ``strict``, also raises InputError if commands wait for such space, and SimulationError or
        Imbalance for a defect of the engine."""
        self.check_power()
        limit = NEVER - 1 if t_ps is None else whole_number("t_ps", t_ps, 0, NEVER - 1)
        if limit < self._reached:
            raise InputError(f"t_ps = {t_ps}: must not be before the current time, {self.now} ps")
        completions = whole_number("completions", completions, 0, NEVER)
        if max_events is not None:
            max_events = whole_number("max_events", max_events, 0, NEVER)
        reg = self.registers
        wanted = int(reg[COMPLETED]) + completions if completions else NEVER
        reg[WANTED] = wanted
        before = self.events
        if self.defect is None:
            try:
                self._handle_events(limit, max_events, wanted, plan_end)
            except PowerCut:
                raise
            except Exception as error:
                if self.strict or self._planning or (not self.plan_done and self._is_full(error)):
                    self._planning = False
                    raise
                self._go_offline(error)
        stopped = self._has_work(limit) or reg[COMPLETED] >= wanted
        if t_ps is None or (self.defect is None and stopped):
            self._reached = max(self._reached, super().now)
        else:
            self._reached = limit
        return self.events - before

    def _handle_events(
        self, t_ps: int, max_events: int | None, wanted: int, plan_end: bool
    ) -> None:
        """Handle events as :meth:`run_until` does. Raises the engine's errors. Raises InputError or
        SimulationError if commands or rows are incomplete although no event is pending."""
        if self.events_left is not None:
            super().run_until(t_ps, max_events)
        else:
            self._run_events(t_ps, NEVER if max_events is None else max_events, wanted, plan_end)
        if self.next_event < NEVER:
            return
        if self.outstanding or not self.plan_done or (self._flying.any() and not self._full[0]):
            self.check_finished()

    def _is_full(self, error: Exception) -> bool:
        """Return True if ``error`` states that a plan finds no space and the drive has no other
        work."""
        return isinstance(error, InputError) and self.next_event >= NEVER and not self.outstanding

    @property
    def has_completions(self) -> bool:
        """True if there are completions that :meth:`completions` has not returned yet."""
        return bool(self._reports) or self._taken < int(self.registers[COMPLETED])

    def _run_events(self, t_ps: int, most: int, wanted: int, plan_end: bool = False) -> int:
        """Handle events up to ``t_ps``, at most ``most``; return the number of events handled.

        Stop when the total number of completed commands reaches ``wanted`` or, with ``plan_end``,
        when all plans are done. The caller must not have scheduled a power cut."""
        reg, key, done, tried = self.registers, self.arrays.key, 0, -1
        run = self._entries.run
        self._supply_waiting()
        while True:
            reg[PAUSE] = 0
            room = self.rows_wanted or (len(self.arrays.row) if plan_end else 0)
            done += run(self.state, t_ps, min(most - done, EVENTS_PER_CALL), room)
            self.finish_batch()
            more = self._doubt[0] != 0 and self._end_waiting(False)
            if done >= most or reg[COMPLETED] >= wanted or (plan_end and self.plan_done):
                return done
            more |= self._supply_waiting()
            if not more and key[1] >= NEVER and tried < done:
                tried = done
                more = self._end_waiting(True)
            if not more and not self._has_work(t_ps):
                return done

    def _has_work(self, t_ps: int) -> bool:
        """Return True if an event is pending or upkeep is due at or before ``t_ps``."""
        return self.next_event <= t_ps or self.next_upkeep <= t_ps < NEVER - 1

    def _end_waiting(self, certain: bool) -> bool:
        """End the commands that wait for space, if no garbage collection can free any space.

        ``certain``: True if no event is pending. Return True if the event loop may have work now.
        """
        if self.strict or not (certain or self._doubt[0]):
            return False
        if certain and not (self.outstanding or self._flying.any()):
            return False
        return bool(write_errors.end_waiting(self.state, 0, int(certain)))

    def _supply_waiting(self) -> bool:
        """Load waiting commands and plan rows, if any. Return True if anything was loaded."""
        return (any(self._waiting) or not self.plan_done) and self.supply()

    def run(self, plan: Iterable[np.ndarray] | None = None, max_events: int | None = None) -> int:
        """Run commands and plans until no work is left, or for at most ``max_events`` events;
        return the number of events handled.

        ``plan``: plan to start first (chunks of plan_rows.PLAN), or None. The clock stays at the
        time of the last event."""
        if plan is not None:
            self.start(plan)
        return self.run_until(None, max_events)

    def start(self, plan: Iterable[np.ndarray]) -> None:
        """Start a plan (chunks of plan_rows.PLAN) at the current time. Later calls that handle
        events run the plan.

        Raises InputError if a plan is running."""
        self.check_power()
        if not self.plan_done:
            raise InputError("a plan is running; wait until it is done")
        self._begin_now()
        super().start(plan)

    def start_beside(self, plan: Iterable[np.ndarray]) -> MixedPlan:
        """Start a plan at the current time, concurrently with other plans that this method has
        started.

        Raises InputError if a plan that :meth:`start` or :meth:`run` has started is running."""
        self.check_power()
        self._begin_now()
        return super().start_beside(plan)

    def _begin_now(self) -> None:
        """Set the clock so that rows loaded next start at the time already reached."""
        if self.next_event >= self._reached:
            self.registers[NOW] = max(self._reached, super().now)

    def completions(self) -> np.ndarray:
        """Return the completions since the last call: command.COMPLETION[n], in the order in which
        they reached the host.

        ``start`` is the time at which the command entered the submission queue: its arrival, or
        later if the queue was full. ``status`` is one of nvme.status.Status; 0 is success. After
        UNRECOVERED_READ_ERROR, the bytes of at least one page are wrong. If a write ends with any
        other error, each of its mapping units contains either the old or the new bytes."""
        self._collect()
        reports, self._reports = self._reports, []
        return reports[0] if len(reports) == 1 else np.concatenate([self._out[:0], *reports])

    def _collect(self) -> None:
        """Copy the completions of finished commands, before their slots in the rings are reused."""
        while self._taken < self.registers[COMPLETED]:
            count = int(self._entries.take(self.state, self._transfers, self._taken, self._out))
            self._taken += count
            taken = self._out_bytes[: count * COMPLETION.itemsize]
            self._reports.append(taken.copy().view(COMPLETION))  # a copy of records takes longer

    # --- after a defect

    def finish_batch(self) -> None:
        """Pass the log of the last batch of events to :meth:`take_log`, and raise the error of the
        batch, if there is one."""
        super().finish_batch()
        self._settled = int(self.registers[COMPLETED])

    def _go_offline(self, defect: Exception) -> None:
        """Store ``defect``, and complete all outstanding commands with INTERNAL_ERROR.

        Commands that completed in the batch of events in which the defect occurred also get this
        status."""
        self._collect()
        unsure = int(self.registers[COMPLETED]) - self._settled
        for report in reversed(self._reports):
            report["status"][max(len(report) - unsure, 0) :] = Status.INTERNAL_ERROR
            unsure = max(unsure - len(report), 0)
        self.defect = defect
        self._reached = max(self._reached, super().now)
        ended = self._unfinished_requests()
        for waiting in self._waiting:
            ended += [_internal_errors(commands, self._reached) for commands, _ in waiting]
            waiting.clear()
        self._report_ended(np.concatenate([self._out[:0], *ended]))

    def _unfinished_requests(self) -> list[np.ndarray]:
        """Return a completion, COMPLETION[1], for each unfinished request in the rings."""
        ended = []
        mask = int(self.arrays.cfg.ring[0]) - 1
        for queue, pair in enumerate(np.asarray(self.arrays.pair).view(np.ndarray)):
            for index in range(int(pair["tail"]), int(pair["loaded"])):
                place = queue * (mask + 1) + (index & mask)
                req = self.arrays.req[place]
                issued = index < pair["next"]
                if issued and req["done"]:
                    continue
                one = np.zeros(1, COMPLETION)
                one["tag"], one["queue"] = self._transfers[place]["tag"], queue
                one["arrival"], one["status"] = req["arrival"], Status.INTERNAL_ERROR
                one["end"] = max(self._reached, int(req["arrival"]))
                one["start"] = req["start"] if issued else one["end"]
                ended.append(one)
        return ended

    def _end_at_once(self, commands: np.ndarray) -> None:
        """Check commands (COMMAND[n]) for a drive that is offline, and complete them with
        INTERNAL_ERROR.

        Raises InputError if a command breaks a rule of nvme/submission.py."""
        submission.check(commands, self._limits)
        if len(commands):
            self._earliest[0] = commands["arrival"][-1]
            self._accepted += len(commands)
            self._report_ended(_internal_errors(commands, self._reached))

    def _report_ended(self, ended: np.ndarray) -> None:
        """Report completions (COMPLETION[n]) that the engine did not make, in order of their end
        times."""
        self._ended += len(ended)
        if len(ended):
            self._reports.append(ended[np.argsort(ended["end"], kind="stable")])


def _internal_errors(commands: np.ndarray, now: int) -> np.ndarray:
    """Return completions, COMPLETION[n], with status INTERNAL_ERROR for ``commands``, which end at
    ``now`` (ps) or at their arrival if that is later."""
    ended = np.zeros(len(commands), COMPLETION)
    for name in ("tag", "arrival", "queue"):
        ended[name] = commands[name]
    ended["start"] = ended["end"] = np.maximum(commands["arrival"], now)
    ended["status"] = Status.INTERNAL_ERROR
    return ended
