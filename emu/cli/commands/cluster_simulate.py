"""`ondie stannis simulate`: training without interference, with interference, and with HyperTune.

Owns the runs, tables, JSON and figure of this command. Does not own requests (cluster_request.py)
or time (cluster/training_sim.py). Source: HyperTune (HeydariGorji et al.); Fig. 6 in that paper
shows speed before and after cores are taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ondie.emu.cli.commands.cluster_plan import make_table
from ondie.emu.cli.commands.cluster_request import (
    Progress,
    Request,
    SimulateOptions,
    check_choice,
    format_range,
    samples_of_nodes,
)
from ondie.emu.cluster import membership
from ondie.emu.cluster.allocation import TUNED
from ondie.emu.cluster.history import History
from ondie.emu.cluster.hypertune.batch_resize import rising
from ondie.emu.cluster.hypertune.controller import CHOICES, HyperTune, Rule
from ondie.emu.cluster.jitter import Chance
from ondie.emu.cluster.load.on_off import Spells
from ondie.emu.cluster.load.trace import Load
from ondie.emu.cluster.training_sim import Data, Simulation
from ondie.emu.units import InputError, fmt_count, fmt_energy

HYPERTUNES = ("off", "gated", "papers")
MOST_NOTES = 8
LEAST_NOISE = 0.01
"""Minimum relative noise of an observed speed [assumed, as in hypertune.Rule]."""


def simulate(given: SimulateOptions, progress: Progress) -> None:
    """Run `ondie stannis simulate`: one run without interference, one with interference, one with
    HyperTune.

    Interference: other programs use cores, and nodes join, leave or die.
    """
    given.check()
    request = given.make_request()
    fleet, steps = request.fleet, given.steps
    own = samples_of_nodes(request, given)
    check_choice("hypertune", given.hypertune, HYPERTUNES)
    chance = Chance(given.jitter, given.stragglers, seed=given.seed)
    batches = request.by_node(request.chosen.samples)
    pieces = request.by_node(request.chosen.pieces)
    load = _load(given, request)
    events = membership.read(given.members) if given.members is not None else ()
    tuner = _tuner(given, request, batches, chance)

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
    nodes = ", ".join(f"{kind.count:,} {kind.name}" for kind in fleet.kinds)
    title = f"{request.workload.name} on {nodes}"

    def draw() -> Mapping[str, bytes]:
        from ondie.emu.cli.figures.cluster import over_time  # matplotlib takes a second to import

        return over_time(runs, title)

    kinds = [fleet.kinds[i].name for i in fleet.kind]
    result = {
        "workload": request.workload.name,
        "notes": list(request.notes),
        "interference": request.interference,
        "full_batches_samples_per_s": request.chosen.samples_per_s,
        "steps": steps,
        "runs": {name: history.data(kinds) for name, history in runs.items()},
    }
    # One line: a run has a value for every node and step.
    files = given.write(json.dumps(result, allow_nan=False) + "\n", draw)
    if (screen := given.console) is not None:
        screen.print(_runs(runs, title))
        for line in (*request.notes, *_epoch(request, own), *_settled(runs), *_never_ending(runs)):
            screen.print(line)
        print_events(runs, screen)
    given.list_files(files)


def print_events(runs: Mapping[str, History], screen: Console) -> None:
    """Print the first MOST_NOTES events of every run, except the ends of epochs."""
    for name, history in runs.items():
        events = [note for note in history.notes if note.what != "epoch"]
        for note in events[:MOST_NOTES]:
            screen.print(
                f"{name}: {note.seconds:.6g} s, step {note.step}: {note.what}: {note.text}"
            )
        if len(events) > MOST_NOTES:
            screen.print(f"{name}: {len(events) - MOST_NOTES:,} more events")


def _load(given: SimulateOptions, request: Request) -> Load | Spells | None:
    """Return the load by other programs that --load, --draw-load or --cores-taken describes; None
    if none of these options is given. Raises InputError if several of these options are given or if
    a value is invalid."""
    path, text, taken = given.load, given.draw_load, given.cores_taken
    options = {"--load": path is not None, "--draw-load": text is not None,
               "--cores-taken": taken > 0}  # fmt: skip
    named = [name for name, used in options.items() if used]
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} cannot be combined; use one of them")
    if path is not None:
        return Load.read(path)
    if taken:
        hosts = request.fleet.hosts
        return Load(np.zeros(hosts), np.arange(hosts), np.full(hosts, taken))
    if text is None:
        return None
    try:
        share, spell = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--draw-load {text!r}: must be FRACTION,SECONDS, such as 0.2,120"
        ) from None
    spells = Spells(spell, share, given.seed)
    spells.check(request.fleet.nodes, given.steps * request.chosen.step_s)
    return spells


def _tuner(
    given: SimulateOptions, request: Request, batches: np.ndarray, chance: Chance
) -> HyperTune | None:
    """Return the HyperTune controller that --hypertune selects; None if it is off.

    Raises InputError if the batch rule is unknown, if the batch of a node is 0, or if the batch
    rule is not proportional and the speed of a node does not increase with its batch.
    """
    batch_rule = given.batch_rule
    check_choice("batch-rule", batch_rule, CHOICES["batch"])
    fleet, how = request.fleet, given.hypertune
    if how == "off":
        return None
    idle = [kind.name for kind, nodes in zip(fleet.kinds, fleet.slices, strict=True)
            if not batches[nodes].all()]  # fmt: skip
    if idle:
        limit = given.most_batch
        limited = "" if limit is None else f" within --most-batch {limit}"
        raise InputError(
            f"--hypertune {how}: --allocator {request.rules.allocator} gives {idle[0]} a batch of 0"
            f"{limited}, and HyperTune resizes only batches of 1 or more; use "
            f"{'' if limit is None else 'a larger --most-batch, '}another --allocator, or "
            f"fewer drives"
        )
    # Batches that were tuned under a load expect its speeds. Jitter and stragglers change the
    # observed speed by the same factor at every batch.
    loaded = request.rules.batch == TUNED
    known = [kind.loaded if loaded else kind.engine for kind in fleet.kinds]
    engines = [engine.scaled(chance.speed) for engine in known]
    if batch_rule != "proportional":
        for kind in fleet.kinds:
            try:
                rising(kind.engine)
            except InputError as error:
                raise InputError(
                    f"--batch-rule {batch_rule}: {error}; use --batch-rule proportional"
                ) from None
    published = how == "papers"
    rule = Rule(
        index="literal" if published else "gated",
        batch=batch_rule,
        ends_epoch=published,
        noise=max(chance.noise(Rule.sigmas), LEAST_NOISE),
    )
    speeds = np.array([engines[kind].speed(batches[i]) for i, kind in enumerate(fleet.kind)])
    left = np.array([kind.left if loaded else 1.0 for kind in fleet.kinds])
    return HyperTune(
        rule, batches, speeds, engines=engines, kinds=fleet.kind, cores=left[fleet.kind]
    )


def _epoch(request: Request, own: Data) -> list[str]:
    """Return a line that states the speed with full batches, and the mean number of samples per
    step of an epoch with smaller last batches.

    Returns an empty list if the samples of an epoch fill all batches.
    """
    chosen, data = request.chosen, own.public + int(own.private.sum())
    steps = -(-data // chosen.total)
    if steps * chosen.total == data:
        return []
    return [
        f"Full batches: {fmt_count(chosen.samples_per_s)} samples/s without interference; the "
        f"{steps:,} steps of an epoch of {data:,} samples have a mean of {data / steps:,.1f} "
        f"samples, out of {chosen.total:,} in a full batch"
    ]


def _settled(runs: Mapping[str, History]) -> list[str]:
    """Return, for each run with changed batches, the speed after the last change."""
    return [
        f"{name}: {fmt_count(settled)} samples/s after the last change of batches"
        for name, history in runs.items()
        if (settled := history.settled()) is not None
    ]


def _never_ending(runs: Mapping[str, History]) -> list[str]:
    """Return a line for each run in which changes of batches ended every epoch before its last
    step."""
    return [
        f"{name}: no epoch finishes: batch changes ended each epoch early and dropped "
        f"{history.dropped:,} samples in total"
        for name, history in runs.items()
        if history.dropped and not any(note.what == "epoch" for note in history.notes)
    ]


def _runs(runs: Mapping[str, History], title: str) -> Table:
    """Return a table with the time, speed, energy and fractions of time of each run."""
    lost = any(history.dropped for history in runs.values())
    columns = (
        "run", "time", "samples/s", "J/sample", "exchange", "waiting", "reading", "nodes", "epochs",
    )  # fmt: skip
    table = make_table(title, (*columns, *(["dropped"] if lost else [])), left=("run",))
    for name, history in runs.items():
        steps = history.steps
        compute = steps["compute_s"]
        waiting, reading = ((steps[name] * compute).sum() for name in ("waiting", "reading"))
        table.add_row(
            name, f"{history.seconds:,.4g} s", fmt_count(history.samples_per_s),
            fmt_energy(history.joules_per_sample * 1e15),
            f"{steps['exchange_s'].sum() / history.seconds:.1%}",
            f"{waiting / compute.sum():.1%}", f"{reading / compute.sum():.1%}",
            format_range(steps["nodes"]), str(sum(x.what == "epoch" for x in history.notes)),
            *([f"{history.dropped:,}"] if lost else []),
        )  # fmt: skip
    return table
