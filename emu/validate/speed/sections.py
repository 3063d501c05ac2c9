"""Runner of `ondie bench engine`: all sections in one run.

Owns the selection and order of the sections. Does not own any measurement (speed.py, peer.py,
large.py, replay_memory.py, start.py) or the output (cli/commands/bench_run.py). Source: this
project.
"""

from __future__ import annotations

from ondie.emu.units import InputError
from ondie.emu.validate.speed import peer
from ondie.emu.validate.speed.anchors import Memory
from ondie.emu.validate.speed.large import large_rows
from ondie.emu.validate.speed.plan import SECTIONS, Plan, memory_rows
from ondie.emu.validate.speed.replay_memory import replay_memory_rows
from ondie.emu.validate.speed.speed import BARE, LARGE, PLAIN, SMALL, flash_rows, ftl_rows
from ondie.emu.validate.speed.start import start_rows
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.run import Row


def run(plan: Plan) -> bench.Bench:
    """Measure the sections of a plan and return their rows.

    Raises InputError for an unknown section, if the peer is not an executable program, or if its
    cases are missing or invalid.
    """
    for name in plan.sections:
        if name not in SECTIONS:
            raise InputError(f"--only {name}: must be one of {', '.join(SECTIONS)}")
    if plan.peer is not None:
        peer.check(plan.peer, plan.cases)
    plan.progress("memory")
    memory = Memory()
    rows: list[Row] = []
    if "flash" in plan.sections:
        rows += flash_rows(plan, memory)
    if "ftl" in plan.sections:
        rows += ftl_rows(
            plan, memory, "FTL, mapping tables in the CPU cache", (*SMALL, *BARE), 10e6
        )
        rows += ftl_rows(
            plan,
            memory,
            "the same, whole data path",
            SMALL + PLAIN[:1],
            None,
        )
    if "ftl-64g" in plan.sections:
        rows += ftl_rows(plan, memory, "FTL, 64 GiB", (*LARGE, *BARE), 6e6)
    if "peer" in plan.sections and plan.peer is not None:
        assert plan.cases is not None
        rows += peer.rows(plan.peer, plan.cases, plan.quick, plan.progress)
    if "large" in plan.sections:
        rows += large_rows(plan)
    if "memory" in plan.sections:
        rows += replay_memory_rows(plan)
    if "start" in plan.sections:
        rows += start_rows(plan)
    memory.measure()
    return bench.Bench(memory_rows(memory.anchors()) + rows, bench.machine(1))
