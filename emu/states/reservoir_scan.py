"""Recovery of the reservoirs from flash alone: the scan, and the tables that are built from it.

Owns the sequence of a recovery: read out-of-band data, check data that may be torn, pad open
blocks, build the map of super-pages. Does not own the selection of valid versions of super-pages
(ftl/reservoir_recovery.py), plan rows (paths/on_die/), the system on which the recovery runs, or
power cuts (analysis/power_loss/, engine/run/power_system.py). Source: this project's rule that a
recovery reads only the contents of the flash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ondie.emu.engine.core.payload_log import LOG_PAD, LOG_READ_OUT, LogEntry
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.engine.run.system import System
from ondie.emu.ftl.reservoir_recovery import (
    ATTEMPT,
    DieScan,
    DieState,
    Unrecoverable,
    Version,
    assign_super_pages,
    can_undo,
    check_newest,
    conclude,
)
from ondie.emu.nand.flash_pages import FlashPages
from ondie.emu.nand.page_store import PageStore, Spare
from ondie.emu.nand.super_page import At, physical_page
from ondie.emu.nvme.moved_bytes import MovedBytes
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die import recovery_plan
from ondie.emu.paths.on_die.parity import RECORD_PLANES
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import Reservoir


class ReservoirScan:
    """Recovery of the reservoirs of update path ``path`` on ``system``, whose reservoir tables must
    be empty.

    ``stores``: flash pages of each device. ``step``: number of the interrupted or last update, or
    None for the newest update on flash. ``moved``: object with the contents of the devices of
    ``system``, or None to create a new object. ``unsynced``: True if any program since the last
    sync of the host may be lost, not only the last program of a die.
    """

    def __init__(
        self,
        path: OnDie,
        system: System,
        stores: Sequence[PageStore],
        step: int | None,
        moved: MovedBytes | None = None,
        unsynced: bool = False,
    ) -> None:
        self.path, self.system, self.stores, self.moved = path, system, stores, moved
        self._unsynced = unsynced
        self.flash = [FlashPages(store, system.geometry.slots) for store in stores]
        """Pages of ``stores`` in units of flash pages, by device."""
        self.step = -1 if step is None else step
        """Number of the interrupted or last update; -1 while unknown."""
        geometry = system.geometry
        self.scans = {
            (dev, die): DieScan(
                dev * geometry.dies + die,
                geometry.reservoir_blocks,
                geometry.pages,
                path.stripes[dev].planes,
            )
            for dev, guarded in enumerate(path.guarded)
            for die in range(geometry.dies)
            if path.migrates or die < guarded.count or guarded.beside(die)
        }
        for (dev, _), scan in self.scans.items():
            if path.guarded[dev].commits:
                scan.records = path.guarded[dev].records
        self.undone = False
        """True if the results of the interrupted step are discarded."""
        self.made: tuple[frozenset[int], ...] = ()
        """For each device, the parities and commit records that step ``step`` has written."""
        self.scanned = self.checked = self.padded = 0
        """Numbers of super-pages. ``scanned``: out-of-band data was read. ``checked``: data was
        also read. ``padded``: the super-page was padded.
        """
        self.cursors: tuple[np.ndarray, ...] = ()
        """For each device, the index of the first super-page to be updated on each die,
        int64[dies]."""
        shape = system.devices, geometry.dies, geometry.reservoir_blocks
        self.erases = np.full(shape, -1, np.int64)
        """Erase count of each reservoir block according to its out-of-band data; -1 if unknown."""
        self._looking = False

    def run(self) -> None:
        """Scan the flash, check data that may be torn, pad open blocks, and build the mapping
        table.

        Raises engine.run.driver.PowerCut if the power fails again. Raises Unrecoverable if flash
        lacks a complete version of a super-page.
        """
        geometry, path = self.system.geometry, self.path
        heads = range(0, geometry.reservoir_blocks * geometry.pages, geometry.pages)
        good = path.good_blocks.reshape(self.system.devices, geometry.dies, -1)
        self._scan(
            [
                (dev, die, plane)
                for plane in heads
                for dev, die in self.scans
                if good[dev, die, plane // geometry.pages]
            ]
        )
        begun = {
            at: [plane for plane in heads if plane in scan.visible]
            for at, scan in self.scans.items()
        }
        self._scan(
            [
                (*at, head + page)
                for page in range(1, geometry.pages)
                for at, places in begun.items()
                for head in places
            ]
        )
        if self._unsynced:
            self._check_all()
        doubt = {} if self._unsynced else dict(self.scans)
        while doubt:
            newest = {at: scan.doubtful for at, scan in doubt.items()}
            places = [(*at, values.place) for at, values in newest.items() if values is not None]
            if places:
                self.checked += len(places)
                self.system.run([recovery_plan.scan(path, self.system.next_row, places, True)])
            doubt = {
                at: scan for at, scan in doubt.items() if not check_newest(scan, self._intact(at))
            }
        if self.step < 0:
            self.step = self._newest_step()
        if self._unsynced:
            self._give_up()
            self._restore_order()
        self.undone = self._to_be_undone()
        if not self.undone:
            self._give_up()
        states = self._conclude()
        pads = [(*at, state.pad) for at, state in states.items() if state.pad is not None]
        if self.moved is not None:
            self._set_wear()
        self._turn(states)
        if pads:
            self.system.run([recovery_plan.pads(path, self.system.next_row, pads)])
        self.padded = len(pads)
        self._map(states)

    @property
    def attempt(self) -> int:
        """Number of the attempt whose results of step ``step`` are used: the attempt with a commit
        record of the step, or, without a commit record, the latest attempt that wrote data to
        flash. After a commit record, the latest attempt may have begun the next step without
        leaving data on flash."""
        scans = self.scans.values()
        committed = max(scan.committed_by(self.step) for scan in scans)
        return (committed if committed >= 0 else max(scan.sequence for scan in scans)) // ATTEMPT

    def _give_up(self) -> None:
        """Drop the versions of step ``step`` that attempts before ``attempt`` have written."""
        attempt = self.attempt
        for scan in self.scans.values():
            scan.give_up(self.step, attempt)

    def _check_all(self) -> None:
        """Read the data of all versions, and drop the versions whose data does not match its
        checksums.
        """
        places = [(*at, place) for at, scan in self.scans.items() for place in scan.versions]
        self.checked += len(places)
        if places:
            self.system.run([recovery_plan.scan(self.path, self.system.next_row, places, True)])
        for at, scan in self.scans.items():
            intact = self._intact(at)
            for version in [each for each in scan.versions.values() if not intact(each)]:
                scan.refuse(version)

    def _restore_order(self) -> None:
        """Drop the results of the interrupted step that follow a lost super-page in the order of
        updates. Unless every super-page has a version of the step, also drop the commit records of
        the step.
        """
        whole = True
        for dev, stripes in enumerate(self.path.stripes):
            scans = [scan for (device, _), scan in self.scans.items() if device == dev]
            held = assign_super_pages(scans, stripes.count, self.step)
            for scan, expected in zip(scans, held, strict=True):
                whole &= scan.drop_unordered(self.step, expected)
        for scan in () if whole else self.scans.values():
            scan.drop_records(self.step)

    def _newest_step(self) -> int:
        """Return the newest step with a complete version on flash. Raises Unrecoverable if flash
        has no complete version."""
        steps = [v.step for scan in self.scans.values() for v in scan.versions.values()]
        if not steps:
            raise Unrecoverable("the reservoir contains no complete super-page")
        return max(steps)

    def _conclude(self) -> dict[tuple[int, int], DieState]:
        """Return the state of each die, by (device, die), derived from the scanned data. Raises
        Unrecoverable if a super-page has no complete version."""
        states: dict[tuple[int, int], DieState] = {}
        step, undone = self.step, self.undone
        for dev, stripes in enumerate(self.path.stripes):
            scans = {die: scan for (device, die), scan in self.scans.items() if device == dev}
            try:
                held = assign_super_pages(list(scans.values()), stripes.count, step - undone)
            except Unrecoverable as error:
                raise Unrecoverable(f"device {dev}: {error}") from error
            for (die, scan), expected in zip(scans.items(), held, strict=True):
                beside = self.path.guarded[dev].beside(die)
                states[dev, die] = conclude(scan, expected, step, beside, undone)
        return states

    def _to_be_undone(self) -> bool:
        """Return True if the interrupted step must be undone.

        The step is undone if pe.atomicity is "undo", no commit record states that the step is
        complete, and every die can undo the step. If the cut has left a die unable to undo the
        step, the step continues instead. Raises Unrecoverable if the commit records contradict the
        interrupted step.
        """
        if not self.path.guarded[0].commits:
            return False
        step, done = self.step, max(scan.committed for scan in self.scans.values())
        if done not in (step - 1, step):
            raise Unrecoverable(
                f"the commit records state that step {done} is complete, but step {step} was "
                "interrupted"
            )
        if done == step or not self.path.guarded[0].undo:
            return False
        # With commit records, no stripe moves between dies.
        return all(can_undo(scan, self._expected(*at), step) for at, scan in self.scans.items())

    def _scan(self, places: list[recovery_plan.Place]) -> None:
        self._looking = True
        self.scanned += len(places)
        self.system.run([recovery_plan.scan(self.path, self.system.next_row, places, False)])
        self._looking = False

    def _expected(self, dev: int, die: int) -> range:
        return range(die, self.path.stripes[dev].count, self.system.geometry.dies)

    def _pages(self, dev: int, at: At, super_page: int = 0) -> list[int]:
        is_record = self.path.guarded[dev].is_record(super_page)
        planes = RECORD_PLANES if is_record else self.path.stripes[dev].planes
        return [physical_page(self.system.geometry, at, slot) for slot in range(planes)]

    def _intact(self, at: tuple[int, int]) -> Callable[[Version], bool]:
        dev, die = at

        def intact(version: Version) -> bool:
            where = At(die, version.place, version.turned)
            pages = self._pages(dev, where, version.super_page)
            return all(self.flash[dev].intact(page) for page in pages)

        return intact

    def apply(self, entry: LogEntry) -> None:
        """Apply an entry of the engine's log. Raises SimulationError if the kind of the entry is
        unexpected.
        """
        geometry = self.system.geometry
        dev, die, place = entry.dev, entry.die % geometry.dies, entry.ppn
        flash = self.flash[dev]
        if entry.what == LOG_READ_OUT and self._looking:
            planes = range(self.path.scanned_planes)
            pages = [physical_page(geometry, At(die, place, 0), plane) for plane in planes]
            spares = [flash.spare(page) for page in pages]
            self.scans[dev, die].saw(place, spares)
            own, block = self.erases[dev, die], place // geometry.pages
            guarded = self.path.guarded[dev]
            for page, spare in zip(pages, spares, strict=True):
                if isinstance(spare, Spare) and not guarded.is_parity(spare.lpn):
                    own[block] = max(own[block], flash.erases(page))
        elif entry.what == LOG_PAD:
            for page in self._pages(dev, At(die, place, entry.old)):
                if self.moved is not None:
                    self.moved.reserve(dev, page, geometry.slots)
                flash.spoil(page)
        elif entry.what != LOG_READ_OUT:
            raise SimulationError(f"log entry of kind {entry.what}: not expected in a recovery")

    def _set_wear(self) -> None:
        """Set the erase counts of the reservoir blocks from the out-of-band data. Blocks without a
        valid page get the median count. The erase counts of planes are derived with the rule of
        rotation (ftl/reservoir.py)."""
        arrays, geometry = self.system.arrays, self.system.geometry
        known = self.erases >= 0
        typical = int(np.median(self.erases[known])) if known.any() else 0
        erases = np.where(known, self.erases, typical)
        block = arrays.block["erases"].reshape(-1, geometry.all_blocks)
        block[:, geometry.blocks :] = erases.reshape(-1, geometry.reservoir_blocks)
        table = arrays.cfg[0]
        planes, used = geometry.planes, int(table.reservoir_planes)
        cycles = np.arange(int(erases.max(initial=0)))
        turned = cycles // int(table.rotate) % planes if table.rotate > 0 else 0 * cycles
        worn = (np.arange(planes)[:, None] - turned) % planes < used
        total = np.concatenate([np.zeros((planes, 1), np.int64), worn.cumsum(axis=1)], axis=1)
        arrays.worn[: erases.size] = total[:, erases.reshape(-1)].T
        dev = arrays.dev
        dev["erases_before"] += erases.reshape(len(dev), -1).sum(axis=1)
        dev["worn_before"] = arrays.worn[: erases.size].reshape(len(dev), -1).sum(axis=1)

    def _turn(self, states: Mapping[tuple[int, int], DieState]) -> None:
        """Set the plane roles of each block in the new system. The roles are read from complete
        versions in the block. For a block without a complete version, they are derived from its
        erase count.
        """
        arrays, geometry = self.system.arrays, self.system.geometry
        rotate = int(arrays.cfg.rotate[0])
        block = arrays.block.reshape(-1, geometry.all_blocks)[:, geometry.blocks :]
        if rotate:
            block["turned"] = block["erases"] // rotate % geometry.planes
        for (dev, die), state in states.items():
            for b, turned in state.turned.items():
                block["turned"][dev * geometry.dies + die, b] = turned

    def _map(self, states: Mapping[tuple[int, int], DieState]) -> None:
        """Build the controller's tables from the state of each die. Replace the payload of the path
        with a payload that uses these tables."""
        arrays, geometry = self.system.arrays, self.system.geometry
        valid = arrays.valid.reshape(-1, geometry.all_blocks)[:, geometry.blocks :]
        block = arrays.block["dirty"].reshape(-1, geometry.all_blocks)
        block[:, geometry.blocks :] = 1  # a blank block is not known to be erased
        path = self.path
        path.homes = self._homes(states)
        path.drives = self.system
        new = Reservoir(
            self.system, path.stripes, path.homes, path.compute, path.guarded, self.stores,
            self.moved,
        )  # fmt: skip
        new.step = self.step
        for (dev, die), state in states.items():
            at = dev * geometry.dies + die
            arrays.pool["r_next"][at] = state.next_place
            new.sequences[dev] = max(int(new.sequences[dev]), state.sequence)
            if self.undone:
                new.sequences[dev] = ATTEMPT * (self.attempt + 1)
            every = self.path.homes[dev].super_pages(0, self.path.stripes[dev].count)
            for held, place in state.places.items():
                arrays.rmap[dev, every[held] if held < len(every) else held] = place + 1
                valid[at, place // geometry.pages] += 1
            arrays.dev["r_mapped"][dev] += len(state.places)
        self.cursors = tuple(np.zeros(geometry.dies, np.int64) for _ in self.path.stripes)
        for (dev, die), state in states.items():
            self.cursors[dev][die] = state.cursor
        self.made = tuple(
            frozenset().union(
                *(die_state.made for (device, _), die_state in states.items() if device == dev)
            )
            for dev in range(len(self.path.stripes))
        )
        new.kept = sum(int(cursor.sum()) for cursor in self.cursors)
        self.path.payload = new

    def _homes(self, states: Mapping[tuple[int, int], DieState]) -> tuple[Homes, ...]:
        """Return the stripe map of each device, built from the stripes found on each die. It equals
        the map before the power cut, unless stripes have moved between dies.
        """
        dies = self.system.geometry.dies
        out = []
        for dev, own in enumerate(self.path.stripes):
            where = np.full(own.count, -1, np.int64)
            for die in range(dies):
                state = states.get((dev, die))
                held = sorted(state.places) if state is not None else []
                stripes = [
                    super_pages for super_pages in held if super_pages < own.count
                ]  # others are parities and records
                where[stripes] = die + dies * np.arange(len(stripes))
            out.append(Homes.found(where, dies))
        return tuple(out)
