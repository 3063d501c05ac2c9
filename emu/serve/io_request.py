"""Records of the I/O commands of an NVMe transport, and of their completions.

Owns the records. Does not own the execution of commands (nvme_io.py, computation.py) or the
transports.
Source: NVM Express Base Specification 2.0, section 3.4 (command processing).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ondie.emu.nvme.wire import Cqe, Sqe

NO_DATA = np.zeros(0, np.uint8)


class IoRequest(NamedTuple):
    """I/O command from a host."""

    sqid: int
    sqe: Sqe
    data: bytes | memoryview | np.ndarray = b""
    """Data from the host, of the size that io_commands.transfer_of returns."""


class IoResult(NamedTuple):
    """Completion of an I/O command."""

    cqe: Cqe
    """Completion queue entry. Its ``status`` is the status field without the phase tag."""
    data: np.ndarray = NO_DATA
    """Data for the host, uint8[n]; empty if the command has failed. The data may be in a buffer of
    IoRunner that the next batch overwrites."""
