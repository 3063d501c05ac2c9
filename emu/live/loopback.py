"""Addresses on the loopback device for ends without a network of their own, and whether a user can
have networks.

Owns which address stands for which end. Does not own the relays at these addresses (tcp_relay.py).
Source: Linux, unshare(2); RFC 1122, 3.2.1.3: all of 127.0.0.0/8 is loopback.

Programs at an end use its address in the cluster's network to listen. The networks after that one
have the addresses at which they reach other ends: the first one from the host, the next one from
drive 0, and so on.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import shutil

from ondie.emu.live import namespaces
from ondie.emu.live.tcp_relay import TcpRelay
from ondie.emu.units import InputError

WHOLE = ipaddress.IPv4Network("127.0.0.0/8")


def loopback_network(network: ipaddress.IPv4Network, drives: int) -> ipaddress.IPv4Network:
    """Return ``network`` with 127 as the first number of its address. Raises InputError if the
    networks of ``drives`` and the host do not fit behind it."""
    first = int(WHOLE.network_address) + int(network.network_address) % WHOLE.num_addresses
    last = first + (drives + 2) * network.num_addresses - 1
    if network.prefixlen < WHOLE.prefixlen or last > int(WHOLE.broadcast_address):
        raise InputError(
            f"--subnet {network}: {drives + 2} networks of this size must fit from "
            f"{ipaddress.IPv4Address(first)} to {WHOLE.broadcast_address}"
        )
    return ipaddress.IPv4Network((first, network.prefixlen))


def seen_from(network: ipaddress.IPv4Network, number: int) -> ipaddress.IPv4Network:
    """Return the network in which drive ``number``, or the host for -1, reaches the other ends."""
    place = int(network.network_address) + (number + 2) * network.num_addresses
    return ipaddress.IPv4Network((place, network.prefixlen))


def make_relay(
    network: ipaddress.IPv4Network, drives: int, number: int, ports: tuple[int, ...], mtu: int
) -> TcpRelay:
    """Return the relay of drive ``number``, or of the host for -1. Raises InputError for an address
    in use."""
    seen = seen_from(network, number)
    ends = [end for end in range(-1, drives) if end != number]
    others = {seen[end + 2]: network[end + 2] for end in ends}
    return TcpRelay(network[number + 2], others, ports, mtu)


def why_no_networks(own_user: bool) -> str:
    """Return why a cluster cannot have network namespaces here; "": it can. ``own_user``: in a user
    namespace."""
    if shutil.which("ip", path=namespaces.PATH) is None:
        return "ip: not found"
    libc = ctypes.CDLL(None, use_errno=True)
    flags = namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS | own_user * namespaces.CLONE_NEWUSER
    pid = os.fork()
    if pid == 0:
        os._exit(ctypes.get_errno() if libc.unshare(flags) else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    what = "user namespace" if own_user else "network namespace"
    return f"{what}: {os.strerror(code)}" if code else ""
