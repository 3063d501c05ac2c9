"""The runs behind docs/tour.md: one page write, and one super-page of an update on the dies.

Owns the two runs and their tables of busy intervals. Does not own the page (docs/tour.md) or its
comparison with these tables (generate.py). Source: none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ondie import traces
from ondie.emu.analysis import compare, perfetto
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.nand.timing import OP_NAMES
from ondie.emu.nvme import command

Interval = tuple[float, float, str, str, int]  # start and end in us, resource, operation, plan row


def intervals(events: list[dict]) -> Iterator[Interval]:
    """The busy intervals of a timeline, in order of their start."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = [
        (e["ts"], e["ts"] + e["dur"], names[e["pid"], e["tid"]], e["name"], e["args"]["row"])
        for e in events
        if e["ph"] == "X"
    ]
    return iter(sorted(found))


def table(found: list[Interval]) -> str:
    """The intervals as text, times from the first one on."""
    first = found[0][0]
    lines = [f"{'from us':>10}{'to us':>10}  {'resource':<18}for"]
    for start, end, resource, operation, _ in found:
        lines.append(f"{start - first:10.3f}{end - first:10.3f}  {resource:<18}{operation}")
    return "\n".join(lines) + "\n"


def page_write() -> str:
    """One NVMe write of a flash page on the preset newport, which is idle."""
    cfg = load_preset("newport", ("system.devices=1",))
    system = System(cfg, ("write",), timeline=256)
    row = np.zeros(1, plan_rows.PLAN)
    row["resource"], row["kind"] = plan_rows.NVME, command.WRITE
    row["bytes_in"] = cfg.flash.page_bytes
    row["after0"] = row["after1"] = -1
    system.run([row])
    lines = system.arrays.line[: int(system.arrays.reg.lines[0])]
    return table(
        list(intervals(perfetto.events(lines, system.leaf_name, OP_NAMES, ("write",), "write")))
    )


def gradient() -> str:
    """The first super-page that die 0.0 of optimstore-r1 updates in a step of gpt-small: its
    gradient on the link and in DRAM, and all that happens on its channel and die."""
    found = compare.compare(
        traces.load("gpt-small"),
        load_preset("optimstore-r1"),
        paths=("on_die",),
        steps=1,
        timeline=1 << 18,
        swing=False,
    )
    (run,) = found.results
    assert run.timeline is not None
    every = list(intervals(run.timeline))
    done = next(x for x in every if x[2] == "die 0.0" and x[3] == "BPP")
    rows = {x[4] for x in every if x[2] == "die 0.0" and x[1] <= done[1]}
    rows.add(next(x[4] for x in every if x[2] == "link down"))
    rows.add(next(x[4] for x in every if x[2] == "channel 0" and x[3] == "VPP"))
    return table([x for x in every if x[4] in rows and x[1] <= done[1]])
