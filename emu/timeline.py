"""Timeline: the intervals of every exclusive resource as a Chrome trace that Perfetto opens.

Owns the file format. Does not own which intervals there are (events.line).
Source: Trace Event Format (JSON): complete events "X" in microseconds, one track per resource.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np


def chrome_trace(
    lines: np.ndarray,
    leaf_name: Callable[[int], tuple[int, str]],
    op_names: Sequence[str],
    phases: Sequence[str],
    dropped: int,
    title: str,
) -> str:
    """JSON text of a timeline.

    ``lines`` are events.LINE records; ``leaf_name`` gives (device or -1, name) of a resource. The
    number of intervals that found no room is stated in the metadata.
    """
    events: list[dict[str, object]] = []
    leaves = sorted({int(x) for x in lines["leaf"]})
    for device in sorted({leaf_name(leaf)[0] for leaf in leaves}):
        name = "host" if device < 0 else f"device {device}"
        events.append(
            {"ph": "M", "name": "process_name", "pid": device + 1, "args": {"name": name}}
        )
    for leaf in leaves:
        device, name = leaf_name(leaf)
        track = {"pid": device + 1, "tid": leaf}
        events.append({"ph": "M", "name": "thread_name", **track, "args": {"name": name}})
        events.append({"ph": "M", "name": "thread_sort_index", **track, "args": {"sort_index": leaf}})
    for x in lines[lines["end"] > lines["start"]]:
        op = int(x["op"])
        phase = int(x["phase"])
        where = phases[phase] if phase < len(phases) else "collection"
        events.append(
            {
                "ph": "X",
                "name": op_names[op] if op < len(op_names) else where,
                "cat": where,
                "pid": leaf_name(int(x["leaf"]))[0] + 1,
                "tid": int(x["leaf"]),
                "ts": int(x["start"]) / 1e6,
                "dur": int(x["end"] - x["start"]) / 1e6,
                "args": {"row": int(x["row"])},
            }
        )
    return json.dumps(
        {
            "displayTimeUnit": "ns",
            "otherData": {"title": title, "intervals_without_room": dropped},
            "traceEvents": events,
        }
    )
