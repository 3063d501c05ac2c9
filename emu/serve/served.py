"""Served drive: the interface that all protocols of one server share, and their statistics.

Owns the properties of the drive that protocols need, the operations that an NVM subsystem requests,
and the count of requests. Does not own the drive (drive.py) and its thread (service.py), the drive
without flash (memory_drive.py), or any protocol. Source: none.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.controller.health import Health, Past, Ran, health_of, ran_of
from ondie.emu.controller.shared import MediaState
from ondie.emu.controller.status_code import Code
from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import BAD_BLOCKS
from ondie.emu.engine.run.power_system import Start
from ondie.emu.ftl import page_map
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme.client_queue import Connection
from ondie.emu.nvme.command import commands_of, first_error
from ondie.emu.nvme.status import SPARE_THRESHOLD, Condition
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.marked_blocks import MarkedBlocks
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
    """Interface of a drive for the protocols. Sizes in bytes.

    Raises InputError for a drive whose mapping unit, logical block or largest transfer does not fit
    the protocols.
    """

    def __init__(self, cfg: Config, capacity: int, unit: int, block: int, depth: int) -> None:
        self.cfg = cfg
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
        self.at_power_cut: list[Callable[[], None]] = []
        """Called after each power cut, in the thread that owns the drive."""
        self.detached = False
        """Namespace 1, which NBD serves, is not the whole drive any more."""
        self.marks = MarkedBlocks(MediaState(), threading.Lock())
        """What hosts of NVMe have marked as uncorrectable; none if there never was one."""
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
        """Return a client that waits in a separate thread."""

    def paced(self) -> Connection | None:
        """Return a client that gets completions one by one at their modeled times on the wall
        clock; None if completions are not paced."""
        return None

    @abstractmethod
    def mapped(self, first: int, count: int) -> np.ndarray:
        """Return which of ``count`` mapping units from ``first`` on hold data, bool[count]; others
        read as zeros. Raises InputError if the drive is no longer served."""

    # --- of an NVM subsystem

    @property
    def store(self) -> PageStore | None:
        """The store of the drive's bytes; None if it has none."""
        return None

    @property
    def online(self) -> bool:
        """True if the state of the subsystem may be written to the store."""
        return True

    @property
    def recovered(self) -> bool:
        """True if the drive's clock began at 0 with this start."""
        return True

    @abstractmethod
    def ask(self, function: Callable[[], Any]) -> Future[Any]:
        """Let the thread that owns the drive call ``function``; return its result. Raises
        InputError if the drive is no longer served."""

    @abstractmethod
    def run_one(self, op: int, offset: int = 0, size: int = 0) -> int:
        """Execute a command without data; return its status."""

    @abstractmethod
    def erase_stale(self) -> int:
        """Erase the blocks that hold old versions of data; return the status."""

    # Only the thread that owns the drive may call these.

    @abstractmethod
    def critical_warning(self) -> int:
        """Return the critical warnings, nvme.status.CriticalWarning."""

    @abstractmethod
    def before(self) -> tuple[int, int, Ran]:
        """Return the number of starts of the drive that have ended since it is served, the number
        of those at whose end power-loss protection saved data, and their counters."""

    @abstractmethod
    def ran(self, busy_ps: int) -> Ran:
        """Return the counters of this start. ``busy_ps``: time with commands in flight."""

    @abstractmethod
    def health(self, past: Past, ran: Ran) -> Health:
        """Return the counters. ``past``: of the starts before this one, which has counted
        ``ran``."""

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

    def power_cut(self, after_events: int) -> int:
        """Cut the power as PowerSystem.power_cut does; only the thread of the service may call."""
        events = self.drive.power_cut(after_events)
        for each in self.at_power_cut:
            each()
        return events

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

    @property
    def store(self) -> PageStore | None:
        return self.drive.store

    @property
    def online(self) -> bool:
        return self.drive.condition is Condition.ONLINE

    @property
    def recovered(self) -> bool:
        return self.drive.started is Start.RECOVERY

    def ask(self, function: Callable[[], Any]) -> Future[Any]:
        return self.service.call(function)

    def run_one(self, op: int, offset: int = 0, size: int = 0) -> int:
        try:
            done = self.service.submit(commands_of([(op, offset, size, -1, 0)])).result()
        except InputError:
            return int(Code.INTERNAL_ERROR)
        return first_error(done)

    def erase_stale(self) -> int:
        try:
            self.service.call(self.drive.erase_stale).result()
        except InputError:
            return int(Code.INTERNAL_ERROR)
        return 0

    def critical_warning(self) -> int:
        return int(self.drive.critical_warning)

    def before(self) -> tuple[int, int, Ran]:
        ended = self.drive.ended
        page = int(self.drive.arrays.cfg.page_bytes[0])
        return ended.number, ended.held_up, ran_of(ended.counts, page, ended.time_ps)

    def ran(self, busy_ps: int) -> Ran:
        arrays = self.drive.arrays
        page = int(arrays.cfg.page_bytes[0])
        return ran_of(arrays.count[0], page, self.drive.now, busy_ps)

    def health(self, past: Past, ran: Ran) -> Health:
        arrays = self.drive.arrays
        dev, good = arrays.dev[0], arrays.block["state"] != page_map.BAD
        return health_of(
            ran,
            page_bytes=int(arrays.cfg.page_bytes[0]),
            erases=np.asarray(arrays.block["erases"])[good],
            endurance_cycles=self.cfg.flash.endurance_cycles,
            spare=int(dev.spare),
            spare_at_start=int(dev.spare_at_start),
            spare_threshold=SPARE_THRESHOLD,
            critical_warning=self.critical_warning(),
            free_blocks=int(arrays.pool["free_n"].sum()),
            used_pages=int(dev.mapped),
            bad_blocks=int(arrays.count[0, BAD_BLOCKS]),
            past=past,
        )


class DriveClient:
    """A client of ``service`` that runs its commands itself while it is alone, and hands them over
    otherwise."""

    def __init__(self, service: Service) -> None:
        self._service, self._connection = service, service.connect()

    def run(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
        """Execute commands, COMMAND[n], with their bytes in ``buffer``. Return COMPLETION[n]."""
        done = self._service.try_run(commands, buffer)
        return self._connection.run(commands, buffer) if done is None else done
