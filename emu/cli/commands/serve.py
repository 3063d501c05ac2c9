"""`ondie serve`: serves one drive over sockets until a signal arrives.

Owns the options and the output. Does not own the server (emu/serve).
Source: this project.
"""

from __future__ import annotations

import contextlib
import re
import time

import click

from ondie.emu.cli.click_helpers import WHOLE
from ondie.emu.cli.console import announce_compilation
from ondie.emu.cli.ending import EndOfServing
from ondie.emu.cli.options import drive_options, seed_option
from ondie.emu.config.config import Config, configuration
from ondie.emu.drive import CommandError
from ondie.emu.live.served_end import ServedEnd
from ondie.emu.nand.superblock import DURABILITIES
from ondie.emu.serve.control import report
from ondie.emu.serve.control_words import Result, flat
from ondie.emu.serve.served_states import StatesOptions
from ondie.emu.serve.server import MemoryServer, ServeOptions, Server
from ondie.emu.service import CLOCKS
from ondie.emu.units import InputError

LOOK_S = 0.2
"""Interval at which the main thread checks for signals (s). CPython 3.11 calls no handler for a
signal that arrives while this thread goes to sleep and another thread takes the interpreter
lock."""


def with_options(text: str) -> str:
    """Return the error message ``text`` of the drive. If it starts with the name of an argument of
    the drive, this name is replaced by the option of the command."""
    for argument, option in {"block_bytes": "block", "read_only": "read-only"}.items():
        text = re.sub(rf"^{argument} = True: ", f"--{option}: ", text)
        text = re.sub(rf"^{argument} = ", f"--{option} ", text)
    return re.sub(r"^(durability|store|seed) = '?([^':]*)'?: ", r"--\1 \2: ", text)


@click.command()
@click.option("--nbd", metavar="ADDR",
              help="Serve NBD at unix:PATH or HOST:PORT; port 0 selects a free port.")  # fmt: skip
@click.option("--vfio-user", metavar="SOCK", help="Serve an NVMe PCIe function to a virtual "
                                                  "machine at this Unix socket "
                                                  "(vfio-user).")  # fmt: skip
@click.option("--no-doorbell-buffers", is_flag=True, help="Make the virtual machine write each "
                                                          "doorbell to a register instead of a "
                                                          "shadow doorbell buffer.")  # fmt: skip
@click.option("--nvme-tcp", metavar="ADDR",
              help="Serve NVMe/TCP at HOST:PORT; port 0 selects a free port.")  # fmt: skip
@click.option("--nvme-host", "nvme_hosts", metavar="NQN", multiple=True,
              help="Let only the host with this NQN connect to --nvme-tcp; repeat for several "
                   "hosts.  [default: any]")  # fmt: skip
@click.option("--ctl", metavar="PATH", help="Accept commands of `ondie ctl` at this Unix socket, "
                                            "which is accessible only to the current "
                                            "user.")  # fmt: skip
@drive_options("gen4-tlc", several=False)
@click.option("--store", metavar="DIR", help="Store the pages of the drive in this folder "
                                             "(docs/store.md). Without this option, the contents "
                                             "are lost when the server ends.")  # fmt: skip
@click.option("--durability", type=click.Choice(DURABILITIES),
              help="Make stored data survive the end of the process (process), or make data of a "
                   "completed FLUSH also survive a power loss of the host (host).  [default: that "
                   "of the store; process for a new store]")  # fmt: skip
@click.option("--block", type=WHOLE, metavar="BYTES", help="Use logical blocks of this size.  "
              "[default: the mapping unit]")  # fmt: skip
@click.option("--clock", type=click.Choice(CLOCKS), default="virtual", show_default=True,
              help="Complete commands as fast as possible (virtual), or at their modeled times on "
                   "the wall clock (real).")  # fmt: skip
@click.option("--states", type=WHOLE, metavar="COUNT", help="Store weights and optimizer states "
                                                            "of COUNT parameters on the drive, "
                                                            "and accept computation "
                                                            "commands.")  # fmt: skip
@click.option("--optimizer", metavar="OP", help="Use this optimizer for --states.  [default: adam]")
@click.option("--hyper", multiple=True, metavar="NAME=VALUE",
              help="Set a hyperparameter of --optimizer; repeat for several hyperparameters.  "
                   "[default: lr=0.001 beta1=0.9 beta2=0.999 eps=1e-8 momentum=0.9, others "
                   "0]")  # fmt: skip
@click.option("--weights", metavar="FILE", help="Read the initial weights of --states from this "
              ".npy file (float32).  [default: zeros]")  # fmt: skip
@click.option("--tunnel", metavar="ADDRESS/PREFIX", help="Let hosts and programs of the drive "
                                                         "communicate by TCP/IP. The programs "
                                                         "run in a network namespace in which "
                                                         "the drive has this address "
                                                         "(docs/tunnel.md).")  # fmt: skip
@click.option("--tunnel-pace", metavar="model|none|RATE", help="Limit the rate of --tunnel in each "
                                                               "direction to that of the cost "
                                                               "model (model) or to RATE, or do "
                                                               "not limit it (none).  [default: "
                                                               "model]")  # fmt: skip
@click.option("--read-only", is_flag=True, help="Refuse writes, and leave the store unchanged.")
@click.option("--null", is_flag=True, help="Serve plain memory of the drive's size instead "
              "of the simulated drive, for comparison.")  # fmt: skip
@seed_option("bad blocks and failing operations")
@click.option(
    "--stats",
    is_flag=True,
    help="Print the numbers of requests and the counters when the server ends.",
)
def run_serve(
    nbd: str | None,
    vfio_user: str | None,
    no_doorbell_buffers: bool,
    nvme_tcp: str | None,
    nvme_hosts: tuple[str, ...],
    ctl: str | None,
    device: str,
    settings: tuple[str, ...],
    store: str | None,
    durability: str | None,
    block: int | None,
    clock: str,
    states: int | None,
    optimizer: str | None,
    hyper: tuple[str, ...],
    weights: str | None,
    tunnel: str | None,
    tunnel_pace: str | None,
    read_only: bool,
    null: bool,
    seed: int,
    stats: bool,
) -> None:
    """Serve a drive until SIGINT, SIGTERM or SIGHUP; then flush the drive and close its store.

    When the drive is ready, the command prints the addresses, the name (NQN) of the subsystem that
    NVMe/TCP serves, and the address and the namespace of --tunnel.
    """
    cfg = configuration(device, settings)
    announce_compilation()
    with EndOfServing("the drive was not served") as end, contextlib.ExitStack() as undo:
        served_end = served_end_of(cfg, tunnel, tunnel_pace)
        if served_end is not None:
            undo.enter_context(served_end)
        options = ServeOptions(
            nbd=nbd, vfio_user=vfio_user, doorbell_buffers=not no_doorbell_buffers,
            nvme_tcp=nvme_tcp, nvme_hosts=nvme_hosts, ctl=ctl, store=store,
            durability=durability, block_bytes=block, seed=seed, clock=clock,
            read_only=read_only, states=states_options(states, optimizer, hyper, weights),
            tunnel=None if served_end is None else served_end.tunnel,
        )  # fmt: skip
        kind = MemoryServer if null else Server
        try:
            server = kind(cfg, options, end.ready)
        except InputError as error:
            raise InputError(with_options(str(error))) from error
        for name, address in server.addresses.items():
            click.echo(f"{name} {address}")
        if server.nvme_tcp is not None:
            click.echo(f"subsystem {server.nvme_tcp.subsystem.name}")
        if served_end is not None:
            click.echo(f"tunnel {served_end}")
        while not end.came:
            time.sleep(LOOK_S)
        try:
            server.close()
        except CommandError as error:
            raise InputError(str(error)) from error
    if stats:
        if isinstance(server, MemoryServer):
            found: Result = {"requests": server.served.statistics()}
        else:
            found = report(server.served)
        for name, value in flat(found):
            click.echo(f"{name} {value}".rstrip())


def states_options(
    count: int | None, optimizer: str | None, hyper: tuple[str, ...], weights: str | None
) -> StatesOptions | None:
    """Return the options of the stored weights and optimizer states; None without --states.

    Raises InputError if --optimizer, --hyper or --weights is given without --states.
    """
    if count is None:
        for name, value in {"optimizer": optimizer, "hyper": hyper, "weights": weights}.items():
            if value:
                raise InputError(f"--{name} requires --states COUNT")
        return None
    return StatesOptions(count=count, optimizer=optimizer or "adam", hyper=hyper, weights=weights)


def served_end_of(cfg: Config, address: str | None, pace: str | None) -> ServedEnd | None:
    """Return the drive's end of the tunnel; None without --tunnel. Raises InputError if
    --tunnel-pace is given without --tunnel."""
    if address is None:
        if pace is not None:
            raise InputError("--tunnel-pace requires --tunnel ADDRESS/PREFIX")
        return None
    return ServedEnd(cfg, address, pace or "model")
