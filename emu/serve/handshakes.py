"""Handshakes of all clients of one listener, in one event loop; each client then gets a thread.

Owns the sockets until the handshake has ended, the limits of their number, time and memory, and the
threads of clients. Does not own the words of a handshake or what follows it (a protocol).
Source: C10K practice: a connection costs a thread only once it is in use.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar

from ondie.emu.serve.address import Listener
from ondie.emu.serve.nbd import MOST_SESSIONS, SPARE_FILES, raise_file_limit

HANDSHAKE_S = 10.0
"""Time in which a client must have finished its handshake."""
MOST_UNSENT = 1 << 16
"""Bytes that a client may leave unread during the handshake."""
TICK_S = 0.1
"""Time between two calls of a protocol's ``tick`` while it has clients."""


class Phase(Enum):
    """Phase of a handshake."""

    OPEN = "words of the client are awaited"
    SERVED = "the client gets its thread"
    ENDED = "the connection ends"


class Handshake(Protocol):
    """Handshake of one client."""

    phase: Phase

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the client; return bytes for it."""

    def drop(self) -> None:
        """The client has gone in the phase SERVED, before it had its thread."""


Shake = TypeVar("Shake", bound=Handshake)


class Guest(Generic[Shake]):
    """A client in the handshake."""

    def __init__(self, sock: socket.socket, handshake: Shake) -> None:
        self.socket, self.handshake = sock, handshake
        self.deadline = time.monotonic() + HANDSHAKE_S
        self.unsent = bytearray()


class Handshakes(Generic[Shake]):
    """Accepts clients of ``listener`` until :meth:`close`.

    ``make``: returns the handshake of a socket. ``run``: serves a client after its handshake, in a
    thread of its own; when it returns, the socket is closed. ``tick``: called every TICK_S while
    there are clients. ``name``: of the threads. A protocol admits at most MOST_SESSIONS clients;
    while twice as many threads have not ended, more clients are disconnected.
    """

    def __init__(
        self,
        listener: Listener,
        make: Callable[[socket.socket], Shake],
        run: Callable[[socket.socket, Shake], None],
        tick: Callable[[], None],
        name: str,
    ) -> None:
        self.listener = listener
        self.accepted = self.expired = 0
        self._make, self._run, self._tick, self._name = make, run, tick, name
        self._guests: OrderedDict[int, Guest[Shake]] = OrderedDict()
        """Clients in the handshake by file descriptor, oldest first."""
        self._sessions: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._most_guests = raise_file_limit() - SPARE_FILES - 4 * MOST_SESSIONS
        self._wake, self._woken = socket.socketpair()
        listener.socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener.socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect all clients, after the commands that they have in flight, and end."""
        self._closing = True
        self._wake.send(b"x")
        self._thread.join()
        with self._lock:
            threads = list(self._sessions)
            for sock in self._sessions.values():
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        self._wake.close()
        self._woken.close()

    def _loop(self) -> None:
        try:
            while not self._closing:
                for key, events in self._selector.select(self._timeout()):
                    if key.fileobj is self.listener.socket:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(4096)
                    elif key.fd in self._guests:
                        self._serve(self._guests[key.fd], events)
                self._expire()
                self._tick()
        finally:
            for guest in list(self._guests.values()):
                self._drop(guest)
            self._selector.close()
            self.listener.close()

    def _timeout(self) -> float | None:
        """Return the time until the next deadline, s; None: there is none."""
        found = [TICK_S] if self._sessions else []
        if self._guests:
            oldest = next(iter(self._guests.values()))
            found.append(max(oldest.deadline - time.monotonic(), 0.0))
        return min(found, default=None)

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
        while True:
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
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                guest = Guest(sock, self._make(sock))
            except OSError:  # the client has gone
                sock.close()
                continue
            self.accepted += 1
            self._guests[sock.fileno()] = guest
            self._selector.register(sock, selectors.EVENT_READ)

    def _serve(self, guest: Guest[Shake], events: int) -> None:
        """Receive from and send to a client in the handshake."""
        if events & selectors.EVENT_READ:
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

    def _send(self, guest: Guest[Shake]) -> None:
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
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.unsent else 0)
            self._selector.modify(guest.socket, wanted)

    def _forget(self, guest: Guest[Shake]) -> None:
        """Remove a client from the event loop."""
        self._selector.unregister(guest.socket)
        del self._guests[guest.socket.fileno()]

    def _drop(self, guest: Guest[Shake]) -> None:
        """Disconnect a client in the handshake."""
        self._forget(guest)
        if guest.handshake.phase is Phase.SERVED:
            guest.handshake.drop()
        guest.socket.close()

    def _begin(self, guest: Guest[Shake]) -> None:
        """Give a client its thread."""
        self._forget(guest)
        guest.socket.setblocking(True)
        thread = threading.Thread(
            target=self._session, args=(guest,), name=f"{self._name} client", daemon=True
        )
        with self._lock:
            if len(self._sessions) >= 2 * MOST_SESSIONS:
                guest.handshake.drop()
                guest.socket.close()
                return
            self._sessions[thread] = guest.socket
        thread.start()

    def _session(self, guest: Guest[Shake]) -> None:
        """Serve a client."""
        try:
            self._run(guest.socket, guest.handshake)
        finally:
            with self._lock:
                del self._sessions[threading.current_thread()]
            guest.socket.close()
