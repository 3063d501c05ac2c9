"""What Python has no word for: lowest set bit, number of set bits, prefetch, call by address.

Owns their compiled form and the plain Python form that uncompiled runs take.
Does not own who uses them. Source: LLVM language reference: llvm.cttz, llvm.ctpop, llvm.prefetch.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

POLICIES: list[Any] = []
"""Policies of uncompiled runs; compiled ones are called by address."""

if numba.config.DISABLE_JIT:

    def lowest_bit(mask: int) -> int:
        """Index of the lowest set bit of a mask that is not zero."""
        return (int(mask) & -int(mask)).bit_length() - 1

    def set_bits(mask: int) -> int:
        """Number of set bits of an int64."""
        return (int(mask) & 0xFFFF_FFFF_FFFF_FFFF).bit_count()

    def choose(condition: bool, yes: int, no: int) -> int:
        """``yes`` or ``no``, where nobody could guess which: no branch is taken for it."""
        return yes if condition else no

    def prefetch(array: Any, at: int) -> None:
        """Ask for an element of a table, counted row by row, ahead of its use."""

    def call_policy(st: Any, which: int, argument: int) -> int:
        """Call the policy that is registered under ``which``."""
        return int(POLICIES[which](st, argument))

else:

    @intrinsic
    def lowest_bit(typingctx, mask):
        """Index of the lowest set bit of an int64 mask that is not zero."""

        def codegen(context, builder, signature, args):
            value = context.cast(builder, args[0], signature.args[0], types.int64)
            return builder.cttz(value, ir.Constant(ir.IntType(1), 1))

        return types.int64(mask), codegen

    @intrinsic
    def set_bits(typingctx, mask):
        """Number of set bits of an int64."""

        def codegen(context, builder, signature, args):
            return builder.ctpop(context.cast(builder, args[0], signature.args[0], types.int64))

        return types.int64(mask), codegen

    @intrinsic
    def call_policy(typingctx, st, which, argument):
        """Call the policy ``int64 f(state, int64)`` at address ``which``."""

        def codegen(context, builder, signature, args):
            state, address, value = args
            i64 = ir.IntType(64)
            address = context.cast(builder, address, signature.args[1], types.int64)
            value = context.cast(builder, value, signature.args[2], types.int64)
            kind = ir.FunctionType(i64, [state.type, i64])
            return builder.call(builder.inttoptr(address, kind.as_pointer()), [state, value])

        return types.int64(st, which, argument), codegen

    @intrinsic
    def choose(typingctx, condition, yes, no):
        """The int64 ``yes`` or ``no``, where nobody could guess which: no branch is taken for it.
        Without a word to the contrary LLVM makes branches of selections that lie in loops."""

        def codegen(context, builder, signature, args):
            yes, no = (
                context.cast(builder, value, kind, types.int64)
                for value, kind in zip(args[1:], signature.args[1:], strict=True)
            )
            chosen = builder.select(args[0], yes, no)
            chosen.set_metadata("unpredictable", builder.module.add_metadata([]))
            return chosen

        return types.int64(types.boolean, yes, no), codegen

    def element_bytes(context: Any, kind: Any) -> int:
        """Bytes of an element of a table: a number, or a record."""
        if isinstance(kind.dtype, types.Record):
            return int(kind.dtype.size)
        return int(kind.dtype.bitwidth) // 8

    @intrinsic
    def prefetch(typingctx, table, at):
        """Ask for an element of a table of the state, counted row by row, ahead of its use."""

        def codegen(context, builder, signature, args):
            kind = signature.args[0]
            row = cgutils.create_struct_proxy(kind)(context, builder, value=args[0])
            index = context.cast(builder, args[1], signature.args[1], types.intp)
            size = context.get_constant(types.intp, element_bytes(context, kind))
            address = builder.add(row.data, builder.mul(index, size))
            pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
            i32 = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32]),
                "llvm.prefetch.p0",
            )
            builder.call(function, [pointer, i32(0), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(table, at), codegen
