"""Power cuts: a system whose power goes at any event, and the one that comes up from its flash.

Owns what is lost with the power, what stays (the cells, the host and its accelerator), and the
order of recovery: out-of-band data, data in doubt, padding, map. Does not own the pages' remains
(backend/torn.py), the conclusions (backend/recovery.py) or plan rows (paths/resume.py).
Source: this project's contract of recovery: what is read is only what the flash holds; the books of
the interrupted system balance too, and what it had begun in vain is said apart.

All drives of a system lose their power at the same instant, and have it back at once. Gone are
registers, the drives' DRAM, map, pointers. The host keeps the step's gradient. Not modelled: the
boot of the firmware, the host's time to notice, raw bit errors in what recovery reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ondie.emu import rows, stats
from ondie.emu import stations as s
from ondie.emu.backend import timing, torn
from ondie.emu.backend.recovery import DieScan, DieState, Version, check, conclude
from ondie.emu.events import LOG_PAD, LOG_READ
from ondie.emu.ledger import Imbalance, Totals
from ondie.emu.paths import resume
from ondie.emu.paths.base import Path
from ondie.emu.paths.on_die import OnDie
from ondie.emu.paths.payload import Reservoir
from ondie.emu.system import PLANNED, System
from ondie.emu.units import InputError


@dataclass(frozen=True)
class Cut:
    """What was under way when the power went, and was in vain."""

    at_ps: int
    torn_programs: int
    torn_erases: int
    again: int
    """Cuts of the power while a system came up from this one."""
    training: tuple[tuple[int, int], ...]
    """(phase, end in ps) of what the accelerator has yet to do: it goes on."""
    lost: Mapping[str, int]
    """Bytes and pages that had been begun and did not end, by counter and resource."""


@dataclass(frozen=True)
class Recovery:
    """What it took to come up again, and from where the step goes on."""

    cut: Cut
    seconds: float
    scanned: int
    """Super-pages whose out-of-band data were read."""
    checked: int
    """Super-pages whose data were read, too."""
    refused: int
    """Places that hold something, but nothing whole: torn by this cut or an earlier one, or of a
    block that was half erased."""
    padded: int
    kept: int
    """Super-pages that hold the step under way already: they are not updated again."""
    resent_bytes: int
    """Gradients that had been sent, and are sent again."""
    cursors: tuple[np.ndarray, ...] = field(repr=False)
    """First super-page of each die to be updated, counted on the die: int64[dies] by device."""


def check_cut(path: Path, after: int | None) -> None:
    """Raise InputError where a cut of the power after so many events cannot be simulated."""
    if after is None:
        return
    if not isinstance(path, OnDie):
        raise InputError(
            f"{path.name}: a power cut is recovered from by the path {OnDie.name!r} alone"
        )
    if path.payload is None:
        raise InputError(
            f"{path.trace.name}: its pages hold no bytes to recover from; a recorded trace is right"
        )
    if after < 1:
        raise InputError(f"power cut after {after} events: at least 1 is right")


def cut(path: Path, system: System, seed: int, before: Cut | None) -> Cut:
    """The power of a system is gone, by which pages are torn on flash, by seed; ``before``: the cut
    from which it was coming up."""
    assert isinstance(path, OnDie) and isinstance(path.payload, Reservoir)
    rng = np.random.default_rng((seed, system.now))
    programs, erases = _tear(system, path.payload, rng)
    _stop_clocks(system)
    training, lost = _training(system), _settle(system)
    if before is None:
        return Cut(system.now, programs, erases, 0, training, lost)
    lost = {name: n + before.lost[name] for name, n in lost.items()}
    return Cut(
        before.at_ps,
        before.torn_programs + programs,
        before.torn_erases + erases,
        before.again + 1,
        before.training,
        lost,
    )


def rest(path: Path, step: int, found: Recovery, system: System) -> Iterator[np.ndarray]:
    """Plan rows of the rest of a step, from where recovery has found it."""
    assert isinstance(path, OnDie)
    return resume.plan(path, step, found.cut.training, found.cursors, system)


def sent(system: System) -> int:
    """Bytes of gradients that the host has sent so far."""
    return int(system.arrays.count[:, stats.DOWN_BYTES].sum())


def with_lost(totals: Totals, cuts: Sequence[Cut]) -> Totals:
    """A run's totals and what it had begun in vain: what its energy was spent on."""
    counters, bytes_by = dict(totals.counters), dict(totals.bytes_by)
    for x in cuts:
        for name, n in x.lost.items():
            where = counters if name in counters else bytes_by
            where[name] += n
    return replace(totals, counters=counters, bytes_by=bytes_by)


def _tear(system: System, payload: Reservoir, rng: np.random.Generator) -> tuple[int, int]:
    """What arrays were at when the power went: (programs, erases)."""
    a, g = system.arrays, system.geometry
    programs = erases = 0
    for at, die in enumerate(a.die):
        for t in (int(die.arr), int(die.paused)):
            if t < 0:
                continue
            x = a.txn[t]
            op, dev = int(x.op), int(x.dev)
            began = int(x.time) - int(a.op[op].array) - int(x.array) - int(die.extra)
            if began > system.now and t != int(die.paused):
                continue  # its command is still on the channel
            if op == timing.ERASE:
                torn.erase(payload.stores[dev], int(x.ppn), g.block_pages, rng)
                erases += 1
            elif op == timing.BPP:
                kind = a.row[int(x.row)].kind
                place, of_device = int(x.ppn), at % g.dies
                if kind == timing.PAD:
                    for plane in range(payload.stripes[dev].planes):
                        page = payload.page(dev, of_device, place, plane)
                        payload.stores[dev].spoil(page, bool(rng.integers(2)))
                else:
                    sp = int(x.lpn)
                    data = payload.registers[at]
                    for spare, plane in zip(payload.spares(dev, sp), data, strict=True):
                        page = payload.page(dev, sp, place, spare.slot)
                        torn.program(payload.stores[dev], page, spare, plane, rng)
                programs += 1
    return programs, erases


def _training(system: System) -> tuple[tuple[int, int], ...]:
    """Rows of the accelerator that are not done, and when they will be."""
    end = int(system.arrays.fifo["free_at"][s.ACCELERATOR])
    left = []
    for row in _undone(system):
        if int(row["resource"]) == rows.ACCELERATOR:
            if int(row["state"]) != rows.STARTED:
                end = max(end, system.now) + int(row["array_ps"])
            left.append((int(row["phase"]), end))
    return tuple(left)


def _stop_clocks(system: System) -> None:
    """Work that had been booked for the time after the cut is not done."""
    a, now = system.arrays, system.now
    reg = a.reg
    for at, die in enumerate(a.die):
        t = int(die.arr)
        if t >= 0:
            x = a.txn[t]
            _take_back(a.use, int(x.phase), at, int(x.time) - now)
    for b, bus in enumerate(a.bus):
        if int(bus.until) > now:
            phase = int(a.txn[int(bus.txn)].phase)
            _take_back(a.use, phase, int(reg["bus0"][0]) + b, int(bus.until) - now)
    for f, station in enumerate(a.fifo):
        if int(station.head) >= 0:
            phase = int(a.txn[int(station.head)].phase)
            _take_back(a.use, phase, int(reg["fifo0"][0]) + f, int(station.free_at) - now)


def _take_back(use: np.ndarray, phase: int, leaf: int, ps: int) -> None:
    use[phase, leaf] -= min(max(ps, 0), int(use[phase, leaf]))


def _undone(system: System) -> np.ndarray:
    """Rows that were handed over and are not done."""
    ring = system.arrays.row.view(np.ndarray)
    ids = np.arange(system.rows_done, system.next_row) & (len(ring) - 1)
    found = ring[ids]
    return np.asarray(found[found["state"] != rows.DONE])


AT_ITS_END = {
    "vpp_pages": stats.VPP_PAGES,
    "bpr_pages": stats.BPR_PAGES,
    "bpp_pages": stats.BPP_PAGES,
    "odc_ops": stats.ODC_OPS,
}
"""Counted when an operation is done."""
AT_ITS_START = {
    "link_down_bytes": stats.DOWN_BYTES,
    "link_up_bytes": stats.RESERVOIR_UP_BYTES,
    "reservoir_read_pages": stats.RESERVOIR_READ_PAGES,
}


def _settle(system: System) -> dict[str, int]:
    """Balance the books of a system that has stopped in the middle: what was planned and is not
    done is no longer planned, what was begun is taken out of the counters. Returns that. Raises
    Imbalance where more is missing, or less, than what was under way."""
    a, g = system.arrays, system.geometry
    undone = _undone(system)
    begun = undone[undone["state"] == rows.STARTED]
    done = system.planned - system.asked(undone)
    under_way = system.asked(begun)
    lost: dict[str, int] = {}

    def hold(what: str, left: int, right: int) -> None:
        if left != right:
            raise Imbalance(f"at the cut, {what}: {left} against {right}")

    def settle(what: str, value: int, settled: int, most: int) -> int:
        """What of ``value`` was in vain: up to ``most``, of what was under way."""
        if not 0 <= value - settled <= most:
            raise Imbalance(f"at the cut, {what}: {value} against {settled} + at most {most}")
        lost[what] = lost.get(what, 0) + value - settled
        return settled

    for dev in range(system.devices):
        count = a.count[dev]
        mine = begun[begun["device"] == dev]
        for name, counter in AT_ITS_END.items():
            hold(name, int(count[counter]), int(done[dev, PLANNED.index(name)]))
        for name, counter in AT_ITS_START.items():
            i = PLANNED.index(name)
            value, more = int(count[counter]), int(under_way[dev, i])
            hold(name, value, int(done[dev, i]) + more)
            count[counter] = settle(stats.COUNTERS[counter], value, value - more, more)
        loads = int(mine["bytes_in"][mine["kind"] == timing.VPP].sum())
        scans = int(mine["tag"][mine["kind"] == timing.SCAN].sum())
        for counter, more in ((stats.LOAD_BYTES, loads), (stats.SCAN_BYTES, scans)):
            value = int(count[counter])
            count[counter] = settle(stats.COUNTERS[counter], value, value - more, more)
        first = s.HOST_STATIONS + dev * (s.ECC + g.channels)
        for name, station, counter, extra in (
            ("link down", s.DOWN, stats.DOWN_BYTES, stats.LINK_EXTRA_DOWN_BYTES),
            ("link up", s.UP, stats.RESERVOIR_UP_BYTES, stats.LINK_EXTRA_UP_BYTES),
        ):
            more = int(under_way[dev, PLANNED.index("_".join((*name.split(), "bytes")))])
            beside = int(count[extra])
            value = int(a.fifo["size"][first + station]) - beside
            a.fifo["size"][first + station] = beside + settle(
                name, value, int(count[counter]), more
            )
        out = int(count[stats.RESERVOIR_UP_BYTES] + count[stats.SCAN_BYTES])
        up = int(under_way[dev, PLANNED.index("link_up_bytes")])
        down = int(under_way[dev, PLANNED.index("link_down_bytes")])
        # Through DRAM: what goes to the host twice (stored, then forwarded), the rest once.
        crossed = int(
            count[stats.DOWN_BYTES] + count[stats.LOAD_BYTES] + count[stats.RESERVOIR_UP_BYTES]
        )
        a.fifo["size"][first + s.DRAM] = settle(
            "DRAM",
            int(a.fifo["size"][first + s.DRAM]),
            crossed + out,
            down + loads + 2 * up + scans,
        )
        buses = slice(dev * g.channels, (dev + 1) * g.channels)
        for name, side, settled, more in (
            ("channels in", "size_in", int(count[stats.LOAD_BYTES]), loads),
            ("channels out", "size_out", out, up + scans),
        ):
            value = int(a.bus[side][buses].sum())
            a.bus[side][buses] = 0  # their sum is what is asked for
            a.bus[side][dev * g.channels] = settle(name, value, settled, more)
    flying = len(a.txn) - int(a.reg["txns_free"][0])
    extra = flying - int(begun["pending"].sum())
    if not 0 <= extra <= system.devices * g.dies:  # the erase before a die's next program
        raise Imbalance(f"at the cut, transactions that no row knows: {extra}")
    system.planned[:] = done
    return lost


class Revival:
    """A system that comes up from the flash of one whose power is gone."""

    def __init__(self, path: Path, dead: System, happened: Cut) -> None:
        assert isinstance(path, OnDie) and isinstance(path.payload, Reservoir)
        self.path, self.old, self.happened = path, path.payload, happened
        self.system = _same_cells(path, dead)
        g = self.system.geometry
        self.scans = {
            (dev, die): DieScan(dev * g.dies + die, g.reservoir_blocks, g.pages)
            for dev in range(self.system.devices)
            for die in range(min(g.dies, path.stripes[dev].count))
        }
        self.scanned = self.checked = self.padded = 0
        self.cursors: tuple[np.ndarray, ...] = ()
        self._looking = False
        self.system.on_log = self._on_log

    def run(self) -> None:
        """Read, look, pad, and set up the map. Raises system.PowerCut, Unrecoverable."""
        g, path = self.system.geometry, self.path
        heads = range(0, g.reservoir_blocks * g.pages, g.pages)
        self._scan([(dev, die, p) for p in heads for dev, die in self.scans])
        self._scan(
            [
                (dev, die, p)
                for page in range(1, g.pages)
                for (dev, die), scan in self.scans.items()
                for p in (head + page for head in heads)
                if p - page in scan.visible
            ]
        )
        doubt = dict(self.scans)
        while doubt:
            newest = {at: scan.doubtful for at, scan in doubt.items()}
            places = [(*at, v.place) for at, v in newest.items() if v is not None]
            if places:
                self.checked += len(places)
                self.system.run([resume.scan(path, self.system.next_row, places, True)])
            doubt = {at: scan for at, scan in doubt.items() if not check(scan, self._intact(at))}
        states = {
            (dev, die): conclude(scan, self._expected(dev, die), self.old.step)
            for (dev, die), scan in self.scans.items()
        }
        pads = [(*at, state.pad) for at, state in states.items() if state.pad is not None]
        if pads:
            self.system.run([resume.pads(path, self.system.next_row, pads)])
        self.padded = len(pads)
        self._map(states)

    def found(self, sent_before: int) -> Recovery:
        """The report; ``sent_before``: :func:`sent` when the step, or the rest of one, began."""
        g, path, happened = self.system.geometry, self.path, self.happened
        vain = sent(self.system) + happened.lost["down_bytes"] - sent_before
        stripe = path.stripes[0].groups * g.page_bytes
        kept = sum(int(c.sum()) for c in self.cursors)
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
        )

    def _scan(self, places: list[resume.Place]) -> None:
        self._looking = True
        self.scanned += len(places)
        self.system.run([resume.scan(self.path, self.system.next_row, places, False)])
        self._looking = False

    def _expected(self, dev: int, die: int) -> range:
        return range(die, self.path.stripes[dev].count, self.system.geometry.dies)

    def _pages(self, dev: int, die: int, place: int) -> list[int]:
        planes = range(self.path.stripes[dev].planes)
        return [self.old.page(dev, die, place, plane) for plane in planes]

    def _intact(self, at: tuple[int, int]) -> Callable[[Version], bool]:
        def intact(version: Version) -> bool:
            store = self.old.stores[at[0]]
            return all(store.intact(page) for page in self._pages(*at, version.place))

        return intact

    def _on_log(self, log: np.ndarray) -> None:
        dies = self.system.geometry.dies
        for entry in log:
            dev, die, place = int(entry.dev), int(entry.die) % dies, int(entry.ppn)
            store = self.old.stores[dev]
            if int(entry.what) == LOG_READ and self._looking:
                spares = [store.spare(page) for page in self._pages(dev, die, place)]
                self.scans[dev, die].saw(place, spares)
            elif int(entry.what) == LOG_PAD:
                for page in self._pages(dev, die, place):
                    store.spoil(page)

    def _map(self, states: Mapping[tuple[int, int], DieState]) -> None:
        """The controller's tables; and the payload that follows the log from now on."""
        a, g = self.system.arrays, self.system.geometry
        valid = a.valid.reshape(-1, g.all_blocks)[:, g.blocks :]
        block = a.block["dirty"].reshape(-1, g.all_blocks)
        block[:, g.blocks :] = 1  # blank is not known to be erased
        new = Reservoir(self.system, self.path.stripes, self.path.compute)
        new.stores, new.step, new.gradient = self.old.stores, self.old.step, self.old.gradient
        for (dev, die), state in states.items():
            at = dev * g.dies + die
            a.pool["r_next"][at] = state.next_place
            new.sequences[at] = state.sequence
            for sp, place in state.places.items():
                a.rmap[dev, sp] = place + 1
                valid[at, place // g.pages] += 1
            a.dev["r_mapped"][dev] += len(state.places)
        self.cursors = tuple(np.zeros(g.dies, np.int64) for _ in self.path.stripes)
        for (dev, die), state in states.items():
            self.cursors[dev][die] = state.cursor
        new.kept = sum(int(c.sum()) for c in self.cursors)
        self.path.payload = new


def _same_cells(path: OnDie, dead: System) -> System:
    """A new system with the clock, the books and the cells of another one, and nothing else."""
    old = dead.arrays
    system = path.system(True, len(old.line) if int(old.reg["line_on"][0]) else 0)
    new = system.arrays
    new.reg["now"] = old.reg["now"]
    new.cfg["seed"] = old.cfg["seed"]
    for name in ("erases", "reads"):  # the cells' own
        new.block[name] = old.block[name]
    for name in ("quality", "seen", "lost", "kept", "count", "use", "phase"):
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
