"""One computational storage drive that is served: commands with bytes, completions, its own clock.

Owns the interface of a single drive: single reads and writes, its condition, and the checks of its
books. Does not own the commands and their clock (engine/run/command_system.py), bytes, store and
power (engine/run/power_system.py), the statuses with which commands end (nvme/status.py,
nvme/write_errors.py), the execution of commands inside the drive (engine, nvme, ftl, nand) or the
plans of paths (engine/run/system.py), which may run concurrently with commands. Source: this
project's command record (nvme/command.py).
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
"""Largest number of queue pairs; each has a ring of nvme/tables.PAIR_RING requests in memory."""


PURGE_ROUNDS = 4
"""Rounds of collections without a block that becomes free, after which an erasure gives up."""


class CommandError(OSError):
    """Error: a command of :meth:`Drive.read`, ``write`` or ``flush`` has ended with ``status``
    (nvme.status.Status)."""

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class MediaError(CommandError):
    """Error: a page could not be corrected, so its bytes are not known."""


class Drive(PowerSystem):
    """One drive with configuration ``cfg`` and its host, with a separate simulation clock.

    ``cfg``: a configuration, the name of a preset, or a TOML file.

    ``queues``: number of queue pairs, each with up to ``queue_depth`` commands in flight (default:
    the smaller of the host's and the drive's depth); further commands wait in order.
    ``block_bytes``: size of a logical block, the unit of addresses: 512 or more, up to the mapping
    unit of the drive, which is the default. A drive with smaller blocks reads the rest of a mapping
    unit before it writes part of it (ftl.partial_pages = "sectors").

    ``store``: folder in which a drive with payload stores its pages; it is created if it is missing
    or empty. ``durability``: "process" or "host" (docs/store.md), of an existing store the one that
    it has; None: that one, for a new store "process". :meth:`close` closes it. ``read_only``: the
    files of the store do not change; changes by recovery, reads and collection are kept in memory
    and are lost, and writes end with NAMESPACE_WRITE_PROTECTED.

    ``payload=True`` keeps the bytes of every page. :attr:`buffer` is then the caller's memory:
    commands write bytes from it and read bytes into it, from ``data`` on. The caller must not touch
    these bytes until the command has completed. ``seed`` determines bad blocks, failures and bit
    errors. Commands in flight at the same time may take effect in any order, as in NVMe. To order
    two commands, wait for the completion of the first.

    A drive that is full or worn out, whose store is full, or whose engine has a defect, ends
    commands with a status (:attr:`condition`). With ``strict``, for development and tests,
    ``run_until`` and ``run`` raise an error instead.

    ``reservoir``: sizes of the data of plans in the reservoir, outside the namespace of the
    commands, as states/drive_states.py gives them.

    Raises InputError for fewer than one queue, a depth below one, an impossible block size, or a
    folder that cannot be used.

    A drive is a context manager: ``with Drive(...) as drive`` closes it at the end. After an error,
    an error of :meth:`close` becomes a note of the first one.
    """

    owner: int | None = None
    """Thread of the service that owns the drive; None if there is none."""

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
        nothing is flushed, and the next start is a recovery. A closed drive handles no commands;
        to close it again has no effect.

        Raises CommandError if data or commands are lost that no power cut has taken: those that
        cannot be stored, or are in flight or in the data cache after a defect. The message names
        them, ``status`` is that of the FLUSH, and the drive is closed all the same. Raises
        StoreFull or InputError if the store cannot be synced, InputError while a service owns the
        drive.
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
        """Raise InputError if a service owns the drive, except in the thread of the service."""
        if self.owner is not None and self.owner != threading.get_ident():
            raise InputError("the drive belongs to a Service; use the Service, or close it first")

    def _check_open(self) -> None:
        """Raise InputError if the drive is closed or a service owns it."""
        self.check_owner()
        super()._check_open()

    def completions(self) -> np.ndarray:
        """Return the completions since the last call as CommandSystem does. Raises InputError while
        a service owns the drive."""
        self.check_owner()
        return super().completions()

    def start(self, plan: Iterable[np.ndarray]) -> None:
        """Start a plan (chunks of plan_rows.PLAN) now; it runs with the events that follow.

        Raises InputError if a plan is running, if the drive is offline, and on a drive with payload
        if the effect of the plan on bytes is not defined (``follow``; see states/drive_states.py).
        """
        self._check_plan()
        super().start(plan)

    def start_beside(self, plan: Iterable[np.ndarray]) -> MixedPlan:
        """Start a plan as :meth:`start` does, concurrently with others that were started with this
        method; return it. Raises InputError as that does."""
        self._check_plan()
        return super().start_beside(plan)

    def _check_plan(self) -> None:
        """Raise InputError unless the drive can run a plan."""
        self._check_open()
        if self.defect is not None:
            raise InputError(f"the drive is offline: {self.why}")
        if self._bytes is not None and self._plans is None:
            raise InputError("a plan cannot move the bytes of a drive with payload; use Drive(cfg)")

    def fill(self, device: int, lpn: int, count: int) -> None:
        """Place pages on flash as System.fill does. Raises InputError on a drive with payload,
        whose pages need bytes."""
        if self._bytes is not None:
            raise InputError("filled pages have no bytes; write them, or use Drive(cfg)")
        self._check_open()
        device = whole_number("device", device, 0, 0)
        lpn = whole_number("lpn", lpn, 0, self.units)
        super().fill(device, lpn, whole_number("count", count, 0, self.units - lpn))

    # --- condition

    @property
    def condition(self) -> Condition:
        """Operating condition of the drive, by the commands that it executes; :attr:`why` gives the
        reason."""
        if self.off or self.defect is not None:
            return Condition.OFFLINE
        return Condition.READ_ONLY if self.arrays.dev.protected[0] else Condition.ONLINE

    @property
    def why(self) -> str:
        """One sentence with the reason of :attr:`condition`, of the lack of space while writes end
        with CAPACITY_EXCEEDED, of damaged pages in the store, or of data that power-loss protection
        or a move has lost; after a recovery, otherwise the result of that; empty if there is
        nothing to say."""
        if self._reason or self.recovered is None:
            return self._reason
        return condition.why_recovered(self.recovered)

    @property
    def _reason(self) -> str:
        """The reason of :attr:`condition` and of commands that fail, as in :attr:`why`."""
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
        """Physical pages of the store that recovery or a read has found to be damaged, sorted."""
        found = set() if self.recovered is None else set(self.recovered.damaged)
        return sorted(found | (set() if self._bytes is None else self._bytes.damaged))

    @property
    def epoch(self) -> int:
        """Fencing epoch: the number of starts of the drive, each of which was on flash before the
        first command completed. 0 without checkpoints of the mapping table
        (ftl.map_checkpoint)."""
        return int(self.arrays.dev.epoch[0])

    @property
    def critical_warning(self) -> CriticalWarning:
        """Critical warnings as in the SMART / Health Information log page."""
        failed = self.defect is not None or bool(self._damaged_pages)
        return condition.critical_warning(self.arrays, failed, bool(self.lost_at_cut))

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Write the drive's state as JSON to ``path``, complete or not at all: the defect,
        registers, counters, queues, the last log entries and the configuration.

        Missing folders are created. Raises InputError if the file cannot be written.
        """
        document = {"condition": self.condition.value, "why": self.why}
        document |= defect_report.report(
            self.arrays, self.cfg, self.last_logged, self.defect, self.now
        )
        write_atomically({as_path("path", path): json.dumps(document, indent=1).encode()})

    # --- payload

    def write(self, offset: int, data: bytes | np.ndarray) -> None:
        """Write ``data`` (bytes, or an array of any type) from byte ``offset`` on at
        ``earliest_arrival``; run until the drive is idle.

        Raises CommandError if the command ends with an error status, InputError for a partial
        logical block, for bytes outside the drive, or without payload.
        """
        try:
            given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data)
        except ValueError as error:  # rows of different lengths
            raise InputError("data: must be bytes or an array of numbers") from error
        if given.dtype.kind not in "biufc":
            raise InputError("data: must be bytes or an array of numbers")
        self._succeed(WRITE, offset, np.ascontiguousarray(given).reshape(-1).view(np.uint8))

    def read(self, offset: int, size: int) -> np.ndarray:
        """Read ``size`` bytes from byte ``offset`` on at ``earliest_arrival``; run until the drive
        is idle.

        Returns uint8[size]; bytes that were never written are zeros. Raises MediaError if a page
        could not be corrected, CommandError for another error status, InputError for a partial
        logical block, for bytes outside the drive, or without payload.
        """
        size = whole_number("size", size, self.block_bytes, self.cfg.frontend.max_transfer_bytes)
        found = np.zeros(size, np.uint8)
        self._succeed(READ, offset, found)
        return found

    def flush(self) -> None:
        """Run a FLUSH at ``earliest_arrival`` and all commands before it, until the drive is idle.
        Raises CommandError if it ends with an error status, InputError without payload."""
        self._succeed(FLUSH, 0, np.zeros(0, np.uint8))

    def erase_stale(self) -> None:
        """Complete the commands in flight. Then erase every block that holds bytes which were
        written again or trimmed, after moving its valid pages, and overwrite the copies of such
        bytes in memory and in the store.

        Flush first the data to be kept or trimmed. Raises InputError for a drive without payload,
        offline or read-only, or if a block cannot be collected or a file cannot be used.
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
            raise InputError(f"erase_stale: no room to collect {plural(left, 'block')}")
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
        """Run one command as PayloadSystem does. Raises CommandError unless it succeeds."""
        status = self._run_command(op, offset, memory)
        if status == Status.SUCCESS:
            return
        what = "FLUSH" if op == FLUSH else f"bytes from {offset} on"
        message = f"{what}: status 0x{status:x}, {status.name.lower().replace('_', ' ')}"
        if status == Status.UNRECOVERED_READ_ERROR:
            raise MediaError(message, status)
        raise CommandError(f"{message}; {self._reason}" if self._reason else message, status)

    # --- faults by request

    def inject_media_errors(self, offset: int, size: int) -> int:
        """Damage the flash pages that hold ``size`` bytes from byte ``offset`` on, after a FLUSH
        that also runs the commands in flight. Reads of them end with UNRECOVERED_READ_ERROR until
        they are written or trimmed. Return the number of damaged mapping units.

        Raises InputError without payload, without power, for partial mapping units, for bytes
        outside the drive, and if none of the units holds data; CommandError if the FLUSH fails.
        """
        unit = self.unit_bytes
        offset = whole_number("offset", offset, 0, self.capacity - unit)
        size = whole_number("size", size, unit, (1 << 63) - 1)
        if size > self.capacity - offset:
            raise InputError(
                f"size = {size}: must be at most {self.capacity - offset} from byte {offset} on; "
                f"the drive has {self.capacity} bytes"
            )
        for name, value in {"offset": offset, "size": size}.items():
            if value % unit:
                raise InputError(f"{name} = {value}: must be a multiple of {unit}, a mapping unit")
        self.check_power()
        self.flush()
        assert self.store is not None and self._bytes is not None
        if self.cfg.cache.power_loss_protection:
            self._save_all()  # their FLUSH writes nothing
        self._bytes.verify_reads()
        units = np.arange(offset // unit, (offset + size) // unit)
        found = injected_faults.damage_units(self.arrays, self.store, units, self._options.seed)
        if not found:
            raise InputError(f"bytes {offset} to {offset + size - 1} hold no data on flash")
        return found

    def wear_out(self) -> int:
        """Let a program fail in as many blocks as are spare, so that the drive becomes read-only.
        Return their number. Raises InputError without power."""
        self.check_power()
        return injected_faults.fail_spare_blocks(self.arrays, self.geometry)

    # --- conservation

    def check(self) -> None:
        """Check the conservation laws of the drive. Raises Imbalance; unless the drive is strict,
        it is then also offline. Raises InputError while a service owns the drive.

        Laws that require an idle drive are checked only when no command is outstanding and no page
        waits for space. After a defect, the laws do not hold and are not checked; a closed drive
        has no pages to check.
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


def with_blocks(
    cfg: Config, block_bytes: int | None, payload: bool = False, stored: bool = False
) -> tuple[Config, int]:
    """Return ``cfg`` for one drive with logical blocks of ``block_bytes`` (None: the default), and
    the size of a logical block. ``payload``: the drive can be recovered, so that pages of a block
    are programmed in order. ``stored``: it has a store, so that it records trims, as one with
    power-loss protection does. Raises InputError for an impossible size.
    """
    unit = cfg.ftl.mapping_unit_bytes or cfg.flash.page_bytes
    by_sectors = cfg.ftl.partial_pages == "sectors"
    size = SECTOR_BYTES if by_sectors else unit
    if block_bytes is not None:
        size = whole_number("block_bytes", block_bytes, -(1 << 63), (1 << 63) - 1)
    if size < SECTOR_BYTES or size & (size - 1) or unit % size:
        raise InputError(
            f"block_bytes = {size}: must be a power of two from {SECTOR_BYTES} to {unit}, the "
            "mapping unit"
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
