"""Casts between float32 and the two 16-bit formats, rounded to nearest even.

This module owns FP16 and BF16 casts of flat arrays in NumPy, Numba and C. All backends return the
same bits, keep denormals and map NaN to NaN. It does not use processor conversions that flush
denormals. Source: IEEE 754-2019 binary16; bfloat16 is the upper half of binary32. Results equal
torch's casts.

FP16 arrays have NumPy's float16 type. NumPy has no bfloat16, so BF16 values are stored as uint16.
"""

from typing import Any

import numpy as np

from . import native
from .contract import Array
from .errors import KernelError, unknown
from .exact import bits
from .jit import njit
from .memory import flat
from .threads import run

FORMATS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16)}


def numpy_to_fp16(x: Array) -> np.ndarray:
    """Round float32[n] to FP16; return the bits as uint16[n]."""
    return x.astype(np.float16).view(np.uint16)


def numpy_to_bf16(x: Array) -> np.ndarray:
    """Round float32[n] to BF16; return the bits as uint16[n]."""
    wide = x.view(np.uint32)
    rounded = (wide + np.uint32(0x7FFF) + ((wide >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (wide >> 16) | 0x40, rounded).astype(np.uint16)


def numpy_from_fp16(x: np.ndarray) -> Array:
    """Widen FP16 bits, uint16[n], to float32[n]."""
    return x.view(np.float16).astype(np.float32)


def numpy_from_bf16(x: np.ndarray) -> Array:
    """Widen BF16 bits, uint16[n], to float32[n]."""
    return (x.astype(np.uint32) << 16).view(np.float32)


@njit
def numba_to_fp16(x, y):
    """Round float32 ``x`` to FP16 bits in uint16 ``y``."""
    for i in range(x.size):
        word = bits(x[i])
        size = word & 0x7FFFFFFF
        if size > 0x7F800000:
            half = 0x7E00 | ((size >> 13) & 0x3FF)
        elif size >= 0x477FF000:
            half = 0x7C00
        elif size >= 0x38800000:
            half = (size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13
        else:
            half = bits(np.float32(abs(x[i]) + np.float32(0.5))) - 0x3F000000
        y[i] = ((word >> 16) & 0x8000) | half


@njit
def numba_to_bf16(x, y):
    """Round float32 ``x`` to BF16 bits in uint16 ``y``."""
    for i in range(x.size):
        word = bits(x[i])
        if word & 0x7FFFFFFF > 0x7F800000:
            y[i] = (word >> 16) & 0xFFFF | 0x40
        else:
            y[i] = ((np.int64(word) + 0x7FFF + ((word >> 16) & 1)) >> 16) & 0xFFFF


@njit
def numba_from_fp16(x, y):
    """Widen FP16 bits in uint16 ``x`` to float32 ``y``."""
    words = y.view(np.uint32)
    for i in range(x.size):
        words[i] = np.uint32(x[i] & 0x7FFF) << 13
    for i in range(x.size):
        y[i] = y[i] * np.float32(2.0**112)
    for i in range(x.size):
        if x[i] & 0x7C00 == 0x7C00:
            words[i] = 0x7F800000 | np.uint32(x[i] & 0x3FF) << 13
        words[i] |= np.uint32(x[i] & 0x8000) << 16


@njit
def numba_from_bf16(x, y):
    """Widen BF16 bits in uint16 ``x`` to float32 ``y``."""
    words = y.view(np.uint32)
    for i in range(x.size):
        words[i] = np.uint32(x[i]) << 16


NUMPY: dict[str, Any] = {
    "to_fp16": numpy_to_fp16,
    "to_bf16": numpy_to_bf16,
    "from_fp16": numpy_from_fp16,
    "from_bf16": numpy_from_bf16,
}
NUMBA: dict[str, Any] = {
    "to_fp16": numba_to_fp16,
    "to_bf16": numba_to_bf16,
    "from_fp16": numba_from_fp16,
    "from_bf16": numba_from_bf16,
}


def narrow(
    x: Array,
    form: str,
    backend: str = "auto",
    isa: str | None = None,
    threads: int = 1,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Round a flat float32 array to "float16" (returns float16) or "bfloat16" (returns uint16).

    The result is written to `out` if it is given. Raises KernelError for an invalid argument.
    """
    flat("x", x, np.float32)
    target = _target(x.size, _format(form), out)
    name = "to_fp16" if form == "float16" else "to_bf16"
    _cast(name, x, target.view(np.uint16), *native.choose(backend, isa), threads)
    return target


def widen(
    x: np.ndarray,
    form: str,
    backend: str = "auto",
    isa: str | None = None,
    threads: int = 1,
    out: np.ndarray | None = None,
) -> Array:
    """Widen a flat "float16" or "bfloat16" (uint16) array to float32, exactly.

    The result is written to `out` if it is given. Raises KernelError for an invalid argument.
    """
    flat("x", x, _format(form))
    target = _target(x.size, np.dtype(np.float32), out)
    name = "from_fp16" if form == "float16" else "from_bf16"
    _cast(name, x.view(np.uint16), target, *native.choose(backend, isa), threads)
    return target


def _format(form: str) -> np.dtype:
    """Return the NumPy dtype of a 16-bit format. Raises KernelError for another name."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    return FORMATS[form]


def _target(count: int, dtype: np.dtype, out: np.ndarray | None) -> np.ndarray:
    """Return ``out``, or a new array if ``out`` is None. Raises KernelError if the type or the size
    of ``out`` is wrong."""
    if out is None:
        return np.empty(count, dtype)
    flat("out", out, dtype, writable=True)
    if out.size != count:
        raise KernelError(f"out has {out.size} elements; must have {count}")
    return out


def _cast(
    name: str, x: np.ndarray, y: np.ndarray, backend: str, isa: str | None, threads: int
) -> None:
    """Run the cast ``name`` from array ``x`` to array ``y`` on a backend."""

    def work(start: int, stop: int) -> None:
        source, target = x[start:stop], y[start:stop]
        if backend == "c":
            kinds = ("float[]", "uint16_t[]")
            kinds = kinds if name.startswith("to") else kinds[::-1]
            pointers = [
                native.pointer(kind)(array)
                for kind, array in zip(kinds, (source, target), strict=True)
            ]
            native.function(name, isa)(*pointers, source.size)
        elif backend == "numba":
            NUMBA[name](source, target)
        else:
            with np.errstate(all="ignore"):
                target[:] = NUMPY[name](source)

    run(x.size, threads, work)
