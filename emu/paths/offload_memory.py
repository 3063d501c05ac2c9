"""The host's memory in an offloaded step: what pages bring into it, and what never leaves it.

Owns vectors in host DRAM, gathered from pages on several drives or resident there. Does not own the
log's order (payload.py) or where pages lie (offload_volume.py).
Source: as payload.py: memory is poisoned when its pages are programmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ondie.emu import rows
from ondie.emu.backend.store import PageStore
from ondie.emu.frontend.cached_bytes import CachedBytes
from ondie.emu.isp.layout import Regions, Shard
from ondie.emu.paths.offload_volume import Volume
from ondie.emu.paths.payload import POISON, Conventional
from ondie.emu.system import System
from ondie.kernels.cast import narrow


class OffloadMemory(Conventional):
    """Vectors of ``params`` parameters on any number of drives; what has no extent in the volume
    stays in DRAM. ``convert`` gives float32 values as they are stored: in FP32, or the bits of
    BF16 as uint16."""

    def __init__(
        self,
        system: System,
        volume: Volume,
        params: int,
        compute: Callable[[int, int, dict[str, np.ndarray], np.ndarray], None],
        convert: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        names = tuple(volume.regions)
        whole = Regions(Shard(0, 0, params), names, volume.page, 0)
        super().__init__(system, (whole,), compute, gradient_arrives=True)
        self.regions = (replace(whole, pages=volume.regions["w"].pages),)
        self.volume = volume
        self.memory = tuple(
            np.full((volume.pages, volume.page), POISON, np.uint8) for _ in range(volume.devices)
        )
        self.stores = tuple(PageStore(volume.page) for _ in self.memory)
        self.cached = tuple(CachedBytes() for _ in self.memory)
        self.params = params
        self.vectors = tuple(name for name in names if name not in ("g", "p"))
        self.convert = convert
        self.dtype = convert(np.zeros(1, np.float32)).dtype
        self.nothing = np.full(self.dtype.itemsize, POISON, np.uint8).view(self.dtype)[0]
        self.kept = {
            name: np.full(params, self.nothing, self.dtype) for name in (*self.vectors, "g")
        }
        """What stays in DRAM; NaN where it lies on NVMe."""

    def _view(self, name: str, first: int, last: int, dev: int, at: int) -> np.ndarray:
        """Values of one piece in memory."""
        dtype = np.dtype(np.uint16) if name == "p" else self.dtype
        width = dtype.itemsize
        flat = self.memory[dev].reshape(-1)
        return flat[at : at + (last - first) * width].view(dtype)

    def gather(self, name: str, a: int, b: int) -> np.ndarray:
        """Parameters [a, b) of a vector as memory has them now."""
        out = self.kept[name][a:b].copy()
        for first, last, dev, at in self.volume.pieces(name, a, b):
            out[first - a : last - a] = self._view(name, first, last, dev, at)
        return out

    def scatter(self, name: str, a: int, b: int, values: np.ndarray) -> None:
        """Put parameters [a, b) of a vector where they belong in memory."""
        self.kept[name][a:b] = values
        for first, last, dev, at in self.volume.pieces(name, a, b):
            self._view(name, first, last, dev, at)[:] = values[first - a : last - a]
            self.kept[name][first:last] = self.nothing

    def store_initial(self, vectors: Mapping[str, np.ndarray]) -> None:
        for name, values in vectors.items():
            self.scatter(name, 0, self.params, self.convert(values))
            self._flush(name)
        if "p" in self.volume.regions:
            self._model(0, self.params, self.convert(vectors["w"]))
            self._flush("p")

    def _flush(self, name: str) -> None:
        for dev, (lpn, pages) in enumerate(self.volume.used(name)):
            for each in range(lpn, lpn + pages):
                self._program(dev, each, self.ppn(dev, each))

    def _model(self, a: int, b: int, w: np.ndarray) -> None:
        """The model's own parameters [a, b) in BF16, where they go to NVMe."""
        for first, last, dev, at in self.volume.pieces("p", a, b):
            piece = np.ascontiguousarray(w[first - a : last - a])
            bf16 = piece if piece.dtype == np.uint16 else narrow(piece, "bfloat16")
            self._view("p", first, last, dev, at)[:] = bf16

    def stored(self, name: str) -> np.ndarray:
        out = self.kept[name].copy()
        page, width = self.volume.page, self.dtype.itemsize
        for first, last, dev, at in self.volume.pieces(name, 0, self.params):
            lpns = range(at // page, -(-(at + width * (last - first)) // page))
            found = np.concatenate([self._newest(dev, lpn) for lpn in lpns])
            out[first:last] = found.view(self.dtype)[: last - first]
        return out

    def offer_gradient(self, gradient: np.ndarray) -> None:
        self.gradient = gradient
        self.scatter("g", 0, self.params, self.convert(gradient))

    def _row(self, dev: int, resource: int, first: int, count: int) -> None:
        assert resource == rows.HOST_CPU
        a, b = first, first + count
        vectors = {name: self.gather(name, a, b) for name in self.vectors}
        self.compute(a, b, vectors, self.gather("g", a, b))
        for name, values in vectors.items():
            self.scatter(name, a, b, values)
        if "p" in self.volume.regions:
            self._model(a, b, vectors["w"])
