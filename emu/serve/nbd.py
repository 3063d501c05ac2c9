"""NBD server: a drive at one address, and its clients.

Owns the number of clients after the handshake, and which session each of them gets. Does not own
sockets and threads (handshakes.py), the messages of the handshake (nbd_wire.py) or the requests of
a client (nbd_session.py, nbd_paced.py).
Source: the NBD protocol.
"""

from __future__ import annotations

import socket
import threading

from ondie.emu.serve.address import Listener
from ondie.emu.serve.handshakes import MOST_SESSIONS, Handshakes
from ondie.emu.serve.nbd_paced import PacedSession
from ondie.emu.serve.nbd_session import Session, warm_up
from ondie.emu.serve.nbd_wire import Handshake
from ondie.emu.serve.served import Served


class NbdServer:
    """Serves ``served`` at ``listener`` until :meth:`close`. ``listeners``: see Handshakes."""

    def __init__(self, served: Served, listener: Listener, listeners: int = 1) -> None:
        self.served = served
        warm_up(served)
        self.admitted = 0
        """Number of clients after the handshake."""
        self._lock = threading.Lock()
        self.handshakes = Handshakes(
            listener, self._handshake, self._run, "ondie nbd", listeners=listeners
        )

    @property
    def listener(self) -> Listener:
        return self.handshakes.listener

    def close(self) -> None:
        """Complete the requests that clients have sent, disconnect the clients, and end; see
        Handshakes.close."""
        self.handshakes.close()

    def _handshake(self, _: socket.socket) -> Handshake:
        """Return the handshake of a new client."""
        return Handshake(self.served.export, self._admit, self._leave)

    def _admit(self) -> str:
        """Take a place for a client; return why there is none, or ""."""
        with self._lock:
            if self.admitted >= MOST_SESSIONS:
                return f"all {MOST_SESSIONS} connections are in use"
            self.admitted += 1
            return ""

    def _leave(self) -> None:
        """Give the place of a client back."""
        with self._lock:
            self.admitted -= 1

    def _run(self, sock: socket.socket, handshake: Handshake) -> None:
        """Run the requests of a client in its thread; without memory, disconnect it."""
        try:
            try:
                session = session_of(sock, self.served, handshake)
            except (RuntimeError, MemoryError):
                return
            session.run()
        finally:
            self._leave()


def session_of(sock: socket.socket, served: Served, handshake: Handshake) -> Session:
    """Return the session of a client, whose replies are paced if completions of the drive are."""
    paced = served.paced()
    if paced is None:
        return Session(sock, served, handshake)
    return PacedSession(sock, served, handshake, paced)
