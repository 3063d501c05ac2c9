"""System of one drive with payload, that is, with the data of commands and pages.

Owns the data buffers of commands, the application of the engine's log to the data, and the statuses
of commands whose data could not be stored. Does not own the commands and their clock
(command_system.py), the store and the power (power_system.py), the copying of data
(nvme/moved_bytes.py) or files (nand/store_folder.py).
Source: NVMe base specification (FLUSH, FUA).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.run.command_system import CommandOptions, CommandSystem
from ondie.emu.engine.run.driver import COMPLETED, EVENTS_PER_CALL, NOW, PAUSE, WANTED
from ondie.emu.nand.cache_file import CacheFile
from ondie.emu.nand.codec import DecodeCounts, Decoder, decoder_of
from ondie.emu.nand.memory_ahead import MemoryAhead
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme import condition, submission
from ondie.emu.nvme.client_turns import ARRIVAL, IN_FLIGHT, REFUSED, TAG, Single
from ondie.emu.nvme.command import COMMAND, COMPLETION, READ
from ondie.emu.nvme.moved_bytes import DrivePlanBytes, MovedBytes
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError, whole_number

NO_PAYLOAD = "this drive keeps no payload; use Drive(cfg, payload=True)"
MOST_HELD = 64
"""Number of buffers of commands above which a busy drive checks which buffers can be released."""


END, STATUS = 3, 9
"""Positions in a completion: ``END`` is the index of field ``end`` if the record is viewed as
int64[5], ``STATUS`` the index of field ``status`` if it is viewed as int32[10]."""


class MemoryLimits(NamedTuple):
    """Views of the fields of submission.LIMITS that describe the data buffer of commands, each
    int64[1].

    Assigning an item of a memoryview takes a tenth of the time of assigning a field of a record.
    """

    buffer: memoryview
    base: memoryview
    own: memoryview


class PayloadSystem(CommandSystem):
    """A CommandSystem of one drive that stores the bytes of its pages in ``store``. If
    ``cache_file`` is given, the bytes of the drive's data cache are stored in this file. If
    ``store`` is None, the drive has no payload.
    """

    _buffer: np.ndarray | None = None
    _closed = False
    _ahead: MemoryAhead | None = None
    _decoder: Decoder | None = None

    def __init__(
        self,
        cfg: Config,
        options: CommandOptions,
        store: PageStore | None,
        cache_file: CacheFile | None,
    ) -> None:
        super().__init__(cfg, options)
        self.store, self._cache_file = store, cache_file
        self._store_error: InputError | None = None
        """Error after which the store is not changed; None if there was no such error."""
        self._stored_until = 0
        """If ``_store_error`` is set: number of commands that had completed before the error."""
        self._in_use: list[np.ndarray] = []
        """Buffers, in addition to :attr:`buffer`, that commands in flight may use."""
        self._older: list[np.ndarray] = []
        """Buffers that only commands in flight before the positions ``_older_until`` of the queue
        pairs (int64[queues]) may use.
        """
        self._older_until = self.arrays.pair["loaded"].copy()
        self._first_words = self._out_bytes[: COMPLETION.itemsize].view(np.int64).data
        self._first_status = self._out_bytes[: COMPLETION.itemsize].view(np.int32).data
        held = self._limits.view(np.ndarray)
        self._memory_limits = MemoryLimits(*(held[name].data for name in MemoryLimits._fields))
        self._plans: DrivePlanBytes | None = None
        """Bytes that plans move; None if plans move no bytes."""
        self._bytes: MovedBytes | None = None
        if self._decoder is not None:
            self._decoder.close()  # of the last start
        if store is not None:
            self._decoder = decoder_of(cfg)
            if self._decoder is not None:
                self.arrays.code["decoder"] = self._decoder.address
            self._bytes = MovedBytes(
                self.arrays, self.geometry, self._transfers, (store,), cache_file, self._decoder
            )
            self._bytes.prepare_memory(self._ahead)

    def prepare_memory(self, ahead: MemoryAhead | None) -> None:
        """Let ``ahead`` allocate the memory of pages that will be programmed next. None disables
        this allocation."""
        self._ahead = ahead
        if self._bytes is not None:
            self._bytes.prepare_memory(ahead)

    @property
    def moved(self) -> MovedBytes:
        """Contents of the drive, up to date with the engine's log. Raises InputError if the drive
        has no payload.
        """
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        return self._bytes

    def follow(self, plans: DrivePlanBytes | None) -> None:
        """Set the object that applies the rows (operations) of plans to the data of the drive,
        until the power is cut. If ``plans`` is None, plans move no bytes.

        Raises InputError if the drive has no payload or a plan is running.
        """
        if not self.plan_done:
            raise InputError("a plan is running; wait until it is done")
        self.moved.follow(plans)
        self._plans = plans

    @property
    def decode_counts(self) -> DecodeCounts | None:
        """Counters of the ECC decoder (ecc.code = bch or ldpc) since power-on; None if the drive
        has no decoder or no payload.
        """
        return None if self._decoder is None else self._decoder.counts

    def _check_open(self) -> None:
        """Raise InputError if the drive is closed."""
        if self._closed:
            raise InputError("the drive is closed")

    # --- memory of commands

    @property
    def buffer(self) -> np.ndarray | None:
        """Contiguous memory of the caller for the data of commands; None if no buffer is set."""
        return self._buffer

    @buffer.setter
    def buffer(self, memory: np.ndarray) -> None:
        self._check_buffer(memory)
        if self._buffer is not None and self.outstanding:
            self._in_use.append(self._buffer)  # commands in flight have its address
        self._buffer = memory
        self._limits["buffer"], self._limits["base"] = memory.nbytes, memory.ctypes.data

    def _check_buffer(self, memory: np.ndarray) -> None:
        """Raise InputError unless ``memory`` can be a buffer for the data of commands."""
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        self._check_open()
        if not isinstance(memory, np.ndarray) or memory.dtype.hasobject:
            raise InputError(
                f"buffer of type {type(memory).__name__}: must be a NumPy array of numbers"
            )
        if not memory.flags.c_contiguous or not memory.flags.writeable:
            raise InputError(
                f"buffer: contiguous = {memory.flags.c_contiguous}, writable = "
                f"{memory.flags.writeable}; both must be True"
            )

    def _collect(self) -> None:
        """Record the completions of finished commands, and release buffers that no command uses.

        With durability "host", the data that a completed FLUSH or write with FUA guarantees is made
        durable first. A drive that is never idle releases buffers in two generations: the older
        generation is released when all commands that were loaded before the newer generation began
        have completed.
        """
        lost, first, at = self._lost_changes(), len(self._reports), 0
        super()._collect()
        if lost is not None:
            for report in self._reports[first:]:
                failed = lost[at : at + len(report)] & (report["status"] == Status.SUCCESS)
                report["status"][failed] = Status.WRITE_FAULT
                at += len(report)
        pair = self.arrays.pair
        if self._older and (pair["tail"] >= self._older_until).all():
            self._older.clear()
        if not self._in_use:
            return
        if not self.outstanding:
            self._in_use.clear()
        elif not self._older and len(self._in_use) > MOST_HELD and not any(self._waiting):
            self._older, self._in_use = self._in_use, self._older
            self._older_until = pair["loaded"].copy()

    def _lost_changes(self) -> np.ndarray | None:
        """Return a mask, bool[n], of the completed commands that have not been collected yet: True
        if the changes of the command should be in the store but are not. Return None if the store
        has no error or no files.

        With durability "host", the store is first synced for the commands that guarantee
        durability.
        """
        files = None if self.store is None else self.store.files
        if files is None:
            return None
        done = self.arrays.done
        taken = np.arange(self._taken, int(self.registers[COMPLETED]))
        requests = self.arrays.req[done[taken & (len(done) - 1)]]
        if self._store_error is None and files.folder.syncs:
            try:
                assert self._bytes is not None
                self._bytes.sync_completed(requests)
            except InputError as error:
                self._stop_storing(error, self._taken)
        if self._store_error is None:
            return None
        return (requests["op"] != READ) & (taken >= self._stored_until)

    def _stop_storing(self, error: InputError, completions: int) -> None:
        """Write-protect the drive because its store can no longer be changed.

        ``error``: cause. ``completions``: number of completed commands whose data was stored
        completely.
        """
        self._store_error, self._stored_until = error, completions
        self.arrays.dev["protected"] = condition.PROTECTED_STORE

    def take_log(self, count: int) -> None:
        """Apply the first ``count`` records of the engine's log to the bytes of pages and commands.

        If the ECC decoder has failed, raises its exception. With ``strict``, also raises StoreFull
        if the store has become full.
        """
        if self._bytes is None:
            return
        self._bytes.apply(count)
        if self._bytes.full is not None and self._store_error is None:
            self._stop_storing(self._bytes.full, self._settled)
            if self.strict:
                raise self._bytes.full
        if self._decoder is not None:
            self._decoder.check()

    def submit(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> None:
        """Accept all commands (command.COMMAND[n], sorted by arrival), or none of them.

        ``buffer``: memory for the data of these commands, used instead of :attr:`buffer`, with the
        same rules. Raises InputError, which names the first command that breaks a rule of
        nvme/submission.py. Examples are bytes outside the drive, an arrival before ``now`` or
        before the previous arrival, and an unsupported field. Also raises InputError if ``buffer``
        is not usable or the drive has no payload.
        """
        if buffer is None:
            super().submit(commands)
            return
        self._check_buffer(buffer)
        self._submit_from(commands, buffer, own=0)

    def _submit_from(self, commands: np.ndarray, memory: np.ndarray, own: int) -> None:
        """Submit commands whose data buffer is ``memory``. ``own``: 1 if the drive's methods read
        and write issue the commands, 0 if the caller does."""
        limits, address = self._memory_limits, int(memory.ctypes.data)
        before = limits.buffer[0], limits.base[0], limits.own[0]
        limits.buffer[0], limits.base[0], limits.own[0] = memory.nbytes, address, own
        try:
            self._submit(commands, address)
        finally:
            limits.buffer[0], limits.base[0], limits.own[0] = before
        self._in_use.append(memory)

    @property
    def takes_single(self) -> bool:
        """True if :meth:`run_single` can be called.

        The drive must have payload and must be open and powered. ``strict`` must be False, and no
        error may have occurred. No command may be in flight, no plan may be running, all
        completions must have been returned, and no power cut may be scheduled.
        """
        done = self.registers[COMPLETED]
        busy = self._accepted - self._ended != done or self._taken != done or self._reports
        if busy or self.defect is not None or self.strict or self.off or self._closed:
            return False
        if self._bytes is None or self._store_error is not None:
            return False
        return self.events_left is None and self.plan_done

    def run_single(self, single: Single, arrival: int, until: int, tag: int) -> int:
        """Run one command that arrives at ``arrival`` ps, not before ``earliest_arrival``, and
        return its status.

        This is equivalent to calling ``submit``, ``run_until`` and ``completions``, but takes a
        third of their wall time. :attr:`takes_single` must be True. The end time (ps) of the
        command is stored in ``single.end_ps``.

        Return IN_FLIGHT if the command has not completed by ``until`` ps, if an error has occurred,
        or if completions guarantee durability. The completion then has tag ``tag`` and must be
        collected with :meth:`completions`. Return REFUSED, without any effect, if the command
        breaks a rule of nvme/submission.py.
        """
        reg, words, limits = self.registers, single.words, self._memory_limits
        own, words[TAG], words[ARRIVAL] = words[TAG], tag, arrival
        before = limits.buffer[0], limits.base[0]
        limits.buffer[0], limits.base[0] = single.bytes, single.address
        loaded = self._entries.accept(
            self.state, single.commands, self._limits, self._transfers, self.requested, self._waits
        )
        limits.buffer[0], limits.base[0] = before
        words[TAG] = own
        if loaded < 0:
            return REFUSED
        self._accepted += loaded
        reg[WANTED] = wanted = reg[COMPLETED] + 1
        self._run_once(until)  # nothing is in flight, so the ring had room
        if reg[COMPLETED] != wanted or self._store_error or self.defect or self._syncs:
            self._in_use.append(single.memory)
            return IN_FLIGHT
        self._entries.take(self.state, self._transfers, self._taken, self._out)
        self._taken += 1
        single.end_ps = self._first_words[END]
        return int(self._first_status[STATUS])

    @property
    def _syncs(self) -> bool:
        """True if the files of the store are synced before completions that guarantee durability
        are reported."""
        files = None if self.store is None else self.store.files
        return files is not None and files.folder.syncs

    def _run_once(self, until: int) -> None:
        """Handle events up to ``until`` ps, without loading further commands or rows.

        After an error, the drive is offline.
        """
        self.registers[PAUSE] = 0
        try:
            self._entries.run(self.state, until, EVENTS_PER_CALL, 0)
            self.finish_batch()
            if self._doubt[0]:
                self._end_waiting(False)
        except Exception as error:  # noqa: BLE001 - the drive keeps it
            self._go_offline(error)
        self._reached = max(self._reached, self.registers[NOW])

    def _run_command(self, op: int, offset: int, memory: np.ndarray, idle: bool = True) -> Status:
        """Run one command on ``memory`` (uint8[n]) at the current time and return its status.

        ``idle``: True to run until the drive is idle, False to run only until the next completion.
        The completion of the command is not reported. Raises InputError if the drive has no
        payload.
        """
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        command = np.zeros(1, COMMAND)
        command["op"], command["size"], command["tag"] = op, memory.nbytes, submission.OWN_TAG
        command["offset"] = whole_number("offset", offset, 0, self.capacity - 1)
        command["arrival"] = self.earliest_arrival
        self._submit_from(command, memory, own=1)
        self.run_until(completions=0 if idle else 1)
        self._collect()
        own = [each[each["tag"] == submission.OWN_TAG] for each in self._reports]
        others = (each[each["tag"] != submission.OWN_TAG] for each in self._reports)
        self._reports = [each for each in others if len(each)]
        return Status(int(np.concatenate(own)["status"][0]))

    def stored(self, unit: int) -> np.ndarray | None:
        """Return a copy of the flash contents of a mapping unit, uint8[unit_bytes].

        Return None if the unit is not mapped. The call takes no simulated time. Raises InputError
        if the drive has no payload.
        """
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        unit = whole_number("unit", unit, 0, self.units - 1)
        self._check_open()
        return self._bytes.stored(unit)

    def cached(self, unit: int) -> np.ndarray | None:
        """Return a copy of a mapping unit in the data cache, uint8[unit_bytes], in which only the
        cached sectors are valid.

        Return None if the unit is not in the cache, or after a power cut. Raises InputError if the
        drive has no payload.
        """
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        unit = whole_number("unit", unit, 0, self.units - 1)
        self._check_open()
        return None if self.off else self._bytes.cached(unit)
