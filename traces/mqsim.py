"""MQSim's trace format: five columns between blanks, times in a unit that its workload file states.

Owns: reading and writing it. Does not: know MQSim's XML, where the unit is (Time_Unit).
Source: MQSim's trace-based flow: time, device, first sector, sectors, type (0 write, 1 read).

MQSim ignores the device column, takes the sector columns in C's notation (so that a leading zero
means octal, refused here), and stops without a word at a line of another number of columns, which
is an error here. It also ignores Time_Unit and takes every time as nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ondie.traces.block_model import (
    BYTES_END,
    READ,
    SECTOR,
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
    """Add the requests of all tables."""
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
            offset=sector.integers(most=BYTES_END // SECTOR - 1) * SECTOR,
            size=sectors.integers(least=1, most=BYTES_END // SECTOR - 1) * SECTOR,
            device=_numbers(device, out),
        )
        if out.full:
            return


def _numbers(device: Column, out: Collector) -> np.ndarray:
    """Devices are numbers; checked as such, kept by name."""
    device.integers()
    return device.names(out.devices)


def _refuse_octal(column: Column) -> None:
    octal = (column.table.text[column.start] == _ZERO) & (column.end - column.start > 1)
    if octal.any():
        raise column.bad(
            int(np.argmax(octal)), "MQSim takes a leading zero as octal; a number without is right"
        )


def lines(trace: BlockTrace, tick_ps: int) -> Iterator[str]:
    """The requests, line by line; sectors must be whole (check)."""
    number = numbers(trace)
    for part in trace.parts():
        ticks = (trace.arrival_ps[part] // tick_ps).tolist()
        device = [number[d] for d in trace.device[part].tolist()]
        sector = (trace.offset[part] // SECTOR).tolist()
        sectors = (trace.size[part] // SECTOR).tolist()
        kind = (trace.op[part] == READ).astype(np.int8).tolist()
        columns = zip(ticks, device, sector, sectors, kind, strict=True)
        yield from (f"{t} {d} {a} {n} {k}\n" for t, d, a, n, k in columns)


def check(trace: BlockTrace, path: str) -> None:
    """TraceError if an offset or a size is no whole number of sectors."""
    for name in ("offset", "size"):
        broken = getattr(trace, name) % SECTOR != 0
        if broken.any():
            i = int(np.argmax(broken))
            raise TraceError(
                f"{path}: request {i}: {name} is {getattr(trace, name)[i]}: MQSim's format counts "
                f"in sectors, a multiple of {SECTOR} bytes is right"
            )


def numbers(trace: BlockTrace) -> list[int]:
    """The device column: the names where all are numbers, else their places among the names."""
    names = trace.devices
    if all(name.isascii() and name.isdecimal() and str(int(name)) == name for name in names):
        return [int(name) for name in names]
    return list(range(len(names)))
