"""`ondie stannis simulate`: steps of training, left alone, interrupted, and with HyperTune.

Owns its runs, tables, JSON and figure. Does not own fleets and allocations (asked.py) or time
(cluster/training_sim.py).
Source: HyperTune (HeydariGorji et al.); its Fig. 6 is speed before and after cores are taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ondie.emu.cli.commands.cluster_request import Asked, Progress, data, one_of, ranged
from ondie.emu.cli.files import check_target, suffix_of, write_atomically
from ondie.emu.cluster import membership as members
from ondie.emu.cluster.history import History
from ondie.emu.cluster.hypertune.batch_resize import rising
from ondie.emu.cluster.hypertune.controller import CHOICES, HyperTune, Rule
from ondie.emu.cluster.jitter import Chance
from ondie.emu.cluster.load.on_off import Spells
from ondie.emu.cluster.load.trace import Load
from ondie.emu.cluster.training_sim import Simulation
from ondie.emu.units import InputError, fmt_energy

HYPERTUNES = ("off", "gated", "papers")
MOST_NOTES = 8
LEAST_NOISE = 0.01
"""Of an observed speed, however quiet the simulated nodes are; assumed, as in hypertune.Rule."""


def simulate(
    asked: Asked,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    console: Console | None,
    progress: Progress,
) -> None:
    """Steps of training: left alone, with interference, and with HyperTune against it."""
    figure, json_path = options["figure"], options["json_path"]
    if figure is not None:
        suffix_of(figure)
        check_target(figure, *([json_path] if json_path is not None else []))
    own, fleet, steps = data(asked, given), asked.fleet, options["steps"]
    one_of("hypertune", options["hypertune"], HYPERTUNES)
    chance = Chance(options["jitter"], options["stragglers"], seed=options["seed"])
    batches, pieces = asked.by_node(asked.chosen.samples), asked.by_node(asked.chosen.pieces)
    load = _load(options, asked, steps)
    events = members.read(options["members"]) if options["members"] is not None else ()
    tuner = _tuner(options, asked, batches, chance)

    def run(name: str, **more: Any) -> History:
        def at(step: int) -> None:
            if progress is not None:
                progress(name, step / steps)

        simulation = Simulation(fleet, batches, own, chance=chance, pieces=pieces, **more)
        return simulation.run(steps, at)

    runs = {"left alone": run("left alone")}
    if load is not None or events:
        runs["interrupted"] = run("interrupted", load=load, events=events)
    if tuner is not None:
        runs["HyperTune"] = run("HyperTune", load=load, events=events, tuner=tuner)
    files: dict[Path, bytes] = {}
    title = f"{asked.workload.name} on {', '.join(f'{k.count:,} {k.name}' for k in fleet.kinds)}"
    if figure is not None:
        from ondie.emu.cli.figures.cluster import over_time  # matplotlib takes a second to import

        files[figure] = over_time(runs, title)[suffix_of(figure)]
    if json_path is not None:
        kinds = [fleet.kinds[i].name for i in fleet.kind]
        told = {name: r.data(kinds) for name, r in runs.items()}
        notes = list(asked.workload.notes)
        content = {"workload": asked.workload.name, "notes": notes, "steps": steps, "runs": told}
        files[json_path] = (json.dumps(content, allow_nan=False) + "\n").encode()
    write_atomically(files)
    if console is not None:
        console.print(_runs(runs, title))
        for line in (*asked.workload.notes, *_never_ending(runs)):
            console.print(line)
        for name, r in runs.items():
            happened = [note for note in r.notes if note.what != "epoch"]
            for note in happened[:MOST_NOTES]:
                console.print(
                    f"{name}: {note.seconds:.6g} s, step {note.step}: {note.what}: {note.text}"
                )
            if len(happened) > MOST_NOTES:
                console.print(f"{name}: {len(happened) - MOST_NOTES:,} more")
        for file in files:
            console.print(f"written: {file}")


def _load(options: Mapping[str, Any], asked: Asked, steps: int) -> Load | Spells | None:
    """--load or --draw-load."""
    path, text = options["load"], options["draw_load"]
    if path is not None and text is not None:
        raise InputError("--load and --draw-load: one of them is right")
    if path is not None:
        return Load.read(path)
    if text is None:
        return None
    try:
        share, spell = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--draw-load {text!r}: a share and seconds are right, such as 0.2,120"
        ) from None
    fleet, a = asked.fleet, asked.chosen
    spells = Spells(spell, share, options["seed"])
    spells.check(fleet.nodes, steps * (a.compute_s + a.exchange_s))  # undisturbed: at least
    return spells


def _tuner(
    options: Mapping[str, Any], asked: Asked, batches: np.ndarray, chance: Chance
) -> HyperTune | None:
    """--hypertune, unless it is off. InputError for what it cannot watch, or tell batches of."""
    batch_rule = options["batch_rule"]
    one_of("batch-rule", batch_rule, CHOICES["batch"])
    fleet, how = asked.fleet, options["hypertune"]
    if how == "off":
        return None
    idle = [kind.name for kind, its in zip(fleet.kinds, fleet.slices, strict=True)
            if not batches[its].all()]  # fmt: skip
    if idle:
        limit = options["most_batch"]
        limited = "" if limit is None else f" within --most-batch {limit}"
        raise InputError(
            f"--hypertune {how}: --allocator {asked.allocator} gives {idle[0]} a batch of 0"
            f"{limited}, and HyperTune resizes batches of 1 or more: "
            f"{'' if limit is None else 'a larger --most-batch, '}another --allocator or "
            f"fewer drives are right"
        )
    # What is observed is slower or faster by chance, at every batch alike.
    engines = [
        replace(e, points=tuple((size, speed * chance.speed) for size, speed in e.points))
        for e in (kind.engine for kind in fleet.kinds)
    ]
    if batch_rule != "proportional":
        for kind in fleet.kinds:
            try:
                rising(kind.engine)
            except InputError as error:
                raise InputError(
                    f"--batch-rule {batch_rule}: {error}; --batch-rule proportional is right"
                ) from None
    printed = how == "papers"
    rule = Rule(
        index="literal" if printed else "gated",
        batch=batch_rule,
        ends_epoch=printed,
        noise=max(chance.noise(Rule.sigmas), LEAST_NOISE),
    )
    speeds = batches / np.maximum(fleet.seconds(batches), 1e-12) * chance.speed
    return HyperTune(rule, batches, speeds, engines=engines, kinds=fleet.kind)


def _never_ending(runs: Mapping[str, History]) -> list[str]:
    """The runs none of whose epochs finished, since each was ended before."""
    return [
        f"{name}: no epoch finishes: changes of batches ended each before, and dropped "
        f"{r.dropped:,} samples of them in all"
        for name, r in runs.items()
        if r.dropped and not any(note.what == "epoch" for note in r.notes)
    ]


def _runs(runs: Mapping[str, History], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    lost = any(r.dropped for r in runs.values())
    columns = (
        "run",
        "time",
        "samples/s",
        "J/sample",
        "exchange",
        "waiting",
        "reading",
        "nodes",
        "epochs",
        *(["dropped"] if lost else []),
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "run" else "right")
    for name, r in runs.items():
        s = r.steps
        computing = s["compute_s"].sum()
        table.add_row(
            name, f"{r.seconds:,.4g} s", f"{r.samples_per_s:.4g}",
            fmt_energy(r.joules_per_sample * 1e15), f"{s['exchange_s'].sum() / r.seconds:.1%}",
            f"{(s['waiting'] * s['compute_s']).sum() / computing:.1%}",
            f"{(s['reading'] * s['compute_s']).sum() / computing:.1%}",
            ranged(s["nodes"]), str(sum(note.what == "epoch" for note in r.notes)),
            *([f"{r.dropped:,}"] if lost else []),
        )  # fmt: skip
    return table
