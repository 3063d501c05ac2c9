"""I/O commands of an NVMe transport and their completions, as records.

Owns the records. Does not own the commands (nvme_io.py, computation.py) or the transports.
Source: NVM Express Base Specification 2.0, section 3.4 (command processing).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.nvme.wire import Cqe, Sqe

NO_DATA = np.zeros(0, np.uint8)


class IoRequest(NamedTuple):
    """I/O command as the host has sent it."""

    sqid: int
    sqe: Sqe
    data: bytes | memoryview | np.ndarray = b""
    """Data to the controller, of the size that io_commands.transfer_of returns."""


class IoResult(NamedTuple):
    """Completion of an I/O command."""

    cqe: Cqe
    """``status`` is the status field without the phase tag."""
    data: np.ndarray = NO_DATA
    """Data to the host, uint8[n]: memory of the runner that the next batch overwrites; none if the
    command has failed."""
