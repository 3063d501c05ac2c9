"""In-storage update: the controller's ISP reads, updates and writes the states inside the drive.

Owns the order of the update. Gradients are sent down into the device's DRAM. States pass through
the mapping table, ECC and DRAM. New weights are sent up from DRAM. A window of chunks keeps flash,
ISP and link busy concurrently. Does not own time (engine/) or the payload (payload.py).
Source: controller ISP (C-ISP) of OptimStore (HPCA 2023); SmartUpdate of Smart-Infinity for the
FPGA.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ondie.emu.compute import isp_cores
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
from ondie.emu.paths.layout import formats
from ondie.emu.paths.statement import Work
from ondie.emu.paths.update_path import ConventionalPath

MAX_WINDOW = 64
"""Maximum number of chunks in flight. The ISP's share of DRAM may allow fewer chunks."""


@dataclass
class InStorage(ConventionalPath):
    """Path that updates weights and states in the drive's controller, on processor cores or in a
    streaming engine."""

    name: ClassVar[str] = "in_storage"
    title: ClassVar[str] = "in storage, controller"

    def unstorable(self) -> str | None:
        return formats.refused(self.options.format, self.trace.op)

    def granule(self) -> int:
        """Return the number of parameters in a chunk. A chunk fills whole super-pages of every
        vector. If vectors are stored in codes, a chunk fills only whole pages, because the common
        multiple of super-pages would be too large (pages of codes can hold an odd number of
        blocks). Above this minimum, a chunk is doubled as often as its values in the widest data
        type still fit in one host block."""
        held = [vector.per_page(self.cfg.flash.page_bytes) for vector in self._all]
        coded = any(vector.coded for vector in self._all)
        chunk = math.lcm(*held) * (1 if coded else self.geometry.planes)
        widest = max(vector.dtype.itemsize for vector in self._all)
        while chunk * widest * 2 <= self.cfg.host.io_block_bytes:
            chunk *= 2
        return chunk

    @property
    def _all(self) -> tuple[formats.Vector, ...]:
        """Storage descriptions of the vectors on flash, followed by the description of the
        gradient."""
        return (*self.stored.vectors, self.stored.gradient)

    @property
    def window(self) -> int:
        """Number of chunks whose vectors fit in the ISP's share of DRAM at the same time, at most
        MAX_WINDOW."""
        page = self.cfg.flash.page_bytes
        held = sum(vector.paged(self.granule(), page) for vector in self._all)
        return min(self.cfg.dram.isp_bytes // held, MAX_WINDOW)

    def missing(self) -> str | None:
        if self.cfg.isp.kind == "none":
            return NO_PROCESSOR
        if self.window < 1:
            return (
                f"dram.isp = {self.cfg.dram.isp_bytes / 1e6:.4g} MB: too small for a chunk of "
                f"{self.granule():,} parameters"
            )
        return self.too_large(self.vectors)

    def work(self, steps: int) -> Work:
        width = self.stored.gradient.dtype.itemsize
        made = statement.in_drive(self.trace.n_params, width, self.up_bytes)
        return Work(host_dram=statement.total(made, self.applied(steps)))

    def update(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the plan rows chunk by chunk, alternating between the devices. Chunk i of a
        device starts when chunk i - window has been written and its weights have been sent,
        because the buffers of chunk i - window are then free."""
        after = segments[-1]
        form = self._form()
        first = out.next
        chunks = [-(-shard.size // self.granule()) for shard in self.shards]
        n_devices = len(self.shards)
        round_index, dev = np.divmod(np.arange(max(chunks) * n_devices), n_devices)
        keep = round_index < np.array(chunks)[dev]
        round_index, dev = round_index[keep], dev[keep]
        begin = np.full(len(round_index), after, np.int64)  # the row a chunk's first rows wait for
        for device in range(n_devices):
            mine = np.flatnonzero(dev == device)
            ends = first + mine * len(form) + len(form) - 1
            begin[mine[self.window :]] = ends[: -self.window]
        starts = np.array([shard.start for shard in self.shards])
        stops = np.array([shard.stop for shard in self.shards])
        batch = max(plan_rows.MAX_CHUNK // len(form), 1)
        for i in range(0, len(round_index), batch):
            part = slice(i, i + batch)
            begins = starts[dev[part]] + round_index[part] * self.granule()
            counts = np.minimum(self.granule(), stops[dev[part]] - begins)
            base = first + np.arange(i, i + len(begins)) * len(form)
            out.add(
                len(begins) * len(form),
                **self._columns(form, dev[part], begins, counts, base, begin[part]),
            )
            if out.full():
                yield out.take()

    def _form(self) -> np.ndarray:
        """Return the plan rows of one chunk as a template. Row id 0 is a placeholder for the row
        after which the chunk starts, so the first rows have after0 = 0. The bytes of DMA rows are
        per parameter; :meth:`_columns` fills in the bytes of the ISP and of its flash transfers.
        Column ``lpn`` is the index of the vector, and ``tag`` = 1 marks rows that contain a range
        of parameters."""
        width = len(self.vectors)
        vectors = np.arange(width)
        form = Rows(1)  # row 0 is the begin row
        each = self.stored.gradient.dtype.itemsize
        down = form.one(resource=plan_rows.DMA_DOWN, phase=UPDATE, bytes_in=each, after0=0, tag=1)
        reads = form.add(
            width,
            resource=plan_rows.ISP_IO,
            kind=command.READ,
            phase=UPDATE,
            lpn=vectors,
            after0=0,
        )
        compute = form.one(
            resource=plan_rows.ISP,
            phase=UPDATE,
            after0=form.join(np.append(reads, down), UPDATE),
            tag=1,
        )
        sent = form.one(
            resource=plan_rows.DMA_UP,
            phase=WEIGHTS_UP,
            bytes_out=self.up_bytes,
            after0=compute,
            tag=1,
        )
        writes = form.add(
            width,
            resource=plan_rows.ISP_IO,
            kind=command.WRITE,
            phase=UPDATE,
            lpn=vectors,
            after0=compute,
        )
        form.join(np.append(writes, sent), UPDATE)
        return form.take()

    def _columns(
        self,
        form: np.ndarray,
        dev: np.ndarray,
        begins: np.ndarray,
        counts: np.ndarray,
        base: np.ndarray,
        begin: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Return the plan columns of several chunks by name, made from the template ``form``. Chunk
        i contains parameters [begins[i], begins[i] + counts[i]) on device ``dev[i]``. The first row
        id of chunk i is ``base[i]``, and the chunk starts after the row with id ``begin[i]``."""
        rows_each = len(form)
        out = {
            name: np.tile(form[name], len(begins))
            for name in plan_rows.PLAN.fields or ()
            if name != "id"
        }
        begins, counts, base, begin, dev = (
            np.repeat(x, rows_each) for x in (begins, counts, base, begin, dev)
        )
        for name in ("after0", "after1"):
            local = out[name]
            out[name] = np.where(local < 0, -1, np.where(local == 0, begin, base + local - 1))
        out["bytes_in"] *= counts
        out["bytes_out"] *= counts
        page = self.geometry.page_bytes
        isp, io = out["resource"] == plan_rows.ISP, out["resource"] == plan_rows.ISP_IO
        reads, which = io & (out["kind"] == command.READ), out["lpn"]
        for x in np.unique(counts).tolist():
            its = counts == x
            moved = [vector.size(x) for vector in self.stored.vectors]
            out["array_ps"][its & isp] = self._isp_ps(x)
            out["bytes_in"][its & isp] = sum(moved) + self.stored.gradient.size(x)
            out["bytes_out"][its & isp] = sum(moved) + self.stored.copy_bytes * x
            paged = np.array([vector.paged(x, page) for vector in self.stored.vectors])
            out["bytes_out"][its & reads] = paged[which[its & reads]]
            out["bytes_in"][its & io & ~reads] = paged[which[its & io & ~reads]]
        start = np.array([shard.start for shard in self.shards])[dev]
        held = np.array([vector.per_page(page) for vector in self.stored.vectors])
        first = np.array(
            [[regions.first(name) for name in self.vectors] for regions in self.regions]
        )
        which = np.where(io, which, 0)
        out["lpn"] = np.where(
            out["tag"] == 1, begins, first[dev, which] + (begins - start) // held[which]
        )
        out["tag"] *= counts
        out["device"] = dev
        return out

    def _isp_ps(self, count: int) -> int:
        return isp_cores.update_ps(
            self.cfg,
            self.trace.op,
            self.coupled_decay,
            count,
            self.stored.traffic,
            self.stored.name,
        )

    def bound(self, step: int) -> Bound:
        """Return the lower bound of the update time. All work overlaps, so the bound is the time of
        the resource with the most work, plus the latency before the first and after the last
        result. States cross the channels twice (24 B/param for Adam). Gradients and weights cross
        the link. States, gradients, weights and the computation use the DRAM."""
        most = max(shard.size for shard in self.shards)
        down = self.stored.gradient.size(most)
        states = sum(vector.paged(most, self.geometry.page_bytes) for vector in self.stored.vectors)
        up = self.up_bytes * most
        demand = Demand(self.cfg)
        demand.flash_read(states)
        demand.flash_write(states)
        demand.dram(2 * states)  # in from flash, out to flash
        demand.dram(down + up)  # gradients in, weights up
        demand.dram(math.ceil(self.stored.traffic * most))  # the computation
        demand.link("down", down)
        demand.link("up", up)
        isp_path(demand, read=states, written=states)
        engine = engine_s(self.cfg, most, self.stored.traffic)
        demand.add("ISP", self._isp_ps(most) / 1e12 if engine is None else engine)
        # Latency before the first and after the last result: one read, one chunk, one program.
        flash = self.cfg.flash
        chunk = demand.seconds["ISP"] * min(self.granule(), self.trace.n_params) / most
        latency = (flash.t_read_ps + flash.t_program_ps) / 1e12 + chunk
        name, seconds = demand.largest
        bound = with_latency(name, seconds, latency, parts_text([("all", name, seconds)]))
        return bound.sharing(engine is None)
