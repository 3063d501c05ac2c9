"""Sparse tables: large tables in which a run writes only a few entries.

Owns the memory of the tables and the search for written entries. Does not own their contents.
Source: Linux, mmap(2); Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Iterator
from io import FileIO

import numpy as np

from ondie.emu.units import InputError

SPARSE_BYTES = 1 << 22
"""Maximum size in bytes of a table that is allocated as an ordinary array. Larger tables are mapped
without reserving memory.
"""
HUGE_BYTES = 1 << 30
"""Maximum size in bytes of a sparse table that uses huge memory pages, unless the table is
scattered.

In larger tables, huge pages would allocate memory for many untouched entries.
"""
PART = 1 << 18
"""Largest number of entries per slice that touched_parts() yields."""
SEARCHED = 1 << 24
"""Number of entries that touched_parts() searches per read of /proc/self/pagemap."""
GRAIN = 512
"""Number of consecutive entries that share one in-use flag in touched_parts()."""
_IN_USE_SHIFT = 62
"""Position of the lower of two adjacent bits in an entry of /proc/self/pagemap. Bit 62 is set if
the memory page is swapped out, bit 63 if the memory page is present.
"""


def map_table(
    shape: tuple[int, int], dtype: type[np.number], scattered: bool = False
) -> np.ndarray:
    """Return a zeroed mapping table that occupies memory only for touched memory pages.

    The tables of a server with 32 TB drives are larger than the server's memory, but almost
    untouched. Tables larger than SPARSE_BYTES are therefore mapped without reserving memory. Tables
    larger than HUGE_BYTES use small memory pages. Small pages are also used if ``scattered`` is
    set, which states that writes touch only a few entries in each part of the table. With huge
    pages, the first write to each page would take as long as writing 2 MiB of zeros.

    Raises InputError if the address space is exhausted.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= SPARSE_BYTES:
        return np.zeros(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    flags |= getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        raise InputError(
            f"system.devices: the page maps of {shape[0]} drives take {size / 1e9:.4g} GB of "
            f"address space, more than this machine has ({error.strerror}); use fewer or smaller "
            "drives"
        ) from error
    huge = size <= HUGE_BYTES and not scattered
    advice = "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE"
    if hasattr(mmap, advice):
        with contextlib.suppress(OSError):  # a kernel without huge pages uses small pages
            memory.madvise(getattr(mmap, advice))
    return np.frombuffer(memory, dtype).reshape(shape)


def touched_parts(*tables: np.ndarray) -> Iterator[slice]:
    """Yield slices of at most PART entries each. They cover every entry that may have been written
    in at least one of ``tables``.

    Entries outside the slices are zero. ``tables``: contiguous, one-dimensional, of equal length.
    If the operating system does not report the memory in use, the slices cover all entries.
    """
    length = len(tables[0])
    with contextlib.ExitStack() as stack:
        pagemap = None
        if length > PART:
            with contextlib.suppress(OSError):
                pagemap = stack.enter_context(open("/proc/self/pagemap", "rb", buffering=0))
        for first in range(0, length, SEARCHED if pagemap else PART):
            if pagemap is None:
                yield slice(first, min(first + PART, length))
                continue
            last = min(first + SEARCHED, length)
            used = np.zeros(-(-(last - first) // GRAIN), bool)
            for table in tables:
                used |= _in_use(pagemap, table[first:last])
            ends = np.flatnonzero(np.diff(used, prepend=False, append=False))
            for start, stop in (first + ends.reshape(-1, 2) * GRAIN).tolist():
                for at in range(start, min(stop, last), PART):
                    yield slice(at, min(at + PART, stop, last))


def _in_use(pagemap: FileIO, part: np.ndarray) -> np.ndarray:
    """Return a flag for every GRAIN entries of array ``part``, bool[n]: True if a memory page that
    contains one of these entries is in use.
    """
    count = -(-len(part) // GRAIN)
    first = part.ctypes.data // mmap.PAGESIZE
    last = (part.ctypes.data + part.nbytes - 1) // mmap.PAGESIZE
    pagemap.seek(first * 8)
    entries = pagemap.read((last - first + 1) * 8)
    if len(entries) != (last - first + 1) * 8:
        return np.ones(count, bool)
    present = (np.frombuffer(entries, np.uint64) >> np.uint64(_IN_USE_SHIFT)) != 0
    if not present.any():
        return np.zeros(count, bool)
    before = np.concatenate([[0], np.cumsum(present)])
    at = part.ctypes.data + np.minimum(np.arange(count + 1) * GRAIN, len(part)) * part.itemsize
    low = at[:-1] // mmap.PAGESIZE - first
    high = (at[1:] - 1) // mmap.PAGESIZE - first
    return before[high + 1] > before[low]
