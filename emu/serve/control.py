"""Control socket of a served drive: power, faults and counters.

Owns the threads of the socket, and the dispatch of its commands to the drive's service. Does not
own the message format and the client side (control_words.py), the drive and its service
(emu/drive.py, emu/service.py), or terminal output (cli).
Source: this project.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ondie.emu.drive import CommandError
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.control_words import MOST_BYTES, Result, line_of, parse
from ondie.emu.serve.defects import show_exception
from ondie.emu.serve.handshakes import NO_FILES_S
from ondie.emu.serve.served import ServedDrive
from ondie.emu.states.drive_states import DriveStates
from ondie.emu.units import InputError, quoted, whole_number

MOST_CLIENTS = 16
IDLE_S = 60.0
"""Time without a request after which a client is disconnected, s."""
MOST_EVENTS = 10**12


class Controls:
    """Commands of the control socket, executed on the served drive ``served``. Each method returns
    the result of a command. It raises InputError if an argument is invalid or the drive does not
    support the command, and CommandError if a command of the drive has failed."""

    def __init__(self, served: ServedDrive) -> None:
        self._served = served

    def _call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the service thread; return its result."""
        return self._served.service.call(function).result()

    def counters(self) -> Result:
        """Return the condition of the drive, its counters since the last power-on, and the number
        of client requests since the start of the server."""
        return self._call(lambda: report(self._served))

    def power_cut(self, after: int = 0, restart: bool = False) -> Result:
        """Cut the power after ``after`` events of the simulation engine. If ``restart`` is True,
        switch the power on again; otherwise the drive stays offline until :meth:`power_on`."""
        after = whole_number("after", after, 0, MOST_EVENTS)
        events = self._call(lambda: self._served.power_cut(after))
        return {"events": events, **(self.power_on() if restart else {})}

    def power_on(self) -> Result:
        """Switch the power on. The drive then recovers its tables from flash."""
        drive = self._served.drive

        def switch_on() -> Result:
            self._served.power_on()
            return {"condition": drive.condition.value, "why": drive.why}

        return self._call(switch_on)

    def inject_media_error(self, offset: int, size: int) -> Result:
        """Damage the flash pages of the ``size`` bytes of the drive starting at byte ``offset``.
        Reads of these pages then fail. Return the number of damaged mapping units."""
        drive = self._served.drive
        return {"units": self._call(lambda: drive.inject_media_errors(offset, size))}

    def wear_out(self) -> Result:
        """Inject program failures until all spare blocks are used, so that the drive becomes
        read-only. Return the number of failed blocks and the new condition of the drive."""
        drive = self._served.drive

        def use_up() -> Result:
            blocks = drive.wear_out()
            return {"blocks": blocks, "condition": drive.condition.value, "why": drive.why}

        return self._call(use_up)

    def replace_die(self, die: int) -> Result:
        """Replace the die with index ``die`` by an empty die, and reconstruct its part of the
        optimizer states from the parity across dies."""
        drive = self._served.drive

        def replace() -> Result:
            states = drive.moved.plans
            if not isinstance(states, DriveStates):
                raise InputError(
                    f"die {die}: cannot be replaced, because the drive holds no optimizer states; "
                    "only optimizer states have parity across dies"
                )
            return states.replace_die(die)._asdict()

        return self._call(replace)


RUN: dict[str, Callable[..., Result]] = {
    "counters": Controls.counters,
    "power-cut": Controls.power_cut,
    "power-on": Controls.power_on,
    "inject-media-error": Controls.inject_media_error,
    "wear-out": Controls.wear_out,
    "replace-die": Controls.replace_die,
}
"""Method of Controls for each command name (control_words.COMMANDS)."""


def report(served: ServedDrive) -> Result:
    """Return the result of :meth:`Controls.counters`. Only the thread that owns the drive may call
    this function."""
    drive = served.drive
    decoder = drive.decode_counts
    states = None if drive.store is None else drive.moved.plans
    held = isinstance(states, DriveStates) and states.uncoded_counts
    return {
        "condition": drive.condition.value,
        "why": drive.why,
        "critical_warning": int(drive.critical_warning),
        "simulated_ps": int(drive.now),
        "mapped_units": int(drive.arrays.dev.mapped[0]),
        "unit_bytes": drive.unit_bytes,
        "requests": served.statistics(),
        "counters": dict(zip(COUNTERS, drive.arrays.count[0].tolist(), strict=True)),
        **({} if decoder is None else {"decoder": decoder._asdict()}),
        **({"reservoir": held._asdict()} if held else {}),
    }


def execute(controls: Controls, line: bytes) -> Result:
    """Execute the request ``line`` (control_words.parse); return the reply."""
    try:
        command, arguments = parse(line)
        return {"result": RUN[command](controls, **arguments)}
    except (InputError, CommandError) as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - the client gets it, and the operator the place
        show_exception("a command of the control socket")
        return {"error": f"a defect of the server: {type(error).__name__}: {error}"}


class ControlServer:
    """Server of the control socket: accepts clients at ``listener``, and executes their requests on
    ``served``, until :meth:`close`."""

    def __init__(self, served: ServedDrive, listener: Listener) -> None:
        self.listener = listener
        self._controls = Controls(served)
        self._clients: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="ondie control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the commands that are being executed, disconnect all clients, and stop the
        threads."""
        self._closing = True
        with contextlib.suppress(OSError):
            self.listener.socket.shutdown(socket.SHUT_RDWR)  # ends accept
        self._thread.join()
        with self._lock:
            threads = list(self._clients)
            for sock in self._clients.values():
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RD)
        for thread in threads:
            thread.join()
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.socket.accept()
            except OSError:
                if self._closing:
                    return
                time.sleep(NO_FILES_S)  # the client has gone, or there are no more files
                continue
            sock.settimeout(IDLE_S)
            thread = threading.Thread(target=self._answer, args=(sock,), daemon=True)
            if why := self._start(thread, sock):
                with sock, contextlib.suppress(OSError):
                    sock.sendall(line_of({"error": why}))

    def _start(self, thread: threading.Thread, sock: socket.socket) -> str:
        """Start ``thread``, which serves the client at ``sock``. Return "", or the reason if the
        thread cannot be started."""
        with self._lock:
            if len(self._clients) >= MOST_CLIENTS:
                return f"all {MOST_CLIENTS} connections are in use"
            self._clients[thread] = sock
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                del self._clients[thread]
                return f"cannot start a thread for another client: {error}"
        return ""

    def _answer(self, sock: socket.socket) -> None:
        """Reply to the requests of a client until it disconnects."""
        try:
            with sock, sock.makefile("rb") as lines, contextlib.suppress(OSError):
                while line := lines.readline(MOST_BYTES):
                    if not line.endswith(b"\n"):
                        error = f"a request must have at most {MOST_BYTES} bytes and end with \\n"
                        sock.sendall(line_of({"error": error}))
                        return
                    sock.sendall(line_of(execute(self._controls, line)))
        finally:
            with self._lock:
                del self._clients[threading.current_thread()]


def socket_address(text: str, option: str) -> Address:
    """Parse the address of a control socket: PATH or unix:PATH. ``option``: name of the option for
    the error message. Raises InputError if the path is empty."""
    path = text.removeprefix("unix:")
    if not path:
        raise InputError(f"{option} {quoted(repr(text))}: must be the path of a Unix socket")
    return Address(path=path)
