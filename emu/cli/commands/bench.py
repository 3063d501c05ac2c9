"""`ondie bench kernels|engine|service|serve|tunnel|recovery`: the options of measurements here.

Owns the options. Does not own the measurements (kernels/bench, emu/validate/speed,
live/tunnel_bench.py). Source: this project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ondie.emu.cli.click_helpers import Group, WholeRange
from ondie.emu.cli.output import output_options


@click.group(cls=Group)
def bench() -> None:
    """Measure the speed of kernels, the engine, a served drive and a tunnel."""


@bench.command()
@click.option("--size", "sizes", multiple=True, type=WholeRange(min=1), metavar="N",
              help="Number of parameters; repeat for several sizes.")  # fmt: skip
@click.option("--threads", type=WholeRange(min=1), default=1, show_default=True,
              help="Number of threads of each kernel.")  # fmt: skip
@click.option("--op", "ops", multiple=True, default=("adam", "sgd"), show_default=True,
              help="Optimizer operation, or bch or ldpc (ECC); "
                   "separate several by commas.")  # fmt: skip
@click.option("--format", "formats", multiple=True, default=("fp32",), show_default=True,
              help="Number format of the arrays: fp32, fp16, bf16, bf16_all, bf16_stochastic, "
                   "int8_dynamic, int8_linear, or all; repeat for several.")  # fmt: skip
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    default=("flat",),
    show_default=True,
    help="Shape of the arrays: flat, page, tensors, pages, or all; repeat for several.",
)
@output_options("the rows", figure="the roofline", quiet="table")
def kernels(**values: Any) -> None:
    """Compare update kernels with the memory limit and other packages.

    The contenders run in turns, so that they share the conditions of the machine.
    """
    from ondie.emu.cli.commands.bench_run import KernelBenchOptions, kernels_command

    kernels_command(KernelBenchOptions(**values))


@bench.command()
@click.option("--only", multiple=True, metavar="SECTION",
              help="Measure only this section: flash, ftl, ftl-64g, peer, large, memory "
                   "or start; repeat for several.")  # fmt: skip
@click.option("--peer", type=click.Path(path_type=Path), metavar="PROGRAM",
              help="MQSim executable to measure on the same cases.")  # fmt: skip
@click.option("--cases", type=click.Path(path_type=Path), metavar="DIR",
              help="With --peer: folder of the MQSim cases.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Make short runs, whose results are less accurate.")
@output_options("the rows", quiet="table")
def engine(**values: Any) -> None:
    """Measure the flash engine's page operations per second.

    The table compares them with the memory speed of this machine and with MQSim.
    """
    from ondie.emu.cli.commands.bench_run import EngineBenchOptions, engine_command

    engine_command(EngineBenchOptions(**values))


@bench.command()
@click.option("--quick", is_flag=True, help="Make short runs, whose results are less accurate.")
@output_options("the rows", quiet="table")
def service(**values: Any) -> None:
    """Measure the commands per second of a drive that is served in Python (ondie.Service).

    The table compares them with the engine alone, which has the same commands, 256 at a time in a
    closed loop, and no host. With the wall clock as the drive's clock, it says how long a client at
    depth 1 waits beyond the modeled latency.
    """
    from ondie.emu.cli.commands.bench_run import ServiceBenchOptions, service_command

    service_command(ServiceBenchOptions(**values))


@bench.command()
@click.option("--nbdkit", type=click.Path(path_type=Path), metavar="PROGRAM",
              help="nbdkit program to compare with.  "
              "[default: the one on the search path]")  # fmt: skip
@click.option("--quick", is_flag=True, help="Make short runs, whose results are less accurate.")
@output_options("the rows", quiet="table")
def serve(**values: Any) -> None:
    """Measure the requests per second of a drive over NBD and vfio-user.

    The servers run in turns: `ondie serve` with a model of flash, without one, and nbdkit's memory
    plugin, each with 32 random requests in flight over NBD, or 16 over vfio-user. With the wall
    clock, the table says how long a client of NBD at depth 1 waits beyond the modeled latency and
    the same server without a drive.
    """
    from ondie.emu.cli.commands.bench_run import ServeBenchOptions, serve_command

    serve_command(ServeBenchOptions(**values))


@bench.command()
@click.option("--quick", is_flag=True, help="Make short runs, whose results are less accurate.")
@output_options("the rows", quiet="table")
def tunnel(**values: Any) -> None:
    """Measure an unpaced tunnel of `ondie tunnel`, and, for comparison, a bare shuttle.

    The shuttle is a process that copies packets between two TUN devices in two namespaces, and does
    nothing else. A connection of TCP runs through it and through the tunnel in turns, at an MTU of
    1500 and 9000, and with segments that cross uncut (GSO). The table has Gb/s, the share of the
    shuttle's, and CPU time per GB, also by the cost model. It needs /dev/net/tun, and root or a
    user namespace.
    """
    from ondie.emu.cli.commands.bench_run import ServiceBenchOptions, tunnel_command

    tunnel_command(ServiceBenchOptions(**values))


@bench.command()
@click.option("--quick", is_flag=True, help="Recover a tenth of the drive.")
@output_options("the rows", quiet="table")
def recovery(**values: Any) -> None:
    """Measure the recovery of a full drive of 480 GB after a power loss.

    The table has the mapping units per second of this machine, and the simulated time that the
    drive takes, also scaled to a larger drive: by a scan of all pages, and from a checkpoint of
    the mapping table with 1 GiB written since. It takes about 4 GiB of memory.
    """
    from ondie.emu.cli.commands.bench_run import ServiceBenchOptions, recovery_command

    recovery_command(ServiceBenchOptions(**values))
