"""`ondie stannis tune`, `plan` and `scale`: batches, data of an epoch, speed by number of drives.

Owns their tables, JSON and figure. Does not own fleets and allocations (asked.py) or any rule.
Source: STANNIS (DAC 2020); its Fig. 7 is speed over the number of drives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ondie.emu.analysis.result_json import seconds
from ondie.emu.cli.commands.cluster_request import (
    Asked,
    data,
    preset_and_count,
    ranged,
    recruited,
    write,
)
from ondie.emu.cli.files import check_target, suffix_of, write_atomically
from ondie.emu.cluster.batch_tuner import Engine
from ondie.emu.cluster.cluster import Fleet
from ondie.emu.cluster.data_split import split
from ondie.emu.cluster.networks import half_batch_origin
from ondie.emu.cluster.throughput_benchmark import Fitted
from ondie.emu.units import InputError


def tune(asked: Asked, json_path: Path | None, console: Console | None) -> None:
    """Batches of every kind of node by each allocator, and whether fewer drives would be faster."""
    fewer = recruited(asked)
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
                "risk": a.risk,
                "held_down_by_memory": list(a.limited),
                "chosen": a.name == asked.allocator,
            }
            for a in asked.allocations.values()
        ]
        beside: dict[str, Any] = {"without_exchange_samples_per_s": _bound(asked.fleet)}
        if fewer is not None:
            nodes = dict(zip(fewer.names, fewer.counts, strict=True))
            beside["fastest"] = {"nodes": nodes, "samples_per_s": fewer.samples_per_s}
        beside["engines"] = [_benchmarked(k.name, k.engine) for k in asked.fleet.kinds]
        content = {"workload": asked.workload.name, "notes": list(asked.workload.notes)}
        write(json_path, content | {"allocations": rows} | beside)
    if console is not None:
        console.print(_engines(asked))
        console.print()
        console.print(_allocators(asked))
        console.print()
        console.print(_benchmarks(asked))
        held = asked.allocations["paper"].limited
        if held:
            console.print(f"by the paper's rule, memory holds down the batch of {', '.join(held)}")
        every = asked.fleet.nodes - asked.fleet.hosts
        if fewer is not None and sum(fewer.counts) < asked.fleet.nodes:
            kept = sum(fewer.counts) - asked.fleet.hosts
            console.print(
                f"with {kept} of the {every} drives it is faster, "
                f"{fewer.samples_per_s:.4g} samples/s by equal times: the exchange with more costs "
                f"more than they add"
            )


def _names(fleet: Fleet) -> list[str]:
    return [kind.name for kind in fleet.kinds]


def _bound(fleet: Fleet) -> float:
    """Samples per second if nobody ever waited."""
    return sum(kind.count * kind.engine.speed(kind.engine.best) for kind in fleet.kinds)


def _benchmarked(name: str, engine: Engine) -> dict[str, Any]:
    """What was benchmarked of a kind of node, and what was made of it."""
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


def _benchmarks(asked: Asked) -> Table:
    """Batches tried on every kind of node, and the line through their times."""
    table = Table(
        title="benchmarks of the emulated engines", title_justify="left", title_style="bold",
        caption_justify="left",
    )  # fmt: skip
    for column in ("node", "batches tried", "best", "a step", "a sample", "error", "half speed at"):
        left = column in ("node", "batches tried")
        table.add_column(column, justify="left" if left else "right")
    fitted = False
    for kind in asked.fleet.kinds:
        engine = kind.engine
        tried = ", ".join(f"{batch:,}" for batch, _ in engine.points)
        best = f"{engine.speed(engine.best):.4g} samples/s"
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
        f"the best batch's speed is given; half speed is {origin.source}, at a batch of "
        f"{origin.low:g} to {origin.high:g}: {origin.ref}"
        if fitted
        else "one speed is known of each; taken to be that of every batch"
    )
    return table


def _caption(asked: Asked) -> str | None:
    return "\n".join(asked.workload.notes) or None


def _engines(asked: Asked) -> Table:
    a, fleet = asked.chosen, asked.fleet
    table = Table(
        title=f"{asked.workload.name}: batches by allocator {asked.allocator}",
        title_justify="left", title_style="bold", caption=_caption(asked), caption_justify="left",
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
    private, public, repeated = s.private, s.public, s.repeated
    if json_path is not None:
        kinds = [asked.fleet.kinds[i].name for i in asked.fleet.kind]
        write(
            json_path,
            {
                "workload": asked.workload.name,
                "notes": list(asked.workload.notes),
                "steps": float(s.steps),
                "left": s.left,
                "nodes": {
                    "kind": kinds,
                    "batch": batches.tolist(),
                    "private": private.tolist(),
                    "public": public.tolist(),
                    "repeated": repeated.tolist(),
                },
            },
        )
    if console is None:
        return
    table = Table(
        title=f"{asked.workload.name}: an epoch of {own.public:,} public and "
        f"{int(own.private.sum()):,} private samples in {float(s.steps):.1f} steps",
        title_justify="left", title_style="bold", caption=_caption(asked), caption_justify="left",
    )  # fmt: skip
    for column in ("node", "how many", "batch", "private", "public", "repeated", "of the epoch"):
        table.add_column(column, justify="left" if column == "node" else "right")
    whole = int(s.samples.sum())
    for kind, its in zip(asked.fleet.kinds, asked.fleet.slices, strict=True):
        if kind.count:
            mine = int(s.samples[its].sum())
            table.add_row(
                kind.name, f"{kind.count:,}", ranged(batches[its]), ranged(private[its]),
                ranged(public[its]), ranged(repeated[its]), f"{mine / whole:.1%}",
            )  # fmt: skip
    console.print(table)
    if s.left:
        console.print(f"{s.left} public samples, fewer than nodes, are left to the next epoch")


# --- scale


def scale(
    options: Mapping[str, Any], figure: Path | None, json_path: Path | None, console: Console | None
) -> None:
    """Samples per second and energy per sample with 0, 1, 2, 4, ... drives, and all of them."""
    if figure is not None:
        suffix_of(figure)
        check_target(figure, *([json_path] if json_path is not None else []))
    names = [name.strip() for name in options["workload"].split(",")]
    if not all(names):
        raise InputError(f"{options['workload']!r}: an empty name; mobilenetv2,squeezenet is right")
    (first, *more) = options["drives"]
    if more:
        raise InputError("--drives: scale takes one kind of drive")
    preset, most = preset_and_count(first)
    counts = sorted({0, most, *(1 << i for i in range(most.bit_length()))})
    found: dict[str, list[tuple[float, float]]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    for name in names:
        found[name] = []
        for n in counts:
            given = {**options, "workload": name, "drives": (f"{preset}={n}",), "no_reading": True}
            one = Asked.of({**given, "json_path": None})
            notes[name] = one.workload.notes
            speed = one.chosen.samples_per_s
            there = np.ones(one.fleet.nodes, bool)
            found[name].append((speed, one.fleet.watts(there) / speed))
    speedups = {name: [s / values[0][0] for s, _ in values] for name, values in found.items()}
    files: dict[Path, bytes] = {}
    if figure is not None:
        from ondie.emu.cli.figures.cluster import over_drives  # matplotlib takes a second to import

        title = f"{preset}, allocator {options['allocator']}, {options['allreduce']}"
        files[figure] = over_drives(counts, speedups, title)[suffix_of(figure)]
    if json_path is not None:
        rows = [
            {
                "workload": name,
                "drives": n,
                "samples_per_s": s,
                "over_host": s / values[0][0],
                "joules_per_sample": j,
                "notes": list(notes[name]),
            }
            for name, values in found.items()
            for n, (s, j) in zip(counts, values, strict=True)
        ]
        files[json_path] = (json.dumps(rows, indent=1, allow_nan=False) + "\n").encode()
    write_atomically(files)
    if console is None:
        return
    table = Table(
        title=f"samples/s, over the host alone, and J/sample by drives of {preset}",
        title_justify="left", title_style="bold", caption_justify="left",
        caption="\n".join(note for its in notes.values() for note in its) or None,
    )  # fmt: skip
    table.add_column("drives", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    for i, n in enumerate(counts):
        table.add_row(
            str(n),
            *(
                f"{found[name][i][0]:.4g}  {speedups[name][i]:.2f}x  {found[name][i][1]:.3g} J"
                for name in names
            ),
        )
    console.print(table)
    for file in files:
        console.print(f"written: {file}")
