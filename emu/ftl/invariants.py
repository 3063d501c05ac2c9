"""Invariants of one device: counts that must agree if no page, byte or command was lost.

Owns the comparison of the page map with the blocks, and of the counters with each other. Does not
own the counters (engine/core/counters.py), the invariants of flash management (balance.py), or
totals over devices and plans (analysis/ledger.py).
Source: STYLE, conservation: issued = completed, bytes in = bytes out, valid pages = mapped pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ondie.emu.engine.core import counters, stages
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import balance
from ondie.emu.nand.geometry import Geometry
from ondie.kernels.jit import njit


@dataclass(frozen=True)
class Asked:
    """Commands and pages that the host has requested so far."""

    commands: int
    read_pages: int
    written_pages: int


def imbalance(arrays: Arrays, geometry: Geometry, asked: Asked | None) -> str | None:
    """Return the first violated invariant of device 0 of a one-device simulation in words, or None.

    The page map is compared with the blocks at any time. The counters are compared with ``asked``
    only when nothing is in flight (None: something is in flight).
    """
    pairs = [*_maps(arrays, geometry), *balance.always(arrays, geometry)]
    if asked is not None:
        pairs += [*balance.idle(arrays, geometry), *_counters(arrays, geometry, asked)]
    for what, left, right in pairs:
        if left != right:
            return f"{what}: {left} against {right}"
    return None


def _maps(arrays: Arrays, die: Geometry) -> list[tuple[str, int, int]]:
    blocks = die.units * die.all_blocks
    counted = arrays.valid[:blocks]
    conventional = np.arange(blocks) % die.all_blocks < die.blocks
    found = np.zeros(blocks, np.int64)
    find_mapped(arrays.l2p[0], arrays.p2l[0], counted, die.block_pages, found)
    wrong = np.flatnonzero(conventional & (found != counted))
    at = int(wrong[0]) if len(wrong) else 0
    mapped = int(arrays.dev.mapped[0])
    entries = mapped if arrays.l2p.size > MOST_LOOKED_AT else int(np.count_nonzero(arrays.l2p[0]))
    return [
        ("mapped pages, entries of the map", mapped, entries),
        ("mapped pages, physical pages mapped to", mapped, int(found[conventional].sum())),
        (f"block {at}: valid pages, mapped pages", int(counted[at]), int(found[at])),
    ]  # fmt: skip


@njit
def find_mapped(l2p, p2l, valid, block_pages, found):
    """Count into ``found`` the mapped pages of each block that has a valid page.

    The scan goes over physical pages, so it reads only the written part of a large drive's maps. No
    logical page is counted twice, because its entry names one physical page.
    """
    for block in range(valid.size):
        if valid[block] == 0:
            continue
        for ppn in range(block * block_pages, (block + 1) * block_pages):
            lpn = int(p2l[ppn]) - 1
            if lpn >= 0 and int(l2p[lpn]) - 1 == ppn:
                found[block] += 1


MOST_LOOKED_AT = 1 << 28
"""Entries of a map above which it is not scanned: most of a larger map was never touched."""


def _counters(arrays: Arrays, die: Geometry, asked: Asked) -> list[tuple[str, int, int]]:
    counts = [int(x) for x in arrays.count[0]]
    page = die.page_bytes
    down, up = (
        int(arrays.fifo["size"][stages.HOST_STATIONS + x]) for x in (stages.DOWN, stages.UP)
    )
    programs, reads = _page_operations(counts)
    soft = counts[counters.SOFT_READ_PAGES]  # readings of one page are decoded together
    into = (programs + counts[counters.SECOND_PASS_PAGES]) * page - counts[
        counters.UNASKED_IN_BYTES
    ]
    out = (reads + soft) * page - counts[counters.UNASKED_OUT_BYTES]
    erases = int(arrays.block.erases[: die.units * die.all_blocks].sum())
    return [
        ("commands fetched, submitted", counts[counters.COMMANDS], asked.commands),
        ("commands completed, submitted", counts[counters.COMMANDS_DONE], asked.commands),
        ("commands outstanding", int(arrays.dev.outstanding[0]), 0),
        ("transactions in flight", len(arrays.txn) - int(arrays.reg.txns_free[0]), 0),
        ("transactions in the free list", _free_list(arrays), len(arrays.txn)),
        (
            "pages read, asked for",
            counts[counters.READ_PAGES]
            + counts[counters.UNMAPPED_PAGES]
            + counts[counters.CACHE_HIT_PAGES],
            asked.read_pages,
        ),
        (
            "pages written, asked for",
            counts[counters.PROGRAM_PAGES]
            - counts[counters.DESTAGED_PAGES]
            + counts[counters.CACHE_WRITE_PAGES],
            asked.written_pages,
        ),
        *_data_cache(arrays, counts),
        (
            "bytes of reads, pages asked for",
            counts[counters.HOST_READ_BYTES],
            asked.read_pages * page,
        ),
        (
            "bytes of writes, pages asked for",
            counts[counters.HOST_WRITE_BYTES],
            asked.written_pages * page,
        ),
        (
            "bytes up the link, bytes of reads",
            up,
            counts[counters.HOST_READ_BYTES] + counts[counters.LINK_EXTRA_UP_BYTES],
        ),
        (
            "bytes down the link, bytes of writes",
            down,
            counts[counters.HOST_WRITE_BYTES] + counts[counters.LINK_EXTRA_DOWN_BYTES],
        ),
        ("bytes into registers, pages programmed", int(arrays.bus.size_in.sum()), into),
        ("bytes out of registers, pages sensed", int(arrays.bus.size_out.sum()), out),
        ("pages encoded, programmed", counts[counters.ECC_ENCODED_PAGES], programs),
        (
            "pages decoded, sensed",
            counts[counters.ECC_DECODED_PAGES],
            reads + counts[counters.SOFT_PAGES],
        ),
        (
            "pages collected: read, programmed or dropped",
            counts[counters.GC_READ_PAGES],
            counts[counters.GC_PROGRAM_PAGES] + counts[counters.GC_DROPPED],
        ),
        (
            "pages folded: read, programmed or dropped",
            counts[counters.FOLD_READ_PAGES],
            counts[counters.FOLD_PROGRAM_PAGES] + counts[counters.FOLD_DROPPED],
        ),
        ("super-block erases, erase operations", erases, counts[counters.ARRAY_ERASES]),
        (
            "blocks erased, planes of the operations",
            counts[counters.ERASED_BLOCKS],
            erases * die.unit_planes,
        ),
        ("entries of the map in use", *_cached(arrays)),
        ("translation pages to be written back", int(arrays.maps.writing[0]), 0),
    ]


def _page_operations(counts: list[int]) -> tuple[int, int]:
    """Return the pages programmed and the pages sensed whose data crossed the channel."""
    inside = counts[counters.COPYBACK_PAGES]  # moved inside their die
    programs = (
        counts[counters.PROGRAM_PAGES]
        + counts[counters.GC_PROGRAM_PAGES]
        + counts[counters.FAILED_PAGES]
        - inside
    )
    programs += (
        counts[counters.MAP_PROGRAM_PAGES]
        + counts[counters.PADDING_PAGES]
        + counts[counters.FOLD_PROGRAM_PAGES]
    )
    reads = (
        counts[counters.READ_PAGES]
        + counts[counters.GC_READ_PAGES]
        + counts[counters.MERGE_READ_PAGES]
        - inside
    )
    reads += (
        counts[counters.MAP_READ_PAGES]
        + counts[counters.RETRY_READ_PAGES]
        + counts[counters.FOLD_READ_PAGES]
    )
    return programs, reads


def _data_cache(arrays: Arrays, counts: list[int]) -> list[tuple[str, int, int]]:
    """Compare the pages that the data cache took with those that left it and those it holds."""
    cache = arrays.cache[0]
    pages = arrays.cpage[: int(cache.used)]
    spare = _chained(pages["newer"], np.array([int(cache.spare)]))
    chained = _chained(pages["chain"], arrays.cbucket[0])
    gone = (
        counts[counters.CACHE_MERGED_PAGES]
        + counts[counters.CACHE_DROPPED_PAGES]
        + counts[counters.DESTAGED_PAGES]
    )
    return [
        ("contents that the data cache took: gone, or there",
         counts[counters.CACHE_WRITE_PAGES], gone + int(cache.contents)),
        ("places of the data cache: spare or found by page", int(cache.used), spare + chained),
        ("pages on their way from the data cache", int(cache.flying), 0),
        ("dirty pages, contents that flash does not have", int(cache.dirty), int(cache.contents)),
        ("writes and FLUSHes that wait for the data cache",
         int(cache.wait_first > 0) + int(cache.flush_first > 0), 0),
    ]  # fmt: skip


def _cached(arrays: Arrays) -> tuple[int, int]:
    """Return the entries of the cached mapping table as (used, found in the hash chains)."""
    return int(arrays.maps.used[0]), _chained(arrays.entry["chain"], arrays.bucket[0])


def _free_list(arrays: Arrays) -> int:
    """Return the length of the transaction pool's free list (pool size + 1 if it has a loop)."""
    return _chained(arrays.txn["next"] + 1, np.array([int(arrays.reg.free_txn[0]) + 1]))


def _chained(links: np.ndarray, heads: np.ndarray) -> int:
    """Return the number of elements in the lists with these heads, at most one more than there are.
    Links and heads count from 1; 0 ends a list."""
    return int(_count(np.ascontiguousarray(links, np.int64), heads.astype(np.int64)))


@njit
def _count(links, heads):
    count = 0
    for head in heads:
        at = head
        while at > 0 and count <= len(links):
            count += 1
            at = links[at - 1]
    return count
