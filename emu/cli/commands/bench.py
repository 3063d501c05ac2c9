"""`ondie bench kernels|engine|service|serve|tunnel|recovery`: the options of the benchmarks.

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
    """Measure the speed of kernels, the engine, served drives, a tunnel and recovery."""


@bench.command()
@click.option("--size", "sizes", multiple=True, type=WholeRange(min=1), metavar="N",
              help="Update this number of parameters; repeat for several sizes.")  # fmt: skip
@click.option("--threads", type=WholeRange(min=1), default=1, show_default=True,
              help="Run each kernel with this number of threads.")  # fmt: skip
@click.option("--op", "ops", multiple=True, default=("adam", "sgd"), show_default=True,
              help="Measure these operations (comma-separated): optimizer operations, or the "
                   "error-correcting codes bch and ldpc.")  # fmt: skip
@click.option("--format", "formats", multiple=True, default=("fp32",), show_default=True,
              help="Use this number format for the arrays: fp32, fp16, bf16, bf16_all, "
                   "bf16_stochastic, int8_dynamic, int8_linear, or all; repeat for "
                   "several formats.")  # fmt: skip
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    default=("flat",),
    show_default=True,
    help="Use arrays of this shape: flat, page, tensors, pages, or all; repeat for several shapes.",
)
@output_options("the rows", figure="the roofline", quiet="table")
def kernels(**values: Any) -> None:
    """Compare the speed of update kernels with the memory bandwidth and with other packages.

    The kernels and packages run alternately, so that all run under the same machine conditions.
    """
    from ondie.emu.cli.commands.bench_run import KernelBenchOptions, kernels_command

    kernels_command(KernelBenchOptions(**values))


@bench.command()
@click.option("--only", multiple=True, metavar="SECTION",
              help="Measure only this section: flash, ftl, ftl-64g, peer, large, memory "
                   "or start; repeat for several sections.")  # fmt: skip
@click.option("--peer", type=click.Path(path_type=Path), metavar="PROGRAM",
              help="Compare the engine with this MQSim executable on the same cases.")  # fmt: skip
@click.option("--cases", type=click.Path(path_type=Path), metavar="DIR",
              help="With --peer: read the MQSim cases from DIR.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Make short runs, whose results are less accurate.")
@output_options("the rows", quiet="table")
def engine(**values: Any) -> None:
    """Measure how many page operations the flash engine simulates per second.

    The table compares the time per operation with the memory access times of this machine. With
    --peer, it also compares the engine with MQSim.
    """
    from ondie.emu.cli.commands.bench_run import EngineBenchOptions, engine_command

    engine_command(EngineBenchOptions(**values))


@bench.command()
@click.option("--quick", is_flag=True, help="Make short runs, whose results are less accurate.")
@output_options("the rows", quiet="table")
def service(**values: Any) -> None:
    """Measure the commands per second of a drive that is served in Python (ondie.Service).

    The table compares this rate with that of the engine alone, which runs the same commands in a
    closed loop of depth 256 without a host. With the wall clock as the drive's clock, the table
    also shows the time for which a client at queue depth 1 waits beyond the modeled latency.
    """
    from ondie.emu.cli.commands.bench_run import ServiceBenchOptions, service_command

    service_command(ServiceBenchOptions(**values))


@bench.command()
@click.option("--nbdkit", type=click.Path(path_type=Path), metavar="PROGRAM",
              help="Compare with this nbdkit executable.  [default: nbdkit on the search "
                   "path]")  # fmt: skip
@click.option("--quick", is_flag=True, help="Make short runs, whose results are less accurate.")
@output_options("the rows", quiet="table")
def serve(**values: Any) -> None:
    """Measure the requests per second of a drive over NBD and vfio-user.

    The measured servers are `ondie serve` with a flash model, `ondie serve` without a flash model,
    and nbdkit's memory plugin; every round measures each of them. Over NBD, 32 random requests are
    in flight; over vfio-user, 16. The table also shows the delay that the wall clock adds to a
    request of an NBD client at queue depth 1: the wait for the server with a flash model, minus the
    modeled latency, minus the wait for the server without a flash model.
    """
    from ondie.emu.cli.commands.bench_run import ServeBenchOptions, serve_command

    serve_command(ServeBenchOptions(**values))


@bench.command()
@click.option("--quick", is_flag=True, help="Make short runs, whose results are less accurate.")
@output_options("the rows", quiet="table")
def tunnel(**values: Any) -> None:
    """Measure the throughput of `ondie tunnel` without pacing, and of a shuttle for comparison.

    The shuttle is a process that only copies packets between two TUN devices in two namespaces. A
    TCP connection runs alternately through the shuttle and through the tunnel: with an MTU of 1500,
    with an MTU of 9000, and with segments of up to 64 KiB that are not cut (GSO). The table shows
    the throughput (Gb/s), its ratio to that of the shuttle, and the CPU time per GB, which is also
    compared with the cost model. The command needs /dev/net/tun, and root or a user namespace.
    """
    from ondie.emu.cli.commands.bench_run import ServiceBenchOptions, tunnel_command

    tunnel_command(ServiceBenchOptions(**values))


@bench.command()
@click.option("--quick", is_flag=True, help="Recover a drive of 48 GB instead of 480 GB.")
@output_options("the rows", quiet="table")
def recovery(**values: Any) -> None:
    """Measure the recovery of a full 480 GB drive after a power loss.

    The table shows how many mapping units this machine recovers per second. It also shows the
    simulated recovery time of the drive, and this time scaled to a drive of 3.84 TB. Recovery
    either scans all pages, or starts from a checkpoint of the mapping table, after which 1 GiB has
    been written. The measurement needs about 4 GiB of memory.
    """
    from ondie.emu.cli.commands.bench_run import ServiceBenchOptions, recovery_command

    recovery_command(ServiceBenchOptions(**values))
