"""Bytes of plans in the data cache: held in DRAM until they are on flash, lost at a power loss.

Owns the bytes of cached pages and of pages that are being programmed. Does not own the selection of
cached pages (data_cache.py) or the contents of flash pages (nand/page_store.py).
Source: the engine's log of moved bytes (engine/core/payload_log.py).
"""

from __future__ import annotations

import numpy as np

from ondie.emu.engine.core import payload_log
from ondie.emu.nand.page_store import PageStore


class CachedBytes:
    """Bytes of the pages in the drive's data cache, uint8[page_bytes] each, by logical page
    number."""

    def __init__(self) -> None:
        self.pages: dict[int, np.ndarray] = {}
        """Bytes of the cached pages, uint8[page_bytes] each, by logical page number."""
        self._flying: dict[int, np.ndarray] = {}

    def follow(self, entry: payload_log.LogEntry, store: PageStore) -> bool:
        """Apply a log entry that moves bytes between the cache and flash, or drops cached bytes.

        Returns False, without effect, for every other kind of entry.
        """
        lpn, ppn = entry.lpn, entry.ppn
        match entry.what:
            case payload_log.LOG_DESTAGE:
                self._flying[lpn] = self.pages[lpn].copy()
            case payload_log.LOG_LAND:
                store.write(ppn, lpn, self._flying.pop(lpn))
            case payload_log.LOG_LOST:
                del self._flying[lpn]
            case payload_log.LOG_FILL:
                self.pages[lpn] = store.read(ppn).copy()
            case payload_log.LOG_DROP | payload_log.LOG_TRIM:
                for i in range(entry.n):
                    self.pages.pop(lpn + i, None)
            case _:
                return False
        return True

    def clear(self) -> None:
        """Drop all pages, as a power loss does."""
        self.pages.clear()
        self._flying.clear()
