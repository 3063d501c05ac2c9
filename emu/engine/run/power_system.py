"""System of one drive with a power supply: the store, power cuts, and power-on.

Owns the opening and closing of the store, power cuts, and the start of a drive from a checkpoint or
by recovery. Does not own the bytes of commands (payload_system.py), files (nand/store_folder.py),
recovery (ftl/recovery.py, recovery_time.py), the data saved by power-loss protection
(nvme/power_loss_protection.py) or the contents left by an interrupted operation
(nand/torn_pages.py, nvme/power_cut.py).
Source: NVMe base specification (shutdown).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.run.command_system import CommandOptions
from ondie.emu.engine.run.driver import COMPLETED, NOW, PowerCut
from ondie.emu.engine.run.payload_system import NO_PAYLOAD, PayloadSystem
from ondie.emu.engine.run.recovery_time import recovery_ps
from ondie.emu.ftl import checkpoint_recovery, map_checkpoint, recovery
from ondie.emu.ftl.recovery import Flash
from ondie.emu.ftl.tables import spare_blocks
from ondie.emu.nand import checkpoint
from ondie.emu.nand.conventional_pages import ConventionalPages
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nand.store_folder import StoreFolder, StoreFull
from ondie.emu.nvme import cache_restore, power_cut, power_loss_protection
from ondie.emu.nvme.cache_restore import SavedCache
from ondie.emu.nvme.command import FLUSH
from ondie.emu.nvme.power_loss_protection import FJ_PER_J, HeldUp
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError, plural, real_number, whole_number


class Start(Enum):
    """Origin of a drive's tables, such as the mapping table, at power-on."""

    NEW = "new"
    """The drive is new: nothing has been written."""
    CHECKPOINT = "checkpoint"
    """The drive was closed: all tables, including the engine's tables, come from its checkpoint."""
    RECOVERY = "recovery"
    """The drive has data, but no usable checkpoint of a close: a recovery builds the tables from
    the data on flash."""


@dataclass(frozen=True)
class StoreOptions:
    """Options for the storage of the pages of a drive with payload."""

    path: str | os.PathLike[str] | None = None
    """Folder of the store; None if the pages are in memory only."""
    durability: str | None = None
    """Durability of the store's data: "process" (survives the end of the process) or "host" (data
    of a completed FLUSH or write with FUA also survives a power loss of the host). None selects the
    durability of an existing store, and "process" for a new store.
    """
    read_only: bool = False
    """True if the files of the store must not be changed."""

    def open(self, cfg: Config, options: CommandOptions) -> StoreFolder | None:
        """Open or create the store's folder for a drive with ``cfg`` and ``options``. Return None
        if ``path`` is None.

        Raises InputError if options cannot be combined or the folder cannot be used.
        """
        path, durability = self.path, self.durability
        if path is not None:
            if not options.payload:
                raise InputError(f"store = {path}: {NO_PAYLOAD}")
            recovery.check_supported(cfg, f"store = {path}")
            return StoreFolder.create_or_open(
                path, cfg, seed=options.seed, durability=durability, create=not self.read_only
            )
        if durability is not None:
            raise InputError(
                f"durability = {durability!r}: requires a store; set store to a folder"
            )
        if self.read_only:
            raise InputError("read_only = True: requires a store; set store to a folder")
        return None


@dataclass
class EndedStarts:
    """Totals over the ended starts of a drive since the drive was opened: their number, simulated
    time and counters. A start is the period from a power-on to the next power cut. The values of a
    start are added at the power-on after this cut."""

    number: int = 0
    time_ps: int = 0
    held_up: int = 0
    """Number of power cuts at which capacitors began to save data, including the power cut that may
    have ended the current start.
    """
    counts: np.ndarray = field(default_factory=lambda: np.zeros(len(COUNTERS), np.int64))
    """Sums of the activity counters (engine/core/counters.py) over the ended starts of the drive,
    int64[len(COUNTERS)].
    """

    def add(self, counts: np.ndarray, now_ps: int) -> None:
        """Add a start that ended at ``now_ps`` with the counters ``counts``."""
        self.number += 1
        self.time_ps += now_ps
        self.counts += counts


class PowerSystem(PayloadSystem):
    """A PayloadSystem with a power supply. ``kept``: options of the store in which the drive keeps
    its pages if ``options.payload`` is set.

    Raises InputError if the folder of the store cannot be used, or if the tables of a drive with
    this configuration cannot be recovered.
    """

    def __init__(self, cfg: Config, options: CommandOptions, kept: StoreOptions) -> None:
        self._options, self._cuts = options, 0
        folder = kept.open(cfg, options)
        self._read_only = kept.read_only
        geometry = Geometry.of(cfg)
        try:
            self.store, self._cache_file = None, None
            if options.payload:
                pages = geometry.physical_pages
                self.store = PageStore(geometry.page_bytes, folder, pages)
                if folder is not None and cfg.cache.power_loss_protection:
                    self._cache_file = cache_restore.open_file(
                        cfg, geometry, folder, not kept.read_only
                    )
            self._hold_up_j = cfg.cache.hold_up_fj / FJ_PER_J
            self.held_up: HeldUp | None = None
            """Result of power-loss protection at the last power cut; None if it has not been
            used.
            """
            self.ended = EndedStarts()
            self._power_up(cfg)
        except BaseException:
            if folder is not None:
                folder.close()
            raise

    def _power_up(self, cfg: Config) -> None:
        """Build the engine and its tables from the data on flash.

        If the store has no room for the pages that recovery overwrites, or must not be changed,
        changes are kept in memory, and the drive is read-only.
        """
        if self._read_only:
            assert self.store is not None
            self.store.keep_in_memory()
            self._build(cfg)
            self._stop_storing(
                InputError(
                    "the drive was opened with read_only = True; open it without read_only to write"
                ),
                0,
            )
            return
        try:
            self._build(cfg)
        except StoreFull as error:
            assert self.store is not None
            self.store.keep_in_memory()
            self._build(cfg)
            self._stop_storing(error, 0)

    def _build(self, cfg: Config) -> None:
        """Build the engine and its tables from the data on flash."""
        super().__init__(cfg, self._options, self.store, self._cache_file)
        self.started = Start.NEW
        """Source of the tables of the drive."""
        self.recovered: recovery.Recovered | None = None
        """Result of the recovery; None if the drive started without a recovery."""
        if self.store is not None:
            assert self._bytes is not None
            saved = None
            if self._cache_file is not None:
                saved = SavedCache(self._cache_file, self.store, self.arrays)
            kept = saved is not None and saved.file.holds_data
            if not self._load_checkpoint() and (kept or self.store.segments_on_disk()):
                every_page = self.store.may_have_lost_syncs()
                self.recovered = checkpoint_recovery.recover(
                    self.arrays, self.geometry, cfg, self._conventional(), every_page,
                    None if saved is None else saved.settle,
                )  # fmt: skip
                if self.held_up is not None:
                    self.recovered.lost = self.held_up.lost
                number = self.recovered.sequence if saved is None else saved.sequence
                number = max(number, self.recovered.sequence)
                self._bytes.continue_from(number, self.recovered.programs)
                self.recovered.time_ps = recovery_ps(cfg, self.geometry, self.recovered)
                self._reached = self.recovered.time_ps
                self.started = Start.RECOVERY
        if self.started is not Start.CHECKPOINT:
            spare = spare_blocks(cfg, self.geometry, self.arrays)
            self.arrays.dev["spare_at_start"] = self.arrays.dev["spare"] = spare
        if self.arrays.cfg.meta_maps[0]:
            self._start_epoch()
        if self._bytes is not None and self._cache_file is not None:
            if saved is not None and self.recovered is not None:
                protected = self.arrays.dev["protected"].copy()
                self.arrays.dev["protected"] = 0  # what is restored had completed
                saved.restore(self.recovered, self._limits[0], self._restore, self._save_all)
                self.arrays.dev["protected"] |= protected
            if self.store is not None and not self.store.full:
                self._bytes.save_cache()
        self._loaded_units = int(self.requested[1]) - int(self.arrays.dev.refused_pages[0])
        """Number of mapping units written by writes that were loaded before the start."""

    def _conventional(self) -> Flash:
        """Return the pages from which the page map is recovered, without the pages of the
        reservoir.
        """
        assert self.store is not None
        if not self.geometry.reservoir_blocks:
            return self.store
        return ConventionalPages(self.store, self.geometry)

    def _start_epoch(self) -> None:
        """Write the root of the last map checkpoint with the next fencing epoch.

        Commands can arrive only after the root is on flash.
        """
        dev, found = self.arrays.dev, self.recovered
        self.registers[NOW] = self._reached = max(self._reached, super().now)
        if found is not None:
            dev["epoch"] = found.epoch
        map_checkpoint.begin_start(self.state, 0)
        self.run()
        if self.store is not None and self.store.files is not None:
            if self.store.syncs:
                self.store.sync()
        if found is not None:
            found.time_ps = self._reached
            if not found.checkpoint:
                dev["meta_since"] = self.arrays.cfg.meta_every

    def _restore(self, op: int, offset: int, memory: np.ndarray) -> Status:
        """Run one command of a restore until it completes. Later commands of the restore may follow
        before the drive is idle.
        """
        return self._run_command(op, offset, memory, idle=False)

    def _save_all(self) -> None:
        """Write to flash all data that a power cut would lose, and run until no work is left."""
        power_loss_protection.start_saving(self.state, 0)
        self.run_until()
        power_loss_protection.end_saving(self.arrays)

    # --- the end, and the next start

    def _close(self) -> tuple[Status, str]:
        """Flush the data cache, write a checkpoint, and close the store. Return the status of the
        FLUSH and a text that lists the lost data, or "" if no data is lost.

        The store is then clean, and the next start continues as if the drive had not been closed.
        After a power cut or a defect, or if data cannot be stored, the next start is a recovery.
        Data that a power cut has destroyed does not count as lost. Raises StoreFull or InputError
        if the store cannot be synced.
        """
        status, lost, saved = Status.SUCCESS, "", None
        if self._closed:
            return status, lost
        try:
            if self.store is not None and self.store.files is not None and not self.off:
                if self.outstanding or not self.plan_done:
                    self.run()  # a FLUSH does not wait for writes that have not completed
                if self.defect is None:
                    status = self._run_command(FLUSH, 0, np.zeros(0, np.uint8))
                if self._cache_file is not None and self.defect is None:
                    self._save_all()
                lost = self._unsaved()
                if not lost and self._store_error is None and self._all_on_flash():
                    if self._cache_file is not None:
                        self._cache_file.clear_after(self.store)
                    saved = self._checkpoint()
        finally:
            self._closed = True
            if self.store is not None:
                self.store.close(checkpoint=saved)
        return status if self.defect is None else Status.INTERNAL_ERROR, lost

    def abandon(self) -> None:
        """Close a drive that has not accepted a command. The call neither flushes the drive nor
        writes a checkpoint, because both require the compiled engine.

        The next start is the same as if this process had been killed.
        """
        self._closed = True
        if self.store is not None:
            self.store.close()

    def _unsaved(self) -> str:
        """Return, as text, a list of the data that would be lost if the drive were closed now, or
        "" if no data would be lost."""
        lost = []
        if self.outstanding:
            lost.append(f"{plural(self.outstanding, 'command')} in flight")
        cached = int(self.arrays.cache.contents[0])
        if cached and self._cache_file is None:
            lost.append(f"{plural(cached, 'mapping unit')} in the data cache")
        stored = int(self.requested[1]) - int(self.arrays.dev.refused_pages[0])
        if self._store_error is not None and stored > self._loaded_units:
            lost.append("the data written after the store could no longer be changed")
        return f"lost: {', '.join(lost)}" if lost else ""

    def _all_on_flash(self) -> bool:
        """Return True if the drive is idle and has no defect, and all data and trims are on
        flash.
        """
        volatile = self.arrays.cache.contents.any() or self.arrays.dev.unsaved.any()
        return bool(self.defect is None and self.outstanding == 0 and self.idle and not volatile)

    def power_on(self) -> None:
        """Switch the power on after a power cut. The tables are recovered from flash. The clock
        starts at 0, and recovery takes simulated time (Recovered.time_ps).

        Raises InputError if the power is on, the drive is closed or has no payload, or the
        configuration does not support recovery. Also raises an exception that the decoder has
        raised.
        """
        self._check_open()
        if not self.off:
            raise InputError("the power is already on; power_on must follow a power cut")
        if self.store is None:
            raise InputError(NO_PAYLOAD)
        recovery.check_supported(self.cfg, "power_on")
        if self._decoder is not None:
            self._decoder.check()
        error = self._store_error
        counts, now = self.arrays.count[0].copy(), self._reached
        try:
            self._power_up(self.cfg)
        except BaseException:
            self.off = True  # its tables are not whole
            raise
        self.ended.add(counts, now)
        if error is not None:
            self._stop_storing(error, 0)
        if self._buffer is not None:
            self.buffer = self._buffer

    def power_cut(self, after_events: int, work: Callable[[], object] | None = None) -> int:
        """Run ``after_events`` events, then cut the power at a random time before the next event.
        The drive handles no commands until :meth:`power_on`.

        ``work``: function that runs events of the drive, such as the recovery of the reservoir.
        None runs the outstanding commands and plans.

        Commands that have not completed are lost. Data that is only in the data cache is lost
        unless power-loss protection saves it. Finished programs remain on flash. If the power cut
        interrupts the program of a page or the erase of a block, the page or block has arbitrary
        contents (nand/torn_pages.py). Return the number of events handled, which is smaller than
        ``after_events`` if no work was left.
        """
        self.check_power()
        before = self.events
        self.events_left = whole_number("after_events", after_events, 0, NEVER)
        with suppress(PowerCut):
            if work is not None:
                work()
            else:
                self.run_until()
        self.off = True
        count, done_ps = self.events - before, int(self.arrays.reg.now[0])
        self._reached = max(self._reached, done_ps)
        if self.cfg.cache.power_loss_protection and self._bytes is not None and not self.defect:
            self._hold_up()
        rng = np.random.default_rng((self._options.seed, 0xC07, self._cuts))
        self._cuts += 1
        if self.next_event < NEVER:
            end = max(self.next_event, self._reached + 1)  # the next event may be due now
            self._reached = int(rng.integers(self._reached, end))
        if self._bytes is not None and self.defect is None and self._store_error is None:
            power_cut.tear(self.arrays, self._reached, self._bytes, rng, self._plans)
            if self._cache_file is not None:
                self._cache_file.clear_after(self.store)
        return count

    @property
    def hold_up_j(self) -> float:
        """Energy of the capacitors of power-loss protection (J), at most ``cache.hold_up``. A
        smaller value models aged capacitors.
        """
        return self._hold_up_j

    @hold_up_j.setter
    def hold_up_j(self, energy: float) -> None:
        energy, most = real_number("hold_up_j", energy), self.cfg.cache.hold_up_fj / FJ_PER_J
        if not 0 <= energy <= most:
            raise InputError(f"hold_up_j = {energy:g} J: must be from 0 to {most:g} J")
        self._hold_up_j = energy

    def _hold_up(self) -> None:
        """Save the data of completed commands with the energy of the capacitors
        (nvme/power_loss_protection.py).
        """
        self.ended.held_up += 1
        self._collect()
        completed = int(self.registers[COMPLETED])
        for waiting in self._waiting:
            waiting.clear()
        found = HeldUp(self._reached, round(self.hold_up_j * FJ_PER_J))
        try:
            power_loss_protection.hold_up(
                found, self.cfg, self.arrays, self.geometry,
                lambda count: self._run_events(NEVER - 1, count, NEVER),
            )  # fmt: skip
        except Exception as error:
            if self.strict:
                raise
            self._go_offline(error)
        self.registers[COMPLETED] = completed  # nobody has seen the others
        self._reached, self.held_up = found.end_ps, found

    def check_power(self) -> None:
        """Raise InputError if the power has been cut or the drive is closed."""
        self._check_open()
        super().check_power()

    # --- checkpoint

    _KEPT = ("_reached", "_accepted", "_taken", "_ended", "_settled", "planned_commands")
    """Attributes of CommandSystem, all integers, that a checkpoint contains."""

    def _tables(self) -> dict[str, np.ndarray]:
        """Return the arrays that a checkpoint contains, by name."""
        assert self._bytes is not None
        return checkpoint.of_engine(self.arrays) | {
            "requested": self.requested,
            "planned": self.planned,
            "earliest": self._earliest,
            **self._bytes.tables(),
        }

    def _checkpoint(self) -> int:
        """Write a checkpoint of the idle drive to the store. Return the checksum of the
        checkpoint.
        """
        assert self.store is not None and self.store.files is not None and self._bytes is not None
        self._collect()
        numbers = {name: int(getattr(self, name)) for name in self._KEPT}
        numbers |= dict(zip(("sequence", "programs"), self._bytes.counters, strict=True))
        return checkpoint.save(self.store.files.folder, self._tables(), numbers)

    def _load_checkpoint(self) -> bool:
        """Load the tables of a checkpoint, if the store is clean and the checkpoint is from a drive
        with the same queue pairs.

        Return True if the tables were loaded.
        """
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
        self._bytes.check_cached_pages()
        self.arrays.dev["ends"] = not self.strict
        self.arrays.pair["depth"] = self.arrays.cfg["queue_depth"]
        self.started = Start.CHECKPOINT
        return True

    @property
    def lost_at_cut(self) -> str:
        """Sentence about the data that power-loss protection could not save at the last power cut;
        empty if no data was lost."""
        return "" if self.held_up is None else self.held_up.why
