"""Options of the commands `ondie stannis tune|plan|simulate|scale|record-load`.

Owns the options. Does not own the dataclasses that hold their values (cluster_request.py), the
results of the commands (cluster_plan.py, cluster_simulate.py), or any rule (emu/cluster). Source:
STANNIS (DAC 2020), HyperTune (HeydariGorji et al.).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ondie.emu.cli.click_helpers import WHOLE, Group, RenamedOption, WholeRange, progress_bar
from ondie.emu.cli.options import add_options, batch_options, seed_option, settings_option
from ondie.emu.cli.output import output_options


@click.group(cls=Group)
def stannis() -> None:
    """Plan and simulate training on a cluster of hosts and drives."""


fleet_options = add_options(
    click.argument("workload"),
    click.option("--drives", multiple=True, metavar="PRESET=N", default=("newport=24",),
                 show_default=True, help="Use N drives of PRESET; repeat for several presets."),
    click.option("--hosts", type=WHOLE, default=1, show_default=True, metavar="N",
                 help="Use N servers; the drives are divided evenly among the servers."),
    settings_option,
    click.option("--allreduce", default="ring", show_default=True,
                 help="Exchange gradients by this algorithm: ring, tree, star, or best (the "
                      "fastest of these)."),
    batch_options("paper", "tuned", default="tuned",
                  what="Use the published batches (paper), or tune them by --allocator to the "
                       "speeds of the nodes (tuned)."),
    click.option("--allocator", default="paper", show_default=True,
                 help="Tune the batches by this rule: paper (Algorithm 1), equal (equal step "
                      "times), or best (most samples per second)."),
    click.option("--margin", type=float, metavar="FRACTION",
                 help="With --allocator paper, let the step times of the other nodes exceed that "
                      "of the reference node by this fraction.  [default: 0.2]"),
    click.option("--reference", metavar="slowest|influential",
                 help="With --allocator paper, select the reference node, which keeps its best "
                      "batch.  [default: slowest]"),
    click.option("--most-micro-batches", type=WHOLE, metavar="N",
                 help="With --allocator best, process at most N micro-batches per node between two "
                      "gradient exchanges.  [default: 4, or 64 with --overhead]"),
    click.option("--overhead", type=float, metavar="FRACTION",
                 help="With --allocator best, exchange gradients so rarely that the exchanges take "
                      "at most this fraction of the run time."),
    click.option("--method", default="accumulate", show_default=True,
                 help="With --allocator best, accumulate gradients between exchanges (accumulate), "
                      "or take local steps (local)."),
    click.option("--most-batch", type=WHOLE, metavar="N",
                 help="With --allocator best, process at most N samples per step."),
)  # fmt: skip

data_options = add_options(
    click.option("--public", type=WHOLE, metavar="N",
                 help="Use N public samples in total, on which any node can train.  [default: that "
                      "of the workload]"),
    click.option("--private", metavar="N[,N…]",
                 help="Keep this number of private samples on each drive: one number for all "
                      "drives, or one per drive."),
    click.option("--leveling", "--levelling", "leveling", cls=RenamedOption, default="public",
                 show_default=True,
                 help="Balance nodes with unequal private data: add public samples (public) or "
                      "repeat private samples (repeat)."),
)  # fmt: skip


@stannis.command()
@fleet_options
@output_options("the allocations")
def tune(**values: Any) -> None:
    """Choose the batch of every node for the training of WORKLOAD.

    WORKLOAD is a network or a trace.
    """
    from ondie.emu.cli.commands import cluster_plan
    from ondie.emu.cli.commands.cluster_request import TuneOptions

    cluster_plan.tune(TuneOptions(**values))


@stannis.command()
@fleet_options
@data_options
@output_options("the plan")
def plan(**values: Any) -> None:
    """Divide the samples of an epoch of WORKLOAD among the nodes."""
    from ondie.emu.cli.commands import cluster_plan
    from ondie.emu.cli.commands.cluster_request import PlanOptions

    cluster_plan.plan(PlanOptions(**values))


@stannis.command()
@fleet_options
@data_options
@click.option("--steps", type=WHOLE, default=100, show_default=True, metavar="N",
              help="Simulate N steps.")  # fmt: skip
@click.option("--load", type=click.Path(path_type=Path), metavar="CSV",
              help="Read the load (number of cores used by other programs) from this file; its "
                   "columns are seconds,node,cores.")  # fmt: skip
@click.option(
    "--draw-load",
    metavar="FRACTION,SECONDS",
    help="Draw the load of every node at random. FRACTION is the fraction of the time under "
    "load, and SECONDS is the mean duration of a burst.",
)
@click.option("--members", type=click.Path(path_type=Path), metavar="CSV",
              help="Read membership events (join, leave, die) from this file; its columns are "
                   "seconds,node,event.")  # fmt: skip
@click.option("--hypertune", metavar="off|gated|papers", default="off", show_default=True,
              help="Resize batches during the run (gated or papers). With papers, use Eq. 2 of the "
                   "HyperTune paper as printed, and end the epoch at every resize, as in this "
                   "paper.")  # fmt: skip
@click.option(
    "--batch-rule",
    default="proportional",
    show_default=True,
    help="Choose the new batches of --hypertune by this rule: proportional, eq3, or eq3-literal.",
)
@click.option(
    "--jitter",
    type=float,
    default=0.0,
    show_default=True,
    metavar="X",
    help="Vary the step time of each node from step to step. X, for example 0.05, is the standard "
    "deviation of the natural logarithm of the step time.",
)
@click.option("--stragglers", type=float, default=0.0, show_default=True, metavar="FRACTION",
              help="Let this fraction of a node's steps take twice the usual time.")  # fmt: skip
@click.option(
    "--no-reading",
    is_flag=True,
    help="Assume that the samples are in memory, so that no node reads them from a drive.",
)
@seed_option("jitter, stragglers and load")
@output_options("the runs", figure="samples per second over time")
def simulate(**values: Any) -> None:
    """Simulate the training of WORKLOAD with and without interference by other programs."""
    from ondie.emu.cli.commands import cluster_simulate
    from ondie.emu.cli.commands.cluster_request import SimulateOptions

    given = SimulateOptions(**values)
    with progress_bar(given.quiet) as progress:
        cluster_simulate.simulate(given, progress)


@stannis.command()
@fleet_options
@output_options("the rows", figure="speed over the number of drives")
def scale(**values: Any) -> None:
    """Compute training speed and energy with 0, 1, 2, 4, ... and all drives.

    WORKLOAD may be several networks or traces (comma-separated).
    """
    from ondie.emu.cli.commands import cluster_plan
    from ondie.emu.cli.commands.cluster_request import ScaleOptions

    cluster_plan.scale(ScaleOptions(**values))


@stannis.command("record-load")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT.csv")
@click.option("--seconds", type=float, default=60.0, show_default=True, metavar="S",
              help="Record for S seconds.")  # fmt: skip
@click.option("--every", type=float, default=1.0, show_default=True, metavar="S",
              help="Measure the number of busy cores every S seconds.")  # fmt: skip
@click.option("--node", type=WholeRange(min=0), default=0, show_default=True, metavar="N",
              help="Write this node number to the recorded file.")  # fmt: skip
def record_load(out: Path, seconds: float, every: float, node: int) -> None:
    """Record the number of busy cores of this machine as a load for `simulate --load`."""
    from ondie.emu.cluster.load.record import record
    from ondie.emu.files import check_target, write_atomically

    check_target(out)
    load = record(seconds, every, node)
    write_atomically({out: load.text().encode()})
