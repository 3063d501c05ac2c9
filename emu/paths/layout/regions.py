"""Where the optimizer's vectors lie: pages of regions, and planes of super-pages.

Owns both layouts: w, m, v, g as regions of the conventional namespace, and w, m, v side by side in
the planes of one super-page. Does not own physical places (backend/mapping.py) or what a value
takes of a page (formats.py).
Source: ZeRO-Infinity (one file per tensor and state) for regions; OptimStore (HPCA 2023) for
super-pages: Adam leaves one plane of four idle, Momentum packs two groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.layout.formats import Vector

VALUE_BYTES = 4
"""Of a value in FP32."""
F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Shard:
    """Parameters [start, stop) live on a device."""

    device: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def shards(n_params: int, devices: int, granule: int) -> tuple[Shard, ...]:
    """Split parameters evenly over devices, at multiples of ``granule`` parameters."""
    units = -(-n_params // granule)
    cuts = [min(n_params, granule * (units * i // devices)) for i in range(devices + 1)]
    return tuple(Shard(i, cuts[i], cuts[i + 1]) for i in range(devices))


@dataclass(frozen=True)
class Regions:
    """One shard's vectors in the conventional namespace, one region of pages after the other."""

    shard: Shard
    vectors: tuple[Vector, ...]
    page_bytes: int
    planes: int

    @staticmethod
    def of(shard: Shard, vectors: tuple[Vector, ...], geometry: Geometry) -> Regions:
        """Regions that begin at super-page boundaries."""
        return Regions(shard, vectors, geometry.page_bytes, geometry.planes)

    def vector(self, name: str) -> Vector:
        """How a vector's values are stored."""
        return next(v for v in self.vectors if v.name == name)

    def used(self, name: str) -> int:
        """Pages of a region that hold parameters; the rest of it is alignment."""
        return self.vector(name).pages(self.shard.size, self.page_bytes)

    @cached_property
    def firsts(self) -> dict[str, int]:
        """First page of each region; behind them, under "", the first that is free."""
        found, at = {}, 0
        for v in self.vectors:
            found[v.name] = at
            at += -(-self.used(v.name) // self.planes) * self.planes
        return found | {"": at}

    def first(self, name: str) -> int:
        return self.firsts[name]

    @property
    def total_pages(self) -> int:
        return self.firsts[""]

    def pages(self, name: str, start: int, stop: int) -> slice:
        """Pages that hold parameters [start, stop), the first of them from its beginning on."""
        v, begin = self.vector(name), start - self.shard.start
        first = self.first(name) + begin // v.per_page(self.page_bytes)
        return slice(first, first + v.pages(stop - start, self.page_bytes))

    def blocks(
        self, name: str, start: int, stop: int, block_bytes: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Requests of at most ``block_bytes`` for parameters [start, stop) of an FP32 vector.

        Returns (first lpn, bytes, first parameter), int64 each. ``start`` is page aligned within
        the shard.
        """
        step = block_bytes // VALUE_BYTES
        first = np.arange(start, stop, step, dtype=np.int64)
        size = np.minimum(stop - first, step) * VALUE_BYTES
        offset = (first - self.shard.start) * VALUE_BYTES
        lpn = self.first(name) + offset // self.page_bytes
        return lpn, size, first


@dataclass(frozen=True)
class Stripes:
    """One shard's vectors in super-pages: ``groups`` x (w, states...) in the planes of a die."""

    shard: Shard
    vectors: tuple[str, ...]
    groups: int
    values: int
    """Parameters per page."""
    kept: bool = False
    """Is the gradient programmed too, into the planes behind the vectors'?"""
    dtype: np.dtype = F32
    """Of values in pages: all vectors alike, as a super-page has as many of each."""
    gradient_dtype: np.dtype = F32

    @staticmethod
    def of(
        shard: Shard, vectors: tuple[str, ...], geometry: Geometry, kept: bool = False,
        dtype: np.dtype = F32, gradient: np.dtype = F32,
    ) -> Stripes:  # fmt: skip
        """Pack as many groups as the planes hold; ``groups`` is 0 when not even one fits."""
        groups = geometry.planes // (len(vectors) + kept)
        values = geometry.page_bytes // dtype.itemsize
        return Stripes(shard, vectors, groups, values, kept, dtype, gradient)

    @property
    def planes(self) -> int:
        """Planes in use."""
        return self.groups * len(self.vectors)

    @property
    def params(self) -> int:
        """Parameters per stripe."""
        return self.groups * self.values

    @property
    def gradient_bytes(self) -> int:
        """Of the gradient of a stripe."""
        return self.params * self.gradient_dtype.itemsize

    @property
    def count(self) -> int:
        """Super-pages that hold the shard."""
        return -(-self.shard.size // self.params)

    def span(self, super_page: int, group: int) -> tuple[int, int]:
        """Parameters [start, stop) of one group of a super-page (empty past the shard's end)."""
        start = self.shard.start + super_page * self.params + group * self.values
        return min(start, self.shard.stop), min(start + self.values, self.shard.stop)

    def plane(self, vector: str, group: int) -> int:
        """Plane of a vector's page, or of a kept gradient's ("g")."""
        if vector == "g":
            return self.planes + group
        return group * len(self.vectors) + self.vectors.index(vector)
