"""Host offload: states on NVMe, the update on the host's CPU (ZeRO-Infinity, DeepSpeed).

Owns the order: gradients written during backward; after it, per sub-group, read w m v g, update,
write w m v; serial, or pipelined over sub-groups; parameters read in forward and backward where
they are on NVMe too. Does not own time or bits.
Source: DeepSpeed's NVMe optimizer swapper (ZeRO-Infinity, SC 2021); pipeline_read and
pipeline_write default to off, hence serial.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import ClassVar

import numpy as np

from ondie.emu import rows
from ondie.emu.build import logical_pages
from ondie.emu.clock import ps_from_seconds
from ondie.emu.energy import Work
from ondie.emu.frontend import queues
from ondie.emu.host import machine
from ondie.emu.isp import formats
from ondie.emu.isp.formats import MODEL_BYTES
from ondie.emu.isp.layout import VALUE_BYTES
from ondie.emu.paths import offload_bound
from ondie.emu.paths.base import (
    BACKWARD,
    BACKWARD_SEGMENTS,
    FORWARD,
    GRADIENTS,
    PHASES,
    UPDATE,
    Options,
    Rows,
)
from ondie.emu.paths.bounds import Bound, handle_depth
from ondie.emu.paths.offload import Offload, Shares
from ondie.emu.paths.offload_memory import OffloadMemory
from ondie.emu.paths.offload_send import Handles
from ondie.emu.paths.offload_volume import Extent, File, Volume, extents
from ondie.emu.paths.updating import UpdatingPath
from ondie.emu.sampling import Pieces, pieces
from ondie.emu.system import System
from ondie.kernels.formats import NONE

MOST_GROUPS = 16
"""Sub-groups of a short part of a model that is pipelined."""
LARGE_TENSORS = 0.95
"""Of what could be on NVMe, at least, is, in a model of which pieces are simulated: where the rest
lies in it is not told by them."""
BLOCKS_OF_TENSOR = 16
"""Of the host's, at least, in such a model's tensors: in its pieces no tensor ends in a block."""


def _firsts(groups: Iterable[tuple[int, int]], share: Fraction) -> list[tuple[int, int]]:
    """The first ``share`` of each sub-group."""
    return [(a, a + round(share * (b - a))) for a, b in groups]


@dataclass
class HostOffload(UpdatingPath):
    """Host offload, serial unless its options pipeline it."""

    name: ClassVar[str] = "host_offload"
    title: ClassVar[str] = "host offload, serial"

    def unstorable(self) -> str | None:
        return formats.refused(self.options.format, self.trace.op)

    def granule(self) -> int:
        """Parameters whose every vector fills whole pages, in blocks of FP32."""
        page, block = self.cfg.flash.page_bytes, self.cfg.host.io_block_bytes
        filled = [page // s.dtype.itemsize * s.share for s in self.stored.slots]
        model = (page // MODEL_BYTES,) if self.offload.parameters else ()
        return lcm(block // VALUE_BYTES, *filled, *model)

    @property
    def offload(self) -> Offload:
        return self.options.offload

    def lay_out(self) -> None:
        n, o = self.trace.n_params, self.offload
        size = self.group()
        self.groups = [(a, min(a + size, n)) for a in range(0, n, size)]
        """Sub-groups, in order."""
        self.on_nvme = self._on_nvme()
        """Sub-groups whose states are on NVMe; those of the others stay in DRAM."""
        page = lcm(self.cfg.flash.page_bytes, o.align)
        states = extents(self.on_nvme, 1, 1, 0)
        slots = {s.name: s for s in self.stored.slots}
        self.written = tuple(name for name in slots if name != "g")
        """Weights and states, each with its scales behind it where it is in codes."""
        files = {
            name: self._scaled(states, slots[name].dtype.itemsize, slots[name].share)
            for name in self.written
        }
        g = slots["g"].dtype.itemsize
        shares = self.options.shares
        if not o.in_dram_below:
            files["g"] = self._scaled(states, g, 1)
        elif shares:
            files["g"] = File(extents(_firsts(self.on_nvme, shares.gradients), g, page, 0), g)
        else:
            files["g"] = File(extents(self._tensors(self.on_nvme), g, page, o.in_dram_below), g)
        if o.parameters:
            if shares:
                later = _firsts(self._later(), shares.parameters)
                held = extents(later, MODEL_BYTES, page, 0)
            else:
                later = self._tensors(self._later()) if o.in_dram_below else self._later()
                held = extents(later, MODEL_BYTES, page, o.in_dram_below)
            files["p"] = File(held, MODEL_BYTES)
        self.volume = Volume.of(
            files, self.geometry, self.cfg.system.devices, self.cfg.host.io_block_bytes, o.align
        )

    def _on_nvme(self) -> list[tuple[int, int]]:
        """Sub-groups whose states are on NVMe. Of a piece of a model they end where the share of
        the whole does, and the sub-group in which that is becomes two."""
        o, shares = self.offload, self.options.shares
        if shares is None:
            here = range(int(o.ratio * len(self.groups)))
            return [self.groups[k] for k in here if self._bytes(k) >= o.in_dram_below]
        end = round(shares.states * self.trace.n_params)
        cut = [[(a, end), (end, b)] if a < end < b else [(a, b)] for a, b in self.groups]
        self.groups = [group for part in cut for group in part]
        return [group for group in self.groups if group[1] <= end]

    @property
    def _kept_by_ratio(self) -> bool:
        return int(self.offload.ratio * len(self.groups)) < len(self.groups)

    def _later(self) -> list[tuple[int, int]]:
        """Sub-groups, or what is left of them, whose 16-bit parameters do not stay in DRAM."""
        shares = self.options.shares
        if shares is None:
            return [group for group in self.groups if group[1] > self.offload.parameters_in_dram]
        page = self.cfg.flash.page_bytes // MODEL_BYTES
        begin = round(shares.kept * self.trace.n_params / page) * page
        return [(max(a, begin), b) for a, b in self.groups if b > begin]

    @property
    def shares(self) -> Shares:
        """What lies where, as a piece of this model is to have it."""
        n, kept = self.trace.n_params, sum(b - a for a, b in self.on_nvme)
        later = sum(b - a for a, b in self._later())

        def stored(name: str, params: int) -> Fraction:
            whole = params * self.volume.regions[name].width
            return min(Fraction(self.volume.size(name, 0, n), whole or 1), Fraction(1))

        model = stored("p", later) if self.offload.parameters else Fraction(0)
        return Shares(Fraction(kept, n), stored("g", kept), Fraction(n - later, n), model)

    def part_options(self) -> Options:
        # Without these knobs all is on NVMe, in the whole and in any part.
        o = self.offload
        if o.ratio == 1 and not o.in_dram_below and not (o.parameters and o.parameters_in_dram):
            return self.options
        return replace(self.options, shares=self.shares)

    def part_settings(self, n_params: int) -> dict[str, int]:
        # Serial sub-groups overlap nothing: there the part's are as large as the whole's.
        if not self.pipelines:
            return {}
        granule = self.granule()
        count = max(min(len(self.groups), MOST_GROUPS, n_params // granule), 1)
        size = -(-n_params // (count * granule)) * granule
        return {"host.subgroup_params": size} if size < self.group() else {}

    @property
    def pipelines(self) -> bool:
        """Do sub-groups overlap?"""
        return self.offload.pipeline_read or self.offload.pipeline_write

    def lone_part(self, n_params: int) -> bool:
        """Does so short a part have one sub-group, and overlaps nothing as the whole does?"""
        settings = self.part_settings(n_params)
        size = settings.get("host.subgroup_params", self.group())
        return self.pipelines and len(self.groups) > 1 and n_params <= size

    def unsampled(self) -> str | None:
        if not self.on_nvme:
            return "no states are on NVMe"
        if self._kept_by_ratio and self.pipelines:
            return "sub-groups in DRAM are computed beside the last of those on NVMe (ratio)"
        if not self.offload.in_dram_below:
            return None
        for name in ("g", "p") if self.offload.parameters else ("g",):
            region, size = self.volume.regions[name], self.volume.size(name, 0, self.trace.n_params)
            begin = self._later()[0][0] if name == "p" and self._later() else 0
            params = (self.trace.n_params if name == "p" else self.on_nvme[-1][1]) - begin
            if size < LARGE_TENSORS * params * region.width:
                return f"of {name}, much stays in DRAM in small tensors (in_dram_below)"
            if size < BLOCKS_OF_TENSOR * self.cfg.host.io_block_bytes * len(region.extents):
                return f"its tensors are a few blocks each of {name} (in_dram_below, host.io_block)"
        return None

    def pieces(self) -> Pieces | None:
        if self.unsampled():
            return None
        # What is on NVMe decides how often blocks fill: pieces are as long as takes that.
        n, kept = self.trace.n_params, self.on_nvme[-1][1]
        devices = self.cfg.system.devices
        found = pieces(kept, self.period() * devices, self.granule() * devices, self.group())
        return found and found.of(n)

    def _bytes(self, k: int) -> int:
        """Bytes of the master weights of sub-group ``k``: what decides where it stays."""
        a, b = self.groups[k]
        return self.stored.vectors[0].size(b - a)

    @staticmethod
    def _scaled(held: tuple[Extent, ...], width: int, share: int) -> File:
        at = (Extent(e.start, e.stop, e.at // share * width) for e in held)
        return File(tuple(at), width, share)

    def _tensors(self, groups: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Tensors, cut where a sub-group begins: each is a file of its own."""
        held = self.trace.trainable
        starts = [t.offset for t in held]
        found = []
        for a, b in groups:
            for t in held[max(bisect_right(starts, a) - 1, 0) : bisect_left(starts, b)]:
                lo, hi = max(a, t.offset), min(b, t.offset + t.size)
                if lo < hi:
                    found.append((lo, hi))
        return found

    def _portions(self) -> list[tuple[int, int]]:
        """Parameters in portions of much the same size, cut between pages or, where they are files
        of their own, between tensors."""
        n, page = self.trace.n_params, self.cfg.flash.page_bytes // MODEL_BYTES
        count = max(min(BACKWARD_SEGMENTS, n // page), 1)
        cuts = np.array([n * i // count // page * page for i in range(count)])
        if self.offload.in_dram_below and not self.options.shares:
            starts = np.array([0, *(e.start for e in self.volume.regions["p"].extents)])
            cuts = starts[np.searchsorted(starts, cuts, "right") - 1]
        ends = [*cuts[1:].tolist(), n]
        return list(zip(cuts.tolist(), ends, strict=True))

    def group(self) -> int:
        return max(self.cfg.host.subgroup_params // self.granule(), 1) * self.granule()

    def period(self) -> int:
        g = self.geometry
        row = g.pages * g.planes * g.dies * g.page_bytes
        kept = self.on_nvme[-1][1] if self.on_nvme else self.trace.n_params
        regions = self.volume.regions.values()
        written = sum(
            Fraction(r.width, r.share) * Fraction(sum(e.stop - e.start for e in r.extents), kept)
            for r in regions
        )
        return math.ceil(row / written)

    def free_page(self) -> int:
        return self.volume.pages

    def missing(self) -> str | None:
        lpns = logical_pages(self.cfg, self.geometry)
        names = ", ".join(self.volume.regions)
        gb = self.geometry.page_bytes / 1e9
        if self.volume.pages > lpns:
            return (
                f"{names} of {self.trace.n_params:,} parameters take {self.volume.pages * gb:.4g} "
                f"GB per device, the conventional namespace has {lpns * gb:.4g} GB"
            )
        arrays = (*self.vectors, "g")
        off = sum(b - a for a, b in self.groups) - sum(b - a for a, b in self.on_nvme)
        stays = math.ceil(off * (self.stored.bytes_each + self.stored.gradient.bytes_each))
        if stays > self.cfg.host.dram_bytes:
            return (
                f"{', '.join(arrays)} of what stays off NVMe take {stays / 1e9:.4g} GB, the host "
                f"has {self.cfg.host.dram_bytes / 1e9:.4g} GB of DRAM (host.dram)"
            )
        return self.offload.short_of_buffers(len(arrays)) if self.on_nvme else None

    @property
    def window(self) -> int | None:
        """Blocks in flight through a handle, where reads and writes have one each."""
        if self.offload.threads is not None:
            return self.cfg.host.io_queue_depth
        return handle_depth(self.cfg) if self.pipelines else None

    def system(self, payload: bool, timeline: int) -> System:
        self.handles = Handles(self.offload, self.window)
        depth = None
        if self.window is not None:
            wanted = 2 * self.window * (self.offload.threads or 1)
            depth = min(wanted, self.cfg.frontend.queue_depth)
        return System(
            self.cfg, PHASES, payload=payload, timeline=timeline, queue_depth=depth,
            pairs=self.options.pairs,
        )  # fmt: skip

    def fill(self, system: System) -> None:
        for name in self.volume.regions:
            if name != "g":
                for dev, (lpn, pages) in enumerate(self.volume.used(name)):
                    system.fill(dev, lpn, pages)

    def follow(self, system: System) -> OffloadMemory:
        # The accelerator leaves the gradient in the memory that the update works in.
        return OffloadMemory(system, self.volume, self.trace.n_params, self.compute, self.stored)

    @property
    def traffic(self) -> Fraction:
        """DRAM bytes of the update of one parameter."""
        copied = self.offload.parameters and self.stored.format.out == NONE
        return self.stored.traffic + MODEL_BYTES * copied

    def work(self, steps: int) -> Work:
        # DRAM: the gradient arrives and leaves, states arrive and leave, the update in between.
        n = self.trace.n_params
        moved = sum(self.moved().values()) + self.stored.gradient.size(n)
        moved += math.ceil(self.traffic * n)
        return Work(host_dram_bits=8 * moved * self.applied(steps), host_updates=True)

    def moved(self) -> dict[str, int]:
        """Bytes of a step as planned: of gradients, read and written in the update, and of
        parameters before it."""
        size, n = self.volume.size, self.trace.n_params
        states = sum(size(v, 0, n) for v in self.written)
        gradient = size("g", 0, n)
        model = size("p", 0, n) if self.offload.parameters else 0
        again = 3 if self.offload.checkpointing else 2
        return {
            "gradients": gradient,
            "read": states + gradient,
            "written": states + model,
            "parameters": again * model,
        }

    def training_rows(self, out: Rows, step: int, after: int) -> np.ndarray:
        if not self.offload.parameters:
            return super().training_rows(out, step, after)
        s, portions = self.trace.steps[step], self._portions()
        count = len(portions)
        held: list[int] = []  # rows that end the use of a portion

        def pass_over(phase: int, seconds: float, times: int, order: list[int]) -> list[int]:
            """Read and compute portions one after the other, some read ahead."""
            total = ps_from_seconds(seconds)
            done = []
            for at, k in enumerate(order):
                ahead = self.offload.parameter_buffers
                free = held[-ahead] if len(held) >= ahead else after
                reads = [
                    self.handles.send(
                        out, queues.READ, phase, self.volume.requests("p", *portions[k]), free
                    )
                    for _ in range(times)
                ]
                arrived = np.concatenate(reads)
                begin = held[-1] if held else after
                row = out.one(
                    resource=rows.ACCELERATOR,
                    phase=phase,
                    array_ps=total * (at + 1) // count - total * at // count,
                    after0=out.join(arrived, phase) if len(arrived) else begin,
                    after1=begin,
                )
                held.append(row)
                done.append(row)
            return done

        pass_over(FORWARD, s.forward_s, 1, list(range(count)))
        back = list(reversed(range(count)))
        done = pass_over(BACKWARD, s.backward_s, 1 + self.offload.checkpointing, back)
        at = (np.arange(BACKWARD_SEGMENTS) + 1) * count // BACKWARD_SEGMENTS - 1
        return np.array(done)[np.maximum(at, 0)]

    def update(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        yield from self._write_gradients(out, step, segments)
        yield from self._update(out, out.fence(GRADIENTS))

    def _write_gradients(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        found = self.volume.requests("g", 0, self.trace.n_params)
        if not len(found.first):
            return
        width = self.stored.gradient.dtype.itemsize
        last = np.minimum(found.first + -(-found.size // width), self.trace.n_params)
        ready = self.ready_segment(step, found.first, last)
        order = np.argsort(ready, kind="stable")
        for at in range(0, len(order), rows.MAX_CHUNK):
            part = order[at : at + rows.MAX_CHUNK]
            these = type(found)(*(column[part] for column in found))
            self.handles.send(out, queues.WRITE, GRADIENTS, these, segments[ready[part]])
            if out.full():
                yield out.take()

    @property
    def beside_cpu(self) -> tuple[bool, bool]:
        o = self.offload
        several = len(self.on_nvme) > 1 and o.in_flight(len(self.vectors) + 1) > 1
        return o.pipeline_read and several, o.pipeline_write and several

    def _update(self, out: Rows, fence: int) -> Iterator[np.ndarray]:
        o, arrays = self.offload, (*self.written, "g")
        written: list[int] = []
        computed = fence
        flight = o.in_flight(len(self.vectors) + 1)
        kept = set(self.on_nvme)
        for a, b in self.groups:
            if (a, b) not in kept:
                computed = self._compute(out, a, b, computed, self._behind(written))
                continue
            # Buffers are free once a sub-group is written; what is not pipelined waits for all.
            begin = written[-flight] if len(written) >= flight else fence
            if not o.pipeline_read and (o.pipeline_write or not written):
                begin = out.join(np.array([begin, computed]), UPDATE) if written else computed
            reads = self._transfer(out, queues.READ, arrays, a, b, begin)
            ready = out.join(reads, UPDATE)
            computed = self._compute(out, a, b, ready, self._behind(written))
            names = (*self.written, "p") if o.parameters else self.written
            writes = self._transfer(out, queues.WRITE, names, a, b, computed)
            written.append(out.join(writes, UPDATE))
            if out.full():
                yield out.take()

    def _behind(self, written: list[int]) -> int:
        """The write that a computation waits for where writes are not pipelined."""
        return written[-1] if written and not self.offload.pipeline_write else -1

    def _compute(self, out: Rows, a: int, b: int, after0: int, after1: int) -> int:
        return out.one(
            resource=rows.HOST_CPU,
            phase=UPDATE,
            array_ps=machine.update_ps(self.cfg, b - a, self.traffic),
            lpn=a,
            tag=b - a,
            after0=after0,
            after1=after1,
        )

    def _transfer(
        self, out: Rows, kind: int, names: tuple[str, ...], a: int, b: int, after: int
    ) -> np.ndarray:
        """Read or write vectors of parameters [a, b) in blocks. Returns the rows' ids."""
        ids = [
            self.handles.send(out, kind, UPDATE, self.volume.requests(name, a, b), after)
            for name in names
        ]
        return np.concatenate(ids)

    def bound(self, step: int) -> Bound:
        return offload_bound.bound(
            self.cfg, self.offload, self.groups, self.on_nvme, self.moved(), self.traffic,
            len(self.vectors) + 1,
        )  # fmt: skip

    def notes(self) -> list[str]:
        o = self.offload
        found = [*o.remarks, *o.notes(len(self.vectors) + 1)]
        chosen = {"read": self.options.offload.pipeline_read}
        chosen["write"] = self.options.offload.pipeline_write
        if any(chosen.values()) and o is self.options.offload:
            names = " and ".join(f"pipeline_{name}" for name, on in chosen.items() if on)
            found.append(f"not serial: {names} as its options say")
        if self.pipelines and len(self.groups) == 1:
            size = self.cfg.host.subgroup_params
            found.append(f"all parameters fit one sub-group of {size:,}, so nothing is pipelined")
        stay = len(self.groups) - len(self.on_nvme)
        if stay:
            found.append(f"{stay} of {len(self.groups)} sub-groups stay in the host's DRAM")
        return found


@dataclass
class PipelinedOffload(HostOffload):
    """Host offload with pipeline_read and pipeline_write.

    Reads and writes have a handle each, as DeepSpeed opens them: a drive has up to so many of each
    in flight, and a burst of one does not stand before the other.
    """

    name: ClassVar[str] = "host_offload_pipelined"
    title: ClassVar[str] = "host offload, pipelined"

    @property
    def offload(self) -> Offload:
        o = self.options.offload
        own = o.pipeline_read or o.pipeline_write  # else buffers are of a serial step
        return replace(
            o, pipeline_read=True, pipeline_write=True, buffers=o.buffers if own else None,
            remarks=(),
        )  # fmt: skip
