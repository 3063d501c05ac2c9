"""NBD server: listens, runs all handshakes in one event loop, and gives each client a thread.

Owns the sockets, the limits of connections, and the threads. Does not own the words of the
handshake (nbd_wire.py) or the requests of a client (nbd_session.py, nbd_paced.py).
Source: the NBD protocol; C10K practice: a connection costs a thread only once it is in use.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections import OrderedDict

from ondie.emu.serve.address import Listener
from ondie.emu.serve.nbd_paced import PacedSession
from ondie.emu.serve.nbd_session import Session, warm_up
from ondie.emu.serve.nbd_wire import Handshake, Phase
from ondie.emu.serve.served import Served

MOST_SESSIONS = 64
"""Largest number of clients after the handshake."""
HANDSHAKE_S = 10.0
"""Time in which a client must have finished its handshake."""
MOST_UNSENT = 1 << 16
"""Bytes that a client may leave unread during the handshake."""
MOST_GUESTS, LEAST_GUESTS = 16384, 8
"""Largest number of clients in the handshake, and that of a process with few open files."""
SPARE_FILES = 128
"""Open files that are left to the store and to clients after the handshake."""
ACCEPTED_AT_ONCE = 64
"""Largest number of clients that are accepted before others are served."""
NO_FILES_S = 0.05
"""Pause of the event loop when no file can be opened and no client can make room, s."""
GRACE_S = 5.0
"""Time in which a client must have taken the replies to its requests when the server ends."""


class Guest:
    """A client in the handshake."""

    def __init__(self, sock: socket.socket, handshake: Handshake) -> None:
        self.socket, self.handshake = sock, handshake
        self.deadline = time.monotonic() + HANDSHAKE_S
        self.unsent = bytearray(handshake.greeting())


class NbdServer:
    """Serves ``served`` at ``listener`` until :meth:`close`."""

    def __init__(self, served: Served, listener: Listener) -> None:
        self.served, self.listener = served, listener
        warm_up(served)
        self.accepted = self.expired = 0
        self._guests: OrderedDict[int, Guest] = OrderedDict()
        """Clients in the handshake by file descriptor, oldest first."""
        self._sessions: dict[threading.Thread, Session] = {}
        self._admitted = 0
        self._lock = threading.Lock()
        self._closing = False
        files = raise_file_limit() - SPARE_FILES - 2 * MOST_SESSIONS
        self._most_guests = min(max(files, LEAST_GUESTS), MOST_GUESTS)
        self._wake, self._woken = socket.socketpair()
        listener.socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener.socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._loop, name="ondie nbd", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Complete the requests that clients have sent, disconnect the clients, and end. A client
        that does not take its replies in GRACE_S is disconnected without them."""
        if self._closing:
            return
        self._closing = True
        self._wake.send(b"x")
        self._thread.join()
        end = time.monotonic() + GRACE_S
        self._shut(socket.SHUT_RD)
        for thread in self._running():
            thread.join(max(end - time.monotonic(), 0))
        self._shut(socket.SHUT_RDWR)
        for thread in self._running():
            thread.join()
        self._wake.close()
        self._woken.close()

    def _running(self) -> list[threading.Thread]:
        """Return the threads of clients."""
        with self._lock:
            return list(self._sessions)

    def _shut(self, how: int) -> None:
        """Let all clients end: no more bytes are received, or sent either."""
        with self._lock:
            for session in self._sessions.values():
                with contextlib.suppress(OSError):
                    session.socket.shutdown(how)

    # --- the event loop

    def _loop(self) -> None:
        try:
            while not self._closing:
                for key, events in self._selector.select(self._timeout()):
                    if key.fileobj is self.listener.socket:
                        self._accept()
                    elif guest := self._guests.get(key.fd):  # an earlier event may have ended it
                        self._serve(guest, events)
                self._expire()
        finally:
            for guest in list(self._guests.values()):
                self._drop(guest)
            self._selector.close()
            self.listener.close()

    def _timeout(self) -> float | None:
        """Return the time until the oldest handshake must have ended, s."""
        for guest in self._guests.values():
            return max(guest.deadline - time.monotonic(), 0.0)
        return None

    def _expire(self) -> None:
        """Disconnect the clients whose time is over."""
        now = time.monotonic()
        while self._guests:
            guest = next(iter(self._guests.values()))
            if guest.deadline > now:
                return
            self.expired += 1
            self._drop(guest)

    def _accept(self) -> None:
        """Accept clients; the oldest one in a handshake makes room if there are too many."""
        for _ in range(ACCEPTED_AT_ONCE):
            if len(self._guests) >= self._most_guests:
                self.expired += 1
                self._drop(next(iter(self._guests.values())))
            try:
                sock, _ = self.listener.socket.accept()
            except BlockingIOError:
                return
            except OSError:  # the client has gone, or there are no more files
                if self._guests:
                    self._drop(next(iter(self._guests.values())))
                else:
                    time.sleep(NO_FILES_S)
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            guest = Guest(sock, Handshake(self.served.export, self._admit))
            self.accepted += 1
            self._guests[sock.fileno()] = guest
            self._selector.register(sock, selectors.EVENT_READ)
            self._send(guest)

    def _serve(self, guest: Guest, events: int) -> None:
        """Receive from and send to a client in the handshake."""
        if events & selectors.EVENT_READ and guest.handshake.haggling:
            try:
                data = guest.socket.recv(MOST_UNSENT)
            except BlockingIOError:
                data = None
            except OSError:
                data = b""
            if data == b"":
                self._drop(guest)
                return
            if data:
                guest.unsent += guest.handshake.feed(data)
        self._send(guest)

    def _send(self, guest: Guest) -> None:
        """Send what can be sent; go on with a client whose handshake has ended."""
        try:
            del guest.unsent[: guest.socket.send(guest.unsent) if guest.unsent else 0]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(guest)
            return
        phase = guest.handshake.phase
        if len(guest.unsent) > MOST_UNSENT or (phase is Phase.ENDED and not guest.unsent):
            self._drop(guest)
        elif phase is Phase.SERVED and not guest.unsent:
            self._begin(guest)
        else:
            wanted = selectors.EVENT_READ if guest.handshake.haggling else 0
            self._selector.modify(
                guest.socket, wanted | (selectors.EVENT_WRITE if guest.unsent else 0)
            )

    def _forget(self, guest: Guest) -> None:
        """Remove a client from the event loop."""
        self._selector.unregister(guest.socket)
        del self._guests[guest.socket.fileno()]

    def _drop(self, guest: Guest) -> None:
        """Disconnect a client in the handshake."""
        self._forget(guest)
        if guest.handshake.phase is Phase.SERVED:
            self._release()
        guest.socket.close()

    # --- clients after the handshake

    def _admit(self) -> str:
        """Take a place for a client; return why there is none, or ""."""
        with self._lock:
            if self._admitted >= MOST_SESSIONS:
                return f"all {MOST_SESSIONS} connections are in use"
            self._admitted += 1
            return ""

    def _release(self) -> None:
        with self._lock:
            self._admitted -= 1

    def _begin(self, guest: Guest) -> None:
        """Give a client its thread; without memory or thread, disconnect it."""
        self._forget(guest)
        guest.socket.setblocking(True)
        try:
            session = session_of(guest.socket, self.served, guest.handshake)
        except (RuntimeError, MemoryError):
            self._refuse(guest)
            return
        thread = threading.Thread(
            target=self._session, args=(session,), name="ondie nbd client", daemon=True
        )
        with self._lock:
            self._sessions[thread] = session
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            with self._lock:
                del self._sessions[thread]
            self._refuse(guest)

    def _refuse(self, guest: Guest) -> None:
        """Disconnect a client that cannot be served."""
        self._release()
        guest.socket.close()

    def _session(self, session: Session) -> None:
        """Run the requests of a client."""
        try:
            session.run()
        finally:
            with self._lock:
                del self._sessions[threading.current_thread()]
                self._admitted -= 1
                session.socket.close()


def session_of(sock: socket.socket, served: Served, handshake: Handshake) -> Session:
    """Return the session of a client, whose replies come at their time if the drive has one."""
    paced = served.paced()
    if paced is None:
        return Session(sock, served, handshake)
    return PacedSession(sock, served, handshake, paced)


def raise_file_limit() -> int:
    """Raise the limit of open files of this process as far as it may; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
