"""Drive without a flash model: it executes commands immediately on data in host memory.

Owns the memory that holds the data, and the execution of commands. Does not own protocols.
Source: this project, after nbdkit's memory plugin and Linux's null_blk with memory_backed=1.

The drive is the baseline with which the speed of a served drive is compared. Only written data
occupies host memory, so the capacity of the drive may exceed the size of the host's memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.controller.health import Health, Past, Ran, health_of
from ondie.emu.drive import with_blocks
from ondie.emu.engine.core.state import as_records
from ondie.emu.ftl.tables import logical_pages
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nvme.command import COMMAND, COMPLETION, READ, TRIM, WRITE, commands_of
from ondie.emu.nvme.status import SPARE_THRESHOLD
from ondie.emu.nvme.tables import PAIR_RING
from ondie.emu.serve.copy_bytes import copy_bytes
from ondie.emu.serve.served import Served
from ondie.emu.units import InputError
from ondie.kernels.jit import entry, njit

NO_BYTES = np.zeros(0, np.uint8)
MAP_NORESERVE = 0x4000
"""Flag of mmap(2) on Linux: do not reserve swap space for the mapped memory."""


@njit
def execute(commands, memory, store, held, unit, done):
    """Execute drive commands except TRIM on memory. Return True if there is a TRIM; the caller must
    then set the trimmed bytes to zero.

    ``commands``: COMMAND[n]. ``memory``: uint8, buffer with the data of the commands. ``store``:
    uint8[bytes], contents of the drive. ``held``: uint8[units], set to 1 for mapping units that are
    written. ``unit``: size of a mapping unit, bytes. ``done``: COMPLETION[n], set to the
    completions.
    """
    trims = False
    for at in range(commands.size):
        command = commands[at]
        offset, size, data = command.offset, command.size, command.data
        op = int(command.op)
        if op == READ and data >= 0:
            copy_bytes(memory, data, store, offset, size)
        elif op == WRITE:
            copy_bytes(store, offset, memory, data, size)
            held[offset // unit : (offset + size - 1) // unit + 1] = 1
        elif op == TRIM:
            trims = True
        done[at].tag = command.tag
        done[at].status = 0
    return trims


class MemoryDrive(Served):
    """Drive in host memory with the capacity of a drive with configuration ``cfg``.
    ``block_bytes``: logical block size, or None for the default of a drive.

    Raises InputError if a block size or transfer size is invalid for the protocols, or if the
    memory cannot be mapped.
    """

    def __init__(self, cfg: Config, block_bytes: int | None = None) -> None:
        cfg, block = with_blocks(cfg, block_bytes)
        geometry = Geometry.of(cfg)
        unit = geometry.page_bytes
        capacity = logical_pages(cfg, geometry) * unit
        super().__init__(cfg, capacity, unit, block, min(cfg.frontend.queue_depth, PAIR_RING))
        self.description += ", memory"
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            self._pages = mmap.mmap(-1, capacity, flags)
        except (OSError, ValueError, OverflowError) as error:
            raise InputError(
                f"{capacity} bytes of memory, the size of the drive, cannot be mapped: {error}; "
                "use a smaller drive"
            ) from error
        self._store = np.frombuffer(self._pages, np.uint8)
        self._held = np.zeros(-(-capacity // unit), np.uint8)
        commands, done = (as_records(np.zeros(1, each)) for each in (COMMAND, COMPLETION))
        self._execute = entry(execute, commands, NO_BYTES, self._store, self._held, unit, done)

    @property
    def read_only(self) -> bool:
        return False

    def connect(self) -> MemoryClient:
        return MemoryClient(self)

    def mapped(self, first: int, count: int) -> np.ndarray:
        return self._held[first : first + count] != 0

    def ask(self, function: Callable[[], Any]) -> Future[Any]:
        found: Future[Any] = Future()
        try:
            found.set_result(function())
        except InputError as error:
            found.set_exception(error)
        return found

    def run_one(self, op: int, offset: int = 0, size: int = 0) -> int:
        done = MemoryClient(self).run(commands_of([(op, offset, size, -1, 0)]))
        return int(done[0]["status"])

    def erase_stale(self) -> int:
        """Return 0 (success), because the memory does not contain old versions of data."""
        return 0

    def critical_warning(self) -> int:
        return 0

    def before(self) -> tuple[int, int, Ran]:
        return 0, 0, Ran()

    def ran(self, busy_ps: int) -> Ran:
        """Return the counters of the current start. All counters except ``busy_ps`` are 0."""
        return Ran(busy_ps=busy_ps)

    def health(self, past: Past, ran: Ran) -> Health:
        """Return the health data of a drive that does not wear out."""
        return health_of(
            ran,
            page_bytes=self.unit,
            erases=np.zeros(0, np.int64),
            endurance_cycles=self.cfg.flash.endurance_cycles,
            spare=0,
            spare_at_start=0,
            spare_threshold=SPARE_THRESHOLD,
            critical_warning=0,
            free_blocks=0,
            used_pages=int(np.count_nonzero(self._held)),
            bad_blocks=0,
            past=past,
        )

    def execute(self, commands: np.ndarray, memory: np.ndarray, done: np.ndarray) -> None:
        """Execute ``commands``, COMMAND[n], with their data in ``memory``, uint8. Write the
        completions to ``done``, COMPLETION[n]."""
        if self._execute(commands, memory, self._store, self._held, self.unit, done):
            for command in commands[commands["op"] == TRIM]:
                begin = int(command["offset"])
                self._trim(begin, begin + int(command["size"]))

    def _trim(self, begin: int, end: int) -> None:
        """Set the bytes ``begin`` to ``end - 1`` to zero, and return whole memory pages of this
        range to the operating system."""
        page = mmap.PAGESIZE
        first, last = -(-begin // page) * page, end // page * page
        if first < last:
            self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)
            self._store[begin:first] = 0
            self._store[last:end] = 0
        else:
            self._store[begin:end] = 0
        self._held[-(-begin // self.unit) : end // self.unit] = 0


class MemoryClient:
    """Client of a :class:`MemoryDrive`, for use by one thread."""

    def __init__(self, drive: MemoryDrive) -> None:
        self._drive = drive
        self._done = as_records(np.zeros(0, COMPLETION))

    def run(self, commands: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
        """Execute ``commands``, COMMAND[n], with their data in ``buffer``, uint8. Return the
        completions, COMPLETION[n], which the next call overwrites."""
        if len(commands) > len(self._done):
            self._done = as_records(np.zeros(2 * len(commands), COMPLETION))
        done = self._done[: len(commands)]
        self._drive.execute(commands, NO_BYTES if buffer is None else buffer, done)
        return done
