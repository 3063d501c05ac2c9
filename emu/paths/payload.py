"""Payload of plans in the conventional namespace: the memories of host and ISP, and the effects of
completed plan rows on the contents of these memories.

Owns the memories into which stored pages are read (host DRAM, ISP DRAM). Does not own the order of
operations (the engine's log), the pages that move between memory, data cache and flash
(nvme/moved_bytes.py) or the dies' registers (on_die/registers.py).
Source: this project's trace contract: weights pass only through the emulated pages. Memory is
filled with NaN bytes when its pages are programmed, so a value that was not read back cannot be
used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ondie.emu.engine.core import payload_log, plan_rows
from ondie.emu.engine.core.events import ROW
from ondie.emu.engine.core.state import records
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.engine.run.system import System
from ondie.emu.nand.codec import decoder_of
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme.command import TRANSFER
from ondie.emu.nvme.moved_bytes import POISON, MovedBytes
from ondie.emu.paths.layout.regions import F32, Regions
from ondie.kernels.formats import BLOCK


def poisoned(count: int, dtype: np.dtype) -> np.ndarray:
    """Return an array of ``count`` elements of ``dtype``, filled with the byte POISON.
    Floating-point elements are then NaN."""
    return np.full(count * dtype.itemsize, POISON, np.uint8).view(dtype)


def poison(values: np.ndarray) -> None:
    """Fill the contiguous array ``values`` with the byte POISON. Floating-point elements are then
    NaN."""
    values.view(np.uint8)[:] = POISON


def moved_bytes(system: System, stores: Sequence[PageStore] | None = None) -> MovedBytes:
    """Return a new MovedBytes object for ``system``, which runs plans. The object holds the bytes
    of the system's pages and updates them from the engine's log. ``stores``: pages on flash, of
    each device; None creates new pages."""
    geometry = system.geometry
    if stores is None:
        pages = geometry.physical_pages
        stores = [PageStore(geometry.page_bytes, pages=pages) for _ in range(system.devices)]
    transfers = np.zeros(len(system.arrays.req), TRANSFER)  # requests beside a plan move no bytes
    decoder = decoder_of(system.cfg)
    if decoder is not None:
        system.arrays.code["decoder"] = decoder.address
    moved = MovedBytes(system.arrays, geometry, transfers, stores, decoder=decoder)
    system.on_log = moved.apply_log
    return moved


class Conventional:
    """Payload of a plan in the conventional namespace: the vectors on flash, and the memory (host
    or ISP) into which they are read.

    ``compute(start, stop, vectors, gradient)`` is called when a plan row that computes an update
    ends. It receives the contents of the memory by slot (layout/formats.py) and writes the new
    values into ``vectors``. If the format has a copy of the weights for the model, the function
    adds this copy as "out". If ``gradient_arrives`` is set, the accelerator writes the gradient to
    the memory. Otherwise DMA rows write the gradient. ``shown``: dtype of the weights that are sent
    to the host. ``pages``: number of logical pages of the memory of each device; None selects the
    pages of its regions.
    """

    def __init__(
        self,
        system: System,
        regions: tuple[Regions, ...],
        compute: Callable[[int, int, dict[str, np.ndarray], np.ndarray], None],
        gradient_arrives: bool = False,
        shown: np.dtype = F32,
        pages: Sequence[int] | None = None,
    ) -> None:
        self.system = system
        self.regions = regions
        self.gradient_arrives = gradient_arrives
        self.compute = compute
        self.gradient: np.ndarray | None = None
        """Gradient of the current step as received from the accelerator, [n_params], in the stored
        type; None before the first gradient."""
        self.delivered: np.ndarray | None = None
        """Weights that arrived in host memory by DMA, [n_params]; None before the first
        transfer."""
        self.outgoing = poisoned(sum(of_device.shard.size for of_device in regions), shown)
        """New weights in transfer to the host, [n_params]. Programs of flash pages neither wait for
        these buffers nor release them."""
        page = system.geometry.page_bytes
        if pages is None:
            pages = [of_device.total_pages for of_device in regions]
        self.memory = tuple(np.full((count, page), POISON, np.uint8) for count in pages)
        self.moved = moved_bytes(system)
        self.moved.follow(self)

    @property
    def stores(self) -> tuple[PageStore, ...]:
        """Pages on flash, by device."""
        return self.moved.stores

    def vector(self, device: int, name: str) -> np.ndarray:
        """Return a view of a vector of a device's shard in memory, [shard size], in the vector's
        dtype. The vector must not be stored in codes."""
        regions = self.regions[device]
        pages = self.memory[device][regions.pages(name, regions.shard.start, regions.shard.stop)]
        return pages.reshape(-1).view(regions.vector(name).dtype)[: regions.shard.size]

    def arrays(self, device: int, name: str, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return parameters [start, stop) of vector ``name`` in memory, by slot name. The arrays
        are views. If the vector is stored in codes, the arrays are copies, and ``start`` must be
        the first parameter of a page."""
        regions = self.regions[device]
        if regions.vector(name).coded:
            pages = self.memory[device][regions.pages(name, start, stop)]
            return regions.vector(name).unpack(pages, stop - start)
        return {
            name: self.vector(device, name)[
                start - regions.shard.start : stop - regions.shard.start
            ]
        }

    def store_initial(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Store the initial values of all parameters ([n_params] by slot name) in the
        flash pages."""
        for dev, regions in enumerate(self.regions):
            start, stop = regions.shard.start, regions.shard.stop
            for vector in regions.vectors:
                if vector.name == "g" or start == stop:
                    continue
                pages = regions.pages(vector.name, start, stop)
                parts = {vector.name: vectors[vector.name][start:stop]}
                if vector.coded:
                    scales = f"{vector.name}_scale"
                    parts[scales] = vectors[scales][start // BLOCK : -(-stop // BLOCK)]
                vector.pack(self.memory[dev][pages], parts)
                self.store_memory(dev, range(pages.start, pages.stop))

    def ppn(self, device: int, lpn: int) -> int:
        """Return the physical page of a logical page, or -1 if the page is not mapped."""
        return int(self.system.arrays.l2p[device, lpn]) - 1

    def stored(self, name: str) -> np.ndarray:
        """Return the current values of the slot ``name`` for all parameters, in the stored dtype,
        from the flash pages, or from the drive's data cache if it holds newer data."""
        vector = name.removesuffix("_scale")
        parts = []
        for dev, regions in enumerate(self.regions):
            if regions.shard.size:
                pages = regions.pages(vector, regions.shard.start, regions.shard.stop)
                held = self.moved.newest(dev, range(pages.start, pages.stop))
                parts.append(regions.vector(vector).unpack(held, regions.shard.size)[name])
        return np.concatenate(parts)

    def offer_gradient(self, gradient: np.ndarray) -> None:
        """Set the gradient of a step, [n_params] in the stored dtype. If ``gradient_arrives`` is
        set, also copy the gradient to ``memory``."""
        self.gradient = gradient
        for dev, regions in enumerate(self.regions):
            if self.gradient_arrives:
                self.vector(dev, "g")[:] = gradient[regions.shard.start : regions.shard.stop]

    def store_memory(self, dev: int, lpns: range) -> None:
        """Copy the pages ``lpns`` (logical page numbers) of ``memory[dev]`` to flash, without
        simulated time. The pages must be mapped."""
        log = records(payload_log.LOG, len(lpns))
        log.what, log.kind, log.queue, log.row = payload_log.LOG_PROGRAM, ROW, -1, -1
        log.dev, log.lpn, log.n = dev, lpns, 1
        log.ppn = self.system.arrays.l2p[dev, lpns.start : lpns.stop].astype(np.int64) - 1
        log.old = log.sectors = log.held = log.stream = log.erases = -1
        self.moved.apply_log(log)

    def apply(self, entry: payload_log.LogEntry) -> None:
        """Apply the effect of a completed plan row to the memory: transfer of gradients or weights,
        or update of parameters. Raises SimulationError if ``entry`` does not record the end of a
        plan row (LOG_ROW)."""
        if entry.what != payload_log.LOG_ROW:
            raise SimulationError(
                f"log entry of kind {entry.what}: the payload of the conventional namespace "
                f"expects only the end of a plan row (kind {payload_log.LOG_ROW})"
            )
        self._row(entry.dev, entry.n, entry.lpn, entry.old)

    def _row(self, dev: int, resource: int, first: int, count: int) -> None:
        regions = self.regions[dev]
        if resource == plan_rows.DMA_DOWN:
            assert self.gradient is not None
            at = first - regions.shard.start
            self.vector(dev, "g")[at : at + count] = self.gradient[first : first + count]
        elif resource == plan_rows.DMA_UP:
            if self.delivered is None:
                self.delivered = poisoned(len(self.outgoing), self.outgoing.dtype)
            self.delivered[first : first + count] = self.outgoing[first : first + count]
            poison(self.outgoing[first : first + count])
        elif resource == plan_rows.HOST_CPU:
            for number, other in enumerate(
                self.regions
            ):  # a host update may span the devices' shards
                start, stop = max(first, other.shard.start), min(first + count, other.shard.stop)
                if start < stop:
                    self._compute(number, start, stop)
        else:
            new = self._compute(dev, first, first + count)
            at = first - regions.shard.start
            self.outgoing[first : first + count] = new
            poison(self.vector(dev, "g")[at : at + count])  # consumed: the buffer is free

    def _compute(self, dev: int, start: int, stop: int) -> np.ndarray:
        """Update parameters [start, stop) of the shard on device ``dev`` in memory. Return the
        updated weights in the dtype that the model computes with, [stop - start]."""
        regions = self.regions[dev]
        vectors: dict[str, np.ndarray] = {}
        for vector in regions.vectors:
            vectors |= self.arrays(dev, vector.name, start, stop)
        self.compute(start, stop, vectors, vectors.pop("g"))
        for vector in regions.vectors:
            if vector.coded:
                vector.pack(self.memory[dev][regions.pages(vector.name, start, stop)], vectors)
        return vectors.get("out", vectors["w"])
