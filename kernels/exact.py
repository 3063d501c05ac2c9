"""Owns: a * b + c in FP32, rounded once or twice, and the bits of a float, for NumPy and Numba.
Does not: contain any kernel.
Source: Boldo & Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
rounding to odd", IEEE Trans. Computers 57(4), 2008; Knuth's two-sum.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic
from numpy.typing import ArrayLike

from .jit import njit


def fused(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> Any:
    """fma(a, b, c) = a * b + c rounded once to float32, element by element.

    The product of two float32 is exact in float64. The sum is rounded there to odd: a result that
    is not exact gets an odd last bit, so that rounding it again to float32 cannot fall on a false
    tie (53 >= 2 * 24 + 2 bits). Holds for denormals, infinities and NaNs; returns float32.
    """
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, dtype=np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = np.isfinite(total) & (error != 0) & ((total.view(np.int64) & 1) == 0)
    toward = np.where((error > 0) == (total > 0), 1, -1)
    odd = (total.view(np.int64) + np.where(even, toward, 0)).view(np.float64)
    return odd.astype(np.float32)[()]


def rounded(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> Any:
    """a * b + c, the product and the sum each rounded to float32."""
    return np.multiply(a, b, dtype=np.float32) + c


def _bits(x: np.float32) -> np.int32:
    return x.view(np.int32)


def _floating(word: np.int32) -> np.float32:
    return np.int32(word).view(np.float32)


def _compiled() -> tuple[Any, Any, Any]:
    """The same for compiled code: one instruction each where the processor has it."""

    @intrinsic
    def fma(typingctx, a, b, c):
        def codegen(context, builder, signature, args):
            return builder.fma(*args)

        return types.float32(types.float32, types.float32, types.float32), codegen

    @intrinsic
    def bits(typingctx, x):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], ir.IntType(32))

        return types.int32(types.float32), codegen

    @intrinsic
    def floating(typingctx, word):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], ir.FloatType())

        return types.float32(types.int32), codegen

    return fma, bits, floating


# Under NUMBA_DISABLE_JIT=1 kernels run as plain Python on NumPy scalars.
fma, bits, floating = (fused, _bits, _floating) if config.DISABLE_JIT else _compiled()


@njit(forceinline=True)
def compiled_mad(a, b, c, once):
    """`fused` where `once`, else `rounded`, for scalars in compiled code."""
    return fma(a, b, c) if once else a * b + c
