"""Sparse files: memory maps, reservation of file space, and holes.

Owns the system calls. Does not own the content of the files (segment_files.py).
Source: Linux manual pages mmap(2), fallocate(2), lseek(2).

A write to a mapped page for which the file system has no space ends the process with SIGBUS.
Therefore, space is reserved first (:func:`reserve`), which raises OSError if the file system is
full.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Iterator

import numpy as np

KEEP_SIZE, PUNCH_HOLE = 1, 2  # fallocate(2): FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
MAP_FIXED = 0x10  # mmap(2)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for an exhausted file system, quota or file-size limit."""
NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Error numbers of fallocate(2) if the file system does not support holes."""
FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _libc() -> ctypes.CDLL:
    """Return the C library with the types of the functions that this module calls."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    )  # fmt: skip
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return libc


def _failed(doing: str) -> OSError:
    """Return an exception for the last failed call of the C library. ``doing``: start of its
    message."""
    number = ctypes.get_errno()
    return OSError(number, f"{doing}: {os.strerror(number)}")


class _Memory:
    """A range of memory, unmapped when the last array that uses it is deleted.

    The file descriptor is needed only during the mapping, because, unlike mmap.mmap, this class
    keeps no copy of the descriptor.
    """

    def __init__(self, size: int, flags: int, handle: int = -1, writable: bool = True) -> None:
        libc = _libc()
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        found = libc.mmap(None, size, protection, flags, handle, 0)
        if found == FAILED:
            raise _failed(f"{size} bytes cannot be mapped")
        self._unmap, self._size, self.address = libc.munmap, size, int(found)
        self.__array_interface__ = {
            "data": (self.address, not writable), "shape": (size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._unmap(self.address, self._size)


def map_shared(handle: int, size: int, writable: bool = True) -> np.ndarray:
    """Return the first ``size`` bytes of an open file as memory, uint8[size]. Raises OSError if
    they cannot be mapped.

    Bytes that are written to this memory are in the file immediately, even if the process is killed
    afterwards.
    """
    return np.asarray(_Memory(size, mmap.MAP_SHARED, handle, writable))


def blank(size: int) -> np.ndarray:
    """Return zeroed memory that is not in a file, uint8[size]. Raises OSError if it cannot be
    mapped.
    """
    return np.asarray(_Memory(size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def map_private(handle: int, size: int) -> np.ndarray:
    """Map the first ``size`` bytes of an open file copy-on-write, uint8[size]: writes to the array
    do not change the file. Raises OSError if the file cannot be mapped.

    Holes are mapped to anonymous memory, because some file systems would allocate space for them.
    """
    memory = _Memory(size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_FIXED
    for start, end in data_extents(handle, size):
        first = start - start % mmap.PAGESIZE
        place = memory.address + first
        if _libc().mmap(place, end - first, protection, flags, handle, first) == FAILED:
            raise _failed(f"{size} bytes cannot be mapped")
    return np.asarray(memory)


def data_extents(handle: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield, in order, the byte ranges (start, end) that may hold data within the first ``size``
    bytes of a file. All other bytes are zeros."""
    end = 0
    while end < size:
        try:
            start = os.lseek(handle, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end of the file
                return
            raise
        if start >= size:
            return
        end = min(os.lseek(handle, start, os.SEEK_HOLE), size)
        yield start, end


def reserve(handle: int, start: int, size: int) -> None:
    """Reserve file space for ``size`` bytes of a file, starting at byte ``start``. The contents do
    not change. Raises OSError if this fails, with an error number in FULL if the file system is
    full."""
    os.posix_fallocate(handle, start, size)


def punch(handle: int, start: int, size: int) -> bool:
    """Release the file space of ``size`` bytes, starting at byte ``start``. These bytes then read
    as zeros. Return False if the file system does not support this. Raises OSError for any other
    failure."""
    if _libc().fallocate64(handle, KEEP_SIZE | PUNCH_HOLE, start, size) == 0:
        return True
    error = _failed("file space cannot be released")
    if error.errno in NO_HOLES:
        return False
    raise error
