"""Reader of blkparse's default text output: the events of each request in the block layer.

This module owns the reader of the text. It does not read blktrace's binary format, and it does not
write either format.
Source: blkparse(1) of blktrace 1.2, "Default output", and the behavior of blkparse for the
column RWBS.

Sectors have 512 bytes; times are seconds with nine decimals. The requests are the events of one
kind. The default kind is D (issued to the driver): the requests that the drive receives after
merges and splits. Q is a request to the block layer, C a completion. A D event that is followed by
an R event (requeued) for the same sectors did not reach the drive and is omitted. A flush before a
write (RWBS such as FWS) becomes a FLUSH and the write. F after the letter of the operation is FUA.
Lines of other commands (SCSI or NVMe passthrough, zones) have no sectors and are omitted. The
trace's notes count all these cases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ondie.traces.block_model import BYTES_END, FLUSH, READ, SECTOR_BYTES, TRIM, WRITE, Collector
from ondie.traces.columns import I64, Column, Table
from ondie.traces.errors import TraceError

COLUMNS = ("device", "cpu", "sequence", "time", "pid", "action", "RWBS")
_TIME, _ACTION, _RWBS, _SECTOR, _SIGN, _SECTORS = 3, 5, 6, 7, 8, 9
EVENTS = ("D", "Q", "C")
TICK_PS = 1000
DECIMALS = 9
ACTIONS = frozenset("A B C D F G I M P Q R S T U UT X m".split())

_OP = {"R": READ, "W": WRITE, "D": TRIM, "N": -1}
# B is the barrier of old kernels: everything before it, then the barrier, must reach the medium.
_LETTERS = re.compile(r"(F?)([RWDN])([FASMB]*)")
_DEVICE = re.compile(r"\d+,\d+")
_PLUS, _POINT = ord("+"), ord(".")


@dataclass
class _Events:
    """State of the reader: the requests and requeues (R events) read so far, and the number of
    events of each kind.

    Each requeue is (device, first sector, number of sectors, line).
    """

    event: str
    columns: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    requeues: list[npt.NDArray[Any]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    size: int = 0
    ended: int = 0  # line at which the summary begins


def read(tables: Iterable[Table], out: Collector, *, event: str) -> None:
    """Add the requests among a file's events of one kind to ``out``.

    event: the kind, "D", "Q" or "C". Raises TraceError for a damaged file and for a file without
    requests of this kind.
    """
    out.tick_ps = TICK_PS
    found = _Events(event)
    for table in tables:
        rows = _event_rows(table, found)
        if len(rows):
            _piece(table, rows, found, out)
        if out.limit is not None and found.size >= out.limit:
            break
    if not found.size:
        seen = ", ".join(f"{kind} {count}" for kind, count in sorted(found.seen.items()))
        raise TraceError(
            f"{out.source}: no request among the events of kind {event}; events in the file: "
            f"{seen or 'none'}; use --event {', '.join(EVENTS[:-1])} or {EVENTS[-1]}"
        )
    if event == "Q":
        out.note("remaps, each of which queues a request on another device", found.seen["A"])
    columns = {name: np.concatenate(parts) for name, parts in found.columns.items()}
    line = columns.pop("line")
    if found.requeues:
        keep = ~_requeued(columns, line, np.concatenate(found.requeues), out)
        columns = {name: column[keep] for name, column in columns.items()}
    out.add(**columns)


def _event_rows(table: Table, found: _Events) -> I64:
    """Return the numbers of the rows that are events.

    An event row begins with a device; a row of the summary does not. Raises TraceError for other
    rows before the summary.
    """
    filled = np.flatnonzero(table.count > 0)
    column = table.column("device", 0, filled)
    names: dict[str, int] = {}
    codes = column.names(names)
    known = np.array([_DEVICE.fullmatch(name) is not None for name in names], bool)[codes]
    other = filled[~known & (table.count[filled] >= len(COLUMNS))]
    time = table.column("time", _TIME, other)
    point = np.maximum(time.end - DECIMALS - 1, time.start)
    if (table.text[point] == _POINT).any():  # an event with a malformed device
        row = other[np.argmax(table.text[point] == _POINT)]
        raise table.column("device", 0, np.array([row])).bad(0, "must be major,minor, such as 8,0")
    rows: I64 = filled[known]
    others = np.setdiff1d(np.arange(table.rows), rows, assume_unique=True)
    if len(others) and not found.ended:
        row = int(others[0])
        if not found.seen and not (len(rows) and rows[0] < row):
            raise table.bad(row, f"{table.shown(row)[:60]!r} is not an event of blkparse's default "
                            f"output: {' '.join(COLUMNS)} ...")  # fmt: skip
        found.ended = table.line + row
    if found.ended and len(rows) and table.line + int(rows[-1]) > found.ended:
        row = int(rows[table.line + rows > found.ended][0])
        raise table.bad(row, f"an event follows line {found.ended}, which is not an event; the "
                        "file must be the default output of one run, with all events before "
                        "the summary")  # fmt: skip
    few = table.count[rows] < len(COLUMNS)
    if few.any():
        row = int(rows[np.argmax(few)])
        raise table.bad(row, f"{table.shown(row)[:60]!r} has {table.count[row]} columns; must have "
                        f"at least {len(COLUMNS)}: {' '.join(COLUMNS)}")  # fmt: skip
    return rows


def _piece(table: Table, rows: I64, found: _Events, out: Collector) -> None:
    """Collect the requests and the requeues (R events) in the given rows of one table."""
    action = table.column("action", _ACTION, rows)
    kinds, codes = action.kinds()
    for i, kind in enumerate(kinds):
        if kind not in ACTIONS:
            right = " ".join(sorted(ACTIONS))
            raise action.bad(int(np.argmax(codes == i)), f"must be one of {right}")
    found.seen.update(dict(zip(kinds, np.bincount(codes).tolist(), strict=True)))
    if found.event in kinds:
        _requests(table, rows[codes == kinds.index(found.event)], found, out)
    if found.event == "D" and "R" in kinds:
        again = rows[codes == kinds.index("R")]
        again = again[table.count[again] > _SECTOR]
        has = _has_sectors(table, again)
        device, sector, sectors = _where(table, again, has, out)
        line = table.lines(again)
        found.requeues.append(np.stack([device.astype(np.int64), sector, sectors, line]).T)


def _requests(table: Table, rows: I64, found: _Events, out: Collector) -> None:
    """Collect the requests of the given rows, which are events of the selected kind."""
    ticks = table.column("time", _TIME, rows).decimals(DECIMALS)
    out.ordered(ticks, lambda: table.lines(rows))
    has = _has_sectors(table, rows)
    op, flush, fua = _letters(table.column("RWBS", _RWBS, rows))
    device, offset, size = _where(table, rows, has, out)
    data = has & (op >= 0)
    out.note(
        f"{found.event} events dropped because they have no sectors", int((~data & ~flush).sum())
    )
    # One entry for a flush and one for the data, in this order; no entry for other commands.
    entry = np.repeat(np.arange(len(rows)), data.astype(int) + flush)
    first = np.append(True, entry[1:] != entry[:-1])[: len(entry)]
    flushes = flush[entry] & first
    out.note(
        "writes with a preceding flush, each split into two requests", int((data & flush).sum())
    )
    new = {
        "ticks": ticks[entry],
        "op": np.where(flushes, FLUSH, op[entry]).astype(np.int8),
        "offset": np.where(flushes, 0, offset[entry] * SECTOR_BYTES),
        "size": np.where(flushes, 0, size[entry] * SECTOR_BYTES),
        "device": device[entry],
        "fua": fua[entry] & ~flushes & (op[entry] == WRITE),
        "line": table.lines(rows[entry]),
    }
    for name, column in new.items():
        found.columns.setdefault(name, []).append(column)
    found.size += len(entry)


def _has_sectors(table: Table, rows: I64) -> npt.NDArray[np.bool_]:
    """Return a mask, bool[n], of the rows in which a first sector, "+" and a number of sectors
    follow the column RWBS."""
    has = table.count[rows] > _SECTORS
    sign = table.column("sign", _SIGN, rows[has])
    has[has] = (sign.end - sign.start == 1) & (table.text[sign.start] == _PLUS)
    return has


def _where(
    table: Table, rows: I64, has: npt.NDArray[np.bool_], out: Collector
) -> tuple[npt.NDArray[np.int32], I64, I64]:
    """Return the device, the first sector and the number of sectors of each row.

    For rows without sectors, the last two values are 0.
    """
    device = table.column("device", 0, rows).names(out.devices)
    sector, sectors = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    most = BYTES_END // SECTOR_BYTES - 1
    sector[has] = table.column("sector", _SECTOR, rows[has]).integers(most=most)
    sectors[has] = table.column("sectors", _SECTORS, rows[has]).integers(1, most)
    return device, sector, sectors


def _letters(column: Column) -> tuple[I64, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the meaning of the column RWBS for each row, in three arrays.

    The first array holds the operation (-1 for a row without data). The second array is True for a
    preceding flush, and the third array is True for FUA.
    """
    kinds, codes = column.kinds()
    table = []
    for i, kind in enumerate(kinds):
        match = _LETTERS.fullmatch(kind)
        if match is None:
            at = int(np.argmax(codes == i))
            raise column.bad(at, "must be R, W, D or N, after an optional F, before any of F A S M")
        flush, op, rest = match.groups()
        table.append((_OP[op], bool(flush) or "B" in rest, "F" in rest or "B" in rest))
    op, first, fua = (np.array(column)[codes] for column in zip(*table, strict=True))
    return op, first, fua


def _requeued(
    columns: dict[str, npt.NDArray[Any]], line: I64, requeues: I64, out: Collector
) -> npt.NDArray[np.bool_]:
    """Return a mask, bool[n], of the requests that the driver requeued.

    A requeue event marks the last earlier request with the same device and sectors.
    """
    # The flush of a pair is next to its write and is removed with it. A requeue therefore matches
    # the write of a pair, or a flush without a write.
    pair = np.zeros(len(line), bool)
    pair[:-1] = line[1:] == line[:-1]
    entries = np.flatnonzero(~pair)
    device = np.concatenate((columns["device"][entries], requeues[:, 0]))
    sector = np.concatenate((columns["offset"][entries] // SECTOR_BYTES, requeues[:, 1]))
    sectors = np.concatenate((columns["size"][entries] // SECTOR_BYTES, requeues[:, 2]))
    at = np.concatenate((line[entries], requeues[:, 3]))
    order = np.lexsort((at, sectors, sector, device))
    again = order >= len(entries)
    same = np.ones(len(order) - 1, bool)
    for key in (device, sector, sectors):
        ordered = key[order]
        same &= ordered[1:] == ordered[:-1]
    gone = order[:-1][same & again[1:] & ~again[:-1]]
    out.note("requests requeued by the driver and counted once", len(gone))
    return np.isin(line, line[entries[gone]])
