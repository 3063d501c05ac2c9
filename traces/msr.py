"""The format of the MSR Cambridge traces: comma-separated, times in units of 100 ns since 1601.

This module owns reading and writing of the format. It does not download traces.
Source: README of the MSR Cambridge traces at SNIA IOTTA (D. Narayanan et al., FAST 2008):
Timestamp, Hostname, DiskNumber, Type (Read or Write), Offset, Size, ResponseTime. Both times are in
Windows filetime units, offset and size in bytes. A volume is named HOST_DISK, like its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ondie.traces.block_model import BYTES_END, READ, WRITE, BlockTrace, Collector
from ondie.traces.columns import Column, Table
from ondie.traces.errors import TraceError

COLUMNS = ("Timestamp", "Hostname", "DiskNumber", "Type", "Offset", "Size", "ResponseTime")
TICK_PS = 100_000
_TYPES = {"Read": READ, "Write": WRITE}


def read(tables: Iterable[Table], out: Collector) -> None:
    """Add the requests of all tables to ``out``; arrival times count from the first request.

    Raises TraceError for an invalid line.
    """
    out.tick_ps, out.relative = TICK_PS, True
    for table in tables:
        table.expect(COLUMNS)
        time, host, disk, kind, offset, size, response = map(table.column, COLUMNS, range(7))
        ticks = time.integers()
        out.ordered(ticks, table.lines)
        if (host.end == host.start).any():
            raise host.bad(int(np.argmax(host.end == host.start)), "must be a name")
        disk.integers()
        volume = Column(table, "Hostname,DiskNumber", None, host.start, disk.end)
        out.add(
            ticks=ticks,
            op=kind.words(_TYPES),
            offset=offset.integers(most=BYTES_END - 1),
            size=size.integers(least=1, most=BYTES_END - 1),
            device=volume.names(out.devices),
            response=response.integers(),
        )
        if out.full:
            break
    if out.forget("response"):
        out.note("response times of 0 are treated as not recorded", out.size)
    out.devices = {name.replace(",", "_"): i for name, i in out.devices.items()}


def volumes(trace: BlockTrace, path: str) -> list[str]:
    """Return the host and disk columns, "HOST,DISK", for each device.

    A device named HOST_DISK gets this host and disk. Any other device name becomes the host, with
    disk 0. Raises TraceError for names that the format cannot represent.
    """
    out = []
    for name in trace.devices:
        host, _, disk = name.rpartition("_")
        if not (host and disk.isascii() and disk.isdecimal()):
            host, disk = name, "0"
        if "," in host or "\n" in host or "\r" in host:
            raise TraceError(
                f"{path}: device {name!r}: must be a Hostname without a comma or a line end"
            )
        out.append(f"{host},{disk}")
    for i, volume in enumerate(out):
        if volume in out[:i]:
            other = trace.devices[out.index(volume)]
            raise TraceError(
                f"{path}: devices {other!r} and {trace.devices[i]!r} would both be {volume}: "
                "device names must differ in host or disk"
            )
    return out


def lines(trace: BlockTrace, path: str) -> Iterator[str]:
    """Yield one line for each request; unknown response times are written as 0."""
    origin = trace.origin_ps // TICK_PS
    volume = volumes(trace, path)
    for part in trace.parts():
        ticks = (trace.arrival_ps[part] // TICK_PS).tolist()
        names = [volume[d] for d in trace.device[part].tolist()]
        kind = np.where(trace.op[part] == READ, "Read", "Write").tolist()
        if trace.response_ps is None:
            response = [0] * len(ticks)
        else:
            response = (trace.response_ps[part] // TICK_PS).tolist()
        columns = zip(ticks, names, kind, trace.offset[part].tolist(), trace.size[part].tolist(),
                      response, strict=True)  # fmt: skip
        yield from (f"{origin + t},{v},{k},{o},{s},{r}\n" for t, v, k, o, s, r in columns)
