"""Smart-Infinity: in-storage updates by sub-group, and the RAID 0 offload baseline.

Owns the command order of SmartUpdate, its handler, SmartComp and the baseline, and the buckets of
compression. Does not own time (engine/), the payload (payload.py), or the rows of transfers
(multi_drive.py).
Source: Smart-Infinity (HPCA 2024). The table shows the time of the update of 4.0 G parameters on 6
drives in seconds, calculated from the paper's component rates (SSD 2.78 and 1.63 GB/s, engine 8.2
GB/s, shared link 8 GB/s). Published values are in brackets.

    per drive 667 M parameters, peer to peer: load w m v g 10.7 GB / 2.78 = 3.84, Adam on 28 B/param
    18.7 GB / 8.2 = 2.28, write w m v 8.0 GB / 1.63 = 4.91; all drives: w to the host 16 / 8 = 2.0
    SmartUpdate   one after the other:                      3.84 + 2.28 + 4.91 + 2.0 = 13.0 [13.04]
    handler       5.3 GB of m and v are written while the next sub-group loads: 3.27 s concurrent
                  with 3.84, on channels and dies of 3.3 and 2.0 GB/s: 9.8 if nothing else limited
                  the writes                                                  11.6 [12.27]
    SmartComp     g is 0.08 B/param (2 %, half of which is indexes), passed from the decompressor to
                  the update on chip: load 2.90, Adam on 24 B/param 1.96            10.5 [10.77]
    baseline      RAID0, link 8 GB/s: read 64 GB 8.0, write 48 GB 6.0, CPU 3.45 (fit) [17.55]

The published rate of 2.9 GB/s for decompression with update is interpreted as bytes of gradient
produced (1.38 ns per parameter, compared with 2.9 ns for an update). Interpreted as all bytes of
the update, it would give an update of 6.4 s.
Backward waits for the copies of gradients into pinned buffers: 16 GB take 2.1 s of the 5.33 to 5.59
s of backward. With Top-K on the GPU, backward copies 0.3 GB and takes 4.14 s. Full buffers are
written during backward. The baseline spreads a sub-group over all drives. The other paths give each
drive a whole sub-group (repository: sub_group_id % num_ssds), and the drives update their
sub-groups together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.compute import host_cpu, isp_cores
from ondie.emu.engine.core import plan_rows
from ondie.emu.nvme import command
from ondie.emu.paths import statement
from ondie.emu.paths.base import NO_PROCESSOR, UPDATE, WEIGHTS_UP, Rows
from ondie.emu.paths.closed_form import (
    Bound,
    Demand,
    engine_s,
    isp_path,
    parts_text,
    with_latency,
)
from ondie.emu.paths.layout.raid0 import Bucket
from ondie.emu.paths.layout.regions import VALUE_BYTES
from ondie.emu.paths.multi_drive import InStep, Part, Places
from ondie.emu.paths.offload.closed_form import bound
from ondie.emu.paths.offload.options import Offload
from ondie.emu.paths.optimizer_step import Arithmetic
from ondie.emu.paths.statement import Work


@dataclass
class SmartBase(InStep):
    """Path of Smart-Infinity's baseline: serial host offload (ZeRO-Infinity) with the vectors on
    RAID 0."""

    name: ClassVar[str] = "smart_base"
    title: ClassVar[str] = "host offload, RAID0"

    def missing(self) -> str | None:
        return self.too_large(self.written)

    def work(self, steps: int) -> Work:
        gradient = VALUE_BYTES * self.trace.n_params
        states = len(self.vectors) * gradient
        made = statement.deepspeed_step(
            self.trace.n_params, VALUE_BYTES, VALUE_BYTES, states, (gradient, states)
        )
        return Work(host_dram=statement.total(made, self.applied(steps)), host_updates=True)

    def rounds(self, out: Rows, fence: int) -> Iterator[np.ndarray]:
        for subgroup in self.subgroups:
            reads = self.parts(command.READ, (*self.vectors, "g"), subgroup, plan_rows.NVME)
            self.transfer(out, reads, fence)
            self._cpu(out, subgroup, out.fence(UPDATE))
            writes = self.parts(command.WRITE, self.vectors, subgroup, plan_rows.NVME)
            self.transfer(out, writes, out.fence(UPDATE))
            fence = out.fence(UPDATE)
            if out.full():
                yield out.take()

    def _cpu(self, out: Rows, subgroup: Places, fence: int) -> None:
        traffic = self.kernel.bytes_per_param()
        for dev, (start, stop) in subgroup.items():
            out.one(
                device=dev,
                resource=plan_rows.HOST_CPU,
                phase=UPDATE,
                array_ps=host_cpu.update_ps(self.cfg, stop - start, traffic),
                lpn=start,
                tag=stop - start,
                after0=fence,
            )

    def bound(self, step: int) -> Bound:
        n_params, width = self.trace.n_params, len(self.vectors)
        size = -(-n_params // len(self.subgroups))
        groups = [(start, min(start + size, n_params)) for start in range(0, n_params, size)]
        moved = {
            "read": (width + 1) * VALUE_BYTES * n_params,
            "written": width * VALUE_BYTES * n_params,
        }
        traffic = self.kernel.bytes_per_param()
        return bound(self.cfg, Offload(), groups, groups, moved, traffic)


@dataclass
class SmartUpdate(InStep):
    """Path of Smart-Infinity's SmartUpdate, in which the drives' processors update the weights.
    Each sub-group is loaded, updated, written back and sent to the host before the next sub-group
    is loaded."""

    name: ClassVar[str] = "smart_update"
    title: ClassVar[str] = "SmartUpdate"
    overlapped: ClassVar[bool] = False
    """True if m and v are written back while the next sub-group loads."""

    def held(self) -> int:
        """Return the number of bytes of the drive's DRAM that each parameter of the current
        sub-group occupies."""
        return (len(self.vectors) + 1) * VALUE_BYTES

    def most(self) -> int:
        # Each drive updates a whole sub-group, which its DRAM must hold.
        stripes = self.cfg.dram.isp_bytes // self.held() // self.granule()
        whole = max(self.cfg.host.subgroup_params // self.granule(), 1)
        return min(whole, stripes) * self.granule()

    def missing(self) -> str | None:
        if self.cfg.isp.kind == "none":
            return NO_PROCESSOR
        if self.most() < 1:
            return (
                f"dram.isp = {self.cfg.dram.isp_bytes / 1e6:.4g} MB: too small for a block of "
                f"{self.granule():,} parameters"
            )
        return self.too_large(self.written)

    def work(self, steps: int) -> Work:
        made = statement.in_drive(
            self.trace.n_params, VALUE_BYTES, self.up_bytes, self.compressed_bytes()
        )
        return Work(host_dram=statement.total(made, self.applied(steps)))

    def compressed_bytes(self) -> int | None:
        """Return the size of the compressed gradient of a step, bytes, or None if the accelerator
        does not compress the gradient."""
        return None

    def rounds(self, out: Rows, fence: int) -> Iterator[np.ndarray]:
        late = self.kernel.states if self.overlapped else ()
        soon = tuple(name for name in self.vectors if name not in late)
        left: list[Part] = []
        for subgroup in self.subgroups:
            load = self.parts(command.READ, (*self.vectors, "g"), subgroup)
            self.transfer(out, left + load, fence)
            self._engine(out, subgroup, out.fence(UPDATE))
            self.transfer(out, self.parts(command.WRITE, soon, subgroup), out.fence(UPDATE))
            self._up(out, subgroup, out.fence(UPDATE))
            fence = out.fence(UPDATE)
            left = self.parts(command.WRITE, late, subgroup)
            if out.full():
                yield out.take()
        if left:
            self.transfer(out, left, fence)

    def _engine(self, out: Rows, subgroup: Places, fence: int) -> None:
        width = len(self.vectors) * VALUE_BYTES
        for dev, (start, stop) in subgroup.items():
            out.one(
                device=dev,
                resource=plan_rows.ISP,
                phase=UPDATE,
                array_ps=self.engine_ps(stop - start),
                bytes_in=width * (stop - start) + self.gradient_bytes(dev, start, stop),
                bytes_out=width * (stop - start),
                lpn=start,
                tag=stop - start,
                after0=fence,
            )

    def _up(self, out: Rows, subgroup: Places, fence: int) -> None:
        parts = []
        for dev, (start, stop) in subgroup.items():
            first = np.arange(start, stop, self.granule(), dtype=np.int64)
            size = np.minimum(stop - first, self.granule()) * self.up_bytes
            parts.append(Part(dev, plan_rows.DMA_UP, 0, first, size))
        self.transfer(out, parts, fence, WEIGHTS_UP, self.up_bytes)

    def engine_ps(self, count: int) -> int:
        """Return the time in which a drive's engine updates ``count`` parameters, ps."""
        return isp_cores.update_ps(
            self.cfg, self.trace.op, self.coupled_decay, count, self.kernel.bytes_per_param()
        )

    def gradient_bytes(self, device: int, start: int, stop: int) -> int:
        """Return the number of gradient bytes that the engine of drive ``device`` reads for
        storage positions [start, stop)."""
        return VALUE_BYTES * (stop - start)

    def bound(self, step: int) -> Bound:
        """Return the lower bound of the time from the start of the update to its last program if
        the sub-groups are updated one after another. With Smart-Infinity's transfer handler, m and
        v of each sub-group except the last are written while the next sub-group loads."""
        shard = max(self.shards, key=lambda shard: shard.size)
        params, subgroups = shard.size, len(self.subgroups)
        width, late = len(self.vectors), len(self.kernel.states) if self.overlapped else 0
        load, write, up = Demand(self.cfg), Demand(self.cfg), Demand(self.cfg)
        read = VALUE_BYTES * width * params + self.gradient_bytes(
            shard.device, shard.start, shard.stop
        )
        beside = VALUE_BYTES * late * params * (subgroups - 1) / subgroups
        load.flash_read(read)
        load.flash_write(beside)
        isp_path(load, read, beside)
        rest = VALUE_BYTES * width * params - beside
        write.flash_write(rest)
        isp_path(write, 0.0, rest)
        up.link("up", self.up_bytes * params * (1 if late else (subgroups - 1) / subgroups))
        parts = [
            ("load", *load.largest),
            ("update", "ISP", self._engine_bound_s(params)),
            ("write", *write.largest),
            ("up", *up.largest),
        ]
        flash = self.cfg.flash
        programs = subgroups + (1 if late else 0)  # the last m and v have a separate stage
        latency = (
            subgroups * (flash.t_read_ps + self.cfg.link.latency_ps) + programs * flash.t_program_ps
        )
        name = max(parts, key=lambda part: part[2])[1]
        seconds = sum(part[2] for part in parts)
        bound = with_latency(name, seconds, latency / 1e12, parts_text(parts))
        return bound.sharing(self.cfg.isp.kind != "fpga")

    def _engine_bound_s(self, params: int) -> float:
        """Return the closed form of the engine's time for ``params`` parameters, seconds."""
        found = engine_s(self.cfg, params, self.kernel.bytes_per_param())
        return self.engine_ps(params) / 1e12 if found is None else found


@dataclass
class SmartHandler(SmartUpdate):
    """Path of SmartUpdate with Smart-Infinity's transfer handler: m and v are written back while
    the next sub-group loads. The blocks of the next sub-group are loaded into the buffers that
    these writes release."""

    name: ClassVar[str] = "smart_handler"
    title: ClassVar[str] = "SmartUpdate, handler"
    overlapped: ClassVar[bool] = True


@dataclass
class SmartComp(SmartHandler):
    """Path of SmartComp: the accelerator sends only the Top-K elements of each gradient bucket.

    The other elements are dropped, not added to the next step's gradient (no error feedback). No
    source used here states that Smart-Infinity keeps the dropped elements. Keeping them would take
    as much memory as the gradient.
    """

    name: ClassVar[str] = "smart_comp"
    title: ClassVar[str] = "SmartUpdate, handler, SmartComp"
    lossless: ClassVar[bool] = False

    def lay_out(self) -> None:
        super().lay_out()
        self.buckets = tuple(self._buckets())

    def _buckets(self) -> Iterator[Bucket]:
        """Yield the buckets. A bucket consists of consecutive stripes of one drive and sub-group.
        Its compressed gradient fills at most one block."""
        share = self.options.compression / 100 * VALUE_BYTES
        stripes = max(int(self.cfg.host.io_block_bytes / share) // self.granule(), 1)
        size = stripes * self.granule()
        for subgroup in self.subgroups:
            for dev, (begin, end) in subgroup.items():
                for start in range(begin, end, size):
                    stop = min(start + size, end)
                    kept = round((stop - start) * self.options.compression / 200)
                    yield Bucket(dev, start, stop, max(kept, 1))

    def held(self) -> int:
        return super().held() - VALUE_BYTES

    def missing(self) -> str | None:
        if not self.cfg.isp.decompress_bytes_per_s:
            return "no decompression in the drive (isp.decompress = 0); use --device smartssd"
        return super().missing()

    def choice_ps(self, n_params: int) -> int:
        return -(-n_params * PS_PER_S // self.cfg.host.top_k_params_per_s)

    def engine_ps(self, count: int) -> int:
        """Return the time of decompression or of the update of ``count`` parameters, whichever is
        longer, ps. Decompression and update run concurrently, and the gradient passes from one to
        the other without using the drive's DRAM."""
        traffic = self.kernel.bytes_per_param() - VALUE_BYTES
        made = -(-count * VALUE_BYTES * PS_PER_S // self.cfg.isp.decompress_bytes_per_s)
        return max(
            isp_cores.update_ps(self.cfg, self.trace.op, self.coupled_decay, count, traffic), made
        )

    def _engine_bound_s(self, params: int) -> float:
        found = engine_s(self.cfg, params, self.kernel.bytes_per_param() - VALUE_BYTES)
        made = params * VALUE_BYTES / self.cfg.isp.decompress_bytes_per_s
        return max(self.engine_ps(params) / 1e12 if found is None else found, made)

    def gradient_bytes(self, device: int, start: int, stop: int) -> int:
        return sum(
            bucket.n_bytes
            for bucket in self.buckets
            if bucket.device == device and start <= bucket.start < stop
        )

    def compressed_bytes(self) -> int:
        return sum(bucket.n_bytes for bucket in self.buckets)

    def notes(self) -> list[str]:
        share = sum(bucket.k for bucket in self.buckets) / self.trace.n_params
        return [f"applies {share:.3%} of the gradient elements and drops all others"]

    def sent(self, gradient: np.ndarray) -> np.ndarray:
        """Return a gradient after compression and decompression, float32[n_params]."""
        order = self.striping.order()
        out = np.zeros_like(gradient)
        for bucket in self.buckets:
            places = order[bucket.start : bucket.stop]
            out[places] = bucket.dense(bucket.packed(gradient[places]))
        return out

    def reference(self, arithmetic: Arithmetic, steps: int) -> np.ndarray:
        return arithmetic.reference(steps, self.sent)
