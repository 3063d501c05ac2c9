"""Many updates in one call: thousands of tensors, or pages of flash in any order.

Owns the table of parts, which holds pointers cast once, and its split over threads. Does not own
the updates (update.py). Source: own; while C works on one part it asks for the memory of the next,
which is what makes pages in random order nearly as fast as an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .errors import KernelError
from .formats import BLOCK
from .native import PLACES
from .threads import LEAST, pool
from .update import Array, Update

PART = np.dtype([(name, np.uintp) for name in PLACES] + [("n", np.uint64), ("first", np.uint64)])
"""ondie_part in csrc/ondie.h."""


class Table:
    """Parts that are updated in one call; made by `tensors`, `pages` or `one`. It keeps the arrays
    alive, and they must not be resized."""

    def __init__(self, kernel: Update, parts: np.ndarray, arrays: list[tuple[np.ndarray, ...]]):
        self.kernel = kernel
        self._parts, self._arrays = parts, arrays
        self._bounds: dict[int, list[tuple[int, int]]] = {}
        self._coef: Array | None = None  # whose pointer _run holds
        self._run: Callable[[int], None] | None = None

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def parameters(self) -> int:
        """Of all parts."""
        return int(self._parts["n"].sum())

    def __call__(self, coef: Array, threads: int = 1, key: int = 0) -> None:
        """Update every part, in order within a thread. Results do not depend on `threads`."""
        if coef is self._coef and threads == 1 and self._run is not None:
            self._run(key)
            return
        if self.kernel.backend != "c":
            for arrays, part in zip(self._arrays, self._parts, strict=True):
                self.kernel.run(arrays, coef, threads, int(part["first"]), key)
            return
        if threads == 1 or not len(self._parts):
            self._coef, self._run = coef, self.kernel.caller.bound(self._parts, coef)
            self._run(key)
            return
        if threads not in self._bounds:
            self._bounds[threads] = self._split(threads)
        bounds = self._bounds[threads]
        list(
            pool(len(bounds)).map(
                lambda b: self.kernel.caller.many(self._parts[b[0] : b[1]], coef, key), bounds
            )
        )

    def _split(self, threads: int) -> list[tuple[int, int]]:
        """Runs of parts with about as many parameters each, none below what pays a thread."""
        if threads < 1:
            raise KernelError(f"threads: {threads}, want 1 or more")
        ends = np.cumsum(self._parts["n"])
        total = int(ends[-1]) if len(ends) else 0
        n = max(1, min(threads, total // LEAST, len(ends)))
        marks = [int(np.searchsorted(ends, total * (i + 1) // n)) + 1 for i in range(n - 1)]
        edges = sorted({0, *marks, len(ends)})
        return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if a < b]


def tensors(kernel: Update, parts: Sequence[Sequence[np.ndarray]]) -> Table:
    """A table of tensors: of each its arrays in the order of `kernel.slots`: w, g, states, out.

    Elements are numbered through, which matters to rounding at random. Raises KernelError for
    arrays that the kernel would refuse, and for ones that are not aligned to their elements.
    """
    rows = np.zeros(len(parts), PART)
    places = [PLACES[at] for at in kernel.places]
    some = np.zeros(1, np.float32)
    first = 0
    for i, arrays in enumerate(parts):
        if kernel.check(arrays, some) is not None:
            raise KernelError(f"{kernel.op}: tensor {i} is not aligned to its elements")
        for name, a in zip(places, arrays, strict=True):
            rows[name][i] = a.ctypes.data
        rows["n"][i] = arrays[0].size
        rows["first"][i] = first
        first += arrays[0].size
    return Table(kernel, rows, [tuple(arrays) for arrays in parts])


def one(kernel: Update, *arrays: np.ndarray) -> Table:
    """A table of one tensor: for calls again and again on the same arrays."""
    return tensors(kernel, [arrays])


def pages(kernel: Update, arrays: Sequence[np.ndarray], page: int, order: np.ndarray) -> Table:
    """A table of pages of ``page`` parameters, in ``order`` (their numbers, any integers[k], none
    twice), of large arrays in the order of `kernel.slots`. Raises KernelError."""
    if kernel.check(arrays, np.zeros(1, np.float32)) is not None:
        raise KernelError(f"{kernel.op}: an array is not aligned to its elements")
    n = arrays[0].size
    if page < 1 or n % page or (page % BLOCK and any(s.share > 1 for s in kernel.slots)):
        raise KernelError(
            f"page: {page} parameters, want a whole part of {n}, in blocks of {BLOCK}"
        )
    order = np.asarray(order, dtype=np.int64)
    if order.size and not 0 <= order.min() <= order.max() < n // page:
        raise KernelError(f"order: page {order.max()}, want 0 to {n // page - 1}")
    if np.unique(order).size != order.size:
        raise KernelError("order: a page is there twice")
    rows = np.zeros(order.size, PART)
    for at, a, slot in zip(kernel.places, arrays, kernel.slots, strict=True):
        step = page // slot.share * a.itemsize
        rows[PLACES[at]] = np.uintp(a.ctypes.data) + (order * step).astype(np.uintp)
    rows["n"] = page
    rows["first"] = order * page
    views = []
    if kernel.backend != "c":
        for start in (order * page).tolist():
            views.append(
                tuple(
                    a[start // s.share : (start + page) // s.share]
                    for a, s in zip(arrays, kernel.slots, strict=True)
                )
            )
    return Table(kernel, rows, views or [tuple(arrays)])
