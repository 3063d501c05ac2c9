"""Trace flows: MQSim's traces, and requests recorded from a run of MQSim.

Owns the search for a trace file, the percentage of a trace that is executed, the number of its
repetitions, and the treatment of addresses outside the flow's range. Does not own the format of a
trace (ondie.traces.block).
Source: MQSim's trace-based flow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.nvme.request import MAX_CHUNK, NOT_YET, READ, REQUEST, WRITE
from ondie.emu.replay.mqsim.address_partition import Range
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.ssdconfig import PS_PER_NS
from ondie.emu.replay.mqsim.synthetic_flow import alias
from ondie.emu.replay.mqsim.workload_xml import MOST_SECTORS, FlowParameters, TraceBased
from ondie.emu.units import INT64_MAX, InputError
from ondie.traces.block import read_block

I64 = npt.NDArray[np.int64]
UNITS = {"PICOSECOND": "ps", "NANOSECOND": "ns", "MICROSECOND": "us"}
_COMPRESSED = ("", ".gz", ".xz")


def find_trace(name: str, folders: Sequence[str | os.PathLike[str]], place: str) -> Path:
    """Return the path of the trace that File_Path names, either plain or compressed.

    ``name``: value of File_Path. ``folders``: folders to search, in order. Raises InputError, whose
    message begins with ``place``, if no file exists.
    """
    tried = [Path(folder) / (name + end) for folder in folders for end in _COMPRESSED]
    for path in tried:
        if path.is_file():
            return path
    where = ", ".join(dict.fromkeys(str(path) for path in tried[:: len(_COMPRESSED)]))
    raise InputError(f"{place}: File_Path is {name}: no such file ({where}, or with .gz or .xz)")


def trace_flow(
    stream: int,
    parameters: TraceBased,
    range_: Range,
    quirks: frozenset[str],
    where: str,
    folders: Sequence[str | os.PathLike[str]],
) -> Flow:
    """Return the flow of a trace on the addresses ``range_``; error messages begin with ``where``.

    Sector numbers of the trace are relative to the first sector of the flow; sector numbers beyond
    the flow's size are taken modulo that size. Quirks reproduced: nanoseconds, whole_trace_rounds,
    short_modulus, address_alias. Raises TraceError if the file cannot be read. Raises InputError if
    no file exists, no request is left, a request is larger than the flow's range or than MQSim
    allows, or the last round ends after the clock's maximum.
    """
    path = find_trace(parameters.file_path, folders, where)
    unit = "ns" if "nanoseconds" in quirks else UNITS[parameters.time_unit]
    trace = read_block(path, "mqsim", time_unit=unit)
    rounds, whole = parameters.relay_count, len(trace)
    share = 100 if rounds > 1 and "whole_trace_rounds" in quirks else None
    count = whole * (share or parameters.percentage_to_be_executed) // 100
    if not count:
        raise parameters.bad(
            where, "percentage_to_be_executed", f"leaves none of the {whole} requests of {path}"
        )
    period = int(trace.arrival_ps[count - 1])
    if period * rounds > INT64_MAX:
        raise parameters.bad(
            where, "relay_count", "the last round ends after the clock's maximum of 106 days"
        )
    offset, notes = _inside(trace.offset[:count], trace.size[:count], range_, quirks, str(path))
    once = _records(stream, trace.arrival_ps[:count], offset, trace.size[:count], trace.op[:count])
    if "address_alias" in quirks:
        alias(once)

    def source() -> Iterator[np.ndarray]:
        for number in range(rounds):
            for at in range(0, count, MAX_CHUNK):
                chunk = once[at : at + MAX_CHUNK].copy()
                chunk["arrival"] += number * period
                chunk["tag"] += number * count
                yield chunk

    return Flow(
        stream=stream,
        name=f"Host.IO_Flow.Trace.{parameters.file_path}",
        parameters=parameters,
        range=range_,
        depth=None,
        total=count * rounds,
        stop_ps=None,
        source=source,
        notes=(*trace.notes, *notes),
    )


def _records(stream: int, arrival: I64 | int, offset: I64, size: I64, op: np.ndarray) -> np.ndarray:
    out = np.zeros(len(offset), REQUEST)
    out["arrival"], out["start"], out["end"] = arrival, NOT_YET, NOT_YET
    out["offset"], out["size"], out["op"] = offset, size, op
    out["stream"], out["tag"] = stream, np.arange(len(offset))
    return out


def _inside(
    offset: I64, size: I64, range_: Range, quirks: frozenset[str], path: str
) -> tuple[I64, tuple[str, ...]]:
    """Return the offsets on the drive (bytes), moved into the flow's range, and remarks on changes.

    ``offset``, ``size``: bytes, relative to the start of the flow, int64[n]. ``path``: file, for
    error messages. Raises InputError if a request is too large.
    """
    notes = []
    most = min(range_.sectors, MOST_SECTORS)
    large = size > most * SECTOR_BYTES
    if large.any():
        i = int(np.argmax(large))
        raise InputError(
            f"{path}: request {i}: size is {size[i] // SECTOR_BYTES} sectors; must be at most "
            f"{most} "
            + (
                "(MQSim stores the size in 16 bits)"
                if most == MOST_SECTORS
                else "(the size of the flow's range)"
            )
        )
    sector = offset // SECTOR_BYTES
    beyond = sector > range_.last - range_.first
    if beyond.any():
        modulus = range_.sectors - ("short_modulus" in quirks)
        sector = np.where(beyond, sector % modulus, sector)
        notes.append(
            f"{beyond.sum()} addresses beyond the flow's {range_.sectors} sectors were wrapped"
        )
    last = range_.sectors - size // SECTOR_BYTES
    across = sector > last
    if across.any() and "wrapped_requests" not in quirks:
        sector = np.minimum(sector, last)
        notes.append(
            f"{across.sum()} requests across the flow's end were moved to end at the flow's end"
        )
    return (sector + range_.first) * SECTOR_BYTES, tuple(notes)


@dataclass(frozen=True)
class Recorded:
    """Requests recorded in a run of MQSim, in order of arrival; columns of length n.

    ``arrival_ps``, ``latency_ps``: int64. ``offset``, ``size``: int64, bytes on the drive. ``op``:
    int32, READ or WRITE. ``stream``: int32, number of the flow. ``source``: name of the file.
    """

    arrival_ps: I64
    latency_ps: I64
    offset: I64
    size: I64
    op: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    source: str

    def __len__(self) -> int:
        return len(self.arrival_ps)

    def head(self, count: int) -> Recorded:
        """Return the first ``count`` recorded requests, or all if there are fewer."""
        columns = {name: getattr(self, name)[:count] for name in _COLUMNS}
        return Recorded(**columns, source=self.source)

    def records(self) -> np.ndarray:
        """Return the recorded requests as REQUEST[n], with arrival, start and end."""
        out = _records(0, self.arrival_ps, self.offset, self.size, self.op)
        out["stream"], out["start"] = self.stream, self.arrival_ps
        out["end"] = self.arrival_ps + self.latency_ps
        return out


_COLUMNS = ("arrival_ps", "latency_ps", "offset", "size", "op", "stream")
_NAMES = ("arrival_ns", "latency_ns", "lba", "sectors", "is_read")


def read_recorded(path: str | os.PathLike[str]) -> Recorded:
    """Return the recorded requests of an .npz file.

    Its columns are arrival_ns, latency_ns, lba and sectors (of 512 B), is_read, and optionally
    flow. Raises InputError if the file does not exist, is not such a file, or has invalid columns.
    """
    where = os.fspath(path)
    columns = _load(where)
    count = len(columns["arrival_ns"])
    for name, column in columns.items():
        if column.shape != (count,) or column.dtype.kind not in "iub" or not count:
            raise InputError(
                f"{where}: {name} is {column.dtype}{list(column.shape)}; must be integers[{count}]"
            )
        if int(column.max()) > INT64_MAX // 10**6 or int(column.min()) < 0:
            raise InputError(f"{where}: {name} contains values below 0 or above 9e12")
    if (columns["sectors"] == 0).any():
        raise InputError(f"{where}: a request has 0 sectors; must be at least 1")
    arrival = columns["arrival_ns"].astype(np.int64) * PS_PER_NS
    if (arrival[1:] < arrival[:-1]).any():
        i = int(np.argmax(arrival[1:] < arrival[:-1])) + 1
        before, after = columns["arrival_ns"][i - 1 : i + 1]
        raise InputError(
            f"{where}: arrival_ns of request {i} is {after}; must be at least {before}, the "
            f"arrival time of request {i - 1}"
        )
    flow = columns.get("flow")
    return Recorded(
        arrival_ps=arrival,
        latency_ps=columns["latency_ns"].astype(np.int64) * PS_PER_NS,
        offset=columns["lba"].astype(np.int64) * SECTOR_BYTES,
        size=columns["sectors"].astype(np.int64) * SECTOR_BYTES,
        op=np.where(columns["is_read"], READ, WRITE).astype(np.int32),
        stream=np.zeros(count, np.int32) if flow is None else flow.astype(np.int32),
        source=where,
    )


def _load(where: str) -> dict[str, np.ndarray]:
    try:
        with np.load(where, allow_pickle=False) as file:
            missing = [name for name in _NAMES if name not in file]
            if missing:
                raise InputError(
                    f"{where}: column {missing[0]} is missing; must have the columns "
                    f"{', '.join(_NAMES)}"
                )
            return {name: file[name] for name in (*_NAMES, "flow") if name in file}
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (OSError, ValueError, TypeError, EOFError, KeyError) as error:
        raise InputError(f"{where}: is not an .npz file of recorded requests: {error}") from None


def recorded_flow(
    stream: int, parameters: FlowParameters, range_: Range, recorded: Recorded, depth: int | None
) -> Flow:
    """Return a flow that repeats the recorded requests of one flow.

    The requests are issued in order with ``depth`` outstanding requests, or at their recorded
    arrival times if ``depth`` is None. Raises InputError if a request is outside the addresses of
    the flow, or if the flow has no requests.
    """
    rows = np.flatnonzero(recorded.stream == stream)
    offset, size = recorded.offset[rows], recorded.size[rows]
    if not len(rows):
        raise InputError(f"{recorded.source}: contains no requests of flow {stream}")
    out = (offset < range_.first * SECTOR_BYTES) | (
        offset + size > (range_.last + 1) * SECTOR_BYTES
    )
    if out.any():
        i = int(rows[np.argmax(out)])
        raise InputError(
            f"{recorded.source}: request {i}: sector {recorded.offset[i] // SECTOR_BYTES} is "
            f"outside flow {stream}, which has sectors {range_.first} to {range_.last}"
        )
    arrival = recorded.arrival_ps[rows] if depth is None else NOT_YET
    once = _records(stream, arrival, offset, size, recorded.op[rows])

    def source() -> Iterator[np.ndarray]:
        for at in range(0, len(once), MAX_CHUNK):
            yield once[at : at + MAX_CHUNK].copy()

    return Flow(
        stream=stream,
        name=f"Host.IO_Flow.Recorded.No_{stream}",
        parameters=parameters,
        range=range_,
        depth=depth,
        total=len(once),
        stop_ps=None,
        source=source,
    )
