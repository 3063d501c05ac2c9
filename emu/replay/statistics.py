"""Statistics of a run: rates, latencies, percentiles, for the whole run and its second half.

Owns the fields of `--json`, for MQSim's workloads and for replayed traces. Does not own the
counting (the simulation) or MQSim's elements (mqsim/result_xml.py). Source: this project;
percentiles as in Hyndman, Fan, The American Statistician 50(4), 1996, type 7, with linear
interpolation.

With n requests, the second half consists of the completions starting at number n // 2, in order of
completion. The duration of the second half is the time from its first to its last completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nvme.request import READ, REQUEST, WRITE
from ondie.emu.replay.memory import peak_rss_bytes

PS_PER_S = 10**12
PS_PER_US = 10**6
FLASH_COUNTS = (
    "user_reads",
    "user_writes",
    "gc_reads",
    "gc_writes",
    "map_reads",
    "map_writes",
    "erases",
)
"""Names of the counters that a run must provide: pages read, pages programmed and blocks erased."""
INTERNAL_WRITES = (
    "gc_writes", "map_writes", "fold_writes", "padding_writes", "failed_writes",
    "refresh_writes",
)  # fmt: skip
"""Names of the counters of pages that are programmed for reasons other than a host write. A missing
counter means 0.

Failed programs are included. Padding pages complete a word line or a flash page.
"""
QUANTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
REQUEST_KINDS = {"all": None, "read": READ, "write": WRITE}
I64 = npt.NDArray[np.int64]


def statistics(
    requests: Sequence[np.ndarray],
    flash: Mapping[str, int],
    *,
    page_bytes: int,
    half: Mapping[str, int] | None = None,
    least_pages: int = 0,
    wall_s: float,
    config: Mapping[str, Any],
    since: str = "start",
) -> dict[str, Any]:
    """Return the statistics of a run as `--json` writes them. A value is None if its divisor is
    zero.

    ``requests``: completed requests of each flow, REQUEST[n]. ``flash``: FLASH_COUNTS and other
    counters, in pages of ``page_bytes``. ``half``: these counters at the first completion of the
    second half, or None if unknown. ``least_pages``: minimum number of pages programmed for the
    host for which a write amplification is reported; below it, the write amplification is None.
    ``since``: field of REQUEST at which a latency begins: "start", the entry into the submission
    queue (MQSim's device response time), or "arrival", the arrival at the host (MQSim's end-to-end
    delay). Requires 30 bytes of memory per request in addition to ``requests``. Raises
    SimulationError if a counter of FLASH_COUNTS is missing, there are no requests, a request did
    not complete, or the times of a request are out of order. Raises TypeError if a flow is not an
    array of REQUEST.
    """
    _check(requests, flash)
    end = _joined([flow["end"] for flow in requests])
    latency = end - _joined([flow[since] for flow in requests])
    op = _joined([flow["op"].astype(np.int8) for flow in requests])
    size = sum(_bytes_of(flow, (READ, WRITE)) for flow in requests)
    count, last = len(end), int(end.max())
    later = _second_half(end)
    start, at = int(end[later].min()), 0
    written = sum(_bytes_of(flow, (WRITE,)) for flow in requests)
    counted = later.copy()  # completions after the first of the second half
    counted[np.argmax(later & (end == start))] = False
    size_later = written_later = 0
    for flow in requests:
        part = counted[at : at + len(flow)]
        size_later += _bytes_of(flow, (READ, WRITE), part)
        written_later += _bytes_of(flow, (WRITE,), part)
        at += len(flow)
    whole = {
        "requests": count,
        "simulated_ns": _ns(last),
        **_rates(count, size, last),
        "latency_us": latencies(latency, op),
    }
    second = {
        "requests": int(later.sum()),
        "simulated_ns": _ns(last - start),
        **_rates(int(later.sum()) - 1, size_later, last - start),
        "latency_us": latencies(latency[later], op[later]),
    }
    if half is not None:
        in_half = {name: flash[name] - half[name] for name in flash if name in half}
        of_flash = {name: in_half[name] for name in FLASH_COUNTS}
        second |= {"flash": of_flash}
        second |= writes(in_half, written_later, page_bytes, least_pages)
    return {
        **whole,
        "second_half": second,
        "flash": {name: int(flash[name]) for name in FLASH_COUNTS},
        **writes(flash, written, page_bytes, least_pages),
        "wall_s": wall_s,
        "peak_rss_bytes": peak_rss_bytes(),
        "config": dict(config),
    }


def _check(requests: Sequence[np.ndarray], flash: Mapping[str, int]) -> None:
    """Raise SimulationError if counters are missing, if there are no requests, or if a request has
    invalid times; raise TypeError if a flow is not an array of REQUEST."""
    missing = [name for name in FLASH_COUNTS if name not in flash]
    if missing:
        raise SimulationError(f"the run has no counters for {', '.join(missing)}")
    if not sum(map(len, requests)):
        raise SimulationError("the run has no requests")
    for at, flow in enumerate(requests):
        if flow.dtype != REQUEST:
            raise TypeError(f"flow {at}: has dtype {flow.dtype}; must be REQUEST")
        open_ = int((flow["end"] < 0).sum())
        if open_:
            raise SimulationError(f"flow {at}: {open_} of {len(flow)} requests did not complete")
        arrival, start, end = flow["arrival"], flow["start"], flow["end"]
        wrong = (arrival < 0) | (start < arrival) | (end < start)
        if wrong.any():
            row = flow[int(np.argmax(wrong))]
            raise SimulationError(
                f"flow {at}: request {row['tag']} arrives at {row['arrival']} ps, starts at "
                f"{row['start']} ps and ends at {row['end']} ps; these times must not decrease"
            )


def _second_half(end: I64) -> npt.NDArray[np.bool_]:
    """Return a mask of the second half: completions number n // 2 or later, bool[n].

    ``end``: time of each completion, ps, int64[n]. Equal times are ordered by request number.
    """
    count = len(end)
    place = count // 2
    bound = np.partition(end, place)[place]
    later = end > bound
    ties = np.flatnonzero(end == bound)
    wanted = count - place - int(later.sum())
    later[ties[len(ties) - wanted :]] = True
    return later


def _joined(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the concatenated columns of all flows. If there is only one flow, return its column
    without a copy."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _bytes_of(
    flow: np.ndarray, ops: Sequence[int], part: npt.NDArray[np.bool_] | None = None
) -> int:
    """Return the total size in bytes of the requests of a flow whose operation is in ``ops``.

    ``part``: mask of the requests to count, or None to count all requests.
    """
    op = np.ascontiguousarray(flow["op"])
    wanted = op == ops[0]
    for other in ops[1:]:
        wanted |= op == other
    if part is not None:
        wanted &= part
    return int(flow["size"].sum(where=wanted))


def _rates(requests: int, size: int, ps: int) -> dict[str, float | None]:
    """Return IOPS and bandwidth (bytes/s) for ``requests`` requests with ``size`` bytes in ``ps``;
    both are None if ``ps`` is not above 0."""
    if ps <= 0:
        return {"iops": None, "bandwidth_bytes_per_s": None}
    return {
        "iops": requests / ps * PS_PER_S,
        "bandwidth_bytes_per_s": size / ps * PS_PER_S,
    }


def _ns(ps: int) -> float:
    """Convert a time from ps to ns. The result is an integer if that is exact."""
    return ps // 1000 if ps % 1000 == 0 else ps / 1000


def latencies(latency: I64, op: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the summaries of the latencies of all requests, of reads and of writes, by name. A
    summary is None if there are no such requests.

    ``latency``: ps, int64[n]. ``op``: operation of each request (READ, WRITE, ...).
    """
    out: dict[str, Any] = {}
    for kind, wanted in REQUEST_KINDS.items():
        part = latency if wanted is None else latency[op == wanted]
        out[kind] = summary(part) if len(part) else None
    return out


def summary(latency: I64) -> dict[str, float]:
    """Return mean, percentiles and maximum (us) of latencies in ps, int64[n]; n must be at least
    1."""
    quantiles = np.percentile(latency, list(QUANTILES.values())) / PS_PER_US
    return {
        "mean": float(latency.mean(dtype=np.float64)) / PS_PER_US,
        **{name: float(value) for name, value in zip(QUANTILES, quantiles, strict=True)},
        "max": int(latency.max()) / PS_PER_US,
    }


def writes(
    flash: Mapping[str, int], written: int, page_bytes: int, least_pages: int = 0
) -> dict[str, Any]:
    """Return the bytes written by the host, the bytes programmed, and two ratios.

    "waf" is bytes programmed divided by bytes written. "page_write_ratio" is pages programmed
    divided by pages programmed for the host: MQSim's write amplification, which counts a write of
    part of a page as a page. A ratio is None if its divisor is 0, or if fewer than ``least_pages``
    pages were programmed for the host. ``written``: bytes that the host wrote.
    """
    pages = flash["user_writes"]
    programmed = pages + sum(flash.get(name, 0) for name in INTERNAL_WRITES)
    enough = pages >= least_pages
    return {
        "written_bytes": written,
        "programmed_bytes": programmed * page_bytes,
        "waf": programmed * page_bytes / written if written and enough else None,
        "page_write_ratio": programmed / pages if pages and enough else None,
    }
