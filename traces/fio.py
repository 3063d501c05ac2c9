"""fio's iolog, versions 2 and 3: the actions of a job on its files, one action per line.

This module owns reading and writing of both versions. It does not run fio or read fio's binary
blktrace input.
Source: fio's manual, "Trace file format"; the behavior of fio 3.33 where it differs from the
manual.

In version 3 each line begins with the time in microseconds since the start. Version 2 has `wait`
lines instead. The manual and the program differ on the meaning of these lines. The caller selects
the meaning (`wait`):
  manual: microseconds since the previous wait; values below 100 are discarded
  program: milliseconds since fio's start, as in fio 3.33
fio omits the pause after a time of 0, so the times of a written version 3 begin at 1 us (see
_lines3). Files are devices. sync and datasync are flushes; their offsets are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ondie.traces.block_model import BYTES_END, FLUSH, READ, TRIM, WRITE, BlockTrace, Collector
from ondie.traces.columns import I64, INT64_MAX, Table
from ondie.traces.errors import TraceError

I8 = npt.NDArray[np.int8]

US_PS, MS_PS = 10**6, 10**9
WAITS = ("manual", "program")
SHORTEST_WAIT = 100  # us: the manual's rule
VERSION = "fio version {} iolog"
MOST_NAME = 256  # bytes; the longest file name that fio reads
MOST_SIZE = 2**32 - 1  # fio stores a length in an unsigned int

_ADD, _OPEN, _CLOSE, _WAIT = range(FLUSH + 1, FLUSH + 5)  # numbers after the operations
_FILE_ACTIONS = {"add": _ADD, "open": _OPEN, "close": _CLOSE}
_IO_ACTIONS = {"read": READ, "write": WRITE, "trim": TRIM, "sync": FLUSH, "datasync": FLUSH}
_WRITTEN = {READ: "read", WRITE: "write", TRIM: "trim", FLUSH: "sync"}


@dataclass
class _Files:
    """State of the files in an iolog: the numbers of the files added so far, and for each file
    number a flag that is True while the file is open."""

    added: set[int] = field(default_factory=set)
    open: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def grow(self, count: int) -> None:
        """Extend the table of open flags to `count` files."""
        self.open = np.append(self.open, np.zeros(count - len(self.open), bool))


@dataclass
class _Clock:
    """Clock of an iolog of version 2, which the wait lines advance.

    now: time of the next action in ticks (1 us or 1 ms, depending on `wait`). waited: True if the
    iolog has a wait line.
    """

    wait: str | None
    now: int = 0
    waited: bool = False


def read(tables: Iterable[Table], out: Collector, *, version: int | None, wait: str | None) -> None:
    """Add the requests of an iolog to ``out``.

    version: required version, 2 or 3, or None for either version. wait: meaning of wait lines, see
    the module docstring. Raises TraceError for an invalid line and if `wait` is given for version
    3.
    """
    files, clock, found = _Files(), _Clock(wait), 0
    for table in tables:
        if not found:
            found = _version(table, version)
            out.tick_ps = MS_PS if found == 2 and wait == "program" else US_PS
            if found == 3 and wait is not None:
                raise TraceError(f"{table.source}: version 3 has no wait lines; remove --wait")
        _lines(table, found, files, clock, out)
        if out.full:
            break
    out.timed = found == 3 or clock.waited


def _version(table: Table, version: int | None) -> int:
    """Return the version in the first line and skip that line. Raises TraceError if the line is
    invalid."""
    shown = table.shown(0)
    known = {VERSION.format(v): v for v in (2, 3)}
    right = " or ".join(repr(k) for k, v in known.items() if version in (None, v))
    if shown not in known or version not in (None, known[shown]):
        raise table.bad(0, f"{shown[:60]!r}: the first line must be {right}")
    table.skip(1)
    return known[shown]


def _lines(table: Table, version: int, files: _Files, clock: _Clock, out: Collector) -> None:
    """Process the actions of one table in order, and add its operations to ``out``. Raises
    TraceError for an invalid line."""
    lead = version - 2  # number of columns before the file name
    io = table.count == lead + 4
    other = ~io & (table.count != lead + 2)
    if other.any():
        raise _bad_row(table, int(np.argmax(other)), version)
    if not table.rows:
        return
    action = _actions(table, io, lead, version)
    if version == 3:
        ticks = table.column("time", 0).integers()
        out.ordered(ticks, table.lines)
    else:
        ticks = _waits(table, np.flatnonzero(action == _WAIT), clock)
    device = table.column("file", lead).names(out.devices)
    files.grow(len(out.devices))
    start = 0
    for row in [*np.flatnonzero(~io).tolist(), table.rows]:
        _check_open(table, files, device, start, row)
        if row < table.rows:
            _file_action(table, row, int(action[row]), int(device[row]), files)
        start = row + 1
    rows = np.flatnonzero(action <= FLUSH)
    if len(rows):
        _add(table, rows, lead, ticks[rows], action[rows].astype(np.int8), device[rows], out)


def _waits(table: Table, rows: I64, clock: _Clock) -> I64:
    """Return the time of each row in ticks, according to the wait lines before it. Raises
    TraceError if the meaning of wait lines is not selected, or if a time is invalid or too
    large."""
    step = np.zeros(table.rows, np.int64)
    if len(rows):
        column = table.column("wait", 2, rows)
        value = column.integers(most=INT64_MAX // US_PS)  # prevents overflow of sums in a piece
        if clock.wait is None:
            raise column.bad(
                0, "fio's manual specifies us since the previous wait, but fio itself reads ms "
                "since its start; use --wait manual or --wait program",
            )  # fmt: skip
        clock.waited = True
        step[rows] = np.where(value >= SHORTEST_WAIT, value, 0) if clock.wait == "manual" else value
    if clock.wait == "manual":
        ticks = clock.now + np.cumsum(step)
    else:  # fio does not wait for a time in the past
        ticks = np.maximum(np.maximum.accumulate(step), clock.now)
    clock.now = int(ticks[-1])
    if clock.now > INT64_MAX // US_PS:
        raise table.bad(
            int(rows[-1]), f"the sum of all waits is {clock.now} us; must be at most 106 days"
        )
    return ticks


def _actions(table: Table, io: npt.NDArray[np.bool_], lead: int, version: int) -> I64:
    """Return the action of each row: an operation (READ to FLUSH), or _ADD to _WAIT. Raises
    TraceError for an unknown action, and for a wait line in version 3."""
    action = np.empty(table.rows, np.int64)
    rows = np.flatnonzero(io)
    column = table.column("action", lead + 1, rows)
    waits = column.equal("wait")
    if version == 3 and waits.any():
        right = "version 3 has times instead of wait lines; remove the line"
        raise column.bad(int(np.argmax(waits)), right)
    action[rows] = column.words(_IO_ACTIONS if version == 3 else _IO_ACTIONS | {"wait": _WAIT})
    rows = np.flatnonzero(~io)
    action[rows] = table.column("action", lead + 1, rows).words(_FILE_ACTIONS)
    return action


def _file_action(table: Table, row: int, action: int, device: int, files: _Files) -> None:
    """Apply an add, open or close action to the state of the files.

    Raises TraceError for an action that is invalid in the current state.
    """
    if action == _ADD:
        files.added.add(device)
    elif action == _OPEN:
        if device not in files.added:
            raise table.bad(
                row, f"{table.shown(row)!r}: an 'add' line of this file must precede it"
            )
        files.open[device] = True
    else:
        if not files.open[device]:
            raise table.bad(row, f"{table.shown(row)!r}: an 'open' line must come first")
        files.open[device] = False


def _check_open(table: Table, files: _Files, device: np.ndarray, start: int, end: int) -> None:
    """Raise TraceError if an operation in rows start .. end - 1 uses a file that is not open."""
    closed = ~files.open[device[start:end]]
    if closed.any():
        row = start + int(np.argmax(closed))
        raise table.bad(row, f"{table.shown(row)!r}: the file is not open here; an 'open' line "
                        "must come first")  # fmt: skip


def _add(
    table: Table, rows: I64, lead: int, ticks: I64, op: I8, device: npt.NDArray[np.int32],
    out: Collector,
) -> None:  # fmt: skip
    """Append the operations in the given rows to ``out`` as requests."""
    flush = op == FLUSH
    offset = table.column("offset", lead + 2, rows).integers(most=BYTES_END - 1)
    size = table.column("length", lead + 3, rows).integers(most=BYTES_END - 1)
    if (~flush & (size == 0)).any():
        table.column("length", lead + 3, rows[~flush]).integers(least=1, most=BYTES_END - 1)
    offset[flush] = size[flush] = 0
    out.add(ticks=ticks, op=op, offset=offset, size=size, device=device)


def _bad_row(table: Table, row: int, version: int) -> TraceError:
    """Return the error for a row with a wrong number of columns."""
    shown = table.shown(row)[:60]
    if shown.startswith("fio version "):
        return table.bad(row, f"{shown!r} again: fio appended to its log; split the file here")
    time = "time " * (version - 2)
    return table.bad(
        row, f"{shown!r} has {table.count[row]} columns; must have {version} "
        f"({time}file action) or {version + 2} ({time}file action offset length)",
    )  # fmt: skip


# --- writing


def check(trace: BlockTrace, path: str) -> None:
    """Raise TraceError for a device name or a request size that fio cannot read."""
    for name in trace.devices:
        if len(name.encode()) > MOST_NAME or len(name.split()) != 1 or name != name.strip():
            raise TraceError(
                f"{path}: device {name[:60]!r}: must be a file name without blanks, of at "
                f"most {MOST_NAME} bytes"
            )
    if int(trace.size.max()) > MOST_SIZE:
        i = int(np.argmax(trace.size > MOST_SIZE))
        raise TraceError(
            f"{path}: request {i}: size is {trace.size[i]} bytes; fio allows at most {MOST_SIZE}"
        )


def lines(trace: BlockTrace, version: int, wait: str) -> Iterator[str]:
    """Yield the lines of an iolog for ``trace``. ``wait``: meaning of the wait lines of version 2
    (see the module docstring)."""
    yield VERSION.format(version) + "\n"
    yield from _lines3(trace) if version == 3 else _lines2(trace, wait)


def _lines3(trace: BlockTrace) -> Iterator[str]:
    """Yield the lines of a log of version 3, with times in us, rounded down.

    If the first time would be 0, all times are 1 us later.
    """
    shift = 1 if int(trace.arrival_ps[0]) < US_PS else 0
    first, last = (int(trace.arrival_ps[i]) // US_PS + shift for i in (0, -1))
    yield from (f"{first} {name} {a}\n" for a in ("add", "open") for name in trace.devices)
    for t, name, op, offset, size in _rows(trace, US_PS):
        yield f"{t + shift} {name} {op} {offset} {size}\n"
    yield from (f"{last} {name} close\n" for name in trace.devices)


def _lines2(trace: BlockTrace, wait: str) -> Iterator[str]:
    """Yield the lines of a log of version 2; a wait line precedes an action if time has advanced.

    Arrival times are rounded down to ms ("program") or us ("manual"). Time has advanced if the
    rounded time is at least 1 ms ("program") or 100 us ("manual") after that of the previous wait
    line, or after 0 if there is no previous wait line.
    """
    tick_ps, least = (US_PS, SHORTEST_WAIT) if wait == "manual" else (MS_PS, 1)
    yield from (f"{name} {a}\n" for a in ("add", "open") for name in trace.devices)
    before = 0
    for t, name, op, offset, size in _rows(trace, tick_ps):
        if t - before >= least:
            yield f"{name} wait {t - before if wait == 'manual' else t} 0\n"
            before = t
        yield f"{name} {op} {offset} {size}\n"
    yield from (f"{name} close\n" for name in trace.devices)


def _rows(trace: BlockTrace, tick_ps: int) -> Iterator[tuple[int, str, str, int, int]]:
    """Yield (time in ticks, file name, action, offset, size) of each request. Offset and size are
    in bytes."""
    for part in trace.parts():
        names = [trace.devices[d] for d in trace.device[part].tolist()]
        ops = [_WRITTEN[op] for op in trace.op[part].tolist()]
        ticks = (trace.arrival_ps[part] // tick_ps).tolist()
        yield from zip(
            ticks, names, ops, trace.offset[part].tolist(), trace.size[part].tolist(), strict=True
        )
