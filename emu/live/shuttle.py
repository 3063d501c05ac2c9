"""Shuttle: a process that only copies packets between two TUN devices in two namespaces.

Owns the process. Does not own the measurements that use the process (tunnel_bench.py) or the
devices.
Source: this project. The shuttle does only the work that any program between two TUN devices must
do. It is therefore the reference for a tunnel through NVMe commands.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import select
import signal
from collections.abc import Callable

from ondie.emu.live import forked, namespaces
from ondie.emu.live.host_end import MOST_PACKETS
from ondie.emu.live.namespaces import PR_SET_PDEATHSIG
from ondie.emu.live.network_device import Device
from ondie.emu.live.placed_device import make_device
from ondie.emu.live.request import Way, namespace_name

HOST, DRIVE = -1, 0
"""Numbers of the two ends of the shuttle, as in a cluster: the host and drive 0."""


class Shuttle:
    """Process that copies packets between two TUN devices: the host's end, with the first address
    of ``network``, and the end of drive 0, with the second address and a separate namespace.
    Leaving the context terminates the process ``pid``. ``offloads``: True if packets may be unsplit
    TCP segments. Raises InputError if the shuttle cannot start."""

    def __init__(
        self, way: Way, network: ipaddress.IPv4Network, mtu: int, offloads: bool
    ) -> None:  # fmt: skip
        parent = os.getpid()

        def run(ready: Callable[[], None]) -> None:
            _be_shuttle(way, network, mtu, offloads, parent, ready)

        self.pid = forked.start(run, "shuttle: the process has ended during its start")

    def __enter__(self) -> Shuttle:
        return self

    def __exit__(self, *error: object) -> None:
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)


def _be_shuttle(
    way: Way, network: ipaddress.IPv4Network, mtu: int, offloads: bool, parent: int,
    ready: Callable[[], None],
) -> None:  # fmt: skip
    """Run the shuttle in this process until SIGTERM or the termination of the parent process.
    Raises InputError if the devices cannot be created."""
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    signal.signal(signal.SIGTERM, lambda *_: os.eventfd_write(ending, 1))
    if way.own_user:
        namespaces.become_root()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with contextlib.ExitStack() as undo:
        near, far = _devices(way, network, mtu, offloads, undo)
        ready()
        if os.getppid() == parent:
            _copy(near, far, ending)


def _devices(
    way: Way, network: ipaddress.IPv4Network, mtu: int, offloads: bool, undo: contextlib.ExitStack
) -> tuple[Device, Device]:
    """Create both devices. Raises InputError if this fails."""
    namespaces.sweep()
    namespaces.check_store(network)
    undo.callback(namespaces.sweep, os.getpid())
    space = namespace_name(DRIVE, os.getpid())
    namespaces.run("netns", "add", space)
    found = []
    for number, where in ((HOST, ""), (DRIVE, space)):
        address = ipaddress.IPv4Interface(f"{network[number + 2]}/{network.prefixlen}")
        device = make_device(way.device, where, number, address, mtu, offloads)
        undo.callback(device.close)
        found.append(device)
    near, far = found
    return near, far


def _copy(near: Device, far: Device, ending: int) -> None:
    """Copy packets in both directions until ``ending`` is readable."""
    other = {near.fileno(): (near, far), far.fileno(): (far, near)}
    poll = select.poll()
    for fd in (*other, ending):
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == ending:
                return
            source, target = other[fd]
            for _ in range(MOST_PACKETS):
                if (packet := source.read()) is None:
                    break
                target.write(packet)
