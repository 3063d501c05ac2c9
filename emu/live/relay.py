"""The host's relay of a cluster in a separate process: its loop and its reports.

Owns the queues to the drives' controllers, and the answers to clients that request the status. Does
not own the routing of packets (host_end.py), or the devices, drives and namespaces, which outlive
this process (cluster.py).
Source: this project.

A separate thread connects to each drive's controller, because a drive may not respond for a long
time. One thread does all other work.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

from ondie.emu.live.admin_queue import VfioAdminQueue
from ondie.emu.live.capture import Capture
from ondie.emu.live.host_end import HostEnd, Port
from ondie.emu.live.inject import TURN_MS, FaultyPort, FaultyQueue, lost_ps
from ondie.emu.live.network_device import Device
from ondie.emu.live.placed_device import INSIDE
from ondie.emu.live.request import Request, Way, device_name, namespace_name
from ondie.emu.nvme.wire import Command, Completion
from ondie.emu.units import InputError

OPEN_S, ANSWER_S = 30.0, 0.5
"""OPEN_S: time in which the tunnels to all drives must open. ANSWER_S: time in which a drive must
report its packet counters. Both in seconds."""
HOLD_MS, ASK_MS = 2, 20
"""HOLD_MS: polling interval of the loop while packets wait for a drive. ASK_MS: polling interval
while a client waits for the status. Both in ms."""


class Place(NamedTuple):
    """Parameters of a cluster that its relay process needs: process IDs, kind of network, and
    number of relay processes started."""

    pid: int
    """Process ID of the process that created the cluster. It is part of the names of network
    devices and namespaces."""
    way: Way
    drives: Sequence[int]
    """Process IDs of the drives' processes, by drive number."""
    starts: int
    """Number of relay processes that this cluster has started, including this one. Every relay
    process except the first one takes over the tunnels that an earlier one has left open."""


class NoQueue:
    """Placeholder for the admin queue (admin_queue.AdminQueue) of a drive while the relay is not
    connected to the drive's controller."""

    def fileno(self) -> int:
        """Return -1, which is not a valid descriptor."""
        return -1

    def submit(self, commands: list[Command]) -> None:
        """Discard the commands."""

    def completions(self) -> list[Completion]:
        """Return an empty list, because no commands are in flight."""
        return []


class Relay:
    """Relay of a cluster: passes IP packets between ``device``, the network device of the host, and
    the tunnels of the drives. :meth:`run` is its loop.

    ``sockets``: sockets that are connected to the drives' controllers. ``control``: listening
    socket for clients that request the status. ``capture``: file that records the packets of the
    device, or None. A drive that does not answer for 10 s while the relay connects to it counts as
    disconnected, and the other drives do not wait for this drive. The first relay of a cluster
    raises InputError in this case (:meth:`await_open`).
    """

    def __init__(
        self, request: Request, place: Place, device: Device, sockets: list[socket.socket],
        control: socket.socket, capture: Capture | None,
    ) -> None:  # fmt: skip
        self.request, self.place = request, place
        self._again = place.starts > 1
        self._control = control
        self._ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._clients: list[tuple[socket.socket, float]] = []
        self._queues: list[VfioAdminQueue] = []
        self._connected: SimpleQueue[tuple[int, socket.socket, VfioAdminQueue | str]]
        self._connected = SimpleQueue()
        """Results of the connecting threads: number of the drive, its socket, and its queue or the
        reason why there is no queue."""
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Event descriptor that is readable when ``_connected`` has a result."""
        self._faulty: list[FaultyPort] = []
        self._poll = select.poll()
        self._by_queue: dict[int, Port] = {}
        self._by_socket: dict[int, Port] = {}
        self._reads = True
        self.host = HostEnd(device, request.address(-1).packed, capture)
        for each in (self._ending, self._news, control, device):
            self._poll.register(each, select.POLLIN)
        for number, near in enumerate(sockets):
            self._add(number, near)

    def _add(self, number: int, near: socket.socket) -> None:
        """Add drive ``number``, whose controller is at the other end of the socket ``near``, and
        start to connect to the controller."""
        self.host.add(Port(NoQueue(), self.request.form, self.request.address(number).packed))
        threading.Thread(target=self._connect, args=(number, near), daemon=True).start()

    def _connect(self, number: int, near: socket.socket) -> None:
        """Connect to the controller of drive ``number``; runs in a separate thread."""
        found: VfioAdminQueue | str
        try:
            found = VfioAdminQueue(near, self.request.form.payload)
        except Exception as error:  # noqa: BLE001 - the drive is given up, whatever it is
            found = str(error) if isinstance(error, InputError) else repr(error)
        self._connected.put((number, near, found))
        os.eventfd_write(self._news, 1)

    def _take_connected(self) -> None:
        """Open the tunnels of the drives to whose controllers this relay has connected. Mark the
        drives whose connection has failed as disconnected."""
        for _ in range(os.eventfd_read(self._news)):
            number, near, found = self._connected.get()
            address = self.request.address(number).packed
            before = self.host.ports[address]
            if isinstance(found, str):
                before.gone = found
                continue
            self._queues.append(found)
            port = self._port(found, number)
            port.counts["dropped"] = before.counts["dropped"]
            del self.host.ports[address]
            self.host.add(port)
            self._by_queue[found.fileno()] = self._by_socket[near.fileno()] = port
            self._poll.register(found, select.POLLIN)
            self._poll.register(near, select.POLLIN)
            if self._clients:
                port.ask()

    def _port(self, queue: VfioAdminQueue, number: int) -> Port:
        """Return the tunnel of drive ``number``. ``queue``: admin queue of the drive's
        controller."""
        request, address = self.request, self.request.address(number).packed
        if request.faults is None:
            return Port(queue, request.form, address, self._again)
        timeout_ps = lost_ps(request.form, request.cost)
        faulty = FaultyQueue(queue, request.faults, number)
        port = FaultyPort(faulty, request.form, address, timeout_ps, self._again)
        self._faulty.append(port)
        return port

    def await_open(self) -> bool:
        """Wait until all tunnels are open. Return False if :meth:`end` was called. Raises
        InputError if a tunnel can no longer be opened, or does not open within OPEN_S."""
        deadline = time.monotonic() + OPEN_S
        while not all(port.open for port in self.host.ports.values()):
            gone = [port.gone for port in self.host.ports.values() if port.gone]
            if gone or time.monotonic() > deadline:
                why = gone[0] if gone else f"a tunnel did not open within {OPEN_S:g} s"
                raise InputError(f"tunnel up: {why}")
            if not self._turn(ASK_MS):
                return False
        return True

    def close(self) -> None:
        """Disconnect from the drives and clients."""
        for queue in self._queues:
            queue.close()
        for client, _ in self._clients:
            client.close()

    def end(self, *_: object) -> None:
        """Make :meth:`run` return. The method can be used as a signal handler."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._ending, 1)

    def run(self) -> None:
        """Transfer IP packets between the host's network device and the drives until :meth:`end` is
        called."""
        while self._turn(None):
            pass

    def _turn(self, wait_ms: int | None) -> bool:
        """Wait for events, at most ``wait_ms``, and handle them. Return False if :meth:`end` was
        called."""
        host = self.host
        if host.device is not None and self._reads == host.holds:
            self._reads = not self._reads
            self._poll.modify(host.device, select.POLLIN if self._reads else 0)
        if not self._reads:
            wait_ms = HOLD_MS
        elif self._clients:
            wait_ms = ASK_MS
        if self._faulty:
            wait_ms = TURN_MS
        for fd, _ in self._poll.poll(wait_ms):
            if fd == self._ending:
                return False
            if fd == self._news:
                self._take_connected()
            elif (port := self._by_queue.get(fd)) is not None:
                host.work(port)
            elif host.device is not None and fd == host.device.fileno():
                host.take()
            elif fd == self._control.fileno():
                self._accept()
            elif (port := self._by_socket.get(fd)) is not None and not port.busy:
                port.gone = port.gone or "the drive has disconnected"
                self._poll.unregister(fd)
        for faulty in self._faulty:
            faulty.tick()
            host.work(faulty)
        self._answer()
        return True

    # --- status

    def _accept(self) -> None:
        """Accept a client that requests the status, and request the counters of all drives."""
        client, _ = self._control.accept()
        client.settimeout(ANSWER_S)
        self._clients.append((client, time.monotonic() + ANSWER_S))
        for port in self.host.ports.values():
            port.ask()

    def _answer(self) -> None:
        """Send the report to the clients if all drives have answered or the time limit has
        passed."""
        if not self._clients:
            return
        silent = [port for port in self.host.ports.values() if not port.answered]
        if silent and time.monotonic() < min(deadline for _, deadline in self._clients):
            return
        text = json.dumps(self.report(silent)).encode()
        for client, _ in self._clients:
            with contextlib.suppress(OSError), client:
                client.sendall(text)
        self._clients.clear()

    def report(self, silent: list[Port]) -> dict[str, Any]:
        """Return the addresses, device names and packet counters of the cluster as a
        JSON-serializable dictionary. ``silent``: ports whose drives have not answered the status
        request."""
        host, request, way = self.host, self.request, self.place.way
        networks = way.device != "relay"
        drives = []
        for number in range(request.drives):
            port = host.ports[request.address(number).packed]
            found: dict[str, int | str] = {
                "address": str(request.address(number)),
                "others": str(request.others(way, number)),
                "namespace": namespace_name(number, self.place.pid) if networks else "",
                "device": INSIDE if networks else "",
                "process": self.place.drives[number],
            }
            report = port.report()
            if port in silent:
                report["state"] = f"{report['state']}, does not answer"
            drives.append(found | report)
        name = device_name(-1, self.place.pid) if networks else ""
        counts = {key: host.counts[key] for key in
                  ("packets_in", "bytes_in", "packets_out", "bytes_out", "dropped")}  # fmt: skip
        return {
            "name": request.name,
            "pid": self.place.pid,
            "relay_process": os.getpid(),
            "relay_starts": self.place.starts,
            "way": str(way),
            "own_user": way.own_user,
            "subnet": str(request.network),
            "mtu": request.form.mtu,
            "payload": request.form.payload,
            "in_flight": request.form.outstanding,
            "inject": "" if request.faults is None else str(request.faults),
            "queues": request.queues,
            "host": {"address": str(request.address(-1)), "others": str(request.others(way, -1)),
                     "device": name, **counts},
            "drives": drives,
        }  # fmt: skip
