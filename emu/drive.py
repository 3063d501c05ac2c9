"""One computational storage drive with its own clock: commands with data, and their completions.

Owns the interface of a single drive: single reads and writes, its operating condition, and the
consistency checks of its accounting. Does not own the commands and their clock
(engine/run/command_system.py), data, store and power (engine/run/power_system.py), the statuses
with which commands complete (nvme/status.py, nvme/write_errors.py), the execution of commands
inside the drive (engine, nvme, ftl, nand) or the plans of paths (engine/run/system.py), which may
run concurrently with commands.
Source: this project's command record (nvme/command.py).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import numpy as np

from ondie.emu.config.config import Config, configuration
from ondie.emu.engine.core.conservation import Imbalance, Place, check_laws
from ondie.emu.engine.core.plan_rows import MixedPlan
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.engine.run import defect_report
from ondie.emu.engine.run.command_system import CommandOptions
from ondie.emu.engine.run.payload_system import NO_PAYLOAD
from ondie.emu.engine.run.power_system import PowerSystem, StoreOptions
from ondie.emu.engine.run.system import NO_RESERVOIR, PLANNED, ReservoirOptions
from ondie.emu.files import as_path, write_atomically
from ondie.emu.ftl import page_map
from ondie.emu.ftl.invariants import Requested, check_between_events, check_idle
from ondie.emu.nand import cache_file, checkpoint
from ondie.emu.nand.wipe import wipe_erased
from ondie.emu.nvme import condition, injected_faults, purge
from ondie.emu.nvme.command import FLUSH, READ, WRITE
from ondie.emu.nvme.status import Condition, CriticalWarning, Status
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.units import InputError, plural, quoted, whole_number

MOST_QUEUES = 256
"""Maximum number of queue pairs. Each has a ring of nvme/tables.PAIR_RING requests in memory."""


PURGE_ROUNDS = 4
"""Number of consecutive rounds of garbage collection without a freed block after which
:meth:`Drive.erase_stale` raises an error."""


class CommandError(OSError):
    """Raised if a command of :meth:`Drive.read`, ``write`` or ``flush`` completes with the error
    status ``status`` (nvme.status.Status)."""

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class MediaError(CommandError):
    """Raised if a page could not be corrected, so that its data is unknown."""


class Drive(PowerSystem):
    """One drive with configuration ``cfg`` and its host, with a separate simulation clock.

    ``cfg``: a configuration, the name of a preset, or a TOML file.

    ``queues``: number of queue pairs, each with up to ``queue_depth`` commands in flight (default:
    the smaller of the host's and the drive's depth); further commands wait in order.
    ``block_bytes``: size of a logical block (the unit of addresses), a power of two from 512 to the
    size of the drive's mapping unit. A drive with smaller blocks than its mapping unit reads the
    rest of a mapping unit before it writes part of it (ftl.partial_pages = "sectors"). The default
    is 512 if the configuration sets this key to "sectors", otherwise the mapping unit.

    ``store``: folder in which a drive with payload stores its pages. A missing or empty folder
    becomes a new store. ``durability``: "process" or "host" (docs/store.md); it must match an
    existing store. None selects that of an existing store, or "process" for a new store.
    :meth:`close` closes the store. ``read_only``: do not change the files of the store. Changes by
    recovery, reads and garbage collection are lost when the drive is closed, and writes complete
    with NAMESPACE_WRITE_PROTECTED.

    ``payload=True`` stores the contents of every page. :attr:`buffer` is then the caller's memory:
    commands write data from it and read data into it, starting at the command's offset ``data``.
    The caller must not access this part of the buffer until the command has completed. ``seed``
    determines bad blocks, failures and bit errors. Commands that are in flight at the same time may
    take effect in any order, as in NVMe. To order two commands, wait for the completion of the
    first.

    If a drive is full or worn out, if its store is full, or if its engine has a defect, commands
    complete with an error status (:attr:`condition`). With ``strict``, for development and tests,
    ``run_until`` and ``run`` raise an error instead.

    ``reservoir``: sizes of the reservoir, which stores the data of plans outside the namespace of
    the commands (from states/drive_states.py).

    Raises InputError if an argument is out of range, or if the block size or the folder is
    unusable.

    A drive is a context manager: ``with Drive(...) as drive`` closes it at the end. If the body
    raises an error, an error of :meth:`close` is added to it as a note.
    """

    owner: int | None = None
    """Identifier of the thread of the service that owns the drive; None if no service owns it."""

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
        durability: str | None = None,
        read_only: bool = False,
        reservoir: ReservoirOptions = NO_RESERVOIR,
    ) -> None:
        cfg, size = with_blocks(configuration(cfg), block_bytes, bool(payload), store is not None)
        for name, value in {"payload": payload, "strict": strict, "read_only": read_only}.items():
            if not isinstance(value, bool | np.bool_):
                raise InputError(f"{name} = {quoted(repr(value))}: must be True or False")
        queues = whole_number("queues", queues, 1, MOST_QUEUES)
        seed = whole_number("seed", seed, 0, (1 << 63) - 1)
        if queue_depth is not None:
            queue_depth = whole_number("queue_depth", queue_depth, 1, PAIR_RING)
        super().__init__(
            cfg,
            CommandOptions(queues, queue_depth, size, payload, seed, strict, reservoir),
            StoreOptions(store, durability, read_only),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except (CommandError, InputError) as lost:
            if error is None:
                raise
            error.add_note(str(lost))

    def close(self) -> None:
        """Flush the data cache, write a checkpoint, and close the drive and its store, if any.

        The next start then continues as if the drive had not been closed. After a power cut,
        nothing is flushed, and the next start is a recovery. A closed drive executes no commands.
        Closing it again has no effect.

        Raises CommandError if data or commands are lost without a power cut: data that cannot be
        stored, and, after a defect, commands in flight and data in the cache. The message names
        them, ``status`` is that of the FLUSH, and the drive is closed nevertheless. Raises
        StoreFull or InputError if the store cannot be synced, and InputError while a service owns
        the drive.
        """
        self.check_owner()
        status, lost = self._close()
        if lost:
            name = status.name.lower().replace("_", " ")
            raise CommandError(
                f"close: status 0x{status:x}, {name}; {lost}; {self._reason}", status
            )

    # --- the service that owns the drive

    def check_owner(self) -> None:
        """Raise InputError if a service owns the drive, unless the caller is the thread of the
        service.
        """
        if self.owner is not None and self.owner != threading.get_ident():
            raise InputError("the drive belongs to a Service; use the Service, or close it first")

    def _check_open(self) -> None:
        """Raise InputError if the drive is closed or a service owns it."""
        self.check_owner()
        super()._check_open()

    def completions(self) -> np.ndarray:
        """Return the completions that no earlier call has returned, COMPLETION[n]. Raises
        InputError while a service owns the drive."""
        self.check_owner()
        return super().completions()

    def start(self, plan: Iterable[np.ndarray]) -> None:
        """Start a plan (a sequence of operations, in arrays of plan_rows.PLAN) now. It advances
        with the drive's clock.

        Raises InputError if the drive is closed, offline or owned by a service, if a plan is
        running, or if the drive has payload and ``follow`` (states/drive_states.py) has not defined
        the effect of plans on data.
        """
        self._check_plan()
        super().start(plan)

    def start_beside(self, plan: Iterable[np.ndarray]) -> MixedPlan:
        """Start a plan as :meth:`start` does, concurrently with other plans that were started with
        this method. Return the plan. Raises InputError as :meth:`start` does.
        """
        self._check_plan()
        return super().start_beside(plan)

    def _check_plan(self) -> None:
        """Raise InputError if the drive cannot run a plan."""
        self._check_open()
        if self.defect is not None:
            raise InputError(f"the drive is offline: {self.why}")
        if self._bytes is not None and self._plans is None:
            raise InputError("plans cannot move this drive's data; use a drive without payload")

    def fill(self, device: int, lpn: int, count: int) -> None:
        """Place ``count`` logical pages, starting at page ``lpn``, on flash as if they had been
        written before the run. ``device``: must be 0. Raises InputError if the drive has payload
        (filled pages have no contents), is closed or owned by a service, or if an argument is out
        of range."""
        if self._bytes is not None:
            raise InputError("fill: filled pages have no contents; use a drive without payload")
        self._check_open()
        device = whole_number("device", device, 0, 0)
        lpn = whole_number("lpn", lpn, 0, self.units)
        super().fill(device, lpn, whole_number("count", count, 0, self.units - lpn))

    # --- condition

    @property
    def condition(self) -> Condition:
        """Operating condition of the drive: online, read-only or offline. :attr:`why` gives the
        reason."""
        if self.off or self.defect is not None:
            return Condition.OFFLINE
        return Condition.READ_ONLY if self.arrays.dev.protected[0] else Condition.ONLINE

    @property
    def why(self) -> str:
        """One sentence that explains :attr:`condition`, a lack of space (while writes complete with
        CAPACITY_EXCEEDED), damaged pages in the store, or data lost by power-loss protection or by
        a move. If none applies, it describes the last recovery; empty if there was none."""
        if self._reason or self.recovered is None:
            return self._reason
        return condition.why_recovered(self.recovered)

    @property
    def _reason(self) -> str:
        """Reason for :attr:`condition` and for failing commands: :attr:`why` without the result of
        a recovery."""
        if self.defect is not None:
            return f"{type(self.defect).__name__}: {self.defect}"
        if self.off:
            return "the power was cut" + (f"; {self.lost_at_cut}" if self.lost_at_cut else "")
        if self._store_error is not None:
            return f"the store is read-only: {self._store_error}"
        if self.arrays.dev.protected[0]:
            return condition.why_read_only(self.arrays)
        if self.arrays.dev.full[0]:
            return condition.why_full(self.arrays, self.cfg)
        if self.recovered is not None and self.recovered.fallback:
            return f"the checkpoint of the mapping table was not used: {self.recovered.fallback}"
        if self._damaged_pages:
            return condition.why_damaged(self._damaged_pages)
        if self.recovered is not None and self.recovered.damaged_cached:
            return cache_file.why_damaged(self.recovered.damaged_cached)
        return self.lost_at_cut or condition.why_lost(self.arrays)

    @property
    def _damaged_pages(self) -> list[int]:
        """Physical pages of the store that a recovery or a read has found to be damaged, sorted."""
        found = set() if self.recovered is None else set(self.recovered.damaged)
        return sorted(found | (set() if self._bytes is None else self._bytes.damaged))

    @property
    def epoch(self) -> int:
        """Fencing epoch: the number of starts of the drive, which each start writes to flash before
        its first command completes; 0 without ftl.map_checkpoint."""
        return int(self.arrays.dev.epoch[0])

    @property
    def critical_warning(self) -> CriticalWarning:
        """Critical warnings as in NVMe's SMART / Health Information log page."""
        failed = self.defect is not None or bool(self._damaged_pages)
        return condition.critical_warning(self.arrays, failed, bool(self.lost_at_cut))

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the drive's state as JSON to ``path``, atomically: the defect, registers, counters,
        queues, the last log entries and the configuration.

        Missing folders are created. Raises InputError if the file cannot be written.
        """
        document = {"condition": self.condition.value, "why": self.why}
        document |= defect_report.report(
            self.arrays, self.cfg, self.last_logged, self.defect, self.now
        )
        write_atomically({as_path("path", path): json.dumps(document, indent=1).encode()})

    # --- payload

    def write(self, offset: int, data: bytes | np.ndarray) -> None:
        """Write ``data`` (bytes, or an array of any numeric type), starting at byte address
        ``offset``. The command arrives at ``earliest_arrival``. Run until the drive is idle.

        Raises CommandError if the command completes with an error status. Raises InputError for
        data of another type, for partial logical blocks, for an offset or size out of range, or if
        the drive is closed or has no payload.
        """
        try:
            given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data)
        except ValueError as error:  # rows of different lengths
            raise InputError("data: rows of different lengths; must have one length") from error
        if given.dtype.kind not in "biufc":
            raise InputError(f"data is of type {given.dtype}: must be bytes or an array of numbers")
        self._succeed(WRITE, offset, np.ascontiguousarray(given).reshape(-1).view(np.uint8))

    def read(self, offset: int, size: int) -> np.ndarray:
        """Read ``size`` bytes, starting at byte address ``offset``. The command arrives at
        ``earliest_arrival``. Run until the drive is idle.

        Return uint8[size]; bytes that were never written are zeros. Raises MediaError if a page
        could not be corrected, and CommandError for another error status. Raises InputError as
        :meth:`write` does.
        """
        size = whole_number("size", size, self.block_bytes, self.cfg.frontend.max_transfer_bytes)
        found = np.zeros(size, np.uint8)
        self._succeed(READ, offset, found)
        return found

    def flush(self) -> None:
        """Submit a FLUSH that arrives at ``earliest_arrival``, and run until the drive is idle.
        Raises CommandError for an error status, and InputError as :meth:`write` does."""
        self._succeed(FLUSH, 0, np.zeros(0, np.uint8))

    def erase_stale(self) -> None:
        """Erase stale data (overwritten or trimmed data). Complete the commands in flight. Then
        erase every block with stale data, after moving its valid pages, and overwrite the copies of
        stale data in memory and in the store.

        Call :meth:`flush` first. Raises InputError if the drive is closed or owned by a service,
        has no payload, is offline or read-only, or if a block cannot be collected or a file cannot
        be used.
        """
        self._check_open()
        self.check_power()
        if self.store is None or self._bytes is None:
            raise InputError(NO_PAYLOAD)
        self.run()
        if self._cache_file is not None and self.condition is Condition.ONLINE:
            self._save_all()  # their FLUSH writes nothing
        if self.outstanding or self.condition is not Condition.ONLINE:
            raise InputError(f"erase_stale: the drive is not online: {self.why}")
        erases = purge.mark_stale(self.arrays, self.store)
        left, tried = int(purge.collect_marked(self.state, 0, erases)), 0
        while left and tried < PURGE_ROUNDS:
            self.run()
            now = int(purge.collect_marked(self.state, 0, erases))
            tried = 0 if now < left else tried + 1
            left = now
        if left:
            raise InputError(f"erase_stale: no free space to collect {plural(left, 'block')}")
        waiting = self.arrays.block["dirty"] * (self.arrays.block["state"] == page_map.FREE)
        if waiting.any():
            purge.erase_free(self.state, 0)
            self.run()
            self.arrays.block["dirty"][waiting != 0] = 0
        if self.store.files is not None:
            checkpoint.remove(self.store.files.folder)
        purge.wipe_dead(self.arrays, self.store)
        wipe_erased(self.store)
        self._bytes.wipe_cache()

    def _succeed(self, op: int, offset: int, memory: np.ndarray) -> None:
        """Run one command on ``memory``. Raises CommandError if its status is not SUCCESS."""
        status = self._run_command(op, offset, memory)
        if status == Status.SUCCESS:
            return
        what = "FLUSH" if op == FLUSH else f"bytes starting at {offset}"
        message = f"{what}: status 0x{status:x}, {status.name.lower().replace('_', ' ')}"
        if status == Status.UNRECOVERED_READ_ERROR:
            raise MediaError(message, status)
        raise CommandError(f"{message}; {self._reason}" if self._reason else message, status)

    # --- faults by request

    def inject_media_errors(self, offset: int, size: int) -> int:
        """Submit a FLUSH, and run until the drive is idle. Then damage the flash pages that contain
        the ``size`` bytes starting at byte address ``offset``. Reads of these bytes complete with
        UNRECOVERED_READ_ERROR until they are written or trimmed. Return the number of damaged
        mapping units.

        Raises InputError if the drive has no payload or power, for partial mapping units, for
        addresses out of range, and if no mapping unit has data; CommandError if the FLUSH fails.
        """
        unit = self.unit_bytes
        offset = whole_number("offset", offset, 0, self.capacity - unit)
        size = whole_number("size", size, unit, (1 << 63) - 1)
        if size > self.capacity - offset:
            raise InputError(
                f"size = {size}: must be at most {self.capacity - offset} at offset {offset}; "
                f"the drive has {self.capacity} bytes"
            )
        for name, value in {"offset": offset, "size": size}.items():
            if value % unit:
                raise InputError(f"{name} = {value}: must be a multiple of {unit} (mapping unit)")
        self.check_power()
        self.flush()
        assert self.store is not None and self._bytes is not None
        if self.cfg.cache.power_loss_protection:
            self._save_all()  # their FLUSH writes nothing
        self._bytes.verify_reads()
        units = np.arange(offset // unit, (offset + size) // unit)
        found = injected_faults.damage_units(self.arrays, self.store, units, self._options.seed)
        if not found:
            raise InputError(f"bytes {offset} to {offset + size - 1}: no data; write data first")
        return found

    def wear_out(self) -> int:
        """Mark one free or full block for each spare block as having a failed program, so that the
        drive becomes read-only. Return the number of marked blocks. Raises InputError if the drive
        has no power."""
        self.check_power()
        return injected_faults.fail_spare_blocks(self.arrays, self.geometry)

    # --- conservation

    def check(self) -> None:
        """Check the conservation laws of the drive. Raises Imbalance if a law is violated; a drive
        that is not strict then goes offline. Raises InputError while a service owns the drive.

        Laws that require an idle drive are checked only if no command is outstanding and no page
        waits for space. Nothing is checked after a defect or on a closed drive.
        """
        self.check_owner()
        if self.defect is not None or self._closed:
            return
        try:
            self._check_laws()
        except Imbalance as error:
            if not self.strict:
                self._go_offline(error)
            raise

    def _check_laws(self) -> None:
        """Check the conservation laws. Raises Imbalance if a law is violated."""
        check_between_events(self.arrays, self.geometry)
        waits = self.arrays.dev.stall_head[0] >= 0 or self.arrays.maps.stall_first.any()
        if not self.off and self.outstanding == 0 and self.idle and not waits:
            check_idle(self.arrays, self.geometry, self._all_requested())
        if self._bytes is not None:
            misplaced = self._bytes.misplaced(self.units)
            first = misplaced[0] if misplaced else ""
            check_laws(Place.PAYLOAD, {"misplaced_pages": len(misplaced)}, first)

    def _all_requested(self) -> Requested:
        """Return the amounts that commands and plans have requested so far."""
        names = ("read_pages", "program_pages", "link_up_bytes", "link_down_bytes")
        of_plans = self.planned.sum(axis=0)[[PLANNED.index(name) for name in names]]
        dev = self.arrays.dev[0]
        refused = (0, int(dev.refused_pages), 0, int(dev.refused_bytes))
        return Requested(
            self._accepted + self.planned_commands,
            *(self.requested + of_plans - refused).tolist(),
        )


def with_blocks(
    cfg: Config, block_bytes: int | None, payload: bool = False, stored: bool = False
) -> tuple[Config, int]:
    """Return ``cfg`` for one drive with logical blocks of ``block_bytes`` (None: default size), and
    the size of a logical block. ``payload``: True for a drive that can be recovered, which programs
    the pages of a block in order. ``stored``: True if it has a store. A drive with a store or with
    power-loss protection records trims if ftl.map_update = "programmed". Raises InputError unless
    the size is a power of two from 512 bytes to the mapping unit.
    """
    unit = cfg.ftl.mapping_unit_bytes or cfg.flash.page_bytes
    by_sectors = cfg.ftl.partial_pages == "sectors"
    size = SECTOR_BYTES if by_sectors else unit
    if block_bytes is not None:
        size = whole_number("block_bytes", block_bytes, -(1 << 63), (1 << 63) - 1)
    if size < SECTOR_BYTES or size & (size - 1) or unit % size:
        raise InputError(
            f"block_bytes = {size}: must be a power of two from {SECTOR_BYTES} to {unit} (the "
            "mapping unit)"
        )
    changes: dict[str, int | str] = {}
    if size < unit and not by_sectors:
        changes["ftl.partial_pages"] = "sectors"
    if (stored or cfg.cache.power_loss_protection) and cfg.ftl.map_update == "programmed":
        changes["ftl.trim_maps"] = True
    if payload and cfg.flash.program_order != "block":
        changes["flash.program_order"] = "block"
    if cfg.system.devices != 1:
        changes["system.devices"] = 1
    return (cfg.replace(changes, ref="a drive with its blocks") if changes else cfg), size
