"""Host offload: states on NVMe, the update on the host's CPU (ZeRO-Infinity, DeepSpeed).

Owns the order: gradients written during backward; after it, per sub-group, read w m v g, update,
write w m v; serial, or pipelined over sub-groups. Does not own time or bits.
Source: DeepSpeed's NVMe optimizer swapper (ZeRO-Infinity, SC 2021); pipeline_read and
pipeline_write default to off, hence serial.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ondie.emu import rows
from ondie.emu.energy import Work
from ondie.emu.frontend import queues
from ondie.emu.host import machine
from ondie.emu.isp.layout import VALUE_BYTES
from ondie.emu.paths.base import GRADIENTS, PHASES, UPDATE, Rows
from ondie.emu.paths.bounds import Bound, Demand, handle_depth, parts_text, with_latency, words
from ondie.emu.paths.payload import Conventional
from ondie.emu.paths.updating import ConventionalPath
from ondie.emu.system import System

BUFFERS = 3
"""Sub-groups in flight when pipelined: one read, one computed, one written."""


@dataclass
class HostOffload(ConventionalPath):
    """Serial host offload."""

    name: ClassVar[str] = "host_offload"
    title: ClassVar[str] = "host offload, serial"
    pipelined: ClassVar[bool] = False

    def granule(self) -> int:
        return self.cfg.host.io_block_bytes // VALUE_BYTES

    def group(self) -> int:
        return max(self.cfg.host.subgroup_params // self.granule(), 1) * self.granule()

    @property
    def written(self) -> tuple[str, ...]:
        return (*self.vectors, "g")

    def missing(self) -> str | None:
        return self.too_large(self.written)

    def follow(self, system: System) -> Conventional:
        # The accelerator leaves the gradient in the memory that the update works in.
        return Conventional(system, self.regions, self.compute, gradient_arrives=True)

    def work(self, steps: int) -> Work:
        # DRAM: the gradient arrives and leaves, states arrive and leave, the update in between.
        width = len(self.vectors)
        moved = (2 + 2 * width + 1) * VALUE_BYTES + self.kernel.bytes_per_param()
        return Work(
            host_dram_bits=8 * moved * self.trace.n_params * self.applied(steps), host_updates=True
        )

    def update(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        yield from self._write_gradients(out, step, segments)
        yield from self._update(out, out.fence(GRADIENTS))

    def _write_gradients(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        for r in self.regions:
            size = self.cfg.host.io_block_bytes
            lpn, n_bytes, first = r.blocks("g", r.shard.start, r.shard.stop, size)
            ready = self.ready_segment(step, first, first + n_bytes // VALUE_BYTES)
            order = np.argsort(ready, kind="stable")
            for at in range(0, len(order), rows.MAX_CHUNK):
                part = order[at : at + rows.MAX_CHUNK]
                out.add(
                    len(part),
                    device=r.shard.device,
                    resource=rows.NVME,
                    kind=queues.WRITE,
                    phase=GRADIENTS,
                    lpn=lpn[part],
                    bytes_in=n_bytes[part],
                    after0=segments[ready[part]],
                    after1=self._window(r.shard.device, queues.WRITE, out.next, len(part)),
                )
                if out.full():
                    yield out.take()

    def _groups(self) -> list[tuple[int, int]]:
        """Sub-groups [start, stop) at block boundaries."""
        n, size = self.trace.n_params, self.group()
        return [(a, min(a + size, n)) for a in range(0, n, size)]

    def _update(self, out: Rows, fence: int) -> Iterator[np.ndarray]:
        written: list[int] = []
        for k, (a, b) in enumerate(self._groups()):
            if not self.pipelined:
                begin = written[-1] if written else fence
            else:
                begin = written[k - BUFFERS] if k >= BUFFERS else fence
            reads = self._transfer(out, queues.READ, (*self.vectors, "g"), a, b, begin)
            ready = out.join(reads, UPDATE)
            cpu = out.one(
                resource=rows.HOST_CPU,
                phase=UPDATE,
                array_ps=machine.update_ps(self.cfg, b - a, self.kernel.bytes_per_param()),
                lpn=a,
                tag=b - a,
                after0=ready,
            )
            writes = self._transfer(out, queues.WRITE, self.vectors, a, b, cpu)
            written.append(out.join(writes, UPDATE))
            if out.full():
                yield out.take()

    def _transfer(
        self, out: Rows, kind: int, names: tuple[str, ...], a: int, b: int, after: int
    ) -> np.ndarray:
        """Read or write vectors of parameters [a, b) in blocks. Returns the rows' ids."""
        ids = []
        column = "bytes_out" if kind == queues.READ else "bytes_in"
        for name in names:
            for r in self.regions:
                lo, hi = max(a, r.shard.start), min(b, r.shard.stop)
                if lo >= hi:
                    continue
                lpn, n_bytes, _ = r.blocks(name, lo, hi, self.cfg.host.io_block_bytes)
                ids.append(
                    out.add(
                        len(lpn),
                        device=r.shard.device,
                        resource=rows.NVME,
                        kind=kind,
                        phase=UPDATE,
                        lpn=lpn,
                        after0=after,
                        after1=self._window(r.shard.device, kind, out.next, len(lpn)),
                        **{column: n_bytes},
                    )
                )
        return np.concatenate(ids)

    def _window(self, device: int, kind: int, first: int, n: int) -> np.ndarray | int:
        """What ``n`` transfers from id ``first`` on wait for beside their data: nothing."""
        return -1

    def bound(self, step: int) -> Bound:
        """Serial: the sum of the three stages of every sub-group, each at its own bottleneck.
        Pipelined: the largest sum over stages, plus what the first and last sub-group leave
        bare."""
        n = max(s.size for s in self.shards)
        width = len(self.vectors)
        read, write = Demand(self.cfg), Demand(self.cfg)
        read.host_read((width + 1) * VALUE_BYTES * n)
        write.host_write(width * VALUE_BYTES * n)
        traffic = self.kernel.bytes_per_param()
        cpu = machine.update_ps(self.cfg, self.trace.n_params, traffic) / 1e12
        groups = self._groups()
        bare = len(groups) * (read.first_read() + write.last_write())
        if not self.pipelined or len(groups) == 1:
            stages = {
                "read": read.largest,
                "compute": ("host CPU", cpu),
                "write": write.largest,
            }
            parts = [(what, *stage) for what, stage in stages.items()]
            name = max(stages.values(), key=lambda item: item[1])[0]
            work = sum(seconds for _, seconds in stages.values())
            return with_latency(name, work, bare, parts_text(parts))
        both = Demand(self.cfg, handles=True)
        both.host_read((width + 1) * VALUE_BYTES * n)
        both.host_write(width * VALUE_BYTES * n)
        both.add("host CPU", cpu)
        name, seconds = both.largest
        share = [(b - a) / self.trace.n_params for a, b in groups]
        r, w = read.largest[1], write.largest[1]
        if name == "host CPU":
            behind = max(share[-2] * w - share[-1] * cpu, 0)  # of the last but one's writes
            ends = share[0] * r + behind + share[-1] * w
        elif read.seconds[name] and write.seconds[name]:
            # Reads go on while the first group is computed, writes while the last one is.
            ends = max(share[0] * cpu - share[1] * r, 0) + max(share[-1] * cpu - share[-2] * w, 0)
        else:
            ends = share[-1] * cpu
        text = f"{parts_text([('all', name, seconds)])} + what the ends leave bare {words(ends)}"
        return with_latency(name, seconds + ends, read.first_read() + write.last_write(), text)


@dataclass
class PipelinedOffload(HostOffload):
    """Host offload with pipeline_read and pipeline_write.

    Reads and writes have a handle each, as DeepSpeed opens them: a drive has up to so many of each
    in flight, and a burst of one does not stand before the other.
    """

    name: ClassVar[str] = "host_offload_pipelined"
    title: ClassVar[str] = "host offload, pipelined"
    pipelined: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._sent: dict[tuple[int, int], np.ndarray] = {}
        super().__post_init__()

    def system(self, payload: bool, timeline: int) -> System:
        depth = min(2 * handle_depth(self.cfg), self.cfg.frontend.queue_depth)
        return System(
            self.cfg, PHASES, payload=payload, timeline=timeline, queue_depth=depth,
            pairs=self.options.pairs,
        )  # fmt: skip

    def _window(self, device: int, kind: int, first: int, n: int) -> np.ndarray:
        """Each waits for the one so many before it through the same handle."""
        depth = handle_depth(self.cfg)
        before = self._sent.get((device, kind), np.full(depth, -1))
        line = np.concatenate([before, np.arange(first, first + n)])
        self._sent[device, kind] = line[-depth:]
        return line[:n]

    def notes(self) -> list[str]:
        if len(self._groups()) > 1:
            return []
        size = self.cfg.host.subgroup_params
        return [f"all parameters fit one sub-group of {size:,}, so nothing is pipelined"]
