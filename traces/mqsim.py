"""MQSim's trace format: five columns separated by blanks, with times in a configurable unit.

This module owns reading and writing of the format. It does not read MQSim's XML workload file,
which states the unit (Time_Unit).
Source: MQSim's trace-based flow: time, device, first sector, sectors, type (0 write, 1 read).

MQSim ignores the device column and silently stops at a line with another number of columns; here
such a line is an error. MQSim parses the sector columns in C notation, where a leading zero means
octal; here a leading zero is an error. MQSim also ignores Time_Unit and reads every time as
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ondie.traces.block_model import (
    BYTES_END,
    READ,
    SECTOR_BYTES,
    WRITE,
    BlockTrace,
    Collector,
)
from ondie.traces.columns import Column, Table
from ondie.traces.errors import TraceError

COLUMNS = ("time", "device", "sector", "sectors", "type")
TICKS_PS = {"ps": 1, "ns": 1000, "us": 10**6}
_TYPES = {"0": WRITE, "1": READ}
_ZERO = 48


def read(tables: Iterable[Table], out: Collector) -> None:
    """Add the requests of all tables to ``out``. Raises TraceError for an invalid line."""
    for table in tables:
        table.expect(COLUMNS)
        time, device, sector, sectors, kind = map(table.column, COLUMNS, range(5))
        ticks = time.integers()
        out.ordered(ticks, table.lines)
        for column in (sector, sectors):
            _refuse_octal(column)
        out.add(
            ticks=ticks,
            op=kind.words(_TYPES),
            offset=sector.integers(most=BYTES_END // SECTOR_BYTES - 1) * SECTOR_BYTES,
            size=sectors.integers(least=1, most=BYTES_END // SECTOR_BYTES - 1) * SECTOR_BYTES,
            device=_numbers(device, out),
        )
        if out.full:
            return


def _numbers(device: Column, out: Collector) -> np.ndarray:
    """Return the index of each row's device. Raises TraceError for a device name that is not a
    number."""
    device.integers()
    return device.names(out.devices)


def _refuse_octal(column: Column) -> None:
    """Raise TraceError for a number with a leading zero, which MQSim reads as octal."""
    octal = (column.table.text[column.start] == _ZERO) & (column.end - column.start > 1)
    if octal.any():
        raise column.bad(
            int(np.argmax(octal)),
            "must not begin with 0, because MQSim would read it as an octal number",
        )


def lines(trace: BlockTrace, tick_ps: int) -> Iterator[str]:
    """Yield one line for each request.

    Offsets and sizes must be whole sectors (see check).
    """
    number = numbers(trace)
    for part in trace.parts():
        ticks = (trace.arrival_ps[part] // tick_ps).tolist()
        device = [number[d] for d in trace.device[part].tolist()]
        sector = (trace.offset[part] // SECTOR_BYTES).tolist()
        sectors = (trace.size[part] // SECTOR_BYTES).tolist()
        kind = (trace.op[part] == READ).astype(np.int8).tolist()
        columns = zip(ticks, device, sector, sectors, kind, strict=True)
        yield from (f"{t} {d} {a} {n} {k}\n" for t, d, a, n, k in columns)


def check(trace: BlockTrace, path: str) -> None:
    """Raise TraceError if an offset or a size is not a whole number of sectors."""
    for name in ("offset", "size"):
        broken = getattr(trace, name) % SECTOR_BYTES != 0
        if broken.any():
            i = int(np.argmax(broken))
            raise TraceError(
                f"{path}: request {i}: {name} is {getattr(trace, name)[i]}: MQSim's format counts "
                f"in sectors and needs a multiple of {SECTOR_BYTES} bytes"
            )


def numbers(trace: BlockTrace) -> list[int]:
    """Return the value of the device column for each device of the trace.

    The values are the device names if all names are numbers, else the indices of the devices.
    """
    names = trace.devices
    if all(name.isascii() and name.isdecimal() and str(int(name)) == name for name in names):
        return [int(name) for name in names]
    return list(range(len(names)))
