"""What all protocols of one server share: the drive as they see it, and their statistics.

Owns what a protocol needs to know about the drive, and the count of requests. Does not own the
drive (drive.py) and its thread (service.py), the drive without flash (memory_drive.py), or any
protocol. Source: none.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.drive import Drive
from ondie.emu.nvme.client_queue import Connection
from ondie.emu.nvme.status import Condition
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.nbd_wire import MOST_BLOCK, Export
from ondie.emu.service import Service
from ondie.emu.units import InputError

REQUEST_NAMES = (
    "reads", "writes", "disconnects", "flushes", "trims", "caches", "write_zeroes", "block_status",
)  # fmt: skip
"""Kinds of requests of NBD, in the order of their numbers."""
LARGEST = 1 << 20
"""Largest request, bytes, of drives whose commands are smaller; requests are then split."""


class Commands(Protocol):
    """A client of the drive."""

    def run(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
        """Execute commands, COMMAND[n], with their bytes in ``buffer``. Return COMPLETION[n]."""


class Served(ABC):
    """A drive as protocols see it. Sizes in bytes.

    Raises InputError for a drive whose mapping unit, logical block or largest transfer does not fit
    the protocols.
    """

    def __init__(self, cfg: Config, capacity: int, unit: int, block: int, depth: int) -> None:
        self.unit, self.block, self.capacity = unit, block, capacity
        """Mapping unit, logical block, size."""
        self.transfer = cfg.frontend.max_transfer_bytes // block * block
        """Largest read or write of a command."""
        self.depth = depth
        """Number of commands that the drive takes at once."""
        self.description = f"ondie {cfg.system.name}"
        if unit & (unit - 1):
            raise InputError(f"mapping unit of {unit} bytes: must be a power of two to be served")
        if block > MOST_BLOCK:
            raise InputError(
                f"logical block of {block} bytes: NBD has at most {MOST_BLOCK}; use --block"
            )
        if not self.transfer:
            raise InputError(
                f"frontend.max_transfer = {cfg.frontend.max_transfer_bytes} bytes: must be at "
                f"least one logical block of {block} bytes"
            )
        self.zeros = np.zeros(self.transfer, np.uint8)
        """Memory of writes of zeros; nobody changes it."""
        self._lock = threading.Lock()
        self._requests = [0] * len(REQUEST_NAMES)
        self._errors = 0

    @property
    def export(self) -> Export:
        """The drive as NBD describes it, now."""
        return Export(
            size=self.capacity,
            block=self.block,
            preferred=max(self.unit, 4096),
            largest=max(self.transfer, LARGEST, self.unit),
            description=self.description,
            read_only=self.read_only,
        )

    @property
    @abstractmethod
    def read_only(self) -> bool:
        """True if no write and no trim can succeed."""

    @abstractmethod
    def connect(self) -> Commands:
        """Return a client that waits in a thread of its own."""

    def paced(self) -> Connection | None:
        """Return a client that gets completions one by one, if they come at their time on the wall
        clock; None: they come as soon as they can."""
        return None

    @abstractmethod
    def mapped(self, first: int, count: int) -> np.ndarray:
        """Return which of ``count`` mapping units from ``first`` on hold data, bool[count]; others
        read as zeros. Raises InputError if the drive serves no more."""

    # --- statistics

    def count(self, kinds: list[int], errors: int) -> None:
        """Count requests by kind (nbd_request.NBD_READ, ...), int[8], and those that failed."""
        with self._lock:
            self._requests = [a + b for a, b in zip(self._requests, kinds, strict=True)]
            self._errors += errors

    def count_one(self, kind: int, failed: bool) -> None:
        """Count a request of ``kind``."""
        with self._lock:
            self._requests[kind] += 1
            self._errors += failed

    def statistics(self) -> dict[str, int]:
        """Return the number of requests by name, and of those that ended with an error."""
        with self._lock:
            found = dict(zip(REQUEST_NAMES, self._requests, strict=True))
            return {**found, "errors": self._errors}


class ServedDrive(Served):
    """``drive``, which has payload, behind ``service``."""

    def __init__(self, drive: Drive, service: Service) -> None:
        depth = min(int(drive.arrays.pair["depth"][0]), PAIR_RING)
        super().__init__(drive.cfg, drive.capacity, drive.unit_bytes, drive.block_bytes, depth)
        self.drive, self.service = drive, service
        self.at_power_on: list[Callable[[], None]] = []
        """What follows when the power is switched on again, in the thread of the service."""

    def power_on(self) -> None:
        """Switch the power of the drive on again. Only the thread of the service may call. Raises
        InputError."""
        self.drive.power_on()
        for each in self.at_power_on:
            each()

    @property
    def read_only(self) -> bool:
        return self.drive.condition is Condition.READ_ONLY

    def connect(self) -> Commands:
        return DriveClient(self.service)

    def paced(self) -> Connection | None:
        return self.service.connect() if self.service.clock == "real" else None

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

        return np.asarray(self.service.call(look).result())


class DriveClient:
    """A client of ``service`` that runs its commands itself while it is alone, and hands them over
    otherwise."""

    def __init__(self, service: Service) -> None:
        self._service, self._connection = service, service.connect()

    def run(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
        """Execute commands, COMMAND[n], with their bytes in ``buffer``. Return COMPLETION[n]."""
        done = self._service.try_run(commands, buffer)
        return self._connection.run(commands, buffer) if done is None else done
