"""Asynchronous I/O of DeepSpeed: handles with blocks in flight, and the swapper of gradients.

Owns the windows of reads and writes, the distribution of a request over threads, and the batches
that replace windows if overlap_events is off. Owns the order of copies of gradients into pinned
buffers, of the writes of these buffers, and of the waits of the backward pass. Does not own the
queue of a drive (nvme/command.py), the number of buffers (options.py) or time.
Source: DeepSpeed's aio handles: block_size, queue_depth, intra_op_parallelism, overlap_events.
DeepSpeed's swapper, runtime/swap_tensor/async_swapper.py and optimizer_utils.py: the backward pass
copies gradients into a pinned buffer as large as the largest sub-group. A full buffer is written in
the background. If no other buffer is free, the backward pass waits until all writes are complete;
no buffer is released earlier. The first swap-in of the update flushes the unwritten gradients and
waits for the writes. Simplified: a buffer is filled completely, whereas DeepSpeed starts the next
buffer at a tensor that does not fit in the current one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.engine.core import plan_rows
from ondie.emu.nvme import command
from ondie.emu.paths.base import BACKWARD, GRADIENTS, Rows
from ondie.emu.paths.layout.volume import Requests
from ondie.emu.paths.offload.options import Offload


class Handles:
    """Builder of the plan rows of DeepSpeed's asynchronous I/O (aio), with one aio handle for reads
    and one for writes.

    If ``options.threads`` is set, the blocks of each request are divided among that number of
    threads. Each thread has a separate window of blocks in flight over all drives. Otherwise each
    drive has a window. ``window``: number of blocks per window, or None if only the drive's queue
    limits the blocks in flight.
    """

    def __init__(self, options: Offload, window: int | None) -> None:
        self.threads = options.threads
        self.overlap = options.overlap_events
        self.window = window
        self._sent: dict[tuple[int, int], np.ndarray] = {}
        self._batch: dict[tuple[int, int], int] = {}

    def send(
        self, out: Rows, kind: int, phase: int, found: Requests, after: int | np.ndarray
    ) -> np.ndarray:
        """Add plan rows for the block requests ``found``; return the ids of the rows, int64[n].
        ``kind``: NVMe command; ``after``: id of the row that all requests wait for, or one id per
        request."""
        count = len(found.first)
        lane = self._lanes(found)
        order = self._order(lane)
        found = Requests(*(column[order] for column in found))
        lane, begin = lane[order], np.broadcast_to(after, count)[order]
        if self.overlap:
            return self._rows(out, kind, phase, found, begin, self._windows(kind, lane, out.next))
        parts = [np.zeros(0, np.int64)]
        depth = self.window or count
        for which in np.unique(lane):
            mine = np.flatnonzero(lane == which)
            for at in range(0, len(mine), depth):
                part = mine[at : at + depth]
                these = Requests(*(column[part] for column in found))
                behind = self._batch.get((kind, int(which)), -1)
                ids = self._rows(out, kind, phase, these, begin[part], behind)
                self._batch[kind, int(which)] = out.join(ids, phase)
                parts.append(ids)
        return np.concatenate(parts)

    def _lanes(self, found: Requests) -> np.ndarray:
        """Return the window that each request uses, int64[n]: the index of its thread or of its
        drive."""
        if self.threads is None:
            return found.device
        count = len(found.first)
        return np.arange(count) // max(-(-count // self.threads), 1)

    def _order(self, lane: np.ndarray) -> np.ndarray:
        """Return the order in which the requests are sent, int64[n]. With several threads, the
        requests of the threads alternate."""
        count = len(lane)
        if self.threads is None or self.threads == 1 or count == 0:
            return np.arange(count)
        share = -(-count // self.threads)
        return np.lexsort((lane, np.arange(count) % share))

    def _windows(self, kind: int, lane: np.ndarray, first: int) -> np.ndarray:
        """Return the id of the plan row that each request waits for, int64[n]. Request i of a
        window waits for request i - window of that window. The id is -1 for a request that waits
        for no row. ``first``: id of the row of the first request."""
        after = np.full(len(lane), -1)
        if self.window is None:
            return after
        for which in np.unique(lane):
            mine = np.flatnonzero(lane == which)
            key = kind, int(which)
            before = self._sent.get(key, np.full(self.window, -1))
            line = np.concatenate([before, first + mine])
            self._sent[key] = line[-self.window :]
            after[mine] = line[: len(mine)]
        return after

    @staticmethod
    def _rows(
        out: Rows, kind: int, phase: int, found: Requests, after0: np.ndarray,
        after1: int | np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        column = "bytes_out" if kind == command.READ else "bytes_in"
        return out.add(
            len(found.first),
            device=found.device,
            resource=plan_rows.NVME,
            kind=kind,
            phase=phase,
            lpn=found.lpn,
            after0=after0,
            after1=after1,
            **{column: found.size},
        )


@dataclass(frozen=True)
class PinnedBuffers:
    """Pinned host memory for gradients. ``count``: number of buffers, or None if the number is not
    limited."""

    count: int | None
    n_bytes: int
    """Size of one buffer, bytes."""
    copy_bytes_per_s: int
    """Rate of copies from the accelerator into a buffer, bytes/s; 0 if the backward time already
    contains the copies."""

    def copy_ps(self, n_bytes: int) -> int:
        """Return the time to copy ``n_bytes`` from the accelerator into a buffer, ps."""
        rate = self.copy_bytes_per_s
        return -(-n_bytes * PS_PER_S // rate) if rate else 0


class GradientSwapper:
    """Builder of the plan rows that, during a backward pass, copy gradients into pinned buffers and
    write the buffers to the drives.

    ``size``: bytes of each block of the gradient, int64[n]. ``ready``: backward segment after which
    each block is complete, int64[n], ascending. ``send(out, blocks, after)`` adds the rows that
    write ``blocks`` (indices) after row ``after``.
    """

    def __init__(
        self,
        buffers: PinnedBuffers,
        size: np.ndarray,
        ready: np.ndarray,
        send: Callable[[Rows, np.ndarray, int], None],
    ) -> None:
        self.buffers = buffers
        self._size = size
        self._send = send
        self._ready = ready
        self._buffer = (np.cumsum(size) - size) // buffers.n_bytes
        """Buffer number of each block, int64[n]. The buffers are filled in the order of their
        numbers."""
        self._at = 0
        """Index of the first block that has not been copied yet."""
        self._unsent = 0
        """Index of the first block that has not been sent to the drives yet."""

    def after_segment(self, out: Rows, segment: int, row: int) -> int:
        """Copy the blocks that are ready after backward segment ``segment``, which ends with plan
        row ``row``. Return the id of the row after which the accelerator continues."""
        stop = int(np.searchsorted(self._ready, segment, "right"))
        while self._at < stop:
            if self._at and self._buffer[self._at] != self._buffer[self._at - 1]:
                row = self._next_buffer(out, row)
            last = np.searchsorted(self._buffer, self._buffer[self._at], "right")
            end = min(stop, int(last))
            if self.buffers.copy_bytes_per_s:
                row = out.one(
                    resource=plan_rows.ACCELERATOR,
                    phase=BACKWARD,
                    array_ps=self.buffers.copy_ps(int(self._size[self._at : end].sum())),
                    after0=row,
                )
            self._at = end
        return row

    def _next_buffer(self, out: Rows, row: int) -> int:
        """Write the full buffer. Return the id of the plan row that the accelerator waits for
        before it fills the next buffer: ``row`` if a buffer is free, else the row that completes
        when all writes are complete."""
        self._write(out, row)
        filled = int(self._buffer[self._at])
        if self.buffers.count is None or filled % self.buffers.count:
            return row
        return out.fence(GRADIENTS)

    def _write(self, out: Rows, row: int) -> None:
        blocks = np.arange(self._unsent, self._at)
        if len(blocks):
            self._send(out, blocks, row)
        self._unsent = self._at

    def flush(self, out: Rows, row: int) -> None:
        """Write the blocks that are still in the buffers, after plan row ``row``. The caller makes
        the update wait for these writes before its first read."""
        self._write(out, row)
