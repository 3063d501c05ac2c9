"""The host's end of tunnels in a virtual machine: a TUN device, and drives behind the NVMe driver
of Linux.

Owns the checks of `ondie tunnel host`, its loop, and its termination. Does not own the routing of
packets (host_end.py), the transport of commands (passthru_queue.py) or the output (emu/cli).
Source: this project.

This module, and every module that it imports, needs only the standard library of Python.
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
"""Default MTU and default size of a block of packets, in bytes; default and maximum number of
commands in flight in each direction. The maximum is low because the driver accepts only 30 admin
commands per controller.
"""
LEAST_MTU = 68
HOLD_MS = 2000
"""Maximum time for which a drive holds a receive command while no packets are available, ms. The
termination of the program may take this long."""
OPEN_S, ANSWER_S, CLOSE_S = 30.0, 1.0, 5.0
LOOK_MS, ASK_MS = 2, 20
"""LOOK_MS: polling interval of the loop while packets wait for a drive. ASK_MS: polling interval
while the loop waits for an answer of a drive. Both in ms."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class HostRequest:
    """Validated parameters of the host's end of IP tunnels in a virtual machine; :meth:`of` creates
    the object."""

    drives: dict[ipaddress.IPv4Address, str]
    """Path of the character device of each drive's NVMe controller, by the IPv4 address of the
    drive."""
    address: ipaddress.IPv4Interface
    form: Format
    name: str
    """Name of the TUN device that is created for the host."""
    take_over: bool

    @classmethod
    def of(
        cls, devs: tuple[str, ...], address: str, *, mtu: int = DEFAULT_MTU,
        payload: int = DEFAULT_PAYLOAD, in_flight: int = DEFAULT_IN_FLIGHT, name: str = "tun0",
        take_over: bool = False, gso: bool = False,
    ) -> HostRequest:  # fmt: skip
        """Return the validated request. ``devs``: DEVICE=ADDRESS of each drive. ``address``:
        ADDRESS/PREFIX of the host. ``mtu``, ``payload``: bytes. ``in_flight``: number of commands.
        ``gso``: True to leave TCP segments unsplit for drives that accept unsplit segments. Raises
        InputError, with the name of the option, for an invalid value."""
        try:
            own = ipaddress.IPv4Interface(address)
        except ValueError as error:
            raise InputError(
                f"--address {address}: {error}; use for example 10.78.0.1/24"
            ) from error
        ends = (own.network.network_address, own.network.broadcast_address)
        if own.network.prefixlen > 30 or own.ip in ends:
            raise InputError(f"--address {address}: must be an address of a host in a network of "
                             "at least 4 addresses; use for example 10.78.0.1/24")  # fmt: skip
        drives: dict[ipaddress.IPv4Address, str] = {}
        for each in devs:
            path, equals, text = each.rpartition("=")
            try:
                if not equals:
                    raise ValueError("must be DEVICE=ADDRESS")
                drive = ipaddress.IPv4Address(text)
            except ValueError as error:
                raise InputError(
                    f"--dev {each}: {error}; use for example /dev/nvme0=10.78.0.2"
                ) from error
            if drive in drives or drive == own.ip:
                raise InputError(f"--dev {each}: two ends of the tunnel have this address; give "
                                 "each end a different address")  # fmt: skip
            if path in drives.values():
                raise InputError(
                    f"--dev {each}: given twice, but a drive has only one tunnel; "
                    "give each controller once"
                )
            if drive not in own.network:
                raise InputError(f"--dev {each}: must be an address of {own.network}, the network "
                                 "of --address")  # fmt: skip
            drives[drive] = path
        if not drives:
            raise InputError(
                "--dev: missing; give it for each drive, for example --dev /dev/nvme0=10.78.0.2"
            )
        if not LEAST_MTU <= mtu <= LONGEST:
            raise InputError(f"--mtu {mtu}: must be from {LEAST_MTU} to {LONGEST} bytes")
        if gso and mtu > LONGEST - OFFLOAD_HEADER:
            raise InputError(
                f"--mtu {mtu}: must be at most {LONGEST - OFFLOAD_HEADER} bytes with --gso"
            )
        if not 1 <= in_flight <= MOST_IN_FLIGHT:
            raise InputError(f"--in-flight {in_flight}: must be from 1 to {MOST_IN_FLIGHT}; "
                             "the NVMe driver accepts no more commands")  # fmt: skip
        try:
            form = Format(payload, in_flight, mtu, True, "hold", HOLD_MS * PS_PER_MS, gso)
        except InputError as error:
            raise InputError(f"--payload {payload}: {error}") from error
        return cls(drives=drives, address=own, form=form, name=name, take_over=take_over)


def open_queue(path: str, payload: int) -> PassthruQueue:
    """Return the queue of the controller with the device file ``path``. Raises InputError if the
    file cannot be opened or is not a character device."""
    return PassthruQueue(path, payload, end_s=HOLD_MS / 1000 + 1)


class PassthruHost:
    """Host's end of IP tunnels in a virtual machine, with a new TUN device. :meth:`run` is its
    loop, and :meth:`close` terminates it. Raises InputError if the device cannot be created or a
    tunnel does not open; nothing is left behind in this case."""

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
        """Make :meth:`run` return. The method can be used as a signal handler."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._ending, 1)

    def run(self) -> None:
        """Transfer IP packets between the TUN device and the drives until :meth:`end` is called or
        all drives have disconnected."""
        while self._turn(None) and not all(port.gone for port in self.host.ports.values()):
            pass

    def close(self) -> dict[str, Any]:
        """Close the tunnels and the device; return the counters (:meth:`report`)."""
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
        """Return the packet counters of the TUN device ("host") and of each drive ("drives", by the
        path of the drive's character device)."""
        counts, ports = self.host.counts, self.host.ports.values()
        host = {key: counts[key] for key in
                ("packets_in", "bytes_in", "packets_out", "bytes_out", "dropped")}  # fmt: skip
        paths = self.request.drives.values()
        drives = {path: port.report() for path, port in zip(paths, ports, strict=True)}
        return {"host": host, "drives": drives}

    def _await(self, ready: Callable[[Port], bool], seconds: float) -> None:
        """Transfer packets until ``ready`` returns True for every port whose tunnel can still
        transfer packets, or until ``seconds`` have passed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(ready(port) or port.gone for port in self.host.ports.values()):
                return
            self._turn(ASK_MS)

    def _turn(self, wait_ms: int | None) -> bool:
        """Wait for events, at most ``wait_ms``, and handle them. Return False if :meth:`end` was
        called."""
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
    """Return the reason why a drive has not opened the tunnel. ``form``: parameters that the host
    has requested."""
    if not port.gone:
        return f"the drive did not open the tunnel within {OPEN_S:g} s"
    return (
        f"{port.gone}; the controller must have a tunnel that no other host has open (or use "
        f"--take-over), and allow an MTU of {form.mtu} bytes, blocks of {form.payload} bytes and "
        f"{form.outstanding} commands in flight"
    )


def serve(request: HostRequest, ready: Callable[[PassthruHost], None]) -> dict[str, Any]:
    """Run a host's end until SIGTERM, SIGINT or SIGHUP, or until all drives have disconnected.
    Return the counters. ``ready``: function that is called when packets can pass. Raises InputError
    if the host's end cannot start."""
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
