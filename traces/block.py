"""Block traces from and to files: MQSim, MSR Cambridge, fio iolog, blkparse.

This module owns load_block(), read_block() and write_block(), and the table of options and
operations of each format. The caller states the format and the time unit; neither is guessed. The
module does not own the replay.
Source: the module of each format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from ondie.traces import blkparse, fio, mqsim, msr
from ondie.traces.block_edit import without
from ondie.traces.block_model import FLUSH, OPS, READ, TRIM, WRITE, BlockTrace, Collector
from ondie.traces.columns import Table
from ondie.traces.errors import TraceError
from ondie.traces.textfile import PIECE, Target, check_target, pieces

__all__ = [
    "FLUSH",
    "OPS",
    "READ",
    "READ_FORMATS",
    "TRIM",
    "WRITE",
    "WRITE_FORMATS",
    "BlockTrace",
    "SAMPLES",
    "check_writing",
    "load_block",
    "read_block",
    "write_block",
]

#: Readable formats. fio accepts both versions; fio2 and fio3 require one version.
READ_FORMATS = ("mqsim", "msr", "fio", "fio2", "fio3", "blkparse")
WRITE_FORMATS = ("mqsim", "msr", "fio2", "fio3")
#: Values of `drop`: operations to drop, the FUA flag, and times that the trace does not have.
DROPS = ("read", "write", "trim", "flush", "fua", "time")
#: Shipped block traces: name -> (file in data/, format). Their origin is in data/PROVENANCE.toml.
SAMPLES = {"mixed-4k": ("mixed-4k.log.xz", "fio")}
_VERSIONS = {"fio": None, "fio2": 2, "fio3": 3}
_LINES = 1 << 14


def read_block(
    path: str | os.PathLike[str],
    format: str,
    *,
    time_unit: str | None = None,
    event: str | None = None,
    wait: str | None = None,
    sort: bool = False,
    limit: int | None = None,
    progress: Callable[[float], None] | None = None,
    piece: int = PIECE,
) -> BlockTrace:
    """Return the requests of a file; a file whose name ends in .gz or .xz is decompressed.

    format: one of READ_FORMATS. time_unit: "ps", "ns" or "us", required for mqsim and invalid for
    other formats. event: "D" (default), "Q" or "C", for blkparse. wait: "manual" or "program", for
    fio version 2 with wait lines (fio.py). sort: sort requests stably by time; if False, a time
    that is smaller than the one before it is an error. limit: maximum number of requests to read,
    in file order. progress: callback that receives the fraction of the file read so far. piece:
    number of bytes of text to process together. Raises TraceError for an invalid format or option,
    and for a file that cannot be read or is invalid. The message has one line: file, line, column,
    value, and valid values.
    """
    _check_format("read", path, format, READ_FORMATS)
    _check_options(path, format, time_unit, event, wait)
    if limit is not None and limit < 1:
        raise TraceError(f"limit {limit}: must be at least 1")
    out = Collector(os.fspath(path), format, sort=sort, limit=limit)
    cut = format == "mqsim"  # its last column has one character, so a truncated line is detected
    lines = pieces(path, piece, cut, progress)
    tables = (Table(os.fspath(path), line, text, comma=format == "msr") for line, text in lines)
    if format == "mqsim":
        assert time_unit is not None
        out.tick_ps = mqsim.TICKS_PS[time_unit]
        mqsim.read(tables, out)
    elif format == "msr":
        msr.read(tables, out)
    elif format == "blkparse":
        blkparse.read(tables, out, event=event or blkparse.EVENTS[0])
    else:
        fio.read(tables, out, version=_VERSIONS[format], wait=wait)
    return out.finish()


def load_block(
    name_or_path: str | os.PathLike[str], format: str | None = None, **options: Any
) -> BlockTrace:
    """Return a block trace, given the name of a shipped trace, or a path and a format.

    options: keyword arguments of `read_block`. Raises TraceError for a path without a format, and
    all errors of `read_block`.
    """
    if isinstance(name_or_path, str) and name_or_path in SAMPLES and format is None:
        file, own = SAMPLES[name_or_path]
        trace = read_block(Path(__file__).parent / "data" / file, own, **options)
        return replace(trace, source=name_or_path)
    if format is None:
        raise TraceError(
            f"{os.fspath(name_or_path)}: not a shipped block trace ({', '.join(SAMPLES)}); for a "
            f"file, state its format: {', '.join(READ_FORMATS)}"
        )
    return read_block(name_or_path, format, **options)


def write_block(
    trace: BlockTrace,
    path: str | os.PathLike[str],
    format: str,
    *,
    time_unit: str | None = None,
    wait: str | None = None,
    drop: Collection[str] = (),
    progress: Callable[[float], None] | None = None,
) -> tuple[str, ...]:
    """Write a trace atomically; return notes on the data that the format could not store.

    format: one of WRITE_FORMATS. time_unit: "ps", "ns" or "us", required for mqsim. wait: meaning
    of fio2's wait lines, "program" (default) or "manual". drop: operations to drop ("read",
    "write", "trim", "flush"), "fua" to write FUA writes as plain writes, "time" to write times of 0
    for a trace without times. Times are rounded down to the format's unit: mqsim's time_unit, 100
    ns (msr), 1 us (fio3), 1 ms (fio2), 100 us (fio2, manual). progress: callback that receives the
    fraction of the requests written so far. Raises TraceError for an invalid path, format or
    option, if the file cannot be written, and for contents that the format cannot store, unless
    they are in `drop`.
    """
    target = os.fspath(path)
    check_writing(path, format)
    _check_options(path, format, time_unit, None, wait)
    for name in drop:
        if name not in DROPS:
            raise TraceError(f"drop {name!r}: must be one of {', '.join(DROPS)}")
    trace, notes = _fitted(trace, target, format, drop)
    if format == "mqsim":
        assert time_unit is not None
        mqsim.check(trace, target)
        lines = mqsim.lines(trace, mqsim.TICKS_PS[time_unit])
    elif format == "msr":
        msr.volumes(trace, target)
        lines = msr.lines(trace, target)
    else:
        fio.check(trace, target)
        lines = fio.lines(trace, 3 if format == "fio3" else 2, wait or "program")
    with Target(path) as file:
        for done in count():
            if progress is not None:
                progress(min(1.0, done * _LINES / len(trace)))
            text = "".join(islice(lines, _LINES))
            if not text:
                break
            file.write(text)
        file.finish()
    return (*notes, *_lost(trace, format))


def check_writing(path: str | os.PathLike[str], format: str) -> None:
    """Raise TraceError if the path or the format is invalid; call this before long work."""
    _check_format("write", path, format, WRITE_FORMATS)
    check_target(path)


def _check_format(
    verb: str, path: str | os.PathLike[str], format: str, formats: tuple[str, ...]
) -> None:
    """Raise TraceError if ``format`` is not one of ``formats``; ``verb``: "read" or "write"."""
    if format not in formats:
        right = f"must be one of {', '.join(formats)}"
        raise TraceError(f"{path}: cannot {verb} format {format!r}: {right}")


def _check_options(
    path: str | os.PathLike[str], format: str, time_unit: str | None, event: str | None,
    wait: str | None,
) -> None:  # fmt: skip
    """Raise TraceError if an option is given that the format does not have, or if a required option
    is missing or invalid."""
    units = ", ".join(mqsim.TICKS_PS)
    if (format == "mqsim") != (time_unit is not None):
        if time_unit is None:
            raise TraceError(
                f"{path}: a trace in mqsim's format does not contain its time unit (see Time_Unit "
                f"in MQSim's workload file); use --time-unit with one of {units}"
            )
        raise TraceError(f"{path}: {format}'s time unit is fixed; remove --time-unit {time_unit}")
    if time_unit is not None and time_unit not in mqsim.TICKS_PS:
        raise TraceError(f"{path}: time unit {time_unit!r}: must be one of {units}")
    if event is not None and (format != "blkparse" or event not in blkparse.EVENTS):
        right = f"must be one of {', '.join(blkparse.EVENTS)}, and requires format blkparse"
        raise TraceError(f"{path}: event {event!r} with format {format}: {right}")
    if wait is not None and (format not in ("fio", "fio2") or wait not in fio.WAITS):
        right = f"must be one of {', '.join(fio.WAITS)}, and requires fio version 2"
        raise TraceError(f"{path}: wait {wait!r} with format {format}: {right}")


def _fitted(
    trace: BlockTrace, path: str, format: str, drop: Collection[str]
) -> tuple[BlockTrace, list[str]]:
    """Return the trace without the items in ``drop``, and notes on the dropped items.

    Raises TraceError for contents that the format cannot store, unless they are in ``drop``.
    """
    notes = []
    for op, name in enumerate(OPS):
        n = int((trace.op == op).sum())
        if n and name in drop:
            notes.append(f"{n} {name} requests dropped")
            trace = without(trace, op)
        elif n and op in (TRIM, FLUSH) and format in ("mqsim", "msr"):
            raise TraceError(
                f"{path}: {n} {name} requests: {format}'s format does not have this operation; use "
                f"--drop {name} to drop the requests"
            )
    if trace.fua is not None and trace.fua.any():
        n = int(trace.fua.sum())
        if "fua" not in drop:
            raise TraceError(
                f"{path}: {n} writes with FUA: {format}'s format does not have this flag; use "
                "--drop fua to write them as ordinary writes"
            )
        notes.append(f"{n} writes without their FUA flag")
        trace = replace(trace, fua=None)
    if not trace.timed and format != "fio2":
        if "time" not in drop:
            raise TraceError(
                f"{path}: the trace has no times, but {format}'s format requires times; use --drop "
                "time to write 0 for each time"
            )
        notes.append("no times: all arrival times written as 0")
    return trace, notes


def _lost(trace: BlockTrace, format: str) -> list[str]:
    """Return notes on the data that the format cannot store, except for the rounding of times."""
    notes = []
    if format == "msr":
        if trace.response_ps is None:
            notes.append("response times unknown: written as 0")
    else:
        if trace.response_ps is not None:
            notes.append("recorded response times dropped")
        if trace.origin_ps:
            notes.append("start time dropped: times are relative to the first request")
    if format == "mqsim":
        pairs = [f"{n} = {d}" for n, d in zip(mqsim.numbers(trace), trace.devices, strict=True)]
        if any(pair != f"{d} = {d}" for pair, d in zip(pairs, trace.devices, strict=True)):
            more = ", ..." if len(pairs) > 8 else ""
            notes.append(f"devices are numbered: {', '.join(pairs[:8])}{more}")
    return notes
