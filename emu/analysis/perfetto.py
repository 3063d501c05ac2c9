"""Timeline export: the busy intervals of each exclusive resource as a Chrome trace for Perfetto.

Owns the file format. Does not own the recording of intervals (engine/core/events.py).
Source: Trace Event Format (JSON): complete events "X" in microseconds, one track per resource.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def events(
    lines: np.ndarray,
    leaf_name: Callable[[int], tuple[int, str]],
    op_names: Sequence[str],
    phases: Sequence[str],
    title: str,
) -> list[dict[str, Any]]:
    """Return the trace events of one path's run. Process 0 is the host, and process n + 1 is device
    n.

    ``lines``: recorded busy intervals, an array of LINE records. ``leaf_name``: function that
    returns (device, name) for the index of a resource; the device is -1 for the host. ``title``:
    prefix of the process names.
    """
    out: list[dict[str, Any]] = []
    leaves = {int(leaf): leaf_name(int(leaf)) for leaf in np.unique(lines["leaf"])}
    for device in sorted({device for device, _ in leaves.values()}):
        name = f"{title}: {'host' if device < 0 else f'device {device}'}"
        out.append({"ph": "M", "name": "process_name", "pid": device + 1, "args": {"name": name}})
    for leaf, (device, name) in leaves.items():
        track = {"pid": device + 1, "tid": leaf}
        out.append({"ph": "M", "name": "thread_name", **track, "args": {"name": name}})
        out.append({"ph": "M", "name": "thread_sort_index", **track, "args": {"sort_index": leaf}})
    for leaf, start, end, row, op, phase in lines[lines["end"] > lines["start"]].tolist():
        where = phases[phase] if phase < len(phases) else "collection"
        out.append(
            {
                "ph": "X",
                "name": op_names[op] if op < len(op_names) else where,
                "cat": where,
                "pid": leaves[leaf][0] + 1,
                "tid": leaf,
                "ts": start / 1e6,
                "dur": (end - start) / 1e6,
                "args": {"row": row},
            }
        )
    return out


def merge(runs: Sequence[tuple[list[dict[str, Any]], int]]) -> str:
    """Return the trace of several runs as JSON text; each run has separate processes. ``runs``: for
    each run, (events, number of intervals that were dropped because the timeline was full). The
    metadata contains the total number of dropped intervals."""
    merged: list[dict[str, Any]] = []
    offset = 0
    for found, _ in runs:
        merged += [{**event, "pid": event["pid"] + offset} for event in found]
        offset += max((event["pid"] for event in found), default=0) + 1
    return json.dumps(
        {
            "displayTimeUnit": "ns",
            "otherData": {"intervals_without_room": sum(dropped for _, dropped in runs)},
            "traceEvents": merged,
        }
    )
