"""Handshakes of all clients of one listener, in one event loop. After the handshake, each client is
served by a separate thread.

Owns the sockets until the end of the handshake, the limits on the number, duration and memory of
handshakes, and the threads of clients. Does not own the messages of a handshake or the
communication after it (a protocol).
Source: the usual solution of the C10K problem: an event loop serves the connections that do not
need a thread.
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
"""Maximum number of clients that a protocol admits after the handshake."""
HANDSHAKE_S = 10.0
"""Time limit of a handshake, s."""
MOST_UNSENT = 1 << 16
"""Maximum number of bytes kept for a client that does not receive them during the handshake. A
client that exceeds this limit is disconnected."""
MOST_GUESTS, LEAST_GUESTS = 16384, 8
"""MOST_GUESTS: maximum number of clients in the handshake, for all listeners together. The limit is
lower if the process may open only a few files, but at least LEAST_GUESTS per listener."""
SPARE_FILES = 128
"""Number of file descriptors that are reserved for the store and other parts of the process."""
ACCEPTED_AT_ONCE = 64
"""Maximum number of clients that are accepted before the event loop serves other clients."""
NO_FILES_S = 0.05
"""Pause of the event loop (s) after a client could not be accepted, for example because no file
descriptor was free. If another client is in the handshake, the loop disconnects that client and
does not pause."""
GRACE_S = 5.0
"""Time limit for clients to receive the replies to their commands when the server is closed, s."""
TICK_S = 0.1
"""Maximum time between two calls of a protocol's ``tick`` while clients have threads, s."""


class Phase(Enum):
    """State of a handshake: in progress, successful, or ended by the client or an error."""

    OPEN = "words of the client are awaited"
    SERVED = "the client gets its thread"
    ENDED = "the connection ends"


class Handshake(Protocol):
    """Interface of the handshake with one client. Each protocol implements this interface. The
    event loop of :class:`Handshakes` sends and receives the bytes."""

    phase: Phase

    def greeting(self) -> bytes:
        """Return the bytes that the server sends when the client has connected."""

    def feed(self, data: bytes) -> bytes:
        """Process ``data`` from the client; return the bytes to send."""

    def drop(self) -> bytes:
        """End a handshake in the phase SERVED, because the client has disconnected or no thread can
        be started for the client. Return the bytes to send."""


Shake = TypeVar("Shake", bound=Handshake)


class Guest(Generic[Shake]):
    """Connection of a client until the end of the handshake."""

    def __init__(self, sock: socket.socket, handshake: Shake) -> None:
        self.socket, self.handshake = sock, handshake
        self.deadline = time.monotonic() + HANDSHAKE_S
        self.unsent = bytearray(handshake.greeting())


class Handshakes(Generic[Shake]):
    """Event loop that accepts the clients of ``listener`` and performs their handshakes until
    :meth:`close`.

    ``make``: function that returns the handshake for a new socket. ``run``: function that serves a
    client after its handshake, in a separate thread; the socket is closed when the function
    returns. ``name``: name of the threads. ``tick``: function that is called at least every TICK_S
    seconds while clients have threads, or None. ``listeners``: number of Handshakes objects in this
    process, which share the limits. A protocol admits at most MOST_SESSIONS clients. If 2 *
    MOST_SESSIONS threads are still running, further clients are disconnected.
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
        """Complete the commands that have arrived, disconnect all clients, and stop the threads. A
        client that does not receive its replies within GRACE_S seconds is disconnected without the
        replies."""
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
        """Return the threads of clients that are running."""
        with self._lock:
            return list(self._sessions)

    def _shut(self, how: int) -> None:
        """Shut down the sockets of all clients that have a thread. ``how``: argument of
        socket.shutdown."""
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
        """Return the time until the next deadline, s, or None if there is no deadline."""
        found = [] if self._tick is None or not self._sessions else [TICK_S]
        if self._guests:
            oldest = next(iter(self._guests.values()))
            found.append(max(oldest.deadline - time.monotonic(), 0.0))
        return min(found, default=None)

    def _expire(self) -> None:
        """Disconnect the clients whose handshake deadline has passed."""
        now = time.monotonic()
        while self._guests:
            guest = next(iter(self._guests.values()))
            if guest.deadline > now:
                return
            self.expired += 1
            self._drop(guest)

    def _accept(self) -> None:
        """Accept clients. If too many clients are in the handshake, disconnect the one that
        connected first."""
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
        """Receive bytes from a client in the handshake, and send bytes to it. ``events``: selector
        events of its socket."""
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
        """Send as many bytes as the socket accepts. If the handshake has ended and all bytes are
        sent, disconnect the client, or start its thread if it is to be served."""
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
        """Start the thread of a client, or disconnect the client if the thread cannot be
        started."""
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
        """Serve a client after its handshake."""
        try:
            self._run(guest.socket, guest.handshake)
        except Exception:  # noqa: BLE001 - a defect ends the connection of one client
            show_exception(f"a client of{self._name.removeprefix('ondie')}")
        finally:
            with self._lock:
                del self._sessions[threading.current_thread()]
                guest.socket.close()


def raise_file_limit() -> int:
    """Raise the limit of open files of this process to the hard limit; return the resulting
    limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
