"""Contents of drives: flash pages, data cache, and the memory of requests and plans.

Owns the memory of the data cache and the application of the engine's log to all contents. Does not
own the selection of cached pages (data_cache.py), stored pages (nand/page_store.py), the log
(engine/core/payload_log.py) or the effect of an update plan's rows (:class:`PlanBytes`).
Source: csrc/payload.c, which copies data and computes checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.core.counters import MEDIA_ERRORS
from ondie.emu.engine.core.events import ROW
from ondie.emu.engine.core.payload_log import (
    LOG_BAD,
    LOG_DECODED,
    LOG_FILL,
    LOG_READ,
    LOG_SERVE,
    LOG_STORE,
    LogEntry,
)
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.core.transaction import SECTOR_BYTES
from ondie.emu.ftl import trim_maps
from ondie.emu.nand import bit_errors
from ondie.emu.nand.cache_file import CacheFile
from ondie.emu.nand.codec import Decoder
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.memory_ahead import MemoryAhead
from ondie.emu.nand.page_store import PageStore, anonymous
from ondie.emu.nand.store_check import damaged_among
from ondie.emu.nand.store_folder import StoreFull
from ondie.emu.nvme.command import FLUSH, READ
from ondie.emu.nvme.decoded_reads import DecodedReads
from ondie.emu.nvme.status import Status
from ondie.emu.units import InputError
from ondie.kernels import native

IN_FILES = () if native.lib is None else (
    native.lib.ONDIE_NO_SEGMENT, native.lib.ONDIE_NO_ROOM, native.lib.ONDIE_FILE_ERASE,
    native.lib.ONDIE_NO_ENTRY, native.lib.ONDIE_FILE_TRIM,
)  # fmt: skip
"""Statuses with which the C function ondie_apply stops until the page store or the cache file has
been prepared."""

POISON = 0xFF
"""Byte of memory without valid data: two of them are a 16-bit NaN, four are an FP32 NaN."""
assert native.lib is None or (POISON, ROW) == (native.lib.ONDIE_POISON, native.lib.ONDIE_OF_PLAN)


class PlanBytes(Protocol):
    """Interface that applies the rows (operations) of an update plan to stored data."""

    @property
    def memory(self) -> Sequence[np.ndarray]:
        """Memory that plan rows read into and write from, for each device: uint8[pages, page_bytes]
        by logical page; no pages if no row accesses the conventional namespace. A page is filled
        with POISON after a row has written it to flash. The arrays must not move."""

    def apply(self, entry: LogEntry) -> None:
        """Apply an entry of the engine's log whose meaning depends on the plan. Raises
        SimulationError for any other entry."""


class DrivePlanBytes(PlanBytes, Protocol):
    """PlanBytes for a drive in which power cuts can interrupt the programs of a plan."""

    def interrupt(self, die: int, tid: int, rng: np.random.Generator) -> None:
        """Set the pages that transaction ``tid`` programs in the reservoir of ``die`` to their
        state after a power cut. ``rng`` determines the state."""


class MovedBytes:
    """Contents of the devices of a system. :meth:`apply` applies the engine's log to them.

    ``transfers``: TRANSFER[n], requests in the rings of the queue pairs; C code keeps the address
    of this array. ``stores``: pages on flash of each device. ``cache_file``: stores the data of a
    single device that is not on flash yet; used after :meth:`save_cache`. ``decoder``: decoder of
    the implemented ECC code. Raises InputError if the C extension is not built.
    """

    def __init__(
        self,
        arrays: Arrays,
        geometry: Geometry,
        transfers: np.ndarray,
        stores: Sequence[PageStore],
        cache_file: CacheFile | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        if native.lib is None:
            raise InputError("payload: requires the package's C extension, which is not built")
        page, places = geometry.page_bytes, int(arrays.cfg.cache_pages[0]) * len(stores)
        self.stores = tuple(stores)
        """Pages on flash of each device."""
        self.full: StoreFull | None = None
        """The error StoreFull, or None if no file system was full. Later changes stay in memory."""
        self.cache_file = cache_file
        self.damaged: set[int] = set()
        """Physical pages whose checksum was wrong when they were read, or when a checkpoint
        restored their contents to the cache."""
        self.decoder = decoder
        """Decoder of the implemented ECC code, or None if there is none."""
        self._decoded = None if decoder is None else DecodedReads(decoder)
        self.plans: PlanBytes | None = None
        """Effect of the rows of plans on data, or None if rows do not move data."""
        self._arrays, self._transfers = arrays, transfers
        self._cached = np.frombuffer(anonymous(page * places), np.uint8)
        self._records = native.ffi.new("ondie_payload[]", len(stores))
        self._record = self._records[0]
        self._kept: dict[str, np.ndarray] = {
            "cached": self._cached,
            "flying": np.frombuffer(anonymous(page * places), np.uint8),
            "state": np.zeros(max(places, 1), np.uint8),
            "zeros": np.zeros(page, np.uint8),
            "transfers": transfers,
            "trim_bits": arrays.trim_bits,
            "trim_sequence": np.zeros(len(arrays.trim_bits), np.int64),
            "map_composed": np.zeros(len(arrays.tpage), np.int64),
        }
        if cache_file is not None:
            one = max(places, 1)
            for name in ("entry", "leaving", "content"):
                self._kept[name] = np.zeros(one, np.int64)
            for name in ("free_entries", "left_entries"):
                self._kept[name] = np.zeros(max(cache_file.count, 1), np.int64)
        for dev, store in enumerate(stores):
            record = self._records[dev]
            record.isa = native.ISAS.index(native.isas()[-1])
            record.ring_shift = int(arrays.cfg.ring_shift[0])
            record.planes, record.slots = geometry.planes, geometry.slots
            record.page_bytes, record.segment_pages = page, store.segment_pages
            own: dict[str, np.ndarray] = {"pages": store.page_at, "spares": store.spare_at}
            if (files := store.files) is not None:
                record.verify = 1
                record.run_pages = files.run_pages
                own |= {"room": files.room_at, "marks": files.marks}
            for name, array in (self._kept | own).items():
                setattr(record, name, native.ffi.cast("void *", array.ctypes.data))
        self._log = arrays.log.view(np.ndarray)
        self._address = native.ffi.cast("ondie_record *", arrays.log.ctypes.data)

    @property
    def store(self) -> PageStore:
        """Pages on flash of the first device."""
        return self.stores[0]

    def follow(self, plans: PlanBytes | None) -> None:
        """Set the object that applies rows of update plans to data. With None, rows move no
        data."""
        self.plans = plans
        for dev in range(len(self.stores)):
            memory = np.zeros((0, 0), np.uint8) if plans is None else plans.memory[dev]
            assert memory.flags.c_contiguous
            record = self._records[dev]
            record.plan_memory = native.ffi.cast("uint8_t *", memory.ctypes.data)
            record.plan_pages = len(memory)

    def prepare_memory(self, ahead: MemoryAhead | None) -> None:
        """Let ``ahead`` prepare the memory of pages that are not in files; None disables this."""
        queue = native.ffi.NULL if ahead is None else ahead.queue
        for record, store in zip(self._records, self.stores, strict=True):
            record.ahead = queue if store.files is None else native.ffi.NULL

    def save_cache(self) -> None:
        """Start keeping cached data and trims in the cache files. All entries are free at first. No
        entry is used before the clean flag of the store is cleared."""
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
        """Free entries that are no longer needed. With durability "host", first sync the contents
        that replace them. Raises StoreFull if there is no space, and Imbalance if all are in
        use."""
        record, file = self._record, self.cache_file
        assert file is not None and self.store.files is not None
        file.folder.begin_writing()
        if file.folder.syncs:
            self.store.sync()
            file.sync()
        count = int(record.left_count)
        if count == 0:
            raise Imbalance(f"all {file.count} entries of the cache file are in use")
        self._kept["free_entries"][:count] = self._kept["left_entries"][:count]
        record.free_count, record.left_count = count, 0

    def wipe_cache(self) -> None:
        """Overwrite the invalid data in the data cache of a single idle drive, and in its file.
        Contents that left the cache must be durable on flash. Raises StoreFull or InputError if a
        file cannot be written."""
        used, page = int(self._arrays.cache.used[0]), self.store.page_bytes
        slots = np.asarray(self._arrays.cpage).view(np.ndarray)[:used]
        cached, flying = (
            self._kept[name][: used * page].reshape(used, page) for name in ("cached", "flying")
        )
        state, lib = self._kept["state"][:used], native.lib
        left = np.flatnonzero(state != lib.ONDIE_CHANGED)
        flying[[at for at in left.tolist() if flying[at].any()]] = 0
        sectors = np.arange(-(-page // SECTOR_BYTES))
        for at in np.flatnonzero(state != lib.ONDIE_FLYING).tolist():
            held = int(slots["have"][at]) >> sectors & 1 != 0
            cached[at, ~np.repeat(held, SECTOR_BYTES)[:page]] = 0
        file = self.cache_file
        if file is not None and self._record.entries != native.ffi.NULL:
            needed = np.concatenate([self._kept["entry"], self._kept["leaving"]])
            file.wipe(needed[needed > 0] - 1)

    def sync_completed(self, requests: np.ndarray) -> None:
        """Sync the data that durability "host" requires when ``requests`` (REQ[n]) complete: after
        FLUSH and FUA writes, and, with power-loss protection, after all requests except reads.
        Raises InputError if a file cannot be synced."""
        files, kept = self.store.files, self.cache_file
        assert files is not None
        if kept is not None and (requests["op"] != READ).any():
            kept.sync()
        flushes = (requests["op"] == FLUSH) | (requests["fua"] != 0)
        if (flushes if kept is None else requests["op"] != READ).any():
            if kept is None or not kept.count:  # else the cache has it
                files.sync()

    def sync(self) -> None:
        """Make all changes of the pages durable. If there is no space for a change, later changes
        are kept in memory, and :attr:`full` contains the error. Other errors are raised."""
        for record, store in zip(self._records, self.stores, strict=True):
            try:
                store.sync()
            except StoreFull as error:
                self._keep_in_memory(error, record, store)

    def verify_reads(self) -> None:
        """Verify the checksum of every page that is read after this call, even without files."""
        for dev in range(len(self.stores)):
            self._records[dev].verify = 1

    def tables(self) -> dict[str, np.ndarray]:
        """Return the arrays of the data cache by name, to be saved in a checkpoint."""
        return {f"bytes {name}": self._kept[name] for name in ("cached", "flying", "state")}

    def check_cached_pages(self) -> None:
        """Check the flash pages of the contents that a checkpoint restored to the data cache. Add
        damaged pages to :attr:`damaged`; reads of the cached copies do not detect them."""
        assert self.store.files is not None
        slots = self._arrays.cpage[: int(self._arrays.cache.used[0])]
        entries = self._arrays.l2p[0, slots["lpn"][slots["have"] != 0]].astype(np.int64)
        self.damaged |= set(damaged_among(self.store.files, entries[entries > 0] - 1))

    @property
    def counters(self) -> tuple[int, int]:
        """Last sequence number (of a program, cached write or trim) and last program number."""
        return int(self._record.sequence), int(self._record.programs)

    def continue_from(self, sequence: int, programs: int) -> None:
        """Set the last sequence number and the last program number (see :attr:`counters`)."""
        self._record.sequence, self._record.programs = sequence, programs

    def apply(self, count: int) -> None:
        """Apply the first ``count`` records of the engine's log as :meth:`apply_log` does."""
        self._apply(self._log, self._address, count)

    def apply_log(self, log: np.ndarray) -> None:
        """Apply the records of a log, LOG[n]. Raises InputError if a page is programmed twice
        without an erase, a plan reads an unprogrammed page, or a file cannot be used. Raises
        Imbalance or SimulationError if a record cannot be applied for another reason."""
        log = np.ascontiguousarray(log).view(np.ndarray)
        self._apply(log, native.ffi.cast("ondie_record *", log.ctypes.data), len(log))

    def _apply(self, log: np.ndarray, address: object, count: int) -> None:
        at = 0
        while (at := native.lib.ondie_apply(self._records, address, at, count)) < count:
            at += self._apply_stopped(log[at], log[at + 1 : count])
        self._finish_decoding()
        slots = self._arrays.trim_slot
        slots[slots == trim_maps.LOGGED] = trim_maps.FREE

    def _apply_stopped(self, entry: np.record, behind: np.ndarray) -> int:
        """Handle the status with which ondie_apply stopped at ``entry`` of the log. ``behind``:
        entries that follow ``entry``. Return the number of entries that are applied. Raises the
        errors of :meth:`apply_log`."""
        record = self._records[int(entry["dev"])]
        if record.status == native.lib.ONDIE_DAMAGED:
            self._fail_read(entry, int(record.missing), behind)
            return 1
        if record.status in IN_FILES:
            store = self.stores[int(entry["dev"])]
            try:
                return self._prepare(entry, record, store)
            except StoreFull as error:
                self._keep_in_memory(error, record, store)
                return 0
            except InputError:
                if entry["what"] not in (LOG_READ, LOG_FILL):
                    raise
                self._fail_read(entry, int(entry["ppn"]), behind)  # its segment cannot be read
                return 1
        if record.status == native.lib.ONDIE_TWICE:
            ppn = int(entry["ppn"])
            raise InputError(f"physical page {ppn} is programmed twice without an erase")
        if entry["what"] == LOG_DECODED and record.status == native.lib.ONDIE_NOT_APPLIED:
            self._decode(LogEntry._make(entry.tolist()), behind)
            return 1
        self._apply_other(LogEntry._make(entry.tolist()), record.status)
        return 1

    def _decode(self, entry: LogEntry, behind: np.ndarray) -> None:
        """Batch the page read of ``entry`` for decoding; decode reads of plans immediately."""
        if self._decoded is None:
            raise Imbalance(f"the engine's log has an entry that cannot be applied: {entry}")
        full = self._decoded.add(entry, self.stores[entry.dev], behind, self.damaged)
        if full or entry.kind == ROW:
            self._finish_decoding()

    def _finish_decoding(self) -> None:
        """Decode the waiting pages, and fail the requests whose pages cannot be corrected."""
        if self._decoded is None:
            return
        for page in self._decoded.finish():
            self._decoded.count(self._arrays, page)
            if page.entry.row >= 0 and page.wrong is not None:
                self._flip_moved(page.entry, page.wrong)
            if page.failed:
                self._fail_request(page.entry)
                for fill, behind in page.fills:
                    self._drop_fill(fill, behind)

    def _fail_read(self, entry: np.record, ppn: int, behind: np.ndarray) -> None:
        """Fail the request of log entry ``entry``, which read the damaged page ``ppn``, with an
        unrecovered read error, and fail the requests that read the page's data from the cache.
        ``behind``: log entries that follow. The requests' completions are not reported yet."""
        self.damaged.add(ppn)
        self._fail_request(entry)
        if entry["what"] == LOG_FILL:
            self._drop_fill(entry, behind)

    def _fail_request(self, entry: np.record | LogEntry) -> None:
        """Set the status of the request of log entry ``entry`` to unrecovered read error."""
        if isinstance(entry, np.record):
            entry = LogEntry._make(entry.tolist())
        if entry.queue < 0:
            return
        place = (entry.queue << self._record.ring_shift) + entry.row
        request = self._arrays.req[place]
        if request["status"] == Status.SUCCESS:
            request["status"] = Status.UNRECOVERED_READ_ERROR
            self._arrays.count[entry.dev, MEDIA_ERRORS] += 1

    def _drop_fill(self, entry: np.record, behind: np.ndarray) -> None:
        """Remove the sectors that log entry ``entry`` filled from a damaged page from the data
        cache, unless a later write has replaced them. Fail the reads in ``behind`` (the log entries
        after ``entry``) that were served with these sectors."""
        place, sectors = int(entry["place"]), int(entry["sectors"])
        for later in behind[behind["place"] == place]:
            if later["what"] in (LOG_FILL, LOG_STORE):
                if later["lpn"] != entry["lpn"]:
                    return  # the slot has another page
                if later["what"] == LOG_STORE:
                    sectors &= ~int(later["sectors"])
            elif later["what"] == LOG_SERVE and sectors:
                self._fail_request(later)
        page = self._arrays.cpage[place - 1]
        if page["lpn"] == entry["lpn"] and page["flying"] == 0:
            page["have"] &= ~(sectors & ~int(page["dirty"]))

    def _keep_in_memory(self, error: StoreFull, record: Any, store: PageStore) -> None:
        """Keep all later changes in memory after ``error``; the files are not changed any more."""
        self.full = error
        store.keep_in_memory()
        record.entries = record.entry_pages = native.ffi.NULL

    def reserve(self, device: int, first: int, count: int) -> None:
        """Reserve storage for physical pages ``first`` to ``first + count - 1``, so that a plan can
        program them. If the file system has no space, reserve memory instead of file space."""
        for ppn in range(first, first + count):
            try:
                self.stores[device].reserve(ppn)
            except StoreFull as error:
                self._keep_in_memory(error, self._records[device], self.stores[device])
                self.stores[device].reserve(ppn)

    def _prepare(self, entry: np.record, record: Any, store: PageStore) -> int:
        """Open a segment, reserve storage or erase pages, so that ``entry`` can be applied. Return
        the number of log entries applied here. Raises StoreFull if there is no space."""
        missing = int(record.missing)
        match record.status:
            case native.lib.ONDIE_NO_SEGMENT:
                reads = entry["what"] in (LOG_READ, LOG_FILL)
                store.open_segment(missing, create=not reads)
            case native.lib.ONDIE_NO_ENTRY:
                self._free_entries()
            case native.lib.ONDIE_FILE_TRIM:
                assert self.cache_file is not None
                self.cache_file.folder.begin_writing()
                first, count = int(entry["lpn"]), int(entry["n"])
                self.cache_file.record_trim(first, count, int(record.sequence))
                return 1
            case native.lib.ONDIE_NO_ROOM:
                store.reserve(missing)
            case native.lib.ONDIE_FILE_ERASE:
                ppn, count, mask = (int(entry[name]) for name in ("ppn", "n", "old"))
                store.erase(ppn, count, mask, record.planes, record.slots)
                return 1
        return 0

    def _apply_other(self, entry: LogEntry, status: int) -> None:
        """Apply a log entry that ondie_apply left to its caller with ``status``."""
        if status == native.lib.ONDIE_NOT_APPLIED and entry.what == LOG_BAD:
            self._spoil(entry)
        elif status == native.lib.ONDIE_NOT_APPLIED and self.plans is not None:
            self.plans.apply(entry)
        elif status == native.lib.ONDIE_BLANK and entry.kind == ROW and entry.what == LOG_READ:
            ppns = range(entry.ppn, entry.ppn + entry.n)
            blank = next(ppn for ppn in ppns if not self.stores[entry.dev].is_written(ppn))
            raise InputError(f"physical page {blank} was read before it was programmed")
        else:
            raise Imbalance(f"the engine's log has an entry that cannot be applied: {entry}")

    def _spoil(self, entry: LogEntry) -> None:
        """Apply the bit errors of a log entry to the memory of its request or plan, or to the flash
        page to which the page was moved with its errors."""
        store = self.stores[entry.dev]
        page = store.page_bytes
        wrong = bit_errors.logged_bits(entry, self._arrays.code[0], page)
        if entry.row < 0:
            store.damage(entry.ppn, wrong)
        else:
            self._flip_moved(entry, wrong)

    def _flip_moved(self, entry: LogEntry, wrong: np.ndarray) -> None:
        """Flip the bits ``wrong``, uint8[page bytes], in the memory of the request or plan that
        read the page of log entry ``entry``."""
        page = self.store.page_bytes
        if entry.kind == ROW:
            if self.plans is None:
                raise Imbalance(f"the engine's log has an entry that cannot be applied: {entry}")
            self.plans.memory[entry.dev][entry.lpn] ^= wrong
            return
        transfer = self._transfers[(entry.queue << self._record.ring_shift) + entry.row]
        first = entry.lpn * page - int(transfer["offset"])
        start, end = max(first, 0), min(first + page, int(transfer["size"]))
        if transfer["data"] == 0 or end <= start:
            return
        address = native.ffi.cast("uint8_t *", int(transfer["data"]) + start)
        memory = np.frombuffer(native.ffi.buffer(address, end - start), np.uint8)
        memory ^= wrong[start - first : end - first]

    def newest(self, device: int, units: range) -> np.ndarray:
        """Return the contents of mapping units from the data cache, or else from flash,
        uint8[len(units), page_bytes]. Raises InputError if a unit has no stored contents."""
        first = device * int(self._arrays.cfg.cache_pages[0])
        slots = self._arrays.cpage[first : first + int(self._arrays.cache.used[device])]
        held = np.flatnonzero(slots["have"] != 0)
        places = dict(zip(slots["lpn"][held].tolist(), (first + held).tolist(), strict=True))
        page, found = self.store.page_bytes, []
        for unit in units:
            if unit in places:
                at = places[unit] * page
                found.append(self._cached[at : at + page])
            else:
                found.append(self.stores[device].read(int(self._arrays.l2p[device, unit]) - 1))
        return np.stack(found)

    def stored(self, unit: int) -> np.ndarray | None:
        """Return a copy of the flash contents of a mapping unit, uint8[page_bytes], or None if the
        unit is not mapped."""
        entry = int(self._arrays.l2p[0, unit])
        return None if entry == 0 else self.store.read(entry - 1).copy()

    def cached(self, unit: int) -> np.ndarray | None:
        """Return a copy of a mapping unit in the data cache, uint8[page_bytes], or None if it is
        not cached. Only the cached sectors are valid."""
        slots = self._arrays.cpage[: int(self._arrays.cache.used[0])]
        found = np.flatnonzero((slots["lpn"] == unit) & (slots["have"] != 0))
        if not len(found):
            return None
        first = int(found[0]) * self.store.page_bytes
        return self._cached[first : first + self.store.page_bytes].copy()

    def misplaced(self, units: int) -> list[str]:
        """Return one sentence for each mapping unit below ``units`` whose flash page belongs to
        another unit. Translation pages are not checked, because their contents are not stored."""
        wrong = []
        for unit in np.flatnonzero(self._arrays.l2p[0, :units]):
            ppn = int(self._arrays.l2p[0, unit]) - 1
            owner = self.store.owner(ppn)
            if owner != unit:
                wrong.append(f"unit {unit} is mapped to page {ppn}, which belongs to {owner}")
        return wrong
