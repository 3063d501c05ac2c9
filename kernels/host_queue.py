"""Queue pair of a host in C: keeps commands in flight, for measurements.

Owns access to the C function. Does not own how the queues are made (emu/serve/vfio_load.py) or the
function itself (csrc/host_queue.c). Source: csrc/ondie.h.
"""

import numpy as np

from . import native
from .errors import KernelError

LONGEST_NS = 30_000_000_000
"""Time in which a completion must come, ns."""


class HostQueue:
    """Queue pair whose entries are in ``submission`` and ``completion``, uint8[64 n] and
    uint8[16 n], all zeros. It rings doorbell registers by messages to the socket ``fd``.

    ``posts``: the messages, 36 bytes each, that write the doorbells of submission and completion
    queue. Raises KernelError without the C extension.
    """

    def __init__(
        self,
        submission: np.ndarray,
        completion: np.ndarray,
        fd: int,
        numbers: tuple[int, int],
        posts: tuple[bytes, bytes],
    ) -> None:
        if native.lib is None:
            raise KernelError("a queue of a host needs the C extension; it is not built")
        self._kept = [submission, completion]
        self._queue = native.ffi.new("ondie_host_queue *")
        self._queue.submission = native.ffi.cast("uint8_t *", submission.ctypes.data)
        self._queue.completion = native.ffi.cast("uint8_t *", completion.ctypes.data)
        self._queue.entries = len(submission) // 64
        self._queue.phase, self._queue.fd = 1, fd
        for which, (number, post) in enumerate(zip(numbers, posts, strict=True)):
            self._queue.number[which] = number
            native.ffi.buffer(self._queue.post[which])[:] = post

    def use_memory(self, doorbells: np.ndarray, events: np.ndarray) -> None:
        """Keep the doorbells in memory: ``doorbells`` and their event indexes, uint8[4096] each."""
        self._kept += [doorbells, events]
        self._queue.doorbells = native.ffi.cast("uint8_t *", doorbells.ctypes.data)
        self._queue.events = native.ffi.cast("uint8_t *", events.ctypes.data)

    @property
    def messages(self) -> int:
        """Number of messages that have written doorbell registers."""
        return int(self._queue.messages)

    def run(self, entries: np.ndarray, places: np.ndarray, seconds: float) -> tuple[int, float]:
        """Keep a command of each of ``entries`` in flight for ``seconds``, but at least one round,
        and wait for the last ones. Return their number, and the time in s.

        ``entries``: uint8[depth, 64], at most 256. ``places``: first blocks, uint64[n], which the
        commands take in turn. Raises KernelError for a command that fails or does not end, or if
        the connection has ended.
        """
        assert native.lib is not None and entries.dtype == np.uint8 and places.dtype == np.uint64
        if not 0 < len(entries) <= min(native.lib.ONDIE_HOST_DEPTH, self._queue.entries - 1):
            raise KernelError(f"{len(entries)} commands in flight: must fit into the queue")
        entries, places = np.ascontiguousarray(entries), np.ascontiguousarray(places)
        done = native.lib.ondie_host_run(
            self._queue,
            native.ffi.cast("const uint8_t *", entries.ctypes.data),
            len(entries),
            native.ffi.cast("const uint64_t *", places.ctypes.data),
            len(places),
            round(seconds * 1e9),
            LONGEST_NS,
        )
        if done == native.lib.ONDIE_HOST_FAILED:
            raise KernelError(f"a command has ended with status 0x{self._queue.status & 0x7FF:x}")
        if done == native.lib.ONDIE_HOST_LATE:
            raise KernelError(f"no command has ended for {LONGEST_NS / 1e9:g} s")
        if done < 0:
            raise KernelError("the connection has ended")
        return int(done), self._queue.ran_ns * 1e-9
