"""Handshakes of all clients of one listener, in one event loop; each client then gets a thread.

Owns the sockets until the handshake has ended, the limits of their number, time and memory, and the
threads of clients. Does not own the messages of a handshake or the phase after it (a protocol).
Source: C10K practice: a connection costs a thread only once it is in use.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar

from ondie.emu.serve.address import Listener
from ondie.emu.serve.defects import show_exception

MOST_SESSIONS = 64
"""Largest number of clients that a protocol admits."""
HANDSHAKE_S = 10.0
"""Time in which a client must have finished its handshake."""
MOST_UNSENT = 1 << 16
"""Bytes that a client may leave unread during the handshake."""
MOST_GUESTS, LEAST_GUESTS = 16384, 8
"""Largest number of clients of all listeners in the handshake, and that of a listener in a process
with few open files."""
SPARE_FILES = 128
"""Open files that are left to the store and to other parts of the process."""
ACCEPTED_AT_ONCE = 64
"""Largest number of clients that are accepted before others are served."""
NO_FILES_S = 0.05
"""Pause of the event loop when no file can be opened and no client can make room, s."""
GRACE_S = 5.0
"""Time in which clients must have taken the replies to their commands when the server ends."""
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

    def greeting(self) -> bytes:
        """Return the bytes that the server sends first."""

    def feed(self, data: bytes) -> bytes:
        """Process bytes from the client; return the bytes to send."""

    def drop(self) -> bytes:
        """Drop a client that has gone in the phase SERVED, or for which there is no thread; return
        the bytes to send."""


Shake = TypeVar("Shake", bound=Handshake)


class Guest(Generic[Shake]):
    """A client in the handshake."""

    def __init__(self, sock: socket.socket, handshake: Shake) -> None:
        self.socket, self.handshake = sock, handshake
        self.deadline = time.monotonic() + HANDSHAKE_S
        self.unsent = bytearray(handshake.greeting())


class Handshakes(Generic[Shake]):
    """Accepts clients of ``listener`` until :meth:`close`.

    ``make``: returns the handshake of a socket. ``run``: serves a client after its handshake, in a
    separate thread; when it returns, the socket is closed. ``name``: name of the threads. ``tick``:
    called every TICK_S while there are clients. A protocol admits at most MOST_SESSIONS clients;
    while twice as many threads have not ended, more clients are disconnected. ``listeners``: number
    of those in this process, which share the room for clients in handshakes.
    """

    def __init__(
        self,
        listener: Listener,
        make: Callable[[socket.socket], Shake],
        run: Callable[[socket.socket, Shake], None],
        name: str,
        tick: Callable[[], None] | None = None,
        listeners: int = 1,
    ) -> None:
        self.listener = listener
        self.accepted = self.expired = 0
        self._make, self._run, self._name, self._tick = make, run, name, tick
        self._guests: OrderedDict[int, Guest[Shake]] = OrderedDict()
        """Clients in the handshake by file descriptor, oldest first."""
        self._sessions: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._closing = False
        files = raise_file_limit() - SPARE_FILES - 4 * MOST_SESSIONS * listeners
        self._most_guests = max(min(files, MOST_GUESTS) // listeners, LEAST_GUESTS)
        self._wake, self._woken = socket.socketpair()
        listener.socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener.socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Complete the commands that have arrived, disconnect all clients, and end. A client that
        does not take its replies in GRACE_S is disconnected without them."""
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
            for sock in self._sessions.values():
                with contextlib.suppress(OSError):
                    sock.shutdown(how)

    def _loop(self) -> None:
        try:
            while not self._closing:
                for key, events in self._selector.select(self._timeout()):
                    if key.fileobj is self.listener.socket:
                        self._accept()
                    elif guest := self._guests.get(key.fd):  # an earlier event may have ended it
                        self._serve(guest, events)
                self._expire()
                if self._tick is not None:
                    self._tick()
        finally:
            for guest in list(self._guests.values()):
                self._drop(guest)
            self._selector.close()
            self.listener.close()

    def _timeout(self) -> float | None:
        """Return the time until the next deadline, s; None if there is none."""
        found = [] if self._tick is None or not self._sessions else [TICK_S]
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
            try:
                guest = Guest(sock, self._make(sock))
            except OSError:  # the client has gone
                sock.close()
                continue
            self.accepted += 1
            self._guests[sock.fileno()] = guest
            self._selector.register(sock, selectors.EVENT_READ)
            self._send(guest)

    def _serve(self, guest: Guest[Shake], events: int) -> None:
        """Receive from and send to a client in the handshake."""
        if events & selectors.EVENT_READ and guest.handshake.phase is Phase.OPEN:
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
            wanted = selectors.EVENT_READ if phase is Phase.OPEN else 0
            self._selector.modify(
                guest.socket, wanted | (selectors.EVENT_WRITE if guest.unsent else 0)
            )

    def _forget(self, guest: Guest[Shake]) -> None:
        """Remove a client from the event loop."""
        self._selector.unregister(guest.socket)
        del self._guests[guest.socket.fileno()]

    def _drop(self, guest: Guest[Shake]) -> None:
        """Disconnect a client in the handshake."""
        self._forget(guest)
        self._disconnect(guest)

    def _disconnect(self, guest: Guest[Shake]) -> None:
        """Disconnect a client that has no thread."""
        if guest.handshake.phase is Phase.SERVED:
            said = guest.handshake.drop()
            with contextlib.suppress(OSError):
                guest.socket.send(said, socket.MSG_DONTWAIT)
        guest.socket.close()

    def _begin(self, guest: Guest[Shake]) -> None:
        """Give a client its thread; without memory or thread, disconnect it."""
        self._forget(guest)
        guest.socket.setblocking(True)
        thread = threading.Thread(
            target=self._session, args=(guest,), name=f"{self._name} client", daemon=True
        )
        with self._lock:
            full = len(self._sessions) >= 2 * MOST_SESSIONS
            if not full:
                self._sessions[thread] = guest.socket
        if full:
            self._disconnect(guest)
            return
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            with self._lock:
                del self._sessions[thread]
            self._disconnect(guest)

    def _session(self, guest: Guest[Shake]) -> None:
        """Serve a client."""
        try:
            self._run(guest.socket, guest.handshake)
        except Exception:  # noqa: BLE001 - a defect ends the connection of one client
            show_exception(f"a client of{self._name.removeprefix('ondie')}")
        finally:
            with self._lock:
                del self._sessions[threading.current_thread()]
                guest.socket.close()


def raise_file_limit() -> int:
    """Raise the limit of open files of this process as far as it may; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
