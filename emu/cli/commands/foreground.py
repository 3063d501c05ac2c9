"""`ondie compare --foreground`: a block trace that runs concurrently with the update.

Owns the checks for mutually exclusive options, the submission rule of the requests, and the table.
Does not own the runs (analysis/foreground.py) or the reading of block traces (ondie.traces).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ondie.emu.analysis import foreground
from ondie.emu.analysis.compare import Comparison
from ondie.emu.analysis.foreground import Interference
from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.config.config import Config
from ondie.emu.replay.block_trace import Loop
from ondie.emu.results.tables.replay import PS_PER_US
from ondie.emu.units import InputError, fmt_time
from ondie.traces import Trace
from ondie.traces.block_model import BlockTrace

COLUMNS = ("p50", "p99", "p999")


@dataclass(frozen=True)
class Foreground:
    """Options of the block trace that runs concurrently with the update: file, format, unit of the
    timestamps, and number of outstanding requests or replay speed."""

    file: Path | None = None
    form: str | None = None
    time_unit: str | None = None
    depth: int | None = None
    speed: float | None = None

    def check(self) -> None:
        """Raise InputError if options of the block trace are given without --foreground or cannot
        be combined, or if the format of the block trace is missing."""
        if self.file is None:
            for name, value in (
                ("from", self.form), ("time-unit", self.time_unit), ("depth", self.depth),
                ("speed", self.speed),
            ):  # fmt: skip
                if value is not None:
                    raise InputError(f"--foreground-{name} requires --foreground FILE")
            return
        if self.form is None:
            raise InputError(
                "--foreground requires the format of the file: add --foreground-from mqsim, msr, "
                "fio, fio2, fio3 or blkparse"
            )
        if self.depth is not None and self.speed is not None:
            raise InputError(
                "--foreground-depth and --foreground-speed cannot be combined; use one of them"
            )

    def read(self, progress: Callable[[str, float], None] | None) -> BlockTrace | None:
        """Return the requests of the block trace, or None if --foreground is not given."""
        if self.file is None or self.form is None:
            return None
        from ondie.traces import block

        share = None if progress is None else (lambda x: progress("read", x))
        return block.read_block(str(self.file), self.form, time_unit=self.time_unit, progress=share)

    def loop(self, requests: BlockTrace) -> Loop:
        """Return the rule for the submission times of requests: a queue depth, or timestamps.

        Raises InputError if no queue depth is given and ``requests`` have no timestamps.
        """
        if self.depth is not None:
            return Loop(self.depth)
        if not requests.timed:
            raise InputError(f"{requests.source} has no timestamps; add --foreground-depth N")
        return Loop(None, 1.0 if self.speed is None else self.speed)


def run(
    trace: Trace,
    cfg: Config,
    comparison: Comparison,
    requests: BlockTrace,
    loop: Loop,
    progress: Callable[[str, float], None] | None,
) -> list[Interference]:
    """Run each path that has a result in ``comparison`` and updates weights on flash, once without
    and once with the requests (see foreground.interference)."""
    ran = [r.name for r in comparison.results if r.reason is None and r.name in PATHS]
    return foreground.interference(trace, cfg, ran, comparison.options, requests, loop, progress)


def data(rows: Sequence[Interference], requests: BlockTrace, loop: Loop) -> dict[str, Any]:
    """Return the latencies and the submission rule as data for result.json."""
    return {
        "source": requests.source,
        "requests": len(requests),
        "queue_depth": loop.depth,
        "speed": None if loop.depth is not None else loop.speed,
        "paths": [foreground.data(row) for row in rows],
    }


def table(rows: Sequence[Interference], requests: BlockTrace) -> Table:
    """Return a table of the latencies of the block trace, alone and during the update of each path.

    The table also shows the increase of the update time due to the block trace.
    """
    out = Table(
        title=f"Latency of foreground I/O: {requests.source}",
        title_justify="left",
        title_style="bold",
        caption="Latencies: without the update -> during the update. Column update: increase of "
        "the update time due to foreground I/O.",
        caption_justify="left",
    )
    heads = [
        f"{kind} {'p99.9' if q == 'p999' else q}" for kind in ("read", "write") for q in COLUMNS
    ]
    for i, name in enumerate(("path", "requests", *heads, "update")):
        out.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        if row.reason is not None:
            out.add_row(row.name, "n/a", *[""] * (len(heads) + 1))
            continue
        cells = [
            _cell(row.alone[kind], row.beside[kind], q)
            for kind in ("read", "write")
            for q in COLUMNS
        ]
        out.add_row(row.name, f"{row.requests:,}", *cells, f"{row.slower:+z.1%}")
    return out


def _cell(alone: dict[str, float] | None, beside: dict[str, float] | None, q: str) -> str:
    if alone is None or beside is None:
        return "-"
    return " -> ".join(fmt_time(x[q] * PS_PER_US) for x in (alone, beside))
