"""Volume of offloaded vectors: files striped over the drives as RAID 0.

Owns files, stripes, and the block requests of a range. Does not own the time at which requests
are sent (offload/path.py) or the bytes of the vectors (offload/host_memory.py).
Source: DeepSpeed keeps one file per sub-group and state, and one file per gradient; Linux md RAID
0:
chunk c of the volume is chunk c // drives of drive c % drives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

import numpy as np

from ondie.emu.nand.geometry import Geometry


class Extent(NamedTuple):
    """Contiguously stored range of parameters [start, stop) of a vector. ``at``: byte offset at
    which the range starts in the vector's region of the volume."""

    start: int
    stop: int
    at: int


class Requests(NamedTuple):
    """Block requests to the drives of a volume, each of at most one block. Every column is
    int64[n]: drive, first logical page, bytes, first parameter."""

    device: np.ndarray
    lpn: np.ndarray
    size: np.ndarray
    first: np.ndarray


class File(NamedTuple):
    """Description of a file that holds one vector: its extents, the ``width`` of an entry (a value
    or a scale) in bytes, and the number of parameters per entry (``share``)."""

    extents: tuple[Extent, ...]
    width: int
    share: int = 1


@dataclass(frozen=True)
class Region:
    """Location of a vector in the volume: its extents, in order, and its first logical page, which
    has the same number on all drives."""

    extents: tuple[Extent, ...]
    width: int
    lpn: int
    pages: int
    """Number of pages that the region occupies on every drive."""
    share: int = 1
    """Number of parameters per entry (a value or a scale); extents start at multiples of this
    number."""

    def bytes(self, count: int) -> int:
        """Return the size in bytes of the entries (values or scales) of ``count`` consecutive
        parameters. The first of these parameters must be the first parameter of an entry."""
        return -(-count // self.share) * self.width

    def overlapping(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first parameter, last parameter + 1, byte offset in the region) for each stored
        range of parameters within [start, stop)."""
        first = bisect_right(self.extents, start, key=lambda extent: extent.stop)
        last = bisect_left(self.extents, stop, key=lambda extent: extent.start)
        for extent in self.extents[first:last]:
            lo, hi = max(start, extent.start), min(stop, extent.stop)
            yield lo, hi, extent.at + (lo - extent.start) // self.share * self.width

    @property
    def size(self) -> int:
        """Total size of the region over all drives, up to the end of its last extent, bytes."""
        extent = self.extents[-1] if self.extents else Extent(0, 0, 0)
        return extent.at + self.bytes(extent.stop - extent.start)


def extents(
    pieces: Sequence[tuple[int, int]], width: int, page: int, below: int
) -> tuple[Extent, ...]:
    """Return one extent for each range of parameters in ``pieces`` whose size is at least ``below``
    bytes and not 0. Skip smaller ranges. Each extent starts at a multiple of ``page`` bytes.
    ``width``: bytes per parameter."""
    found, at = [], 0
    for start, stop in pieces:
        size = (stop - start) * width
        if size >= max(below, 1):
            found.append(Extent(start, stop, at))
            at += -(-size // page) * page
    return tuple(found)


@dataclass(frozen=True)
class Volume:
    """Regions of vectors, striped round-robin over ``devices`` drives. ``page``: size of a logical
    page, bytes. ``align``: requests are padded to multiples of this number of bytes."""

    devices: int
    page: int
    block: int
    """Maximum size of a request, bytes."""
    align: int
    regions: Mapping[str, Region]

    @staticmethod
    def of(
        files: Mapping[str, File],
        geometry: Geometry,
        devices: int,
        block: int,
        align: int,
    ) -> Volume:
        """Return a volume with one region for each of ``files``, in their order. Requests are
        padded to multiples of ``align`` bytes."""
        page, at, made = geometry.page_bytes, 0, {}
        for name, (held, width, share) in files.items():
            end = Region(held, width, 0, 0, share).size
            pages = -(-(-(-end // align) * align) // page)
            step = geometry.planes
            if devices > 1:  # whole chunks on each drive
                chunk = lcm(block, page) // page
                pages = -(-pages // (chunk * devices)) * chunk
                step = lcm(step, chunk)
            pages = -(-pages // step) * step
            made[name] = Region(held, width, at, pages, share)
            at += pages
        return Volume(devices, page, block, align, made)

    @property
    def chunk(self) -> int:
        """Size of a stripe on one drive, bytes: a multiple of both block and page."""
        return lcm(self.block, self.page)

    @property
    def pages(self) -> int:
        """Number of logical pages that the volume uses on every drive."""
        return sum(regions.pages for regions in self.regions.values())

    def place(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (drive, byte offset from the region's first page on the drive), int64[n] each, of
        n bytes of a region. ``at``: offsets of these bytes in the region, int64[n]."""
        if self.devices == 1:
            return np.zeros_like(at), at
        chunk, rest = np.divmod(at, self.chunk)
        return chunk % self.devices, chunk // self.devices * self.chunk + rest

    def _cuts(self, lo: int, hi: int) -> np.ndarray:
        """Return the byte offsets at which the requests for bytes [lo, hi) of a region start,
        int64[n]."""
        cuts = np.arange(lo, hi, self.block, dtype=np.int64)
        if self.devices > 1 and (lo % self.chunk or self.block != self.chunk):
            chunks = np.arange(-(-lo // self.chunk) * self.chunk, hi, self.chunk, dtype=np.int64)
            cuts = np.union1d(cuts, chunks)
        return cuts

    def requests(self, name: str, start: int, stop: int) -> Requests:
        """Return requests of at most one block for parameters [start, stop) of vector ``name``,
        excluding parameters that stay in host DRAM."""
        region = self.regions[name]
        parts = []
        for lo, hi, at in region.overlapping(start, stop):
            end = at + region.bytes(hi - lo)
            cuts = self._cuts(at, -(-end // self.align) * self.align)
            size = np.diff(cuts, append=-(-end // self.align) * self.align)
            first = np.minimum(lo + (cuts - at) // region.width * region.share, hi - 1)
            device, byte = self.place(cuts)
            parts.append(np.stack([device, region.lpn + byte // self.page, size, first]))
        table = np.concatenate(parts, axis=1) if parts else np.zeros((4, 0), np.int64)
        return Requests(*table)

    def pieces(self, name: str, start: int, b: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first parameter, last parameter + 1, drive, byte offset on the drive) for each
        contiguous range within parameters ``start`` to ``b`` - 1 of vector ``name``."""
        region = self.regions[name]
        for lo, hi, at in region.overlapping(start, b):
            end = at + region.bytes(hi - lo)
            cuts = self._cuts(at, end) if self.devices > 1 else np.array([at])
            device, byte = self.place(cuts)
            ends = np.append(cuts[1:], end)
            for cut, stop, dev, where in zip(cuts, ends, device, byte, strict=True):
                first = lo + int(cut - at) // region.width * region.share
                last = min(lo + int(stop - at) // region.width * region.share, hi)
                yield first, last, int(dev), region.lpn * self.page + int(where)

    def used(self, name: str) -> list[tuple[int, int]]:
        """Return (first logical page, number of pages) of the pages that vector ``name`` occupies,
        one pair per drive."""
        region = self.regions[name]
        pages = -(-region.size // self.page)
        if self.devices == 1:
            return [(region.lpn, pages)]
        chunk = self.chunk // self.page
        whole, rest = divmod(pages, chunk)
        out = []
        for dev in range(self.devices):
            mine = (whole // self.devices + (dev < whole % self.devices)) * chunk
            out.append((region.lpn, mine + (rest if dev == whole % self.devices else 0)))
        return out

    def size(self, name: str, start: int, stop: int) -> int:
        """Return the number of bytes that parameters [start, stop) of a vector occupy on the
        drives, including padding."""
        region = self.regions[name]
        return sum(
            -(-region.bytes(hi - lo) // self.align) * self.align
            for lo, hi, _ in region.overlapping(start, stop)
        )
