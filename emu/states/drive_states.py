"""Weights and states of an optimizer in the reservoir of a drive that also executes commands.

Owns the start of updates on the dies concurrently with commands, their progress, and the recovery
of the reservoir at the start of the drive. Does not own the drive, its power and its store
(drive.py), the rows of an update and its data (paths/on_die/), or the scan (reservoir_scan.py).
Source: OptimStore (HPCA 2023): one cursor per die; after a power loss, the host sends the gradients
starting at the cursor. Commands and the reservoir share dies, channels, DRAM and link.

    states = DriveStates("optimstore-r1", "adam", 1_000_000, {"lr": 1e-3, ...})
    drive = Drive(states.cfg, payload=True, reservoir=states.reservoir, store="folder")
    states.create(drive, {"w": weights, "m": zeros, "v": zeros})
    states.start_update(gradient)
    drive.run()                                    # with the commands in flight
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ondie.emu.config.config import Config, configuration
from ondie.emu.drive import Drive
from ondie.emu.engine.core.payload_log import LOG_BPP, LOG_LANDED, LOG_MADE, LogEntry
from ondie.emu.engine.run.power_system import Start
from ondie.emu.engine.run.system import ReservoirOptions
from ondie.emu.ftl import reservoir
from ondie.emu.nand.flash_pages import UncodedCounts
from ondie.emu.nand.page_store import Spare
from ondie.emu.nvme.status import Condition
from ondie.emu.paths.base import PHASES, UPDATE, Options, Rows
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die import recovery_plan, uneven_rounds, wear_leveling
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.states import interruption
from ondie.emu.states.replaced_die import Restored, check_die, replace_die
from ondie.emu.states.reservoir_scan import ReservoirScan
from ondie.emu.states.update_trace import checked_hyper, trace_of
from ondie.emu.units import InputError, known_names, quoted, whole_number
from ondie.kernels import OPS
from ondie.traces import Memory, Step


class DriveStates:
    """Weights and states of ``n_params`` parameters in the reservoir of one drive.

    ``device``: configuration, preset or TOML file of the drive. ``op``: optimizer operation
    (ondie.kernels.OPS). ``hyper``: its hyperparameters, which may be changed between updates.
    ``updates``: number of updates already applied to the initial states. ``options``: form and
    format of the update. ``seed``: seed of the drive, which determines its bad blocks.

    Raises InputError if the drive cannot update these states on its dies, or if an argument is
    invalid."""

    def __init__(
        self,
        device: Config | str | os.PathLike[str],
        op: str,
        n_params: int,
        hyper: Mapping[str, float | bool],
        *,
        updates: int = 0,
        options: Options | None = None,
        seed: int = 0,
    ) -> None:
        cfg = configuration(device)
        self.cfg = cfg if cfg.system.devices == 1 else cfg.replace({"system.devices": 1}, ref="")
        n_params = whole_number("n_params", n_params, 1, 1 << 48)
        if op not in list(OPS):
            raise InputError(f"op = {quoted(op)}: unknown; {known_names(str(op), OPS)}")
        self.hyper = checked_hyper(op, hyper)
        self.first_count = whole_number("updates", updates, 0, 1 << 48)
        options = options or Options()
        self._trace = trace_of(op, options, n_params, self.hyper)
        self._path = OnDie(self.cfg, self._trace, options)
        bad = reservoir.bad_blocks(self.cfg, self._path.geometry, 1, seed)
        self._path.good_blocks = ~bad
        self._arithmetic = Arithmetic(
            self._trace, form=options.form, format=options.format, seed=options.seed
        )
        self._path.arithmetic = self._arithmetic
        self._drive: Drive | None = None
        self._payload: Reservoir | None = None
        self._scan: ReservoirScan | None = None
        """Recovery in progress, or None."""
        self.recovered: ReservoirScan | None = None
        """Result of the last recovery, or None if there was no recovery."""
        self._made: frozenset[int] = frozenset()
        """Parities and commit records of the current update that are on flash."""
        self._moved = False
        """True if stripes have moved to other dies since the last call of ``_make_durable``."""
        self._unsynced = True
        """True if the states' programs have changed the store since the last ``_make_durable``."""
        self._stored = np.zeros(self._path.geometry.dies, np.int64)
        """Number of stripes of each die whose results of update ``step`` are in the store (and
        synced, with durability "host"), int64[dies]."""
        self._read = False
        """True if a read of the weights was started."""
        self.memory = [np.zeros((0, self._path.geometry.page_bytes), np.uint8)]
        """Empty, because no row of an update accesses the namespace of commands."""

    @property
    def reservoir(self) -> ReservoirOptions:
        """Sizes of the reservoir that the drive must have."""
        path = self._path
        kept = path.stripes[0].groups * path.stripes[0].kept
        return ReservoirOptions(path.super_pages, path.stripes[0].planes + kept, PHASES)

    # --- start

    def create(self, drive: Drive, vectors: Mapping[str, np.ndarray]) -> None:
        """Store the initial weights "w" and the initial states by name, [n_params] in the stored
        type, in the reservoir of ``drive``, in zero simulated time.

        Raises InputError if the drive has another configuration or is not online, if its reservoir
        is in use, or if a vector is missing, unknown or invalid."""
        self._check_drive(drive)
        if unknown := set(vectors) - set(self._path.vectors):
            raise InputError(
                f"vectors[{min(unknown)!r}]: must be one of {', '.join(self._path.vectors)}"
            )
        for name in self._path.vectors:
            values, dtype = vectors.get(name), self._path.stripes[0].dtype
            if values is None or values.shape != (self.n_params,) or values.dtype != dtype:
                raise InputError(
                    f"vectors[{name!r}]: "
                    f"{'missing' if values is None else f'{values.dtype}{list(values.shape)}'}; "
                    f"must be {dtype}[{self.n_params}]"
                )
        if drive.arrays.rmap.any() or self._written_pages(drive):
            raise InputError("the reservoir of this drive is in use; call open() instead")
        if drive.condition is not Condition.ONLINE:
            raise InputError(f"the drive is {drive.condition.value}: {drive.why}")
        stripes = self._path.stripes[0]
        drive.fill_reservoir(0, 0, stripes.count)
        self._follow(drive, self._new_payload(drive))
        assert self._payload is not None
        self._payload.store_initial(vectors)
        self._payload.updated[0] = self._path.homes[0].held()
        drive.take_log(0)  # notes that the store is full, if it is
        self._make_durable()

    def open(self, drive: Drive) -> None:
        """Open the states in the reservoir of ``drive``, at its start or after ``power_on``. If the
        drive was recovered, recover its reservoir as well. The engine of the drive simulates this
        recovery concurrently with the commands in flight.

        Raises InputError if the drive has no power, no states or another configuration. Raises
        Unrecoverable if flash has no complete version of a super-page, and PowerCut at a power cut.
        """
        self._check_drive(drive)
        if drive.off:
            raise InputError("the drive has no power; call power_on() first")
        self._drive = self._payload = None
        if drive.started is Start.CHECKPOINT:
            self._take_tables(drive)
            return
        if drive.started is Start.NEW:
            raise InputError("the reservoir of this drive is empty; call create() first")
        moved = drive.moved
        scan = ReservoirScan(self._path, drive, moved.stores, None, moved, moved.store.syncs)
        self._scan = scan
        drive.follow(self)
        try:
            scan.run()
        except BaseException:
            if drive.plan_done:
                drive.follow(None)
                self._scan = None
            raise
        self._scan, self.recovered = None, scan
        payload = self._path.payload
        assert isinstance(payload, Reservoir)
        payload.updated[0] = scan.cursors[0]
        self._follow(drive, payload)
        self._made = scan.made[0]

    def _check_drive(self, drive: Drive) -> None:
        """Raise InputError if the reservoir or geometry of ``drive`` does not fit the states."""
        own = self.reservoir
        given = drive.reservoir
        if (given.super_pages, given.planes, given.phases) != (
            own.super_pages, own.planes, own.phases,
        ):  # fmt: skip
            raise InputError(
                f"drive: has a reservoir of {given.super_pages} super-pages of {given.planes} "
                f"planes; the states require {own.super_pages} of {own.planes} planes; open the "
                f"drive with reservoir=states.reservoir"
            )
        if drive.geometry != self._path.geometry:
            raise InputError("drive: its geometry differs from that of the states; use states.cfg")

    def _written_pages(self, drive: Drive) -> bool:
        """Return True if a page of the reservoir is not blank."""
        geometry = self._path.geometry
        pages = geometry.block_pages
        found = drive.moved.store.block_records(pages, geometry.physical_pages)
        for first, records in found:
            block = first // pages + np.arange(len(records))
            own = block % geometry.all_blocks >= geometry.blocks
            if records["written"][own].any():
                return True
        return False

    def _new_payload(self, drive: Drive) -> Reservoir:
        path = self._path
        return Reservoir(
            drive, path.stripes, path.homes, path.compute, path.guarded, moved=drive.moved
        )

    def _follow(self, drive: Drive, payload: Reservoir) -> None:
        """Connect the states to ``drive``, so that its plans move the data in ``payload``."""
        drive.follow(self)
        self._drive, self._payload = drive, payload
        self._path.payload, self._path.drives = payload, drive
        self._made = frozenset()
        self._unsynced, self._read = True, False
        self._stored[:] = 0

    def _take_tables(self, drive: Drive) -> None:
        """Open the states of a drive that was closed cleanly. Its tables give the location of each
        super-page, and out-of-band data gives the contents."""
        path, store = self._path, drive.moved.store
        stripes, dies = path.stripes[0], path.geometry.dies
        path.homes = (Homes(stripes.count, dies),)
        payload = self._new_payload(drive)
        found: dict[int, tuple[int, Spare]] = {}
        beside: dict[int, Spare] = {}
        for sp in np.flatnonzero(drive.arrays.rmap[0]).tolist():
            spare = payload.flash[0].spare(payload.page(payload.at(0, sp), 0))
            if not isinstance(spare, Spare):
                raise InputError(f"{store.where}: super-page {sp} has no valid out-of-band data; "
                                 "`ondie store check` lists all damaged pages")  # fmt: skip
            if path.migrates or sp < stripes.count:
                found[spare.lpn] = sp, spare
            else:
                beside[sp] = spare
        if sorted(found) != list(range(stripes.count)):
            raise InputError(
                f"{store.where}: the reservoir has {len(found)} stripes, but the states have "
                f"{stripes.count}; call create() first"
            )
        path.homes = (Homes.found(np.array([found[i][0] for i in range(len(found))]), dies),)
        payload = self._new_payload(drive)
        payload.step = max(spare.step for _, spare in found.values())
        every = [spare for _, spare in found.values()] + list(beside.values())
        payload.sequences[0] = max(spare.sequence for spare in every)
        for sp, spare in found.values():
            payload.updated[0, sp % dies] += spare.step == payload.step
        self._follow(drive, payload)
        self._made = frozenset(sp for sp, spare in beside.items() if spare.step == payload.step)

    # --- updates

    @property
    def n_params(self) -> int:
        return self._trace.n_params

    @property
    def stripe_params(self) -> int:
        """Number of parameters per stripe. A partial update ends at a multiple of this number."""
        return self._path.stripes[0].params

    @property
    def step(self) -> int:
        """Number of the update that was started last, counted from 1 since :meth:`create`; 0 if no
        update was started. After a recovery, number of the last update with results on flash."""
        return self._opened.step

    @property
    def stripes_done(self) -> int:
        """Number of stripes whose results of update ``step`` are on flash. Results that are only in
        memory because the store is full are not counted. With durability "host", the property first
        syncs the results; results that cannot be synced are not counted."""
        self._make_durable()
        return int(self._stored.sum())

    @property
    def stripes(self) -> int:
        """Number of stripes that contain the parameters."""
        return self._path.stripes[0].count

    @property
    def complete(self) -> bool:
        """True if update ``step`` is complete and stored, so that the next update can begin. False
        if the store had no room for the results of the update."""
        self._make_durable()
        left = self._left_beside()
        lost = self.step > 0 and self._opened.moved.full is not None
        return self.stripes_done == self.stripes and not left and not lost

    def _make_durable(self) -> None:
        """With durability "host", sync the changes of the states' programs since the last call. If
        that fails, the drive becomes read-only. Raises InputError as ``_opened`` does."""
        payload, drive = self._opened, self._drive
        assert drive is not None
        if not drive.off and drive.moved.store.syncs and self._unsynced:
            drive.moved.sync()
            drive.take_log(0)
            self._unsynced = False
        self._moved = False
        waits = drive.moved.store.syncs and self._unsynced  # without power, for the next start
        if payload.moved.full is None and not waits:
            self._stored[:] = payload.updated[0]

    def _left_beside(self) -> set[int]:
        """Return the parities and commit records that update ``step`` has not programmed yet."""
        if self._opened.step == 0:
            return set()
        path = self._path
        beside = {sp for die in range(path.geometry.dies) for sp in path.guarded[0].beside(die)}
        return beside - self._made

    @property
    def _opened(self) -> Reservoir:
        """Contents of the states. Raises InputError if the states have not been created or opened
        since the drive's last start."""
        if self._payload is None or self._drive is None or self._drive.moved.plans is not self:
            raise InputError("the states are not open; call create() or open() first")
        return self._payload

    def start_update(self, gradient: np.ndarray, stop: int | None = None) -> None:
        """Start the update of the parameters up to ``stop`` (None: all) with ``gradient``,
        float32[n_params]. The update advances with the drive's clock, concurrently with commands.

        If the last update is incomplete, continue it with the stripes that are not yet on flash;
        ``gradient`` and the attribute ``hyper`` must be unchanged. Otherwise begin the next update.

        Raises InputError if the states are not open, if a plan is running, if the drive is offline
        or read-only, or if ``gradient``, ``stop`` or ``hyper`` is invalid."""
        payload, path, drive = self._opened, self._path, self._drive
        begins = self.complete  # which may find that the store cannot be synced
        assert drive is not None
        if drive.condition is not Condition.ONLINE:
            raise InputError(f"the drive is {drive.condition.value}: {drive.why}")
        if self._updating():
            raise InputError("an update is running; wait until it is done")
        if not isinstance(gradient, np.ndarray) or gradient.dtype != np.float32:
            raise InputError(f"gradient: must be float32[{self.n_params}]")
        if gradient.shape != (self.n_params,):
            raise InputError(f"gradient: has shape {gradient.shape}; must be ({self.n_params},)")
        if not np.isfinite(gradient).all():
            at = int(np.flatnonzero(~np.isfinite(gradient))[0])
            raise InputError(f"gradient: element {at} is {gradient[at]}; all must be finite")
        stop = self.n_params if stop is None else whole_number("stop", stop, 1, self.n_params)
        if stop < self.n_params and (stop % self.stripe_params or path.guarded[0].members):
            right = f"a multiple of {self.stripe_params} (parameters per stripe) or "
            if path.guarded[0].members:
                right = "the number of parameters if the drive has parity (pe.rain): "
            raise InputError(f"stop = {stop}: must be {right}{self.n_params}")
        checked_hyper(self._trace.op, self.hyper)
        step = self._step(self.first_count + payload.step + begins)
        self._trace = replace(
            self._trace, steps=(step,), source=Memory({0: gradient}, self._no_weights)
        )
        path.trace = self._arithmetic.trace = self._trace
        stops = self._stops(stop)
        before = payload.step, payload.gradient, payload.updated.copy()
        stored = self._stored.copy()
        path.begin_step(0)  # counts a step
        if begins:
            self._made = frozenset()
            self._stored[:] = 0
        else:
            payload.step, payload.updated[:] = before[0], before[2]
        try:
            self._run_update(drive, self._plan(stops, begins))
        except BaseException:
            payload.step, payload.gradient, payload.updated[:] = before
            self._stored[:] = stored
            raise

    def _updating(self) -> bool:
        """Return True while a plan runs, so that no update can begin."""
        return self._drive is not None and not self._drive.plan_done

    def _run_update(self, drive: Drive, plan: Iterator[np.ndarray]) -> None:
        """Start the plan of an update."""
        drive.start(plan)

    def _stops(self, stop: int) -> np.ndarray:
        """Return the number of stripes of each die that precede parameter ``stop``, int64[dies]."""
        homes = self._path.homes[0]
        count = -(-stop // self.stripe_params)
        return np.bincount(homes.super_pages(0, count) % homes.dies, minlength=homes.dies)

    def _plan(self, stops: np.ndarray, begins: bool) -> Iterator[np.ndarray]:
        """Yield the update's plan rows from the stripes on flash up to ``stops`` (int64[dies])."""
        path, drive, payload = self._path, self._drive, self._payload
        assert drive is not None and payload is not None
        out = Rows(drive.next_row)
        after = out.fence(UPDATE)
        whole = bool((stops == path.homes[0].held()).all())
        if begins and path.migrates:
            worn = drive.arrays.worn
            after = wear_leveling.plan(path.devices, worn, path.super_pages, out, after)
            if whole:
                stops = path.homes[0].held()
        fetched: dict[tuple[int, int], int] = {}
        cursors = [payload.updated[0].copy()]
        yield from uneven_rounds.update(path.devices, out, after, cursors, fetched, [stops])
        if whole:
            yield from recovery_plan.parities(path, out, after, fetched, [self._made])
            if path.guarded[0].commits:
                path.commit(out, [self._made])
        yield out.take()
        path.next_row = out.next

    @property
    def _no_weights(self) -> dict[str, np.ndarray]:
        return {"initial": np.broadcast_to(np.float32(0), self.n_params)}

    def _step(self, count: int) -> Step:
        """Return the trace record (Step) of update number ``count``, which counts from 1."""
        return replace(self._trace.steps[0], hyper=(dict(self.hyper),), count=count)

    # --- what the drive calls

    def apply(self, entry: LogEntry) -> None:
        """Apply an entry of the engine's log to the contents of the reservoir."""
        if self._scan is not None:
            self._scan.apply(entry)
        else:
            assert self._payload is not None
            if entry.what == LOG_BPP and self._moved:
                self._make_durable()  # so that the stripes of each die stay in order
            self._payload.apply(entry)
            if entry.what == LOG_MADE:
                self._made |= {entry.lpn}
            self._moved |= entry.what == LOG_LANDED
            self._unsynced |= entry.what in (LOG_BPP, LOG_MADE, LOG_LANDED)
            if self._payload.moved.full is None and not self._payload.moved.store.syncs:
                self._stored[:] = self._payload.updated[0]

    def interrupt(self, die: int, tid: int, rng: np.random.Generator) -> None:
        """Set the reservoir pages of program ``tid`` on die ``die``, which a power cut interrupts,
        to their state after the cut. ``rng`` determines which pages are incomplete."""
        if self._scan is not None:
            scan = self._scan
            interruption.interrupt_pad(scan.system, self._path.stripes, scan.flash, die, tid, rng)
        else:
            assert self._payload is not None and self._drive is not None
            interruption.interrupt_program(self._drive, self._payload, die, tid, rng)

    # --- contents

    def stored(self, name: str) -> np.ndarray:
        """Return vector ``name`` as stored on flash, [n_params] in the stored type, in zero
        simulated time. Raises InputError if no vector has this name or the states are not open."""
        if name not in self._path.vectors:
            raise InputError(
                f"vector {quoted(repr(name))}: must be one of {', '.join(self._path.vectors)}"
            )
        return self._opened.stored(name)

    @property
    def uncoded_counts(self) -> UncodedCounts | None:
        """Counts of the states' pages that have bypassed the encoder or the decoder since the
        states were created or opened; None before that."""
        return None if self._payload is None else self._payload.uncoded_counts

    def replace_die(self, die: int) -> Restored:
        """Replace die ``die`` and restore its states from the parities over dies, in zero simulated
        time. Raises InputError as ``check_die`` does, or if the last update is incomplete."""
        payload, drive = self._opened, self._drive
        assert drive is not None
        check_die(drive, self._path.guarded[0], die)
        if self.step == 0 or not self.complete:
            raise InputError(f"die {die}: has no parity; complete update {max(self.step, 1)} first")
        self._unsynced = True
        return replace_die(drive, payload, self._path.guarded[0], die)

    def start_read(self) -> None:
        """Start the read of all weights to the host, concurrently with commands. When the read is
        done, ``weights`` returns them. Raises InputError if the states are not open, a plan is
        running or the drive is offline."""
        drive = self._drive
        self._opened.sent[:] = 0
        assert drive is not None
        drive.start(self._read_plan())
        self._read = True

    def _read_plan(self) -> Iterator[np.ndarray]:
        assert self._drive is not None
        out = Rows(self._drive.next_row)
        yield from self._path.weights_up(out, out.fence(UPDATE))
        yield out.take()
        self._path.next_row = out.next

    @property
    def weights(self) -> np.ndarray:
        """Weights that the last read has sent to the host, [n_params]. Raises InputError if no read
        was started since the states were created or opened."""
        if not self._read:
            raise InputError("weights: have not been read; call start_read() and run the drive")
        return self._opened.delivered
