"""One computational storage drive that is served: commands with bytes, completions, its own clock.

Owns the payload of a single drive, its store, power cuts, its condition, and the checks of its
books. Does not own the commands and their clock (engine/run/command_system.py), the statuses with
which commands end (nvme/status.py, nvme/ends.py), the event loop (engine/run/driver.py), the
execution of commands inside the drive (engine, nvme, ftl, nand), files (nand/store_folder.py) or
the plans of paths (engine/run/system.py), which may run beside commands on a drive without payload.
Source: this project's command record (nvme/command.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config, configuration
from ondie.emu.engine.core.conservation import Imbalance, Place, check_laws
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.engine.run import condition, defect_report
from ondie.emu.engine.run.command_system import CommandSystem
from ondie.emu.engine.run.driver import COMPLETED, PowerCut
from ondie.emu.engine.run.system import PLANNED
from ondie.emu.ftl.invariants import Requested, check_between_events, check_idle
from ondie.emu.ftl.tables import spare_blocks
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nand.store_folder import StoreFolder
from ondie.emu.nvme import submission
from ondie.emu.nvme.command import COMMAND, FLUSH, READ, WRITE
from ondie.emu.nvme.request_bytes import RequestBytes
from ondie.emu.nvme.status import Condition, CriticalWarning, Status
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.units import InputError, whole_number

NO_PAYLOAD = "this drive keeps no payload; use Drive(cfg, payload=True)"
MOST_QUEUES = 256
"""Largest number of queue pairs; each has a ring of nvme/tables.PAIR_RING requests in memory."""
MOST_HELD = 64
"""Number of arrays of commands in flight from which a drive looks for some to release."""


class CommandError(OSError):
    """Error: a command of :meth:`Drive.read` or :meth:`Drive.write` has ended with ``status``
    (nvme.status.Status)."""

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class MediaError(CommandError):
    """Error: a page could not be corrected, so its bytes are not known."""


class Drive(CommandSystem):
    """One drive with configuration ``cfg`` and its host, with a separate simulation clock.

    ``cfg``: a configuration, the name of a preset, or a TOML file.

    ``queues``: number of queue pairs, each with up to ``queue_depth`` commands in flight (default:
    the smaller of the host's and the drive's depth); further commands wait in order.
    ``block_bytes``: size of a logical block, the unit of addresses: 512 or more, up to the mapping
    unit of the drive, which is the default. A drive with smaller blocks reads the rest of a mapping
    unit before it writes part of it (ftl.partial_pages = "sectors").

    ``store``: folder in which a drive with payload stores its pages; it is created if it is missing
    or empty. ``durability``: "process", or "host" (docs/store.md). :meth:`close` closes it.

    ``payload=True`` keeps the bytes of every page. :attr:`buffer` is then the caller's memory:
    commands write bytes from it and read bytes into it, from ``data`` on. The caller must not touch
    these bytes until the command has completed. ``seed`` determines bad blocks, failures and bit
    errors. Commands in flight at the same time may take effect in any order, as in NVMe. To order
    two commands, wait for the completion of the first.

    A drive that is full or worn out, whose store is full, or whose engine has a defect, ends
    commands with a status (:attr:`condition`). With ``strict``, for development and tests,
    ``run_until`` and ``run`` raise an error instead.

    Raises InputError for fewer than one queue, a depth below one, an impossible block size, or a
    folder that cannot be used.
    """

    def __init__(
        self,
        cfg: Config | str | os.PathLike[str],
        payload: bool = False,
        *,
        queues: int = 1,
        queue_depth: int | None = None,
        block_bytes: int | None = None,
        seed: int = 0,
        strict: bool = False,
        store: str | os.PathLike[str] | None = None,
        durability: str = "process",
    ) -> None:
        cfg, size = with_blocks(configuration(cfg), block_bytes)
        queues = whole_number("queues", queues, 1, MOST_QUEUES)
        if queue_depth is not None:
            queue_depth = whole_number("queue_depth", queue_depth, 1, PAIR_RING)
        folder = None
        if store is not None:
            if not payload:
                raise InputError(f"store = {store}: {NO_PAYLOAD}")
            folder = StoreFolder.create_or_open(store, cfg, seed=seed, durability=durability)
        self.store: PageStore | None = None
        self._bytes: RequestBytes | None = None
        self._closed = False
        self._store_error: InputError | None = None
        """Why the store is not changed any more; None: it is."""
        self._stored_until = 0
        """With such an error: number of commands that had completed before it."""
        try:
            super().__init__(
                cfg,
                queues=queues,
                queue_depth=queue_depth,
                block_bytes=size,
                payload=payload,
                seed=seed,
                strict=strict,
            )
            spare = spare_blocks(cfg, self.geometry, self.arrays)
            self.arrays.dev["spare_at_start"] = self.arrays.dev["spare"] = spare
            if payload:
                self._bytes = RequestBytes(self.arrays, self.geometry, self._transfers, folder)
                self.store = self._bytes.store
                self._recover()
        except BaseException:
            if folder is not None:
                folder.close()
            raise
        self._buffer: np.ndarray | None = None
        self._in_use: list[np.ndarray] = []
        """Other memory that commands in flight may use."""
        self._older: list[np.ndarray] = []
        """The same of earlier commands: of those before the places ``_older_until`` of the queue
        pairs, int64[queues]."""
        self._older_until = self.arrays.pair["loaded"].copy()

    def _recover(self) -> None:
        """Build the mapping table from the pages in the store. Raises InputError if it holds any
        written page, because there is no recovery yet."""
        assert self.store is not None
        for number in self.store.segments_on_disk():
            if self.store.records(number)["written"].any():
                folder = "" if self.store.files is None else f"{self.store.files.folder.path}: "
                raise InputError(
                    f"{folder}holds written pages, and a drive without recovery of its mapping "
                    "table can only use a new store; `ondie store check` reads it"
                )

    def close(self) -> None:
        """Close the drive and its store, which is clean if no data are left in the drive. A closed
        drive handles no commands. Raises StoreFull or InputError if the store cannot be synced."""
        if self._closed:
            return
        self._closed = True
        if self.store is not None:
            left = self.off or self.outstanding or not self.idle or self.arrays.cache.contents.any()
            self.store.close(clean=not left)

    def check_power(self) -> None:
        """Raise InputError if the power has been cut or the drive is closed."""
        if self._closed:
            raise InputError("the drive is closed")
        super().check_power()

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

    def start(self, plan: Iterable[np.ndarray]) -> None:
        """Start a plan (chunks of plan_rows.PLAN) now; it runs with the events that follow.

        Raises InputError if a plan is running, if the drive is offline, and on a drive with
        payload: the bytes of plans are those of paths (paths/payload.py).
        """
        if self.defect is not None:
            raise InputError(f"the drive is offline: {self.why}")
        if self._bytes is not None:
            raise InputError("a plan moves no bytes of a drive with payload; use Drive(cfg)")
        super().start(plan)

    def fill(self, device: int, lpn: int, count: int) -> None:
        """Place pages on flash as System.fill does. Raises InputError on a drive with payload,
        whose pages need bytes."""
        if self._bytes is not None:
            raise InputError("filled pages have no bytes; write them, or use Drive(cfg)")
        super().fill(device, lpn, count)

    def power_cut(self, after_events: int) -> int:
        """Run ``after_events`` events, then cut the power; afterwards the drive handles no
        commands.

        Commands that have not completed and data that is only in the data cache are lost.
        Finished programs remain on flash. Returns the number of events handled, which is smaller
        than ``after_events`` if no work was left.
        """
        before = self.events
        self.events_left = whole_number("after_events", after_events, 0, NEVER)
        with suppress(PowerCut):
            self.run_until()
        self.off = True
        self._reached = max(self._reached, super().now)
        return self.events - before

    # --- condition

    @property
    def condition(self) -> Condition:
        """What the drive can do; :attr:`why` gives the reason."""
        if self.off or self.defect is not None:
            return Condition.OFFLINE
        return Condition.READ_ONLY if self.arrays.dev.protected[0] else Condition.ONLINE

    @property
    def why(self) -> str:
        """One sentence with the reason of :attr:`condition`, or of the lack of space while writes
        end with CAPACITY_EXCEEDED; empty if there is nothing to say."""
        if self.defect is not None:
            return f"{type(self.defect).__name__}: {self.defect}"
        if self.off:
            return "the power was cut"
        if self._store_error is not None:
            return f"the store is read-only: {self._store_error}"
        if self.arrays.dev.protected[0]:
            return condition.why_read_only(self.arrays)
        return condition.why_full(self.arrays, self.cfg) if self.arrays.dev.full[0] else ""

    @property
    def critical_warning(self) -> CriticalWarning:
        """Critical warnings as in the SMART / Health Information log page."""
        return condition.critical_warning(self.arrays, self.defect is not None)

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the drive's state as JSON to ``path``, complete or not at all: the defect,
        registers, counters, queues, the last log entries and the configuration.

        Raises InputError if the file cannot be written.
        """
        document = {"condition": self.condition.value, "why": self.why}
        document |= defect_report.report(
            self.arrays, self.cfg, self.last_logged, self.defect, self.now
        )
        defect_report.save(path, document)

    def _collect(self) -> None:
        """Record the completions of finished commands, and release memory that none uses.

        With durability "host", what a FLUSH or a write with FUA has completed is made durable
        first. A drive that is never idle releases memory in two parts: the older one when all
        commands that were loaded before the newer one began have completed.
        """
        lost = self._lost_changes()
        super()._collect()
        if lost is not None and len(lost):
            status = self._reports[-1]["status"]
            status[lost & (status == Status.SUCCESS)] = Status.WRITE_FAULT
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

    # --- payload

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

    def write(self, offset: int, data: bytes | np.ndarray) -> None:
        """Write ``data`` (bytes, or an array of any type) from byte ``offset`` on at
        ``earliest_arrival``; run until the drive is idle.

        Raises CommandError if the command ends with an error status, InputError for a partial
        logical block, for bytes outside the drive, or without payload.
        """
        given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data)
        if given.dtype.hasobject:
            raise InputError("data: must be bytes or an array of numbers")
        self._run_command(WRITE, offset, np.ascontiguousarray(given).reshape(-1).view(np.uint8))

    def read(self, offset: int, size: int) -> np.ndarray:
        """Read ``size`` bytes from byte ``offset`` on at ``earliest_arrival``; run until the drive
        is idle.

        Returns uint8[size]; bytes that were never written are zeros. Raises MediaError if a page
        could not be corrected, CommandError for another error status, InputError for a partial
        logical block, for bytes outside the drive, or without payload.
        """
        size = whole_number("size", size, self.block_bytes, self.cfg.frontend.max_transfer_bytes)
        found = np.zeros(size, np.uint8)
        self._run_command(READ, offset, found)
        return found

    def _run_command(self, op: int, offset: int, memory: np.ndarray) -> None:
        """Run one command on ``memory`` (uint8[n]) at the current time until the drive is idle.
        Its completion is not reported. Raises InputError without payload.
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
        status = Status(int(np.concatenate(own)["status"][0]))
        if status:
            name = status.name.lower().replace("_", " ")
            message = f"bytes from {offset} on: status 0x{status:x}, {name}"
            if status == Status.UNRECOVERED_READ_ERROR:
                raise MediaError(message, status)
            raise CommandError(f"{message}; {self.why}" if self.why else message, status)

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

    def take_log(self, count: int) -> None:
        """Apply the engine's log to the bytes of pages and commands."""
        if self._bytes is None:
            return
        self._bytes.apply(count)
        if self._bytes.full is not None and self._store_error is None:
            self._stop_storing(self._bytes.full, self._settled)
            if self.strict:
                raise self._bytes.full

    # --- conservation

    def check(self) -> None:
        """Check the conservation laws of the drive. Raises Imbalance; unless the drive is strict,
        it is then also offline.

        Laws that require an idle drive are checked only when no command is outstanding and no page
        waits for space. After a defect, the laws do not hold and are not checked.
        """
        if self.defect is not None:
            return
        try:
            self._check_laws()
        except Imbalance as error:
            if not self.strict:
                self._go_offline(error)
            raise

    def _check_laws(self) -> None:
        """Check the conservation laws. Raises Imbalance."""
        check_between_events(self.arrays, self.geometry)
        waits = self.arrays.dev.stall_head[0] >= 0 or self.arrays.maps.stall_first.any()
        if not self.off and self.outstanding == 0 and self.idle and not waits:
            check_idle(self.arrays, self.geometry, self._all_requested())
        if self._bytes is not None:
            misplaced = self._bytes.misplaced(self.units)
            first = misplaced[0] if misplaced else ""
            check_laws(Place.PAYLOAD, {"misplaced_pages": len(misplaced)}, first)

    def _all_requested(self) -> Requested:
        """Return what commands and plans have requested so far."""
        names = ("read_pages", "program_pages", "link_up_bytes", "link_down_bytes")
        of_plans = self.planned.sum(axis=0)[[PLANNED.index(name) for name in names]]
        dev = self.arrays.dev[0]
        refused = (0, int(dev.refused_pages), 0, int(dev.refused_bytes))
        return Requested(
            self._accepted + self.planned_commands,
            *(self.requested + of_plans - refused).tolist(),
        )


def with_blocks(cfg: Config, block_bytes: int | None) -> tuple[Config, int]:
    """Return ``cfg`` for one drive with logical blocks of ``block_bytes`` (None: the default), and
    the size of a logical block. Raises InputError for an impossible size.
    """
    unit = cfg.ftl.mapping_unit_bytes or cfg.flash.page_bytes
    by_sectors = cfg.ftl.partial_pages == "sectors"
    size = SECTOR_BYTES if by_sectors else unit
    if block_bytes is not None:
        size = whole_number("block_bytes", block_bytes, 0, unit)
    if size < SECTOR_BYTES or size & (size - 1) or unit % size:
        raise InputError(
            f"block_bytes = {size}: must be a power of two from {SECTOR_BYTES} to {unit}, the "
            "mapping unit"
        )
    changes: dict[str, int | str] = {}
    if size < unit and not by_sectors:
        changes["ftl.partial_pages"] = "sectors"
    if cfg.system.devices != 1:
        changes["system.devices"] = 1
    return (cfg.replace(changes, ref="a drive with its blocks") if changes else cfg), size
