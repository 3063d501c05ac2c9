"""The one mutable state of a simulation, shared by every compiled function.

Owns the list of its arrays, and the type by which compiled code takes them: a pointer to their
addresses and shapes, which counts no references (a structref does, with an atomic instruction at
every access). Does not own what the fields mean: each room defines the record layout of its table.
Source: Numba, "Low-level extension API". The same functions run on plain attributes uncompiled.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config as numba_config
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.errors import NumbaError
from numba.core.imputils import (
    lower_builtin,
    lower_getattr,
    lower_getattr_generic,
    lower_setattr_generic,
)
from numba.core.types.containers import UniTuple
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global
from numba.extending import NativeValue, infer_getattr, register_model, typeof_impl, unbox
from numba.np.numpy_support import from_dtype

from ondie.emu.engine.core.intrinsics import POLICIES
from ondie.emu.units import InputError
from ondie.kernels.jit import callback

FIELDS = (
    "cfg",  # 1 record: integer configuration (device.py)
    "reg",  # 1 record: now, counters of the pools, error (device.py)
    "key",  # int64[2 * leaves]: time of the next event below each node of a tournament (events.py)
    "tree",  # int32[2 * leaves]: the leaf it belongs to: channels, then stations (events.py)
    "fifo",  # records: first-in first-out stations: links, DRAM, ECC, CPUs (events.py)
    "txn",  # records: pool of things in flight (events.py)
    "op",  # records: timing table by flash operation (backend/timing.py)
    "cycles",  # int64[CYCLE_NAMES, planes + 1]: ps of command and address cycles (timing.py)
    "die",  # records: registers of each die (backend/nand.py)
    "queue",  # int32[dies, 2 * queues]: first and last transaction of each queue (backend/nand.py)
    "bus",  # records: each channel (backend/nand.py)
    "way",  # int32[channels, ways]: the dies of each channel (backend/nand.py)
    "touched",  # int32[channels]: channels that may have something new to grant (backend/nand.py)
    "order",  # int8[2, masks]: which of the waiting queues goes first (backend/nand.py)
    "l2p",  # uint32/uint64[devices, lpns]: ppn + 1, 0 = unmapped (backend/mapping.py)
    "p2l",  # uint32/uint64[devices, ppns]: lpn + 1
    "sectors",  # int64[devices, lpns]: sectors that hold data, where pages may be partial
    "valid",  # int32[blocks of all units]: mapped pages (reservoir: super-pages) of each block
    "block",  # records[blocks of all units] (backend/mapping.py)
    "free",  # int32[units, blocks]: ring of free blocks (backend/mapping.py)
    "front",  # records[streams, units]: open block of each stream (backend/mapping.py)
    "pool",  # records[units]: free blocks, collections, reservoir cursor (backend/mapping.py)
    "turn",  # int32[units of all zones]: units in the order of allocation (backend/geometry.py)
    "slc",  # records: blocks of each unit in pSLC mode (backend/modes.py)
    "slc_free",  # int32[units, blocks]: ring of free blocks of the fixed pSLC region
    "zone",  # records: parts of the address space with places of their own (backend/mapping.py)
    "maps",  # records[devices]: the cached part of the map (backend/cmt.py)
    "entry",  # records: entries of the map in DRAM (backend/cmt.py)
    "bucket",  # int32[devices, buckets]: lists of entries by logical page (backend/cmt.py)
    "tpage",  # records: translation pages (backend/cmt.py)
    "cache",  # records[devices]: the data cache (frontend/cache.py)
    "cpage",  # records: its places (frontend/cache.py)
    "recent",  # int32[pages]: what a destage buffer remembers of each (frontend/buffer.py)
    "stamp",  # int64[transactions]: when the write that each carries was cut (frontend/buffer.py)
    "cbucket",  # int32[devices, buckets]: lists of its pages by number (frontend/cache.py)
    "page_ps",  # int64[3, pages]: more array time of each page: read, program, second pass;
    # behind these, of the pages of blocks in pSLC mode
    "worn",  # int32[reservoir blocks of all units, planes]: erases (backend/mapping.py)
    "rmap",  # uint32[devices, super-pages]: reservoir map, physical super-page + 1
    "dev",  # records[devices]: queues and cursors of each device (device.py)
    "count",  # int64[devices, counters] (stats.py)
    "row",  # records: ring of plan rows (system.py)
    "req",  # records: ring of host requests (frontend/requests.py)
    "pair",  # records: queue pairs that bring them (frontend/pairs.py)
    "retry",  # int32[units]: units whose waiting writes should be tried again (placing.py)
    "lots",  # int64[LOTS]: what a victim policy keeps of its own, such as a random generator
    "wait",  # int64[2 * rows]: links of the lists of rows that wait for a row (system.py)
    "use",  # int64[phases + 1, leaves]: ps each resource worked for each phase, collection last
    "phase",  # records: first start and last end of each phase (system.py)
    "log",  # records: bytes that moved, in the order of events, for payload (events.py)
    "job",  # records: flash operations given by physical place, without an FTL (physical.py)
    "feed",  # records[dies]: which of them are whose (physical.py)
    "where",  # int32[jobs]: record of the die of each (physical.py)
    "rate",  # 1 record: constants of raw bit errors (backend/rber.py)
    "code",  # 1 record: what error correction can do (backend/ecc.py)
    "scale",  # float64[pages]: factor on bit error rates by page offset (backend/reading.py)
    "quality",  # records[blocks of all units]: wear and age as errors see them (backend/marks.py)
    "reading",  # records: how the read of each transaction turns out (backend/reading.py)
    "seen",  # uint32[devices, ppns]: reads of each physical page (backend/reading.py)
    "lost",  # int64[devices, ppns]: sectors that were lost before they came there (marks.py)
    "kept",  # float32[devices, ppns]: bit error rate that copy-back has passed on (marks.py)
    "message",  # records: what the tunnel's messages cost (frontend/tunnel_messages.py)
    "line",  # records: intervals of exclusive resources, for the timeline (events.py)
)


ALIKE = ("queue", "order")
"""Tables of as many columns on every drive: compiled code need not look that up."""


class RowType(types.Type):
    """Type of one record of a table: its address. ``table`` tells compiled code what else it cannot
    be part of."""

    def __init__(self, record: types.Record, table: str) -> None:
        self.record = record
        self.table = table
        super().__init__(name=f"Row({table}, {record!r})")


class TableType(types.Type):
    """Type of one array of the state as compiled code sees it: an address and up to two lengths.

    Elements are read and written by index alone, and indices are never negative: counting from the
    end, which arrays offer, costs three instructions at every access. ``columns`` is 0 where the
    second length depends on the drive.
    """

    def __init__(self, name: str, dtype: types.Type, ndim: int, columns: int = 0) -> None:
        self.table = name
        self.dtype = dtype
        self.ndim = ndim
        self.columns = columns
        self.element = RowType(dtype, name) if isinstance(dtype, types.Record) else dtype
        super().__init__(name=f"Table({name}, {dtype!r}, {ndim}, {columns})")


class StateType(types.Type):
    """Type of the state: an address. ``fields`` maps names to the types of its tables."""

    def __init__(self, fields: tuple[tuple[str, TableType], ...]) -> None:
        self.fields = fields
        # The name is the key as well, which every call of a compiled function hashes.
        digest = hashlib.sha256(repr(fields).encode()).hexdigest()[:32]
        super().__init__(name=f"State_{digest}")


SLOTS = 3
"""Words of the header per array: address and two lengths."""


@register_model(TableType)
class _TableModel(models.StructModel):
    def __init__(self, manager: Any, kind: TableType) -> None:
        members = [(name, types.intp) for name in ("data", "rows", "columns")]
        super().__init__(manager, kind, members)


register_model(StateType)(models.OpaqueModel)
register_model(RowType)(models.OpaqueModel)


@functools.cache
def _table_type(name: str, dtype: np.dtype, ndim: int, columns: int) -> TableType:
    """The same for every drive: Numba takes longer to find it than a short run to simulate."""
    return TableType(name, from_dtype(dtype), ndim, columns)


_state_type = functools.cache(StateType)


class Handle:
    """What compiled functions take: where the arrays lie. Keeps them alive."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        fields = []
        self.header = np.zeros(SLOTS * len(FIELDS), np.int64)
        for i, name in enumerate(FIELDS):
            array = getattr(arrays, name)
            if not array.flags.c_contiguous or array.ndim > SLOTS - 1:
                raise ValueError(f"state field {name}: contiguous, of at most two dimensions")
            columns = array.shape[1] if name in ALIKE else 0
            fields.append((name, _table_type(name, array.dtype, array.ndim, columns)))
            self.header[SLOTS * i] = array.ctypes.data
            self.header[SLOTS * i + 1 : SLOTS * i + 1 + array.ndim] = array.shape
        self.type = _state_type(tuple(fields))
        self.address = self.header.ctypes.data
        self.callbacks = {
            name: _compiled(name, policy, self.type) for name, policy in arrays.policies.items()
        }
        for name, compiled in self.callbacks.items():
            arrays.cfg[name] = compiled.address


@functools.cache
def _compiled(name: str, policy: Any, state: StateType) -> Any:
    """A policy as compiled code calls it, once per process; ``name`` is its configuration field.
    InputError, one line, when it cannot be compiled or does not return an integer."""
    try:
        if not policy.__module__.startswith("ondie."):  # a C callback would cut a fraction off
            policy.compile((state, types.int64))
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
def _unbox(typ: StateType, obj: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(obj, "address")
    native = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    pointer = c.builder.inttoptr(native, c.context.get_value_type(typ))
    return NativeValue(pointer, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))


@infer_getattr
class _Fields(AttributeTemplate):
    key = StateType

    def generic_resolve(self, typ: StateType, attr: str) -> Any:
        return dict(typ.fields).get(attr)


@lower_getattr_generic(StateType)
def _field(context: Any, builder: Any, typ: StateType, value: Any, attr: str) -> Any:
    kind = dict(typ.fields)[attr]
    header = builder.bitcast(value, context.get_value_type(types.intp).as_pointer())
    table = cgutils.create_struct_proxy(kind)(context, builder)
    for i, name in enumerate(("data", "rows", "columns")):
        at = cgutils.gep_inbounds(builder, header, SLOTS * FIELDS.index(attr) + i)
        word = builder.load(at)
        word.set_metadata("invariant.load", builder.module.add_metadata([]))  # out of loops
        setattr(table, name, word)
    return table._getvalue()


@infer_getattr
class _Shape(AttributeTemplate):
    key = TableType

    def resolve_shape(self, typ: TableType) -> types.Type:
        return UniTuple(types.intp, typ.ndim)


@lower_getattr(TableType, "shape")
def _shape(context: Any, builder: Any, typ: TableType, value: Any) -> Any:
    table = cgutils.create_struct_proxy(typ)(context, builder, value=value)
    lengths = [table.rows, table.columns][: typ.ndim]
    return context.make_tuple(builder, UniTuple(types.intp, typ.ndim), lengths)


def _index_type(table: TableType) -> types.Type:
    return types.intp if table.ndim == 1 else UniTuple(types.intp, table.ndim)


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], TableType):
            return signature(args[0].element, args[0], _index_type(args[0]))
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], TableType) and isinstance(args[0].dtype, types.Number):
            return signature(types.none, args[0], _index_type(args[0]), args[0].dtype)
        return None


def _element(context: Any, builder: Any, typ: TableType, value: Any, index: Any) -> Any:
    """Address of an element, as an integer."""
    table = cgutils.create_struct_proxy(typ)(context, builder, value=value)
    if typ.ndim == 2:
        row, column = cgutils.unpack_tuple(builder, index, 2)
        columns = context.get_constant(types.intp, typ.columns) if typ.columns else table.columns
        index = builder.add(builder.mul(row, columns), column)
    model = context.data_model_manager[typ.dtype]
    size = context.get_abi_sizeof(model.get_data_type())
    if isinstance(typ.dtype, types.Record):
        size = typ.dtype.size
    return builder.add(table.data, builder.mul(index, context.get_constant(types.intp, size)))


@lower_builtin(operator.getitem, TableType, types.Any)
def _get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    address = _element(context, builder, kind, *args)
    if isinstance(kind.element, RowType):
        return builder.inttoptr(address, context.get_value_type(kind.element))
    pointer = builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer())
    return _load(builder, pointer, kind.table, "")


@lower_builtin(operator.setitem, TableType, types.Any, types.Any)
def _set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    table, index, value = args
    kind = sig.args[0]
    address = _element(context, builder, kind, table, index)
    pointer = builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer())
    _store(context, builder, sig.args[2], kind.dtype, value, pointer, kind.table, "")
    return context.get_dummy_value()


@infer_getattr
class _Columns(AttributeTemplate):
    key = RowType

    def generic_resolve(self, typ: RowType, attr: str) -> Any:
        return typ.record.typeof(attr) if attr in typ.record.fields else None


def _place(context: Any, builder: Any, typ: RowType, row: Any, attr: str) -> Any:
    """Pointer to a field of a record."""
    at = builder.gep(row, [context.get_constant(types.intp, typ.record.offset(attr))])
    return builder.bitcast(at, context.get_data_type(typ.record.typeof(attr)).as_pointer())


@lower_getattr_generic(RowType)
def _read_field(context: Any, builder: Any, typ: RowType, value: Any, attr: str) -> Any:
    return _load(builder, _place(context, builder, typ, value, attr), typ.table, attr)


@lower_setattr_generic(RowType)
def _write_field(context: Any, builder: Any, sig: Any, args: Any, attr: str) -> None:
    row, value = args
    kind = sig.args[0]
    pointer = _place(context, builder, kind, row, attr)
    field = kind.record.typeof(attr)
    _store(context, builder, sig.args[1], field, value, pointer, kind.table, attr)


def _tell_apart(builder: Any, instruction: Any, table: str, field: str) -> None:
    """Say that nothing but this field of this table lies where an instruction reads or writes: LLVM
    keeps what it has read of others ("Type-based alias analysis" of its language reference)."""
    module = builder.module
    root = module.add_metadata([ir.MetaDataString(module, "ondie")])
    name = ir.MetaDataString(module, f"{table}.{field}")
    zero = ir.Constant(ir.IntType(64), 0)
    own = module.add_metadata([name, root, zero])
    instruction.set_metadata("tbaa", module.add_metadata([own, own, zero]))


def _load(builder: Any, pointer: Any, table: str, field: str) -> Any:
    value = builder.load(pointer)
    _tell_apart(builder, value, table, field)
    if table == "cfg":  # never written while compiled code runs
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _store(
    context: Any, builder: Any, given: Any, wanted: Any, value: Any, pointer: Any,
    table: str, field: str,
) -> None:  # fmt: skip
    value = context.cast(builder, value, given, wanted)
    _tell_apart(builder, builder.store(value, pointer), table, field)


class Arrays:
    """The state's arrays as plain attributes: what Python sees, and what uncompiled code runs
    on."""

    def __init__(self, **arrays: np.ndarray) -> None:
        missing = set(FIELDS) ^ set(arrays)
        if missing:
            raise ValueError(f"state fields differ: {sorted(missing)}")
        for name, array in arrays.items():
            setattr(self, name, array)
        self.policies: dict[str, Any] = {}
        """Functions by the configuration field that compiled code finds them by."""

    def __getattr__(self, name: str) -> Any:  # for type checkers: set in __init__
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def handle(self) -> Any:
        """The object that compiled functions take (this very object when Numba is disabled)."""
        if numba_config.DISABLE_JIT:
            for name, policy in self.policies.items():
                self.cfg[name] = len(POLICIES)
                POLICIES.append(policy)
            return self
        return Handle(self)


class Element:
    """One record for uncompiled code, whose attributes are the fields and nothing else: NumPy's own
    records prefer what every scalar has, such as ``size`` and ``device``."""

    __slots__ = ("_item",)

    def __init__(self, item: np.void) -> None:
        object.__setattr__(self, "_item", item)

    def __getattr__(self, name: str) -> Any:
        return self._item[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._item[name] = value


class Elements(np.recarray):
    """Array of records for uncompiled code."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return Element(item) if isinstance(item, np.void) else item


def as_records(array: np.ndarray) -> np.ndarray:
    """The array as compiled and uncompiled code take it: fields are attributes of its elements."""
    return array.view(Elements) if numba_config.DISABLE_JIT else array


def records(dtype: np.dtype, *shape: int) -> np.recarray:
    """Zeroed array of records whose fields are attributes, compiled or not."""
    try:
        zeroed = np.zeros(shape, dtype)
    except ValueError as error:  # more than an address can tell apart
        raise MemoryError(str(error)) from error
    return as_records(zeroed.view(np.recarray))  # type: ignore[return-value]


def record_type(**fields: str) -> np.dtype:
    """Aligned record of named integer fields, all int64 unless said otherwise."""
    return np.dtype(list(fields.items()), align=True)


def rounded_up(dtype: np.dtype) -> np.dtype:
    """The record with room behind it up to a power of two: it is found by a shift."""
    size = 1 << (dtype.itemsize - 1).bit_length()
    names = list(dtype.names or ())
    places = [dtype.fields[name] for name in names] if dtype.fields else []
    return np.dtype(
        {
            "names": names,
            "formats": [place[0] for place in places],
            "offsets": [place[1] for place in places],
            "itemsize": size,
        },
        align=True,
    )
