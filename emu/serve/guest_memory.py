"""Memory of a virtual machine: the regions that its client has mapped, and accesses to them.

Owns the regions and their checks. Does not own the protocol that announces them (vfio_user.py) or
their content (pcie_queues.py).
Source: vfio-user Protocol Specification, "VFIO_USER_DMA_MAP", "VFIO_USER_DMA_UNMAP"; Linux,
mmap(2).

Regions without a file can only be reached through messages, which the server does not send: they
count as missing memory.
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
    """The regions of one client, sorted by address, as ``guest`` accesses them. It is used by one
    thread."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._firsts: list[int] = []
        self._regions: list[Region] = []

    def __len__(self) -> int:
        return len(self._regions)

    def _changed(self) -> None:
        """Tell the guest its regions. Their memory was not released before."""
        self.guest.set_regions(
            [(first, end - 1, 0 if memory is None else memory.ctypes.data, readable, writable)
             for first, end, memory, readable, writable in self._regions]
        )  # fmt: skip

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
        self._changed()

    def unmap(self, first: int, size: int) -> None:
        """Unmap the region that begins at ``first`` and has ``size`` bytes. Raises Refused (EINVAL)
        for another range."""
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
        """Return ``size`` bytes; None if some of them are not memory of the guest."""
        found = self.guest.read(address, size)
        return None if found is None else bytes(found)

    def write(self, address: int, data: bytes | np.ndarray) -> bool:
        """Write ``data``; return False, without effect, if a byte of the range is not writable
        memory of the guest."""
        return self.accepts(address, len(data)) and self.guest.write(address, data)

    def holds(self, address: int, size: int) -> bool:
        """Return True if all bytes can be read."""
        return self.guest.holds(address, size)

    def accepts(self, address: int, size: int) -> bool:
        """Return True if all bytes can be written."""
        return self.guest.holds(address, size, to_guest=True)


def mapped(fd: int, offset: int, size: int, writable: bool) -> np.ndarray:
    """Return ``size`` bytes of a file from ``offset`` on, uint8[size]. Raises Refused.

    If the file shrinks later, its pages are gone (kernels/guest.py).
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
