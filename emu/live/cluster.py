"""A cluster of emulated drives on this machine: namespaces, devices, drives, and the host's relay.

Owns the creation of a cluster's namespaces and devices, and the start and termination of the
processes of the drives and of the relay. Does not own the request for a cluster (request.py), the
routing of packets (host_end.py), the loop of the relay (relay.py) or the drives (drive_end.py).
Source: this project.

A relay process that terminates is replaced by a new relay process, which takes over the tunnels.
Devices, addresses and drives continue to exist. TCP therefore retransmits the packets that were in
the relay, and connections survive. In a cluster with TCP relays instead of network devices, the
connections are reset.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ondie.emu.live import namespaces
from ondie.emu.live.capture import Capture
from ondie.emu.live.loopback import make_relay, reserve
from ondie.emu.live.namespaces import PR_SET_PDEATHSIG
from ondie.emu.live.network_device import Device
from ondie.emu.live.placed_device import make_device
from ondie.emu.live.relay import Place, Relay
from ondie.emu.live.request import Request, Way, file_of, namespace_name
from ondie.emu.serve.address import Address, Listener
from ondie.emu.units import InputError

END_S = 10.0
"""Intended maximum time for the termination of a cluster, s. A process that does not terminate
within a fifth of this time is killed."""
MOST_FAILURES = 3
"""Number of consecutive failures of the host's relay process after which the cluster terminates. A
relay process fails if it terminates before it has been ready for LIVED_S, unless its exit code is
in KILLS."""
LIVED_S, PAUSE_S = 1.0, 0.25
"""LIVED_S: time for which the host's relay process must be ready so that its termination is not a
failure. PAUSE_S: pause after the first failure, doubled after each further consecutive failure.
Both in seconds."""
KILLS = (0, -signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of the host's relay process that do not count as a failure: 0, and termination by
SIGKILL or SIGTERM."""
PROBE_S = 1.0
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Ending:
    """Request to terminate a cluster. Its descriptor becomes readable when :meth:`set` is called.
    :meth:`set` can be used as a signal handler."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when :meth:`set` is called."""
        return self._event

    def set(self, *_: object) -> None:
        """Request the termination of the cluster."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._event, 1)

    def wait(self, seconds: float = 0.0) -> bool:
        """Wait at most ``seconds`` for a request to terminate the cluster. Return True if there is
        such a request."""
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def close(self) -> None:
        """Close the file descriptor. The object must not be used afterwards."""
        os.close(self._event)
        self._event = -1


class Cluster:
    """Running cluster of `ondie tunnel`: processes of emulated drives, and a relay process that
    passes IP packets between the host and the drives. :meth:`run` operates the cluster, and
    :meth:`close` removes everything that the cluster has created.

    The process must have only one thread, because the constructor forks. ``way``: kind of network
    devices and namespaces. ``ending``: request to terminate the cluster; it also interrupts the
    start. ``begun``: function that is called when the cluster has reserved its name, before
    anything else is created. Raises InputError if the cluster cannot start, or if its termination
    is requested during its start. Nothing is left behind in this case.
    """

    def __init__(
        self, request: Request, way: Way, ending: Ending | None = None,
        begun: Callable[[Cluster], object] | None = None,
    ) -> None:  # fmt: skip
        self.request, self.way, self.pid = request.on(way), way, os.getpid()
        self._undo = contextlib.ExitStack()
        self._ending = Ending() if ending is None else ending
        if ending is None:
            self._undo.callback(self._ending.close)
        self._drives: list[int] = []
        self._feeds: list[socket.socket] = []
        """One socket per drive process; it passes the sockets of the drive's controller to the
        process, one for each relay."""
        self._devices: list[Device] = []
        """Devices of the drives whose processes have not been started."""
        self._relay = self._starts = 0
        """``_relay``: process ID of the relay, or 0 if there is no relay. ``_starts``: number of
        relays started so far."""
        self._opened = 0.0
        """Time when the current relay reported that it is ready, s of the monotonic clock; 0 before
        its report."""
        self._life = -1
        """Read end of a pipe. The relay writes to the pipe when it is ready, or writes the reason
        why it cannot start. The pipe is closed when the relay terminates."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._start(begun)
            undo.pop_all()

    def close(self) -> None:
        """Terminate the relay and the drives, and remove namespaces and devices."""
        self._end_relay()
        for each in (*self._feeds, *self._devices):
            each.close()
        self._feeds.clear()
        self._devices.clear()
        for pid in self._drives:
            end_child(pid)
        self._drives.clear()
        self._undo.close()

    def end(self) -> None:
        """Make :meth:`run` return."""
        self._ending.set()

    # --- start

    def _start(self, begun: Callable[[Cluster], object] | None) -> None:
        place = file_of(self.request.name, "sock")
        try:
            self._control = Listener(Address(path=str(place)), "--name", private=True)
        except InputError as error:
            if not listens(place):
                raise
            raise InputError(
                f"--name {self.request.name}: a cluster with this name is up; end it with `ondie "
                f"tunnel down --name {self.request.name}` ({error})"
            ) from error
        self._undo.callback(self._control.close)
        if begun is not None:
            begun(self)
        if self.way.device != "relay":
            self._enter_networks()
        else:
            held = reserve(self.request.network, self.request.drives)
            self._undo.callback(held.close)
        for number in range(self.request.drives):  # one at a time: each may have many descriptors
            self._devices.append(self._drive_device(number))
            self._fork(number)
        self._host = self._make_device("", -1)
        self._undo.callback(self._host.close)
        self._host_capture = self._capture("host")
        self._check_ending()
        if why := self._start_relay():
            raise InputError(why)
        self._check_ending()

    def _check_ending(self) -> None:
        """Raise InputError if the termination of the cluster has been requested."""
        if self._ending.wait():
            raise InputError(f"--name {self.request.name}: the cluster was ended during its start")

    def _enter_networks(self) -> None:
        """Enter a user namespace if the cluster needs one, remove stale namespaces and devices, and
        check that this host has no routes in the cluster's network. Raises InputError if one of
        these steps fails."""
        if self.way.own_user:
            namespaces.become_root()
        namespaces.sweep()
        namespaces.check_store(self.request.network)
        self._undo.callback(namespaces.sweep, self.pid)

    def _drive_device(self, number: int) -> Device:
        """Create and return the device of drive ``number``. A network device is created in a new
        namespace; a TCP relay has no namespace. Raises InputError if the creation fails, or if the
        termination of the cluster is requested."""
        self._check_ending()
        if self.way.device == "relay":
            return self._make_device("", number)
        space = namespace_name(number, self.pid)
        namespaces.run("netns", "add", space)
        return self._make_device(space, number)

    def _make_device(self, space: str, number: int) -> Device:
        """Create and return the device of drive ``number``, or of the host if ``number`` is -1.
        Raises InputError if the creation fails."""
        request = self.request
        form, queues = request.form, request.queues
        if self.way.device == "relay":
            return make_relay(request.network, request.drives, number, request.ports, form.mtu)
        address = ipaddress.IPv4Interface(f"{request.address(number)}/{request.network.prefixlen}")
        return make_device(self.way.device, space, number, address, form.mtu, form.offloads, queues)

    def _capture(self, name: str) -> Capture | None:
        if self.request.pcap is None:
            return None
        found = Capture(self.request.pcap / f"{name}.pcap")
        self._undo.callback(found.close)
        return found

    def _fork(self, number: int) -> None:
        """Start the process of drive ``number``. The process closes its copies of the cluster's
        sockets, so that it detects when the cluster closes the socket of this drive."""
        # It imports the engine, without which commands that only ask a cluster start in half the
        # time.
        from ondie.emu.live.drive_end import run_drive

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
            self._feeds.append(near)
            return
        code = 1
        try:
            for each in ENDING:
                signal.signal(each, signal.SIG_DFL)
            for other in (near, *self._feeds, *self._devices):
                other.close()
            self._control.socket.close()
            request = self.request
            run_drive(far, request.cfg, device, request.form, request.cost, capture)
            code = 0
        except InputError as error:
            os.write(2, f"drive {number}: {error}\n".encode())
        except BaseException:  # noqa: BLE001 - the fork must not go on in the caller's frames
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    # --- the relay

    def _start_relay(self) -> str:
        """Start a relay, and wait until it is ready. The first relay of a cluster is ready when
        packets can pass; a later relay is ready when it has started. Return the reason if the start
        fails. Return "" if the relay is ready or the termination of the cluster is requested."""
        sockets = [_connect(feed) for feed in self._feeds]
        self._starts += 1
        self._opened = 0.0
        self._life, telling = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._relay = os.fork()
        if self._relay == 0:
            self._be_relay(sockets, telling)
        os.close(telling)
        for each in sockets:
            each.close()
        poll, text = select.poll(), b""
        poll.register(self._life, select.POLLIN)
        poll.register(self._ending, select.POLLIN)
        while not text.endswith(b"\n"):
            if any(fd == self._ending.fileno() for fd, _ in poll.poll()):
                return ""
            if not (part := os.read(self._life, 4096)):
                break
            text += part
        answer = text.decode().rstrip("\n")
        if answer != "open":
            return answer or "tunnel up: the relay has ended during its start"
        self._opened = time.monotonic()
        return ""

    def _be_relay(self, sockets: list[socket.socket], telling: int) -> NoReturn:
        """Run the relay in this process, then exit. The exit code is 1 after an error and 0
        otherwise."""
        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for each in ENDING:  # the cluster decides about the end
                signal.signal(each, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and says so
            for feed in self._feeds:
                feed.close()
            if os.getppid() == self.pid:
                place = Place(self.pid, self.way, self._drives, self._starts)
                relay = Relay(self.request, place, self._host, sockets, self._control.socket,
                              self._host_capture)  # fmt: skip
                signal.signal(signal.SIGTERM, relay.end)
                if self._starts > 1 or relay.await_open():
                    os.write(telling, b"open\n")
                    relay.run()
                relay.close()
            code = 0
        except InputError as error:
            os.write(telling, f"{error}\n".encode())
        except BaseException:  # noqa: BLE001 - the fork must not go on in the caller's frames
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _end_relay(self) -> int:
        """Terminate the relay, if there is one. Return its wait status (see waitpid(2)), or 0 if
        there is no relay."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        if not self._relay:
            return 0
        os.kill(self._relay, signal.SIGTERM)
        status = end_child(self._relay)
        self._relay = 0
        return status

    def run(self) -> None:
        """Operate the cluster until its termination is requested or MOST_FAILURES consecutive
        relays have failed. Start a new relay when a relay has terminated."""
        failures, refused = 0, ""
        while self._wait():
            relay, opened = self._relay, self._opened
            lived = time.monotonic() - opened if opened else 0.0
            code = os.waitstatus_to_exitcode(self._end_relay())
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            failures = 0 if lived >= LIVED_S else failures + (code not in KILLS)
            if failures == MOST_FAILURES:
                say(f"{refused or f'relay {relay} has ended with {why}'}; the cluster ends")
                return
            say(f"relay {relay} has ended with {why}; a new relay is started")
            if failures and self._ending.wait(PAUSE_S * 2 ** (failures - 1)):
                return
            refused = self._start_relay()

    def _wait(self) -> bool:
        """Wait until the relay has terminated. Return False if the termination of the cluster is
        requested."""
        poll = select.poll()
        poll.register(self._life, 0)  # its end is reported anyway
        poll.register(self._ending, select.POLLIN)
        return all(fd != self._ending.fileno() for fd, _ in poll.poll())


def _connect(feed: socket.socket) -> socket.socket:
    """Pass one end of a new socket pair to the process of a drive; return the driver's end."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with far, contextlib.suppress(OSError):  # the drive has gone, as the driver will see
        socket.send_fds(feed, [b"\n"], [far.fileno()], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    return near


def say(text: str) -> None:
    """Print a line to standard error."""
    os.write(2, f"{text}\n".encode())


def end_child(pid: int) -> int:
    """Wait for a process that was requested to terminate. Kill the process if it has not terminated
    after END_S / 5. Return its wait status (see waitpid(2)), or 0 if the status is unknown."""
    deadline = time.monotonic() + END_S / 5
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                return os.waitpid(pid, 0)[1]
            time.sleep(0.005)
    return 0


def listens(place: Path) -> bool:
    """Return True if a cluster listens at ``place``, the socket file for status requests. The
    cluster may not have completed its start."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        return probe.connect_ex(str(place)) in (0, errno.EAGAIN)


def serve(
    request: Request,
    way: Way,
    begun: Callable[[Cluster], object],
    ready: Callable[[Cluster], object],
) -> None:
    """Run a cluster in this process until SIGTERM, SIGINT or SIGHUP, or until MOST_FAILURES
    consecutive relays have failed. ``way``: kind of network devices and namespaces. ``begun``:
    function that is called when the cluster has reserved its name. ``ready``: function that is
    called when IP packets can pass between the host and all drives. Raises InputError if the
    cluster cannot start, or if it is terminated during its start."""
    with contextlib.ExitStack() as undo:
        ending = Ending()
        undo.callback(ending.close)
        for each in ENDING:
            undo.callback(signal.signal, each, signal.signal(each, ending.set))
        cluster = Cluster(request, way, ending, begun)
        undo.callback(cluster.close)
        ready(cluster)
        cluster.run()
