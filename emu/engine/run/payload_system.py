"""System of one drive with payload: the bytes of commands and pages, the store, and the power.

Owns the memory of commands, the opening and closing of the store, power cuts, and the start of a
drive from a checkpoint or by recovery. Does not own the commands and their clock
(command_system.py), the application of the log (nvme/request_bytes.py), files
(nand/store_folder.py), recovery (ftl/recovery.py, recovery_time.py) or what is left of an
interrupted operation (nand/torn_pages.py, nvme/power_cut.py).
Source: NVMe base specification (shutdown, FLUSH, FUA).
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum
from typing import Any

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.run import checkpoint
from ondie.emu.engine.run.command_system import CommandSystem
from ondie.emu.engine.run.driver import COMPLETED, NOW, PowerCut
from ondie.emu.engine.run.recovery_time import recovery_ps
from ondie.emu.ftl import map_checkpoint, recovery, recovery_from_checkpoint, trim_maps
from ondie.emu.ftl.tables import spare_blocks
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nand.store_folder import StoreFolder, StoreFull
from ondie.emu.nvme import condition, power_cut, submission
from ondie.emu.nvme.command import COMMAND, FLUSH, READ
from ondie.emu.nvme.request_bytes import RequestBytes
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError, whole_number

NO_PAYLOAD = "this drive keeps no payload; use Drive(cfg, payload=True)"
MOST_HELD = 64
"""Number of arrays of commands in flight from which a drive looks for some to release."""


class Start(Enum):
    """How a drive has got its tables when its power was switched on."""

    NEW = "new"
    """Nothing had been written."""
    CHECKPOINT = "checkpoint"
    """The drive had been closed: all tables, also of the engine, are as they were then."""
    RECOVERY = "recovery"
    """The tables come from the out-of-band data of the pages on flash."""


class PayloadSystem(CommandSystem):
    """A CommandSystem of one drive that keeps the bytes of its pages, if ``payload``: in memory, or
    in the folder ``store`` with the given ``durability``.

    The other arguments are those of CommandSystem. Raises InputError for a folder that cannot be
    used, or for a store of a drive whose tables cannot be recovered.
    """

    def __init__(
        self,
        cfg: Config,
        *,
        queues: int,
        queue_depth: int | None,
        block_bytes: int,
        payload: bool,
        seed: int,
        strict: bool,
        store: str | os.PathLike[str] | None,
        durability: str | None,
    ) -> None:
        self._options: dict[str, Any] = {
            "queues": queues, "queue_depth": queue_depth, "block_bytes": block_bytes,
            "payload": payload, "seed": seed, "strict": strict,
        }  # fmt: skip
        self._seed, self._cuts = seed, 0
        folder = None
        if store is not None:
            if not payload:
                raise InputError(f"store = {store}: {NO_PAYLOAD}")
            recovery.check_supported(cfg, f"store = {store}")
            folder = StoreFolder.create_or_open(store, cfg, seed=seed, durability=durability)
        elif durability is not None:
            raise InputError(f"durability = {durability!r}: only a drive with a store has one")
        geometry = Geometry.of(cfg)
        try:
            self.store: PageStore | None = None
            if payload:
                pages = geometry.physical_pages
                self.store = PageStore(geometry.page_bytes, folder, pages)
            self._buffer: np.ndarray | None = None
            self._closed = False
            self._power_up(cfg)
        except BaseException:
            if folder is not None:
                folder.close()
            raise

    def _power_up(self, cfg: Config) -> None:
        """Build the engine, and its tables from what is on flash. If the store has no room for what
        recovery overwrites, keep changes in memory; the drive is then read-only."""
        try:
            self._build(cfg)
        except StoreFull as error:
            assert self.store is not None
            self.store.keep_in_memory()
            self._build(cfg)
            self._stop_storing(error, 0)

    def _build(self, cfg: Config) -> None:
        """Build the engine, and its tables from what is on flash."""
        super().__init__(cfg, **self._options)
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
        self.started = Start.NEW
        """Where the tables of the drive come from."""
        self.recovered: recovery.Recovered | None = None
        """What recovery has found; None: there was none."""
        self._bytes: RequestBytes | None = None
        if self.store is not None:
            self._bytes = RequestBytes(self.arrays, self.geometry, self._transfers, self.store)
            if not self._load_checkpoint() and self.store.segments_on_disk():
                every_page = self.store.may_have_lost_syncs()
                self.recovered = recovery_from_checkpoint.recover(
                    self.arrays, self.geometry, cfg, self.store, every_page
                )
                self._bytes.continue_from(self.recovered.sequence, self.recovered.programs)
                self.recovered.time_ps = recovery_ps(cfg, self.geometry, self.recovered)
                self._reached = self.recovered.time_ps
                self.started = Start.RECOVERY
        if self.started is not Start.CHECKPOINT:
            spare = spare_blocks(cfg, self.geometry, self.arrays)
            self.arrays.dev["spare_at_start"] = self.arrays.dev["spare"] = spare
        if self.arrays.cfg.meta_maps[0]:
            self._start_epoch()

    def _start_epoch(self) -> None:
        """Write the root of the last checkpoint with the next fencing epoch. Commands arrive when
        it is on flash."""
        dev, found = self.arrays.dev, self.recovered
        self.registers[NOW] = self._reached = max(self._reached, super().now)
        if found is not None:
            dev["epoch"] = found.epoch
        map_checkpoint.begin_start(self.state, 0)
        self.run()
        if found is not None:
            found.time_ps = self._reached
            if not found.checkpoint:
                dev["meta_since"] = self.arrays.cfg.meta_every

    # --- the end, and the next start

    def close(self) -> None:
        """Flush the data cache, write a checkpoint, and close the drive and its store.

        The store is then clean, and the next start continues as if the drive had not been closed.
        After a power cut or a defect, and while no data can be stored, nothing is flushed, and the
        next start is a recovery. A closed drive handles no commands. Raises StoreFull or InputError
        if the store cannot be synced.
        """
        if self._closed:
            return
        files = None if self.store is None else self.store.files
        saved = None
        try:
            if files is not None and not self.off and self.defect is None:
                if self._shut_down() and self._store_error is None:
                    saved = self._checkpoint()
        finally:
            self._closed = True
            if self.store is not None:
                self.store.close(checkpoint=saved)

    def _shut_down(self) -> bool:
        """Complete all commands and write what is in the data cache to flash. Return True if the
        drive is idle and all data are on flash."""
        self._run_command(FLUSH, 0, np.zeros(0, np.uint8))  # what cannot be stored is seen below
        return bool(
            self.defect is None
            and self.outstanding == 0
            and self.idle
            and not self.arrays.cache.contents.any()
        )

    def power_on(self) -> None:
        """Switch the power on again after a power cut. The tables are recovered from flash. The
        clock starts at 0, and recovery takes its time (Recovered.time_ps).

        Raises InputError if the power is on or the drive is closed, without payload, and for a
        configuration whose tables cannot be recovered.
        """
        if self._closed:
            raise InputError("the drive is closed")
        if not self.off:
            raise InputError("the power is on")
        if self.store is None:
            raise InputError(NO_PAYLOAD)
        recovery.check_supported(self.cfg, "power_on")
        error = self._store_error
        try:
            self._power_up(self.cfg)
        except BaseException:
            self.off = True  # its tables are not whole
            raise
        if error is not None:
            self._stop_storing(error, 0)
        if self._buffer is not None:
            self.buffer = self._buffer

    def power_cut(self, after_events: int) -> int:
        """Run ``after_events`` events, then cut the power at some time before the next event;
        afterwards the drive handles no commands until :meth:`power_on`.

        Commands that have not completed and data that is only in the data cache are lost.
        Finished programs remain on flash. A page whose program, and a block whose erase, is in
        progress has arbitrary contents (nand/torn_pages.py). Returns the number of events handled,
        which is smaller than ``after_events`` if no work was left.
        """
        before = self.events
        self.events_left = whole_number("after_events", after_events, 0, NEVER)
        with suppress(PowerCut):
            self.run_until()
        self.off = True
        self._reached = max(self._reached, super().now)
        rng = np.random.default_rng((self._seed, 0xC07, self._cuts))
        self._cuts += 1
        if self.next_event < NEVER:
            self._reached = max(self._reached, int(rng.integers(super().now, self.next_event)))
        if self._bytes is not None and self.defect is None and self._store_error is None:
            power_cut.tear(self.arrays, self._reached, self._bytes, rng)
        return self.events - before

    def check_power(self) -> None:
        """Raise InputError if the power has been cut or the drive is closed."""
        if self._closed:
            raise InputError("the drive is closed")
        super().check_power()

    # --- checkpoint

    _KEPT = ("_reached", "_accepted", "_taken", "_ended", "_settled", "planned_commands")
    """Numbers of CommandSystem that a checkpoint keeps."""

    def _tables(self) -> dict[str, np.ndarray]:
        """Return the arrays that a checkpoint keeps, by name."""
        assert self._bytes is not None
        return checkpoint.of_engine(self.arrays) | {
            "requested": self.requested,
            "earliest": self._earliest,
            **self._bytes.tables(),
        }

    def _checkpoint(self) -> int:
        """Write a checkpoint of the idle drive to the store. Return its checksum."""
        assert self.store is not None and self.store.files is not None and self._bytes is not None
        self._collect()
        numbers = {name: int(getattr(self, name)) for name in self._KEPT}
        numbers |= dict(zip(("sequence", "programs"), self._bytes.counters, strict=True))
        return checkpoint.save(self.store.files.folder, self._tables(), numbers)

    def _load_checkpoint(self) -> bool:
        """Take the tables of a checkpoint, if the store is clean and the checkpoint is of a drive
        with the same queue pairs. Return True if it was taken."""
        assert self._bytes is not None
        files = None if self.store is None else self.store.files
        if files is None or files.folder.superblock.checkpoint is None:
            return False
        files.check_count()
        numbers = checkpoint.load(files.folder, self._tables())
        if numbers is None:
            return False
        for name in self._KEPT:
            setattr(self, name, numbers[name])
        self._bytes.continue_from(numbers["sequence"], numbers["programs"])
        self.arrays.dev["ends"] = not self.strict
        self.arrays.pair["depth"] = self.arrays.cfg["queue_depth"]
        self.started = Start.CHECKPOINT
        return True

    # --- memory of commands

    @property
    def buffer(self) -> np.ndarray | None:
        """The caller's memory for the bytes of commands, contiguous; None without any."""
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

        With durability "host", sync the files if any of them is a FLUSH or a write with FUA.
        """
        files = None if self.store is None else self.store.files
        if files is None:
            return None
        done = self.arrays.done
        taken = np.arange(self._taken, int(self.registers[COMPLETED]))
        requests = self.arrays.req[done[taken & (len(done) - 1)]]
        if self._store_error is None and files.folder.durability == "host":
            if ((requests["op"] == FLUSH) | (requests["fua"] != 0)).any():
                try:
                    files.sync()
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
        """Apply the engine's log to the bytes of pages and commands."""
        if self._bytes is None:
            return
        self._bytes.apply(count)
        slots = self.arrays.trim_slot
        slots[slots == trim_maps.LOGGED] = trim_maps.FREE
        if self._bytes.full is not None and self._store_error is None:
            self._stop_storing(self._bytes.full, self._settled)
            if self.strict:
                raise self._bytes.full

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
        names = ("buffer", "base", "own")
        limits = [int(self._limits[name][0]) for name in names]
        for name, value in zip(names, (memory.nbytes, memory.ctypes.data, own), strict=True):
            self._limits[name] = value
        try:
            self._submit(commands, memory.ctypes.data)
        finally:
            for name, value in zip(names, limits, strict=True):
                self._limits[name] = value
        self._in_use.append(memory)

    def _run_command(self, op: int, offset: int, memory: np.ndarray) -> Status:
        """Run one command on ``memory`` (uint8[n]) at the current time until the drive is idle.
        Return its status; its completion is not reported. Raises InputError without payload.
        """
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        command = np.zeros(1, COMMAND)
        command["op"], command["size"], command["tag"] = op, memory.nbytes, submission.OWN_TAG
        command["offset"] = whole_number("offset", offset, 0, self.capacity - 1)
        command["arrival"] = self.earliest_arrival
        self._submit_from(command, memory, own=1)
        self.run()
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
        return self._bytes.stored(whole_number("unit", unit, 0, self.units - 1))

    def cached(self, unit: int) -> np.ndarray | None:
        """Return a copy of a mapping unit in the data cache, uint8[unit_bytes], of which only
        the cached sectors have a meaning.

        Return None if the unit is not in the cache, or after a power cut. Raises InputError without
        payload.
        """
        if self._bytes is None:
            raise InputError(NO_PAYLOAD)
        return None if self.off else self._bytes.cached(unit)
