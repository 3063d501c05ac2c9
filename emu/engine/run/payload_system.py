"""System of one drive with payload: the bytes of commands and pages.

Owns the memory of commands, the application of the engine's log to the bytes, and what completes
although it could not be stored. Does not own the commands and their clock (command_system.py), the
store and the power (power_system.py), the copies themselves (nvme/moved_bytes.py) or files
(nand/store_folder.py).
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
"""Number of kept arrays of commands from which on a drive checks which can be released."""


END, STATUS = 3, 9
"""Indices in a completion: of the end, viewed as int64[5], and of the status, viewed as
int32[10]."""


class MemoryLimits(NamedTuple):
    """Fields of submission.LIMITS about memory, each int64[1]: items of a memoryview are set in a
    tenth of the time that those of records take."""

    buffer: memoryview
    base: memoryview
    own: memoryview


class PayloadSystem(CommandSystem):
    """A CommandSystem of one drive that keeps the bytes of its pages in ``store``, and those of its
    data cache also in ``cache_file``; without ``store``, a drive without payload.
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
        """Why the store is not changed any more; None: it is."""
        self._stored_until = 0
        """With such an error: number of commands that had completed before it."""
        self._in_use: list[np.ndarray] = []
        """Other memory that commands in flight may use."""
        self._older: list[np.ndarray] = []
        """The same of earlier commands: of those before the places ``_older_until`` of the queue
        pairs, int64[queues]."""
        self._older_until = self.arrays.pair["loaded"].copy()
        self._first_words = self._out_bytes[: COMPLETION.itemsize].view(np.int64).data
        self._first_status = self._out_bytes[: COMPLETION.itemsize].view(np.int32).data
        held = self._limits.view(np.ndarray)
        self._memory_limits = MemoryLimits(*(held[name].data for name in MemoryLimits._fields))
        self._plans: DrivePlanBytes | None = None
        """Bytes of plans; None: plans move none."""
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
        """Let ``ahead`` prepare the memory of pages that are programmed next; None: memory is not
        prepared ahead."""
        self._ahead = ahead
        if self._bytes is not None:
            self._bytes.prepare_memory(ahead)

    @property
    def moved(self) -> MovedBytes:
        """Bytes of the drive, which follow its log. Raises InputError without payload."""
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        return self._bytes

    def follow(self, plans: DrivePlanBytes | None) -> None:
        """Let ``plans`` determine the bytes that plans move, until the power is cut; None: plans
        move none. Raises InputError without payload, or while a plan is running."""
        if not self.plan_done:
            raise InputError("a plan is running; wait until it is done")
        self.moved.follow(plans)
        self._plans = plans

    @property
    def decode_counts(self) -> DecodeCounts | None:
        """Counters of the decoder of a real code (ecc.code bch or ldpc) since power-on; None
        without one, or without payload."""
        return None if self._decoder is None else self._decoder.counts

    def _check_open(self) -> None:
        """Raise InputError if the drive is closed."""
        if self._closed:
            raise InputError("the drive is closed")

    # --- memory of commands

    @property
    def buffer(self) -> np.ndarray | None:
        """Contiguous memory of the caller for the bytes of commands; None if there is none."""
        return self._buffer

    @buffer.setter
    def buffer(self, memory: np.ndarray) -> None:
        self._check_buffer(memory)
        if self._buffer is not None and self.outstanding:
            self._in_use.append(self._buffer)  # commands in flight have its address
        self._buffer = memory
        self._limits["buffer"], self._limits["base"] = memory.nbytes, memory.ctypes.data

    def _check_buffer(self, memory: np.ndarray) -> None:
        """Raise InputError unless ``memory`` can hold the bytes of commands."""
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        self._check_open()
        if not isinstance(memory, np.ndarray) or memory.dtype.hasobject:
            raise InputError(f"buffer: {type(memory).__name__}: must be an array of numbers")
        if not memory.flags.c_contiguous or not memory.flags.writeable:
            raise InputError("buffer: must be a contiguous array that can be written")

    def _collect(self) -> None:
        """Record the completions of finished commands, and release memory that none uses.

        With durability "host", what a FLUSH or a write with FUA has completed is made durable
        first. A drive that is never idle releases memory in two parts: the older one when all
        commands that were loaded before the newer one began have completed.
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
        """Return which of the completions that are next to be taken are not in the store though
        they should be, bool[n]; None: none, or without a store in files.

        With durability "host", sync first what they have promised.
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
        """Protect the drive from writes because its store cannot be changed any more.

        ``completions``: number of commands that had completed when everything was stored.
        """
        self._store_error, self._stored_until = error, completions
        self.arrays.dev["protected"] = condition.PROTECTED_STORE

    def take_log(self, count: int) -> None:
        """Apply the engine's log to the bytes of pages and commands. Raises what the decoder has
        failed with."""
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

        ``buffer``: memory of these commands instead of :attr:`buffer`, with the same rules. Raises
        InputError naming the first command that breaks a rule of nvme/submission.py, for example
        for bytes outside the drive, an arrival before ``now`` or before the previous arrival, or an
        unsupported field; for a bad buffer, or one without payload.
        """
        if buffer is None:
            super().submit(commands)
            return
        self._check_buffer(buffer)
        self._submit_from(commands, buffer, own=0)

    def _submit_from(self, commands: np.ndarray, memory: np.ndarray, own: int) -> None:
        """Submit commands whose bytes are in ``memory``. ``own``: 1 for those of read and write."""
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
        """True if :meth:`run_single` can take a command: the drive has payload, no command is in
        flight, all completions were returned, and no power cut is due."""
        done = self.registers[COMPLETED]
        busy = self._accepted - self._ended != done or self._taken != done or self._reports
        if busy or self.defect is not None or self.strict or self.off or self._closed:
            return False
        if self._bytes is None or self._store_error is not None:
            return False
        return self.events_left is None and self.plan_done

    def run_single(self, single: Single, arrival: int, until: int, tag: int) -> int:
        """Run one command, which arrives at ``arrival`` ps, at the earliest ``earliest_arrival``,
        while :attr:`takes_single`: what submit, run_until and completions do, but in a third of the
        time. Return its status, and its end in ``single``; IN_FLIGHT if it has not completed until
        ``until`` ps, or it has to be taken with :meth:`completions`, as ``tag``: also after an
        error, and if completions promise that what they say is in the store; REFUSED, without
        effect, if it breaks a rule.
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
        """True if completions promise that files are synced."""
        files = None if self.store is None else self.store.files
        return files is not None and files.folder.syncs

    def _run_once(self, until: int) -> None:
        """Handle events up to ``until`` ps, without more commands or rows than have been loaded.
        After an error, the drive is offline."""
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
        """Run one command on ``memory`` (uint8[n]) at the current time until the drive is idle, or
        only until the command has completed. Return its status; its completion is not reported.
        Raises InputError without payload.
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
        without payload.
        """
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        unit = whole_number("unit", unit, 0, self.units - 1)
        self._check_open()
        return self._bytes.stored(unit)

    def cached(self, unit: int) -> np.ndarray | None:
        """Return a copy of a mapping unit in the data cache, uint8[unit_bytes], of which only
        the cached sectors have a meaning.

        Return None if the unit is not in the cache, or after a power cut. Raises InputError without
        payload.
        """
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        unit = whole_number("unit", unit, 0, self.units - 1)
        self._check_open()
        return None if self.off else self._bytes.cached(unit)
