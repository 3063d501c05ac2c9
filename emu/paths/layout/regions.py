"""Layouts of the optimizer's vectors: pages of regions, and planes of super-pages.

Owns both layouts: w, m, v, g as regions of the conventional namespace, and w, m, v in adjacent
planes of one super-page. Does not own physical addresses (ftl/page_map.py) or values per page
(formats.py).
Source: ZeRO-Infinity (one file per tensor and state) for regions; OptimStore (HPCA 2023) for
super-pages. With four planes, Adam leaves one plane idle, and Momentum fills the planes with two
groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.layout.formats import Vector

VALUE_BYTES = 4
"""Size of an FP32 value, bytes."""
F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Shard:
    """Range of parameters [start, stop) whose vectors are stored on one device."""

    device: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def shards(n_params: int, devices: int, granule: int) -> tuple[Shard, ...]:
    """Split parameters evenly over devices, at multiples of ``granule`` parameters; return one
    shard per device."""
    units = -(-n_params // granule)
    cuts = [min(n_params, granule * (units * i // devices)) for i in range(devices + 1)]
    return tuple(Shard(i, cuts[i], cuts[i + 1]) for i in range(devices))


@dataclass(frozen=True)
class Regions:
    """Layout of a shard's vectors in the conventional namespace. Each vector occupies consecutive
    logical pages (a region)."""

    shard: Shard
    vectors: tuple[Vector, ...]
    page_bytes: int
    super_page: int
    """Number of logical pages of a super-page."""

    @staticmethod
    def of(shard: Shard, vectors: tuple[Vector, ...], geometry: Geometry) -> Regions:
        """Return the regions of ``vectors``. Every region starts at a super-page boundary."""
        return Regions(shard, vectors, geometry.page_bytes, geometry.planes * geometry.slots)

    def vector(self, name: str) -> Vector:
        """Return the storage description of the vector called ``name``."""
        return next(vector for vector in self.vectors if vector.name == name)

    def used(self, name: str) -> int:
        """Return the number of pages that hold parameters in the region of vector ``name``. The
        other pages of the region are padding."""
        return self.vector(name).pages(self.shard.size, self.page_bytes)

    @cached_property
    def firsts(self) -> dict[str, int]:
        """First logical page of each region by vector name. The key "" holds the first free page
        after all regions."""
        found, at = {}, 0
        for vector in self.vectors:
            found[vector.name] = at
            at += -(-self.used(vector.name) // self.super_page) * self.super_page
        return found | {"": at}

    def first(self, name: str) -> int:
        return self.firsts[name]

    @property
    def total_pages(self) -> int:
        return self.firsts[""]

    def pages(self, name: str, start: int, stop: int) -> slice:
        """Return the logical pages that hold parameters [start, stop) of a vector, as a slice.
        ``start`` must be the first parameter of a page."""
        vector, begin = self.vector(name), start - self.shard.start
        first = self.first(name) + begin // vector.per_page(self.page_bytes)
        return slice(first, first + vector.pages(stop - start, self.page_bytes))

    def blocks(
        self, name: str, start: int, stop: int, block_bytes: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the block requests for parameters [start, stop) of FP32 vector ``name``, each of
        at most ``block_bytes``. The result is (first logical page, bytes, first parameter),
        int64[n] each. ``start`` must be the first parameter of a page."""
        step = block_bytes // VALUE_BYTES
        first = np.arange(start, stop, step, dtype=np.int64)
        size = np.minimum(stop - first, step) * VALUE_BYTES
        offset = (first - self.shard.start) * VALUE_BYTES
        lpn = self.first(name) + offset // self.page_bytes
        return lpn, size, first


@dataclass(frozen=True)
class Stripes:
    """Layout of a shard's vectors in super-pages. ``groups``: number of groups of planes per die.
    Each group holds one page of every vector (w and the states)."""

    shard: Shard
    vectors: tuple[str, ...]
    groups: int
    values: int
    """Number of parameters per page."""
    kept: bool = False
    """True if the gradient is also programmed, into the planes that follow those of the vectors."""
    dtype: np.dtype = F32
    """Type of all vectors. The vectors share one type, because all planes of a super-page must hold
    the same number of values.
    """
    gradient_dtype: np.dtype = F32

    @staticmethod
    def of(
        shard: Shard, vectors: tuple[str, ...], geometry: Geometry, kept: bool = False,
        dtype: np.dtype = F32, gradient: np.dtype = F32,
    ) -> Stripes:  # fmt: skip
        """Return stripes with the maximum number of groups that the planes of a die can hold;
        ``groups`` is 0 if the planes cannot hold one group. ``dtype``, ``gradient``: dtypes of
        the vectors and of the gradient."""
        groups = geometry.planes // (len(vectors) + kept)
        values = geometry.flash_page_bytes // dtype.itemsize
        return Stripes(shard, vectors, groups, values, kept, dtype, gradient)

    @property
    def planes(self) -> int:
        """Number of planes of a die that the vectors of a stripe use."""
        return self.groups * len(self.vectors)

    @property
    def params(self) -> int:
        """Number of parameters in a stripe."""
        return self.groups * self.values

    @property
    def gradient_bytes(self) -> int:
        """Size of the gradient of a stripe, bytes."""
        return self.params * self.gradient_dtype.itemsize

    @property
    def count(self) -> int:
        """Number of stripes, one per super-page, that hold the parameters of ``shard``."""
        return -(-self.shard.size // self.params)

    def span(self, super_page: int, group: int) -> tuple[int, int]:
        """Return the parameters [start, stop) that group ``group`` of planes of a super-page holds.
        Past the end of the shard, the range is empty."""
        start = self.shard.start + super_page * self.params + group * self.values
        return min(start, self.shard.stop), min(start + self.values, self.shard.stop)

    def plane(self, vector: str, group: int) -> int:
        """Return the plane that contains a group's page of ``vector``; "g" selects the programmed
        gradient."""
        if vector == "g":
            return self.planes + group
        return group * len(self.vectors) + self.vectors.index(vector)
