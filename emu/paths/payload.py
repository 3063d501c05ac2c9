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

from ondie.emu import events, rows
from ondie.emu.backend import inject
from ondie.emu.backend.store import PageStore
from ondie.emu.errors import SimulationError
from ondie.emu.frontend.cached_bytes import CachedBytes
from ondie.emu.isp.layout import Regions
from ondie.emu.system import System

POISON = 0xFF
"""Byte of memory that holds nothing: four of them are a NaN."""


class Conventional:
    """Vectors in the conventional namespace and the memory (host's or ISP's) they are read into.

    ``compute(start, stop, vectors, gradient)`` is called when a compute row ends, with views of
    that memory. With ``gradient_arrives`` the accelerator puts the gradient into it, otherwise DMA
    rows do.
    """

    def __init__(
        self,
        system: System,
        regions: tuple[Regions, ...],
        compute: Callable[[int, int, dict[str, np.ndarray], np.ndarray], None],
        gradient_arrives: bool = False,
    ) -> None:
        self.system = system
        self.regions = regions
        self.gradient_arrives = gradient_arrives
        self.compute = compute
        self.gradient: np.ndarray | None = None
        """The current step's gradient, float32[n_params], as the accelerator delivers it."""
        self.delivered: np.ndarray | None = None
        """Weights that arrived in the host's memory by DMA, float32[n_params]."""
        self.outgoing = np.full(sum(r.shard.size for r in regions), np.nan, np.float32)
        """New weights on their way up: buffers that programs do not wait for, nor free."""
        page = system.geometry.page_bytes
        self.stores = tuple(PageStore(page) for _ in regions)
        self.cached = tuple(CachedBytes() for _ in regions)
        self.memory = tuple(np.full((r.total_pages, page), POISON, np.uint8) for r in regions)
        system.on_log = self.on_log

    def vector(self, device: int, name: str) -> np.ndarray:
        """A shard's vector in memory, float32[shard size], a view."""
        r = self.regions[device]
        at = r.names.index(name) * r.pages
        return self.memory[device][at : at + r.pages].reshape(-1).view(np.float32)[: r.shard.size]

    def store_initial(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Put the vectors (float32[n_params] by name) into the flash pages that were filled."""
        for dev, r in enumerate(self.regions):
            for name in vectors:
                self.vector(dev, name)[:] = vectors[name][r.shard.start : r.shard.stop]
                at = r.names.index(name) * r.pages
                for lpn in range(at, at + r.used_pages):
                    self._program(dev, lpn, self.ppn(dev, lpn))

    def ppn(self, device: int, lpn: int) -> int:
        """Where a logical page is now; -1 = unmapped."""
        return int(self.system.arrays.l2p[device, lpn]) - 1

    def stored(self, name: str) -> np.ndarray:
        """A vector as the flash pages hold it now, or the data cache where it is newer,
        float32[n_params]."""
        parts = []
        for dev, r in enumerate(self.regions):
            at = r.names.index(name) * r.pages
            lpns = range(at, at + r.used_pages)
            pages = [self._newest(dev, lpn) for lpn in lpns]
            if pages:
                parts.append(np.concatenate(pages).view(np.float32)[: r.shard.size])
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
                self.delivered = np.full_like(self.outgoing, np.nan)
            self.delivered[first : first + count] = self.outgoing[first : first + count]
            self.outgoing[first : first + count] = np.nan
        elif resource == rows.HOST_CPU:
            for d, other in enumerate(self.regions):  # a host update may span the devices' shards
                a, b = max(first, other.shard.start), min(first + count, other.shard.stop)
                if a < b:
                    self._compute(d, a, b)
        else:
            self._compute(dev, first, first + count)
            at = first - r.shard.start
            self.outgoing[first : first + count] = self.vector(dev, "w")[at : at + count]
            self.vector(dev, "g")[at : at + count] = np.nan  # used: its buffer is free

    def _compute(self, dev: int, start: int, stop: int) -> None:
        r = self.regions[dev]
        piece = slice(start - r.shard.start, stop - r.shard.start)
        vectors = {name: self.vector(dev, name)[piece] for name in r.names}
        self.compute(start, stop, vectors, vectors["g"])
