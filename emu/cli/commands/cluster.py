"""`ondie stannis tune|plan|simulate`: the arguments.

Owns options and what is refused of them. Does not own what is asked (asked.py), nor any rule.
Source: STANNIS (DAC 2020), HyperTune (HeydariGorji et al.).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ondie.emu.cli.click_helpers import Group, progress_bar
from ondie.emu.cli.console import console


@click.group(cls=Group)
def stannis() -> None:
    """Training spread over hosts and drives: batches, data, and time with interference."""


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What says of which nodes a fleet is."""
    for option in reversed(
        (
            click.argument("workload"),
            click.option(
                "--drives", "drives", multiple=True, metavar="PRESET=N", default=("newport=24",),
                show_default=True, help="Drives of a preset; repeat it for several kinds.",
            ),
            click.option(
                "--hosts", type=int, default=1, show_default=True,
                help="Servers, which share the drives evenly.",
            ),
            click.option(
                "--set", "settings", multiple=True, metavar="KEY=VALUE",
                help="Override a constant of every preset.",
            ),
            click.option(
                "--allreduce", default="ring", show_default=True,
                help="ring, tree, star, or best: the fastest of them.",
            ),
            click.option(
                "--allocator", default="paper", show_default=True,
                help="Whose batches: paper (Algorithm 1), equal (equal times), or best.",
            ),
            click.option("--margin", type=float, help="paper: idle time of the others [0.2]."),
            click.option(
                "--reference", help="paper: who keeps its batch, slowest or influential.",
            ),
            click.option("--host-batch", type=int, help="Of a trace; else its own."),
            click.option(
                "--most-micro-batches", type=int,
                help="best: of a node between two exchanges [4; 64 with --overhead].",
            ),
            click.option(
                "--overhead", type=float, metavar="SHARE",
                help="best: so many steps between exchanges that these take at most that share.",
            ),
            click.option(
                "--method", default="accumulate", show_default=True,
                help="best: accumulate gradients between exchanges, or local steps.",
            ),
            click.option("--most-batch", type=int, help="best: limit of a step's samples."),
            click.option("--json", "json_path", type=click.Path(path_type=Path), help="As JSON."),
            click.option("--quiet", is_flag=True, help="No progress bar and no tables."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What says which samples there are."""
    for option in reversed(
        (
            click.option("--public", type=int, help="Samples for anyone; else the workload's."),
            click.option(
                "--private", metavar="N[,N…]",
                help="Samples that stay with each drive; one number, or one for each drive.",
            ),
            click.option(
                "--levelling", default="public", show_default=True,
                help="Unequal private data: level with public ones, or repeat.",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@stannis.command()
@fleet_options
def tune(quiet: bool, **options: Any) -> None:
    """A batch for every node of a fleet that trains WORKLOAD, a network or a trace."""
    from ondie.emu.cli.commands import cluster_plan as batches
    from ondie.emu.cli.commands import cluster_request as asked

    batches.tune(asked.Asked.of(options), options["json_path"], None if quiet else console())


@stannis.command()
@fleet_options
@data_options
def plan(quiet: bool, **options: Any) -> None:
    """An epoch of WORKLOAD: whose samples are whose, in how many steps."""
    from ondie.emu.cli.commands import cluster_plan as batches
    from ondie.emu.cli.commands import cluster_request as asked

    batches.plan(
        asked.Asked.of(options), asked.samples(options), options["json_path"],
        None if quiet else console(),
    )  # fmt: skip


@stannis.command()
@fleet_options
@data_options
@click.option("--steps", type=int, default=100, show_default=True, help="Steps to simulate.")
@click.option(
    "--load",
    type=click.Path(path_type=Path),
    metavar="CSV",
    help="Cores that others take: seconds,node,cores.",
)
@click.option(
    "--draw-load",
    metavar="SHARE,SECONDS",
    help="Or drawn: share of the time, and mean length of a spell, on every node.",
)
@click.option(
    "--members",
    type=click.Path(path_type=Path),
    metavar="CSV",
    help="Who joins, leaves or dies: seconds,node,event.",
)
@click.option(
    "--hypertune",
    metavar="off|gated|papers",
    default="off",
    show_default=True,
    help="New batches while it runs; papers: an epoch ends for them, as printed otherwise.",
)
@click.option("--batch-rule", default="proportional", show_default=True,
              help="hypertune: proportional, eq3, or eq3-literal.")  # fmt: skip
@click.option("--jitter", type=float, default=0.0, show_default=True,
              help="Deviation of a node's speed from step to step, such as 0.05.")  # fmt: skip
@click.option("--stragglers", type=float, default=0.0, show_default=True,
              help="Share of a node's steps that take twice as long.")  # fmt: skip
@click.option("--no-reading", is_flag=True, help="Samples are in memory already.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all that is drawn.")
@click.option("--figure", type=click.Path(path_type=Path), help="Samples/s over time, PNG or PDF.")
def simulate(quiet: bool, **options: Any) -> None:
    """Train WORKLOAD for some steps in virtual time, beside the same fleet left alone."""
    from ondie.emu.cli.commands import cluster_request as asked
    from ondie.emu.cli.commands import cluster_simulate as trained

    with progress_bar(quiet) as progress:
        trained.simulate(
            asked.Asked.of(options), asked.samples(options), options,
            None if quiet else console(), progress,
        )  # fmt: skip


@stannis.command()
@fleet_options
@click.option("--figure", type=click.Path(path_type=Path), help="Speed over drives, PNG or PDF.")
def scale(quiet: bool, figure: Path | None, **options: Any) -> None:
    """Speed and energy over the number of drives, from none to all of them.

    WORKLOAD may be several, with commas between.
    """
    from ondie.emu.cli.commands import cluster_plan as batches

    batches.scale(options, figure, options["json_path"], None if quiet else console())


@stannis.command("record-load")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT.csv")
@click.option("--seconds", type=float, default=60.0, show_default=True, help="How long.")
@click.option("--every", type=float, default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--node", type=click.IntRange(min=0), default=0, show_default=True,
              help="Whose load it is to be.")  # fmt: skip
def record_load(out: Path, seconds: float, every: float, node: int) -> None:
    """Record how many of this machine's cores are busy, as a load for simulate."""
    from ondie.emu.cli.files import check_target, write_atomically
    from ondie.emu.cluster.load.record import record

    check_target(out)
    load = record(seconds, every, node)
    write_atomically({out: load.text().encode()})
