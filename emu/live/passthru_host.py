"""The host's end of tunnels in a virtual machine: a TUN, and drives behind the driver of Linux.

Owns the checks of `ondie tunnel host`, the loop, and the end of it. Does not own packets and routes
(host_end.py), the way of commands (passthru_queue.py) or the output (emu/cli). Source: none.

This file, and all that it loads, runs with Python's standard library alone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ondie.emu.live.host_end import HostEnd, Port
from ondie.emu.live.network_device import TunDevice, bring_up
from ondie.emu.live.passthru_queue import PassthruQueue
from ondie.emu.nvme.tunnel.framing import LONGEST, OFFLOAD_HEADER, PS_PER_MS, Format
from ondie.emu.units import InputError

DEFAULT_MTU, DEFAULT_PAYLOAD, DEFAULT_IN_FLIGHT, MOST_IN_FLIGHT = 1500, 64 << 10, 4, 12
"""MTU and block in bytes, and commands in flight in each direction, by default and at most: the
driver accepts 30 admin commands of a controller."""
LEAST_MTU = 68
HOLD_MS = 2000
"""Time for which a drive holds a receive command, ms; the end of the program may take this long."""
OPEN_S, ANSWER_S, CLOSE_S = 30.0, 1.0, 5.0
LOOK_MS, ASK_MS = 2, 20
"""Polling intervals of the loop, ms: while packets wait for a drive, and while an answer is
awaited."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class HostRequest:
    """A checked request for a host's end; :meth:`of` makes it."""

    drives: dict[ipaddress.IPv4Address, str]
    """Character device of the controller of each drive, by the drive's address."""
    address: ipaddress.IPv4Interface
    form: Format
    name: str
    """Name of the network device."""
    take_over: bool

    @classmethod
    def of(
        cls, devs: tuple[str, ...], address: str, *, mtu: int = DEFAULT_MTU,
        payload: int = DEFAULT_PAYLOAD, in_flight: int = DEFAULT_IN_FLIGHT, name: str = "tun0",
        take_over: bool = False, gso: bool = False,
    ) -> HostRequest:  # fmt: skip
        """Return the request. ``devs``: DEVICE=ADDRESS of each drive. ``address``: ADDRESS/PREFIX
        of the host. ``mtu``, ``payload``: bytes. ``gso``: segments of TCP are not cut for drives
        that take them so. Raises InputError that names the option."""
        try:
            own = ipaddress.IPv4Interface(address)
        except ValueError as error:
            raise InputError(f"--address {address}: {error}; write 10.78.0.1/24") from error
        ends = (own.network.network_address, own.network.broadcast_address)
        if own.network.prefixlen > 30 or own.ip in ends:
            raise InputError(f"--address {address}: must be an address of a host in a network of "
                             "at least 4 addresses, as 10.78.0.1/24")  # fmt: skip
        drives: dict[ipaddress.IPv4Address, str] = {}
        for each in devs:
            path, equals, text = each.rpartition("=")
            try:
                if not equals:
                    raise ValueError("the address of the drive is missing")
                drive = ipaddress.IPv4Address(text)
            except ValueError as error:
                raise InputError(f"--dev {each}: {error}; write /dev/nvme0=10.78.0.2") from error
            if drive in drives or drive == own.ip:
                raise InputError(f"--dev {each}: two ends of the tunnel have this address")
            if path in drives.values():
                raise InputError(f"--dev {each}: given twice; a drive has one tunnel")
            if drive not in own.network:
                raise InputError(f"--dev {each}: must be an address of {own.network}, the network "
                                 "of --address")  # fmt: skip
            drives[drive] = path
        if not drives:
            raise InputError("--dev: must be given, as /dev/nvme0=10.78.0.2")
        if not LEAST_MTU <= mtu <= LONGEST:
            raise InputError(f"--mtu {mtu}: must be from {LEAST_MTU} to {LONGEST} bytes")
        if gso and mtu > LONGEST - OFFLOAD_HEADER:
            raise InputError(
                f"--mtu {mtu}: must be at most {LONGEST - OFFLOAD_HEADER} bytes with --gso"
            )
        if not 1 <= in_flight <= MOST_IN_FLIGHT:
            raise InputError(f"--in-flight {in_flight}: must be from 1 to {MOST_IN_FLIGHT}, for "
                             "which the driver has room")  # fmt: skip
        try:
            form = Format(payload, in_flight, mtu, True, "hold", HOLD_MS * PS_PER_MS, gso)
        except InputError as error:
            raise InputError(f"--payload {payload}: {error}") from error
        return cls(drives=drives, address=own, form=form, name=name, take_over=take_over)


def open_queue(path: str, payload: int) -> PassthruQueue:
    """Open the queue of a controller behind the driver. Raises InputError."""
    return PassthruQueue(path, payload, end_s=HOLD_MS / 1000 + 1)


class PassthruHost:
    """A host's end with its own TUN. :meth:`run` is its loop, and :meth:`close` ends it. Raises
    InputError, and then leaves nothing."""

    def __init__(self, request: HostRequest) -> None:
        self.request = request
        self._undo = contextlib.ExitStack()
        self._ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._undo.callback(os.close, self._ending)
        with contextlib.ExitStack() as undo:
            undo.callback(self._undo.close)
            device = TunDevice(request.name, request.form.offloads)
            self._undo.callback(device.close)
            self.host = HostEnd(device, request.address.packed)
            self._poll = select.poll()
            self._poll.register(self._ending, select.POLLIN)
            self._poll.register(device, select.POLLIN)
            self._reads = True
            self._by_queue: dict[int, Port] = {}
            for address, path in request.drives.items():
                self._add(address.packed, path)
            self._await(lambda port: port.open, OPEN_S)
            for port, path in zip(self.host.ports.values(), request.drives.values(), strict=True):
                if not port.open:
                    raise InputError(f"--dev {path}: {why_not_open(port, request.form)}")
            # else the kernel cuts segments, which is faster than here
            device.offload(any(port.relay.form.offloads for port in self.host.ports.values()))
            bring_up(request.name, request.address, request.form.mtu)
            undo.pop_all()

    def _add(self, address: bytes, path: str) -> None:
        queue = open_queue(path, self.request.form.payload)
        self._undo.callback(queue.close)
        port = Port(queue, self.request.form, address, self.request.take_over)
        self.host.add(port)
        self._by_queue[queue.fileno()] = port
        self._poll.register(queue, select.POLLIN)

    def end(self, *_: object) -> None:
        """Let :meth:`run` return; a handler of signals."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._ending, 1)

    def run(self) -> None:
        """Let packets pass until :meth:`end` is called, or all drives have gone."""
        while self._turn(None) and not all(port.gone for port in self.host.ports.values()):
            pass

    def close(self) -> dict[str, Any]:
        """Close the tunnels; return the counters."""
        ports = self.host.ports.values()
        for port in ports:
            port.ask()
        self._await(lambda port: port.answered, ANSWER_S)
        counts = self.report()
        for port in ports:
            port.close()
        self._await(lambda port: port.closed, CLOSE_S)
        self._undo.close()
        return counts

    def report(self) -> dict[str, Any]:
        """Return the counters of the device ("host") and of each drive, by its device file."""
        counts, ports = self.host.counts, self.host.ports.values()
        host = {key: counts[key] for key in
                ("packets_in", "bytes_in", "packets_out", "bytes_out", "dropped")}  # fmt: skip
        paths = self.request.drives.values()
        drives = {path: port.report() for path, port in zip(paths, ports, strict=True)}
        return {"host": host, "drives": drives}

    def _await(self, ready: Callable[[Port], bool], seconds: float) -> None:
        """Let packets pass until all ports are ready, or gone, or the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(ready(port) or port.gone for port in self.host.ports.values()):
                return
            self._turn(ASK_MS)

    def _turn(self, wait_ms: int | None) -> bool:
        """Wait for what happens, and handle it; return False after :meth:`end`."""
        host = self.host
        assert host.device is not None
        if self._reads == host.holds:
            self._reads = not self._reads
            self._poll.modify(host.device, select.POLLIN if self._reads else 0)
        going = True
        for fd, _ in self._poll.poll(wait_ms if self._reads else LOOK_MS):
            if fd == self._ending:
                os.eventfd_read(self._ending)
                going = False
            elif (port := self._by_queue.get(fd)) is not None:
                host.work(port)
                if port.gone:
                    self._poll.unregister(fd)
            else:
                host.take()
        return going


def why_not_open(port: Port, form: Format) -> str:
    """Return why the drive has not opened the tunnel."""
    if not port.gone:
        return f"the drive has not opened the tunnel after {OPEN_S:g} s"
    return (
        f"{port.gone}; must be a controller with a tunnel that no other host has open "
        f"(--take-over), and that offers an MTU of {form.mtu}, {form.payload} bytes and "
        f"{form.outstanding} commands in flight"
    )


def serve(request: HostRequest, ready: Callable[[PassthruHost], None]) -> dict[str, Any]:
    """Run a host's end until SIGTERM, SIGINT or SIGHUP, or until all drives have gone; return the
    counters. ``ready``: called when packets may pass. Raises InputError if it cannot start."""
    host = PassthruHost(request)
    before = {each: signal.signal(each, host.end) for each in ENDING}
    try:
        ready(host)
        host.run()
    finally:
        counts = host.close()
        for each, handler in before.items():
            signal.signal(each, handler)
    return counts
