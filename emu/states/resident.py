"""States of a drive whose host stores gradients in the drive's DRAM and reads states by address.

Owns the update from a gradient that is already in the drive, concurrently with other plans. Also
owns the address range that contains the data of all vectors, and the plan of a read from this
range. Does not own the update and its recovery (drive_states.py), or the commands of the host
(serve/computation.py). Source: this project.

The address range contains the weights and then each state. Each vector starts at a multiple of
ALIGNMENT.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ondie.emu.compute import pe
from ondie.emu.drive import Drive
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.core.payload_log import LogEntry
from ondie.emu.engine.core.plan_rows import MixedPlan
from ondie.emu.nand import timing
from ondie.emu.nvme.status import Condition
from ondie.emu.paths.base import WEIGHTS_UP, Rows
from ondie.emu.states import device_program
from ondie.emu.states.drive_states import DriveStates
from ondie.emu.units import InputError
from ondie.kernels import KernelError, get
from ondie.kernels.hyper import checked

FLAGS = frozenset({"maximize"})
"""Hyperparameters that are Boolean flags."""
NO_RESERVE = 0x4000
"""Flag MAP_NORESERVE of mmap(2) on Linux."""
ROW_UNITS = 64
"""Maximum number of mapping units per plan row of a copy."""
ALIGNMENT = 4096
"""Alignment of each vector in the address range (bytes)."""


class NotStored(InputError):
    """Raised if the store has no room for results of an update, or if they cannot be synced
    (durability "host")."""


class VectorPlace(NamedTuple):
    """Location of one vector (the weights or a state) in the address range of a drive. ``first``:
    address of its first byte; ``size``: size in bytes."""

    name: str
    first: int
    size: int


class ResidentStates(DriveStates):
    """DriveStates for a host that accesses the states with computation commands."""

    _update: MixedPlan | None = None
    _copies: mmap.mmap | None = None
    _copying: list[tuple[int, int]]
    """Byte ranges of ``_copies``, as (first byte, end) of whole memory pages: one for each copy
    that was begun and not yet taken by take_copy()."""

    # --- updates

    def begin_update(self, gradient: np.ndarray, stop: int | None = None) -> MixedPlan:
        """Start an update as :meth:`start_update` does, with a ``gradient`` that is in the DRAM of
        the drive, concurrently with other plans. Return the plan. Raises InputError as
        :meth:`start_update` does."""
        self.start_update(gradient, stop)
        payload = self._opened
        payload.staged[:] = gradient
        assert self._update is not None
        return self._update

    @property
    def stop_params(self) -> int:
        """Granularity of a partial update, in parameters: the size of a stripe, or the size of the
        whole model if parities over dies are used (pe.rain). A partial update must end at a
        multiple of this number or after the last parameter."""
        return self.n_params if self._path.guarded[0].members else self.stripe_params

    @property
    def stored_all(self) -> bool:
        """False if pages that updates have programmed are only in memory, because the store had no
        room for them, or because they could not be synced with durability "host"."""
        self._make_durable()
        return self._opened.moved.full is None

    def _make_durable(self) -> None:
        super()._make_durable()
        self._end_unless_stored()

    def apply(self, entry: LogEntry) -> None:
        """Apply an entry of the engine's log, as DriveStates does. If the store cannot save results
        of the running update, end the update early, because the results would exist only in memory.
        """
        super().apply(entry)
        self._end_unless_stored()

    def _end_unless_stored(self) -> None:
        full = None if self._payload is None else self._payload.moved.full
        if full is not None and self._update is not None:
            self._update.stop(NotStored(str(full)))

    @property
    def hyper_names(self) -> tuple[str, ...]:
        """Names of the optimizer's hyperparameters."""
        return tuple(get(self._trace.op).takes)

    def set_hyper(self, values: tuple[float, ...], going_on: bool = False) -> None:
        """Set all hyperparameters, in the order of ``hyper_names``; a flag is 0 or 1. Raises
        InputError if a value is out of range, or if ``going_on`` is True (an incomplete update
        continues) and the values differ from those at the start of the update."""
        names = self.hyper_names
        given: dict[str, float | bool] = dict(zip(names, values, strict=True))
        for name in FLAGS & set(names):
            if given[name] not in (0, 1):
                raise InputError(f"hyper[{name!r}] = {given[name]:g}: must be 0 or 1")
            given[name] = bool(given[name])
        try:
            checked(self._trace.op, names, given)
        except KernelError as error:
            raise InputError(f"hyper: {error}") from error
        if going_on and given != dict.fromkeys(names, 0) | dict(self.hyper):
            raise InputError(
                f"hyper = {given}: the incomplete update started with "
                f"{dict.fromkeys(names, 0) | dict(self.hyper)}; set these values"
            )
        self.hyper = given

    @property
    def online(self) -> bool:
        """True if the drive has power and can write."""
        return self._drive is not None and self._drive.condition is Condition.ONLINE

    @property
    def updating(self) -> bool:
        """True while an update is running."""
        return self._updating()

    def _updating(self) -> bool:
        return self._update is not None and not self._update.done

    def _run_update(self, drive: Drive, plan: Iterator[np.ndarray]) -> None:
        self._update = drive.start_beside(map(_resident, plan))

    def create(self, drive: Drive, vectors: Mapping[str, np.ndarray]) -> None:
        """Store the initial weights and states, as DriveStates does. Raises the errors of
        DriveStates, and InputError if the process has too little address space for a copy of the
        drive's contents.
        """
        self._reserve(drive)
        super().create(drive, vectors)

    def open(self, drive: Drive) -> None:
        """Open the states in the reservoir of ``drive``, as DriveStates does. Raises the errors of
        DriveStates, and InputError if the process has too little address space for a copy of the
        drive's contents.
        """
        self._update = None
        self._reserve(drive)
        assert self._copies is not None
        self._copies.madvise(mmap.MADV_DONTNEED)  # of copies that a loss of power has ended
        super().open(drive)

    # --- copies of mapping units

    def _reserve(self, drive: Drive) -> None:
        """Reserve address space for a copy of the drive's contents, from which the processor reads
        mapping units. Precondition: no copy is running. Memory is committed only when it is
        written. Raises InputError if the process has too little address space."""
        self._copying = []
        if self._copies is not None:
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        try:
            self._copies = mmap.mmap(-1, drive.capacity, flags=flags)
        except OSError as error:
            raise InputError(
                f"drive: cannot reserve {drive.capacity} bytes of address space: {error.strerror}; "
                "raise the limit (ulimit -v), or use a smaller drive"
            ) from error
        units = np.frombuffer(self._copies, np.uint8).reshape(drive.units, drive.unit_bytes)
        self.memory = [units]

    def begin_copy(self, first: int, size: int) -> MixedPlan:
        """Start the read of ``size`` bytes, starting at byte address ``first`` of the drive, into
        its DRAM, concurrently with other plans. Return the plan. Raises InputError if the states
        are not open or the drive is offline."""
        drive = self._drive
        if drive is None:
            raise InputError("the states are not open; call open() first")
        unit = drive.unit_bytes
        low, high = first // unit, -(-(first + size) // unit)
        pages = _pages(low * unit, high * unit)
        self._copying.append(pages)
        return drive.start_beside(self._copy(pages, low, high - low, unit))

    def _copy(
        self, pages: tuple[int, int], low: int, units: int, unit: int
    ) -> Iterator[np.ndarray]:
        """Yield the plan rows of a copy to ``pages``. If the rows cannot be created, release
        ``pages``."""
        try:
            yield from device_program.copy(low, units, unit, ROW_UNITS)
        except Exception:
            self._copying.remove(pages)
            raise

    def take_copy(self, first: int, size: int) -> np.ndarray:
        """Return the data of a copy that is done, uint8[size]. Release the memory that no other
        copy uses."""
        assert self._copies is not None and self._drive is not None
        found = self.memory[0].reshape(-1)[first : first + size].copy()
        unit = self._drive.unit_bytes
        low, high = _pages(first // unit * unit, -(-(first + size) // unit) * unit)
        self._copying.remove((low, high))
        for begin, end in sorted(self._copying):  # they may have brought the same bytes
            if low < min(begin, high):
                self._copies.madvise(mmap.MADV_DONTNEED, low, min(begin, high) - low)
            low = max(low, end)
        if low < high:
            self._copies.madvise(mmap.MADV_DONTNEED, low, high - low)
        return found

    # --- the range of addresses

    @property
    def places(self) -> tuple[VectorPlace, ...]:
        """Locations of the weights "w" and of the states in the address range, in order."""
        size = self.n_params * self._path.stripes[0].dtype.itemsize
        room = -(-size // ALIGNMENT) * ALIGNMENT
        names = self._path.vectors
        return tuple(VectorPlace(name, at * room, size) for at, name in enumerate(names))

    @property
    def bytes_of_all(self) -> int:
        """Size of the address range that contains all vectors (bytes)."""
        last = self.places[-1]
        return last.first + -(-last.size // ALIGNMENT) * ALIGNMENT

    def begin_read(self, first: int, size: int) -> MixedPlan:
        """Start reading ``size`` bytes at address ``first`` to the host, and return the plan. The
        plan covers array read, channel, DRAM and link, and runs concurrently with other plans.
        Raises InputError if the drive is offline or the states are not open."""
        drive = self._drive
        if drive is None or drive.moved.plans is not self:
            raise InputError("the states are not open; call open() first")
        rows = Rows(0)
        path, stripes, count = self._path, self._path.stripes[0], 0
        for place, low, high in self._parts(first, size):
            width = stripes.dtype.itemsize
            its = np.arange(low // width // stripes.params, -(-high // width // stripes.params))
            begins = its * stripes.params * width
            ends = np.minimum(begins + stripes.params * width, place.size)
            moved = np.minimum(ends, high) - np.maximum(begins, low)
            pages = -(-moved // self._path.geometry.flash_page_bytes)
            rows.add(
                len(its),
                resource=plan_rows.DIE,
                kind=timing.READ,
                phase=WEIGHTS_UP,
                lpn=path.homes[0].super_pages(0, stripes.count)[its],
                bytes_out=moved,
                array_ps=np.array([pe.ecc_ps(self.cfg, int(each)) for each in pages], np.int64),
            )
            count += len(its)
        return drive.start_beside([rows.take()] if count else [])

    def _parts(self, first: int, size: int) -> Iterator[tuple[VectorPlace, int, int]]:
        """Yield the vectors that overlap an address range, with the overlapping bytes [low, high)
        of each vector."""
        for place in self.places:
            low, high = max(first - place.first, 0), min(first + size - place.first, place.size)
            if low < high:
                yield place, low, high

    def stored_bytes(self, first: int, size: int) -> np.ndarray:
        """Return ``size`` bytes as stored on flash, starting at address ``first``, uint8[size], in
        zero simulated time. Bytes between and after the vectors are zeros."""
        out = np.zeros(size, np.uint8)
        payload, stripes = self._opened, self._path.stripes[0]
        width = stripes.dtype.itemsize
        super_pages = payload.homes[0].super_pages(0, stripes.count)
        for place, low, high in self._parts(first, size):
            per = stripes.params * width
            for stripe in range(low // per, -(-high // per)):
                at = payload.at(0, int(super_pages[stripe]))
                for group in range(stripes.groups):
                    start, stop = (each * width for each in stripes.span(stripe, group))
                    a, b = max(start, low), min(stop, high)
                    if a >= b:
                        continue
                    page = payload.page(at, stripes.plane(place.name, group))
                    data = payload.flash[0].read(page)[a - start : b - start]
                    out[place.first + a - first : place.first + b - first] = data
        return out


def _pages(first: int, end: int) -> tuple[int, int]:
    """Return the memory pages that contain bytes ``first`` to ``end`` (exclusive), as (first byte,
    end).
    """
    return first // mmap.PAGESIZE * mmap.PAGESIZE, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE


def _resident(rows: np.ndarray) -> np.ndarray:
    """Convert plan rows of an update so that the gradient is taken from DRAM and not sent by the
    host. Return the rows."""
    loads = rows["resource"] == plan_rows.DMA_DOWN
    rows["resource"][loads] = plan_rows.JOIN
    rows["bytes_in"][loads] = rows["tag"][loads] = 0
    return rows
