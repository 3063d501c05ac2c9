"""Payload: the bytes that a plan moves, following the engine's log, page by page.

Owns the memories that stored pages are read into (host DRAM, ISP DRAM). Does not own the order of
things: the log of events is obeyed entry by entry; nor the dies' registers (super_pages.py).
Source: this project's trace contract: weights flow through the emulated pages and nowhere else.
Memory is filled with NaN bytes as soon as its pages are programmed, so a value that was not read
back cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ondie.emu.engine.core import events
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.engine.run.system import System
from ondie.emu.nand import bit_errors as inject
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme.data_cache_payload import CachedBytes
from ondie.emu.paths.layout.regions import F32, Regions
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
        for entry in events.entries(log):
            dev, lpn, ppn, n = entry.dev, entry.lpn, entry.ppn, entry.n
            store, cached = self.stores[dev], self.cached[dev]
            if store.follow(entry, g) or cached.follow(entry, store):
                continue
            match entry.what:
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
                    if entry.row < 0:  # collection moved it as it came out
                        self.stores[dev].damage(ppn, wrong)
                    else:
                        self.memory[dev][lpn] ^= wrong
                case events.LOG_ROW:
                    self._row(dev, entry.n, lpn, entry.old)
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
