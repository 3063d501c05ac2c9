"""Gradient operations before the update: unscaling, the global norm, clipping, accumulation.

This module owns these operations on flat float32 arrays, in NumPy, Numba and C. Every backend,
instruction set and number of threads gives the same bits. The module does not own per-tensor
buffers or loss-scaling policies.
Source: torch.amp.GradScaler and torch.nn.utils.clip_grad_norm_ define the results. The norm is
summed in a different order than in torch (csrc/ondie.h, ondie_squares) and differs in the last
bits.

`backend`, `isa` and `threads` are as in `ondie.kernels.get`.
"""

import math

import numpy as np

from . import native
from .cast import widen
from .contract import Array
from .errors import KernelError
from .exact import bits
from .jit import njit
from .memory import flat
from .threads import GRAIN, run

BLOCK = GRAIN  # ONDIE_NORM_BLOCK
LANES = 32  # ONDIE_NORM_LANES


def numpy_unscale(g: Array, factor: np.float32) -> bool:
    """Multiply a gradient, float32[n], by a factor in place.

    Returns True if an element was infinite or NaN before the multiplication.
    """
    found = not np.isfinite(g).all()
    g *= factor
    return found


def numpy_squares(g: Array) -> np.ndarray:
    """Return the sum of squares of each block of BLOCK elements, float64[blocks]."""
    blocks = -(-g.size // BLOCK)
    padded = np.zeros(blocks * BLOCK, dtype=np.float64)
    padded[: g.size] = g
    squares = (padded * padded).reshape(blocks, BLOCK // LANES, LANES)
    lanes = np.zeros((blocks, LANES))
    for row in range(BLOCK // LANES):
        lanes += squares[:, row]
    half = LANES // 2
    while half:
        lanes[:, :half] += lanes[:, half : 2 * half]
        half //= 2
    return lanes[:, 0]


@njit
def numba_unscale(g, factor):
    """Multiply a gradient, float32[n], by a factor in place.

    Returns True if an element was infinite or NaN before the multiplication.
    """
    found = 0
    for i in range(g.size):
        if bits(g[i]) & 0x7F800000 == 0x7F800000:
            found |= 1
        g[i] = g[i] * factor
    return found != 0


@njit
def numba_squares(g, partial):
    """Write the sum of squares of each block of ``g`` to ``partial``, float64[blocks]."""
    lanes = np.empty(LANES, dtype=np.float64)
    for b in range(partial.size):
        block = g[b * BLOCK : (b + 1) * BLOCK]
        lanes[:] = 0.0
        rows = block.size // LANES
        for row in range(rows):
            part = block[row * LANES : (row + 1) * LANES]
            for j in range(LANES):
                x = np.float64(part[j])
                lanes[j] += x * x
        for j in range(block.size - rows * LANES):
            x = np.float64(block[rows * LANES + j])
            lanes[j] += x * x
        half = LANES // 2
        while half:
            for j in range(half):
                lanes[j] += lanes[j + half]
            half //= 2
        partial[b] = lanes[0]


def unscale(
    g: Array,
    scale: float,
    backend: str = "auto",
    isa: str | None = None,
    threads: int = 1,
) -> bool:
    """Divide a flat float32 gradient in place by the loss scale; return True if it is not finite.

    The factor 1 / scale is computed in double precision and rounded once to float32, as in torch.
    The result is True if any element was infinite or NaN before scaling; the caller then skips the
    step. Raises KernelError for a scale that is not positive and finite.
    """
    if not (0 < scale < math.inf):
        raise KernelError(f"scale: {scale!r}, expected a positive finite number")
    with np.errstate(over="ignore"):
        factor = np.float32(1.0 / scale)
    if not (0 < factor < math.inf):
        raise KernelError(
            f"scale = {scale!r}: 1 / scale is outside the range of float32; use a scale from 1e-38 "
            "to 1e38"
        )
    return _scaled(g, factor, *native.choose(backend, isa), threads)


def clip(
    g: Array,
    coefficient: float,
    backend: str = "auto",
    isa: str | None = None,
    threads: int = 1,
) -> None:
    """Multiply a flat float32 gradient by `coefficient` (see `clip_coefficient`), in place."""
    _scaled(g, np.float32(coefficient), *native.choose(backend, isa), threads)


def _scaled(g: Array, factor: np.float32, backend: str, isa: str | None, threads: int) -> bool:
    """Multiply a gradient by a factor in place on a backend.

    Returns True if an element was infinite or NaN before the multiplication.
    """
    flat("g", g, np.float32, writable=True)

    def work(start: int, stop: int) -> bool:
        part = g[start:stop]
        if backend == "c":
            pointer = native.pointer()
            found = native.ffi.new("int32_t *")
            native.function("unscale", isa)(pointer(part), part.size, factor, found)
            return bool(found[0])
        with np.errstate(all="ignore"):
            return bool((numba_unscale if backend == "numba" else numpy_unscale)(part, factor))

    return any(run(g.size, threads, work))


def norm(g: Array, backend: str = "auto", isa: str | None = None, threads: int = 1) -> float:
    """Return the Euclidean norm of a flat float32 gradient, summed in float64 in a fixed order.

    The sum cannot overflow: the square of the largest float32, about 1e77, is far below the largest
    float64. The result is infinity or NaN if the gradient contains infinity or NaN.
    """
    backend, isa = native.choose(backend, isa)
    flat("g", g, np.float32)
    partial = np.empty(-(-g.size // BLOCK))

    def work(start: int, stop: int) -> None:
        part, sums = g[start:stop], partial[start // BLOCK : -(-stop // BLOCK)]
        if backend == "c":
            arguments = native.pointer()(part), part.size, native.pointer("double[]")(sums)
            native.function("squares", isa)(*arguments)
        elif backend == "numba":
            numba_squares(part, sums)
        else:
            with np.errstate(all="ignore"):
                sums[:] = numpy_squares(part)

    run(g.size, threads, work)
    return math.sqrt(_total(partial))


def _total(partial: np.ndarray) -> float:
    """Return the sum of a float64 array, added in pairs.

    The order of the additions depends only on the size of the array.
    """
    while partial.size > 1:
        if partial.size % 2:
            partial = np.append(partial, 0.0)
        partial = partial[0::2] + partial[1::2]
    return float(partial[0]) if partial.size else 0.0


def clip_coefficient(total_norm: float, max_norm: float) -> float:
    """Return min(1, max_norm / (total_norm + 1e-6)) in double precision, rounded once to float32.

    The result is NaN for a NaN norm, as in torch, and 0 for an infinite norm. Raises KernelError
    for a negative max_norm.
    """
    if not (max_norm >= 0):
        raise KernelError(f"max_norm: {max_norm!r}; must be at least 0")
    coefficient = max_norm / (total_norm + 1e-6)
    return float(np.float32(1.0 if coefficient > 1.0 else coefficient))


def accumulate(
    total: Array,
    g: np.ndarray,
    backend: str = "auto",
    isa: str | None = None,
    threads: int = 1,
) -> None:
    """Add a gradient to a flat float32 sum in place.

    g: float32, float16, or uint16 that holds BF16. Each number is widened exactly and added once.
    Raises KernelError for a wrong dtype or size and for arrays that share memory.
    """
    backend, isa = native.choose(backend, isa)
    flat("total", total, np.float32, writable=True)
    kinds = {np.dtype(np.float32): 0, np.dtype(np.float16): 2, np.dtype(np.uint16): 3}
    if g.dtype not in kinds:
        raise KernelError(f"g is {g.dtype}; must be float32, float16 or uint16 (BF16)")
    flat("g", g, g.dtype)
    if g.size != total.size:
        raise KernelError(f"g has {g.size} elements, total has {total.size}; must match")
    if np.may_share_memory(total, g):
        raise KernelError("accumulate: the arrays share memory; pass separate arrays")
    kind = kinds[g.dtype]

    def work(start: int, stop: int) -> None:
        part, x = total[start:stop], g[start:stop]
        if backend == "c":
            pointers = native.pointer()(part), native.ffi.from_buffer(x)
            native.function("accumulate", isa, kind)(*pointers, part.size)
            return
        if kind:
            x = widen(x, "float16" if kind == 2 else "bfloat16", backend)
        with np.errstate(all="ignore"):
            part += x

    run(total.size, threads, work)
