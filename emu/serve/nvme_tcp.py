"""NVMe/TCP target: the served drive as an NVM subsystem over TCP, and its discovery service.

Owns the associations and sessions of all hosts, the Keep Alive timeouts, and the order in which
connections are closed. Does not own sockets before the Connect command (handshakes.py), the
commands of a connection (nvme_tcp_session.py), the rules of admission (controller/fabrics.py) or
the drive (nvme_drive.py).
Source: NVM Express TCP Transport Specification 1.0; NVM Express Base Specification 2.0, sections
3.3.1 (associations), 3.9 (keep alive) and 3.1.2.3 (discovery controller).
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Collection

from ondie.emu.controller.admin import Controller
from ondie.emu.controller.discovery import DiscoveryController, Port
from ondie.emu.controller.fabrics import (
    Association,
    Connect,
    ConnectRefused,
    FabricsCode,
    Subsystem,
)
from ondie.emu.controller.registers import State
from ondie.emu.controller.tunnel import Ended
from ondie.emu.nvme.wire import Cqe
from ondie.emu.serve.address import Listener
from ondie.emu.serve.handshakes import MOST_SESSIONS, Handshakes
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.nvme_tcp_handshake import Handshake
from ondie.emu.serve.nvme_tcp_session import Session
from ondie.emu.serve.nvme_tcp_wire import Framing

CAPSULE_BYTES = 64 + Framing().most_capsule
"""Size of a command capsule, bytes: a submission queue entry and in-capsule data."""


class NvmeTcpServer:
    """NVMe/TCP server of ``drive``. It accepts hosts at ``listener`` until :meth:`close`.
    ``hosts``: NQNs of the hosts that may connect, or None to admit any host. ``listeners``: number
    of Handshakes objects in this process."""

    def __init__(
        self,
        drive: NvmeDrive,
        listener: Listener,
        hosts: Collection[str] | None = None,
        listeners: int = 1,
    ) -> None:
        self.drive = drive
        self.expired = 0
        """Number of associations that ended because their Keep Alive timer expired."""
        name = drive.capabilities.subsystem_name
        of_pcie = (drive.capabilities.controller_id,)
        self.subsystem = Subsystem(name, hosts, self._make, self._make_discovery, of_pcie)
        self._sessions: dict[Association, dict[int, tuple[Session, threading.Event]]] = {}
        """(Session, event that is set at the end of the session) of each connected queue, by
        association and queue identifier."""
        self._seen: dict[Association, float] = {}
        """Time of the last restart of the Keep Alive timer of each association, s
        (time.monotonic)."""
        self._lock = threading.RLock()
        """Lock of ``subsystem``, ``_sessions`` and ``_seen``. A thread that needs this lock and
        the lock of the drive acquires this lock first."""
        self.handshakes = Handshakes(
            listener, self._handshake, self._run, "ondie nvme-tcp", self._tick, listeners
        )

    @property
    def listener(self) -> Listener:
        return self.handshakes.listener

    def close(self) -> None:
        """Complete the commands that have arrived, disconnect all hosts, and stop the threads."""
        self.handshakes.close()

    # --- associations

    def _make(self, cntlid: int) -> Controller:
        """Return a new controller of the drive with identifier ``cntlid``."""

        def admin_sessions() -> list[Session]:
            with self._lock:
                return [
                    queues[0][0]
                    for each, queues in self._sessions.items()
                    if each.cntlid == cntlid and 0 in queues
                ]

        def post(entries: tuple[Cqe, ...]) -> None:
            for session in admin_sessions():
                session.post(entries)

        def deliver(ended: Ended) -> None:
            for session in admin_sessions():
                session.deliver(ended)

        return self.drive.controller(
            post,
            deliver,
            controller_id=cntlid,
            several_controllers=True,
            capsule_bytes=CAPSULE_BYTES,
        )

    def _make_discovery(self, cntlid: int, port: Port) -> DiscoveryController:
        offered = dataclasses.replace(
            self.drive.capabilities, controller_id=cntlid, capsule_bytes=CAPSULE_BYTES
        )
        return DiscoveryController(offered, port)

    def _handshake(self, sock: socket.socket) -> Handshake:
        """Return the handshake for the new connection ``sock``."""
        address, service = sock.getsockname()[:2]
        port = Port(address, service, self.subsystem.name)

        def admit(asked: Connect) -> Association:
            with self._lock:
                if sum(len(each.queues) for each in self.subsystem.associations) >= MOST_SESSIONS:
                    raise ConnectRefused(FabricsCode.CONTROLLER_BUSY)
                found = self.subsystem.connect(asked, port)
                self._sessions.setdefault(found, {})
                self._seen[found] = time.monotonic()
                return found

        return Handshake(admit, self._leave)

    def _leave(self, association: Association, qid: int) -> None:
        """Remove the disconnected queue ``qid`` from its association. If it is the admin queue (0),
        end the association."""
        with self._lock:
            self.subsystem.disconnect(association, qid)
            if qid:
                return
            queues = self._sessions.pop(association, {})
            self._seen.pop(association, None)
        end_all(list(queues.values()))
        if isinstance(association.controller, Controller):
            self.drive.remove(association.controller)

    def _run(self, sock: socket.socket, shake: Handshake) -> None:
        """Run the session of a connected queue in the thread of its connection."""
        association, qid = shake.association, shake.connect.qid
        try:
            session, ended = Session(sock, shake, self), threading.Event()
        except MemoryError:
            with contextlib.suppress(OSError):
                sock.send(shake.drop(), socket.MSG_DONTWAIT)
            return
        with self._lock:
            queues = self._sessions.get(association)
            if queues is None:  # the association has ended since Connect
                return
            queues[qid] = session, ended
        try:
            session.run()
        finally:
            with self._lock:
                del queues[qid]
            try:
                self._leave(association, qid)
            finally:
                ended.set()  # now its identifier is free

    # --- what sessions and time ask for

    def end_io_queues(self, association: Association) -> None:
        """Disconnect the I/O queues of an association, and wait until their commands have ended."""
        with self._lock:
            queues = self._sessions.get(association, {})
            found = [each for qid, each in queues.items() if qid]
        end_all(found)

    def reset_subsystem(self) -> None:
        """Disconnect all hosts, so that their associations end."""
        with self._lock:
            found = [each for queues in self._sessions.values() for each, _ in queues.values()]
        for session in found:
            session.close()

    def alive(self, association: Association) -> None:
        """Restart the Keep Alive timer of an association."""
        with self._lock:
            if association in self._seen:
                self._seen[association] = time.monotonic()

    def _tick(self) -> None:
        """End the associations whose Keep Alive timer has expired."""
        now = time.monotonic()
        with self._lock:
            late = [
                each
                for each, seen in self._seen.items()
                if each.controller.registers.state is State.READY
                and not each.controller.registers.notified
                and 0 < each.keep_alive_ms < 1000 * (now - seen)
            ]
            found = [session for each in late for session, _ in self._sessions[each].values()]
            for each in late:
                self._seen[each] = now
            self.expired += len(late)
        for each in late:
            with self.drive.lock:
                each.controller.registers.fail()
        for session in found:
            session.close()


def end_all(sessions: list[tuple[Session, threading.Event]]) -> None:
    """Disconnect ``sessions``, and wait until their commands have ended."""
    for session, _ in sessions:
        session.close()
    for _, ended in sessions:
        ended.wait()
