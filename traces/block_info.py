"""Summary of a block trace as a dictionary, for display and for JSON.

This module owns block_info(), the content of `ondie trace info --from`. It does not own the output
on the terminal.
Source: the trace; the summary contains nothing beyond its data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ondie.traces.block_model import FLUSH, OPS, PS_PER_S, READ, TRIM, WRITE, BlockTrace
from ondie.traces.columns import I64

PAGE = 4096
#: The alignment of an offset is the largest of these values that divides it.
ALIGNMENTS = (1, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


def block_info(trace: BlockTrace) -> dict[str, Any]:
    """Return a summary of the trace as a dictionary for JSON.

    The keys cover requests, times, operations, sizes, footprint, alignment and devices. Sizes
    are in bytes, span_s in seconds, response times in microseconds.
    """
    n, span = len(trace), trace.span_ps
    data = (trace.op == READ) | (trace.op == WRITE)
    aligned = data & (trace.offset % PAGE == 0) & (trace.size % PAGE == 0)
    out: dict[str, Any] = {
        "source": trace.source,
        "format": trace.format,
        "requests": n,
        "timed": trace.timed,
        "span_s": span / PS_PER_S,
        "requests_per_s": (n - 1) / (span / PS_PER_S) if span else None,
        "share": {name: int(c) / n for name, c in zip(OPS, trace.counts(), strict=True)},
        "bytes": {},
        "size_bytes": {},
        "footprint_bytes": {},
        "aligned_4k_share": float(aligned.sum() / data.sum()) if data.any() else None,
        "alignment": _alignment(trace.offset[data]),
        "devices": _devices(trace),
    }
    for op in (READ, WRITE, TRIM):
        rows = trace.op == op
        if rows.any():
            size = trace.size[rows]
            out["bytes"][OPS[op]] = int(size.sum())
            out["size_bytes"][OPS[op]] = {
                "min": int(size.min()), "median": float(np.median(size)), "max": int(size.max())
            }  # fmt: skip
            out["footprint_bytes"][OPS[op]] = footprint(trace, rows)
    out["footprint_bytes"]["all"] = footprint(trace, trace.op != FLUSH)
    if trace.fua is not None:
        out["fua_writes"] = int(trace.fua.sum())
    if trace.response_ps is not None:
        out["response_us"] = {
            name: float(np.percentile(trace.response_ps, q)) / 1e6
            for name, q in (("median", 50), ("p99", 99), ("max", 100))
        }
    out["notes"] = list(trace.notes)
    return out


def footprint(trace: BlockTrace, rows: np.ndarray) -> int:
    """Return the number of distinct bytes that the selected requests touch, over all devices.

    rows: bool[n], True for each selected request.
    """
    device, start = trace.device[rows], trace.offset[rows]
    end = start + trace.size[rows]
    order = np.lexsort((start, device))
    device, start, end = device[order], start[order], end[order]
    total, first = 0, 0
    for last in [*(np.flatnonzero(np.diff(device)) + 1).tolist(), len(device)]:
        total += _union(start[first:last], end[first:last])
        first = last
    return total


def _union(start: I64, end: I64) -> int:
    """Return the total length of the union of the intervals from ``start`` to ``end``, which are
    sorted by start."""
    if not len(start):
        return 0
    covered = np.maximum.accumulate(end)
    new = np.maximum(start[1:], covered[:-1])  # earlier bytes are already covered
    return int(end[0] - start[0] + np.maximum(end[1:] - new, 0).sum())


def _alignment(offset: I64) -> dict[str, int]:
    """Return the number of reads and writes by the alignment of their offset.

    The alignment is the largest of ALIGNMENTS (bytes) that divides the offset.
    """
    divides = np.array([offset % a == 0 for a in ALIGNMENTS]).sum(axis=0)
    counts = np.bincount(divides, minlength=len(ALIGNMENTS) + 1)[1:]
    return {str(a): int(c) for a, c in zip(ALIGNMENTS, counts, strict=True)}


def _devices(trace: BlockTrace) -> dict[str, dict[str, int]]:
    """Return, for each device, the number of requests and the offset after its last used byte."""
    requests = np.bincount(trace.device, minlength=len(trace.devices))
    end = np.zeros(len(trace.devices), np.int64)
    np.maximum.at(end, trace.device, trace.offset + trace.size)
    return {
        name: {"requests": int(count), "end_bytes": int(e)}
        for name, count, e in zip(trace.devices, requests, end, strict=True)
    }
