"""`ondie stannis tune`, `plan` and `scale`: batches, data of an epoch, speed by number of drives.

Owns the tables, JSON and figure of these commands. Does not own requests (cluster_request.py) or
any rule (emu/cluster). Source: STANNIS (DAC 2020); Fig. 7 in that paper shows the speed as a
function of the number of drives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ondie.emu.analysis.result_json import seconds
from ondie.emu.cli.commands.cluster_request import (
    PlanOptions,
    Request,
    ScaleOptions,
    TuneOptions,
    format_range,
    preset_and_count,
    samples_of_nodes,
)
from ondie.emu.cluster.allocation import recruited
from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.cluster.cluster import Fleet
from ondie.emu.cluster.data_split import split
from ondie.emu.cluster.networks import half_batch_origin
from ondie.emu.cluster.throughput_allocator import Plan
from ondie.emu.cluster.throughput_benchmark import Fitted
from ondie.emu.units import InputError, fmt_count, fmt_energy


def make_table(title: str, columns: tuple[str, ...], left: tuple[str, ...] = ("node",)) -> Table:
    """Return an empty table with a title; the columns in ``left`` are left-aligned, all other
    columns right-aligned.
    """
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table


# --- tune


def tune(given: TuneOptions) -> None:
    """Run `ondie stannis tune`: choose a batch for each kind of node with every allocator.

    If the cluster is faster with fewer drives, also print the number of drives with which it is
    fastest.
    """
    given.check()
    request = given.make_request()
    fewer = recruited(request.fleet)
    files = given.write(tune_result(request, fewer))
    if (screen := given.console) is not None:
        print_batches(request, fewer, screen)
    given.list_files(files)


def tune_result(request: Request, fewer: Plan | None) -> dict[str, Any]:
    """Return the result of `ondie stannis tune` as data for JSON.

    ``fewer``: plan with equal step times that has the most samples per second and may use only some
    of the drives; None if there is no such plan.
    """
    rows = [
        {
            "allocator": each.name,
            "samples_per_s": each.samples_per_s,
            "samples": dict(zip(_names(request.fleet), each.samples, strict=True)),
            "micro_batches": dict(zip(_names(request.fleet), each.pieces, strict=True)),
            "exchange_s": each.exchange_s,
            "compute_s": each.compute_s,
            "update_s": each.update_s,
            "total": each.total,
            "risk": each.risk,
            "held_down_by_memory": list(each.limited),
            "chosen": each.name == request.rules.chosen,
        }
        for each in request.allocations.values()
    ]
    result: dict[str, Any] = {
        "workload": request.workload.name,
        "notes": list(request.notes),
        "interference": request.interference,
        "allocations": rows,
        "without_exchange_samples_per_s": _bound(request.fleet),
    }
    if fewer is not None:
        nodes = dict(zip(fewer.names, fewer.counts, strict=True))
        result["fastest"] = {"nodes": nodes, "samples_per_s": fewer.samples_per_s}
    engines = [_benchmark_data(kind.name, kind.loaded) for kind in request.fleet.kinds]
    return result | {"engines": engines}


def print_batches(request: Request, fewer: Plan | None, screen: Console) -> None:
    """Print the tables of batches, allocators and benchmarks, and remarks on memory and fewer
    drives.
    """
    screen.print(_engines(request))
    screen.print()
    screen.print(_allocators(request))
    screen.print()
    screen.print(_benchmarks(request))
    limited = request.allocations["paper"].limited
    if limited:
        screen.print(f"Memory limits the batch of {', '.join(limited)} under the paper's rule.")
    drives = request.fleet.nodes - request.fleet.hosts
    if fewer is not None and sum(fewer.counts) < request.fleet.nodes:
        kept = sum(fewer.counts) - request.fleet.hosts
        screen.print(
            f"A cluster with {kept} of the {drives} drives is faster than one with all drives: "
            f"{fmt_count(fewer.samples_per_s)} samples/s with equal step times. The other drives "
            "add more time to the gradient exchange than they save in computation."
        )


def _names(fleet: Fleet) -> list[str]:
    """Return the names of the kinds of nodes of a cluster."""
    return [kind.name for kind in fleet.kinds]


def _bound(fleet: Fleet) -> float:
    """Return the upper bound of the cluster's speed (samples/s), at which no node waits and no
    gradients are exchanged."""
    return sum(kind.count * kind.loaded.speed(kind.loaded.best) for kind in fleet.kinds)


def _benchmark_data(name: str, engine: Engine) -> dict[str, Any]:
    """Return the speeds measured on one kind of node, and the line fitted to its step times, as
    data for JSON."""
    points = {
        "node": name,
        "batches": [batch for batch, _ in engine.points],
        "samples_per_s": [speed for _, speed in engine.points],
    }
    if not isinstance(engine, Fitted):
        return points
    return points | {
        "start_s": engine.start_s,
        "sample_s": engine.sample_s,
        "error": engine.error,
        "half_batch": engine.half_batch,
        "half_batch_is": half_batch_origin().source,
    }


def _benchmarks(request: Request) -> Table:
    """Return the table of the batches measured on each kind of node, and of the line fitted to the
    step times."""
    table = make_table(
        "Benchmarks of the emulated engines",
        ("node", "batches tried", "highest speed", "fixed time", "per sample", "fit error",
         "half speed at"), left=("node", "batches tried"),
    )  # fmt: skip
    fitted = False
    for kind in request.fleet.kinds:
        engine = kind.loaded
        tried = ", ".join(f"{batch:,}" for batch, _ in engine.points)
        best = f"{fmt_count(engine.speed(engine.best))} samples/s"
        if isinstance(engine, Fitted):
            fitted = True
            table.add_row(
                kind.name, tried, best, seconds(engine.start_s), f"+ {seconds(engine.sample_s)}",
                f"{engine.error:.1%}", f"batch {engine.half_batch:.3g}",
            )  # fmt: skip
        else:
            table.add_row(kind.name, tried, best)
    origin = half_batch_origin()
    table.caption = (
        f"The speed of the best batch is given. The batch with half of that speed is "
        f"{origin.source} ({origin.low:g} to {origin.high:g}): {origin.ref}"
        if fitted
        else "One speed is known for each node; it is used for every batch."
    )
    return table


def _caption(request: Request) -> str | None:
    """Return the notes on the workload and the cluster, one per line; None if there are none."""
    return "\n".join(request.notes) or None


def _engines(request: Request) -> Table:
    """Return the table of the batch, compute time and idle time of each kind of node, with the
    batches that the options select."""
    chosen, fleet = request.chosen, request.fleet
    table = make_table(
        f"{request.workload.name}: {request.words}",
        ("node", "count", "memory limit", "batch", "micro-batches", "compute time", "speed alone",
         "idle"),
    )  # fmt: skip
    table.caption = _caption(request)
    for i, kind in enumerate(fleet.kinds):
        batch, pieces = chosen.samples[i], chosen.pieces[i]
        compute_s = _compute_seconds(kind.loaded, batch, pieces)
        table.add_row(
            kind.name, f"{kind.count:,}", f"{kind.engine.limit:,}" if kind.engine.limit else "",
            f"{batch:,}", str(pieces), seconds(compute_s) if batch else "",
            f"{fmt_count(batch / compute_s)} samples/s" if batch else "",
            f"{1 - compute_s / chosen.compute_s:.0%}" if kind.count else "",
        )  # fmt: skip
    return table


def _compute_seconds(engine: Engine, samples: int, pieces: int) -> float:
    """Return the time (s) to compute ``samples`` in ``pieces`` micro-batches.

    The sizes of the micro-batches differ by at most one sample.
    """
    small, larger = divmod(samples, pieces)
    out = (pieces - larger) * engine.seconds(small) if small else 0.0
    return out + (larger * engine.seconds(small + 1) if larger else 0.0)


def _allocators(request: Request) -> Table:
    """Return the table of all allocators, with the upper bound of the speed, at which no node
    waits for another."""
    table = make_table(
        "Allocators, gradient exchange included",
        ("allocator", "samples/step", "compute", "exchange", "samples/s", "vs. paper", "risk"),
        left=("allocator", "risk"),
    )
    paper = request.allocations["paper"].samples_per_s
    for each in request.allocations.values():
        speed = each.samples_per_s
        table.add_row(
            each.name, f"{each.total:,}", seconds(each.compute_s), seconds(each.exchange_s),
            fmt_count(speed), f"{speed / paper:.3f}x", each.risk,
        )  # fmt: skip
    bound = _bound(request.fleet)
    table.add_row(
        "no waiting", "", "", "", fmt_count(bound), f"{bound / paper:.3f}x", "upper bound"
    )
    return table


# --- plan


def plan(given: PlanOptions) -> None:
    """Run `ondie stannis plan`: divide the samples of an epoch among the nodes."""
    given.check()
    request = given.make_request()
    own = samples_of_nodes(request, given)
    fleet, batches = request.fleet, request.by_node(request.chosen.samples)
    shares = split(batches, own.public, own.private, own.leveling)
    files = given.write(
        {
            "workload": request.workload.name,
            "notes": list(request.notes),
            "steps": float(shares.steps),
            "left": shares.left,
            "nodes": {
                "kind": [fleet.kinds[i].name for i in fleet.kind],
                "batch": batches.tolist(),
                "private": shares.private.tolist(),
                "public": shares.public.tolist(),
                "repeated": shares.repeated.tolist(),
            },
        }
    )
    if (screen := given.console) is not None:
        table = make_table(
            f"{request.workload.name}: epoch of {own.public:,} public and "
            f"{int(own.private.sum()):,} private samples in {float(shares.steps):.1f} steps",
            ("node", "count", "batch", "private", "public", "repeated", "share of epoch"),
        )
        table.caption = _caption(request)
        total = int(shares.samples.sum())
        for kind, nodes in zip(fleet.kinds, fleet.slices, strict=True):
            if kind.count:
                columns = (batches, shares.private, shares.public, shares.repeated)
                table.add_row(
                    kind.name, f"{kind.count:,}", *(format_range(x[nodes]) for x in columns),
                    f"{int(shares.samples[nodes].sum()) / total:.1%}",
                )  # fmt: skip
        screen.print(table)
        if shares.left:
            screen.print(
                f"{shares.left} public samples, fewer than the number of nodes, remain for the "
                "next epoch."
            )
    given.list_files(files)


# --- scale


def scale(given: ScaleOptions) -> None:
    """Run `ondie stannis scale`: compute speed and energy per sample for 0, 1, 2, 4, ... drives.

    The last row has all drives.
    """
    given.check()
    names = [name.strip() for name in given.workload.split(",")]
    if not all(names):
        raise InputError(
            f"{given.workload!r}: a name is empty; separate names by single commas, for "
            "example mobilenetv2,squeezenet"
        )
    if len(given.drives) > 1:
        raise InputError("--drives: scale accepts only one kind of drive; give this option once")
    preset, most = preset_and_count(given.drives[0])
    counts = sorted({0, most, *(1 << i for i in range(most.bit_length()))})
    measured: dict[str, list[tuple[float, float, dict[str, int]]]] = {name: [] for name in names}
    notes: dict[str, tuple[str, ...]] = {}
    for name in names:
        for count in counts:
            drives = (f"{preset}={count}",)
            one = replace(given, workload=name, drives=drives, no_reading=True).make_request()
            notes[name] = one.notes
            speed = one.chosen.samples_per_s
            watts = one.fleet.watts(np.ones(one.fleet.nodes, bool))
            batches = dict(zip(_names(one.fleet), one.chosen.samples, strict=True))
            measured[name].append((speed, watts / speed, batches))
    speedups = {
        name: [row[0] / values[0][0] for row in values] for name, values in measured.items()
    }

    def draw() -> Mapping[str, bytes]:
        from ondie.emu.cli.figures.cluster import over_drives  # matplotlib takes a second to import

        title = f"Host with {preset} drives, {one.words}, {given.allreduce}"
        return over_drives(counts, speedups, title)

    rows = [
        {
            "workload": name,
            "drives": count,
            "samples_per_s": speed,
            "over_host": speed / values[0][0],
            "joules_per_sample": joules,
            "batches": batches,
            "notes": list(notes[name]),
        }
        for name, values in measured.items()
        for count, (speed, joules, batches) in zip(counts, values, strict=True)
    ]
    files = given.write(rows, draw)
    if (screen := given.console) is not None:
        table = make_table(
            f"Samples/s, speedup over the host alone, and energy per sample by number of {preset} "
            "drives", ("drives", *names), left=(),
        )  # fmt: skip
        table.caption = "\n".join(note for each in notes.values() for note in each) or None
        for i, count in enumerate(counts):
            cells = [
                f"{fmt_count(each[i][0])}  {speedups[name][i]:.2f}x  "
                f"{fmt_energy(each[i][1] * 1e15)}"
                for name, each in measured.items()
            ]
            table.add_row(str(count), *cells)
        screen.print(table)
    given.list_files(files)
