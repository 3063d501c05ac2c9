"""Two processor instructions that Python has no word for: lowest set bit, and prefetch.

Owns their compiled form and the plain Python form that uncompiled runs take.
Does not own who uses them. Source: LLVM language reference, llvm.cttz and llvm.prefetch.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:

    def lowest_bit(mask: int) -> int:
        """Index of the lowest set bit of a mask that is not zero."""
        return (int(mask) & -int(mask)).bit_length() - 1

    def prefetch(array: Any, at: int) -> None:
        """Ask for ``array[at]`` ahead of its use."""

else:

    @intrinsic
    def lowest_bit(typingctx, mask):
        """Index of the lowest set bit of an int64 mask that is not zero."""

        def codegen(context, builder, signature, args):
            value = context.cast(builder, args[0], signature.args[0], types.int64)
            return builder.cttz(value, ir.Constant(ir.IntType(1), 1))

        return types.int64(mask), codegen

    @intrinsic
    def prefetch(typingctx, table, at):
        """Ask for an element of a one-dimensional table of the state ahead of its use."""

        def codegen(context, builder, signature, args):
            kind = signature.args[0]
            row = cgutils.create_struct_proxy(kind)(context, builder, value=args[0])
            index = context.cast(builder, args[1], signature.args[1], types.intp)
            size = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
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
