"""Host offload: states on NVMe, the update on the host's CPU (ZeRO-Infinity, DeepSpeed).

Owns the order of the work. Gradients are written during backward. After backward, the host reads w
m v g of each sub-group, updates the sub-group, and writes w m v, serially or pipelined over
sub-groups. If parameters are also on NVMe, forward and backward read them. Does not own the
selection of data for NVMe (subgroups.py), timing, or the contents of pages (host_memory.py).
Source: DeepSpeed's NVMe optimizer swapper (ZeRO-Infinity, SC 2021). pipeline_read and
pipeline_write are off by default, so the default order is serial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from ondie.emu.clock import ps_from_seconds
from ondie.emu.compute import host_cpu
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.nvme import command
from ondie.emu.paths import statement
from ondie.emu.paths.base import (
    BACKWARD,
    BACKWARD_SEGMENTS,
    FORWARD,
    GRADIENTS,
    PHASES,
    UPDATE,
    Rows,
)
from ondie.emu.paths.closed_form import Bound, handle_depth
from ondie.emu.paths.layout import formats
from ondie.emu.paths.layout.formats import MODEL_BYTES
from ondie.emu.paths.layout.volume import Requests
from ondie.emu.paths.offload import closed_form
from ondie.emu.paths.offload.aio import GradientSwapper, Handles, PinnedBuffers
from ondie.emu.paths.offload.host_memory import OffloadMemory
from ondie.emu.paths.offload.options import Offload
from ondie.emu.paths.offload.subgroups import OffloadLayout
from ondie.emu.paths.statement import Work
from ondie.kernels.formats import NONE


@dataclass
class HostOffload(OffloadLayout):
    """Path of host offload: states on NVMe, update on the host's CPU. Sub-groups are updated
    serially unless pipeline_read or pipeline_write is set."""

    name: ClassVar[str] = "host_offload"
    title: ClassVar[str] = "host offload, serial"

    def unstorable(self) -> str | None:
        return formats.refused(self.options.format, self.trace.op)

    @property
    def window(self) -> int | None:
        """Number of blocks in flight per window, or None if only the drive's queue limits the
        blocks in flight. The asynchronous I/O has one handle for reads and one for writes. Each
        handle has one window per thread, or per drive if the number of threads is not set."""
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
        # The accelerator leaves the gradient in the host memory that the update uses.
        return OffloadMemory(system, self.volume, self.trace.n_params, self.compute, self.stored)

    @property
    def traffic(self) -> Fraction:
        """Number of bytes that the update of one parameter reads from and writes to host DRAM."""
        copied = self.offload.parameters and self.stored.format.out == NONE
        return self.stored.traffic + MODEL_BYTES * copied

    def work(self, steps: int) -> Work:
        n_params, stored, moved = self.trace.n_params, self.stored, self.moved()
        again = 3 if self.offload.checkpointing else 2
        copy = stored.copy_bytes or (MODEL_BYTES if self.offload.parameters else 0)
        made = statement.deepspeed_step(
            n_params,
            stored.gradient.dtype.itemsize,
            stored.vectors[0].dtype.itemsize,
            math.ceil(stored.bytes_each * n_params),
            (moved["gradients"], moved["read"] - moved["gradients"]),
            copy * n_params,
            (moved["parameters"] // again, again) if self.offload.parameters else None,
        )
        return Work(host_dram=statement.total(made, self.applied(steps)), host_updates=True)

    def moved(self) -> dict[str, int]:
        """Return the numbers of bytes that the plan of a step moves, by kind. "gradients":
        gradients written in backward. "read" and "written": data read and written in the update.
        "parameters": parameters read in forward and backward."""
        size, n_params = self.volume.size, self.trace.n_params
        states = sum(size(vector, 0, n_params) for vector in self.written)
        gradient = size("g", 0, n_params)
        model = size("p", 0, n_params) if self.offload.parameters else 0
        again = 3 if self.offload.checkpointing else 2
        return {
            "gradients": gradient,
            "read": states + gradient,
            "written": states + model,
            "parameters": again * model,
        }

    def training_rows(self, out: Rows, step: int, after: int) -> np.ndarray:
        self.swapper = self._new_swapper(step)
        if self.offload.parameters:
            return self._training_with_parameters(out, step, after)
        if self.swapper is None:
            return super().training_rows(out, step, after)
        step_record = self.trace.steps[step]
        total = ps_from_seconds(step_record.backward_s)
        forward = ps_from_seconds(step_record.forward_s)
        row = out.one(resource=plan_rows.ACCELERATOR, phase=FORWARD, array_ps=forward, after0=after)
        segments = []
        for at in range(BACKWARD_SEGMENTS):
            time = total * (at + 1) // BACKWARD_SEGMENTS - total * at // BACKWARD_SEGMENTS
            row = out.one(resource=plan_rows.ACCELERATOR, phase=BACKWARD, array_ps=time, after0=row)
            row = self.swapper.after_segment(out, at, row)
            segments.append(row)
        return np.array(segments)

    def _training_with_parameters(self, out: Rows, step: int, after: int) -> np.ndarray:
        """Add the plan rows of forward and backward, which read the parameters from NVMe, after
        the row with id ``after``. Return the row ids of the backward segments,
        int64[BACKWARD_SEGMENTS]."""
        step_record, portions = self.trace.steps[step], self._portions()
        count = len(portions)
        last = np.maximum((np.arange(BACKWARD_SEGMENTS) + 1) * count // BACKWARD_SEGMENTS - 1, 0)
        held: list[int] = []  # last row of each portion used

        def pass_over(phase: int, seconds: float, times: int, order: list[int]) -> list[int]:
            """Add the plan rows that read and compute the portions of the parameters in ``order``,
            with read-ahead. Return the ids of the compute rows."""
            total = ps_from_seconds(seconds)
            done = []
            for at, number in enumerate(order):
                ahead = self.offload.parameter_buffers
                free = held[-ahead] if len(held) >= ahead else after
                reads = [
                    self.handles.send(
                        out, command.READ, phase, self.volume.requests("p", *portions[number]), free
                    )
                    for _ in range(times)
                ]
                arrived = np.concatenate(reads)
                begin = held[-1] if held else after
                row = out.one(
                    resource=plan_rows.ACCELERATOR,
                    phase=phase,
                    array_ps=total * (at + 1) // count - total * at // count,
                    after0=out.join(arrived, phase) if len(arrived) else begin,
                    after1=begin,
                )
                if phase == BACKWARD and self.swapper is not None:
                    segment = int(np.searchsorted(last, at, "right")) - 1
                    row = self.swapper.after_segment(out, segment, row)
                held.append(row)
                done.append(row)
            return done

        pass_over(FORWARD, step_record.forward_s, 1, list(range(count)))
        back = list(reversed(range(count)))
        done = pass_over(BACKWARD, step_record.backward_s, 1 + self.offload.checkpointing, back)
        return np.array(done)[last]

    @property
    def buffers(self) -> PinnedBuffers:
        """Pinned buffers of the host for gradients; each is as large as the largest sub-group."""
        shares, n_params = self.options.shares, self.trace.n_params
        params = max((stop - start for start, stop in self.groups), default=0)
        if shares is not None:
            params = max(round(shares.buffer * n_params), 1)
        align = self.offload.align
        n_bytes = -(-self.stored.gradient.size(params) // align) * align
        return PinnedBuffers(self.offload.buffers, n_bytes, self.cfg.host.gradient_copy_bytes_per_s)

    def _new_swapper(self, step: int) -> GradientSwapper | None:
        """Return the swapper for the gradients of step ``step``. Return None if no gradient is
        written, or if the number of buffers is not limited. With an unlimited number, each block is
        written when it is ready."""
        if self.offload.buffers is None or self.trace.steps[step].skipped:
            return None
        found, ready = self._gradient_blocks(step)
        if not len(found.first):
            return None

        def send(out: Rows, blocks: np.ndarray, after: int) -> None:
            these = type(found)(*(column[blocks] for column in found))
            self.handles.send(out, command.WRITE, GRADIENTS, these, after)

        return GradientSwapper(self.buffers, found.size, ready, send)

    def _gradient_blocks(self, step: int) -> tuple[Requests, np.ndarray]:
        """Return (block requests of the gradient, backward segment after which each block is
        ready, int64[n]), in the order in which the blocks are ready."""
        found = self.volume.requests("g", 0, self.trace.n_params)
        width = self.stored.gradient.dtype.itemsize
        last = np.minimum(found.first + -(-found.size // width), self.trace.n_params)
        ready = self.ready_segment(step, found.first, last)
        order = np.argsort(ready, kind="stable")
        return type(found)(*(column[order] for column in found)), ready[order]

    def update(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        if self.swapper is None:
            yield from self._write_gradients(out, step, segments)
        else:
            self.swapper.flush(out, int(segments[-1]))
        yield from self._update(out, out.fence(GRADIENTS))

    def _write_gradients(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        found, ready = self._gradient_blocks(step)
        for at in range(0, len(ready), plan_rows.MAX_CHUNK):
            part = slice(at, at + plan_rows.MAX_CHUNK)
            these = type(found)(*(column[part] for column in found))
            self.handles.send(out, command.WRITE, GRADIENTS, these, segments[ready[part]])
            if out.full():
                yield out.take()

    @property
    def beside_cpu(self) -> tuple[bool, bool]:
        offload = self.offload
        several = len(self.on_nvme) > 1
        return offload.pipeline_read and several, offload.pipeline_write and several

    def _update(self, out: Rows, fence: int) -> Iterator[np.ndarray]:
        offload, arrays = self.offload, (*self.written, "g")
        written: list[int] = []
        computed = fence
        flight = offload.in_flight
        kept = set(self.on_nvme)
        for start, stop in self.groups:
            if (start, stop) not in kept:
                computed = self._compute(out, start, stop, computed, self._behind(written))
                continue
            # Buffers are free once a sub-group is written. A transfer that is not pipelined waits
            # for all previous work.
            begin = written[-flight] if len(written) >= flight else fence
            if not offload.pipeline_read and (offload.pipeline_write or not written):
                begin = out.join(np.array([begin, computed]), UPDATE) if written else computed
            reads = self._transfer(out, command.READ, arrays, start, stop, begin)
            ready = out.join(reads, UPDATE)
            computed = self._compute(out, start, stop, ready, self._behind(written))
            names = (*self.written, "p") if offload.parameters else self.written
            writes = self._transfer(out, command.WRITE, names, start, stop, computed)
            written.append(out.join(writes, UPDATE))
            if out.full():
                yield out.take()

    def _behind(self, written: list[int]) -> int:
        """Return the id of the write that a computation must wait for: that of the last of
        ``written`` if writes are not pipelined, else -1."""
        return written[-1] if written and not self.offload.pipeline_write else -1

    def _compute(self, out: Rows, start: int, stop: int, after0: int, after1: int) -> int:
        return out.one(
            resource=plan_rows.HOST_CPU,
            phase=UPDATE,
            array_ps=host_cpu.update_ps(self.cfg, stop - start, self.traffic),
            lpn=start,
            tag=stop - start,
            after0=after0,
            after1=after1,
        )

    def _transfer(
        self, out: Rows, kind: int, names: tuple[str, ...], start: int, stop: int, after: int
    ) -> np.ndarray:
        """Add plan rows that read or write the vectors ``names`` of parameters [start, stop) in
        blocks; return the row ids, int64[n]."""
        ids = [
            self.handles.send(out, kind, UPDATE, self.volume.requests(name, start, stop), after)
            for name in names
        ]
        return np.concatenate(ids)

    def bound(self, step: int) -> Bound:
        return closed_form.bound(
            self.cfg, self.offload, self.groups, self.on_nvme, self.moved(), self.traffic
        )

    def notes(self) -> list[str]:
        offload = self.offload
        found = [*offload.remarks]
        chosen = {"read": self.options.offload.pipeline_read}
        chosen["write"] = self.options.offload.pipeline_write
        if any(chosen.values()) and offload is self.options.offload:
            names = " and ".join(f"pipeline_{name}" for name, on in chosen.items() if on)
            are = "are" if all(chosen.values()) else "is"
            found.append(f"This path is not serial: {names} {are} switched on by the options.")
        if self.pipelines and len(self.groups) == 1:
            size = self.cfg.host.subgroup_params
            found.append(
                f"All parameters fit in one sub-group of {size:,} (host.subgroup_params), so "
                "nothing is pipelined."
            )
        if offload.parameters and not self._later():
            found.append(
                f"No parameters are on NVMe, because the first {offload.parameters_in_dram:,} stay "
                f"in the host's DRAM (parameters_in_dram; DeepSpeed's max_in_cpu)."
            )
        stay = len(self.groups) - len(self.on_nvme)
        if stay:
            found.append(f"{stay} of {len(self.groups)} sub-groups stay in the host's DRAM.")
        return found

    @property
    def heading(self) -> str:
        offload = self.offload
        ways = ["reads"] * offload.pipeline_read + ["writes"] * offload.pipeline_write
        return f"host offload, pipelined {' and '.join(ways)}" if ways else self.title


@dataclass
class PipelinedOffload(HostOffload):
    """Path of host offload with pipeline_read and pipeline_write.

    Reads and writes have one handle each, as in DeepSpeed. Each handle has a separate window of
    blocks in flight, so that a burst of reads does not block writes or vice versa.
    """

    name: ClassVar[str] = "host_offload_pipelined"
    title: ClassVar[str] = "host offload, pipelined"

    @property
    def heading(self) -> str:
        return self.title

    @property
    def offload(self) -> Offload:
        offload = self.options.offload
        own = (
            offload.pipeline_read or offload.pipeline_write
        )  # otherwise ``buffers`` was chosen for a serial step
        return replace(
            offload, pipeline_read=True, pipeline_write=True,
            buffers=offload.buffers if own else None, remarks=(),
        )  # fmt: skip
