"""The stage table as text, for docs/architecture.md and docs/tour.md.

Owns the two forms: the whole table, and the walk of one transaction through it. Does not own the
table (ondie.emu.engine.run.stage_table) or the pages (generate.py).
Source: none.
"""

from __future__ import annotations

import textwrap

from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import stages
from ondie.emu.engine.run import stage_table
from ondie.emu.engine.run.stage_table import STAGES, Stage
from ondie.emu.engine.run.system import System

NAMES = stage_table.names()
WALKS = {
    "write": ("newport", stages.SUBMITTED),
    "gradient": ("optimstore-r1", stages.DMA_UPLINK_DONE),
}
"""Preset and first completed step of each walk."""


def handler(stage: Stage) -> str:
    """Return the name of the handler of a stage, or an empty string."""
    function = stage.decides or stage.takes
    return function.__name__ if function is not None else ""


def size(stage: Stage) -> str:
    """Return what crosses in a stage: data, or the field of the configuration with the size."""
    return stage.size or ("data" if stage.over.name and not stage.over.time else "")


def line(stage: Stage, *first: str) -> str:
    """Return the columns of a stage behind ``first``."""
    following = NAMES[stage.next] if stage.next >= 0 else ""
    columns = [*first, handler(stage), stage.over.name, size(stage), following]
    widths = [*(27, 16)[: len(first)], 25, 15, 11, 0]
    return "".join(f"{text:{width}}" for text, width in zip(columns, widths, strict=True)).rstrip()


def table() -> str:
    """Return all stages: a line each, then the branches and the later steps of its handler."""
    heads = ("completed step", "only with", "handler", "crosses", "size", "next step")
    lines = [f"{heads[0]:27}{heads[1]:16}{heads[2]:25}{heads[3]:15}{heads[4]:11}{heads[5]}"]
    for stage in STAGES:
        lines.append(line(stage, NAMES[stage.step], stage.when))
        for word, steps in (("or ", stage.branches), ("later ", stage.leads)):
            text = ", ".join(NAMES[step] for step in steps if step != stages.ADVANCED)
            if text:
                lines += textwrap.wrap(
                    text, 110, initial_indent=" " * 43 + word, subsequent_indent=" " * 46
                )
    return "\n".join(lines) + "\n"


def walk(name: str) -> str:
    """Return the stages of one transaction from its first step to its end. Where a handler passes
    the transaction on, the walk continues at the first later step of the table."""
    preset, step = WALKS[name]
    cfg = System(load_preset(preset, ("system.devices=1",)), ("walk",)).arrays.cfg[0]
    known = {stage.step: stage for stage in stage_table.of_drive(cfg)}
    lines = [f"{'completed step':27}{'handler':25}{'crosses':15}{'size':11}next step"]
    while True:
        stage = known[step]
        lines.append(line(stage, NAMES[step]))
        if stage.leads:
            step = stage.leads[0]
            lines[-1] = f"{NAMES[stage.step]:27}{handler(stage):51}{NAMES[step]}"
        elif stage.next >= 0:
            step = stage.next
        else:
            return "\n".join(lines) + "\n"
