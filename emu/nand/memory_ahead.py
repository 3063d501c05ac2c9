"""Preparation of the memory of pages that programs reach next, in a separate thread.

Owns the thread. Does not own the memory (page_store.py) or which part comes next
(csrc/payload.c, csrc/memory_ahead.c).
Source: Linux, madvise(2): MADV_POPULATE_WRITE.
"""

from __future__ import annotations

import threading
from typing import Any, Self

from ondie.kernels import native


class MemoryAhead:
    """A thread that makes parts of memory ready until :meth:`close`: for each large page of the
    system that programs have reached in a segment in memory, the next one."""

    def __init__(self) -> None:
        self.queue: Any = native.ffi.new("ondie_ahead *")
        """What programs add parts to, for csrc/payload.c."""
        self._thread = threading.Thread(
            target=native.lib.ondie_run_ahead, args=(self.queue,), name="ondie memory", daemon=True
        )
        self._thread.start()

    @property
    def ready(self) -> int:
        """Number of parts of memory that the thread has prepared."""
        return int(self.queue.ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; the remaining parts are not prepared."""
        native.lib.ondie_close_ahead(self.queue)
        self._thread.join()
