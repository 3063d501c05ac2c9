"""Addresses on which the server listens: Unix sockets, and TCP ports of this host.

Owns the syntax of addresses, and the listening sockets with their errors. Does not own the
protocols.
Source: unix(7), ip(7).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import dataclass

from ondie.emu.units import InputError

MOST_PATH_BYTES = 107
"""Maximum length of the path of a Unix socket, bytes."""
BACKLOG = 4096
PROBE_S = 1.0
"""Timeout of the connection attempt that checks whether a program listens on an existing socket
file, s."""


@dataclass(frozen=True)
class Address:
    """Address at which a server listens: the Unix socket at ``path`` or, if ``path`` is empty, TCP
    port ``port`` of ``host``."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, option: str) -> Address:
        """Parse an address: unix:PATH, HOST:PORT, or :PORT for port PORT of the loopback interface.
        ``option``: name of the option for the error message. Raises InputError if ``text`` has none
        of these forms."""
        kind, _, path = text.partition("unix:")
        if not kind and path:
            return cls(path=path)
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise InputError(
                f"{option} {text}: must be unix:PATH or HOST:PORT, with a port from 0 to 65535; "
                "port 0 selects a free port"
            )
        return cls(host=host.removeprefix("[").removesuffix("]") or "127.0.0.1", port=int(port))


class Listener:
    """Socket that listens at ``address`` until :meth:`close`.

    An existing socket file is replaced if no program listens on it. ``option``: name of the option
    for error messages. ``private``: True if only the user who runs this process may connect to the
    socket file. Raises InputError if the address cannot be used.
    """

    def __init__(self, address: Address, option: str, private: bool = False) -> None:
        self._option, self._private = option, private
        self._file: tuple[int, int] | None = None
        try:
            self.socket = self._unix(address) if address.path else self._tcp(address)
        except OSError as error:
            raise InputError(
                f"{option} {address}: cannot listen: {error.strerror or error}"
            ) from error
        self.address = address
        if not address.path:
            self.address = Address(host=address.host, port=self.socket.getsockname()[1])

    def _unix(self, address: Address) -> socket.socket:
        path = address.path
        if len(os.fsencode(path)) > MOST_PATH_BYTES:
            raise InputError(
                f"{self._option} {address}: the path of a Unix socket must have at most "
                f"{MOST_PATH_BYTES} bytes; this path has {len(os.fsencode(path))}"
            )
        if os.path.lexists(path):
            self._take_over(address)
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self._private:
                os.fchmod(found.fileno(), 0o600)  # the file gets the mode of the socket
            found.bind(path)
            made = os.stat(path)
            self._file = made.st_dev, made.st_ino
            found.listen(BACKLOG)
        except OSError:
            found.close()
            raise
        return found

    def _take_over(self, address: Address) -> None:
        """Remove the socket file of a program that has ended. Raises InputError if the file is not
        a socket, or if a program listens on the socket."""
        path = address.path
        if not stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode):
            raise InputError(f"{self._option} {address}: the file exists and is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_S)
            code = probe.connect_ex(path)
        if code != errno.ECONNREFUSED:
            raise InputError(f"{self._option} {address}: another program listens on this socket")
        os.unlink(path)

    def _tcp(self, address: Address) -> socket.socket:
        try:
            infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise InputError(
                f"{self._option} {address}: cannot resolve {address.host}: {error.strerror}"
            ) from error
        family, kind, protocol, _, place = infos[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(place)
            found.listen(BACKLOG)
        except OSError:
            found.close()
            raise
        return found

    def close(self) -> None:
        """Close the socket, and remove the socket file unless another program has replaced it."""
        self.socket.close()
        if self._file is None:
            return
        path, self_made, self._file = self.address.path, self._file, None
        try:
            found = os.stat(path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self_made:
                os.unlink(path)
        except FileNotFoundError:
            return
