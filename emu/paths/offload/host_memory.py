"""Host memory of an offloaded step: values read from pages, and values resident in DRAM.

Owns the arrays ("slots" in layout/formats.py) of weights, gradient, states and scales in host DRAM.
Their values are read from pages on several drives or stay in DRAM. Does not own the order of
operations (payload.py) or the placement of pages (layout/volume.py).
Source: the rule of payload.py that memory is filled with NaN bytes when its pages are programmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.paths.layout.formats import Stored
from ondie.emu.paths.layout.regions import Regions, Shard
from ondie.emu.paths.layout.volume import Volume
from ondie.emu.paths.optimizer_step import CASTS
from ondie.emu.paths.payload import Conventional, poison, poisoned
from ondie.kernels.cast import narrow
from ondie.kernels.formats import B16, TYPES
from ondie.kernels.update import Slot

BF16 = TYPES[B16]


class OffloadMemory(Conventional):
    """Payload of host offload: the values of ``params`` parameters, on any number of drives and in
    host DRAM. Weights, gradient, states and scales are slots, that is, one array each. Parameters
    without an extent in ``volume`` stay in host DRAM."""

    def __init__(
        self,
        system: System,
        volume: Volume,
        params: int,
        compute: Callable[[int, int, dict[str, np.ndarray], np.ndarray], None],
        stored: Stored,
    ) -> None:
        whole = Regions.of(Shard(0, 0, params), (*stored.vectors, stored.gradient), system.geometry)
        pages = [volume.pages] * volume.devices
        super().__init__(system, (whole,), compute, gradient_arrives=True, pages=pages)
        self.volume = volume
        self.params = params
        self.slots = {slot.name: slot for slot in stored.slots}
        self.model = Slot("p", stored.shown if stored.shown.itemsize == 2 else BF16)
        """Slot of the model's 16-bit parameters. Its dtype is the format's 16-bit type if the
        format has one, else BF16."""
        self.kept = {slot.name: poisoned(slot.size(params), slot.dtype) for slot in stored.slots}
        """Values that stay in host DRAM, by slot, [n_params / parameters per entry]. Entries
        whose values are on NVMe are filled with NaN bytes."""

    def _view(self, slot: Slot, first: int, last: int, dev: int, at: int) -> np.ndarray:
        """Return a view of the host memory that holds the entries of parameters [first, last), in
        the slot's dtype. The entries are contiguous and start at byte ``at`` of drive ``dev``."""
        flat = self.memory[dev].reshape(-1)
        return flat[at : at + slot.size(last - first) * slot.dtype.itemsize].view(slot.dtype)

    @staticmethod
    def _entries(slot: Slot, start: int, stop: int, begin: int = 0) -> slice:
        """Return the slice of entries that hold parameters [start, stop); entry 0 holds parameter
        ``begin``."""
        return slice((start - begin) // slot.share, slot.size(stop - begin))

    def gather(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return the entries of parameters [start, stop) of slot ``name`` (one array of an update,
        such as "w") from host memory, as a copy in the slot's dtype."""
        slot = self.slots[name]
        out = self.kept[name][self._entries(slot, start, stop)].copy()
        for first, last, dev, at in self.volume.pieces(name, start, stop):
            piece = self._view(slot, first, last, dev, at)
            out[self._entries(slot, first, last, start)] = piece
        return out

    def scatter(self, name: str, start: int, stop: int, values: np.ndarray) -> None:
        """Write ``values``, which have the slot's dtype, to the entries of parameters [start, stop)
        of slot ``name`` (one array of an update, such as "w") in host memory."""
        slot = self.slots[name]
        self.kept[name][self._entries(slot, start, stop)] = values
        for first, last, dev, at in self.volume.pieces(name, start, stop):
            piece = values[self._entries(slot, first, last, start)]
            self._view(slot, first, last, dev, at)[:] = piece
            poison(self.kept[name][self._entries(slot, first, last)])

    def store_initial(self, vectors: Mapping[str, np.ndarray]) -> None:
        for name, values in vectors.items():
            self.scatter(name, 0, self.params, values)
            self._flush(name)
        if "p" in self.volume.regions:
            self._model(0, self.params, vectors["w"])
            self._flush("p")

    def _flush(self, name: str) -> None:
        for dev, (lpn, pages) in enumerate(self.volume.used(name)):
            self.store_memory(dev, range(lpn, lpn + pages))

    def _model(self, start: int, stop: int, weights: np.ndarray) -> None:
        """Convert ``weights``, float32[stop - start], to the model's 16-bit type and write them to
        the host memory of the model's parameters [start, stop). If ``weights`` already has 16-bit
        values, write them unchanged. Parameters without pages on NVMe are skipped."""
        for first, last, dev, at in self.volume.pieces("p", start, stop):
            piece = np.ascontiguousarray(weights[first - start : last - start])
            cast = piece if piece.dtype.itemsize == 2 else narrow(piece, CASTS[self.model.dtype])
            self._view(self.model, first, last, dev, at)[:] = cast

    def stored(self, name: str) -> np.ndarray:
        slot, page = self.slots[name], self.volume.page
        out = self.kept[name].copy()
        for first, last, dev, at in self.volume.pieces(name, 0, self.params):
            here = self._entries(slot, first, last)
            begin, size = at % page, (here.stop - here.start) * slot.dtype.itemsize
            lpns = range(at // page, -(-(at + size) // page))
            found = self.moved.newest(dev, lpns).reshape(-1)
            out[here] = found[begin : begin + size].view(slot.dtype)
        return out

    def offer_gradient(self, gradient: np.ndarray) -> None:
        self.gradient = gradient
        self.scatter("g", 0, self.params, gradient)

    def _row(self, dev: int, resource: int, first: int, count: int) -> None:
        assert resource == plan_rows.HOST_CPU
        start, stop = first, first + count
        held = {name: self.gather(name, start, stop) for name in self.slots}
        self.compute(start, stop, held, held.pop("g"))
        shown = held.pop("out", held["w"])
        for name, values in held.items():
            self.scatter(name, start, stop, values)
        if "p" in self.volume.regions:
            self._model(start, stop, shown)
