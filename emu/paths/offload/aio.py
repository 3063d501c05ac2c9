"""Asynchronous I/O handles: blocks in flight of a transfer and their dependencies.

Owns the windows of reads and writes, the threads that share a request, and batches without overlap
of events. Does not own the queue of a drive (nvme/command.py).
Source: DeepSpeed's aio handles: block_size, queue_depth, intra_op_parallelism, overlap_events.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core import plan_rows
from ondie.emu.nvme import command
from ondie.emu.paths.base import Rows
from ondie.emu.paths.layout.volume import Requests
from ondie.emu.paths.offload.options import Offload


class Handles:
    """One handle for reads and one for writes.

    With ``options.threads`` that number of threads share each request, each with a separate window
    over all drives; otherwise every drive has a window. ``window`` None: only the drive's queue
    limits.
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
        """Add rows of block requests that wait for ``after`` (one row for all, or one for each);
        return their ids."""
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
        """Return the window of each request: its thread, or its drive."""
        if self.threads is None:
            return found.device
        count = len(found.first)
        return np.arange(count) // max(-(-count // self.threads), 1)

    def _order(self, lane: np.ndarray) -> np.ndarray:
        """Return the order of requests: the threads send in turn."""
        count = len(lane)
        if self.threads is None or self.threads == 1 or count == 0:
            return np.arange(count)
        share = -(-count // self.threads)
        return np.lexsort((lane, np.arange(count) % share))

    def _windows(self, kind: int, lane: np.ndarray, first: int) -> np.ndarray:
        """Return the row that each request waits for: request i waits for request i - window of the
        same handle; -1: none."""
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
