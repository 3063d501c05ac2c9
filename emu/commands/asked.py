"""What is asked of a fleet, and the answer as tables, JSON and a figure.

Owns how options become a fleet, batches and samples, and how results are shown. Does not own
arguments (fleets.py), rules, data or time (stannis/).
Source: STANNIS (DAC 2020), HyperTune (HeydariGorji et al.).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ondie import traces
from ondie.emu.config import Config, load_preset
from ondie.emu.drawing import suffix_of
from ondie.emu.report import check_target, seconds, write_atomically
from ondie.emu.stannis import members, optimal
from ondie.emu.stannis.allocation import largest_remainder, split
from ondie.emu.stannis.assembly import assemble
from ondie.emu.stannis.fleet import Fleet
from ondie.emu.stannis.history import History
from ondie.emu.stannis.hypertune import HyperTune, Rule
from ondie.emu.stannis.load import Load, drawn
from ondie.emu.stannis.simulation import Chance, Data, Simulation
from ondie.emu.stannis.tuner import MARGIN, Engine, tuning
from ondie.emu.stannis.workload import Workload, is_network, of_network, of_trace
from ondie.emu.units import InputError, fmt_energy, nearest

ALLOCATORS = ("paper", "equal", "best")
HYPERTUNES = ("off", "gated", "papers")
Progress = Callable[[str, float], None] | None


@dataclass(frozen=True)
class Allocation:
    """Samples of a node of each kind between two exchanges, and in how many micro-batches."""

    name: str
    samples: tuple[int, ...]
    pieces: tuple[int, ...]
    exchange_s: float
    compute_s: float
    counts: tuple[int, ...]
    risk: str

    @property
    def total(self) -> int:
        return sum(n * c for n, c in zip(self.samples, self.counts, strict=True))

    @property
    def samples_per_s(self) -> float:
        return self.total / (self.compute_s + self.exchange_s)


@dataclass(frozen=True)
class Asked:
    """A fleet and who trains on how much."""

    workload: Workload
    fleet: Fleet
    allocator: str
    allocations: Mapping[str, Allocation]

    @property
    def chosen(self) -> Allocation:
        return self.allocations[self.allocator]

    @staticmethod
    def of(options: Mapping[str, Any]) -> Asked:
        """From the options of fleets.fleet_options. InputError for what is wrong with them."""
        allocator = options["allocator"]
        _one_of("allocator", allocator, ALLOCATORS)
        presets = [_drives(text, options["settings"]) for text in options["drives"]]
        workload = _workload(options["workload"], presets, options["host_batch"])
        if options["json_path"] is not None:
            check_target(options["json_path"])
        fleet = assemble(
            workload, presets, hosts=options["hosts"], allreduce=options["allreduce"],
            reads=not options.get("no_reading", False),
        )  # fmt: skip
        return Asked(workload, fleet, allocator, _allocations(fleet, options))

    def by_node(self, values: tuple[int, ...]) -> np.ndarray:
        """A value for each kind as one for each node, int64[nodes]."""
        return self.fleet.by_kind(list(values))


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(
            f"--{name} {value!r}: {', '.join(known)} are right; nearest: "
            f"{nearest(value, known) or 'none'}"
        )


def _drives(text: str, settings: tuple[str, ...]) -> tuple[Config, int]:
    """PRESET=N."""
    name, equals, number = text.rpartition("=")
    try:
        count = int(number)
    except ValueError:
        count = -1
    if not equals or count < 0:
        raise InputError(f"--drives {text!r}: a preset and a number are right, as newport=24")
    return load_preset(name, list(settings)), count


def _workload(name: str, presets: list[tuple[Config, int]], host_batch: int | None) -> Workload:
    configs = [cfg for cfg, _ in presets]
    if is_network(name):
        if host_batch is not None:
            raise InputError(f"--host-batch: {name}'s batches are published; it goes with traces")
        return of_network(name, configs)
    if host_batch is not None and host_batch < 1:
        raise InputError(f"--host-batch {host_batch}: 1 or more is right")
    return of_trace(traces.load(name), configs, host_batch)


def _allocations(fleet: Fleet, options: Mapping[str, Any]) -> dict[str, Allocation]:
    """By the paper's rule, with equal times, and of most samples per second."""
    there = [i for i, kind in enumerate(fleet.kinds) if kind.count]
    engines = [fleet.kinds[i].engine for i in there]
    counts = tuple(kind.count for kind in fleet.kinds)
    took = fleet.exchange(np.ones(fleet.nodes, bool)).seconds

    def full(values: tuple[int, ...], absent: int) -> tuple[int, ...]:
        out = [absent] * len(counts)
        for i, value in zip(there, values, strict=True):
            out[i] = value
        return tuple(out)

    margin = MARGIN if options["margin"] is None else options["margin"]
    t = tuning(
        engines, counts=[counts[i] for i in there], margin=margin,
        reference=options["reference"] or "slowest",
    )  # fmt: skip
    out = {
        "paper": Allocation(
            "paper", full(t.batches, 0), full((1,) * len(there), 1), took, max(t.seconds), counts,
            f"effective batch {sum(b * counts[i] for i, b in zip(there, t.batches, strict=True))}",
        )
    }  # fmt: skip
    for name, most in (("equal", 1), ("best", options["most_micro_batches"])):
        p = optimal.plan(
            engines, [counts[i] for i in there], took, most_micro_batches=most,
            most_samples=options["most_batch"] if name == "best" else None,
        )  # fmt: skip
        out[name] = Allocation(
            name, full(p.samples, 0), full(tuple(max(m, 1) for m in p.micro_batches), 1), took,
            p.compute_s, counts, p.risk,
        )  # fmt: skip
    return out


def samples(options: Mapping[str, Any]) -> dict[str, Any]:
    """What data_options say."""
    return {name: options[name] for name in ("public", "private", "levelling")}


def data(asked: Asked, given: Mapping[str, Any]) -> Data:
    """The samples of the nodes. InputError for counts that do not fit the fleet."""
    fleet, workload = asked.fleet, asked.workload
    drives = fleet.nodes - fleet.hosts
    public = workload.public if given["public"] is None else given["public"]
    private = np.zeros(fleet.nodes, np.int64)
    if given["private"] is not None:
        private[fleet.hosts :] = _private(given["private"], drives)
    elif drives:
        private[fleet.hosts :] = largest_remainder(workload.private, [1] * drives)
    if public < 0:
        raise InputError(f"--public {public}: 0 or more is right")
    if not public + int(private.sum()):
        raise InputError(f"{workload.name}: no samples are known of it; --public N says how many")
    return Data(public, private, given["levelling"])


def _private(text: str, drives: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--private {text!r}: a number, or one for each drive, is right") from None
    if len(numbers) == 1:
        numbers *= drives
    if len(numbers) != drives or min(numbers, default=0) < 0:
        raise InputError(
            f"--private {text!r}: {len(numbers)} numbers for {drives} drives; 0 or more for each, "
            f"or one for all, is right"
        )
    return numbers


# --- tune


def tune(asked: Asked, json_path: Path | None, console: Console | None) -> None:
    """Batches of every kind of node by each allocator."""
    if json_path is not None:
        rows = [
            {
                "allocator": a.name,
                "samples_per_s": a.samples_per_s,
                "samples": dict(zip(_names(asked.fleet), a.samples, strict=True)),
                "micro_batches": dict(zip(_names(asked.fleet), a.pieces, strict=True)),
                "exchange_s": a.exchange_s,
                "compute_s": a.compute_s,
                "total": a.total,
                "chosen": a.name == asked.allocator,
            }
            for a in asked.allocations.values()
        ]
        bound = {"without_exchange_samples_per_s": _bound(asked.fleet)}
        _write(json_path, {"workload": asked.workload.name, "allocations": rows} | bound)
    if console is not None:
        console.print(_engines(asked))
        console.print()
        console.print(_allocators(asked))


def _names(fleet: Fleet) -> list[str]:
    return [kind.name for kind in fleet.kinds]


def _bound(fleet: Fleet) -> float:
    """Samples per second if nobody ever waited."""
    return sum(kind.count * kind.engine.speed(kind.engine.best) for kind in fleet.kinds)


def _engines(asked: Asked) -> Table:
    a, fleet = asked.chosen, asked.fleet
    table = Table(
        title=f"{asked.workload.name}: batches by allocator {asked.allocator}",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for column in (
        "node",
        "how many",
        "memory holds",
        "batch",
        "in pieces",
        "step",
        "alone",
        "waits",
    ):
        table.add_column(column, justify="left" if column == "node" else "right")
    for i, kind in enumerate(fleet.kinds):
        n, pieces = a.samples[i], a.pieces[i]
        took = _piecewise(kind.engine, n, pieces)
        table.add_row(
            kind.name, f"{kind.count:,}", f"{kind.engine.limit:,}" if kind.engine.limit else "",
            f"{n:,}", str(pieces), seconds(took) if n else "",
            f"{n / took:.4g} samples/s" if n else "",
            f"{1 - took / a.compute_s:.0%}" if kind.count else "",
        )  # fmt: skip
    return table


def _piecewise(engine: Engine, samples: int, pieces: int) -> float:
    small, larger = divmod(samples, pieces)
    out = (pieces - larger) * engine.seconds(small) if small else 0.0
    return out + (larger * engine.seconds(small + 1) if larger else 0.0)


def _allocators(asked: Asked) -> Table:
    table = Table(
        title="allocators, with the exchange", title_justify="left", title_style="bold",
    )  # fmt: skip
    columns = (
        "allocator",
        "samples/step",
        "compute",
        "exchange",
        "samples/s",
        "over paper",
        "risk",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("allocator", "risk") else "right")
    first = asked.allocations["paper"].samples_per_s
    for a in asked.allocations.values():
        table.add_row(
            a.name, f"{a.total:,}", seconds(a.compute_s), seconds(a.exchange_s),
            f"{a.samples_per_s:.4g}", f"{a.samples_per_s / first:.3f}x", a.risk,
        )  # fmt: skip
    most = _bound(asked.fleet)
    table.add_row("never waiting", "", "", "", f"{most:.4g}", f"{most / first:.3f}x", "a bound")
    return table


# --- plan


def plan(
    asked: Asked, given: Mapping[str, Any], json_path: Path | None, console: Console | None
) -> None:
    """An epoch's samples by node."""
    own = data(asked, given)
    batches = asked.by_node(asked.chosen.samples)
    s = split(batches, own.public, own.private, own.levelling)
    private, public = s.private, s.public
    if json_path is not None:
        kinds = [asked.fleet.kinds[i].name for i in asked.fleet.kind]
        _write(
            json_path,
            {
                "workload": asked.workload.name,
                "steps": float(s.steps),
                "left": s.left,
                "nodes": {
                    "kind": kinds,
                    "batch": batches.tolist(),
                    "private": private.tolist(),
                    "public": public.tolist(),
                },
            },
        )
    if console is None:
        return
    table = Table(
        title=f"{asked.workload.name}: an epoch of {own.public:,} public and "
        f"{int(own.private.sum()):,} private samples in {float(s.steps):.1f} steps",
        title_justify="left", title_style="bold",
    )  # fmt: skip
    for column in ("node", "how many", "batch", "private", "public", "of the epoch"):
        table.add_column(column, justify="left" if column == "node" else "right")
    whole = float(private.sum() + public.sum())
    for kind, its in zip(asked.fleet.kinds, asked.fleet.slices, strict=True):
        if kind.count:
            mine = int(private[its].sum() + public[its].sum())
            table.add_row(
                kind.name, f"{kind.count:,}", _range(batches[its]), _range(private[its]),
                _range(public[its]), f"{mine / whole:.1%}",
            )  # fmt: skip
    console.print(table)
    if s.left:
        console.print(f"{s.left} public samples, fewer than nodes, are left to the next epoch")


def _range(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# --- simulate


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
    _one_of("hypertune", options["hypertune"], HYPERTUNES)
    chance = Chance(options["jitter"], options["stragglers"], seed=options["seed"])
    batches, pieces = asked.by_node(asked.chosen.samples), asked.by_node(asked.chosen.pieces)
    load = _load(options, asked, steps)
    events = members.read(options["members"]) if options["members"] is not None else ()

    def run(name: str, **more: Any) -> History:
        def at(step: int) -> None:
            if progress is not None:
                progress(name, step / steps)

        simulation = Simulation(fleet, batches, own, chance=chance, pieces=pieces, **more)
        return simulation.run(steps, at)

    runs = {"left alone": run("left alone")}
    if load is not None or events:
        runs["interrupted"] = run("interrupted", load=load, events=events)
    if options["hypertune"] != "off":
        tuner = _tuner(options, asked, batches)
        runs["HyperTune"] = run("HyperTune", load=load, events=events, tuner=tuner)
    files: dict[Path, bytes] = {}
    title = f"{asked.workload.name} on {', '.join(f'{k.count:,} {k.name}' for k in fleet.kinds)}"
    if figure is not None:
        from ondie.emu.stannis_figure import over_time  # matplotlib takes a second to import

        files[figure] = over_time(runs, title)[suffix_of(figure)]
    if json_path is not None:
        kinds = [fleet.kinds[i].name for i in fleet.kind]
        told = {name: r.data(kinds) for name, r in runs.items()}
        content = {"workload": asked.workload.name, "steps": steps, "runs": told}
        files[json_path] = (json.dumps(content, allow_nan=False) + "\n").encode()
    write_atomically(files)
    if console is not None:
        console.print(_runs(runs, title))
        for name, r in runs.items():
            for note in r.notes[:MOST_NOTES]:
                console.print(
                    f"{name}: {note.seconds:.6g} s, step {note.step}: {note.what}: {note.text}"
                )
            if len(r.notes) > MOST_NOTES:
                console.print(f"{name}: {len(r.notes) - MOST_NOTES:,} more")
        for file in files:
            console.print(f"written: {file}")


MOST_NOTES = 8


def _load(options: Mapping[str, Any], asked: Asked, steps: int) -> Load | None:
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
    horizon = 2 * steps * (a.compute_s + a.exchange_s)
    return drawn(np.arange(fleet.nodes), fleet.cores, horizon, spell, share, options["seed"])


def _tuner(options: Mapping[str, Any], asked: Asked, batches: np.ndarray) -> HyperTune:
    printed = options["hypertune"] == "papers"
    rule = Rule(
        index="literal" if printed else "gated",
        batch=options["batch_rule"],
        ends_epoch=printed,
        noise=max(options["jitter"], 0.01),
        forecast=options["forecast"],
    )
    fleet = asked.fleet
    engines = [kind.engine for kind in fleet.kinds]
    speeds = batches / np.maximum(fleet.seconds(batches), 1e-12)
    return HyperTune(rule, batches, speeds, engines=engines, kinds=fleet.kind)


def _runs(runs: Mapping[str, History], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
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
            _range(s["nodes"]), str(sum(note.what == "epoch" for note in r.notes)),
        )  # fmt: skip
    return table


def _write(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_atomically({path: text.encode()})
