"""NBD server, which serves a drive at one address to several clients.

Owns the number of clients after the handshake, and the choice of the kind of session for a client.
Does not own sockets and threads (handshakes.py), the messages of the handshake (nbd_wire.py) or the
requests of a client (nbd_session.py, nbd_paced.py).
Source: the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md).
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
    """NBD server of the drive ``served``. It accepts clients at ``listener`` until :meth:`close`.
    ``listeners``: number of Handshakes objects in this process."""

    def __init__(self, served: Served, listener: Listener, listeners: int = 1) -> None:
        self.served = served
        warm_up(served)
        self.admitted = 0
        """Number of connected clients that have completed the handshake."""
        self._lock = threading.Lock()
        self.handshakes = Handshakes(
            listener, self._handshake, self._run, "ondie nbd", listeners=listeners
        )

    @property
    def listener(self) -> Listener:
        return self.handshakes.listener

    def close(self) -> None:
        """Complete the requests that have arrived, disconnect all clients, and stop the threads."""
        self.handshakes.close()

    def _handshake(self, _: socket.socket) -> Handshake:
        """Return the handshake of a new client."""
        return Handshake(self.served.export, self._admit, self._leave)

    def _admit(self) -> str:
        """Reserve one of the MOST_SESSIONS connections. Return "", or the reason if no connection
        is free."""
        with self._lock:
            if self.admitted >= MOST_SESSIONS:
                return f"all {MOST_SESSIONS} connections are in use"
            self.admitted += 1
            return ""

    def _leave(self) -> None:
        """Release the connection that was reserved for a client."""
        with self._lock:
            self.admitted -= 1

    def _run(self, sock: socket.socket, handshake: Handshake) -> None:
        """Run the session of a client in its thread. Disconnect the client if the session cannot be
        created, for example because memory is exhausted."""
        try:
            try:
                session = session_of(sock, self.served, handshake)
            except (RuntimeError, MemoryError):
                return
            session.run()
        finally:
            self._leave()


def session_of(sock: socket.socket, served: Served, handshake: Handshake) -> Session:
    """Return the session of a client: a PacedSession if the drive delivers completions at their
    modeled times on the wall clock, otherwise a Session."""
    paced = served.paced()
    if paced is None:
        return Session(sock, served, handshake)
    return PacedSession(sock, served, handshake, paced)
