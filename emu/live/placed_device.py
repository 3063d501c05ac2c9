"""Placement of a network device: its creation, its move into a namespace, its name and its
address.

Owns these steps, which use the program `ip`. Does not own the devices themselves
(network_device.py) or the names of namespaces (namespaces.py).
Source: Linux, ip-link(8), ip-address(8).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os

from ondie.emu.live import namespaces
from ondie.emu.live.network_device import Device, TunDevice, VethDevice, without_offloads
from ondie.emu.live.request import device_name, peer_name
from ondie.emu.units import InputError

INSIDE = "tun0"
"""Name of the network device in the namespace of a drive."""


def make_device(
    kind: str, space: str, number: int, address: ipaddress.IPv4Interface, mtu: int,
    offloads: bool = False, queues: int = 1,
) -> Device:  # fmt: skip
    """Create and return the device of drive ``number``, or of the host if ``number`` is -1, with an
    address and an MTU (bytes). ``kind``: "tun" or "veth". ``space``: namespace into which the
    device is moved under the name INSIDE; with "", the device stays in the namespace of this
    process. ``offloads``, ``queues``: parameters of a TUN device. Raises InputError if a step
    fails."""
    device: Device
    pid = os.getpid()
    name = device_name(number, pid)
    final = INSIDE if space else name
    up = f"link set dev {final} mtu {mtu}"
    if kind == "tun":
        device = TunDevice(name, offloads, queues)
    else:
        peer = peer_name(number, pid)
        namespaces.batch(
            "", f"link add {name} mtu {mtu} type veth peer name {peer} mtu {mtu}",
            f"link set dev {peer} arp off",
        )  # fmt: skip
        _without_ipv6("", peer)
        namespaces.batch("", f"link set dev {peer} up")
        without_offloads(peer)
        device = VethDevice(peer, without_offloads(name))
        up += " arp off"
    if space:
        namespaces.batch("", f"link set dev {name} netns {space}")
        namespaces.batch(space, "link set dev lo up", f"link set dev {name} name {final}")
    given = f"addr add {address.with_prefixlen} dev {final}"
    _without_ipv6(space, final)
    namespaces.batch(space, f"{up} up", given)
    return device


def _without_ipv6(space: str, device: str) -> None:
    """Prevent a device from getting an IPv6 address. Errors are ignored, because a kernel without
    IPv6 refuses the setting."""
    with contextlib.suppress(InputError):
        namespaces.batch(space, f"link set dev {device} addrgenmode none")
