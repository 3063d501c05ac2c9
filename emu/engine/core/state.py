"""Mutable state of a simulation, shared by all compiled functions.

Owns the list of the state's arrays, the arrays' addresses for compiled code, and the compilation of
policies (functions that a user may replace, such as that of victim selection). Does not own the
arrays' types in compiled code (state_type.py) or the record types (the modules that are named next
to the tables in FIELDS).
Source: this project. Uncompiled functions access the arrays as plain attributes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import config as numba_config
from numba.core import cgutils, types
from numba.core.errors import NumbaError
from numba.extending import NativeValue, typeof_impl, unbox

from ondie.emu.engine.core.intrinsics import POLICIES
from ondie.emu.engine.core.state_type import (
    POLICY_MAY_WRITE,
    SLOTS,
    StateType,
    TableType,
    guarded_state,
    state_type,
    table_type,
)
from ondie.emu.units import InputError
from ondie.kernels.jit import callback

FIELDS = (
    "cfg",  # 1 record: integer configuration (engine/run/build.py)
    "reg",  # 1 record: now, counters of the pools, error (events.py)
    "key",  # int64[2 * leaves]: next event time below each tree node (events.py)
    "sequence",  # int64[leaves]: registration of the event of each leaf (nand/event_order.py)
    "tree",  # int32[2 * leaves]: leaf of that event: channels, then stations (events.py)
    "fifo",  # records: first-in first-out stations: links, DRAM, ECC, CPUs (events.py)
    "txn",  # records: transaction pool (events.py)
    "command",  # records: fields of each transaction that only commands use (events.py)
    "stage",  # records: stage that follows each step in this configuration (run/stage_table.py)
    "op",  # records: timing table by flash operation (nand/timing.py)
    "cycles",  # int64[CYCLE_NAMES, planes + 1]: ps of command and address cycles (nand/timing.py)
    "die",  # records: registers of each die (nand/channel.py)
    "queue",  # int32[dies, 2 * queues]: first and last transaction of each queue (nand/channel.py)
    "bus",  # records: each channel (nand/channel.py)
    "way",  # int32[channels, ways]: the dies of each channel (nand/channel.py)
    "touched",  # int32[channels]: channels that must arbitrate again (nand/channel.py)
    "order",  # int8[2, masks]: priority among the non-empty queues (nand/channel.py)
    "l2p",  # uint32/uint64[devices, lpns]: ppn + 1, 0 = unmapped (ftl/page_map.py)
    "p2l",  # uint32/uint64[devices, ppns]: lpn + 1
    "sectors",  # int64[devices, lpns]: sectors that hold data, where pages may be partial
    "stored",  # int64[devices, lpns]: sectors of each page as stored in MQSim's map (ftl/cmt.py)
    "trim_map",  # records[devices x maps]: trims that are not on flash (ftl/trim_maps.py)
    "trim_slot",  # int8[devices x SLOTS]: states of the buffers of trim maps (ftl/trim_maps.py)
    "trim_bits",  # uint8[buffers, page bytes]: their contents, for payload (ftl/trim_maps.py)
    "meta_words",  # int64[buffers, words of a page]: the memory of trim_bits
    "meta_dirty",  # int8[devices x map pages]: changed since the last checkpoint
    "meta_open",  # int8[blocks]: open at its begin (1), at that of the next one (2)
    "rewrites",  # int64[devices, REWRITES]: writes that have ended, by page (ftl/write_path.py)
    "valid",  # int32[blocks of all units]: mapped pages (reservoir: super-pages) of each block
    "block",  # records[blocks of all units] (ftl/page_map.py)
    "free",  # int32[units, blocks]: ring of free blocks (ftl/block_manager.py)
    "front",  # records[streams, units]: open block of each stream (ftl/write_frontier.py)
    "pool",  # records[units]: free blocks, collections, reservoir cursor (ftl/page_map.py)
    "upkeep",  # records[units]: refresh and scrubbing (ftl/page_map.py)
    "turn",  # int32[units of all zones]: units in the order of allocation (nand/geometry.py)
    "slc",  # records: blocks of each unit in pSLC mode (ftl/pslc.py)
    "slc_free",  # int32[units, blocks]: ring of free blocks of the fixed pSLC region
    "zone",  # records: address ranges with their own flash units (ftl/page_map.py)
    "maps",  # records[devices]: cached mapping table (ftl/cmt.py)
    "entry",  # records: entries of the mapping table in DRAM (ftl/cmt.py)
    "bucket",  # int32[devices, buckets]: lists of entries by logical page (ftl/cached_entries.py)
    "tpage",  # records: translation pages (ftl/cmt.py)
    "cache",  # records[devices]: the data cache (nvme/data_cache.py)
    "cpage",  # records: data cache slots (nvme/data_cache.py)
    "recent",  # int32[pages]: per-page state of a destage buffer (nvme/mqsim_cache.py)
    "unprogrammed",  # uint8[ppns]: 1 for pages in flight, for MQSim's cache (nvme/mqsim_cache.py)
    "stamp",  # int64[transactions]: time at which its write was split (nvme/mqsim_cache.py)
    "cbucket",  # int32[devices, buckets]: lists of cached pages by number (nvme/data_cache.py)
    "page_ps",  # int64[3, pages]: extra array time of each page: read, program, second pass;
    # followed by the pages of blocks in pSLC mode
    "worn",  # int32[reservoir blocks of all units, planes]: erases (ftl/page_map.py)
    "rmap",  # uint32[devices, super-pages]: reservoir map, physical super-page + 1
    "dev",  # records[devices]: queues and cursors of each device (engine/run/build.py)
    "count",  # int64[devices, counters] (counters.py)
    "queue_use",  # records: queues of the chips (nand/scheduler_statistics.py)
    "queue_ps",  # int64[queues, lengths]: time at each length (nand/scheduler_statistics.py)
    "chip_use",  # records: busy time of each chip (nand/scheduler_statistics.py)
    "stream_use",  # records: transactions of each flow (nand/scheduler_statistics.py)
    "issued",  # int64[3, 2]: commands by operation (nand/scheduler_statistics.py)
    "lookup",  # int64[3, 3]: look-ups of the mapping (nand/scheduler_statistics.py)
    "erase_since",  # int64[blocks]: start of each collection (nand/scheduler_statistics.py)
    "erasing",  # records[blocks]: erases in MQSim's order (nand/erase_queue.py)
    "chip_at",  # int32[dies]: chip of each die (nand/scheduler_statistics.py)
    "row",  # records: ring of plan rows (plan_rows.py)
    "req",  # records: ring of host requests (nvme/request.py)
    "done",  # int32[requests]: places of completed requests, a ring in the order of completion
    "pair",  # records: queue pairs of the requests (nvme/queue_pair.py)
    "retry",  # int32[units]: units whose stalled writes must be retried (ftl/write_path.py)
    "lots",  # int64[LOTS]: private state of a victim policy, e.g. a random generator
    "wait",  # int64[2 * rows]: links of the lists of rows that wait for a row (plan_rows.py)
    "use",  # int64[phases + 1, leaves]: busy ps per phase, garbage collection last
    "phase",  # records: first start and last end of each phase (plan_rows.py)
    "log",  # records: moved bytes in order of events, for payload (payload_log.py)
    "job",  # records: flash operations by physical address, without an FTL (nand/raw_jobs.py)
    "feed",  # records[dies]: jobs of each die (nand/raw_jobs.py)
    "where",  # int32[jobs]: record of the die of each (nand/raw_jobs.py)
    "rate",  # 1 record: constants of raw bit errors (nand/rber.py)
    "code",  # 1 record: error correction capability (nand/ecc.py)
    "effort",  # uint8[2 * points, samples]: iterations of LDPC by wrong bits (nand/ecc.py)
    "scale",  # float64[pages]: factor on bit error rates by page offset (ftl/read_retry.py)
    "quality",  # records[blocks of all units]: wear and age, for errors (ftl/page_health.py)
    "reading",  # records: outcome of the read of each transaction (ftl/read_retry.py)
    "seen",  # uint32[devices, ppns]: reads of each physical page (ftl/read_retry.py)
    "lost",  # int64[devices, ppns]: sectors lost before they were moved there (ftl/page_health.py)
    "kept",  # float32[devices, ppns]: bit error rate passed on by copy-back (ftl/page_health.py)
    "message",  # records: cost of the tunnel's messages (nvme/tunnel/message_table.py)
    "line",  # records: intervals of exclusive resources, for the timeline (events.py)
)


ALIKE = ("queue", "order")
"""Tables whose number of columns is the same for all drives. Compiled code treats this number as a
constant.
"""

CACHE_LINE = 64
"""Size of a cache line in bytes."""


class Handle:
    """Argument of compiled functions: the addresses of the state's arrays. A handle keeps the
    arrays alive.

    ``header``: int64 words, SLOTS per array. ``callbacks``: compiled policies by configuration
    field.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        fields: list[tuple[str, TableType]] = []
        words: list[int] = []
        longest = 0
        for name in FIELDS:
            array = getattr(arrays, name).view(np.ndarray)  # attributes of a recarray are slow
            if not array.flags.c_contiguous or array.ndim > SLOTS - 1:
                raise ValueError(
                    f"state field {name}: must be contiguous and have at most two dimensions"
                )
            columns = array.shape[1] if name in ALIKE else 0
            fields.append((name, table_type(name, array.dtype, array.ndim, columns)))
            words += (array.ctypes.data, *array.shape)
            words += [0] * (SLOTS - 1 - array.ndim)
            longest = max(longest, array.itemsize)
        self.header = np.array(words + [0] * (longest // 8 + 1), np.int64)
        self.type = state_type(tuple(fields))
        self.address = self.header.ctypes.data
        self.callbacks = {
            name: _compiled(name, policy, self.type) for name, policy in arrays.policies.items()
        }
        for name, compiled in self.callbacks.items():
            arrays.cfg[name] = compiled.address


user_policies: list[str] = []
"""Names of the user policies that this process has compiled."""


def is_from_user(policy: Any) -> bool:
    """Return True if a policy function was written by a user, that is, outside package ondie."""
    return not policy.__module__.startswith("ondie.")


@functools.cache
def _compiled(name: str, policy: Any, state: StateType) -> Any:
    """Compile a policy function, once per process. ``name`` is the configuration field of the
    policy.

    A user's policy is compiled for the guarded type of the state. Raises InputError (one line) if
    the policy cannot be compiled, writes to the state or does not return an integer.
    """
    try:
        if is_from_user(policy):
            user_policies.append(f"{policy.__module__.rpartition('_')[0]}.py:{policy.__name__}")
            state = guarded_state(state)
            policy.compile((state, types.int64))  # a C callback would truncate a float
            kind = policy.overloads[state, types.int64].signature.return_type
            if not isinstance(kind, types.Integer):
                raise InputError(f"ftl.{name}: {policy.__name__} returns {kind}, not an integer")
        return callback(types.int64(state, types.int64), policy)
    except NumbaError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        what = next((x for x in lines if x and not x.startswith("Failed in")), "no reason given")
        where = next((x for x in lines if x.startswith("File ")), "").rstrip(":")
        place = f" ({where})" if where else ""
        raise InputError(
            f"ftl.{name}: {policy.__name__} cannot be compiled: {what}{place}"
        ) from error


@typeof_impl.register(Handle)
def _type_of(value: Handle, context: Any) -> StateType:
    return value.type


@unbox(StateType)
def _unbox(typ: StateType, obj: Any, cfg: Any) -> NativeValue:
    address = cfg.pyapi.object_getattr_string(obj, "address")
    native = cfg.pyapi.long_as_longlong(address)
    cfg.pyapi.decref(address)
    pointer = cfg.builder.inttoptr(native, cfg.context.get_value_type(typ))
    return NativeValue(pointer, is_error=cgutils.is_not_null(cfg.builder, cfg.pyapi.err_occurred()))


class Arrays:
    """Arrays of the state as plain attributes, for Python code and for uncompiled runs."""

    def __init__(self, **arrays: np.ndarray) -> None:
        missing = set(FIELDS) ^ set(arrays)
        if missing:
            raise ValueError(
                f"arrays {sorted(missing)}: not given, or not in FIELDS; give one array per field"
            )
        for name, array in arrays.items():
            setattr(self, name, array)
        self.policies: dict[str, Any] = {}
        """Policy functions by the configuration field that holds their address."""

    def __getattr__(self, name: str) -> Any:  # for type checkers: set in __init__
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def handle(self) -> Any:
        """Return the argument that represents these arrays in calls of compiled functions: a
        Handle, or this object itself if Numba is disabled."""
        if numba_config.DISABLE_JIT:
            for name in FIELDS:
                if getattr(self, name).dtype.kind in "iu":
                    setattr(self, name, getattr(self, name).view(Numbers))
            for name, policy in self.policies.items():
                self.cfg[name] = len(POLICIES)
                POLICIES.append(self._guarded(policy) if is_from_user(policy) else policy)
            return self
        return Handle(self)

    def _guarded(self, policy: Any) -> Any:
        """Return a user's policy for uncompiled code, wrapped so that it receives read-only views
        of the tables. The views of the tables in POLICY_MAY_WRITE are writable.
        """
        views = {name: getattr(self, name).view() for name in FIELDS}
        for name, view in views.items():
            view.flags.writeable = name in POLICY_MAY_WRITE
        return lambda _, argument: policy(Arrays(**views), argument)


NARROW = frozenset((np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32))
"""Integer types that compiled code widens to int64 before it computes."""


def widened(value: Any) -> Any:
    """Return ``value``, a number read from a table, in the type in which compiled code uses it:
    int64 for the types in NARROW.

    NumPy computes in the narrow type if both operands are narrow, or if one operand is narrow and
    the other is a Python integer: ``1 << numpy.int8(8)`` is 0.
    """
    return np.int64(value) if type(value) in NARROW else value


_field = np.void.__getitem__  # numpy.record has one in Python, which takes ten times as long
_element = np.ndarray.__getitem__  # so does numpy.recarray


class Element:
    """Record of a table for uncompiled code. The attributes and items of an Element are exactly the
    fields of the record.

    In NumPy's records, attributes such as ``size`` and ``device`` hide fields with these names.
    """

    __slots__ = ("_item",)

    def __init__(self, item: np.void) -> None:
        _set_item(self, item)

    def __getattribute__(self, name: str) -> Any:
        value = _field(_item_of(self), name)
        return np.int64(value) if type(value) in NARROW else value

    def __setattr__(self, name: str, value: Any) -> None:
        _item_of(self)[name] = value

    __getitem__ = __getattribute__
    __setitem__ = __setattr__


_item_of, _set_item = Element._item.__get__, Element._item.__set__  # type: ignore[attr-defined]


class Elements(np.recarray):
    """Subclass of recarray for tables of records in uncompiled code. Reading one element returns an
    Element."""

    def __getitem__(self, index: Any) -> Any:
        item = _element(self, index)
        return Element(item) if isinstance(item, np.void) else super().__getitem__(index)


class Numbers(np.ndarray):
    """Subclass of ndarray. In uncompiled code, tables of numbers are views of this class. Reading
    one element of a NARROW integer type returns an int64."""

    def __getitem__(self, index: Any) -> Any:
        return widened(super().__getitem__(index))


def as_records(array: np.ndarray) -> np.ndarray:
    """Return an array of records as the engine uses it: a view of class Elements if Numba is
    disabled, else the array itself.
    """
    return array.view(Elements) if numba_config.DISABLE_JIT else array


def zeros(dtype: Any, *shape: int) -> np.ndarray:
    """Return a zeroed array. Raises MemoryError if the array exceeds the address space."""
    try:
        return np.zeros(shape, dtype)
    except (ValueError, OverflowError) as error:
        raise MemoryError(str(error)) from error


def records(dtype: np.dtype, *shape: int) -> np.recarray:
    """Return a zeroed array of records whose fields are attributes, in compiled and uncompiled
    code.
    """
    return as_records(zeros(dtype, *shape).view(np.recarray))  # type: ignore[return-value]


def aligned_records(dtype: np.dtype, count: int) -> np.recarray:
    """Return ``count`` zeroed records as :func:`records` does, aligned to a cache line.

    NumPy does not align large arrays to cache lines: they begin 16 bytes after the start of a cache
    line.
    """
    memory = zeros(np.uint8, count * dtype.itemsize + CACHE_LINE)
    first = -memory.ctypes.data % CACHE_LINE
    zeroed = memory[first : first + count * dtype.itemsize].view(dtype, np.recarray)
    return as_records(zeroed)  # type: ignore[return-value]


def record_type(**fields: str) -> np.dtype:
    """Return an aligned record type; ``fields`` maps names to NumPy type strings."""
    return np.dtype(list(fields.items()), align=True)


def rounded_up(dtype: np.dtype) -> np.dtype:
    """Return ``dtype`` padded to a power of two in bytes. Compiled code then computes the offset of
    a record with a shift instead of a multiplication.
    """
    fields = dict(dtype.fields or {})
    return np.dtype(
        {
            "names": list(fields),
            "formats": [place[0] for place in fields.values()],
            "offsets": [place[1] for place in fields.values()],
            "itemsize": 1 << (dtype.itemsize - 1).bit_length(),
        },
        align=True,
    )
