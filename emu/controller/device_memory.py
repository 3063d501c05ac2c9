"""Device memory that hosts allocate, and memory range sets.

Owns the allocation and the contents of device memories, the memory range sets, and the counts of
running commands per device memory. Does not own the commands (computation.py) or the time of a
transfer (states/device_program.py).
Source: NVMe Subsystem Local Memory and Computational Programs Command Sets (memory ranges, memory
range sets); allocation by handle as in FEMU.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ondie.emu.controller.status_code import Code, Refused

MOST_MEMORIES = MOST_SETS = 1 << 10
ALL = 0xFFFFFFFF
"""Handle that selects all allocated device memories when a host frees memory."""
GRANULE = 4
"""Granularity of the offsets and lengths of memory ranges, bytes."""
RANGE = struct.Struct("<IIQQ")
"""Entry of a memory range set, as a host sends it: handle, reserved, offset, length."""
RANGE_BYTES, MOST_RANGES = 32, 64
"""RANGE_BYTES: size of an entry of a memory range set, including the reserved bytes at its end.
MOST_RANGES: maximum number of entries of a set."""


@dataclass(eq=False)
class Memory:
    """Device memory that a host has allocated with one command. Commands refer to the memory by its
    handle."""

    data: np.ndarray
    """Content of the memory, uint8[size in bytes]."""
    users: int = 0
    """Number of running commands that use the memory. The memory can be freed only if this number
    is 0."""
    programs: int = 0
    """Number of running program executions that use the memory. A host can write to the memory only
    if this number is 0."""


class Range(NamedTuple):
    """Memory range: the ``size`` bytes of ``memory`` that start at byte ``offset``."""

    memory: Memory
    offset: int
    size: int

    @property
    def data(self) -> np.ndarray:
        """Content of the range, uint8[size]. Writes to the array change the memory."""
        return self.memory.data[self.offset : self.offset + self.size]


@dataclass
class DeviceMemory:
    """Device memory of a drive: allocated memories by handle, and memory range sets by identifier.
    The total size of the memories is at most ``capacity`` bytes. All contents are lost at a power
    cut."""

    capacity: int
    memories: dict[int, Memory] = field(default_factory=dict)
    sets: dict[int, tuple[Range, ...]] = field(default_factory=dict)

    @property
    def allocated(self) -> int:
        return sum(len(each.data) for each in self.memories.values())

    def allocate(self, size: int, where: int) -> int:
        """Allocate ``size`` zeroed bytes; return the handle of the memory, which is the smallest
        free number (at least 1). ``where``: byte offset of the size in the submission queue entry.
        Raises Refused if the size is invalid or exceeds the free capacity, or if the maximum number
        of memories is allocated."""
        if size <= 0 or size % GRANULE:
            raise Refused(Code.INVALID_FIELD, where)
        if size > self.capacity - self.allocated or len(self.memories) >= MOST_MEMORIES:
            raise Refused(Code.CAPACITY_EXCEEDED, where)
        handle = next(n for n in range(1, MOST_MEMORIES + 1) if n not in self.memories)
        self.memories[handle] = Memory(np.zeros(size, np.uint8))
        return handle

    def free(self, handle: int, where: int) -> None:
        """Free the memory with handle ``handle`` and all memory range sets that contain a range of
        this memory. If the handle is ALL, free all memories and sets. ``where``: byte offset of the
        handle in the submission queue entry. Raises Refused if the handle is unknown, or if a
        running command uses one of the memories."""
        if handle == ALL:
            gone = list(self.memories.values())
        else:
            gone = [self.memory(handle, where)]
        if any(each.users for each in gone):
            raise Refused(Code.COMMAND_INTERRUPTED, where)
        self.memories = {n: each for n, each in self.memories.items() if each not in gone}
        self.sets = {
            n: ranges
            for n, ranges in self.sets.items()
            if not any(each.memory in gone for each in ranges)
        }

    def memory(self, handle: int, where: int) -> Memory:
        """Return the memory with handle ``handle``. ``where``: byte offset of the handle in the
        submission queue entry. Raises Refused if the handle is unknown."""
        found = self.memories.get(handle)
        if found is None:
            raise Refused(Code.INVALID_FIELD, where)
        return found

    def range(self, handle: int, offset: int, size: int, where: tuple[int, int, int]) -> Range:
        """Return the range of ``size`` bytes at byte ``offset`` of the memory with handle
        ``handle``. ``where``: byte offsets of the handle, the offset and the size in the submission
        queue entry. Raises Refused if the range is empty, is not aligned to GRANULE bytes or
        exceeds the memory, or if the handle is unknown."""
        memory = self.memory(handle, where[0])
        if offset % GRANULE:
            raise Refused(Code.INVALID_FIELD, where[1])
        if size <= 0 or size % GRANULE:
            raise Refused(Code.INVALID_FIELD, where[2])
        if offset + size > len(memory.data):
            raise Refused(Code.LBA_OUT_OF_RANGE, where[1])
        return Range(memory, offset, size)

    def create_set(self, data: bytes) -> int:
        """Create a memory range set from the entries in ``data`` (RANGE_BYTES bytes per entry);
        return the identifier of the set, which is the smallest free number (at least 1). Raises
        Refused if a range is invalid, or if the maximum number of sets already exists."""
        ranges = []
        for at in range(0, len(data), RANGE_BYTES):
            handle, _, offset, size = RANGE.unpack_from(data, at)
            ranges.append(self.range(handle, offset, size, (0, 0, 0)))
        if len(self.sets) >= MOST_SETS:
            raise Refused(Code.CAPACITY_EXCEEDED)
        number = next(n for n in range(1, MOST_SETS + 1) if n not in self.sets)
        self.sets[number] = tuple(ranges)
        return number

    def set(self, number: int, where: int) -> tuple[Range, ...]:
        """Return the ranges of the memory range set with identifier ``number``. ``where``: byte
        offset of the identifier in the submission queue entry. Raises Refused if the identifier is
        unknown."""
        if number not in self.sets:
            raise Refused(Code.INVALID_FIELD, where)
        return self.sets[number]

    def delete_set(self, number: int, where: int) -> None:
        """Delete the memory range set with identifier ``number`` without freeing the memories of
        its ranges. ``where``: byte offset of the identifier in the submission queue entry. Raises
        Refused if the identifier is unknown."""
        self.set(number, where)
        del self.sets[number]
