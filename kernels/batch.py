"""Batched updates: many tensors, or many flash pages in any order, in one call.

This module owns the table of parts (tensors or pages) and casts their pointers once. It does not
own the updates (update.py).
Source: this project.

While C updates one part, it prefetches the next part. With the prefetch, an update of pages in
random order is nearly as fast as an update of one array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from .contract import Array
from .errors import KernelError
from .formats import BLOCK
from .native import PLACES
from .threads import checked
from .update import Update

PART = np.dtype([(name, np.uintp) for name in PLACES] + [("n", np.uint64), ("first", np.uint64)])
"""Record type of a part, that is, of one tensor or page of a batched update; it mirrors ondie_part
in csrc/ondie.h."""


class Table:
    """Parts (tensors or pages) that are updated in one call.

    `tensors`, `pages` and `one` create tables. A table keeps its arrays alive. The caller must not
    resize the arrays.
    """

    def __init__(self, kernel: Update, parts: np.ndarray, arrays: list[tuple[np.ndarray, ...]]):
        self.kernel = kernel
        self._parts, self._arrays = parts, arrays
        self._coef: Array | None = None  # _update is bound to _coef and _threads
        self._threads = 0
        self._update: Callable[[int], int] = lambda key: 0
        self._same: object = object()  # _coef if the kernel does not round at random
        self._again: Callable[[], int] = lambda: 0  # _update with key 0

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def parameters(self) -> int:
        """Number of parameters (model weights) in all parts."""
        return int(self._parts["n"].sum())

    def __call__(self, coef: Array, threads: int = 1, key: int | None = None) -> None:
        """Update every part; each thread updates its parts in order.

        coef, key: coefficients and key of the step, as for `Update`. Results do not depend on
        `threads`. In C, a call without `key` that repeats the previous `coef` object and `threads`
        skips all checks and pointer casts. The contents of `coef` may change between calls.
        """
        if coef is self._same and threads == self._threads and key is None:
            status = self._again()
            if status:
                self.kernel.caller.check(status)
            return
        number = self.kernel.checked_key(key)
        self.kernel.check_coef(coef)
        checked(threads)
        if self.kernel.backend != "c":
            for arrays, part in zip(self._arrays, self._parts, strict=True):
                self.kernel.run(arrays, coef, threads, int(part["first"]), key)
            return
        if coef is not self._coef or threads != self._threads:
            self._update = self.kernel.caller.bound(self._parts, coef, threads)
            self._coef, self._threads = coef, threads
            if not self.kernel.random:
                self._same, self._again = coef, partial(self._update, 0)
        self.kernel.caller.check(self._update(number))


def tensors(kernel: Update, parts: Sequence[Sequence[np.ndarray]]) -> Table:
    """Return a table with one part for each tensor.

    parts: the arrays of each tensor in the order of `kernel.slots` (w, g, states, out). Elements
    are numbered consecutively over all tensors, which matters only for stochastic rounding. Raises
    KernelError if the kernel rejects an array or if an array is not aligned to its element size.
    """
    rows = np.zeros(len(parts), PART)
    places = [PLACES[at] for at in kernel.places]
    first = 0
    for i, arrays in enumerate(parts):
        if kernel.check(arrays, None) is not None:
            raise KernelError(
                f"{kernel.op}: an array of tensor {i} begins at an address that is not a multiple "
                "of its element size; pass an aligned copy"
            )
        for name, array in zip(places, arrays, strict=True):
            rows[name][i] = array.ctypes.data
        rows["n"][i] = arrays[0].size
        rows["first"][i] = first
        first += arrays[0].size
    _apart(kernel, parts)
    return Table(kernel, rows, [tuple(arrays) for arrays in parts])


def _apart(kernel: Update, parts: Sequence[Sequence[np.ndarray]]) -> None:
    """Raise KernelError if an array that the update writes shares memory with another array of any
    part."""
    spans = []
    for i, arrays in enumerate(parts):
        for array, slot in zip(arrays, kernel.slots, strict=True):
            if array.size:
                spans.append((array.ctypes.data, array.ctypes.data + array.nbytes, slot.written, i))
    behind = written = (0, 0)  # (end address, tensor number) of all arrays / of written arrays
    for start, end, writes, i in sorted(spans):
        met = behind if writes else written
        if start < met[0]:
            raise KernelError(
                f"{kernel.op}: arrays of tensors {met[1]} and {i} share memory; pass separate "
                "arrays"
            )
        behind = max(behind, (end, i))
        written = max(written, (end, i)) if writes else written


def one(kernel: Update, *arrays: np.ndarray) -> Table:
    """Return a table with one part, the tensor in ``arrays``, for repeated updates of this
    tensor."""
    return tensors(kernel, [arrays])


def pages(kernel: Update, arrays: Sequence[np.ndarray], page: int, order: np.ndarray) -> Table:
    """Return a table of the pages of large arrays, in a given order.

    arrays: large arrays in the order of `kernel.slots`. page: parameters per page. order: page
    numbers, any integer type, shape [k], without duplicates. Raises KernelError if an argument
    breaks these rules, if the page size does not divide the arrays, or if an array is not aligned
    to its element size.
    """
    if kernel.check(arrays, None) is not None:
        raise KernelError(
            f"{kernel.op}: an array begins at an address that is not a multiple of its element "
            "size; pass an aligned copy"
        )
    count = arrays[0].size
    if (
        page < 1
        or count % page
        or (page % BLOCK and any(one_slot.share > 1 for one_slot in kernel.slots))
    ):
        raise KernelError(
            f"page: {page} parameters; must divide the {count} parameters of an array and, for "
            f"8-bit states, be a multiple of {BLOCK}"
        )
    kernel.apart(arrays)
    order = np.asarray(order)
    if order.ndim != 1 or (order.size and order.dtype.kind not in "iu"):
        raise KernelError(
            f"order is {order.dtype} {order.shape}, expected whole numbers of shape (k,)"
        )
    order = order.astype(np.int64)
    wrong = order[(order < 0) | (order >= count // page)]
    if wrong.size:
        raise KernelError(f"order: page {wrong[0]}; must be from 0 to {count // page - 1}")
    pages, times = np.unique(order, return_counts=True)
    if pages.size != order.size:
        twice = pages[times > 1][0]
        raise KernelError(
            f"order: page {twice} occurs {times[times > 1][0]} times; each page must occur at "
            "most once"
        )
    rows = np.zeros(order.size, PART)
    for at, array, slot in zip(kernel.places, arrays, kernel.slots, strict=True):
        step = page // slot.share * array.itemsize
        rows[PLACES[at]] = np.uintp(array.ctypes.data) + (order * step).astype(np.uintp)
    rows["n"] = page
    rows["first"] = order * page
    views: list[tuple[np.ndarray, ...]] = []
    if kernel.backend == "c":
        views.append(tuple(arrays))
    else:
        for start in (order * page).tolist():
            views.append(
                tuple(
                    array[start // slot.share : (start + page) // slot.share]
                    for array, slot in zip(arrays, kernel.slots, strict=True)
                )
            )
    return Table(kernel, rows, views)
