"""`ondie tunnel up|status|exec|down|host`: a cluster of emulated drives on this machine, or the
host's end in a virtual machine.

Owns the options and the output. Does not own the cluster (emu/live). Source: this project.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click

from ondie.emu.cli.click_helpers import WHOLE, Group
from ondie.emu.cli.options import drive_options
from ondie.emu.cli.output import OutputOptions, output_options
from ondie.emu.config.config import configuration
from ondie.emu.live import entry, host_program, processes
from ondie.emu.live.inject import EXAMPLE
from ondie.emu.live.request import DEVICES, Request, Way, way_of
from ondie.emu.units import InputError

name_option = click.option("--name", default="cluster", show_default=True, metavar="NAME",
                           help="Use this name for the cluster.")  # fmt: skip


@click.group(cls=Group)
def tunnel() -> None:
    """Connect programs and emulated drives on this machine by TCP/IP over NVMe commands."""


@tunnel.command()
@name_option
@click.option("--drives", type=WHOLE, default=2, show_default=True, metavar="N",
              help="Start N drives.")  # fmt: skip
@drive_options("newport", several=False)
@click.option("--subnet", default="10.77.0.0/24", show_default=True, metavar="NETWORK",
              help="Use this IPv4 network; the host gets the first address, the drives get the "
                   "next addresses.")  # fmt: skip
@click.option(
    "--mtu",
    type=WHOLE,
    metavar="BYTES",
    help="Set the maximum packet size (MTU).  [default: tunnel.mtu]",
)
@click.option("--payload", type=WHOLE, metavar="BYTES",
              help="Set the maximum size of the block of packets that one command carries.  "
                   "[default: 65536; 262144 with --gso]")  # fmt: skip
@click.option("--in-flight", type=WHOLE, metavar="N",
              help="Keep up to N commands in flight per drive in each direction.  [default: "
                   "8]")  # fmt: skip
@click.option("--pace", default="model", show_default=True, metavar="model|none|RATE",
              help="Limit the rate of each drive and direction to that of the cost model (model) "
                   "or to RATE of TCP data, or do not limit it (none).")  # fmt: skip
@click.option("--gso/--no-gso", default=None,
              help="Let TCP segments of up to 64 KiB cross the tunnel unsplit, regardless of "
                   "the MTU.  [default: on with --pace none, else off]")  # fmt: skip
@click.option("--queues", type=WHOLE, default=1, show_default=True, metavar="N",
              help="Open N queues of each TUN device.")  # fmt: skip
@click.option("--network-device", type=click.Choice(DEVICES), default="auto", show_default=True,
              help="Use network devices of this kind; auto selects tun if TUN devices can be "
                   "used.")  # fmt: skip
@click.option("--port", "ports", type=WHOLE, multiple=True, metavar="PORT",
              help="Relay connections to this port, on which a program listens; only TCP relays "
                   "need this option. Repeat for several ports.")  # fmt: skip
@click.option("--pcap", metavar="DIR", help="Write the packets of each end to a pcap file in DIR.")
@click.option("--inject", metavar="FAULTS",
              help="Drop, repeat and delay tunnel commands and completions, and reset "
                   "controllers, with the probabilities in FAULTS, such as "
                   f"{EXAMPLE}.")  # fmt: skip
@click.option("--foreground", is_flag=True, help="Stay in the foreground until a signal arrives.")
def up(
    name: str, drives: int, device: str, settings: tuple[str, ...], subnet: str, mtu: int | None,
    payload: int | None, in_flight: int | None, pace: str, gso: bool | None, queues: int,
    network_device: str, ports: tuple[int, ...], pcap: str | None, inject: str | None,
    foreground: bool,
) -> None:  # fmt: skip
    """Start drives with one network device each, and the host's network device and relay.

    Each drive has a network namespace with the device tun0. Packets that a program sends to tun0
    cross the tunnel of that drive as NVMe commands of its emulated controller. Packets from one
    drive to another also pass through the relay of the host.
    """
    request = Request.of(
        configuration(device, settings), name=name, drives=drives, subnet=subnet, mtu=mtu,
        payload=payload, in_flight=in_flight, pace=pace, pcap=pcap, gso=gso, queues=queues,
        inject=inject, ports=ports,
    )  # fmt: skip
    way = way_of(network_device)
    request = request.on(way)
    click.echo(f"{name}: {drives} x {device}, {way}")
    if way.device == "relay":
        shown = ", ".join(map(str, request.ports))
        click.echo(
            f"the TCP relays carry only connections to these ports: {shown} (no UDP, no ping)"
        )
    show = functools.partial(_show, request, way)
    if foreground:
        processes.run(request, way, show)
        processes.stop(name)
    else:
        show(processes.start(request, way))


def _show(request: Request, way: Way, pid: int) -> None:
    """Print the addresses of the host and of the drives, and the process number of the cluster."""
    for number in range(-1, request.drives):
        end = "host" if number < 0 else f"drive {number}"
        others = request.others(way, number)
        shown = "" if others == request.network else f", reaches others in {others}"
        click.echo(f"{end} {request.address(number)}{shown}")
    click.echo(f"process {pid}")


def sizes(command: Callable[..., None]) -> Callable[..., None]:
    """Add to ``command`` the options that host_program.SIZES lists."""
    for size in reversed(host_program.SIZES):
        command = click.option(f"--{size.name}", type=WHOLE, default=size.default,
                               show_default=True, metavar=size.metavar,
                               help=size.help)(command)  # fmt: skip
    return command


@tunnel.command()
@click.option("--dev", "devs", multiple=True, metavar="DEVICE=ADDRESS", help=host_program.DEV)
@click.option("--address", required=True, metavar="ADDRESS/PREFIX", help=host_program.ADDRESS)
@sizes
@click.option("--name", default="tun0", show_default=True, metavar="NAME", help=host_program.NAME)
@click.option("--take-over", is_flag=True, help=host_program.TAKE_OVER)
@click.option("--gso", is_flag=True, help=host_program.GSO)
@click.option("--stats", is_flag=True, help=host_program.STATS)
def host(
    devs: tuple[str, ...], address: str, mtu: int, payload: int, in_flight: int, name: str,
    take_over: bool, gso: bool, stats: bool,
) -> None:  # fmt: skip
    """Run the host's end of the tunnels in a virtual machine.

    The command creates a TUN device. Packets for a drive cross its tunnel as commands that the NVMe
    driver of Linux passes through; name the drives with --dev, such as --dev /dev/nvme0=10.78.0.2.
    The command needs root, and runs until a signal arrives.
    """
    host_program.run(devs, address, mtu, payload, in_flight, name, take_over, gso, stats)


@tunnel.command()
@name_option
@output_options("all counters")
def status(name: str, **values: Any) -> None:
    """Print the counters of the network devices, NVMe commands and links of a cluster."""
    given = OutputOptions(**values)
    given.check()
    found = processes.status(name)
    files = given.write(found)
    if (screen := given.console) is not None:
        host = found["host"]
        lines = [
            f"{found['name']}: process {found['pid']}, {found['way']}, MTU {found['mtu']}",
            f"relay {found['relay_process']}, start {found['relay_starts']}",
            f"host {host['address']} {host['device']}: {host['packets_in']} packets out, "
            f"{host['packets_out']} in, {host['dropped']} dropped",
            *_missing(host),
        ]
        for number, drive in enumerate(found["drives"]):
            lines += _lines(number, drive)
        for line in lines:
            screen.print(line, highlight=False, markup=False, soft_wrap=True)
    given.list_files(files)


def _missing(end: dict[str, Any]) -> list[str]:
    """Return a line with the reason why the kernel's counters of ``end`` are missing; an empty list
    if they are present or if the end has no network device."""
    if end["kernel"] or not end["device"]:
        return []
    return [f"  counters of the kernel are missing: {end['kernel_missing']}"]


def _lines(number: int, drive: dict[str, Any]) -> list[str]:
    """Return the lines that `ondie tunnel status` prints for one drive."""
    lines = [
        f"drive {number} {drive['address']} {drive['namespace']}: {drive['state']}",
        f"  to the drive: {drive['packets_down']} packets, {drive['bytes_down']} B; "
        f"{drive['writes']} write commands; link {drive['link_bytes_down']} B",
        f"  to the host: {drive['packets_up']} packets, {drive['bytes_up']} B; "
        f"{drive['receives']} receive commands, {drive['drive_empty']} without a block; "
        f"link {drive['link_bytes_up']} B",
        f"  dropped {drive['dropped']} by the host and {drive['drive_dropped']} by the drive, "
        f"forwarded to drives {drive['forwarded']}, "
        f"repeated {drive['repeated']}, refused {drive['drive_refused']}",
        *_missing(drive),
    ]
    if "resets" in drive:
        injected = [
            f"{what} {drive[f'injected_commands_{what}']} commands and "
            f"{drive[f'injected_completions_{what}']} completions"
            for what in ("lost", "duplicated", "reordered")
        ]
        lines.append(f"  injected: {', '.join(injected)}; {drive['resets']} resets")
    return lines


@tunnel.command("exec", context_settings={"ignore_unknown_options": True})
@name_option
@click.option("--shell", is_flag=True,
              help="Join the words of COMMAND with spaces and run the line with sh, as ssh "
                   "does.")  # fmt: skip
@click.argument("where", metavar="host|NUMBER|ADDRESS")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run_exec(name: str, shell: bool, where: str, command: tuple[str, ...]) -> None:
    """Run COMMAND at an end of the tunnels: the host or a drive.

    If the drive has a network namespace, COMMAND runs in this namespace. COMMAND finds the address
    of its end in the variable ONDIE_TUNNEL_ADDRESS, the name of the network device in
    ONDIE_TUNNEL_DEVICE, and the network of the other ends in ONDIE_TUNNEL_OTHERS. Write -- before a
    COMMAND with options.
    """
    found = processes.status(name)
    words = entry.words_at(found, where, command, shell)
    try:
        os.execvpe(words[0], words, os.environ | entry.variables_at(found, where))
    except OSError as error:
        raise InputError(f"{words[0]}: cannot be executed: {error.strerror}") from error


@tunnel.command()
@name_option
def down(name: str) -> None:
    """Stop a cluster, and remove its namespaces and devices.

    It is not an error if no cluster with this name is running.
    """
    click.echo(f"{name}: {'down' if processes.stop(name) else 'was not running'}")
