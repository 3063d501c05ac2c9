"""`ondie compare --foreground`: the drive's other users during the update, as options and words.

Owns which options go together, the loop, the table. Does not own the runs (interference.py) or the
reading of block traces (ondie.traces). Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ondie.emu.analysis import foreground as interference
from ondie.emu.analysis.compare import PATHS, Comparison
from ondie.emu.analysis.foreground import Felt
from ondie.emu.cli.tables.replay import PS_PER_US
from ondie.emu.config.config import Config
from ondie.emu.replay.block_trace import Loop
from ondie.emu.units import InputError, fmt_time
from ondie.traces import Trace
from ondie.traces.block_model import BlockTrace

COLUMNS = ("p50", "p99", "p999")


@dataclass(frozen=True)
class Foreground:
    """What was asked for: the file, its format, a closed loop's depth or a pace."""

    file: Path | None = None
    form: str | None = None
    time_unit: str | None = None
    depth: int | None = None
    speed: float | None = None

    def check(self) -> None:
        """InputError for options without the one that they are of, or that exclude each other."""
        if self.file is None:
            for name, value in (
                ("from", self.form), ("time-unit", self.time_unit), ("depth", self.depth),
                ("speed", self.speed),
            ):  # fmt: skip
                if value is not None:
                    raise InputError(f"--foreground-{name}: of --foreground FILE, which is missing")
            return
        if self.form is None:
            raise InputError(
                "--foreground: its format is missing; --foreground-from mqsim, msr, fio, fio2, "
                "fio3 or blkparse is right"
            )
        if self.depth is not None and self.speed is not None:
            raise InputError("--foreground-depth and --foreground-speed: one of them is right")

    def read(self, progress: Callable[[str, float], None] | None) -> BlockTrace | None:
        """Its requests, or None where there are none."""
        if self.file is None or self.form is None:
            return None
        from ondie.traces import block

        share = None if progress is None else (lambda x: progress("read", x))
        return block.read_block(str(self.file), self.form, time_unit=self.time_unit, progress=share)

    def loop(self, requests: BlockTrace) -> Loop:
        """How they are let go. InputError for requests without times that are to run by them."""
        if self.depth is not None:
            return Loop(self.depth)
        if not requests.timed:
            raise InputError(f"{requests.source}: holds no times: --foreground-depth N is right")
        return Loop(None, 1.0 if self.speed is None else self.speed)


def run(
    trace: Trace,
    cfg: Config,
    c: Comparison,
    requests: BlockTrace,
    loop: Loop,
    progress: Callable[[str, float], None] | None,
) -> list[Felt]:
    """Each path of a comparison that ran, beside the requests."""
    ran = [r.name for r in c.results if r.reason is None and r.name in PATHS]
    return interference.interference(trace, cfg, ran, c.options, requests, loop, progress)


def data(rows: Sequence[Felt], requests: BlockTrace, loop: Loop) -> dict[str, Any]:
    """As result.json has it."""
    return {
        "source": requests.source,
        "requests": len(requests),
        "queue_depth": loop.depth,
        "speed": None if loop.depth is not None else loop.speed,
        "paths": [interference.data(row) for row in rows],
    }


def table(rows: Sequence[Felt], requests: BlockTrace) -> Table:
    """Latencies of the drive's other users, alone and beside each update, and what it costs it."""
    out = Table(
        title=f"The drive's other users during the update: {requests.source}",
        title_justify="left",
        title_style="bold",
        caption="latencies alone -> beside the update; update: how much longer it takes beside "
        "them",
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
        out.add_row(row.name, f"{row.requests:,}", *cells, f"{row.slower:+.1%}")
    return out


def _cell(alone: dict[str, float] | None, beside: dict[str, float] | None, q: str) -> str:
    if alone is None or beside is None:
        return "-"
    return " -> ".join(fmt_time(x[q] * PS_PER_US) for x in (alone, beside))
