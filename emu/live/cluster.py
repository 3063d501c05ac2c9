"""A cluster of emulated drives on this machine: namespaces, devices, drives, and the host's relay.

Owns the process of the host's relay: what it makes, its loop, and the end of all of it. Does not
own what is asked for (request.py), packets (host_end.py) or the drives (drive_end.py).
Source: none.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from ondie.emu.live import namespaces
from ondie.emu.live.admin_queue import VfioAdminQueue
from ondie.emu.live.capture import Capture
from ondie.emu.live.drive_end import run_drive
from ondie.emu.live.host_end import HostEnd, Port
from ondie.emu.live.inject import TURN_MS, FaultyPort, FaultyQueue, lost_ps
from ondie.emu.live.network_device import Device
from ondie.emu.live.placed_device import INSIDE, make_device
from ondie.emu.live.request import Request, Way, device_name, file_of, namespace_name
from ondie.emu.serve.address import Address, Listener
from ondie.emu.units import InputError

OPEN_S, ANSWER_S, END_S = 30.0, 0.5, 10.0
"""Time in which all tunnels must be open, a drive must say its counters, and end."""
HOLD_MS, ASK_MS = 2, 20
"""Time after which the loop looks again while packets wait for a drive, or a status is awaited."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Cluster:
    """A running cluster; :meth:`run` is its loop, and :meth:`close` removes all of it.

    The process must have one thread, because it forks. ``way``: how. Raises InputError, and then
    leaves nothing.
    """

    def __init__(self, request: Request, way: Way) -> None:
        self.request, self.way, self.pid = request.on(way), way, os.getpid()
        self._undo = contextlib.ExitStack()
        self._ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._undo.callback(os.close, self._ending)
        self._clients: list[tuple[socket.socket, float]] = []
        self._poll = select.poll()
        self._drives: list[int] = []
        self._queues: list[VfioAdminQueue] = []
        self._near: list[socket.socket] = []
        """The host's ends of the sockets of the drives' controllers."""
        self._devices: list[Device] = []
        """Devices of the drives that are not yet started."""
        self._last: tuple[float, float] | None = None
        self._faulty: list[FaultyPort] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._start()
            undo.pop_all()

    def close(self) -> None:
        """End the drives, and remove namespaces and devices."""
        for queue in self._queues:
            queue.close()
        self._queues.clear()
        for client, _ in self._clients:
            client.close()
        self._clients.clear()
        for each in (*self._near, *self._devices):
            each.close()
        self._near.clear()
        self._devices.clear()
        for pid in self._drives:
            end_child(pid)
        self._drives.clear()
        self._undo.close()

    def end(self, *_: object) -> None:
        """Let :meth:`run` return; a handler of signals."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._ending, 1)

    # --- start

    def _start(self) -> None:
        place = file_of(self.request.name, "sock")
        try:
            self._control = Listener(Address(path=str(place)), "--name", private=True)
        except InputError as error:
            raise InputError(
                f"--name {self.request.name}: a cluster of this name is up; `ondie tunnel down "
                f"--name {self.request.name}` ends it ({error})"
            ) from error
        self._undo.callback(self._control.close)
        if self.way.own_user:
            namespaces.become_root()
        namespaces.sweep()
        namespaces.check_free(self.request.network)
        self._undo.callback(namespaces.sweep, self.pid)
        self._devices = [self._drive_device(number) for number in range(self.request.drives)]
        host = self._make_device("", -1)
        self._undo.callback(host.close)
        self.host = HostEnd(host, self.request.address(-1).packed, self._capture("host"))
        for number in range(self.request.drives):
            self._fork(number)
        sockets = self._near
        for number, near in enumerate(sockets):
            queue = VfioAdminQueue(near, self.request.form.payload)
            self._queues.append(queue)
            self.host.add(self._port(queue, number))
        for port, near in zip(self.host.ports.values(), sockets, strict=True):
            self._poll.register(port.queue, select.POLLIN)
            self._poll.register(near, select.POLLIN)
        self._by_queue = {port.queue.fileno(): port for port in self.host.ports.values()}
        self._by_socket = {
            near.fileno(): port
            for near, port in zip(sockets, self.host.ports.values(), strict=True)
        }
        self._poll.register(self._ending, select.POLLIN)
        self._poll.register(self._control.socket, select.POLLIN)
        self._poll.register(host, select.POLLIN)
        self._reads = True
        deadline = time.monotonic() + OPEN_S
        while not all(port.open for port in self.host.ports.values()):
            gone = [port.gone for port in self.host.ports.values() if port.gone]
            if gone or time.monotonic() > deadline:
                why = gone[0] if gone else f"a tunnel is not open after {OPEN_S:g} s"
                raise InputError(f"tunnel up: {why}")
            self._turn(ASK_MS)

    def _port(self, queue: VfioAdminQueue, number: int) -> Port:
        """Return the tunnel of drive ``number``, whose controller is behind ``queue``."""
        request, address = self.request, self.request.address(number).packed
        if request.faults is None:
            return Port(queue, request.form, address)
        faulty = FaultyQueue(queue, request.faults, number)
        port = FaultyPort(faulty, request.form, address, lost_ps(request.form, request.cost))
        self._faulty.append(port)
        return port

    def _drive_device(self, number: int) -> Device:
        """Make the namespace of a drive, and its device there."""
        space = namespace_name(number, self.pid)
        namespaces.run("netns", "add", space)
        return self._make_device(space, number)

    def _make_device(self, space: str, number: int) -> Device:
        """Make the device of drive ``number``, or of the host for -1."""
        address = ipaddress.IPv4Interface(
            f"{self.request.address(number)}/{self.request.network.prefixlen}"
        )
        form, queues = self.request.form, self.request.queues
        return make_device(self.way.device, space, number, address, form.mtu, form.offloads, queues)

    def _capture(self, name: str) -> Capture | None:
        if self.request.pcap is None:
            return None
        found = Capture(self.request.pcap / f"{name}.pcap")
        self._undo.callback(found.close)
        return found

    def _fork(self, number: int) -> None:
        """Start the process of the next drive, and keep the socket of its controller. The process
        has no descriptor of other drives: each sees the end of its own driver."""
        device = self._devices.pop(0)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        capture = self._capture(f"drive{number}")
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            far.close()
            device.close()
            self._drives.append(pid)
            self._near.append(near)
            return
        code = 1
        try:
            for each in ENDING:
                signal.signal(each, signal.SIG_DFL)
            for other in (near, *self._near, *self._devices):
                other.close()
            self._control.socket.close()
            if self.host.device is not None:
                self.host.device.close()
            request = self.request
            run_drive(far, request.cfg, device, request.form, request.cost, capture)
            code = 0
        except InputError as error:
            os.write(2, f"drive {number}: {error}\n".encode())
        except BaseException:  # noqa: BLE001 - the fork must not go on in the caller's frames
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    # --- loop

    def run(self) -> None:
        """Let packets pass until :meth:`end` is called."""
        while self._turn(None):
            pass

    def _turn(self, wait_ms: int | None) -> bool:
        """Wait for what happens, and handle it; return False after :meth:`end`."""
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
            if (port := self._by_queue.get(fd)) is not None:
                host.work(port)
            elif host.device is not None and fd == host.device.fileno():
                host.take()
            elif fd == self._control.socket.fileno():
                self._accept()
            elif (port := self._by_socket.get(fd)) is not None:
                port.gone = port.gone or "the drive has gone"
                self._poll.unregister(fd)
        for faulty in self._faulty:
            faulty.tick()
            host.work(faulty)
        self._answer()
        return True

    # --- status

    def _accept(self) -> None:
        """A client wants the status; ask the drives for theirs."""
        client, _ = self._control.socket.accept()
        client.settimeout(ANSWER_S)
        self._clients.append((client, time.monotonic() + ANSWER_S))
        for port in self.host.ports.values():
            port.ask()

    def _answer(self) -> None:
        """Answer the clients, if all drives have answered or the time is over."""
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
        """Return addresses, names and counters; drives of ``silent`` have not answered."""
        host, request = self.host, self.request
        drives = []
        for number, port in enumerate(host.ports.values()):
            space = namespace_name(number, self.pid)
            found: dict[str, int | str] = {
                "address": str(request.address(number)), "namespace": space, "device": INSIDE,
            }  # fmt: skip
            report = port.report()
            if port in silent:
                report["state"] = f"{report['state']}, does not answer"
            drives.append(found | report)
        name = device_name(-1, self.pid)
        counts = {key: host.counts[key] for key in
                  ("packets_in", "bytes_in", "packets_out", "bytes_out", "dropped")}  # fmt: skip
        return {
            "name": request.name,
            "pid": self.pid,
            "way": str(self.way),
            "own_user": self.way.own_user,
            "subnet": str(request.network),
            "mtu": request.form.mtu,
            "payload": request.form.payload,
            "in_flight": request.form.outstanding,
            "inject": "" if request.faults is None else str(request.faults),
            "queues": request.queues,
            "host": {"address": str(request.address(-1)), "device": name, **counts},
            "drives": drives,
        }  # fmt: skip


def end_child(pid: int) -> None:
    """Await the end of a process whose driver has gone; kill it if it does not end."""
    deadline = time.monotonic() + END_S / 5
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.005)


def serve(request: Request, way: Way, ready: Callable[[Cluster], None]) -> None:
    """Run a cluster in this process until SIGTERM, SIGINT or SIGHUP. ``ready``: called when packets
    may pass. Raises InputError if it cannot start."""
    cluster = Cluster(request, way)
    before = {each: signal.signal(each, cluster.end) for each in ENDING}
    try:
        ready(cluster)
        cluster.run()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        cluster.close()
