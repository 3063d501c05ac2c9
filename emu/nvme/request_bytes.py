"""Bytes of a live drive: pages on flash, pages in the data cache, and the host's memory.

Owns the memory of the data cache and the application of the engine's log to all bytes. Does not own
the selection of cached pages (data_cache.py), stored pages (nand/page_store.py) or the log
(engine/core/payload_log.py).
Source: csrc/payload.c, which copies and computes checksums.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ondie.emu.engine.core.payload_log import LogEntry
from ondie.emu.engine.core.state import Arrays
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.page_store import PageStore, anonymous
from ondie.emu.units import InputError
from ondie.kernels import native


class RequestBytes:
    """Bytes of one drive. :meth:`apply` moves them as the engine's log says.

    ``transfers``: TRANSFER of each request in the rings of the queue pairs; the array must not
    move. ``other`` receives each entry that moves no whole pages, such as an uncorrectable page.
    Raises InputError if the C extension is not built.
    """

    def __init__(
        self, arrays: Arrays, geometry: Geometry, store: PageStore, transfers: np.ndarray,
        other: Callable[[LogEntry], None],
    ) -> None:  # fmt: skip
        if native.lib is None:
            raise InputError("payload: needs the C extension of the package, which is not built")
        self.store = store
        self.transfers = transfers
        self._other = other
        page, places = geometry.page_bytes, int(arrays.cfg.cache_pages[0])
        self.cached = np.frombuffer(anonymous(page * places), np.uint8)
        """Slots of the data cache, uint8[slots * page_bytes]."""
        flying = np.frombuffer(anonymous(page * places), np.uint8)
        zeros = np.zeros(page, np.uint8)
        record = native.ffi.new("ondie_payload *")
        record.isa = native.ISAS.index(native.isas()[-1])
        record.ring_shift = int(arrays.cfg.ring_shift[0])
        record.planes = geometry.planes * geometry.slots
        record.page_bytes, record.segment_pages = page, store.segment_pages
        self._kept: dict[str, np.ndarray] = {
            "pages": store.page_at,
            "spares": store.spare_at,
            "cached": self.cached,
            "flying": flying,
            "state": np.zeros(max(places, 1), np.uint8),
            "zeros": zeros,
            "transfers": self.transfers,
        }
        for name, array in self._kept.items():
            setattr(record, name, native.ffi.cast("void *", array.ctypes.data))
        self._record, self._log = record, arrays.log.view(np.ndarray)
        self._address = native.ffi.cast("ondie_record *", arrays.log.ctypes.data)

    def apply(self, count: int) -> None:
        """Apply the first ``count`` records of the engine's log. Raises InputError if a page is
        programmed twice without an erase.
        """
        record, at = self._record, 0
        while True:
            at = native.lib.ondie_apply(record, self._address, at, count)
            if at == count:
                return
            status = record.status
            if status == native.lib.ONDIE_NO_SEGMENT:
                self.store.open_segment(record.missing)
            elif status == native.lib.ONDIE_TWICE:
                ppn = int(self._log["ppn"][at])
                raise InputError(f"physical page {ppn} is programmed twice without an erase")
            else:
                self._other(LogEntry._make(self._log[at].tolist()))
                at += 1

    def spoil(self, entry: LogEntry, wrong: np.ndarray) -> None:
        """Flip the bits ``wrong``, uint8[page_bytes], of a page that a request has read, in the
        host's memory."""
        record = self.transfers[(entry.queue << self._record.ring_shift) + entry.row]
        page = len(wrong)
        first = entry.lpn * page - int(record["offset"])
        start, end = max(first, 0), min(first + page, int(record["size"]))
        if record["data"] == 0 or end <= start:
            return
        address = native.ffi.cast("uint8_t *", int(record["data"]) + start)
        memory = np.frombuffer(native.ffi.buffer(address, end - start), np.uint8)
        memory ^= wrong[start - first : end - first]
