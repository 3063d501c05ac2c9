"""A cluster of emulated drives on this machine: namespaces, devices, drives, and the host's relay.

Owns the creation of a cluster's namespaces and devices, the processes of drives and relay, and
their end. Does not own the request for a cluster (request.py), packets (host_end.py), the loop of
the relay (relay.py) or the drives (drive_end.py). Source: none.

A relay that ends is started again, and takes over the tunnels. Devices, addresses and drives stay,
so that TCP retransmits the packets that the relay had, and continues; without networks, connections
are reset.
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
"""Time in which all processes of a cluster must end, s; a single process has a fifth of it."""
MOST_FAILURES = 3
"""Number of consecutive relays that fail within LIVED_S after which the cluster ends."""
LIVED_S, PAUSE_S = 1.0, 0.25
"""Time after which a relay counts as started; time before another try, twice as long each time."""
KILLS = (0, -signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a relay that do not count as a failure: its end was requested, or a signal ended
it."""
PROBE_S = 1.0
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Ending:
    """Request to end a cluster, as a descriptor that becomes readable; :meth:`set` may be a signal
    handler."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor, for poll(2)."""
        return self._event

    def set(self, *_: object) -> None:
        """Request the end of the cluster."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._event, 1)

    def wait(self, seconds: float = 0.0) -> bool:
        """Wait for the request to end the cluster, at most ``seconds``; return True if there is
        one."""
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._event)
        self._event = -1


class Cluster:
    """A running cluster; :meth:`run` keeps it up, and :meth:`close` removes all of it.

    The process must have one thread, because it forks. ``way``: kind of network. ``ending``:
    request to end the cluster, also while it starts. ``begun``: called when the cluster has its
    name, and before all else is made. Raises InputError, and then leaves nothing.
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
        """Each takes the sockets of a drive's controller to its process: one for each relay."""
        self._devices: list[Device] = []
        """Devices of the drives that are not yet started."""
        self._relay = self._starts = 0
        """Process of the relay; 0 if there is none. Relays so far."""
        self._opened = 0.0
        """When packets could pass the relay first, s of the monotonic clock; 0: not yet."""
        self._life = -1
        """The relay writes to this pipe when packets may pass; it ends with the relay."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._start(begun)
            undo.pop_all()

    def close(self) -> None:
        """End the relay and the drives, and remove namespaces and devices."""
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
        """Let :meth:`run` return."""
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
                f"--name {self.request.name}: a cluster of this name is up; `ondie tunnel down "
                f"--name {self.request.name}` ends it ({error})"
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
        """Raise InputError if the cluster shall end before it has started."""
        if self._ending.wait():
            raise InputError(f"--name {self.request.name}: the cluster ended during its start")

    def _enter_networks(self) -> None:
        """Have a network in which namespaces and devices can be made. Raises InputError."""
        if self.way.own_user:
            namespaces.become_root()
        namespaces.sweep()
        namespaces.check_store(self.request.network)
        self._undo.callback(namespaces.sweep, self.pid)

    def _drive_device(self, number: int) -> Device:
        """Make the namespace of a drive, and its device there. Raises InputError."""
        self._check_ending()
        if self.way.device == "relay":
            return self._make_device("", number)
        space = namespace_name(number, self.pid)
        namespaces.run("netns", "add", space)
        return self._make_device(space, number)

    def _make_device(self, space: str, number: int) -> Device:
        """Make the device of drive ``number``, or of the host for -1."""
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
        """Start the process of the next drive. The process has no descriptor of other drives: each
        sees the end of its own driver."""
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
        """Start a relay, and wait until packets may pass; return why they may not, "" if they may
        or the cluster shall end."""
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
            return answer or "tunnel up: the relay has ended"
        self._opened = time.monotonic()
        return ""

    def _be_relay(self, sockets: list[socket.socket], telling: int) -> NoReturn:
        """Be the relay. Does not return."""
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
        """End the relay, if there is one; return how it ended, as waitpid(2)."""
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
        """Let packets pass until the end of the cluster is requested; restart a relay that has
        ended."""
        failures, refused = 0, ""
        while self._wait():
            relay, opened = self._relay, self._opened
            lived = time.monotonic() - opened if opened else 0.0
            code = os.waitstatus_to_exitcode(self._end_relay())
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            failures = 0 if lived >= LIVED_S else failures + (code not in KILLS)
            if failures == MOST_FAILURES:
                say(f"{refused or f'relay {relay} has ended with {why} at once'}; the cluster ends")
                return
            say(f"relay {relay} has ended with {why}; another one is started")
            if failures and self._ending.wait(PAUSE_S * 2 ** (failures - 1)):
                return
            refused = self._start_relay()

    def _wait(self) -> bool:
        """Wait until the relay has ended; return False if the cluster shall end."""
        poll = select.poll()
        poll.register(self._life, 0)  # its end is reported anyway
        poll.register(self._ending, select.POLLIN)
        return all(fd != self._ending.fileno() for fd, _ in poll.poll())


def _connect(feed: socket.socket) -> socket.socket:
    """Give a drive the socket of a driver; return the driver's end."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with far, contextlib.suppress(OSError):  # the drive has gone, as the driver will see
        socket.send_fds(feed, [b"\n"], [far.fileno()], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    return near


def say(text: str) -> None:
    """Print a line to standard error."""
    os.write(2, f"{text}\n".encode())


def end_child(pid: int) -> int:
    """Wait for the end of a process that has been asked to end; kill it if it does not. Return how
    it has ended, as waitpid(2); 0 if that is not known."""
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
    """Return True if a cluster, which may still start, has the socket file ``place``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        return probe.connect_ex(str(place)) in (0, errno.EAGAIN)


def serve(
    request: Request,
    way: Way,
    begun: Callable[[Cluster], object],
    ready: Callable[[Cluster], object],
) -> None:
    """Run a cluster in this process until SIGTERM, SIGINT or SIGHUP. ``begun``: called when it has
    its name. ``ready``: called when packets may pass. Raises InputError if it cannot start, or is
    ended before."""
    with contextlib.ExitStack() as undo:
        ending = Ending()
        undo.callback(ending.close)
        for each in ENDING:
            undo.callback(signal.signal, each, signal.signal(each, ending.set))
        cluster = Cluster(request, way, ending, begun)
        undo.callback(cluster.close)
        ready(cluster)
        cluster.run()
