"""Served drive: the interface of a drive for all protocols of one server, and request statistics.

Owns the properties of the drive that protocols need, the drive operations that a server's NVM
subsystem uses, and the number of requests. Does not own the drive (emu/drive.py) and its thread
(emu/service.py), the drive without a flash model (memory_drive.py), or the protocols.
Source: this project.
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
"""Names of the NBD request types in statistics, in the order of the types' numbers."""
LARGEST = 1 << 20
"""Largest request size that NBD reports (bytes), unless the maximum size of a command or the
mapping unit is larger. A request that exceeds the maximum size of a command is split into several
commands."""


class Commands(Protocol):
    """Interface of a client that executes commands on a drive."""

    def run(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
        """Execute ``commands``, COMMAND[n], with their data in ``buffer``. Return the completions,
        COMPLETION[n]."""


class Served(ABC):
    """Interface through which the server protocols (NBD, NVMe/TCP, vfio-user) access a drive. Sizes
    are in bytes.

    ``cfg``: configuration of the drive. ``capacity``, ``unit``, ``block``: sizes of the drive, of a
    mapping unit and of a logical block. ``depth``: maximum number of commands in flight. Raises
    InputError if the protocols do not support the size of the mapping unit or logical block, or the
    maximum transfer size of the drive.
    """

    def __init__(self, cfg: Config, capacity: int, unit: int, block: int, depth: int) -> None:
        self.cfg = cfg
        self.unit, self.block, self.capacity = unit, block, capacity
        """Sizes of a mapping unit (``unit``), of a logical block (``block``), and of the drive
        (``capacity``)."""
        self.transfer = cfg.frontend.max_transfer_bytes // block * block
        """Maximum size of a read or write command."""
        self.depth = depth
        """Maximum number of commands in flight."""
        self.description = f"ondie {cfg.system.name}"
        if unit & (unit - 1):
            raise InputError(
                f"mapping unit = {unit} bytes: must be a power of two for a served drive; change "
                "ftl.mapping_unit"
            )
        if block > MOST_BLOCK:
            raise InputError(
                f"logical block = {block} bytes: must be at most {MOST_BLOCK} bytes for NBD; set a "
                "smaller size, for example --block 4096"
            )
        if not self.transfer:
            raise InputError(
                f"frontend.max_transfer = {cfg.frontend.max_transfer_bytes} bytes: must be at "
                f"least one logical block ({block} bytes)"
            )
        self.at_power_cut: list[Callable[[], None]] = []
        """Functions called after each power cut, in the thread that owns the drive."""
        self.detached = False
        """True if namespace 1 does not consist of all bytes of the drive. NBD requests are then
        refused, because NBD serves the whole drive."""
        self.marks = MarkedBlocks(MediaState(), threading.Lock())
        """Media state: the byte ranges that are marked uncorrectable, and the sanitize state.
        Initially, no bytes are marked."""
        self.zeros = np.zeros(self.transfer, np.uint8)
        """Data for commands that write zeros. This array must not be changed."""
        self._lock = threading.Lock()
        self._requests = [0] * len(REQUEST_NAMES)
        self._errors = 0

    @property
    def export(self) -> Export:
        """Properties of the drive that an NBD server reports to its clients. They are determined
        anew at each access to this attribute."""
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
        """True if the drive is read-only, so that it refuses all writes and trims."""

    @abstractmethod
    def connect(self) -> Commands:
        """Return a client for use by one thread. Its method ``run`` waits until all commands have
        completed."""

    def paced(self) -> Connection | None:
        """Return a connection that delivers completions one by one at their modeled times on the
        wall clock, or None if the drive does not pace completions."""
        return None

    @abstractmethod
    def mapped(self, first: int, count: int) -> np.ndarray:
        """Return a mask, bool[count], of the mapping units ``first`` to ``first + count - 1``: True
        if the mapping unit holds data. Mapping units without data read as zeros. Raises InputError
        if the drive is no longer served."""

    # --- of an NVM subsystem

    @property
    def store(self) -> PageStore | None:
        """Page store of the drive, or None if the drive has no page store."""
        return None

    @property
    def online(self) -> bool:
        """True if the drive is online. The state of the NVM subsystem may be written to the store
        only if this is the case."""
        return True

    @property
    def recovered(self) -> bool:
        """True if the current start of the drive was a recovery, so that its clock and counters
        began at 0. Always True for a drive in host memory."""
        return True

    @abstractmethod
    def ask(self, function: Callable[[], Any]) -> Future[Any]:
        """Call ``function`` in the thread that owns the drive; return a future of the function's
        result. Raises InputError if the drive is no longer served."""

    @abstractmethod
    def run_one(self, op: int, offset: int = 0, size: int = 0) -> int:
        """Execute a command that transfers no data, with operation ``op`` (FLUSH or TRIM); return
        its status."""

    @abstractmethod
    def erase_stale(self) -> int:
        """Erase all blocks that hold old versions of data; return the status (0 for success)."""

    # Only the thread that owns the drive may call these.

    @abstractmethod
    def critical_warning(self) -> int:
        """Return the critical warnings, as bits of nvme.status.CriticalWarning."""

    @abstractmethod
    def before(self) -> tuple[int, int, Ran]:
        """Return (number of starts of the drive that have ended since the drive was opened, number
        of these starts at whose end power-loss protection saved data, sum of the counters of these
        starts)."""

    @abstractmethod
    def ran(self, busy_ps: int) -> Ran:
        """Return the counters of the current start, which ends at a power cut. A drive that was
        closed cleanly continues its start when it is opened again. ``busy_ps``: simulated time in
        which commands were in flight."""

    @abstractmethod
    def health(self, past: Past, ran: Ran) -> Health:
        """Return the health data over the lifetime of the drive. ``past``: health data of earlier
        starts. ``ran``: counters of the current start."""

    # --- statistics

    def count(self, kinds: list[int], errors: int) -> None:
        """Add requests to the statistics. ``kinds``: number of requests of each type, in the order
        of REQUEST_NAMES. ``errors``: number of failed requests."""
        with self._lock:
            self._requests = [a + b for a, b in zip(self._requests, kinds, strict=True)]
            self._errors += errors

    def count_one(self, kind: int, failed: bool) -> None:
        """Add one request to the statistics. ``kind``: index of its type in REQUEST_NAMES."""
        with self._lock:
            self._requests[kind] += 1
            self._errors += failed

    def statistics(self) -> dict[str, int]:
        """Return the number of requests of each type by name, and the number of failed requests."""
        with self._lock:
            found = dict(zip(REQUEST_NAMES, self._requests, strict=True))
            return {**found, "errors": self._errors}


class ServedDrive(Served):
    """Served drive with a flash model. ``drive``: drive, which must store the data of writes
    (payload). ``service``: service of the drive."""

    def __init__(self, drive: Drive, service: Service) -> None:
        depth = min(int(drive.arrays.pair["depth"][0]), PAIR_RING)
        super().__init__(drive.cfg, drive.capacity, drive.unit_bytes, drive.block_bytes, depth)
        self.drive, self.service = drive, service
        self.at_power_on: list[Callable[[], None]] = []
        """Functions that are called after each power-on, in the service thread."""

    def power_on(self) -> None:
        """Switch the power of the drive on. Only the service thread may call this method. Raises
        InputError if the drive or the optimizer states on it cannot be recovered."""
        self.drive.power_on()
        for each in self.at_power_on:
            each()

    def power_cut(self, after_events: int) -> int:
        """Cut the power of the drive after ``after_events`` events of the simulation engine; see
        PowerSystem.power_cut. Only the service thread may call this method."""
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
        """Return a mask, bool[count], of the mapping units ``first`` to ``first + count - 1``: True
        if flash or the data cache holds data of the mapping unit. Raises InputError if the service
        has ended."""

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
    """Client of ``service``. If no other client uses the drive, the calling thread runs the
    commands; otherwise they are handed over to the service thread."""

    def __init__(self, service: Service) -> None:
        self._service, self._connection = service, service.connect()

    def run(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
        """Execute ``commands``, COMMAND[n], with their data in ``buffer``. Return the completions,
        COMPLETION[n]."""
        done = self._service.try_run(commands, buffer)
        return self._connection.run(commands, buffer) if done is None else done
