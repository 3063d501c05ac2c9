"""Preparation of the memory of pages that are programmed next, in a separate thread.

Owns the thread. Does not own the memory (page_store.py) or the choice of the memory to prepare
(csrc/payload.c, csrc/memory_ahead.c).
Source: Linux, madvise(2): MADV_POPULATE_WRITE.
"""

from __future__ import annotations

import threading
from typing import Any, Self

from ondie.kernels import native


class MemoryAhead:
    """Thread that populates the memory of pages in advance until :meth:`close`. When programs reach
    a large memory page (2 MiB) of a segment in memory, the thread populates the next large memory
    page."""

    def __init__(self) -> None:
        self.queue: Any = native.ffi.new("ondie_ahead *")
        """Queue to which csrc/payload.c adds the parts of memory to prepare."""
        self._thread = threading.Thread(
            target=native.lib.ondie_run_ahead, args=(self.queue,), name="ondie memory", daemon=True
        )
        self._thread.start()

    @property
    def ready(self) -> int:
        """Number of large memory pages (2 MiB each, or less at the end of a segment) that the
        thread has finished populating."""
        return int(self.queue.ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread. Queued large memory pages are not populated."""
        native.lib.ondie_close_ahead(self.queue)
        self._thread.join()
