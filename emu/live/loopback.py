"""Loopback addresses for ends without a network namespace, and the check whether a user can create
network namespaces.

Owns the address of each end, and the reservation of addresses among clusters. Does not own the
relays at these addresses (tcp_relay.py).
Source: Linux, unshare(2), unix(7); RFC 1122, section 3.2.1.3, which reserves 127.0.0.0/8 for
loopback.

Programs at an end listen at the end's address in the cluster's network. The networks after the
cluster's network contain the addresses at which an end reaches the other ends. The first of these
networks is for the host, the second is for drive 0, and so on.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import re
import shutil
import socket
from pathlib import Path

from ondie.emu.live import namespaces
from ondie.emu.live.tcp_relay import TcpRelay
from ondie.emu.serve.handshakes import raise_file_limit
from ondie.emu.units import InputError

WHOLE = ipaddress.IPv4Network("127.0.0.0/8")
HELD = "ondie-tunnel-{}-{}"
"""Format of the name of the abstract Unix socket that reserves a cluster's addresses, with the
first and the last of these addresses."""


def loopback_network(network: ipaddress.IPv4Network, drives: int) -> ipaddress.IPv4Network:
    """Return ``network`` with 127 as the first byte of its address. Raises InputError if the
    networks of the cluster, of the host and of ``drives`` drives do not fit into 127.0.0.0/8."""
    first = int(WHOLE.network_address) + int(network.network_address) % WHOLE.num_addresses
    last = first + (drives + 2) * network.num_addresses - 1
    if network.prefixlen < WHOLE.prefixlen or last > int(WHOLE.broadcast_address):
        raise InputError(
            f"--subnet {network}: {drives + 2} networks of this size must fit between "
            f"{ipaddress.IPv4Address(first)} and {WHOLE.broadcast_address}"
        )
    return ipaddress.IPv4Network((first, network.prefixlen))


def seen_from(network: ipaddress.IPv4Network, number: int) -> ipaddress.IPv4Network:
    """Return the network of the addresses at which programs of drive ``number``, or of the host if
    ``number`` is -1, reach the other ends of the cluster. ``network``: the cluster's network."""
    place = int(network.network_address) + (number + 2) * network.num_addresses
    return ipaddress.IPv4Network((place, network.prefixlen))


def reserve(network: ipaddress.IPv4Network, drives: int) -> socket.socket:
    """Return a socket that reserves the networks of a cluster until the socket is closed. Raises
    InputError if the networks cannot be reserved, for example because a cluster of any user on this
    machine has reserved one of these networks."""
    first, last = network[0], seen_from(network, drives - 1)[-1]
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    mine = HELD.format(first, last)
    with contextlib.ExitStack() as undo:
        undo.callback(held.close)
        taken = ""
        try:
            held.bind(f"\0{mine}")
        except OSError as error:
            taken = f"{first} to {last} ({error.strerror})"
        listed = Path("/proc/net/unix").read_text("utf-8", "replace")
        for name, low, high in re.findall(rf" @({HELD.format('([0-9.]+)', '([0-9.]+)')})$", listed,
                                          re.MULTILINE):  # fmt: skip
            if name != mine and _number(low) <= int(last) and int(first) <= _number(high):
                taken = f"{low} to {high}"
        if taken:
            raise InputError(
                f"--subnet {network}: address in use: another cluster uses {taken}, and this "
                f"cluster needs {first} to {last}; use a network whose addresses no cluster uses"
            )
        undo.pop_all()
    return held


def _number(address: str) -> int:
    """Return an IPv4 address as a number, or -1 if ``address`` is not an IPv4 address."""
    try:
        return int(ipaddress.IPv4Address(address))
    except ValueError:
        return -1


def make_relay(
    network: ipaddress.IPv4Network, drives: int, number: int, ports: tuple[int, ...], mtu: int
) -> TcpRelay:
    """Return the TCP relay of drive ``number``, or of the host if ``number`` is -1. Raises
    InputError if an address or port cannot be used."""
    raise_file_limit()
    seen = seen_from(network, number)
    ends = [end for end in range(-1, drives) if end != number]
    others = {seen[end + 2]: network[end + 2] for end in ends}
    return TcpRelay(network[number + 2], others, ports, mtu)


def why_no_networks(own_user: bool) -> str:
    """Return the reason why a cluster cannot have network namespaces on this machine, or "" if it
    can have them. ``own_user``: True if the cluster needs a user namespace."""
    if shutil.which("ip", path=namespaces.PATH) is None:
        return "ip: not found"
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        why = "the test of network namespaces has failed"
        try:
            why = _try_networks(own_user)
        except Exception as error:  # noqa: BLE001 - the fork must not go on in the caller's frames
            why = f"{why}: {error!r}"
        finally:
            os.write(telling, why.encode())
            os._exit(0)
    os.close(telling)
    with open(told, encoding="utf-8") as file:
        why = " ".join(file.read().split())
    _, status = os.waitpid(pid, 0)
    return why or ("the test of network namespaces was aborted" if status else "")


def _try_networks(own_user: bool) -> str:
    """Enter the namespaces that a cluster needs. Return the reason if this fails, or "" if this
    process is now in the namespaces."""
    if own_user:
        try:
            namespaces.become_root()
        except InputError as error:
            return str(error)
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS):
        return f"cannot create a network namespace: {os.strerror(ctypes.get_errno())}"
    return ""
