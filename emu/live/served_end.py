"""Tunnel of a served drive: a separate network namespace with a device that the drive's programs
use.

Owns the checks of `ondie serve --tunnel`, and the creation and removal of the namespace. Does not
own packets (drive_end.py), the tunnel (serve/tunnel.py) or the server.
Source: this project.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from typing import Self

from ondie.emu.config.config import Config
from ondie.emu.live import namespaces
from ondie.emu.live.drive_end import DriveEnd
from ondie.emu.live.placed_device import make_device
from ondie.emu.live.request import (
    DEFAULT_PAYLOAD,
    GSO_PAYLOAD,
    LEAST_MTU,
    MOST_IN_FLIGHT,
    cost_of,
    namespace_name,
    way_with_networks,
)
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.framing import LONGEST, OFFLOAD_HEADER, Format
from ondie.emu.serve.tunnel import MOST_HOLD_PS, DriveTunnel
from ondie.emu.units import InputError


class ServedEnd:
    """The drive's end of the tunnel between a host and a drive served by this process. Leaving the
    context closes the tunnel.

    ``address``: ADDRESS/PREFIX of the drive. ``pace``: rate of TCP data, "model" for the rate of
    the cost model, or "none" for no limit. A host may request packets of up to tunnel.mtu, blocks
    of up to 64 KiB, and up to 16 commands in flight. The host may also request unsplit TCP segments
    and blocks of up to 256 KiB if ``pace`` is "none", the device is a TUN device, and tunnel.mtu
    leaves room for the offload header. A block is never larger than frontend.max_transfer. Raises
    InputError if the tunnel cannot be created; nothing is left behind in this case.
    """

    def __init__(self, cfg: Config, address: str, pace: str = "model") -> None:
        self.address = interface_of(address)
        model = TunnelCost.of(cfg)
        mtu = model.form.mtu
        if not LEAST_MTU <= mtu <= LONGEST:
            raise InputError(
                f"tunnel.mtu = {mtu}: must be from {LEAST_MTU} to {LONGEST} bytes for --tunnel"
            )
        cost = cost_of(model, pace, mtu, "--tunnel-pace")
        if os.geteuid():
            raise InputError("--tunnel: needs root to create a network namespace; `ondie tunnel "
                             "up` works without root")  # fmt: skip
        way = way_with_networks("auto")
        fits = mtu <= LONGEST - OFFLOAD_HEADER
        offloads = cost is None and way.device == "tun" and fits
        payload = min(GSO_PAYLOAD if offloads else DEFAULT_PAYLOAD, cfg.frontend.max_transfer_bytes)
        form = Format(payload, MOST_IN_FLIGHT, mtu, model.form.concatenate, "hold", MOST_HOLD_PS,
                      offloads)  # fmt: skip
        pid = os.getpid()
        self.namespace = namespace_name(0, pid)
        with contextlib.ExitStack() as undo:
            namespaces.sweep()
            undo.callback(namespaces.sweep, pid)
            namespaces.run("netns", "add", self.namespace)
            device = make_device(way.device, self.namespace, 0, self.address, mtu, offloads)
            undo.callback(device.close)
            end = DriveEnd(device, form, cost)
            undo.callback(end.close)
            self.tunnel: DriveTunnel = end.tunnel
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def __str__(self) -> str:
        return f"{self.address.ip} {self.namespace}"


def interface_of(text: str) -> ipaddress.IPv4Interface:
    """Return the address of a drive with its network. Raises InputError if ``text`` is not a host
    address with a prefix length of at most 30."""
    try:
        found = ipaddress.IPv4Interface(text)
    except ValueError as error:
        raise InputError(f"--tunnel {text}: {error}; use for example 10.78.0.2/24") from error
    network = found.network
    ends = (network.network_address, network.broadcast_address)
    if network.prefixlen > 30 or found.ip in ends:
        raise InputError(f"--tunnel {text}: must be an address of a drive in a network of at least "
                         "4 addresses; use for example 10.78.0.2/24")  # fmt: skip
    return found
