"""Prefetch of an element of a plain array, for loops whose addresses are known ahead.

Owns the compiled form and the plain Python one, which does nothing.
Does not own how far ahead is right. Source: LLVM language reference, llvm.prefetch.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:

    def ask(array: Any, at: int) -> None:
        """Ask for ``array[at]`` of a contiguous array ahead of its use; changes nothing."""

else:

    @intrinsic
    def ask(typingctx, array, at):
        """Ask for ``array[at]`` of a contiguous array ahead of its use; changes nothing."""

        def codegen(context, builder, signature, args):
            kind = signature.args[0]
            data = context.make_array(kind)(context, builder, args[0]).data
            index = context.cast(builder, args[1], signature.args[1], types.intp)
            place = cgutils.gep(builder, data, index)
            pointer = builder.bitcast(place, ir.IntType(8).as_pointer())
            i32 = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32]),
                "llvm.prefetch.p0",
            )
            # To write, keep close, data.
            builder.call(function, [pointer, i32(1), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(array, at), codegen
