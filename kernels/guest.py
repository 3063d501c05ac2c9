"""Memory of a guest and the queues in it, in C: copies that survive the removal of the memory, and
the host's side of a queue pair for measurements.

Owns access to the C functions. Does not own the copied data (emu/serve/guest_memory.py,
emu/serve/pcie_queues.py), the creation of the queues (emu/serve/vfio_load.py) or the functions
themselves (csrc/guest.c, csrc/host_queue.c).
Source: csrc/ondie.h.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import native
from .errors import KernelError

OTHER, PLAIN, CONFLICT, FAILED, LOST = range(5)
"""Kinds of requests, enum ondie_guest_kind."""
REQUEST = np.dtype(
    [
        ("prp1", "u8"), ("prp2", "u8"), ("size", "u8"), ("data", "u8"), ("command", "i8"),
        ("cid", "u4"), ("opcode", "u4"), ("kind", "u4"), ("unaligned", "u4"),
    ]
)  # fmt: skip
"""Record type of a request, as ondie_guest_request in C."""


DOORBELL = np.dtype([("number", "u4"), ("value", "u4"), ("event", "u4"), ("seen", "u4")])
"""Record type of a doorbell, as ondie_guest_doorbell in C."""


class Guest:
    """A guest's memory and its namespaces. Raises KernelError without the C extension.

    ``read``, ``write``: operations of commands. ``unit``: bytes of a mapping unit. ``transfer``:
    bytes of the largest transfer. ``area``: uint8[n], data of a batch.
    """

    def __init__(self, read: int, write: int, unit: int, transfer: int, area: np.ndarray) -> None:
        if native.lib is None:
            raise KernelError("a guest needs the C extension; it is not built")
        native.lib.ondie_guest_watch()
        self._guest = native.ffi.new("ondie_guest *")
        self._guest.read, self._guest.write = read, write
        self._guest.unit, self._guest.transfer = unit, transfer
        self._area = area
        self._guest.area = native.ffi.cast("uint8_t *", area.ctypes.data)
        self._guest.area_bytes = area.nbytes
        self._regions: Any = None
        self._spaces: Any = None

    def set_regions(self, regions: Sequence[tuple[int, int, int, bool, bool]]) -> None:
        """Set the regions: (first address, last address, address in this process or 0, readable,
        writable), sorted and disjoint. Their memory must live until they are set again."""
        self._regions = native.ffi.new("ondie_guest_region[]", max(len(regions), 1))
        for at, (first, last, memory, readable, writable) in enumerate(regions):
            each = self._regions[at]
            each.first, each.last = first, last
            each.memory = native.ffi.cast("uint8_t *", memory)
            each.readable, each.writable = readable, writable
        self._guest.regions, self._guest.count = self._regions, len(regions)

    def set_spaces(self, spaces: Iterable[tuple[int, int, int, bool]]) -> None:
        """Set the namespaces by identifier, from 0 on: (first byte on the drive, blocks or 0, bytes
        of a block, writable)."""
        given = list(spaces)
        self._spaces = native.ffi.new("ondie_guest_space[]", len(given))
        for at, (first, blocks, size, writable) in enumerate(given):
            each = self._spaces[at]
            each.first, each.blocks = first, blocks
            each.block_bytes, each.writable = size, writable
        self._guest.spaces, self._guest.nsids = self._spaces, len(given) - 1

    def set_page(self, page: int, through: bool) -> None:
        """Set the bytes of a memory page, and whether completed writes are on flash."""
        self._guest.page, self._guest.through = page, through

    # --- copies

    def read(self, address: int, size: int) -> bytearray | None:
        """Return ``size`` bytes; None if some of them are outside the guest's memory."""
        found = bytearray(size)
        place = native.ffi.from_buffer("uint8_t[]", found)
        done = native.lib.ondie_guest_copy(self._guest, address, place, size, 0)
        return found if done else None

    def read_into(self, address: int, place: Any, size: int) -> bool:
        """Copy ``size`` bytes to a C address; return False if some of them are outside the guest's
        memory."""
        return bool(native.lib.ondie_guest_copy(self._guest, address, place, size, 0))

    def write(self, address: int, data: Any) -> bool:
        """Write ``data``, a buffer; return False if a byte of the range is not writable memory.
        Bytes before that one may be written."""
        place = native.ffi.from_buffer("uint8_t[]", data)
        done = native.lib.ondie_guest_copy(self._guest, address, place, len(place), 1)
        return bool(done)

    def holds(self, address: int, size: int, to_guest: bool = False) -> bool:
        """Return True if all bytes can be read, or with ``to_guest`` written."""
        null = native.ffi.NULL
        return bool(native.lib.ondie_guest_copy(self._guest, address, null, size, to_guest))

    # --- commands

    def take_counts(self) -> tuple[int, int, int]:
        """Return the numbers of plain reads, writes, and writes that begin or end inside of a
        mapping unit, since the last call."""
        guest = self._guest
        found = int(guest.reads), int(guest.writes), int(guest.unaligned)
        guest.reads = guest.writes = guest.unaligned = 0
        return found

    def begin(self) -> None:
        """Begin a batch: the area is empty."""
        self._guest.area_used = 0


class CompletionRing:
    """A completion queue in a guest's memory."""

    def __init__(self, base: int, entries: int) -> None:
        self._queue = native.ffi.new("ondie_guest_queue *")
        self._queue.base, self._queue.entries, self._queue.phase = base, entries, 1

    @property
    def tail(self) -> int:
        return int(self._queue.tail)

    def post(self, guest: Guest, low: int, high: int) -> bool:
        """Write an entry, the halves of its 16 bytes without the phase tag; return False if the
        queue has gone."""
        return bool(native.lib.ondie_guest_post(guest._guest, self._queue, low, high))


class Batch:
    """Submission queue entries and the requests that they decode to, up to ``most``.

    ``commands``: an array of at least ``most`` records of the type ondie_command. ``requests``:
    REQUEST[most], the entries of :meth:`decode`.
    """

    def __init__(self, guest: Guest, commands: np.ndarray, most: int) -> None:
        assert commands.dtype.itemsize == native.ffi.sizeof("ondie_command")
        assert native.ffi.sizeof("ondie_guest_request") == REQUEST.itemsize
        self._guest = guest
        self._commands = commands
        self.entries = np.zeros((most, 64), np.uint8)
        self.requests = np.zeros(most, REQUEST)
        self.statuses = np.zeros(most, np.int32)
        cast = native.ffi.cast
        self._command_place = cast("ondie_command *", commands.ctypes.data)
        self._entry_place = cast("uint8_t *", self.entries.ctypes.data)
        self._request_place = cast("ondie_guest_request *", self.requests.ctypes.data)
        self._status_place = cast("int32_t *", self.statuses.ctypes.data)

    def fetch(self, at: int, address: int, count: int) -> bool:
        """Copy ``count`` entries from ``address`` on to the places from ``at`` on; return False if
        their memory has gone."""
        return self._guest.read_into(address, self._entry_place + 64 * at, 64 * count)

    def decode(self, at: int, count: int, fast: bool, made: int) -> int:
        """Decode entries ``at`` to ``at + count``. Append the commands of plain ones to the
        ``made`` ones before; return their number. ``fast``: False: none is plain."""
        return int(
            native.lib.ondie_guest_decode(
                self._guest._guest, self._entry_place + 64 * at, count, fast,
                self._request_place + at, self._command_place, made,
            )
        )  # fmt: skip

    def finish(self, at: int, count: int, sqid: int, sqhd: int, ring: CompletionRing) -> int:
        """Copy the data of plain reads among the requests, and post the completions of those that
        have succeeded by ``statuses``. Return their number, or -1 if the queue has gone."""
        return int(
            native.lib.ondie_guest_finish(
                self._guest._guest, self._request_place + at, count, self._status_place,
                sqid, sqhd, ring._queue,
            )
        )  # fmt: skip


class Doorbells:
    """Doorbells of queues in a page at address ``shadow``, and their event indexes in a page at
    ``events``. ``most``: largest number of doorbells."""

    def __init__(self, guest: Guest, shadow: int, events: int, most: int) -> None:
        self._guest, self._shadow, self._events = guest, shadow, events
        self.bells = np.zeros(most, DOORBELL)
        """DOORBELL[most]; :meth:`look` takes the first ones."""
        self._place = native.ffi.cast("ondie_guest_doorbell *", self.bells.ctypes.data)

    def look(self, count: int, spin_ns: int, arm: bool) -> int:
        """Read ``count`` doorbells for up to ``spin_ns`` until one has another value than is known.
        ``arm``: if none has, let the guest write the register when it changes one. Return 1 if one
        has another value, 0 if none has, -1 if a page is not there."""
        return int(
            native.lib.ondie_guest_doorbells(
                self._guest._guest, self._shadow, self._events, self._place, count, spin_ns, arm
            )
        )


LONGEST_NS = 30_000_000_000
"""Time in which a completion must arrive, ns."""


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
