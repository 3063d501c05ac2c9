"""Copy of bytes between two arrays in compiled code, by memcpy: Numba's assignment of slices copies
byte by byte, at a fifth of its speed.

Owns the compiled form and the plain Python form. Does not own its callers.
Source: LLVM language reference, llvm.memcpy.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:

    def copy_bytes(to: Any, to_at: int, source: Any, source_at: int, count: int) -> None:
        """Copy ``count`` bytes from ``source[source_at]`` on to ``to[to_at]`` on, both uint8."""
        to[to_at : to_at + count] = source[source_at : source_at + count]

else:

    @intrinsic
    def copy_bytes(typingctx, to, to_at, source, source_at, count):
        """Copy ``count`` bytes from ``source[source_at]`` on to ``to[to_at]`` on. Both are
        contiguous arrays of uint8 that do not overlap; their bounds are not checked."""

        def codegen(context, builder, signature, args):
            kinds = signature.args

            def place(array: int, at: int) -> Any:
                data = context.make_array(kinds[array])(context, builder, args[array]).data
                index = context.cast(builder, args[at], kinds[at], types.intp)
                pointer = builder.bitcast(data, ir.IntType(8).as_pointer())
                return builder.gep(pointer, [index])

            size = context.cast(builder, args[4], kinds[4], types.intp)
            cgutils.raw_memcpy(builder, place(0, 1), place(2, 3), size, 1)
            return context.get_dummy_value()

        return types.void(to, to_at, source, source_at, count), codegen
