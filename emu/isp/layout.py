"""Where the optimizer's vectors lie: pages of regions, and planes of super-pages.

Owns both layouts: w, m, v, g as regions of the conventional namespace, and w, m, v side by side in
the planes of one super-page. Does not own physical places (backend/mapping.py).
Source: ZeRO-Infinity (one file per tensor and state) for regions; OptimStore (HPCA 2023) for
super-pages: Adam leaves one plane of four idle, Momentum packs two groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.backend.geometry import Geometry

VALUE_BYTES = 4


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
    names: tuple[str, ...]
    page_bytes: int
    pages: int
    """Pages per region."""

    @staticmethod
    def of(shard: Shard, names: tuple[str, ...], geometry: Geometry) -> Regions:
        """Regions that begin at super-page boundaries."""
        pages = -(-shard.size * VALUE_BYTES // geometry.page_bytes)
        pages = -(-pages // geometry.planes) * geometry.planes
        return Regions(shard, names, geometry.page_bytes, pages)

    @property
    def used_pages(self) -> int:
        """Pages of a region that hold parameters; the rest of it is alignment."""
        return -(-self.shard.size * VALUE_BYTES // self.page_bytes)

    @property
    def total_pages(self) -> int:
        return self.pages * len(self.names)

    def blocks(
        self, name: str, start: int, stop: int, block_bytes: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Requests of at most ``block_bytes`` for parameters [start, stop) of a vector.

        Returns (first lpn, bytes, first parameter), int64 each. ``start`` is page aligned within
        the shard.
        """
        step = block_bytes // VALUE_BYTES
        first = np.arange(start, stop, step, dtype=np.int64)
        size = np.minimum(stop - first, step) * VALUE_BYTES
        offset = (first - self.shard.start) * VALUE_BYTES
        lpn = self.names.index(name) * self.pages + offset // self.page_bytes
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

    @staticmethod
    def of(
        shard: Shard, vectors: tuple[str, ...], geometry: Geometry, kept: bool = False
    ) -> Stripes:
        """Pack as many groups as the planes hold; ``groups`` is 0 when not even one fits."""
        groups = geometry.planes // (len(vectors) + kept)
        return Stripes(shard, vectors, groups, geometry.page_bytes // VALUE_BYTES, kept)

    @property
    def planes(self) -> int:
        """Planes in use."""
        return self.groups * len(self.vectors)

    @property
    def params(self) -> int:
        """Parameters per stripe."""
        return self.groups * self.values

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
