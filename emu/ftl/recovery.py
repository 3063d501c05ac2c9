"""Recovery of the conventional namespace: mapping table and blocks, from flash alone.

Owns the choice of the newest version of each mapping unit and the check for torn pages. Does not
own the state of blocks, free rings and write frontiers (block_recovery.py), the reading of pages
(nand/page_store.py), the reservoir (reservoir_recovery.py) or the power cut itself
(nvme/power_cut.py).
Source: out-of-band scans of page-mapped FTLs (Gupta et al., ASPLOS 2009, section on recovery);
Tseng, Grupp, Swanson, "Understanding the impact of power loss on flash memory", DAC 2011.

The out-of-band data of each page contains the number of its mapping unit, the sequence number of
the data, and the number of the program. Copies made by garbage collection keep the sequence number
of their data. Of the pages of a mapping unit, the page with the largest sequence number is mapped.
Of several copies, the copy with the latest program is mapped, because an interrupted erase may have
damaged the others. Trim maps (ftl/trim_maps.py) record which mapping units have been trimmed.

A program that power loss interrupts is one of the last programs of its block. The programs of a die
are executed one after another, and the programs of a block are executed in the order of its pages.
The exception is copy-back, where later programs of a block may overtake a bounded number of earlier
programs (:func:`overtaken_pages`). Therefore only the newest stripes (pages of a block that are
checked together) of each block are read in full. A page with a wrong checksum is overwritten with
zeros, which needs no erase, so that later scans do not treat it as data. An interrupted program may
also read as blank. Therefore the stripe after the last visible stripe (one with a page that does
not read as blank) is overwritten as well, and writes continue after it.

With programming in two passes, a page cannot be read between its first and its second pass. Such a
page is visible, but contains no data. Its data was in the drive's DRAM, and no command that
guarantees the durability of this data had completed.

With a cached mapping table, the map is also built from the out-of-band data. Outdated translation
pages are written back (translation_pages.queue_stale). The cache is empty at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ondie.emu.config.config import Config
from ondie.emu.engine.core.sparse_table import map_table
from ondie.emu.engine.core.state import Arrays, as_records
from ondie.emu.ftl.block_recovery import Blocks, count_valid, set_blocks
from ondie.emu.ftl.translation_pages import queue_stale
from ondie.emu.ftl.trim_maps import FLIGHTS
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import ERASED, PROGRAMMED, TORN
from ondie.emu.nand.sealed_records import (
    READS_BLANK,
    READS_DAMAGED,
    READS_VALID,
    read_spares,
)
from ondie.emu.units import InputError
from ondie.kernels.jit import njit

CHECKED_STRIPES = 4
"""Number of stripes that a recovery reads in full in each block, counted back from the newest
stripe. The value applies if no program of a block can overtake another program of this block."""


class Flash(Protocol):
    """Interface of the flash pages of a drive, as a recovery uses them: a subset of the methods of
    PageStore (nand/page_store.py)."""

    @property
    def where(self) -> str: ...
    def block_records(self, block_pages: int, pages: int) -> Iterator[tuple[int, np.ndarray]]: ...
    def page_records(self, ppns: np.ndarray) -> np.ndarray: ...
    def intact(self, ppn: int) -> bool: ...
    def read(self, ppn: int) -> np.ndarray: ...
    def spoil(self, ppn: int, done: bool = True) -> None: ...


@dataclass
class Recovered:
    """Result of a recovery of the mapping table and of the blocks from flash after a power loss."""

    sequence: int = 0
    """Largest sequence number of data in the out-of-band data on flash."""
    programs: int = 0
    """Largest program number in the out-of-band data on flash. The drive numbers its programs."""
    scanned_pages: int = 0
    """Number of pages whose out-of-band data was read."""
    checked_pages: int = 0
    """Number of pages whose data was read in addition to their out-of-band data."""
    refused_pages: int = 0
    """Number of pages whose out-of-band data is valid but whose data does not match its checksum,
    because the program of the page was interrupted."""
    overwritten_pages: int = 0
    """Number of pages that the recovery has overwritten with zeros."""
    continued_blocks: int = 0
    """Number of partly written blocks in which writes continue after the recovery."""
    damaged: list[int] = field(default_factory=list)
    """Physical pages that were programmed and whose out-of-band data is damaged. Older versions of
    their data may have been mapped.
    """
    trimmed: int = 0
    """Number of mapping units whose data on flash had been trimmed."""
    time_ps: int = 0
    """Simulated time of the recovery (ps)."""
    restored: int = 0
    """Number of mapping units that the recovery has written to flash from the cache file of a store
    (power-loss protection), because the cache file had the only copy.
    """
    restored_trims: int = 0
    """Number of mapping units whose trims were only in the cache file of a store."""
    broken_entries: int = 0
    """Number of entries of the cache file whose write was interrupted."""
    damaged_cached: list[int] = field(default_factory=list)
    """Mapping units whose contents in the cache file are damaged. Older contents may be mapped."""
    lost: tuple[int, int] = (0, 0)
    """Number of mapping units and number of trim maps that power-loss protection could not save at
    the preceding power cut.
    """
    checked_stripes: int = CHECKED_STRIPES
    """Number of stripes per block, counted back from the newest stripe, that the recovery read in
    full (data in addition to out-of-band data)."""
    stripe: int = 1
    """Number of pages in a stripe of a block. The recovery checks the pages of a stripe together,
    and overwrites torn pages with zeros, which needs no erase."""
    visible_stripes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Number of stripes of each block up to and including the last stripe with a page that does not
    read as blank, int64[blocks]."""
    block_pages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Number of pages that each block provides in its mode (native or pSLC), int64[blocks]."""
    mapped: int = 0
    """Number of mapping units with data."""
    stale_maps: int = 0
    """Number of translation pages that are missing from flash or outdated. Their write-back starts
    at the first miss of the map cache.
    """
    checkpoint: int = 0
    """Number of the checkpoint of the mapping table that was used; 0 if all pages were scanned."""
    epoch: int = 0
    """Fencing epoch found on flash."""
    fallback: str = ""
    """Reason why the checkpoint on flash was not used. Empty if it was used or if none exists."""
    scanned_blocks: int = 0
    """Number of blocks whose pages were all scanned."""
    scanned: np.ndarray | None = field(default=None, repr=False)
    """Mask of the blocks whose pages were all scanned, bool[blocks]. In the other blocks, only the
    first pages were read. None if all pages of all blocks were scanned.
    """
    read_pages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Metadata pages whose data was read in full, as physical pages, int64[n]."""
    queried_pages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Physical pages whose out-of-band data was read in addition to the scanned blocks and to the
    first pages of the other blocks, int64[n]."""


@dataclass
class Scan:
    """State of a recovery's scan of the out-of-band data on flash."""

    store: Flash
    geometry: Geometry
    stripe: int
    """Number of pages in a stripe of a block. The recovery checks the pages of a stripe together,
    and overwrites torn pages with zeros, which needs no erase."""
    units: int
    newest: np.ndarray
    """Sequence and program number of the newest page of each mapping unit, int64[units, 2]."""
    sectors: np.ndarray | None
    blocks: Blocks
    checked_stripes: int
    """Number of stripes per block, counted back from the newest stripe, that the recovery reads in
    full (data in addition to out-of-band data)."""
    two_pass: bool
    """True if a page cannot be read until its second program pass has ended."""
    metadata: int = 0
    """Number of metadata pages (map_checkpoint.py). In the mapping table, they follow the first
    ``units`` pages (logical pages, translation pages and trim maps)."""
    found: Recovered = field(default_factory=Recovered)


def check_supported(cfg: Config, what: str) -> None:
    """Raise InputError if the tables of a drive with configuration ``cfg`` cannot be recovered from
    flash. ``what``: beginning of the error message.
    """
    ftl = cfg.ftl
    if ftl.map_update != "programmed":
        raise InputError(
            f'{what}: ftl.map_update = {ftl.map_update}: must be "programmed"; otherwise a '
            "page is mapped before its program ends, and the previous version may be erased during "
            "the program"
        )
    if ftl.unwritten != "zeros":
        raise InputError(
            f'{what}: ftl.unwritten = {ftl.unwritten}: must be "zeros"; otherwise a read maps '
            "pages that were never programmed, which a scan cannot find"
        )
    if ftl.map_cache_bytes and not ftl.trim_maps:
        raise InputError(
            f"{what}: ftl.map_cache_bytes = {ftl.map_cache_bytes}: requires ftl.trim_maps = true, "
            "so that translation pages and trims have out-of-band data; use a drive with a store, "
            "which sets this key"
        )


def recover(
    arrays: Arrays,
    geometry: Geometry,
    cfg: Config,
    store: Flash,
    every_page: bool = False,
    settle: Callable[[], None] | None = None,
) -> Recovered:
    """Build the tables of the FTL in ``arrays`` from the pages in ``store``. ``arrays`` must be the
    arrays of a new drive.

    Pages that may be torn are overwritten in ``store``. ``every_page``: read the data of every
    page, not only of the newest pages. ``settle``, if given, is called after all mapping units have
    been mapped, and may unmap some of them. Raises InputError if the configuration does not allow a
    recovery (:func:`check_supported`), if the store cannot be read, if a trim map is damaged, or if
    the store contains a mapping unit that does not exist on the drive.
    """
    scan = start_scan(arrays, geometry, cfg, store, every_page)
    for first, records in store.block_records(geometry.block_pages, geometry.physical_pages):
        map_pages(scan, arrays, first, *scan_blocks(scan, arrays, first, records))
        scan.found.scanned_blocks += len(records)
    _apply_trim_maps(scan, arrays)
    return set_tables(scan, arrays, cfg, settle)


def start_scan(
    arrays: Arrays, geometry: Geometry, cfg: Config, store: Flash, every_page: bool
) -> Scan:
    """Return the initial state of a scan. Raises InputError if the drive cannot be recovered
    (:func:`check_supported`).
    """
    check_supported(cfg, str(store.where))
    table = arrays.cfg[0]
    blocks = geometry.units * geometry.all_blocks
    units = int(table.lpns + table.tpages + table.trim_maps)
    stripe = max(int(table.stripe), int(table.together))
    checked = CHECKED_STRIPES + -(-overtaken_pages(table) // stripe)
    return Scan(
        store, geometry, stripe, units,
        map_table((units, 2), np.int64),
        arrays.sectors[0] if table.partial else None,
        Blocks(*np.zeros((2, blocks), np.int64), *np.full((2, blocks), -1, np.int64)),
        geometry.block_pages if every_page else checked,
        int(table.passes) == 2,
        int(table.meta_pages),
    )  # fmt: skip


def overtaken_pages(table: np.record) -> int:
    """Return the maximum number of programs of a block that later programs of the same block may
    overtake. With copy-back, programs in flight can be overtaken: moves, trim maps and metadata
    pages. Without copy-back, the result is 0.

    Pages are allocated in order, and each allocated page that is not programmed has a program in
    flight.
    """
    if table.copyback == 0:
        return 0
    own = min(int(table.trim_maps), FLIGHTS) + min(int(table.meta_pages), int(table.meta_flights))
    return int(table.gc_window) * int(table.gc_parallel) + own


def set_tables(
    scan: Scan, arrays: Arrays, cfg: Config, settle: Callable[[], None] | None
) -> Recovered:
    """Set the tables that follow from the mapping table and the scanned blocks. Return the result
    of the recovery. ``settle``: see :func:`recover`.
    """
    found = scan.found
    if settle is not None:
        settle()
    if int(arrays.cfg.tpages[0]) > 0:
        found.stale_maps = queue_stale(arrays, scan.newest)
    count_valid(arrays, scan.geometry)
    found.continued_blocks = set_blocks(scan.blocks, scan.stripe, arrays, scan.geometry, cfg)
    found.mapped = int(arrays.dev.mapped[0])
    found.stripe, found.visible_stripes = scan.stripe, scan.blocks.visible
    found.block_pages = scan.blocks.pages(arrays, scan.geometry)
    found.checked_stripes = scan.checked_stripes
    return found


# --- pages


def scan_blocks(
    scan: Scan, arrays: Arrays, first: int, records: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scan consecutive blocks, the first of which begins at physical page ``first``. ``records``:
    out-of-band data, OOB[blocks, pages]. Return the records as OOB[pages], and the result of
    reading each record (sealed_records.READS_*), uint8[pages].
    """
    block_pages, found, blocks = scan.geometry.block_pages, scan.found, scan.blocks
    number = first // block_pages
    flat = as_records(records.reshape(-1))
    reads = read_spares(records.reshape(-1))
    own = slice(number, number + len(records))
    newest_program, damaged = _summarize(
        flat, reads, block_pages, scan.stripe, blocks.visible[own], blocks.programs[own],
        blocks.erases[own], blocks.stream[own],
    )  # fmt: skip
    found.programs = max(found.programs, int(newest_program))
    found.scanned_pages += int(np.count_nonzero(reads))
    if damaged:
        state = records["written"].reshape(-1)
        wrong = (reads == READS_DAMAGED) & (state == PROGRAMMED)
        wrong |= ~np.isin(state, (ERASED, PROGRAMMED, TORN))
        found.damaged += (first + np.flatnonzero(wrong)).tolist()
    used = blocks.pages(arrays, scan.geometry)[own]
    for at in np.flatnonzero(blocks.visible[own]).tolist():
        pages = reads[at * block_pages : at * block_pages + int(used[at])]
        _check_newest(scan, first + at * block_pages, pages, int(blocks.visible[number + at]))
    return flat, reads


def map_pages(
    scan: Scan, arrays: Arrays, first: int, flat: np.ndarray, reads: np.ndarray
) -> None:  # fmt: skip
    """Map consecutive pages, starting at physical page ``first``, that are newer than the pages
    mapped so far. ``flat``: out-of-band data of the pages, OOB[pages]; ``reads``: result of reading
    each record (sealed_records.READS_*), uint8[pages]. Raises InputError if a page belongs to a
    mapping unit that does not exist on the drive.
    """
    found = scan.found
    sectors = np.zeros(1, np.int64) if scan.sectors is None else scan.sectors
    table = arrays.cfg[0]
    maps = int(table.lpns), int(table.lpns + table.tpages)
    wrong_unit, newest_sequence = _map_newest(
        flat, reads, first, scan.units, scan.metadata, maps, scan.newest, arrays.l2p[0], sectors
    )
    found.sequence = max(found.sequence, int(newest_sequence))
    if wrong_unit >= 0:
        raise InputError(
            f"{scan.store.where}: contains mapping unit {wrong_unit}; the drive has only "
            f"{scan.units} mapping units"
        )


@njit
def _summarize(records, reads, block_pages, stripe, visible, programs, erases, stream):
    """Set the values of each block that follow from the out-of-band data of its pages. Return
    (largest program number, number of damaged pages). ``records``: OOB[pages]; ``reads``: result of
    reading each record (sealed_records.READS_*), uint8[pages].
    """
    newest = 0
    damaged = 0
    for block in range(visible.shape[0]):
        last = -1
        for at in range(block * block_pages, (block + 1) * block_pages):
            if reads[at] == READS_BLANK:
                continue
            last = at - block * block_pages
            record = records[at]
            state = int(record.written)
            if state != PROGRAMMED and state != TORN:
                damaged += 1
            if reads[at] == READS_DAMAGED:
                damaged += int(state == PROGRAMMED)
                continue
            programs[block] = max(programs[block], record.step)
            erases[block] = max(erases[block], int(record.erases))
            stream[block] = max(stream[block], int(record.stream))
        visible[block] = last // stripe + 1
        newest = max(newest, programs[block])
    return newest, damaged


@njit
def _map_newest(records, reads, first, units, metadata, maps, newest, l2p, sectors):
    """Map each valid page with data whose logical page has no newer page so far. The first record
    is that of physical page ``first``. Return (a logical page that does not exist on the drive, or
    -1 if all exist; largest sequence number).

    ``newest``: (sequence number, program number) of the newest page of each logical page,
    int64[units, 2]. ``maps``: first translation page and last translation page + 1; their sequence
    numbers are program numbers. ``metadata``: number of metadata pages, which follow the ``units``
    and are not mapped.
    """
    largest = 0
    partial = sectors.shape[0] > 1
    for at in range(reads.shape[0]):
        if reads[at] != READS_VALID:
            continue
        record = records[at]
        sequence = record.sequence
        lpn = record.lpn
        if sequence <= 0:
            continue
        if lpn < 0 or lpn >= units + metadata:
            return lpn, largest
        if lpn < maps[0] or lpn >= maps[1]:
            largest = max(largest, sequence)
        if lpn >= units:
            continue
        held = newest[lpn, 0]
        if sequence > held or (sequence == held and record.step > newest[lpn, 1]):
            newest[lpn, 0] = sequence
            newest[lpn, 1] = record.step
            l2p[lpn] = first + at + 1
            if partial:
                sectors[lpn] = record.sectors
    return -1, largest


def _check_newest(scan: Scan, first: int, reads: np.ndarray, visible: int) -> None:
    """Read the newest stripes of the block with first page ``first`` in full, and overwrite the
    pages that may be torn. ``reads``: result of reading each record (sealed_records.READS_*),
    uint8[pages]; the function changes the value of damaged pages. ``visible``: number of stripes up
    to and including the last one with a page that does not read as blank.

    With two passes, the newest stripes are those up to the last stripe with a valid page, because
    second passes are executed in order, and first passes may be any number of stripes ahead.
    """
    store, stripe, found = scan.store, scan.stripe, scan.found
    last = visible
    if scan.two_pass:
        last = int(np.flatnonzero(reads == READS_VALID).max(initial=-1)) // stripe + 1
    for at in range(max(last - scan.checked_stripes, 0) * stripe, last * stripe):
        if reads[at] != READS_VALID:
            continue
        found.checked_pages += 1
        if not store.intact(first + at):
            found.refused_pages += 1
            reads[at] = READS_DAMAGED
            store.spoil(first + at)
            found.overwritten_pages += 1
    behind = min((visible + 1) * stripe, len(reads))
    for at in range((visible - 1) * stripe, behind):
        if reads[at] == READS_BLANK:
            store.spoil(first + at)
            found.overwritten_pages += 1


def _apply_trim_maps(scan: Scan, arrays: Arrays) -> None:
    """Unmap the mapping units that the newest trim maps mark as trimmed, unless they were written
    later. Raises InputError if a trim map is damaged.
    """
    table = arrays.cfg[0]
    units, span = int(table.lpns), int(table.trim_span)
    first = units + int(table.tpages)
    sequences, l2p = scan.newest[:, 0], arrays.l2p[0]
    for at in range(int(table.trim_maps)):
        entry = int(l2p[first + at])
        if entry == 0:
            continue
        own = slice(at * span, min((at + 1) * span, units))
        unmap_dead(scan, l2p, own, at, entry - 1, sequences[own] <= sequences[first + at])


def unmap_dead(
    scan: Scan, l2p: np.ndarray, own: slice, at: int, ppn: int, older: np.ndarray
) -> np.ndarray:
    """Unmap the mapping units in ``own`` that a trim map marks as trimmed, if their data is older
    than the trim map. Return the mask of the unmapped units, bool[n]. ``at``: number of the trim
    map. ``ppn``: physical page that contains the trim map. ``older``: mask of the units in ``own``
    whose data is older, bool[n]. Raises InputError if the trim map is damaged."""
    if not scan.store.intact(ppn):
        raise InputError(
            f"{scan.store.where}: trim map {at} in physical page {ppn} is damaged, so that trimmed "
            "data cannot be distinguished from valid data"
        )
    bits = np.unpackbits(scan.store.read(ppn), bitorder="little")[: len(older)]
    dead = (bits == 0) & older & (l2p[own] != 0)
    l2p[own][dead] = 0
    if scan.sectors is not None:
        scan.sectors[own][dead] = 0
    scan.found.trimmed += int(dead.sum())
    return dead
