"""Intrinsics that Numba lacks: lowest set bit, bit count, branchless choice, prefetch, call by
address.

Owns the compiled form of each intrinsic and the plain Python form for uncompiled runs. Does not own
the callers.
Source: LLVM language reference: llvm.cttz, llvm.ctpop, llvm.prefetch.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_double, c_int64, c_uint64
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

DECODER = CFUNCTYPE(c_int64, c_uint64, c_double, c_int64)
"""C type of the function that the engine calls to determine whether the drive's ECC decoder can
decode a page (nand/codec.py).
"""
POLICIES: list[Any] = []
"""Policy functions (functions that a user may replace, such as that of victim selection) by
index, for uncompiled runs. Compiled runs call policy functions by address.
"""

if numba.config.DISABLE_JIT:

    def lowest_bit(mask: int) -> int:
        """Return the index of the lowest set bit of a nonzero mask."""
        return (int(mask) & -int(mask)).bit_length() - 1

    def set_bits(mask: int) -> int:
        """Return the number of set bits of an int64."""
        return (int(mask) & 0xFFFF_FFFF_FFFF_FFFF).bit_count()

    def choose(condition: bool, yes: int, no: int) -> int:
        """Return ``yes`` if ``condition`` is true, else ``no``. The compiled form does not
        branch.
        """
        return yes if condition else no

    def prefetch(array: Any, at: int) -> None:
        """Prefetch element ``at`` (row-major index) of a table. The uncompiled form does
        nothing.
        """

    def call_decoder(address: int, key: int, rate: float, level: int) -> int:
        """Call the function ``int64 f(uint64, double, int64)`` at ``address``."""
        return int(DECODER(int(address))(int(key), float(rate), int(level)))

    def call_policy(st: Any, which: int, argument: int) -> int:
        """Call policy ``POLICIES[which]`` with the state and ``argument``; return its result."""
        return int(POLICIES[which](st, argument))

else:

    @intrinsic
    def lowest_bit(typingctx, mask):
        """Return the index of the lowest set bit of a nonzero int64 mask."""

        def codegen(context, builder, signature, args):
            value = context.cast(builder, args[0], signature.args[0], types.int64)
            return builder.cttz(value, ir.Constant(ir.IntType(1), 1))

        return types.int64(mask), codegen

    @intrinsic
    def set_bits(typingctx, mask):
        """Return the number of set bits of an int64."""

        def codegen(context, builder, signature, args):
            return builder.ctpop(context.cast(builder, args[0], signature.args[0], types.int64))

        return types.int64(mask), codegen

    @intrinsic
    def call_policy(typingctx, st, which, argument):
        """Call the policy ``int64 f(state, int64)`` at address ``which`` with ``argument``."""

        def codegen(context, builder, signature, args):
            state, address, value = args
            i64 = ir.IntType(64)
            address = context.cast(builder, address, signature.args[1], types.int64)
            value = context.cast(builder, value, signature.args[2], types.int64)
            kind = ir.FunctionType(i64, [state.type, i64])
            return builder.call(builder.inttoptr(address, kind.as_pointer()), [state, value])

        return types.int64(st, which, argument), codegen

    @intrinsic
    def call_decoder(typingctx, address, key, rate, level):
        """Call the function ``int64 f(uint64, double, int64)`` at ``address``."""

        def codegen(context, builder, signature, args):
            i64, given = ir.IntType(64), (types.int64, types.uint64, types.float64, types.int64)
            address, key, rate, level = (
                context.cast(builder, value, kind, wanted)
                for value, kind, wanted in zip(args, signature.args, given, strict=True)
            )
            kind = ir.FunctionType(i64, [i64, ir.DoubleType(), i64])
            called = builder.inttoptr(address, kind.as_pointer())
            return builder.call(called, [key, rate, level])

        return types.int64(address, key, rate, level), codegen

    @intrinsic
    def choose(typingctx, condition, yes, no):
        """Return the int64 ``yes`` if ``condition`` is true, else ``no``, without a branch.

        Intended for unpredictable conditions. Without the "unpredictable" metadata, LLVM turns
        selects inside loops into branches.
        """

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
        """Return the size in bytes of an element of a table (a number or a record)."""
        if isinstance(kind.dtype, types.Record):
            return int(kind.dtype.size)
        return int(kind.dtype.bitwidth) // 8

    @intrinsic
    def prefetch(typingctx, table, at):
        """Prefetch element ``at`` (row-major index) of a table of the state."""

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
