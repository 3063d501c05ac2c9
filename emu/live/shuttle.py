"""A bare shuttle: a process that copies packets between two TUN devices in two namespaces.

Owns the process. Does not own the measurements with it (tunnel_bench.py) or the devices.
Source: none. It does the work that any program between two TUN devices has to do, and nothing else;
so a tunnel through NVMe commands is compared with it.
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
"""Numbers of the two ends, as those of a cluster."""


class Shuttle:
    """A shuttle between the first address of ``network``, in the namespace of its process ``pid``,
    and the second one, in the namespace of drive 0 of that process. ``offloads``: packets are
    segments of TCP that are not cut. Leaving the context ends it. Raises InputError if it cannot
    start."""

    def __init__(
        self, way: Way, network: ipaddress.IPv4Network, mtu: int, offloads: bool
    ) -> None:  # fmt: skip
        parent = os.getpid()

        def run(ready: Callable[[], None]) -> None:
            _be_shuttle(way, network, mtu, offloads, parent, ready)

        self.pid = forked.start(run, "shuttle: has ended")

    def __enter__(self) -> Shuttle:
        return self

    def __exit__(self, *error: object) -> None:
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)


def _be_shuttle(
    way: Way, network: ipaddress.IPv4Network, mtu: int, offloads: bool, parent: int,
    ready: Callable[[], None],
) -> None:  # fmt: skip
    """Be the process, until SIGTERM or the end of its parent. Raises InputError."""
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
    """Make both devices. Raises InputError."""
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
    """Copy packets both ways until ``ending`` is readable."""
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
