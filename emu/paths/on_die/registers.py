"""Payload of the reservoir: contents of die registers and of pages, following the engine's log.

Owns the contents of the registers, the stripe held by each super-page, out-of-band data, and
super-pages in transfer between dies. Does not own the order of operations (the engine's log) or
the location of a page (mapping: ftl/reservoir.py).
Source: this project's trace contract: weights pass only through the emulated pages; OptimStore
(HPCA 2023) for VPP, BPR, ODC and BPP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ondie.emu.compute import nan_comparator
from ondie.emu.compute.xts import Xts
from ondie.emu.engine.core import payload_log
from ondie.emu.engine.core.counters import BARE_CORRECTED_BITS, BARE_WRONG_BITS
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.engine.run.system import System
from ondie.emu.nand import parity_records, pe_protection, timing
from ondie.emu.nand.codec import bare_decoder_of
from ondie.emu.nand.flash_pages import CheckBytes, FlashPages, UncodedCounts
from ondie.emu.nand.page_store import PageStore, Spare
from ondie.emu.nand.super_page import At, physical_page
from ondie.emu.nvme.moved_bytes import MovedBytes
from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die.parity import Made, ParityData, records
from ondie.emu.paths.on_die.protection import Guarded
from ondie.emu.paths.payload import moved_bytes, poison, poisoned

KEY = bytes(range(64))
"""Key of the cipher that encrypts pages inside the die. Bit errors decrypt to values that depend on
the key, but the number of incorrect values does not depend on the key."""


class Reservoir:
    """Payload of an on-die update: the vectors in super-pages, the registers of each die, and the
    flash pages.

    ``homes``: stripe map of each device at the start; this object updates a copy. ``compute``:
    function that updates parameters [start, stop) of arrays by slot name in place, given their
    gradient. ``guarded``: super-pages of each device that hold stripes, parities and commit
    records. ``stores``: flash pages, one store per device; None for new pages. ``moved``: object
    that applies the transfers of ``system`` to stored data; None creates it with ``stores``.
    """

    def __init__(
        self,
        system: System,
        stripes: tuple[Stripes, ...],
        homes: tuple[Homes, ...],
        compute: Callable[[int, int, dict[str, np.ndarray], np.ndarray], None],
        guarded: tuple[Guarded, ...],
        stores: Sequence[PageStore] | None = None,
        moved: MovedBytes | None = None,
    ) -> None:
        self.system = system
        self.stripes = stripes
        self.homes = tuple(of_device.copy() for of_device in homes)
        self.compute = compute
        self.gradient: np.ndarray | None = None
        count = sum(own.shard.size for own in stripes)
        self.dtype = stripes[0].dtype
        self.staged = poisoned(count, stripes[0].gradient_dtype)
        """Gradients in the drives' DRAM, [n_params], from their arrival until VPP loads them into
        a die."""
        self.sent = poisoned(count, self.dtype)
        """Weights that were read out to the host, [n_params], before the NaN comparator."""
        self.saved: dict[tuple[int, int], np.ndarray] | None = None
        """Super-pages of a running checkpoint that have arrived at the host, by (device, number):
        uint8[planes, page_bytes]. None if no checkpoint is running."""
        self.again: dict[int, tuple[int, int]] = {}
        """Plan rows that read an already programmed stripe, from which its parity is computed:
        row -> (device, super-page)."""
        page = system.geometry.flash_page_bytes
        self.beside = tuple(
            ParityData(guard, own.planes, page) for guard, own in zip(guarded, stripes, strict=True)
        )
        self.moved = moved_bytes(system, stores) if moved is None else moved
        self.stores = self.moved.stores
        """Pages on flash in mapping units, by device."""
        slots = system.geometry.slots
        self.flash = tuple(FlashPages(store, slots) for store in self.stores)
        """Pages on flash in units of flash pages, by device."""
        cfg = system.cfg
        self.check_bytes = tuple(CheckBytes(cfg, store) for store in self.stores)
        """Records of the pages with valid check bytes, by device."""
        self.records_erases = moved is not None
        """True if the out-of-band data of pages includes the erase count of their block. A drive
        needs this count after a power cut."""
        self.code = pe_protection.code(cfg)
        self.decoder = bare_decoder_of(cfg)
        """Decoder of the ECC code of these pages; None if the configuration does not decode
        them."""
        self.comparator = cfg.pe.protection == "nan_comparator"
        self.compared_for_host = nan_comparator.sees_host(cfg)
        self.cipher = Xts(KEY) if cfg.pe.cipher == "die" else None
        """Cipher of the stored pages, which spreads bit errors; None if pages are not encrypted.
        The pages in this object are plaintext."""
        self.round_trip = cfg.pe.protection == "controller_ecc"
        self.met = False
        """True if any value that left a die's registers was a NaN or an infinity."""
        self.registers: dict[int, np.ndarray] = {}
        """Data registers by die, uint8[planes, page_bytes]. A die has an entry from BPR to BPP."""
        self.gradients: dict[int, dict[int, np.ndarray]] = {}
        """Gradient registers by die and super-page: gradient of the stripe in the super-page,
        [params]."""
        self.lifted: dict[tuple[int, int], tuple[int, np.ndarray]] = {}
        """Super-pages in the drives' DRAM that are being moved to another die: (device, source
        super-page) -> (step that produced the contents, contents as uint8[planes, page_bytes])."""
        self.step = 0
        """Number of the update whose results are programmed, counted from 1; 0 for the initial
        contents."""
        self.kept = 0
        """Number of super-pages that already held results of the current update when it began or
        was resumed."""
        self.updated = np.zeros((system.devices, system.geometry.dies), np.int64)
        """Number of stripes of each die whose results of the current update have been programmed
        since it began or was resumed, int64[devices, dies]."""
        self.sequences = np.zeros(system.devices, np.int64)
        """Sequence number of the last super-page that each device programmed, int64[devices]."""
        self.given: dict[int, list[Spare]] = {}
        """Out-of-band data that the controller has already made for the contents of a die's
        registers, by die. The parity includes this data."""
        self.memory = [np.zeros((0, page), np.uint8) for _ in stripes]
        """Empty memory of each device, because plan rows do not access the conventional
        namespace."""
        self.moved.follow(self)

    def offer_gradient(self, gradient: np.ndarray) -> None:
        """Accept the gradient of the next step, float32[n_params], from the accelerator."""
        self.gradient = gradient
        self.step += 1
        self.kept = 0
        self.updated[:] = 0

    def program(self, device: int, at: At, planes: np.ndarray, spares: Sequence[Spare]) -> None:
        """Program ``planes``, uint8[planes, page_bytes], into a super-page. ``at``: location of the
        super-page. ``spares``: out-of-band data of each plane's page, without the checksum, which
        is computed from the page."""
        self._put(device, at, Made(spares, planes))

    @property
    def uncoded_counts(self) -> UncodedCounts:
        """Counters of pages without valid check bytes on all devices, since this object was
        created."""
        total = UncodedCounts()
        for own in self.check_bytes:
            total = total.plus(own.counts)
        return total

    def _put(self, device: int, at: At, made: Made, of_elements: bool = False) -> None:
        """Program ``made`` into the super-page with location ``at``. ``of_elements``: True if the
        processing elements program the pages, False if the controller does."""
        own = self.check_bytes[device]
        code = own.of_elements if of_elements else own.of_controller
        for i, (spare, data) in enumerate(zip(made.spares, made.planes, strict=True)):
            members = None if made.members is None else made.members[i]
            ppn = self.page(at, spare.slot)
            self.moved.reserve(device, ppn, self.system.geometry.slots)
            erases = self.recorded_erases(device, at)
            self.flash[device].program(ppn, spare, data, members, erases, code)
        own.programmed(len(made.spares) * self.system.geometry.slots, code)
        self.sequences[device] = max(int(self.sequences[device]), made.spares[0].sequence)

    def put_again(self, device: int, super_page: int, made: Made) -> None:
        """Program ``made`` into the current location of a super-page on a die that was replaced.
        The pages at that location are erased first."""
        at = self.at(device, super_page)
        for spare in made.spares:
            self.stores[device].erase(self.page(at, spare.slot), 1)
        self._put(device, at, made)

    def recorded_erases(self, device: int, at: At) -> int:
        """Return the erase count of the block that contains the super-page with location ``at``, or
        0 if the out-of-band data of pages does not include erase counts."""
        if not self.records_erases:
            return 0
        return int(self.system.arrays.block["erases"][self._block(device, at.die, at.place)])

    def spares(self, device: int, stripe: int, step: int) -> list[Spare]:
        """Return the out-of-band data for the next program of a stripe, one element per plane. The
        stripe holds the result of ``step``."""
        number = self._number(device)
        return [Spare(stripe, number, step, slot) for slot in range(self.stripes[device].planes)]

    def _number(self, device: int) -> int:
        """Return the sequence number of the next super-page."""
        return int(self.sequences[device]) + 1

    def coming(self, device: int, die: int, super_page: int) -> Made:
        """Return the data to be programmed next into a super-page on die ``die``. If the super-page
        holds a stripe, the pages are the contents of the die's registers. Otherwise they are a
        parity or a commit record from the controller."""
        if super_page not in self.homes[device]:
            return self.beside[device].made(super_page, self._number(device), self.step)
        stripe = self.homes[device].stripe(super_page)
        spares = self.given.get(die) or self.spares(device, stripe, self.step)
        return Made(spares, self.registers[die])

    def _join(self, device: int, die: int, super_page: int) -> None:
        """Make the out-of-band data for the registers of a die, and add the registers to their
        parity in the controller. ``super_page``: super-page into which the registers will be
        programmed."""
        planes = self.registers[die]
        stripe = self.homes[device].stripe(super_page)
        self.given[die] = self.spares(device, stripe, self.step)
        self.sequences[device] += 1  # other dies may program in between
        self.beside[device].join(stripe, planes, records(self.given[die], planes))

    def rejoin(self, device: int, super_page: int) -> None:
        """Read the stripe in ``super_page``, which was programmed before a power cut, and add it to
        its parity in the controller."""
        pages, store = self.pages(device, super_page), self.stores[device]
        planes = np.stack([store.read(ppn) for ppn in pages])
        held = np.stack([parity_records.covered(store, ppn) for ppn in pages])
        self.beside[device].join(self.homes[device].stripe(super_page), planes, held)

    def rebuilt(
        self, device: int, super_page: int, read: Callable[[int], np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (pages, out-of-band data) of a super-page, uint8[planes, page_bytes] and
        uint8[planes, SPARE_BYTES], reconstructed from its parity and the other super-pages that the
        parity covers. ``read``: function that returns the pages of a super-page; None selects the
        stored pages."""
        beside, store = self.beside[device], self.stores[device]

        def data(other: int) -> np.ndarray:
            return np.stack([store.read(ppn) for ppn in self.pages(device, other)])

        def spare(other: int) -> np.ndarray:
            pages = self.pages(device, other)
            if other < beside.guarded.count:
                return np.stack([parity_records.covered(store, ppn) for ppn in pages])
            step = int(store.page_records(np.array(pages[:1]))["step"][0])
            rests = [beside.guarded.joined(other, step, slot) for slot in range(len(pages))]
            both = zip(pages, rests, strict=True)
            return np.stack([parity_records.joined(store, *each) for each in both])

        return beside.again(super_page, read or data), beside.again(super_page, spare)

    def span(self, device: int, super_page: int, group: int) -> tuple[int, int]:
        """Return the range of parameters [start, stop) in one group of a super-page."""
        return self.stripes[device].span(self.homes[device].stripe(super_page), group)

    @property
    def delivered(self) -> np.ndarray:
        """Weights read out to the host, [n_params], after the NaN comparator if the comparator
        processes weights that are sent to the host."""
        values = self.sent.copy()
        self._compare(values, self.compared_for_host)
        return values

    def _compare(self, values: np.ndarray, comparator: bool) -> None:
        """Process values that leave a register. If ``comparator`` is True, the NaN comparator
        replaces each NaN and infinity in ``values`` in place. In any case, set ``met`` if
        ``values`` contained a NaN or infinity."""
        if comparator:
            self.met = nan_comparator.compare(values) > 0 or self.met
        else:
            self.met = bool(nan_comparator.special(values).any()) or self.met

    def page(self, at: At, slot: int) -> int:
        """Return the physical page that stores role ``slot`` of a super-page. ``at``: location of
        the super-page. A role is a combination of a vector, such as the weights, and a group of
        parameters."""
        return physical_page(self.system.geometry, at, slot)

    def pages(self, device: int, super_page: int) -> list[int]:
        """Return the physical pages of a super-page, in the order of ``slot`` (see
        :meth:`page`)."""
        at = self.at(device, super_page)
        return [self.page(at, slot) for slot in range(self.stripes[device].planes)]

    def at(self, device: int, super_page: int) -> At:
        """Return the current location of a super-page of a device."""
        arrays, geometry = self.system.arrays, self.system.geometry
        die, place = super_page % geometry.dies, int(arrays.rmap[device, super_page]) - 1
        return At(die, place, int(arrays.block["turned"][self._block(device, die, place)]))

    def _block(self, device: int, die: int, place: int) -> int:
        """Return the index, over all devices, of the block that contains the super-page at position
        ``place`` of a die's reservoir."""
        geometry = self.system.geometry
        first = (device * geometry.dies + die) * geometry.all_blocks + geometry.blocks
        return first + place // geometry.pages

    def store_initial(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Program the initial vectors ([n_params] by name) into the super-pages that hold
        stripes."""
        for dev, stripes in enumerate(self.stripes):
            for stripe, sp in enumerate(self.homes[dev].super_pages(0, stripes.count)):
                planes = np.zeros((stripes.planes, stripes.values), self.dtype)
                for group in range(stripes.groups):
                    start, stop = stripes.span(stripe, group)
                    for name in stripes.vectors:
                        planes[stripes.plane(name, group), : stop - start] = vectors[name][
                            start:stop
                        ]
                spares = self.spares(dev, stripe, self.step)
                self.program(dev, self.at(dev, int(sp)), planes.view(np.uint8), spares)

    def stored(self, name: str) -> np.ndarray:
        """Return the vector ``name`` as currently stored in the flash pages, [n_params]."""
        out = poisoned(len(self.sent), self.dtype)
        for dev, stripes in enumerate(self.stripes):
            for stripe, sp in enumerate(self.homes[dev].super_pages(0, stripes.count)):
                at = self.at(dev, int(sp))
                for group in range(stripes.groups):
                    start, stop = stripes.span(stripe, group)
                    ppn = self.page(at, stripes.plane(name, group))
                    if start < stop:
                        out[start:stop] = self.flash[dev].read(ppn).view(self.dtype)[: stop - start]
        return out

    def apply(self, entry: payload_log.LogEntry) -> None:
        """Apply an entry of the engine's log to registers and pages of the reservoir. Raises
        SimulationError for an unexpected kind of entry."""
        dev, sp, die = entry.dev, entry.lpn, entry.die
        at = At(die % self.system.geometry.dies, entry.ppn, entry.old)
        stripes = self.stripes[dev]
        store = self.flash[dev]
        match entry.what:
            case payload_log.LOG_VPP:
                first, last = self._whole(dev, sp)
                self.gradients.setdefault(die, {})[sp] = self.staged[first:last].copy()
                poison(self.staged[first:last])
            case payload_log.LOG_KEEP:
                self._keep(dev, sp, at)
            case payload_log.LOG_BPR:
                self.registers[die] = self._read(dev, at)
                if stripes.kept:
                    kept = [self.page(at, stripes.plane("g", i)) for i in range(stripes.groups)]
                    found = np.concatenate([store.read(ppn) for ppn in kept])
                    first, last = self._whole(dev, sp)
                    held = found.view(stripes.gradient_dtype)[: last - first]
                    self.gradients.setdefault(die, {})[sp] = held
            case payload_log.LOG_ODC:
                self._compute(dev, die, sp)
            case payload_log.LOG_FETCH:
                self._join(dev, die, sp)
            case payload_log.LOG_BPP:
                self._put(dev, at, self.coming(dev, die, sp), of_elements=True)
                self.updated[dev, at.die] += 1
                self.given.pop(die, None)
                del self.registers[die]
            case payload_log.LOG_MADE:
                self._put(dev, at, self.coming(dev, die, sp))
                self.beside[dev].done(sp)
            case payload_log.LOG_READ_OUT if entry.row in self.again:
                self.rejoin(*self.again.pop(entry.row))
                self._take(dev, sp, at, range(stripes.planes))
            case payload_log.LOG_READ_OUT:
                if sp in self.homes[dev]:
                    for group in range(stripes.groups):
                        a, b = self.span(dev, sp, group)
                        ppn = self.page(at, stripes.plane("w", group))
                        self.sent[a:b] = store.read(ppn).view(self.dtype)[: b - a]
                if self.saved is not None:
                    self.saved[dev, sp] = self._read(dev, at)
                    self._take(dev, sp, at, range(stripes.planes))
                else:
                    roles = [stripes.plane("w", i) for i in range(stripes.groups)]
                    self._take(dev, sp, at, roles)
            case payload_log.LOG_LIFT:
                spare = store.spare(self.page(at, 0))
                assert isinstance(spare, Spare)
                self.lifted[dev, sp] = spare.step, self._read(dev, at)
                self._take(dev, sp, at, range(stripes.planes))
            case payload_log.LOG_LANDED:
                source = entry.n
                self.program(dev, at, *self.landing(dev, source))
                del self.lifted[dev, source]
                self.homes[dev].land(source, sp)
            case payload_log.LOG_RAW:
                self._flip(dev, entry)
            case payload_log.LOG_ROW:
                assert self.gradient is not None
                stop = min(sp + entry.old, stripes.shard.stop)
                self.staged[sp:stop] = self.gradient[sp:stop]
            case what:
                raise SimulationError(f"log entry of kind {what}: not expected in an on-die update")

    def landing(self, device: int, source: int) -> tuple[np.ndarray, list[Spare]]:
        """Return (pages, out-of-band data) to program at the target when super-page ``source`` is
        moved."""
        step, pages = self.lifted[device, source]
        return pages, self.spares(device, self.homes[device].stripe(source), step)

    def _read(self, device: int, at: At) -> np.ndarray:
        """Return the pages of a super-page as stored in the array, uint8[planes, page_bytes]."""
        store = self.flash[device]
        slots = range(self.stripes[device].planes)
        return np.stack([store.read(self.page(at, slot)) for slot in slots])

    def _take(self, device: int, super_page: int, at: At, roles: Sequence[int]) -> None:
        """Count a read by the controller of those pages of a super-page that hold ``roles``."""
        own, slots = self.check_bytes[device], self.system.geometry.slots
        pages = [self.page(at, role) for role in roles]
        own.taken(pages, slots, marked=super_page in self.homes[device])

    def _whole(self, device: int, sp: int) -> tuple[int, int]:
        """Return the range of parameters [start, stop) that a super-page holds."""
        last = self.stripes[device].groups - 1
        return self.span(device, sp, 0)[0], self.span(device, sp, last)[1]

    def _keep(self, device: int, sp: int, at: At) -> None:
        """Program the gradient of a super-page into the planes of the super-page that the vectors
        leave empty."""
        stripes = self.stripes[device]
        for group in range(stripes.groups):
            start, stop = self.span(device, sp, group)
            data = np.zeros(stripes.values, stripes.gradient_dtype)
            data[: stop - start] = self.staged[start:stop]
            poison(self.staged[start:stop])
            ppn = self.page(at, stripes.plane("g", group))
            self.moved.reserve(device, ppn, self.system.geometry.slots)
            self.flash[device].write(ppn, self.homes[device].stripe(sp), data.view(np.uint8))

    def _flip(self, device: int, entry: payload_log.LogEntry) -> None:
        """Apply bit errors to a page that was read from the array: in its register, at the host, or
        in transfer to another die. A cipher spreads the errors over its cipher blocks."""
        page = entry.n
        if entry.old == timing.BPR:
            data = self.registers[entry.die][page]
        elif (device, entry.lpn) in self.lifted:
            data = self.lifted[device, entry.lpn][1][page]
        elif self.saved is not None:
            data = self.saved[device, entry.lpn][page]
        else:
            start, stop = self.span(device, entry.lpn, page)
            data = self.sent[start:stop].view(np.uint8)
        self.hit(
            device, data, entry.lpn * self.stripes[device].planes + page, entry.key, entry.rate
        )

    def hit(self, device: int, data: np.ndarray, number: int, key: int, rate: float) -> None:
        """Invert, in place, those bits of ``data`` that are wrong after a read and the correction
        by the reservoir's ECC. If a decoder is used, add the difference between the bit errors that
        the decoder leaves and those of the capability model to the counters.

        ``data``: bytes of a page as stored, uint8[at most page bytes]. ``number``: number of the
        page, for the cipher. ``key``: key of the random draws of the read. ``rate``: raw bit error
        rate of the read.
        """
        size = self.system.geometry.flash_page_bytes
        stored = np.zeros(size, np.uint8)  # 0 behind the end of the weights
        stored[: len(data)] = data
        if self.cipher is not None:
            stored = self.cipher.encrypt(stored, number)
        if self.decoder is None:
            exposure = self.system.cfg.errors.exposure
            stored ^= pe_protection.wrong_bits(size, rate, key, *self.code, exposure)
        else:
            before, count = self.decoder.beside_model, self.system.arrays.count[device]
            stored = self.decoder.decode(stored, key, rate)
            count[BARE_WRONG_BITS] += self.decoder.beside_model - before
            count[BARE_CORRECTED_BITS] -= self.decoder.beside_model - before
        if self.cipher is not None:
            stored = self.cipher.decrypt(stored, number)
        data[:] = stored[: len(data)]

    def _compute(self, dev: int, die: int, sp: int) -> None:
        stripes = self.stripes[dev]
        gradient = self.gradients[die].pop(sp)
        for group in range(stripes.groups):
            start, stop = self.span(dev, sp, group)
            if start == stop:
                continue
            vectors = {
                name: self.registers[die][stripes.plane(name, group)].view(self.dtype)[
                    : stop - start
                ]
                for name in stripes.vectors
            }
            for values in vectors.values():
                self._compare(values, self.comparator)
            at = start - self.span(dev, sp, 0)[0]
            self.compute(start, stop, vectors, gradient[at : at + stop - start])
        if self.round_trip:
            self._join(dev, die, sp)

    def unpacked(self, pages: Mapping[tuple[int, int], np.ndarray]) -> dict[str, np.ndarray]:
        """Return the vectors by name, [n_params], that super-pages contain. ``pages``: contents,
        uint8[planes, page_bytes], by (device, super-page). Super-pages without a stripe
        (parities) are skipped."""
        out = {name: poisoned(len(self.sent), self.dtype) for name in self.stripes[0].vectors}
        for (dev, sp), planes in pages.items():
            if sp not in self.homes[dev]:
                continue
            stripes = self.stripes[dev]
            for group in range(stripes.groups):
                start, stop = self.span(dev, sp, group)
                for name in stripes.vectors:
                    held = planes[stripes.plane(name, group)].view(self.dtype)
                    out[name][start:stop] = held[: stop - start]
        return out
