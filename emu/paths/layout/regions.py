"""Layouts of the optimizer's vectors: pages of regions, and planes of super-pages.

Owns both layouts: w, m, v, g as regions of the conventional namespace, and w, m, v in adjacent
planes of one super-page. Does not own physical addresses (ftl/page_map.py) or values per page
(formats.py).
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
"""Bytes of a value in FP32."""
F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Shard:
    """Parameters [start, stop), stored on one device."""

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
    """Vectors of a shard in the conventional namespace, as consecutive regions of pages."""

    shard: Shard
    vectors: tuple[Vector, ...]
    page_bytes: int
    planes: int

    @staticmethod
    def of(shard: Shard, vectors: tuple[Vector, ...], geometry: Geometry) -> Regions:
        """Return regions that start at super-page boundaries."""
        return Regions(shard, vectors, geometry.page_bytes, geometry.planes)

    def vector(self, name: str) -> Vector:
        """Return the storage description of a vector."""
        return next(vector for vector in self.vectors if vector.name == name)

    def used(self, name: str) -> int:
        """Return the pages of a region that hold parameters; the rest is alignment."""
        return self.vector(name).pages(self.shard.size, self.page_bytes)

    @cached_property
    def firsts(self) -> dict[str, int]:
        """First page of each region; key "" holds the first free page after them."""
        found, at = {}, 0
        for vector in self.vectors:
            found[vector.name] = at
            at += -(-self.used(vector.name) // self.planes) * self.planes
        return found | {"": at}

    def first(self, name: str) -> int:
        return self.firsts[name]

    @property
    def total_pages(self) -> int:
        return self.firsts[""]

    def pages(self, name: str, start: int, stop: int) -> slice:
        """Return the pages of parameters [start, stop); ``start`` must be the start of a page."""
        vector, begin = self.vector(name), start - self.shard.start
        first = self.first(name) + begin // vector.per_page(self.page_bytes)
        return slice(first, first + vector.pages(stop - start, self.page_bytes))

    def blocks(
        self, name: str, start: int, stop: int, block_bytes: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return requests of at most ``block_bytes`` for an FP32 vector's parameters [start, stop).

        The result is (first lpn, bytes, first parameter), int64 each. ``start`` must be page
        aligned within the shard.
        """
        step = block_bytes // VALUE_BYTES
        first = np.arange(start, stop, step, dtype=np.int64)
        size = np.minimum(stop - first, step) * VALUE_BYTES
        offset = (first - self.shard.start) * VALUE_BYTES
        lpn = self.first(name) + offset // self.page_bytes
        return lpn, size, first


@dataclass(frozen=True)
class Stripes:
    """Vectors of a shard in super-pages: ``groups`` x (w, states...) in the planes of a die."""

    shard: Shard
    vectors: tuple[str, ...]
    groups: int
    values: int
    """Parameters per page."""
    kept: bool = False
    """True if the gradient is programmed too, into the planes after those of the vectors."""
    dtype: np.dtype = F32
    """Type of all vectors; one type, because a super-page holds the same number of values of each.
    """
    gradient_dtype: np.dtype = F32

    @staticmethod
    def of(
        shard: Shard, vectors: tuple[str, ...], geometry: Geometry, kept: bool = False,
        dtype: np.dtype = F32, gradient: np.dtype = F32,
    ) -> Stripes:  # fmt: skip
        """Pack as many groups as the planes hold; ``groups`` is 0 if none fits."""
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
        """Bytes of the gradient of a stripe."""
        return self.params * self.gradient_dtype.itemsize

    @property
    def count(self) -> int:
        """Number of super-pages that hold the shard."""
        return -(-self.shard.size // self.params)

    def span(self, super_page: int, group: int) -> tuple[int, int]:
        """Return parameters [start, stop) of one group of a super-page (empty past the shard's
        end)."""
        start = self.shard.start + super_page * self.params + group * self.values
        return min(start, self.shard.stop), min(start + self.values, self.shard.stop)

    def plane(self, vector: str, group: int) -> int:
        """Return the plane of a vector's page, or of a kept gradient's page ("g")."""
        if vector == "g":
            return self.planes + group
        return group * len(self.vectors) + self.vectors.index(vector)
