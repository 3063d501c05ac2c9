"""Owns: small drives behind a server of NBD in this process, and the address of each.
Does not own: any expectation. Source: own.
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ondie.emu.serve.address import Address, Listener
from ondie.emu.serve.memory_drive import MemoryDrive
from ondie.emu.serve.nbd import NbdServer
from ondie.emu.serve.server import ServeOptions, Server
from tests.state.test_service import MODES, SMALL
from tests.state.written import config

NUMBERS = itertools.count()


def path_in(folder: Path) -> str:
    """A path of a socket that no other test has."""
    return str(folder / f"s{next(NUMBERS)}")


@contextlib.contextmanager
def memory(folder: Path, block: int = 512, **changes: Any) -> Iterator[tuple[NbdServer, str]]:
    """(server, address) of a drive in memory."""
    path = path_in(folder)
    drive = MemoryDrive(config(**{**SMALL, **changes}), block)
    server = NbdServer(drive, Listener(Address.parse(f"unix:{path}", "--nbd"), "--nbd"))
    try:
        yield server, path
    finally:
        server.close()


@contextlib.contextmanager
def drive(
    folder: Path, mode: str = "no cache", options: dict[str, Any] | None = None, **changes: Any
) -> Iterator[tuple[Server, str]]:
    """(server, address) of a small drive of tests/state/test_service.py."""
    path = path_in(folder)
    cfg = config(**{**SMALL, **MODES[mode], **changes})
    server = Server(cfg, ServeOptions(**{"nbd": f"unix:{path}", "block_bytes": 512,
                                         **(options or {})}))  # fmt: skip
    try:
        yield server, path
    finally:
        server.close()
