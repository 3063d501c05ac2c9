"""Bytes of a live drive: pages on flash, pages in the data cache, and the host's memory.

Owns the memory of the data cache and the application of the engine's log to all bytes. Does not own
the selection of cached pages (data_cache.py), stored pages (nand/page_store.py) or the log
(engine/core/payload_log.py).
Source: csrc/payload.c, which copies and computes checksums.
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.core.events import ROW
from ondie.emu.engine.core.payload_log import LOG_BAD, LOG_FILL, LOG_READ, LogEntry
from ondie.emu.engine.core.state import Arrays
from ondie.emu.nand import bit_errors
from ondie.emu.nand.cache_file import CacheFile
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import PageStore, anonymous
from ondie.emu.nand.store_check import damaged_among
from ondie.emu.nand.store_folder import StoreFull
from ondie.emu.nvme.command import FLUSH, READ
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError
from ondie.kernels import native

IN_FILES = () if native.lib is None else (
    native.lib.ONDIE_NO_SEGMENT, native.lib.ONDIE_NO_ROOM, native.lib.ONDIE_FILE_ERASE,
    native.lib.ONDIE_NO_ENTRY, native.lib.ONDIE_FILE_TRIM,
)  # fmt: skip
"""Reasons for which ondie_apply stops that concern the memory of pages."""


class RequestBytes:
    """Bytes of one drive. :meth:`apply` moves them as the engine's log says.

    ``transfers``: TRANSFER of each request in the rings of the queue pairs; the array must not
    move. ``store``: pages on flash. ``cache_file``: files for what is not on flash yet, used from
    :meth:`save_cache` on. Raises InputError if the C extension is not built.
    """

    def __init__(
        self,
        arrays: Arrays,
        geometry: Geometry,
        transfers: np.ndarray,
        store: PageStore,
        cache_file: CacheFile | None = None,
    ) -> None:
        if native.lib is None:
            raise InputError("payload: needs the C extension of the package, which is not built")
        page, places = geometry.page_bytes, int(arrays.cfg.cache_pages[0])
        self.store = store
        """Pages on flash."""
        self.full: StoreFull | None = None
        """The error of the file system that has no room; what follows is kept in memory."""
        self.cache_file = cache_file
        self.damaged: set[int] = set()
        """Physical pages that were read, or whose contents came back to the cache, and whose
        checksum in the store is wrong."""
        self._arrays, self._transfers = arrays, transfers
        self._cached = np.frombuffer(anonymous(page * places), np.uint8)
        record = native.ffi.new("ondie_payload *")
        record.isa = native.ISAS.index(native.isas()[-1])
        record.ring_shift = int(arrays.cfg.ring_shift[0])
        record.planes, record.slots = geometry.planes, geometry.slots
        record.page_bytes, record.segment_pages = page, self.store.segment_pages
        self._kept: dict[str, np.ndarray] = {
            "pages": self.store.page_at,
            "spares": self.store.spare_at,
            "cached": self._cached,
            "flying": np.frombuffer(anonymous(page * places), np.uint8),
            "state": np.zeros(max(places, 1), np.uint8),
            "zeros": np.zeros(page, np.uint8),
            "transfers": transfers,
            "trim_bits": arrays.trim_bits,
            "trim_sequence": np.zeros(len(arrays.trim_bits), np.int64),
            "map_composed": np.zeros(len(arrays.tpage), np.int64),
        }
        if (files := self.store.files) is not None:
            record.verify = 1
            record.run_pages = files.run_pages
            self._kept |= {"room": files.room_at, "marks": files.marks}
        if cache_file is not None:
            one = max(places, 1)
            for name in ("entry", "leaving", "content"):
                self._kept[name] = np.zeros(one, np.int64)
            for name in ("free_entries", "left_entries"):
                self._kept[name] = np.zeros(max(cache_file.count, 1), np.int64)
        for name, array in self._kept.items():
            setattr(record, name, native.ffi.cast("void *", array.ctypes.data))
        self._record, self._log = record, arrays.log.view(np.ndarray)
        self._address = native.ffi.cast("ondie_record *", arrays.log.ctypes.data)

    def save_cache(self) -> None:
        """Keep the contents of the cache, and trims, in their files from now on. All entries are
        free; the first is given when the clean flag of the store has been cleared."""
        assert self.cache_file is not None
        record, file = self._record, self.cache_file
        self._kept["left_entries"][: file.count] = np.arange(file.count)
        record.free_count, record.left_count = 0, file.count
        for name in ("entry", "leaving"):
            self._kept[name][:] = 0
        held = file.entries if file.count else self._kept["content"]
        record.entries = native.ffi.cast("ondie_entry *", held.ctypes.data)
        if file.count:
            record.entry_pages = native.ffi.cast("uint8_t *", file.pages.ctypes.data)

    def _free_entries(self) -> None:
        """Let entries that are not needed any more be overwritten. With durability "host", what has
        replaced them is synced first. Raises StoreFull."""
        record, file = self._record, self.cache_file
        assert file is not None and self.store.files is not None
        file.folder.begin_writing()
        if file.folder.durability == "host":
            self.store.sync()
            file.sync()
        count = int(record.left_count)
        if count == 0:
            raise Imbalance(f"all {file.count} entries of the cache file are in use")
        self._kept["free_entries"][:count] = self._kept["left_entries"][:count]
        record.free_count, record.left_count = count, 0

    def sync_completed(self, requests: np.ndarray) -> None:
        """Make durable what the completion of ``requests`` (REQ[n]) promises with durability
        "host": that of FLUSH and FUA, with power-loss protection of all but reads. Raises
        InputError."""
        files, kept = self.store.files, self.cache_file
        assert files is not None
        if kept is not None and (requests["op"] != READ).any():
            kept.sync()
        flushes = (requests["op"] == FLUSH) | (requests["fua"] != 0)
        if (flushes if kept is None else requests["op"] != READ).any():
            if kept is None or not kept.count:  # else the cache has it
                files.sync()

    def tables(self) -> dict[str, np.ndarray]:
        """Return the memory of the data cache by name, for a checkpoint."""
        return {f"bytes {name}": self._kept[name] for name in ("cached", "flying", "state")}

    def check_cached_pages(self) -> None:
        """Check the pages on flash whose contents a checkpoint has brought back to the data cache.
        Reads find the copies, so that a damaged page would be met only after its eviction."""
        assert self.store.files is not None
        slots = self._arrays.cpage[: int(self._arrays.cache.used[0])]
        entries = self._arrays.l2p[0, slots["lpn"][slots["have"] != 0]].astype(np.int64)
        self.damaged |= set(damaged_among(self.store.files, entries[entries > 0] - 1))

    @property
    def counters(self) -> tuple[int, int]:
        """Numbers of the last program of new data, and of the last program."""
        return int(self._record.sequence), int(self._record.programs)

    def continue_from(self, sequence: int, programs: int) -> None:
        """Number programs from these :attr:`counters` on."""
        self._record.sequence, self._record.programs = sequence, programs

    def apply(self, count: int) -> None:
        """Apply the first ``count`` records of the engine's log. Raises InputError if a page is
        programmed twice without an erase, Imbalance if bytes are taken from a page that is not
        programmed, or move for something else than a request.
        """
        record, at = self._record, 0
        while True:
            at = native.lib.ondie_apply(record, self._address, at, count)
            if at == count:
                return
            if record.status == native.lib.ONDIE_DAMAGED:
                self._fail_read(self._log[at], int(record.missing))
                at += 1
            elif record.status in IN_FILES:
                entry = self._log[at]
                try:
                    at += self._prepare(entry, int(record.missing))
                except StoreFull as error:
                    self.full = error
                    self.store.keep_in_memory()
                    record.entries = record.entry_pages = native.ffi.NULL  # they stay as they are
                except InputError:
                    if entry["what"] not in (LOG_READ, LOG_FILL):
                        raise
                    self._fail_read(entry, int(entry["ppn"]))  # its segment cannot be read
                    at += 1
            elif record.status == native.lib.ONDIE_TWICE:
                ppn = int(self._log["ppn"][at])
                raise InputError(f"physical page {ppn} is programmed twice without an erase")
            else:
                self._spoil(LogEntry._make(self._log[at].tolist()))
                at += 1

    def _fail_read(self, entry: np.record, ppn: int) -> None:
        """Let the request of ``entry`` of the log, which has read damaged page ``ppn``, end with an
        unrecovered read error. Its completion is not reported yet."""
        self.damaged.add(ppn)
        if entry["queue"] >= 0:
            place = (int(entry["queue"]) << self._record.ring_shift) + int(entry["row"])
            request = self._arrays.req[place]
            if request["status"] == Status.SUCCESS:
                request["status"] = Status.UNRECOVERED_READ_ERROR

    def _prepare(self, entry: np.record, missing: int) -> int:
        """Open a segment, reserve room or erase pages, so that the application of ``entry`` of the
        log can go on. Return the number of entries that this has applied. Raises StoreFull."""
        match self._record.status:
            case native.lib.ONDIE_NO_SEGMENT:
                reads = entry["what"] in (LOG_READ, LOG_FILL)
                self.store.open_segment(missing, create=not reads)
            case native.lib.ONDIE_NO_ENTRY:
                self._free_entries()
            case native.lib.ONDIE_FILE_TRIM:
                assert self.cache_file is not None
                self.cache_file.folder.begin_writing()
                first, count = int(entry["lpn"]), int(entry["n"])
                self.cache_file.record_trim(first, count, int(self._record.sequence))
                return 1
            case native.lib.ONDIE_NO_ROOM:
                self.store.reserve(missing)
            case native.lib.ONDIE_FILE_ERASE:
                planes, slots = self._record.planes, self._record.slots
                ppn, count, mask = (int(entry[name]) for name in ("ppn", "n", "old"))
                self.store.erase(ppn, count, mask, planes, slots)
                return 1
        return 0

    def _spoil(self, entry: LogEntry) -> None:
        """Apply a log entry for a page with bit errors: to the host's memory, or to the flash page
        to which it was moved with its errors."""
        if entry.what != LOG_BAD or entry.kind == ROW:
            raise Imbalance(f"bytes cannot move as the engine's log says: {entry}")
        page = self.store.page_bytes
        wrong = bit_errors.logged_bits(entry, self._arrays.code[0], page)
        if entry.queue < 0:
            self.store.damage(entry.ppn, wrong)
            return
        record = self._transfers[(entry.queue << self._record.ring_shift) + entry.row]
        first = entry.lpn * page - int(record["offset"])
        start, end = max(first, 0), min(first + page, int(record["size"]))
        if record["data"] == 0 or end <= start:
            return
        address = native.ffi.cast("uint8_t *", int(record["data"]) + start)
        memory = np.frombuffer(native.ffi.buffer(address, end - start), np.uint8)
        memory ^= wrong[start - first : end - first]

    def stored(self, unit: int) -> np.ndarray | None:
        """Return a copy of the flash contents of a mapping unit, uint8[page_bytes]; None if the
        unit is not mapped."""
        entry = int(self._arrays.l2p[0, unit])
        return None if entry == 0 else self.store.read(entry - 1).copy()

    def cached(self, unit: int) -> np.ndarray | None:
        """Return a copy of a mapping unit in the data cache, uint8[page_bytes], of which only the
        cached sectors have a meaning; None if the unit is not in the cache."""
        slots = self._arrays.cpage[: int(self._arrays.cache.used[0])]
        found = np.flatnonzero((slots["lpn"] == unit) & (slots["have"] != 0))
        if not len(found):
            return None
        first = int(found[0]) * self.store.page_bytes
        return self._cached[first : first + self.store.page_bytes].copy()

    def misplaced(self, units: int) -> list[str]:
        """Return one sentence for each of the first ``units`` mapping units whose flash page
        belongs to another unit. Translation pages have no stored bytes and are not checked.
        """
        wrong = []
        for unit in np.flatnonzero(self._arrays.l2p[0, :units]):
            ppn = int(self._arrays.l2p[0, unit]) - 1
            owner = self.store.owner(ppn)
            if owner != unit:
                wrong.append(f"page {unit} is mapped to {ppn}, which holds {owner}")
        return wrong
