"""Command `ondie tunnel host` without click and NumPy: `python3 -m ondie.emu.live.host_program`.

Owns the options of the host's end in a virtual machine, and its output. Does not own the host's end
(passthru_host.py).
Source: this project.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import NamedTuple

from ondie.emu.live.passthru_host import (
    DEFAULT_IN_FLIGHT,
    DEFAULT_MTU,
    DEFAULT_PAYLOAD,
    HostRequest,
    PassthruHost,
    serve,
)
from ondie.emu.units import InputError, digits


class Size(NamedTuple):
    """Command-line option with an integer value: name, default, placeholder and help text."""

    name: str
    default: int
    metavar: str
    help: str


SIZES = (
    Size("mtu", DEFAULT_MTU, "BYTES", "Set the MTU in bytes; at most the drive's tunnel.mtu."),
    Size(
        "payload",
        DEFAULT_PAYLOAD,
        "BYTES",
        "Set the size of a block in bytes; each command transfers one block.",
    ),
    Size(
        "in-flight",
        DEFAULT_IN_FLIGHT,
        "N",
        "Keep up to N commands in flight per drive in each direction.",
    ),
)
DEV = "Connect the drive with this controller device and IPv4 address; repeat for each drive."
ADDRESS = "Set the address of this host and the prefix length of its network."
NAME = "Use this name for the TUN device."
TAKE_OVER = "Close a tunnel that another host left open."
GSO = "Send TCP segments unsplit to drives that accept unsplit segments."
STATS = "Print the counters as JSON before exiting."


def run(
    devs: tuple[str, ...], address: str, mtu: int, payload: int, in_flight: int, name: str,
    take_over: bool, gso: bool, stats: bool,
) -> None:  # fmt: skip
    """Run a host's end until a signal arrives. Raises InputError if an option is invalid, if the
    host's end cannot start, or if the tunnels of all drives have ended."""
    request = HostRequest.of(
        devs, address, mtu=mtu, payload=payload, in_flight=in_flight, name=name,
        take_over=take_over, gso=gso,
    )  # fmt: skip

    def ready(host: PassthruHost) -> None:
        say(f"host {request.address.ip} {request.name}")
        for each, path in request.drives.items():
            say(f"drive {each} {path}")

    counts = serve(request, ready)
    if stats:
        say(json.dumps(counts, indent=2))
    gone = [f"--dev {path}: {port['state']}" for path, port in counts["drives"].items()
            if port["state"].startswith("ended")]  # fmt: skip
    if len(gone) == len(request.drives):
        raise InputError("; ".join(gone))


def say(text: str) -> None:
    """Print a line and flush standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Parse the command line and run a host's end. After an InputError, print the error to standard
    error and exit with code 2."""
    parser = argparse.ArgumentParser(prog="python3 -m ondie.emu.live.host_program")
    parser.add_argument("--dev", action="append", default=[], metavar="DEVICE=ADDRESS", help=DEV)
    parser.add_argument("--address", required=True, metavar="ADDRESS/PREFIX", help=ADDRESS)
    for size in SIZES:
        parser.add_argument(f"--{size.name}", type=digits, default=size.default,
                            metavar=size.metavar, help=size.help)  # fmt: skip
    parser.add_argument("--name", default="tun0", metavar="NAME", help=NAME)
    parser.add_argument("--take-over", action="store_true", help=TAKE_OVER)
    parser.add_argument("--gso", action="store_true", help=GSO)
    parser.add_argument("--stats", action="store_true", help=STATS)
    found = parser.parse_args()
    try:
        run(tuple(found.dev), found.address, found.mtu, found.payload, found.in_flight, found.name,
            found.take_over, found.gso, found.stats)  # fmt: skip
    except InputError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
