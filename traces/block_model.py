"""Block trace model: the requests to a drive as columns in order of arrival.

This module owns BlockTrace with its consistency rules, and Collector, which assembles a trace from
pieces. It does not own file formats or devices.
Source: this project; the numbers of the operations are those of the emulator's command record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ondie.traces.columns import I64, INT64_MAX
from ondie.traces.errors import TraceError

READ, WRITE, TRIM, FLUSH = range(4)
OPS = ("read", "write", "trim", "flush")

SECTOR_BYTES = (
    512  # bytes; unit of MQSim's and blkparse's columns, independent of the drive's block size
)
#: Offsets and sizes are below this value, so that their sum fits into int64.
BYTES_END = 2**62
PS_PER_S = 10**12


@dataclass(frozen=True, eq=False)
class BlockTrace:
    """The requests to a drive, in order of arrival, as read-only columns of length n.

    arrival_ps: int64, non-decreasing, at least 0. All values are 0 if `timed` is false: the file
    then has an order but no times, and only a closed loop can replay it. op: int8, READ, WRITE,
    TRIM or FLUSH. offset, size: int64, bytes; size > 0, except for FLUSH, whose offset and size are
    0. device: int32, index into `devices`, the names in the source. source: name of the file
    without its folder. format: the format in which it was read. response_ps: int64, the recorded
    time from arrival to completion, or None if no times were recorded. fua: bool, or None if the
    trace has no FUA flags; a write with FUA completes on flash, not in a cache. origin_ps: time of
    arrival 0 on the source's clock. It is a Python integer, because a clock that starts in 1601
    exceeds int64 in picoseconds. notes: text on the requests and fields that reading omitted or
    changed.
    """

    arrival_ps: I64
    op: npt.NDArray[np.int8]
    offset: I64
    size: I64
    device: npt.NDArray[np.int32]
    devices: tuple[str, ...]
    source: str
    format: str
    response_ps: I64 | None = None
    fua: npt.NDArray[np.bool_] | None = None
    timed: bool = True
    origin_ps: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_columns()
        self._check_values()
        for name in COLUMNS:
            column = getattr(self, name)
            if column is not None:
                column = column.view()
                column.flags.writeable = False
                object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def span_ps(self) -> int:
        """Time from the arrival of the first request to the arrival of the last request (ps)."""
        return int(self.arrival_ps[-1] - self.arrival_ps[0]) if len(self) else 0

    def parts(self, step: int = 1 << 16) -> Iterator[slice]:
        """Yield slices that cover all rows in order.

        ``step``: maximum number of rows of a slice.
        """
        for start in range(0, len(self), step):
            yield slice(start, start + step)

    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of requests as (read, write, trim, flush)."""
        read, write, trim, flush = np.bincount(self.op, minlength=4).tolist()
        return read, write, trim, flush

    def _bad(self, i: int, what: str) -> TraceError:
        """Return a TraceError that names the source and request ``i``, followed by ``what``."""
        return TraceError(f"{self.source}: request {i}: {what}")

    def _check_columns(self) -> None:
        """Raise TraceError if there are no requests, if device names are not distinct, or if a
        column has the wrong type or length."""
        n = len(self.arrival_ps)
        if not n:
            raise TraceError(f"{self.source}: no requests; must have at least one")
        for name, kind in COLUMNS.items():
            column = getattr(self, name)
            if column is None and name in ("response_ps", "fua"):
                continue
            if column.dtype != kind or column.shape != (n,):
                raise TraceError(
                    f"{self.source}: {name} is {column.dtype}{list(column.shape)}; "
                    f"must be {np.dtype(kind)}[{n}]"
                )
        if len(set(self.devices)) != len(self.devices) or not all(self.devices):
            raise TraceError(f"{self.source}: devices are {self.devices}; must be distinct names")

    def _check_values(self) -> None:
        """Raise TraceError for a negative origin_ps, and for the first request with a value that is
        out of range or out of order.
        """
        flush = self.op == FLUSH
        wanted: list[tuple[str, npt.NDArray[np.bool_], str]] = [
            ("op", (self.op < 0) | (self.op > FLUSH), "0 to 3"),
            ("device", (self.device < 0) | (self.device >= len(self.devices)),
             f"0 to {len(self.devices) - 1}"),
            ("offset", (self.offset < 0) | (self.offset >= BYTES_END), "0 to 2**62 - 1"),
            ("offset", flush & (self.offset != 0), "0 for a flush"),
            ("size", flush & (self.size != 0), "0 for a flush"),
            ("size", ~flush & ((self.size <= 0) | (self.size >= BYTES_END)), "1 to 2**62 - 1"),
            ("arrival_ps", self.arrival_ps < 0, "0 or more"),
        ]  # fmt: skip
        if self.response_ps is not None:
            wanted.append(("response_ps", self.response_ps < 0, "0 or more"))
        if not self.timed:
            wanted.append(("arrival_ps", self.arrival_ps != 0, "0, because the trace has no times"))
        for name, bad, right in wanted:
            if bad.any():
                i = int(np.argmax(bad))
                raise self._bad(i, f"{name} is {getattr(self, name)[i]}; must be {right}")
        back = self.arrival_ps[1:] < self.arrival_ps[:-1]
        if back.any():
            i = int(np.argmax(back)) + 1
            raise self._bad(
                i, f"arrival_ps is {self.arrival_ps[i]}; must not be before that of request {i - 1}"
            )
        if self.origin_ps < 0:
            raise TraceError(f"{self.source}: origin_ps is {self.origin_ps}; must be at least 0")


#: Columns and their types; response_ps and fua may be None.
COLUMNS: dict[str, type] = {
    "arrival_ps": np.int64,
    "op": np.int8,
    "offset": np.int64,
    "size": np.int64,
    "device": np.int32,
    "response_ps": np.int64,
    "fua": np.bool_,
}


@dataclass
class Collector:
    """Builder of a block trace from parsed pieces of a file, which are added in file order.

    source: the file, for errors. tick_ps: picoseconds per unit of the file's time. relative: True
    if times count from an epoch; the earliest time then becomes arrival 0. sort: True to sort the
    requests stably by time; if False, a time that is smaller than the time before it raises
    TraceError. limit: maximum number of requests, in file order.
    """

    source: str
    format: str
    tick_ps: int = 1
    relative: bool = False
    sort: bool = False
    limit: int | None = None
    timed: bool = True
    devices: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    size: int = 0
    _pieces: dict[str, list[npt.NDArray[np.generic]]] = field(default_factory=dict)
    _last: tuple[int, int] = (0, 0)  # ticks and line of the latest request

    @property
    def full(self) -> bool:
        """True if as many requests as ``limit`` have been collected."""
        return self.limit is not None and self.size >= self.limit

    def note(self, words: str, count: int) -> None:
        """Add ``count`` to the number of omitted or changed items that the note ``words``
        reports."""
        if count:
            self.notes[words] = self.notes.get(words, 0) + int(count)

    def ordered(self, ticks: I64, line: I64 | Callable[[], I64]) -> None:
        """Raise TraceError if a request's time is smaller than the time of the request before it;
        do nothing if `sort` is True.

        ticks: times of the next requests. line: line numbers of these requests, or a function that
        returns them.
        """
        if self.sort or not len(ticks):
            return
        last, at = self._last
        back = np.flatnonzero(ticks[1:] < ticks[:-1])
        if ticks[0] < last or len(back):
            i = 0 if ticks[0] < last else int(back[0]) + 1
            lines = line() if callable(line) else line
            if i:
                last, at = int(ticks[i - 1]), int(lines[i - 1])
            raise TraceError(
                f"{self.source}: line {lines[i]}: time {ticks[i]} is before time {last} of line "
                f"{at}; use --sort to sort by time"
            )
        self._last = int(ticks[-1]), int((line() if callable(line) else line)[-1])

    def add(self, **columns: npt.NDArray[np.generic]) -> None:
        """Append requests. The columns are ticks, op, offset, size and device, and response or fua
        if the format has them."""
        n = len(columns["ticks"])
        keep = n if self.limit is None else min(n, self.limit - self.size)
        for name, column in columns.items():
            self._pieces.setdefault(name, []).append(column if keep == n else column[:keep].copy())
        self.size += keep

    def forget(self, name: str) -> bool:
        """Drop the column ``name`` of the requests if all its values are zero; return True if it
        was dropped."""
        if any(piece.any() for piece in self._pieces.get(name, ())):
            return False
        self._pieces.pop(name, None)
        return True

    def finish(self) -> BlockTrace:
        """Return the trace of all collected requests.

        Raises TraceError if there are no requests or a time exceeds 63 bits of picoseconds.
        """
        if not self.size:
            raise TraceError(f"{self.source}: no requests; must have at least one")
        columns = {}
        for name in list(self._pieces):
            columns[name] = np.concatenate(self._pieces.pop(name))
        if self.sort:
            order = np.argsort(columns["ticks"], kind="stable")
            moved = int((order != np.arange(len(order))).sum())
            self.note("requests that were out of order and were sorted by time", moved)
            columns = {name: column[order] for name, column in columns.items()}
        ticks = columns.pop("ticks")
        origin = int(ticks[0]) if self.relative else 0
        columns["arrival_ps"] = self._picoseconds(ticks, origin, "time")
        if "response" in columns:
            columns["response_ps"] = self._picoseconds(columns.pop("response"), 0, "response time")
        used = np.unique(columns["device"])
        names = list(self.devices)
        if len(used) < len(names):  # some named devices have no requests
            columns["device"] = np.searchsorted(used, columns["device"]).astype(np.int32)
            names = [names[i] for i in used]
        return BlockTrace(
            devices=tuple(names),
            source=Path(self.source).name,
            format=self.format,
            timed=self.timed,
            origin_ps=origin * self.tick_ps,
            notes=tuple(f"{words}: {count}" for words, count in sorted(self.notes.items())),
            **columns,
        )

    def _picoseconds(self, ticks: npt.NDArray[np.generic], origin: int, what: str) -> I64:
        """Return times as picoseconds since ``origin``; ``what``: noun for the error message, such
        as "time".

        Raises TraceError for a time that exceeds int64.
        """
        longest = int(np.max(ticks)) - origin
        if longest * self.tick_ps > INT64_MAX:
            days = INT64_MAX / PS_PER_S / 86400
            raise TraceError(
                f"{self.source}: a {what} of {longest * self.tick_ps / PS_PER_S:.0f} s: "
                f"must be at most {days:.0f} days, the range of 63 bits of picoseconds"
            )
        return (ticks.astype(np.int64) - origin) * self.tick_ps
