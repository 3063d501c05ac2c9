"""The drive that all protocols of one server share: its service, its description, its statistics.

Owns what a protocol needs to know about the drive. Does not own the drive (drive.py) and its thread
(service.py), or any protocol. Source: none.
"""

from __future__ import annotations

import threading

import numpy as np

from ondie.emu.drive import Drive
from ondie.emu.nvme.status import Condition
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.nbd_wire import Export
from ondie.emu.service import Service

REQUEST_NAMES = (
    "reads", "writes", "disconnects", "flushes", "trims", "caches", "write_zeroes", "block_status",
)  # fmt: skip
"""Kinds of requests of NBD, in the order of their numbers."""
LARGEST = 1 << 20
"""Largest request, bytes, of drives whose commands are smaller; requests are then split."""


class Served:
    """``drive``, which has payload, behind ``service``."""

    def __init__(self, drive: Drive, service: Service) -> None:
        self.drive, self.service = drive, service
        self.unit = drive.unit_bytes
        self.transfer = drive.cfg.frontend.max_transfer_bytes
        self.depth = depth_of(drive)
        self.zeros = np.zeros(self.transfer, np.uint8)
        """Memory of writes of zeros; nobody changes it."""
        self.export = Export(
            size=drive.capacity,
            block=drive.block_bytes,
            preferred=max(drive.unit_bytes, 4096),
            largest=max(self.transfer, LARGEST),
            description=f"ondie {drive.cfg.system.name}",
            read_only=drive.condition is Condition.READ_ONLY,
        )
        self._lock = threading.Lock()
        self.requests = np.zeros(8, np.int64)
        """Number of requests by kind (nbd_request.NBD_READ, ...), int64[8]."""
        self.errors = 0
        """Number of requests that ended with an error."""

    def count(self, requests: np.ndarray, errors: np.ndarray) -> None:
        """Count ``requests`` (nbd_request.REQUEST[n]) and their ``errors`` (int32[n])."""
        kinds = np.bincount(requests["kind"] & 7, minlength=8)
        with self._lock:
            self.requests += kinds
            self.errors += int(np.count_nonzero(errors))

    def count_one(self, kind: int, failed: bool) -> None:
        """Count a request of ``kind``."""
        with self._lock:
            self.requests[kind] += 1
            self.errors += failed

    def statistics(self) -> dict[str, int]:
        """Return the number of requests by name, and of those that ended with an error."""
        with self._lock:
            found = dict(zip(REQUEST_NAMES, self.requests.tolist(), strict=True))
            return {**found, "errors": self.errors}

    def mapped(self, first: int, count: int) -> np.ndarray:
        """Return which of ``count`` mapping units from ``first`` on hold data, on flash or in the
        data cache, bool[count]. Raises InputError if the service has ended."""

        def look() -> np.ndarray:
            arrays = self.drive.arrays
            found = np.asarray(arrays.l2p[0, first : first + count]) != 0
            pages = arrays.cpage[: int(arrays.cache.used[0])]
            cached = pages["lpn"][pages["have"] != 0] - first
            found[cached[(cached >= 0) & (cached < count)]] = True
            return found

        return self.service.call(look).result()


def depth_of(drive: Drive) -> int:
    """Return the number of commands that the drive takes at once."""
    return min(int(drive.arrays.pair["depth"][0]), PAIR_RING)
