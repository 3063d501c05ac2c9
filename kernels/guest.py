"""Access in C to a guest's memory and to the NVMe queues in it, and the host's side of a queue pair
for measurements.

Owns the calls of the C functions. A copy returns an error if the guest's memory disappears during
the copy. Does not own the copied data (emu/serve/guest_memory.py, emu/serve/pcie_queues.py), the
creation of the queues (emu/serve/vfio_load.py) or the C functions (csrc/guest.c,
csrc/host_queue.c).
Source: csrc/ondie.h.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import native
from .errors import KernelError

OTHER, PLAIN, CONFLICT, FAILED, LOST = range(5)
"""Kinds of submission queue entries, in the order of enum ondie_guest_kind. PLAIN: a read or write
that C has decoded. OTHER: an entry that C does not decode. CONFLICT: the command identifier is in
use. FAILED: a PLAIN entry that the drive completed with an error status. LOST: a PLAIN entry whose
data memory in the guest has disappeared."""
REQUEST = np.dtype(
    [
        ("prp1", "u8"), ("prp2", "u8"), ("size", "u8"), ("data", "u8"), ("command", "i8"),
        ("cid", "u4"), ("opcode", "u4"), ("kind", "u4"), ("unaligned", "u4"),
    ]
)  # fmt: skip
"""Record type of a decoded submission queue entry; it mirrors ondie_guest_request in
csrc/ondie.h."""


DOORBELL = np.dtype([("number", "u4"), ("value", "u4"), ("event", "u4"), ("seen", "u4")])
"""Record type of a shadow doorbell and its event index; it mirrors ondie_guest_doorbell in
csrc/ondie.h."""


class Guest:
    """Access to the memory of a guest (virtual machine), and the namespaces of the guest's drive.
    Raises KernelError if the C extension is not built.

    ``read``, ``write``: operation codes of the drive's read and write commands. ``unit``: size of a
    mapping unit in bytes. ``transfer``: maximum data transfer size in bytes (MDTS). ``area``:
    uint8[n], buffer for the data of one `Batch` of commands.
    """

    def __init__(self, read: int, write: int, unit: int, transfer: int, area: np.ndarray) -> None:
        if native.lib is None:
            raise KernelError("access to guest memory requires the C extension, which is not built")
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
        """Set the mapped regions of the guest's memory, sorted by address and disjoint. Each region
        is (first address, last address, address in this process or 0 if this process cannot access
        the region, readable, writable). The memory must stay mapped until the next call."""
        self._regions = native.ffi.new("ondie_guest_region[]", max(len(regions), 1))
        for at, (first, last, memory, readable, writable) in enumerate(regions):
            each = self._regions[at]
            each.first, each.last = first, last
            each.memory = native.ffi.cast("uint8_t *", memory)
            each.readable, each.writable = readable, writable
        self._guest.regions, self._guest.count = self._regions, len(regions)

    def set_spaces(self, spaces: Iterable[tuple[int, int, int, bool]]) -> None:
        """Set the namespaces. Entry i describes namespace identifier i: (first byte on the drive,
        number of blocks or 0 if not attached, block size in bytes, writable)."""
        given = list(spaces)
        self._spaces = native.ffi.new("ondie_guest_space[]", len(given))
        for at, (first, blocks, size, writable) in enumerate(given):
            each = self._spaces[at]
            each.first, each.blocks = first, blocks
            each.block_bytes, each.writable = size, writable
        self._guest.spaces, self._guest.nsids = self._spaces, len(given) - 1

    def set_page(self, page: int, through: bool) -> None:
        """Set the guest's memory page size in bytes (CC.MPS). ``through``: True if a write may
        complete only when its data is on flash."""
        self._guest.page, self._guest.through = page, through

    # --- copies

    def read(self, address: int, size: int) -> bytearray | None:
        """Return ``size`` bytes of the guest's memory at ``address``, or None if some of these
        bytes are not readable."""
        found = bytearray(size)
        place = native.ffi.from_buffer("uint8_t[]", found)
        done = native.lib.ondie_guest_copy(self._guest, address, place, size, 0)
        return found if done else None

    def read_into(self, address: int, place: Any, size: int) -> bool:
        """Copy ``size`` bytes of the guest's memory at ``address`` to the C pointer ``place``.
        Return False if some of these bytes are not readable."""
        return bool(native.lib.ondie_guest_copy(self._guest, address, place, size, 0))

    def write(self, address: int, data: Any) -> bool:
        """Write the buffer ``data`` to the guest's memory at ``address``. Return False if a byte of
        this range is not writable; the bytes before that byte may then have been written."""
        place = native.ffi.from_buffer("uint8_t[]", data)
        done = native.lib.ondie_guest_copy(self._guest, address, place, len(place), 1)
        return bool(done)

    def holds(self, address: int, size: int, to_guest: bool = False) -> bool:
        """Return True if all ``size`` bytes of the guest's memory at ``address`` can be read, or,
        if ``to_guest`` is True, written."""
        null = native.ffi.NULL
        return bool(native.lib.ondie_guest_copy(self._guest, address, null, size, to_guest))

    # --- commands

    def take_counts(self) -> tuple[int, int, int]:
        """Return the numbers of read commands, of write commands, and of write commands that are
        not aligned to the mapping unit, since the last call. Only commands that C has decoded (kind
        PLAIN) are counted."""
        guest = self._guest
        found = int(guest.reads), int(guest.writes), int(guest.unaligned)
        guest.reads = guest.writes = guest.unaligned = 0
        return found

    def begin(self) -> None:
        """Begin a batch of commands: mark the whole data buffer as free."""
        self._guest.area_used = 0


class CompletionRing:
    """An NVMe completion queue in a guest's memory: ``entries`` entries from the address ``base``
    on."""

    def __init__(self, base: int, entries: int) -> None:
        self._queue = native.ffi.new("ondie_guest_queue *")
        self._queue.base, self._queue.entries, self._queue.phase = base, entries, 1

    @property
    def tail(self) -> int:
        return int(self._queue.tail)

    def post(self, guest: Guest, low: int, high: int) -> bool:
        """Write a completion queue entry. Return False if the guest's memory at its address is not
        mapped, is not writable or can no longer be accessed. ``low``, ``high``: the two 64-bit
        halves of the entry, without the phase tag."""
        return bool(native.lib.ondie_guest_post(guest._guest, self._queue, low, high))


class Batch:
    """A batch of NVMe submission queue entries, and the requests that are decoded from them.

    ``most``: maximum number of entries. ``commands``: array of at least ``most`` records of the
    type ondie_command. The attribute ``requests``, REQUEST[most], holds the results of
    :meth:`decode`; ``statuses``, int32[most], holds the status of each command.
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
        """Copy ``count`` submission queue entries from the guest's address ``address`` to the
        entries of this batch, starting at entry ``at``. Return False if the guest's entries are not
        all in readable memory of the guest."""
        return self._guest.read_into(address, self._entry_place + 64 * at, 64 * count)

    def decode(self, at: int, count: int, fast: bool, made: int) -> int:
        """Decode ``count`` entries, starting at entry ``at``. For each PLAIN entry, append a
        command to the first ``made`` commands in ``commands``. Return the new number of commands.
        If ``fast`` is False, no entry counts as PLAIN."""
        return int(
            native.lib.ondie_guest_decode(
                self._guest._guest, self._entry_place + 64 * at, count, fast,
                self._request_place + at, self._command_place, made,
            )
        )  # fmt: skip

    def finish(self, at: int, count: int, sqid: int, sqhd: int, ring: CompletionRing) -> int:
        """Finish the PLAIN requests among ``count`` requests, starting at request ``at``, if their
        entry in ``statuses`` is 0: copy the data of reads to the guest, and post the completions to
        ``ring``. Return the number of posted completions, or -1 if the memory of the completion
        queue has disappeared. ``sqid``, ``sqhd``: identifier and head of the submission queue for
        the completion queue entries."""
        return int(
            native.lib.ondie_guest_finish(
                self._guest._guest, self._request_place + at, count, self._status_place,
                sqid, sqhd, ring._queue,
            )
        )  # fmt: skip


class Doorbells:
    """NVMe shadow doorbells in the guest's page at address ``shadow``, and their event indexes in
    the page at ``events``. ``most``: maximum number of doorbells."""

    def __init__(self, guest: Guest, shadow: int, events: int, most: int) -> None:
        self._guest, self._shadow, self._events = guest, shadow, events
        self.bells = np.zeros(most, DOORBELL)
        """DOORBELL[most]; :meth:`look` polls the first ``count`` doorbells."""
        self._place = native.ffi.cast("ondie_guest_doorbell *", self.bells.ctypes.data)

    def look(self, count: int, spin_ns: int, arm: bool) -> int:
        """Poll the first ``count`` doorbells for up to ``spin_ns`` until a value differs from the
        last known value of its doorbell. Return 1 if a value differs, 0 if no value differs, and -1
        if the page of the doorbells or of the event indexes is not memory of the guest. If no value
        differs and ``arm`` is True, write the event indexes, so that the guest writes the doorbell
        register at its next change, and read the doorbells once more."""
        return int(
            native.lib.ondie_guest_doorbells(
                self._guest._guest, self._shadow, self._events, self._place, count, spin_ns, arm
            )
        )


LONGEST_NS = 30_000_000_000
"""Maximum time that `HostQueue.run` waits for the next completion before it raises KernelError,
ns."""


class HostQueue:
    """The host's side of an NVMe queue pair. It sends commands for measurements. ``submission``,
    uint8[64 n], and ``completion``, uint8[16 n], hold the entries and must be all zeros. Doorbell
    registers are written by messages to the socket ``fd``.

    ``numbers``: indexes of the doorbells of the submission and the completion queue. ``posts``: the
    messages that write these two registers, 36 bytes each. Raises KernelError if the C extension is
    not built.
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
            raise KernelError("a host queue requires the C extension, which is not built")
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
        """Use shadow doorbells: ``doorbells`` and their event indexes ``events``, uint8[4096]
        each."""
        self._kept += [doorbells, events]
        self._queue.doorbells = native.ffi.cast("uint8_t *", doorbells.ctypes.data)
        self._queue.events = native.ffi.cast("uint8_t *", events.ctypes.data)

    @property
    def messages(self) -> int:
        """Number of messages that were sent to the socket to write doorbell registers."""
        return int(self._queue.messages)

    def run(self, entries: np.ndarray, places: np.ndarray, seconds: float) -> tuple[int, float]:
        """Keep one command for each entry of ``entries`` in flight for ``seconds``, at least until
        the first completion, and wait for the last completions. Return (number of completed
        commands, elapsed time in s).

        ``entries``: uint8[depth, 64] with a depth of at most 256. ``places``: uint64[n], the first
        blocks of the commands, used in rotation. Raises KernelError if a command fails, if no
        command completes for LONGEST_NS, if the connection ends, or if the queue is too small for
        the entries.
        """
        assert native.lib is not None and entries.dtype == np.uint8 and places.dtype == np.uint64
        if not 0 < len(entries) <= min(native.lib.ONDIE_HOST_DEPTH, self._queue.entries - 1):
            raise KernelError(
                f"{len(entries)} commands in flight: must be from 1 to "
                f"{min(native.lib.ONDIE_HOST_DEPTH, self._queue.entries - 1)}"
            )
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
            raise KernelError(
                f"a command completed with status 0x{self._queue.status & 0x7FF:x}; expected 0"
            )
        if done == native.lib.ONDIE_HOST_LATE:
            raise KernelError(f"no command completed for {LONGEST_NS / 1e9:g} s")
        if done < 0:
            raise KernelError("the connection to the server has ended; check the server's output")
        return int(done), self._queue.ran_ns * 1e-9
