"""Functions that derive a new block trace: they select one device, drop an operation, merge all
devices into one, or wrap the offsets to the size of a drive.

Owns these functions; each returns a new trace with notes on its changes. Does not own times or
files.
Source: this project.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ondie.traces.block_model import BYTES_END, COLUMNS, FLUSH, BlockTrace
from ondie.traces.columns import I64
from ondie.traces.errors import TraceError

#: Merged devices begin at multiples of this many bytes.
BESIDE = 1 << 20


def take(trace: BlockTrace, rows: npt.NDArray[Any] | slice, **changes: Any) -> BlockTrace:
    """Return a trace with the requests in the given rows of ``trace``, in order.

    ``changes``: new values of fields of the trace.
    """
    columns = {n: c[rows] for n in COLUMNS if (c := getattr(trace, n)) is not None}
    return replace(trace, **(columns | changes))


def without(trace: BlockTrace, op: int) -> BlockTrace:
    """Return the trace without the requests of operation ``op``. Raises TraceError if no request is
    left."""
    return take(trace, trace.op != op)


def head(trace: BlockTrace, count: int) -> BlockTrace:
    """Return a trace of the first `count` requests. Raises TraceError for a count below 1."""
    if count < 1:
        raise TraceError(f"limit {count}: must be at least 1")
    return take(trace, slice(0, count))


def only(trace: BlockTrace, device: str) -> BlockTrace:
    """Return a trace of the requests of one device.

    Raises TraceError, with the known devices, for an unknown device.
    """
    if device not in trace.devices:
        known = ", ".join(trace.devices[:20]) + (", ..." if len(trace.devices) > 20 else "")
        raise TraceError(f"{trace.source}: device {device!r}: must be one of {known}")
    rows = np.flatnonzero(trace.device == trace.devices.index(device))
    return take(trace, rows, device=np.zeros(len(rows), np.int32), devices=(device,))


def ends(trace: BlockTrace) -> list[int]:
    """Return, for each device, the offset (bytes) after the last byte that a request addresses."""
    out = np.zeros(len(trace.devices), np.int64)
    np.maximum.at(out, trace.device, trace.offset + trace.size)
    return [int(end) for end in out]


def beside(trace: BlockTrace) -> BlockTrace:
    """Return the trace with all devices merged into one.

    The address spaces follow each other in the order of the devices; each begins at a multiple of
    BESIDE bytes. Raises TraceError if the merged address space is too large.
    """
    bases, base = [], 0
    for end in ends(trace):
        bases.append(base)
        base += -(-end // BESIDE) * BESIDE
    if base >= BYTES_END:
        raise TraceError(
            f"{trace.source}: its devices take {base} bytes in a common address "
            "space; must be below 2**62"
        )
    offset = trace.offset + np.where(trace.op == FLUSH, 0, np.array(bases)[trace.device])
    places = ", ".join(f"{d} from {b}" for d, b in list(zip(trace.devices, bases, strict=True))[:8])
    note = f"devices placed one after the other at: {places}{', ...' if len(bases) > 8 else ''}"
    return replace(
        trace,
        offset=offset,
        device=np.zeros(len(trace), np.int32),
        devices=("+".join(trace.devices[:4]) + ("+..." if len(bases) > 4 else ""),),
        notes=(*trace.notes, note),
    )


def wrap(trace: BlockTrace, capacity: int) -> BlockTrace:
    """Return the trace with offsets modulo `capacity` bytes.

    A request across the end becomes two requests with the same arrival. Raises TraceError for a
    capacity below 1, and for a request larger than `capacity`.
    """
    if capacity < 1:
        raise TraceError(f"offset wrap {capacity}: must be at least 1 byte")
    large = trace.size > capacity
    if large.any():
        i = int(np.argmax(large))
        raise TraceError(
            f"{trace.source}: request {i}: size is {trace.size[i]}, larger than an address space "
            f"of {capacity} bytes"
        )
    offset = trace.offset % capacity
    left: I64 = capacity - offset
    across = trace.size > left
    rows = np.repeat(np.arange(len(trace)), 1 + across)
    second = np.append(False, rows[1:] == rows[:-1])
    first = across[rows] & ~second
    size = np.where(first, left[rows], trace.size[rows] - np.where(second, left[rows], 0))
    moved = int((offset != trace.offset).sum())
    notes = [f"{moved} offsets wrapped at {capacity} bytes"] if moved else []
    notes += [f"{across.sum()} requests across the wrap split into two"] if across.any() else []
    return take(
        trace, rows, offset=np.where(second, 0, offset[rows]), size=size,
        notes=(*trace.notes, *notes),
    )  # fmt: skip
