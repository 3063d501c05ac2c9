"""Memory of a virtual machine: the regions that its client has mapped, and accesses to them.

Owns the regions and their checks. Does not own the protocol that announces them (vfio_user.py) or
what lies in them (pcie_queues.py).
Source: vfio-user Protocol Specification, "VFIO_USER_DMA_MAP", "VFIO_USER_DMA_UNMAP"; Linux,
mmap(2), fcntl(2) (file seals).

Regions without a file can only be reached through messages, which the server does not send: they
count as memory that is not there.
"""

from __future__ import annotations

import bisect
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ondie.emu.serve.vfio_wire import MAP_READ, MAP_WRITE, Refused

MOST_REGIONS = 1 << 12
END = 1 << 64
"""End of the address space."""


class Region(NamedTuple):
    """Mapped range of addresses."""

    first: int
    end: int
    memory: np.ndarray | None
    """uint8[end - first]; None: the region has no file."""
    readable: bool
    writable: bool


class GuestMemory:
    """The regions of one client, sorted by address. It is used by one thread."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._regions: list[Region] = []

    def __len__(self) -> int:
        return len(self._regions)

    def map(self, first: int, size: int, flags: int, fd: int | None, offset: int) -> None:
        """Map ``size`` bytes of the file ``fd`` from ``offset`` on at address ``first``; ``fd`` may
        be closed afterwards. Raises Refused: a range that is empty, leaves the address space, the
        file or the pages of the system; EEXIST for one that overlaps another."""
        end = first + size
        if size == 0 or end > END or not flags & (MAP_READ | MAP_WRITE):
            raise Refused(errno.EINVAL)
        if flags & ~(MAP_READ | MAP_WRITE):
            raise Refused(errno.EINVAL)
        if (first | size) % mmap.PAGESIZE:
            raise Refused(errno.EINVAL)
        at = bisect.bisect_right(self._firsts, first)
        if at and self._regions[at - 1].end > first:
            raise Refused(errno.EEXIST)
        if at < len(self._firsts) and self._firsts[at] < end:
            raise Refused(errno.EEXIST)
        if len(self._regions) >= MOST_REGIONS:
            raise Refused(errno.ENOSPC)
        memory = None if fd is None else mapped(fd, offset, size, bool(flags & MAP_WRITE))
        region = Region(first, end, memory, bool(flags & MAP_READ), bool(flags & MAP_WRITE))
        self._firsts.insert(at, first)
        self._regions.insert(at, region)

    def unmap(self, first: int, size: int) -> None:
        """Unmap the region that begins at ``first`` and has ``size`` bytes. Raises Refused (EINVAL)
        for another range."""
        at = bisect.bisect_left(self._firsts, first)
        if at == len(self._firsts) or self._firsts[at] != first:
            raise Refused(errno.EINVAL)
        if self._regions[at].end != first + size:
            raise Refused(errno.EINVAL)
        del self._firsts[at], self._regions[at]

    def clear(self) -> None:
        """Unmap all regions."""
        self._firsts.clear()
        self._regions.clear()

    # --- accesses

    def _parts(self, address: int, size: int, write: bool) -> list[np.ndarray] | None:
        """Return the memory of a range, in order; None if some of it is not there."""
        found = []
        while size:
            at = bisect.bisect_right(self._firsts, address) - 1
            if at < 0:
                return None
            first, end, memory, readable, writable = self._regions[at]
            if address >= end or memory is None or not (writable if write else readable):
                return None
            count = min(size, end - address)
            found.append(memory[address - first : address - first + count])
            address, size = address + count, size - count
        return found

    def read(self, address: int, size: int) -> bytes | None:
        """Return ``size`` bytes; None if some of them are not memory of the guest."""
        parts = self._parts(address, size, write=False)
        return None if parts is None else b"".join(each.tobytes() for each in parts)

    def write(self, address: int, data: bytes | np.ndarray) -> bool:
        """Write ``data``; return False, without effect, if some of it has no place."""
        given = np.frombuffer(data, np.uint8)
        parts = self._parts(address, len(given), write=True)
        if parts is None:
            return False
        at = 0
        for each in parts:
            each[:] = given[at : at + len(each)]
            at += len(each)
        return True

    def write_entry(self, address: int, data: bytes) -> bool:
        """Write a completion queue entry, bytes[16], the half with its phase tag last and in one
        store; return False if it has no place. ``address``: a multiple of 16."""
        parts = self._parts(address, len(data), write=True)
        if parts is None or len(parts) != 1:
            return False
        halves, words = parts[0].view(np.uint64), np.frombuffer(data, np.uint64)
        halves[0] = words[0]
        halves[1] = words[1]
        return True

    def holds(self, address: int, size: int) -> bool:
        """Return True if all bytes can be read."""
        return self._parts(address, size, write=False) is not None

    def accepts(self, address: int, size: int) -> bool:
        """Return True if all bytes can be written."""
        return self._parts(address, size, write=True) is not None

    def __iter__(self) -> Iterator[Region]:
        return iter(self._regions)


def mapped(fd: int, offset: int, size: int, writable: bool) -> np.ndarray:
    """Return ``size`` bytes of a file from ``offset`` on, uint8[size]. Raises Refused.

    A file that shrinks later would end the process at the next access (SIGBUS), so it is sealed
    against that if it can be.
    """
    try:
        if os.fstat(fd).st_size < offset + size:
            raise Refused(errno.EINVAL)
        with suppress(OSError):  # no memfd, or its owner does not allow seals
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        memory = mmap.mmap(fd, size, mmap.MAP_SHARED, protection, offset=offset)
    except OSError as error:
        raise Refused(error.errno or errno.EIO) from error
    except (ValueError, OverflowError) as error:
        raise Refused(errno.EINVAL) from error
    return np.frombuffer(memory, np.uint8)
