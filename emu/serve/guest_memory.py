"""Memory of a virtual machine: the regions that the vfio-user client has mapped, and accesses to
them.

Owns the regions and their checks. Does not own the protocol messages that map regions
(vfio_user.py) or the contents of the memory (pcie_queues.py).
Source: vfio-user Protocol Specification, "VFIO_USER_DMA_MAP", "VFIO_USER_DMA_UNMAP"; Linux,
mmap(2).

A region without a file could be accessed only with messages, which the server does not send. Such a
region is treated as if its memory did not exist.
"""

from __future__ import annotations

import bisect
import errno
import mmap
import os
from typing import NamedTuple

import numpy as np

from ondie.emu.serve.vfio_wire import MAP_READ, MAP_WRITE, Refused
from ondie.kernels.guest import Guest

MOST_REGIONS = 1 << 12
END = 1 << 64
"""End of the 64-bit address space."""


class Region(NamedTuple):
    """Range of guest addresses that the client has mapped: ``first`` to ``end - 1``."""

    first: int
    end: int
    memory: np.ndarray | None
    """Contents, uint8[end - first], or None if the region has no file."""
    readable: bool
    writable: bool


class GuestMemory:
    """Regions of guest memory that one client has mapped. ``guest``: object that accesses the
    memory of the regions. Only one thread may use a GuestMemory object."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._firsts: list[int] = []
        self._regions: list[Region] = []

    def __len__(self) -> int:
        return len(self._regions)

    def _changed(self) -> None:
        """Pass the regions to ``guest``. The caller must not release the memory of removed regions
        before this method returns."""
        self.guest.set_regions(
            [(first, end - 1, 0 if memory is None else memory.ctypes.data, readable, writable)
             for first, end, memory, readable, writable in self._regions]
        )  # fmt: skip

    def map(self, first: int, size: int, flags: int, fd: int | None, offset: int) -> None:
        """Map the ``size`` bytes of file ``fd`` starting at ``offset`` at guest address ``first``.

        ``flags``: MAP_READ, MAP_WRITE or both. ``fd``: file descriptor, which may be closed
        afterwards, or None for a region without a file. Raises Refused with EINVAL if the flags are
        invalid, or if the range is empty, is not page-aligned, or exceeds the address space or the
        file. Raises Refused with EEXIST if the range overlaps another region, and with ENOSPC if
        MOST_REGIONS regions exist.
        """
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
        self._changed()

    def unmap(self, first: int, size: int) -> None:
        """Unmap the region that begins at ``first`` and has ``size`` bytes. Raises Refused with
        EINVAL if there is no such region."""
        at = bisect.bisect_left(self._firsts, first)
        if at == len(self._firsts) or self._firsts[at] != first:
            raise Refused(errno.EINVAL)
        if self._regions[at].end != first + size:
            raise Refused(errno.EINVAL)
        kept = self._regions[at]  # until no pointer leads there
        del self._firsts[at], self._regions[at]
        self._changed()
        del kept

    def clear(self) -> None:
        """Unmap all regions."""
        kept, self._regions = self._regions, []
        self._firsts.clear()
        self._changed()
        kept.clear()

    # --- accesses

    def read(self, address: int, size: int) -> bytes | None:
        """Return the ``size`` bytes starting at ``address``, or None if any of these bytes is not
        readable memory of the guest."""
        found = self.guest.read(address, size)
        return None if found is None else bytes(found)

    def write(self, address: int, data: bytes | np.ndarray) -> bool:
        """Write ``data`` at ``address`` and return True. Return False if any byte of the range is
        not writable memory of the guest."""
        return self.accepts(address, len(data)) and self.guest.write(address, data)

    def holds(self, address: int, size: int) -> bool:
        """Return True if all ``size`` bytes starting at ``address`` are readable memory of the
        guest."""
        return self.guest.holds(address, size)

    def accepts(self, address: int, size: int) -> bool:
        """Return True if all ``size`` bytes starting at ``address`` are writable memory of the
        guest."""
        return self.guest.holds(address, size, to_guest=True)


def mapped(fd: int, offset: int, size: int, writable: bool) -> np.ndarray:
    """Map the ``size`` bytes of file ``fd`` starting at ``offset``; return the mapped memory,
    uint8[size]. ``writable``: True to allow writes. Raises Refused if the file is too short or
    cannot be mapped.

    If the file is truncated later, accesses to the removed pages fail (kernels/guest.py).
    """
    try:
        if os.fstat(fd).st_size < offset + size:
            raise Refused(errno.EINVAL)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        memory = mmap.mmap(fd, size, mmap.MAP_SHARED, protection, offset=offset)
    except OSError as error:
        raise Refused(error.errno or errno.EIO) from error
    except (ValueError, OverflowError) as error:
        raise Refused(errno.EINVAL) from error
    return np.frombuffer(memory, np.uint8)
