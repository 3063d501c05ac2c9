"""Prefetch of an array element, for use in loops whose addresses are known in advance.

Owns the compiled form of the prefetch and the plain Python form, which does nothing. Does not own
the prefetch distance, which each caller chooses.
Source: LLVM language reference, llvm.prefetch.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:

    def ask(array: Any, at: int) -> None:
        """Prefetch ``array[at]`` of a contiguous array; has no other effect."""

else:

    @intrinsic
    def ask(typingctx, array, at):
        """Prefetch ``array[at]`` of a contiguous array; has no other effect."""

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
            # rw = write, locality = 3 (keep in all caches), cache type = data.
            builder.call(function, [pointer, i32(1), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(array, at), codegen
