"""Recovery of the mapping table from its last checkpoint and the blocks written after it.

Owns the search for metadata pages, the choice of blocks to scan, and the comparison of their pages
with the checkpoint. Does not own the scan of a block, the choice between two pages and the state of
blocks (recovery.py), or the contents of metadata pages (map_checkpoint.py). Source: this project
(docs/store.md).

1. The out-of-band data of the first page of each block is read. If it reads as blank, further pages
   are read, because pages may have been programmed before the first page. Blocks with metadata
   pages, and blocks with an unreadable first page, are scanned.
2. The newest copy of each metadata page is used. The root contains the number of programs at the
   start of its checkpoint. If the newest copy of a metadata page is damaged, the checkpoint is not
   used.
3. Blocks that were open at the start of the checkpoint, and blocks whose first page was programmed
   later, are scanned. The checkpoint includes the pages of all other blocks.
4. Each scanned page is compared with the map entry of its mapping unit. If the sequence number of
   the page is larger than that of the map page, the data of the page is newer. Otherwise the page
   is a copy made by garbage collection, or an older version. The scanned page is then mapped only
   if it is newer than the page in the entry, whose out-of-band data is read. If the page in the
   entry has been erased, the newest scanned page is mapped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config
from ondie.emu.engine.core.state import Arrays
from ondie.emu.ftl import map_checkpoint, page_map, recovery
from ondie.emu.ftl.map_checkpoint import HEAD, MAGIC, MAP, ROOT, TABLE
from ondie.emu.ftl.recovery import Flash, Recovered, Scan
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import ERASED, PROGRAMMED, TORN
from ondie.emu.nand.sealed_records import (
    READS_BLANK,
    READS_DAMAGED,
    READS_VALID,
    read_spares,
)
from ondie.kernels.jit import njit

ASKED = NEVER - 1
"""Placeholder in ``scan.newest`` for the program number of a mapping unit that has a map entry,
until the out-of-band data of the page in the entry has been read.
"""


class Unusable(Exception):
    """Raised if the checkpoint of the mapping table cannot be used for the recovery. The message
    states the reason."""


class _Found:
    """Copies of the metadata pages found in the scanned blocks."""

    def __init__(self, scan: Scan, arrays: Arrays) -> None:
        table = arrays.cfg[0]
        self.store, self.first = scan.store, int(table.meta_first)
        """Flash, and the logical page number of the first metadata page."""
        self.maps, self.pages = int(table.meta_maps), int(table.meta_pages)
        """Number of map pages, and number of all metadata pages."""
        self.partial = bool(table.partial)
        self.epoch = 0
        """Largest fencing epoch in the metadata pages read so far."""
        self.copies: dict[int, list[tuple[int, int, int, int]]] = {}
        """(sequence, program, physical page, state) of the copies of each metadata page."""
        self.read: list[int] = []
        """Physical pages whose data has been read."""
        self.sequence = 0

    def add(self, ppns: np.ndarray, records: np.ndarray) -> None:
        """Add the metadata pages at physical pages ``ppns`` with out-of-band data ``records``
        (OOB[n]).
        """
        fields = (records[name].tolist() for name in ("lpn", "sequence", "step", "written"))
        for ppn, lpn, sequence, step, state in zip(ppns.tolist(), *fields, strict=True):
            self.copies.setdefault(lpn, []).append((sequence, step, ppn, state))
            self.sequence = max(self.sequence, sequence)

    def choose(self, at: int) -> tuple[int, int]:
        """Return (physical page, sequence number) of the newest intact copy of the metadata page
        with index ``at``, or (-1, 0) if no copy is intact. Skip damaged copies whose program was
        interrupted. Raises Unusable if a copy whose program was completed is damaged and no newer
        copy is intact.
        """
        for sequence, _, ppn, state in sorted(self.copies.get(self.first + at, ()), reverse=True):
            self.read.append(ppn)
            if self.store.intact(ppn):
                return ppn, sequence
            if state == PROGRAMMED:
                raise Unusable(f"its metadata page {at} in physical page {ppn} is damaged")
        return -1, 0

    def words(self, ppn: int, kind: int, number: int) -> np.ndarray:
        """Return the words of the metadata page at physical page ``ppn``, int64[n]. Raises Unusable
        if the page is not of kind ``kind``, or does not have number ``number`` (-1: accept any
        number).
        """
        words = self.store.read(ppn).view(np.int64)
        self.epoch = max(self.epoch, int(words[map_checkpoint.EPOCH]))
        if words[map_checkpoint.KIND] != MAGIC + kind or number not in (-1, words[1]):
            raise Unusable(f"physical page {ppn} is not its metadata page {number}")
        return words


def recover(
    arrays: Arrays,
    geometry: Geometry,
    cfg: Config,
    store: Flash,
    every_page: bool = False,
    settle: Callable[[], None] | None = None,
) -> Recovered:
    """Build the tables of the FTL as ``recovery.recover`` does, from the last checkpoint of the
    mapping table and the blocks written after it.

    If there is no checkpoint or if it cannot be used (``Recovered.fallback`` gives the reason),
    scan all pages, and prevent later recoveries from using that checkpoint. If ``every_page`` is
    set, the checkpoint is not used, because the order in which pages became durable is unknown.
    Raises InputError as ``recovery.recover`` does.
    """
    if arrays.cfg.meta_maps[0] == 0:
        return recovery.recover(arrays, geometry, cfg, store, every_page, settle)
    scan = recovery.start_scan(arrays, geometry, cfg, store, every_page)
    metadata = _Found(scan, arrays)
    blank, step, whole = _first_pages(scan, arrays)
    try:
        records = _find_metadata(scan, metadata, whole)
        if every_page:
            raise Unusable("power loss of the host may have left any page damaged")
        root = _newest_root(arrays, metadata)
        if root is not None:
            _load(scan, arrays, metadata, root, (blank, step, whole), records, settle)
            return recovery.set_tables(scan, arrays, cfg, None)
        fallback = ""
    except Unusable as error:
        fallback = str(error)
        _forget(scan, metadata, whole)
        arrays.l2p[0, :] = 0
        if scan.sectors is not None:
            arrays.sectors[0, :] = 0
    arrays.meta_dirty[:] = 1
    found = recovery.recover(arrays, geometry, cfg, store, every_page, settle)
    found.fallback, found.epoch = fallback, metadata.epoch
    return found


def _load(
    scan: Scan,
    arrays: Arrays,
    metadata: _Found,
    root: np.ndarray,
    firsts: tuple[np.ndarray, np.ndarray, np.ndarray],
    records: dict[int, np.ndarray],
    settle: Callable[[], None] | None,
) -> None:
    """Map the mapping units of ``scan`` in ``arrays`` from the checkpoint with root ``root``, and
    set the state of each block as far as it is known. ``firsts``: result of :func:`_first_pages`;
    ``records``: result of :func:`_find_metadata`. If the checkpoint cannot be used, raises Unusable
    before any page is overwritten."""
    blank, step, whole = firsts
    base = _load_map(arrays, metadata, root)
    flags = _load_table(scan, arrays, metadata, blank)
    found, started = scan.found, int(root[map_checkpoint.PROGRAMS])
    scanned = whole | ((flags & map_checkpoint.WAS_OPEN) != 0) & ~blank | (step > started)
    found.sequence = max(int(root[map_checkpoint.SEQUENCE]), metadata.sequence)
    found.programs = started
    _scan_since(scan, arrays, np.flatnonzero(scanned), records, base)
    _apply_trim_maps(scan, arrays, base)
    if settle is not None:
        settle()  # may unmap the last units of a block that is to be retired
    _set_known_blocks(scan, arrays, flags, scanned, blank)
    found.checkpoint, found.scanned = int(root[map_checkpoint.NUMBER]), scanned
    found.epoch = metadata.epoch
    found.scanned_blocks = int(scanned.sum())
    found.scanned_pages += int((~scanned).sum())
    found.read_pages = np.array(metadata.read, np.int64)
    dev, slots = arrays.dev[0], map_checkpoint.ROOTS
    dev.meta_number = dev.meta_root = found.checkpoint
    arrays.meta_words[int(arrays.cfg.meta_slot[0]) + found.checkpoint % slots] = root
    arrays.meta_open[:] = flags & map_checkpoint.WAS_OPEN


# --- metadata pages


def _first_pages(scan: Scan, arrays: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read the out-of-band data of the first page of each block. Return three arrays. The first,
    bool[blocks], is the mask of the blocks that read as blank. The second, int64[blocks], is the
    program number of the first page, or 0 if unknown. The third, bool[blocks], is the mask of the
    blocks that contain metadata pages or whose first page is unreadable.

    The first page of a block may read as blank although later pages do not. Therefore further pages
    of such a block are read, as many as could have been programmed before the first page
    (recovery.overtaken_pages).
    """
    store, pages, blocks = scan.store, scan.geometry.block_pages, scan.blocks
    count = len(blocks.visible)
    behind = min(2 * scan.stripe + recovery.overtaken_pages(arrays.cfg[0]), pages)
    first = np.arange(count) * pages
    records = store.page_records(first)
    reads = read_spares(records)
    blank = reads == READS_BLANK
    places = np.flatnonzero(blank)
    for at in range(1, behind):
        places = places[read_spares(store.page_records(first[places] + at)) == READS_BLANK]
    if arrays.cfg.copyback[0]:
        later = (first[places][:, None] + np.arange(1, behind)).reshape(-1)
        scan.found.queried_pages = later
        scan.found.scanned_pages += len(later)
    blank[:] = False
    blank[places] = True
    valid = reads == READS_VALID
    blocks.erases[valid] = records["erases"][valid]
    blocks.stream[valid] = records["stream"][valid]
    blocks.programs[valid] = records["step"][valid]
    whole = ~valid & ~blank
    whole |= valid & (blocks.stream == int(arrays.cfg.map_stream[0]))
    return blank, np.where(valid, records["step"], 0), whole


def _records_of(scan: Scan, block: int) -> np.ndarray:
    """Return the out-of-band data of all pages of a block, OOB[1, pages]."""
    pages = scan.geometry.block_pages
    return scan.store.page_records(block * pages + np.arange(pages))[None]


def _find_metadata(
    scan: Scan, metadata: _Found, whole: np.ndarray
) -> dict[int, np.ndarray]:  # fmt: skip
    """Find the metadata pages in the blocks ``whole`` (bool[blocks]). Return the out-of-band data
    of these blocks by block number. Raises Unusable if the out-of-band data of a page that may be a
    metadata page is damaged.
    """
    pages = scan.geometry.block_pages
    found, damaged = {}, -1
    for block in np.flatnonzero(whole).tolist():
        found[block] = _records_of(scan, block)
        records = found[block][0]
        reads = read_spares(records)
        valid = reads == READS_VALID
        at = np.flatnonzero(valid & (records["lpn"] >= metadata.first))
        metadata.add(block * pages + at, records[at])
        wrong = (reads == READS_DAMAGED) & ~np.isin(records["written"], (ERASED, TORN))
        if wrong.any() and (len(at) or not valid.any()):
            damaged = block * pages + int(np.flatnonzero(wrong)[0])
    if damaged >= 0:
        raise Unusable(f"the out-of-band data of physical page {damaged} are damaged")
    return found


def _newest_root(arrays: Arrays, metadata: _Found) -> np.ndarray | None:
    """Map the page of the newest root (the metadata page that commits a checkpoint) and return the
    words of the root, or None if there is no checkpoint. Raises Unusable if the newest root is
    damaged."""
    at = metadata.pages - 1
    ppn, _ = metadata.choose(at)
    if ppn < 0:
        return None
    root = metadata.words(ppn, ROOT, -1).copy()
    if root[map_checkpoint.NUMBER] == 0:
        return None
    _map(arrays, metadata, at, ppn)
    return root


def _map(arrays: Arrays, metadata: _Found, at: int, ppn: int) -> None:
    """Map the metadata page with index ``at`` to physical page ``ppn``."""
    arrays.l2p[0, metadata.first + at] = ppn + 1
    if metadata.partial:
        arrays.sectors[0, metadata.first + at] = -1


def _forget(scan: Scan, metadata: _Found, whole: np.ndarray) -> None:
    """Prevent later recoveries from using a checkpoint that this recovery has rejected. Overwrite
    the copies of its block table, the newest copy last, and then the damaged pages in blocks
    ``whole`` (bool[blocks]). Keep the root, which contains the fencing epoch.
    """
    pages, first = scan.geometry.block_pages, metadata.first
    for lpn, copies in metadata.copies.items():
        for _, _, ppn, _ in copies:
            if metadata.store.intact(ppn):
                words = metadata.store.read(ppn).view(np.int64)
                metadata.epoch = max(metadata.epoch, int(words[map_checkpoint.EPOCH]))
        if metadata.maps <= lpn - first < metadata.pages - 1:
            for _, _, ppn, _ in sorted(copies):
                scan.store.spoil(ppn)
    for block in np.flatnonzero(whole).tolist():
        records = _records_of(scan, block)[0]
        damaged = (read_spares(records) == READS_DAMAGED) & (records["written"] == PROGRAMMED)
        for at in np.flatnonzero(damaged).tolist():
            scan.store.spoil(block * pages + at)


def _load_map(arrays: Arrays, metadata: _Found, root: np.ndarray) -> np.ndarray:
    """Load the map pages into the mapping table. Return, for each map page, the sequence number up
    to which it includes all writes, int64[map pages]. Raises Unusable if a map page is damaged.

    A map page that was never written maps no pages. A map page that had not changed when the
    checkpoint of ``root`` began is as current as the map pages written by the checkpoint.
    """
    table = arrays.cfg[0]
    span, width, first = int(table.meta_span), int(table.meta_words), int(table.meta_first)
    base = np.full(int(table.meta_maps), int(root[map_checkpoint.SEQUENCE]), np.int64)
    arrays.meta_dirty[:] = 0
    l2p = arrays.l2p[0]
    for at in sorted(lpn - first for lpn in metadata.copies if lpn - first < len(base)):
        ppn, sequence = metadata.choose(at)
        if ppn < 0:
            continue
        base[at] = max(base[at], sequence)
        entries = metadata.words(ppn, MAP, at)[HEAD:]
        own = slice(at * span, min((at + 1) * span, first))
        count = own.stop - own.start
        l2p[own] = entries[: count * width : width]
        if metadata.partial:
            arrays.sectors[0, own] = entries[1 : count * width : width]
        _map(arrays, metadata, at, ppn)
    return base


def _load_table(
    scan: Scan, arrays: Arrays, metadata: _Found, blank: np.ndarray
) -> np.ndarray:  # fmt: skip
    """Load the block table. Return the flags of each block, int64[blocks]. Raise the erase count of
    each block to at least the count in the table. Raises Unusable if a page of the table is missing
    or damaged.
    """
    table, blocks = arrays.cfg[0], scan.blocks
    size, maps = int(table.meta_blocks), metadata.maps
    flags = np.zeros(len(blank), np.int64)
    for at in range(-(-len(blank) // size)):
        ppn, _ = metadata.choose(maps + at)
        if ppn < 0:
            raise Unusable(f"page {at} of its block table is missing")
        own = slice(at * size, min((at + 1) * size, len(blank)))
        words = metadata.words(ppn, TABLE, at)[HEAD : HEAD + own.stop - own.start]
        flags[own] = words & 0xFFFFFFFF
        erased = blank[own] & ((words & map_checkpoint.IS_WRITTEN) != 0)
        blocks.erases[own] = np.maximum(blocks.erases[own], (words >> 32) + erased)
        _map(arrays, metadata, maps + at, ppn)
    return flags


# --- blocks written since


def _scan_since(
    scan: Scan,
    arrays: Arrays,
    scanned: np.ndarray,
    records: dict[int, np.ndarray],
    base: np.ndarray,
) -> None:
    """Scan blocks ``scanned`` (int64[n]), and map the pages that are newer than the checkpoint.

    ``records``: out-of-band data that has already been read, by block number; ``base``: result of
    :func:`_load_map`.
    """
    pages, span = scan.geometry.block_pages, int(arrays.cfg.meta_span[0])
    l2p, kept, asked = arrays.l2p[0], [], []
    for block in scanned.tolist():
        own = records.get(block)
        own = _records_of(scan, block) if own is None else own
        flat, reads = recovery.scan_blocks(scan, arrays, block * pages, own)
        kept.append((block * pages, flat, reads))
        asked.append(
            _note_pages(
                flat,
                reads,
                scan.units,
                int(arrays.cfg.lpns[0]),
                span,
                base,
                scan.newest,
                l2p,
                arrays.meta_dirty,
            )
        )
    lpns = np.concatenate([np.zeros(0, np.int64), *asked])
    ppns = l2p[lpns].astype(np.int64) - 1
    held = scan.store.page_records(ppns)
    good = (read_spares(held) == READS_VALID) & (held["lpn"] == lpns)
    good &= held["sequence"] <= base[lpns // span]
    sequence, step = held["sequence"], held["step"]
    scan.newest[lpns, 0] = np.where(good, sequence, 0)
    scan.newest[lpns, 1] = np.where(good, step, 0)
    l2p[lpns[~good]] = 0
    if scan.sectors is not None:
        scan.sectors[lpns[~good]] = 0
    scanned_blocks = np.zeros(len(scan.blocks.visible), bool)
    scanned_blocks[scanned] = True
    asked = ppns[~scanned_blocks[ppns // pages]]
    scan.found.queried_pages = np.concatenate([scan.found.queried_pages, asked])
    for first, flat, reads in kept:
        recovery.map_pages(scan, arrays, first, flat, reads)


@njit
def _note_pages(records, reads, units, lpns, span, base, newest, l2p, dirty):
    """Prepare the comparison of scanned pages with the checkpoint: set the sequence and program
    number that a page must exceed to be newer than the map entry of its mapping unit. Return the
    mapping units with an entry and with a scanned page that may be a copy of the page in the entry,
    int64[n]. For these mapping units, the sequence and program number of the page in the entry are
    not known yet.

    A trim map is composed before it is programmed, and may be in flight while the map page with its
    entry is composed. Trim maps are never unmapped, so a trim map without an entry is mapped to any
    scanned page that contains it.
    """
    asked = np.empty(reads.shape[0], np.int64)
    count = 0
    for at in range(reads.shape[0]):
        record = records[at]
        lpn = record.lpn
        if reads[at] != READS_VALID or record.sequence <= 0 or lpn < 0 or lpn >= units:
            continue
        page = lpn // span
        dirty[page] = 1
        if lpn >= lpns and l2p[lpn] == 0:
            continue
        if newest[lpn, 0] == 0:
            newest[lpn, 0] = base[page]
            newest[lpn, 1] = NEVER
        if newest[lpn, 1] == NEVER and l2p[lpn] != 0 and record.sequence <= base[page]:
            newest[lpn, 1] = ASKED
            asked[count] = lpn
            count += 1
    return asked[:count].copy()


def _apply_trim_maps(scan: Scan, arrays: Arrays, base: np.ndarray) -> None:
    """Unmap the mapping units that a trim map marks as trimmed if the trim map is newer than their
    map page. Keep units that were written after the trim. Raises InputError if a trim map is
    damaged.
    """
    table = arrays.cfg[0]
    units, span = int(table.lpns), int(table.trim_span)
    l2p, sequences = arrays.l2p[0], scan.newest[:, 0]
    own_maps = np.arange(units, units + int(table.trim_maps))
    own_maps = own_maps[l2p[own_maps] != 0]
    ppns = l2p[own_maps].astype(np.int64) - 1
    records = scan.store.page_records(ppns)
    scan.found.queried_pages = np.concatenate([scan.found.queried_pages, ppns])
    for lpn, ppn, sequence in zip(
        own_maps.tolist(), ppns.tolist(), records["sequence"].tolist(), strict=True
    ):
        first = (lpn - units) * span
        own = slice(first, min(first + span, units))
        of_page = np.arange(own.start, own.stop) // int(table.meta_span)
        if sequence < base[of_page].min():
            continue
        known = np.where(sequences[own] > 0, sequences[own], base[of_page])
        dead = recovery.unmap_dead(scan, l2p, own, lpn - units, ppn, known <= sequence)
        arrays.meta_dirty[np.unique(of_page[dead])] = 1


# --- blocks


def _set_known_blocks(
    scan: Scan,
    arrays: Arrays,
    flags: np.ndarray,
    scanned: np.ndarray,
    blank: np.ndarray,
) -> None:
    """Set the state of the blocks that were not scanned, and of the blocks in which a program or
    erase has failed. Writes do not continue in these blocks.
    """
    blocks, block = scan.blocks, arrays.block
    stripes = blocks.pages(arrays, scan.geometry) // scan.stripe
    failing = (flags & map_checkpoint.IS_FAILING) != 0
    full = (~scanned & ~blank) | (failing & (blocks.visible > 0))
    blocks.visible[full] = stripes[full]
    bad = (flags & map_checkpoint.IS_BAD) != 0
    if failing.any():
        mapped = arrays.l2p[0][arrays.l2p[0] != 0].astype(np.int64) - 1
        bad[failing] |= ~np.isin(np.flatnonzero(failing), mapped // scan.geometry.block_pages)
    block["state"][bad] = page_map.BAD
    failing &= ~bad
    block["retire"][failing] = page_map.FAILED_PROGRAM
    per_unit = failing.reshape(scan.geometry.units, -1).sum(axis=1)
    arrays.pool["retiring"][: scan.geometry.units] = per_unit
