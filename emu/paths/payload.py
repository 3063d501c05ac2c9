"""Payload: the bytes that a plan moves, following the engine's log, page by page.

Owns the memories that stored pages are read into (host DRAM, ISP DRAM, die registers). Does not own
the order of things: the log of events is obeyed entry by entry.
Source: this project's trace contract: weights flow through the emulated pages and nowhere else.
Memory is filled with NaN bytes as soon as its pages are programmed, so a value that was not read
back cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ondie.emu import events, rows
from ondie.emu.backend import inject, shield, timing
from ondie.emu.backend.store import PageStore, Spare
from ondie.emu.errors import SimulationError
from ondie.emu.frontend.cached_bytes import CachedBytes
from ondie.emu.isp import comparator
from ondie.emu.isp.layout import F32, Regions, Stripes
from ondie.emu.paths.guards import Guarded
from ondie.emu.paths.parity import Beside, Made, records
from ondie.emu.system import System
from ondie.kernels.formats import BLOCK

POISON = 0xFF
"""Byte of memory that holds nothing: two of them are a NaN in 16 bits, four one in FP32."""


def poisoned(n: int, dtype: np.dtype) -> np.ndarray:
    """``n`` values of memory that hold nothing."""
    return np.full(n * dtype.itemsize, POISON, np.uint8).view(dtype)


def poison(values: np.ndarray) -> None:
    """Nothing may use ``values``, contiguous, from now on."""
    values.view(np.uint8)[:] = POISON


class Conventional:
    """Vectors in the conventional namespace and the memory (host's or ISP's) they are read into.

    ``compute(start, stop, vectors, gradient)`` is called when a compute row ends, with what that
    memory holds by slot (formats.py); it leaves the new values there, under "out" the copy of the
    weights that a format has for the model. With ``gradient_arrives`` the accelerator puts the
    gradient into memory, otherwise DMA rows do. ``shown``: type of the weights that go up.
    """

    def __init__(
        self,
        system: System,
        regions: tuple[Regions, ...],
        compute: Callable[[int, int, dict[str, np.ndarray], np.ndarray], None],
        gradient_arrives: bool = False,
        shown: np.dtype = F32,
    ) -> None:
        self.system = system
        self.regions = regions
        self.gradient_arrives = gradient_arrives
        self.compute = compute
        self.gradient: np.ndarray | None = None
        """The current step's gradient, [n_params] as stored, as the accelerator delivers it."""
        self.delivered: np.ndarray | None = None
        """Weights that arrived in the host's memory by DMA, [n_params]."""
        self.outgoing = poisoned(sum(r.shard.size for r in regions), shown)
        """New weights on their way up: buffers that programs do not wait for, nor free."""
        page = system.geometry.page_bytes
        self.stores = tuple(PageStore(page) for _ in regions)
        self.cached = tuple(CachedBytes() for _ in regions)
        self.memory = tuple(np.full((r.total_pages, page), POISON, np.uint8) for r in regions)
        system.on_log = self.on_log

    def vector(self, device: int, name: str) -> np.ndarray:
        """A shard's vector in memory, [shard size] of its type, a view. (Not for codes.)"""
        r = self.regions[device]
        pages = self.memory[device][r.pages(name, r.shard.start, r.shard.stop)]
        return pages.reshape(-1).view(r.vector(name).dtype)[: r.shard.size]

    def arrays(self, device: int, name: str, start: int, stop: int) -> dict[str, np.ndarray]:
        """Parameters [start, stop) of a vector in memory by slot: views, or of codes copies, whose
        ``start`` begins a page."""
        r = self.regions[device]
        if r.vector(name).coded:
            pages = self.memory[device][r.pages(name, start, stop)]
            return r.vector(name).unpack(pages, stop - start)
        return {name: self.vector(device, name)[start - r.shard.start : stop - r.shard.start]}

    def store_initial(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Put values by slot, of all parameters, into the flash pages that were filled."""
        for dev, r in enumerate(self.regions):
            a, b = r.shard.start, r.shard.stop
            for v in r.vectors:
                if v.name == "g" or a == b:
                    continue
                pages = r.pages(v.name, a, b)
                parts = {v.name: vectors[v.name][a:b]}
                if v.coded:
                    scales = f"{v.name}_scale"
                    parts[scales] = vectors[scales][a // BLOCK : -(-b // BLOCK)]
                v.pack(self.memory[dev][pages], parts)
                for lpn in range(pages.start, pages.stop):
                    self._program(dev, lpn, self.ppn(dev, lpn))

    def ppn(self, device: int, lpn: int) -> int:
        """Where a logical page is now; -1 = unmapped."""
        return int(self.system.arrays.l2p[device, lpn]) - 1

    def stored(self, name: str) -> np.ndarray:
        """A slot as the flash pages hold it now, or the data cache where it is newer, of all
        parameters."""
        vector = name.removesuffix("_scale")
        parts = []
        for dev, r in enumerate(self.regions):
            if r.shard.size:
                pages = r.pages(vector, r.shard.start, r.shard.stop)
                held = [self._newest(dev, lpn) for lpn in range(pages.start, pages.stop)]
                parts.append(r.vector(vector).unpack(np.stack(held), r.shard.size)[name])
        return np.concatenate(parts)

    def _newest(self, dev: int, lpn: int) -> np.ndarray:
        cached = self.cached[dev].pages.get(lpn)
        return self.stores[dev].read(self.ppn(dev, lpn)) if cached is None else cached

    def offer_gradient(self, gradient: np.ndarray) -> None:
        """The accelerator delivers a step's gradient."""
        self.gradient = gradient
        for dev, r in enumerate(self.regions):
            if self.gradient_arrives:
                self.vector(dev, "g")[:] = gradient[r.shard.start : r.shard.stop]

    def _program(self, dev: int, lpn: int, ppn: int) -> None:
        self.stores[dev].write(ppn, lpn, self.memory[dev][lpn])
        self.memory[dev][lpn] = POISON

    def on_log(self, log: np.ndarray) -> None:
        """Obey the engine's log."""
        g = self.system.geometry
        for entry in log:
            dev, lpn, ppn, n = int(entry.dev), int(entry.lpn), int(entry.ppn), int(entry.n)
            store, cached = self.stores[dev], self.cached[dev]
            if store.follow(entry, g) or cached.follow(entry, store):
                continue
            match int(entry.what):
                case events.LOG_STORE:
                    cached.pages[lpn] = self.memory[dev][lpn].copy()
                    self.memory[dev][lpn] = POISON
                case events.LOG_SERVE:
                    self.memory[dev][lpn] = cached.pages[lpn]
                case events.LOG_READ:
                    for i in range(n):
                        self.memory[dev][lpn + i] = self.stores[dev].read(ppn + i)
                case events.LOG_PROGRAM:
                    for i in range(n):
                        self._program(dev, lpn + i, ppn + i)
                case events.LOG_ZERO:
                    self.memory[dev][lpn : lpn + n] = 0
                case events.LOG_BAD:
                    wrong = inject.logged(entry, self.system.arrays.code[0], g.page_bytes)
                    if int(entry.row) < 0:  # collection moved it as it came out
                        self.stores[dev].damage(ppn, wrong)
                    else:
                        self.memory[dev][lpn] ^= wrong
                case events.LOG_ROW:
                    self._row(dev, int(entry.n), lpn, int(entry.old))
                case what:
                    raise SimulationError(f"log entry {what} has no meaning for this path")

    def _row(self, dev: int, resource: int, first: int, count: int) -> None:
        r = self.regions[dev]
        if resource == rows.DMA_DOWN:
            assert self.gradient is not None
            at = first - r.shard.start
            self.vector(dev, "g")[at : at + count] = self.gradient[first : first + count]
        elif resource == rows.DMA_UP:
            if self.delivered is None:
                self.delivered = poisoned(len(self.outgoing), self.outgoing.dtype)
            self.delivered[first : first + count] = self.outgoing[first : first + count]
            poison(self.outgoing[first : first + count])
        elif resource == rows.HOST_CPU:
            for d, other in enumerate(self.regions):  # a host update may span the devices' shards
                a, b = max(first, other.shard.start), min(first + count, other.shard.stop)
                if a < b:
                    self._compute(d, a, b)
        else:
            new = self._compute(dev, first, first + count)
            at = first - r.shard.start
            self.outgoing[first : first + count] = new
            poison(self.vector(dev, "g")[at : at + count])  # used: its buffer is free

    def _compute(self, dev: int, start: int, stop: int) -> np.ndarray:
        """Update parameters of a shard. Returns the weights that the model computes with."""
        r = self.regions[dev]
        vectors: dict[str, np.ndarray] = {}
        for v in r.vectors:
            vectors |= self.arrays(dev, v.name, start, stop)
        self.compute(start, stop, vectors, vectors.pop("g"))
        for v in r.vectors:
            if v.coded:
                v.pack(self.memory[dev][r.pages(v.name, start, stop)], vectors)
        return vectors.get("out", vectors["w"])


class Reservoir:
    """Vectors in super-pages, the registers of each die, and the pages behind them."""

    def __init__(
        self,
        system: System,
        stripes: tuple[Stripes, ...],
        compute: Callable[[int, int, dict[str, np.ndarray], np.ndarray], None],
        guarded: tuple[Guarded, ...],
    ) -> None:
        self.system = system
        self.stripes = stripes
        self.compute = compute
        self.gradient: np.ndarray | None = None
        n = sum(s.shard.size for s in stripes)
        self.dtype = stripes[0].dtype
        self.staged = poisoned(n, stripes[0].gradient_dtype)
        """Gradients in the drives' DRAM, between their arrival and their VPP."""
        self.sent = poisoned(n, self.dtype)
        """Weights that were read out to the host, [n_params], as the array gave them."""
        self.saved: dict[tuple[int, int], np.ndarray] | None = None
        """Super-pages of a checkpoint under way, by (device, number), as they arrive at the host:
        uint8[planes, page_bytes]."""
        self.again: dict[int, tuple[int, int]] = {}
        """Plan rows that read a stripe for its parity's sake: (device, super-page)."""
        page = system.geometry.page_bytes
        self.beside = tuple(
            Beside(g, s.planes, page) for g, s in zip(guarded, stripes, strict=True)
        )
        self.stores = tuple(PageStore(page) for _ in stripes)
        cfg = system.cfg
        self.code = shield.code(cfg)
        self.comparator = cfg.pe.protection == "nan_comparator"
        self.round_trip = cfg.pe.protection == "controller_ecc"
        self.met = False
        """Has a value come out of the dies' registers that the comparator, were there one, would
        have changed?"""
        self.registers: dict[int, np.ndarray] = {}
        """Data registers by die: uint8[planes, page_bytes] between BPR and BPP."""
        self.gradients: dict[int, dict[int, np.ndarray]] = {}
        """Gradient registers by die: super-page -> [params of a stripe]."""
        self.step = 0
        """The update whose results are programmed, from 1; 0: what was there before."""
        self.kept = 0
        """Super-pages that held its result when it began, or was resumed."""
        self.sequences = np.zeros(system.devices * system.geometry.dies, np.int64)
        """Super-pages that each die has programmed, as its out-of-band data number them."""
        system.on_log = self.on_log

    def offer_gradient(self, gradient: np.ndarray) -> None:
        """The accelerator delivers the next step's gradient."""
        self.gradient = gradient
        self.step += 1
        self.kept = 0

    def program(self, device: int, super_page: int, place: int, planes: np.ndarray) -> None:
        """Program ``planes``, uint8[planes, page_bytes], with the out-of-band data that the
        controller makes (the checksum of a page its PE, which has seen it)."""
        self._put(device, place, Made(self.spares(device, super_page), planes))

    def _put(self, device: int, place: int, made: Made) -> None:
        super_page = made.spares[0].lpn
        for i, (spare, data) in enumerate(zip(made.spares, made.planes, strict=True)):
            ppn = self.page(device, super_page, place, spare.slot)
            members = None if made.members is None else made.members[i]
            self.stores[device].program(ppn, spare, data, members=members)
        self.sequences[self.die(device, super_page)] += 1

    def spares(self, device: int, super_page: int) -> list[Spare]:
        """Out-of-band data of the super-page's next program, plane by plane. (From BPR to BPP a die
        programs nothing else, so that they hold for what leaves its registers in between.)"""
        number = self._number(device, super_page)
        planes = range(self.stripes[device].planes)
        return [Spare(super_page, number, self.step, plane) for plane in planes]

    def _number(self, device: int, super_page: int) -> int:
        return int(self.sequences[self.die(device, super_page)]) + 1

    def coming(self, device: int, super_page: int) -> Made:
        """What the next program of a super-page puts there: registers, a parity, or a record."""
        if super_page < self.stripes[device].count:
            planes = self.registers[self.die(device, super_page)]
            return Made(self.spares(device, super_page), planes)
        number = self._number(device, super_page)
        return self.beside[device].made(super_page, number, self.step)

    def _join(self, device: int, super_page: int, planes: np.ndarray) -> None:
        """The controller has what the registers hold, and the out-of-band data to come."""
        spares = self.spares(device, super_page)
        self.beside[device].join(super_page, planes, records(spares, planes))

    def rejoin(self, device: int, super_page: int) -> None:
        """The controller has read a stripe that was programmed before, for its parity's sake."""
        place, store = self.place(device, super_page), self.stores[device]
        pages = [
            self.page(device, super_page, place, p) for p in range(self.stripes[device].planes)
        ]
        planes = np.stack([store.read(ppn) for ppn in pages])
        held = np.stack([store.record(ppn) for ppn in pages])
        self.beside[device].join(super_page, planes, held)

    def rebuilt(self, device: int, super_page: int) -> tuple[np.ndarray, np.ndarray]:
        """A super-page's pages and out-of-band data from those of the others under its parity:
        uint8[planes, page_bytes], uint8[planes, SPARE_BYTES]."""
        beside, store = self.beside[device], self.stores[device]

        def pages(other: int) -> list[int]:
            place = self.place(device, other)
            return [self.page(device, other, place, p) for p in range(beside.planes)]

        def data(other: int) -> np.ndarray:
            return np.stack([store.read(ppn) for ppn in pages(other)])

        def spare(other: int) -> np.ndarray:
            of = store.record if other < beside.guarded.count else store.members
            return np.stack([of(ppn) for ppn in pages(other)])

        return beside.again(super_page, data), beside.again(super_page, spare)

    def die(self, device: int, super_page: int) -> int:
        """A super-page's die, among those of all devices."""
        dies = self.system.geometry.dies
        return device * dies + super_page % dies

    @property
    def delivered(self) -> np.ndarray:
        """Weights that were read out to the host, [n_params] as pages hold them."""
        values = self.sent.copy()
        self._compare(values)
        return values

    def _compare(self, values: np.ndarray) -> None:
        """What the comparator makes of values that leave a register."""
        if self.comparator:
            self.met = comparator.compare(values) > 0 or self.met
        else:
            self.met = bool(comparator.special(values).any()) or self.met

    def page(self, device: int, super_page: int, place: int, plane: int) -> int:
        """Physical page of a plane of a super-page at ``place`` of its die's reservoir."""
        g = self.system.geometry
        die = super_page % g.dies
        return die * g.die_pages + (g.blocks * g.pages + place) * g.planes + plane

    def place(self, device: int, super_page: int) -> int:
        """Where a super-page is now in its die's reservoir."""
        return int(self.system.arrays.rmap[device, super_page]) - 1

    def store_initial(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Put the vectors ([n_params] by name) into the super-pages that were filled."""
        for dev, s in enumerate(self.stripes):
            for sp in range(s.count):
                planes = np.zeros((s.planes, s.values), self.dtype)
                for group in range(s.groups):
                    a, b = s.span(sp, group)
                    for name in s.vectors:
                        planes[s.plane(name, group), : b - a] = vectors[name][a:b]
                self.program(dev, sp, self.place(dev, sp), planes.view(np.uint8))

    def stored(self, name: str) -> np.ndarray:
        """A vector as the flash pages hold it now, [n_params]."""
        out = poisoned(len(self.sent), self.dtype)
        for dev, s in enumerate(self.stripes):
            for sp in range(s.count):
                for group in range(s.groups):
                    a, b = s.span(sp, group)
                    ppn = self.page(dev, sp, self.place(dev, sp), s.plane(name, group))
                    if a < b:
                        out[a:b] = self.stores[dev].read(ppn).view(self.dtype)[: b - a]
        return out

    def on_log(self, log: np.ndarray) -> None:
        """Obey the engine's log."""
        g = self.system.geometry
        for entry in log:
            dev, sp, place, die = int(entry.dev), int(entry.lpn), int(entry.ppn), int(entry.die)
            s = self.stripes[dev]
            store = self.stores[dev]
            if store.follow(entry, g):
                continue
            match int(entry.what):
                case events.LOG_VPP:
                    first, _ = s.span(sp, 0)
                    _, last = s.span(sp, s.groups - 1)
                    self.gradients.setdefault(die, {})[sp] = self.staged[first:last].copy()
                    poison(self.staged[first:last])
                case events.LOG_KEEP:
                    self._keep(s, store, sp, place)
                case events.LOG_BPR:
                    pages = [store.read(self.page(dev, sp, place, p)) for p in range(s.planes)]
                    self.registers[die] = np.stack(pages)
                    if s.kept:
                        kept = [self.page(dev, sp, place, s.plane("g", i)) for i in range(s.groups)]
                        found = np.concatenate([store.read(ppn) for ppn in kept])
                        first, last = s.span(sp, 0)[0], s.span(sp, s.groups - 1)[1]
                        held = found.view(s.gradient_dtype)[: last - first]
                        self.gradients.setdefault(die, {})[sp] = held
                case events.LOG_ODC:
                    self._compute(dev, die, sp)
                case events.LOG_FETCH:
                    self._join(dev, sp, self.registers[die])
                case events.LOG_BPP:
                    self.program(dev, sp, place, self.registers.pop(die))
                case events.LOG_MADE:
                    self._put(dev, place, self.coming(dev, sp))
                    self.beside[dev].done(sp)
                case events.LOG_READ if int(entry.row) in self.again:
                    self.rejoin(*self.again.pop(int(entry.row)))
                case events.LOG_READ:
                    for group in range(s.groups):
                        a, b = s.span(sp, group)
                        ppn = self.page(dev, sp, place, s.plane("w", group))
                        self.sent[a:b] = store.read(ppn).view(self.dtype)[: b - a]
                    if self.saved is not None:
                        whole = [self.page(dev, sp, place, p) for p in range(s.planes)]
                        self.saved[dev, sp] = np.stack([store.read(ppn) for ppn in whole])
                case events.LOG_RAW:
                    self._flip(s, entry)
                case events.LOG_ROW:
                    assert self.gradient is not None
                    stop = min(sp + int(entry.old), s.shard.stop)
                    self.staged[sp:stop] = self.gradient[sp:stop]
                case what:
                    raise SimulationError(f"log entry {what} has no meaning for this path")

    def _keep(self, s: Stripes, store: PageStore, sp: int, place: int) -> None:
        """A gradient is programmed into the planes that its super-page has left empty."""
        for group in range(s.groups):
            a, b = s.span(sp, group)
            data = np.zeros(s.values, s.gradient_dtype)
            data[: b - a] = self.staged[a:b]
            poison(self.staged[a:b])
            ppn = self.page(s.shard.device, sp, place, s.plane("g", group))
            store.write(ppn, sp, data.view(np.uint8))

    def _flip(self, s: Stripes, entry: np.record) -> None:
        """A page has come out of the array with wrong bits, into its register or to the host."""
        page = int(entry.n)
        wrong = shield.wrong_bits(
            self.system.geometry.page_bytes, float(entry.rate), int(entry.key), *self.code,
            self.system.cfg.errors.exposure,
        )  # fmt: skip
        if int(entry.old) == timing.BPR:
            self.registers[int(entry.die)][page] ^= wrong
        elif self.saved is not None:
            self.saved[int(entry.dev), int(entry.lpn)][page] ^= wrong
        else:
            a, b = s.span(int(entry.lpn), page)
            data = self.sent[a:b].view(np.uint8)
            data ^= wrong[: len(data)]

    def _compute(self, dev: int, die: int, sp: int) -> None:
        s = self.stripes[dev]
        gradient = self.gradients[die].pop(sp)
        for group in range(s.groups):
            a, b = s.span(sp, group)
            if a == b:
                continue
            vectors = {
                name: self.registers[die][s.plane(name, group)].view(self.dtype)[: b - a]
                for name in s.vectors
            }
            for values in vectors.values():
                self._compare(values)
            at = a - s.span(sp, 0)[0]
            self.compute(a, b, vectors, gradient[at : at + b - a])
        if self.round_trip:
            self._join(dev, sp, self.registers[die])

    def unpacked(self, pages: Mapping[tuple[int, int], np.ndarray]) -> dict[str, np.ndarray]:
        """Vectors by name, [n_params], from super-pages by (device, number)."""
        out = {name: poisoned(len(self.sent), self.dtype) for name in self.stripes[0].vectors}
        for (dev, sp), planes in pages.items():
            s = self.stripes[dev]
            for group in range(s.groups):
                a, b = s.span(sp, group)
                for name in s.vectors:
                    held = planes[s.plane(name, group)].view(self.dtype)
                    out[name][a:b] = held[: b - a]
        return out
