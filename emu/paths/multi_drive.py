"""Base of paths in which several drives work in lockstep: striping, gradient writes during
backward, sub-groups.

Owns the plan rows of forward, of backward and of transfers, and the split of parameters into
sub-groups. Does not own the order of work in a sub-group (smart_infinity.py) or placement
(layout/raid0.py).
Source: ZeRO-Infinity and Smart-Infinity (HPCA 2024): sub-groups are processed one after the other
on all drives, which load, compute and write together. Gradients are written during backward as in
DeepSpeed's swapper (offload/aio.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ondie.emu.clock import ps_from_seconds
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.nvme import command
from ondie.emu.paths.base import (
    BACKWARD,
    BACKWARD_SEGMENTS,
    FORWARD,
    GRADIENTS,
    UPDATE,
    Rows,
)
from ondie.emu.paths.layout.raid0 import Bucket, Striped, Striping
from ondie.emu.paths.layout.regions import VALUE_BYTES
from ondie.emu.paths.offload.aio import GradientSwapper, PinnedBuffers
from ondie.emu.paths.update_path import ConventionalPath

Places = dict[int, tuple[int, int]]
"""Range of storage positions [start, stop) by drive. The storage position of a parameter is its
index in storage order (layout/raid0.py)."""


class Part(NamedTuple):
    """Blocks of one vector on one drive that are read or written. ``lpn``: first logical page of
    each block, ``size``: bytes of each block, int64[n] each."""

    device: int
    resource: int
    kind: int
    lpn: np.ndarray
    size: np.ndarray


@dataclass
class InStep(ConventionalPath):
    """Path with vectors striped over all drives. During backward, gradients are copied into pinned
    buffers and written to the drives in the background. Then the sub-groups are updated one after
    the other; all drives work on the same sub-group in lockstep."""

    def granule(self) -> int:
        """Return the number of parameters in a stripe. A stripe is one host block (host.io_block),
        rounded up to whole super-pages."""
        return self.padded(self.cfg.host.io_block_bytes) // VALUE_BYTES

    def padded(self, n_bytes: int) -> int:
        """Return ``n_bytes`` rounded up to whole super-pages. The end of a vector is padded, as in
        aligned direct I/O, so that every super-page is transferred as a whole."""
        size = self.geometry.super_page_bytes
        return -(-n_bytes // size) * size

    def lay_out(self) -> None:
        self.striping = Striping(self.trace.n_params, self.cfg.system.devices, self.granule())
        self.shards = self.striping.shards()
        super().lay_out()
        self.subgroups = self._subgroups()
        self.buckets: tuple[Bucket, ...] = ()

    def most(self) -> int:
        """Return the maximum number of parameters of a sub-group on one drive."""
        return max(-(-self.cfg.host.subgroup_params // self.cfg.system.devices), self.granule())

    def group(self) -> int:
        return self.most() * self.cfg.system.devices

    @property
    def written(self) -> tuple[str, ...]:
        return (*self.vectors, "g")

    def _subgroups(self) -> list[Places]:
        """Return the sub-groups. On every drive, a sub-group covers the same range of positions in
        the drive's shard, cut at multiples of a stripe."""
        longest = max(shard.size for shard in self.shards)
        number = -(-longest // max(self.most(), self.granule()))
        stripes = -(-longest // self.granule())
        cuts = [self.granule() * (stripes * i // number) for i in range(number + 1)]
        return [
            {
                shard.device: (shard.start + start, shard.start + min(stop, shard.size))
                for shard in self.shards
                if start < shard.size
            }
            for start, stop in zip(cuts, cuts[1:], strict=False)
        ]

    def follow(self, system: System) -> Striped:
        return Striped(system, self.regions, self.compute, self.striping, self.buckets)

    def compute(
        self, start: int, stop: int, vectors: dict[str, np.ndarray], gradient: np.ndarray
    ) -> None:
        """Update the parameters at storage positions [start, stop) of one drive in place, one
        stripe after the other."""
        shard = next(s for s in self.shards if s.start <= start < s.stop)
        for a, b, first in self.striping.pieces(shard, start, stop):
            piece = slice(a - start, b - start)
            part = {name: values[piece] for name, values in vectors.items()}
            super().compute(first, first + b - a, part, gradient[piece])

    def delivered(self) -> np.ndarray | None:
        sent = super().delivered()
        if sent is None:
            return None
        assert isinstance(self.payload, Striped)
        return self.payload.parameters(sent)

    # --- rows

    def plan(self, step: int) -> Iterator[np.ndarray]:
        out = Rows(self.next_row)
        begin = out.fence(BACKWARD)
        if self.trace.steps[step].skipped:
            self.training_rows(out, step, begin)
        else:
            yield from self._train(out, step, begin)
            yield from self.rounds(out, out.fence(GRADIENTS))
        yield out.take()
        self.next_row = out.next

    def update(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        raise AssertionError("subclasses of InStep must implement plan()")

    @abstractmethod
    def rounds(self, out: Rows, fence: int) -> Iterator[np.ndarray]:
        """Yield the plan rows that update every sub-group, after the row with id ``fence``."""

    def _train(self, out: Rows, step: int, after: int) -> Iterator[np.ndarray]:
        """Yield the plan rows of forward and of the segments of backward, including the copies of
        gradients into pinned buffers and the writes of these buffers."""
        step_record = self.trace.steps[step]
        forward = ps_from_seconds(step_record.forward_s)
        row = out.one(resource=plan_rows.ACCELERATOR, phase=FORWARD, array_ps=forward, after0=after)
        total = ps_from_seconds(step_record.backward_s)
        blocks = self._gradient_blocks(step)

        def send(out: Rows, these: np.ndarray, after: int) -> None:
            out.add(
                len(these),
                resource=plan_rows.NVME,
                kind=command.WRITE,
                phase=GRADIENTS,
                after0=after,
                **{name: blocks[name][these] for name in ("device", "lpn", "bytes_in")},
            )

        swapper = GradientSwapper(self.buffers, blocks["bytes_in"], blocks["ready"], send)
        for i in range(BACKWARD_SEGMENTS):
            time = total * (i + 1) // BACKWARD_SEGMENTS - total * i // BACKWARD_SEGMENTS
            mine = blocks["ready"] == i
            time += self.choice_ps(int(blocks["params"][mine].sum()))
            row = out.one(resource=plan_rows.ACCELERATOR, phase=BACKWARD, array_ps=time, after0=row)
            row = swapper.after_segment(out, i, row)
            if out.full():
                yield out.take()
        swapper.flush(out, row)

    @property
    def buffers(self) -> PinnedBuffers:
        """Pinned buffers of the host for gradients, each as large as a sub-group."""
        params = min(self.cfg.host.subgroup_params, self.trace.n_params)
        return PinnedBuffers(
            self.options.offload.buffers,
            params * VALUE_BYTES,
            self.cfg.host.gradient_copy_bytes_per_s,
        )

    def choice_ps(self, n_params: int) -> int:
        """Return the time in which the accelerator selects the gradient elements to send, ps.
        ``n_params``: number of gradient elements to select from. The time is 0 without compression.
        """
        return 0

    def _gradient_blocks(self, step: int) -> dict[str, np.ndarray]:
        """Return the blocks of the gradient as columns by name ("device", "lpn", "bytes_in",
        "params", "position" on the device, "ready": backward segment), in the order in which they
        are ready, alternating between the drives."""
        parts: dict[str, list[np.ndarray]] = {}
        for regions in self.regions:
            shard = regions.shard
            if not shard.size:
                continue
            if self.buckets:
                mine = [bucket for bucket in self.buckets if bucket.device == shard.device]
                start = np.array([bucket.start for bucket in mine])
                stop = np.array([bucket.stop for bucket in mine])
                size = np.array([self.padded(bucket.n_bytes) for bucket in mine])
                page = (start - shard.start) * VALUE_BYTES // self.geometry.page_bytes
                lpn = regions.first("g") + page
            else:
                lpn, size, start = regions.blocks(
                    "g", shard.start, shard.stop, self.cfg.host.io_block_bytes
                )
                stop = start + size // VALUE_BYTES
                size[-1] = self.padded(size[-1])
            first = self.striping.first(shard, start)
            last = self.striping.first(shard, stop - 1)
            ready = self._ready(step, first, last)
            columns = {
                "device": np.full(len(lpn), shard.device), "lpn": lpn, "bytes_in": size,
                "ready": ready, "params": stop - start, "position": np.arange(len(lpn)),
            }  # fmt: skip
            for name, column in columns.items():
                parts.setdefault(name, []).append(column)
        found = {name: np.concatenate(columns) for name, columns in parts.items()}
        order = np.lexsort((found["device"], -found["position"], found["ready"]))
        return {name: column[order] for name, column in found.items()}

    def _ready(self, step: int, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the backward segments after which the gradients of ranges of stripes are ready,
        int64[n]. Each range extends from the stripe of parameter ``first`` to the stripe of
        parameter ``last``."""
        size = self.granule()
        ends = np.minimum((last // size + 1) * size, self.trace.n_params)
        return self.ready_segment(step, first, ends)

    def parts(
        self, kind: int, names: tuple[str, ...], subgroup: Places, resource: int = plan_rows.ISP_IO
    ) -> list[Part]:
        """Return the transfers of the blocks of vectors ``names`` for ``subgroup``, one Part per
        drive and vector. ``kind``: READ or WRITE of nvme/command.py. ``resource``: resource of the
        transfers' plan rows."""
        return [
            Part(dev, resource, kind, *self._extents(name, dev, start, stop))
            for dev, (start, stop) in subgroup.items()
            for name in names
        ]

    def _extents(
        self, name: str, device: int, begin: int, end: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (first logical page, bytes), int64[n] each, of the blocks of a drive that hold
        storage positions [begin, end) of vector ``name``."""
        regions = self.regions[device]
        if name == "g" and self.buckets:
            mine = [
                bucket
                for bucket in self.buckets
                if bucket.device == device and begin <= bucket.start < end
            ]
            start = np.array([bucket.start for bucket in mine], np.int64)
            page = (start - regions.shard.start) * VALUE_BYTES // self.geometry.page_bytes
            size = np.array([self.padded(bucket.n_bytes) for bucket in mine])
            return regions.first("g") + page, size
        lpn, size, _ = regions.blocks(name, begin, end, self.cfg.host.io_block_bytes)
        size[-1] = self.padded(size[-1])
        return lpn, size

    def transfer(
        self, out: Rows, parts: list[Part], fence: int, phase: int = UPDATE, per_param: int = 0
    ) -> None:
        """Add plan rows that transfer all blocks of ``parts`` after the row with id ``fence``,
        alternating between the drives and between the vectors of a drive. Reads and writes of a
        drive share one queue with the host's queue depth. ``per_param``: bytes per parameter if the
        rows must state their number of parameters, else 0."""
        counts = [len(part.lpn) for part in parts]
        share = np.concatenate([np.arange(count) / count for count in counts if count])
        which = np.repeat(np.arange(len(parts)), counts)
        order = np.lexsort((which, share))
        which = which[order]
        device, resource, kind = (
            np.array(column)[which] for column in zip(*(part[:3] for part in parts), strict=True)
        )
        lpn = np.concatenate([part.lpn for part in parts])[order]
        size = np.concatenate([part.size for part in parts])[order]
        out_of = (kind == command.READ) | (resource == plan_rows.DMA_UP)
        before = np.full(len(order), -1, np.int64)
        for dev in dict.fromkeys(part.device for part in parts):
            line = np.flatnonzero((device == dev) & (resource != plan_rows.NVME))
            before[line[self._depth :]] = out.next + line[: -self._depth]
        out.add(
            len(order),
            device=device,
            resource=resource,
            kind=kind,
            phase=phase,
            lpn=lpn,
            bytes_in=np.where(out_of, 0, size),
            bytes_out=np.where(out_of, size, 0),
            after0=fence,
            after1=before,
            tag=size // per_param if per_param else 0,
        )

    @property
    def _depth(self) -> int:
        """Maximum number of blocks in flight on a drive: block i waits for block i - depth."""
        return min(self.cfg.host.io_queue_depth, self.cfg.frontend.queue_depth)
