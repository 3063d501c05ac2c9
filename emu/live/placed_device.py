"""A network device in its place: made, moved into a namespace, named, and with its address.

Owns the steps, through `ip`. Does not own the devices themselves (network_device.py) or the names
of namespaces (namespaces.py). Source: Linux, ip-link(8), ip-address(8).
"""

from __future__ import annotations

import ipaddress

from ondie.emu.live import namespaces
from ondie.emu.live.network_device import Device, TunDevice, VethDevice, without_offloads

INSIDE = "tun0"
"""Name of the device in the namespace of a drive."""


def make_device(
    kind: str, space: str, name: str, final: str, address: ipaddress.IPv4Interface, mtu: int
) -> Device:
    """Make a device of ``kind`` "tun" or "veth", name it ``final`` in namespace ``space`` ("": that
    of this process), and give it its address and mtu (bytes). Raises InputError."""
    device: Device
    up = f"link set dev {final} mtu {mtu}"
    if kind == "tun":
        device = TunDevice(name)
    else:
        peer = f"{name}p"
        namespaces.batch(
            "", f"link add {name} mtu {mtu} type veth peer name {peer} mtu {mtu}",
            f"link set dev {peer} addrgenmode none", f"link set dev {peer} arp off up",
        )  # fmt: skip
        without_offloads(peer)
        device = VethDevice(peer, without_offloads(name))
        up += " arp off"
    if space:
        namespaces.batch("", f"link set dev {name} netns {space}")
        namespaces.batch(space, "link set dev lo up", f"link set dev {name} name {final}")
    given = f"addr add {address.with_prefixlen} dev {final}"
    quiet = f"link set dev {final} addrgenmode none"
    namespaces.batch(space, quiet, f"{up} up", given)
    return device
