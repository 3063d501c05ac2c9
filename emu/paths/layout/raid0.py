"""RAID 0 striping: parameters are distributed to the drives in stripes.

Owns the placement of parameters, the payload of striped vectors, and gradients sent as Top-K
elements. Does not own the order of commands (multi_drive.py, smart_infinity.py).
Source: RAID 0 of ZeRO-Infinity's baseline; Smart-Infinity (HPCA 2024) spreads every sub-group
over its drives. A kept gradient element takes 4 bytes for the index and 4 for the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.nvme.moved_bytes import POISON
from ondie.emu.paths.layout.regions import VALUE_BYTES, Regions, Shard
from ondie.emu.paths.payload import Conventional
from ondie.kernels import topk

PAIR_BYTES = 8
"""Size of the index and the value of one gradient element that Top-K keeps, bytes."""


@dataclass(frozen=True)
class Striping:
    """Round-robin distribution of ``n_params`` parameters over ``devices`` drives, in stripes of
    ``stripe`` parameters.

    The storage position of a parameter is its index in storage order: all parameters of the first
    drive, then those of the second, and so on.
    """

    n_params: int
    devices: int
    stripe: int

    def shards(self) -> tuple[Shard, ...]:
        """Return one shard per drive: the range of storage positions that the drive holds."""
        whole, rest = divmod(self.n_params, self.stripe)
        stop = 0
        out = []
        for dev in range(self.devices):
            start = stop
            stop += self.stripe * (whole // self.devices + (dev < whole % self.devices))
            stop += rest if dev == whole % self.devices else 0
            out.append(Shard(dev, start, stop))
        return tuple(out)

    def pieces(self, shard: Shard, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first storage position, last storage position + 1, first parameter) of each whole
        or partial stripe within the storage positions [start, stop) of a drive."""
        while start < stop:
            round_index, offset = divmod(start - shard.start, self.stripe)
            end = min(stop, start + self.stripe - offset)
            yield start, end, (round_index * self.devices + shard.device) * self.stripe + offset
            start = end

    def first(self, shard: Shard, places: np.ndarray) -> np.ndarray:
        """Return the indices of the parameters at the storage positions ``places`` of a drive,
        int64[n]."""
        round_index, offset = np.divmod(places - shard.start, self.stripe)
        parameters: np.ndarray = (round_index * self.devices + shard.device) * self.stripe + offset
        return parameters

    def order(self) -> np.ndarray:
        """Return the index of the parameter at each storage position, int64[n_params]."""
        parts = [self.first(shard, np.arange(shard.start, shard.stop)) for shard in self.shards()]
        return np.concatenate(parts)


@dataclass(frozen=True)
class Bucket:
    """Elements of a drive's part of the gradient that Top-K compresses together: the elements at
    storage positions [start, stop), of which ``k`` are kept. Storage positions are defined in
    :class:`Striping`."""

    device: int
    start: int
    stop: int
    k: int

    @property
    def n_bytes(self) -> int:
        """Size of the compressed bucket on the link and on flash, bytes."""
        return PAIR_BYTES * self.k

    def packed(self, gradient: np.ndarray) -> np.ndarray:
        """Return the indices and values of the ``k`` elements with the largest magnitudes,
        uint8[n_bytes]. ``gradient``: gradient of the bucket, float32[stop - start]."""
        index, value = topk.compress(np.ascontiguousarray(gradient), self.k)
        return np.concatenate([index.view(np.uint8), value.view(np.uint8)])

    def dense(self, packed: np.ndarray) -> np.ndarray:
        """Return the decompressed gradient of the bucket, float32[stop - start]. Elements that
        were not kept are 0. ``packed``: bytes as returned by :meth:`packed`."""
        index, value = (part.copy() for part in np.split(packed[: self.n_bytes], 2))
        out = np.empty(self.stop - self.start, np.float32)
        topk.scatter(index.view(np.uint32), value.view(np.float32), out)
        return out


class Striped(Conventional):
    """Stored bytes (payload) of vectors that are striped over drives. Each vector is stored drive
    by drive, in the order of storage positions (:class:`Striping`). Vectors from the trace, and
    vectors that are compared with the trace, are reordered."""

    def __init__(
        self,
        system: System,
        regions: tuple[Regions, ...],
        compute: Callable[[int, int, dict[str, np.ndarray], np.ndarray], None],
        striping: Striping,
        buckets: tuple[Bucket, ...] = (),
    ) -> None:
        super().__init__(system, regions, compute, gradient_arrives=True)
        self.order = striping.order()
        self.buckets = buckets
        """Buckets in which the gradient is compressed; empty if the gradient is not compressed."""

    def store_initial(self, vectors: dict[str, np.ndarray]) -> None:  # type: ignore[override]
        super().store_initial({name: values[self.order] for name, values in vectors.items()})

    def stored(self, name: str) -> np.ndarray:
        return self.parameters(super().stored(name))

    def parameters(self, by_place: np.ndarray) -> np.ndarray:
        """Return a vector in parameter order. ``by_place``: the vector in the order in which the
        drives store its elements (order of storage positions), [n_params]."""
        out = np.empty_like(by_place)
        out[self.order] = by_place
        return out

    def offer_gradient(self, gradient: np.ndarray) -> None:
        by_place = gradient[self.order]
        if not self.buckets:
            super().offer_gradient(by_place)
            return
        for bucket in self.buckets:
            self._pages(bucket)[: bucket.n_bytes] = bucket.packed(
                by_place[bucket.start : bucket.stop]
            )

    def _pages(self, bucket: Bucket) -> np.ndarray:
        """Return the memory of a compressed bucket, uint8: the pages that start where the
        uncompressed gradient of the bucket would start."""
        regions = self.regions[bucket.device]
        at = (bucket.start - regions.shard.start) * VALUE_BYTES // regions.page_bytes
        at += regions.first("g")
        pages = -(-bucket.n_bytes // regions.page_bytes)
        return self.memory[bucket.device][at : at + pages].reshape(-1)

    def _row(self, dev: int, resource: int, first: int, count: int) -> None:
        if self.buckets and resource == plan_rows.ISP:
            shard = self.regions[dev].shard
            for bucket in self.buckets:
                if bucket.device == dev and first <= bucket.start < first + count:
                    pages = self._pages(bucket)
                    dense = bucket.dense(pages)
                    pages[:] = POISON  # consumed: the buffer is free
                    piece = slice(bucket.start - shard.start, bucket.stop - shard.start)
                    self.vector(dev, "g")[piece] = dense
        super()._row(dev, resource, first, count)
