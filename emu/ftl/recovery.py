"""Recovery of the conventional namespace: mapping table and blocks, from flash alone.

Owns the choice of the newest version of each mapping unit and the check for torn pages. Does not
own the state of blocks, free rings and write frontiers (block_recovery.py), the reading of pages
(nand/page_store.py), the reservoir (reservoir_recovery.py) or the power cut itself
(nvme/power_cut.py).
Source: out-of-band scans of page-mapped FTLs (Gupta et al., ASPLOS 2009, section on recovery);
Tseng, Grupp, Swanson, "Understanding the impact of power loss on flash memory", DAC 2011.

Every page has in its out-of-band data the number of its mapping unit, the sequence number of the
data, and the number of the program. Copies made by collection keep the sequence number of their
data. Of the pages of a unit, the one with the largest sequence number is mapped; of several copies,
that of the latest program, because an interrupted erase may have damaged the others. Trim maps
(ftl/trim_maps.py) say which data are dead.

A program that power loss interrupts is the last one of its block, or near the last: programs of one
die are executed one by one, and those of a block in the order of its pages. Only copy-back lets a
bounded number of them overtake (:func:`overtaken_pages`). So the newest stripes of each block are
read whole. A page with a wrong checksum is overwritten with zeros, which needs no erase, so that
later scans do not take it for data. An interrupted program may also read as blank. So the stripe
behind the last visible one is overwritten, too, and writes continue behind that.

With programming in two passes, a page after its first pass cannot be read: it is visible, but holds
no data. Its data were in the drive's DRAM, and no command had completed that promised them.

With a cached mapping table, the map comes from the out-of-band data as well. Outdated translation
pages are written back (translation_pages.queue_stale); the cache starts empty.
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
"""Number of the newest stripes of a block whose pages are read whole, if no program of the block
overtakes another one."""


class Flash(Protocol):
    """Part of PageStore that recovery uses."""

    @property
    def where(self) -> str: ...
    def block_records(self, block_pages: int, pages: int) -> Iterator[tuple[int, np.ndarray]]: ...
    def page_records(self, ppns: np.ndarray) -> np.ndarray: ...
    def intact(self, ppn: int) -> bool: ...
    def read(self, ppn: int) -> np.ndarray: ...
    def spoil(self, ppn: int, done: bool = True) -> None: ...


@dataclass
class Recovered:
    """Result of a recovery."""

    sequence: int = 0
    """Largest sequence number of data."""
    programs: int = 0
    """Largest number of a program."""
    scanned_pages: int = 0
    """Pages whose out-of-band data were read."""
    checked_pages: int = 0
    """Pages that were also read whole."""
    refused_pages: int = 0
    """Pages with a valid seal and a wrong checksum, left by an interrupted program."""
    overwritten_pages: int = 0
    """Pages that were overwritten with zeros."""
    continued_blocks: int = 0
    """Blocks in which writes continue."""
    damaged: list[int] = field(default_factory=list)
    """Physical pages that were programmed and whose out-of-band data are damaged. An older version
    of their data may have been mapped."""
    trimmed: int = 0
    """Mapping units whose data on flash had been trimmed."""
    time_ps: int = 0
    """Simulated time of the recovery, ps."""
    restored: int = 0
    """Mapping units that were only in the cache file of a store (power-loss protection), and that
    recovery has written to flash."""
    restored_trims: int = 0
    """Mapping units whose trims were only in the cache file of a store."""
    broken_entries: int = 0
    """Entries of the cache file that were interrupted."""
    damaged_cached: list[int] = field(default_factory=list)
    """Mapping units with damaged contents in the cache file: older ones may be mapped."""
    lost: tuple[int, int] = (0, 0)
    """Mapping units and trim maps that power-loss protection could not save at the cut before."""
    checked_stripes: int = CHECKED_STRIPES
    """Number of the newest stripes of a block whose pages were read whole."""
    stripe: int = 1
    """Pages of a block that are checked and overwritten together."""
    visible_stripes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Stripes of each block up to the last visible one, int64[blocks]."""
    block_pages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Pages that each block uses in its mode, int64[blocks]."""
    mapped: int = 0
    """Mapping units with data."""
    stale_maps: int = 0
    """Translation pages that are missing on flash or outdated; they are written
    back from the first miss of the map cache on."""
    checkpoint: int = 0
    """Number of the checkpoint of the mapping table that was used; 0: all pages were scanned."""
    epoch: int = 0
    """Fencing epoch on flash."""
    fallback: str = ""
    """Reason why the checkpoint on flash was not used; empty: it was, or there is none."""
    scanned_blocks: int = 0
    """Blocks whose pages were all scanned."""
    scanned: np.ndarray | None = field(default=None, repr=False)
    """Mask of the blocks whose pages were all scanned, bool[blocks]; of the others, only the first
    pages were read. None: all blocks were scanned."""
    read_pages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Physical pages that were also read whole: metadata pages, int64[n]."""
    queried_pages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Physical pages whose out-of-band data were also read, int64[n]."""


@dataclass
class Scan:
    """State of a scan."""

    store: Flash
    geometry: Geometry
    stripe: int
    """Pages of a block that are checked and overwritten together."""
    units: int
    newest: np.ndarray
    """Sequence and program number of the newest page of each mapping unit, int64[units, 2]."""
    sectors: np.ndarray | None
    blocks: Blocks
    checked_stripes: int
    """Number of the newest stripes of a block whose pages are read whole."""
    two_pass: bool
    """True if a page cannot be read until a second pass has ended."""
    metadata: int = 0
    """Number of metadata pages (map_checkpoint.py) behind the units."""
    found: Recovered = field(default_factory=Recovered)


def check_supported(cfg: Config, what: str) -> None:
    """Raise InputError that begins with ``what`` if the tables of a drive with configuration
    ``cfg`` cannot be recovered from flash."""
    ftl = cfg.ftl
    if ftl.map_update != "programmed":
        raise InputError(
            f'{what}: ftl.map_update = {ftl.map_update}: must be "programmed": a page that is '
            "mapped when it is placed makes the older one invalid, which may be erased before the "
            "program of the new one has ended"
        )
    if ftl.unwritten != "zeros":
        raise InputError(
            f'{what}: ftl.unwritten = {ftl.unwritten}: must be "zeros": pages that are mapped by a '
            "read have no program that a scan could find"
        )
    if ftl.map_cache_bytes and not ftl.trim_maps:
        raise InputError(
            f"{what}: ftl.map_cache_bytes = {ftl.map_cache_bytes}: needs ftl.trim_maps = true, so "
            "that translation pages and trims have out-of-band data; a drive with a store sets it"
        )


def recover(
    arrays: Arrays,
    geometry: Geometry,
    cfg: Config,
    store: Flash,
    every_page: bool = False,
    settle: Callable[[], None] | None = None,
) -> Recovered:
    """Build the tables of the FTL in ``arrays``, which are those of a new drive, from the pages in
    ``store``.

    Pages that may be torn are overwritten in ``store``. ``every_page``: read every page whole, not
    only the newest ones. ``settle`` is called when units are mapped and may unmap some. Raises
    InputError if the store cannot be read, or holds a mapping unit that the drive has not.
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
    """Return the initial state of a scan. Raises InputError for a drive that
    cannot be recovered."""
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
    """Return the number of programs of a block that later ones of the same block may overtake: with
    copy-back, those in flight, which are moves, trim maps and metadata pages; else none.

    Pages are allocated in order, and each that is not programmed has a program in flight.
    """
    if table.copyback == 0:
        return 0
    own = min(int(table.trim_maps), FLIGHTS) + min(int(table.meta_pages), int(table.meta_flights))
    return int(table.gc_window) * int(table.gc_parallel) + own


def set_tables(
    scan: Scan, arrays: Arrays, cfg: Config, settle: Callable[[], None] | None
) -> Recovered:
    """Set the tables that follow from the mapping table and the scanned blocks. Return the result
    of the recovery. ``settle``: see :func:`recover`."""
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
    """Scan blocks whose out-of-band data are ``records`` (OOB[blocks, pages]), from page ``first``
    on. Return the records as OOB[pages], and the results of reading them (sealed_records.READS_*),
    uint8[pages]."""
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
    """Map pages with out-of-band data ``flat`` (OOB[pages]), from page ``first`` on, that are newer
    than those mapped so far. ``reads``: results of reading the records (sealed_records.READS_*),
    uint8[pages]."""
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
            f"{scan.store.where}: holds mapping unit {wrong_unit}; the drive has {scan.units}"
        )


@njit
def _summarize(records, reads, block_pages, stripe, visible, programs, erases, stream):
    """Set what the pages of each block say about it. Return (largest number of a program, number of
    damaged pages). ``records``: OOB[pages]; ``reads``: what they read as.
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
    """Map the logical page of each valid page with data, the first of which is physical page
    ``first``, if it is the newest one so far. Return (a logical page that the drive has not, or -1;
    largest sequence number).

    ``newest``: (sequence number, number of the program) of each logical page, int64[units, 2].
    ``maps``: the first translation page and the page behind the last one, which have numbers of
    programs as sequence numbers.
    ``metadata``: number of metadata pages behind the ``units``, which are not mapped.
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
    """Read the newest stripes of the block with page ``first`` whole, and overwrite pages that may
    be torn. ``reads``: what the pages that it uses read as, uint8[pages]; changed for damaged
    pages. ``visible``: number of stripes up to the last visible one.

    With two passes, the newest stripes are those up to the last one with a valid page: second
    passes are in order, and first passes may be any number of stripes ahead.
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
    """Unmap the units that the newest trim maps do not have, unless they were written later."""
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
    """Unmap those of units ``own`` that trim map ``at`` in physical page ``ppn`` marks as trimmed
    and whose data are ``older`` than the trim map (bool[n]). Return their mask, bool[n]. Raises
    InputError if the trim map is damaged."""
    if not scan.store.intact(ppn):
        raise InputError(
            f"{scan.store.where}: trim map {at} in physical page {ppn} is damaged, so that trimmed "
            "data cannot be distinguished from others"
        )
    bits = np.unpackbits(scan.store.read(ppn), bitorder="little")[: len(older)]
    dead = (bits == 0) & older & (l2p[own] != 0)
    l2p[own][dead] = 0
    if scan.sectors is not None:
        scan.sectors[own][dead] = 0
    scan.found.trimmed += int(dead.sum())
    return dead
