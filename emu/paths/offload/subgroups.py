"""Data of host offload: the portion of a model that is on NVMe, and its sub-groups.

Owns the files of the vectors, the sub-groups whose states are on NVMe, and the fractions of the
data on NVMe and in DRAM that are applied to the pieces simulated in place of the model. Does not
own the order of the work (path.py) or the location of a file's bytes (paths/layout/volume.py).
Source: DeepSpeed's NVMe optimizer swapper (ZeRO-Infinity, SC 2021); its options are in
options.py.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

import numpy as np

from ondie.emu.ftl.tables import logical_pages
from ondie.emu.paths.base import BACKWARD_SEGMENTS, Options
from ondie.emu.paths.layout.formats import MODEL_BYTES
from ondie.emu.paths.layout.regions import VALUE_BYTES
from ondie.emu.paths.layout.volume import Extent, File, Volume, extents
from ondie.emu.paths.offload.options import Offload, Shares
from ondie.emu.paths.pieces import Pieces, pieces
from ondie.emu.paths.update_path import UpdatingPath

MOST_GROUPS = 16
"""Maximum number of sub-groups of a simulated piece of a model, if sub-groups are pipelined."""
LARGE_TENSORS = 0.95
"""Minimum fraction of a vector's data that must be on NVMe for a model to be simulated in pieces.
Data that ratio or max_in_cpu keeps in DRAM is excluded from the fraction. Any remaining data in
DRAM belongs to small tensors, which the pieces do not reproduce."""
BLOCKS_OF_TENSOR = 16
"""Minimum average number of the host's I/O blocks per tensor for a model to be simulated in pieces.
The pieces neglect the partly filled last block of each tensor."""


def _firsts(groups: Iterable[tuple[int, int]], share: Fraction) -> list[tuple[int, int]]:
    """Return ranges [start, stop) that hold the first ``share`` (a fraction) of the parameters of
    each sub-group."""
    return [(start, start + round(share * (stop - start))) for start, stop in groups]


@dataclass
class OffloadLayout(UpdatingPath):
    """Base class of the paths of host offload: the division of the parameters into sub-groups, and
    the placement of each array on NVMe or in host DRAM according to the offload options."""

    def granule(self) -> int:
        """Return the smallest number of parameters that fills whole pages of every vector and whole
        I/O blocks of FP32 values."""
        page, block = self.cfg.flash.page_bytes, self.cfg.host.io_block_bytes
        filled = [page // slot.dtype.itemsize * slot.share for slot in self.stored.slots]
        model = (page // MODEL_BYTES,) if self.offload.parameters else ()
        return lcm(block // VALUE_BYTES, *filled, *model)

    @property
    def offload(self) -> Offload:
        return self.options.offload

    def lay_out(self) -> None:
        n_params, offload = self.trace.n_params, self.offload
        size = self.group()
        self.groups = [(start, min(start + size, n_params)) for start in range(0, n_params, size)]
        """Sub-groups in order, as ranges of parameters [start, stop)."""
        self.on_nvme = self._on_nvme()
        """Sub-groups whose states are on NVMe; the states of the other sub-groups stay in host
        DRAM."""
        page = lcm(self.cfg.flash.page_bytes, offload.align)
        states = extents(self.on_nvme, 1, 1, 0)
        slots = {slot.name: slot for slot in self.stored.slots}
        self.written = tuple(name for name in slots if name != "g")
        """Slots that a step writes: weights and states; the scales of a vector in codes follow that
        vector."""
        files = {
            name: self._scaled(states, slots[name].dtype.itemsize, slots[name].share)
            for name in self.written
        }
        gradient_bytes = slots["g"].dtype.itemsize
        shares = self.options.shares
        if not offload.in_dram_below:
            files["g"] = self._scaled(states, gradient_bytes, 1)
        elif shares:
            files["g"] = File(
                extents(_firsts(self.on_nvme, shares.gradients), gradient_bytes, page, 0),
                gradient_bytes,
            )
        else:
            files["g"] = File(
                extents(self._tensors(self.on_nvme), gradient_bytes, page, offload.in_dram_below),
                gradient_bytes,
            )
        if offload.parameters:
            if shares:
                later = _firsts(self._later(), shares.parameters)
                held = extents(later, MODEL_BYTES, page, 0)
            else:
                later = self._tensors(self._later()) if offload.in_dram_below else self._later()
                held = extents(later, MODEL_BYTES, page, offload.in_dram_below)
            files["p"] = File(held, MODEL_BYTES)
        self.volume = Volume.of(
            files,
            self.geometry,
            self.cfg.system.devices,
            self.cfg.host.io_block_bytes,
            offload.align,
        )

    def _on_nvme(self) -> list[tuple[int, int]]:
        """Return the sub-groups whose states are on NVMe, as ranges [start, stop). In a piece of a
        model, the states of the first parameters are on NVMe, in the same fraction as in the whole
        model. A sub-group that contains the last of these parameters is split in two, both in the
        result and in ``groups``."""
        offload, shares = self.offload, self.options.shares
        if shares is None:
            here = range(int(offload.ratio * len(self.groups)))
            return [
                self.groups[number]
                for number in here
                if self._bytes(number) >= offload.in_dram_below
            ]
        end = round(shares.states * self.trace.n_params)
        cut = [
            [(start, end), (end, stop)] if start < end < stop else [(start, stop)]
            for start, stop in self.groups
        ]
        self.groups = [group for part in cut for group in part]
        return [group for group in self.groups if group[1] <= end]

    @property
    def _kept_by_ratio(self) -> bool:
        return int(self.offload.ratio * len(self.groups)) < len(self.groups)

    def _later(self) -> list[tuple[int, int]]:
        """Return the ranges [start, stop) of parameters whose 16-bit copies are not kept in DRAM by
        max_in_cpu. A range is a whole sub-group or the last part of a sub-group."""
        shares = self.options.shares
        if shares is None:
            return [group for group in self.groups if group[1] > self.offload.parameters_in_dram]
        page = self.cfg.flash.page_bytes // MODEL_BYTES
        begin = round(shares.kept * self.trace.n_params / page) * page
        return [(max(start, begin), stop) for start, stop in self.groups if stop > begin]

    @property
    def shares(self) -> Shares:
        """Shares of this model that are on NVMe and in DRAM. Pieces of the model are laid out with
        these shares."""
        n_params, kept = self.trace.n_params, sum(stop - start for start, stop in self.on_nvme)
        later = sum(stop - start for start, stop in self._later())

        def stored(name: str, params: int) -> Fraction:
            whole = params * self.volume.regions[name].width
            return min(Fraction(self.volume.size(name, 0, n_params), whole or 1), Fraction(1))

        model = stored("p", later) if self.offload.parameters else Fraction(0)
        return Shares(
            states=Fraction(kept, n_params),
            gradients=stored("g", kept),
            buffer=Fraction(max(stop - start for start, stop in self.groups), n_params),
            kept=Fraction(n_params - later, n_params),
            parameters=model,
        )

    def part_options(self) -> Options:
        # Where these options are not in use, all data is on NVMe, in the whole model and in any
        # part.
        offload = self.offload
        if (
            offload.ratio == 1
            and offload.buffers is None
            and not offload.in_dram_below
            and not (offload.parameters and offload.parameters_in_dram)
        ):
            return self.options
        return replace(self.options, shares=self.shares)

    def part_settings(self, n_params: int) -> dict[str, int]:
        # Serial sub-groups do not overlap: the part uses sub-groups of the size of the whole.
        if not self.pipelines:
            return {}
        granule = self.granule()
        count = max(min(len(self.groups), MOST_GROUPS, n_params // granule), 1)
        size = -(-n_params // (count * granule)) * granule
        return {"host.subgroup_params": size} if size < self.group() else {}

    @property
    def pipelines(self) -> bool:
        """True if reads or writes of one sub-group overlap the computation of another sub-group."""
        return self.offload.pipeline_read or self.offload.pipeline_write

    def lone_part(self, n_params: int) -> bool:
        """Return True if a piece of the model with ``n_params`` parameters has only one sub-group
        although reads, writes and computation of different sub-groups overlap in the whole
        model."""
        settings = self.part_settings(n_params)
        size = settings.get("host.subgroup_params", self.group())
        return self.pipelines and len(self.groups) > 1 and n_params <= size

    def unsampled(self) -> str | None:
        if not self.on_nvme:
            return "no states are on NVMe"
        if self._kept_by_ratio and self.pipelines:
            return (
                "sub-groups in DRAM are computed in parallel with the last sub-groups on NVMe "
                "(ratio)"
            )
        if not self.offload.in_dram_below:
            return None
        for name in ("g", "p") if self.offload.parameters else ("g",):
            region, size = self.volume.regions[name], self.volume.size(name, 0, self.trace.n_params)
            begin = self._later()[0][0] if name == "p" and self._later() else 0
            params = (self.trace.n_params if name == "p" else self.on_nvme[-1][1]) - begin
            if size < LARGE_TENSORS * params * region.width:
                return f"too much of vector {name} stays in DRAM in small tensors (in_dram_below)"
            if size < BLOCKS_OF_TENSOR * self.cfg.host.io_block_bytes * len(region.extents):
                return f"tensors of {name} have too few I/O blocks (in_dram_below, host.io_block)"
        return None

    def pieces(self) -> Pieces | None:
        if self.unsampled():
            return None
        # The data on NVMe decides how often flash blocks fill, and thereby the length of the
        # pieces.
        n_params, kept = self.trace.n_params, self.on_nvme[-1][1]
        devices = self.cfg.system.devices
        found = pieces(kept, self.period() * devices, self.granule() * devices, self.group())
        return found and found.of(n_params)

    def _bytes(self, number: int) -> int:
        """Return the number of bytes of the master weights of sub-group ``number``. This size
        determines whether the sub-group stays in DRAM."""
        start, stop = self.groups[number]
        return self.stored.vectors[0].size(stop - start)

    @staticmethod
    def _scaled(held: tuple[Extent, ...], width: int, share: int) -> File:
        at = (Extent(extent.start, extent.stop, extent.at // share * width) for extent in held)
        return File(tuple(at), width, share)

    def _tensors(self, groups: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the tensors in ``groups``, cut at the start of each sub-group, as ranges [start,
        stop). Each range is stored in a separate file."""
        held = self.trace.trainable
        starts = [tensor.offset for tensor in held]
        found = []
        for start, stop in groups:
            for tensor in held[max(bisect_right(starts, start) - 1, 0) : bisect_left(starts, stop)]:
                lo, hi = max(start, tensor.offset), min(stop, tensor.offset + tensor.size)
                if lo < hi:
                    found.append((lo, hi))
        return found

    def _portions(self) -> list[tuple[int, int]]:
        """Return ranges [start, stop) of parameters, of similar size, that are read one after the
        other. The ranges are cut between pages, or between tensors if tensors are separate files.
        """
        n_params, page = self.trace.n_params, self.cfg.flash.page_bytes // MODEL_BYTES
        count = max(min(BACKWARD_SEGMENTS, n_params // page), 1)
        cuts = np.array([n_params * i // count // page * page for i in range(count)])
        if self.offload.in_dram_below and not self.options.shares:
            starts = np.array([0, *(extent.start for extent in self.volume.regions["p"].extents)])
            cuts = starts[np.searchsorted(starts, cuts, "right") - 1]
        ends = [*cuts[1:].tolist(), n_params]
        return list(zip(cuts.tolist(), ends, strict=True))

    def group(self) -> int:
        return max(self.cfg.host.subgroup_params // self.granule(), 1) * self.granule()

    def period(self) -> int:
        geometry = self.geometry
        row = geometry.pages * geometry.planes * geometry.dies * geometry.page_bytes
        kept = self.on_nvme[-1][1] if self.on_nvme else self.trace.n_params
        regions = self.volume.regions.values()
        written = sum(
            Fraction(region.width, region.share)
            * Fraction(sum(extent.stop - extent.start for extent in region.extents), kept)
            for region in regions
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
                f"GB per device, but the conventional namespace has {lpns * gb:.4g} GB"
            )
        arrays = (*self.vectors, "g")
        off = sum(stop - start for start, stop in self.groups) - sum(
            stop - start for start, stop in self.on_nvme
        )
        stays = math.ceil(off * (self.stored.bytes_each + self.stored.gradient.bytes_each))
        if stays > self.cfg.host.dram_bytes:
            return (
                f"{', '.join(arrays)} outside NVMe take {stays / 1e9:.4g} GB, but the host "
                f"has {self.cfg.host.dram_bytes / 1e9:.4g} GB of DRAM (host.dram)"
            )
        kept = self.offload.parameters_in_dram
        moved = (t.size for t in self.trace.trainable if t.offset + t.size > kept)
        largest = max(moved, default=0)
        if self.on_nvme and (reason := self.offload.stops(len(arrays), len(self.on_nvme))):
            return reason
        return None if self.options.shares else self.offload.stops_at_tensor(largest)
