"""Type of the simulation's state in compiled code.

Owns the type of the state, of its tables and of their records, and the guarded type that a user's
policy receives. Does not own the arrays (state.py).
Source: Numba, "Low-level extension API"; LLVM language reference, "Type-based alias analysis".

The state is a pointer to the addresses and shapes of the arrays, without reference counts. A
structref would execute an atomic instruction at every access.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.errors import LoweringError
from numba.core.imputils import (
    lower_builtin,
    lower_getattr,
    lower_getattr_generic,
    lower_setattr_generic,
)
from numba.core.types.containers import UniTuple
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global
from numba.extending import infer_getattr, register_model
from numba.np.numpy_support import from_dtype

from ondie.emu.engine.core.error_codes import E_NONE, E_OUTSIDE

POLICY_MAY_WRITE = {"lots": (), "reg": ("draws",)}
"""Tables, and fields of their records, that a user's policy may write: the policy's private state
("lots") and the counter of random draws."""


class Guard(NamedTuple):
    """Constants that compiled code needs to report an index outside a guarded table.

    ``table``: index of the guarded table in the state. ``register``: index of the table "reg".
    ``tables``: number of tables in the state. ``error``, ``error_a``, ``error_b``: byte offsets of
    these fields in the record of "reg".
    """

    table: int
    register: int
    tables: int
    error: int
    error_a: int
    error_b: int


class RowType(types.Type):
    """Type of one record of a table in compiled code. A value of this type is the address of a
    record.

    ``table``: name of the table, for alias analysis: records of different tables never overlap.
    ``guarded``: True if code may write only the fields of POLICY_MAY_WRITE.
    """

    def __init__(self, record: types.Record, table: str, guarded: bool = False) -> None:
        self.record = record
        self.table = table
        self.guarded = guarded
        super().__init__(name=f"{'Guarded' * guarded}Row({table}, {record!r})")


class TableType(types.Type):
    """Type of one array of the state in compiled code: an address and up to two lengths.

    Elements are read and written by index only. Indices must not be negative, because support for
    negative indices costs three instructions at every access. ``columns`` is the second length, or
    0 if that length depends on the drive. ``guard`` is set if the state is passed to a user's
    policy. The policy may write only the fields of POLICY_MAY_WRITE. An index outside the table
    stops the run with error E_OUTSIDE.
    """

    def __init__(
        self, name: str, dtype: types.Type, ndim: int, columns: int, guard: Guard | None = None
    ) -> None:
        self.table = name
        self.dtype = dtype
        self.ndim = ndim
        self.columns = columns
        self.guard = guard
        self.element = dtype
        if isinstance(dtype, types.Record):
            self.element = RowType(dtype, name, guard is not None)
        guarded = f", {guard}" if guard else ""
        super().__init__(name=f"Table({name}, {dtype!r}, {ndim}, {columns}{guarded})")


class StateType(types.Type):
    """Type of the state in compiled code. A value of this type is the address of the tables'
    header.

    ``fields``: (name, type) of each table.
    """

    def __init__(self, fields: tuple[tuple[str, TableType], ...]) -> None:
        self.fields = fields
        # The name is also the key, which every call of a compiled function hashes.
        digest = hashlib.sha256(repr(fields).encode()).hexdigest()[:32]
        super().__init__(name=f"State_{digest}")


SLOTS = 3
"""Number of header words per array: the address and two lengths.

The words of all arrays are followed by at least as many bytes of zeros as the longest record has. A
policy that reads outside a table reads these zeros.
"""


@register_model(TableType)
class _TableModel(models.StructModel):
    def __init__(self, manager: Any, kind: TableType) -> None:
        words = ("data", "rows", "columns") + ("header",) * (kind.guard is not None)
        super().__init__(manager, kind, [(name, types.intp) for name in words])


register_model(StateType)(models.OpaqueModel)
register_model(RowType)(models.OpaqueModel)


@functools.cache
def table_type(name: str, dtype: np.dtype, ndim: int, columns: int) -> TableType:
    """Return the type of a table. The type is cached, because its derivation is slow."""
    return TableType(name, from_dtype(dtype), ndim, columns)


state_type = functools.cache(StateType)
"""Return the type of a state with the given fields (name, table type). The result is cached."""


def guarded_state(state: StateType) -> StateType:
    """Return the variant of type ``state`` that is passed to a user's policy. Each table of the
    variant has a guard: writes are rejected, except to the fields of POLICY_MAY_WRITE, and indices
    outside the table are reported as E_OUTSIDE."""
    names = [name for name, _ in state.fields]
    record: Any = dict(state.fields)["reg"].dtype
    errors = [record.offset(name) for name in ("error", "error_a", "error_b")]
    fields = []
    for i, (name, kind) in enumerate(state.fields):
        guard = Guard(i, names.index("reg"), len(names), *errors)
        fields.append((name, TableType(name, kind.dtype, kind.ndim, kind.columns, guard)))
    return state_type(tuple(fields))


@infer_getattr
class _Fields(AttributeTemplate):
    key = StateType

    def generic_resolve(self, typ: StateType, attr: str) -> Any:
        return dict(typ.fields).get(attr)


@lower_getattr_generic(StateType)
def _field(context: Any, builder: Any, typ: StateType, value: Any, attr: str) -> Any:
    kind = dict(typ.fields)[attr]
    number = [name for name, _ in typ.fields].index(attr)
    header = builder.bitcast(value, context.get_value_type(types.intp).as_pointer())
    table = cgutils.create_struct_proxy(kind)(context, builder)
    for i, name in enumerate(("data", "rows", "columns")):
        at = cgutils.gep_inbounds(builder, header, SLOTS * number + i)
        word = builder.load(at)
        word.set_metadata("invariant.load", builder.module.add_metadata([]))  # hoisted out of loops
        setattr(table, name, word)
    if kind.guard:
        table.header = builder.ptrtoint(value, context.get_value_type(types.intp))
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


def _inside(
    builder: Any, table: Any, guard: Guard, at: Any, indices: list[Any], lengths: list[Any]
) -> Any:
    """Return the address of an element of a guarded table: ``at``, if all indices are inside the
    table.

    If an index is outside the table, record error E_OUTSIDE with the number of the table and the
    first index, and return the address of the zeros at the end of the header.
    """
    word = at.type
    inside = builder.icmp_unsigned("<", indices[0], lengths[0])
    for index, length in zip(indices[1:], lengths[1:], strict=True):
        inside = builder.and_(inside, builder.icmp_unsigned("<", index, length))
    with builder.if_then(builder.not_(inside), likely=False):
        header = builder.inttoptr(table.header, word.as_pointer())
        register = builder.load(cgutils.gep(builder, header, SLOTS * guard.register))

        def field(offset: int) -> Any:
            return builder.inttoptr(builder.add(register, word(offset)), word.as_pointer())

        none = builder.icmp_signed("==", builder.load(field(guard.error)), word(E_NONE))
        with builder.if_then(none):
            builder.store(word(E_OUTSIDE), field(guard.error))
            builder.store(word(guard.table), field(guard.error_a))
            builder.store(indices[0], field(guard.error_b))
    zeros = builder.add(table.header, word(word.width // 8 * SLOTS * guard.tables))
    return builder.select(inside, at, zeros)


def _refuse_write(kind: TableType | RowType, field: str = "") -> None:
    """Raise LoweringError for a user's policy that writes to table ``kind``, or to field ``field``
    of its records.
    """
    place = f"st.{kind.table}[...]" + (f".{field}" if field else "")
    raise LoweringError(f"it writes {place}; a policy may only read the state, except for st.lots")


def _element(context: Any, builder: Any, typ: TableType, value: Any, index: Any) -> Any:
    """Return the address of element ``index`` of table ``value`` as an integer."""
    table = cgutils.create_struct_proxy(typ)(context, builder, value=value)
    indices, lengths = [index], [table.rows]
    if typ.ndim == 2:
        indices = list(cgutils.unpack_tuple(builder, index, 2))
        columns = context.get_constant(types.intp, typ.columns) if typ.columns else table.columns
        lengths.append(columns)
        index = builder.add(builder.mul(indices[0], columns), indices[1])
    model = context.data_model_manager[typ.dtype]
    size = context.get_abi_sizeof(model.get_data_type())
    if isinstance(typ.dtype, types.Record):
        size = typ.dtype.size
    at = builder.add(table.data, builder.mul(index, context.get_constant(types.intp, size)))
    return _inside(builder, table, typ.guard, at, indices, lengths) if typ.guard else at


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
    if kind.guard and kind.table not in POLICY_MAY_WRITE:
        _refuse_write(kind)
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
    """Return a pointer to field ``attr`` of the record at address ``row``."""
    at = builder.gep(row, [context.get_constant(types.intp, typ.record.offset(attr))])
    return builder.bitcast(at, context.get_data_type(typ.record.typeof(attr)).as_pointer())


@lower_getattr_generic(RowType)
def _read_field(context: Any, builder: Any, typ: RowType, value: Any, attr: str) -> Any:
    return _load(builder, _place(context, builder, typ, value, attr), typ.table, attr)


@lower_setattr_generic(RowType)
def _write_field(context: Any, builder: Any, sig: Any, args: Any, attr: str) -> None:
    row, value = args
    kind = sig.args[0]
    if kind.guarded and attr not in POLICY_MAY_WRITE.get(kind.table, ()):
        _refuse_write(kind, attr)
    pointer = _place(context, builder, kind, row, attr)
    field = kind.record.typeof(attr)
    _store(context, builder, sig.args[1], field, value, pointer, kind.table, attr)


def _tell_apart(builder: Any, instruction: Any, table: str, field: str) -> None:
    """Mark a load or store as an access to field ``field`` of table ``table`` only.

    LLVM can then reuse values that were loaded from other fields (LLVM language reference,
    "Type-based alias analysis").
    """
    module = builder.module
    root = module.add_metadata([ir.MetaDataString(module, "ondie")])
    name = ir.MetaDataString(module, f"{table}.{field}")
    zero = ir.Constant(ir.IntType(64), 0)
    own = module.add_metadata([name, root, zero])
    instruction.set_metadata("tbaa", module.add_metadata([own, own, zero]))


def _load(builder: Any, pointer: Any, table: str, field: str) -> Any:
    value = builder.load(pointer)
    _tell_apart(builder, value, table, field)
    if table in ("cfg", "stage"):  # never written while compiled code runs
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _store(
    context: Any, builder: Any, given: Any, wanted: Any, value: Any, pointer: Any,
    table: str, field: str,
) -> None:  # fmt: skip
    value = context.cast(builder, value, given, wanted)
    _tell_apart(builder, builder.store(value, pointer), table, field)
