"""FP32 multiply-add with one or two roundings, and the bits of a float, for NumPy and Numba.

This module owns these primitive functions. It does not contain kernels. Source: Boldo & Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans.
Computers 57(4), 2008; Knuth's two-sum.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic
from numpy.typing import ArrayLike

from .jit import njit


def fused(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> Any:
    """Return a * b + c rounded once to float32 (fma), element by element.

    The product of two float32 numbers is exact in float64. The float64 sum is rounded to odd: an
    inexact result gets an odd last bit, so the second rounding to float32 cannot hit a false tie
    (53 >= 2 * 24 + 2 bits). This holds for denormals, infinities and NaNs. Returns float32.
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
    """Return a * b + c in float32; the product and the sum are each rounded."""
    return np.multiply(a, b, dtype=np.float32) + c


def _bits(x: np.float32) -> np.int32:
    """Return the 32 bits of a float32 as an int32."""
    return x.view(np.int32)


def _floating(word: np.int32) -> np.float32:
    """Return the float32 number whose bits are the int32 ``word``."""
    return np.int32(word).view(np.float32)


def _compiled() -> tuple[Any, Any, Any]:
    """Return the functions fma, bits and floating as intrinsics for compiled code.

    Each of them compiles to one instruction if the processor has it.
    """

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
    """Return a * b + c for float32 scalars in compiled code.

    The result is rounded once if ``once`` is True, as by `fused`; else twice, as by `rounded`.
    """
    return fma(a, b, c) if once else a * b + c
