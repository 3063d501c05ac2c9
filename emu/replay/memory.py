"""Host memory that a replay needs: estimate, measured use, and memory available on this machine.

Owns the estimate, the measurement, and the error for a replay that does not fit in memory. Does not
own the tables (ftl/tables.py).
Source: record widths of the tables; Linux, Documentation/filesystems/proc.rst (MemAvailable, VmHWM)
and Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

from ondie.emu.config.config import Config
from ondie.emu.ftl import tables
from ondie.emu.nand.geometry import Geometry
from ondie.emu.units import InputError, fmt_bytes

PROGRAM_BYTES = 800 << 20
"""Estimated memory (bytes) of the program, of compilation, and of the tables whose size does not
depend on the number of pages."""
REQUEST_BYTES = 140
"""Estimated memory (bytes) per request: its columns in the trace, its REQUEST record, and its
latency."""
SECTOR_MASK_BYTES = 8


def mapped_bytes(cfg: Config) -> int:
    """Return the memory per mapped flash page in bytes: its entries in the mapping table and the
    reverse map and, with ftl.partial_pages = "sectors", its mask of valid sectors."""
    width = tables.map_dtype(Geometry.of(cfg).physical_pages)().itemsize
    return 2 * width + SECTOR_MASK_BYTES * (cfg.ftl.partial_pages == "sectors")


def needed_bytes(
    cfg: Config, kind: str, requests: int, written_pages: int, filled_pages: int | None = None
) -> int:
    """Return an estimate of the peak memory of a replay in bytes.

    ``kind``: kind of preconditioning ("none", "fill" or "steady"). ``requests``: number of
    commands. ``written_pages``: number of pages that the trace may write. ``filled_pages``: number
    of pages that "fill" maps, or None if it maps all logical pages, as "steady" does. With random
    addresses, each mapped page can occupy a whole memory page of each table; the estimate does not
    include this.
    """
    pages = tables.logical_pages(cfg, Geometry.of(cfg))
    mapped = min(written_pages, pages) if kind == "none" else pages
    if kind == "fill" and filled_pages is not None:
        mapped = filled_pages
    return PROGRAM_BYTES + mapped * mapped_bytes(cfg) + requests * REQUEST_BYTES


def available_bytes() -> int | None:
    """Return the memory that this process can still allocate, in bytes, or None if it is
    unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        (line,) = (line for line in text.splitlines() if line.startswith("MemAvailable:"))
        limits.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text(encoding="ascii"))
        limits.append(most - int((group / "memory.current").read_text(encoding="ascii")))
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        limits.append(space)
    return min(limits) if limits else None


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process so far, in bytes.

    It is VmHWM of /proc/self/status. Without /proc, it is ru_maxrss of getrusage, which includes
    the peak of the process that started this process.
    """
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc/self/status").read_text(encoding="ascii")
        (line,) = (line for line in text.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def check_memory(
    cfg: Config, kind: str, requests: int, written_pages: int, filled_pages: int | None = None
) -> None:
    """Raise InputError if a replay needs more memory than is available. The message proposes
    options with which the replay fits. The arguments are those of needed_bytes()."""
    needed = needed_bytes(cfg, kind, requests, written_pages, filled_pages)
    available = available_bytes()
    if available is None or needed <= available:
        return
    pages = tables.logical_pages(cfg, Geometry.of(cfg))
    ways = []
    if kind != "none":
        empty = needed_bytes(cfg, "none", requests, written_pages)
        if empty <= available:
            ways.append(f"use --precondition none (about {fmt_bytes(empty, binary=True)})")
    if kind == "steady" or (kind == "fill" and filled_pages is None):
        spare = available - (needed - pages * mapped_bytes(cfg))
        blocks = int(cfg.flash.blocks_per_plane * spare * 0.95 / (pages * mapped_bytes(cfg)))
        if blocks >= 64:
            ways.append(f"use a smaller drive (--set flash.blocks_per_plane={blocks})")
    if not ways:
        ways = ["replay fewer requests"]
    raise InputError(
        f"{cfg.system.name}: the replay of {requests:,} requests with --precondition {kind} needs "
        f"about {fmt_bytes(needed, binary=True)} of memory, and "
        f"only {fmt_bytes(available, binary=True)} are available; {' or '.join(ways)}"
    )
