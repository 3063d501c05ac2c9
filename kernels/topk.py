"""Top-K compression of a gradient: select the k largest magnitudes and restore the gradient.

This module owns the selection and the scatter of flat float32 arrays, in NumPy, Numba and C with
identical results. It does not own error feedback (which subtracts the selected values from the
gradient) or the choice of k.
Source: SmartComp of Smart-Infinity (HPCA 2024), which sends Top-K gradients to the drives as an
index of 4 bytes and a value of 4 bytes each.

Equal magnitudes are selected by lower index. A NaN counts as larger than infinity, so it is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import native
from .contract import Array
from .errors import KernelError
from .exact import bits
from .jit import njit
from .memory import flat

DIGIT = 1 << 16


def numpy_top_k(g: Array, k: int) -> NDArray[np.int64]:
    """Return the indices of the k largest magnitudes, int64[k], in increasing order."""
    sizes = g.view(np.uint32) & np.uint32(0x7FFFFFFF)
    order = np.argsort(~sizes, kind="stable")  # decreasing magnitude; ties by lower index
    return np.sort(order[:k])


@njit
def reached(count, left):
    """Return the digit of the ``left``-th largest number, and the count of numbers with a larger
    digit. ``count``: histogram of this digit over all numbers."""
    above = 0
    digit = count.size - 1
    while above + count[digit] < left:
        above += count[digit]
        digit -= 1
    return digit, above


@njit
def numba_top_k(g, k, index, value):
    """Write the indices and values of the k largest magnitudes of ``g`` to ``index`` and ``value``.

    Finds the k-th largest magnitude by radix selection with two 16-bit digits.
    """
    count = np.zeros(DIGIT, np.int64)
    for i in range(g.size):
        count[(bits(g[i]) & 0x7FFFFFFF) >> 16] += 1
    high, above = reached(count, k)
    left = k - above
    count[:] = 0
    for i in range(g.size):
        size = bits(g[i]) & 0x7FFFFFFF
        if size >> 16 == high:
            count[size & 0xFFFF] += 1
    low, above = reached(count, left)
    left -= above
    limit = high << 16 | low
    at = 0
    for i in range(g.size):
        size = bits(g[i]) & 0x7FFFFFFF
        if size < limit or (size == limit and left == 0):
            continue
        if size == limit:
            left -= 1
        index[at] = i
        value[at] = g[i]
        at += 1
        if at == k:
            break


def compress(g: Array, k: int, backend: str = "auto") -> tuple[NDArray[np.uint32], Array]:
    """Return indices and values of the ``k`` largest magnitudes of a flat float32 gradient.

    The indices are uint32[k] in increasing order, the values float32[k]. Raises KernelError if k is
    not in 0 .. g.size or g has 2**32 or more elements.
    """
    flat("g", g, np.float32)
    if not isinstance(k, int | np.integer) or not 0 <= k <= g.size:
        raise KernelError(f"k: {k!r}; must be from 0 to {g.size}")
    if g.size >= 1 << 32:
        raise KernelError(f"g: {g.size} elements; must be fewer than 2**32")
    backend, _ = native.choose(backend, None)
    index, value = np.empty(k, np.uint32), np.empty(k, np.float32)
    if k == 0:
        return index, value
    if backend == "c":
        work = np.empty(DIGIT, np.uint32)
        native.call("top_k", g, g.size, k, index, value, work)
    elif backend == "numba":
        numba_top_k(g, k, index, value)
    else:
        index[:] = numpy_top_k(g, k)
        value[:] = g[index]
    return index, value


def scatter(index: NDArray[np.uint32], value: Array, g: Array) -> None:
    """Restore a gradient from the indices and values of ``compress`` into ``g``, float32[n].

    All other elements of ``g`` become 0. Raises KernelError for an index beyond the end of ``g``.
    """
    flat("index", index, np.uint32)
    flat("value", value, np.float32)
    flat("g", g, np.float32, writable=True)
    if index.size != value.size:
        raise KernelError(f"index has {index.size} elements, value {value.size}; must be equal")
    if np.may_share_memory(value, g) or np.may_share_memory(index, g):
        raise KernelError("scatter: the arrays share memory; pass separate arrays")
    if index.size and int(index.max()) >= g.size:
        raise KernelError(f"index: {int(index.max())}; must be below {g.size}")
    g[:] = 0
    g[index] = value
