"""Start-up time: cost of the first compilation, and of a start with compiled code in the cache.

Owns the commands that are started. Does not own the cache of compiled code (ondie.kernels.jit).
Source: this project.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ondie.emu.validate.speed import peer
from ondie.emu.validate.speed.plan import Plan
from ondie.emu.validate.speed.process import run
from ondie.emu.validate.speed.speed import SMALL
from ondie.kernels.bench.run import Row


def start_rows(plan: Plan) -> list[Row]:
    """Return rows of the start time of each command that uses the engine, by wall time and CPU
    time.

    Before the first command, the cache of compiled code is empty. The first start of each command
    compiles the code that the cache does not contain yet. The cached start is the best of
    ``plan.repeat`` further starts. The total compilation time is the sum of the differences between
    first and cached starts.
    """
    first, again = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        cache = {"XDG_CACHE_HOME": folder}
        for name, arguments in _starts(Path(folder)):
            plan.progress(f"start of ondie {name}")
            command = [sys.executable, "-m", "ondie.emu.cli", *arguments, "--quiet"]
            ended = [run(command, env=cache) for _ in range(1 + plan.repeat)]
            first[name] = ended[0].wall_s, ended[0].cpu_s
            again[name] = min(e.wall_s for e in ended[1:]), min(e.cpu_s for e in ended[1:])
    rows = []
    for at, words in enumerate(("", ", processor time")):
        more = sum(first[name][at] - again[name][at] for name in first)
        rows.append(Row(f"cold compilation in total{words}", more, "s", "at most 30 s", more / 30))
        for name, took in again.items():
            title = f"ondie {name}, cached start{words}"
            rows.append(Row(title, took[at], "s", "at most 2 s", took[at] / 2))
    return rows


def _starts(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, arguments) of commands that run only briefly. Their files are in ``folder``."""
    trace = folder / "a.trace"
    trace.write_text("".join(f"{i * 100000} 0 {i * 8} 8 {i % 2}\n" for i in range(50)))
    small = [word for setting in SMALL for word in ("--set", setting)]
    replay = ["replay", str(trace), "--from", "mqsim", "--time-unit", "ns", *small]
    yield "replay", [*replay, "--precondition", "steady"]
    cases = peer.shortened(folder, 50)
    if cases is not None:
        yield "mqsim", ["mqsim", "-i", str(cases[0]), "-w", str(cases[1])]
    yield "compare", ["compare", "mlp-fp16", "--steps", "1", "--no-swing", "--out",
                      str(folder / "out")]  # fmt: skip
