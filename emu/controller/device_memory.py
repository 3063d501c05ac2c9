"""Memory of the device that hosts allocate, and sets of its ranges.

Owns allocation, the bytes, sets of ranges, and which ranges a running command uses. Does not own
the commands (computation.py) or the time that a transfer takes (states/device_program.py).
Source: NVMe Subsystem Local Memory and Computational Programs Command Sets (memory ranges, memory
range sets); the allocation is that of FEMU.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ondie.emu.controller.status_code import Code, Refused

MOST_MEMORIES = MOST_SETS = 1 << 10
ALL = 0xFFFFFFFF
"""Handle that frees all memories and sets."""
GRANULE = 4
"""Offsets and lengths are multiples of this number of bytes."""
RANGE = struct.Struct("<IIQQ")
"""Entry of a set: handle, reserved, offset, length."""
RANGE_BYTES, MOST_RANGES = 32, 64
"""Bytes of an entry, with the reserved ones at its end, and largest number of entries of a set."""


@dataclass(eq=False)
class Memory:
    """Memory that a host has allocated."""

    data: np.ndarray
    """Content, uint8[n]."""
    users: int = 0
    """Number of running commands that use the memory, which cannot be freed meanwhile."""
    programs: int = 0
    """Number of running commands that execute a program on the memory, which cannot be written
    then."""


class Range(NamedTuple):
    """Range of bytes of a host's allocation."""

    memory: Memory
    offset: int
    size: int

    @property
    def data(self) -> np.ndarray:
        """Content, uint8[size]."""
        return self.memory.data[self.offset : self.offset + self.size]


@dataclass
class DeviceMemory:
    """Memories by handle, of ``capacity`` bytes together, and sets of ranges by identifier. Lost
    with the power."""

    capacity: int
    memories: dict[int, Memory] = field(default_factory=dict)
    sets: dict[int, tuple[Range, ...]] = field(default_factory=dict)

    @property
    def allocated(self) -> int:
        return sum(len(each.data) for each in self.memories.values())

    def allocate(self, size: int, where: int) -> int:
        """Allocate ``size`` bytes of zeros; return the handle, from 1 on. ``where``: byte of the
        entry with the size. Raises Refused."""
        if size <= 0 or size % GRANULE:
            raise Refused(Code.INVALID_FIELD, where)
        if size > self.capacity - self.allocated or len(self.memories) >= MOST_MEMORIES:
            raise Refused(Code.CAPACITY_EXCEEDED, where)
        handle = next(n for n in range(1, MOST_MEMORIES + 1) if n not in self.memories)
        self.memories[handle] = Memory(np.zeros(size, np.uint8))
        return handle

    def free(self, handle: int, where: int) -> None:
        """Free a memory and the sets that have a range of it, or ALL. Raises Refused for a handle
        that is not known, or a memory in use."""
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
        """Return a memory. Raises Refused for a handle that is not known."""
        found = self.memories.get(handle)
        if found is None:
            raise Refused(Code.INVALID_FIELD, where)
        return found

    def range(self, handle: int, offset: int, size: int, where: tuple[int, int, int]) -> Range:
        """Return a range. ``where``: bytes of the entry with handle, offset and size. Raises
        Refused for a range that is empty, unaligned, or outside of its memory."""
        memory = self.memory(handle, where[0])
        if offset % GRANULE:
            raise Refused(Code.INVALID_FIELD, where[1])
        if size <= 0 or size % GRANULE:
            raise Refused(Code.INVALID_FIELD, where[2])
        if offset + size > len(memory.data):
            raise Refused(Code.LBA_OUT_OF_RANGE, where[1])
        return Range(memory, offset, size)

    def create_set(self, data: bytes) -> int:
        """Create a set of the ranges in ``data`` (RANGE_BYTES for each); return its identifier,
        from 1 on. Raises Refused."""
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
        """Return the ranges of a set. Raises Refused for an identifier that is not known."""
        if number not in self.sets:
            raise Refused(Code.INVALID_FIELD, where)
        return self.sets[number]

    def delete_set(self, number: int, where: int) -> None:
        """Delete a set; its memory stays. Raises Refused for an identifier that is not known."""
        self.set(number, where)
        del self.sets[number]
