"""Recovery after a power cut: a new system is built from the flash of the system that lost power.

Owns the sequence of a recovery: read out-of-band data, check doubtful data, pad open blocks, build
the mapping table. Does not own the decision which versions of super-pages are valid
(ftl/reservoir_recovery.py), plan rows (paths/on_die/recovery_plan.py) or the effects of the cut
(analysis/power_loss/cut.py).
Source: this project's rule that a recovery reads only the contents of the flash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ondie.emu.analysis.power_loss.cut import Cut, Recovery, sent
from ondie.emu.engine.core.payload_log import LOG_PAD, LOG_READ_OUT, entries
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
from ondie.emu.paths.base import Path
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die import recovery_plan
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.on_die.registers import At, Reservoir


class Revival:
    """Recovery of a path: builds a new system from the flash of a system that lost power.

    ``dead``: the system that lost power. ``happened``: the power cut.
    """

    def __init__(self, path: Path, dead: System, happened: Cut) -> None:
        assert isinstance(path, OnDie) and isinstance(path.payload, Reservoir)
        self.path, self.old, self.happened = path, path.payload, happened
        self.system = _same_cells(path, dead)
        geometry = self.system.geometry
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
        self.made: tuple[frozenset[int], ...] = ()
        self.scanned = self.checked = self.padded = 0
        self.cursors: tuple[np.ndarray, ...] = ()
        self._looking = False
        self.system.on_log = self._on_log

    def run(self) -> None:
        """Scan the flash, check doubtful data, pad open blocks, and build the mapping table.

        Raises engine.run.driver.PowerCut if the power fails again. Raises Unrecoverable if flash
        holds no complete version of some super-page.
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
        doubt = dict(self.scans)
        while doubt:
            newest = {at: scan.doubtful for at, scan in doubt.items()}
            places = [(*at, values.place) for at, values in newest.items() if values is not None]
            if places:
                self.checked += len(places)
                self.system.run([recovery_plan.scan(path, self.system.next_row, places, True)])
            doubt = {
                at: scan for at, scan in doubt.items() if not check_newest(scan, self._intact(at))
            }
        self.undone = self._to_be_undone()
        if not self.undone:
            for scan in self.scans.values():
                scan.give_up(self.old.step, self.attempt)
        states = self._conclude()
        pads = [(*at, state.pad) for at, state in states.items() if state.pad is not None]
        self._turn(states)
        if pads:
            self.system.run([recovery_plan.pads(path, self.system.next_row, pads)])
        self.padded = len(pads)
        self._map(states)

    @property
    def attempt(self) -> int:
        """Number of the latest attempt to run the interrupted step that wrote data to flash."""
        return max(scan.sequence for scan in self.scans.values()) // ATTEMPT

    def _conclude(self) -> dict[tuple[int, int], DieState]:
        """Return the state of each die, by (device, die), derived from the data that was read.
        Raises Unrecoverable if a super-page has no complete version."""
        states: dict[tuple[int, int], DieState] = {}
        step, undone = self.old.step, self.undone
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
        complete, and every die can undo the step. If a die has no space for this because of the
        cut, the step continues instead. Raises Unrecoverable if the commit records contradict the
        interrupted step.
        """
        if not self.path.guarded[0].commits:
            return False
        step, done = self.old.step, max(scan.committed for scan in self.scans.values())
        if done not in (step - 1, step):
            raise Unrecoverable(
                f"the commit records say that step {done} is complete, but step {step} was "
                "interrupted"
            )
        if done == step or not self.path.guarded[0].undo:
            return False
        # With commit records, no stripe moves between dies.
        return all(can_undo(scan, self._expected(*at), step) for at, scan in self.scans.items())

    def found(self, sent_before: int) -> Recovery:
        """Return the report of the recovery. ``sent_before``: value of :func:`sent` when the step
        was started or last resumed.
        """
        path, happened = self.path, self.happened
        vain = sent(self.system) + happened.lost["down_bytes"] - sent_before
        stripe = path.stripes[0].gradient_bytes
        kept = sum(int(cursor.sum()) for cursor in self.cursors)
        return Recovery(
            cut=happened,
            seconds=(self.system.now - happened.at_ps) / 1e12,
            scanned=self.scanned,
            checked=self.checked,
            refused=sum(scan.torn for scan in self.scans.values()),
            padded=self.padded,
            kept=kept,
            resent_bytes=max(vain - (kept - self.old.kept) * stripe, 0),
            cursors=self.cursors,
            undone=self.undone,
            made=self.made,
        )

    def _scan(self, places: list[recovery_plan.Place]) -> None:
        self._looking = True
        self.scanned += len(places)
        self.system.run([recovery_plan.scan(self.path, self.system.next_row, places, False)])
        self._looking = False

    def _expected(self, dev: int, die: int) -> range:
        return range(die, self.path.stripes[dev].count, self.system.geometry.dies)

    def _pages(self, dev: int, at: At, super_page: int = 0) -> list[int]:
        slots = range(self.old.beside[dev].planes_of(super_page))
        return [self.old.page(at, slot) for slot in slots]

    def _intact(self, at: tuple[int, int]) -> Callable[[Version], bool]:
        dev, die = at

        def intact(version: Version) -> bool:
            where = At(die, version.place, version.turned)
            pages = self._pages(dev, where, version.super_page)
            return all(self.old.stores[dev].intact(page) for page in pages)

        return intact

    def _on_log(self, log: np.ndarray) -> None:
        dies = self.system.geometry.dies
        for entry in entries(log):
            dev, die, place = entry.dev, entry.die % dies, entry.ppn
            store = self.old.stores[dev]
            if entry.what == LOG_READ_OUT and self._looking:
                planes = range(self.path.scanned_planes)
                spares = [store.spare(self.old.page(At(die, place, 0), plane)) for plane in planes]
                self.scans[dev, die].saw(place, spares)
            elif entry.what == LOG_PAD:
                for page in self._pages(dev, At(die, place, entry.old)):
                    store.spoil(page)

    def _turn(self, states: Mapping[tuple[int, int], DieState]) -> None:
        """Set the plane roles of each block in the new system. They are read from complete data of
        the block; without such data, they follow from its number of erases.
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
        """Build the controller's tables from the state of each die, and replace the payload of the
        path by one that uses these tables."""
        arrays, geometry = self.system.arrays, self.system.geometry
        valid = arrays.valid.reshape(-1, geometry.all_blocks)[:, geometry.blocks :]
        block = arrays.block["dirty"].reshape(-1, geometry.all_blocks)
        block[:, geometry.blocks :] = 1  # a blank block is not known to be erased
        path = self.path
        path.homes = self._homes(states)
        path.drives = self.system
        new = Reservoir(
            self.system, path.stripes, path.homes, path.compute, path.guarded, self.old.stores
        )
        new.step, new.gradient = self.old.step, self.old.gradient
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
        the map before the cut unless stripes moved between dies.
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


def _same_cells(path: OnDie, dead: System) -> System:
    """Return a new system with the clock, the totals and the flash cells of ``dead``; registers and
    tables are empty."""
    old = dead.arrays
    system = path.system(True, len(old.line) if int(old.reg["line_on"][0]) else 0)
    new = system.arrays
    new.reg["now"] = old.reg["now"]
    new.cfg["seed"] = old.cfg["seed"]
    for name in ("erases", "reads"):  # state of the cells
        new.block[name] = old.block[name]
    for name in ("quality", "seen", "lost", "kept", "worn", "count", "use", "phase"):
        getattr(new, name)[...] = getattr(old, name)
    new.phase["rows"] = new.phase["done"]
    new.fifo["size"] = old.fifo["size"]
    for side in ("size_in", "size_out"):
        new.bus[side] = old.bus[side]
    if int(old.reg["line_on"][0]):
        new.line[:] = old.line
        new.reg["lines"], new.reg["line_drop"] = old.reg["lines"], old.reg["line_drop"]
    system.planned[:] = dead.planned
    return system
