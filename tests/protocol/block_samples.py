"""Owns: block traces made by hypothesis, one as plain tuples, and writing lines to a file.
Does not: expect anything.
Source: own.
"""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ondie.traces.block import FLUSH, READ, TRIM, WRITE, BlockTrace

SAMPLES = Path(__file__).parent / "samples"
SECTOR = 512
NAMES = st.from_regex(r"[a-z0-9/,_.]{1,20}", fullmatch=True)


def columns(requests: list[tuple[int, int, int, int, int]], devices: tuple[str, ...],
            **more: Any) -> BlockTrace:  # fmt: skip
    """A trace of (arrival_ps, op, offset, size, device) rows."""
    arrival, op, offset, size, device = (list(c) for c in zip(*requests, strict=True))
    return BlockTrace(
        arrival_ps=np.array(arrival, np.int64),
        op=np.array(op, np.int8),
        offset=np.array(offset, np.int64),
        size=np.array(size, np.int64),
        device=np.array(device, np.int32),
        devices=devices,
        **({"source": "memory", "format": "memory"} | more),
    )


def rows(trace: BlockTrace) -> list[tuple[int, int, int, str]]:
    """(op, offset, size, name of the device) of each request."""
    names = [trace.devices[d] for d in trace.device.tolist()]
    columns = (trace.op.tolist(), trace.offset.tolist(), trace.size.tolist(), names)
    return list(zip(*columns, strict=True))


@st.composite
def traces(
    draw: st.DrawFn,
    ops: tuple[int, ...] = (READ, WRITE, TRIM, FLUSH),
    names: st.SearchStrategy[str] = NAMES,
    most_size: int = 2**40,
    response: bool = False,
) -> BlockTrace:
    """Up to 30 requests on up to 3 devices, all of which have one."""
    n = draw(st.integers(1, 30))
    devices = tuple(draw(st.lists(names, min_size=1, max_size=min(3, n), unique=True)))
    gaps = st.one_of(st.just(0), st.integers(0, 10**7), st.integers(0, 10**13))
    arrival = np.cumsum(draw(st.lists(gaps, min_size=n, max_size=n)))
    sector = st.one_of(st.integers(0, 100), st.integers(0, 2**50))
    sectors = st.one_of(st.integers(1, 256), st.integers(1, most_size // SECTOR))
    requests = []
    for i in range(n):
        op = draw(st.sampled_from(ops))
        place = (0, 0) if op == FLUSH else (draw(sector) * SECTOR, draw(sectors) * SECTOR)
        device = i if i < len(devices) else draw(st.integers(0, len(devices) - 1))
        requests.append((int(arrival[i]), op, *place, device))
    more = {}
    if response:
        more["origin_ps"] = draw(st.integers(0, 2 * 10**17)) * 100_000
        more["response_ps"] = np.array(
            draw(st.lists(st.integers(0, 10**13), min_size=n, max_size=n)), np.int64
        )
    return columns(requests, devices, **more)


def write_lines(path: Path, *lines: str) -> Path:
    """A file of these lines."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
